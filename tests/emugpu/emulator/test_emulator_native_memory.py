"""What accesses do natively and in Python, to the word: their faults, what is taken back, atomics, unwritten bytes."""

from __future__ import annotations

import numpy as np
import pytest
from form_patterns import each
from native_engine import PREFIX, library, same, watched
from ptx_programs import WORDS, module_of, source

from emugpu.emulator import Device
from emugpu.emulator.native.layout import StopReason

# ---- faults, and what is taken back ----

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

    That is a store between two mbarriers. The sums change every byte.
    """
    adding = "".join(
        f"""
        {guard} ld.global.{kind} {register}, [%rd2+{512 * n}];
        {guard} add.{kind} {register}, {register}, {number};
        {guard} st.global.{kind} [%rd2+{512 * n}], {register};
        """
        for guard in ("", "@%p1", "@%p2")
        for n, (kind, register, number) in enumerate(
            [("u16", "%rs1", 0x1111), ("u32", "%r1", 0x11111111), ("u64", "%rd3", 0x1111111111111111)]
        )
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
    *each("{op}.b{n}", op="and or xor exch cas", n="32 64"), *each("{op}.{t}", op="min max", t="u32 s32 u64 s64"),
    *each("add.{t}", t="u32 s32 u64 f32 f64"), *each("{op}.u32", op="inc dec"),
]  # fmt: skip
OPERANDS = {
    "32": "0 1 2 5 0x7FFFFFFF 0x80000000 0xFFFFFFFF 0xFFFFFFFE 0x3F800000 0xBF800000 0x7F800000 0xFF800000 0x7FC00001 "
    "0x00000001 0x807FFFFF 0x33800000",
    "64": "0 1 2 5 0x7FFFFFFFFFFFFFFF 0x8000000000000000 0xFFFFFFFFFFFFFFFF 0x00000000FFFFFFFF 0x3FF0000000000000 "
    "0xBFF0000000000000 0x7FF0000000000000 0xFFF0000000000000 0x7FF0000000000001 0x0000000000000001 0x3CA0000000000000 "
    "0xFFF8000000000003",
}
PLACES = {"one each": "mov.u32 %r6, %r0;", "four to a place": "shr.u32 %r6, %r0, 2;", "all to one": "mov.u32 %r6, 3;"}
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
        at = {"shared": "%r5", "generic shared": "%rd6"}.get(space, "%rd2") + f"+{8192 + 256 * n}"
        end, guard, word = f"END{n}", LANES[lanes], "" if space.startswith("generic") else f".{space}"
        branch, guard = (guard.replace("END", end), "") if guard.endswith(";") else ("", guard)
        body += f"""
        mov.b{bits} {r}14, 77; {place} shl.b32 %r6, %r6, {shift};
        mov.u32 %r5, words; add.u32 %r5, %r5, %r6; cvt.u64.u32 %rd2, %r6; add.s64 %rd2, %rd0, %rd2;
        cvt.u64.u32 %rd6, %r5; cvta.shared.u64 %rd6, %rd6;
        st{word}.b{bits} [{at}], {r}11; bar.sync 0;
        {branch}
        {guard} atom{word}.{operation} {r}14, [{at}], {r}12{third};
        {guard} atom{word}.{operation} _, [{at}], {r}11{third};
        {guard} {"atom" if third else "red"}{word}.{operation} {"_, " if third else ""}[{at}], {literal}{third};
        {end}: bar.sync 0;
        ld{word}.b{bits} {r}15, [{at}];
        st.global.b{bits} [%rd5+{256 * n}], {r}14; st.global.b{bits} [%rd5+{4096 + 256 * n}], {r}15;
        """
    scope = f".shared .align 8 .b8 words[16384]; .global .align 8 .b{bits} edges[16] = {{{edges}}};"
    return source(body + "ret;", scope)


@pytest.mark.parametrize("space", ["shared", "global", "generic shared", "generic global"])
@pytest.mark.parametrize("operation", ATOMICS)
def test_atomics_do_the_same_to_memory_and_return_the_same(operation, space):
    for lanes in LANES:
        text = atomic_program(operation, space, lanes)
        found = same(text, threads=32)
        assert "error" not in found, (lanes, found["error"])
        plan = module_of(text).code(None).native(True, True)
        assert plan is not None and all(piece.start >= 0 for pieces in plan.pieces for piece in pieces)


ATOMIC_FAULTS = {
    "never written": "atom.shared.add.u32 %r1, [%r7], 1;",
    "outside every allocation": "atom.global.cas.b32 %r1, [%rd1+1000000000], 1, 2;",
    "not aligned": "red.global.add.u32 [%rd1+2], 1;",
    "mbarriers are opaque": "atom.shared.add.u32 %r1, [%r7+2048], 1;",
    "this address is in local": "cvta.local.u64 %rd2, 64; atom.add.u32 %r1, [%rd2], 1;",
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


# ---- unwritten bytes ----


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
