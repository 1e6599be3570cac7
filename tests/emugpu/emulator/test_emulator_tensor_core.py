"""Whole programs around tcgen05.mma: TMA loads, one or two CTAs that multiply, commits, and exact counters."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import launch

from emugpu.emulator import Device, TensorMap

SHARED = ".shared .align 1024 .b8 words[16384];"
"""A's rows at 0, B's at 4096, two mbarriers at 8192 and 8200, the address of tensor memory at 8256."""
N, K = 32, 16
ACCUMULATORS = "{" + ", ".join(f"%f{n}" for n in range(N)) + "}"
STORES = "\n".join(f"st.global.b32 [%rd8+{4 * n}], %f{n};" for n in range(N))

PROGRAM = """
.reg .b32 %f<32>;
mov.u32 %r20, %cluster_ctarank;
mov.b32 %r3, words;
add.u32 %r4, %r3, 4096;
add.u32 %r5, %r3, 8192;
add.u32 %r6, %r3, 8200;
add.u32 %r7, %r3, 8256;
setp.ge.u32 %p1, %r0, 32; @%p1 bra ALLOCATED;
tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r7], 32;
ALLOCATED: setp.ne.u32 %p2, %r0, 0; @%p2 bra READY;
mbarrier.init.shared.b64 [%r5], 1;
mbarrier.init.shared.b64 [%r6], 1;
READY: bar.sync 0;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
ld.shared.b32 %r2, [%r7];
@%p2 bra COMPUTED;
setp.ne.u32 %p5, %r20, 0;
mapa.shared::cluster.u32 %r9, %r5, 0;
@%p5 bra COPY;
mbarrier.arrive.expect_tx.shared.b64 _, [%r5], {nbytes};
COPY: mov.b32 %r10, 0;
mul.lo.u32 %r11, %r20, 128;
mul.lo.u32 %r12, %r20, {columns};
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{pair}
    [%r3], [a, {{%r10, %r11}}], [%r9];
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{pair}
    [%r4], [b, {{%r10, %r12}}], [%r9];
@%p5 bra COMPUTED;
FULL: mbarrier.try_wait.parity.shared.b64 %p3, [%r5], 0; @!%p3 bra FULL;
mov.b64 %rd4, {a_descriptor};
mov.b64 %rd5, {b_descriptor};
mov.b32 %r13, {idesc};
setp.ne.u32 %p4, %r0, %r0;
tcgen05.mma.cta_group::{group}.kind::f16 [%r2], %rd4, %rd5, %r13, %p4;
tcgen05.mma.cta_group::{group}.kind::f16 [%r2], %rd4, %rd5, %r13, {masks}, 1;
{commit}
COMPUTED:
DONE: mbarrier.try_wait.parity.shared.b64 %p3, [%r6], 0; @!%p3 bra DONE;
bar.warp.sync -1;
tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x32.b32 {accumulators}, [%r2];
tcgen05.wait::ld.sync.aligned;
mad.lo.u32 %r14, %r20, 128, %r0;
mul.wide.u32 %rd8, %r14, 128; add.s64 %rd8, %rd0, %rd8;
{stores}
bar.sync 0;
@%p1 bra END;
tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;
tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r2, 32;
END: barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
ret;
"""
"""D = A B, then D += A B but in the lanes that are masked. Every thread stores its row of D."""


def descriptor(offset: int) -> int:
    """Rows of 32 bytes with the 32-byte swizzle, groups of 8 rows behind one another; static shared is at 0x400."""
    return (0x400 + offset) >> 4 | (256 >> 4) << 32 | 1 << 46 | 6 << 61


def multiply(group: int, disabled: list[int], **options):
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-8, 9, (rows, K)).astype(np.float32) for rows in (128 * group, N))
    device = Device(**options)
    maps = [
        TensorMap.tiled(device.upload(x.astype(ml_dtypes.bfloat16)), "bf16", x.shape, (rows, K), "32B")
        for x, rows in ((a, 128), (b, N // group))
    ]
    one = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r6];"
    both = "mov.b16 %rs1, 3; tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
    body = PROGRAM.format(
        group=group,
        nbytes=2 * K * (128 * group + N),
        columns=N // group,
        pair=".cta_group::2" if group == 2 else "",
        a_descriptor=descriptor(0),
        b_descriptor=descriptor(4096),
        idesc=1 << 4 | 1 << 7 | 1 << 10 | N >> 3 << 17 | 128 * group >> 4 << 24,
        masks="{" + ", ".join(map(str, disabled)) + "}",
        commit=one if group == 1 else both + "[%r6], %rs1;",
        accumulators=ACCUMULATORS,
        stores=STORES,
    )
    run = launch(
        body, threads=128, words=128 * group * N, grid=group, cluster=group, module_scope=SHARED,
        parameters=["map a", "map b"], arguments=maps, device=device,
    )  # fmt: skip
    lanes = np.array([word >> bit & 1 for word in disabled for bit in range(32)])
    expected = a @ b.T * np.where(lanes, 1, 2)[:, None]
    assert (run.words(128 * group * N).view(np.float32).reshape(-1, N) == expected).all()
    return run.result.counters


SCHEDULES = [{}, *({"schedule": "random", "seed": seed} for seed in range(3))]


@pytest.mark.parametrize("options", SCHEDULES)
def test_one_cta_multiplies_and_leaves_the_masked_lanes_alone(options):
    counters = multiply(1, [0, 0x80000001, 0xFFFFFFFF, 6], **options)
    assert (counters.mma_instructions, counters.mma_flops) == (2, 2 * 2 * 128 * N * K)
    assert (counters.commits, counters.commit_arrivals, counters.tmem_columns) == (1, 1, 32)
    assert (counters.tma_loads, counters.tma_stores) == (2, 0)
    assert counters.tma_global_bytes_read_by_tensor == {"argument 1": 4096, "argument 2": 1024}
    assert counters.tma_global_bytes_read == counters.tma_shared_bytes_written == 5120
    assert (counters.clusters, counters.ctas, counters.warps_finished) == (1, 1, 4)
    assert counters.mbarrier_arrivals == 1
    # The thread that waits for the operands, and four warps that wait for the product.
    assert counters.mbarrier_waits == 5
    if not options:
        assert counters.mbarrier_stalls == 5
        # alloc, relinquish and dealloc of one warp; ld and wait of four.
        counts = counters.instructions
        assert (counts["mma"], counts["tma"], counts["tmem"], counts["fence"]) == (2, 2, 3 + 8, 4)
        # 32 stores of each of four warps, the load of the parameter, and that of the address.
        assert counts["memory"] == 4 * (32 + 1 + 1)


@pytest.mark.parametrize("options", SCHEDULES)
def test_two_ctas_multiply_as_a_pair(options):
    counters = multiply(2, [1, 0, 2, 0, 0xF0000000, 0, 0, 4], **options)
    assert (counters.mma_instructions, counters.mma_flops) == (2, 2 * 2 * 256 * N * K)
    assert (counters.commits, counters.commit_arrivals, counters.tmem_columns) == (1, 2, 32)
    assert counters.tma_loads == 4 and counters.tma_global_bytes_read == 2 * (4096 + 512)
    assert (counters.clusters, counters.ctas, counters.warps_finished) == (1, 2, 8)
    assert (counters.mbarrier_arrivals, counters.mbarrier_waits) == (1, 9)


MULTICAST = """
mov.u32 %r20, %cluster_ctarank;
mov.b32 %r3, words;
add.u32 %r5, %r3, 8192;
mov.b32 %r12, {mask};
shr.u32 %r12, %r12, %r20;
and.b32 %r12, %r12, 1;
setp.eq.u32 %p6, %r12, 0;
setp.ne.u32 %p2, %r0, 0; @%p2 bra READY;
mbarrier.init.shared.b64 [%r5], 1;
@%p6 bra READY;
mbarrier.arrive.expect_tx.shared.b64 _, [%r5], 128;
READY: barrier.cluster.arrive; barrier.cluster.wait;
setp.ne.u32 %p5, %r20, {issuer};
or.pred %p5, %p5, %p2;
@%p5 bra WAIT;
mov.b16 %rs1, {mask};
mov.b32 %r10, {x};
mov.b32 %r11, {y};
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
    [%r3], [map, {{%r10, %r11}}], [%r5], %rs1;
