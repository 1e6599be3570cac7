"""Events of memory: which addresses an access has, and which values."""

from __future__ import annotations

import numpy as np
from event_streams import FIRST_WORD, WHOLE_WARP, of, one, stream
from ptx_programs import STORE_R1

from emugpu.emulator.machine.events import Access, Agent, GridStarted


def test_an_access_tells_addresses_and_values(watched):
    body = """
    mov.b32 %r3, words;
    shl.b32 %r4, %r0, 4; add.u32 %r4, %r4, %r3;
    mov.b32 %r5, 70000; st.shared.b32 [%r3+2048], %r5;
    st.shared.b16 [%r3+2052], %r5;
    st.shared.v4.b32 [%r4], {%r0, %r5, %r0, %r5};
    ld.shared.v4.b32 {%r6, %r7, %r8, %r9}, [%r4];
    shl.b32 %r10, %r0, 1; add.u32 %r10, %r10, %r3;
    st.shared.u16 [%r10+1024], %r0;
    ld.shared.u8 %r11, [%r3+2048];
    """
    body = body.replace("st.shared.b16 [%r3+2052], %r5;", "cvt.u16.u32 %rs1, %r5; st.shared.b16 [%r3+2052], %rs1;")
    body = body.replace("st.shared.u16 [%r10+1024], %r0;", "cvt.u16.u32 %rs2, %r0; st.shared.u16 [%r10+1024], %rs2;")
    seen = stream(body + "mov.b32 %r1, %r0;" + STORE_R1 + "ret;")
    parameter, word, half, vector, loaded, halves, byte, out = of(seen, Access)
    lanes = np.arange(32)
    assert {a.agent for a in of(seen, Access)} == {Agent(0, 0, 0, WHOLE_WARP)}
    assert parameter[2:] == ("read", "param", -1, 0, 8, 1, None)
    assert word[2:] == ("write", "shared", 0, FIRST_WORD + 2048, 4, 1, 70000)
    assert half[2:] == ("write", "shared", 0, FIRST_WORD + 2052, 2, 1, 70000 & 0xFFFF)
    assert (vector.mode, vector.nbytes, vector.items) == ("write", 4, 4)
    assert (vector.where == FIRST_WORD + 16 * lanes).all()
    first, second, third, fourth = vector.values
    assert (first == lanes).all() and second == fourth == 70000 and (third == lanes).all()
    assert loaded[2:5] == ("read", "shared", 0) and loaded[6:] == (4, 4, None)
    assert (loaded.where == vector.where).all()
    assert (halves.where == FIRST_WORD + 1024 + 2 * lanes).all() and halves.nbytes == 2
    assert (halves.values == lanes).all()
    assert byte[2:] == ("read", "shared", 0, FIRST_WORD + 2048, 1, 1, None)
    address = one(seen, GridStarted).allocations[0][1]
    assert out[2:5] == ("write", "global", -1) and (out.where == address + 4 * lanes).all()
    assert (out.values == lanes).all()
    watched.check()


def test_a_guarded_access_is_that_of_its_lanes(watched):
    body = """
    mov.b32 %r3, words;
    shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r3;
    setp.ge.u32 %p1, %r0, 28;
    @%p1 st.shared.b32 [%r4], %r0;
    @%p1 ld.shared.b32 %r5, [%r4];
    ret;
    """
    for access in of(stream(body), Access)[1:]:
        assert access.agent.lanes == 0xF000_0000
        assert access.where.tolist() == [FIRST_WORD + 4 * lane for lane in range(28, 32)]
        assert access.values is None or access.values.tolist() == [28, 29, 30, 31]
    watched.check()


