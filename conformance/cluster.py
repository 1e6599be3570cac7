"""Probes of clusters: the CTAs of a multicast mask, the barrier that a load signals, and the addresses of peers."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.probe import MapArgument, Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import CLUSTER_SYNC, ONLY_THREAD_0, UNTOUCHED, fill, kernel, poll, tma_load

THREADS = 32
REGION = 1024
BOX_ROWS, BOX_COLUMNS = 8, 16
BOX_BYTES = 2 * BOX_ROWS * BOX_COLUMNS
WORDS = 8
"""Words that each CTA reports."""
CLUSTERS = 2
"""Clusters along x, so that %ctaid and the rank in the cluster differ."""

LOAD = kernel(
    ["map tensor", "u64 report", "u64 request"],
    fill(REGION, BOX_BYTES, THREADS)
    + ONLY_THREAD_0
    + """
ld.param.u64 %rd0, [report];
ld.param.u64 %rd1, [request];
mov.b64 %rd2, tensor;
cvta.param.u64 %rd2, %rd2;
ld.global.u32 %r0, [%rd1];
ld.global.u32 %r1, [%rd1+4];
ld.global.u32 %r2, [%rd1+8];
mov.u32 %r3, %cluster_ctarank;
@%p0 bra READY;
mbarrier.init.shared::cta.b64 [%base], 1;
fence.mbarrier_init.release.cluster;
READY:
fence.proxy.async.shared::cta;
"""
    + CLUSTER_SYNC
    + f"""
@%p0 bra DONE;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], {BOX_BYTES};
add.u32 %r5, %base, {REGION};
mov.u32 %r6, 0;
setp.ne.u32 %p1, %r3, %r0;
@%p1 bra ISSUED;
setp.eq.u32 %p2, %r1, 0;
@%p2 bra PLAIN;
cvt.u16.u32 %h0, %r1;
"""
    + tma_load("%r5", "%rd2", "%r6", "%r6", "%base", "%h0")
    + """
bra ISSUED;
PLAIN:
mapa.shared::cluster.u32 %r7, %base, %r2;
"""
    + tma_load("%r5", "%rd2", "%r6", "%r6", "%r7")
    + """
ISSUED:
"""
    + poll("%base", 0, "%p3")
    + f"""
selp.u32 %r8, 1, 0, %p3;
ld.shared.u32 %r9, [%base+{REGION}];
mov.u32 %r10, %ctaid.x;
mov.u32 %r11, %ctaid.y;
mov.u32 %r12, %cluster_ctaid.x;
mov.u32 %r13, %cluster_ctaid.y;
mov.u32 %r14, %nctaid.x;
mad.lo.u32 %r15, %r11, %r14, %r10;
mul.wide.u32 %rd3, %r15, {4 * WORDS};
add.u64 %rd3, %rd3, %rd0;
st.global.u32 [%rd3], %r8;
st.global.u32 [%rd3+4], %r9;
st.global.u32 [%rd3+8], %r3;
st.global.u32 [%rd3+12], %r10;
st.global.u32 [%rd3+16], %r11;
st.global.u32 [%rd3+20], %r12;
st.global.u32 [%rd3+24], %r13;
mov.u32 %r16, %cluster_nctarank;
st.global.u32 [%rd3+28], %r16;
DONE:
"""
    + CLUSTER_SYNC
    + """
@%p0 bra LEFT;
mbarrier.inval.shared::cta.b64 [%base];
LEFT:
""",
)
"""Every CTA arms its barrier for a box; the CTA of one rank loads it, with or without multicast."""


def _load_case(cluster: tuple[int, int], issuer: int, mask: int = 0, signalled: int = 0) -> ProbeCase:
    """Returns a case. Mask 0 is a plain load that names the barrier of the CTA with rank ``signalled``."""
    what = f"mask {mask:#06b}" if mask else f"barrier of rank {signalled}"
    ctas = CLUSTERS * cluster[0] * cluster[1]
    return ProbeCase(
        name=f"cluster {cluster[0]}x{cluster[1]}, rank {issuer} loads, {what}",
        buffers={
            "tensor": np.arange(BOX_ROWS * BOX_COLUMNS, dtype=np.uint16) + 0x1000,
            "report": np.full((ctas, WORDS), 9, np.uint32),
            "request": np.array([issuer, mask, signalled], np.uint32),
        },
        arguments=(
            MapArgument("tensor", "bf16", (BOX_ROWS, BOX_COLUMNS), (BOX_ROWS, BOX_COLUMNS)),
            Pointer("report"),
            Pointer("request"),
        ),
        outputs=("report",),
        block=THREADS,
        grid=(CLUSTERS * cluster[0], cluster[1]),
        cluster=cluster,
        shared=REGION + BOX_BYTES,
    )


def _read_loads(outputs: Outputs) -> dict[str, Any]:
    """Returns, by case, the ranks that got data, the ranks whose barrier completed, and whether clusters agree."""
    answer = {}
    for name, arrays in outputs.items():
        report = arrays["report"]
        size = int(report[0, 7])
        order = np.lexsort((report[:, 2], report[:, 3] // (report[:, 5].max() + 1)))
        clusters = report[order].reshape(-1, size, WORDS)
        answer[name] = {
            "barrier completed in ranks": np.flatnonzero(clusters[0, :, 0] == 1).tolist(),
            "data in ranks": np.flatnonzero(clusters[0, :, 1] != UNTOUCHED).tolist(),
            "cluster_ctaid of ranks": clusters[0, :, 5:7].tolist(),
            "clusters agree": bool((clusters[:, :, [0, 1, 5, 6]] == clusters[:1, :, [0, 1, 5, 6]]).all()),
        }
    return answer


MULTICAST = Probe(
    name="tma_multicast_ranks",
    question="Which CTAs of a cluster does a multicast mask name, in clusters of one and of two dimensions?",
    ptx=LOAD,
    cases=tuple(
        _load_case(cluster, issuer, mask)
        for cluster, issuers, masks in (
            ((2, 2), (0, 3), (0b0001, 0b0010, 0b0100, 0b1000, 0b0110, 0b1001, 0b1111)),
            ((4, 1), (0, 2), (0b0010, 0b0100, 0b1010, 0b1111)),
            ((1, 4), (1,), (0b0010, 0b0100, 0b1010)),
            ((4, 2), (5,), (0b0010, 0b00100000, 0b01010101, 0b11110000)),
        )
        for issuer in issuers
        for mask in masks
    ),
    read=_read_loads,
)

PLAIN = Probe(
    name="tma_plain_load_barrier",
    question="Which barrier does a load without multicast complete when its barrier operand names another CTA of the "
    "cluster than its destination?",
    ptx=LOAD,
    cases=tuple(
        _load_case(cluster, issuer, signalled=signalled)
        for cluster, pairs in (
            ((2, 1), ((0, 0), (1, 1), (1, 0), (0, 1))),
            ((2, 2), ((3, 2), (3, 0), (0, 3))),
        )
        for issuer, signalled in pairs
    ),
    read=_read_loads,
)

ADDRESSES = kernel(
    ["u64 report"],
    ONLY_THREAD_0
    + """
