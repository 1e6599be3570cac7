"""Which modifiers and operands of each instruction are accepted, and which are refused when they are executed."""

from __future__ import annotations

import pytest
from ptx_programs import WORDS, launch, source

from emugpu.emulator import Fault, Module, PtxSyntaxError

MMA = "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2"
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
CANCEL = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
WGMMA_D = "{" + ", ".join(f"%f{n}" for n in range(4)) + "}"
WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"

ACCEPTED = """
add.u16 %rs1, %rs2, %rs3;                       add.rn.f32 %r1, %r2, %r3;
add.s64 %rd1, %rd2, %rd3;                       sub.f64 %rd1, %rd2, %rd3;
mul.wide.s16 %r1, %rs2, %rs3;                   mul.hi.u64 %rd1, %rd2, %rd3;
mad.wide.u32 %rd1, %r2, %r3, %rd4;              mad.hi.s32 %r1, %r2, %r3, %r4;
fma.rn.f32 %r1, %r2, %r3, %r4;                  div.rn.f64 %rd1, %rd2, %rd3;
div.s32 %r1, %r2, %r3;                          rem.u64 %rd1, %rd2, %rd3;
min.f32 %r1, %r2, %r3, %r4;                     max.s64 %rd1, %rd2, %rd3;
neg.f64 %rd1, %rd2;                             abs.s16 %rs1, %rs2;
and.pred %p1, %p2, %p3;                         not.b16 %rs1, %rs2;
shl.b64 %rd1, %rd2, 3;                          shr.s16 %rs1, %rs2, %r3;
shf.l.wrap.b32 %r1, %r2, %r3, %r4;              shf.r.clamp.b32 %r1, %r2, %r3, 8;
lop3.b32 %r1, %r2, %r3, %r4, 0x80;              prmt.b32 %r1, %r2, %r3, 0x3210;
bfe.s64 %rd1, %rd2, 3, 4;                       bfi.b32 %r1, %r2, %r3, 4, 5;
popc.b64 %r1, %rd2;                             clz.b32 %r1, %r2;
brev.b64 %rd1, %rd2;                            setp.lt.and.s32 %p1, %r2, %r3, %p4;
setp.hs.u32 %p1|%p2, %r2, %r3;                  setp.neu.bf16 %p1, %rs2, %rs3;
selp.f64 %rd1, %rd2, %rd3, %p1;                 mov.pred %p1, %p2;
mov.f64 %rd1, 0d3FF0000000000000;               add.rn.f32 %r1, %r2, 0f3F800000;
mov.b64 {%r1, %r2}, %rd1;                       mov.b32 %r1, {%rs1, %rs2};
cvta.to.global.u64 %rd1, %rd2;                  cvta.shared::cluster.u64 %rd1, %rd2;
isspacep.param::entry %p1, %rd2;                 isspacep.shared::cluster %p1, %rd2;
mapa.shared::cluster.u32 %r1, %r2, 0;           mapa.u64 %rd1, %rd2, %r3;
getctarank.u64 %r1, %rd2;                       getctarank.shared::cluster.u32 %r1, %r2;
cvt.rn.bf16x2.f32 %r1, %r2, %r3;                cvt.rn.f16.f32 %rs1, %r2;
cvt.f32.bf16 %r1, %rs2;                         cvt.u16.s64 %rs1, %rd2;
cvt.rn.f64.s32 %rd1, %r2;                       cvt.rn.bf16.u32 %rs1, %r2;
cvt.rmi.s64.f32 %rd1, %r2;                      cvt.rpi.u32.f64 %r1, %rd2;
ld.volatile.global.v2.b64 {%rd1, %rd2}, [%rd3]; ld.relaxed.gpu.global.L1::no_allocate.b32 %r1, [%rd2];
st.release.sys.global.b8 [%rd1], %rs2;          st.shared::cluster.v4.b32 [%r1], {%r2, %r3, %r4, %r5};
atom.acq_rel.gpu.global.cas.b64 %rd1, [%rd2], %rd3, %rd4; red.relaxed.gpu.global.add.f32 [%rd1], %r2;
atom.shared.min.s32 %r1, [%r2], %r3;            atom.global.exch.b32 %r1, [%rd2], %r3;
shfl.sync.idx.b32 %r1|%p1, %r2, %r3, 31, -1;    vote.sync.uni.pred %p1, %p2, -1;
redux.sync.xor.b32 %r1, %r2, -1;                redux.sync.min.s32 %r1, %r2, -1;
activemask.b32 %r1;                             bar.warp.sync -1;
bar.cta.sync 0;                                 barrier.sync.aligned 1, 32;
bar.arrive 1, 64;                               barrier.cta.arrive.aligned 1, 64;
barrier.cluster.arrive.relaxed.aligned;         barrier.cluster.wait.acquire;
mbarrier.init.shared::cta.b64 [%r1], 1;         mbarrier.inval.b64 [%rd1];
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1]; mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], 8;
mbarrier.arrive_drop.shared.b64 %rd1, [%r1], 2; mbarrier.expect_tx.relaxed.cta.shared.b64 [%r1], 8;
mbarrier.complete_tx.shared::cluster.b64 [%r1], 8; mbarrier.test_wait.shared.b64 %p1, [%r1], %rd1;
mbarrier.try_wait.parity.acquire.cta.shared.b64 %p1, [%r1], 0, 100;
fence.acq_rel.cluster;                          fence.proxy.async.shared::cta;
fence.proxy.tensormap::generic.acquire.sys [%rd1], 128; fence.mbarrier_init.release.cluster;
membar.gl;                                      prefetch.global.L2 [%rd1];
prefetch.param.tensormap [%rd1];                prefetchu.L1 [%rd1];
discard.global.L2 [%rd1], 128;                  griddepcontrol.wait;
nanosleep.u32 20;                               pmevent.mask 3;
setmaxnreg.inc.sync.aligned.u32 24;             setmaxnreg.dec.sync.aligned.u32 256;
cp.async.bulk.commit_group;                     cp.async.bulk.wait_group.read 3;
LOAD.cta_group::2 [%r1], [%rd1, {%r2, %r3}], [%r4]; LOAD.multicast::cluster [%r1], [%rd1, {%r2, %r3}], [%r4], %rs1;
STORE [%rd1, {%r2, %r3}], [%r4];                STORE.L2::cache_hint [%rd1, {%r2, %r3}], [%r4], %rd2;
CANCEL.b128 [%r1], [%r2];                       CANCEL.multicast::cluster::all.b128 [%r1], [%r2];
clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r1, %q1;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2, %r3, _}, %q1;
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;
ld.shared.b128 %q1, [%r1];                      mov.b128 %q1, {%rd1, %rd2};
stmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 [%r1], {%r2, %r3};
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5];
elect.sync %r1|%p1, -1;
tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], 32;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;
tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
tcgen05.ld.sync.aligned.16x64b.x2.pack::16b.b32 {%r1, %r2}, [%r3];
tcgen05.st.sync.aligned.16x32bx2.x1.unpack::16b.b32 [%r1], 2, {%r2};
tcgen05.wait::ld.sync.aligned;                  tcgen05.wait::st.sync.aligned;
tcgen05.fence::before_thread_sync;              tcgen05.fence::after_thread_sync;
MMA, %p1;                                       MMA, {%r3, %r4, %r5, %r6}, 1;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%rd1];
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1], %rs1;
"""

