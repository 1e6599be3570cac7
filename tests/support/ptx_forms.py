"""The forms of PTX instructions that compilers and kernel writers use, by family: all are implemented but the last.
The page on what is implemented is made of them (`emugpu.launch.coverage`).

Registers are named by what they hold: %p predicates, %h 16 bits, %r 32 bits, %d 64 bits, %f f32, %e f64, %q 128 bits.
``[%r1]`` is a shared address, ``[%d1]`` a global one.
"""

# ruff: noqa: E501

from __future__ import annotations

from form_patterns import each, several
from matrix_forms import REDUCED_LOADS, mma, mma_of_kinds, tcgen05, wgmma

from emugpu.launch.coverage import MODULE

BOTH, SM90, SM100, SM120 = ("sm_90a", "sm_100a"), ("sm_90a",), ("sm_100a",), ("sm_120a", "sm_121a")


def module(lines: list[str], target: str, version: str = "9.0") -> str:
    """A module with one kernel that has the lines as its body."""
    return MODULE.format(version=version, target=target, body="\n".join(lines))


_INTEGER = [
    *each("add{s}.s32 %r0, %r1, %r2;", s="- .sat"),
    *each("sub{s}.s32 %r0, %r1, %r2;", s="- .sat"),
    *each("{op}.{t} {d}0, {d}1, {d}2;", op="add sub min max", t="u64 s64", d="%d"),
    *each("{op}.{t} %h0, %h1, %h2;", op="add sub min max rem div", t="u16 s16"),
    *each("{op}.u16x2 %r0, %r1, %r2;", op="add min max"),
    *each("{op}.s16x2 %r0, %r1, %r2;", op="add min max"),
    *each("{op}{relu}.s16x2 %r0, %r1, %r2;", op="min max", relu=".relu"),
    *each("{op}.relu.s32 %r0, %r1, %r2;", op="min max"),
    *each("add.cc.{t} %r0, %r1, %r2;", t="u32 s32"),
    *each("addc{cc}.u32 %r0, %r1, %r2;", cc="- .cc"),
    *each("subc{cc}.u32 %r0, %r1, %r2;", cc="- .cc"),
    "sub.cc.u32 %r0, %r1, %r2;", "add.cc.u64 %d0, %d1, %d2;", "addc.u64 %d0, %d1, %d2;", "sub.cc.s64 %d0, %d1, %d2;",
    *each("mad{c}.{h}{cc}.u32 %r0, %r1, %r2, %r3;", c="- c", h="lo hi", cc="- .cc"),
    "mad.lo.cc.u64 %d0, %d1, %d2, %d3;", "madc.hi.u64 %d0, %d1, %d2, %d3;", "mad.hi.sat.s32 %r0, %r1, %r2, %r3;",
    *each("{op}24.{h}.{t} %r0, %r1, %r2{c};", op="mul", h="lo hi", t="u32 s32", c="-"),
    *each("mad24.{h}.{t} %r0, %r1, %r2, %r3;", h="lo hi", t="u32 s32"),
    "mad24.hi.sat.s32 %r0, %r1, %r2, %r3;",
    *each("sad.{t} %r0, %r1, %r2, %r3;", t="u32 s32"), "sad.u64 %d0, %d1, %d2, %d3;", "sad.s16 %h0, %h1, %h2, %h3;",
    "abs.s16 %h0, %h1;", "abs.s64 %d0, %d1;", "neg.s16 %h0, %h1;",
    *each("bfind{s}.{t} %r0, %r1;", s="- .shiftamt", t="u32 s32"),
    *each("bfind{s}.{t} %r0, %d1;", s="- .shiftamt", t="u64 s64"),
    "fns.b32 %r0, %r1, %r2, %r3;", "cnot.b32 %r0, %r1;", "cnot.b64 %d0, %d1;", "cnot.b16 %h0, %h1;",
    *each("szext.{m}.{t} %r0, %r1, %r2;", m="clamp wrap", t="u32 s32"),
    *each("bmsk.{m}.b32 %r0, %r1, %r2;", m="clamp wrap"),
    *each("dp4a.{a}.{b} %r0, %r1, %r2, %r3;", a="u32 s32", b="u32 s32"),
    *each("dp2a.{h}.{a}.{b} %r0, %r1, %r2, %r3;", h="lo hi", a="u32 s32", b="u32 s32"),
    *each("prmt.b32{m} %r0, %r1, %r2, %r3;", m="- .f4e .b4e .rc8 .ecl .ecr .rc16"),
    *each("slct.{t}.s32 {r}0, {r}1, {r}2, %r3;", t="b32 u32 s32", r="%r"),
    "slct.f32.f32 %f0, %f1, %f2, %f3;", "slct.ftz.f32.f32 %f0, %f1, %f2, %f3;", "slct.b64.s32 %d0, %d1, %d2, %r3;",
    "slct.f64.f32 %e0, %e1, %e2, %f3;", "slct.b16.s32 %h0, %h1, %h2, %r3;",
    *each("set.{c}.{d}.s32 %r0, %r1, %r2;", c="eq lt gt", d="u32 s32"),
    "set.lt.f32.f32 %f0, %f1, %f2;", "set.gtu.ftz.u32.f32 %r0, %f1, %f2;", "set.eq.and.u32.s32 %r0, %r1, %r2, %p1;",
    "set.lt.f16.f16 %h0, %h1, %h2;", "set.lt.f16x2.f16x2 %r0, %r1, %r2;", "set.ne.u32.u64 %r0, %d1, %d2;",
    "set.ge.bf16x2.bf16x2 %r0, %r1, %r2;", "set.ge.u16.bf16 %h0, %h1, %h2;",
    *each("setp.{c}.and.s32 %p0|%p1, %r0, %r1, %p2;", c="eq lt"),
    "setp.lt.or.u16 %p0, %h0, %h1, !%p2;", "setp.lt.ftz.f32 %p0, %f0, %f1;", "setp.gt.f64 %p0, %e0, %e1;",
    "setp.lt.f16x2 %p0|%p1, %r0, %r1;", "setp.lt.ftz.f16 %p0, %h0, %h1;", "setp.neu.bf16x2 %p0|%p1, %r0, %r1;",
    "setp.eq.b16 %p0, %h0, %h1;", "selp.f64 %e0, %e1, %e2, %p0;", "selp.b16 %h0, %h1, %h2, %p0;",
    *each("shf.{d}.{m}.b32 %r0, %r1, %r2, %r3;", d="l r", m="clamp wrap"),
    "lop3.b32 %r0, %r1, %r2, %r3, 0x6a;", "lop3.or.b32 %r0|%p0, %r1, %r2, %r3, 0x6a, %p1;",
    "lop3.and.b32 %r0|%p0, %r1, %r2, %r3, 0x6a, %p1;",
    "shl.b16 %h0, %h1, %r2;", "shr.s16 %h0, %h1, 3;", "popc.b64 %r0, %d1;", "clz.b64 %r0, %d1;", "brev.b64 %d0, %d1;",
    "mul.hi.s64 %d0, %d1, %d2;", "mul.wide.s16 %r0, %h1, %h2;", "mad.wide.u16 %r0, %h1, %h2, %r3;",
    "mov.b32 {%h0, %h1}, %r0;", "mov.b128 %q0, {%d0, %d1};", "mov.b64 {%r0, %r1}, %d0;",
    "mov.b64 {%h0, %h1, %h2, %h3}, %d0;", "mov.pred %p0, %p1;", "mov.f64 %e0, 0d3FF0000000000000;",
    "mov.u32 %r0, WARP_SZ;", "mov.b32 %r0, {%h0, %h1};", "mov.f32 %f0, 0f3F800000;", "mov.f64 %e0, 1.5;",
]  # fmt: skip

