"""Probes of tcgen05.commit: which mbarriers of a cluster receive an arrival, and how many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from conformance.blackwell.ptx import THREADS, TO_EVEN, by_thread_0, by_warp_0, commit, kernel, pointer
from conformance.comparison import Difference, by_element
from conformance.probe import Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import CLUSTER_SYNC, poll

CTAS = 4
EXPECTED = 64
"""Arrivals that every mbarrier expects: more than occur, so that the arrivals can be counted."""
BARRIER = 16
"""The offset in shared memory."""
_OWN = f"%base+{BARRIER}"


def _program(issue: str) -> str:
    """Returns a kernel in which thread 0 of the CTA with the requested rank executes ``issue``. A millisecond later (no
    phase completes) every CTA reports the arrivals that it has received.
    """
    chosen = "ld.global.u32 %r1, [%rd0];\nsetp.ne.u32 %p1, %r1, %r0;\n@%p1 bra NOT_ME;\n"
    count = (
        poll(_OWN, 0, "%p2")
        + f"""mbarrier.arrive.shared::cta.b64 %rd5, [%base+{BARRIER}];
mbarrier.pending_count.b64 %r3, %rd5;
mov.u32 %r4, {EXPECTED};
sub.u32 %r3, %r4, %r3;
st.global.u32 [%rd1], %r3;
"""
    )
    return kernel(
        ["u64 request", "u64 found"],
        "mov.u32 %r0, %cluster_ctarank;\n"
        + pointer("%rd0", "request")
        + pointer("%rd1", "found", "%r0", 4)
        + by_thread_0(
            f"mbarrier.init.shared::cta.b64 [%base+{BARRIER}], {EXPECTED};\nfence.mbarrier_init.release.cluster;\n"
        )
        + CLUSTER_SYNC
        + by_warp_0(chosen + issue + "NOT_ME:\nbar.warp.sync -1;\n")
        + by_thread_0(count)
        + CLUSTER_SYNC,
    )


_MASK = "ld.global.u32 %r5, [%rd0+4];\ncvt.u16.u32 %h0, %r5;\n"
_OTHER = f"ld.global.u32 %r5, [%rd0+4];\nadd.u32 %r6, %base, {BARRIER};\nmapa.shared::cluster.u32 %r7, %r6, %r5;\n"
_CLEARED = f"add.u32 %r6, %base, {BARRIER};\nand.b32 %r7, %r6, {TO_EVEN};\n"
_ONE = "setp.ne.u32 %p3, %thread, 0;\n@%p3 bra NOT_ME;\n"


def _commits(
    name: str, question: str, issue: str, requests: Sequence[tuple[str, int, int]], assumption: str = ""
) -> Probe:
    """Returns a probe. ``requests`` hold a name, the rank that commits, and the request's second word for ``issue``."""

    def describe(d: Difference) -> str:
        return f"the mbarrier of rank {d.place[0]} receives {d.theirs} arrivals; on the emulator {d.ours}"

    def read(outputs: Outputs) -> dict[str, Any]:
        return {case: {"arrivals by rank": arrays["found"].tolist()} for case, arrays in outputs.items()}

    return Probe(
        name=name,
        question=question,
        ptx=_program(issue),
        cases=tuple(
            ProbeCase(
                name=case,
                buffers={"request": np.array([rank, word], np.uint32), "found": np.full(CTAS, 99, np.uint32)},
                arguments=(Pointer("request"), Pointer("found")),
                outputs=("found",),
                block=THREADS,
                grid=(CTAS, 1),
                cluster=(CTAS, 1),
                shared=1024,
            )
            for case, rank, word in requests
        ),
        read=read,
        explain=by_element(describe),
        assumption=assumption,
    )


def _masks(ranks: Sequence[int], masks: Sequence[int]) -> list[tuple[str, int, int]]:
    return [(f"rank {rank}, mask {mask:#06b}", rank, mask) for rank in ranks for mask in masks]


def _named(ranks: Sequence[int], others: Sequence[int]) -> list[tuple[str, int, int]]:
    return [(f"rank {rank}, mbarrier of rank {other}", rank, other) for rank in ranks for other in others]


NOTHING = "A commit with nothing before it arrives at once."
PROBES = (
    _commits(
        "commit_own",
        "How many arrivals does a commit with nothing to wait for make at its own CTA's mbarrier, and two commits?",
        _ONE
        + commit(1, _OWN)
        + "ld.global.u32 %r5, [%rd0+4];\nsetp.eq.u32 %p4, %r5, 0;\n@%p4 bra NOT_ME;\n"
        + commit(1, _OWN),
        [("once", 0, 0), ("twice", 3, 1)],
        NOTHING,
    ),
    _commits(
        "commit_per_thread",
        "Do 32 threads that commit make 32 arrivals?",
        commit(1, _OWN),
        [("a whole warp", 1, 0)],
        NOTHING,
    ),
    _commits(
        "commit_multicast",
        "Which CTAs' mbarriers does a commit with a multicast mask reach, of one CTA?",
        _ONE + _MASK + commit(1, _OWN, "%h0"),
        _masks((0, 3), (0b0001, 0b0010, 0b0101, 0b1111)),
        NOTHING,
    ),
    _commits(
        "commit_multicast_pair",
        "Which CTAs' mbarriers does a pair's commit with a multicast mask reach, from the even and from the odd CTA?",
        _ONE + _MASK + commit(2, _OWN, "%h0"),
        _masks((0, 1, 2), (0b0001, 0b0011, 0b1100, 0b1111)),
        NOTHING,
    ),
    _commits(
        "commit_named",
        "Where does a commit without multicast arrive if its operand is another CTA's mbarrier?",
        _ONE + _OTHER + commit(1, "%r7"),
        _named((0, 3), (0, 1, 2)),
        NOTHING,
    ),
    _commits(
        "commit_named_pair",
        "Where does a pair's commit without multicast arrive, if it names either CTA's mbarrier, or another pair's?",
        _ONE + _OTHER + commit(2, "%r7"),
        _named((0, 1), (0, 1, 2)),
        NOTHING,
    ),
    _commits(
        "commit_peer_bit",
        "Does an mbarrier address whose bit 24 is cleared name the mbarrier of the even CTA of the pair?",
        _ONE + _CLEARED + commit(2, "%r7"),
        [(f"rank {rank}", rank, 0) for rank in range(CTAS)],
        "The rank is in bits 24 and up of a shared address, as ptxas has it; the ISA does not say so.",
    ),
)
