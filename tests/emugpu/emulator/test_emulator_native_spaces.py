"""Local, constant and generic addresses in native code and in Python, to the word."""

from __future__ import annotations

import numpy as np
import pytest
from native_engine import PREFIX, library, same
from ptx_programs import WORDS, module_of, source
from test_emulator_native_engine import listened

from emugpu.emulator.native.layout import StopReason

LANES = np.arange(32)
SCOPE = WORDS + " .const .align 16 .u32 table[8] = {10, 11, 12, 13, 14, 15, 16, 17};"
FRAME = """
.local .align 16 .b8 frame[64]; mov.b32 %r2, frame; mov.u64 %rd2, frame; cvta.local.u64 %rd3, %rd2;
and.b32 %r3, %r0, 7; shl.b32 %r4, %r3, 2; add.u32 %r6, %r2, %r4; cvt.u64.u32 %rd4, %r4; add.u64 %rd5, %rd3, %rd4;
mov.u64 %rd6, table; cvta.const.u64 %rd7, %rd6; add.u64 %rd8, %rd7, %rd4; cvt.u64.u32 %rd9, %r7;
cvta.shared.u64 %rd10, %rd9; mov.b32 %r1, 0; setp.lt.u32 %p1, %r0, 9; setp.eq.u32 %p2, %r0, 5;
"""
"""%r6 and %rd5: a word of the frame by lane, local and generic. %rd7, %rd8: generic, of the table. %rd10: of words."""
BODIES = {
    "local, one address": ("st.local.u32 [%r2], %r0; ld.local.u32 %r1, [%r2];", LANES),
    "local, by lane": ("st.local.u32 [%r6], %r0; ld.local.u32 %r1, [%r6];", LANES),
    "local, a constant": ("st.local.u32 [%r2+8], 7; ld.local.u32 %r1, [%r2+8];", LANES * 0 + 7),
    "local, 64 bits": ("cvt.u64.u32 %rd4, %r0; st.local.u64 [%rd2+16], %rd4; ld.local.u32 %r1, [frame+16];", LANES),
    "local, a vector": (
        "st.local.v2.u32 [%r2], {%r0, %r3}; ld.local.v2.u32 {%r9, %r10}, [%r2]; sub.u32 %r1, %r9, %r10;",
        LANES - LANES % 8,
    ),
    "local, bytes": ("st.local.u8 [%r2+3], %r0; ld.local.s8 %r1, [%r2+3];", LANES),
    "local, some lanes": ("@%p1 st.local.u32 [%r2], %r0; @%p1 ld.local.u32 %r1, [%r2];", LANES * (LANES < 9)),
    "local, one lane": ("@%p2 st.local.u32 [%r2], %r0; @%p2 ld.local.u32 %r1, [%r2];", LANES * (LANES == 5)),
    "local, lanes apart": (
        "st.local.u32 [%r2], %r0; @!%p2 bra A; ld.local.u32 %r1, [%r2]; add.u32 %r1, %r1, 1; st.local.u32 [%r2], %r1;"
        "A: ld.local.u32 %r1, [%r2];",
        LANES + (LANES == 5),
    ),
    "const, one address": ("ld.const.u32 %r1, [table+12];", LANES * 0 + 13),
    "const, by lane": ("add.u64 %rd6, %rd6, %rd4; ld.const.u32 %r1, [%rd6];", 10 + LANES % 8),
    "const, a vector": ("ld.const.v4.u32 {%r1, %r9, %r10, %r8}, [table+16]; add.u32 %r1, %r8, %r9;", LANES * 0 + 32),
    "generic, local": ("st.u32 [%rd5], %r0; ld.local.u32 %r1, [%r6];", LANES),
    "generic, local, one address": ("st.u32 [%rd3], %r0; ld.u32 %r1, [%rd3];", LANES),
    "generic, local, one lane": (
        "@!%p2 bra A; st.u32 [%rd3], %r0; ld.u32 %r1, [%rd3]; A:",
        LANES * (LANES == 5),
    ),
    "generic, const": ("ld.u32 %r1, [%rd8];", 10 + LANES % 8),
    "generic, shared": ("st.u32 [%rd10], %r0; ld.shared.u32 %r1, [%r7];", LANES),
    "generic, one shared word": ("cvta.shared.u64 %rd4, 2048; mov.b32 %r9, words; cvt.u64.u32 %rd4, %r9;"
        "cvta.shared.u64 %rd4, %rd4; st.u32 [%rd4], %r0; ld.u32 %r1, [%rd4];", LANES * 0 + 31),
    "generic, global": ("st.u32 [%rd1+8192], %r0; ld.u32 %r1, [%rd1+8192];", LANES),
    "generic, one global word": ("st.u32 [%rd0+8192], %r0; ld.u32 %r1, [%rd0+8192];", LANES * 0 + 31),
    "generic, several spaces": (
        "st.shared.u32 [%r7], %r0; selp.b64 %rd4, %rd10, %rd8, %p1; ld.u32 %r1, [%rd4];",
        np.where(LANES < 9, LANES, 10 + LANES % 8),
    ),
    "generic, a vector": ("st.v2.u32 [%rd3+8], {%r0, %r3}; ld.u32 %r1, [%rd3+8];", LANES),
    "strong, global": (
        "st.release.gpu.global.u32 [%rd1+8192], %r0; ld.acquire.gpu.global.u32 %r9, [%rd1+8192];"
        "st.volatile.global.v2.u32 [%rd0+8192], {%r9, %r9}; ld.relaxed.sys.global.u32 %r1, [%rd1+8196];"
        "ld.volatile.global.u32 %r10, [%rd0+8192]; add.u32 %r1, %r9, %r10;",
        LANES + 31,
    ),
    "strong, shared": ("st.relaxed.cta.shared.u32 [%r7], %r0; ld.volatile.shared.u32 %r1, [%r7];", LANES),
}  # fmt: skip
END = "st.global.u32 [%rd1], %r1; ret;"


