"""Atomics on floats, vectors and 128 bits; redux of floats, match, and barriers that reduce."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch, run

from emugpu.emulator import Fault
from emugpu.emulator.machine import events

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32}


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize(
    "instruction", ["red.global.add.noftz.{t}x2 [%rd0], %r2;", "atom.add.noftz.{t}x2 %r1, [%rd0], %r2;"]
)
def test_pairs_of_halves_are_added_one_after_the_other(name, instruction):
    """Each lane adds (lane, -1); bf16 holds integers up to 256, and the sum is rounded every time."""
    dtype = np.dtype(DTYPES[name])
    body = f"""
    cvt.rn.f32.u32 %r3, %r0; mov.b32 %r4, 0fBF800000; cvt.rn.{name}x2.f32 %r2, %r4, %r3;
    {instruction.format(t=name)} ret;
    """
    found = launch(body, initial=np.zeros(1)).words(1).view(dtype)
    low, high = dtype.type(0), dtype.type(0)
    for lane in range(32):
        low = dtype.type(np.float32(low) + np.float32(lane))
        high = dtype.type(np.float32(high) - np.float32(1))
    assert found.tolist() == [low, high]


def test_an_atomic_on_one_half_leaves_the_other_alone():
    body = "mov.b16 %rs1, 0x3C00; add.s64 %rd1, %rd0, 2; atom.global.add.noftz.f16 %rs2, [%rd1], %rs1; ret;"
    found = launch(body, initial=np.array([0x0000_1234])).words(1)
    assert found.view(np.uint16).tolist() == [0x1234, int(np.float16(32).view(np.uint16))]


def test_vectors_of_floats():
    """Every lane adds to its own four words; the old values come back."""
    body = """
    mad.wide.u32 %rd1, %r0, 16, %rd0;
    mov.b32 %r2, 0f3F800000; mov.b32 %r3, 0f40000000; mov.b32 %r4, 0f40400000; mov.b32 %r5, 0f40800000;
    atom.global.v4.f32.add {%r6, %r7, %r8, %r9}, [%rd1], {%r2, %r3, %r4, %r5};
    red.global.v2.f32.add [%rd1], {%r6, %r9};
    ret;
    """
    before = np.arange(128, dtype=np.float32).reshape(32, 4)
    after = before + np.arange(1, 5)
    after[:, 0] += before[:, 0]
    after[:, 1] += before[:, 3]
    assert (
        launch(body, initial=before.view(np.uint32).ravel()).words(128).view(np.float32).tolist()
        == after.ravel().tolist()
    )


def test_vectors_of_halves():
    body = """
    setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    mov.b16 %rs1, 0x4000; mov.b16 %rs2, 0xC000; mov.b16 %rs3, 0x7E00; mov.b16 %rs4, 0x0000;
    atom.global.v4.f16.max.noftz {%rs5, %rs6, %rs7, %rs8}, [%rd0], {%rs1, %rs2, %rs3, %rs4};
    mov.b32 %r1, {%rs5, %rs6}; mov.b32 %r2, {%rs7, %rs8}; st.global.v2.b32 [%rd0+8], {%r1, %r2};
    END: ret;
    """
    old = np.array([1.0, 1.0, 1.0, -5.0], np.float16)
    found = launch(body, initial=np.concatenate([old.view(np.uint32), np.zeros(2)])).words(4).view(np.float16)
    assert found.tolist() == [2.0, 1.0, 1.0, 0.0, *old.tolist()]


def test_exchange_and_compare_of_128_bits():
    body = """
    .reg .b128 %q<4>;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra END;
    mov.b64 %rd2, 7; mov.b64 %rd3, 8; mov.b128 %q1, {%rd2, %rd3};
    atom.global.exch.b128 %q0, [%rd0], %q1;
    mov.b64 %rd4, 9; mov.b128 %q2, {%rd4, %rd4};
    atom.global.cas.b128 %q3, [%rd0], %q0, %q2;
    atom.global.cas.b128 %q3, [%rd0+16], %q0, %q2;
    st.global.b128 [%rd0+32], %q3;
    END: ret;
    """
    found = launch(body, initial=np.array([1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 0, 0])).words(12)
    assert found.tolist() == [7, 0, 8, 0, 9, 0, 9, 0, 1, 2, 3, 4]


def test_misaligned_vectors_and_what_is_told():
    with pytest.raises(Fault, match="not aligned to the 16 bytes of the atomic"):
        launch("mov.b32 %r2, 0; red.global.v4.f32.add [%rd0+8], {%r2, %r2, %r2, %r2}; ret;", initial=np.zeros(8))
    seen: list = []
    body = "setp.eq.u32 %p1, %r0, 3; mov.b32 %r2, 0f3F800000; @%p1 red.global.v2.f32.add [%rd0], {%r2, %r2}; ret;"
    launch(body, initial=np.zeros(2), sinks=[seen.append])
    (access,) = [e for e in seen if isinstance(e, events.Access) and e.mode == "atomic"]
    assert (access.agent.lanes, access.nbytes, access.items, access.values) == (8, 4, 2, (0x3F800000, 0x3F800000))


@pytest.mark.parametrize(
    ("form", "wanted"),
    [("min", -7.5), ("max", 20.0), ("min.abs", 0.25), ("max.abs", 20.0), ("max.NaN", None), ("min.NaN", None)],
)
def test_redux_of_floats(form, wanted):
    numbers = np.full(32, 1.0, np.float32)
    numbers[[3, 9, 17, 30]] = [-7.5, 0.25, np.nan, 20.0]
    body = f"mad.wide.u32 %rd1, %r0, 4, %rd0; ld.global.b32 %r2, [%rd1]; redux.sync.{form}.f32 %r1, %r2, -1;"
    found = launch(body + STORE_R1 + "ret;", initial=numbers.view(np.uint32)).words(32)
    expected = 0x7FFFFFFF if wanted is None else int(np.float32(wanted).view(np.uint32))
    assert found.tolist() == [expected] * 32


def test_match_finds_the_lanes_with_the_same_value():
    any_ = run("and.b32 %r2, %r0, 3; match.any.sync.b32 %r1, %r2, -1;" + STORE_R1 + "ret;")
    assert any_.tolist() == [0x11111111 << lane % 4 for lane in range(32)]
    wide = run("shr.u32 %r2, %r0, 4; cvt.u64.u32 %rd2, %r2; shl.b64 %rd2, %rd2, 40; match.any.sync.b64 %r1, %rd2, -1;"
               + STORE_R1 + "ret;")  # fmt: skip
    assert wide.tolist() == [0xFFFF] * 16 + [0xFFFF0000] * 16
    for value, wanted in (("5", 0xFFFFFFFF + 1), ("%r0", 0)):
        body = f"match.all.sync.b32 %r1|%p1, {value}, -1; selp.b32 %r2, 1, 0, %p1; add.u32 %r1, %r1, %r2;"
        assert run(body + STORE_R1 + "ret;").tolist() == [wanted & 0xFFFFFFFF] * 32


def test_match_names_lanes_that_there_are():
    """In a block of ten threads, of a member mask of all lanes."""
    body = "match.all.sync.b32 %r1|%p1, 5, -1; match.any.sync.b32 %r2, 5, -1; and.b32 %r1, %r1, %r2;"
    assert launch(body + STORE_R1 + "ret;", threads=10, words=10).words(10).tolist() == [0x3FF] * 10


@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_barriers_that_count_and_combine_predicates(schedule):
    """Twice in a row, among 96 threads; the second time by 64 of them, on another barrier."""
    body = """
    setp.lt.u32 %p1, %r0, 50;
    bar.red.popc.u32 %r1, 0, %p1;
    setp.ne.u32 %p2, %r0, 80; barrier.cta.red.and.pred %p3, 0, %p2; selp.b32 %r2, 1000, 0, %p3; add.u32 %r1, %r1, %r2;
    barrier.cta.red.or.aligned.pred %p3, 0, !%p2; selp.b32 %r2, 10000, 0, %p3; add.u32 %r1, %r1, %r2;
    setp.ge.u32 %p4, %r0, 64; @%p4 bra STORE;
    setp.eq.u32 %p1, %r0, 7;
    barrier.red.popc.u32 %r2, 3, 64, !%p1; mad.lo.u32 %r1, %r2, 100000, %r1;
    STORE:
    """
    found = launch(body + STORE_R1 + "ret;", threads=96, schedule=schedule, seed=5, module_scope=WORDS).words(96)
    assert found.tolist() == [10050 + 63 * 100000] * 64 + [10050] * 32
