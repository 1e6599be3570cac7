"""Small PTX kernels for tests: a header and a body, launched on the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.ptx import module
from emugpu.emulator import Device, LaunchResult, Module

REGISTERS = """.reg .pred %p<16>;
.reg .b16 %rs<16>;
.reg .b32 %r<64>;
.reg .b64 %rd<32>;
ld.param.u64 %rd0, [out];
mov.u32 %r0, %tid.x;
"""
"""Before each body: %rd0 is the address in ``out``, %r0 the index of the thread."""

STORE_R1 = """
mul.wide.u32 %rd1, %r0, 4;
add.s64 %rd1, %rd0, %rd1;
st.global.b32 [%rd1], %r1;
"""
"""Every thread stores %r1 at out[tid]."""

WORDS = ".shared .align 1024 .b8 words[4096];"
"""Module scope: static shared memory, the first of its CTA, so that it begins at offset 0x400."""

ALLOCATE = """
mov.b32 %r3, words;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], 32;
bar.warp.sync -1;
ld.shared.b32 %r2, [%r3];
"""
"""One warp, with `WORDS`: %r2 = the address of 32 columns of tensor memory."""

FREE = """
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
"""


def source(
    body: str,
    module_scope: str = "",
    directives: str = "",
    *,
    target: str = "sm_100a",
    parameters: Sequence[str] = (),
) -> str:
    """A module with one kernel. ``parameters`` come after ``out``: "u32 count", or "map NAME" for a tensor map."""
    declared = ["u64 out", *parameters]
    body, directives = REGISTERS + body, f"\n{directives}"
    return module("kernel", declared, body, target=target, version="8.8", scope=module_scope, directives=directives)


@lru_cache(maxsize=64)
def module_of(text: str) -> Module:
    """The module of a text. Of launches of the same text only the first parses and translates it."""
    return Module.from_text(text)


@dataclass(frozen=True)
class Run:
    """A launch that has ended, and the device it ran on."""

    device: Device
    out: int
    result: LaunchResult

    def words(self, count: int) -> np.ndarray:
        """The first words of ``out``."""
        return self.device.download(self.out, np.uint32, count)


def launch(
    body: str,
    *,
    threads: int = 32,
    words: int = 0,
    grid=1,
    cluster=1,
    dynamic_smem: int = 0,
    module_scope: str = "",
    directives: str = "",
    target: str = "sm_100a",
    parameters: Sequence[str] = (),
    arguments: Sequence[Any] = (),
    device: Device | None = None,
    schedule="fifo",
    seed: int = 0,
    initial: np.ndarray | None = None,
    **options: Any,
) -> Run:
    """Run a body; ``out`` has room for ``words`` (one per thread by default) or holds the words of ``initial``.

    ``arguments`` follow ``out``; those made on a device need that ``device``. ``options`` go to Device.launch.
    """
    device = device or Device(schedule=schedule, seed=seed)
    out = device.alloc(4 * (words or threads)) if initial is None else device.upload(initial.astype(np.uint32))
    text = source(body, module_scope, directives, target=target, parameters=parameters)
    result = device.launch(
        module_of(text),
        grid=grid,
        cluster=cluster,
        block=threads,
        dynamic_smem=dynamic_smem,
        arguments=[out, *arguments],
        **options,
    )
    return Run(device, out, result)


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
    sinks=(),
) -> np.ndarray:
    """Run a body on one CTA (or more) and return ``out`` as uint32 words, one per thread by default."""
    device = Device(schedule=schedule, seed=seed)
    words = threads if words is None else words
    out = device.alloc(4 * words)
    device.launch(
        module_of(source(body, module_scope)),
        grid=grid,
        cluster=cluster,
        block=threads,
        dynamic_smem=dynamic_smem,
        arguments=[out],
        sinks=sinks,
    )
    return device.download(out, np.uint32, words)
