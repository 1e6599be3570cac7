"""Small programs whose events several tests look at."""

from __future__ import annotations

from typing import Any

import numpy as np
from ptx_programs import WORDS, source

from emugpu.emulator import Device, Module, TensorMap

MUCH = """
shr.u32 %r3, %r0, 5;
shl.b32 %r3, %r3, 9;
add.u32 %r3, %r3, words;
and.b32 %r4, %r0, 31;
shl.b32 %r4, %r4, 4;
add.u32 %r4, %r4, %r3;
add.u32 %r5, %r3, 2048;
setp.eq.u32 %p0, %r0, 0;
st.shared.v4.b32 [%r4], {%r0, %r0, %r0, %r0};
bar.warp.sync -1;
ld.shared.v2.b32 {%r6, %r7}, [%r4+8];
stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r4], {%r6, %r6, %r6, %r6};
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r8, %r9, %r10, %r11}, [%r4];
shfl.sync.idx.b32 %r12, %r6, 0, 31, -1;
vote.sync.ballot.b32 %r12, %p0, -1;
elect.sync %r13|%p1, -1;
@%p1 mbarrier.init.shared.b64 [%r5], 1;
fence.mbarrier_init.release.cluster;
@%p1 mbarrier.arrive.shared.b64 %rd5, [%r5];
mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0;
mbarrier.test_wait.parity.shared.b64 %p2, [%r5], 0;
@%p1 mbarrier.inval.shared.b64 [%r5];
bar.arrive 1, 64;
bar.sync 0;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
@%p1 atom.shared.add.u32 %r14, [%r3], 1;
red.global.add.u32 [%rd0], 1;
st.global.b32 [%rd0], %r3;
ld.global.b32 %r6, [%rd0];
membar.cta;
ret;
"""
"""A bit of everything, by each warp in a part of shared memory of its own."""

MEETING = """
mov.b32 %r3, words;
setp.lt.u32 %p1, %r0, 8;
@%p1 bra LOW;
st.shared.b32 [%r3], %r0;
bar.warp.sync -1;
st.shared.b32 [%r3+16], %r0;
bra.uni JOIN;
LOW:
st.shared.b32 [%r3+4], %r0;
bar.warp.sync -1;
st.shared.b32 [%r3+20], %r0;
JOIN:
ret;
"""
"""Lanes that have parted meet in a warp sync."""

PHASES = """
mov.b32 %r3, words;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r3+8], 33;
bar.warp.sync -1;
mbarrier.arrive.shared.b64 %rd4, [%r3+8];
@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r3+8], 48;
mbarrier.test_wait.parity.shared.b64 %p2, [%r3+8], 0;
@%p1 mbarrier.expect_tx.relaxed.cta.shared.b64 [%r3+8], 16;
@%p1 mbarrier.complete_tx.relaxed.cta.shared.b64 [%r3+8], 64;
mbarrier.try_wait.parity.shared.b64 %p2, [%r3+8], 0;
mbarrier.test_wait.shared.b64 %p2, [%r3+8], %rd4;
mbarrier.arrive_drop.shared.b64 %rd4, [%r3+8];
@%p1 mbarrier.arrive.shared.b64 %rd5, [%r3+8], 1;
mbarrier.try_wait.parity.shared.b64 %p2, [%r3+8], 1;
@%p1 mbarrier.arrive.shared.b64 %rd5, [%r3+8];
mbarrier.try_wait.parity.shared.b64 %p2, [%r3+8], 0;
@%p1 mbarrier.inval.shared.b64 [%r3+8];
ret;
"""
"""All that there is to do with an mbarrier, in three phases."""

ROOM = ".shared .align 1024 .b8 words[8192];"
"""As `WORDS`, twice as much."""

COPY_SINGLY = """
mov.b32 %r3, words; mad.lo.u32 %r4, %r0, 4, %r3;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r3+1024], 32;
mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; st.global.b32 [%rd1], %r0;
bar.warp.sync -1;
cp.async.ca.shared.global [%r4], [%rd1], 4;
cp.async.mbarrier.arrive.shared.b64 [%r3+1024];
cp.async.wait_all;
ret;
"""
"""Every lane copies a word, and an mbarrier learns of it."""

