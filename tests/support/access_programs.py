"""Random small programs of accesses of every strength and state space, and what the checker says of them under each
engine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from native_engine import library, watched
from ptx_programs import WORDS, module_of, source

from emugpu.check import Checker
from emugpu.emulator import Device, Fault

PLACES = 3
"""Words that all threads may touch, in shared and in global memory."""
START = """
.local .align 16 .b8 frame[16]; mov.b32 %r2, words; mov.u32 %r10, %ctaid.x; mov.u32 %r11, %ntid.x;
mad.lo.u32 %r12, %r10, %r11, %r0; shl.b32 %r13, %r0, 4; add.u32 %r3, %r2, %r13;
mul.wide.u32 %rd1, %r12, 16; add.s64 %rd1, %rd0, %rd1; mov.b64 %rd2, frame; cvta.local.u64 %rd3, %rd2;
cvt.u64.u32 %rd4, %r2; cvta.shared.u64 %rd4, %rd4; cvt.u64.u32 %rd5, %r3; cvta.shared.u64 %rd5, %rd5;
and.b32 %r4, %r0, 31; and.b32 %r5, %r0, 1; shl.b32 %r14, %r4, 2; add.u32 %r15, %r2, %r14;
mul.wide.u32 %rd6, %r4, 4; add.s64 %rd7, %rd0, %rd6; shr.u32 %r16, %r0, 5;
setp.eq.u32 %p1, %r4, 0; setp.lt.u32 %p2, %r4, 9; setp.eq.u32 %p3, %r5, 0; setp.eq.u32 %p4, %r0, 0;
setp.eq.u32 %p5, %r10, 0; setp.eq.u32 %p6, %r16, 0; mov.b32 %r1, 0; mov.b32 %r20, 1; mov.b32 %r21, 2; mov.b32 %r22, 3;
"""
"""Shared addresses: %r2 of the words, %r3 of a thread's own, %r15 by lane; generic %rd4, %rd5. Global addresses: %rd0,
%rd1 of a thread's own, %rd7 by lane. %rd2, generic %rd3: local. Guards: %p1 lane 0, %p2 some lanes, %p3 even threads,
%p4 thread 0, %p5 CTA 0, %p6 warp 0.
"""
OWN = 1024
"""Offset of the words of single threads, in shared and in global memory."""
ORDERS = {
    "ld": ("", "", "", ".volatile", ".relaxed.cta", ".relaxed.gpu", ".relaxed.sys", ".acquire.gpu", ".acquire.cta"),
    "st": ("", "", "", ".volatile", ".relaxed.cta", ".relaxed.gpu", ".relaxed.sys", ".release.gpu", ".release.cta"),
    "atom": ("", "", ".relaxed.cta", ".relaxed.gpu", ".acq_rel.gpu", ".release.gpu", ".acquire.cta"),
}
FENCES = ("fence.acq_rel.gpu;", "fence.acq_rel.cta;", "membar.gl;", "fence.sc.gpu;", "fence.acq_rel.sys;")
MEETINGS = ("bar.sync 0;", "bar.sync 0;", "bar.sync 0;", "bar.warp.sync -1;", "shfl.sync.idx.b32 %r9, %r0, 0, 31, -1;")


@dataclass
class Generator:
    """Makes one program. ``quiet``: nothing acquires, releases, or fences. ``plain``: nothing is strong. ``own``: which
    part of the accesses is to a thread's own words.
    """

    rng: random.Random
    quiet: bool
    kinds: list[str] = field(default_factory=list)
    spaces: list[str] = field(default_factory=list)
    label: int = 0
    plain: bool = False
    own: float = 0.0

    def order(self, verb: str) -> str:
        if self.plain:
            return ""
        found = [o for o in ORDERS[verb] if not self.quiet or not o.startswith((".acq", ".rel"))]
        found += [o for o in ORDERS[verb] if ".relaxed" in o]
        return self.rng.choice(found)

    def address(self, space: str) -> tuple[str, str]:
        """Returns the name of a space in an instruction, and an address."""
        rng = self.rng
        if self.own and rng.random() < self.own:
            return ".shared" if space == "shared" else ".global", f"[%{'r3' if space == 'shared' else 'rd1'}+{OWN}]"
        place = 4 * rng.randrange(PLACES)
        how = rng.choice(("word", "word", "own", "own", "lane"))
        if space == "local":
            return rng.choice(((".local", f"[%rd2+{place}]"), ("", f"[%rd3+{place}]")))
        if space == "shared":
            if rng.random() < 0.25:
                return "", {"word": f"[%rd4+{place}]", "own": f"[%rd5+{OWN}]", "lane": f"[%rd4+{place + 64}]"}[how]
            return ".shared", {"word": f"[%r2+{place}]", "own": f"[%r3+{OWN}]", "lane": f"[%r15+{64 + place}]"}[how]
        found = {"word": f"[%rd0+{place}]", "own": f"[%rd1+{OWN}]", "lane": f"[%rd7+{64 + place}]"}[how]
        return rng.choice((".global", ".global", "")), found

    def guard(self) -> str:
        return f"@{self.rng.choice(('', '!'))}%p{self.rng.randrange(1, 7)} " if self.rng.random() < 0.35 else ""

    def access(self) -> str:
        rng = self.rng
        space = rng.choice(self.spaces)
        weak = ("ld", "st", "nc") if self.plain else ("ld", "st", "atom", "red", "nc")
        kind = rng.choice([k for k in self.kinds if k in weak])
        name, where = self.address(space)
        register, value = f"%r{rng.randrange(20, 23)}", rng.choice(("1", "%r0", "%r4", "%r20", "%r21"))
        if kind == "nc" and space == "global":
            return f"{self.guard()}ld.global.nc.u32 {register}, {where};"
        if kind in ("atom", "red") and space != "local":
            order = self.order("atom")
            if kind == "red" and "acq" in order:
                order = ""
            what = rng.choice(("add", "max", "exch", "or", "cas") if kind == "atom" else ("add", "max", "or"))
            value += ", %r4" if what == "cas" else ""
            to = f"{register}, " if kind == "atom" else ""
            suffix = "b32" if what in ("exch", "or", "cas") else "u32"
            return f"{self.guard()}{kind}{order}{name}.{what}.{suffix} {to}{where}, {value};"
        if kind in ("ld", "nc"):
            order = "" if space == "local" else self.order("ld")
            return f"{self.guard()}ld{order}{name}.u32 {register}, {where};"
        order = "" if space == "local" else self.order("st")
        return f"{self.guard()}st{order}{name}.u32 {where}, {value};"

    def found(self) -> str:
        """A strong access that may find another thread's, and a weak one of the same word; in one CTA or the others."""
        rng = self.rng
        place, guard = 4 * rng.randrange(PLACES), rng.choice(("@%p5 ", "@!%p5 "))
        base = "%rd0" if "global" in self.spaces else "%r2"
        space = ".global" if base == "%rd0" else ".shared"
        strong = rng.choice(
            ("ld.relaxed.gpu{}.u32 %r20,", "ld.volatile{}.u32 %r20,", "atom.relaxed.gpu{}.add.u32 %r20,")
        )
        end = ", 1;" if strong.startswith("atom") else ";"
        return f"{guard}{strong.format(space)} [{base}+{place}]{end} {guard}ld{space}.u32 %r21, [{base}+{place}];"

    def statements(self, count: int, depth: int, together: bool = False) -> list[str]:
        rng, made = self.rng, []
        for _ in range(count):
            draw = rng.random()
            if draw < 0.12:
                made.append(rng.choice(MEETINGS) if together else "add.u32 %r1, %r1, 1;")
            elif draw < 0.20 and not self.quiet:
                made.append(self.guard() + rng.choice(FENCES))
            elif draw < 0.32 and depth:
                self.label += 1
                n = self.label
                yes, no = (" ".join(self.statements(rng.randrange(most), depth - 1)) for most in (4, 3))
                made.append(f"@%p{rng.randrange(1, 7)} bra E{n}; {yes} bra.uni F{n}; E{n}: {no} F{n}:")
            elif draw < 0.38 and depth:
                self.label += 1
                n = self.label
                body = " ".join(self.statements(rng.randrange(1, 4), depth - 1))
                made.append(f"{{ .reg .b32 c; .reg .pred q; mov.b32 c, 2; L{n}: {body} sub.s32 c, c, 1;"
                            f"setp.gt.s32 q, c, 0; @q bra L{n}; }}")  # fmt: skip
            elif draw < 0.46 and "ld" in self.kinds and not self.plain:
                made.append(self.found())
            else:
                made.append(self.access())
        return made

    def rounds(self, depth: int) -> str:
        """Weak accesses with barriers between them, perhaps in a loop."""
        rng = self.rng
        quiet, self.quiet, self.plain = self.quiet, True, True
        made, waits = [], rng.choice((0.7, 0.2))
        for _ in range(rng.randrange(1, 7)):
            made += self.statements(rng.randrange(1, 4), depth, together=True)
            made += ["bar.sync 0;"] * (rng.random() < waits)
        self.quiet, self.plain = quiet, False
        if rng.random() < 0.6:
            return " ".join(made)
        self.label += 1
        end = rng.choice(("bar.sync 0;", ""))
        return (f"{{ .reg .b32 c; .reg .pred q; mov.b32 c, {rng.randrange(2, 5)}; L{self.label}: {' '.join(made)} {end}"
                f"sub.s32 c, c, 1; setp.gt.s32 q, c, 0; @q bra L{self.label}; }}")  # fmt: skip

    def hand_over(self, depth: int) -> str:
        """CTA 0 stores, and the others load or overwrite what it has stored behind a flag. Something may be missing."""
        rng = self.rng
        self.label += 1
        n, data = self.label, 4 * rng.randrange(PLACES)
        flag, lanes = f"[%rd0+{256 + 4 * n}]", f"[%rd7+{64 + data}]"
        fences = ("fence.acq_rel.gpu;", "fence.acq_rel.gpu;", "membar.gl;", "fence.acq_rel.cta;", "")
        first, second = rng.choice(fences), rng.choice(fences)
        barriers = [rng.choice(("bar.sync 0;", "bar.sync 0;", "bar.sync 0;", "")) for _ in range(3)]
        between = [self.rounds(depth) if rng.random() < 0.5 else "" for _ in range(2)]
        store = rng.choice((f"@%p7 st.global.u32 [%rd0+{data}], 5;", f"@%p5 st.global.u32 {lanes}, 5;"))
        signal = rng.choice((
            f"{first} @%p7 st.relaxed.gpu.global.u32 {flag}, 1;",
            f"{first} @%p7 st.volatile.global.u32 {flag}, 1;",
            f"@%p7 red.release.gpu.global.add.u32 {flag}, 1;",
            f"@!%p7 bra S{n}; {first} red.relaxed.gpu.global.add.u32 {flag}, 1; S{n}:",
        ))  # fmt: skip
        poll = f"W{n}: ld.{{}}.global.u32 %r9, {flag}; setp.eq.u32 %p8, %r9, 0; @%p8 bra W{n};"
        wait = rng.choice((
            f"@!%p4 bra X{n}; {poll.format('acquire.gpu')} X{n}:",
            f"@!%p4 bra X{n}; {poll.format('relaxed.gpu')} {second} X{n}:",
            f"{poll.format('volatile')} {second}",
        ))  # fmt: skip
        use = rng.choice((
            f"ld.global.u32 %r20, [%rd0+{data}];", f"@%p4 ld.global.u32 %r20, [%rd0+{data}];",
            f"ld.global.u32 %r20, {lanes};", f"@!%p5 st.global.u32 {lanes}, 6;",
        ))  # fmt: skip
        return " ".join((store, barriers[0], between[0], signal, wait, barriers[1], between[1], use, barriers[2]))


