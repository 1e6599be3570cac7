"""The native engine against the Python one: the same results, counters, schedules and faults, to the word."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from native_engine import Listener, library, watched
from ptx_forms import _each
from ptx_programs import WORDS, module_of, source

from emugpu.emulator import Device, Fault, Livelock, Module
from emugpu.emulator.machine import machine
from emugpu.emulator.machine.machine import Machine
from emugpu.emulator.native import trace
from emugpu.emulator.native.engine import NativeEngine
from emugpu.emulator.native.layout import StopReason
from emugpu.errors import CannotRun
from emugpu.launch.coverage import MODULE
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions, run
from harness.paths import ROOT

SGEMM = (ROOT / "tests" / "data" / "cuda" / "sgemm.ptx").read_text()
LAUNCHES = sorted((ROOT / "tests" / "data" / "launches").glob("*.toml"))


class Kept(Device):
    """Keeps the machine of its last launch."""

    machine: Machine

    def _make_machine(self, *arguments: Any) -> Machine:
        self.machine = super()._make_machine(*arguments)
        return self.machine


def outcome(
    text: str, native: bool, *, threads: int = 32, schedule: Any = "fifo", seed: int = 0, **options: Any
) -> dict[str, Any]:
    """All that a launch leaves behind, or the words of its failure, with what it had written by then."""
    device = Kept(schedule=schedule, seed=seed, library=library() if native else None)
    values = device.upload(np.random.default_rng(1).integers(0, 1 << 32, 1024, np.uint32), "in")
    out = device.alloc(65536, "out")
    device.memset(out, 0xEE, 65536)
    found: dict[str, Any] = {}
    module = module_of(text)
    names = [p.name for p in module.find(None).parameters]
    arguments = {"out": out, **({"values": values} if "values" in names else {})}
    try:
        result = device.launch(module, grid=2, block=threads, arguments=arguments, **options)
        found["counters"], found["warnings"] = result.counters, result.warnings
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    found["changes"] = device.machine.wakeups.changes
    return {**found, "out": device.download(out, np.uint8, 65536).tobytes()}


def same(text: str, **options: Any) -> dict[str, Any]:
    """What both engines do alike; the native one has been entered."""
    expected = outcome(text, False, **options)
    with watched() as stops:
        found = outcome(text, True, **options)
    assert stops.total()
    assert found == expected
    return {**expected, "stops": stops}


# ---- the text of Python ----

REGISTERS = [("%r", "b32", 4, 4), ("%d", "b64", 8, 4), ("%h", "b16", 2, 4)]
FORMS = [
    *_each("{op}.{t} %d0, %d1, %d2;", op="add sub min max", t="u64 s64"),
    *_each("{op}.{t} %h0, %h1, %h2;", op="add sub min max mul.lo", t="u16 s16"),
    *_each("{op}.{t} %r0, %r1, %r2;", op="add sub min max mul.lo mul.hi", t="u32 s32"),
    *_each("{op}.{t} %d0, %d1, %d2;", op="mul.lo mul.hi", t="u64 s64"),
    *_each("mad.{h}.{t} %r0, %r1, %r2, %r3;", h="lo hi", t="u32 s32"),
    *_each("m{op}.wide.{t} %d0, %r1, %r2{c};", op="ul", t="u32 s32", c="-"),
    *_each("mad.wide.{t} %d0, %r1, %r2, %d3;", t="u32 s32"),
    *_each("{op}.{t} %r0, %r1;", op="neg abs", t="s32"),
    *_each("{op}.{t} %d0, %d1;", op="neg abs", t="s64"),
    *_each("{op}.b32 %r0, %r1, %r2;", op="and or xor"),
    *_each("{op}.b64 %d0, %d1, %d2;", op="and or xor"),
    *_each("{op}.b16 %h0, %h1, %h2;", op="and or xor"),
    "not.b32 %r0, %r1;", "not.b64 %d0, %d1;", "not.b16 %h0, %h1;", "not.pred %p2, %p1;", "and.pred %p2, %p1, %p0;",
    *_each("{op} %r0, %r1, %r2;", op="shl.b32 shr.u32 shr.s32 shr.b32"),
    *_each("{op} %d0, %d1, %r2;", op="shl.b64 shr.u64 shr.s64"),
    *_each("{op} %h0, %h1, {n};", op="shl.b16 shr.u16", n="3 15 16 20"),
    *_each("{op} %r0, %r1, {n};", op="shl.b32 shr.u32 shr.s32", n="0 5 31 32 40"),
    *_each("{op} %d0, %d1, {n};", op="shl.b64 shr.u64 shr.s64", n="0 5 32 63 64 70"),
    *_each("shf.{d}.{m}.b32 %r0, %r1, %r2, %r3;", d="l r", m="clamp wrap"),
    *_each("prmt.b32 %r0, %r1, %r2, {s};", s="%r3 0x5410 0x7632 0xBA98"),
    "bfe.u32 %r0, %r1, %r2, %r3;", "bfe.u32 %r0, %r1, 8, 8;", "bfe.u32 %r0, %r1, 31, 32;",
    *_each("{op}.b32 %r0, %r1;", op="popc clz brev"), *_each("{op}.b64 %r0, %d1;", op="popc clz"), "brev.b64 %d0, %d1;",
    *_each("setp.{c}.{t} %p2, %r1, %r2;", c="eq ne lt le gt ge", t="s32 u32"),
    *_each("setp.{c}.{t} %p2, %d1, %d2;", c="eq ne lt le gt ge", t="s64 u64"),
    *_each("setp.{c}.u16 %p2, %h1, %h2;", c="eq ne lt lo ls hi hs"),
    *_each("setp.lt.{c}.s32 %p2, %r1, %r2, %p1;", c="and or xor"),
    "setp.lt.and.s32 %p1, %r1, %r2, %p1;", "setp.gt.u32 %p2, %r1, 77;",
    *_each("setp.{c}.f32 %p2, %r1, %r2;", c="eq ne lt le gt ge equ neu ltu leu gtu geu num nan"),
    *_each("{op}.{t} %r0, %r1, %r2;", op="div rem", t="u32 s32"), "rem.s32 %r0, %r1, %r0;", "div.u32 %r0, %r1, 7;",
    *_each("{op}.{t} %d0, %d1, %d2;", op="div rem", t="u64 s64"), "rem.u16 %h0, %h1, %h2;",
    *_each("dp4a.{a}.{b} %r0, %r1, %r2, %r3;", a="u32 s32", b="u32 s32"), "dp2a.lo.s32.s32 %r0, %r1, %r2, %r3;",
    *_each("m{op}.wide.{t} %r0, %h1, %h2{c};", op="ul", t="u16 s16", c="-"), "mad.wide.u16 %r0, %h1, %h2, %r3;",
    *_each("bfi.b32 %r0, %r1, %r2, {p};", p="8,8 0,32 24,16 31,1 33,2 5,0 %r3,3"), "bfi.b32 %r1, %r1, %r2, 4, 9;",
    *_each("bfi.b64 %d0, %d1, %d2, {p};", p="32,32 8,40 0,64 63,5"), "bfi.b32 %r2, %r1, %r2, 4, 9;",
    *_each("copysign.f32 %r{d}, %r1, %r2;", d="0 1 2"), "copysign.f64 %d0, %d1, %d2;",
    "selp.b32 %r0, %r1, %r2, %p1;", "selp.b64 %d0, %d1, %d2, %p1;", "selp.b16 %h0, %h1, %h2, %p1;",
    "selp.b32 %r0, 1, 0, %p1;", "selp.b32 %r0, %r1, 5, %p1;",
    *_each("{op}.f32 %r0, %r1, %r2;", op="add sub mul add.rn min max"), "fma.rn.f32 %r0, %r1, %r2, %r3;",
    *_each("{op}.f32 %r0, %r1;", op="neg abs"), "neg.f64 %d0, %d1;", "neg.f16 %h0, %h1;",
    *_each("cvt.{a}.{b} %r0, %r1;", a="u32 s32 u16 u8", b="u32 s32 u16 s16 u8 s8"),
    *_each("cvt.{a}.{b} %d0, %r1;", a="u64 s64", b="u32 s32 u16 s16 u8 s8"),
    *_each("cvt.{a}.{b} %r0, %d1;", a="u32 s32 u16 u8", b="u64 s64 u32 s32"),
    *_each("cvt.{a}.{b} %r0, %h1;", a="u32 s32", b="u16 s16 u8 s8"),
    *_each("cvt.{a}.{b} %h0, %r1;", a="u16 s16 u8", b="u32 s32 u8 s8"),
    *_each("cvt.{a}.{b} %d0, %h1;", a="u64 s64", b="u16 s16 u8 s8"),
    *_each("cvt.rn.{t}.f32 %r0, %r1, %r2;", t="bf16x2 f16x2"), *_each("cvt.rn.{t}.f32 %h0, %r1;", t="bf16 f16"),
    *_each("cvt.f32.{t} %r0, %h1;", t="bf16 f16"),
    *_each("{op}{z}.f32 %r0, %r1, %r2;", op="add sub mul div.approx div.full min max", z="- .ftz"),
    "min.NaN.f32 %r0, %r1, %r2;", "max.ftz.NaN.f32 %r0, %r1, %r2;", "max.f32 %r0, %r1, %r2, %r3;",
    *_each("{op}{z}.f32x2 %d0, %d1, %d2;", op="add sub mul", z="- .ftz .rz"), "fma.rn.f32x2 %d0, %d1, %d2, %d3;",
    "fma.rn.ftz.f32 %r0, %r1, %r2, %r3;", "div.rn.f32 %r0, %r1, %r2;",
    *_each("{op}.approx{z}.f32 %r0, %r1;", op="rcp sqrt rsqrt ex2 lg2", z="- .ftz"), "sqrt.rn.f32 %r0, %r1;",
    *_each("cvt.rn.f32.{t} %r0, %r1;", t="s32 u32"),
    *_each("{op}.f64 %d0, %d1, %d2;", op="add sub mul div.rn"), "fma.rn.f64 %d0, %d1, %d2, %d3;",
    *_each("{op}.rn.f64 %d0, %d1;", op="rcp sqrt"), "rsqrt.approx.f64 %d0, %d1;", "add.rm.f64 %d0, %d1, %d2;",
    *_each("{op}.{t} %h0, %h1, %h2;", op="add sub mul min max min.NaN max.NaN", t="f16 bf16"),
    *_each("{op}.{t} %r0, %r1, %r2;", op="add sub mul min max min.NaN max.NaN", t="f16x2 bf16x2"),
    *_each("fma.rn.{t} %h0, %h1, %h2, %h3;", t="f16 bf16"), *_each("fma.rn.{t} %r0, %r1, %r2, %r3;", t="f16x2 bf16x2"),
    *_each("setp.{c}.f64 %p2, %d1, %d2;", c="eq ne lt le gt ge equ neu ltu leu gtu geu num nan"),
    *_each("cvt.rn.f64.{t} %d0, %{r}1;", t="s32 u32", r="r"), *_each("cvt.rn.f64.{t} %d0, %{r}1;", t="s64 u64", r="d"),
    "cvt.f64.f32 %d0, %r1;", "cvt.rn.f32.f64 %r0, %d1;", "cvt.rn.sat.f32.f64 %r0, %d1;", "cvt.rz.f32.f64 %r0, %d1;",
    *_each("cvt.{m}{z}.{t}.f32 %r0, %r1;", m="rni rzi rmi rpi", z="- .ftz", t="s32 u32"),
    *_each("cvt.{m}.{t}.f64 %r0, %d1;", m="rni rzi rmi rpi", t="s32 u32"), "cvt.rzi.s64.f64 %d0, %d1;",
    *_each("cvt.{m}{z}.f32.f32 %r0, %r1;", m="rni rzi rmi rpi", z="- .sat"), "cvt.sat.f32.f32 %r0, %r1;",
    *_each("fma.{m}.f32 %r0, %r1, %r2, %r3;", m="rz rm rp rn.sat rm.sat rn.ftz.sat rm.ftz"),
    "add.sat.f32 %r1, %r1, %r2;",
    "shfl.sync.bfly.b32 %r0, %r1, 1, 31, -1;", "shfl.sync.idx.b32 %r0, %r1, 3, 31, -1;",
    "shfl.sync.up.b32 %r0, %r1, 2, 0, -1;", "shfl.sync.down.b32 %r0, %r1, 1, 0x1C1D, -1;",
    "shfl.sync.idx.b32 %r0, %r1, %r2, 0x1803, -1;", *_each("shfl.sync.{m}.b32 %r0, %r1, %r2, %r3, -1;", m="idx down"),
    *_each("shfl.sync.{m}.b32 %r0, %r1, 3, %r3, -1;", m="up bfly idx"),
    *_each("redux.sync.{op} %r0, %r1, -1;", op="add.s32 and.b32 or.b32 xor.b32 min.s32 max.s32 min.u32 max.u32"),
    *_each("redux.sync.{op}.f32 %r0, %r1, -1;", op="min max min.NaN max.NaN max.abs"),
    *_each("vote.sync.{m}.pred %p2, %p1, -1;", m="all any uni"), "vote.sync.ballot.b32 %r0, %p1, -1;",
    "elect.sync _|%p2, -1;",
    "elect.sync %r13|%p2, -1;", "bar.warp.sync -1;", "shfl.sync.up.b32 %r0|%p3, %r1, 3, 0, -1;",
    "mov.b64 %d0, {%r1, %r2};", "mov.b64 {%r0, %r3}, %d1;", "mov.b32 %r0, {%h1, %h2};", "mov.b32 {%h0, %h3}, %r1;",
    "mov.u32 %r0, %laneid;", "mov.u32 %r0, %ctaid.x;", "mov.b32 %r0, buf;", "mov.u64 %d0, buf;", "mov.pred %p2, %p1;",
    "cvta.shared.u64 %d0, %d1;", "cvta.to.global.u64 %d0, %d1;",
]  # fmt: skip
"""Instructions on %r0 to %r3, %d0 to %d3, %h0 to %h3 and predicates: those that have micro-operations, and others."""

EDGES = [
    0,
    1,
    31,
    32,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0x7F800000,
    0xFFC00001,
    0x7F800001,
    1,
    0x80000000,
    0x477FF000,
]


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
    text = MODULE.format(target="sm_100a", body="\n".join(lines))
    return text.replace(".param .align 64 .b8 map[128]", ".param .u64 values")


WITHOUT = [
    *_each("{op}.s16 %h0, %h1, %h2;", op="min max"), *_each("mul.hi.{t} %d0, %d1, %d2;", t="u64 s64"),
    "rem.u16 %h0, %h1, %h2;", "dp2a.lo.s32.s32 %r0, %r1, %r2, %r3;", "mul.wide.s16 %r0, %h1, %h2;",
    "bfi.b32 %r0, %r1, %r2, %r3,3;", *_each("{op}.rz.f32x2 %d0, %d1, %d2;", op="add sub mul"),
    "add.rm.f64 %d0, %d1, %d2;", "cvt.rz.f32.f64 %r0, %d1;",
    *_each("cvt.{m}.ftz.{t}.f32 %r0, %r1;", m="rmi rpi", t="s32 u32"),
    "cvt.rzi.s64.f64 %d0, %d1;", "fma.rm.ftz.f32 %r0, %r1, %r2, %r3;", "redux.sync.max.abs.f32 %r0, %r1, -1;",
]  # fmt: skip
"""The forms that Python runs."""


@pytest.mark.thorough
def test_the_forms_have_micro_operations():
    """A form that loses its own would be tested against itself."""
    without = []
    for form in FORMS:
        module = Module(program(form, "", False))
        plan = module.code(None).native(False)
        assert plan is not None
        native = sum(piece.last - piece.first for pieces in plan.pieces for piece in pieces if piece.start >= 0)
        if native < len(module.find(None).instructions):
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
    plan = module_of(text).code(None).native(True)
    instructions = module_of(text).find(None).instructions
    native = [i.opcode for b in plan.pieces for p in b if p.start >= 0 for i in instructions[p.first : p.last]]
    assert native.count("stmatrix") == 2 and native.count("tcgen05") == 2
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


# ---- faults, and what is taken back ----

PREFIX = """
mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;
mov.b32 %r5, words; shl.b32 %r6, %r0, 2; add.u32 %r7, %r5, %r6;
"""
FAULTS = {
    "never written": "ld.shared.u32 %r1, [%r7];",
    "never written, one place": "ld.shared.u32 %r1, [%r5+64];",
    "outside every allocation": "ld.global.u32 %r1, [%rd1+1000000000];",
    "outside every allocation, store": "st.global.u32 [%rd1+1000000000], %r1;",
    "not aligned": "ld.global.u32 %r1, [%rd1+2];",
    "not aligned to the 16 bytes": "st.global.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};",
    "beyond the CTA's": "st.shared.u32 [%r7+8192], %r1;",
    "outside every allocation, null": "mov.b64 %rd2, 0; ld.global.u32 %r1, [%rd2];",
    "mbarriers are opaque": "st.shared.u32 [%r7+2048], %r1;",
    "reads kernel parameter bytes": "ld.param.u32 %r1, [out+64];",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_has_the_same_words_and_leaves_the_same_behind(name):
    """Stores before it have happened, once: x = x + 1 is not done twice, in memory or in a register."""
    body = f"""
    {PREFIX}
    add.u32 %r8, %r5, 2048;
    mov.b32 %r1, 1;
    mov.b32 %r9, 0;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r8], 1;
    st.global.u32 [%rd1], %r9;
    bar.sync 0;
    add.u32 %r9, %r9, 1;
    ld.global.u32 %r10, [%rd1];
    add.u32 %r10, %r10, %r9;
    st.global.u32 [%rd1], %r10;
    st.global.u32 [%rd1+512], %r9;
    {FAULTS[name]}
    st.global.u32 [%rd1], %r9;
    ret;
    """
    found = same(source(body, WORDS))
    assert name.partition(",")[0] in found["error"]
    assert found["stops"][StopReason.FAILED]
    words = np.frombuffer(found["out"], np.uint32)
    assert words[:32].tolist() == words[128:160].tolist() == [1] * 32


def test_stores_of_every_size_are_taken_back():
    """A block that adds to memory and then does what only Python knows to be legal: all of it happens once.

    That is a store between two mbarriers.
    """
    adding = "".join(
        f"""
        {guard} ld.global.{kind} {register}, [%rd2+{512 * n}];
        {guard} add.{kind} {register}, {register}, 1;
        {guard} st.global.{kind} [%rd2+{512 * n}], {register};
        """
        for guard in ("", "@%p1", "@%p2")
        for n, (kind, register) in enumerate([("u16", "%rs1"), ("u32", "%r1"), ("u64", "%rd3")])
    )
    body = f"""
    mul.wide.u32 %rd2, %r0, 8; add.s64 %rd2, %rd0, %rd2; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;
    mov.b32 %r5, words; setp.lt.u32 %p1, %r0, 9; setp.eq.u32 %p2, %r5, %r5; setp.eq.u32 %p3, %r0, 0; mov.b32 %r9, 0;
    st.global.u8 [%rd2+2048], %r9; st.global.u32 [%rd1+4096], %r9;
    @%p3 mbarrier.init.shared.b64 [%r5+2048], 1;
    @%p3 mbarrier.init.shared.b64 [%r5+2064], 1;
    bar.sync 0;
    ld.global.u8 %r1, [%rd2+2048]; add.u32 %r1, %r1, 1; st.global.u8 [%rd2+2048], %r1; {adding}
    ld.global.u8 %r1, [%rd0+2048]; add.u32 %r1, %r1, 1; st.global.u8 [%rd0+2048], %r1;
    ld.global.u32 %r1, [%rd1+4096]; add.u32 %r1, %r1, 1; st.global.u32 [%rd1+4096], %r1;
    st.shared.u32 [%r5+2056], %r0;
    ret;
    """
    found = same(source(body, WORDS))
    assert "error" not in found
    assert found["stops"][StopReason.FAILED]


ADDS = ("red.global.add.u32 [%rd1], 1;", "ld.global.u32 %r1, [%rd1]; add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r1;")


@pytest.mark.parametrize("add", ADDS)
@pytest.mark.parametrize("last", ["and.b32 %r9, %r9, 255;", "@%p1 mov.b32 %r8, 1;", "@%p1 bra END; END:"])
def test_the_last_access_of_a_block_is_taken_back_for_what_follows_it(last, add):
    """Undefined bits, an undefined guard and an undefined branch are Python's, which does the block once."""
    start = "setp.lt.u32 %p2, %r0, 16; @%p2 setp.eq.u32 %p1, %r0, 3; @%p2 mov.b32 %r9, 1; mov.b32 %r8, 0;"
    text = f"{PREFIX} {start} st.global.u32 [%rd1], %r8; bar.sync 0; {add} {last} ret;"
    found = same(source(text, WORDS))
    assert found["stops"][StopReason.FAILED]
    assert np.frombuffer(found["out"], np.uint32)[:32].tolist() == [1] * 32


