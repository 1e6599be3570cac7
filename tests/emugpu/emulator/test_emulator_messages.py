"""What a report says: the lane, the lines around the fault, the source line behind it, and equal waits in one line."""

from __future__ import annotations

import re

import pytest
from ptx_programs import WORDS, launch, run, source

from emugpu.emulator import Deadlock, Device, Fault, Module

# ---- lanes ----

ADDRESS = """
mov.b32 %r3, words;
shl.b32 %r4, %r0, 2;
add.u32 %r4, %r4, %r3;
setp.eq.u32 %p1, %r0, {lane};
"""

FAULTS_OF_ONE_LANE = {
    "misaligned store": "@%p1 add.u32 %r4, %r4, 2; st.shared.b32 [%r4], %r0;",
    "store outside": "@%p1 add.u32 %r4, %r4, 1048576; st.shared.b32 [%r4], %r0;",
    "load of what was never written": "@!%p1 st.shared.b32 [%r4], %r0; ld.shared.b32 %r5, [%r4];",
    "global store outside": (
        "mul.wide.u32 %rd4, %r0, 4; add.u64 %rd4, %rd4, %rd0; @%p1 mov.b64 %rd4, 64; st.global.b32 [%rd4], %r0;"
    ),
    "arrival at no mbarrier": "@%p1 mbarrier.arrive.shared.b64 %rd5, [%r4];",
    "under a branch": "@!%p1 bra OVER; ld.shared.b32 %r5, [%r4]; OVER:",
}


@pytest.mark.parametrize("lane", [0, 5, 31])
@pytest.mark.parametrize("name", FAULTS_OF_ONE_LANE)
def test_a_fault_of_one_lane_names_the_lane(name, lane):
    with pytest.raises(Fault, match=rf"\blane {lane}\b"):
        run(ADDRESS.format(lane=lane) + FAULTS_OF_ONE_LANE[name] + "ret;", module_scope=WORDS)


def test_a_fault_of_some_lanes_names_one_of_them():
    with pytest.raises(Fault, match=r"\blanes? (20|21|22|23)\b"):
        run(
            ADDRESS.format(lane=0)
            + "shr.u32 %r5, %r0, 2; setp.eq.u32 %p2, %r5, 5; @%p2 add.u32 %r4, %r4, 2; st.shared.b32 [%r4], %r0; ret;",
            module_scope=WORDS,
        )


# ---- lines ----

PROGRAM = source(
    """mov.b32 %r3, words;
add.u32 %r4, %r3, 8;
add.u32 %r4, %r4, 2;
st.shared.b32 [%r4], %r3;
add.u32 %r5, %r4, 3;
add.u32 %r6, %r4, 4;
add.u32 %r7, %r4, 5;
ret;""",
    WORDS,
)


def report(text: str, **options) -> str:
    device = Device()
    with pytest.raises(Fault) as error:
        device.launch(Module.from_text(text), grid=1, block=32, arguments=[device.alloc(128)], **options)
    return str(error.value)


def line_of(text: str, instruction: str) -> int:
    return 1 + text[: text.index(instruction)].count("\n")


def shown(message: str, number: int, instruction: str) -> str | None:
    """What the report puts around a line's number where it shows that line."""
    found = re.search(rf"^(.*?)\b{number}\b(\W*){re.escape(instruction)}", message, re.MULTILINE)
    return found and found.group(1).strip() + found.group(2).strip()


def test_a_fault_shows_the_lines_around_it_and_marks_its_own():
    message = report(PROGRAM)
    fault = line_of(PROGRAM, "st.shared")
    lines = PROGRAM.splitlines()
    excerpt = "\n".join(line for line in message.splitlines() if not line.startswith("kernel '"))
    marks = {n: shown(excerpt, n, lines[n - 1]) for n in range(fault - 2, fault + 3)}
    assert None not in marks.values(), message
    own = marks.pop(fault)
    assert len(set(marks.values())) == 1 and own not in marks.values()
    assert lines[fault + 2] not in message and lines[fault - 4] not in message


def test_a_fault_near_the_end_of_the_text_shows_what_there_is():
    message = report(
        PROGRAM.replace("st.shared.b32 [%r4], %r3;\n", "").replace("ret;", "ret_;").replace("ret_;", "trap;")
    )
    assert "add.u32 %r6, %r4, 4;" in message and "add.u32 %r7, %r4, 5;" in message


def test_the_first_line_of_a_report_still_names_kernel_line_and_instruction():
    message = report(PROGRAM)
    line = line_of(PROGRAM, "st.shared")
    assert message.startswith(f"kernel 'kernel', PTX line {line}: st.shared.b32 [%r4], %r3")
    assert "CTA (0, 0, 0)" in message and "warp 0" in message


