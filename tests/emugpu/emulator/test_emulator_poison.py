"""Undefined bits of registers: moves carry them bit for bit, what is computed from them is undefined, and a launch ends
where they decide something. The launches are of mode "poison", in which memory carries them, too.
"""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import ALLOCATE, FREE, STORE_R1, WORDS, launch, source

from emugpu.emulator import Device, Fault, Module, TensorMap
from emugpu.emulator.memory.global_memory import GlobalMemory
from emugpu.emulator.native.library import library_for

LANES = np.arange(32)

# %r2: the lower half is the thread's number and 0x100, and nothing writes %rs2, the upper one.
HALF = "add.u32 %r10, %r0, 256; cvt.u16.u32 %rs1, %r10; mov.b32 %r2, {%rs1, %rs2};\n"
# %r11: what nobody has written to shared memory; lane 3 has written its own word.
LOADED = """mov.b32 %r3, words; mad.lo.u32 %r4, %r0, 4, %r3; setp.eq.u32 %p1, %r0, 3;
@%p1 st.shared.b32 [%r4], %r0; ld.shared.b32 %r11, [%r4];
"""


def run(body: str, words: int = 32, mode: str = "poison", **options):
    return launch(body, words=words, module_scope=WORDS, device=Device(uninitialised=mode), **options)


def result(body: str) -> np.ndarray:
    done = run(body + STORE_R1 + "ret;")
    return done.device.download(done.out, np.uint32, 32)


CARRIED = {
    "and with a constant": ("and.b32 %r1, %r2, 0xffff;", LANES + 256),
    "the low byte by prmt": ("prmt.b32 %r1, %r2, 0, 0x4440;", LANES),
    "bytes of a pair by prmt": ("prmt.b32 %r1, %r2, %r10, 0x5410;", (LANES + 256) * 0x10001),
    "shifted out to the left": ("shl.b32 %r1, %r2, 16;", (LANES + 256) << 16),
    "shifted out of a wider register": ("cvt.u64.u32 %rd4, %r2; shl.b64 %rd4, %rd4, 48; shr.u64 %rd4, %rd4, 48;"
                                        "cvt.u32.u64 %r1, %rd4;", LANES + 256),
    "the half of it": ("mov.b32 {%rs3, %rs4}, %r2; cvt.u32.u16 %r1, %rs3;", LANES + 256),
    "a field": ("bfe.u32 %r1, %r2, 4, 8;", (LANES + 256) >> 4),
    "a field put into it": ("bfi.b32 %r1, %r10, %r2, 16, 16;", (LANES + 256) * 0x10001),
    "a funnel shift": ("shf.l.clamp.b32 %r1, 0, %r2, 16;", (LANES + 256) << 16),
    "a signed byte": ("cvt.s32.s8 %r1, %r2;", LANES),
    "overwritten by or": ("or.b32 %r1, %r2, 0xffff0000;", (LANES + 256) | 0xFFFF0000),
    "all three of lop3": ("lop3.b32 %r1, %r2, 0xffff, 0, 0xc0;", LANES + 256),
    "a pair of 64 bits": ("mov.b64 %rd4, {%r10, %r2}; cvt.u32.u64 %r1, %rd4;", LANES + 256),
    "from another lane": ("shfl.sync.bfly.b32 %r5, %r2, 1, 31, -1; and.b32 %r1, %r5, 0xffff;", (LANES ^ 1) + 256),
    "through shared memory": ("mov.b32 %r3, words; mad.lo.u32 %r4, %r0, 4, %r3; st.shared.b32 [%r4], %r2;"
                              "ld.shared.u16 %r1, [%r4];", LANES + 256),
    "through local memory": (".local .align 4 .b8 frame[16]; mov.b32 %r3, frame; st.local.b32 [%r3+4], %r2;"
                             "ld.local.b32 %r5, [%r3+4]; and.b32 %r1, %r5, 0xffff;", LANES + 256),
    "through global memory": ("mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; st.global.b32 [%rd1], %r2;"
                              "ld.global.b32 %r5, [%rd1]; and.b32 %r1, %r5, 0xffff;", LANES + 256),
    "selected away": ("setp.lt.u32 %p1, %r0, 40; selp.b32 %r1, %r0, %r2, %p1;", LANES),
    "chosen by it, but the same": ("setp.eq.u32 %p1, %r2, 7; selp.b32 %r1, %r0, %r0, %p1;", LANES),
    "on one side of a branch": ("setp.lt.u32 %p1, %r0, 9; mov.b32 %r1, %r2; @%p1 bra MEET; mov.b32 %r1, %r0; MEET:"
                                "and.b32 %r1, %r1, 0xffff;", np.where(LANES < 9, LANES + 256, LANES)),
}  # fmt: skip


