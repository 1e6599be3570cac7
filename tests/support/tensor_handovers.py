"""PTX texts of hand-offs to tensor cores: operands, loads, tcgen05 and wgmma instructions, allocation, commits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from handovers import CLUSTER_BARRIER, CTA_BARRIER, only, wait

from emugpu.emulator import Device, TensorMap

A_BYTES, B_BYTES = 4096, 512
"""128 rows of A and 16 rows of B, 16 elements of K each: rows of 32 bytes, swizzled."""


def operands(rows: int):
    def arguments(device: Device) -> list[TensorMap]:
        tensor = np.ones((256, 16), ml_dtypes.bfloat16)
        return [TensorMap.tiled(device.upload(tensor), "bf16", tensor.shape, (box, 16), "32B") for box in (rows, 16)]

    return arguments


def instruction(m: int, n: int) -> int:
    """bf16 times bf16 to f32, both K-major."""
    return 1 << 4 | 1 << 7 | 1 << 10 | n >> 3 << 17 | m >> 4 << 24


DESCRIPTOR = 256 >> 4 << 32 | 1 << 46 | 6 << 61
"""Groups of 8 rows, 256 bytes apart; swizzle of 32 bytes."""


def operand(register: str, where: str) -> str:
    return f"""
    mov.b32 %r30, {where};
    and.b32 %r30, %r30, 0x3ffff;
    shr.u32 %r30, %r30, 4;
    cvt.u64.u32 {register}, %r30;
    or.b64 {register}, {register}, {DESCRIPTOR};
    """


def load(which: int, where: str, barrier: str) -> str:
    return f"""
    mov.b32 %r20, 0;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [{where}], [%m{which}, {{%r20, %r20}}], [{barrier}];
    """


def initialise(*counts: int) -> str:
    return "".join(f"mbarrier.init.shared::cta.b64 [bars+{8 * n}], {count};" for n, count in enumerate(counts))


LOAD_BOTH = load(0, "data", "BAR") + load(1, f"data+{A_BYTES}", "BAR")
PREPARED = (
    only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars+120], 1;")
    + CTA_BARRIER
    + only("%thread eq 0", f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars+120], {A_BYTES + B_BYTES};"
           + LOAD_BOTH.replace("BAR", "bars+120"))
    + wait("bars+120")
    + CTA_BARRIER
)  # fmt: skip
"""The operands are there before anything else: an MMA too early finds something."""
SIXTEEN = "{" + ", ".join(f"%r{n}" for n in range(40, 56)) + "}"
LD = f"tcgen05.ld.sync.aligned.32x32b.x16.b32 {SIXTEEN}, [%r10];"
ST = f"tcgen05.st.sync.aligned.32x32b.x16.b32 [%r10], {SIXTEEN};"
WAIT_LD, WAIT_ST = ("tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;")
BEFORE, AFTER = ("tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;")


def allocated(group: int) -> str:
    """Warp 0 allocates 32 columns and writes zeros to them; %r10: their address, in all warps."""
    zeros = "".join(f"mov.b32 %r{n}, 0;" for n in range(40, 56))
    return (
        only("%warp eq 0", f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [slot], 32;")
        + CTA_BARRIER
        + "ld.shared.b32 %r10, [slot]; add.u32 %r11, %r10, 16;"
        + only("%warp eq 0", zeros + ST + ST.replace("%r10", "%r11") + WAIT_ST + BEFORE)
        + CTA_BARRIER
        + AFTER
    )


def freed(group: int, warp: int = 0) -> str:
    return only(
        f"%warp eq {warp}",
        f"tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;"
        f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r10, 32;",
    )


def mma(group: int, m: int, n: int, accumulator: str = "%r10") -> str:
    return (
        operand("%d0", "data")
        + operand("%d1", f"data+{A_BYTES}")
        + f"""
    mov.b32 %r31, {instruction(m, n)};
    setp.ne.u32 %p1, 0, 0;
    tcgen05.mma.cta_group::{group}.kind::f16 [{accumulator}], %d0, %d1, %r31, %p1;
    """
    )


def commit(barrier: str) -> str:
    return f"tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{barrier}];"


def placed(what: str, where: str, around: str) -> str:
    """``what`` after or before ``around``, or nowhere."""
    return {"after": around + what, "before": what + around, "never": around}[where]


READ_OR_REFILLED = "stage-read-early|stage-refilled-early"
"""An MMA that does not wait: it may find what was there before the copy."""
PAIR_BYTES = 2 * (2048 + B_BYTES)


def pair_load(barrier: str) -> str:
    """Each CTA loads its rows of A, rank 0 loads B for both; all bytes count at the barrier of rank 0."""
    head = "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    return (
        f"mov.b32 %r20, 0; mov.b32 %r21, {barrier}; and.b32 %r21, %r21, 0xfeffffff;"
        "mov.b32 %r22, 1; shl.b32 %r22, %r22, %rank; cvt.u16.u32 %h1, %r22; mov.b16 %h2, 3;"
        f"{head}.multicast::cluster [data], [%m0, {{%r20, %r20}}], [%r21], %h1;"
        + only("%rank eq 0", f"{head}.multicast::cluster [data+{A_BYTES}], [%m1, {{%r20, %r20}}], [%r21], %h2;")
    )


def pair_commit(barrier: str, mask: int) -> str:
    return (
        f"mov.b16 %h3, {mask};"
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        f"[{barrier}], %h3;"
    )


RELAXED_CLUSTER_BARRIER = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
PAIR_PREPARED = (
    only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars+120], 1; fence.mbarrier_init.release.cluster;")
    + CLUSTER_BARRIER
    + only("%thread eq 32", only(
        "%rank eq 0", f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars+120], {PAIR_BYTES};"
    ) + pair_load("bars+120"))
    + only("%rank eq 0", wait("bars+120"))
    + CLUSTER_BARRIER
)  # fmt: skip
WGMMA_A_BYTES, WGMMA_B_BYTES = 2048, 512


def wgmma_descriptor(register: str, where: str) -> str:
    return operand(register, where).replace(str(DESCRIPTOR), str(256 >> 4 << 32 | 3 << 62))


WGMMA = (
    wgmma_descriptor("%d0", "data")
    + wgmma_descriptor("%d1", f"data+{WGMMA_A_BYTES}")
    + """
    setp.ne.u32 %p1, 0, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d1, %p1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    """
)