# ---- source lines ----

LOCATED = PROGRAM.replace(
    ".visible .entry", '.file 1 "/home/someone/project/first.cu"\n.file 2 "kernels/second.cu"\n.visible .entry'
)


def at(location: str, before: str, text: str = LOCATED) -> str:
    return text.replace(before, location + "\n" + before)


def test_a_fault_names_the_source_line():
    text = at(".loc 1 42 7", "st.shared.b32 [%r4]", at(".loc 2 17 3", "add.u32 %r4, %r4, 2;"))
    message = report(text)
    assert re.search(r"first\.cu:42\b", message)
    assert not re.search(r"first\.cu:4[013]\b|second\.cu:42\b", message)


def test_a_source_line_holds_until_the_next_one():
    text = at(".loc 1 99 1", "add.u32 %r5, %r4, 3;", at(".loc 2 17 3", "add.u32 %r4, %r4, 2;"))
    message = report(text)
    assert re.search(r"second\.cu:17\b", message) and "first.cu:99" not in message


def test_files_may_be_named_after_the_kernel():
    text = at(".loc 1 42 7", "st.shared.b32 [%r4]", PROGRAM) + '.file 1 "late.mojo"\n'
    assert re.search(r"late\.mojo:42\b", report(text))


def test_a_fault_in_a_text_without_source_lines_names_none():
    assert not re.search(r"\w\.(cu|mojo|py):\d", report(PROGRAM))


# ---- deadlocks ----

STUCK = """
mov.b32 %r3, words;
setp.ne.u32 %p1, %r0, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 1;
mbarrier.init.shared.b64 [%r3+8], 1;
READY:
bar.sync 0;
shr.u32 %r4, %r0, 5;
setp.ge.u32 %p2, %r4, {split};
@%p2 bra OTHERS;
AGAIN:
mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0;
@!%p3 bra AGAIN;
ret;
OTHERS:
mbarrier.try_wait.parity.shared.b64 %p3, [%r3+8], 0;
@!%p3 bra OTHERS;
ret;
"""


def deadlock(split: int, *, threads: int = 128, ctas: int = 4) -> list[str]:
    with pytest.raises(Deadlock) as error:
        launch(STUCK.format(split=split), threads=threads, grid=ctas, cluster=ctas, module_scope=WORDS)
    return str(error.value).splitlines()


def waits(lines: list[str]) -> list[str]:
    return [line for line in lines if re.search(r"waits? for parity 0", line)]


@pytest.mark.parametrize("ctas", [2, 4, 16])
def test_warps_that_wait_alike_in_every_cta_are_one_line(ctas):
    (line,) = waits(deadlock(4, ctas=ctas))
    assert re.search(r"warps 0\s*(-|\.\.|to)\s*3\b|warps 0, 1, 2(,| and) 3\b", line)
    assert "mbarrier.try_wait.parity" in line and "PTX line" in line


def test_warps_that_wait_elsewhere_have_a_line_of_their_own():
    lines = waits(deadlock(3))
    assert len(lines) == 2
    assert any(re.search(r"warps 0\s*(-|\.\.|to)\s*2\b|warps 0, 1(,| and) 2\b", line) for line in lines)
    assert any(re.search(r"warp 3\b", line) for line in lines)


def test_the_barriers_of_a_group_are_described():
    text = "\n".join(deadlock(3))
    assert "0x400" in text and "0x408" in text
    assert "pending: 1 of 1 arrivals, last" in text


def test_barriers_in_different_states_are_told_apart():
    """The CTA of rank 1 expects bytes on its barrier."""
    body = STUCK.format(split=4).replace(
        "bar.sync 0;",
        """bar.sync 0;
    mov.u32 %r5, %cluster_ctarank;
    setp.eq.u32 %p4, %r5, 1;
    setp.eq.and.u32 %p4, %r0, 0, %p4;
    @%p4 mbarrier.expect_tx.relaxed.cta.shared.b64 [%r3], 48;
    bar.sync 0;""",
    )
    with pytest.raises(Deadlock) as error:
        launch(body, threads=128, grid=4, cluster=4, module_scope=WORDS)
    text = str(error.value)
    one, others = "CTA rank 1: phase 0 (parity 0)", "CTA ranks 0, 2-3: phase 0 (parity 0)"
    assert f"{one}, pending: 1 of 1 arrivals, 48 bytes, last arrival: nobody\n" in text
    assert f"{others}, pending: 1 of 1 arrivals, last arrival: nobody\n" in text
    assert len(waits(text.splitlines())) == 2
