"""Matrices of which only some rows were written: what is computed from the others is undefined, and nothing else is.

Kernels load the tail of a tile whose rows beyond the data nobody has written, and do not store what they compute from
it. PTX ISA 9.7.14.5: a row of D depends on the same row of A and on all of B, and a column on the same column of B.
"""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch

from emugpu.emulator import Device, Fault

WRITE = """
mov.b32 %r3, words;
mov.b32 %r4, 0x3c003c00;
mad.lo.u32 %r5, %r0, 32, %r3;
setp.lt.u32 %p1, %r0, {written};
@%p1 st.shared.v4.b32 [%r5], {{%r4, %r4, %r4, %r4}};
@%p1 st.shared.v4.b32 [%r5+16], {{%r4, %r4, %r4, %r4}};
bar.warp.sync -1;
"""
"""Rows of 16 elements f16, all 1.0, of which the first ones are written."""
LOAD_A = """
and.b32 %r6, %r0, 15;
shr.u32 %r7, %r0, 4;
mad.lo.u32 %r6, %r6, 32, %r3;
mad.lo.u32 %r6, %r7, 16, %r6;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r6];
mov.b32 %r14, 0x3c003c00;
mov.b32 %r15, 0x3c003c00;
"""
LOAD_B = """
and.b32 %r6, %r0, 7;
shr.u32 %r7, %r0, 3;
and.b32 %r7, %r7, 1;
mad.lo.u32 %r6, %r6, 32, %r3;
mad.lo.u32 %r6, %r7, 16, %r6;
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r14, %r15}, [%r6];
mov.b32 %r10, 0x3c003c00;
mov.b32 %r11, 0x3c003c00;
mov.b32 %r12, 0x3c003c00;
mov.b32 %r13, 0x3c003c00;
"""
MULTIPLY = {
    "f32": """
    mov.b32 %r16, 0;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
        {%r20, %r21, %r22, %r23}, {%r10, %r11, %r12, %r13}, {%r14, %r15}, {%r16, %r16, %r16, %r16};
    """,
    "f16": """
    mov.b32 %r16, 0;
    mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16
        {%r20, %r22}, {%r10, %r11, %r12, %r13}, {%r14, %r15}, {%r16, %r16};
    """,
}
SIXTEEN = {"f32": 0x41800000, "f16": 0x4C004C00}


def run(body: str):
    return launch(body + STORE_R1 + "ret;", module_scope=WORDS, device=Device(uninitialised="poison"))


def lanes_defined(body: str) -> dict[int, int]:
    """The word that each lane has stored, of the lanes that stored defined bits."""
    done = run(body)
    found = {}
    for lane in range(32):
        try:
            found[lane] = int(done.device.download(done.out + 4 * lane, np.uint32, 1)[0])
        except Fault as fault:
            assert "is undefined" in str(fault) and "never written" in str(fault)
    return found


@pytest.mark.parametrize("kind", MULTIPLY)
@pytest.mark.parametrize("written", [3, 8, 11, 16])
def test_rows_of_a(written, kind):
    """Register 0 holds row lane / 4, register 2 holds row lane / 4 + 8."""
    body = WRITE.format(written=written) + LOAD_A + MULTIPLY[kind]
    for register, first in (("%r20", 0), ("%r22", 8)):
        found = lanes_defined(body + f"mov.b32 %r1, {register};")
        assert found == {lane: SIXTEEN[kind] for lane in range(32) if first + lane // 4 < written}


@pytest.mark.parametrize("written", [2, 6])
def test_columns_of_b(written):
    """Register 0 holds column 2 (lane % 4), register 1 the next one."""
    body = WRITE.format(written=written) + LOAD_B + MULTIPLY["f32"]
    for register, first in (("%r20", 0), ("%r21", 1)):
        found = lanes_defined(body + f"mov.b32 %r1, {register};")
        assert found == {lane: SIXTEEN["f32"] for lane in range(32) if first + 2 * (lane % 4) < written}


def test_an_element_of_c():
    body = (
        WRITE.format(written=16)
        + LOAD_A
        + MULTIPLY["f32"].replace("mov.b32 %r16, 0;", "setp.eq.u32 %p2, %r0, 5; @!%p2 mov.b32 %r16, 0;")
    )
    assert set(lanes_defined(body + "mov.b32 %r1, %r20;")) == set(range(32)) - {5}


@pytest.mark.parametrize("transposed", ["", ".trans"])
def test_stmatrix_and_ldmatrix_carry_what_is_undefined(transposed):
    """A matrix of 8 x 8, of which 5 rows were written, is stored and loaded again."""
    body = f"""
    and.b32 %r6, %r0, 7;
    mad.lo.u32 %r6, %r6, 32, %r3;
    ldmatrix.sync.aligned.m8n8.x1{transposed}.shared.b16 {{%r10}}, [%r6];
    stmatrix.sync.aligned.m8n8.x1{transposed}.shared.b16 [%r6+1024], {{%r10}};
    bar.warp.sync -1;
    shr.u32 %r7, %r0, 2;
    and.b32 %r8, %r0, 3;
    mad.lo.u32 %r7, %r7, 32, %r3;
    mad.lo.u32 %r7, %r8, 4, %r7;
    ld.shared.b32 %r1, [%r7+1024];
    """
    found = lanes_defined(WRITE.format(written=5) + body)
    assert found == {lane: 0x3C003C00 for lane in range(20)}


@pytest.mark.parametrize("use", ["setp.eq.u32 %p2, %r22, 0; @%p2 bra END; END:", "st.shared.b32 [%r22], 0;"])
def test_a_use_that_decides_ends_the_launch(use):
    with pytest.raises(Fault, match="never written") as error:
        run(WRITE.format(written=8) + LOAD_A + MULTIPLY["f32"] + use)
    assert error.value.rule == "uninitialised"


def test_where_reads_of_unwritten_memory_are_errors_so_is_the_load():
    with pytest.raises(Fault, match="shared memory byte 0x500 is read but was never written"):
        launch(WRITE.format(written=8) + LOAD_A + "mov.b32 %r1, 0;" + STORE_R1 + "ret;", module_scope=WORDS)
