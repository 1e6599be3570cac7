"""Instructions with operands of every type, of which ptxas takes some and refuses the others."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from newest_ptxas import newest_ptxas

REGISTERS = (
    "pred",
    "b16",
    "u16",
    "s16",
    "f16",
    "b32",
    "u32",
    "s32",
    "f32",
    "f16x2",
    "b64",
    "u64",
    "s64",
    "f64",
    "b128",
)
TYPES = (
    "pred", "b8", "u8", "s8", "b16", "u16", "s16", "f16", "bf16", "b32", "u32", "s32", "f32", "f16x2", "bf16x2",
    "u16x2", "s16x2", "b64", "u64", "s64", "f64", "f32x2", "b128",
)  # fmt: skip
_HELD_IN = {
    "b8": "b16", "u8": "u16", "s8": "s16", "bf16": "b16", "bf16x2": "b32", "u16x2": "b32", "s16x2": "b32",
    "f32x2": "b64",
}  # fmt: skip
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_LITERALS = ("1", "-1", "1.5", "0f3F800000", "0d3FF0000000000000", "%tid.x", "%clock64")

_PATTERNS = """
add.T T T T; sub.T T T T; add.rn.T T T T; mul.lo.T T T T; mul.T T T T; mul.wide.T W T T; mad.lo.T T T T T;
mad.wide.T W T T W; mul24.lo.T T T T; mad24.lo.T T T T T; sad.T T T T T; fma.rn.T T T T T; div.T T T T; div.rn.T T T T;
rem.T T T T; abs.T T T; neg.T T T; min.T T T T; max.T T T T; popc.T u32 T; clz.T u32 T; bfind.T u32 T; brev.T T T;
bfe.T T T u32 u32; bfi.T T T T u32 u32; szext.clamp.T T T u32; and.T T T T; or.T T T T; xor.T T T T; not.T T T;
cnot.T T T; shl.T T T u32; shr.T T T u32; shf.l.wrap.T T T T u32; prmt.T T T T T; rcp.rn.T T T; sqrt.rn.T T T;
rsqrt.approx.T T T; sin.approx.T T T; lg2.approx.T T T; ex2.approx.T T T; tanh.approx.T T T; copysign.T T T T;
testp.finite.T pred T; setp.lt.T pred T T; setp.eq.T pred T T; selp.T T T T pred; mov.T T T; cvta.global.T T T;
ld.global.T T [%u64_3]; st.global.T [%u64_3] T; ld.shared.T T [%u32_3]; st.shared.T [%u32_3] T;
"""

_QUIRKS = (
    # What ptxas takes or refuses against the tables of the ISA: f16x2 registers as predicates, as a count; halves of
    # products that are no integers, and whole ones that are.
    re.compile(r"(and|or|xor|not|mov)\.pred\b.*%f16x2"),
    re.compile(r"(bfe|bfi|bfind|bmsk|clz|popc|shf|shl|shr|szext)\b.*%f16x2"),
    re.compile(r"(mul|mad)\.lo\.b?f|mul\.[us]"),
    re.compile(r"setp\.\w+\.bf16x2 .*%pred_3;"),
)

FIRST_LINE = 6
"""The line of a module on which the first of its instructions is."""


def forms() -> Iterator[str]:
    """Every pattern with every type, and where that is a possible one with every operand in its turn replaced."""
    for pattern in _PATTERNS.replace("\n", " ").split(";"):
        if not pattern.strip():
            continue
        name, *operands = pattern.split()
        for kind in TYPES:
            wanted = [{"T": kind, "W": _WIDE.get(kind, kind)}.get(operand, operand) for operand in operands]
            right = [w if w.startswith("[") else f"%{_HELD_IN.get(w, w)}_{n}" for n, w in enumerate(wanted)]
            for position in range(-1, len(right)):
                for other in [f"%{held}_3" for held in REGISTERS] + ([] if position < 1 else list(_LITERALS)):
                    given = [other if n == position and not r.startswith("[") else r for n, r in enumerate(right)]
                    form = f"{name[:-1]}{kind} {', '.join(given)};"
                    if not any(quirk.match(form) for quirk in _QUIRKS):
                        yield form


def conversions() -> Iterator[str]:
    """cvt from every type to every other one, with registers of every type at both ends."""
    for to in TYPES:
        for origin in TYPES:
            for rounding in ("", "rn.", "rni.", "rzi."):
                right = [f"%{_HELD_IN.get(kind, kind)}_{n}" for n, kind in enumerate((to, origin))]
                for held in REGISTERS:
                    yield f"cvt.{rounding}{to}.{origin} %{held}_0, {right[1]};"
                    yield f"cvt.{rounding}{to}.{origin} {right[0]}, %{held}_1;"


def module(lines: list[str], target: str = "sm_100a") -> str:
    declared = " ".join(f".reg .{kind} %{kind}_<6>;" for kind in REGISTERS)
    head = f".version 8.8\n.target {target}\n.address_size 64\n.visible .entry kernel(.param .u64 out)\n{{ {declared}\n"
    return head + "\n".join(lines) + "\nret;\n}\n"


def refused_by_ptxas(lines: list[str], folder: Path, target: str = "sm_100a") -> dict[str, str]:
    """The lines that ptxas refuses, and why."""
    source = folder / "types.ptx"
    source.write_text(module(lines, target))
    command = [str(newest_ptxas()), f"-arch={target}", str(source), "-o", "/dev/null"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.findall(r"line (\d+);\s*(?:error|fatal)\s*:\s*(.*)", run.stdout + run.stderr)
    assert found or run.returncode == 0, run.stderr
    return {lines[int(number) - FIRST_LINE]: why for number, why in reversed(found)}