@pytest.mark.parametrize("what", CARRIED)
def test_what_is_defined_arrives(what):
    body, expected = CARRIED[what]
    assert (result(HALF + body) == expected).all()


def test_the_defined_byte_may_be_stored():
    body = HALF + "cvt.u64.u32 %rd1, %r0; add.s64 %rd1, %rd0, %rd1; st.global.b8 [%rd1], %r2; ret;"
    for mode in ("poison", "fault"):
        done = run(body, mode=mode)
        assert (done.device.download(done.out, np.uint8, 32) == LANES).all()


# %r4: the upper half is the thread's number and 0x100. %rd4, %rd5: %r10 is the lower word, or the upper one, and
# nothing writes %r30.
PARTS = (
    HALF
    + """mov.b32 %r4, {%rs2, %rs1}; mov.b32 %r20, {%rs1, %rs1}; mov.b64 %rd3, {%r10, %r10};
mov.b64 %rd4, {%r10, %r30}; mov.b64 %rd5, {%r30, %r10};
"""
)
BY_PART = {
    **{f"{op}, lower": (f"{op} %r1, %r2, %r20;", 0, 2) for op in (
        "add.f16x2", "mul.bf16x2", "min.f16x2", "max.NaN.bf16x2", "add.u16x2", "min.s16x2", "set.lt.f16x2.f16x2",
        "add.u32", "sub.s32", "mul.lo.u32", "xor.b32",
    )},
    **{f"{op}, upper": (f"{op} %r1, %r4, %r20;", 2, 2) for op in (
        "sub.f16x2", "add.bf16x2", "max.f16x2", "min.u16x2", "add.rn.ftz.f16x2", "or.b32",
    )},
    **{op: (f"{op} %rd6, %rd3, %rd4; mov.b64 {{%r1, _}}, %rd6;", 0, 4) for op in ("add.f32x2", "mul.rz.f32x2")},
    **{f"{op}, upper": (f"{op} %rd6, %rd5, %rd3; mov.b64 {{_, %r1}}, %rd6;", 0, 4)
       for op in ("sub.f32x2", "mul.f32x2")},
    "fma.rn.bf16x2": ("fma.rn.bf16x2 %r1, %r2, %r20, %r2;", 0, 2),
    "fma.rn.f32x2": ("fma.rn.f32x2 %rd6, %rd4, %rd3, %rd4; mov.b64 {%r1, _}, %rd6;", 0, 4),
    "neg.f16x2": ("neg.f16x2 %r1, %r2;", 0, 2),
    "ex2.approx.f16x2": ("ex2.approx.f16x2 %r1, %r2;", 0, 2),
    "mad.wide": ("mad.wide.u32 %rd6, %r10, 3, %rd4; cvt.u32.u64 %r1, %rd6;", 0, 4),
    "add.u64": ("add.u64 %rd6, %rd4, %rd3; cvt.u32.u64 %r1, %rd6;", 0, 4),
    "a pair of bf16, lower": ("cvt.rn.bf16x2.f32 %r1, %r30, %r10;", 0, 2),
    "a pair of f16, upper": ("cvt.rn.f16x2.f32 %r1, %r10, %r30;", 2, 2),
    "a pair of bf16 without signs": ("cvt.rn.relu.bf16x2.f32 %r1, %r10, %r30;", 2, 2),
    "a pair of e4m3": ("cvt.rn.satfinite.e4m3x2.f32 %rs3, %r30, %r10; cvt.u32.u16 %r1, %rs3;", 0, 1),
    "a pair of e4m3 of f16": ("cvt.rn.satfinite.e4m3x2.f16x2 %rs3, %r4; cvt.u32.u16 %r1, %rs3;", 1, 1),
    "a pair of f16 of e4m3": ("cvt.rn.satfinite.e4m3x2.f32 %rs3, %r30, %r10; cvt.rn.f16x2.e4m3x2 %r1, %rs3;", 0, 2),
    "a pair of ue8m0": ("cvt.rp.satfinite.ue8m0x2.f32 %rs3, %r30, %r10; cvt.u32.u16 %r1, %rs3;", 0, 1),
    "a pair of s16": ("cvt.pack.sat.s16.s32 %r1, %r30, %r10;", 0, 2),
    "bytes under others": ("cvt.pack.sat.u8.s32.b32 %r1, %r10, %r10, %r30;", 0, 2),
    "the third of four": ("mov.b64 %rd6, {%rs1, %rs2, %rs1, %rs2}; mov.b64 {_, _, %rs7, _}, %rd6;"
                          "cvt.u32.u16 %r1, %rs7;", 0, 4),
    "the first of four bytes": (".reg .b8 c<4>; cvt.u8.u32 c0, %r10; mov.b32 %r1, {c0, c1, c2, c3};", 0, 1),
    "a sum of 16 bits beside it": ("add.u16 %rs3, %rs2, %rs1; mov.b32 %r1, {%rs3, %rs1};", 2, 2),
    "the upper half as a float": ("mov.b32 {_, %rs3}, %r4; cvt.f32.bf16 %r1, %rs3;", 0, 4),
    "clmad.lo": ("clmad.lo.u64 %rd6, %rd4, %rd3, %rd4; cvt.u32.u64 %r1, %rd6;", 0, 4),
    "a pair of bf16 of e4m3 by factors": ("cvt.rn.satfinite.e4m3x2.f32 %rs3, %r30, %r10;"
                                          "cvt.rn.scaled::n2::ue8m0.bf16x2.e4m3x2 %r1, %rs1, %rs3;", 0, 2),
}  # fmt: skip
"""What makes %r1 of a register with an undefined part, and the byte and the number of bytes that are defined then."""