def test_what_an_operation_has_written_that_is_taken_back_is_not_read_later():
    """What it computes of undefined bits is overwritten at once, in Python, with a number that is one object always."""
    body = f"""
    {PREFIX} setp.lt.u32 %p2, %r0, 16; @%p2 mov.b32 %r9, 5; mov.b32 %r4, 6; mov.b32 %r1, 0;
    ROUND: add.u32 %r1, %r1, 1; st.global.u32 [%rd1], %r4; bra NEXT;
    NEXT: popc.b32 %r4, %r9; mov.b32 %r4, 32; setp.lt.u32 %p1, %r1, 3; @%p1 bra ROUND;
    ret;
    """
    found = same(source(body, WORDS))
    assert found["stops"][StopReason.FAILED]
    assert np.frombuffer(found["out"], np.uint32)[:32].tolist() == [32] * 32


# ---- atomics ----

ATOMICS = [
    *_each("{op}.b{n}", op="and or xor exch cas", n="32 64"), *_each("{op}.{t}", op="min max", t="u32 s32 u64 s64"),
    *_each("add.{t}", t="u32 s32 u64 f32 f64"), *_each("{op}.u32", op="inc dec"),
]  # fmt: skip
OPERANDS = {
    "32": "0 1 2 5 0x7FFFFFFF 0x80000000 0xFFFFFFFF 0xFFFFFFFE 0x3F800000 0xBF800000 0x7F800000 0xFF800000 0x7FC00001 "
    "0x00000001 0x807FFFFF 0x33800000",
    "64": "0 1 2 5 0x7FFFFFFFFFFFFFFF 0x8000000000000000 0xFFFFFFFFFFFFFFFF 0x00000000FFFFFFFF 0x3FF0000000000000 "
    "0xBFF0000000000000 0x7FF0000000000000 0xFFF0000000000000 0x7FF0000000000001 0x0000000000000001 0x3CA0000000000000 "
    "0xFFF8000000000003",
}
PLACES = {
    "one each": "mov.u32 %r6, %r0;",
    "four to a place": "shr.u32 %r6, %r0, 2;",
    "all to one": "mov.u32 %r6, 3;",
}
LANES = {
    "all": "@%p0",
    "some": "@%p1",
    "those that come": "setp.lt.u32 %p2, %r0, 7; @%p2 bra END;",
    "one": "setp.ne.u32 %p2, %r0, 9; @%p2 bra END;",
}