ld.param.u64 %rd0, [report];
mov.u32 %r0, %cluster_ctarank;
mov.u32 %r1, %cluster_nctarank;
mov.u32 %r20, %ctaid.x;
mul.wide.u32 %rd3, %r20, 256;
add.u64 %rd3, %rd3, %rd0;
@%p0 bra READY;
mbarrier.init.shared::cta.b64 [%base], %r1;
fence.mbarrier_init.release.cluster;
add.u32 %r2, %r0, 500;
st.shared.u32 [%base+64], %r2;
READY:
"""
    + CLUSTER_SYNC
    + """
@%p0 bra ASKED;
st.global.u32 [%rd3], %base;
mov.u32 %r3, 0;
NEXT:
mapa.shared::cluster.u32 %r4, %base, %r3;
getctarank.shared::cluster.u32 %r5, %r4;
ld.shared::cluster.u32 %r6, [%r4+64];
add.u32 %r7, %r3, 1000;
mad.lo.u32 %r8, %r0, 4, 128;
add.u32 %r8, %r8, %r4;
st.shared::cluster.u32 [%r8], %r7;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
mul.wide.u32 %rd4, %r3, 16;
add.u64 %rd4, %rd4, %rd3;
st.global.u32 [%rd4+16], %r4;
st.global.u32 [%rd4+20], %r5;
st.global.u32 [%rd4+24], %r6;
add.u32 %r3, %r3, 1;
setp.lt.u32 %p1, %r3, %r1;
@%p1 bra NEXT;
"""
    + poll("%base", 0, "%p2")
    + """
selp.u32 %r9, 1, 0, %p2;
st.global.u32 [%rd3+4], %r9;
ASKED:
"""
    + CLUSTER_SYNC
    + """
@%p0 bra LEFT;
mov.u32 %r3, 0;
mov.u32 %r10, 0;
SUM:
mad.lo.u32 %r8, %r3, 4, %base;
ld.shared.u32 %r6, [%r8+128];
add.u32 %r10, %r10, %r6;
add.u32 %r3, %r3, 1;
setp.lt.u32 %p1, %r3, %r1;
@%p1 bra SUM;
st.global.u32 [%rd3+8], %r10;
LEFT:
""",
)
"""Each CTA maps its address to every rank, loads from, stores to and arrives at each, then reports the results."""


def _read_addresses(outputs: Outputs) -> dict[str, Any]:
    report = outputs["cluster of 4"]["report"].reshape(-1, 64)
    return {
        "own address": [hex(v) for v in report[:, 0].tolist()],
        "mapped by rank 1": [hex(v) for v in report[1, 4::4][:4].tolist()],
        "all arrivals seen": bool((report[:, 1] == 1).all()),
        "ranks of mapped addresses": report[:, 5::4][:, :4].tolist(),
        "loaded from peers": report[:, 6::4][:, :4].tolist(),
        "sums of what peers stored": report[:, 2].tolist(),
    }


ADDRESS = Probe(
    name="cluster_addresses",
    question="What do shared addresses of the own and of other CTAs look like, and do loads, stores and arrivals "
    "reach them?",
    ptx=ADDRESSES,
    cases=(
        ProbeCase(
            name="cluster of 4",
            buffers={"report": np.zeros((4, 64), np.uint32)},
            arguments=(Pointer("report"),),
            outputs=("report",),
            block=THREADS,
            grid=(4, 1),
            cluster=(4, 1),
            shared=1024,
        ),
    ),
    read=_read_addresses,
)

PROBES = (MULTICAST, PLAIN, ADDRESS)
