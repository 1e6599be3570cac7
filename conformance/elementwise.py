"""Makes probes that give each thread one set of values: `elementwise` builds a kernel that tests many forms at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.probe import Explain, Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import kernel

THREADS = 128


@dataclass(frozen=True)
class Form:
    """Instructions that compute ``d``, of this many bits, from the inputs, which are registers with their names.

    They may also use the 64-bit register ``cell``, the address of 16 bytes of global memory of this thread alone, and
    ``near``, that of 16 bytes of shared memory.
    """

    name: str
    text: str
    bits: int


def elementwise(
    name: str,
    question: str,
    forms: list[Form],
    cases: dict[str, dict[str, np.ndarray]],
    read: Callable[[Outputs], dict[str, Any]],
    kept: tuple[str, ...] | None = None,
    exact: bool = True,
    target: str = "sm_90a",
    explain: Explain | None = None,
) -> Probe:
    """Returns a probe. ``cases`` holds the inputs by name, 1-dimensional arrays of u16, u32 or u64 of one size, a
    multiple of `THREADS`.
    """
    inputs = next(iter(cases.values()))
    parameters = [f"u64 from_{name}" for name in inputs] + [f"u64 to_{n}" for n in range(len(forms))] + ["u64 cells"]
    made = []
    for case, arrays in cases.items():
        size = next(iter(arrays.values())).size
        outputs = {form.name: np.zeros(size, f"u{form.bits // 8}") for form in forms}
        buffers = {**arrays, **outputs, "cells": np.zeros((size, 2), np.uint64)}
        made.append(
            ProbeCase(
                name=case,
                buffers=buffers,
                arguments=tuple(Pointer(buffer) for buffer in buffers),
                outputs=tuple(outputs),
                block=THREADS,
                grid=(size // THREADS, 1),
                shared=16 * THREADS,
                kept=kept is None or case in kept,
            )
        )
    ptx = kernel(parameters, _body(inputs, forms), target)
    return Probe(name, question, ptx, tuple(made), read, exact=exact, explain=explain)


def _body(inputs: dict[str, np.ndarray], forms: list[Form]) -> str:
    lines = [
        f"""
.reg .b64 cell;
.reg .b32 near;
mov.u32 %r0, %ctaid.x;
mad.lo.u32 %r0, %r0, {THREADS}, %thread;
ld.param.u64 cell, [cells];
mad.wide.u32 cell, %r0, 16, cell;
mad.lo.u32 near, %thread, 16, %base;
"""
    ]
    for name, array in inputs.items():
        size = array.itemsize
        lines.append(
            f""".reg .b{8 * size} {name};
ld.param.u64 %rd0, [from_{name}];
mad.wide.u32 %rd0, %r0, {size}, %rd0;
ld.global.b{8 * size} {name}, [%rd0];
"""
        )
    for number, form in enumerate(forms):
        lines.append(
            f"""{{
.reg .b{form.bits} d;
{form.text}
ld.param.u64 %rd0, [to_{number}];
mad.wide.u32 %rd0, %r0, {form.bits // 8}, %rd0;
st.global.b{form.bits} [%rd0], d;
}}
"""
        )
    return "".join(lines)