def atomic_program(operation: str, space: str, lanes: str) -> str:
    """Memory and operands are edge values; what the lanes get and what is left is stored, for each of the places."""
    bits = "64" if "64" in operation else "32"
    shift, r = (3, "%rd") if bits == "64" else (2, "%r")
    third = f", {r}13" if operation.startswith("cas") else ""
    edges, literal = OPERANDS[bits].replace(" ", ", "), "1.0" if operation[-3] == "f" else "5"
    body = """
    setp.lt.u32 %p0, %r0, 40; and.b32 %r1, %r0, 5; setp.ne.u32 %p1, %r1, 4;
    mov.u64 %rd3, edges; mul.wide.u32 %rd5, %r0, 8; add.s64 %rd5, %rd0, %rd5;
    """
    for number, (times, more) in enumerate(((1, 0), (5, 3), (3, 1))):
        body += f"mad.lo.u32 %r2, %r0, {times}, {more}; and.b32 %r2, %r2, 15; shl.b32 %r2, %r2, {shift};"
        body += f"cvt.u64.u32 %rd4, %r2; add.s64 %rd4, %rd3, %rd4; ld.global.b{bits} {r}{11 + number}, [%rd4];"
    for n, place in enumerate(PLACES.values()):
        at, end, guard = ("%rd2" if space == "global" else "%r5") + f"+{8192 + 256 * n}", f"END{n}", LANES[lanes]
        branch, guard = (guard.replace("END", end), "") if guard.endswith(";") else ("", guard)
        body += f"""
        mov.b{bits} {r}14, 77; {place} shl.b32 %r6, %r6, {shift};
        mov.u32 %r5, words; add.u32 %r5, %r5, %r6; cvt.u64.u32 %rd2, %r6; add.s64 %rd2, %rd0, %rd2;
        st.{space}.b{bits} [{at}], {r}11; bar.sync 0;
        {branch}
        {guard} atom.{space}.{operation} {r}14, [{at}], {r}12{third};
        {guard} atom.{space}.{operation} _, [{at}], {r}11{third};
        {guard} {"atom" if third else "red"}.{space}.{operation} {"_, " if third else ""}[{at}], {literal}{third};
        {end}: bar.sync 0;
        ld.{space}.b{bits} {r}15, [{at}];
        st.global.b{bits} [%rd5+{256 * n}], {r}14; st.global.b{bits} [%rd5+{4096 + 256 * n}], {r}15;
        """
    scope = f".shared .align 8 .b8 words[16384]; .global .align 8 .b{bits} edges[16] = {{{edges}}};"
    return source(body + "ret;", scope)


