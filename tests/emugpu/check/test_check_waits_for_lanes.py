"""Lanes that wait at an mbarrier, for a flag or a bulk group for other lanes of their warp, and lanes that signal for
volatile and atomic accesses of others. Truth tables.
"""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from handovers import CTA_BARRIER, FENCE, Outcome, Table, only, outcome, wait

from emugpu.emulator import Device

MEETINGS = {
    "bar.warp.sync": "bar.warp.sync -1;",
    "shfl": "shfl.sync.idx.b32 %r9, %r2, 0, 31, -1;",
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [data+4096];",
    "half": only("%lane lt 16", "bar.warp.sync 65535;"),
    "none": "",
}
OWN_WORD = "mov.b32 %r1, data; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2;"
COPY = """
mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 128;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [data], [%m0], 128, [bars];
"""
numbered = count()


def waiting(who: str, text: str) -> str:
    return {
        "all": text,
        "each half": only("%lane lt 16", text) + only("%lane ge 16", text.replace("WAIT", "ALSO")),
        "lane 0": only("%lane eq 0", text),
        "half, then part": only("%lane lt 16", text + only("%lane lt 8", "mov.u32 %r42, 0;")),
        "part of half": only("%lane lt 16", only("%lane lt 8", text) + "bar.warp.sync 65535;"),
    }[who]


def received(s) -> str:
    """Warp 1 gives data to warp 0, of which some lanes wait: a copy, or stores; or it is done with reading them."""
    gives = {
        "copy": only("%lane eq 0", COPY),
        "st": "st.shared.b32 [%r1], 5;" + only("%lane eq 0", "bar.warp.sync 1;") + "bar.warp.sync -1;"
        + only("%lane eq 0", "mbarrier.arrive.shared::cta.b64 _, [bars];"),
        "read": "ld.shared.b32 %r3, [%r1]; bar.warp.sync -1;"
        + only("%lane eq 0", "mbarrier.arrive.shared::cta.b64 _, [bars];"),
    }[s.given]  # fmt: skip
    takes = "st.shared.b32 [%r1], 7;" if s.given == "read" else "ld.shared.b32 %r4, [%r1];"
    return (
        only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars], 1;")
        + OWN_WORD
        + only("%warp eq 0", "st.shared.b32 [%r1], 1; st.shared.b32 [%r1+4096], 1;" + FENCE)
        + CTA_BARRIER
        + only("%warp eq 1", gives)
        + only("%warp eq 0", waiting(s.who, wait("bars")) + MEETINGS[s.meeting] + takes)
        + CTA_BARRIER
    )


def received_expects(s) -> Outcome:
    return outcome(s.who == "lane 0" and s.meeting in ("half", "none") and "wait-for-lanes")


def numbers(device: Device) -> list[int]:
    return [device.upload(np.arange(64, dtype=np.uint32))]


def flagged(s) -> str:
    """CTA 0 raises a flag for which lane 0 of CTA 1, or each lane, waits; then all read."""
    label = f"AGAIN{next(numbered)}"
    load, after = {
        "acquire": ("ld.acquire.gpu.global.b32", ""),
        "fence": ("ld.relaxed.gpu.global.b32", "fence.acq_rel.gpu;"),
        "volatile, fence": ("ld.volatile.global.b32", "fence.acq_rel.gpu;"),
        "fence by all": ("ld.relaxed.gpu.global.b32", ""),
        "volatile, fence by all": ("ld.volatile.global.b32", ""),
        "met, fence by all": ("ld.relaxed.gpu.global.b32", ""),
    }[s.acquire]
    then = ("bar.warp.sync -1;" if "met" in s.acquire else "") + ("fence.acq_rel.gpu;" if "by all" in s.acquire else "")
    spin = f"{label}: {load} %r4, [%m0+256]; setp.eq.u32 %p2, %r4, 0; @%p2 bra {label}; {after}"
    waits = only("%lane eq 0", spin) if s.who == "lane 0" else spin
    return (
        "mul.wide.u32 %d1, %lane, 4; add.u64 %d1, %m0, %d1; mov.u32 %r8, %ctaid.x;"
        + only("%r8 eq 0", "st.global.b32 [%d1], 5; bar.warp.sync -1;"
               + only("%lane eq 0", "st.release.gpu.global.b32 [%m0+256], 1;"))
        + only("%r8 eq 1", waits + then + s.meeting + "ld.global.b32 %r5, [%d1];")
    )  # fmt: skip


def flagged_expects(s) -> Outcome:
    have_met = s.meeting or s.acquire == "met, fence by all"
    return outcome(s.who == "lane 0" and not have_met and "wait-for-lanes")


def stored(s) -> str:
    """Lane 0 stores what all lanes have written, and waits for its group, or all lanes wait; then they write again."""
    wait_group = "cp.async.bulk.wait_group.read 0;"
    waits = {
        "all": wait_group,
        "lane 0": only("%lane eq 0", wait_group),
        "a guard": "setp.eq.u32 %p3, %lane, 0; @%p3 " + wait_group,
    }[s.who]
    store = "cp.async.bulk.global.shared::cta.bulk_group [%m0], [data], 128; cp.async.bulk.commit_group;"
    again = {"all": "st.shared.b32 [%r1], 2;", "lane 0": only("%lane eq 0", "st.shared.b32 [%r1], 2;")}[s.again]
    written = OWN_WORD + "st.shared.b32 [%r1], 1;" + FENCE + "st.shared.b32 [%r1+4096], 1; bar.warp.sync -1;"
    return written + only("%lane eq 0", store) + waits + MEETINGS[s.meeting] + again


