"""Every operation of atom and red, on shared and global memory, with values at the edges (PTX ISA 9.7.13.5)."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, launch

TOP = 0x80000000

CASES = [
    # operation, old, b, new
    ("add.u32", 0xFFFFFFFF, 2, 1),
    ("add.s32", 5, 0xFFFFFFFD, 2),
    ("and.b32", 0b1100, 0b1010, 0b1000),
    ("or.b32", 0b1100, 0b1010, 0b1110),
    ("xor.b32", 0b1100, 0b1010, 0b0110),
    ("exch.b32", 7, 9, 9),
    ("inc.u32", 4, 5, 5),
    ("inc.u32", 5, 5, 0),
    ("inc.u32", 6, 5, 0),
    ("dec.u32", 0, 5, 5),
    ("dec.u32", 1, 5, 0),
    ("dec.u32", 5, 5, 4),
    ("dec.u32", 6, 5, 5),
    ("min.u32", TOP, 3, 3),
    ("min.s32", TOP, 3, TOP),
    ("min.s32", 4, 3, 3),
    ("max.u32", TOP, 3, TOP),
    ("max.s32", TOP, 3, 3),
    ("max.s32", 2, 0xFFFFFFFF, 2),
    ("add.f32", 0x3F800000, 0x40000000, 0x40400000),
]
SPACES = {
    "shared": "mov.b32 %r3, words; shl.b32 %r4, %r0, 2; add.u32 %r3, %r3, %r4;",
    "global": "mul.wide.u32 %rd3, %r0, 4; add.s64 %rd3, %rd0, %rd3; add.s64 %rd3, %rd3, 256;",
}
ADDRESS = {"shared": "%r3", "global": "%rd3"}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("lanes", [32, 20])
def test_each_operation_returns_the_old_value_and_stores_the_new_one(space, lanes):
    for operation, old, b, new in CASES:
        place = ADDRESS[space]
        body = f"""
        setp.ge.u32 %p1, %r0, {lanes}; @%p1 exit;
        {SPACES[space]}
        st.{space}.b32 [{place}], {old};
        mov.b32 %r5, {b};
        atom.{space}.{operation} %r6, [{place}], %r5;
        ld.{space}.b32 %r7, [{place}];
        mul.wide.u32 %rd4, %r0, 4; add.s64 %rd4, %rd0, %rd4;
        st.global.b32 [%rd4], %r6;
        st.global.b32 [%rd4+128], %r7;
        ret;
        """
        run = launch(body, words=96, module_scope=".shared .align 4 .b8 words[128];")
        assert (run.words(lanes) == old).all(), operation
        found = run.device.download(run.out + 128, np.uint32, lanes)
        assert (found == new).all(), (operation, hex(old), hex(b), hex(int(found[0])))


@pytest.mark.parametrize(("wanted", "found", "new"), [(5, 5, 9), (4, 5, 5)])
def test_cas_stores_only_where_it_finds_what_it_wants(wanted, found, new):
    body = f"""
    mul.wide.u32 %rd3, %r0, 8; add.s64 %rd3, %rd0, %rd3;
    mov.b64 %rd4, {found | 1 << 40};
    st.global.b64 [%rd3], %rd4;
    mov.b64 %rd5, {wanted | 1 << 40};
    mov.b64 %rd6, {9 | 1 << 40};
    atom.global.cas.b64 %rd7, [%rd3], %rd5, %rd6;
    setp.ne.u64 %p1, %rd7, %rd4;
    @%p1 trap;
    ret;
    """
    run = launch(body, words=64)
    assert (run.device.download(run.out, np.uint64, 32) == new | 1 << 40).all()


def test_lanes_take_turns_at_one_place_and_red_returns_nothing():
    body = """
    mov.b32 %r3, words;
    st.shared.b32 [%r3], 30;
    atom.shared.inc.u32 %r1, [%r3], 31;
    st.shared.b32 [%r3+4], 3;
    red.shared.max.u32 [%r3+4], %r0;
    bar.warp.sync -1;
    ld.shared.b32 %r2, [%r3+4];
    mul.lo.u32 %r2, %r2, 100; add.u32 %r1, %r1, %r2;
    """
    run = launch(body + STORE_R1 + "ret;", module_scope=".shared .align 4 .b8 words[128];")
    assert run.words(32).tolist() == [3100 + n for n in (30, 31, *range(30))]


def test_an_atomic_of_a_narrow_type_keeps_its_neighbours():
    body = """
    setp.ne.u32 %p1, %r0, 0; @%p1 exit;
    st.global.b32 [%rd0], 0xAABBCCDD;
    mov.b16 %rs1, 0x1234;
    atom.global.exch.b16 %rs2, [%rd0+2], %rs1;
    cvt.u32.u16 %r1, %rs2;
    st.global.b32 [%rd0+4], %r1;
    ret;
    """
    assert launch(body, words=2).words(2).tolist() == [0x1234CCDD, 0xAABB]
