"""What single instructions do natively and in Python, to the word: in whole warps, and where lanes are undefined."""

from __future__ import annotations

import numpy as np
import pytest
from form_patterns import each
from native_engine import library, outcome, same, watched
from ptx_forms import module
from ptx_programs import WORDS, module_of, source
from test_emulator_native_engine import listened

from emugpu.check.checker import Checker
from emugpu.emulator import Device, Module
from emugpu.emulator.native.layout import StopReason

# ---- the text of Python ----

REGISTERS = [("%r", "b32", 4, 4), ("%d", "b64", 8, 4), ("%h", "b16", 2, 4)]
FORMS = [
    *each("{op}.{t} %d0, %d1, %d2;", op="add sub min max", t="u64 s64"),
    *each("{op}.{t} %h0, %h1, %h2;", op="add sub min max mul.lo", t="u16 s16"),
    *each("{op}.{t} %r0, %r1, %r2;", op="add sub min max mul.lo mul.hi", t="u32 s32"),
    *each("{op}.{t} %d0, %d1, %d2;", op="mul.lo mul.hi", t="u64 s64"),
    *each("mad.{h}.{t} %r0, %r1, %r2, %r3;", h="lo hi", t="u32 s32"),
    *each("m{op}.wide.{t} %d0, %r1, %r2{c};", op="ul", t="u32 s32", c="-"),
    *each("mad.wide.{t} %d0, %r1, %r2, %d3;", t="u32 s32"),
    *each("{op}.{t} %r0, %r1;", op="neg abs", t="s32"),
    *each("{op}.{t} %d0, %d1;", op="neg abs", t="s64"),
    *each("{op}.b32 %r0, %r1, %r2;", op="and or xor"),
    *each("{op}.b64 %d0, %d1, %d2;", op="and or xor"),
    *each("{op}.b16 %h0, %h1, %h2;", op="and or xor"),
    "not.b32 %r0, %r1;", "not.b64 %d0, %d1;", "not.b16 %h0, %h1;", "not.pred %p2, %p1;", "and.pred %p2, %p1, %p0;",
    *each("{op} %r0, %r1, %r2;", op="shl.b32 shr.u32 shr.s32 shr.b32"),
    *each("{op} %d0, %d1, %r2;", op="shl.b64 shr.u64 shr.s64"),
    *each("{op} %h0, %h1, {n};", op="shl.b16 shr.u16", n="3 15 16 20"),
    *each("{op} %r0, %r1, {n};", op="shl.b32 shr.u32 shr.s32", n="0 5 31 32 40"),
    *each("{op} %d0, %d1, {n};", op="shl.b64 shr.u64 shr.s64", n="0 5 32 63 64 70"),
    *each("shf.{d}.{m}.b32 %r0, %r1, %r2, %r3;", d="l r", m="clamp wrap"),
    *each("prmt.b32 %r0, %r1, %r2, {s};", s="%r3 0x5410 0x7632 0xBA98"),
    "bfe.u32 %r0, %r1, %r2, %r3;", "bfe.u32 %r0, %r1, 8, 8;", "bfe.u32 %r0, %r1, 31, 32;",
    *each("{op}.b32 %r0, %r1;", op="popc clz brev"), *each("{op}.b64 %r0, %d1;", op="popc clz"), "brev.b64 %d0, %d1;",
    *each("setp.{c}.{t} %p2, %r1, %r2;", c="eq ne lt le gt ge", t="s32 u32"),
    *each("setp.{c}.{t} %p2, %d1, %d2;", c="eq ne lt le gt ge", t="s64 u64"),
    *each("setp.{c}.u16 %p2, %h1, %h2;", c="eq ne lt lo ls hi hs"),
    *each("setp.lt.{c}.s32 %p2, %r1, %r2, %p1;", c="and or xor"),
    "setp.lt.and.s32 %p1, %r1, %r2, %p1;", "setp.gt.u32 %p2, %r1, 77;",
    *each("setp.{c}.f32 %p2, %r1, %r2;", c="eq ne lt le gt ge equ neu ltu leu gtu geu num nan"),
    *each("{op}.{t} %r0, %r1, %r2;", op="div rem", t="u32 s32"), "rem.s32 %r0, %r1, %r0;", "div.u32 %r0, %r1, 7;",
    *each("{op}.{t} %d0, %d1, %d2;", op="div rem", t="u64 s64"), "rem.u16 %h0, %h1, %h2;",
    *each("dp4a.{a}.{b} %r0, %r1, %r2, %r3;", a="u32 s32", b="u32 s32"), "dp2a.lo.s32.s32 %r0, %r1, %r2, %r3;",
    *each("m{op}.wide.{t} %r0, %h1, %h2{c};", op="ul", t="u16 s16", c="-"), "mad.wide.u16 %r0, %h1, %h2, %r3;",
    *each("bfi.b32 %r0, %r1, %r2, {p};", p="8,8 0,32 24,16 31,1 33,2 5,0 %r3,3"), "bfi.b32 %r1, %r1, %r2, 4, 9;",
    *each("bfi.b64 %d0, %d1, %d2, {p};", p="32,32 8,40 0,64 63,5"), "bfi.b32 %r2, %r1, %r2, 4, 9;",
    *each("copysign.f32 %r{d}, %r1, %r2;", d="0 1 2"), "copysign.f64 %d0, %d1, %d2;",
    "selp.b32 %r0, %r1, %r2, %p1;", "selp.b64 %d0, %d1, %d2, %p1;", "selp.b16 %h0, %h1, %h2, %p1;",
    "selp.b32 %r0, 1, 0, %p1;", "selp.b32 %r0, %r1, 5, %p1;",
    *each("{op}.f32 %r0, %r1, %r2;", op="add sub mul add.rn min max"), "fma.rn.f32 %r0, %r1, %r2, %r3;",
    *each("{op}.f32 %r0, %r1;", op="neg abs"), "neg.f64 %d0, %d1;", "neg.f16 %h0, %h1;",
    *each("cvt.{a}.{b} %r0, %r1;", a="u32 s32 u16 u8", b="u32 s32 u16 s16 u8 s8"),
    *each("cvt.{a}.{b} %d0, %r1;", a="u64 s64", b="u32 s32 u16 s16 u8 s8"),
    *each("cvt.{a}.{b} %r0, %d1;", a="u32 s32 u16 u8", b="u64 s64 u32 s32"),
    *each("cvt.{a}.{b} %r0, %h1;", a="u32 s32", b="u16 s16 u8 s8"),
    *each("cvt.{a}.{b} %h0, %r1;", a="u16 s16 u8", b="u32 s32 u8 s8"),
    *each("cvt.{a}.{b} %d0, %h1;", a="u64 s64", b="u16 s16 u8 s8"),
    *each("cvt.rn.{t}.f32 %r0, %r1, %r2;", t="bf16x2 f16x2"), *each("cvt.rn.{t}.f32 %h0, %r1;", t="bf16 f16"),
    *each("cvt.f32.{t} %r0, %h1;", t="bf16 f16"),
    *each("{op}{z}.f32 %r0, %r1, %r2;", op="add sub mul div.approx div.full min max", z="- .ftz"),
    "min.NaN.f32 %r0, %r1, %r2;", "max.ftz.NaN.f32 %r0, %r1, %r2;", "max.f32 %r0, %r1, %r2, %r3;",
    *each("{op}{z}.f32x2 %d0, %d1, %d2;", op="add sub mul", z="- .ftz .rz"), "fma.rn.f32x2 %d0, %d1, %d2, %d3;",
    "fma.rn.ftz.f32 %r0, %r1, %r2, %r3;", "div.rn.f32 %r0, %r1, %r2;",
    *each("{op}.approx{z}.f32 %r0, %r1;", op="rcp sqrt rsqrt ex2 lg2", z="- .ftz"), "sqrt.rn.f32 %r0, %r1;",
    *each("cvt.rn.f32.{t} %r0, %r1;", t="s32 u32"),
    *each("{op}.f64 %d0, %d1, %d2;", op="add sub mul div.rn"), "fma.rn.f64 %d0, %d1, %d2, %d3;",
    *each("{op}.rn.f64 %d0, %d1;", op="rcp sqrt"), "rsqrt.approx.f64 %d0, %d1;", "add.rm.f64 %d0, %d1, %d2;",
    *each("{op}.{t} %h0, %h1, %h2;", op="add sub mul min max min.NaN max.NaN", t="f16 bf16"),
    *each("{op}.{t} %r0, %r1, %r2;", op="add sub mul min max min.NaN max.NaN", t="f16x2 bf16x2"),
    *each("fma.rn.{t} %h0, %h1, %h2, %h3;", t="f16 bf16"), *each("fma.rn.{t} %r0, %r1, %r2, %r3;", t="f16x2 bf16x2"),
    *each("setp.{c}.f64 %p2, %d1, %d2;", c="eq ne lt le gt ge equ neu ltu leu gtu geu num nan"),
    *each("cvt.rn.f64.{t} %d0, %{r}1;", t="s32 u32", r="r"), *each("cvt.rn.f64.{t} %d0, %{r}1;", t="s64 u64", r="d"),
    "cvt.f64.f32 %d0, %r1;", "cvt.rn.f32.f64 %r0, %d1;", "cvt.rn.sat.f32.f64 %r0, %d1;", "cvt.rz.f32.f64 %r0, %d1;",
    *each("cvt.{m}{z}.{t}.f32 %r0, %r1;", m="rni rzi rmi rpi", z="- .ftz", t="s32 u32"),
    *each("cvt.{m}.{t}.f64 %r0, %d1;", m="rni rzi rmi rpi", t="s32 u32"), "cvt.rzi.s64.f64 %d0, %d1;",
    *each("cvt.{m}{z}.f32.f32 %r0, %r1;", m="rni rzi rmi rpi", z="- .sat"), "cvt.sat.f32.f32 %r0, %r1;",
    *each("fma.{m}.f32 %r0, %r1, %r2, %r3;", m="rz rm rp rn.sat rm.sat rn.ftz.sat rm.ftz"),
    "add.sat.f32 %r1, %r1, %r2;", "activemask.b32 %r0;",
    *each("lop3.b32 %r{d}, %r1, %r2, %r3, {t};", d="0 2", t="0x96 0xCA 0xE8 0x80 0 255 0x1b"),
    *each("fma.{m}.f32.{t} %r{d}, %h1, %h2, %r3;", m="rn rz rm.sat", t="f16 bf16", d="0 3"),
    *each("{op}.f32.{t} %r0, %h1, %r2;", op="add sub add.rz.sat", t="f16 bf16"), "fma.rn.f32.bf16 %r3, %h1, %h1, %r3;",
    "shfl.sync.bfly.b32 %r0, %r1, 1, 31, -1;", "shfl.sync.idx.b32 %r0, %r1, 3, 31, -1;",
    "shfl.sync.up.b32 %r0, %r1, 2, 0, -1;", "shfl.sync.down.b32 %r0, %r1, 1, 0x1C1D, -1;",
    "shfl.sync.idx.b32 %r0, %r1, %r2, 0x1803, -1;", *each("shfl.sync.{m}.b32 %r0, %r1, %r2, %r3, -1;", m="idx down"),
    *each("shfl.sync.{m}.b32 %r0, %r1, 3, %r3, -1;", m="up bfly idx"),
    *each("redux.sync.{op} %r0, %r1, -1;", op="add.s32 and.b32 or.b32 xor.b32 min.s32 max.s32 min.u32 max.u32"),
    *each("redux.sync.{op}.f32 %r0, %r1, -1;", op="min max min.NaN max.NaN max.abs"),
    *each("vote.sync.{m}.pred %p2, %p1, -1;", m="all any uni"), "vote.sync.ballot.b32 %r0, %p1, -1;",
    "elect.sync _|%p2, -1;",
    "elect.sync %r13|%p2, -1;", "bar.warp.sync -1;", "shfl.sync.up.b32 %r0|%p3, %r1, 3, 0, -1;",
    "mov.b64 %d0, {%r1, %r2};", "mov.b64 {%r0, %r3}, %d1;", "mov.b32 %r0, {%h1, %h2};", "mov.b32 {%h0, %h3}, %r1;",
    "mov.u32 %r0, %laneid;", "mov.u32 %r0, %ctaid.x;", "mov.b32 %r0, buf;", "mov.u64 %d0, buf;", "mov.pred %p2, %p1;",
    "cvta.shared.u64 %d0, %d1;", "cvta.to.global.u64 %d0, %d1;",
]  # fmt: skip
"""Instructions on %r0 to %r3, %d0 to %d3, %h0 to %h3 and predicates: those that have micro-operations, and others."""

