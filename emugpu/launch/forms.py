"""Forms of instructions that compilers emit, by section of PTX ISA 9.1: what the coverage page tries out.

Registers are named by what they hold: %p predicates, %h 16 bits, %r 32 bits, %d 64 bits, %f f32, %e f64, %q 128 bits;
``{%r0..%r3}`` are four of them. `shared`, `global`, `constant` and `local` are variables in these spaces, `map` and
`number` parameters.
"""

from __future__ import annotations

import re

MODULE = """.version 9.0
.target {target}
.address_size 64
.global .align 128 .b8 global[256];
.const .align 16 .b8 constant[256];
.shared .align 1024 .b8 shared[4096];
.func callee() {{ ret; }}
.visible .entry kernel(.param .align 64 .b8 map[128], .param .u64 number)
{{
.reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<136>; .reg .b64 %d<32>; .reg .f32 %f<136>; .reg .f64 %e<8>;
.reg .b128 %q<4>; .local .align 16 .b8 local[64];
{statement}
END: ret;
}}
"""
TARGETS = ("sm_90a", "sm_100a")

_SECTIONS = {
    "9.7.1 Integer arithmetic": """
add.s32 %r0, %r1, %r2;  add.sat.s32 %r0, %r1, %r2;  add.s64 %d0, %d1, %d2;  add.u16 %h0, %h1, %h2;
add.u16x2 %r0, %r1, %r2;  sub.s32 %r0, %r1, %r2;  sub.s64 %d0, %d1, %d2;  mul.lo.s32 %r0, %r1, %r2;
mul.hi.u32 %r0, %r1, %r2;  mul.wide.s32 %d0, %r1, %r2;  mul.wide.u16 %r0, %h1, %h2;  mul.lo.s64 %d0, %d1, %d2;
mul.hi.u64 %d0, %d1, %d2;  mad.lo.s32 %r0, %r1, %r2, %r3;  mad.wide.u32 %d0, %r1, %r2, %d3;
mad.lo.s64 %d0, %d1, %d2, %d3;  mad.hi.u32 %r0, %r1, %r2, %r3;  mul24.lo.s32 %r0, %r1, %r2;
mad24.lo.u32 %r0, %r1, %r2, %r3;  sad.u32 %r0, %r1, %r2, %r3;  div.s32 %r0, %r1, %r2;  div.u64 %d0, %d1, %d2;
rem.u32 %r0, %r1, %r2;  rem.s64 %d0, %d1, %d2;  abs.s32 %r0, %r1;  neg.s64 %d0, %d1;  min.s32 %r0, %r1, %r2;
max.u64 %d0, %d1, %d2;  min.relu.s32 %r0, %r1, %r2;  max.s16x2 %r0, %r1, %r2;  popc.b32 %r0, %r1;
popc.b64 %r0, %d1;  clz.b32 %r0, %r1;  bfind.u32 %r0, %r1;  bfind.shiftamt.s64 %r0, %d1;
fns.b32 %r0, %r1, %r2, %r3;  brev.b32 %r0, %r1;  brev.b64 %d0, %d1;  bfe.u32 %r0, %r1, %r2, %r3;
bfe.s64 %d0, %d1, %r2, %r3;  bfi.b32 %r0, %r1, %r2, %r3, %r4;  szext.wrap.s32 %r0, %r1, %r2;
bmsk.clamp.b32 %r0, %r1, %r2;  dp4a.u32.s32 %r0, %r1, %r2, %r3;  dp2a.lo.u32.u32 %r0, %r1, %r2, %r3;
""",
    "9.7.2 Extended-precision integer arithmetic": """
add.cc.u32 %r0, %r1, %r2;  addc.cc.u32 %r0, %r1, %r2;  addc.u64 %d0, %d1, %d2;  sub.cc.u32 %r0, %r1, %r2;
subc.u32 %r0, %r1, %r2;  mad.lo.cc.u32 %r0, %r1, %r2, %r3;  madc.hi.u32 %r0, %r1, %r2, %r3;
""",
    "9.7.3 Floating point": """
testp.finite.f32 %p0, %f1;  copysign.f32 %f0, %f1, %f2;  add.f32 %f0, %f1, %f2;
add.rn.ftz.sat.f32 %f0, %f1, %f2;  add.rz.f32 %f0, %f1, %f2;  add.rn.f32x2 %d0, %d1, %d2;
add.f64 %e0, %e1, %e2;  sub.f32 %f0, %f1, %f2;  mul.f32 %f0, %f1, %f2;  mul.rn.f32x2 %d0, %d1, %d2;
mul.f64 %e0, %e1, %e2;  fma.rn.f32 %f0, %f1, %f2, %f3;  fma.rn.ftz.f32 %f0, %f1, %f2, %f3;
fma.rn.f32x2 %d0, %d1, %d2, %d3;  fma.rn.f64 %e0, %e1, %e2, %e3;  mad.rn.f32 %f0, %f1, %f2, %f3;
div.approx.f32 %f0, %f1, %f2;  div.full.f32 %f0, %f1, %f2;  div.rn.f32 %f0, %f1, %f2;  div.rn.f64 %e0, %e1, %e2;
abs.f32 %f0, %f1;  neg.f32 %f0, %f1;  neg.f64 %e0, %e1;  min.f32 %f0, %f1, %f2;  max.NaN.f32 %f0, %f1, %f2;
max.f32 %f0, %f1, %f2, %f3;  max.ftz.f32 %f0, %f1, %f2;  min.f64 %e0, %e1, %e2;  rcp.approx.f32 %f0, %f1;
rcp.rn.f32 %f0, %f1;  rcp.approx.ftz.f64 %e0, %e1;  sqrt.approx.f32 %f0, %f1;  sqrt.rn.f32 %f0, %f1;
sqrt.rn.f64 %e0, %e1;  rsqrt.approx.f32 %f0, %f1;  rsqrt.approx.f64 %e0, %e1;  sin.approx.f32 %f0, %f1;
cos.approx.f32 %f0, %f1;  lg2.approx.f32 %f0, %f1;  ex2.approx.f32 %f0, %f1;  ex2.approx.ftz.f32 %f0, %f1;
tanh.approx.f32 %f0, %f1;
""",
    "9.7.4 Half precision": """
add.f16 %h0, %h1, %h2;  add.f16x2 %r0, %r1, %r2;  add.rn.bf16x2 %r0, %r1, %r2;  sub.f16x2 %r0, %r1, %r2;
mul.f16x2 %r0, %r1, %r2;  mul.rn.bf16 %h0, %h1, %h2;  fma.rn.f16x2 %r0, %r1, %r2, %r3;
fma.rn.relu.bf16x2 %r0, %r1, %r2, %r3;  neg.f16x2 %r0, %r1;  abs.bf16x2 %r0, %r1;  min.f16x2 %r0, %r1, %r2;
max.NaN.bf16x2 %r0, %r1, %r2;  tanh.approx.f16x2 %r0, %r1;  ex2.approx.f16x2 %r0, %r1;
ex2.approx.ftz.bf16x2 %r0, %r1;
""",
    "9.7.5 Mixed precision": """
add.rn.f32.bf16 %f0, %h1, %f2;  sub.rn.f32.f16 %f0, %h1, %f2;  fma.rn.f32.bf16 %f0, %h1, %h2, %f3;
""",
    "9.7.6, 9.7.7 Comparison and selection": """
set.lt.u32.s32 %r0, %r1, %r2;  set.gt.f16x2.f16x2 %r0, %r1, %r2;  setp.eq.s32 %p0, %r1, %r2;
setp.lt.and.s32 %p0, %r1, %r2, %p3;  setp.gt.f32 %p0|%p1, %f1, %f2;  setp.ltu.f32 %p0, %f1, %f2;
setp.ne.f64 %p0, %e1, %e2;  setp.lt.f16x2 %p0|%p1, %r1, %r2;  setp.hi.u64 %p0, %d1, %d2;
selp.b32 %r0, %r1, %r2, %p0;  selp.f64 %e0, %e1, %e2, %p0;  slct.s32.f32 %r0, %r1, %r2, %f3;
""",
    "9.7.8 Logic and shift": """
and.b32 %r0, %r1, %r2;  and.pred %p0, %p1, %p2;  or.b64 %d0, %d1, %d2;  xor.b16 %h0, %h1, %h2;
not.b32 %r0, %r1;  cnot.b32 %r0, %r1;  lop3.b32 %r0, %r1, %r2, %r3, 0x6a;
lop3.or.b32 %r0|%p0, %r1, %r2, %r3, 0x6a, %p1;  shf.l.wrap.b32 %r0, %r1, %r2, %r3;
shf.r.clamp.b32 %r0, %r1, %r2, %r3;  shl.b32 %r0, %r1, %r2;  shr.u32 %r0, %r1, %r2;  shr.s64 %d0, %d1, %r2;
""",
    "9.7.9 Moves, loads and stores": """
mov.b32 %r0, %r1;  mov.b64 %d0, {%r0, %r1};  mov.b32 {%h0, %h1}, %r0;  mov.b128 %q0, {%d0, %d1};
mov.u64 %d0, global;  mov.u32 %r0, shared;  mov.f32 %f0, 0f3F800000;  mov.f32 %f0, 1.5;
shfl.sync.idx.b32 %r0|%p0, %r1, %r2, 31, -1;  shfl.sync.bfly.b32 %r0, %r1, 1, 31, -1;
prmt.b32 %r0, %r1, %r2, 0x3210;  prmt.b32.f4e %r0, %r1, %r2, %r3;  ld.global.b32 %r0, [%d1];
ld.global.nc.v4.f32 {%f0..%f3}, [%d1];  ld.v2.b64 {%d2, %d3}, [%d1];
ld.global.L1::no_allocate.L2::128B.v4.b32 {%r0..%r3}, [%d1];  ld.acquire.gpu.global.b32 %r0, [%d1];
ld.volatile.global.b32 %r0, [%d1];  ld.shared.v4.b32 {%r0..%r3}, [%r4];  ld.shared::cluster.b32 %r0, [%r1];
ld.shared.b128 %q0, [%r1];  ld.param.u64 %d0, [number];  ld.const.b32 %r0, [constant+4];
ld.local.b32 %r0, [local];  ld.u8 %h0, [%d1];  ldu.global.b32 %r0, [%d1];  st.global.b32 [%d1], %r0;
st.global.v4.b32 [%d1], {%r0..%r3};  st.shared.v2.b64 [%r1], {%d0, %d1};  st.release.gpu.global.b32 [%d1], %r0;
st.b32 [%d1], %r0;  st.local.b32 [local], %r0;  st.shared::cluster.b32 [%r1], %r0;
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r0], %r1, [%r2];  st.bulk.shared::cta [%r0], %d1, 0;
multimem.ld_reduce.global.add.f32 %f0, [%d1];  multimem.red.global.add.f32 [%d1], %f0;
prefetch.global.L2 [%d1];  prefetch.tensormap [%d1];  applypriority.global.L2::evict_normal [%d1], 128;
discard.global.L2 [%d1], 128;  createpolicy.fractional.L2::evict_first.b64 %d0, 1.0;  isspacep.shared %p0, %d1;
cvta.to.global.u64 %d0, %d1;  cvta.shared.u64 %d0, %d1;  cvta.param.u64 %d0, %d1;
mapa.shared::cluster.u32 %r0, %r1, %r2;  mapa.u64 %d0, %d1, %r2;  getctarank.shared::cluster.u32 %r0, %r1;
""",
    "9.7.9.21 Conversions": """
cvt.u32.u16 %r0, %h1;  cvt.s64.s32 %d0, %r1;  cvt.u16.u32 %h0, %r1;  cvt.sat.s8.s32 %r0, %r1;
cvt.rn.f32.s32 %f0, %r1;  cvt.rn.f32.u64 %f0, %d1;  cvt.rzi.s32.f32 %r0, %f1;  cvt.rni.f32.f32 %f0, %f1;
cvt.rmi.ftz.f32.f32 %f0, %f1;  cvt.f32.f16 %f0, %h1;  cvt.f32.bf16 %f0, %h1;  cvt.rn.f16.f32 %h0, %f1;
cvt.rn.bf16.f32 %h0, %f1;  cvt.rn.f16x2.f32 %r0, %f1, %f2;  cvt.rn.bf16x2.f32 %r0, %f1, %f2;
cvt.rn.relu.bf16x2.f32 %r0, %f1, %f2;  cvt.rna.tf32.f32 %r0, %f1;  cvt.rn.satfinite.e4m3x2.f32 %h0, %f1, %f2;
cvt.rn.satfinite.e5m2x2.f32 %h0, %f1, %f2;  cvt.rn.f16x2.e4m3x2 %r0, %h1;
cvt.rn.satfinite.e4m3x2.f16x2 %h0, %r1;  cvt.rz.satfinite.ue8m0x2.f32 %h0, %f1, %f2;  cvt.f64.f32 %e0, %f1;
cvt.rn.f32.f64 %f0, %e1;  cvt.rzi.s64.f64 %d0, %e1;  cvt.rn.f64.s32 %e0, %r1;
cvt.pack.sat.s16.s32 %r0, %r1, %r2;
""",
    "9.7.9.25 Asynchronous copies": """
cp.async.ca.shared.global [%r0], [%d1], 4;  cp.async.cg.shared.global [%r0], [%d1], 16;
cp.async.cg.shared.global.L2::128B [%r0], [%d1], 16, %r2;  cp.async.commit_group;  cp.async.wait_group 1;
cp.async.wait_all;  cp.async.mbarrier.arrive.noinc.shared.b64 [%r0];
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r0], [%d1], %r2, [%r3];
cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], %r2;
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r0], [%r1], %r2, [%r3];
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d0], [%r1], %r2;
cp.async.bulk.prefetch.L2.global [%d1], %r2;  cp.async.bulk.commit_group;  cp.async.bulk.wait_group 0;
cp.async.bulk.wait_group.read 0;
""",
    "9.7.9.27 Tensor copies": """
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r0], [%d1, {%r1, %r2}], [%r3];
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%d1,
  {%r1, %r2}], [%r3], %h0;
cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%r0], [%d1,
  {%r1..%r5}], [%r6], %d2;
cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r0], [%d1, {%r1,
  %r2}], [%r3];  cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {%r1, %r2}], [%r0];
cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%d1, {%r1, %r2}], [%r0];
cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d1, {%r1, %r2}];
cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r0], [%d1, {%r1..%r4}], [%r5],
  {%h0, %h1};
cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r0], [%d1, {%r1..%r5}],
  [%r6];  tensormap.replace.tile.global_address.global.b1024.b64 [%d0], %d1;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d0], [%r1], 128;
""",
    "9.7.10, 9.7.11 Textures and surfaces": """
tex.2d.v4.f32.f32 {%f0..%f3}, [%d1, {%f4, %f5}];  suld.b.2d.b32.trap %r0, [%d1, {%r1, %r2}];
""",
    "9.7.12 Control flow": """
@%p0 bra END;  @!%p0 bra.uni END;  call callee;  ret;  exit;  @%p0 exit;
""",
    "9.7.13 Synchronisation": """
bar.sync 0;  bar.sync 1, 64;  bar.arrive 1, 64;  bar.red.popc.u32 %r0, 0, %p1;  barrier.cta.sync 1, 64;
barrier.cluster.arrive.release.aligned;  barrier.cluster.wait.acquire.aligned;  bar.warp.sync -1;  membar.gl;
fence.acq_rel.gpu;  fence.sc.cluster;  fence.proxy.async;  fence.proxy.async.shared::cta;
fence.mbarrier_init.release.cluster;  fence.proxy.tensormap::generic.acquire.gpu [%d0], 128;
atom.global.add.u32 %r0, [%d1], %r2;  atom.global.add.f32 %f0, [%d1], %f2;  atom.add.f64 %e0, [%d1], %e2;
atom.global.cas.b32 %r0, [%d1], %r2, %r3;  atom.global.cas.b128 %q0, [%d1], %q2, %q3;
atom.shared.max.s32 %r0, [%r1], %r2;  atom.acq_rel.gpu.global.exch.b64 %d0, [%d1], %d2;
atom.global.add.noftz.f16x2 %r0, [%d1], %r2;  red.global.add.u32 [%d1], %r2;
red.global.add.noftz.bf16x2 [%d1], %r2;  red.global.v4.f32.add [%d1], {%f0..%f3};
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r0], %r1, [%r2];
vote.sync.ballot.b32 %r0, %p1, -1;  vote.sync.any.pred %p0, %p1, -1;  match.any.sync.b32 %r0, %r1, -1;
match.all.sync.b64 %r0|%p0, %d1, -1;  activemask.b32 %r0;  redux.sync.add.s32 %r0, %r1, -1;
redux.sync.max.f32 %f0, %f1, -1;  griddepcontrol.wait;  griddepcontrol.launch_dependents;
elect.sync %r0|%p0, -1;
""",
    "9.7.13.15 mbarrier": """
mbarrier.init.shared::cta.b64 [%r0], 1;  mbarrier.inval.shared.b64 [%r0];  mbarrier.init.b64 [%d0], 1;
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0], 64;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r0], 64;  mbarrier.arrive.shared::cta.b64 %d0, [%r0];
mbarrier.arrive.shared::cta.b64 _, [%r0], 2;  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r0];
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 64;  mbarrier.arrive_drop.shared.b64 %d0, [%r0];
mbarrier.arrive.noComplete.shared.b64 %d0, [%r0], 1;  mbarrier.test_wait.shared.b64 %p0, [%r0], %d1;
mbarrier.test_wait.parity.shared.b64 %p0, [%r0], %r1;  mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r0], %r1;
mbarrier.try_wait.shared.b64 %p0, [%r0], %d1, %r2;  mbarrier.pending_count.b64 %r0, %d1;
""",
    "9.7.13.17 Cluster launch control": """
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r0], [%r1];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p0, %q0;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r0, %r1, %r2, _}, %q0;
""",
    "9.7.14 Warp-level matrices": """
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0..%r3}, [%r4];
ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r0, %r1}, [%r4];
ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%r4];
ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {%r0}, [%r4];
stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r4], {%r0};
stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r4], {%r0..%r3};
stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r4], {%r0, %r1};
movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0..%f3}, {%r0..%r3}, {%r0, %r1}, {%f0..%f3};
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0..%f3}, {%r0..%r3}, {%r0, %r1}, {%f0..%f3};
mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r0, %r1}, {%r0..%r3}, {%r0, %r1}, {%r0, %r1};
mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0..%f3}, {%r0, %r1}, {%r0}, {%f0..%f3};
mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0..%f3}, {%r0..%r3}, {%r0, %r1}, {%f0..%f3};
mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0..%f3}, {%r0..%r3}, {%r0, %r1}, {%f0..%f3};
mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r0..%r3}, {%r0..%r3}, {%r0, %r1}, {%r0..%r3};
mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%e0, %e1}, {%e2}, {%e3}, {%e0, %e1};
mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%f0..%f3}, {%r0..%r3}, {%r4..%r7},
  {%f0..%f3}, %r8, 0;
mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {%r0..%r3}, {%r0..%r3}, {%r4..%r7},
  {%r0..%r3}, %r8, 0;
wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r0..%r7}, [%r9];
""",
    "9.7.15 Warpgroup matrices (wgmma)": """
wgmma.fence.sync.aligned;  wgmma.commit_group.sync.aligned;  wgmma.wait_group.sync.aligned 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0..%f3}, %d0, %d1, %p0, 1, 1, 0, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0..%f3}, %d0, %d1, %p0, 1, 1, 0, 1;
wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r0, %r1}, %d0, %d1, %p0, 1, 1, 0, 0;
wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 {%f0..%f3}, %d0, %d1, %p0, 1, 1;
wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%f0..%f3}, %d0, %d1, %p0, 1, 1;
wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%r0..%r3}, %d0, %d1, %p0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0..%f3}, {%r0..%r3}, %d1, %p0, 1, 1, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0..%f3}, %d0, %d1, %p0, -1, 1, 0, 0;
wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%f0..%f3}, %d0, %d1, %r8, 0, %p0, 1, 1, 0, 0;
wgmma.mma_async.sp.sync.aligned.m64n8k64.s32.s8.s8 {%r0..%r3}, {%r4..%r7}, %d1, %r8, 0, %p0;
""",
    "9.7.16 Tensor memory (tcgen05)": """
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 32;
tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r0, 32;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r0}, [%r135];  tcgen05.ld.sync.aligned.16x64b.x1.b32 {%r0}, [%r135];
tcgen05.ld.sync.aligned.16x128b.x1.b32 {%r0, %r1}, [%r135];
tcgen05.ld.sync.aligned.16x256b.x1.b32 {%r0..%r3}, [%r135];
tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%r0}, [%r135], 2;
tcgen05.ld.sync.aligned.32x32b.x128.b32 {%r0..%r127}, [%r135];
tcgen05.ld.sync.aligned.32x32b.x1.pack::16b.b32 {%r0}, [%r135];
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r135], {%r0, %r1};
tcgen05.st.sync.aligned.16x256b.x1.b32 [%r135], {%r0..%r3};  tcgen05.wait::ld.sync.aligned;
tcgen05.wait::st.sync.aligned;  tcgen05.cp.cta_group::1.128x256b [%r0], %d1;
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r0], %d1;  tcgen05.shift.cta_group::1.down [%r0];
tcgen05.mma.cta_group::1.kind::f16 [%r0], %d1, %d2, %r3, %p0;
tcgen05.mma.cta_group::2.kind::f16 [%r0], %d1, %d2, %r3, %p0;
tcgen05.mma.cta_group::1.kind::tf32 [%r0], %d1, %d2, %r3, %p0;
tcgen05.mma.cta_group::2.kind::tf32 [%r0], %d1, %d2, %r3, %p0;
tcgen05.mma.cta_group::1.kind::f8f6f4 [%r0], %d1, %d2, %r3, %p0;
tcgen05.mma.cta_group::2.kind::f8f6f4 [%r0], %d1, %d2, %r3, %p0;
tcgen05.mma.cta_group::1.kind::i8 [%r0], %d1, %d2, %r3, %p0;
tcgen05.mma.cta_group::2.kind::i8 [%r0], %d1, %d2, %r3, %p0;
tcgen05.mma.cta_group::1.kind::f16 [%r0], [%r1], %d2, %r3, %p0;
tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32 [%r0], %d1, %d2, %r3, [%r4], [%r5], %p0;
tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%r0], %d1, %d2, %r3, [%r4], [%r5], %p0;
tcgen05.mma.ws.cta_group::1.kind::f16 [%r0], %d1, %d2, %r3, %p0;
tcgen05.mma.sp.cta_group::1.kind::f16 [%r0], %d1, %d2, [%r6], %r3, %p0;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r0];
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r0], %h1;
tcgen05.fence::before_thread_sync;  tcgen05.fence::after_thread_sync;
""",
    "9.7.17 Stack": """
alloca.u64 %d0, %d1, 16;  stacksave.u64 %d0;  stackrestore.u64 %d0;
""",
    "9.7.19 Miscellaneous": """
brkpt;  trap;  nanosleep.u32 64;  pmevent 1;  setmaxnreg.inc.sync.aligned.u32 232;
setmaxnreg.dec.sync.aligned.u32 40;
""",
    "10 Special registers": """
mov.u32 %r0, %tid.x;  mov.u32 %r0, %ntid.y;  mov.u32 %r0, %ctaid.z;  mov.u32 %r0, %nctaid.x;
mov.u32 %r0, %laneid;  mov.u32 %r0, %warpid;  mov.u32 %r0, %smid;  mov.u32 %r0, %lanemask_lt;
mov.u32 %r0, %cluster_ctarank;  mov.u32 %r0, %cluster_nctarank;  mov.u32 %r0, %clusterid.x;
mov.u32 %r0, %cluster_ctaid.x;  mov.u32 %r0, %clock;  mov.u64 %d0, %clock64;  mov.u64 %d0, %globaltimer;
mov.u32 %r0, %dynamic_smem_size;  mov.u32 %r0, %envreg0;  mov.u32 %r0, WARP_SZ;
""",
}


def _registers(found: re.Match[str]) -> str:
    kind, first, last = found[1], int(found[2]), int(found[3])
    return ", ".join(f"%{kind}{n}" for n in range(first, last + 1))


def _statements(text: str) -> tuple[str, ...]:
    whole = re.sub(r"%(\w)(\d+)\.\.%\w(\d+)", _registers, " ".join(text.split()))
    return tuple(f"{statement.strip()};" for statement in whole.split(";") if statement.strip())


FORMS = {section: _statements(text) for section, text in _SECTIONS.items()}
