"""Random small programs of two CTAs: hand-offs between them are errors where their scope does not cover both."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pytest
from handovers import CLUSTER_BARRIER, only
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ptx_programs import source

from emugpu.check import Checker
from emugpu.emulator import Device, Module

CTAS, WARPS, WORDS = 2, 2, 4
"""Warp 0 and 1 are of CTA 0, 2 and 3 of CTA 1; word n lies in the shared memory of CTA n % 2, or in global memory."""
ACTORS = range(CTAS * WARPS)
SCOPES = {"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}
ACCESSES = ("write", "read", "raise", "see")
SIGNALS = {"arrive": "wait", "raise": "see"}
"""What signals, and what waits for it."""


@dataclass(frozen=True)
class Op:
    """What a warp does: "write" or "read" a word, "arrive" or "wait" at an mbarrier, "raise" a flag in global memory or
    wait until it "see"s it, "fence", or the "cluster" barrier.

    ``place``: the word, the flag, or the mbarrier, which lies in CTA ``place % 2``. ``scope``: of all but words; a flag
    of system scope is volatile. ``is_relaxed``: an arrival, a wait, a flag or a barrier's arrival is neither a release
    nor an acquire.
    """

    warp: int
    kind: str
    place: int = 0
    scope: str = "cluster"
    is_relaxed: bool = False

    @property
    def cta(self) -> int:
        return self.warp // WARPS

    @property
    def where(self) -> tuple[bool, int]:
        """A flag, or a word."""
        return self.kind in ("raise", "see"), self.place


@dataclass(frozen=True)
class Program:
    """Operations in an order in which nobody has to wait. ``apart``: the CTAs are no cluster. These have no mbarriers
    and no cluster barrier in common, and their words are in global memory.
    """

    ops: tuple[Op, ...]
    apart: bool = False

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
        words = "".join(f"mov.b32 %r{20 + n}, data+{4 * n}; mapa.shared::cluster.u32 %r{20 + n}, %r{20 + n}, {n % 2};"
                        for n in range(WORDS))  # fmt: skip
        zeros = "".join(f"st.shared.b32 [data+{4 * n}], 0;" for n in range(WORDS))
        start = "shr.u32 %r8, %r0, 5; and.b32 %r7, %r0, 31; setp.eq.u32 %p1, %r7, 0; mov.u32 %r10, %ctaid.x;"
        if not self.apart:
            start += words + only("%r0 eq 0", zeros + "".join(inits)) + "bar.warp.sync -1;"
            start += CLUSTER_BARRIER
        lines = [start + f"mad.lo.u32 %r8, %r10, {WARPS}, %r8;"]
        for warp in ACTORS:
            lines.append(f"setp.ne.u32 %p2, %r8, {warp}; @%p2 bra END{warp};")
            lines += [f"{self._instruction(n)} // op {n}" for n in self.of(warp)]
            lines.append(f"END{warp}:")
        return "\n".join([*lines, "" if self.apart else CLUSTER_BARRIER, "ret;"])

    def _instruction(self, n: int) -> str:
        op = self.ops[n]
        word = f"global.b32 [%rd0+{4 * op.place}]" if self.apart else f"shared::cluster.b32 [%r{20 + op.place}]"
        flag = f"global.b32 [%rd0+{64 + 4 * op.place}]"
        release, acquire = ("relaxed", "relaxed") if op.is_relaxed else ("release", "acquire")
        order = "volatile" if op.scope == "sys" else f"{{}}.{op.scope}"
        if op.kind == "write":
            return f"@%p1 st.{word}, {n};"
        if op.kind == "read":
            space, _, address = word.partition(" ")
            return f"@%p1 ld.{space} %r3, {address};"
        if op.kind == "raise":
            return f"@%p1 st.{order.format(release)}.{flag}, 1;"
        if op.kind == "see":
            space, _, address = flag.partition(" ")
            load = f"ld.{order.format(acquire)}.{space} %r3, {address};"
            return f"W{n}: {load} setp.eq.u32 %p3, %r3, 0; @%p3 bra W{n};"
        if op.kind == "fence":
            return f"fence.acq_rel.{op.scope};"
        if op.kind == "cluster":
            arrive = ".relaxed" if op.is_relaxed else ""
            return f"barrier.cluster.arrive{arrive}.aligned; barrier.cluster.wait.aligned;"
        if op.kind == "arrive":
            to = f"mov.b32 %r4, bars+{8 * op.place}; mapa.shared::cluster.u32 %r4, %r4, {op.place % 2};"
            return f"{to} @%p1 mbarrier.arrive.{order.format(release)}.shared::cluster.b64 _, [%r4];"
        wait = f"mbarrier.try_wait.parity.{order.format(acquire)}.shared::cta.b64 %p3, [bars+{8 * op.place}], 0;"
        return f"W{n}: {wait} @!%p3 bra W{n};"


MODULE_SCOPE = ".shared .align 16 .b32 data[4]; .shared .align 8 .b64 bars[8];"


@st.composite
def programs(draw) -> Program:
    """Hand-offs, with fences before and after them, and more accesses and fences anywhere."""
    apart = draw(st.booleans())
    wide, narrower = ("gpu", "cluster") if apart else ("cluster", "cta")
    everybody, words = st.sampled_from(ACTORS), st.integers(0, WORDS - 1)

    def op(warp: int, kind: str, place: int = 0) -> Op:
        scopes = [wide, wide, wide, narrower, "cta", *(["sys"] if kind in ("raise", "see") else [])]
        scope = draw(st.sampled_from(scopes))
        return Op(warp, kind, place, scope, scope == "sys" or draw(st.booleans()))

    def fences(warp: int) -> list[Op]:
        return [op(warp, "fence") for _ in range(draw(st.sampled_from([0, 1, 1, 2, 3])))]

    ops: list[Op] = []
    kinds = ["raise"] if apart else ["raise", "arrive", "arrive", "cluster"]
    for place, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))):
        word = draw(words)
        own = range(place % 2 * WARPS, place % 2 * WARPS + WARPS) if kind == "arrive" else ACTORS
        signals = draw(st.lists(everybody, min_size=1, max_size=2 if kind == "arrive" else 1))
        waits = draw(st.lists(st.sampled_from(own), min_size=1, max_size=2, unique=True))
        ops.append(Op(signals[0], "write", word))
        for warp in signals:
            ops += fences(warp)
            if kind != "cluster":
                ops.append(op(warp, kind, place))
        if kind == "cluster":
            ops += [Op(warp, kind, is_relaxed=draw(st.booleans())) for warp in ACTORS]
        for warp in waits:
            if kind != "cluster":
                ops.append(op(warp, SIGNALS[kind], place))
            ops += [*fences(warp), Op(warp, draw(st.sampled_from(["read", "read", "read", "write"])), word)]
    for kind in draw(st.lists(st.sampled_from(["write", "read", "fence", "fence"]), max_size=2)):
        more = op(draw(everybody), kind) if kind == "fence" else Op(draw(everybody), kind, draw(words))
        ops.insert(draw(st.integers(0, len(ops))), more)
    return Program(tuple(ops), apart)


@dataclass(frozen=True)
class Expected:
    """Pairs of operations of no order; writes that another CTA reads in an order of too narrow a scope; and pairs that
    have only such an order, but where nothing written is handed over.
    """

    unordered: frozenset[tuple[int, int]]
    narrow: frozenset[tuple[int, int]]
    harmless: frozenset[tuple[int, int]]


def expected(program: Program) -> Expected:
    """Release and acquire patterns (PTX ISA 8.8) synchronize if the write and the read of the flag, and the first and
    the last operation of the patterns, have scopes that hold both threads (8.9.4).
    """
    ops = program.ops
    scopes = [SCOPES[op.scope] for op in ops]
    wide = np.eye(len(ops), dtype=bool)
    for warp in ACTORS:
        for a, b in itertools.combinations(program.of(warp), 2):
            wide[a, b] = True
    narrow = wide.copy()

    def needed(a: int, b: int) -> int:
        return SCOPES["cta" if ops[a].cta == ops[b].cta else "gpu" if program.apart else "cluster"]

    def agree(a: int, b: int) -> bool:
        return min(scopes[a], scopes[b]) >= needed(a, b)

    def fences(a: int) -> list[int]:
        return [n for n in program.of(ops[a].warp) if ops[n].kind == "fence"]

    for a, b in itertools.permutations(range(len(ops)), 2):
        if SIGNALS.get(ops[a].kind) != ops[b].kind or ops[a].place != ops[b].place:
            continue
        if ops[a].kind == "raise" and not agree(a, b):
            continue
        firsts = [n for n in fences(a) if n < a] + [a] * (not ops[a].is_relaxed)
        lasts = [n for n in fences(b) if n > b] + [b] * (not ops[b].is_relaxed)
        for first, last in itertools.product(firsts, lasts):
            narrow[first, last] = True
            wide[first, last] |= agree(a, b) and agree(first, last)
    # The barriers of the cluster, one after the other; what comes before one is before what follows it.
    rounds = list(zip(*([n for n in program.of(warp) if ops[n].kind == "cluster"] for warp in ACTORS), strict=True))
    for members in rounds:
        for a, b in itertools.permutations(members, 2):
            firsts = [n for n in fences(a) if n < a and scopes[n] >= SCOPES["cluster"]] + [a] * (not ops[a].is_relaxed)
            for first, later in itertools.product(firsts, program.of(ops[b].warp)):
                for earlier in program.of(ops[a].warp):
                    if earlier < first and later > b:
                        wide[earlier, later] = narrow[earlier, later] = True
    for middle in range(len(ops)):
        wide |= np.outer(wide[:, middle], wide[middle])
        narrow |= np.outer(narrow[:, middle], narrow[middle])
    unordered, handed, harmless = set(), set(), set()
    for a, b in itertools.combinations([n for n, op in enumerate(ops) if op.kind in ACCESSES], 2):
        kinds = {ops[a].kind, ops[b].kind}
        if ops[a].where != ops[b].where or kinds <= {"read", "see"} or wide[a, b] or wide[b, a]:
            continue
        if kinds <= {"raise", "see"} and agree(a, b):
            continue
        if not (narrow[a, b] or narrow[b, a]):
            unordered.add((a, b))
            continue
        first, second = (a, b) if narrow[a, b] else (b, a)
        # A checker remembers the last write.
        later = [n for n, op in enumerate(ops) if op.kind == "write" and op.where == ops[a].where and n not in (a, b)]
        is_last = not any(narrow[first, n] and narrow[n, second] for n in later)
        is_handed = is_last and ops[second].kind in ("read", "see") and ops[first].cta != ops[second].cta
        (handed if is_handed else harmless).add((a, b))
    return Expected(frozenset(unordered), frozenset(handed), frozenset(harmless))


def checked(program: Program, schedule: str, seed: int) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Pairs that are reported: as races, and for their scope."""
    device = Device(schedule=schedule, seed=seed)  # type: ignore[arg-type]
    text = source(program.body, MODULE_SCOPE)
    lines = {n: int(line.partition("// op ")[2]) for n, line in enumerate(text.splitlines(), 1) if "// op " in line}
    checker = Checker()
    out = device.upload(np.zeros(64, np.uint32))
    device.launch(Module.from_text(text), grid=CTAS, cluster=1 if program.apart else CTAS, block=32 * WARPS,
                  arguments=[out], sinks=[checker])  # fmt: skip
    races, scopes = set(), set()
    for finding in checker.report().errors:
        assert finding.rule in ("race-shared", "race-global", "scope") and finding.first and finding.second, finding
        a, b = sorted(lines[place.line] for place in (finding.first, finding.second))
        (scopes if finding.rule == "scope" else races).add((a, b))
    return races, scopes