_INTEGER_93 = [*each("clmad.{h}.u64 %d0, %d1, %d2, {c};", h="lo hi", c="%d3 0")]
_INTEGER_120 = [
    *each("{op}{s}.{t} %r0, %r1, %r2;", op="add sub", s="- .sat", t="u8x4 s8x4"),
    *each("{op}.{t} %r0, %r1, %r2;", op="min max", t="u8x4 s8x4 relu.s8x4"),
    *each("add.sat.{t} %r0, %r1, %r2;", t="u32 u16x2 s16x2"),
    "neg.s8x4 %r0, %r1;",
]

_HALF = [
    *each("{op}{rn}{ftz}{sat}.f16 %h0, %h1, %h2;", op="add sub mul", rn="- .rn", ftz="- .ftz", sat="- .sat"),
    *each("{op}{rn}.f16x2 %r0, %r1, %r2;", op="add sub mul", rn="- .rn .ftz .sat"),
    *each("{op}{rn}.bf16 %h0, %h1, %h2;", op="add sub mul", rn="- .rn"),
    *each("{op}{rn}.bf16x2 %r0, %r1, %r2;", op="add sub mul", rn="- .rn"),
    *each("fma.rn{m}.f16 %h0, %h1, %h2, %h3;", m="- .ftz .sat .relu .ftz.relu"),
    *each("fma.rn{m}.f16x2 %r0, %r1, %r2, %r3;", m="- .ftz .sat .relu"),
    *each("fma.rn{m}.bf16 %h0, %h1, %h2, %h3;", m="- .relu"),
    *each("fma.rn{m}.bf16x2 %r0, %r1, %r2, %r3;", m="- .relu"),
    *each("{op}{m}.f16 %h0, %h1, %h2;", op="min max", m="- .ftz .NaN .xorsign.abs .NaN.xorsign.abs"),
    *each("{op}{m}.bf16x2 %r0, %r1, %r2;", op="min max", m="- .NaN .xorsign.abs"),
    *each("{op}{m}.f16x2 %r0, %r1, %r2;", op="min max", m="- .ftz.NaN"),
    *each("{op}.bf16 %h0, %h1, %h2;", op="min max"),
    *each("{op}.{t} %h0, %h1;", op="neg abs", t="f16 bf16 ftz.f16"),
    *each("{op}.{t} %r0, %r1;", op="neg abs", t="f16x2 bf16x2"),
    *each("{op}.approx.{t} %h0, %h1;", op="ex2 tanh", t="f16"),
    "ex2.approx.ftz.bf16 %h0, %h1;",
    "ex2.approx.ftz.bf16x2 %r0, %r1;",
    "ex2.approx.f16x2 %r0, %r1;",
    "tanh.approx.f16x2 %r0, %r1;",
    "tanh.approx.bf16 %h0, %h1;",
    "tanh.approx.bf16x2 %r0, %r1;",
]

_SINGLE = [
    *each("{op}{r}{ftz}{sat}.f32 %f0, %f1, %f2;", op="add sub mul", r="- .rn .rz .rm .rp", ftz="- .ftz", sat="- .sat"),
    *each("{op}.{r}{ftz}{sat}.f32 %f0, %f1, %f2, %f3;", op="fma", r="rn rz rm rp", ftz="- .ftz", sat="- .sat"),
    "mad.rn.f32 %f0, %f1, %f2, %f3;",
    "mad.rz.ftz.f32 %f0, %f1, %f2, %f3;",
    "mad.rn.f64 %e0, %e1, %e2, %e3;",
    *each("{op}{ftz}{nan}{x}.f32 %f0, %f1, %f2;", op="min max", ftz="- .ftz", nan="- .NaN", x="- .xorsign.abs"),
    *each("div.{m}.f32 %f0, %f1, %f2;", m="approx approx.ftz full full.ftz rn rz rm rp rn.ftz"),
    *each("{op}.{m}.f32 %f0, %f1;", op="rcp sqrt", m="approx approx.ftz rn rz rm rp rn.ftz"),
    *each("rsqrt.{m}.f32 %f0, %f1;", m="approx approx.ftz"),
    *each("{op}.approx{ftz}.f32 %f0, %f1;", op="ex2 lg2 sin cos", ftz="- .ftz"),
    "tanh.approx.f32 %f0, %f1;",
    *each("{op}{ftz}.f32 %f0, %f1;", op="neg abs", ftz="- .ftz"),
    "copysign.f32 %f0, %f1, %f2;",
    "copysign.f64 %e0, %e1, %e2;",
    "testp.finite.f32 %p0, %f0;",
    *each("testp.{c}.f64 %p0, %e0;", c="finite infinite number notanumber normal subnormal"),
    *each("{op}.{r}.f64 %e0, %e1, %e2;", op="add sub mul div", r="rn rz rm rp"),
    *each("fma.{r}.f64 %e0, %e1, %e2, %e3;", r="rn rz rm rp"),
    "add.f64 %e0, %e1, %e2;",
    "min.f64 %e0, %e1, %e2;",
    "max.f64 %e0, %e1, %e2;",
    "neg.f64 %e0, %e1;",
    "abs.f64 %e0, %e1;",
    *each("{op}.{r}.f64 %e0, %e1;", op="rcp sqrt", r="rn rz rm rp"),
    "rcp.approx.ftz.f64 %e0, %e1;",
    "rsqrt.approx.f64 %e0, %e1;",
    "rsqrt.approx.ftz.f64 %e0, %e1;",
]
_SINGLE_100 = [
    *each("{op}{r}{ftz}.f32x2 %d0, %d1, %d2;", op="add sub mul", r="- .rn .rz .rm .rp", ftz="- .ftz"),
    *each("fma.{r}{ftz}.f32x2 %d0, %d1, %d2, %d3;", r="rn rz rm rp", ftz="- .ftz"),
    *each("{op}{nan}.f32 %f0, %f1, %f2, %f3;", op="min max", nan="- .NaN .ftz .abs .NaN.abs"),
    *each("{op}.rn.f32.{t} %f0, %h1, %f2;", op="add sub", t="f16 bf16"),
    *each("fma.rn.f32.{t} %f0, %h1, %h2, %f3;", t="f16 bf16"),
    "add.rz.sat.f32.bf16 %f0, %h1, %f2;",
]

