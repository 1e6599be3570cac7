"""Generic addresses: which memory one names is decided for every lane by its address (PTX ISA 5.1, 9.7.9)."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch, run

from emugpu.emulator import Fault

LANES = np.arange(32)

SHARED_POINTER = """
mov.b32 %r3, words;
cvt.u64.u32 %rd4, %r3; cvta.shared.u64 %rd5, %rd4;
"""
"""%rd5: the generic address of ``words``."""


def test_lanes_that_agree_on_a_generic_address_reach_its_word():
    body = SHARED_POINTER + "mov.b32 %r4, 7; st.b32 [%rd5+8], %r4; ld.shared.b32 %r5, [%r3+8]; ld.b32 %r6, [%rd5+8];"
    assert (run(body + "add.u32 %r1, %r5, %r6;" + STORE_R1 + "ret;", module_scope=WORDS) == 14).all()


@pytest.mark.parametrize("instruction", ["atom.add.u32 %r9, [%rd5], %r0;", "red.add.u32 [%rd5], %r0;"])
def test_a_generic_atomic_reaches_shared_memory(instruction):
    body = f"""
    setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
    mov.b32 %r4, 1000;
    mov.b32 %r3, words;
    st.shared.b32 [%r3], %r4;
    READY: bar.warp.sync -1;
    {SHARED_POINTER}
    {instruction}
    bar.warp.sync -1;
    ld.shared.b32 %r1, [%r3];
    """
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == 1000 + 496).all()


# ---- which space an address is in ----

KINDS = {"shared of its own": SHARED_POINTER, "shared of a peer": SHARED_POINTER, "global": "", "parameter": ""}
KINDS["shared of a peer"] += """
mov.u32 %r4, %cluster_ctarank; xor.b32 %r4, %r4, 1;
mapa.u64 %rd5, %rd5, %r4;
"""
KINDS["global"] = "cvta.global.u64 %rd5, %rd0;"
KINDS["parameter"] = "mov.b64 %rd4, out; cvta.param.u64 %rd5, %rd4;"

SPACES = {
    "shared": {"shared of its own"},
    "shared::cta": {"shared of its own"},
    "shared::cluster": {"shared of its own", "shared of a peer"},
    "local": set(),
    "param": {"parameter"},
    "param::entry": {"parameter"},
    "global": {"global", "parameter"},
    "const": set(),
}
"""The window of the kernel's parameters lies in that of global memory (PTX ISA 9.7.10, isspacep)."""


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("kind", KINDS)
def test_isspacep_knows_the_space_of_an_address(kind, space):
    body = f"{KINDS[kind]} isspacep.{space} %p1, %rd5; selp.b32 %r1, 1, 0, %p1;"
    out = launch(body + STORE_R1 + "ret;", module_scope=WORDS, grid=2, cluster=2).words(32)
    assert (out == (kind in SPACES[space])).all()


def test_isspacep_answers_for_every_lane():
    body = f"""
    {SHARED_POINTER}
    setp.lt.u32 %p1, %r0, 10;
    selp.b64 %rd8, %rd5, %rd0, %p1;
    isspacep.shared %p2, %rd8;
    isspacep.global %p3, %rd8;
    selp.b32 %r4, 1, 0, %p2;
    selp.b32 %r5, 2, 0, %p3;
    or.b32 %r1, %r4, %r5;
    """
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == np.where(LANES < 10, 1, 2)).all()


# ---- one warp, several spaces ----

MIXED = f"""
{SHARED_POINTER}
mul.wide.u32 %rd7, %r0, 4;
mov.u32 %r4, %cluster_ctarank;
mul.lo.u32 %r6, %r4, 1000; add.u32 %r6, %r6, %r0;
add.u32 %r5, %r3, 0;
shl.b32 %r7, %r0, 2; add.u32 %r5, %r5, %r7;
st.shared.b32 [%r5], %r6;
mul.wide.u32 %rd8, %r4, 512; add.u64 %rd8, %rd8, %rd0;
add.u64 %rd9, %rd8, %rd7;
add.u32 %r6, %r6, 500;
st.global.b32 [%rd9], %r6;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
xor.b32 %r8, %r4, 1;
mapa.u64 %rd10, %rd5, %r8;
add.u64 %rd5, %rd5, %rd7;
add.u64 %rd10, %rd10, %rd7;
rem.u32 %r9, %r0, 3;
setp.eq.u32 %p1, %r9, 0;
setp.eq.u32 %p2, %r9, 1;
selp.b64 %rd11, %rd10, %rd9, %p2;
selp.b64 %rd11, %rd5, %rd11, %p1;
"""
"""Two CTAs. Word t of shared memory holds 1000 rank + t, of out (from 512 rank bytes on) 500 more.

%rd11 is a generic address of word t: lanes t % 3 = 0 name their own shared memory, 1 the peer's, 2 out. %rd8: out of
the CTA.
"""

FINISH = """
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mul.wide.u32 %rd12, %r0, 4; add.u64 %rd12, %rd12, %rd8;
st.global.b32 [%rd12+128], %r1;
ld.shared.b32 %r10, [%r5];
st.global.b32 [%rd12+256], %r10;
ret;
"""
"""%r1 of every lane goes to words 32.. of the CTA's out, and its shared words to 64.. ."""