CORE_MATRICES = 128 >> 4 << 16 | 256 >> 4 << 32
"""Of a descriptor: no swizzle, 128 bytes from core matrix to core matrix along K, 256 along the rows."""

MULTIPLY = f"""
mov.b32 %r3, words;
add.u32 %r10, %r3, 6144;
shl.b32 %r4, %r0, 2;
add.u32 %r4, %r4, %r3;
mov.b32 %r5, 0x3c003c00;
mov.b32 %r6, 0;
FILL:
st.shared.b32 [%r4], %r5;
add.u32 %r4, %r4, 128;
add.u32 %r6, %r6, 1;
setp.lt.u32 %p1, %r6, 36;
@%p1 bra FILL;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r10], 1;
fence.proxy.async.shared::cta;
bar.warp.sync -1;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+16], 32;
bar.warp.sync -1;
ld.shared.b32 %r2, [%r10+16];
mov.b32 %r7, 0x8020010;
shr.u32 %r8, %r3, 4;
cvt.u64.u32 %rd4, %r8;
or.b64 %rd4, %rd4, {CORE_MATRICES | 1 << 46};
add.u64 %rd5, %rd4, 256;
setp.eq.u32 %p2, %r0, 99;
@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd4, %rd5, %r7, %p2;
@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd4, %rd5, %r7, %p1;
@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10];
AGAIN:
mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0;
@!%p3 bra AGAIN;
tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x4.b32 {{%r20, %r21, %r22, %r23}}, [%r2];
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r24}}, [%r2+7];
tcgen05.wait::ld.sync.aligned;
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2+16], {{%r0, %r23}};
tcgen05.st.sync.aligned.16x128b.x1.unpack::16b.b32 [%r2+20], {{%r0, %r23}};
tcgen05.wait::st.sync.aligned;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
mov.b32 %r1, %r24;
"""
"""D is 128 x 8; A and B hold ones, and the product is added twice. Then tensor memory is loaded and stored."""

REQUEST = """
mov.b32 %r3, words;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r3+16], 1;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3+16], 16;
@%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r3], [%r3+16];
bar.warp.sync -1;
AGAIN:
mbarrier.try_wait.parity.shared.b64 %p2, [%r3+16], 0;
@!%p2 bra AGAIN;
ret;
"""
"""A CTA asks for another cluster, and waits for the answer."""

LATE = """
mov.b32 %r3, words;
setp.ne.u32 %p1, %r0, 0;
@%p1 ret;
mbarrier.init.shared.b64 [%r3], 1;
mov.u32 %r4, %cluster_ctarank;
setp.eq.u32 %p2, %r4, 0;
@%p2 ret;
mov.b32 %r5, 2000;
DELAY:
sub.u32 %r5, %r5, 1;
setp.ne.u32 %p3, %r5, 0;
@%p3 bra DELAY;
mapa.shared::cluster.u32 %r7, %r3, 0;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];
mov.b16 %rs1, 1;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r3], %rs1;
ret;
"""
"""The CTA of rank 0 has left when a thread of the other one arrives there, and when a commit does."""

MAP_IN_MEMORY = """
mov.b32 %r3, words; setp.eq.u32 %p1, %r0, 0; ld.param.u64 %rd1, [pointer];
@%p1 mbarrier.init.shared.b64 [%r3+256], 1;
fence.proxy.tensormap::generic.acquire.sys [%rd1], 128;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3+256], 128; mov.b32 %r4, 0;
@%p1 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd1, {%r4}], [%r3+256];
W: mbarrier.try_wait.parity.shared.b64 %p2, [%r3+256], 0; @!%p2 bra W;
ret;
"""
"""A copy through a tensor map in global memory, behind a fence."""


def told_of_a_map_in_memory() -> tuple[int, list[Any]]:
    """The map's address, and what has been told of a copy that uses it."""
    device = Device()
    at = device.upload_tensor_map(TensorMap.tiled(device.upload(np.zeros(32, np.uint32)), "u32", (32,), (32,)))
    seen: list[Any] = []
    module = Module.from_text(source(MAP_IN_MEMORY, WORDS, parameters=("u64 pointer",)))
    device.launch(module, grid=1, block=32, arguments=[0, at], sinks=[seen.append])
    return at, seen