_CVT = [
    *each("cvt.{r}.f16.f32 %h0, %f1;", r="rn rz"), *each("cvt.{r}.bf16.f32 %h0, %f1;", r="rn rz rn.relu rz.relu"),
    "cvt.rn.relu.f16.f32 %h0, %f1;", "cvt.rn.ftz.f16.f32 %h0, %f1;", "cvt.rn.satfinite.f16.f32 %h0, %f1;",
    *each("cvt.{r}.{t}.f32 %r0, %f1, %f2;", r="rn rz rn.relu rz.relu rn.satfinite rn.relu.satfinite",
           t="f16x2 bf16x2"),
    *each("cvt.{r}.{t}.f32 %r0, %f1;", r="rna rn rz rn.relu rz.relu rna.satfinite", t="tf32"),
    *each("cvt.f32.{t} %f0, %h1;", t="f16 bf16"), "cvt.ftz.f32.f16 %f0, %h1;", "cvt.rz.f32.bf16 %f0, %h1;", "cvt.sat.f32.f16 %f0, %h1;",
    *each("cvt{f}.f64.f32 %e0, %f1;", f="- .ftz"), *each("cvt.{r}.f32.f64 %f0, %e1;", r="rn rz rm rp rn.ftz rn.sat"),
    *each("cvt.f64.f16 %e0, %h1;", r="-"), *each("cvt.{r}.f16.f64 %h0, %e1;", r="rn rz rm rp"),
    *each("cvt.{r}.f32.f32 %f0, %f1;", r="rni rzi rmi rpi rni.ftz rzi.ftz.sat"), "cvt.sat.f32.f32 %f0, %f1;",
    "cvt.ftz.f32.f32 %f0, %f1;", *each("cvt.{r}.f64.f64 %e0, %e1;", r="rni rzi rmi rpi"),
    *each("cvt.{r}.f16.f16 %h0, %h1;", r="rni rzi rmi rpi"), *each("cvt.{r}.bf16.bf16 %h0, %h1;", r="rni rzi"),
    *each("cvt.{r}{f}.{t}.f32 %r0, %f1;", r="rni rzi rmi rpi", f="- .ftz .sat", t="s32 u32"),
    *each("cvt.{r}.{t}.f64 {d}0, %e1;", r="rni rzi", t="s64 u64", d="%d"),
    *each("cvt.{r}.{t}.f32 %h0, %f1;", r="rni rzi", t="s16 u16 s8 u8"),
    *each("cvt.{r}.{t}.{s} %r0, %h1;", r="rni rzi", t="s32 u32", s="f16 bf16"),
    *each("cvt.{r}.f32.{t} %f0, %r1;", r="rn rz rm rp", t="s32 u32"),
    *each("cvt.{r}.f32.{t} %f0, %d1;", r="rn rz", t="s64 u64"), *each("cvt.rn.f64.{t} %e0, %d1;", t="s64 u64"),
    *each("cvt.{r}.f16.{t} %h0, %r1;", r="rn rz rm rp", t="s32 u32"), "cvt.rn.f16.u64 %h0, %d1;",
    *each("cvt.{r}.f16.{t} %h0, %h1;", r="rn", t="s16 u16 s8 u8"), "cvt.rn.bf16.s64 %h0, %d1;",
    "cvt.rz.bf16.u32 %h0, %r1;", "cvt.rn.bf16.f16 %h0, %h1;", "cvt.rn.bf16.f64 %h0, %e1;", "cvt.f64.bf16 %e0, %h1;",
    "cvt.rn.f16.bf16 %h0, %h1;", "cvt.sat.f16.f16 %h0, %h1;",
    *each("cvt.sat.{t}.s32 %r0, %r1;", t="u8 s8 u16 s16 u32"), "cvt.sat.s32.u32 %r0, %r1;", "cvt.sat.u32.s64 %r0, %d1;",
    *each("cvt.rn.satfinite{x}.{t}.f32 %h0, %f1, %f2;", x="- .relu", t="e4m3x2 e5m2x2"),
    *each("cvt.rn.satfinite{x}.{t}.f16x2 %h0, %r1;", x="- .relu", t="e4m3x2 e5m2x2"),
    *each("cvt.rn{x}.f16x2.{t} %r0, %h1;", x="- .relu", t="e4m3x2 e5m2x2"),
    *each("cvt.pack.sat.{t}.s32.b32 %r0, %r1, %r2, %r3;", t="u8 s8"), *each(
        "cvt.pack.sat.{t}.s32 %r0, %r1, %r2;", t="u16 s16"),
]  # fmt: skip
_CVT_100 = [
    *each("{{ .reg .b8 b; cvt.rn.satfinite{x}.e2m1x2.f32 b, %f1, %f2; cvt.u16.u8 %h0, b; }}", x="- .relu"),
    *each("cvt.rn.satfinite{x}.{t}.f32 %h0, %f1, %f2;", x="- .relu", t="e2m3x2 e3m2x2"),
    *each("cvt.{x}.satfinite.ue8m0x2.f32 %h0, %f1, %f2;", x="rz rp"),
    *each("cvt.{x}.satfinite.ue8m0x2.bf16x2 %h0, %r1;", x="rz rp"),
    "cvt.rn.bf16x2.ue8m0x2 %r0, %h1;",
    *each("cvt.rn{x}.f16x2.{t} %r0, %h1;", x="- .relu", t="e2m3x2 e3m2x2"),
    *each("{{ .reg .b8 b; cvt.u8.u16 b, %h1; cvt.rn{x}.f16x2.e2m1x2 %r0, b; }}", x="- .relu"),
    *each("cvt.{r}.satfinite.tf32.f32 %r0, %f1;", r="rn rz"),
]
_CVT_NARROW = [
    *each("cvt.rn{x}.bf16x2.{t} %r0, %h1;", x="- .relu", t="e4m3x2 e5m2x2 e2m3x2 e3m2x2"),
    *each("cvt.rn{x}.satfinite.bf16x2.{t} %r0, %h1;", x="- .relu", t="e4m3x2 e2m3x2"),
    *each(
        "cvt.rn{x}.scaled::n2::ue8m0.bf16x2.{t} %r0, %h1, %h2;",
        x="- .relu .satfinite .relu.satfinite",
        t="e4m3x2 e5m2x2 e2m3x2 e3m2x2",
    ),
    "{ .reg .b8 b; cvt.u8.u16 b, %h1; cvt.rn.scaled::n2::ue8m0.bf16x2.e2m1x2 %r0, b, %h2; }",
    *each("cvt.rn.satfinite{x}.{t}.bf16x2 %h0, %r1;", x="- .relu", t="e4m3x2 e5m2x2 e2m3x2 e3m2x2"),
    *each("cvt.rn.satfinite{x}.{t}.f16x2 %h0, %r1;", x="- .relu", t="e2m3x2 e3m2x2"),
    *each("{{ .reg .b8 b; cvt.rn.satfinite{x}.e2m1x2.{t} b, %r1; cvt.u16.u8 %h0, b; }}", x="- .relu", t="f16x2 bf16x2"),
    *each("{{ .reg .b8 b; cvt.u8.u16 b, %h1; cvt.rn{x}.bf16x2.e2m1x2 %r0, b; }}", x="- .relu"),
]