def mixed(instruction: str) -> np.ndarray:
    """[CTA, (out, %r1, shared memory), 32] after an instruction that uses the addresses in %rd11."""
    out = launch(MIXED + instruction + FINISH, words=256, grid=2, cluster=2, module_scope=WORDS)
    return np.stack([out.device.download(out.out + 512 * rank, np.uint32, (3, 32)) for rank in range(2)])


OWN, PEER, GLOBAL = (n == LANES % 3 for n in range(3))


def test_one_load_may_read_own_shared_memory_a_peers_and_global_memory():
    found = mixed("ld.b32 %r1, [%rd11];")
    for rank in range(2):
        expected = np.select([OWN, PEER, GLOBAL], [1000 * rank, 1000 * (1 - rank), 1000 * rank + 500]) + LANES
        assert (found[rank, 1] == expected).all()


def test_one_store_may_write_own_shared_memory_a_peers_and_global_memory():
    found = mixed("mov.b32 %r1, 0; mul.lo.u32 %r11, %r4, 100; add.u32 %r11, %r11, 7; st.b32 [%rd11], %r11;")
    for rank in range(2):
        mine, theirs = 100 * rank + 7, 100 * (1 - rank) + 7
        before = 1000 * rank + LANES
        assert (found[rank, 0] == np.where(GLOBAL, mine, before + 500)).all()
        assert (found[rank, 2] == np.select([OWN, PEER], [mine, theirs], before)).all()


def test_one_vector_load_may_read_several_spaces():
    vector = "and.b64 %rd11, %rd11, -8; ld.v2.b32 {%r12, %r13}, [%rd11];"
    found = mixed(vector + "sub.u32 %r1, %r13, %r12; mul.lo.u32 %r12, %r12, 2; add.u32 %r1, %r1, %r12;")
    for rank in range(2):
        base = np.select([OWN, PEER, GLOBAL], [1000 * rank, 1000 * (1 - rank), 1000 * rank + 500])
        assert (found[rank, 1] == 2 * (base + LANES // 2 * 2) + 1).all()


@pytest.mark.parametrize("opcode", ["atom", "red"])
def test_one_atomic_may_change_several_spaces(opcode):
    found = mixed("mov.b32 %r1, 0;" + (f"{opcode}.add.u32 " + ("%r1, " if opcode == "atom" else "") + "[%rd11], 3;"))
    for rank in range(2):
        before = 1000 * rank + LANES
        assert (found[rank, 0] == before + 500 + 3 * GLOBAL).all()
        assert (found[rank, 2] == before + 3 * (OWN | PEER)).all()
        old = np.select([OWN, PEER, GLOBAL], [1000 * rank, 1000 * (1 - rank), 1000 * rank + 500]) + LANES
        assert (found[rank, 1] == (old if opcode == "atom" else 0)).all()


# ---- conversions of addresses ----


@pytest.mark.parametrize("space", ["shared", "shared::cta", "shared::cluster"])
def test_shared_addresses_survive_the_way_to_generic_and_back(space):
    body = f"""
    mov.b32 %r3, words;
    cvt.u64.u32 %rd4, %r3; cvta.{space}.u64 %rd5, %rd4;
    cvta.to.{space}.u64 %rd6, %rd5;
    setp.ne.u64 %p1, %rd6, %rd4; selp.b32 %r1, 1, 0, %p1;
    """
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == 0).all()


def test_global_addresses_survive_the_way_to_generic_and_back():
    body = """
    cvta.global.u64 %rd4, %rd0;
    cvta.to.global.u64 %rd5, %rd4;
    add.u32 %r1, %r0, 9;
    mul.wide.u32 %rd6, %r0, 4; add.u64 %rd5, %rd5, %rd6;
    st.global.b32 [%rd5], %r1;
    ret;
    """
    assert (run(body) == LANES + 9).all()


def test_a_shared_variable_has_a_generic_address():
    body = """
    cvta.shared.u64 %rd5, words;
    mul.wide.u32 %rd7, %r0, 4; add.u64 %rd5, %rd5, %rd7;
    st.b32 [%rd5], %r0;
    bar.warp.sync -1;
    mov.b32 %r3, words;
    shl.b32 %r4, %r0, 2;
    xor.b32 %r4, %r4, 124;
    add.u32 %r3, %r3, %r4;
    ld.shared.b32 %r1, [%r3];
    """
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == 31 - LANES).all()


@pytest.mark.parametrize("address", ["0", "64", "4096"])
@pytest.mark.parametrize("instruction", ["ld.b32 %r1, [%rd5];", "st.b32 [%rd5], %r0;", "red.add.u32 [%rd5], %r0;"])
def test_an_address_in_no_space_is_reported(instruction, address):
    with pytest.raises(Fault):
        run(f"mov.b64 %rd5, {address}; {instruction} ret;", module_scope=WORDS)


def test_a_generic_address_behind_the_shared_memory_is_reported():
    with pytest.raises(Fault):
        run(SHARED_POINTER + "add.u64 %rd5, %rd5, 1048576; st.b32 [%rd5], %r0; ret;", module_scope=WORDS)