EDGES = [
    0, 1, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7F800000, 0xFFC00001, 0x7F800001, 1, 0x80000000, 0x477FF000,
]  # fmt: skip


def program(form: str, guard: str, uniform: bool) -> str:
    """Loads the registers, of all lanes alike or not, does the instruction, and stores them all."""
    at = "0" if uniform else "%r9"
    lines = [f"mov.u32 %r8, %tid.x; mul.lo.u32 %r9, %r8, 32; mov.u32 %r10, {at}; cvt.u64.u32 %d9, %r10;"]
    lines.append("ld.param.u64 %d10, [values]; add.s64 %d9, %d9, %d10; ld.param.u64 %d11, [out];")
    for name, kind, size, count in REGISTERS:
        lines += [f"ld.global.{kind} {name}{n}, [%d9+{(size * (n + 1) + 4 * size) % 64}];" for n in range(count)]
    lines.append("and.b32 %r11, %r10, 32; setp.eq.u32 %p1, %r11, 0; setp.ne.u32 %p2, %r11, 0; setp.eq.u32 %p0, %r8, 7;")
    lines.append(f"{guard} {form}")
    lines.append("mul.wide.u32 %d12, %r8, 128; add.s64 %d11, %d11, %d12;")
    place = 0
    for name, kind, size, count in REGISTERS:
        for n in range(count):
            lines.append(f"st.global.{kind} [%d11+{place}], {name}{n};")
            place += size if size > 2 else 2
        place = -(-place // 8) * 8
    lines.append("selp.u32 %r12, 1, 0, %p1; st.global.u32 [%d11+112], %r12;")
    lines.append("selp.u32 %r12, 1, 0, %p2; st.global.u32 [%d11+116], %r12;")
    return module(lines, "sm_100a").replace(".param .align 64 .b8 map[128]", ".param .u64 values")


WITHOUT = [
    *each("{op}.s16 %h0, %h1, %h2;", op="min max"), *each("mul.hi.{t} %d0, %d1, %d2;", t="u64 s64"),
    "rem.u16 %h0, %h1, %h2;", "dp2a.lo.s32.s32 %r0, %r1, %r2, %r3;", "mul.wide.s16 %r0, %h1, %h2;",
    "bfi.b32 %r0, %r1, %r2, %r3,3;", *each("{op}.rz.f32x2 %d0, %d1, %d2;", op="add sub mul"),
    "add.rm.f64 %d0, %d1, %d2;", "cvt.rz.f32.f64 %r0, %d1;",
    *each("cvt.{m}.ftz.{t}.f32 %r0, %r1;", m="rmi rpi", t="s32 u32"),
    "cvt.rzi.s64.f64 %d0, %d1;", "fma.rm.ftz.f32 %r0, %r1, %r2, %r3;",
    *each("add.rz.sat.f32.{t} %r0, %h1, %r2;", t="f16 bf16"), "redux.sync.max.abs.f32 %r0, %r1, -1;",
]  # fmt: skip
"""The forms that Python runs, all but the last in the middle of native code."""


@pytest.mark.thorough
def test_the_forms_have_micro_operations():
    """A form that loses its own would be tested against itself."""
    without = []
    for form in FORMS:
        module = Module(program(form, "", False))
        plan = module.code(None).native(True, True)
        assert plan is not None
        native = sum(piece.last - piece.first for pieces in plan.pieces for piece in pieces if piece.start >= 0)
        if plan.calls or native < len(module.find(None).instructions):
            without.append(form)
    assert without == WITHOUT


@pytest.mark.thorough
@pytest.mark.parametrize("guard", ["", "@%p1", "@!%p1"])
@pytest.mark.parametrize("uniform", [False, True])
def test_every_form_does_what_the_text_of_python_does(guard, uniform):
    for form in FORMS[len(guard) % 2 :: 2] if guard else FORMS:
        expected = outcome(program(form, guard, uniform), False, threads=30)
        assert "error" not in expected or (guard and ".sync" in form), (form, expected["error"])
        assert outcome(program(form, guard, uniform), True, threads=30) == expected, form


# ---- whole warps: loads of tensor memory, stores of matrices ----

FROM_TMEM = """
mov.b32 %r5, words; mov.b32 %r4, 0;
mad.lo.u32 %r6, %r0, 32, %r5; shl.b32 %r7, %r0, 4; add.u32 %r7, %r7, %r5;
mad.lo.u32 %r8, %r0, 8, 1065353216;
FILL: st.shared.b32 [%r6], %r8; add.u32 %r6, %r6, 4; add.u32 %r8, %r8, 1; add.u32 %r4, %r4, 1;
setp.lt.u32 %p1, %r4, 8; @%p1 bra FILL;
setp.lt.u32 %p2, %r0, 32; setp.eq.u32 %p3, %r0, 0;
@!%p2 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5+8192], 32;
@%p3 mbarrier.init.shared.b64 [%r5+8200], 1;
ALLOCATED: fence.proxy.async.shared::cta; bar.sync 0;
ld.shared.b32 %r2, [%r5+8192];
mov.b64 %rd8, 70403103916032; cvt.u64.u32 %rd9, %r5; shr.u64 %rd9, %rd9, 4; or.b64 %rd8, %rd8, %rd9;
mov.b64 %rd9, 8388608; or.b64 %rd8, %rd8, %rd9; add.u32 %r9, %r5, 8200;
@%p3 tcgen05.cp.cta_group::1.128x256b [%r2], %rd8;
@%p3 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r5+8200], 0; @!%p4 bra WAIT;
USE
st.global.v4.b32 [%rd1], {%r20, %r21, %r22, %r23};
bar.sync 0;
@!%p2 bra END;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
END: ret;
"""
"""Tensor memory gets 8 columns of words that all differ."""
LOAD = """
tcgen05.ld.sync.aligned.{shape}.b32 {{%r10, %r11, %r12, %r13}}, [%r2{at}];
tcgen05.wait::ld.sync.aligned;
"""
KEEP = """
cvt.rn.bf16x2.f32 %r14, %r10, %r11;
stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r7+4096], {{%r10, %r11, %r12, %r13}};
stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r7+6144], {{%r14}};
fence.proxy.async.shared::cta; bar.sync 0;
ld.shared.v4.b32 {{%r20, %r21, %r22, %r23}}, [%r7+4096];
mul.wide.u32 %rd1, %r0, 16; add.s64 %rd1, %rd0, %rd1;
"""
TMEM_WORDS = ".shared .align 1024 .b8 words[16384];"


def from_tmem(use: str) -> str:
    return source(FROM_TMEM.replace("USE", use), TMEM_WORDS)


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize(
    "shape, at", [("32x32b.x4", "+3"), ("16x64b.x4", "+1048576"), ("16x128b.x2", ""), ("16x256b.x1", "+1048576")]
)
def test_tensor_memory_comes_to_registers_and_goes_on_as_matrices(shape, at, trans):
    text = from_tmem(LOAD.format(shape=shape, at=at) + KEEP.format(trans=trans))
    instructions = module_of(text).find(None).instructions
    # Without a sink: if loads take their values at once, and if they may take them at the wait. With a sink.
    for mode, counts in (((True, True), (2, 2)), ((True, False), (2, 0)), ((False, False), (0, 0))):
        plan = module_of(text).code(None).native(*mode)
        native = [i.opcode for b in plan.pieces for p in b if p.start >= 0 for i in instructions[p.first : p.last]]
        assert (native.count("stmatrix"), native.count("tcgen05")) == counts
    found = same(text, threads=128)
    assert "error" not in found and not found["stops"][StopReason.FAILED]
    words = np.frombuffer(found["out"], np.uint32)[:512]
    assert len(np.unique(words)) > 256
    assert same(text, threads=128, schedule="random", seed=1)["out"] == found["out"]


OUT_OF_THE_ORDINARY = {
    "which was never written": LOAD.format(shape="32x32b.x4", at="+6") + KEEP,
    "lane 5 must be a multiple": LOAD.format(shape="32x32b.x4", at="+327680") + KEEP,
    "reaches column 513": LOAD.format(shape="32x32b.x4", at="+510") + KEEP,
    "is not a multiple of 16": LOAD.format(shape="32x32b.x4", at="")
    + KEEP.replace("[%r7+4096], {{%r10", "[%r7+8200], {{%r10"),
    "one address for all rows": LOAD.format(shape="32x32b.x4", at="")
    + KEEP.replace("[%r7+4096], {{%r10", "[%r5+4096], {{%r10"),
    "beyond the CTA's": LOAD.format(shape="32x32b.x4", at="") + KEEP.replace("[%r7+6144]", "[%r7+16384]"),
    "mbarriers are opaque": LOAD.format(shape="32x32b.x4", at="") + KEEP.replace("[%r7+6144]", "[%r7+8192]"),
}


@pytest.mark.parametrize("words", OUT_OF_THE_ORDINARY)
def test_what_a_warp_does_wrongly_has_the_same_words(words):
    use = OUT_OF_THE_ORDINARY[words].replace("{trans}", "").replace("{{", "{").replace("}}", "}")
    found = same(from_tmem(use), threads=128)
    assert words in found["error"]


def test_a_register_that_is_read_before_the_wait_is_told_of_alike():
    load, _, wait = LOAD.format(shape="32x32b.x4", at="").partition("tcgen05.wait")
    early = load + "add.u32 %r15, %r10, 1;\ntcgen05.wait" + wait + KEEP.format(trans="")
    (warning,) = {w.rule for w in same(from_tmem(early), threads=128)["warnings"]}
    assert warning == "register-before-wait"
    elsewhere = load + "bra NEXT;\nNEXT: tcgen05.wait" + wait + KEEP.format(trans="")
    found = same(from_tmem(elsewhere), threads=128)
    assert not found["warnings"]
    assert found["out"] == same(from_tmem(load + "tcgen05.wait" + wait + KEEP.format(trans="")), threads=128)["out"]


TO_TMEM = "tcgen05.st.sync.aligned.32x32b.x4.b32 [%r2+{column}], {{%r10, %r11, %r12, %r13}};"
BACK = "tcgen05.ld.sync.aligned.32x32b.x4.b32 {{%r10, %r11, %r12, %r13}}, [%r2+{column}];"
FIRST, STORE, WAIT = LOAD.format(shape="32x32b.x4", at=""), TO_TMEM.format(column=16), "tcgen05.wait::st.sync.aligned;"
AGAIN = BACK.format(column=16) + "tcgen05.wait::ld.sync.aligned;" + KEEP.format(trans="")


def rounds(body: str) -> str:
    return f"mov.b32 %r25, 0; ROUND: {body} add.u32 %r25, %r25, 1; setp.lt.u32 %p1, %r25, 20; @%p1 bra ROUND;"


def test_reads_before_the_wait_are_counted_without_python():
    reads = "add.u32 %r15, %r11, %r10; add.u32 %r16, %r12, %r15; mov.b32 %r10, %r16;"
    without_wait = BACK.format(column=0) + reads
    another = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r14}, [%r2+4];"
    two = BACK.format(column=0) + another + reads + "mov.b32 %r15, %r14;"
    for body, counts in ((without_wait, [160]), (two + "tcgen05.wait::ld.sync.aligned;", [160, 160])):
        found = same(from_tmem(rounds(body) + KEEP.format(trans="")), threads=128)
        assert [w.count for w in found["warnings"]] == counts
        assert 0 < found["stops"][StopReason.FAILED] <= 2 * len(counts)