@pytest.mark.parametrize("name", BODIES)
def test_accesses_of_every_space_are_native(name):
    body, expected = BODIES[name]
    text = source(PREFIX + FRAME + body + END, SCOPE)
    found = same(text)
    assert "error" not in found and not found["stops"][StopReason.FAILED]
    assert np.frombuffer(found["out"], np.uint32)[:32].tolist() == expected.tolist()
    for early in (True, False):
        pieces = [p for several in module_of(text).code(None).native(True, early).pieces for p in several]
        assert pieces and all(p.start >= 0 for p in pieces)
    same(text, schedule="random", seed=2)


NARROW = "mov.b32 %r9, table; add.u32 %r9, %r9, %r4; ld.const.u32 %r1, [%r9]; ld.const.u32 %r10, [%r9];"
NARROW += "st.shared.u32 [%r7+8192], %r1;"
ATOMICS = {
    "an atomic, one word": "st.shared.u32 [%r5], 0; atom.shared.add.u32 %r1, [%r5], %r3;",
    "an atomic, by lane": "st.global.u32 [%rd1], %r0; atom.global.max.u32 %r1, [%rd1], %r3;",
    "an atomic, some lanes": "st.shared.u32 [%r7], 7; @%p1 atom.shared.exch.b32 %r1, [%r7], %r0;"
    "@%p2 red.shared.inc.u32 [%r7], 8;",
    "an atomic, generic": "st.shared.u32 [%r7], 7; st.global.u32 [%rd1], 9; atom.add.u32 %r1, [%rd10], %r0;"
    "red.acq_rel.gpu.or.b32 [%rd1], %r3;",
    "an atomic, 64 bits": "st.global.v2.u32 [%rd0+8192], {%r0, %r0}; atom.global.cas.b64 %rd4, [%rd0+8192], %rd9, %rd4;"
    "cvt.u32.u64 %r1, %rd4; atom.relaxed.cta.global.add.u64 %rd4, [%rd0+8192], 5;",
}  # fmt: skip
TRACED = {name: body for name, (body, _) in BODIES.items()} | ATOMICS
TRACED["const, 32 bits of an address, in Python"] = NARROW


@pytest.mark.parametrize("name", TRACED)
def test_accesses_of_every_space_have_the_same_events(name):
    text = source(PREFIX + FRAME + TRACED[name] + END, SCOPE)
    python, native = (listened(text, engine, schedule="fifo", seed=0, threads=32) for engine in (None, library()))
    assert [kind for kind, *_ in python.seen].count("Access") >= 3
    assert python.seen == native.seen


PYTHONS = {
    "was never written": "ld.local.u32 %r1, [%r2+4];",
    "never written, generic": "ld.u32 %r1, [%rd10];",
    "outside the thread's 64 bytes": "st.local.u32 [%r2+64], %r0;",
    "outside the thread's 64 bytes, generic": "ld.u32 %r1, [%rd5+64];",
    "is not aligned to the 4 bytes": "st.local.u32 [%r2+2], %r0;",
    "is not aligned to the 8 bytes of the vector": "ld.const.v2.u32 {%r1, %r9}, [table+4];",
    "stores to a generic address in const": "st.u32 [%rd8], %r0;",
    "stores to a generic address in const, some lanes": "selp.b64 %rd4, %rd10, %rd8, %p1; st.u32 [%rd4], %r0;",
    "outside every allocation": "ld.const.u32 %r1, [table+4096];",
    "outside every allocation, generic": "mov.b64 %rd4, 64; ld.u32 %r1, [%rd4];",
    ", atomics in several spaces": "add.s64 %rd2, %rd1, 8192; st.global.u32 [%rd2], 1; st.shared.u32 [%r7], 2;"
    "selp.b64 %rd4, %rd10, %rd2, %p1; atom.add.u32 %r1, [%rd4], 3;",
    "": "selp.b64 %rd4, %rd10, %rd5, %p1; st.u32 [%rd4], %r0; ld.u32 %r1, [%rd4];",
}


@pytest.mark.parametrize("words", PYTHONS)
def test_what_is_out_of_the_ordinary_has_the_same_words(words):
    found = same(source(PREFIX + FRAME + PYTHONS[words] + "add.u32 %r1, %r1, 1;" + END, SCOPE))
    assert found["stops"][StopReason.FAILED]
    assert words.partition(",")[0] in found.get("error", ""), found.get("error")


def test_local_memory_that_grows_is_found_again():
    body = """
    .local .align 16 .b8 frame[16]; mov.b32 %r2, frame; st.local.u32 [%r2], %r0; mov.b32 %r9, 0; bar.sync 0;
    ROUND: alloca.u64 %rd4, 1024, 8; st.local.u32 [%rd4+512], %r9; add.u32 %r9, %r9, 1; bar.sync 0;
    ld.local.u32 %r1, [%r2]; ld.local.u32 %r4, [%rd4+512]; mad.lo.u32 %r1, %r4, 100, %r1;
    setp.lt.u32 %p1, %r9, 9; @%p1 bra ROUND;
    """
    found = same(source(PREFIX + body + END, WORDS), threads=64)
    assert "error" not in found, found["error"]
    assert np.frombuffer(found["out"], np.uint32)[:64].tolist() == [800 + lane for lane in range(64)]