@pytest.mark.parametrize("space", ["shared", "global"])
@pytest.mark.parametrize("operation", ATOMICS)
def test_atomics_do_the_same_to_memory_and_return_the_same(operation, space):
    for lanes in LANES:
        text = atomic_program(operation, space, lanes)
        found = same(text, threads=32)
        assert "error" not in found, (lanes, found["error"])
        plan = module_of(text).code(None).native(True)
        assert plan is not None and all(piece.start >= 0 for pieces in plan.pieces for piece in pieces)


ATOMIC_FAULTS = {
    "never written": "atom.shared.add.u32 %r1, [%r7], 1;",
    "outside every allocation": "atom.global.cas.b32 %r1, [%rd1+1000000000], 1, 2;",
    "not aligned": "red.global.add.u32 [%rd1+2], 1;",
    "mbarriers are opaque": "atom.shared.add.u32 %r1, [%r7+2048], 1;",
    "names CTA rank": "atom.shared.add.u32 %r1, [%r7+0x40000000], 1;",
}


@pytest.mark.parametrize("name", ATOMIC_FAULTS)
def test_atomics_before_a_fault_have_happened_once(name):
    body = f"""
    {PREFIX}
    add.u32 %r8, %r5, 2048; mov.b32 %r9, 0; setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r8], 1;
    st.global.u32 [%rd1], %r9; st.global.u32 [%rd0+512], %r9;
    bar.sync 0;
    atom.global.add.u32 %r9, [%rd1], 1; red.global.add.u32 [%rd1], %r9; red.global.inc.u32 [%rd0+512], 100;
    {ATOMIC_FAULTS[name]}
    red.global.add.u32 [%rd1], 1;
    ret;
    """
    found = same(source(body, WORDS))
    assert name in found["error"]
    assert found["stops"][StopReason.FAILED]
    words = np.frombuffer(found["out"], np.uint32)
    assert words[:32].tolist() == [1] * 32 and words[128] == 32


def test_atomics_on_shared_memory_are_taken_back():
    """A store between two mbarriers, which only Python knows to be legal, follows them in their block."""
    body = f"""
    {PREFIX}
    setp.eq.u32 %p1, %r0, 0; and.b32 %r8, %r6, 28; add.u32 %r8, %r8, %r5;
    @%p1 mbarrier.init.shared.b64 [%r5+2048], 1;
    @%p1 mbarrier.init.shared.b64 [%r5+2064], 1;
    st.shared.u32 [%r8], 0; st.shared.u32 [%r8+32], 0; st.shared.u32 [%r5+64], 0;
    bar.sync 0;
    atom.shared.add.u32 %r9, [%r8], 1; red.shared.max.u32 [%r8+32], %r9; atom.shared.inc.u32 %r9, [%r5+64], 100;
    st.shared.u32 [%r5+2056], %r0;
    ld.shared.u32 %r10, [%r8]; st.global.u32 [%rd1], %r9; st.global.u32 [%rd1+128], %r10;
    ret;
    """
    found = same(source(body, WORDS))
    assert found["stops"][StopReason.FAILED]
    words = np.frombuffer(found["out"], np.uint32)
    assert words[:32].tolist() == [*range(32)] and words[32:64].tolist() == [4] * 32


ATOMIC_LOOPS = {
    "a lock": """
    TAKE: atom.global.cas.b32 %r1, [%rd0], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra TAKE;
    ld.global.u32 %r2, [%rd0+4]; add.u32 %r2, %r2, 1; st.global.u32 [%rd0+4], %r2; atom.global.exch.b32 %r1, [%rd0], 0;
    """,
    "a count": "TAKE: atom.global.add.u32 %r1, [%rd0+4], 1; setp.lt.u32 %p1, %r1, 20000; @%p1 bra TAKE;",
    "a lock that nobody gives back": "TAKE: atom.global.cas.b32 %r1, [%rd0], 1, 1; setp.ne.u32 %p1, %r1, 1; "
    "@%p1 bra TAKE;",
    "what a red waits for": "mov.u32 %r5, words; st.shared.u32 [%r5], 7; "
    "TAKE: red.shared.max.u32 [%r5], 0; add.u32 %r3, %r3, 1; setp.ne.u32 %p1, %r3, 0; @%p1 bra TAKE;",
}