STORES = {
    "in one block": STORE + WAIT + AGAIN,
    "in two blocks": STORE + "bra NEXT; NEXT: " + WAIT + AGAIN,
    "with a barrier between": STORE + "bar.sync 0;" + WAIT + AGAIN,
    "beside a load": STORE + BACK.format(column=0) + "tcgen05.wait::ld.sync.aligned;" + WAIT + AGAIN,
    "and branches": STORE + "@!%p2 bra A; add.u32 %r6, %r6, 1; A: " + WAIT + AGAIN,
    "and lanes apart": STORE + "@%p3 bra A; add.u32 %r6, %r6, 1; A: " + WAIT + AGAIN,
    "in rounds": rounds(STORE + "mov.b32 %r10, %r25;" + WAIT) + AGAIN,
    "in rounds of two blocks": rounds(STORE + "bra NEXT; NEXT: mov.b32 %r10, %r25;" + WAIT) + AGAIN,
    "many at once": rounds(STORE + "mov.b32 %r10, %r25;") + WAIT + AGAIN,
    "and lanes' own address": "mad.lo.u32 %r24, %r4, 0, %r0; sub.u32 %r24, %r24, %r0; add.u32 %r2, %r2, %r24;"
    + STORE + WAIT + AGAIN,
}  # fmt: skip