_LOADS = [
    *each("cp.async.ca.shared.global{h} [%r1], [%d1], {n};", h="- .L2::64B .L2::128B .L2::256B", n="4 8 16"),
    *each("cp.async.cg.shared::cta.global{h} [%r1], [%d1], 16{s};", h="- .L2::128B", s="- ,%r2 ,8"),
    "cp.async.ca.shared.global [%r1], [%d1], 4, %p0;", "cp.async.cg.shared.global.L2::cache_hint [%r1], [%d1], 16, %d2;",
    "cp.async.cg.shared.global.L2::cache_hint [%r1], [%d1], 16, %r2, %d2;", "cp.async.commit_group;",
    "cp.async.wait_group 0;", "cp.async.wait_group 3;", "cp.async.wait_all;",
    *each("cp.async.mbarrier.arrive{n}{s}.b64 {a};", n="- .noinc", s=".shared .shared::cta", a="[%r1]"),
    *each("cp.async.mbarrier.arrive{n}.b64 [%d1];", n="- .noinc"),
    *each("ld{s}.{t} %r0, [%d1];", s="- .global .global.nc .volatile .relaxed.gpu.global .acquire.sys .local .const",
           t="u32 s8 b16 f32"),
    *each("st{s}.{t} [%d1], %r0;", s="- .global .volatile.global .relaxed.sys .release.gpu .local", t="u32 b8 s16"),
    "ld.global.v2.f32 {%f0, %f1}, [%d1];",
    "ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%d1];", "ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%r0, %r1, %r2, %r3}, [%d1];",
    "ld.global.v2.u64 {%d0, %d2}, [%d1];", "ld.global.b128 %q0, [%d1];", "st.global.b128 [%d1], %q0;",
    "ld.global.L1::evict_last.L2::cache_hint.b32 %r0, [%d1], %d2;", "ld.shared.v2.f64 {%e0, %e1}, [%r1];",
    "ld.shared.v4.b8 {%h0, %h1, %h2, %h3}, [%r1];", "ld.shared.v4.b16 {%h0, %h1, %h2, %h3}, [%r1];", "ld.shared::cluster.u32 %r0, [%r1];", "st.shared::cluster.v4.b32 [%r1], {%r0, %r2, %r3, %r4};",
    "ld.const.v2.u32 {%r0, %r1}, [constants+8];", "ld.global.u32 %r0, [device_words+4];", "st.local.v2.b32 [frame+8], {%r0, %r1};",
    "ld.local.b64 %d0, [frame];", "mov.u64 %d0, device_words;", "mov.u64 %d0, constants;", "mov.b64 %d0, frame;",
    "mov.u64 %d0, device_words+8;", "mov.u32 %r0, buf+16;", "cvta.const.u64 %d0, %d1;", "cvta.to.const.u64 %d0, %d1;", "cvta.local.u64 %d0, %d1;",
    "cvta.to.local.u64 %d0, %d1;", "cvta.param.u64 %d0, %d1;", "cvta.shared.u64 %d0, %d1;", "cvta.to.shared.u64 %d0, %d1;", "cvta.global.u64 %d0, device_words;",
    *each("isspacep.{s} %p0, %d1;", s="global shared local const param shared::cluster"),
    "ldu.global.b32 %r0, [%d1];", "prefetch.global.L2 [%d1];", "prefetch.L1 [%d1];", "prefetch.local.L2 [%d1];", "prefetchu.L1 [%d1];",
    "prefetch.global.L2::evict_last [%d1];", "prefetch.tensormap [%d1];", "prefetch.param.tensormap [map];",
    "createpolicy.fractional.L2::evict_last.b64 %d0, 1.0;", "createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %d0, %f1;", "createpolicy.fractional.L2::evict_normal.b64 %d0;",
    "createpolicy.range.global.L2::evict_last.L2::evict_unchanged.b64 %d0, [%d1], %r1, %r2;", "createpolicy.cvt.L2.b64 %d0, %d1;",
    "applypriority.global.L2::evict_normal [%d1], 128;", "discard.global.L2 [%d1], 128;",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3];",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%r1], {%d2, %d3}, [%r3];",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%r1], {%f0, %f1, %f2, %f3}, [%r3];",
    *each("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{t} [%r1], %r2, [%r3];",
           op="inc dec min max add", t="u32"),
    *each("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.{t} [%r1], %r2, [%r3];",
           op="min max add", t="s32"),
    *each("red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{op}.b32 [%r1], %r2, [%r3];",
           op="and or xor"),
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u64 [%r1], %d2, [%r3];",
]  # fmt: skip

