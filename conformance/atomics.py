"""Probes of atomic operations on floats: sums of random, subnormal and special values in global and in shared
memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.elementwise import Form, elementwise
from conformance.probe import Outputs


def _global(operation: str, kind: str, bits: int) -> Form:
    """Returns the form that reads the value in memory after an atomic operation."""
    register = {16: "h", 32: "w", 64: "l"}[bits]
    return Form(
        f"global {operation}.{kind}",
        f"""st.global.b{bits} [cell], {register}_old;
{{ .reg .b{bits} before; atom.global.{operation}.{kind} before, [cell], {register}_value; }}
ld.relaxed.gpu.global.b{bits} d, [cell];""",
        bits,
    )


def _reduction(operation: str, kind: str, bits: int) -> Form:
    register = {16: "h", 32: "w", 64: "l"}[bits]
    return Form(
        f"red.global {operation}.{kind}",
        f"""st.global.b{bits} [cell], {register}_old;
red.global.{operation}.{kind} [cell], {register}_value;
ld.relaxed.gpu.global.b{bits} d, [cell];""",
        bits,
    )


def _shared(operation: str, kind: str, bits: int) -> Form:
    register = {16: "h", 32: "w", 64: "l"}[bits]
    return Form(
        f"shared {operation}.{kind}",
        f"""st.shared.b{bits} [near], {register}_old;
{{ .reg .b{bits} before; atom.shared.{operation}.{kind} before, [near], {register}_value; }}
ld.shared.b{bits} d, [near];""",
        bits,
    )


def _before(operation: str, kind: str, bits: int) -> Form:
    register = {16: "h", 32: "w", 64: "l"}[bits]
    return Form(
        f"what {operation}.{kind} returns",
        f"""st.global.b{bits} [cell], {register}_old;
atom.global.{operation}.{kind} d, [cell], {register}_value;""",
        bits,
    )


def _vector(operation: str, kind: str) -> Form:
    """Returns the form for two f32, or four halves, of 64 bits."""
    size = 32 if "f32" in kind or "x2" in kind else 16
    count = 64 // size
    old, new = ([f"{letter}{n}" for n in range(count)] for letter in "ab")
    return Form(
        f"global {operation}.v{count}.{kind}",
        f"""{{ .reg .b{size} {", ".join(old + new)};
mov.b64 {{{", ".join(new)}}}, l_value;
st.global.b64 [cell], l_old;
atom.global.{operation}.v{count}.{kind} {{{", ".join(old)}}}, [cell], {{{", ".join(new)}}};
ld.relaxed.gpu.global.b64 d, [cell]; }}""",
        64,
    )


FORMS = [
    _global("add", "f32", 32), _reduction("add", "f32", 32), _shared("add", "f32", 32), _before("add", "f32", 32),
    _global("add", "f64", 64), _shared("add", "f64", 64), _global("add.noftz", "f16", 16),
    _global("add.noftz", "bf16", 16), _global("add.noftz", "f16x2", 32), _global("add.noftz", "bf16x2", 32),
    _reduction("add.noftz", "f16x2", 32), _reduction("add.noftz", "bf16x2", 32), _shared("add.noftz", "f16x2", 32),
    _shared("add.noftz", "bf16x2", 32), _before("add.noftz", "bf16x2", 32), _vector("add", "f32"),
    _global("inc", "u32", 32), _global("dec", "u32", 32), _global("min", "s32", 32), _global("max", "s64", 64),
    _shared("max", "u64", 64), _vector("add.noftz", "f16"), _vector("add.noftz", "bf16x2"),
    _vector("min.noftz", "bf16"), _vector("max.noftz", "f16"),
]  # fmt: skip
COUNT = 512


def _inputs() -> dict[str, np.ndarray]:
    """Returns random bits; then sums of similar exponents, which round; then subnormal numbers; then special values."""
    rng = np.random.default_rng(50)
    inputs = {}
    for name, bits, exponent_bits in (("h", 16, 8), ("w", 32, 8), ("l", 64, 11)):
        fraction = bits - 1 - exponent_bits
        for which in ("old", "value"):
            values = rng.integers(0, 1 << bits, COUNT, np.uint64)
            near = np.uint64(1 << exponent_bits - 1) + rng.integers(0, 8, 128, np.uint64)
            low = values[128:256] & np.uint64((1 << fraction) - 1 | 1 << bits - 1)
            values[128:256] = low | near << np.uint64(fraction)
            # Exponents 0 and 1: sums of subnormal numbers and of the smallest normal ones.
            kept = np.uint64((1 << fraction + 1) - 1 | 1 << bits - 1)
            values[256:384] &= kept
            special = [0, 1 << bits - 1, ((1 << exponent_bits) - 1) << fraction]
            special += [special[2] | 1 << bits - 1, special[2] | 1, special[2] - 1, 1]
            values[384:480] = rng.choice(np.array(special, np.uint64), 96)
            values[480:] = rng.integers(0, 1 << min(bits, 20), 32, np.uint64)
            inputs[f"{name}_{which}"] = values.astype(f"u{bits // 8}")
    return inputs


def _read(outputs: Outputs) -> dict[str, Any]:
    """Returns how many of the sums with subnormal addends or results became zero."""
    found = outputs["all"]
    inputs = CASE["all"]
    old, value = (inputs[f"w_{which}"][256:384].view(np.float32) for which in ("old", "value"))
    exact = old + value
    subnormal = (np.abs(exact) < 2.0**-126) & (exact != 0)
    return {
        name: {"subnormal sums": int(subnormal.sum()), "of them zero": int((array[subnormal] << 1 == 0).sum())}
        for name, array in ((name, found[name][256:384]) for name in ("global add.f32", "red.global add.f32",
                                                                       "shared add.f32"))
    }  # fmt: skip


CASE = {"all": _inputs()}
FLOATS = elementwise(
    "atomics_on_floats",
    "How do atomic sums of floats round, do they flush subnormal numbers, and which NaN do they give?",
    FORMS,
    CASE,
    _read,
)

PROBES = (FLOATS,)
