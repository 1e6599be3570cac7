"""Random programs of guards, branches, loops and accesses, against an interpreter that takes one thread at a time.

Registers begin unwritten, as in PTX. Computing with those is allowed and gives what is unwritten again; to store one,
or to decide by it, is a Fault (`Undefined` here).
"""

from __future__ import annotations

import ctypes
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from ptx_programs import WORDS, launch, source

from emugpu.cuda.driver import Driver
from emugpu.emulator import Fault
from harness.compile.compiler import find_gpus

M16, M32, M64 = 0xFFFF, (1 << 32) - 1, (1 << 64) - 1
R, Q, H, P = (
    [f"%{name}{n}" for n in range(4, 4 + count)] for name, count in (("r", 7), ("rd", 5), ("rs", 3), ("p", 5))
)
"""Registers of 32, 64 and 16 bits, and predicates, that the programs compute with."""


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


@dataclass(frozen=True)
class Op:
    """``text`` with {} for the destinations and sources; ``function``: of the sources' values, without the widths."""

    text: str
    to: list[str]
    sources: tuple[list[str], ...]
    function: Callable[..., Any]
    bits: int


OPS = [
    Op("add.u32 {}, {}, {};", R, (R, R), lambda a, b: a + b, 32),
    Op("sub.s32 {}, {}, {};", R, (R, R), lambda a, b: a - b, 32),
    Op("mul.lo.s32 {}, {}, {};", R, (R, R), lambda a, b: a * b, 32),
    Op("mad.lo.u32 {}, {}, {}, {};", R, (R, R, R), lambda a, b, c: a * b + c, 32),
    Op("xor.b32 {}, {}, {};", R, (R, R), lambda a, b: a ^ b, 32),
    Op("and.b32 {}, {}, {};", R, (R, R), lambda a, b: a & b, 32),
    Op("not.b32 {}, {};", R, (R,), lambda a: ~a, 32),
    Op("min.s32 {}, {}, {};", R, (R, R), lambda a, b: min(signed(a, 32), signed(b, 32)), 32),
    Op("max.u32 {}, {}, {};", R, (R, R), max, 32),
    Op("shr.u32 {}, {}, {};", R, (R, R), lambda a, b: a >> min(b, 32), 32),
    Op("shl.b32 {}, {}, 3;", R, (R,), lambda a: a << 3, 32),
    Op("mov.b32 {}, {};", R, (R,), lambda a: a, 32),
    Op("mov.b32 {}, 77;", R, (), lambda: 77, 32),
    Op("popc.b32 {}, {};", R, (R,), int.bit_count, 32),
    Op("cvt.u32.u64 {}, {};", R, (Q,), lambda a: a, 32),
    Op("cvt.s32.s16 {}, {};", R, (H,), lambda a: signed(a, 16), 32),
    Op("add.u64 {}, {}, {};", Q, (Q, Q), lambda a, b: a + b, 64),
    Op("mul.wide.u32 {}, {}, {};", Q, (R, R), lambda a, b: a * b, 64),
    Op("mul.wide.s32 {}, {}, {};", Q, (R, R), lambda a, b: signed(a, 32) * signed(b, 32), 64),
    Op("cvt.u64.u32 {}, {};", Q, (R,), lambda a: a, 64),
    Op("cvt.s64.s32 {}, {};", Q, (R,), lambda a: signed(a, 32), 64),
    Op("mov.b64 {}, {{{}, {}}};", Q, (R, R), lambda a, b: a | b << 32, 64),
    Op("min.s64 {}, {}, {};", Q, (Q, Q), lambda a, b: min(signed(a, 64), signed(b, 64)), 64),
    Op("shr.s64 {}, {}, 5;", Q, (Q,), lambda a: signed(a, 64) >> 5, 64),
    Op("cvt.u16.u32 {}, {};", H, (R,), lambda a: a, 16),
    Op("add.u16 {}, {}, {};", H, (H, H), lambda a, b: a + b, 16),
    Op("setp.lt.s32 {}, {}, {};", P, (R, R), lambda a, b: signed(a, 32) < signed(b, 32), 1),
    Op("setp.ne.u32 {}, {}, 5;", P, (R,), lambda a: a != 5, 1),
    Op("setp.ge.and.u64 {}, {}, {}, {};", P, (Q, Q, P), lambda a, b, p: a >= b and p, 1),
    Op("xor.pred {}, {}, {};", P, (P, P), lambda a, b: a ^ b, 1),
    Op("or.pred {}, {}, {};", P, (P, P), lambda a, b: a | b, 1),
    Op("not.pred {}, {};", P, (P,), lambda a: 1 - a, 1),
]
SELECTS = [
    Op("selp.b32 {}, {}, {}, {};", R, (R, R, P), lambda a, b, p: a if p else b, 32),
    Op("selp.b64 {}, {}, {}, {};", Q, (Q, Q, P), lambda a, b, p: a if p else b, 64),
]


