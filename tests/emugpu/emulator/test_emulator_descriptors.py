"""Matrix and instruction descriptors: fields, refusals, and the operand layouts they describe."""

from __future__ import annotations

import itertools

import pytest
from emulator_reference import SPAN_BYTES, operand_byte, swizzled

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.descriptors import (
    Major,
    MatrixDescriptor,
    decode,
    decode_sm90,
    decode_sm100,
    operand_positions,
)
from emugpu.emulator.memory.swizzle import Swizzle


class TestMatrixDescriptor:
    def test_the_usual_bf16_tile(self):
        """128-byte swizzle, 8-row groups 1024 bytes apart, start 0x8420."""
        assert decode_sm100(0x4000404000010000 | 0x8420 >> 4) == MatrixDescriptor(0x8420, 16, 1024, Swizzle.B128)

    @pytest.mark.parametrize(
        ("code", "swizzle"), [(0, Swizzle.NONE), (2, Swizzle.B128), (4, Swizzle.B64), (6, Swizzle.B32)]
    )
    def test_sm100_swizzle_codes(self, code, swizzle):
        assert decode_sm100(code << 61 | 1 << 46).swizzle is swizzle

    @pytest.mark.parametrize(
        ("code", "swizzle"), [(0, Swizzle.NONE), (1, Swizzle.B128), (2, Swizzle.B64), (3, Swizzle.B32)]
    )
    def test_sm90_swizzle_codes(self, code, swizzle):
        decoded = decode_sm90(code << 62 | 5 << 49 | 3 << 32 | 2 << 16 | 0x3FFF)
        assert decoded == MatrixDescriptor(0x3FFF0, 32, 48, swizzle, 5)

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (0, r"bits 46\.\.48 are 0b000, must be 0b001"),
            (2 << 46, "must be 0b001"),
            (1 << 46 | 1 << 61, "swizzle code 1"),
            (1 << 46 | 3 << 61, "swizzle code 3"),
            (1 << 46 | 7 << 61, "swizzle code 7"),
            (1 << 46 | 1 << 52, "bit 52"),
            (1 << 46 | 1 << 57, r"reserved bits 53\.\.60"),
            (1 << 46 | 1 << 14, r"reserved bits 14\.\.15"),
            (1 << 46 | 1 << 31, r"reserved bits 30\.\.31"),
        ],
    )
    def test_sm100_refusals(self, value, message):
        with pytest.raises(Fault, match=message):
            decode_sm100(value)

    @pytest.mark.parametrize(("value", "message"), [(1 << 46, r"46\.\.48"), (1 << 61, r"52\.\.61")])
    def test_sm90_refusals(self, value, message):
        with pytest.raises(Fault, match=message):
            decode_sm90(value)


class TestInstructionDescriptor:
    @pytest.mark.parametrize(
        ("value", "cta_group", "m", "n", "types"),
        [
            (0x10400490, 2, 256, 256, ("bf16", "bf16", "f32")),
            (0x10200490, 2, 256, 128, ("bf16", "bf16", "f32")),
            (0x08400490, 1, 128, 256, ("bf16", "bf16", "f32")),
            (0x08400490, 2, 128, 256, ("bf16", "bf16", "f32")),
            (0x04100490, 1, 64, 64, ("bf16", "bf16", "f32")),
            (0x08400010, 1, 128, 256, ("f16", "f16", "f32")),
            (0x08400000, 1, 128, 256, ("f16", "f16", "f16")),
        ],
    )
    def test_known_values(self, value, cta_group, m, n, types):
        decoded = decode("f16", value, cta_group)
        assert (decoded.m, decoded.n, (decoded.a_type, decoded.b_type, decoded.d_type)) == (m, n, types)
        assert (decoded.a_major, decoded.b_major, decoded.negate) == (Major.K, Major.K, False)

    def test_transpose_and_negate(self):
        base = 0x08400490
        assert decode("f16", base | 1 << 15, 1).a_major is Major.MN
        assert decode("f16", base | 1 << 16, 1).b_major is Major.MN
        assert decode("f16", base | 1 << 13, 1).negate
        assert decode("f16", base | 1 << 14, 1).negate
        assert not decode("f16", base | 3 << 13, 1).negate

    @pytest.mark.parametrize(
        ("value", "cta_group", "message"),
        [
            (0x08400490 | 1 << 2, 1, "sparse"),
            (0x08400490 | 1, 1, r"bits 0\.\.1"),
            (0x08400490 | 1 << 3, 1, r"bits 3\.\.3"),
            (0x08400490 | 1 << 6, 1, r"bits 6\.\.6"),
            (0x08400490 | 1 << 23, 1, r"bits 23\.\.23"),
            (0x08400490 | 1 << 30, 1, r"bits 29\.\.31"),
            (0x084004A0, 1, "D type code 2"),
            (0x08400510, 1, "A type code 2"),
            (0x08400C90, 1, "B type code 3"),
            (0x08400480, 1, "D type code 0 does not go with bf16 and bf16"),
            (0x04100490, 2, r"M = 64 must be one of \(128, 256\)"),
            (0x10400490, 1, r"M = 256 must be one of \(64, 128\)"),
            (0x08000490, 1, "N = 0"),
            (0x08420490, 1, "N = 264"),
            (0x10020490, 2, "N = 8 is not one that"),
        ],
    )
    def test_refusals(self, value, cta_group, message):
        with pytest.raises(Fault, match=message):
            decode("f16", value, cta_group)


@pytest.mark.parametrize("name", list(SPAN_BYTES))
@pytest.mark.parametrize("major", list(Major))
@pytest.mark.parametrize(("rows", "base_offset"), [(8, 0), (64, 3), (128, 0), (256, 0)])
def test_operand_positions_against_the_canonical_layout(name, major, rows, base_offset):
    start, leading, stride = 0x2000, 0x4000, 0x800
    shift = 128 * base_offset
    descriptor = MatrixDescriptor(start + shift, leading, stride, Swizzle.from_name(name), base_offset)
    positions = operand_positions(descriptor, rows, 16, 2, major)
    letter = "K" if major is Major.K else "MN"
    assert positions.size == rows * 2
    for row, k in itertools.product(range(rows), range(16)):
        byte = shift + swizzled(start + operand_byte(row, k, letter, name, leading, stride), name)
        outer, inner = (row, k) if major is Major.K else (k, row)
        assert positions[outer, inner // 8] * 16 + inner % 8 * 2 == byte, (row, k)
