"""Random programs under both engines: the same results, counters, schedules and faults."""

from __future__ import annotations

import random

import pytest
from native_engine import outcome
from ptx_programs import WORDS, source


class Program:
    """Random PTX: arithmetic on %r1 to %r4, branches, loops, barriers, early exits, shuffles, shared memory."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.labels = 0

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def add(self, text: str) -> None:
        self.lines.append(text)

    def register(self) -> str:
        return self.rng.choice(("%r1", "%r2", "%r3", "%r4"))

    def arithmetic(self) -> None:
        a, b, d = self.register(), self.rng.choice((self.register(), "%r0", "3", "17")), self.register()
        self.add(f"{self.rng.choice(('add.u32', 'xor.b32', 'mul.lo.u32', 'sub.u32', 'min.u32'))} {d}, {a}, {b};")

    def condition(self) -> str:
        """Puts a predicate into %p1 that some lanes, warps, or none of them have."""
        what = self.rng.choice(("%r0", "%r0", self.register(), "%r5"))
        self.add(f"and.b32 %r6, {what}, {self.rng.choice((1, 3, 7, 32, 63))};")
        self.add(f"setp.{self.rng.choice(('eq', 'lt', 'ne'))}.u32 %p1, %r6, {self.rng.choice((0, 1, 2, 5))};")
        return self.rng.choice(("@%p1", "@!%p1"))

    def statements(self, depth: int, together: bool) -> None:
        """together: whether all lanes of a CTA are sure to come here, and as often."""
        for _ in range(self.rng.randint(1, 4)):
            kind = self.rng.random()
            if kind < 0.35 or depth == 0:
                self.arithmetic()
            elif kind < 0.55:
                over, end = self.label(), self.label()
                self.add(f"{self.condition()} bra {over};")
                self.statements(depth - 1, False)
                self.add(f"bra {end}; {over}:")
                if self.rng.random() < 0.6:
                    self.statements(depth - 1, False)
                self.add(f"{end}:")
            elif kind < 0.7:
                again, counter = self.label(), f"%r{10 + depth}"
                bound = self.rng.choice(("2", "5", "90" if depth == 1 else "3", "%r5"))
                self.add(f"and.b32 %r5, {self.rng.choice(('%r0', '%r1'))}, 3; add.u32 %r5, %r5, 1;")
                self.add(f"mov.b32 %r{14 + depth}, {bound}; mov.b32 {counter}, 0;")
                self.add(f"{again}: add.u32 {counter}, {counter}, 1;")
                self.statements(depth - 1, together and bound != "%r5")
                self.add(f"setp.lt.u32 %p2, {counter}, %r{14 + depth}; @%p2 bra {again};")
            elif kind < 0.85 and together:
                word = self.rng.choice((self.register(), "%r0"))
                self.add(f"st.shared.u32 [%r7], {word};")
                count = self.rng.choice(("", "", ", 128"))
                self.add(self.rng.choice((f"bar.sync 0{count};", f"barrier.sync 3{count};")))
                self.add(f"ld.shared.u32 {self.register()}, [%r8]; bar.sync 1;")
            elif kind < 0.9:
                self.add(f"st.global.u32 [%rd1+{4096 * self.rng.randint(0, 3)}], {self.register()};")
            elif kind < 0.95 and together:
                self.add(f"shfl.sync.bfly.b32 %r1, {self.register()}, {self.rng.choice((1, 4))}, 31, -1;")
            elif not together and depth == 1 and self.rng.random() < 0.3:
                self.add(f"{self.condition()} ret;")

    def text(self) -> str:
        self.add(
            """
            mul.wide.u32 %rd1, %r0, 4; mov.u32 %r9, %ctaid.x; mul.wide.u32 %rd2, %r9, 512; add.s64 %rd1, %rd0, %rd1;
            add.s64 %rd1, %rd1, %rd2; mov.b32 %r5, words; shl.b32 %r6, %r0, 2; add.u32 %r7, %r5, %r6;
            xor.b32 %r6, %r6, 128; add.u32 %r8, %r5, %r6; mov.b32 %r5, 2; st.shared.u32 [%r7], %r0;
            add.u32 %r1, %r0, 1; mov.b32 %r2, 5; xor.b32 %r3, %r0, 21; mov.b32 %r4, %r9;
            """
        )
        self.statements(3, True)
        if self.rng.random() < 0.5:  # barriers for everybody, where some have left
            self.add(f"{self.condition()} ret; barrier.sync 2;")
        self.add("".join(f"st.global.u32 [%rd1+{16384 + 4096 * n}], %r{n + 1};" for n in range(4)) + "ret;")
        return source("\n".join(self.lines), WORDS)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.thorough) for first in range(30, 120, 30))]
)
def test_random_programs(first):
    for seed in range(first, first + 30):
        text = Program(seed).text()
        assert outcome(text, True, threads=128) == outcome(text, False, threads=128), (seed, text)
        if seed % 5 == 0:
            options = {"threads": 128, "schedule": "random", "seed": seed}
            assert outcome(text, True, **options) == outcome(text, False, **options), (seed, text)