_LOADS_100 = [
    "ld.global.nc.L1::no_allocate.L2::evict_normal.L2::256B.v4.u64 {%d0, %d2, %d3, %d4}, [%d1];",
    "st.global.L2::evict_first.v4.b64 [%d1], {%d0, %d2, %d3, %d4};",
]
_ATOMICS = [
    *each("atom{s}.{op}.{t} %r0, [%d1], %r2;", s="- .global .relaxed.gpu.global .acq_rel.cluster .acquire.sys.global",
           op="add min max", t="u32"), *each("atom.global.{op}.s32 %r0, [%d1], %r2;", op="min max add"),
    *each("atom.shared{s}.{op}.b32 %r0, [%r1], %r2;", s="- ::cta ::cluster", op="and or xor exch"),
    "atom.global.cas.b16 %h0, [%d1], %h2, %h3;", "atom.global.cas.b32 %r0, [%d1], %r2, %r3;",
    "atom.global.cas.b64 %d0, [%d1], %d2, %d3;", "atom.global.cas.b128 %q0, [%d1], %q1, %q2;", "atom.global.exch.b128 %q0, [%d1], %q1;",
    "atom.global.add.f32 %f0, [%d1], %f2;", "atom.global.add.f64 %e0, [%d1], %e2;", "atom.shared.add.f32 %f0, [%r1], %f2;",
    *each("atom.global.add.noftz.{t} %h0, [%d1], %h2;", t="f16 bf16"), *each("atom.global.add.noftz.{t} %r0, [%d1], %r2;", t="f16x2 bf16x2"),
    "atom.global.v2.f32.add {%f0, %f1}, [%d1], {%f2, %f3};", "atom.global.v4.f32.add {%f0, %f1, %f4, %f5}, [%d1], {%f2, %f3, %f6, %f7};",
    *each("atom.global.{v}.{op}.noftz {{%h0, %h1}}, [%d1], {{%h2, %h3}};", v="v2.f16 v2.bf16", op="add min max"),
    "red.global.v8.bf16.add.noftz [%d1], {%h0, %h1, %h2, %h3, %h4, %h5, %h6, %h7};", "red.relaxed.gpu.global.v4.f16x2.max.noftz [%d1], {%r0, %r1, %r2, %r3};",
    "red.global.v2.f32.add [%d1], {%f0, %f1};", "red.global.add.noftz.bf16x2 [%d1], %r2;", "red.release.gpu.global.add.s32 [%d1], %r2;",
    "red.shared.add.u64 [%r1], %d2;", "red.global.min.s64 [%d1], %d2;", "red.add.f32 [%d1], %f2;",
    *each("redux.sync.{op}.{t} %r0, %r1, -1;", op="add min max", t="u32 s32"), *each("redux.sync.{op}.b32 %r0, %r1, -1;", op="and or xor"),
    *each("match.{m}.sync.{t} %r0, {r}1, -1;", m="any", t="b32", r="%r"), "match.any.sync.b64 %r0, %d1, -1;",
    "match.all.sync.b32 %r0|%p0, %r1, -1;", "match.all.sync.b64 %r0|%p0, %d1, -1;", "vote.sync.ballot.b32 %r0, %p1, -1;",
    *each("vote.sync.{m}.pred %p0, %p1, -1;", m="all any uni"), "activemask.b32 %r0;", "shfl.sync.up.b32 %r0|%p0, %r1, 1, 0, -1;",
    *each("{b}.red.popc{a}.u32 %r0, 0, %p1;", b="barrier.cta bar barrier", a="-"), *each("{b}.red.{op}.pred %p0, 1, 64, !%p1;", b="bar barrier.cta", op="and or"),
    "barrier.sync.aligned 0;", "barrier.cta.red.popc.aligned.u32 %r0, 0, %p1;", "barrier.cta.arrive 1, 64;", "bar.warp.sync %r1;",
    "barrier.cluster.arrive.relaxed;", "barrier.cluster.arrive.release.aligned;", "barrier.cluster.wait.acquire;",
]  # fmt: skip
_ATOMICS_100 = each("redux.sync.{op}{abs}{nan}.f32 %f0, %f1, -1;", op="min max", abs="- .abs", nan="- .NaN")

_MBARRIER = [
    *each("mbarrier.init{s}.b64 {a}, 4;", s=".shared .shared::cta", a="[%r1]"), "mbarrier.init.b64 [%d1], %r2;",
    "mbarrier.inval.b64 [%d1];", *each("mbarrier.{v}.shared.b64 %d0, [%r1]{c};", v="arrive arrive_drop", c="- ,2"),
    *each("mbarrier.{v}.b64 %d0, [%d1]{c};", v="arrive arrive_drop", c="- ,%r2"),
    *each("mbarrier.{v}.noComplete{r}.shared.b64 %d0, [%r1], 1;", v="arrive arrive_drop", r="- .release.cta"),
    *each("mbarrier.{v}.expect_tx{r}.shared::cta.b64 {d}, [%r1], 64;", v="arrive arrive_drop", r="- .release.cluster .relaxed.cta", d="%d0 _"),
    *each("mbarrier.{v}{e}.release.cluster.shared::cluster.b64 _, [%r1], 8;", v="arrive arrive_drop", e="- .expect_tx"),
    "mbarrier.arrive.expect_tx.b64 %d0, [%d1], 64;", "mbarrier.expect_tx.relaxed.cta.shared.b64 [%r1], 8;", "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r1], 8;",
    *each("mbarrier.{w}{p}{s}.shared{c}.b64 %p0, [%r1], {o};", w="test_wait", p=".parity", s="- .acquire.cta .acquire.cluster .relaxed.cta", c="- ::cta", o="%r2"),
    *each("mbarrier.{w}.b64 %p0, [%d1], %d2;", w="test_wait try_wait"), "mbarrier.try_wait.parity.b64 %p0, [%d1], 1;", "mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p0, [%r1], %r2, %r3;",
    "mbarrier.try_wait.shared.b64 %p0, [%r1], %d2, 1000;", "mbarrier.pending_count.b64 %r0, %d1;", "fence.mbarrier_init.release.cluster;",
]  # fmt: skip

_MBARRIER_93 = [
    *each("mbarrier.init.layout::{v}.shared::cta.b64 [%r1], 4;", v="v0 v1"),
    *each("mbarrier.check_layout.layout::{v}{s}.b64 %p0, {a};", v="v0 v1", s=".shared::cta", a="[%r1]"),
    "mbarrier.check_layout.layout::v0.b64 %p0, [%d1];",
    "mbarrier.pending_count.layout::v0.b64 %r0, %d1;",
    *each("mbarrier.{w}.parity.phase_type::{p}.shared::cta.b64 %p0, [%r1], %r2;", w="test_wait try_wait",
           p="primary conditional"),
    *each("mbarrier.{w}.parity.phase_type::primary.shared::cta.b64 %p0|%p1, [%r1], %r2;", w="test_wait try_wait"),
    "mbarrier.test_wait.phase_type::primary.acquire.cta.shared::cta.b64 %p0|%p1, [%r1], %d2;",
    "mbarrier.try_wait.phase_type::primary.relaxed.cluster.shared::cta.b64 %p0|%p1, [%r1], %d2, 100;",
    "{ .reg .b8 b; mbarrier.try_wait.parity.phase_type::primary.shared::cta.b64 %p0|%p1, b, [%r1], %r2; }",
]  # fmt: skip
_BULK_94 = [
    *each("st.async{w}.shared::cluster.mbarrier::complete_tx::bytes.b128 [%r1], %q0, [%r3];", w="- .weak"),
    *each("cp.async.bulk{w}.shared::cta.global.mbarrier::complete_tx::bytes.ignore_oob [%r1], [%d1], 64, 3, %r4, [%r3];",
           w="- .weak"),
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint.ignore_oob [%r1], [%d1], 64, 3, 4, [%r3], %d2;",
    "cp.async.bulk.weak.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r2], 64, [%r3];",
    "cp.async.bulk.weak.global.shared::cta.bulk_group [%d1], [%r1], 64;",
    "fence.proxy.alias.release.sys;", "fence.proxy.alias.acquire.sys;",
]  # fmt: skip