@pytest.mark.parametrize("where", STORES)
def test_registers_go_to_tensor_memory_and_come_back(where):
    found = same(from_tmem(FIRST + STORES[where]), threads=128)
    assert "error" not in found and not found["warnings"]
    # Native code knows 16 stores. The other four and the wait of each of four warps fail in native turns, and again.
    assert found["stops"][StopReason.FAILED] == 40 * (where == "many at once")
    words = np.frombuffer(found["out"], np.uint32)[:512]
    assert len(np.unique(words)) > 256 or where.startswith("in rounds") or where == "many at once"


def test_stores_that_one_wait_covers_have_the_same_events():
    text = from_tmem(FIRST + rounds(STORE + "mov.b32 %r10, %r25;").replace("20;", "5;") + WAIT + AGAIN)
    python, native = (listened(text, engine, schedule="fifo", seed=0, threads=128) for engine in (None, library()))
    assert {len({*event[4]}) for event in python.seen if event[0] == "TensorMemoryWaited" and event[3] == "st"} == {5}
    assert python.seen == native.seen


OPEN = {
    "loads what the warp's tcgen05.st": STORE + AGAIN,
    "is taken": "mov.b32 %r24, %r2; @%p3 add.u32 %r24, %r24, 2097152;" + STORE.replace("%r2+", "%r24+") + WAIT + AGAIN,
    "not allocated": TO_TMEM.format(column=30) + STORE + WAIT + AGAIN,
    "which was never written": "@%p3 mov.b32 %r25, 1; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2+16], {%r25};"
    + WAIT + AGAIN,
    "needs the whole warp converged": "@%p3 bra A; " + STORE + " A: " + WAIT + AGAIN,
}  # fmt: skip