class Undefined(Exception):
    """Something was decided by an unwritten predicate, or one was stored."""


class Exited(Exception):
    """The thread has left."""


class Broken(Exception):
    """The thread has left the innermost loop."""


@dataclass
class Compute:
    op: Op
    to: str
    sources: list[str]
    guard: str = ""

    def ptx(self, labels: list[int]) -> str:
        return (f"@{self.guard} " if self.guard else "") + self.op.text.format(self.to, *self.sources)

    def run(self, values: dict[str, int]) -> None:
        if self.guard and not decided(self.guard, values):
            return
        taken = [values.get(s) for s in self.sources]
        if self.op in SELECTS and taken[2] is not None:
            taken[1 if taken[2] else 0] = 0  # what is not chosen may be anything
        if None in taken:
            values.pop(self.to, None)
        else:
            values[self.to] = int(self.op.function(*taken)) & ((1 << self.op.bits) - 1)


@dataclass
class Access:
    """A load or store of one of the thread's four words in shared memory."""

    word: int
    register: str
    stores: bool
    guard: str

    def ptx(self, labels: list[int]) -> str:
        guard, place = f"@{self.guard} " if self.guard else "", f"[%r11+{4 * self.word}]"
        if self.stores:
            return f"{guard}st.shared.b32 {place}, {self.register};"
        return f"{guard}ld.shared.b32 {self.register}, {place};"

    def run(self, values: dict[str, int]) -> None:
        if self.guard and not decided(self.guard, values):
            return
        word = f"word {self.word}"
        if not self.stores:
            values[self.register] = values[word]
        elif self.register not in values:
            raise Undefined
        else:
            values[word] = values[self.register]


@dataclass
class If:
    predicate: str
    yes: list[Any]
    no: list[Any]

    def ptx(self, labels: list[int]) -> str:
        labels.append(0)
        n = len(labels)
        yes, no = (" ".join(s.ptx(labels) for s in side) for side in (self.yes, self.no))
        return f"@!{self.predicate} bra E{n}; {yes} bra.uni F{n}; E{n}: {no} F{n}:"

    def run(self, values: dict[str, int]) -> None:
        execute(self.yes if decided(self.predicate, values) else self.no, values)


@dataclass
class Loop:
    """As many rounds as the low two bits of a register say, and one more."""

    register: str
    body: list[Any]

    def ptx(self, labels: list[int]) -> str:
        labels.append(0)
        n = len(labels)
        body = " ".join(s.ptx(labels) for s in self.body).replace("bra BREAK;", f"bra O{n};")
        return (
            f"{{ .reg .b32 c; .reg .pred q; and.b32 c, {self.register}, 3; L{n}: {body} sub.s32 c, c, 1; "
            f"setp.ge.s32 q, c, 0; @q bra L{n}; O{n}: }}"
        )

    def run(self, values: dict[str, int]) -> None:
        if self.register not in values:
            rounds: int | None = None
        else:
            rounds = values[self.register] & 3
        try:
            while True:
                execute(self.body, values)
                if rounds is None:
                    raise Undefined
                rounds -= 1
                if rounds < 0:
                    return
        except Broken:
            return