_TMA = "cp.async.bulk.tensor"
_BULK = [
    *each("cp.async.bulk.shared::{s}.global.mbarrier::complete_tx::bytes{h} [%r1], [%d1], %r2, [%r3]{p};", s="cluster", h="-", p="-"),
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%d1], 64, [%r3], %d2;",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%d1], 64, [%r3], %h2;",
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d1], 64, [%r3];",
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r2], 64, [%r3];",
    "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], 64;", "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%d1], [%r1], %r2, %d2;",
    *each("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}.{t} [%r1], [%r2], 64, [%r3];", op="add min max", t="u32 s32"),
    *each("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}.{t} [%r1], [%r2], 64, [%r3];", op="and or xor", t="b32"),
    *each("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}.u32 [%r1], [%r2], 64, [%r3];", op="inc dec"),
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u64 [%r1], [%r2], 64, [%r3];",
    *each("cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{t} [%d1], [%r2], 64;", op="add min max", t="u32 s32 u64"),
    *each("cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.s64 [%d1], [%r2], 64;", op="min max"),
    *each("cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{t} [%d1], [%r2], 64;", op="and or xor", t="b32 b64"),
    *each("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{t} [%d1], [%r2], 64;", t="f32 f64 noftz.f16 noftz.bf16"),
    *each("cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}.{t} [%d1], [%r2], 64;", op="min max", t="f16 bf16"),
    "cp.async.bulk.prefetch.L2.global [%d1], 64;", "cp.async.bulk.prefetch.L2.global.L2::cache_hint [%d1], 64, %d2;",
    f"{_TMA}.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%d1, {{%r2, %r3}}], [%r4];",
    *each("cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group [%d1, {{%r2, %r3}}], [%r4];", op="add min max inc dec and or xor"),
    "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.bulk_group.L2::cache_hint [%d1, {%r2}], [%r4], %d2;",
    "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d1, {%r2, %r3}];", "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col [%d1, {%r2, %r3, %r4}], {%h1};",
    "fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;", "fence.proxy.tensormap::generic.release.cta;",
    "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %d2;", "tensormap.replace.tile.rank.global.b1024.b32 [%d1], 1;",
    *each("tensormap.replace.tile.{f}.shared::cta.b1024.b32 [%r1], {n}, %r2;", f="box_dim global_dim element_stride", n="0 1"),
    "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r1], 0, %d2;", *each("tensormap.replace.tile.{f}.b1024.b32 [%d1], {n};", f="elemtype interleave_layout swizzle_mode fill_mode", n="0 1"),
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d1], [%r1], 128;",
]  # fmt: skip
_IM2COL = [
    f"{_TMA}.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], [%d1, {{%r2, %r3, %r4}}], [%r5], {{%h1}};",
    f"{_TMA}.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%d1, {{%r2, %r3, %r4, %r6, %r7}}], [%r5], {{%h1, %h2, %h3}}, %h4;",
    f"{_TMA}.4d.global.shared::cta.im2col_no_offs.bulk_group [%d1, {{%r2, %r3, %r4, %r6}}], [%r5];",
]
_BULK_100 = [
    "st.bulk.shared::cta [%r1], %d1, 0;", "st.bulk.weak.shared::cta [%r1], %d1, 0;",
    f"{_TMA}.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r1], [%d1, {{%r2, %r3, %r4, %r6, %r7}}], [%r5];",
    f"{_TMA}.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes [%r1], [%d1, {{%r2, %r3, %r4, %r6, %r7}}], [%r5];",
    "cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [%d1, {%r2, %r3, %r4, %r6, %r7}];",
    f"{_TMA}.2d.global.shared::cta.tile::scatter4.bulk_group [%d1, {{%r2, %r3, %r4, %r6, %r7}}], [%r5];",
    f"{_TMA}.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes.multicast::cluster.cta_group::2 [%r1], [%d1, {{%r2, %r3, %r4, %r6, %r7}}], [%r5], %h1;",
    f"{_TMA}.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%d1, {{%r2, %r3}}], [%r4];",
    "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%d1], [%r1], 64, %h1;",
]  # fmt: skip


_SPECIAL = [
    *each("mov.u32 %r0, %{r};", r="clock clock_hi globaltimer_lo globaltimer_hi smid nsmid laneid warpid nwarpid lanemask_lt "
           "dynamic_smem_size total_smem_size aggr_smem_size pm0 envreg3 reserved_smem_offset_begin reserved_smem_offset_end "
           "reserved_smem_offset_cap reserved_smem_offset_0"),
    *each("mov.u64 %d0, %{r};", r="clock64 globaltimer gridid current_graph_exec pm0_64"), "mov.pred %p0, %is_explicit_cluster;",
    "nanosleep.u32 %r1;", *each("griddepcontrol.{w};", w="wait launch_dependents"), "pmevent 3;", "pmevent.mask 3;",
    "exit;", "@%p0 trap;", "brkpt;", "vadd4.u32.u32.u32 %r0, %r1, %r2, %r3;",
    "{ places: .branchtargets END; brx.idx %r1, places; }", ".pragma \"nounroll\";", ".pragma \"unknown; {\";",
    "isspacep.param::entry %p0, %d1;", "mapa.u64 %d0, %d1, %r2;", "getctarank.shared::cluster.u32 %r0, %r1;", "getctarank.u64 %r0, %d1;", "mapa.shared::cluster.u64 %d0, %d1, %r2;",
]  # fmt: skip

