"""What multicast is worth, in bytes: exact for every operand; and what the write-out of kernel 7 changes."""

from __future__ import annotations

import pytest
from kernel_runs import cluster_tile, run

from harness.compile.config import KernelConfig, make_config
from harness.problem import Shape

ELEMENT_BYTES = 2
# cluster, CTAs of an MMA: the part of the bytes of A and of B that need not be read, as (CTAs that share) - 1 of
# (CTAs that share). CTAs along N share A. CTAs along M share B, but of a pair each has rows of its own.
SAVED = {
    ((1, 1), 1): (0, 0),
    ((2, 1), 1): (0, 1 / 2),
    ((1, 2), 1): (1 / 2, 0),
    ((2, 2), 1): (1 / 2, 1 / 2),
    ((4, 4), 1): (3 / 4, 3 / 4),
    ((2, 1), 2): (0, 0),
    ((2, 2), 2): (1 / 2, 0),
    ((4, 1), 2): (0, 1 / 2),
    ((4, 4), 2): (3 / 4, 1 / 2),
}
BELOW = make_config("kernel7", arch="sm_90a", mma_shape=(64, 128), cluster=(4, 1))
CONFIGS = [
    BELOW,
    *(
        make_config("kernel6", cluster=cluster, cta_group=cta_group, multicast=multicast)
        for cluster, cta_group in SAVED
        for multicast in (True, False)
    ),
]


def counters_of(built, config: KernelConfig, size: tuple[int, int, int]) -> dict:
    counters, validation = run(built[config], size, "integer")
    assert validation.mismatches == 0
    return counters


@pytest.mark.parametrize(
    ("cluster", "cta_group"), SAVED, ids=lambda v: "x".join(map(str, v)) if isinstance(v, tuple) else f"cta{v}"
)
def test_multicast_saves_exactly_what_the_cluster_shares(built, cluster, cta_group):
    on, off = (
        make_config("kernel6", cluster=cluster, cta_group=cta_group, multicast=multicast) for multicast in (True, False)
    )
    m, n = cluster_tile(on)
    k = 256
    shared, alone = (counters_of(built, config, (m, n, k)) for config in (on, off))
    read, read_alone = (c["tma_global_bytes_read_by_tensor"] for c in (shared, alone))
    saved = {tensor: 1 - read[tensor] / read_alone[tensor] for tensor in "AB"}
    assert (saved["A"], saved["B"]) == SAVED[cluster, cta_group]
    # With multicast a cluster reads each operand once; without, each CTA all that it needs.
    rows_of_b = on.mma_shape[1] // cta_group
    ctas = cluster[0] * cluster[1]
    assert read == {"A": ELEMENT_BYTES * m * k, "B": ELEMENT_BYTES * n * k}
    assert read_alone == {
        "A": ctas * (m // cluster[0]) * k * ELEMENT_BYTES,
        "B": ctas * rows_of_b * k * ELEMENT_BYTES,
    }
    # What arrives is the same, and so is the work.
    for name in ("tma_shared_bytes_written", "mma_instructions", "mma_flops", "tma_global_bytes_written"):
        assert shared[name] == alone[name]
    assert shared["tma_shared_bytes_written"] == sum(read_alone.values())
    assert shared["mma_flops"] == 2 * m * n * k
    assert shared["tma_global_bytes_written"] == ELEMENT_BYTES * m * n


@pytest.mark.slow
def test_two_stores_of_kernel7_are_in_flight(series):
    size = (512, 512, 512)
    in_flight = {
        kernel: max(
            run(series[kernel], size, "integer", schedule=schedule)[0]["max_stores_in_flight"]
            for schedule in ("fifo", "random")
        )
        for kernel in series
    }
    assert in_flight == {"kernel5": 1, "kernel6": 1, "kernel7": 2, "kernel8": 2}


def test_a_cluster_below_c_loads_nothing(built):
    """Nine rows of clusters in two bands of five: the last row of the second band lies below C."""
    artifact = built[BELOW]
    rows, m, n, k = 9, 9 * 256, 128, 128
    assert artifact.plan(Shape(m, n, k)).grid == (5 * 4, 1, 2)
    counters, validation = run(artifact, (m, n, k), "integer")
    assert validation.mismatches == 0
    read = {"A": ELEMENT_BYTES * m * k, "B": rows * ELEMENT_BYTES * n * k}
    assert counters["tma_global_bytes_read_by_tensor"] == read