@pytest.mark.parametrize("schedule, seed", [("fifo", 0), ("random", 5)])
@pytest.mark.parametrize("name", ATOMIC_LOOPS)
def test_loops_of_atomics(monkeypatch, name, schedule, seed):
    monkeypatch.setattr("emugpu.emulator.machine.patience.PATIENCE", 8)
    body = f"""
    mov.b32 %r3, 1; setp.ne.u32 %p2, %r0, 0; mov.u32 %r4, %ctaid.x; setp.ne.u32 %p3, %r4, 0;
    @%p2 bra END;
    @%p3 bra START;
    st.global.u32 [%rd0], 0; st.global.u32 [%rd0+4], 0;
    START: ld.global.u32 %r2, [%rd0+4]; setp.eq.u32 %p1, %r2, 0xEEEEEEEE; @%p1 bra START;
    {ATOMIC_LOOPS[name]}
    END: ret;
    """
    found = same(source(body, WORDS), threads=64, schedule=schedule, seed=seed, max_steps=400_000)
    if name == "a lock":
        assert np.frombuffer(found["out"], np.uint32)[:2].tolist() == [0, 2]
    elif name == "a count":
        assert np.frombuffer(found["out"], np.uint32)[1] == 20002
    else:
        assert "Livelock" in found["error"] or "LimitExceeded" in found["error"]


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


def test_later_launches_of_a_kernel_find_its_memory_as_new():
    """Twelve launches one after the other, each of which leaves the rows and the tables as they come, or faults."""
    body = """
    setp.lt.u32 %p1, %r0, 16; mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; ld.param.u32 %r9, [n];
    @%p1 mov.b32 %r5, %r0; setp.gt.u32 %p2, %r0, %r9; @%p2 bra A; add.u32 %r5, %r5, %r9; A: bar.sync 0;
    @%p1 st.global.u32 [%rd1], %r5; setp.eq.u32 %p3, %r9, 7; @!%p3 bra B; setp.gt.u32 %p4, %r5, 3; @%p4 bra B; B: ret;
    """
    module = Module(source(body, parameters=["u32 n"]))
    kept = []
    for n in range(12):
        found = []
        for modules, has in ((module, True), (Module(source(body, parameters=["u32 n"])), False)):
            device = Device(library=library() if has else None)
            out = device.alloc(256)
            device.memset(out, 0xEE, 256)
            try:
                device.launch(modules, grid=2, block=64, arguments=[out, n])
                found.append(device.download(out, np.uint32, 64).tolist())
            except Fault as error:
                found.append(str(error))
        assert found[0] == found[1]
        assert isinstance(found[0], str) == (n == 7)
        kept += module.code(None).native(True).workspaces
    assert len(kept) == 11  # not that of the launch that has failed
    assert len({id(one) for one in kept}) == 2


def test_what_python_does_in_a_block_is_done_between_native_pieces():
    body = f"""
    {PREFIX}
    st.shared.u32 [%r7], %r0;
    add.u32 %r1, %r0, 1;
    add.u32 %r1, %r1, 1;
    match.any.sync.b32 %r2, %r1, -1;
    add.u32 %r3, %r2, %r1;
    add.u32 %r3, %r3, %r1;
    mul.lo.u32 %r3, %r3, 3;
    xor.b32 %r3, %r3, %r2;
    st.global.u32 [%rd1], %r3;
    ret;
    """
    found = same(source(body, WORDS))
    assert found["stops"][StopReason.LEFT]
    assert "error" not in found


COLLATZ = """
    mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;
    mov.b32 %r1, 0;
    add.u32 %r2, %r0, 1;
    LOOP:
    setp.eq.u32 %p1, %r2, 1;
    @%p1 bra DONE;
    add.u32 %r1, %r1, 1;
    and.b32 %r3, %r2, 1;
    setp.eq.u32 %p2, %r3, 0;
    @%p2 bra EVEN;
    mad.lo.u32 %r2, %r2, 3, 1;
    bra LOOP;
    EVEN:
    shr.u32 %r2, %r2, 1;
    bra LOOP;
    DONE:
    st.global.u32 [%rd1], %r1;
    ret;
"""


@pytest.mark.parametrize("schedule, seed", [("fifo", 0), ("random", 1), ("random", 2), ("random", 3)])
def test_lanes_that_go_separate_ways(schedule, seed):
    found = same(source(COLLATZ), schedule=schedule, seed=seed, threads=48)
    assert found["stops"][StopReason.DIVERGES if schedule == "random" else StopReason.CANNOT_SPLIT]

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    assert np.frombuffer(found["out"], np.uint32)[:48].tolist() == [steps(n + 1) for n in range(48)]


@pytest.mark.parametrize("most", [1, 3, 50])
def test_turns_may_be_broken_off_while_lanes_are_apart(monkeypatch, most):
    """Splits and joins of the turns before are handed over then, and others of these turns take their numbers."""
    monkeypatch.setattr(machine, "NATIVE_TURNS", most)
    assert same(source(COLLATZ), threads=48)["stops"][StopReason.TURNS_OVER] > 3


def test_lanes_that_leave_a_long_loop_one_by_one_need_python_only_to_end_the_cta():
    """They go on natively in the window, too, in which it is watched whether the loop only polls."""
    stops = same(source(COLLATZ), threads=64)["stops"]
    assert stops.keys() <= {StopReason.EXITS, StopReason.CANNOT_SPLIT}
    assert stops[StopReason.EXITS] == 2  # CTAs


def test_a_loop_that_only_polls_is_found_out_all_the_same():
    body = "LOOP: ld.global.u32 %r1, [%rd0]; add.u32 %r2, %r1, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra LOOP; ret;"
    assert Livelock.__name__ in same(source(body))["error"]


@pytest.mark.parametrize("split", ["", "@!%p2 bra SECOND;"])
@pytest.mark.parametrize("schedule, seed", [("fifo", 0), ("random", 3)])
def test_what_lanes_hold_that_are_elsewhere_does_not_make_a_loop_more_than_one_that_polls(split, schedule, seed):
    """Half a warp multiplies zeros while it polls; the row's other lanes grow. The other warp is done later."""
    body = f"""
    {PREFIX}
    setp.lt.u32 %p1, %r0, 16; setp.lt.u32 %p2, %r0, 8; setp.ge.u32 %p3, %r0, 32;
    mov.b32 %r4, 0; bar.sync 0; @%p3 bra OTHER; @!%p1 bra END; {split}
    selp.u32 %r4, 0, %r0, %p1; bra LOOP;
    SECOND: mov.b32 %r4, 0;
    LOOP: mul.lo.u32 %r4, %r4, 3; ld.global.u32 %r1, [%rd0+4096]; setp.ne.u32 %p4, %r1, 1; @%p4 bra LOOP;
    END: st.global.u32 [%rd1], %r4; ret;
    OTHER: mov.b32 %r2, 0;
    WORK: add.u32 %r2, %r2, 1; setp.lt.u32 %p4, %r2, 3000; @%p4 bra WORK;
    st.global.u32 [%rd0+4096], 1; ret;
    """
    found = same(source(body, WORDS), threads=64, schedule=schedule, seed=seed)
    assert "error" not in found and not np.frombuffer(found["out"], np.uint32)[:16].any()
    if schedule == "fifo":
        # Of a turn of 64 blocks and a round of polling: not of a window of 256 blocks, or of several.
        assert found["counters"].instructions["memory"] < 2 * 2 * 80


