"""Where tensor memory has what, by the figures of the PTX ISA, written down once more."""

from __future__ import annotations

import numpy as np


def place(shape: str, t: int, i: int, split: int) -> tuple[int, int]:
    """(lane, column) of thread t's register i (PTX ISA 9.7.16.2.3)."""
    return {
        "32x32b": (t, i),
        "16x64b": (t // 4 + 8 * (t % 2), 2 * i + t // 2 % 2),
        "16x128b": (t // 4 + 8 * (i % 2), t % 4 + 4 * (i // 2)),
        "16x256b": (t // 4 + 8 * (i // 2 % 2), 2 * (t % 4) + i % 2 + 8 * (i // 4)),
        "16x32bx2": (t % 16, i + (split if t >= 16 else 0)),
    }[shape]


def where(m: int, n: int, group: int, ws: bool, lane: int) -> tuple[np.ndarray, ...]:
    """CTA, lane and column of D(r, c) (PTX ISA 9.7.16.10.5)."""
    r, c = np.mgrid[:m, :n]
    zero = np.zeros_like(r)
    if group == 2:
        half = c >= n // 2
        return (r // 128, r % 128, c) if m == 256 else (r // 64, r % 64 + 64 * half, c % (n // 2))
    if m == 128:
        return zero, r, c
    if ws:
        parts = 128 // m
        return zero, r + m * (c // (n // parts)), c % (n // parts)
    return zero, r % 16 + 32 * (r // 16) + lane, c
