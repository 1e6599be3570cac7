"""How many operands an instruction has, and how they may be written: all are used, and a wrong number is refused."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch, run, source

from emugpu.emulator import Device, Fault, Module, PtxSyntaxError

LANES = np.arange(32)

# ---- max and min of three ----


def bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


NAN = 0x7FC00000
TRIPLES = [(1.0, 2.0, 3.0), (3.0, 2.0, 1.0), (1.0, 3.0, 2.0), (-5.0, -7.0, -6.5), (0.25, -1e30, 1e30)]


@pytest.mark.parametrize("triple", TRIPLES)
@pytest.mark.parametrize(("opcode", "chosen"), [("max", max), ("min", min)])
def test_the_largest_and_smallest_of_three(opcode, chosen, triple):
    moves = "".join(f"mov.b32 %r{n}, {bits(v)};" for n, v in zip((2, 3, 4), triple, strict=True))
    assert (run(moves + f"{opcode}.f32 %r1, %r2, %r3, %r4;" + STORE_R1 + "ret;") == bits(chosen(triple))).all()


@pytest.mark.parametrize(("opcode", "chosen"), [("max", np.maximum), ("min", np.minimum)])
def test_the_largest_and_smallest_of_three_in_every_lane(opcode, chosen):
    body = f"""
    cvt.rn.f32.u32 %r2, %r0;
    mul.lo.u32 %r3, %r0, 7;
    and.b32 %r3, %r3, 31;
    cvt.rn.f32.u32 %r3, %r3;
    mul.lo.u32 %r4, %r0, 11;
    and.b32 %r4, %r4, 31;
    cvt.rn.f32.u32 %r4, %r4;
    {opcode}.f32 %r5, %r2, %r3, %r4;
    cvt.rzi.u32.f32 %r1, %r5;
    """
    expected = chosen(chosen(LANES, LANES * 7 % 32), LANES * 11 % 32)
    assert (run(body + STORE_R1 + "ret;") == expected).all()


@pytest.mark.parametrize("position", range(3))
def test_a_nan_among_three_is_left_out(position):
    values = [bits(2.0), bits(-4.0)]
    values.insert(position, NAN)
    moves = "".join(f"mov.b32 %r{n}, {v};" for n, v in zip((2, 3, 4), values, strict=True))
    assert (run(moves + "max.f32 %r1, %r2, %r3, %r4;" + STORE_R1 + "ret;") == bits(2.0)).all()
    assert (run(moves + "min.f32 %r1, %r2, %r3, %r4;" + STORE_R1 + "ret;") == bits(-4.0)).all()


# ---- numbers of operands ----

WRITTEN = "mov.b32 %r3, words;" + "".join(f"mov.b32 %r{n}, {n};" for n in (1, 2, 4, 5, 6))
WRITTEN += "".join(f"mov.b64 %rd{n}, {n};" for n in (2, 3, 4)) + "mov.b16 %rs1, 1; mov.b16 %rs2, 1;"
WRITTEN += "setp.eq.u32 %p1, %r1, 1; setp.eq.u32 %p2, %r1, 1; st.shared.v4.b32 [%r3], {%r1, %r1, %r1, %r1};"

WRONG_COUNTS = [
    "add.s32 %r1, %r2;",
    "add.s32 %r1, %r2, %r4, %r5;",
    "add.s32 %r1;",
    "sub.u32 %r1, %r2, %r4, %r5;",
    "mul.lo.u32 %r1, %r2;",
    "mul.wide.u32 %rd2, %r2, %r4, %r5;",
    "mad.lo.s32 %r1, %r2, %r4;",
    "mad.lo.s32 %r1, %r2, %r4, %r5, %r6;",
    "fma.rn.f32 %r1, %r2, %r4;",
    "fma.rn.f32 %r1, %r2, %r4, %r5, %r6;",
    "add.f32 %r1, %r2, %r4, %r5;",
    "div.u32 %r1, %r2;",
    "rem.u32 %r1, %r2, %r4, %r5;",
    "min.s32 %r1, %r2;",
    "min.s32 %r1, %r2, %r4, %r5;",
    "max.u32 %r1, %r2, %r4, %r5;",
    "max.f32 %r1, %r2;",
    "max.f32 %r1, %r2, %r4, %r5, %r6;",
    "neg.s32 %r1, %r2, %r4;",
    "abs.s32 %r1;",
    "not.b32 %r1, %r2, %r4;",
    "and.b32 %r1, %r2;",
    "xor.b32 %r1, %r2, %r4, %r5;",
    "shl.b32 %r1, %r2;",
    "shr.u32 %r1, %r2, %r4, %r5;",
    "shf.l.wrap.b32 %r1, %r2, %r4;",
    "lop3.b32 %r1, %r2, %r4, %r5;",
    "prmt.b32 %r1, %r2, %r4;",
    "bfe.u32 %r1, %r2, %r4;",
    "bfi.b32 %r1, %r2, %r4, %r5;",
    "popc.b32 %r1, %r2, %r4;",
    "mov.b32 %r1;",
    "mov.b32 %r1, %r2, %r4;",
    "cvt.u64.u32 %rd2;",
    "cvt.u64.u32 %rd2, %r2, %r4;",
    "setp.eq.s32 %p1, %r2;",
    "setp.eq.s32 %p1, %r2, %r4, %p2;",
    "setp.eq.and.s32 %p1, %r2, %r4;",
    "selp.b32 %r1, %r2, %r4;",
    "selp.b32 %r1, %r2, %r4, %p1, %p2;",
    "ld.shared.b32 %r1;",
    "ld.shared.b32 %r1, [%r3], %r2, %r4;",
    "ld.shared.v2.b32 {%r1}, [%r3];",
    "ld.shared.v2.b32 {%r1, %r2, %r4, %r5}, [%r3];",
    "ld.shared.b32 {%r1, %r2}, [%r3];",
    "st.shared.b32 [%r3];",
    "st.shared.b32 [%r3], %r1, %r2, %r4;",
    "st.shared.v4.b32 [%r3], {%r1, %r2};",
    "atom.shared.add.u32 %r1, [%r3];",
    "atom.shared.cas.b32 %r1, [%r3], %r2;",
    "red.shared.add.u32 [%r3];",
    "cvta.shared.u64 %rd2;",
    "shfl.sync.idx.b32 %r1, %r2, 0, 31;",
    "vote.sync.ballot.b32 %r1, %p1;",
    "bar.sync;",
    "bar.sync 0, 32, 32;",
    "bar.warp.sync;",
    "barrier.cluster.arrive 0;",
    "mbarrier.init.shared.b64 [%r3];",
    "mbarrier.init.shared.b64 [%r3], 1, 2;",
    "fence.proxy.async %r1;",
]


@pytest.mark.parametrize("instruction", WRONG_COUNTS)
def test_a_wrong_number_of_operands_is_refused(instruction):
    with pytest.raises((PtxSyntaxError, Fault)) as error:
        run(WRITTEN + "\n" + instruction + "\nmov.b32 %r1, 1;" + STORE_R1 + "ret;", module_scope=WORDS)
    assert instruction.split()[0].rstrip(";") in str(error.value)


RIGHT_COUNTS = [
    "add.s32 %r1, %r2, %r4;",
    "mad.lo.s32 %r1, %r2, %r4, %r5;",
    "fma.rn.f32 %r1, %r2, %r4, %r5;",
    "min.s32 %r1, %r2, %r4;",
    "shf.l.wrap.b32 %r1, %r2, %r4, %r5;",
    "lop3.b32 %r1, %r2, %r4, %r5, 128;",
    "bfi.b32 %r1, %r2, %r4, 5, 6;",
    "cvt.rn.bf16x2.f32 %r1, %r2, %r4;",
    "setp.eq.and.s32 %p1, %r2, %r4, %p2;",
    "setp.eq.s32 %p1|%p2, %r2, %r4;",
    "ld.shared.v2.b32 {%r1, %r2}, [%r3];",
    "ld.shared.v2.b32 {%r1, _}, [%r3];",
    "atom.shared.cas.b32 %r1, [%r3], %r2, %r4;",
    "shfl.sync.idx.b32 %r1|%p1, %r2, 0, 31, -1;",
    "bar.sync 0;",
    "bar.sync 0, 32;",
    "barrier.cluster.arrive; barrier.cluster.wait;",
]


@pytest.mark.parametrize("instruction", RIGHT_COUNTS)
def test_the_right_number_of_operands_is_accepted(instruction):
    launch(WRITTEN + instruction + "ret;", module_scope=WORDS)


# ---- how it may be written ----

TIGHT = {
    "ld.shared.v2.b32{%r1,%r2},[%r3];": lambda: 3,
    "ld.shared.b32 %r1,[%r3+4];": lambda: 2,
    "st.shared.v2.b32[%r3],{%r4,%r5};ld.shared.v2.b32{%r1, %r2}, [%r3];": lambda: 9,
    "mov.b64{%r1,%r2},%rd4;": lambda: 4,
}


@pytest.mark.parametrize("text", TIGHT)
def test_no_blank_is_needed_before_a_brace_or_bracket(text):
    body = "mov.b32 %r3, words; mov.b32 %r1, 0; mov.b32 %r2, 0; mov.b64 %rd4, 4; mov.b32 %r4, 4; mov.b32 %r5, 5;"
    body += "mov.b32 %r6, 1; mov.b32 %r7, 2; st.shared.v2.b32 [%r3], {%r6, %r7};" + text + "add.u32 %r1, %r1, %r2;"
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == TIGHT[text]()).all()


def test_a_label_or_guard_needs_no_blank_either():
    body = "mov.b32 %r1,1;setp.eq.u32 %p1,%r0,3;@%p1 bra OVER;mov.b32 %r1,2;OVER:mov.b64{%r2,%r3},%rd0;"
    assert (run(body + STORE_R1 + "ret;") == np.where(LANES == 3, 1, 2)).all()


def test_an_instruction_that_is_refused_at_load_names_its_line():
    text = source("\nadd.s32 %r1, %r2;\nret;")
    line = 1 + text[: text.index("add.s32 %r1")].count("\n")
    with pytest.raises((PtxSyntaxError, Fault), match=rf"PTX line {line}\b"):
        device = Device()
        device.launch(Module.from_text(text), grid=1, block=32, arguments=[device.alloc(4)])