_PLAIN = several("""
mul.lo.s32 %r0, %r1, %r2;  mul.hi.u32 %r0, %r1, %r2;  mul.wide.s32 %d0, %r1, %r2;  mul.wide.u16 %r0, %h1, %h2;
mul.lo.s64 %d0, %d1, %d2;  mul.hi.u64 %d0, %d1, %d2;  mad.lo.s32 %r0, %r1, %r2, %r3;  mad.wide.u32 %d0, %r1, %r2, %d3;
mad.lo.s64 %d0, %d1, %d2, %d3;  div.s32 %r0, %r1, %r2;  div.u64 %d0, %d1, %d2;  rem.u32 %r0, %r1, %r2;
rem.s64 %d0, %d1, %d2;  abs.s32 %r0, %r1;  neg.s64 %d0, %d1;  min.s32 %r0, %r1, %r2;  popc.b32 %r0, %r1;
clz.b32 %r0, %r1;  brev.b32 %r0, %r1;  bfe.u32 %r0, %r1, %r2, %r3;  bfe.s64 %d0, %d1, %r2, %r3;
bfi.b32 %r0, %r1, %r2, %r3, %r4;  mul.f64 %e0, %e1, %e2;  set.gt.f16x2.f16x2 %r0, %r1, %r2;
setp.eq.s32 %p0, %r1, %r2;  setp.lt.and.s32 %p0, %r1, %r2, %p3;  setp.gt.f32 %p0|%p1, %f1, %f2;
setp.ltu.f32 %p0, %f1, %f2;  setp.ne.f64 %p0, %e1, %e2;  setp.hi.u64 %p0, %d1, %d2;  selp.b32 %r0, %r1, %r2, %p0;
slct.s32.f32 %r0, %r1, %r2, %f3;  and.b32 %r0, %r1, %r2;  and.pred %p0, %p1, %p2;  or.b64 %d0, %d1, %d2;
xor.b16 %h0, %h1, %h2;  not.b32 %r0, %r1;  shl.b32 %r0, %r1, %r2;  shr.u32 %r0, %r1, %r2;  shr.s64 %d0, %d1, %r2;
mov.b32 %r0, %r1;  mov.b64 %d0, {%r0, %r1};  mov.u64 %d0, device_words;  mov.u32 %r0, buf;  mov.f32 %f0, 1.5;
shfl.sync.idx.b32 %r0|%p0, %r1, %r2, 31, -1;  shfl.sync.bfly.b32 %r0, %r1, 1, 31, -1;  prmt.b32 %r0, %r1, %r2, 0x3210;
ld.global.b32 %r0, [%d1];  ld.global.nc.v4.f32 {%f0..%f3}, [%d1];  ld.v2.b64 {%d2, %d3}, [%d1];
ld.global.L1::no_allocate.L2::128B.v4.b32 {%r0..%r3}, [%d1];  ld.acquire.gpu.global.b32 %r0, [%d1];
ld.volatile.global.b32 %r0, [%d1];  ld.shared.v4.b32 {%r0..%r3}, [%r4];  ld.shared::cluster.b32 %r0, [%r1];
ld.shared.b128 %q0, [%r1];  ld.param.u64 %d0, [out];  ld.const.b32 %r0, [constants+4];  ld.local.b32 %r0, [frame];
ld.u8 %h0, [%d1];  st.global.b32 [%d1], %r0;  st.global.v4.b32 [%d1], {%r0..%r3};  st.shared.v2.b64 [%r1], {%d0, %d1};
st.release.gpu.global.b32 [%d1], %r0;  st.b32 [%d1], %r0;  st.local.b32 [frame], %r0;
st.shared::cluster.b32 [%r1], %r0;  createpolicy.fractional.L2::evict_first.b64 %d0, 1.0;
cvta.to.global.u64 %d0, %d1;  mapa.shared::cluster.u32 %r0, %r1, %r2;  cvt.u32.u16 %r0, %h1;  cvt.s64.s32 %d0, %r1;
cvt.u16.u32 %h0, %r1;  cvt.rmi.ftz.f32.f32 %f0, %f1;  cvt.rn.f64.s32 %e0, %r1;
cp.async.cg.shared.global [%r0], [%d1], 16;  cp.async.cg.shared.global.L2::128B [%r0], [%d1], 16, %r2;
cp.async.bulk.global.shared::cta.bulk_group [%d0], [%r1], %r2;
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r0], [%r1], %r2, [%r3];
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d0], [%r1], %r2;
cp.async.bulk.prefetch.L2.global [%d1], %r2;  cp.async.bulk.commit_group;  cp.async.bulk.wait_group 0;
cp.async.bulk.wait_group.read 0;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r0], [%d1, {%r1, %r2}], [%r3], %h0;
cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%r0], [%d1, {%r1..%r5}], [%r6], %d2;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {%r1, %r2}], [%r0];
cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r0], [%d1, {%r1..%r4}], [%r5], {%h0, %h1};
tensormap.replace.tile.global_address.global.b1024.b64 [%d0], %d1;  @%p0 bra END;  @!%p0 bra.uni END;  call callee;
@%p0 exit;  bar.sync 0;  bar.sync 1, 64;  bar.arrive 1, 64;  barrier.cta.sync 1, 64;
barrier.cluster.wait.acquire.aligned;  bar.warp.sync -1;  membar.gl;  fence.acq_rel.gpu;  fence.sc.cluster;
fence.proxy.async;  fence.proxy.async.shared::cta;  atom.add.f64 %e0, [%d1], %e2;
atom.shared.max.s32 %r0, [%r1], %r2;  atom.acq_rel.gpu.global.exch.b64 %d0, [%d1], %d2;
red.global.add.u32 [%d1], %r2;  red.global.v4.f32.add [%d1], {%f0..%f3};  elect.sync %r0|%p0, -1;
mbarrier.inval.shared.b64 [%r0];  mbarrier.init.b64 [%d0], 1;
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0], 64;  mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r0], 64;
mbarrier.arrive.shared::cta.b64 %d0, [%r0];  mbarrier.arrive.shared::cta.b64 _, [%r0], 2;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r0];  mbarrier.test_wait.shared.b64 %p0, [%r0], %d1;
mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r0], %r1;  mbarrier.try_wait.shared.b64 %p0, [%r0], %d1, %r2;
mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%f0..%f3}, {%r0..%r3}, {%r4..%r7}, {%f0..%f3}, %r8, 0;
mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.s32.s8.s8.s32 {%r0..%r3}, {%r0..%r3}, {%r4..%r7}, {%r0..%r3}, %r8, 0;
wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r0..%r7}, [%r9];  alloca.u64 %d0, %d1, 16;  stacksave.u64 %d0;
stackrestore.u64 %d0;  trap;  nanosleep.u32 64;  setmaxnreg.inc.sync.aligned.u32 232;
setmaxnreg.dec.sync.aligned.u32 40;  mov.u32 %r0, %tid.x;  mov.u32 %r0, %ntid.y;  mov.u32 %r0, %ctaid.z;
mov.u32 %r0, %nctaid.x;  mov.u32 %r0, %cluster_ctarank;  mov.u32 %r0, %cluster_nctarank;  mov.u32 %r0, %clusterid.x;
mov.u32 %r0, %cluster_ctaid.x;  mov.u32 %r0, %envreg0;  ret;
""")
_PLAIN_90 = several("""
wgmma.fence.sync.aligned;  wgmma.commit_group.sync.aligned;  wgmma.wait_group.sync.aligned 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0..%f3}, %d0, %d1, %p0, 1, 1, 0, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0..%f3}, %d0, %d1, %p0, 1, 1, 0, 1;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0..%f3}, {%r0..%r3}, %d1, %p0, 1, 1, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0..%f3}, %d0, %d1, %p0, -1, 1, 0, 0;
wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16 {%f0..%f3}, %d0, %d1, %r8, 0, %p0, 1, 1, 0, 0;
wgmma.mma_async.sp.sync.aligned.m64n8k64.s32.s8.s8 {%r0..%r3}, {%r4..%r7}, %d1, %r8, 0, %p0;
""")
_PLAIN_100 = several("""
ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%r4];
ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {%r0}, [%r4];
stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r4], {%r0};
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r0], [%r1];
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [%r0], [%r1];
tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%d0], 1;
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p0, %q0;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r0, %r1, %r2, _}, %q0;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 32;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;  tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%r0}, [%r135], 2;
tcgen05.ld.sync.aligned.32x32b.x128.b32 {%r0..%r127}, [%r135];  tcgen05.wait::ld.sync.aligned;
tcgen05.wait::st.sync.aligned;  tcgen05.mma.cta_group::1.kind::f16 [%r0], [%r1], %d2, %r3, %p0;
tcgen05.mma.sp.cta_group::1.kind::f16 [%r0], %d1, %d2, [%r6], %r3, %p0;  tcgen05.fence::before_thread_sync;
tcgen05.fence::after_thread_sync;
""")
_PAIRS = several("""
cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r0], [%d1, {%r1, %r2}], [%r3];
tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r0, 32;
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r0], %h1;
""")