@dataclass
class Leave:
    """``exit``, or a branch out of the loop, for the threads of a predicate."""

    predicate: str
    text: str
    raises: type[Exception]

    def ptx(self, labels: list[int]) -> str:
        return f"@{self.predicate} {self.text};"

    def run(self, values: dict[str, int]) -> None:
        if decided(self.predicate, values):
            raise self.raises


def decided(predicate: str, values: dict[str, int]) -> bool:
    name = predicate.lstrip("!")
    if name not in values:
        raise Undefined
    return bool(values[name]) != predicate.startswith("!")


def execute(statements: list[Any], values: dict[str, int]) -> None:
    for statement in statements:
        statement.run(values)


@dataclass
class Generator:
    rng: random.Random
    known: set[str] = field(default_factory=lambda: {*R[:3], *Q[:2], H[0], *P[:2]})
    """Registers that are written at the start; mostly these are used, so that most programs are defined."""

    def pick(self, among: list[str]) -> str:
        well = [r for r in among if r in self.known]
        return self.rng.choice(well if well and self.rng.random() < 0.97 else among)

    def predicate(self) -> str:
        return self.rng.choice(["", "!"]) + self.pick(P)

    def compute(self) -> Compute:
        op = self.rng.choice(SELECTS if self.rng.random() < 0.1 else OPS)
        statement = Compute(op, self.rng.choice(op.to), [self.pick(s) for s in op.sources])
        if self.rng.random() < 0.3:
            statement.guard = self.predicate()
        elif self.rng.random() < 0.5:
            self.known.add(statement.to)
        return statement

    def statements(self, count: int, depth: int, in_loop: bool) -> list[Any]:
        made: list[Any] = []
        for _ in range(count):
            draw = self.rng.random()
            if draw > 0.9:
                guard = self.predicate() if self.rng.random() < 0.5 else ""
                made.append(Access(self.rng.randrange(4), self.pick(R), self.rng.random() < 0.5, guard))
            elif draw > 0.24 or depth == 0:
                made.append(self.compute())
            elif draw > 0.10:
                before = set(self.known)
                yes = self.statements(self.rng.randrange(1, 5), depth - 1, in_loop)
                no = self.statements(self.rng.randrange(4), depth - 1, in_loop)
                made.append(If(self.pick(P), yes, no))
                self.known = before | (self.known if self.rng.random() < 0.2 else set())
            elif draw > 0.04:
                made.append(Loop(self.pick(R), self.statements(self.rng.randrange(1, 5), depth - 1, True)))
            elif in_loop and draw > 0.015:
                made.append(Leave(self.predicate(), "bra BREAK", Broken))
            elif not in_loop:
                made.append(Leave(self.predicate(), "exit", Exited))
        return made


START = """
mov.b32 %r4, %r0;
mul.lo.u32 %r5, %r0, 0x9E3779B1;
mov.b32 %r6, 6;
cvt.u64.u32 %rd4, %r5;
mov.b64 %rd5, 0x123456789A;
cvt.u16.u32 %rs4, %r5;
setp.lt.u32 %p4, %r0, 11;
setp.eq.u32 %p5, %r6, 6;
mov.b32 %r3, words;
shl.b32 %r11, %r0, 4; add.u32 %r11, %r11, %r3;
st.shared.v4.b32 [%r11], {%r0, %r5, %r6, 9};
setp.gt.u32 %p1, %r0, 99; @!%p1 bra STARTED;
""" + "".join(
    f"mov.{kind} {r}, {0 if kind != 'pred' else '%p1'};"
    for names, kind in ((R, "b32"), (Q, "b64"), (H, "b16"), (P, "pred"))
    for r in names
)
"""Some registers have values, and each thread's words in shared memory; the rest is written somewhere, but never."""


def started(thread: int) -> dict[str, int]:
    mixed = thread * 0x9E3779B1 & M32
    return {
        "%r4": thread, "%r5": mixed, "%r6": 6, "%rd4": mixed, "%rd5": 0x123456789A, "%rs4": mixed & M16,
        "%p4": int(thread < 11), "%p5": 1, "word 0": thread, "word 1": mixed, "word 2": 6, "word 3": 9,
    }  # fmt: skip


