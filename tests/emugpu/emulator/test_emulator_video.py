"""SIMD video instructions against NumPy's integers; constant expressions, and guards without a blank."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, launch

from emugpu.emulator import Fault, Module
from emugpu.emulator.errors import PtxSyntaxError

RNG = np.random.default_rng(8)
A, B, C = RNG.integers(0, 1 << 32, (3, 32), dtype=np.uint64).astype(np.uint32)
OPERATIONS = {
    "vadd": lambda a, b: a + b, "vsub": lambda a, b: a - b, "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum, "vmax": np.maximum, "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}  # fmt: skip


def result(instruction: str) -> np.ndarray:
    """Of operands %r4, %r5 and %r6."""
    loads = "mul.wide.u32 %rd2, %r0, 4; add.u64 %rd2, %rd2, %rd0;" + "".join(
        f"ld.global.u32 %r{4 + n}, [%rd2+{128 * n}];" for n in range(3)
    )
    return launch(loads + instruction + STORE_R1 + "ret;", initial=np.concatenate([A, B, C])).words(32)


def parts(value: np.ndarray, count: int, kind: str) -> np.ndarray:
    return value.view({"u32": "u", "s32": "i"}[kind] + str(4 // count)).reshape(32, count).astype(np.int64)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_parts_of_registers(name, count):
    bits = 32 // count
    for d, a, b in (("u32", "u32", "u32"), ("s32", "s32", "s32"), ("u32", "s32", "u32")):
        exact = OPERATIONS[name](parts(A, count, a), parts(B, count, b))
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if d == "s32" else (0, (1 << bits) - 1)
        for suffix, found in (("", exact), (".sat", np.clip(exact, low, high))):
            wanted = found.astype(f"u{4 // count}").reshape(32, count).copy().view(np.uint32).ravel()
            assert (result(f"{name}{count}.{d}.{a}.{b}{suffix} %r1, %r4, %r5, %r6;") == wanted).all()
        added = (exact.sum(1) + C.astype(np.int64)) & 0xFFFFFFFF
        assert (result(f"{name}{count}.{d}.{a}.{b}.add %r1, %r4, %r5, %r6;") == added).all()


def test_comparisons_count():
    found = result("vset4.s32.s32.lt.add %r1, %r4, %r5, %r6;")
    assert (found == ((parts(A, 4, "s32") < parts(B, 4, "s32")).sum(1) + C) & 0xFFFFFFFF).all()


def test_a_selection_of_parts_is_refused():
    with pytest.raises((Fault, PtxSyntaxError)):
        result("vadd4.u32.u32.u32 %r1, %r4.b7610, %r5, %r6;")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("mov.u32 %r1, (1+2);", 3), ("add.u32 %r1, %r0, (4*2-1);", 7), ("mov.u32 %r1, -(3);", 0xFFFFFFFD),
        ("mov.u32 %r1, ((0x10 | 3) << 2);", 76), ("mov.u32 %r1, (7/2*10);", 30), ("mov.u32 %r1, (-7/2);", 0xFFFFFFFD),
        ("mov.u32 %r1, (~0x0FU & 0xFF);", 0xF0), ("mov.u32 %r1, 5; setp.ne.u32 %p1, %r1, 5; @%p1mov.u32 %r1, 4;", 5),
        ("mov.u32 %r1, 5; setp.ne.u32 %p1, %r1, 5; @!%p1add.u32 %r1, %r1, 4;", 9),
    ],
)  # fmt: skip
def test_constant_expressions_and_guards_without_a_blank(text, value):
    done = launch(text + STORE_R1 + "ret;", words=32)
    assert done.words(1)[0] == value


def test_constant_expressions_in_addresses():
    body = "mov.u32 %r1, 9; st.global.u32 [%rd0+(4*3)], %r1; ret;"
    assert launch(body, initial=np.zeros(8, np.uint32)).words(8).tolist() == [0, 0, 0, 9, 0, 0, 0, 0]


def test_a_guard_that_is_no_register_is_refused():
    with pytest.raises(PtxSyntaxError, match=r"unknown predicate '%pq7mov\.u32'"):
        Module.from_text(
            ".version 8.8\n.target sm_90a\n.address_size 64\n.entry k() { .reg .b32 %r<3>; @%pq7mov.u32 %r1, 4; ret; }"
        )
