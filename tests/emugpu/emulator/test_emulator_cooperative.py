"""Cooperative grids: all CTAs run at once and meet at the barrier that cooperative_groups finds by %envreg1 and 2."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import source

from emugpu.check import Checker
from emugpu.emulator import Device, Fault, LaunchError, Module
from emugpu.emulator.memory.global_memory import GlobalMemory

# As grid.sync() of CUDA 13 has it: the first CTA adds 2**31 less the others, so that the sign turns when all are here.
SYNC = """
barrier.sync 0;
@%p1 bra MET{0};
atom.add.release.gpu.u32 %r8, [%rd3+4], %r7;
POLL{0}: ld.acquire.gpu.u32 %r9, [%rd3+4];
xor.b32 %r9, %r9, %r8; setp.gt.s32 %p2, %r9, -1; @%p2 bra POLL{0};
MET{0}: barrier.sync 0;
"""
# Three times: everybody reads its neighbour, all meet, everybody writes.
ROUNDS = (
    """
mov.u32 %r2, %envreg1; mov.u32 %r3, %envreg2; cvt.u64.u32 %rd2, %r2; cvt.u64.u32 %rd3, %r3;
bfi.b64 %rd3, %rd2, %rd3, 32, 32;
setp.eq.u64 %p3, %rd3, 0; @!%p3 bra COOPERATES; trap; COOPERATES:
mov.u32 %r4, %ctaid.x; mov.u32 %r5, %nctaid.x; setp.ne.u32 %p1, %r0, 0;
mov.u32 %r7, 1; setp.ne.u32 %p2, %r4, 0; @%p2 bra OTHER; sub.u32 %r7, 0x80000001, %r5; OTHER:
mad.lo.u32 %r10, %r4, 32, %r0; mul.wide.u32 %rd4, %r10, 4; add.u64 %rd4, %rd0, %rd4;
mul.lo.u32 %r11, %r5, 32; add.u32 %r12, %r10, 1; rem.u32 %r12, %r12, %r11;
mul.wide.u32 %rd5, %r12, 4; add.u64 %rd5, %rd0, %rd5;
"""
    + "".join(
        "ld.global.u32 %r13, [%rd5];" + SYNC.format(f"A{n}") + "add.u32 %r13, %r13, 1; st.global.u32 [%rd4], %r13;"
        + SYNC.format(f"B{n}")
        for n in range(3)
    )
    + "ret;"
)  # fmt: skip


@pytest.mark.parametrize(("schedule", "seed"), [("fifo", 0), ("random", 3)])
def test_all_ctas_meet(schedule, seed):
    memory, checker = GlobalMemory(), Checker()
    device = Device(schedule=schedule, seed=seed, memory=memory)
    first = np.arange(160, dtype=np.uint32) * 10
    out = device.upload(first)
    before = len(memory.allocations)
    module = Module.from_text(source(ROUNDS))
    device.launch(module, grid=5, block=32, arguments=[out], cooperative=True, sinks=[checker])
    assert (device.download(out, np.uint32, 160) == np.roll(first, -3) + 3).all()
    assert not checker.report().errors and len(memory.allocations) == before


def test_another_grid_has_no_barrier():
    device = Device()
    with pytest.raises(Fault, match="executes trap"):
        device.launch(Module.from_text(source(ROUNDS)), grid=2, block=32, arguments=[device.upload(np.zeros(64))])


def test_a_grid_that_is_too_large_is_refused():
    device = Device()
    with pytest.raises(LaunchError, match=r"a cooperative grid runs all at once, and the GPU has room for \d+ CTAs"):
        module = Module.from_text(source("ret;"))
        device.launch(module, grid=99999, block=32, arguments=[device.alloc(4)], cooperative=True)