@pytest.mark.parametrize("words", OPEN)
def test_unusual_stores_to_tensor_memory_have_the_same_words(words):
    found = same(from_tmem(FIRST + OPEN[words]), threads=128)
    told = [w.message for w in found.get("warnings", ())] + [found.get("error", "")]
    assert any(words in text for text in told), told


# ---- lanes that name different members, and all functions of three bits ----

GROUPS = """
and.b32 %r2, %r0, 3; mov.b32 %r3, 0x11111111; shl.b32 %r3, %r3, %r2; setp.lt.u32 %p1, %r0, 13; mov.b32 %r4, 0xF0F;
xor.b32 %r5, %r0, 0x55; selp.b32 %r6, 0x1FFF, 0xFFFFE000, %p1; mov.b32 %r8, 0; setp.eq.u32 %p2, %r0, 20;
mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;
"""
"""%r3: a mask of every fourth lane. %r6: of the first 13 lanes, or of the others."""
IN_GROUPS = {
    "shfl": "shfl.sync.bfly.b32 %r8, %r5, 8, 31, %r3;",
    "shfl in place": "mov.b32 %r8, %r5; shfl.sync.bfly.b32 %r8, %r8, 4, 31, %r3;",
    "votes": "vote.sync.ballot.b32 %r8, %p1, %r3; vote.sync.any.pred %p3, %p2, %r6; @%p3 add.u32 %r8, %r8, 1;",
    "redux": "redux.sync.add.s32 %r8, %r5, %r6; redux.sync.max.s32 %r9, %r5, %r3; xor.b32 %r8, %r8, %r9;",
    "elect": "elect.sync %r9|%p3, %r3; selp.b32 %r8, 5, 7, %p3;",
    "alike in fact": "add.u32 %r7, %r0, 1; sub.u32 %r7, %r7, %r0; mul.lo.u32 %r9, %r7, 0xFFFFFFFF;"
    "redux.sync.add.s32 %r8, %r5, %r9;",
    "who is there": "@!%p1 bra A; activemask.b32 %r8; A: activemask.b32 %r9; xor.b32 %r8, %r8, %r9;",
    "undefined": "@%p1 mov.b32 %r10, 3; shfl.sync.bfly.b32 %r8, %r10, 4, 31, %r3; @!%p1 mov.b32 %r8, 0;",
    "out of the group": "shfl.sync.up.b32 %r8, %r5, 1, 0, %r6; setp.eq.u32 %p3, %r0, 13; @%p3 mov.b32 %r8, 1;",
    "lanes that do not name themselves": "shl.b32 %r9, %r3, 1; redux.sync.add.s32 %r8, %r5, %r9;",
    "lanes that are elsewhere": "@!%p1 bra A; redux.sync.add.s32 %r8, %r5, %r3; A:",
}