REFUSED = """
add.u32;
add.b128 %q1, %q2, %q3;
add %r1, %r2, %r3;
mul.lo.cc.u32 %r1, %r2, %r3;
mad.lo.sat.s32 %r1, %r2, %r3, %r4;
div.full.s32 %r1, %r2, %r3;
div.f16 %rs1, %rs2, %rs3;
min.s32 %r1, %r2, %r3, %r4;
rem.sat.s32 %r1, %r2, %r3;
rem.f32 %r1, %r2, %r3;                          and.wrap.b32 %r1, %r2, %r3;
not.wrap.b32 %r1, %r2;                          shl.wrap.b32 %r1, %r2, %r3;
shr.sat.b32 %r1, %r2, %r3;                      shf.l.sat.b32 %r1, %r2, %r3, %r4;
lop3.or.b32 %r1, %r2, %r3, %r4, 1;
bfe.sat.u32 %r1, %r2, 3, 4;                     bfi.sat.b32 %r1, %r2, %r3, 4, 5;
popc.sat.b32 %r1, %r2;
setp.lt.s32 %p1, %r2, %r3, %p4;                 setp.lt.and.s32 %p1, %r2, %r3;
setp.ltu.s32 %p1, %r2, %r3;                     setp.lo.f32 %p1, %r2, %r3;
setp.eq.b128 %p1, %q2, %q3;                     selp.sat.b32 %r1, %r2, %r3, %p1;
mov.b128 %q1, {%r1, %r2, %r3, %r4};             mov.b128 {%r1, %r2, %r3, %r4}, %q1;
mov.sat.b32 %r1, %r2;                           cvta.to.generic.u64 %rd1, %rd2;
isspacep.everywhere %p1, %rd2;                  mapa.shared.u32 %r1, %r2, 0;
getctarank.u32 %r1, %r2;                        cvt.u32 %r1, %r2;
cvt.rn.bf16x2.f32 %r1, %r2;
cvt.rn.s32.f32 %r1, %r2;
cvt.u32.u16 %r1, %rs2, %rs3;
ld.global.noise.b32 %r1, [%rd1];
ld.global.v2.b32 %r1, [%rd1];
ld.global.b32 {%r1, %r2}, [%rd1];               ld.global.v2.b32 {%r1, %rd2}, [%rd3];
ld.global.pred %p1, [%rd1];                     st.global.noise.b32 [%rd1], %r1;
st.param.b32 [%rd1], %r1;
st.global.v4.b32 [%rd1], {%r1, %r2};            atom.global.noise.add.u32 %r1, [%rd2], %r3;
atom.global.b32 %r1, [%rd2], %r3;               atom.global.cas.b32 %r1, [%rd2], %r3;
atom.global.min.f32 %r1, [%rd2], %r3;           atom.global.add.bf16 %rs1, [%rd2], %rs3;
atom.param.add.u32 %r1, [%rd2], %r3;
atom.global.add.f16 %rs1, [%rd2], %rs3;         red.local.add.u32 [%rd1], %r2;
shfl.sync.sideways.b32 %r1, %r2, %r3, 31, -1;   shfl.idx.b32 %r1, %r2, %r3, 31, -1;
shfl.sync.idx.up.b32 %r1, %r2, %r3, 31, -1;
vote.sync.most.pred %p1, %p2, -1;               redux.sync.mul.u32 %r1, %r2, -1;
redux.sync.add.u64 %rd1, %rd2, -1;              elect.sync %r1, -1;
elect.sync.all %r1|%p1, -1;                     bar.warp.sync.aligned -1;
bar.sync.relaxed 0;                             bar.arrive.relaxed 0, 32;
barrier.cluster.arrive.acquire;
barrier.cluster.wait.release;                   mbarrier.init.shared::cluster.b64 [%r1], 1;
mbarrier.inval.shared::cluster.b64 [%r1];       mbarrier.init.shared.b32 [%r1], 1;
mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1];
mbarrier.arrive.shared.b64 [%r1], 1, 1;         mbarrier.expect_tx.weak.shared.b64 [%r1], 8;
mbarrier.complete_tx.weak.shared.b64 [%r1], 8;  mbarrier.try_wait.shared::cluster.b64 %p1, [%r1], %rd1;
mbarrier.test_wait.odd.shared.b64 %p1, [%r1], 0; mbarrier.try_wait.parity.shared.b32 %p1, [%r1], 0;
fence.relaxed.cta;                              fence.proxy.async.global [%rd1], 128;
fence.proxy.tensormap::generic.acquire.sys;     membar.cluster;
prefetch.shared.L2 [%rd1];                      prefetchu.L2 [%rd1];
discard.global.L1 [%rd1], 128;                  griddepcontrol.launch;
nanosleep.u64 %rd1;                             call L;
trap.now;                                       pmevent.all 3;
setmaxnreg.inc.sync.aligned.u32 16;             setmaxnreg.inc.sync.aligned.u32 264;
setmaxnreg.dec.sync.aligned.u32 36;             setmaxnreg.dec.sync.u32 40;
cp.async.bulk.commit_group.read;                cp.async.bulk.wait_group.write 0;
cp.async.bulk.tensor.6d.global.shared::cta.bulk_group [%rd1, {%r2, %r3}], [%r4];
cp.async.bulk.tensor.2d.shared::cluster.global.tile [%r1], [%rd1, {%r2, %r3}], [%r4];
LOAD [%r1], [%rd1, {%r2, %r3}];                 LOAD.multicast::cluster [%r1], [%rd1, {%r2, %r3}], [%r4];
LOAD [%r1], [%rd1], [%r4];                      LOAD.im2col [%r1], [%rd1, {%r2, %r3}], [%r4];
STORE.multicast::cluster [%rd1, {%r2, %r3}], [%r4]; STORE.cta_group::1 [%rd1, {%r2, %r3}], [%r4];
clusterlaunchcontrol.try_cancel.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];
clusterlaunchcontrol.try_cancel.async.shared::cta.b128 [%r1], [%r2];
CANCEL.multicast::cluster.b128 [%r1], [%r2];
clusterlaunchcontrol.query_cancel.is_canceled.sync.pred.b128 %p1, %q1;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b64.b128 %r1, %q1;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2, %r3}, %q1;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v2.b32.b128 {%r1, %r2, %r3, %r4}, %q1;
stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1], {%r2}; stmatrix.sync.aligned.m8n8.x1.shared.b8 [%r1], {%r2};
stmatrix.sync.aligned.m16n8.x1.shared.b16 [%r1], {%r2};
ldmatrix.sync.aligned.m8n8.x1.shared::cluster.b16 {%r1}, [%r5];
tcgen05.alloc.sync.aligned.shared::cta.b32 [%r1], 32; tcgen05.alloc.cta_group::1.cta_group::2.b32 [%r1], 32;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cluster.b32 [%r1], 32;
tcgen05.dealloc.sync.aligned.b32 %r1, 32;       tcgen05.dealloc.cta_group::1.relaxed.b32 %r1, 32;
tcgen05.relinquish_alloc_permit.cta_group::1.relaxed;
tcgen05.ld.sync.aligned.x2.b32 {%r1, %r2}, [%r3]; tcgen05.ld.sync.aligned.16x64b.b32 {%r1, %r2}, [%r3];
tcgen05.ld.sync.aligned.16x64b.x2.unpack::16b.b32 {%r1, %r2}, [%r3];
tcgen05.st.sync.aligned.16x64b.x2.pack::16b.b32 [%r1], {%r2, %r3};
tcgen05.ld.sync.aligned.16x64b.x2.b64 {%r1, %r2}, [%r3]; tcgen05.ld.sync.aligned.16x64b.x2.b32 {%r1, 5}, [%r3];
tcgen05.wait::ld.sync.aligned.relaxed;          tcgen05.wait::st.relaxed;
tcgen05.fence::before_thread_sync.relaxed;
tcgen05.mma.cta_group::1 [%r1], %rd1, %rd2, %r2, %p1;
tcgen05.mma.cta_group::1.kind::f16.ws [%r1], %rd1, %rd2, %r2, %p1;
MMA, {%r3, %r4}, %p1;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%rd1], %rs1;
tcgen05.commit.cta_group::1.multicast::cluster.mbarrier::arrive::one.b64 [%rd1];
tcgen05.commit.mbarrier::arrive::one.b64 [%rd1];
tcgen05.commit.cta_group::1.relaxed.b64 [%rd1];
"""

