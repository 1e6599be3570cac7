"""Probes of cvt: every value of 16 bits and of fp8, and f32 at and beside the middle between two results of every
target.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.elementwise import Form, elementwise
from conformance.probe import Outputs

# ---- from 16 bits ----

FROM_HALVES = [
    Form("f32.f16", "cvt.f32.f16 d, x;", 32),
    Form("f32.bf16", "cvt.f32.bf16 d, x;", 32),
    Form("f16x2.e4m3x2", "cvt.rn.f16x2.e4m3x2 d, x;", 32),
    Form("f16x2.e5m2x2", "cvt.rn.f16x2.e5m2x2 d, x;", 32),
    Form("relu.f16x2.e5m2x2", "cvt.rn.relu.f16x2.e5m2x2 d, x;", 32),
    Form("rni.s32.f16", "cvt.rni.s32.f16 d, x;", 32),
    Form("rmi.u32.f16", "cvt.rmi.u32.f16 d, x;", 32),
    Form("rni.f16.f16", "cvt.rni.f16.f16 d, x;", 16),
    Form("rpi.f16.f16", "cvt.rpi.f16.f16 d, x;", 16),
    Form("rzi.s8.f16", "{ .reg .b32 w; cvt.rzi.s8.f16 w, x; cvt.u16.u32 d, w; }", 16),
    Form("rn.f16.s16", "cvt.rn.f16.s16 d, x;", 16),
    Form("rz.f16.u16", "cvt.rz.f16.u16 d, x;", 16),
    Form("satfinite.e4m3x2.f16x2", "{ .reg .b32 w; mov.b32 w, {x, x}; cvt.rn.satfinite.e4m3x2.f16x2 d, w; }", 16),
    Form("satfinite.e5m2x2.f16x2", "{ .reg .b32 w; mov.b32 w, {x, x}; cvt.rn.satfinite.e5m2x2.f16x2 d, w; }", 16),
]


def _read_halves(outputs: Outputs) -> dict[str, Any]:
    found = outputs["all"]
    return {
        "f32 of the f16 NaNs 7c01 and ffff": [hex(int(found["f32.f16"][code])) for code in (0x7C01, 0xFFFF)],
        "f32 of the bf16 NaNs 7f81 and ffff": [hex(int(found["f32.bf16"][code])) for code in (0x7F81, 0xFFFF)],
        "f16 of the e4m3 NaN 7f": hex(int(found["f16x2.e4m3x2"][0x7F])),
        "s32 of the f16 NaN 7e00": hex(int(found["rni.s32.f16"][0x7E00])),
        "s8 of the f16 1000": hex(int(found["rzi.s8.f16"][0x63D0])),
    }


HALVES = elementwise(
    "cvt_from_16_bits",
    "What do conversions give for every value of 16 bits, and for every pair of fp8 values?",
    FROM_HALVES,
    {"all": {"x": np.arange(1 << 16, dtype=np.uint16)}},
    _read_halves,
)

# ---- from f32 ----

DROPPED = {"e5m2": 21, "e4m3": 20, "f16": 13, "bf16": 16}
"""Fraction bits of f32 that a target drops; tf32 drops as many as f16."""


def fractions() -> list[int]:
    """Returns fractions of f32 at, just below and just above a tie, above an even and above an odd last bit."""
    found = {0, 1, 0x7FFFFF, 0x7FFFFE, 0x2AAAAA, 0x555555, 0x123456, 0x654321}
    for dropped in DROPPED.values():
        tie = 1 << (dropped - 1)
        for last in (0, 1, 2, 3, (1 << 23 - dropped) - 1):
            for near in (tie - 1, tie, tie + 1):
                found.add((last << dropped | near) & 0x7FFFFF)
    return sorted(found)


def singles() -> np.ndarray:
    """Returns every sign and exponent with these fractions, in the order of the bit patterns, padded to whole CTAs."""
    fraction = np.array(fractions(), np.uint32)
    bits = (np.arange(512, dtype=np.uint32)[:, None] << 23 | fraction[None, :]).ravel()
    return np.concatenate([bits, np.zeros(-bits.size % 128, np.uint32)])


FROM_SINGLES = [
    Form(name, f"cvt.{name} d, x;", bits)
    for name, bits in {
        "rn.f16.f32": 16, "rz.f16.f32": 16, "rn.bf16.f32": 16, "rz.bf16.f32": 16, "rn.relu.f16.f32": 16,
        "rn.relu.bf16.f32": 16, "rna.tf32.f32": 32, "rn.tf32.f32": 32, "rz.tf32.f32": 32, "rn.relu.tf32.f32": 32,
        "rni.s32.f32": 32, "rzi.u32.f32": 32, "rmi.s64.f32": 64, "rpi.f32.f32": 32, "rni.f32.f32": 32,
        "rni.ftz.f32.f32": 32, "sat.f32.f32": 32, "f64.f32": 64,
    }.items()
] + [
    Form(f"{name}, x, 1", f"cvt.{name} d, x, 0f3F800000;", bits)
    for name, bits in {
        "rn.f16x2.f32": 32, "rz.bf16x2.f32": 32, "rn.relu.bf16x2.f32": 32, "rn.satfinite.e4m3x2.f32": 16,
        "rn.satfinite.e5m2x2.f32": 16, "rn.satfinite.relu.e4m3x2.f32": 16,
    }.items()
]  # fmt: skip


def _read_singles(outputs: Outputs) -> dict[str, Any]:
    """Returns the results for the NaN ff800001, infinity and the largest f32."""
    bits, found = singles(), outputs["rounding"]
    places = {name: int(np.flatnonzero(bits == code)[0]) for name, code in
              (("nan", 0xFF800001), ("infinity", 0x7F800000), ("largest", 0x7F7FFFFF))}  # fmt: skip
    return {form: {name: hex(int(array[at])) for name, at in places.items()} for form, array in found.items()}


SINGLES = elementwise(
    "cvt_from_f32",
    "How does cvt round f32 to every narrower type, at and beside ties, and what does it make of special values?",
    FROM_SINGLES,
    {"rounding": {"x": singles()}},
    _read_singles,
)

# ---- from f64 and integers ----


def _doubles() -> np.ndarray:
    rng = np.random.default_rng(30)
    exponents = np.arange(1023 - 160, 1023 + 140, dtype=np.uint64)
    fractions = np.array(
        [0, 1, 0xFFFFF, *(1 << 28 | near for near in (0, 1)), (1 << 28) - 1, 3 << 28, (1 << 52) - 1], np.uint64
    )
    bits = (exponents[:, None] << np.uint64(52) | fractions).ravel()
    bits = np.concatenate([bits, bits | np.uint64(1 << 63), rng.integers(0, 1 << 64, 256, np.uint64)])
    special = np.array([0, 1 << 63, 1, 0x7FF << 52, 0xFFF << 52, 0x7FF1 << 48, (1 << 64) - 1], np.uint64)
    bits = np.sort(np.concatenate([bits, special]))
    return np.concatenate([bits, np.zeros(-bits.size % 128, np.uint64)])


WIDE = [
    Form(name, f"cvt.{name} d, x;", bits)
    for name, bits in {
        "rn.f32.f64": 32, "rz.f32.f64": 32, "rm.f32.f64": 32, "rp.ftz.f32.f64": 32, "rn.f16.f64": 16,
        "rni.s32.f64": 32, "rzi.u64.f64": 64, "rmi.s64.f64": 64, "rni.f64.f64": 64, "rn.f32.s64": 32, "rz.f32.u64": 32,
        "rp.f64.s64": 64, "rn.f64.u64": 64, "rm.f16.s64": 16, "sat.s32.s64": 32, "sat.u8.s64": 32,
    }.items()
]  # fmt: skip

DOUBLES = elementwise(
    "cvt_from_64_bits",
    "How does cvt round f64 and integers of 64 bits?",
    WIDE,
    {"rounding": {"x": _doubles()}},
    lambda outputs: {form: hex(int(array[0])) for form, array in outputs["rounding"].items()},
)

PROBES = (HALVES, SINGLES, DOUBLES)