def places(program: Program, pairs) -> set[tuple[bool, int]]:
    return {program.ops[a].where for a, _ in pairs}


def handed(*ops: Op, apart: bool = False) -> Program:
    """Warp 0 writes a word, warp 2 of the other CTA reads it."""
    return Program((Op(0, "write", 1), *ops, Op(2, "read", 1)), apart)


ARRIVE, WAIT, FENCE, NARROW = Op(0, "arrive", 1), Op(2, "wait", 1), Op(0, "fence"), Op(0, "fence", 0, "cta")
RAISE, SEE, GPU_FENCE = Op(0, "raise", 0, "gpu"), Op(2, "see", 0, "gpu"), Op(0, "fence", 0, "gpu")
MEET = [Op(warp, "cluster", is_relaxed=True) for warp in ACTORS]


def by_reader(op: Op) -> Op:
    return replace(op, warp=2)


def relaxed(op: Op) -> Op:
    return replace(op, is_relaxed=True)


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(programs())
@example(handed(replace(ARRIVE, scope="cta"), WAIT))
@example(handed(ARRIVE, replace(WAIT, scope="cta")))
@example(handed(relaxed(ARRIVE), WAIT))
@example(handed(ARRIVE, relaxed(WAIT)))
@example(handed(Op(0, "arrive", 0, "cta"), Op(1, "wait", 0, "cta"), Op(1, "arrive", 1), WAIT))
@example(handed(FENCE, NARROW, relaxed(ARRIVE), WAIT))
@example(handed(FENCE, replace(relaxed(ARRIVE), scope="cta"), WAIT))
@example(handed(ARRIVE, relaxed(WAIT), by_reader(NARROW), by_reader(FENCE)))
@example(handed(ARRIVE, relaxed(WAIT), by_reader(NARROW)))
@example(handed(FENCE, NARROW, *MEET))
@example(handed(GPU_FENCE, NARROW, relaxed(RAISE), SEE, apart=True))
@example(handed(RAISE, relaxed(SEE), by_reader(NARROW), by_reader(GPU_FENCE), apart=True))
def test_no_race_and_no_narrow_scope_is_missed_and_none_invented(program):
    right = expected(program)
    for schedule, seed in (("fifo", 0), ("random", 1)):
        races, scopes = checked(program, schedule, seed)
        assert races <= right.unordered
        assert scopes <= right.narrow | right.harmless
        assert places(program, races) == places(program, right.unordered)
        missed = places(program, right.narrow) - places(program, scopes)
        assert missed <= places(program, right.unordered)