WAIT: mov.b32 %r1, 7;
@%p6 bra STORE;
FULL: mbarrier.try_wait.parity.shared.b64 %p3, [%r5], 0; @!%p3 bra FULL;
shl.b32 %r13, %r0, 2; add.u32 %r13, %r13, %r3;
ld.shared.b32 %r1, [%r13];
STORE: mad.lo.u32 %r14, %r20, 32, %r0;
mul.wide.u32 %rd8, %r14, 4; add.s64 %rd8, %rd0, %rd8;
st.global.b32 [%rd8], %r1;
barrier.cluster.arrive; barrier.cluster.wait;
ret;
"""


@pytest.mark.parametrize("options", SCHEDULES)
@pytest.mark.parametrize("issuer", [0, 2])
@pytest.mark.parametrize(("x", "y", "inside"), [(0, 0, 8 * 4), (4, 2, 8 * 4), (-4, 1, 4 * 4), (12, 7, 4), (16, 0, 0)])
def test_a_multicast_reads_once_and_writes_each_cta_of_its_mask(options, issuer, x, y, inside):
    """Boxes of 4 rows of 8 words of a tensor with 8 rows of 16; what lies outside is zero."""
    device = Device(**options)
    values = np.arange(1, 129, dtype=np.uint32).reshape(8, 16)
    tmap = TensorMap.tiled(device.upload(values), "u32", (8, 16), (4, 8))
    body = MULTICAST.format(issuer=issuer, mask=0b0110, x=x, y=y)
    run = launch(
        body, words=128, grid=4, cluster=4, module_scope=SHARED, parameters=["map map"], arguments=[tmap],
        device=device,
    )  # fmt: skip
    padded = np.zeros((24, 48), np.uint32)
    padded[8:16, 16:32] = values
    box = padded[8 + y : 12 + y, 16 + x : 24 + x].ravel()
    ignored = np.full(32, 7)
    assert (run.words(128).reshape(4, 32) == [ignored, box, box, ignored]).all()
    counters = run.result.counters
    assert counters.tma_loads == 1 and counters.tma_shared_bytes_written == 2 * 128
    assert counters.tma_global_bytes_read == 4 * inside == 4 * np.count_nonzero(box)
    assert counters.mbarrier_waits == 2