def test_generic_and_cluster_addresses_are_told_apart(watched):
    """Of each CTA, lanes below 8 write to global memory, those below 16 to their own CTA, the others to the peer."""
    body = """
    mov.b32 %r3, words;
    mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    cvt.u64.u32 %rd4, %r3; cvta.shared.u64 %rd5, %rd4;
    mapa.u64 %rd6, %rd5, %r5;
    mul.wide.u32 %rd7, %r4, 128; add.s64 %rd7, %rd7, %rd0;
    setp.lt.u32 %p1, %r0, 16;
    @%p1 mov.b64 %rd6, %rd5;
    setp.lt.u32 %p1, %r0, 8;
    @%p1 mov.b64 %rd6, %rd7;
    mul.wide.u32 %rd8, %r0, 4; add.s64 %rd6, %rd6, %rd8;
    st.b32 [%rd6], %r0;
    ld.b32 %r6, [%rd6];
    mapa.shared::cluster.u32 %r7, %r3, %r5;
    st.shared::cluster.b32 [%r7+512], %r4;
    atom.shared::cluster.add.u32 %r8, [%r7+512], 1;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    ret;
    """
    seen = stream(body, grid=2, cluster=2, words=64)
    base = one(seen, GridStarted).allocations[0][1]
    for cta in range(2):
        mine = [a for a in of(seen, Access) if a.agent.cta == cta and a.space != "param"]
        expected = {
            ("global", -1, 0xFF): [base + 128 * cta + 4 * lane for lane in range(8)],
            ("shared", cta, 0xFF00): [FIRST_WORD + 4 * lane for lane in range(8, 16)],
            ("shared", 1 - cta, 0xFFFF_0000): [FIRST_WORD + 4 * lane for lane in range(16, 32)],
        }
        for accesses, mode in ((mine[:3], "write"), (mine[3:6], "read")):
            found = {(a.space, a.cta, a.agent.lanes): a.where.tolist() for a in accesses}
            assert found == expected and {a.mode for a in accesses} == {mode}
        for access in mine[:3]:
            assert access.values.tolist() == [n for n in range(32) if access.agent.lanes >> n & 1]
        assert mine[6][2:] == ("write", "shared", 1 - cta, FIRST_WORD + 512, 4, 1, cta)
        for lane, access in enumerate(mine[7:]):
            assert access.agent.lanes == 1 << lane
            assert access[2:] == ("atomic", "shared", 1 - cta, FIRST_WORD + 512, 4, 1, cta + lane + 1)
    watched.check()


def test_atomics_are_told_lane_by_lane_with_what_they_leave_behind(watched):
    body = """
    mov.b32 %r3, words;
    mov.b32 %r4, 5; st.shared.b32 [%r3], %r4;
    atom.shared.add.u32 %r5, [%r3], %r0;
    setp.lt.u32 %p1, %r0, 2;
    @%p1 atom.global.cas.b32 %r6, [%rd0], 3, 9;
    mov.b64 %rd4, 1;
    @%p1 red.global.or.b64 [%rd0+8], %rd4;
    ret;
    """
    seen = stream(body, initial=np.array([3, 0, 6, 7]))
    ((_, address, _),) = one(seen, GridStarted).allocations
    atomics = [a for a in of(seen, Access) if a.mode == "atomic"]
    assert [a.agent.lanes for a in atomics] == [1 << lane for lane in (*range(32), 0, 1, 0, 1)]
    assert [a.values for a in atomics[:32]] == (np.cumsum(np.arange(32)) + 5).tolist()
    assert [a[2:] for a in atomics[32:]] == [
        *[("atomic", "global", -1, address, 4, 1, 9)] * 2,
        *[("atomic", "global", -1, address + 8, 8, 1, 6 | 7 << 32 | 1)] * 2,
    ]
    watched.check()


def test_matrix_accesses_are_told_row_by_row(watched):
    body = """
    mov.b32 %r3, words;
    shl.b32 %r4, %r0, 4; add.u32 %r4, %r4, %r3;
    stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r4], {%r0, %r0};
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4];
    ret;
    """
    written, read = of(stream(body), Access)[1:]
    assert (written.nbytes, written.items, read.nbytes, read.items) == (16, 1, 16, 1)
    assert written.where.tolist() == [FIRST_WORD + 16 * row for row in range(16)]
    assert read.where.tolist() == [FIRST_WORD + 16 * row for row in range(8)]
    assert len(written.values) == 16 and written.values.itemsize == 16 and read.values is None
    watched.check()