ROUND = "add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 3000; @%p1 bra LOOP;"
LOOPS = {
    "counts": ROUND,
    "looks at one place": f"ld.global.u32 %r2, [%rd0]; {ROUND}",
    "looks at five places": "".join(f"ld.global.u32 %r2, [%rd0+{4 * n}];" for n in range(5)) + ROUND,
    "adds to a place": f"ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 1; st.global.u32 [%rd1], %r2; {ROUND}",
    "faults at last": f"mad.wide.u32 %rd2, %r1, 64, %rd1; st.global.u32 [%rd2], %r1; {ROUND}",
    "stores, and splits in a window": (
        f"st.global.u32 [%rd1], %r1; add.u32 %r3, %r0, 100; setp.eq.u32 %p2, %r1, %r3; @%p2 bra DONE; {ROUND}"
    ),
    "splits at last": f"add.u32 %r3, %r0, 2000; setp.eq.u32 %p2, %r1, %r3; @%p2 bra DONE; {ROUND}",
    "counts to 8": f"add.u32 %r1, %r1, 1; and.b32 %r1, %r1, 7; {ROUND}",
    "counts to 8, and stores": f"st.global.u32 [%rd1], %r1; and.b32 %r1, %r1, 7; {ROUND}",
    "stands still, reading": "ld.global.u32 %r2, [%rd0]; setp.ne.u32 %p1, %r2, 7; @%p1 bra LOOP;",
}


@pytest.mark.parametrize("schedule, seed", [("fifo", 0), ("random", 4)])
@pytest.mark.parametrize("name", LOOPS)
def test_long_loops(monkeypatch, name, schedule, seed):
    """The windows in which it is watched whether a loop only polls; they go by natively where that is certain."""
    in_python = 0
    window, polls = NativeEngine.pass_window, Machine._polls
    passed: list[Any] = [None]

    def noted(self: NativeEngine, f: Any, blocks: int) -> Any:
        passed[0] = window(self, f, blocks)
        return passed[0]

    def counted(self: Machine, *arguments: Any) -> bool | None:
        nonlocal in_python
        passed[0] = None
        answer = polls(self, *arguments)
        in_python += answer is False and passed[0] is None and self.engine is not None
        return answer

    monkeypatch.setattr(NativeEngine, "pass_window", noted)
    monkeypatch.setattr(Machine, "_polls", counted)
    body = f"{PREFIX} mov.b32 %r1, 0; LOOP: {LOOPS[name]} DONE: st.global.u32 [%rd1+4096], %r1; ret;"
    found = same(source(body, WORDS), schedule=schedule, seed=seed, max_steps=200_000)
    if schedule == "fifo":
        assert bool(in_python) == (name == "looks at five places")
    assert ("error" in found) == (
        name in ("faults at last", "counts to 8", "counts to 8, and stores", "stands still, reading")
    )


def test_a_loop_of_scalars_is_worth_its_windows(monkeypatch):
    """While other warps poll for its end: a turn of many short blocks is not nothing."""
    windows: Counter[bool] = Counter()
    passes = Machine._passes_natively

    def noted(self: Machine, *arguments: Any) -> bool:
        answer = passes(self, *arguments)
        windows[answer] += 1
        return answer

    monkeypatch.setattr(Machine, "_passes_natively", noted)
    body = f"""
    {PREFIX} mov.b32 %r1, 0; st.shared.u32 [%r5+4092], 0; bar.sync 0; setp.ge.u32 %p3, %r0, 32; @%p3 bra OTHERS;
    LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 20000; @%p1 bra LOOP; st.shared.u32 [%r5+4092], 1; bra END;
    OTHERS: and.b32 %r8, %r0, 3; setp.eq.u32 %p2, %r8, 1; @%p2 bra END;
    POLL: ld.volatile.shared.u32 %r2, [%r5+4092]; setp.eq.u32 %p1, %r2, 0; @%p1 bra POLL;
    END: st.global.u32 [%rd1], %r1; ret;
    """
    device = Device(library=library())
    device.launch(module_of(source(body, WORDS)), grid=4, block=128, arguments=[device.alloc(4096)])
    assert windows[False] < 50  # those of the polling loops are Python's


@pytest.mark.parametrize("rounds", range(319, 323))
@pytest.mark.parametrize("schedule, seed", [("fifo", 0), ("random", 4)])
def test_a_window_may_end_where_lanes_meet(rounds, schedule, seed):
    """A turn of 64 blocks and a window of 256 come to their end in one of these rounds."""
    loop = f"""
    setp.lt.u32 %p1, %r0, 16; selp.u32 %r3, {rounds}, 0, %p1; mov.b32 %r1, 0;
    LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, %r3; @%p1 bra LOOP;
    st.global.u32 [%rd1], %r1; ret;
    """
    found = same(source(f"{PREFIX} {loop}", WORDS), schedule=schedule, seed=seed, threads=64)
    assert np.frombuffer(found["out"], np.uint32)[:17].tolist() == [rounds] * 16 + [1]


def test_lanes_that_split_natively_keep_what_only_python_has_read_and_written():
    """A register that is live where native code begins, and that it does not need."""
    only_python = "vabsdiff4.u32.u32.u32.add"
    body = f"""
    {PREFIX} {only_python} %r3, %r0, 7, 0; mov.b32 %r1, 0; bar.sync 0;
    add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r0, 10; @%p1 bra LOW; add.u32 %r1, %r1, 1; bra BOTH;
    LOW: add.u32 %r1, %r1, 2;
    BOTH: {only_python} %r3, %r3, %r1, 0; st.global.u32 [%rd1], %r3; ret;
    """
    assert same(source(body, WORDS), threads=64)["stops"][StopReason.CANNOT_SPLIT]


@pytest.mark.parametrize("uninitialised", ["report", "zero", "random"])
def test_bytes_that_nobody_has_written_are_told_of_alike(uninitialised):
    """Those are Python's, in a native piece that has stored before it reads them."""
    text = f"""
    {PREFIX}
    st.global.u32 [%rd1+4096], %r0;
    bar.sync 0;
    ld.global.u32 %r1, [%rd1+4096]; add.u32 %r1, %r1, 1; st.global.u32 [%rd1+4096], %r1;
    ld.shared.u32 %r2, [%r7]; add.u32 %r1, %r1, %r2; ld.global.u32 %r2, [%rd1+2048];
    st.global.u32 [%rd1], %r1; st.global.u32 [%rd1+1024], %r2; ret;
    """
    found = []
    for native in (None, library()):
        device = Device(seed=3, uninitialised=uninitialised, library=native)
        out = device.alloc(8192)
        with watched() as stops:
            result = device.launch(module_of(source(text, WORDS)), grid=1, block=32, arguments=[out])
        words = [device.download(out + place, np.uint32, 32).tolist() for place in (0, 1024, 4096)]
        found.append((words, result.warnings, result.counters))
    assert stops[StopReason.FAILED] and found[0][1]
    assert found[0] == found[1]


def test_a_kernel_that_does_nothing():
    device = Device(library=library())
    text = ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry nothing()\n{\nret;\n}\n"
    assert device.launch(module_of(text), grid=2, block=64).counters.instructions == {"branch": 4}