WGMMA_ACCEPTED = f"""
wgmma.fence.sync.aligned;                       wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 7;
{WGMMA} {WGMMA_D}, %rd1, %rd2, %p1, 1, -1, 0, 1;
{WGMMA} {WGMMA_D}, {{%r1, %r2, %r3, %r4}}, %rd2, %p1, 1, 1, 1;
"""
WGMMA_REFUSED = f"""
wgmma.fence.sync.relaxed;                       wgmma.commit_group.relaxed;
wgmma.wait_group.sync.aligned 8;                wgmma.wait_group.sync.relaxed 0;
wgmma.mma_async.sync.m64n8k16.f32.bf16.bf16 {WGMMA_D}, %rd1, %rd2, %p1, 1, 1, 0, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {WGMMA_D}, %rd1, %rd2, %p1, 1, 1, 0, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.f16 {WGMMA_D}, %rd1, %rd2, %p1, 1, 1, 0, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.tf32.tf32 {WGMMA_D}, %rd1, %rd2, %p1, 1, 1, 0, 0;
wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {{%f0, %f1, %f2, %f3, %f4, %f5}}, %rd1, %rd2, %p1, 1, 1, 0, 0;
wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {WGMMA_D}, %rd1, %rd2, %p1, 1, 1, 0, 0;
@%p1 {WGMMA} {WGMMA_D}, %rd1, %rd2, %p1, 1, 1, 0, 0;
{WGMMA} {{%f0, %f1, %f2, %f2}}, %rd1, %rd2, %p1, 1, 1, 0, 0;
{WGMMA} {WGMMA_D}, %rd1, %rd2, %p1, 1, 2, 0, 0;
{WGMMA} {WGMMA_D}, %rd1, %rd2, %p1, 0, 1, 0, 0;
{WGMMA} {WGMMA_D}, %rd1, %rd2, %p1, 1, 1, 0, 2;
{WGMMA} {WGMMA_D}, %rd1, %rd2, %p1, 1, 1, 0;
{WGMMA} {WGMMA_D}, {{%r1, %r2, %r3}}, %rd2, %p1, 1, 1, 1;
"""


