"""Kernel 8 of sm_90a with tiles from a counter: each exactly once, however the clusters race; and faults in how it is
done."""

from __future__ import annotations

import kernel_runs
import pytest
from kernel_faults import Alteration, drop_wait, flip_wait, outcome, substitute, unseen_waits, waits_in
from kernel_runs import cluster_tile

from emugpu.errors import CannotRun
from harness.compile.config import make_config

SEEDS = 20
CONFIGS = [
    make_config(
        "kernel8",
        arch="sm_90a",
        scheduler="dynamic",
        cluster=cluster,
        mma_shape=shape,
        sms=sms,
        stages=2,
        raster_group=group,
        epilogue_width=16,
    )
    for cluster, shape, sms, group in (
        ((1, 1), (64, 16), 3, 8),
        ((1, 2), (64, 32), 4, 1),
        ((2, 1), (128, 32), 6, 4),
        ((2, 2), (128, 16), 8, 16),
        ((4, 1), (64, 32), 4, 8),
    )
]
BROKEN = CONFIGS[1]
SIZE = (192, 128, 5 * 64)  # six cluster tiles for two clusters, each two and a half times round the ring
EDGE = (192, 96, 5 * 64)  # the second CTA has nothing to multiply in the last column of tiles


def names(config) -> str:
    return config.label.replace(" ", "_")


@pytest.mark.parametrize("config", CONFIGS, ids=names)
def test_every_tile_exactly_once(built, config):
    """Many tiles, ragged ones, as many as clusters, fewer. That the counter is left at 0 is part of every run."""
    rows, columns = cluster_tile(config)
    clusters = config.sms // (config.cluster[0] * config.cluster[1])
    many = (3 * rows - 5, 4 * columns - 8, 136)
    for size, tiles in ((many, 12), ((rows, clusters * columns, 64), clusters), ((rows - 1, 8, 8), 1)):
        for schedule, seed, resident in (("random", 1, None), ("random", 2, 1)):
            counters, validation = kernel_runs.run(
                built[config], size, "index", schedule=schedule, seed=seed, resident_clusters=resident
            )
            assert validation.mismatches == 0, (size, schedule, seed)
            assert counters["tma_global_bytes_written"] == 2 * size[0] * size[1]
            assert counters["mma_flops"] == kernel_runs.multiplied(config, size)
            assert counters["ctas"] == min(clusters, tiles) * config.cluster[0] * config.cluster[1]


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS, ids=names)
def test_random_schedules_agree(built, config):
    rows, columns = cluster_tile(config)
    size = (3 * rows - 5, 4 * columns - 8, 168)
    for seed in range(SEEDS):
        _, validation = kernel_runs.run(
            built[config], size, "index", schedule="random", seed=seed, resident_clusters=1 + seed % 3
        )
        assert validation.mismatches == 0, f"seed {seed}"


def readers(change: int) -> Alteration:
    """The barrier of empty slots waits for more or fewer: producer, four warps of consumers, at rank 0 another CTA."""
    return substitute(r"(sub\.s32\s+%r\d+, )6, ", rf"\g<1>{6 + change}, ")


COUNT = r"atom\.relaxed\.gpu\.global\.inc\.u32 (%r\d+), (\[%rd\d+\]), (%r\d+);"
RELEASE = r"mbarrier\.arrive\.release\.cluster\.shared::cluster\.b64[^;]*;"
SEND = r"st\.async\.shared::cluster\.mbarrier::complete_tx::bytes\.b32 (\[%r\d+\]), (%r\d+), (\[%r\d+\]);"
ANNOUNCE = r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[%r\d+\], %r\d+;"


def announce_twice(ptx: str) -> str:
    """Rank 0 announces the bytes of each answer once more, for a phase that is not there yet."""
    return substitute(rf"({ANNOUNCE})(?=(?:(?!expect_tx)[\s\S])*atom\.)", r"\1 \1")(ptx)


FAULTS = {
    "the bytes are announced twice": announce_twice,
    "one reader too few": readers(-1),
    "one reader too many": readers(1),
    "a reader does not hand back": substitute(
        r"(?s)(ld\.shared\.b32.*?)mbarrier\.arrive\.shared::cluster\.b64[^;]*;", r"\1"
    ),
    "nobody collects the readers of the other CTA": substitute(RELEASE, ""),
    "one CTA is told nothing": substitute(SEND, ""),
    "one CTA is told another number": substitute(
        SEND,
        r"{ .reg .b32 n; add.u32 n, \2, 1; st.async.shared::cluster"
        r".mbarrier::complete_tx::bytes.b32 \1, n, \3; }",
    ),
    "nobody announces the bytes": substitute(
        r"mbarrier\.arrive\.expect_tx[^;]*;(?=(?:(?!expect_tx)[\s\S])*atom\.)", ""
    ),
    "the counter never wraps": substitute(COUNT, r"atom.relaxed.gpu.global.add.u32 \1, \2, 1;"),
    "a tile is left out": substitute(r"(?s)(atom\.relaxed.*?add\.s32\s+%r\d+, %r\d+, )%r\d+;", r"\g<1>3;"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_seen(built, name):
    assert any(outcome(built[BROKEN], FAULTS[name], SIZE, "random", seed) != "right" for seed in range(8))


def test_a_counter_that_is_not_left_at_zero_is_reported(built):
    with pytest.raises(CannotRun, match="argument workspace: the kernel left 6 in counter 0, not 0"):
        kernel_runs.run(built[BROKEN], SIZE, "index", ptx=FAULTS["the counter never wraps"](built[BROKEN].ptx))


def test_a_counter_that_wraps_too_early_hands_out_tiles_twice(built):
    """The result is right, and the counter is 0: only the work tells."""
    early = substitute(COUNT, r"{ .reg .b32 n; sub.u32 n, \3, 1; atom.relaxed.gpu.global.inc.u32 \1, \2, n; }")
    right, _ = kernel_runs.run(built[BROKEN], SIZE, "index")
    wrong, _ = kernel_runs.run(built[BROKEN], SIZE, "index", ptx=early(built[BROKEN].ptx))
    assert right["mma_flops"] == 2 * SIZE[0] * SIZE[1] * SIZE[2] < wrong["mma_flops"]


@pytest.mark.parametrize("alter", [drop_wait, flip_wait])
def test_every_wait_matters(built, alter):
    """Also those for answers and for empty slots. The waits for stages in the drain cover each other."""
    artifact = built[BROKEN]
    waits = waits_in(artifact.ptx)
    # Producer: stages, answers, drain. Collector: answers, readers. Who counts: empty slots, drain.
    stages = artifact.config.stages
    others = 2 + stages + 2 + 2
    # Consumers: the first stage, one beside each of two steps of the write-out, the others, an answer; those that pass
    # a tile by: stages, an answer.
    assert waits == others + 1 + 2 + 1 + 1 + 1 + 1
    unseen = unseen_waits(artifact, alter, [SIZE, EDGE], SEEDS)
    assert unseen <= set(range(2, 2 + stages))