def stores(names: list[str]) -> str:
    """Each register as 64 bits, 256 bytes apart."""
    text = "mul.wide.u32 %rd1, %r0, 8; add.u64 %rd1, %rd1, %rd0;"
    names = [f"[%r11+{4 * int(name[5:])}]" if name.startswith("word") else name for name in names]
    for n, name in enumerate(names):
        widened = {"%rs": f"cvt.u64.u16 %rd2, {name};", "%rd": f"mov.b64 %rd2, {name};"}.get(name[:3])
        if name.startswith("["):
            widened = f"ld.shared.u32 %rd2, {name};"
        widened = widened or (f"selp.b64 %rd2, 1, 0, {name};" if name[:2] == "%p" else f"cvt.u64.u32 %rd2, {name};")
        text += f"{widened} st.global.b64 [%rd1+{256 * n}], %rd2;"
    return text


@dataclass
class Program:
    """stored: what each thread stores at the end; ends: by thread, its values then, or None if it has left before.
    undefined: a thread decides by what is unwritten, or stores it."""

    body: str
    threads: int
    stored: list[str]
    ends: list[dict[str, int] | None]
    undefined: bool
    schedule: str

    def check(self, words: np.ndarray) -> None:
        found = words.view(np.uint64).reshape(28, 32)
        for n, name in enumerate(self.stored):
            expected = [0 if values is None else values[name] for values in self.ends]
            assert found[n, : self.threads].tolist() == expected, (name, self.body)


def draw(seed: int) -> Program:
    rng = random.Random(seed)
    program = Generator(rng).statements(rng.randrange(4, 22), 3, False)
    threads = rng.choice((32, 32, 20, 1))
    ends: list[dict[str, int] | None] = []
    undefined = False
    for thread in range(threads):
        values = started(thread)
        try:
            execute(program, values)
            ends.append(values)
        except Exited:
            ends.append(None)
        except Undefined:
            undefined = True
    alive = [values for values in ends if values is not None]
    names = [r for r in (*R, *Q, *H, *P) if all(r in values for values in alive)]
    lacking = [r for r in (*R, *Q, *H, *P) if r not in names]
    stored = [*names, *(f"word {n}" for n in range(4))]
    if alive and lacking and rng.random() < 0.3:
        stored, undefined = [*stored, rng.choice(lacking)], True
    labels: list[int] = []
    body = START + "STARTED: " + "\n".join(s.ptx(labels) for s in program) + "\n" + stores(stored) + "ret;"
    return Program(body, threads, stored, ends, undefined, rng.choice(("fifo", "random")))


NOTHING = np.zeros(64 * 28, np.uint32)


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_every_thread_computes_what_it_would_alone(first):
    outcomes = set()
    for seed in range(first, first + 10):
        program = draw(seed)
        outcomes.add(program.undefined)
        options: dict[str, Any] = dict(
            threads=program.threads, module_scope=WORDS, schedule=program.schedule, seed=seed, initial=NOTHING
        )
        if program.undefined:
            with pytest.raises(Fault) as error:
                launch(program.body, **options)
            assert error.value.rule == "undefined", (seed, program.body)
        else:
            program.check(launch(program.body, **options).words(64 * 28))
    assert False in outcomes, "some programs are defined"


@pytest.mark.gpu
@pytest.mark.skipif(not find_gpus(), reason="no GPU here")
def test_a_gpu_computes_the_same():
    """200 programs: what the one-thread interpreter, and so the emulator, says of them."""
    driver = Driver()
    major, minor = driver.describe()["compute_capability"].split(".")
    out = driver.allocate(NOTHING.nbytes)
    defined = (program for program in map(draw, itertools.count()) if not program.undefined)
    for program in itertools.islice(defined, 200):
        text = source(program.body, WORDS, target=f"sm_{major}{minor}a")
        driver.upload(out, NOTHING)
        function = driver.load(text.encode(), "kernel")
        driver.launcher(function, [ctypes.c_uint64(out)], (1, 1, 1), (program.threads, 1, 1))()
        driver.synchronize()
        program.check(driver.download(out, np.empty_like(NOTHING)))
