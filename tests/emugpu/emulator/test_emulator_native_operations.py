"""Every micro-operation of the native engine: what Mojo makes of 32 lanes against its meaning for one lane."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from native_engine import TakenBack, kind_of, run_operation

from emugpu.emulator.instructions.operations import BY_NAME, OPERATIONS, MicroOperation
from emugpu.emulator.native.rows import PREDICATE, WIDE

EDGES = {
    "32": [0, 1, 2, 7, 8, 31, 32, 33, 63, 64, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000,
           0x80000001, 0xFFFFFFFE, 0xFFFFFFFF, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001,
           0x7F800001, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x33800000, 0x38800000, 0x477FF000,
           0x47800000, 0x3F801000, 0x3F808000, 0x3F818000],
    "64": [0, 1, 31, 63, 64, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, (1 << 64) - 1,
           0x3F800000_7F800000, 0xFF800000_BF800000, 0x00000001_7F7FFFFF, 0x7F800001_3F808000,
           0x3FF00000_00000000, 0xBFF80000_00000000, 0x40040000_00000000, 0xC1E00000_00200000, 0x7FF00000_00000000,
           0xFFF00000_00000000, 0x7FF00000_00000001, 0xFFFC0000_00000002, 0x47EFFFFF_F0000000, 0x36A00000_00000000],
}  # fmt: skip


DRAWS = 12


def draw_number(rng: random.Random, type_name: str) -> int:
    """An edge value, any number, or a small one."""
    if type_name == "pred":
        return rng.getrandbits(1)
    bits = 64 if type_name.endswith("64") else 32
    return rng.choice((rng.choice(EDGES[str(bits)]), rng.getrandbits(bits), rng.getrandbits(6)))


def row(type_name: str, numbers: Iterable[int]) -> np.ndarray:
    kind = kind_of(type_name)
    return np.array(list(numbers), np.bool_ if kind == PREDICATE else np.uint64 if kind == WIDE else np.uint32)


def draw_values(rng: random.Random, type_name: str) -> Any:
    """One scalar for all lanes, or 32 numbers."""
    if rng.random() < 0.5:
        return row(type_name, (draw_number(rng, type_name) for _ in range(32)))
    scalar = draw_number(rng, type_name)
    return bool(scalar) if type_name == "pred" else scalar


def lane_of(value: Any, lane: int) -> int:
    return int(value[lane]) if isinstance(value, np.ndarray) else int(value)


def difference_in_drawn_lanes(operation: MicroOperation, rng: random.Random) -> str:
    """What the first wrong lane is, of one draw; empty if all are right."""
    sources = [draw_values(rng, kind) for kind in operation.sources]
    old = draw_values(rng, operation.result)
    guard = draw_values(rng, "pred") if rng.random() < 0.7 else None
    negated, imm = rng.random() < 0.5, rng.getrandbits(8)
    try:
        found = run_operation(operation.name, sources, old, guard, negated, imm)
    except TakenBack:
        return "" if operation.nearly else "it was taken back"
    for lane in range(32):
        given = [lane_of(source, lane) for source in sources]
        taken = guard is None or bool(lane_of(guard, lane)) != negated
        expected = operation.lane(*given, imm=imm) if taken else lane_of(old, lane)
        if lane_of(found, lane) != expected:
            return f"lane {lane} of {[*map(hex, given)]} is {lane_of(found, lane):#x}, not {expected:#x}"
    return ""


@pytest.mark.thorough
def test_each_lane_is_what_the_table_says():
    wrong = {}
    for operation in OPERATIONS:
        rng = random.Random(operation.name)
        wrong[operation.name] = [
            difference for _ in range(DRAWS) if (difference := difference_in_drawn_lanes(operation, rng))
        ]
    assert {name: differences for name, differences in wrong.items() if differences} == {}


def difference_in_pairs(operation: MicroOperation) -> str:
    """Every pair of edge values: all lanes at once, the pairs one after the other."""
    edges = [EDGES["64" if kind.endswith("64") else "32"] for kind in operation.sources]
    edges = [[0, 1] if kind == "pred" else found for kind, found in zip(operation.sources, edges, strict=True)]
    pairs = [(a, b) for a in edges[0] for b in (edges[1] if len(edges) > 1 else [0])]
    third = edges[2] if len(edges) > 2 else [0]
    for start in range(0, len(pairs), 32):
        some = [pairs[(start + lane) % len(pairs)] for lane in range(32)]
        lanes = [(*pair, third[(start // 32 + lane) % len(third)])[: len(edges)] for lane, pair in enumerate(some)]
        sources = [
            row(kind, numbers) for kind, numbers in zip(operation.sources, zip(*lanes, strict=True), strict=True)
        ]
        found = [int(value) for value in run_operation(operation.name, sources, 0)]
        for given, got in zip(lanes, found, strict=True):
            if got != operation.lane(*given):
                return f"{[*map(hex, given)]} is {got:#x}, not {operation.lane(*given):#x}"
    return ""


@pytest.mark.thorough
@pytest.mark.nightly_unless_changed("emugpu/emulator/instructions", "emugpu/emulator/native")
def test_every_pair_of_edge_values():
    wrong = {operation.name: difference_in_pairs(operation) for operation in OPERATIONS}
    assert {name: difference for name, difference in wrong.items() if difference} == {}


def test_a_result_is_a_scalar_where_python_has_one():
    lanes = np.arange(32, dtype=np.uint32)
    assert run_operation("add.32", [3, 4], 0) == 7
    assert isinstance(run_operation("add.32", [3, 4], 0), int)
    assert isinstance(run_operation("add.32", [lanes, 4], 0), np.ndarray)
    assert isinstance(run_operation("setp.lt.u32", [3, 4], False), bool)
    assert isinstance(run_operation("selp.32", [lanes, 4, False], 0), int)
    assert isinstance(run_operation("selp.32", [lanes, 4, True], 0), np.ndarray)
    assert run_operation("add.32", [3, 4], 9, guard=False) == 9
    assert isinstance(run_operation("add.32", [3, 4], 9, guard=lanes > 3), np.ndarray)


def test_functions_that_are_nearly_right_are_hardly_ever_taken_back():
    """Of 2,000 numbers between -40 and 40, and of results that f32 cannot tell from a tie."""
    rng = np.random.default_rng(7)
    for name, tie in (("ex2.f32", np.float32(-150)), ("lg2.f32", None)):
        lane = BY_NAME[name].lane
        for _ in range(60):
            numbers = rng.uniform(-40, 40, 32).astype(np.float32).view(np.uint32)
            numbers = numbers if tie is not None else numbers & 0x7FFFFFFF
            assert run_operation(name, [numbers], 0).tolist() == [lane(int(n)) for n in numbers]
        if tie is not None:
            with pytest.raises(TakenBack):
                run_operation(name, [int(tie.view(np.uint32))], 0)


def test_halves_are_rounded_once():
    """Just above the middle of two numbers, by less than f32 holds beside it (f16), or f64 (bf16): the upper one."""
    assert run_operation("fma.f16", [0x3C01, 0x3BFF, 0x0009], 0) == 0x3C01
    assert run_operation("fma.bf16", [0x3FC0, 0x3FAE, 0x0D80], 0) == 0x4003
    # At the middle it is the even one, and just below it the lower one.
    assert run_operation("fma.f16", [0x3C01, 0x3BFF, 0x0008], 0) == 0x3C00
    assert run_operation("fma.bf16", [0x3FC0, 0x3FAE, 0], 0) == 0x4002
    assert run_operation("fma.bf16", [0xBFC0, 0x3FAE, 0x8D80], 0) == 0xC003
    assert run_operation("fma.bf16x2", [0x3FC03FC0, 0x3FAE3FAE, 0x0D808D80], 0) == 0x40034002


def test_names_are_unique():
    assert len(BY_NAME) == len(OPERATIONS)