def zeros(device: Device) -> list[int]:
    return [device.upload(np.zeros(128, np.uint32))]


def kept(s) -> str:
    """Lane 0 waits, all meet, lane 0 waits for something else; all read what the first wait was for."""
    return (
        only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars], 1; mbarrier.init.shared::cta.b64 [bars+8], 1;")
        + OWN_WORD
        + only("%warp eq 0", "st.shared.b32 [%r1+4096], 1;")
        + CTA_BARRIER
        + only("%warp eq 1", only("%lane eq 0", COPY + "mbarrier.arrive.shared::cta.b64 _, [bars+8];"))
        + only("%warp eq 0", waiting("lane 0", wait("bars")) + MEETINGS[s.meeting]
               + waiting("lane 0", wait("bars+8")) + "ld.shared.b32 %r4, [%r1];")
    )  # fmt: skip


USES = {
    "selp": "setp.eq.u32 %p5, %lane, 0; selp.b32 %r41, %r40, 0, %p5;",
    "selp, add": "setp.eq.u32 %p5, %lane, 0; selp.b32 %r41, %r40, 0, %p5; add.u32 %r41, %r41, %r40;",
    "add": "add.u32 %r41, %r40, 1;",
}


def dropped(s) -> str:
    """Lane 0 waits; all lanes read, as nvcc compiles ``lane == 0 ? x : 0``, or use what they have read."""
    return (
        only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars], 1;")
        + CTA_BARRIER
        + only("%thread eq 32", "st.shared.b32 [data], 5; mbarrier.arrive.shared::cta.b64 _, [bars];")
        + only("%warp eq 0", waiting("lane 0", wait("bars")) + "ld.shared.b32 %r40, [data];" + USES[s.use])
    )


STRONG = {
    "ld.volatile": ("ld.volatile.shared.b32 %r3, [%r1];", "st.shared.b32 [%r1], 7;"),
    "ld.relaxed": ("ld.relaxed.cta.shared.b32 %r3, [%r1];", "st.shared.b32 [%r1], 7;"),
    "st.volatile": ("st.volatile.shared.b32 [%r1], 5;", "ld.shared.b32 %r4, [%r1];"),
    "atom": ("atom.shared.add.u32 %r3, [%r1], 1;", "ld.shared.b32 %r4, [%r1];"),
    "red": ("red.shared.add.u32 [%r1], 1;", "ld.shared.b32 %r4, [%r1];"),
}


def signalled(s) -> str:
    """Warp 0 makes strong accesses, for which lane 0, or each lane, arrives; warp 1 waits and makes weak ones."""
    access, later = STRONG[s.access]
    arrive = "mbarrier.arrive.shared::cta.b64 _, [bars];"
    return (
        only("%thread eq 0", f"mbarrier.init.shared::cta.b64 [bars], {32 if s.who == 'all' else 1};")
        + OWN_WORD
        + only("%warp eq 0", "st.shared.b32 [%r1], 1; st.shared.b32 [%r1+4096], 1;")
        + CTA_BARRIER
        + only("%warp eq 0", access + MEETINGS[s.meeting] + waiting(s.who, arrive))
        + only("%warp eq 1", wait("bars") + later)
    )


BOTH = ("sm_100a", "sm_90a")
TABLES = [
    Table("waits", dict(meeting=tuple(MEETINGS), who=("all", "each half", "lane 0"), given=("copy", "st", "read")),
          received, received_expects, arguments=numbers, targets=BOTH),
    Table("a flag", dict(meeting=("bar.warp.sync -1;", ""), who=("all", "lane 0"),
                         acquire=("acquire", "fence", "volatile, fence", "fence by all", "volatile, fence by all",
                                  "met, fence by all")),
          flagged, flagged_expects,
          threads=32, grid=2, arguments=zeros, targets=BOTH),
    Table("a bulk group", dict(meeting=tuple(MEETINGS), who=("all", "lane 0", "a guard"), again=("all", "lane 0")),
          stored, lambda s: outcome(s.again == "all" and s.meeting in ("half", "none") and "wait-for-lanes"),
          threads=32, arguments=zeros, targets=BOTH),
    Table("two waits", dict(meeting=tuple(MEETINGS)), kept,
          lambda s: outcome(s.meeting in ("half", "none") and "wait-for-lanes"), arguments=numbers, targets=BOTH),
    Table("waits in branches", dict(meeting=("bar.warp.sync", "none"), who=("half, then part", "part of half"),
                                    given=("copy", "st", "read")),
          received, lambda s: outcome(s.meeting == "none" and "wait-for-lanes"), arguments=numbers, targets=BOTH),
    Table("a value that some lanes drop", dict(use=tuple(USES)), dropped,
          lambda s: outcome(s.use != "selp" and "wait-for-lanes"), targets=BOTH),
    Table("strong accesses", dict(access=tuple(STRONG), meeting=("bar.warp.sync", "shfl", "none"),
                                  who=("all", "lane 0")), signalled,
          lambda s: outcome(s.who == "lane 0" and s.meeting == "none" and "signal-for-lanes"), targets=BOTH),
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table(table):
    found = table.disagreements(table.targets[0], [("fifo", 0), ("random", 1)])
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)
