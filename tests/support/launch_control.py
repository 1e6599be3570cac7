"""A persistent kernel in PTX that asks cluster launch control for its tiles, and the parts to break it with."""

from __future__ import annotations

HEADER = """.version 8.8
.target {target}
.address_size 64
.visible .entry persistent(.param .u64 counts, .param .u64 origin)
{{
.reg .pred %p<16>;
.reg .b32 %r<64>;
.reg .b64 %rd<16>;
.reg .b128 %handle;
.shared .align 16 .b8 responses[64];
.shared .align 8 .b8 full[32];
.shared .align 8 .b8 empty[32];
mov.u32 %r0, %tid.x;
shr.u32 %r1, %r0, 5;
and.b32 %r2, %r0, 31;
mov.u32 %r20, %cluster_ctarank;
setp.eq.u32 %p0, %r0, 0;
setp.eq.u32 %p1, %r2, 0;
setp.eq.and.u32 %p2, %r20, 0, %p0;
ld.param.u64 %rd0, [counts];
ld.param.u64 %rd1, [origin];
"""
"""%r0 thread, %r1 warp, %r2 lane, %r20 rank; %p0 thread 0, %p1 lane 0, %p2 thread 0 of rank 0."""

OWN_TILE = """
mov.u32 %r8, %ctaid.x;
mov.u32 %r9, %ctaid.y;
mov.u32 %r10, %ctaid.z;
mov.b32 %r13, 1;
"""
GRANTED_TILE = """
mov.u32 %r11, %cluster_ctaid.x;
add.s32 %r8, %r8, %r11;
mov.u32 %r11, %cluster_ctaid.y;
add.s32 %r9, %r9, %r11;
mov.u32 %r11, %cluster_ctaid.z;
add.s32 %r10, %r10, %r11;
mov.b32 %r13, 2;
"""
PROCESS = """
{ .reg .b32 t, n, w; .reg .b64 a, o;
mov.u32 n, %nctaid.y;
mad.lo.s32 t, %r10, n, %r9;
mov.u32 n, %nctaid.x;
mad.lo.s32 t, t, n, %r8;
mul.wide.u32 o, t, 4;
add.s64 o, %rd1, o;
@%p0 st.global.b32 [o], %r13;
mov.u32 n, %ntid.x;
shr.u32 n, n, 5;
mad.lo.s32 w, t, n, %r1;
mul.wide.u32 a, w, 4;
add.s64 a, %rd0, a;
@%p1 red.global.add.u32 [a], 1;
}
"""
"""counts[tile, warp] += 1 and origin[tile] = %r13: 1 launched, 2 granted. The tile is (%r8, %r9, %r10)."""

CTA_BARRIER = "bar.sync 0;"
CLUSTER_BARRIER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
ARM = "mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16;"
REQUEST = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [response], [bar];"
MULTICAST_REQUEST = (
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 "
    "[response], [bar];"
)
FENCE = "fence.proxy.async.shared::cta;"
IS_CANCELED = "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p5, %handle;"
COORDINATES = "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r8, %r9, %r10, _}, %handle;"
COORDINATES_X = "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r8, %handle;"
REFUSED = "mov.b32 %r6, 1; bra.uni NEXT;"
"""After a refusal: no more requests, but those in flight are awaited and may still be granted."""


def persistent(
    depth: int = 1,
    cluster: int = 1,
    *,
    target: str = "sm_100a",
    arm: str = ARM,
    read: str = "ld.shared.b128 %handle, [response];",
    release: str | None = None,
    query: str = IS_CANCELED + "@!%p5 bra REFUSED;" + COORDINATES,
    refused: str = REFUSED,
) -> str:
    """A kernel that keeps ``depth`` requests in flight. What all threads agree on: %r4 requests made, %r5 responses
    read, %r6 whether one was a refusal. ``{issue}`` and ``{wait}`` in ``refused`` stand for the kernel's own.
    """
    together = CTA_BARRIER if cluster == 1 else CLUSTER_BARRIER
    slot = f"""
    and.b32 slot, COUNT, {depth - 1};
    shl.b32 response, slot, 4;
    mov.b32 bar, responses;
    add.s32 response, response, bar;
    shl.b32 slot, slot, 3;
    mov.b32 bar, full;
    add.s32 bar, bar, slot;"""
    issue = f"""
    {{ .reg .b32 slot, response, bar;
    {slot.replace("COUNT", "%r4")}
    @!%p0 bra SKIP;
    {arm if cluster > 1 else ""}
    @!%p2 bra SKIP;
    {REQUEST if cluster == 1 else MULTICAST_REQUEST}
    {arm if cluster == 1 else ""}
    SKIP:
    add.s32 %r4, %r4, 1; }}"""
    wait = f"""
    {{ .reg .b32 slot, response, bar, parity; .reg .pred done;
    shr.u32 parity, %r5, {depth.bit_length() - 1};
    and.b32 parity, parity, 1;
    {slot.replace("COUNT", "%r5")}
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [bar], parity;
    @!done bra WAIT;
    {read}
    {FENCE}
    add.s32 %r5, %r5, 1; }}"""
    return (
        HEADER.format(target=target)
        + f"""
    @!%p0 bra READY;
    {"".join(f"mbarrier.init.shared.b64 [full+{8 * i}], 1;" for i in range(depth))}
    fence.mbarrier_init.release.cluster;
    READY:
    {together}
    mov.b32 %r4, 0;
    mov.b32 %r5, 0;
    mov.b32 %r6, 0;
    {issue * depth}
    {OWN_TILE}
    PROCESS:
    {PROCESS}
    NEXT:
    setp.eq.u32 %p4, %r4, %r5;
    @%p4 bra DONE;
    {wait}
    {together if release is None else release}
    {query}
    {GRANTED_TILE}
    setp.ne.u32 %p6, %r6, 0;
    @%p6 bra PROCESS;
    {issue}
    bra.uni PROCESS;
    REFUSED:
    {refused.format(issue=issue, wait=wait)}
    DONE:
    {CLUSTER_BARRIER if cluster > 1 else ""}
    ret;
}}"""
    )
