"""Lanes that arrive, or raise a flag, for what other lanes of their warp have read or written. Truth tables."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from handovers import CTA_BARRIER, FENCE, Outcome, Table, only, outcome, wait

from emugpu.emulator import Device, Module

MEETINGS = {
    "bar.warp.sync": "bar.warp.sync -1;",
    "shfl": "shfl.sync.idx.b32 %r9, %r2, 0, 31, -1;",
    "elect": "elect.sync _|%p3, -1;",
    "none": "",
}
COPY = """
mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars+8], 128;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [data], [%m0], 128, [bars+8];
"""
OWN_WORD = "mov.b32 %r1, data; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2;"
REFILLS = {"copy": only("%lane eq 0", COPY + wait("bars+8")), "st": "st.shared.b32 [%r1], 7;"}


def numbers(device: Device) -> list[int]:
    return [device.upload(np.arange(64, dtype=np.uint32))]


def signal(who: str, text: str) -> str:
    """Lets lanes execute an instruction that signals."""
    return {
        "lane 0, by a branch": only("%lane eq 0", text),
        "lane 0, by a guard": f"setp.eq.u32 %p1, %lane, 0; @%p1 {text}",
        "all": text,
        "each half": only("%lane lt 16", text) + only("%lane ge 16", text),
    }[who]


def initialise(s) -> str:
    count = 1 if s.who.startswith("lane 0") else 32
    inits = f"mbarrier.init.shared::cta.b64 [bars], {count}; mbarrier.init.shared::cta.b64 [bars+8], 1;"
    return only("%thread eq 0", inits) + OWN_WORD


def refilled(s) -> str:
    """Warp 0 reads a stage, and lanes of it arrive; warp 1 waits for them and fills the stage again."""
    arrive = "mbarrier.arrive.shared::cta.b64 _, [bars];"
    read = "ld.shared.b32 %r3, [%r1];" + FENCE + MEETINGS[s.meeting] + signal(s.who, arrive)
    return (
        initialise(s)
        + only("%warp eq 0", "st.shared.b32 [%r1], 1;" + FENCE)
        + CTA_BARRIER
        + only("%warp eq 0", read)
        + only("%warp eq 1", wait("bars") + REFILLS[s.refill])
        + CTA_BARRIER
    )


def handed_over(s) -> str:
    """Warp 0 writes a stage, and lanes of it arrive; warp 1 waits for them and reads it, by ld or by a bulk store."""
    arrive = "mbarrier.arrive.shared::cta.b64 _, [bars];"
    store = """
    cp.async.bulk.global.shared::cta.bulk_group [%m0], [data], 128;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    """
    read = "ld.shared.b32 %r3, [%r1];" if s.read == "ld" else only("%lane eq 0", store)
    return (
        initialise(s)
        + CTA_BARRIER
        + only("%warp eq 0", "st.shared.b32 [%r1], 1;" + FENCE + MEETINGS[s.meeting] + signal(s.who, arrive))
        + only("%warp eq 1", wait("bars") + read)
        + CTA_BARRIER
    )


def expects(s) -> Outcome:
    return outcome(s.who.startswith("lane 0") and s.meeting == "none" and "signal-for-lanes")


numbered = count()


def flag(s) -> str:
    """CTA 0 writes 32 words of global memory, and one lane raises a flag for which CTA 1 waits."""
    read = """
    AGAIN{0}:
    ld.acquire.gpu.global.b32 %r4, [%m0+256];
    setp.eq.u32 %p2, %r4, 0;
    @%p2 bra AGAIN{0};
    ld.global.b32 %r5, [%d1];
    """.replace("{0}", f"{next(numbered)}")
    release = {
        "st.release": "st.release.gpu.global.b32 [%m0+256], 1;",
        "fence": "fence.acq_rel.gpu; st.relaxed.gpu.global.b32 [%m0+256], 1;",
        "fence of all": "st.relaxed.gpu.global.b32 [%m0+256], 1;",
        "membar of all": "st.volatile.global.b32 [%m0+256], 1;",
        "red": "red.release.gpu.global.add.u32 [%m0+256], 1;",
    }[s.release]
    place = "mul.wide.u32 %d1, %lane, 4; add.u64 %d1, %m0, %d1;"
    fence = {"fence of all": "fence.acq_rel.gpu;", "membar of all": "membar.gl;"}.get(s.release, "")
    write = "st.global.b32 [%d1], 5;" + fence + MEETINGS[s.meeting] + only(f"%lane {s.who}", release)
    return place + "mov.u32 %r8, %ctaid.x;" + only("%r8 eq 0", write) + only("%r8 eq 1", read)


def zeros(device: Device) -> list[int]:
    return [device.upload(np.zeros(128, np.uint32))]


def own_part(s) -> str:
    """All lanes write scratch words, lane 0 also a header; what lane 0 arrives for is the header alone."""
    arrive = only("%lane eq 0", "st.shared.b32 [data+1024], 5; mbarrier.arrive.shared::cta.b64 _, [bars];")
    read = "ld.shared.b32 %r3, [data+1024];" + ("ld.shared.b32 %r4, [%r1];" if s.reads_all else "")
    return (
        only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars], 1;")
        + OWN_WORD
        + CTA_BARRIER
        + only("%warp eq 0", "st.shared.b32 [%r1], 1;" + arrive)
        + only("%warp eq 1", wait("bars") + read)
    )


def multiplied(s) -> str:
    """Lanes read operands, which mma.sync takes, and lane 0 arrives: at mma.sync lanes wait for one another."""
    multiply = (
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r3,%r3}, {%r3}, {%f1,%f2,%f3,%f4};"
    )
    arrive = only("%lane eq 0", "mbarrier.arrive.shared::cta.b64 _, [bars];")
    zero = "".join(f"mov.f32 %f{n}, 0f00000000;" for n in range(1, 5))
    read = "ld.shared.b32 %r3, [%r1];" + (multiply if s.multiplies else "") + arrive
    return (
        only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars], 1;")
        + OWN_WORD
        + zero
        + only("%warp eq 0", "st.shared.b32 [%r1], 0;")
        + CTA_BARRIER
        + only("%warp eq 0", read)
        + only("%warp eq 1", wait("bars") + "st.shared.b32 [%r1], 7;")
    )


ARRIVE = "setp.eq.u32 %p1, %lane, 0; @%p1 mbarrier.arrive.shared::cta.b64 _, [bars];"


def rounds(s) -> str:
    """Warp 0 reads a row in each round, for which lane 0 arrives; all meet at the end, and warp 1 writes all rows."""
    rows = range(0, 128 * s.rounds, 128)
    return (
        only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars], 1;")
        + OWN_WORD
        + "".join(f"st.shared.b32 [%r1+{row}], 1;" for row in rows)
        + CTA_BARRIER
        + only("%warp eq 0", "".join(f"ld.shared.b32 %r3, [%r1+{row}];" + ARRIVE for row in rows))
        + CTA_BARRIER
        + only("%warp eq 1", "".join(f"st.shared.b32 [%r1+{row}], 2;" for row in rows))
    )


def polled(s) -> str:
    """Warp 0 reads a stage, polls a flag many times, and lane 0 arrives; warp 1 waits and fills the stage again."""
    spin = "SPIN: ld.relaxed.cta.shared::cta.b32 %r3, [data+4096]; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 200;"
    return (
        only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars], 1;")
        + OWN_WORD
        + only("%warp eq 0", "st.shared.b32 [%r1], 1;")
        + only("%thread eq 32", "st.release.cta.shared::cta.b32 [data+4096], 1;")
        + CTA_BARRIER
        + "mov.u32 %r4, 0;"
        + only("%warp eq 0", f"ld.shared.b32 %r5, [%r1]; {spin} @%p2 bra SPIN;" + MEETINGS[s.meeting] + ARRIVE)
        + only("%warp eq 1", wait("bars") + "st.shared.b32 [%r1], 7;")
    )


HALVES = only("%lane lt 16", "bar.warp.sync 65535;") + only("%lane ge 16", "bar.warp.sync 0xffff0000;")
ONE_OF_EACH = "and.b32 %r10, %lane, 15;" + only("%r10 eq 0", "bar.warp.sync 65537;")
PARTS = {
    "halves, then one lane of each": HALVES + ONE_OF_EACH,
    "one lane of each half, then halves": ONE_OF_EACH + HALVES,
    "halves": HALVES,
    "lane 0 alone": only("%lane eq 0", "bar.warp.sync 1;"),
    "shfl of a half": only("%lane lt 16", "shfl.sync.idx.b32 %r9, %r2, 0, 31, 65535;"),
    "vote of a half": only("%lane lt 16", "vote.sync.any.pred %p3, %p2, 65535;"),
    "elect of a half": only("%lane lt 16", "elect.sync _|%p3, 65535;"),
    "a wait for another mbarrier": wait("bars+8"),
}  # fmt: skip


def met_in_part(s) -> str:
    """Warp 0 reads a stage, some of its lanes meet, and lane 0 arrives; warp 1 waits and fills the stage again."""
    return (
        only("%thread eq 0", "".join(f"mbarrier.init.shared::cta.b64 [bars+{n}], 1;" for n in (0, 8)))
        + OWN_WORD
        + "setp.eq.u32 %p2, %lane, 40;"
        + only("%warp eq 0", "st.shared.b32 [%r1], 1;")
        + CTA_BARRIER
        + only("%thread eq 32", "mbarrier.arrive.shared::cta.b64 _, [bars+8];")
        + only("%warp eq 0", "ld.shared.b32 %r3, [%r1];" + PARTS[s.part] + ARRIVE)
        + only("%warp eq 1", wait("bars") + "st.shared.b32 [%r1], 7;")
    )


WHO = ("lane 0, by a branch", "lane 0, by a guard", "all", "each half")
BOTH = ("sm_100a", "sm_90a")
TABLES = [
    Table("read, then refilled", dict(meeting=tuple(MEETINGS), who=WHO, refill=tuple(REFILLS)), refilled, expects,
          arguments=numbers, targets=BOTH),
    Table("written, then read", dict(meeting=tuple(MEETINGS), who=WHO, read=("ld", "bulk store")), handed_over, expects,
          arguments=numbers, targets=BOTH),
    Table("written to global memory, with a flag",
          dict(meeting=("bar.warp.sync", "none"), who=("eq 0", "lt 32"),
               release=("st.release", "fence", "fence of all", "membar of all", "red")), flag,
          lambda s: outcome(s.meeting == "none" and s.who == "eq 0" and "signal-for-lanes"),
          threads=32, grid=2, arguments=zeros, targets=BOTH),
    Table("the arriving lane's own words", dict(reads_all=(False, True)), own_part,
          lambda s: outcome(s.reads_all and "signal-for-lanes"), targets=BOTH),
    Table("operands of mma.sync", dict(multiplies=(True, False)), multiplied,
          lambda s: outcome(not s.multiplies and "signal-for-lanes"), targets=BOTH),
    Table("more rounds than the checker follows", dict(rounds=(64, 65, 200)), rounds, lambda s: outcome(), data=32768,
          targets=BOTH),
    Table("a flag is polled in between", dict(meeting=("bar.warp.sync", "none")), polled,
          lambda s: outcome(s.meeting == "none" and "signal-for-lanes"), targets=BOTH),
    Table("meetings of some lanes", dict(part=tuple(PARTS)), met_in_part,
          lambda s: outcome(s.part != "halves, then one lane of each" and "signal-for-lanes"), targets=BOTH),
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table(table):
    found = table.disagreements(table.targets[0], [("fifo", 0), ("random", 1)])
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)


def test_the_finding_names_the_lane_that_signals_and_the_line_to_mend():
    table = TABLES[0]
    text = table.text("sm_100a")
    number = next(n for n, s in enumerate(table.settings) if (s.meeting, s.who, s.refill) == ("none", WHO[1], "copy"))
    report, _ = table.report(Device(), Module.from_text(text), f"setting{number}")
    (found,) = report.errors
    assert "lane 0 signals" in found.message
    assert "read" in found.message
    line = int(found.fix.split("before line ")[1].split(",")[0])
    assert "mbarrier.arrive" in text.splitlines()[line - 1]
    assert found.first.text.startswith("ld.shared")
    assert "cp.async.bulk" in found.second.text