@pytest.mark.parametrize("what", BY_PART)
@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("threads", [32, 1])
def test_a_part_is_computed_from_the_same_part(what, engine, threads):
    """The other part does not matter: the result is the one with any value in its place."""
    body, first, count = BY_PART[what]
    place = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;"

    def done(before: str, after: str) -> np.ndarray:
        memory = GlobalMemory()
        device = Device(memory=memory, library=library_for(engine))
        ended = launch(before + PARTS + body + place + after, threads=threads, device=device)
        return memory.peek(ended.out + 4 * np.arange(threads), count)[0]

    store = f"shr.b32 %r1, %r1, {8 * first}; st.global.b{8 * count} [%rd1], %r1; ret;"
    written = "mov.b16 %rs2, 0x3456; mov.b32 %r30, 0x40490fdb; "
    assert (done("", store) == done(written, store)).all()
    if count < 4:
        with pytest.raises(Fault, match="never written"):
            done("", "setp.eq.u32 %p1, %r1, 0; @%p1 exit; ret;")


SEEN = {
    "an address": "and.b32 %r5, %r2, 0xffff0004; mov.b32 %r3, words; add.u32 %r3, %r3, %r5; st.shared.b32 [%r3], %r0;",
    "a branch": "setp.lt.u32 %p1, %r2, 5; @%p1 bra OVER; mov.b32 %r1, 1; OVER:",
    "a guard": "add.u32 %r5, %r2, 1; setp.eq.u32 %p1, %r5, 5; @%p1 st.shared.b32 [words], %r0;",
    "an atomic": "atom.shared.add.u32 %r1, [words], %r2;",
    "a vote": "setp.lt.u32 %p1, %r2, 5; vote.sync.any.pred %p2, %p1, -1;",
    "a product of matrices": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r4, %r5, %r6, %r7},"
    " {%r2, %r10, %r10, %r10}, {%r10, %r10}, {%r10, %r10, %r10, %r10}; setp.eq.u32 %p1, %r4, 0; @%p1 exit;",
}


