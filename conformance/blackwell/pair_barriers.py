"""Probes of loads with .cta_group: whose barrier they signal in a pair, or in a cluster, and who gets the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from conformance.blackwell.ptx import TO_EVEN, TO_ODD, by_thread_0, kernel, map_address, pointer
from conformance.comparison import Difference, by_element
from conformance.probe import MapArgument, Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import CLUSTER_SYNC, UNTOUCHED, fill, poll

BOX_ROWS, BOX_COLUMNS = 8, 16
BOX_BYTES = 2 * BOX_ROWS * BOX_COLUMNS
REGION = 1024
"""The offset of boxes in shared memory; the mbarrier is at 0."""
CTAS = 4
GUESSES = (1, 2, 4)
"""The number of boxes that the barriers of each cluster of a launch expect."""
OWN, CLEARED, SET = range(3)
ADDRESSED = {OWN: "own barrier", CLEARED: "barrier with bit 24 cleared", SET: "barrier with bit 24 set"}


def _load(group: int, multicast: bool) -> str:
    mask, last = (".multicast::cluster", ", %h0") if multicast else ("", "")
    return (
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f"{mask}.cta_group::{group} [%r5], [%rd2, {{%r6, %r6}}], [%r7]{last};\n"
    )


def _routes_text(group: int) -> str:
    """Returns a kernel in which the CTA of one rank loads a box. Every CTA reports whether its barrier received the
    guessed number of bytes, and the content of the place of a box.
    """
    issue = f"""setp.ne.u32 %p1, %r3, %r0;
@%p1 bra ISSUED;
setp.eq.u32 %p2, %r2, {CLEARED};
@%p2 and.b32 %r7, %r7, {TO_EVEN};
setp.eq.u32 %p2, %r2, {SET};
@%p2 or.b32 %r7, %r7, {TO_ODD};
cvt.u16.u32 %h0, %r1;
setp.eq.u32 %p2, %r1, 0;
@%p2 bra PLAIN;
{_load(group, True)}bra ISSUED;
PLAIN:
{_load(group, False)}ISSUED:
"""
    return kernel(
        ["map tensor", "u64 found", "u64 request"],
        fill(REGION, BOX_BYTES, 32)
        + pointer("%rd1", "request")
        + "mov.u32 %r10, %ctaid.x;\n"
        + pointer("%rd0", "found", "%r10", 8)
        + map_address("%rd2", "tensor")
        + f"""ld.global.u32 %r0, [%rd1];
ld.global.u32 %r1, [%rd1+4];
ld.global.u32 %r2, [%rd1+8];
mov.u32 %r3, %cluster_ctarank;
shr.u32 %r4, %r10, {CTAS.bit_length() - 1};
mad.wide.u32 %rd3, %r4, 4, %rd1;
ld.global.u32 %r4, [%rd3+12];
add.u32 %r5, %base, {REGION};
mov.u32 %r6, 0;
mov.u32 %r7, %base;
"""
        + by_thread_0(
            "mbarrier.init.shared::cta.b64 [%base], 1;\nfence.mbarrier_init.release.cluster;\n"
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], %r4;\nfence.proxy.async.shared::cta;\n"
        )
        + CLUSTER_SYNC
        + by_thread_0(issue)
        + poll("%base", 0, "%p3")
        + by_thread_0(
            f"""selp.u32 %r8, 1, 0, %p3;
st.global.u32 [%rd0], %r8;
ld.shared.u32 %r9, [%base+{REGION}];
st.global.u32 [%rd0+4], %r9;
"""
        )
        + CLUSTER_SYNC
        + by_thread_0("mbarrier.inval.shared::cta.b64 [%base];\n"),
    )


def _route_case(issuer: int, mask: int, addressed: int) -> ProbeCase:
    what = f"mask {mask:#06b}" if mask else "no multicast"
    request = np.array([issuer, mask, addressed, *(BOX_BYTES * guess for guess in GUESSES)], np.uint32)
    return ProbeCase(
        name=f"rank {issuer} loads, {what}, {ADDRESSED[addressed]}",
        buffers={
            "tensor": np.arange(BOX_ROWS * BOX_COLUMNS, dtype=np.uint16) + 0x1000,
            "found": np.full((len(GUESSES), CTAS, 2), 9, np.uint32),
            "request": request,
        },
        arguments=(
            MapArgument("tensor", "bf16", (BOX_ROWS, BOX_COLUMNS), (BOX_ROWS, BOX_COLUMNS)),
            Pointer("found"),
            Pointer("request"),
        ),
        outputs=("found",),
        block=32,
        grid=(CTAS * len(GUESSES), 1),
        cluster=(CTAS, 1),
        shared=REGION + BOX_BYTES,
    )


def _read_routes(outputs: Outputs) -> dict[str, Any]:
    """Returns, by case, the ranks that got data, and the number of boxes whose bytes reached each rank's barrier."""
    answer = {}
    for case, arrays in outputs.items():
        found = arrays["found"]
        came = [
            [guess for guess, done in zip(GUESSES, found[:, rank, 0], strict=True) if done == 1] for rank in range(CTAS)
        ]
        answer[case] = {
            "data in ranks": np.flatnonzero((found[:, :, 1] != UNTOUCHED).all(axis=0)).tolist(),
            "boxes signalled by rank": [max(some, default=0) for some in came],
        }
    return answer


def _tell_routes(d: Difference) -> str:
    number, rank, what = d.place
    if what:
        return f"data came to rank {rank}: {d.theirs != UNTOUCHED}; on the emulator: {d.ours != UNTOUCHED}"
    return (
        f"the bytes of {GUESSES[number]} boxes came to the barrier of rank {rank}: {d.theirs == 1}; on the emulator: "
        f"{d.ours == 1}"
    )


def _routes(name: str, question: str, group: int, cases: Sequence[ProbeCase], assumption: str = "") -> Probe:
    return Probe(
        name=name,
        question=question,
        ptx=_routes_text(group),
        cases=tuple(cases),
        read=_read_routes,
        explain=by_element(_tell_routes),
        assumption=assumption,
    )


PAIR_CASES = (
    *(_route_case(issuer, 0, addressed) for issuer in range(CTAS) for addressed in (OWN, CLEARED, SET)),
    *(
        _route_case(issuer, mask, addressed)
        for issuer in (0, 1, 3)
        for mask in (0b0001, 0b0010, 0b0011, 0b0110, 0b1111)
        for addressed in (OWN, CLEARED)
    ),
)
PROBES = (
    _routes(
        "tma_pair_barriers",
        "Whose barrier does a load with .cta_group::2 signal: with and without multicast, named with the bit of the "
        "even and of the odd CTA?",
        2,
        PAIR_CASES,
        "For each CTA that gets data the barrier of that CTA's pair whose rank has the parity of the named one.",
    ),
    _routes(
        "tma_group_1_barriers",
        "Whose barrier does a load with .cta_group::1 signal?",
        1,
        [_route_case(issuer, mask, OWN) for issuer in (0, 3) for mask in (0, 0b0001, 0b0110, 0b1111)],
    ),
)
