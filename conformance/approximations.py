"""Probes of approximated functions: the distance of the hardware's results from exact ones, and results of special
values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from conformance.elementwise import Form, elementwise
from conformance.probe import Outputs

Function = Callable[[np.ndarray], np.ndarray]

FUNCTIONS: dict[str, tuple[Function, float, float]] = {
    "ex2": (np.exp2, -30, 30),
    "lg2": (np.log2, 2.0**-20, 2.0**20),
    "rcp": (lambda x: 1 / x, -1000, 1000),
    "sqrt": (np.sqrt, 2.0**-20, 2.0**20),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2.0**-20, 2.0**20),
    "sin": (np.sin, -2 * np.pi, 2 * np.pi),
    "cos": (np.cos, -2 * np.pi, 2 * np.pi),
    "tanh": (np.tanh, -5, 5),
}
"""The exact function, and the interval of random inputs, by name."""

SAMPLES, MANY = 1024, 1 << 18

FORMS = [Form(f"{name}.f32", f"{name}.approx.f32 d, {name}_x;", 32) for name in FUNCTIONS]


def _inputs(count: int, seed: int) -> dict[str, np.ndarray]:
    """Returns sorted inputs. In a positive interval their logarithms are evenly distributed."""
    rng = np.random.default_rng(seed)
    inputs = {}
    for name, (_, low, high) in FUNCTIONS.items():
        x = rng.uniform(low, high, count) if low < 0 else np.exp2(rng.uniform(np.log2(low), np.log2(high), count))
        inputs[f"{name}_x"] = np.sort(x).astype(np.float32).view(np.uint32)
    return inputs


CASES = {"samples": _inputs(SAMPLES, 40), "many": _inputs(MANY, 41)}


def errors(outputs: Outputs) -> dict[str, dict[str, float]]:
    """Returns the largest relative and absolute errors over all cases, by function."""
    found: dict[str, dict[str, float]] = {}
    for case, arrays in outputs.items():
        for name, (function, _, _) in FUNCTIONS.items():
            x = CASES[case][f"{name}_x"].view(np.float32).astype(np.float64)
            exact = function(x)
            error = np.abs(arrays[f"{name}.f32"].view(np.float32) - exact)
            with np.errstate(divide="ignore", invalid="ignore"):
                relative = np.nanmax(error / np.abs(exact))
            old = found.get(name, {"relative": 0.0, "absolute": 0.0})
            found[name] = {
                "relative": max(old["relative"], float(relative)),
                "absolute": max(old["absolute"], float(error.max())),
            }
    return found


ERRORS = elementwise(
    "approximate_functions",
    "How far from exact are ex2, lg2, rcp, sqrt, rsqrt, sin, cos and tanh with .approx, on inputs of moderate size?",
    FORMS,
    CASES,
    lambda outputs: errors(outputs),
    kept=("samples",),
    exact=False,
)

# ---- all values of 16 bits ----

HALF_FORMS = [
    Form("ex2.f16", "ex2.approx.f16 d, x;", 16),
    Form("ex2.bf16", "ex2.approx.ftz.bf16 d, x;", 16),
    Form("tanh.f16", "tanh.approx.f16 d, x;", 16),
    Form("tanh.bf16", "tanh.approx.bf16 d, x;", 16),
]


def half_errors(outputs: Outputs) -> dict[str, float]:
    """Returns the largest error in units in the last place of the exact result, if that is a normal number, by form."""
    import ml_dtypes

    found = {}
    for form, array in outputs["all"].items():
        dtype = np.float16 if form.endswith(".f16") else ml_dtypes.bfloat16
        info = ml_dtypes.finfo(dtype)
        with np.errstate(all="ignore"):
            x = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float64)
            exact = (np.exp2 if form.startswith("ex2") else np.tanh)(x)
            unit = np.exp2(np.floor(np.log2(np.abs(exact))) - info.nmant)
            normal = (np.abs(exact) >= float(info.tiny)) & (np.abs(exact) <= float(info.max))
            error = np.abs(array.view(dtype).astype(np.float64) - exact) / unit
        found[form] = float(error[normal].max())
    return found


HALVES = elementwise(
    "approximate_functions_16_bits",
    "How far from exact are ex2 and tanh of f16 and bf16, over all values?",
    HALF_FORMS,
    {"all": {"x": np.arange(1 << 16, dtype=np.uint16)}},
    lambda outputs: half_errors(outputs),
    exact=False,
)

# ---- special values ----

SPECIAL = np.array(
    [
        0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000, 0x3F800000,
        0xBF800000, 0x40000000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001,
        0xFFFFFFFF, 0x43000000, 0xC3000000, 0xC3160000, 0xC3150000, 0xC2FC0000, 0x42FE0000, 0x7E800000, 0x7E800001,
        0x7F000000, 0xFE800000, 0x00200000, 0x00400000, 0x3F000000,
    ],
    np.uint32,
)  # fmt: skip
"""Zeros, subnormal numbers, ones, the largest numbers, infinities, NaNs, edges of ex2 and of rcp."""

SPECIAL_FORMS = [
    Form(f"{name}{ftz}.f32", f"{name}.approx{ftz}.f32 d, x;", 32)
    for name in ("ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos")
    for ftz in ("", ".ftz")
] + [
    Form("tanh.f32", "tanh.approx.f32 d, x;", 32),
    Form("div.approx.f32, 1, x", "div.approx.f32 d, 0f3F800000, x;", 32),
    Form("div.full.f32, 1, x", "div.full.f32 d, 0f3F800000, x;", 32),
    Form("rcp.approx.ftz.f64", "{ .reg .b64 w; cvt.f64.f32 w, x; rcp.approx.ftz.f64 d, w; }", 64),
    Form("rsqrt.approx.ftz.f64", "{ .reg .b64 w; cvt.f64.f32 w, x; rsqrt.approx.ftz.f64 d, w; }", 64),
]


def special_answers(outputs: Outputs) -> dict[str, Any]:
    """Returns results by form and input: zeros and infinities unchanged, NaN by its bits, other results by
    their sign.
    """
    answer = {}
    for form, array in outputs["all"].items():
        kinds = {}
        for code, bits in zip(SPECIAL.tolist(), array[: SPECIAL.size], strict=True):
            value = float(bits.view(f"f{bits.nbytes}"))
            if value != value:
                kind = hex(int(bits))
            elif value == 0 or np.isinf(value):
                kind = repr(value)
            else:
                kind = "-" if value < 0 else "+"
            kinds[hex(code)] = kind
        answer[form] = kinds
    return answer


SPECIALS = elementwise(
    "approximate_functions_special",
    "What do the approximate functions make of zeros, subnormal numbers, infinities and NaN?",
    SPECIAL_FORMS,
    {"all": {"x": np.resize(SPECIAL, 128)}},
    special_answers,
    exact=False,
)

PROBES = (ERRORS, HALVES, SPECIALS)