@pytest.mark.parametrize("what", SEEN)
@pytest.mark.parametrize("mode", ["poison", "report"])
def test_where_it_decides_the_launch_ends_and_says_where_it_comes_from(what, mode):
    with pytest.raises(Fault, match=r"register %rs2, which was never written in (lane 0|lanes 0xffffffff)") as error:
        run(HALF + "st.shared.b32 [words], 0;" + SEEN[what] + "ret;", mode=mode)
    assert error.value.rule == "undefined"


@pytest.mark.parametrize(
    "computed",
    [
        "max.u32 %r5, %r2, 1;",
        "mov.b64 %rd4, {%r10, %r2}; clmad.hi.u64 %rd4, %rd4, -1, 0; cvt.u32.u64 %r5, %rd4;",
        "mov.b64 %rd4, {%r10, %r2}; clmad.hi.u64 %rd4, -1, %rd4, 0; cvt.u32.u64 %r5, %rd4;",
    ],
)
def test_what_is_computed_from_it_is_undefined_whole(computed):
    body = HALF + computed + "and.b32 %r5, %r5, 0xff; setp.lt.u32 %p1, %r5, 5; @%p1 exit; ret;"
    with pytest.raises(Fault, match="%rs2"):
        run(body)


def test_an_output_it_is_stored_to_counts_as_not_written():
    memory = GlobalMemory()
    body = HALF + "mov.b32 %r1, %r2;" + STORE_R1 + "ret;"
    done = launch(body, words=32, module_scope=WORDS, device=Device(memory=memory, uninitialised="poison"))
    low, undefined = memory.peek(done.out + 4 * LANES, 2)
    assert (low == LANES + 256).all() and not undefined.any()
    with pytest.raises(Fault, match=r"byte 2 of .* never written"):
        done.device.download(done.out, np.uint32, 32)


# ---- what is loaded ----

TENSOR = ALLOCATE + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r11}, [%r2+3]; tcgen05.wait::ld.sync.aligned;" + FREE


def test_lanes_that_load_nothing_written_may_go_on_unless_they_use_it():
    body = LOADED + "mov.b32 %r1, 9; @%p1 mov.b32 %r1, %r11;"
    assert (result(body) == np.where(LANES == 3, 3, 9)).all()
    assert (result(LOADED + "and.b32 %r11, %r11, 0; add.u32 %r1, %r11, 4;") == 4).all()
    with pytest.raises(Fault, match=r"loads \(shared memory byte 0x400 is read but was never written") as error:
        run(LOADED + "setp.eq.u32 %p2, %r11, 3; @%p2 exit; ret;")
    assert error.value.rule == "uninitialised"


def test_a_vector_of_which_a_part_was_written():
    body = """mov.b32 %r3, words; shl.b32 %r4, %r0, 3; add.u32 %r4, %r3, %r4; st.shared.b32 [%r4+4], %r0;
    ld.shared.v2.b32 {%r5, %r1}, [%r4];"""
    assert (result(body) == LANES).all()
    with pytest.raises(Fault, match="never written"):
        result(body + "add.u32 %r5, %r5, %r3; ld.shared.b32 %r1, [%r5];")