def test_a_limit_of_steps_is_the_same():
    text = source("mov.b32 %r1, 0; LOOP: add.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra LOOP; ret;")
    said = []
    for native in (None, library()):
        device = Device(library=native)
        with pytest.raises(Exception, match="warp instructions") as raised:
            device.launch(module_of(text), grid=1, block=32, arguments=[device.alloc(4)], max_steps=10_000)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_a_limit_is_the_same_behind_turns_that_python_has_given():
    """Five long turns in Python, and as many natively, before it is next looked at how many steps are left."""
    adds = "add.u32 %r1, %r1, 1;" + "xor.b32 %r3, %r3, %r1;" * 20
    body = f"""
    {PREFIX} mov.b32 %r1, 0; mov.b32 %r3, 0;
    PYTHON: vabsdiff4.u32.u32.u32.add %r3, %r1, 7, 0; {adds} setp.lt.u32 %p1, %r1, 1500; @%p1 bra PYTHON;
    NATIVE: xor.b32 %r3, %r3, %r1; {adds} setp.ne.u32 %p1, %r1, 0; @%p1 bra NATIVE; st.global.u32 [%rd1], %r3; ret;
    """
    for limit in (48_000, 50_000, 60_000):
        found = same(source(body, WORDS), max_steps=limit)["error"]
        steps = int(found.partition("it has executed ")[2].partition(" ")[0].replace(",", ""))
        assert limit < steps <= limit + 24


def test_a_store_counts_as_a_change():
    body = f"{PREFIX} mov.b32 %r1, 5; st.global.u32 [%rd1], %r1; st.shared.v2.u32 [%r5], {{%r1, %r1}}; ret;"
    assert same(source(body, WORDS))["changes"] >= 2


def test_who_does_not_take_runs_has_all_events_from_python():
    listener = Listener(is_deferred=False)
    device = Device(library=library())
    text = source("mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r0; ret;")
    with watched() as stops:
        device.launch(module_of(text), grid=1, block=32, arguments=[device.alloc(4096)], sinks=[listener, Listener()])
    assert not stops.total()
    assert any(name == "Access" for name, *_ in listener.seen)


EVENTS = f"""
{PREFIX} mov.b32 %r8, words; shl.b32 %r9, %r0, 4; add.u32 %r8, %r8, %r9; setp.lt.u32 %p1, %r0, 20; mov.b32 %r2, 7;
@%p1 st.shared.v4.b32 [%r8], {{%r0, %r2, %r0, %r2}}; @!%p1 st.shared.u8 [%r8+1], %r0;
st.shared.b64 [words+1024], %rd1; st.shared.u16 [words+1032], %r0; bar.sync 0; ld.shared.u16 %r3, [words+1032];
shfl.sync.bfly.b32 %r4, %r0, 1, 31, -1; mov.b32 %r6, -1; vote.sync.ballot.b32 %r6, %p1, %r6;
@%p1 bra LOW; add.u32 %r2, %r2, 1; st.global.u32 [%rd1], %r2; bra JOIN;
LOW: st.global.u16 [%rd1], %r4;
JOIN: bar.sync 1, 64; @%p1 bra END; ld.global.u32 %r1, [%rd1];
END: ret;
"""


@pytest.mark.parametrize(("schedule", "seed"), [("fifo", 0), ("random", 1), ("random", 4)])
def test_events_are_the_same_in_the_same_order(monkeypatch, schedule, seed):
    """Also where there is no room to write more down in the middle of a turn."""
    text = source(EVENTS, WORDS)
    for entries in (None, 2):
        if entries:
            monkeypatch.setattr(trace, "ENTRIES", entries)
        python, native = (
            _listened(text, engine, schedule=schedule, seed=seed, threads=64) for engine in (None, library())
        )
        assert native.runs
        assert python.seen == native.seen
    kinds = {name for name, *_ in python.seen}
    assert kinds >= {"Access", "Diverged", "Rejoined", "WarpSynced", "GroupArrived", "GroupCompleted", "GroupLeft"}
    assert kinds >= {"Exited", "Resumed", "Suspended"}


SHORT = {
    "an undefined address": "add.u32 %r1, %r0, 1; ld.global.u32 %r1, [%rd9];",
    "a shuffle of what all lanes have": "mov.u32 %r1, %ctaid.x; shfl.sync.idx.b32 %r2, %r1, 3, 0x1803, -1; "
    "shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1; st.global.u32 [%rd1], %r2; st.global.u32 [%rd1+128], %r3;",
    "a shuffle with bounds of each lane": "shl.b32 %r1, %r0, 3; or.b32 %r1, %r1, 3; "
    "shfl.sync.idx.b32 %r2, %r0, 9, %r1, -1; shfl.sync.down.b32 %r3, %r2, 1, %r0, -1; "
    "st.global.u32 [%rd1], %r2; st.global.u32 [%rd1+128], %r3;",
}


@pytest.mark.parametrize("name", SHORT)
def test_events_of_short_programs_are_the_same(name):
    """Also values that are one for all lanes, or one for each."""
    text = source(f"{PREFIX} {SHORT[name]} ret;", WORDS)
    python, native = (_listened(text, engine, schedule="fifo", seed=0, threads=32) for engine in (None, library()))
    assert [name for name, *_ in python.seen].count("Access") >= 2
    assert python.seen == native.seen


def _listened(text: str, engine: Any, *, schedule: Any, seed: int, threads: int) -> Listener:
    listener, device = Listener(), Device(schedule=schedule, seed=seed, library=engine)
    out = device.alloc(65536)
    device.memset(out, 1, 65536)
    with suppress(Fault):
        device.launch(module_of(text), grid=2, block=threads, arguments=[out], sinks=[listener])
    return listener


# ---- registers, block by block ----


@pytest.mark.thorough
def test_registers_are_the_same_after_every_turn(monkeypatch):
    """What is live at the start of the next block, as scalars or arrays, under a schedule of short turns."""
    traces: list[list[Any]] = []
    turn = Machine._run

    def noted(self: Machine, fragment: Any) -> bool:
        answer = turn(self, fragment)
        block = fragment.block
        live = self.code.live_in[block] if block >= 0 else ()
        values = [fragment.registers[slot] for slot in live]
        shown = [v.tolist() if isinstance(v, np.ndarray) else (type(v).__name__, v) for v in values]
        traces[-1].append((fragment.warp.index, fragment.mask, block, shown, self.wakeups.changes))
        return answer

    monkeypatch.setattr(Machine, "_run", noted)
    for text, threads in ((source(COLLATZ), 48), (SGEMM, 0)):
        for seed in (1, 2, 3):
            traces.clear()
            for native in (None, library()):
                traces.append([])
                device = Device(schedule="random", seed=seed, library=native)
                if threads:
                    device.launch(module_of(text), grid=1, block=threads, arguments=[device.alloc(4096)])
                else:
                    buffers = [device.upload(np.ones((64, 64), np.float32)) for _ in range(3)]
                    shape = {"grid": (2, 1), "block": (32, 32)}
                    device.launch(module_of(text), "sgemm", **shape, arguments=[*buffers, 64, 64])
            assert traces[0] == traces[1]


# ---- whole launches ----


@pytest.mark.thorough
@pytest.mark.parametrize("path", LAUNCHES, ids=lambda path: path.stem)
def test_launch_files_under_both_engines(path):
    what = read_launch_file(path)
    for schedule, seed in (("fifo", 0), ("random", 1), ("random", 5)):
        options = EmulationOptions(schedule=schedule, seed=seed, engine="python", strict=False)
        found: list[Any] = []
        for engine in ("python", "native"):
            try:
                done = run(what, replace(options, engine=engine))
                contents = {name: array.tobytes() for name, array in done.contents.items()}
                listener = Listener()
                run(what, replace(options, engine=engine, sinks=(listener,)), keep=())
                found.append((contents, done.counters, done.output, done.warnings, listener.seen))
            except CannotRun as error:
                found.append(str(error))
        assert found[0] == found[1]


