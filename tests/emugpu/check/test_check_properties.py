"""Random small programs over shared memory: no race is missed, and none is invented.

Warps write and read a few words, store them with TMA, meet at barriers and mbarriers, and execute fences. What races is
worked out twice without a checker: by walking through every interleaving, for programs whose synchronisation is all
strong, and by the transitive closure of a happens-before relation written down edge by edge, for all of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from handovers import CTA_BARRIER, FENCE, only
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ptx_programs import source

from emugpu.check import Checker
from emugpu.emulator import Device, Module, TensorMap

WORDS, BOX = 2, 128
"""Places in shared memory: a box of TMA each, of which the warps touch the first word."""


STORE = "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group"
COMMIT = "@%p1 cp.async.bulk.commit_group;"


@dataclass(frozen=True)
class Op:
    """What a warp does: "write", "read" or "store" (a TMA store and its commit) a ``place``; "drain": wait until its
    stores have read; "fence", "proxy fence"; "bar" or "bar arrive" at barrier ``place``; "arrive" or "wait" at an
    mbarrier. ``strong``: of arrivals and waits, release and acquire rather than relaxed.
    """

    warp: int
    kind: str
    place: int = 0
    strong: bool = True


@dataclass(frozen=True)
class Program:
    """Operations in an order in which nobody has to wait, so that no order deadlocks; each warp keeps its own."""

    warps: int
    ops: tuple[Op, ...]

    def of(self, warp: int) -> list[int]:
        return [n for n, op in enumerate(self.ops) if op.warp == warp]

    def at(self, place: int, *kinds: str) -> list[int]:
        return [n for n, op in enumerate(self.ops) if op.place == place and op.kind in kinds]

    @property
    def is_strong(self) -> bool:
        """No relaxed mbarrier operation, nothing asynchronous: interleavings say everything."""
        return all(op.strong and op.kind not in ("store", "drain") for op in self.ops)

    # ---- as PTX ----

    @cached_property
    def body(self) -> str:
        """One line for every operation; `lines` knows which."""
        return "\n".join(self._lines())

    @cached_property
    def line_of(self) -> dict[int, int]:
        """Operation by the line of the PTX file that it stands in, from 1."""
        text = source(self.body, MODULE_SCOPE, parameters=["map map"])
        return {number: int(line.partition("// op ")[2]) for number, line in enumerate(text.splitlines(), 1)
                if "// op " in line}  # fmt: skip

    def _lines(self) -> list[str]:
        zeros = "".join(f"st.shared.b32 [%r9+{BOX * n}], 0; " for n in range(WORDS))
        inits = "".join(
            f"mbarrier.init.shared::cta.b64 [bars+{8 * place}], {len(self.at(place, 'arrive'))}; "
            for place in sorted({op.place for op in self.ops if op.kind == "arrive"})
        )
        lines = [
            "shr.u32 %r8, %r0, 5; and.b32 %r7, %r0, 31; setp.eq.u32 %p1, %r7, 0;"
            "mov.b64 %rd5, map; cvta.param.u64 %rd5, %rd5; mov.b32 %r9, data;"
            "shl.b32 %r6, %r7, 2; add.u32 %r9, %r9, %r6;"
            + only("%r8 eq 0", zeros)
            + FENCE
            + only("%r0 eq 0", inits)
            + "bar.warp.sync -1;"
            + CTA_BARRIER
        ]
        for warp in range(self.warps):
            lines.append(f"setp.ne.u32 %p2, %r8, {warp}; @%p2 bra END{warp};")
            lines += [f"{self._instruction(n)} // op {n}" for n in self.of(warp)]
            lines.append(f"cp.async.bulk.wait_group.read 0; END{warp}:")
        return [*lines, "ret;"]

    def _instruction(self, n: int) -> str:
        op = self.ops[n]
        threads = 32 * len(self.at(op.place, "bar", "bar arrive"))
        at, bar = f"[data+{BOX * op.place}]", f"[bars+{8 * op.place}]"
        order = "" if op.strong else ".relaxed.cta"
        return {
            "write": f"@%p1 st.shared.b32 {at}, {n};",
            "read": f"@%p1 ld.shared.b32 %r3, {at};",
            "store": f"mov.b32 %r20, {BOX // 4 * n}; @%p1 {STORE} [%rd5, {{%r20}}], {at}; {COMMIT}",
            "drain": "cp.async.bulk.wait_group.read 0;",
            "fence": "fence.acq_rel.cta;",
            "proxy fence": FENCE.strip(),
            "bar": f"bar.sync {op.place + 1}, {threads};",
            "bar arrive": f"bar.arrive {op.place + 1}, {threads};",
            "arrive": f"@%p1 mbarrier.arrive{order}.shared::cta.b64 _, {bar};",
            "wait": f"W{n}: mbarrier.try_wait.parity{order}.shared::cta.b64 %p3, {bar}, 0; @!%p3 bra W{n};",
        }[op.kind]


MODULE_SCOPE = f".shared .align 1024 .b8 data[{WORDS * BOX}]; .shared .align 8 .b64 bars[8];"


@st.composite
def programs(draw, asynchronous: bool = True, relaxed: bool = True) -> Program:
    warps = draw(st.integers(2, 4))
    everybody = st.integers(0, warps - 1)
    kinds = ["write", "read", "write", "read", "group", "mbarrier", "mbarrier", "mbarrier", "fence"]
    kinds += ["store", "store", "drain", "proxy fence", "proxy fence"] * asynchronous
    ops: list[Op] = []
    barriers = mbarriers = 0
    waiting: list[Op] = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=2, max_size=12)):
        if kind == "group":
            members = draw(st.sets(everybody, min_size=2))
            syncing = draw(st.sets(st.sampled_from(sorted(members)), min_size=1))
            order = sorted(members, key=lambda warp: warp in syncing)
            ops += [Op(warp, "bar" if warp in syncing else "bar arrive", barriers) for warp in order]
            barriers += 1
        elif kind == "mbarrier" and mbarriers < 6:
            strong = st.booleans() if relaxed else st.just(True)
            arrivals = draw(st.lists(everybody, min_size=1, max_size=3))
            ops += [Op(warp, "arrive", mbarriers, draw(strong)) for warp in arrivals]
            waiting += [Op(warp, "wait", mbarriers, draw(strong)) for warp in draw(st.sets(everybody, min_size=1))]
            mbarriers += 1
        elif kind != "mbarrier":
            ops.append(Op(draw(everybody), kind, draw(st.integers(0, WORDS - 1))))
        while waiting and draw(st.booleans()):
            ops.append(waiting.pop(0))
    return Program(warps, (*ops, *waiting))


# ---- what races: by closure ----


@dataclass(frozen=True)
class Races:
    """Pairs of operations, the lower number first: of no order, and ordered without a proxy fence between."""

    unordered: frozenset[tuple[int, int]]
    unfenced: frozenset[tuple[int, int]]


def races_by_closure(program: Program) -> Races:
    """A node for each operation, and one more for what a store reads: after its issue, before a drain."""
    ops = program.ops
    count = len(ops)
    reads = {n: count + k for k, n in enumerate(n for n, op in enumerate(ops) if op.kind == "store")}
    before = np.eye(count + len(reads), dtype=bool)
    for warp in range(program.warps):
        own = program.of(warp)
        for a, b in itertools.combinations(own, 2):
            before[a, b] = True
            if ops[a].kind == "store" and ops[b].kind == "drain":
                before[reads[a], b] = True
    for issue, read in reads.items():
        before[issue, read] = True
    for place in {op.place for op in ops if op.kind.startswith("bar")}:
        for a in program.at(place, "bar", "bar arrive"):
            for b in program.at(place, "bar"):
                # What is before one is before what is after the other, also where barrier follows barrier.
                before[a, b] = True
    for place in {op.place for op in ops if op.kind == "arrive"}:
        for a, b in itertools.product(program.at(place, "arrive"), program.at(place, "wait")):
            released = [n for n in program.of(ops[a].warp) if n < a and ops[n].kind == "fence"]
            acquired = [n for n in program.of(ops[b].warp) if n > b and ops[n].kind == "fence"]
            released += [a] * ops[a].strong
            acquired += [b] * ops[b].strong
            for s, t in itertools.product(released, acquired):
                before[s, t] = True
    for middle in range(len(before)):
        before |= np.outer(before[:, middle], before[middle])
    fences = [n for n, op in enumerate(ops) if op.kind == "proxy fence"]
    unordered, unfenced = set(), set()
    for a, b in itertools.combinations([n for n, op in enumerate(ops) if op.kind in ("write", "read", "store")], 2):
        if ops[a].place != ops[b].place or "write" not in (ops[a].kind, ops[b].kind):
            continue
        x, y = reads.get(a, a), reads.get(b, b)
        if not (before[x, y] or before[y, x]):
            unordered.add((a, b))
        else:
            write, store = (a, b) if before[x, y] else (b, a)
            if ops[store].kind == "store" and not any(before[write, f] and before[f, store] for f in fences):
                unfenced.add((a, b))
    return Races(frozenset(unordered), frozenset(unfenced))


# ---- what races: by interleaving ----


def races_by_interleaving(program: Program) -> frozenset[tuple[int, int]]:
    """Conflicting accesses that are both next in a state that can be reached."""
    ops = program.ops
    own = [program.of(warp) for warp in range(program.warps)]
    start = (0,) * program.warps
    seen, states, races = {start}, [start], set()
    while states:
        state = states.pop()
        following = [sequence[at] for sequence, at in zip(own, state, strict=True) if at < len(sequence)]
        for a, b in itertools.combinations(sorted(following), 2):
            kinds = {ops[a].kind, ops[b].kind}
            if ops[a].place == ops[b].place and "write" in kinds and kinds <= {"write", "read"}:
                races.add((a, b))
        done = {n for sequence, at in zip(own, state, strict=True) for n in sequence[:at]}
        for n in following:
            op = ops[n]
            # A bar.sync is passed when all others of its barrier have come to theirs, or are past it.
            come = done | set(following)
            if op.kind == "bar" and not come.issuperset(program.at(op.place, "bar", "bar arrive")):
                continue
            if op.kind == "wait" and not done.issuperset(program.at(op.place, "arrive")):
                continue
            new = tuple(at + (ops[n].warp == warp) for warp, at in enumerate(state))
            if new not in seen:
                seen.add(new)
                states.append(new)
    return frozenset(races)


# ---- what the checker says ----


def checked(program: Program, schedule: str, seed: int) -> Races:
    device = Device(schedule=schedule, seed=seed)  # type: ignore[arg-type]
    tensor = TensorMap.tiled(device.alloc(64 * BOX), "u32", (16 * BOX,), (BOX // 4,))
    module = Module.from_text(source(program.body, MODULE_SCOPE, parameters=["map map"]))
    checker = Checker()
    device.launch(module, grid=1, block=32 * program.warps, arguments=[device.alloc(4), tensor], sinks=[checker])
    unordered, unfenced = set(), set()
    for finding in checker.report().findings:
        if finding.severity != "error":
            continue
        assert finding.first is not None and finding.second is not None, finding
        a, b = sorted(program.line_of[place.line] for place in (finding.first, finding.second))
        if finding.rule == "proxy-write-read":
            unfenced.add((a, b))
        else:
            assert finding.rule in ("race-shared", "store-source-reused"), finding
            unordered.add((a, b))
    return Races(frozenset(unordered), frozenset(unfenced))


def places(program: Program, pairs: frozenset[tuple[int, int]]) -> set[int]:
    return {program.ops[a].place for a, _ in pairs}


def agree(program: Program, expected: Races, found: Races) -> None:
    """No pair is invented, and no place with a race is missed. A checker remembers the last accesses to a place, so
    that it need not name every pair.
    """
    assert found.unordered <= expected.unordered
    assert found.unfenced <= expected.unfenced
    assert places(program, found.unordered) == places(program, expected.unordered)
    missed = places(program, expected.unfenced) - places(program, found.unfenced)
    assert missed <= places(program, expected.unordered)


SCHEDULES = [("fifo", 0), ("random", 1), ("random", 2)]


def writes_and_reads(*kinds: str) -> Program:
    """Warp 0 writes, then these by warp 0; the same by warp 1, which reads then."""
    ops = [Op(0, "write")]
    for place, kind in enumerate(kinds):
        if kind == "bar":
            ops += [Op(0, "bar", place), Op(1, "bar", place)]
        else:
            ops += [Op(0, "arrive", place, kind == "strong"), Op(1, "wait", place, kind == "strong")]
    return Program(2, (*ops, Op(1, "read")))


@pytest.mark.parametrize("kinds", [(), ("bar",), ("strong",), ("relaxed",)])
def test_both_oracles_know_the_simplest_programs(kinds):
    program = writes_and_reads(*kinds)
    last = len(program.ops) - 1
    assert races_by_closure(program).unordered == ({(0, last)} if kinds in ((), ("relaxed",)) else set())
    assert races_by_interleaving(program) == (set() if kinds else {(0, last)})


@settings(max_examples=80, deadline=None)
@given(programs(asynchronous=False, relaxed=False))
@example(
    Program(3, (Op(0, "write"), Op(0, "bar arrive"), Op(1, "bar"), Op(1, "bar", 1), Op(2, "bar", 1), Op(2, "write")))
)
def test_closure_and_interleavings_agree(program):
    assert program.is_strong
    assert races_by_closure(program).unordered == races_by_interleaving(program)


@pytest.mark.thorough
@settings(max_examples=120, deadline=None)
@given(programs())
@example(Program(2, (Op(0, "write"), Op(0, "bar", 1), Op(1, "bar", 1), Op(1, "store"))))
@example(Program(2, (Op(0, "write"), Op(0, "bar", 1), Op(1, "bar", 1), Op(1, "proxy fence"), Op(1, "store"))))
@example(Program(2, (Op(0, "store"), Op(0, "bar", 1), Op(1, "bar", 1), Op(1, "write"))))
@example(Program(2, (Op(0, "store"), Op(0, "drain"), Op(0, "bar", 1), Op(1, "bar", 1), Op(1, "write"))))
@example(Program(2, (Op(0, "write"), Op(0, "arrive", 0, False), Op(1, "wait"), Op(1, "read"))))
@example(Program(2, (Op(0, "write"), Op(0, "arrive"), Op(1, "wait", 0, False), Op(1, "read"))))
@example(Program(2, (Op(0, "write"), Op(0, "arrive"), Op(1, "wait", 0, False), Op(1, "fence"), Op(1, "read"))))
@example(Program(2, (Op(0, "write"), Op(0, "fence"), Op(0, "arrive", 0, False), Op(1, "wait", 0, False),
                     Op(1, "fence"), Op(1, "read"))))  # fmt: skip
def test_no_race_is_missed_and_none_invented(program):
    expected = races_by_closure(program)
    for schedule, seed in SCHEDULES:
        agree(program, expected, checked(program, schedule, seed))