@pytest.mark.parametrize("name", IN_GROUPS)
def test_lanes_that_name_different_members_do_the_same(name):
    found = same(source(GROUPS + IN_GROUPS[name] + "add.u32 %r8, %r8, 1; st.global.u32 [%rd1], %r8; ret;"))
    is_python = name in ("undefined", "out of the group", *list(IN_GROUPS)[-2:])
    assert is_python or ("error" not in found and not found["stops"][StopReason.FAILED])


def test_activemask_is_native_with_a_sink_and_is_no_meeting_of_lanes():
    text = source(GROUPS + IN_GROUPS["who is there"] + "bar.warp.sync -1; st.global.u32 [%rd1], %r8; ret;")
    instructions = module_of(text).find(None).instructions
    pieces = [piece for several in module_of(text).code(None).native(False, False).pieces for piece in several]
    native = [i.opcode for p in pieces if p.start >= 0 for i in instructions[p.first : p.last]]
    assert native.count("activemask") == 2
    python, native = (listened(text, engine, schedule="fifo", seed=0, threads=32) for engine in (None, library()))
    assert native.runs and python.seen == native.seen
    assert [event[0] for event in native.seen].count("WarpSynced") == 2  # one of each CTA, of bar.warp.sync


@pytest.mark.parametrize("between, races", [("activemask.b32 %r8;", True), ("bar.warp.sync -1;", False)])
def test_the_checker_knows_that_activemask_orders_nothing(between, races):
    words = "shl.b32 %r2, %r0, 2; mov.b32 %r3, words; add.u32 %r2, %r2, %r3; xor.b32 %r3, %r2, 4;"
    work = f"st.shared.u32 [%r2], %r0; {between} ld.shared.u32 %r4, [%r3]; st.global.u32 [%rd1], %r4; ret;"
    checker, device = Checker(), Device(library=library())
    text = source(GROUPS + words + work, WORDS)
    with watched() as stops:
        device.launch(module_of(text), grid=1, block=32, arguments=[device.alloc(128)], sinks=[checker])
    assert stops.total()
    assert ["race-lanes"] * races == [finding.rule for finding in checker.report().findings]


