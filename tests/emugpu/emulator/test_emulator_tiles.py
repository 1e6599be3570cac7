"""Tiles of a warp, which execute one instruction each by itself where their member masks differ; and SMs."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, launch

from emugpu.emulator import Fault

LANES = np.arange(32)
VALUES = LANES * LANES % 11
TILE = """
and.b32 %r2, %r0, {first}; mov.b32 %r3, {ones}; shl.b32 %r3, %r3, %r2;
mul.lo.u32 %r4, %r0, %r0; rem.u32 %r4, %r4, 11; setp.gt.u32 %p0, %r4, 4;
"""
"""%r3: the mask of the lane's tile; %r4: a value; %p0: whether it is above 4."""


def tile(size: int) -> str:
    return TILE.format(first=32 - size, ones=(1 << size) - 1)


def of_tiles(size: int, function) -> np.ndarray:
    """What a function gives for the values of each tile: one value, or one for each lane."""
    parts = [np.broadcast_to(function(VALUES[n : n + size], n), size) for n in range(0, 32, size)]
    return np.concatenate(parts).astype(np.uint32)


def ballot(values: np.ndarray, first: int) -> int:
    return sum(1 << first + n for n, value in enumerate(values) if value > 4)


def equal(values: np.ndarray, first: int) -> list[int]:
    return [sum(1 << first + n for n, other in enumerate(values) if other == value) for value in values]


CASES = {
    "vote.sync.ballot.b32 %r1, %p0, %r3;": ballot,
    "vote.sync.any.pred %p1, %p0, %r3; selp.b32 %r1, 1, 0, %p1;": lambda v, n: (v > 4).any(),
    "redux.sync.add.s32 %r1, %r4, %r3;": lambda v, n: v.sum(),
    "redux.sync.max.u32 %r1, %r4, %r3;": lambda v, n: v.max(),
    "match.any.sync.b32 %r1, %r4, %r3;": equal,
    "elect.sync %r1|%p1, %r3;": lambda v, n: n,
    "bar.warp.sync %r3; mov.b32 %r1, %r4;": lambda v, n: v,
    "shfl.sync.bfly.b32 %r1, %r4, 1, 31, %r3;": lambda v, n: v[np.arange(len(v)) ^ 1],
}


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("text", CASES)
def test_each_tile_by_itself(text, size):
    for seed in (None, 0, 1):
        options = {} if seed is None else {"schedule": "random", "seed": seed}
        out = launch(tile(size) + text + STORE_R1 + "ret;", **options)
        assert (out.words(32) == of_tiles(size, CASES[text])).all()


def test_lanes_of_a_tile_that_name_others_do_not_wait_for_them():
    # Lanes 0 to 7 name all lanes below 16, which name themselves alone.
    body = "setp.lt.u32 %p0, %r0, 8; selp.b32 %r3, 65535, -1, %p0; vote.sync.any.pred %p1, %p0, %r3; ret;"
    with pytest.raises(Fault, match="until lanes 0x0000ff00 execute it with member mask 0x0000ffff; that") as said:
        launch(body)
    assert said.value.rule == "unsupported"


def test_a_shuffle_across_tiles_is_refused():
    with pytest.raises(Fault, match="which does not execute it"):
        launch(tile(8) + "shfl.sync.bfly.b32 %r1, %r4, 8, 31, %r3;" + STORE_R1 + "ret;")


@pytest.mark.parametrize(("target", "sms"), [("sm_90a", 132), ("sm_100a", 148)])
def test_ctas_are_on_sms_in_turn(target, sms):
    body = """
    mov.u32 %r2, %smid; mov.u32 %r3, %nsmid; mov.u32 %r4, %ctaid.x;
    mul.wide.u32 %rd1, %r4, 8; add.s64 %rd1, %rd0, %rd1; st.global.v2.b32 [%rd1], {%r2, %r3}; ret;
    """
    found = launch(body, grid=300, words=600, target=target, cluster=2).words(600).reshape(300, 2)
    assert (found == [[cta % sms, sms] for cta in range(300)]).all()
