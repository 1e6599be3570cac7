"""Kernel 8 with one fault planted in what it adds: accumulators that go round, rings and buffers that outlive a tile,
the order of tiles. Each must end in a report or a wrong result."""

from __future__ import annotations

import re

import pytest
from kernel_faults import Alteration, drop_wait, flip_wait, outcome, substitute, unseen_waits, waits_in
from kernel_runs import run

from harness.compile.catalog import ARCHITECTURES
from harness.compile.config import make_config

SIZE = (512, 512, 3 * 64)  # four cluster tiles for one cluster, each once and a half round the ring
EDGE = (640, 256, 3 * 64)  # the second CTA has nothing to multiply in its last row of tiles
SEEDS = 12
TILES = {"sm_100a": {}, "sm_90a": {"mma_shape": (128, 128), "ping_pong": True}}
CONFIGS = {
    arch: make_config("kernel8", arch=arch, cluster=(2, 1), scheduler="static", sms=2, stages=2, **TILES[arch])
    for arch in ARCHITECTURES
}


def constant(instruction: str, old: int, new: int) -> Alteration:
    """Every ``instruction`` whose last operand is a register with this constant gets another one."""

    def alter(ptx: str) -> str:
        uses = re.findall(rf"{instruction}[^;]*?(%r\d+)\s*;", ptx)
        held = {name for name in uses if re.search(rf"mov\.b32\s+{re.escape(name)}, {old};", ptx)}
        assert held, f"no {instruction} with {old}"
        for name in held:
            pattern = rf"({instruction}[^;]*?){re.escape(name)}(\s*;)"
            ptx = substitute(pattern, rf"{{ .reg .b32 other; mov.b32 other, {new}; \1other\2 }}", count=0)(ptx)
        return ptx

    return alter


def hand_back_before_reading(ptx: str) -> str:
    """Each epilogue warp tells the MMA thread that it has read its accumulator before its first load from it."""
    arrive = r"mbarrier\.arrive\.shared::cluster\.b64 _, \[(%r\d+)\];"
    [barrier] = re.findall(arrive, ptx)
    early = (
        "{ .reg .b32 lane; .reg .pred one; elect.sync lane|one, -1; @!one bra others; "
        rf"mbarrier.arrive.shared::cluster.b64 _, [{barrier}]; others: }} \g<0>"
    )
    return substitute(r"tcgen05\.ld\.sync", early)(substitute(arrive, "")(ptx))


ALWAYS = {
    "the peer's epilogue arrives at its own barrier": (
        "sm_100a",
        substitute(r"(mapa\.shared::cluster\.u32 %r\d+, %r\d+), %r\d+;", r"\1, 1;", count=0),
        "deadlock",
    ),
    "accumulators are never handed back": (
        "sm_100a",
        substitute(r"mbarrier\.arrive\.shared::cluster\.b64[^;]*;", "", count=0),
        "deadlock",
    ),
}
SOMETIMES = {
    # The next tile overwrites what the peer's epilogue still reads, or an arrival of the peer's is one too many.
    "the leader waits for four warps of eight": ("sm_100a", constant(r"mbarrier\.init\.shared::cta\.b64", 8, 4)),
    "accumulators are handed back before they are read": ("sm_100a", hand_back_before_reading),
    "buffers of C are filled while TMA reads them": (
        "sm_100a",
        substitute(r"cp\.async\.bulk\.wait_group\.read [1-9];", "", count=0),
    ),
    "exit while a store reads": ("sm_100a", substitute(r"cp\.async\.bulk\.wait_group\.read 0;", "", count=0)),
    "buffers are filled while TMA reads them": (
        "sm_90a",
        substitute(r"cp\.async\.bulk\.wait_group\.read 1;", "", count=0),
    ),
    "a step is stored before all warps have written it": ("sm_90a", substitute(r"bar\.sync[^;]*;", "", count=0)),
    "stages are released while they are read": (
        "sm_90a",
        substitute(r"wgmma\.wait_group\.sync\.aligned 1;", "", count=0),
    ),
    "the tile is rounded before it is finished": (
        "sm_90a",
        substitute(r"wgmma\.wait_group\.sync\.aligned 0;", "", count=0),
    ),
}


@pytest.mark.parametrize("arch", CONFIGS)
def test_unaltered_it_is_right_and_computes_every_tile_once(built, arch):
    for seed in range(3):
        counters, validation = run(built[arch], SIZE, "index", schedule="random", seed=seed)
        assert validation.mismatches == 0
        assert counters["tma_global_bytes_written"] == 2 * SIZE[0] * SIZE[1]
        assert counters["mma_flops"] == 2 * SIZE[0] * SIZE[1] * SIZE[2]
        assert counters["ctas"] == 2


@pytest.mark.parametrize("name", ALWAYS)
def test_seen_under_every_schedule(built, name):
    arch, alter, report = ALWAYS[name]
    found = [outcome(built[arch], alter, SIZE, "random", seed) for seed in range(4)]
    assert "right" not in found and all(report in text for text in found), found


@pytest.mark.parametrize("name", SOMETIMES)
def test_seen_under_some_schedule(built, name):
    arch, alter = SOMETIMES[name]
    assert any(outcome(built[arch], alter, SIZE, "random", seed) != "right" for seed in range(SEEDS))


@pytest.mark.parametrize("arch", CONFIGS)
@pytest.mark.parametrize("alter", [drop_wait, flip_wait])
def test_every_wait_matters(built, arch, alter):
    """Waits for stages and for accumulators, whose phases run on from tile to tile; on sm_90a, where the first stage of
    a tile is code of its own, also the wait of a warpgroup that passes a tile by. The waits of the drain cover each
    other."""
    artifact = built[arch]
    waits = waits_in(artifact.ptx)
    stages = artifact.config.stages
    assert waits == stages + 4
    sizes = [SIZE] if arch == "sm_100a" else [SIZE, EDGE]
    unseen = unseen_waits(artifact, alter, sizes, SEEDS)
    assert unseen <= set(range(waits - stages, waits))


@pytest.mark.parametrize("arch", CONFIGS)
def test_the_next_tile_is_not_this_one(built, arch):
    """A schedule that stands still, or leaves tiles out."""
    step = r"(add\.s32 \s*(%r\d+), \2, )(%r\d+|%nctaid\.x|\d+);"
    assert re.search(r"%nctaid\.x", built[arch].ptx), step
    wrong = substitute(r"mov\.u32 \s*(%r\d+), %nctaid\.x;", r"mov.u32 \1, 4;", count=0)
    assert outcome(built[arch], wrong, SIZE, "fifo") != "right"