def test_epilogues_begin_with_accumulators_of_wgmma():
    """Python puts them into the registers: native code begins there, and does not go on to there by itself."""
    what = read_launch_file(ROOT / "tests" / "data" / "launches" / "nvcc_wgmma_gemm.toml")
    plan = module_of(what.text).code(None).native(True)
    native = [
        (b, n, piece) for b, pieces in enumerate(plan.pieces) for n, piece in enumerate(pieces) if piece.start >= 0
    ]
    assert any(piece.publishes for _, _, piece in native)
    for block, number, piece in native:
        if number == 0:
            assert (plan.entries[block] < 0) == piece.publishes


@pytest.mark.thorough
def test_kernels_of_the_series_under_both_engines(series):
    from kernel_runs import problem

    # With K = 768 MMAs are still to be multiplied when the accumulator, which was written before, is loaded.
    for kernel, k in (*((kernel, 128) for kernel in sorted(series)), ("kernel7", 768)):
        _, what = problem(series[kernel], (256, 256, k), "integer")
        for schedule, seed in (("fifo", 0), ("random", 3)):
            options = EmulationOptions(schedule=schedule, seed=seed)
            python, native = (run(what, replace(options, engine=engine)) for engine in ("python", "native"))
            assert python.counters == native.counters
            assert all((python.contents[n] == native.contents[n]).all() for n in python.contents)


def test_without_the_library_python_runs_everything(monkeypatch, caplog):
    from emugpu.emulator.native import library as native

    native._library.cache_clear()
    monkeypatch.setenv("HARNESS_MOJO", "/nowhere/mojo")
    try:
        assert native.library_for("native") is None
        assert EmulationOptions().engine_used == "python"
        assert len(caplog.records) == 1 and "the Mojo compiler was not found" in caplog.text
    finally:
        native._library.cache_clear()


@pytest.mark.thorough
def test_the_library_is_compiled_once(monkeypatch, tmp_path, capsys):
    from emugpu.emulator.native import library as mojo

    counted = []
    build = mojo._answer

    def noted(command: list[Any], seconds: float) -> str:
        counted.append(command[1])
        return build(command, seconds)

    monkeypatch.setattr(mojo, "_answer", noted)
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    text = '@export\ndef nothing() abi("C") -> Int:\n    return 7\n'
    first, second = (mojo.shared_library({"library.mojo": text}, "nothing") for _ in range(2))
    assert first == second and first.exists()
    assert counted == ["--version", "build", "--version"]
    assert capsys.readouterr().err == "emugpu: compiling nothing, once on this machine\n"
    with pytest.raises(CannotRun, match="error"):
        mojo.shared_library({"library.mojo": "nonsense("}, "nonsense")


# ---- random programs ----


class Program:
    """Random PTX: arithmetic on %r1 to %r4, branches, loops, barriers, early exits, shuffles, shared memory."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.labels = 0

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def add(self, text: str) -> None:
        self.lines.append(text)

    def register(self) -> str:
        return self.rng.choice(("%r1", "%r2", "%r3", "%r4"))

    def arithmetic(self) -> None:
        a, b, d = self.register(), self.rng.choice((self.register(), "%r0", "3", "17")), self.register()
        self.add(f"{self.rng.choice(('add.u32', 'xor.b32', 'mul.lo.u32', 'sub.u32', 'min.u32'))} {d}, {a}, {b};")

    def condition(self) -> str:
        """Puts a predicate into %p1 that some lanes, warps, or none of them have."""
        what = self.rng.choice(("%r0", "%r0", self.register(), "%r5"))
        self.add(f"and.b32 %r6, {what}, {self.rng.choice((1, 3, 7, 32, 63))};")
        self.add(f"setp.{self.rng.choice(('eq', 'lt', 'ne'))}.u32 %p1, %r6, {self.rng.choice((0, 1, 2, 5))};")
        return self.rng.choice(("@%p1", "@!%p1"))

    def statements(self, depth: int, together: bool) -> None:
        """together: whether all lanes of a CTA are sure to come here, and as often."""
        for _ in range(self.rng.randint(1, 4)):
            kind = self.rng.random()
            if kind < 0.35 or depth == 0:
                self.arithmetic()
            elif kind < 0.55:
                over, end = self.label(), self.label()
                self.add(f"{self.condition()} bra {over};")
                self.statements(depth - 1, False)
                self.add(f"bra {end}; {over}:")
                if self.rng.random() < 0.6:
                    self.statements(depth - 1, False)
                self.add(f"{end}:")
            elif kind < 0.7:
                again, counter = self.label(), f"%r{10 + depth}"
                bound = self.rng.choice(("2", "5", "90" if depth == 1 else "3", "%r5"))
                self.add(f"and.b32 %r5, {self.rng.choice(('%r0', '%r1'))}, 3; add.u32 %r5, %r5, 1;")
                self.add(f"mov.b32 %r{14 + depth}, {bound}; mov.b32 {counter}, 0;")
                self.add(f"{again}: add.u32 {counter}, {counter}, 1;")
                self.statements(depth - 1, together and bound != "%r5")
                self.add(f"setp.lt.u32 %p2, {counter}, %r{14 + depth}; @%p2 bra {again};")
            elif kind < 0.85 and together:
                word = self.rng.choice((self.register(), "%r0"))
                self.add(f"st.shared.u32 [%r7], {word};")
                count = self.rng.choice(("", "", ", 128"))
                self.add(self.rng.choice((f"bar.sync 0{count};", f"barrier.sync 3{count};")))
                self.add(f"ld.shared.u32 {self.register()}, [%r8]; bar.sync 1;")
            elif kind < 0.9:
                self.add(f"st.global.u32 [%rd1+{4096 * self.rng.randint(0, 3)}], {self.register()};")
            elif kind < 0.95 and together:
                self.add(f"shfl.sync.bfly.b32 %r1, {self.register()}, {self.rng.choice((1, 4))}, 31, -1;")
            elif not together and depth == 1 and self.rng.random() < 0.3:
                self.add(f"{self.condition()} ret;")

    def text(self) -> str:
        self.add(
            """
            mul.wide.u32 %rd1, %r0, 4; mov.u32 %r9, %ctaid.x; mul.wide.u32 %rd2, %r9, 512; add.s64 %rd1, %rd0, %rd1;
            add.s64 %rd1, %rd1, %rd2; mov.b32 %r5, words; shl.b32 %r6, %r0, 2; add.u32 %r7, %r5, %r6;
            xor.b32 %r6, %r6, 128; add.u32 %r8, %r5, %r6; mov.b32 %r5, 2; st.shared.u32 [%r7], %r0;
            add.u32 %r1, %r0, 1; mov.b32 %r2, 5; xor.b32 %r3, %r0, 21; mov.b32 %r4, %r9;
            """
        )
        self.statements(3, True)
        if self.rng.random() < 0.5:  # barriers for everybody, where some have left
            self.add(f"{self.condition()} ret; barrier.sync 2;")
        self.add("".join(f"st.global.u32 [%rd1+{16384 + 4096 * n}], %r{n + 1};" for n in range(4)) + "ret;")
        return source("\n".join(self.lines), WORDS)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.thorough) for first in range(30, 120, 30))]
)
def test_random_programs(first):
    for seed in range(first, first + 30):
        text = Program(seed).text()
        assert outcome(text, True, threads=128) == outcome(text, False, threads=128), (seed, text)
        if seed % 5 == 0:
            options = {"threads": 128, "schedule": "random", "seed": seed}
            assert outcome(text, True, **options) == outcome(text, False, **options), (seed, text)