@dataclass(frozen=True)
class Program:
    text: str
    grid: int
    threads: int
    schedule: str
    seed: int


def draw(seed: int) -> Program:
    """Draws a program. Many have only some kinds of accesses, so that not all of them race."""
    rng = random.Random(seed)
    kinds = rng.choice((["ld", "st"], ["ld", "atom", "red"], ["atom", "red"], ["ld", "st", "atom", "red", "nc"]))
    spaces = rng.choice(
        (["shared"], ["global"], ["shared", "global"], ["shared", "global", "local"], ["shared"] * 3 + ["local"])
    )
    generator = Generator(rng, rng.random() < 0.6, kinds, spaces)
    first = "st.local.v4.u32 [%rd2], {%r0, %r0, %r0, %r0};"
    if rng.random() < 0.7:
        zero = " ".join(f"st.shared.u32 [%r2+{4 * n}], %r1;" for n in range(64))
        first += f"@!%p4 bra STARTED; {zero} STARTED: st.shared.u32 [%r3+{OWN}], %r1; bar.sync 0;"
    body = (
        START
        + first
        + "\n"
        + "\n".join(generator.statements(rng.randrange(3, 24), rng.choice((0, 0, 1, 2)), together=True))
        + "\nst.global.u32 [%rd1+8192], %r1; ret;"
    )
    return Program(
        source(body, WORDS),
        rng.choice((1, 2, 3)),
        rng.choice((32, 64, 64)),
        rng.choice(("fifo", "fifo", "random")),
        seed,
    )


