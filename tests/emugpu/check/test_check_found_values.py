"""Truth tables of strong writes whose value a strong read of another CTA finds: the write happened before what follows
the read, with or without a release (PTX ISA 8.9.4, 8.9.5: observation order precedes causality order).
"""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from handovers import CTA_BARRIER, Outcome, Table, only, outcome

from emugpu.emulator import Device, Module

numbered = count()
STRONG_WRITES = (
    "atom.relaxed.gpu.global.add.u32 %r5, [%m0], 1;",
    "red.relaxed.gpu.global.add.u32 [%m0], 1;",
    "st.relaxed.gpu.global.b32 [%m0], 1;",
    "st.volatile.global.b32 [%m0], 1;",
)
OTHER_WRITES = (
    "st.global.b32 [%m0], 1;",
    "atom.relaxed.cta.global.add.u32 %r5, [%m0], 1;",
    "st.global.b32 [%m0+64], 1; st.relaxed.gpu.global.b32 [%m0], 1;",
    "st.relaxed.gpu.global.b32 [%m0+64], 1; st.relaxed.gpu.global.b32 [%m0], 1;",
)
STRONG_READS = (
    "ld.relaxed.gpu.global.b32 %r5, [%m0];",
    "ld.volatile.global.b32 %r5, [%m0];",
    "atom.relaxed.gpu.global.or.b32 %r5, [%m0], 0;",
)
OTHER_READS = ("ld.global.b32 %r5, [%m0];", "ld.relaxed.cta.global.b32 %r5, [%m0];")
LATER = ("st.global.b32 [%m0], 0;", "ld.global.b32 %r7, [%m0];", "st.global.b32 [%m0+64], 0;")


def spin(load: str, value: int) -> str:
    label = f"SPIN{next(numbered)}"
    return f"{label}: {load} setp.ne.u32 %p13, %r5, {value}; @%p13 bra {label};"


def counter(s) -> str:
    """Thread 0 of CTA 0 writes a counter, that of CTA 1 finds it, and a thread of CTA 1 makes a weak access."""
    later = only("%thread eq 32", s.later)
    return (
        "mov.u32 %r6, %ctaid.x;"
        + only("%r6 eq 0", only("%thread eq 0", s.write))
        + only("%r6 eq 1", only("%thread eq 0", spin(s.read, 1)) + CTA_BARRIER + later)
    )


def counter_expects(s) -> Outcome:
    """Finding a value orders the write of this value, and no other write of its thread."""
    strong = s.write not in OTHER_WRITES[:2] and s.read in STRONG_READS
    another = "[%m0+64]" in s.write and "[%m0+64]" in s.later
    return outcome((not strong or another) and "race-global|scope")


SECONDS = {
    "atom": "atom.relaxed.gpu.global.add.u32 %r5, [%m0], 1;",
    "red": "red.relaxed.gpu.global.add.u32 [%m0], 1;",
    "st": "st.relaxed.gpu.global.b32 [%m0], 2;",
}
FOUND = {"the counter": ("%m0", 2), "another word": ("%m0+64", 1)}


def third(s) -> str:
    """CTA 0 counts to 1; CTA 1 finds that and counts on; CTA 2 finds what CTA 1 has written and resets the counter."""
    seconds, (place, value) = SECONDS[s.second], FOUND[s.found]
    read = "ld.relaxed.gpu.global.b32 %r5, [%m0];"
    return (
        "mov.u32 %r6, %ctaid.x;"
        + only("%r6 eq 0", only("%thread eq 0", "red.relaxed.gpu.global.add.u32 [%m0], 1;"))
        + only("%r6 eq 1", only("%thread eq 0", spin(read, 1) + seconds + "st.relaxed.gpu.global.b32 [%m0+64], 1;"))
        + only("%r6 eq 2", only("%thread eq 0", spin(read.replace("%m0", place), value) + "st.global.b32 [%m0], 0;"))
    )


def overwritten(s) -> str:
    """CTA 0 counts to 1; CTA 1, which learns of that by another word alone, writes 2, which CTA 2 finds and resets."""
    read = "ld.relaxed.gpu.global.b32 %r5, [%m0];"
    write = "red.relaxed.gpu.global.add.u32 [%m0], 1; st.relaxed.gpu.global.b32 [%m0+64], 1;"
    return (
        "mov.u32 %r6, %ctaid.x;"
        + only("%r6 eq 0", only("%thread eq 0", write))
        + only("%r6 eq 1", only("%thread eq 0", spin(read.replace("%m0", "%m0+64"), 1) + SECONDS[s.second]))
        + only("%r6 eq 2", only("%thread eq 0", spin(read, 2) + "st.global.b32 [%m0], 0;"))
    )


def words(device: Device) -> list[int]:
    return [device.upload(np.zeros(32, np.uint32))]


TABLES = [
    Table(
        "a counter",
        dict(write=STRONG_WRITES + OTHER_WRITES, read=STRONG_READS + OTHER_READS, later=LATER),
        counter,
        counter_expects,
        grid=2,
        arguments=words,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "a counter that a third CTA resets",
        dict(second=tuple(SECONDS), found=tuple(FOUND)),
        third,
        lambda s: outcome(s.found == "another word" and "race-global|scope"),
        grid=3,
        arguments=words,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "a counter that is overwritten, or counted on",
        dict(second=tuple(SECONDS)),
        overwritten,
        lambda s: outcome(s.second == "st" and "race-global|scope"),
        grid=3,
        arguments=words,
        targets=("sm_100a", "sm_90a"),
    ),
]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table(table):
    found = table.disagreements(table.targets[0], [("fifo", 0), ("random", 1)])
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)


def test_no_access_is_said_to_hand_itself_over():
    """CTA 1 finds the value of an atomic whose scope is too narrow."""
    (index,) = (
        n
        for n, s in enumerate(TABLES[0].settings)
        if (s.write, s.read, s.later) == (OTHER_WRITES[1], STRONG_READS[0], LATER[0])
    )
    report, _ = TABLES[0].report(Device(), Module.from_text(TABLES[0].text("sm_100a")), f"setting{index}")
    assert report.errors
    for found in report.errors:
        assert f"at PTX line {found.first.line}, which" not in found.missing