Families = dict[str, tuple[tuple[str, ...], list[str]]]

FORMS: Families = {
    "basic": (BOTH, _PLAIN),
    "basic (sm_90a)": (SM90, _PLAIN_90),
    "basic (sm_100a)": (SM100, _PLAIN_100),
    "integer": (BOTH, _INTEGER),
    "integer (PTX ISA 9.3)": ((*BOTH, "sm_103a", *SM120), _INTEGER_93),
    "integer (sm_120a, PTX ISA 9.2)": (SM120, _INTEGER_120),
    "half": (BOTH, _HALF),
    "single and double": (BOTH, _SINGLE),
    "single (PTX ISA 9.5)": (BOTH, each("{op}.approx.ftz.2pi.f32 %f0, %f1;", op="sin cos")),
    "single (sm_100a)": (SM100, _SINGLE_100),
    "conversions": (BOTH, _CVT),
    "conversions (sm_100a)": (SM100, _CVT_100),
    "conversions of narrow types (PTX ISA 9.1, 9.2)": (("sm_100a", "sm_120a"), _CVT_NARROW),
    "mma.sync": (BOTH, mma()),
    "mma.sync (sm_120a)": (SM120, mma_of_kinds()),
    "special": (BOTH, _SPECIAL),
    "loads and stores": (BOTH, _LOADS),
    "loads and stores (sm_100a)": (SM100, _LOADS_100),
    "mbarrier": (BOTH, _MBARRIER),
    "mbarrier (PTX ISA 9.3)": (BOTH, _MBARRIER_93),
    "bulk copies": (BOTH, _BULK),
    "copies and fences (PTX ISA 9.2 to 9.4)": (BOTH, _BULK_94),
    "im2col": (BOTH, _IM2COL),
    "bulk copies (sm_100a)": (SM100, _BULK_100),
    "atomics and warps": (BOTH, _ATOMICS),
    "atomics (sm_100a)": (SM100, _ATOMICS_100),
    "wgmma": (SM90, wgmma()),
    "tcgen05": (SM100, tcgen05(1)),
    "tcgen05 (sm_103a)": (("sm_103a",), REDUCED_LOADS),
    "tcgen05 of pairs": (SM100, [*tcgen05(2), *_PAIRS]),
}
"""By family: the targets that have it, and its forms."""
LACKING = several("""
multimem.ld_reduce.global.add.f32 %f0, [%d1];  multimem.red.global.add.f32 [%d1], %f0;
multimem.st.async.release.sys.global.u32 [%d1], %r0;
multimem.cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], 64;
tex.2d.v4.f32.f32 {%f0..%f3}, [%d1, {%f4, %f5}];  suld.b.2d.b32.trap %r0, [%d1, {%r1, %r2}];
tcgen05.shift.cta_group::1.down [%r0];  tcgen05.alloc.exclusive.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 512;
vadd.s32.s32.s32 %r1, %r0, %r0;
mul.e4m3x4.e2m1p4x4.e4m3x4.satfinite %r0, %r1, %r2;
cvt.rs.f16x2.f32 %r0, %f1, %f2, %r3;  cvt.rn.satfinite.s2f6x2.f32 %h0, %f1, %f2;
fabric.wait.sync_restrict::reads;
st.async.release.sys.global.u32 [%d1], %r0;
cp.async.bulk.relaxed.gpu.shared::cta.global.mbarrier::complete_tx::bytes.b128 [%r1], [%d1], 64, [%r3];
cp.async.bulk.relaxed.sys.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.b128 [%r1], [%d1], 64, [%r3], %h1;
cp.async.bulk.tensor.3d.shared::cluster.global.im2col::w.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2, %r3, %r4}], [%r5], {%h1, %h2};
cp.reduce.async.bulk.relaxed.gpu.global.shared::cta.bulk_group.add.u32 [%d1], [%r1], 64;
prefetch.global.L1::32B.valid_addr [%d1];
cp.async.bulk.wait_group.sync_restrict::proxy::async 0;
tensormap.replace.tile.global_address.alloc_class.global.b1024.b64 [%d1], %d2;
fence.proxy.generic::fabric.alias.release.sys;
fence.proxy.async::generic.release.sync_restrict::shared::cluster::read.cluster;
fence.alias.sync_restrict::read.release.sys;
""")
"""What the emulator has not: a form for each row of `emugpu.emulator.isa` that says so."""
RUBIN = several("""
add.rn.f32x2.f16x2 %d0, %r1, %d2;  set.eq.u8x4.u8x4 %r0, %r1, %r2;  cvt.rn.satfinite.ue5m3x2.f32 %h0, %f1, %f2;
applypriority.async.bulk.global.L2::evict_normal [%d1], 128;  spcompress.b32 %r0, %r1;
mbarrier.arrive.shared::cluster.multicast::cluster::32b.b64 _, [%r1], %r2;
cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs::w.bulk_group [%d1, {%r2, %r3, %r4, %r6}], [%r5];
tcgen05.mma.cta_group::1.kind::ti16 [%r1], %d1, %d2, %r2, %p0;
""")
"""The same for what only Rubin has."""