def draw_rounds(seed: int) -> Program:
    """Draws a program that has strong accesses, and then barriers and weak accesses, several times."""
    rng = random.Random(seed)
    kinds = rng.choice((["ld", "st"], ["ld", "st", "atom", "red"], ["ld", "st", "atom", "red", "nc"]))
    spaces = rng.choice((["shared"], ["global"], ["shared", "global"], ["shared", "shared", "global"]))
    generator = Generator(rng, rng.random() < 0.3, kinds, spaces, own=rng.choice((1.0, 0.97, 0.9, 0.5)))
    zero = " ".join(f"st.shared.u32 [%r2+{4 * n}], %r1;" for n in range(64))
    body = [f"and.pred %p7, %p4, %p5; @!%p4 bra STARTED; {zero} STARTED: st.shared.u32 [%r3+{OWN}], %r1; bar.sync 0;"]
    hands_over = rng.random() < 0.5
    for _ in range(rng.randrange(1, 4)):
        depth = rng.choice((0, 0, 1))
        if hands_over and rng.random() < 0.7:
            body.append(generator.hand_over(depth))
        else:
            body += [*generator.statements(rng.randrange(1, 4), depth, together=True), "bar.sync 0;"]
        body += [generator.rounds(depth), rng.choice(("bar.sync 0;", ""))]
    text = source(START + "\n".join(body) + "\nst.global.u32 [%rd1+8192], %r1; ret;", WORDS)
    return Program(
        text, rng.choice((1, 2, 3)), rng.choice((32, 64, 64, 128)), rng.choice(("fifo", "fifo", "random")), seed
    )


def findings(program: Program, native: bool) -> tuple[str, list[tuple[Any, ...]]]:
    """Returns the error that ended a run, or "", and the checker's findings: rule, severity, and both instructions.

    A finding names the first of several warps, and of several flags, that it is told of. Which one that is depends on
    how far the run is when the checker looks.
    """
    checker = Checker()
    device = Device(schedule=program.schedule, seed=program.seed, library=library() if native else None)
    out = device.upload(np.zeros(8192, np.uint32), "out")
    error = ""
    with watched() as stops:
        try:
            device.launch(
                module_of(program.text), grid=program.grid, block=program.threads, arguments=[out], sinks=[checker]
            )
        except Fault as fault:
            error = str(fault)
            checker.failed(fault)
    assert bool(stops) is native, "only the native engine enters native code"
    return error, sorted(
        (f.rule, f.severity, *sorted(place.line for place in (f.first, f.second) if place is not None))
        for f in checker.report().findings
    )