def test_what_was_never_written_to_tensor_memory_may_be_loaded():
    assert (result(TENSOR + "mov.b32 %r1, 6;") == 6).all()
    assert (result(TENSOR + "and.b32 %r1, %r11, 0;") == 0).all()
    with pytest.raises(Fault, match=r"tensor memory lane 0, column 3, which was never written\)"):
        run(TENSOR + "setp.eq.u32 %p2, %r11, 3; @%p2 exit; ret;")


def test_tensor_memory_keeps_what_is_undefined():
    body = ALLOCATE + HALF.replace("%r2", "%r12") + """
    tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r12, %r0}; tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r13, %r1}, [%r2]; tcgen05.wait::ld.sync.aligned;
    """ + FREE  # fmt: skip
    assert (result(body) == LANES).all()
    with pytest.raises(Fault, match="never written"):
        run(body + "setp.eq.u32 %p2, %r13, 3; @%p2 exit; ret;")


def test_one_thread_alone_keeps_its_own():
    body = LOADED + "@!%p1 bra OUT; add.u32 %r1, %r11, 5; OUT: @!%p1 mov.b32 %r1, 2;"
    assert (result(body) == np.where(LANES == 3, 8, 2)).all()


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize("initial", [None, np.zeros(32)])
def test_undefined_bits_in_a_buffer_that_was_written_are_seen_and_end_where_it_is_written_again(engine, initial):
    """Native code took a buffer for written for as long as the launch runs."""
    body = LOADED + "st.global.b32 [%rd0], %r11; bar.warp.sync -1;"

    def launched(rest: str):
        device = Device(uninitialised="poison", library=library_for(engine))
        return launch(body + rest + "ret;", words=0 if initial is not None else 32, module_scope=WORDS,
                      device=device, initial=initial)  # fmt: skip

    assert launched("st.global.b32 [%rd0], 1;").words(1)[0] == 1
    with pytest.raises(Fault, match="never written"):
        launched("ld.global.b32 %r5, [%rd0]; setp.eq.u32 %p2, %r5, 3; @%p2 exit;")


# ---- what is copied ----

ROOM = WORDS + ".shared .align 8 .b64 full;"
READY = """
mov.b32 %r2, words; mov.b32 %r3, full; setp.eq.u32 %p1, %r0, 0; mov.b32 %r4, 0; mov.b32 %r5, 1; mov.b32 %r6, 2;
mov.b32 %r7, 3; mov.b16 %rs1, 0xff; ld.param.u64 %rd2, [from];
@%p1 mbarrier.init.shared.b64 [%r3], 1; bar.warp.sync -1;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 512;
"""
LANDED = "W: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra W; bar.warp.sync -1;"
COMPLETE = "mbarrier::complete_tx::bytes"
STORED = "@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; bar.warp.sync -1;"
TO_SHARED = {
    "bytes": f"@%p1 cp.async.bulk.shared::cta.global.{COMPLETE} [%r2], [%rd2], 512, [%r3];" + LANDED,
    "box": f"@%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.{COMPLETE} [%r2], [map, {{%r4, %r4}}], [%r3];"
           + LANDED,
    "rows": f"@%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.{COMPLETE} [%r2], "
            "[map, {%r4, %r4, %r5, %r6, %r7}], [%r3];" + LANDED,
    "each lane": "mul.wide.u32 %rd3, %r0, 16; add.s64 %rd3, %rd2, %rd3; mad.lo.u32 %r8, %r0, 16, %r2;"
                 "cp.async.cg.shared.global [%r8], [%rd3], 16; cp.async.wait_all; bar.warp.sync -1;",
}  # fmt: skip
TO_GLOBAL = {
    "bytes": "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r2], 512;" + STORED,
    "half of the bytes": "@%p1 cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd0], [%r2], 512, %rs1;" + STORED,
    "box": "@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [to, {%r4, %r4}], [%r2];" + STORED,
    "rows": "@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group "
            "[to, {%r4, %r4, %r5, %r6, %r7}], [%r2];" + STORED,
}  # fmt: skip
SOURCE = np.random.default_rng(1).integers(1, 256, 512, dtype=np.uint8)
WRITTEN = np.random.default_rng(2).random(512) < 0.5