def test_all_functions_of_three_bits():
    work = "".join(f"lop3.b32 %r6, %r3, %r4, %r5, {n}; mad.lo.u32 %r8, %r8, 31, %r6;" for n in range(256))
    found = same(source(GROUPS + work + "st.global.u32 [%rd1], %r8; ret;"))
    assert not found["stops"][StopReason.FAILED]
    a, b, c = (
        np.array(x, np.uint32) for x in ([0x11111111 << (n & 3) for n in range(32)], 0xF0F, np.arange(32) ^ 0x55)
    )
    total = np.zeros(32, np.uint32)
    for table in range(256):
        rows = [x & y & z for x in (~a, a) for y in (~b, b) for z in (~c, c)]
        value = np.bitwise_or.reduce([row for n, row in enumerate(rows) if table >> n & 1] or [np.zeros(32, np.uint32)])
        total = total * np.uint32(31) + value
    assert (np.frombuffer(found["out"], np.uint32)[:32] == total).all()


@pytest.mark.parametrize("table", [0, 0x03, 0x0F, 0x33, 0x55, 0xAA, 0xC0, 0xF0, 255])
def test_a_function_that_ignores_an_undefined_input_is_as_undefined_as_in_python(table):
    inputs = ["%r9, %r4, %r5", "%r3, %r9, %r5", "%r3, %r4, %r9"]
    for sources in inputs:
        use = f"@%p1 mov.b32 %r9, 3; lop3.b32 %r8, {sources}, {table}; bra USE; USE: st.global.u32 [%rd1], %r8; ret;"
        found = same(source(GROUPS + use))
        assert ("%r9, which was never written" in found.get("error", "")) == (table != 0)


# ---- undefined lanes ----

