"""Kernel 8 with cluster launch control: tiles that are asked for, refused, delayed; and faults in how that is done."""

from __future__ import annotations

import kernel_runs
import pytest
from kernel_faults import Alteration, drop_wait, flip_wait, substitute, waits_in
from kernel_runs import cluster_tile
from test_broken_kernel8 import constant

from emugpu.errors import CannotRun
from harness.compile.artifacts import Artifact
from harness.compile.config import make_config
from harness.validation import Validation

SEEDS = 20
CONFIGS = [
    *(
        make_config(
            "kernel8",
            scheduler="clc",
            cluster=cluster,
            clc_depth=depth,
            accumulators=accumulators,
            raster_group=group,
            stages=2,
        )
        for cluster, depth, accumulators, group in (
            ((2, 1), 1, 2, 1),
            ((2, 1), 2, 2, 8),
            ((2, 1), 3, 1, 4),
            ((4, 1), 2, 2, 4),
            ((2, 2), 1, 2, 16),
            ((4, 2), 3, 2, 1),
            ((4, 4), 2, 2, 8),
        )
    ),
    make_config("kernel8", scheduler="clc", cta_group=1, cluster=(1, 1), mma_shape=(128, 128), clc_depth=1),
    make_config("kernel8", scheduler="clc", cta_group=1, cluster=(2, 2), mma_shape=(64, 64), stages=2),
]
# With one answer at a time the epilogue would have finished the tile before last whenever a tile is known: the wait for
# its accumulator would never matter.
BROKEN = CONFIGS[1]
pytestmark = pytest.mark.slow


def run(
    artifact: Artifact, size: tuple[int, int, int], resident: int, schedule: str = "fifo", seed: int = 0, ptx: str = ""
) -> tuple[dict, Validation]:
    """On a GPU that holds so many clusters at once."""
    return kernel_runs.run(
        artifact, size, "index", ptx or None, schedule=schedule, seed=seed, resident_clusters=resident
    )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label.replace(" ", "_"))
@pytest.mark.parametrize("resident", [1, 2])
def test_every_tile_exactly_once(built, config, resident):
    rows, columns = cluster_tile(config)
    for size in ((3 * rows - 5, 2 * columns - 8, 168), (2 * rows, columns, 64), (rows - 1, 8, 8)):
        for schedule, seed in (("fifo", 0), ("declining", 0), ("random", 1), ("random", 2)):
            counters, validation = run(built[config], size, resident, schedule, seed)
            assert validation.mismatches == 0, (size, schedule, seed)
            assert counters["tma_global_bytes_written"] == 2 * size[0] * size[1]


def test_those_that_run_do_the_work_of_those_that_have_not_started(built):
    """In order, nothing is refused before all is done: one cluster does everything."""
    config = CONFIGS[0]
    counters, _ = run(built[config], (4 * 256, 2 * 256, 64), 1)
    assert counters["ctas"] == 2
    counters, _ = run(built[config], (4 * 256, 2 * 256, 64), 3)
    assert counters["ctas"] == 6


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS[:5], ids=lambda config: config.label.replace(" ", "_"))
def test_random_schedules_agree(built, config):
    """Answers come late, in any order, and may refuse although there is work."""
    rows, columns = cluster_tile(config)
    for seed in range(SEEDS):
        _, validation = run(built[config], (3 * rows - 5, 2 * columns - 8, 168), 1 + seed % 3, "random", seed)
        assert validation.mismatches == 0, f"seed {seed}"


def readers(change: int) -> Alteration:
    """The barrier of empty slots waits for more or fewer of the 13 that read an answer in a cluster of two."""
    return constant(r"mbarrier\.init\.shared::cta\.b64", 13, 13 + change)


def announced(size: int) -> Alteration:
    return constant(r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64", 16, size)


FAULTS = {
    "one reader too few": readers(-1),
    "one reader too many": readers(1),
    "too few bytes announced": announced(8),
    "too many bytes announced": announced(32),
    "answers go to one CTA alone": substitute(r"(try_cancel[^;]*)\.multicast::cluster::all", r"\1"),
    "another first tile": substitute(r"mov\.u32 \s*(%r\d+), %ctaid\.x;", r"mov.u32 \1, 0;", count=0),
    "slots are never handed back": substitute(
        r"(is_canceled[^$]*?)mbarrier\.arrive\.shared::cluster\.b64[^;]*;", r"\1", count=0
    ),
    "a refusal is taken for a tile": substitute(r"mov\.b32 (%r\d+), -1;(?= @granted)", r"mov.b32 \1, 0;", count=0),
}


def outcome(artifact: Artifact, alter: Alteration, seed: int) -> str:
    try:
        _, validation = run(artifact, (1024, 512, 3 * 64), 1, "random", seed, alter(artifact.ptx))
    except CannotRun as error:
        return str(error)
    return "right" if validation.passed else "wrong"


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_seen(built, name):
    assert any(outcome(built[BROKEN], FAULTS[name], seed) != "right" for seed in range(12))


@pytest.mark.parametrize("alter", [drop_wait, flip_wait])
def test_every_wait_matters(built, alter):
    artifact = built[BROKEN]
    waits = waits_in(artifact.ptx)
    # Producer, MMA and epilogue as without answers; each of the four roles waits for answers, one for empty slots.
    assert waits == artifact.config.stages + 4 + 4 + 1
    unseen = {nth for nth in range(waits) if all(outcome(artifact, alter(nth), s) == "right" for s in range(20))}
    # Epilogue: accumulators, answers. Producer: stages, answers, and the waits of its drain, which cover each other.
    assert unseen <= set(range(4, 4 + artifact.config.stages))
