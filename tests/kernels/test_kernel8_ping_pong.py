"""Kernel 8 of sm_90a with warpgroups that take tiles in turn; and faults in how they do."""

from __future__ import annotations

import kernel_runs
import pytest
from kernel_faults import drop_wait, flip_wait, outcome, substitute, unseen_waits, waits_in
from kernel_runs import cluster_tile

from harness.compile.config import make_config

CONFIGS = [
    make_config(
        "kernel8",
        arch="sm_90a",
        ping_pong=True,
        cluster=cluster,
        mma_shape=shape,
        sms=sms,
        stages=stages,
        epilogue_width=16,
    )
    for cluster, shape, sms, stages in (
        ((1, 1), (64, 16), 1, 2),
        ((2, 1), (128, 32), 4, 3),
        ((1, 2), (64, 32), 4, 1),
        ((2, 2), (128, 16), 8, 4),
    )
]
BROKEN = CONFIGS[1]
SIZE = (512, 96, 4 * 64)  # six cluster tiles for two clusters, three each: once and a third round the ring
EDGE = (384, 96, 4 * 64)  # the second CTA has nothing to multiply in the last row of tiles


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label.replace(" ", "_"))
def test_every_tile_exactly_once(built, config):
    """An even and an odd number of tiles a CTA, one, and K steps that are more or fewer than stages."""
    rows, columns = cluster_tile(config)
    for size in ((3 * rows - 5, 4 * columns - 8, 200), (2 * rows, 3 * columns, 64), (rows - 1, 8, 136)):
        for schedule, seed in (("fifo", 0), ("random", 1), ("random", 2)):
            counters, validation = kernel_runs.run(built[config], size, "index", schedule=schedule, seed=seed)
            assert validation.mismatches == 0, (size, schedule, seed)
            assert counters["tma_global_bytes_written"] == 2 * size[0] * size[1]


FAULTS = {
    "nobody waits for its turn": substitute(r"bar\.sync\s+%r\d+, 256;", ""),
    "the second begins with the first's tile": substitute(r"bar\.arrive\s+%r\d+, 256;", "", count=1),
    "the turn is never given": substitute(r"bar\.arrive\s+%r\d+, 256;", "", count=0),
    "the tile is rounded before it is finished": substitute(r"wgmma\.wait_group\.sync\.aligned 0;", "", count=0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_seen(built, name):
    assert any(outcome(built[BROKEN], FAULTS[name], SIZE, "random", seed) != "right" for seed in range(8))


@pytest.mark.parametrize("alter", [drop_wait, flip_wait])
def test_every_wait_matters(built, alter):
    """Producer; consumers, for the first stage and for others; consumers that pass a tile by. Those of the drain cover
    each other."""
    artifact = built[BROKEN]
    stages = artifact.config.stages
    assert waits_in(artifact.ptx) == 4 + stages
    unseen = unseen_waits(artifact, alter, [SIZE, EDGE], 8)
    assert unseen <= set(range(4, 4 + stages))


WRONG = [
    ({"arch": "sm_100a"}, "the warpgroups of sm_90a take turns"),
    ({"scheduler": "dynamic"}, "fixed list of tiles; use scheduler=static, or leave out ping_pong"),
    ({"mma_shape": (256, 128)}, "use 128x128"),
    ({"mma_shape": (128, 256)}, "use 128x128"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_cannot_take_turns(options, message):
    from emugpu.errors import UsageProblem

    with pytest.raises(UsageProblem, match=message):
        make_config("kernel8", **{"arch": "sm_90a", "ping_pong": True, "cluster": (2, 1), "sms": None, **options})
