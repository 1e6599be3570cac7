"""Slow per-element formulas of the machine's memory layouts, written from the PTX ISA for tests.

Nothing here uses the emulator's own index arrays.
"""

from __future__ import annotations

LINE_BYTES = 128
CHUNK_BYTES = 16
SPAN_BYTES = {"none": 16, "32B": 32, "64B": 64, "128B": 128}


def swizzled(address: int, swizzle: str) -> int:
    """PTX ISA 5.5.7: inside a 128-byte line, the chunk number is XORed with low bits of the line number."""
    line, inside = divmod(address, LINE_BYTES)
    chunk, byte = divmod(inside, CHUNK_BYTES)
    chunk ^= line % (SPAN_BYTES[swizzle] // CHUNK_BYTES)
    return line * LINE_BYTES + chunk * CHUNK_BYTES + byte


def operand_byte(mn: int, k: int, major: str, swizzle: str, leading: int, stride: int) -> int:
    """Unswizzled byte offset of a 16-bit operand element in the canonical layouts (PTX ISA 9.7.16.3.3).

    The layouts are walked from the core matrix outwards. `mn` is the row of A or the column of B.
    """
    per_chunk = CHUNK_BYTES // 2
    if swizzle == "none":
        # A core matrix is 8 rows (K-major) or 8 values of k (MN-major) of one 16-byte chunk each.
        if major == "K":
            group, row = divmod(mn, 8)
            step, element = divmod(k, per_chunk)
            return group * stride + step * leading + row * CHUNK_BYTES + element * 2
        block, element = divmod(mn, per_chunk)
        group, row = divmod(k, 8)
        return block * stride + group * leading + row * CHUNK_BYTES + element * 2
    span = SPAN_BYTES[swizzle]
    if major == "K":
        group, row = divmod(mn, 8)
        return group * stride + row * span + k * 2
    block, element = divmod(mn, span // 2)
    group, row = divmod(k, 8)
    return block * leading + group * stride + row * span + element * 2


def accumulator_place(row: int, column: int, m: int, n: int, cta_group: int) -> tuple[int, int, int]:
    """(CTA, lane, column) of an element of D, relative to D's address (PTX ISA 9.7.16.10.5)."""
    cta, row = divmod(row, m // cta_group)
    if (m, cta_group) == (64, 1):
        return cta, row // 16 * 32 + row % 16, column
    if (m, cta_group) == (128, 2):
        half, column = divmod(column, n // 2)
        return cta, 64 * half + row, column
    return cta, row, column


def register_place(shape: str, thread: int, register: int) -> tuple[int, int]:
    """(lane, column) of a thread's register in a tcgen05.ld or st, relative to its base (PTX ISA 9.7.16.2.3).

    Rows of threads: eight groups of four threads; group g serves lane g and lane g + 8. For 16x32bx2 the
    column is the one inside the thread's half.
    """
    if shape == "32x32b":
        return thread, register
    if shape == "16x32bx2":
        return thread % 16, register
    group, member = divmod(thread, 4)
    if shape == "16x64b":
        pair, high = divmod(member, 2)
        return group + 8 * high, 2 * register + pair
    if shape == "16x128b":
        block, high = divmod(register, 2)
        return group + 8 * high, 4 * block + member
    block, inside = divmod(register, 4)
    high, odd = divmod(inside, 2)
    return group + 8 * high, 8 * block + 2 * member + odd
