"""Random small programs over tensor memory: which MMAs and loads race, by a happens-before closure of their own."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from handovers import CTA_BARRIER, Table, only, outcome, wait
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensor_handovers import AFTER, BEFORE, LD, PREPARED, ST, WAIT_LD, WAIT_ST, allocated, commit, freed, mma, operands

from emugpu.check.in_flight import InFlight
from emugpu.emulator import Device, Module

WARPS, ACCUMULATORS, BARRIERS = 3, 2, 6


@dataclass(frozen=True)
class Op:
    """What a warp does: "mma" into or "ld" from an accumulator ``place``; "wait ld"; "commit", "arrive" and "wait" at
    mbarrier ``place``; "bar" of all. Its first lane multiplies, commits and arrives.
    """

    warp: int
    kind: str
    place: int = 0


@dataclass(frozen=True)
class Program:
    """Operations in an order in which nobody has to wait."""

    ops: tuple[Op, ...]

    def body(self) -> str:
        counts = [sum(op.kind in ("commit", "arrive") and op.place == n for op in self.ops) for n in range(BARRIERS)]
        inits = "".join(
            f"mbarrier.init.shared::cta.b64 [bars+{8 * n}], {count};"
            for n, count in [*enumerate(counts), *((BARRIERS + warp, 1) for warp in range(WARPS))]
            if count
        )
        text = only("%thread eq 0", inits) + PREPARED + allocated(1)
        # Every lane that an MMA writes holds something: an early load finds it.
        text += "".join(f"mov.b32 %r{n}, 0;" for n in range(40, 56))
        text += ST + ST.replace("%r10", "%r11") + WAIT_ST + BEFORE + CTA_BARRIER + AFTER
        for warp in range(WARPS):
            own = "".join(f"// op {n}\n{_instruction(op)}" for n, op in enumerate(self.ops) if op.warp == warp)
            drain = f"bars+{8 * (BARRIERS + warp)}"
            text += only(f"%warp eq {warp}", own + only("%lane eq 0", commit(drain)) + wait(drain) + WAIT_LD)
        return text + BEFORE + CTA_BARRIER + AFTER + freed(1)


def _instruction(op: Op) -> str:
    accumulator, barrier = f"%r{10 + op.place}", f"bars+{8 * op.place}"
    arrive = f"mbarrier.arrive.shared::cta.b64 _, [{barrier}];"
    return {
        "mma": lambda: only("%lane eq 0", mma(1, 128, 16, accumulator)),
        "ld": lambda: LD.replace("%r10", accumulator),
        "wait ld": lambda: WAIT_LD,
        "commit": lambda: only("%lane eq 0", commit(barrier)),
        "arrive": lambda: BEFORE + only("%lane eq 0", arrive),
        "wait": lambda: wait(barrier) + AFTER,
        "bar": lambda: BEFORE + f"bar.sync 1, {32 * WARPS};" + AFTER,
    }[op.kind]()


@st.composite
def programs(draw) -> Program:
    ops: list[Op] = []
    waiting: list[Op] = []
    barriers = 0
    everybody = st.integers(0, WARPS - 1)
    kinds = ["mma", "mma", "ld", "ld", "wait ld", "wait ld", "commit", "commit", "commit", "arrive", "arrive", "bar"]
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=3, max_size=12)):
        if kind == "bar":
            ops += [Op(warp, kind) for warp in range(WARPS)]
        elif kind in ("commit", "arrive"):
            if barriers < BARRIERS:
                ops.append(Op(draw(everybody), kind, barriers))
                waiting += [Op(warp, "wait", barriers) for warp in draw(st.sets(everybody, min_size=1))]
                barriers += 1
        else:
            ops.append(Op(draw(everybody), kind, draw(st.integers(0, ACCUMULATORS - 1))))
        while waiting and draw(st.booleans()):
            ops.append(waiting.pop(0))
    return Program((*ops, *waiting))


def races(program: Program) -> set[tuple[int, int]]:
    """Every operation is a node. What is asynchronous has a second one for its end, a commit one for its arrival."""
    ops = program.ops
    count = len(ops)
    end = {n: count + k for k, n in enumerate(n for n, op in enumerate(ops) if op.kind in ("mma", "ld", "commit"))}
    before = np.eye(count + len(end), dtype=bool)
    for n, later in end.items():
        before[n, later] = True
    for a, b in itertools.combinations(range(count), 2):
        if ops[a].warp != ops[b].warp:
            continue
        before[a, b] = True
        if (ops[a].kind, ops[b].kind) == ("ld", "wait ld"):
            before[end[a], b] = True
        if (ops[a].kind, ops[b].kind) == ("mma", "commit"):
            before[end[a], end[b]] = True
    for a, b in itertools.product(range(count), repeat=2):
        if ops[a].kind in ("commit", "arrive") and ops[b].kind == "wait" and ops[a].place == ops[b].place:
            before[end.get(a, a), b] = True
    bars = [[n for n, op in enumerate(ops) if op.kind == "bar" and op.warp == warp] for warp in range(WARPS)]
    for members in zip(*bars, strict=True):
        for a, b in itertools.permutations(members, 2):
            for earlier, later in itertools.product(range(count), repeat=2):
                if ops[earlier].warp == ops[a].warp and ops[later].warp == ops[b].warp and earlier < a and later > b:
                    before[earlier, later] = True
    for middle in range(len(before)):
        before |= np.outer(before[:, middle], before[middle])
    found = set()
    for a, b in itertools.combinations([n for n, op in enumerate(ops) if op.kind in ("mma", "ld")], 2):
        if ops[a].place != ops[b].place or "mma" not in (ops[a].kind, ops[b].kind):
            continue
        pipelined = ops[a].kind == ops[b].kind == "mma" and ops[a].warp == ops[b].warp
        if not (pipelined or before[end[a], b] or before[end[b], a]):
            found.add((a, b))
    return found


def reported(program: Program, schedule: str, seed: int) -> set[tuple[int, int]]:
    table = Table("random", {"form": (0,)}, lambda s: program.body(), lambda s: outcome(), threads=32 * WARPS,
                  arguments=operands(128))  # fmt: skip
    text = table.text("sm_100a")
    op_of, current = {}, -1
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.search(r"// op (\d+)", line)
        current = int(mark[1]) if mark else current
        op_of[number] = current
    device = Device(schedule=schedule, seed=seed)  # type: ignore[arg-type]
    report, how = table.report(device, Module.from_text(text), "setting0")
    assert how == "ends"
    found = set()
    for finding in report.errors:
        assert finding.rule == "tmem-race" and finding.first and finding.second, finding
        a, b = sorted(op_of[place.line] for place in (finding.first, finding.second))
        found.add((a, b))
    return found


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(programs())
@example(Program((Op(0, "mma"), Op(1, "ld"))))
@example(Program((Op(0, "mma"), Op(0, "commit"), Op(1, "wait"), Op(1, "ld"))))
@example(Program((Op(0, "mma"), Op(1, "commit"), Op(1, "wait"), Op(1, "ld"))))
@example(Program((Op(1, "ld"), Op(1, "arrive"), Op(0, "wait"), Op(0, "mma"))))
@example(Program((Op(1, "ld"), Op(1, "wait ld"), Op(1, "arrive"), Op(0, "wait"), Op(0, "mma"))))
@example(Program((Op(0, "mma"), Op(0, "mma"), Op(1, "mma"))))
def test_no_race_is_missed_and_none_invented(program):
    expected = races(program)
    for schedule, seed in (("fifo", 0), ("random", 1)):
        found = reported(program, schedule, seed)
        assert found <= expected
        assert {program.ops[a].place for a, _ in found} == {program.ops[a].place for a, _ in expected}


def test_multiplications_are_of_one_shape_whichever_scale_factors_of_a_column_they_take():
    def shape(descriptor: int) -> object:
        mma = SimpleNamespace(d_address=0, idesc=descriptor)
        operation = SimpleNamespace(kind="mma", detail={"mma": mma})
        return InFlight(operation, None, None).shape

    m128_n128 = 128 >> 4 << 24 | 128 >> 3 << 17
    same = [m128_n128 | a_id << 29 | b_id << 4 for a_id in range(4) for b_id in range(4)]
    assert {shape(descriptor) for descriptor in same} == {shape(m128_n128)}
    assert shape(128 >> 4 << 24 | 256 >> 3 << 17) != shape(m128_n128) != shape(256 >> 4 << 24 | 128 >> 3 << 17)
