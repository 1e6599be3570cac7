"""Random small programs of a cluster: hand-offs between CTAs are errors where their scope does not cover both."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from handovers import CLUSTER_BARRIER, only
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ptx_programs import source

from emugpu.check import Checker
from emugpu.emulator import Device, Module

CTAS, WARPS, WORDS = 2, 2, 2
"""Warp 0 and 1 are of CTA 0, 2 and 3 of CTA 1; word n lies in the shared memory of CTA n."""
ACTORS = range(CTAS * WARPS)


@dataclass(frozen=True)
class Op:
    """What a warp does: "write" or "read" a word, "arrive" or "wait" at an mbarrier, or the "cluster" barrier.

    ``place``: the word, or the mbarrier, which lies in CTA ``place % 2``. ``order``: of arrivals and waits, "cluster",
    "cta" or "relaxed"; of the cluster barrier's arrival "cluster" or "relaxed".
    """

    warp: int
    kind: str
    place: int = 0
    order: str = "cluster"

    @property
    def cta(self) -> int:
        return self.warp // WARPS


@dataclass(frozen=True)
class Program:
    """Operations in an order in which nobody has to wait."""

    ops: tuple[Op, ...]

    def of(self, warp: int) -> list[int]:
        return [n for n, op in enumerate(self.ops) if op.warp == warp]

    @cached_property
    def body(self) -> str:
        arrivals = [sum(op.kind == "arrive" and op.place == n for op in self.ops) for n in range(8)]
        inits = [
            only(f"%r10 eq {cta}", "".join(f"mbarrier.init.shared::cta.b64 [bars+{8 * n}], {count};"
                                           for n, count in enumerate(arrivals) if count and n % 2 == cta))
            for cta in range(CTAS)
        ]  # fmt: skip
        words = "".join(f"mov.b32 %r{20 + n}, data; mapa.shared::cluster.u32 %r{20 + n}, %r{20 + n}, {n};"
                        for n in range(WORDS))  # fmt: skip
        start = "shr.u32 %r8, %r0, 5; and.b32 %r7, %r0, 31; setp.eq.u32 %p1, %r7, 0; mov.u32 %r10, %cluster_ctarank;"
        zero = only("%r0 eq 0", "st.shared.b32 [data], 0;" + "".join(inits)) + "bar.warp.sync -1;"
        lines = [start + words + zero + CLUSTER_BARRIER + f"mad.lo.u32 %r8, %r10, {WARPS}, %r8;"]
        for warp in ACTORS:
            lines.append(f"setp.ne.u32 %p2, %r8, {warp}; @%p2 bra END{warp};")
            lines += [f"{self._instruction(n)} // op {n}" for n in self.of(warp)]
            lines.append(f"END{warp}:")
        return "\n".join([*lines, CLUSTER_BARRIER, "ret;"])

    def _instruction(self, n: int) -> str:
        op = self.ops[n]
        suffix = "relaxed.cluster" if op.order == "relaxed" else None
        if op.kind in ("write", "read"):
            access = f"st.shared::cluster.b32 [%r{20 + op.place}], {n};"
            return f"@%p1 {access if op.kind == 'write' else f'ld.shared::cluster.b32 %r3, [%r{20 + op.place}];'}"
        if op.kind == "cluster":
            arrive = ".relaxed" if op.order == "relaxed" else ""
            return f"barrier.cluster.arrive{arrive}.aligned; barrier.cluster.wait.aligned;"
        if op.kind == "arrive":
            order = suffix or f"release.{op.order}"
            to = f"mov.b32 %r4, bars+{8 * op.place}; mapa.shared::cluster.u32 %r4, %r4, {op.place % 2};"
            return f"{to} @%p1 mbarrier.arrive.{order}.shared::cluster.b64 _, [%r4];"
        order = suffix or f"acquire.{op.order}"
        wait = f"mbarrier.try_wait.parity.{order}.shared::cta.b64 %p3, [bars+{8 * op.place}], 0;"
        return f"W{n}: {wait} @!%p3 bra W{n};"


MODULE_SCOPE = ".shared .align 16 .b32 data[4]; .shared .align 8 .b64 bars[8];"
ORDERS = st.sampled_from(["cluster", "cluster", "cta", "relaxed"])


@st.composite
def programs(draw) -> Program:
    ops: list[Op] = []
    waiting: list[Op] = []
    mbarriers = 0
    kinds = ["write", "read", "write", "read", "mbarrier", "mbarrier", "cluster"]
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=2, max_size=10)):
        if kind == "cluster":
            ops += waiting
            waiting = []
            ops += [Op(warp, kind, 0, draw(st.sampled_from(["cluster", "cluster", "relaxed"]))) for warp in ACTORS]
        elif kind == "mbarrier" and mbarriers < 8:
            own = range(mbarriers % 2 * WARPS, mbarriers % 2 * WARPS + WARPS)
            ops += [Op(warp, "arrive", mbarriers, draw(ORDERS))
                    for warp in draw(st.lists(st.sampled_from(ACTORS), min_size=1, max_size=2))]  # fmt: skip
            waiting += [
                Op(warp, "wait", mbarriers, draw(ORDERS)) for warp in draw(st.sets(st.sampled_from(own), min_size=1))
            ]
            mbarriers += 1
        elif kind != "mbarrier":
            ops.append(Op(draw(st.sampled_from(ACTORS)), kind, draw(st.integers(0, WORDS - 1))))
        while waiting and draw(st.booleans()):
            ops.append(waiting.pop(0))
    return Program((*ops, *waiting))


@dataclass(frozen=True)
class Expected:
    """Pairs of operations of no order; writes that another CTA reads in an order of CTA scope; and pairs that have
    only such an order, but where nothing written is handed over.
    """

    unordered: frozenset[tuple[int, int]]
    narrow: frozenset[tuple[int, int]]
    harmless: frozenset[tuple[int, int]]


def expected(program: Program) -> Expected:
    ops = program.ops
    wide = np.eye(len(ops), dtype=bool)
    for warp in ACTORS:
        for a, b in itertools.combinations(program.of(warp), 2):
            wide[a, b] = True
    narrow = wide.copy()
    for a, b in itertools.permutations(range(len(ops)), 2):
        first, second = ops[a], ops[b]
        if (first.kind, second.kind) == ("arrive", "wait") and first.place == second.place:
            if "relaxed" in (first.order, second.order):
                continue
            narrow[a, b] = True
            wide[a, b] = first.cta == second.cta or (first.order, second.order) == ("cluster", "cluster")
    # The barriers of the cluster, one after the other; what comes before one is before what follows it.
    rounds = list(zip(*([n for n in program.of(warp) if ops[n].kind == "cluster"] for warp in ACTORS), strict=True))
    for members in rounds:
        for a, b in itertools.permutations(members, 2):
            if ops[a].order == "cluster":
                for earlier, later in itertools.product(program.of(ops[a].warp), program.of(ops[b].warp)):
                    if earlier < a and later > b:
                        wide[earlier, later] = narrow[earlier, later] = True
    for middle in range(len(ops)):
        wide |= np.outer(wide[:, middle], wide[middle])
        narrow |= np.outer(narrow[:, middle], narrow[middle])
    unordered, handed, harmless = set(), set(), set()
    for a, b in itertools.combinations([n for n, op in enumerate(ops) if op.kind in ("write", "read")], 2):
        if ops[a].place != ops[b].place or "write" not in (ops[a].kind, ops[b].kind) or wide[a, b] or wide[b, a]:
            continue
        if not (narrow[a, b] or narrow[b, a]):
            unordered.add((a, b))
            continue
        first, second = (a, b) if narrow[a, b] else (b, a)
        is_handed = (ops[first].kind, ops[second].kind) == ("write", "read") and ops[first].cta != ops[second].cta
        (handed if is_handed else harmless).add((a, b))
    return Expected(frozenset(unordered), frozenset(handed), frozenset(harmless))


def checked(program: Program, schedule: str, seed: int) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Pairs that are reported: as races, and for their scope."""
    device = Device(schedule=schedule, seed=seed)  # type: ignore[arg-type]
    text = source(program.body, MODULE_SCOPE)
    lines = {n: int(line.partition("// op ")[2]) for n, line in enumerate(text.splitlines(), 1) if "// op " in line}
    checker = Checker()
    device.launch(Module.from_text(text), grid=CTAS, cluster=CTAS, block=32 * WARPS, arguments=[device.alloc(4)],
                  sinks=[checker])  # fmt: skip
    races, scopes = set(), set()
    for finding in checker.report().errors:
        assert finding.rule in ("race-shared", "scope") and finding.first and finding.second, finding
        a, b = sorted(lines[place.line] for place in (finding.first, finding.second))
        (scopes if finding.rule == "scope" else races).add((a, b))
    return races, scopes