class Copying:
    """512 bytes of which some were written are copied; rows of a box have a swizzle if both copies are boxes."""

    def __init__(self, body: str, swizzle: str = "none"):
        self.memory = GlobalMemory()
        self.source, self.out = self.memory.alloc(512, "source"), self.memory.alloc(512, "out")
        for n in np.flatnonzero(WRITTEN).tolist():
            self.memory.write(self.source + n, SOURCE[n : n + 1])
        boxes = [TensorMap(at, "u32", (32, 4), (128,), (32, 4), swizzle=swizzle) for at in (self.source, self.out)]
        self.device = Device(memory=self.memory, uninitialised="poison")
        text = source(READY + body + "ret;", ROOM, parameters=["u64 from", "map map", "map to"])
        self.device.launch(Module.from_text(text), grid=1, block=32, arguments=[self.out, self.source, *boxes])

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """The bytes, and which of them are defined."""
        block, _ = self.memory.find(self.out, 512)
        return block.data, block.valid


@pytest.mark.parametrize("back", TO_GLOBAL)
@pytest.mark.parametrize("way", TO_SHARED)
def test_a_copy_carries_what_is_undefined_byte_by_byte(way, back):
    swizzle = "128B" if {way, back} <= {"box", "rows"} else "none"
    copied = Copying(TO_SHARED[way] + TO_GLOBAL[back], swizzle)
    data, valid = copied.found()
    expected = WRITTEN & (np.arange(512) % 16 < 8) if back == "half of the bytes" else WRITTEN
    assert (valid == expected).all() and (data[expected] == SOURCE[expected]).all()
    with pytest.raises(Fault, match=r"copies what PTX line \d+ loads \(.*'source'.*never written"):
        copied.device.download(copied.out + int(expected.argmin()), np.uint8, 1)


@pytest.mark.parametrize("back", TO_GLOBAL)
def test_undefined_bytes_that_are_copied_and_then_written_again_are_no_error(back):
    rest = "mul.wide.u32 %rd3, %r0, 16; add.s64 %rd3, %rd0, %rd3; st.global.v4.b32 [%rd3], {%r0, %r0, %r0, %r0};"
    copied = Copying(TO_GLOBAL[back] + rest)
    assert (copied.device.download(copied.out, np.uint32, 128) == np.repeat(LANES, 4)).all()


@pytest.mark.parametrize("way", TO_SHARED)
def test_copied_bytes_that_are_undefined_decide_nothing(way):
    look = "mad.lo.u32 %r8, %r0, 16, %r2; ld.shared.b32 %r9, [%r8];"
    Copying(TO_SHARED[way] + look + "st.global.b32 [%rd0], %r9;")
    with pytest.raises(Fault, match=r"uses register %p3, which comes from .*'source'.*never written") as error:
        Copying(TO_SHARED[way] + look + "setp.eq.u32 %p3, %r9, 7; @%p3 st.global.b32 [%rd0], 0;")
    assert error.value.rule == "uninitialised"


REDUCTIONS = [
    "global.shared::cta.bulk_group.add.u32 [%rd0], [%r2], 512",
    f"shared::cluster.shared::cta.{COMPLETE}.add.u32 [%r2], [%r2], 512, [%r3]",
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_reduction_computes_with_what_it_reads(reduction):
    with pytest.raises(Fault, match="shared memory byte 0x400 is read but was never written"):
        Copying(f"@%p1 cp.reduce.async.bulk.{reduction};" + STORED)
