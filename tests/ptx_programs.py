"""Small PTX kernels for tests: a header and a body, launched on the emulator."""

from __future__ import annotations

import numpy as np

from harness.emulator import Device, Module

HEADER = """.version 8.8
.target sm_100a
.address_size 64
{module_scope}
.visible .entry kernel(.param .u64 out)
{directives}
{{
.reg .pred %p<16>;
.reg .b16 %rs<16>;
.reg .b32 %r<64>;
.reg .b64 %rd<32>;
ld.param.u64 %rd0, [out];
mov.u32 %r0, %tid.x;
{body}
}}
"""

STORE_R1 = """
mul.wide.u32 %rd1, %r0, 4;
add.s64 %rd1, %rd0, %rd1;
st.global.b32 [%rd1], %r1;
"""
"""Every thread stores %r1 at out[tid]."""


def source(body: str, module_scope: str = "", directives: str = "") -> str:
    return HEADER.format(body=body, module_scope=module_scope, directives=directives)


def run(
    body: str,
    *,
    threads: int = 32,
    words: int | None = None,
    grid=1,
    cluster=1,
    dynamic_smem: int = 0,
    module_scope: str = "",
    schedule="fifo",
    seed: int = 0,
    observers=(),
) -> np.ndarray:
    """Run a body on one CTA (or more) and return ``out`` as uint32 words, one per thread by default."""
    device = Device(schedule=schedule, seed=seed)
    words = threads if words is None else words
    out = device.alloc(4 * words)
    device.launch(
        Module.from_text(source(body, module_scope)),
        grid=grid,
        cluster=cluster,
        block=threads,
        dynamic_smem=dynamic_smem,
        arguments=[out],
        observers=observers,
    )
    return device.download(out, np.uint32, words)
