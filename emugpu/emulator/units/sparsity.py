"""Sparse A (PTX ISA 9.7.14.6.1): of every four elements along K two are kept, of tf32 one of two; metadata says which.

A code of four bits belongs to four elements, or to two of tf32: two indices, the lower one first. tf32 counts halves,
so it has two codes only. Which lane holds which codes was read off an H200, for ``mma.sp`` and for ``wgmma``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault

ROWS = 16
CODES_OF_HALF = 4
"""Codes in 16 bits of metadata, of one row."""
_OF_TF32 = (0b0100, 0b1110)
"""The first and the second of two."""


def kept_positions(codes: NDArray[np.integer], element: str) -> NDArray[np.intp]:
    """Where the kept elements of each row stand along K: [rows, codes] to [rows, kept]. Fault for other codes."""
    rows, count = codes.shape
    if element == "tf32":
        wrong = ~np.isin(codes, _OF_TF32)
        if wrong.any():
            raise Fault(
                f"metadata 0x{int(codes[wrong][0]):x} of tf32; it is 0x4 or 0xe for each two elements", "operand"
            )
        kept: NDArray[np.intp] = 2 * np.arange(count) + (codes == _OF_TF32[1])
        return kept
    first, second = codes & 3, codes >> 2
    if (first >= second).any():
        code = int(codes[first >= second][0])
        raise Fault(
            f"metadata 0x{code:x} keeps elements {code & 3} and {code >> 2} of four; they must differ and ascend",
            "operand",
        )
    start = 4 * np.arange(count)
    return np.stack([start + first, start + second], axis=-1).reshape(rows, 2 * count).astype(np.intp)


def codes_of_warp(words: NDArray[np.uint32], selector: int, element: str, k: int) -> NDArray[np.intp]:
    """Codes [16 rows, per row] from the metadata registers [32] of a warp. k: of the product, before A was thinned out.

    Row g and row g + 8 belong to the lanes 4 g and up. Types of 16 and 32 bits: each lane that the selector names
    holds 16 bits of row g in its lower half, and of row g + 8 in its upper one. Types of 8 bits: an even lane holds 32
    bits of row g, and the odd one after it of row g + 8.
    """
    halves = words.astype("<u4").view(np.uint16).reshape(8, 4, 2)  # group, lane of four, half
    blocks = k // (8 if element == "tf32" else 16)
    found = np.empty((2, 8, blocks), np.uint16)  # row half, group, block
    for block in range(blocks):
        for upper in range(2):
            if element in ("f16", "bf16", "tf32"):
                lane, half = selector * blocks + block, upper
            else:
                lane, half = 2 * (block // 2 + selector) + upper, block % 2
            found[upper, :, block] = halves[:, lane, half]
    shifts = 4 * np.arange(CODES_OF_HALF)
    return (found.reshape(ROWS, blocks, 1) >> shifts & 15).reshape(ROWS, -1).astype(np.intp)


def selectors(element: str, k: int) -> int:
    """How many sparsity selectors there are: into how many parts the four lanes of a group are divided."""
    blocks = k // (8 if element == "tf32" else 16)
    return 4 // blocks if element in ("f16", "bf16", "tf32") else 4 // max(blocks, 2)


def chosen(b: NDArray[Any], positions: NDArray[np.intp]) -> NDArray[Any]:
    """The elements of B [n, k] that each row of A meets: [rows, n, kept]."""
    return b[:, positions].transpose(1, 0, 2)