def instructions(text: str) -> list[str]:
    for short, long in (("LOAD", LOAD), ("STORE", STORE), ("CANCEL", CANCEL), ("MMA", MMA)):
        text = text.replace(f"\n{short}", f"\n{long}").replace(f" {short}", f" {long}")
    return [f"{line.strip()};" for line in text.replace("\n", " ").split(";") if line.strip()]


def refused(instruction: str, target: str) -> bool:
    """Whether it stands in the translated program as one that is not implemented; what cannot be loaded is refused."""
    registers = ".reg .b128 %q<4>; .reg .b32 %f<8>;"
    text = source(f"{registers}\nL: {instruction}\nret;", WORDS, target=target)
    try:
        code = Module.from_text(text).code("kernel")
    except PtxSyntaxError:
        return True
    return "unsupported(" in code.source


@pytest.mark.parametrize(("text", "target"), [(ACCEPTED, "sm_100a"), (WGMMA_ACCEPTED, "sm_90a")])
def test_forms_of_the_isa_are_accepted(text, target):
    assert [i for i in instructions(text) if refused(i, target)] == []


@pytest.mark.parametrize(("text", "target"), [(REFUSED, "sm_100a"), (WGMMA_REFUSED, "sm_90a")])
def test_other_modifiers_and_operands_are_refused(text, target):
    assert [i for i in instructions(text) if not refused(i, target)] == []


def test_modifiers_of_branches_are_refused_too():
    assert refused("bra.diverged L;", "sm_100a")


def test_what_is_refused_stops_the_run_only_where_it_is_executed():
    never = "setp.eq.u32 %p1, %r0, 99; @%p1 vadd.s32.s32.s32 %r1, %r0, %r0; ret;"
    launch(never)
    with pytest.raises(Fault, match=r"vadd is not implemented: scalar video .*: @%p1 vadd.s32") as error:
        launch(never.replace("99", "7"))
    assert error.value.rule == "unsupported"


def test_an_unknown_instruction_writes_its_first_operand():
    """Where it is not executed that register is unwritten, as it would be of any other instruction."""
    body = "setp.eq.u32 %p1, %r0, 99; @!%p1 bra OVER; frobnicate.b32 %r5, %r0; OVER: add.u32 %r6, %r5, 1;"
    launch(body + "ret;")
    with pytest.raises(Fault, match="%r6, which comes from register %r5, which was never written in lanes 0xffffffff"):
        launch(body + "st.global.b32 [%rd0], %r6; ret;")
