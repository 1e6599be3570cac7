"""Conversions that the translator writes as one call give what they give one by one (PTX ISA 9.7.9.21, cvt)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import launch, source

from harness.emulator import Module

START = {n: float(n) + 0.5 for n in range(10, 16)}
"""%r10 .. %r15 begin as these numbers, each lane's its own number more."""


def packed(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    halves = [x.view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32) for x in (high, low)]
    return halves[0] << 16 | halves[1]


def interpreted(program: list[str]) -> dict[int, np.ndarray]:
    """The registers after "cvt d a b", "mov d a" and "or d a b", one after another."""
    lane = np.arange(32, dtype=np.float32)
    registers = {n: (lane + np.float32(x)).view(np.uint32) for n, x in START.items()}
    for line in program:
        opcode, d, *rest = line.split()
        operands = [registers[int(n)] for n in rest]
        result = {"cvt": packed, "or": np.bitwise_or, "mov": np.copy}[opcode](*operands)
        registers[int(d)] = result
    return registers


def instruction(line: str) -> str:
    opcode, *rest = line.split()
    full = {"cvt": "cvt.rn.bf16x2.f32", "or": "or.b32", "mov": "mov.b32"}[opcode]
    return f"{full} {', '.join(f'%r{n}' for n in rest)};"


PROGRAMS = {
    "alike and independent": ["cvt 20 10 11", "cvt 21 12 13", "cvt 22 14 15"],
    "of sources that are overwritten between": ["cvt 20 10 11", "mov 12 15", "cvt 21 12 13"],
    "of sources that are overwritten by one of them": ["cvt 12 10 11", "cvt 21 12 13", "cvt 22 14 15"],
    "over a register that is read between": ["mov 21 10", "cvt 20 10 11", "or 22 21 12", "cvt 21 12 13"],
    "over a source of an earlier one": ["cvt 20 10 11", "cvt 10 12 13", "cvt 22 10 15"],
    "twice to the same register": ["cvt 20 10 11", "or 21 20 12", "cvt 20 12 13", "cvt 22 14 15"],
    "over their own sources": ["cvt 10 10 11", "cvt 12 12 13", "cvt 22 14 15"],
    "over their own sources, twice": ["cvt 10 11 10", "cvt 12 13 12", "cvt 10 10 12", "cvt 12 12 10"],
    "with a use in between": ["cvt 20 10 11", "or 21 20 12", "cvt 22 12 13", "or 23 22 21", "cvt 24 14 15"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_conversions_together_are_those_one_by_one(name):
    program = PROGRAMS[name]
    begin = "cvt.rn.f32.u32 %r1, %r0;" + "".join(
        f"add.f32 %r{n}, %r1, 0f{np.float32(x).view(np.uint32):08X};" for n, x in START.items()
    )
    expected = interpreted(program)
    body = begin + "".join(map(instruction, program)) + "mul.wide.u32 %rd4, %r0, 4; add.u64 %rd4, %rd4, %rd0;"
    body += "".join(f"st.global.b32 [%rd4+{128 * k}], %r{n};" for k, n in enumerate(expected))
    found = launch(body + "ret;", words=32 * len(expected)).words(32 * len(expected)).reshape(-1, 32)
    for n, row in zip(expected, found, strict=True):
        assert (row == expected[n]).all(), n


def test_they_are_one_call():
    body = "mov.b32 %r10, 0;" + "".join(map(instruction, ["cvt 20 10 10", "cvt 21 10 10", "cvt 22 10 10"])) + "ret;"
    text = Module.from_text(source(body)).code("kernel").source
    assert text.count("pack_bf16x2") == 1
