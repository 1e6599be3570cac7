"""Bugs of the newest public kernels, rebuilt small: the cause is named in the broken form, nothing in the fixed one.

Where they were found: cudnn-frontend 894 and 954, marin 8870, triton 11411, tilelang 3030, cuda-oxide 1066. The
programs are our own; only the mechanism is theirs.
"""

from __future__ import annotations

import numpy as np
import pytest
from handovers import BOX, CLEAR, CLUSTER_BARRIER, CTA_BARRIER, FENCE, Table, only, outcome, wait, words

from emugpu.emulator import Device, Module

ASK = """
mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 16;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [data], [bars];
"""
WHOLE = "ld.shared.v4.b32 {%r3, %r4, %r5, %r6}, [data];"
IN_PARTS = "ld.shared.b32 %r3, [data]; ld.shared.b32 %r4, [data+4]; ld.shared.b32 %r5, [data+8];"
CREDIT = "mbarrier.arrive.shared::cta.b64 _, [bars+8];"
BROKEN = {"broken": (False, True)}
BOTH = ("sm_100a", "sm_90a")
ONE_AT_A_TIME = {"resident_clusters": 1}


def numbers(device: Device) -> list[int]:
    return [device.upload(np.arange(32, dtype=np.uint32))]


def initialise(*counts: int) -> str:
    inits = "".join(f"mbarrier.init.shared::cta.b64 [bars+{8 * n}], {count};" for n, count in enumerate(counts))
    return only("%thread eq 0", inits + "fence.mbarrier_init.release.cluster;")


def two_answers(read: str, readers: str = "%warp lt 2", credits: int = 64, first: str = "") -> str:
    """Warp 2 asks twice, into one slot; warps 0 and 1 read each answer and give the slot back. bars: full, empty."""
    zeros = "st.shared.v4.b32 [data], {0, 0, 0, 0};" + FENCE
    second = only(readers, wait("bars", 1) + (first or WHOLE))
    return (
        only("%thread eq 0", zeros)
        + initialise(1, credits)
        + CTA_BARRIER
        + only("%thread eq 64", ASK + wait("bars+8") + ASK + wait("bars", 1))
        + only(readers, wait("bars") + read)
        + second
    )


def answer_in_parts(s) -> str:
    """cudnn-frontend 894: the answer is decoded from three loads of 32 bits."""
    load = IN_PARTS if s.broken else WHOLE
    return two_answers(load + FENCE + CREDIT, first=load)


def credit_before_the_parts(s) -> str:
    """cudnn-frontend 894: the credit for the slot is given before the last of the loads."""
    load = "ld.shared.b32 %r3, [data];" + FENCE + CREDIT + "ld.shared.b32 %r4, [data+8];"
    return two_answers(load if s.broken else WHOLE + FENCE + CREDIT)


def no_fence_after_the_read(s) -> str:
    """cudnn-frontend 894: no proxy fence between the read of the slot and the credit for it."""
    return two_answers(WHOLE + ("" if s.broken else FENCE) + CREDIT)


def relaxed_credit(s) -> str:
    """cudnn-frontend 894: the credit is a relaxed arrival, which does not order the read before it."""
    credit = "mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [bars+8];" if s.broken else CREDIT
    return two_answers(WHOLE + FENCE + credit)


def both_expect(s) -> str:
    """cudnn-frontend 894: each CTA of a pair expects the bytes at the barrier that the pair shares, that of rank 0."""
    expect = "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r10], 16;"
    load = """
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [data], [%m0], 16, [bars];
    """
    return (
        initialise(1)
        + CLUSTER_BARRIER
        + "mov.b32 %r10, bars; mapa.shared::cluster.u32 %r10, %r10, 0;"
        + only("%thread eq 0", expect if s.broken else only("%rank eq 0", expect))
        + only("%rank eq 0", only("%thread eq 0", load))
        + only("%rank eq 0", wait("bars"))
        + CLUSTER_BARRIER
    )


def fifteen(s) -> str:
    """cudnn-frontend 954: initialised for 15 arrivals, and 11 warps arrive."""
    return (
        initialise(15 if s.broken else 11)
        + CTA_BARRIER
        + only("%warp lt 11", "bar.warp.sync -1;" + only("%lane eq 0", "mbarrier.arrive.shared::cta.b64 _, [bars];"))
        + only("%warp eq 11", wait("bars"))
    )


def one_warp_gives_back(s) -> str:
    """marin 8870: two warps decode each answer, and the slot is free when one of them has read it."""
    one = WHOLE + FENCE + only("%warp eq 0", CREDIT)
    return two_answers(one if s.broken else WHOLE + FENCE + CREDIT, credits=32 if s.broken else 64)


def multicast_again(s) -> str:
    """triton 11411: rank 0 loads into all four CTAs, and again when three of them have read."""
    load = """
    mov.b32 %r20, 0; mov.b16 %h1, 15;
    cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
        [data], [%m0, {%r20}], [bars], %h1;
    """
    arm = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {4 * BOX};"
    free = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10];"
    given = only("%rank lt 3", free) if s.broken else free
    acquire = wait("bars+8", 0, ".acquire.cluster")
    return (
        CLEAR
        + initialise(1, 96 if s.broken else 128)
        + "bar.warp.sync -1;"
        + CLUSTER_BARRIER
        + "mov.b32 %r10, bars+8; mapa.shared::cluster.u32 %r10, %r10, 0;"
        + only("%thread eq 0", arm + only("%rank eq 0", load))
        + only("%warp eq 1", wait("bars") + "ld.shared.b32 %r3, [%r1];" + FENCE + given)
        + only("%thread eq 0", wait("bars") + arm + only("%rank eq 0", acquire + load) + wait("bars", 1))
        + CLUSTER_BARRIER
    )