_BRANCHES = "bra A; add.u32 %r6, %r6, 1; bra B; A: add.u32 %r6, %r6, 2; B: add.u32 %r6, %r6, 3;"
CARRIED = {
    "arithmetic": "add.u32 %r6, %r5, %r0; mul.lo.u32 %r6, %r6, 3; mad.lo.s32 %r6, %r0, %r6, %r6;",
    "single bits": "and.b32 %r6, %r5, 255; shl.b32 %r6, %r6, 3;",
    "a choice": "selp.b32 %r6, %r5, %r0, %p2;",
    "a choice of all lanes": "setp.eq.u32 %p3, %r9, 0; selp.b32 %r6, %r0, %r5, %p3; selp.b32 %r6, %r6, %r5, %p3;",
    "an undefined choice": "setp.lt.u32 %p3, %r5, 5; selp.b32 %r6, 1, 2, %p3;",
    "a shuffle": "shfl.sync.bfly.b32 %r6, %r5, 1, 31, -1; shfl.sync.idx.b32 %r7, %r5, 3, 31, -1;",
    "a shuffle of halves": "shfl.sync.bfly.b32 %r6, %r5, 16, 31, -1;",
    "64 bits": "mul.wide.u32 %rd5, %r5, 3; add.u64 %rd5, %rd5, %rd5; cvt.u32.u64 %r6, %rd5;",
    "two numbers": "mov.b64 %rd5, {%r0, %r5}; fma.rn.f32x2 %rd5, %rd5, %rd5, %rd5; mov.b64 {%r7, %r6}, %rd5;",
    "numbers": "add.f32 %r6, %r5, %r5; max.f32 %r6, %r6, %r5; ex2.approx.f32 %r6, %r6;",
    "what is written over": "mov.b32 %r6, %r5; @!%p1 mov.b32 %r6, 7; mov.b32 %r8, %r5; mov.b32 %r8, 0;",
    "what is written over in part": "mov.b32 %r6, %r5; @%p2 mov.b32 %r6, 7;",
    "what is left out in part": "mov.b32 %r6, %r0; @%p2 add.u32 %r6, %r5, 1;",
    "a choice of what is defined": ("@%p1 mov.b32 %r11, %r0; @%p2 selp.b32 %r11, %r5, %r0, %p1; add.u32 %r6, %r11, 1;"),
    "two lots": "@%p2 mov.b32 %r11, 4; add.u32 %r6, %r5, %r11; add.u32 %r6, %r6, 1;",
    "branches": f"mov.b32 %r6, %r5; @%p2 {_BRANCHES}",
    "one lane": f"mov.b32 %r6, %r5; @%p4 {_BRANCHES}",
    "a lane that has one": "mov.b32 %r6, 1; @!%p4 bra A; add.u32 %r6, %r5, 1; A: bar.sync 0; add.u32 %r6, %r6, 3;",
    "a barrier": "add.u32 %r6, %r5, 1; bar.sync 0; add.u32 %r6, %r6, %r0; bar.sync 0; add.u32 %r6, %r6, %r0;",
}
USES = {
    "where it is defined": "@%p1 st.global.u32 [%rd1], %r6;",
    "a store": "st.global.u32 [%rd1], %r6;",
    "a branch": "setp.gt.u32 %p5, %r6, 30; @%p5 bra C; st.global.u32 [%rd1], %r0; C:",
    "an address": "mul.wide.u32 %rd6, %r6, 4; add.u64 %rd6, %rd0, %rd6; ld.global.u32 %r8, [%rd6];",
    "a vote": "setp.gt.u32 %p5, %r6, 30; vote.sync.ballot.b32 %r8, %p5, -1; st.global.u32 [%rd1], %r8;",
    "a guard": "setp.gt.u32 %p5, %r6, 30; @%p5 st.global.u32 [%rd1], %r0;",
}


@pytest.mark.parametrize("use", USES)
def test_undefined_lanes_are_carried_alike(use):
    """What a guard has left out goes through operations, and stops a run where it decides something; or does not."""
    faults = 0
    for name, carried in CARRIED.items():
        body = f"""
        setp.lt.u32 %p1, %r0, 16; and.b32 %r7, %r0, 1; setp.eq.u32 %p2, %r7, 1; setp.eq.u32 %p4, %r0, 20;
        mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; mov.b32 %r9, 0; ld.global.u32 %r10, [%rd1];
        @%p1 mov.b32 %r5, %r0;
        {carried} bar.sync 0; {USES[use]} ret;
        """
        expected = outcome(source(body), False, threads=64)
        assert outcome(source(body), True, threads=64) == expected, name
        assert "which was never written" in expected.get("error", "which was never written"), expected["error"]
        faults += "error" in expected
    # A shuffle brings the other half's lanes, one sum has its own; two write defined values over all of it.
    assert faults == (2 if use == "where it is defined" else len(CARRIED) - 2)


def test_undefined_lanes_are_no_reason_to_go_back_to_python():
    body = """
    setp.lt.u32 %p1, %r0, 16; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; @%p1 mov.b32 %r5, %r0;
    add.u32 %r6, %r5, 1; max.s32 %r6, %r6, %r5; shfl.sync.bfly.b32 %r7, %r6, 1, 31, -1; add.u32 %r6, %r6, %r7;
    bar.sync 0; @%p1 st.global.u32 [%rd1], %r6; ret;
    """
    found = same(source(body), threads=64)
    assert "error" not in found and not found["stops"][StopReason.FAILED]


@pytest.mark.parametrize("instruction", ["griddepcontrol.wait;", "griddepcontrol.launch_dependents;", "membar.gl;"])
def test_what_only_makes_an_event_stays_native_where_nobody_listens(instruction):
    adds = "add.u32 %r1, %r0, 1;" * 20
    code = module_of(source(f"{adds} {instruction} {adds} ret;")).code(None)
    for quiet in (True, False):
        in_python = [piece for pieces in code.native(quiet, quiet).pieces for piece in pieces if piece.start < 0]
        assert bool(in_python) != quiet