def places(program: Program, pairs) -> set[int]:
    return {program.ops[a].place for a, _ in pairs}


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(programs())
@example(Program((Op(0, "write", 1), Op(0, "arrive", 1, "cta"), Op(2, "wait", 1), Op(2, "read", 1))))
@example(Program((Op(0, "write", 1), Op(0, "arrive", 1), Op(2, "wait", 1, "cta"), Op(2, "read", 1))))
@example(Program((Op(0, "write", 1), Op(0, "arrive", 1, "relaxed"), Op(2, "wait", 1), Op(2, "read", 1))))
@example(Program((Op(0, "write", 1), Op(0, "arrive", 1), Op(2, "wait", 1, "relaxed"), Op(2, "read", 1))))
@example(Program((Op(0, "write", 0), Op(0, "arrive", 0, "cta"), Op(1, "wait", 0, "cta"), Op(1, "arrive", 1),
                  Op(2, "wait", 1), Op(2, "read", 0))))  # fmt: skip
def test_no_race_and_no_narrow_scope_is_missed_and_none_invented(program):
    right = expected(program)
    for schedule, seed in (("fifo", 0), ("random", 1)):
        races, scopes = checked(program, schedule, seed)
        assert races <= right.unordered
        assert scopes <= right.narrow | right.harmless
        assert places(program, races) == places(program, right.unordered)
        missed = places(program, right.narrow) - places(program, scopes)
        assert missed <= places(program, right.unordered)
