"""Kernel 6, compiled by Mojo, on the emulated GPU: exact for every cluster, size and schedule."""

from __future__ import annotations

import pytest

from harness.emulate import emulate
from harness.inputs import make_inputs
from harness.problem import Shape
from harness.runner import validate_output

CLUSTERS = ((2, 1), (4, 1), (2, 2), (4, 2), (4, 4))
TILE_MULTIPLES = [(256, 256, 64), (256, 256, 1024), (512, 768, 320), (1024, 1024, 512)]
RAGGED = [(500, 296, 584), (8, 8, 8), (1, 8, 8), (257, 264, 72), (130, 520, 328)]


def run(artifact, size, kind, **schedule):
    shape = Shape(*size)
    plan = artifact.plan(shape)
    inputs = make_inputs(shape, "bf16", kind, seed=sum(size))
    result = emulate(artifact.ptx, plan, inputs, **schedule)
    return result, validate_output(result.output, inputs, "bf16", plan)


@pytest.mark.parametrize("kind", ["integer", "index"])
@pytest.mark.parametrize("size", TILE_MULTIPLES + RAGGED, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda c: f"{c[0]}x{c[1]}")
def test_exact(artifacts, cluster, size, kind):
    _, validation = run(artifacts[cluster], size, kind)
    assert validation.mismatches == 0 and validation.passed


@pytest.mark.parametrize("kind", ["integer", "index"])
def test_exact_at_2048(artifacts, kind):
    _, validation = run(artifacts[4, 2], (2048, 2048, 2048), kind)
    assert validation.mismatches == 0 and validation.passed


@pytest.mark.parametrize("kind", ["normal", "uniform"])
@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda c: f"{c[0]}x{c[1]}")
def test_random_values_within_tolerance(artifacts, cluster, kind):
    _, validation = run(artifacts[cluster], (512, 512, 1024), kind)
    assert validation.passed and validation.max_abs_error > 0


def test_bit_level_accumulation_stays_within_tolerance(artifacts):
    _, validation = run(artifacts[2, 1], (256, 256, 256), "normal", accumulation="tensor_core")
    assert validation.passed


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda c: f"{c[0]}x{c[1]}")
def test_fifty_random_schedules_agree(artifacts, cluster):
    # Seven K steps go round the five stages once and a half; the last tile is ragged in every dimension.
    size = (128 * cluster[0] - 3, 256 * cluster[1] - 8, 7 * 64 - 24)
    for seed in range(50):
        _, validation = run(artifacts[cluster], size, "index", schedule="random", seed=seed)
        assert validation.mismatches == 0, f"seed {seed}"


def test_the_same_seed_gives_the_same_run(artifacts):
    size = (256, 256, 448)
    first, second, other = (
        run(artifacts[2, 1], size, "integer", schedule="random", seed=seed)[0].counters for seed in (11, 11, 12)
    )
    assert first == second
    assert first != other


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda c: f"{c[0]}x{c[1]}")
def test_multicast_reads_each_operand_once_per_cluster(artifacts, cluster):
    cm, cn = cluster
    size = (128 * cm, 256 * cn, 256)
    result, _ = run(artifacts[cluster], size, "integer")
    counters, (m, n, k) = result.counters, size
    by_tensor = counters["tma_global_bytes_read_by_tensor"]
    assert by_tensor == {"A": 2 * m * k, "B": 2 * n * k}
    # Every CTA needs 128 rows of A and, as half of a pair, 128 rows of B.
    assert counters["tma_shared_bytes_written"] == cm * cn * 2 * (128 + 128) * k
    assert counters["mma_flops"] == 2 * m * n * k
    assert counters["tma_global_bytes_written"] == 2 * m * n