def no_arrivals(s) -> str:
    """tilelang 3030: mbarrier.init with a count of 0."""
    return initialise(0 if s.broken else 32) + CTA_BARRIER + only(
        "%warp eq 1", "mbarrier.arrive.shared::cta.b64 _, [bars];"
    ) + wait("bars")  # fmt: skip


def mailbox(s) -> str:
    """cuda-oxide 1066: a thread writes the next tile into a mailbox that the other warp may not have read."""
    publish = "st.shared.b32 [data], {};mbarrier.arrive.shared::cta.b64 _, [bars];"
    read = "ld.shared.b32 %r3, [data];" + ("" if s.broken else CREDIT)
    return (
        initialise(1, 32)
        + CTA_BARRIER
        + only("%thread eq 0", publish.format(7) + ("" if s.broken else wait("bars+8")) + publish.format(8))
        + only("%warp eq 1", wait("bars") + read + wait("bars", 1) + "ld.shared.b32 %r3, [data];")
    )


def read_back(s) -> str:
    """cuda-oxide 1066: lane 0 writes the tile, and its own warp reads it back at once."""
    return only(
        "%warp eq 0",
        only("%lane eq 0", "st.shared.b32 [data], 7;")
        + ("" if s.broken else "bar.warp.sync -1;")
        + "ld.shared.b32 %r3, [data];",
    )


def slot_used_again(s) -> str:
    """The slot of an answer gets other data, which may be read in parts."""
    copies = {
        "copy": "mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 16;"
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [data], [%m0], 16, [bars];" + wait("bars", 1),
        "cp.async": "cp.async.ca.shared.global [data], [%m0], 16; cp.async.wait_all;",
        "st": "st.shared.v4.b32 [data], {0, 0, 0, 0};",
        "nothing": "",
    }
    return (
        only("%thread eq 0", "st.shared.v4.b32 [data], {0, 0, 0, 0};" + FENCE)
        + initialise(1)
        + CTA_BARRIER
        + only("%thread eq 0", ASK + wait("bars") + WHOLE + FENCE + copies[s.then] + IN_PARTS)
    )


def broken(*rules: str, end: str = "ends"):
    return lambda s: outcome(*rules, end=end) if s.broken else outcome()


BUGS = [
    Table("the slot of an answer", {"then": ("copy", "cp.async", "st", "nothing")}, slot_used_again,
          lambda s: outcome(s.then == "nothing" and "clc-opaque"), grid=2, threads=32, launch=ONE_AT_A_TIME,
          arguments=numbers),
    Table("cudnn-frontend 894, three loads", BROKEN, answer_in_parts, broken("clc-opaque"), grid=4, threads=96,
          launch=ONE_AT_A_TIME),
    Table("cudnn-frontend 894, a credit between the loads", BROKEN, credit_before_the_parts,
          broken("clc-slot", "clc-opaque"), grid=4, threads=96, launch=ONE_AT_A_TIME),
    Table("cudnn-frontend 894, no proxy fence", BROKEN, no_fence_after_the_read, broken("proxy-read-overwrite"), grid=4,
          threads=96, launch=ONE_AT_A_TIME),
    Table("cudnn-frontend 894, relaxed credit", BROKEN, relaxed_credit, broken("clc-slot", "race-shared"), grid=4,
          threads=96, launch=ONE_AT_A_TIME),
    Table("cudnn-frontend 894, both CTAs expect", BROKEN, both_expect, broken("count|bytes", end="stops"), threads=32,
          grid=2, cluster=2, arguments=numbers, targets=BOTH),
    Table("cudnn-frontend 954", BROKEN, fifteen, broken(end="hangs"), threads=384, targets=BOTH),
    Table("marin 8870", BROKEN, one_warp_gives_back, broken("clc-slot"), grid=4, threads=96, launch=ONE_AT_A_TIME),
    Table("triton 11411", BROKEN, multicast_again, broken("race-shared"), grid=4, cluster=4, arguments=words,
          targets=BOTH),
    Table("tilelang 3030", BROKEN, no_arrivals, broken("init", end="stops"), targets=BOTH),
    Table("cuda-oxide 1066, mailbox", BROKEN, mailbox, broken("race-shared"), targets=BOTH),
    Table("cuda-oxide 1066, read back", BROKEN, read_back, broken("race-lanes"), targets=BOTH),
]  # fmt: skip
TABLES = BUGS
CAUSES = {
    "cudnn-frontend 894, three loads": "its format is opaque",
    "cudnn-frontend 894, no proxy fence": "the next response may overtake this read",
    "cudnn-frontend 954": "it lacks 4 of 15 arrivals",
    "tilelang 3030": "mbarrier.init with count 0; the count must be 1",
    "marin 8870": "the launch-control response overwrites what the read by ld may still read",
    "triton 11411": "the TMA copy overwrites what the read by ld may still read",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_broken_form_is_found_and_the_fixed_one_is_clean(bug):
    found = bug.disagreements(bug.targets[0], [("fifo", 0), ("random", 3)])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_fixed_form_has_no_warning_either(bug):
    report, end = bug.report(Device(), Module.from_text(bug.text(bug.targets[0])), "setting0")
    assert (end, [f"{finding.rule}: {finding.message}" for finding in report.warnings]) == ("ends", [])


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.name in CAUSES], ids=lambda bug: bug.name)
def test_the_finding_names_the_cause(bug):
    report, _ = bug.report(Device(), Module.from_text(bug.text(bug.targets[0])), "setting1")
    assert any(CAUSES[bug.name] in finding.message for finding in report.errors), report.errors
