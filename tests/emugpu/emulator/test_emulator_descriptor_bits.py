"""Every bit of the descriptors of matrices and instructions, one at a time (PTX ISA 9.7.16.4 and 9.7.15.5.1.2.2)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from emugpu.emulator import Fault, Swizzle
from emugpu.emulator.memory.descriptors import Major, decode, decode_sm90, decode_sm100

# ---- descriptors of matrices ----

PLAIN = dict(start=0, leading_bytes=0, stride_bytes=0, swizzle=Swizzle.NONE, base_offset=0, absolute=False)
SWIZZLES_SM100 = {61: None, 62: Swizzle.B128, 63: Swizzle.B64}
SWIZZLES_SM90 = {62: Swizzle.B128, 63: Swizzle.B64}


def one_bit(bit: int, swizzles: dict[int, Swizzle | None]) -> dict[str, Any] | None:
    """What a descriptor says in which only this bit is set beside the fixed ones; None if it is not allowed."""
    for name, first, last, unit in (("start", 0, 13, 16), ("leading_bytes", 16, 29, 16), ("stride_bytes", 32, 45, 16),
                                    ("base_offset", 49, 51, 1)):  # fmt: skip
        if first <= bit <= last:
            return PLAIN | {name: unit << (bit - first)}
    if swizzles.get(bit) is not None:
        return PLAIN | {"swizzle": swizzles[bit]}
    return None


@pytest.mark.parametrize(
    ("decode", "fixed", "swizzles"),
    [(decode_sm100, 1 << 46, SWIZZLES_SM100), (decode_sm90, 0, SWIZZLES_SM90)],
    ids=["tcgen05", "wgmma"],
)
def test_every_bit_of_a_matrix_descriptor(decode, fixed, swizzles):
    assert asdict(decode(fixed)) == PLAIN
    for bit in range(64):
        expected = one_bit(bit, swizzles)
        if expected is None:
            with pytest.raises(Fault):
                decode(fixed ^ 1 << bit)
        else:
            assert asdict(decode(fixed | 1 << bit)) == expected, bit


def test_swizzles_have_other_codes_on_either_architecture():
    assert decode_sm100(1 << 46 | 6 << 61).swizzle is Swizzle.B32
    assert decode_sm90(3 << 62).swizzle is Swizzle.B32
    for code in (1, 3, 5, 7):
        with pytest.raises(Fault, match=f"swizzle code {code}"):
            decode_sm100(1 << 46 | code << 61)


def test_fields_at_their_largest():
    everything = asdict(decode_sm100(1 << 46 | 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 2 << 61))
    assert everything == PLAIN | dict(
        start=0x3FFF0, leading_bytes=0x3FFF0, stride_bytes=0x3FFF0, swizzle=Swizzle.B128, base_offset=7
    )


# ---- descriptors of instructions: kind::f16 ----

BASE = 1 << 4 | 8 << 24 | 8 << 17
"""f16 inputs, f32 result, M = 128, N = 64, both K-major."""
DECODED = dict(
    kind="f16", m=128, n=64, a_type="f16", b_type="f16", d_type="f32", a_major=Major.K, b_major=Major.K, negate=False,
    saturate=False, scale="", a_id=0, b_id=0, is_k96=False,
)  # fmt: skip
CHANGES: dict[int, dict[str, Any] | None] = {
    4: {"d_type": "f16"}, 7: {"a_type": "bf16"}, 10: {"b_type": "bf16"}, 13: {"negate": True}, 14: {"negate": True},
    15: {"a_major": Major.MN}, 16: {"b_major": Major.MN}, 17: {"n": 72}, 18: {"n": 80}, 19: {"n": 96}, 20: None,
    21: {"n": 192}, 22: None, 26: None,
}  # fmt: skip
"""By bit that is turned over: what changes, or None where it is not a shape any more. Other bits may not be set."""


def test_every_bit_of_an_instruction_descriptor():
    assert asdict(decode("f16", BASE, 1)) == DECODED
    for bit in range(32):
        change = CHANGES.get(bit)
        if change is None:
            with pytest.raises(Fault):
                decode("f16", BASE ^ 1 << bit, 1)
        else:
            assert asdict(decode("f16", BASE ^ 1 << bit, 1)) == DECODED | change, bit


@pytest.mark.parametrize(("group", "shapes"), [(1, {64: 8, 128: 8}), (2, {128: 16, 256: 16})])
def test_shapes(group, shapes):
    """M of one CTA or of a pair, and N in steps of 8 or 16 up to 256 (PTX ISA 9.7.16.2.1)."""
    for m in range(0, 512, 16):
        for n in range(0, 512, 8):
            value = 1 << 4 | n >> 3 << 17 | m >> 4 << 24
            legal = m in shapes and 0 < n <= 256 and n % shapes[m] == 0
            try:
                decoded = decode("f16", value, group)
            except Fault:
                assert not legal, (m, n)
            else:
                assert legal and (decoded.m, decoded.n) == (m, n), (m, n)
