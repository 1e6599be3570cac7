"""Sparse A (PTX ISA 9.7.14.6.1): two of every four elements along K are kept, for tf32 one of two. Metadata says which.

A code of four bits belongs to four elements, or to two of tf32. It holds two indices, the lower one first. tf32 counts
halves, so it has only two codes. Which lane holds which codes was determined on an H200, for ``mma.sp`` and ``wgmma``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault

ROWS = 16
CODES_OF_HALF = 4
"""The number of codes in 16 bits of metadata, of one row."""
_OF_TF32 = (0b0100, 0b1110)
"""The codes that keep the first and the second of two elements."""


def kept_positions(codes: NDArray[np.integer], element: str) -> NDArray[np.intp]:
    """Returns the positions along K of each row's kept elements: [rows, codes] to [rows, kept].

    Fault on other codes.
    """
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
    """Returns the codes [16 rows, per row] in the metadata registers [32] of a warp. k: with the masked elements of A.

    Rows g and g + 8 belong to the lanes 4 g and up. For types of 16 and 32 bits, each lane that the selector names
    holds 16 bits of row g in its lower half and of row g + 8 in its upper half. For types of 8 bits, an even lane holds
    32 bits of row g, and the odd lane after it those of row g + 8.
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
    """Returns the number of sparsity selectors: into how many parts the four lanes of a group are divided."""
    blocks = k // (8 if element == "tf32" else 16)
    return 4 // blocks if element in ("f16", "bf16", "tf32") else 4 // max(blocks, 2)


def chosen(b: NDArray[Any], positions: NDArray[np.intp]) -> NDArray[Any]:
    """Returns the elements of B [n, k] that each row of A is multiplied with: [rows, n, kept]."""
    return b[:, positions].transpose(1, 0, 2)
