"""Probes of mbarrier: every form of arriving, waiting and counting, by one thread and across a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.probe import Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import CLUSTER_SYNC, kernel

STEPS = (
    "mbarrier.init.shared::cta.b64 [%base], 3;",
    "mbarrier.arrive.shared::cta.b64 %rd2, [%base];",
    "mbarrier.arrive.noComplete.shared::cta.b64 %rd2, [%base], 1;",
    "mbarrier.arrive.release.cta.shared::cta.b64 %rd2, [%base], 1;",
    "mbarrier.arrive.shared::cta.b64 %rd2, [%base], 3;",
    "mbarrier.arrive.expect_tx.shared::cta.b64 %rd2, [%base], 64;",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%base], 80;",
    "mbarrier.arrive_drop.shared::cta.b64 %rd2, [%base];",
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%base], 16;",
    "mbarrier.arrive.shared::cta.b64 %rd2, [%base];",
    "mbarrier.arrive_drop.noComplete.shared::cta.b64 %rd2, [%base], 1;",
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%base];",
    "mbarrier.arrive_drop.expect_tx.shared::cta.b64 %rd2, [%base], 8;",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%base], 8;",
    "mbarrier.inval.shared::cta.b64 [%base];",
    "mbarrier.init.shared::cta.b64 [%base], 1048575;",
    "mbarrier.arrive.shared::cta.b64 %rd2, [%base], 1048574;",
    "mbarrier.arrive.shared::cta.b64 %rd2, [%base];",
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%base], 1048575;",
    "mbarrier.arrive.shared::cta.b64 %rd2, [%base], 1048575;",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%base], 1048575;",
)
"""One thread executes each step, then asks the `QUESTIONS`."""
QUESTIONS = ("wait for the state", "wait for parity 0", "wait for parity 1", "pending count of the state")
NOTHING = 0xFFFF
"""The pending count before a state exists, and all results while there is no barrier."""


def _body() -> str:
    lines = [
        """setp.ne.u32 %p0, %thread, 0;
@%p0 bra DONE;
ld.param.u64 %rd0, [report];
mov.b64 %rd2, 0;
"""
    ]
    known = False
    for number, step in enumerate(STEPS):
        lines.append(f"{step}\n")
        known = (known or "%rd2" in step) and "init" not in step
        asked = [f"mov.u32 %r{n}, {NOTHING};\n" for n in range(len(QUESTIONS))]
        if "inval" not in step:
            if known:
                asked[0] = "mbarrier.test_wait.shared::cta.b64 %p1, [%base], %rd2;\nselp.u32 %r0, 1, 0, %p1;\n"
                asked[3] = "mbarrier.pending_count.b64 %r3, %rd2;\n"
            for parity in range(2):
                asked[1 + parity] = (
                    f"mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 %p1, [%base], {parity};\n"
                    f"selp.u32 %r{1 + parity}, 1, 0, %p1;\n"
                )
        lines += asked
        lines.append(f"st.global.v4.u32 [%rd0+{16 * number}], {{%r0, %r1, %r2, %r3}};\n")
    return "".join(lines) + "mbarrier.inval.shared::cta.b64 [%base];\nDONE:\n"


def _read(outputs: Outputs) -> dict[str, Any]:
    """Returns the results after each step, in the order of `QUESTIONS`."""
    return {
        f"{number} {step.removeprefix('mbarrier.').partition(';')[0]}": answers.tolist()
        for number, (step, answers) in enumerate(zip(STEPS, outputs["steps"]["report"], strict=True))
    }


FORMS = Probe(
    name="mbarrier_forms",
    question="What do waits and states say after every form of arriving, dropping out, expecting and completing?",
    ptx=kernel(["u64 report"], _body()),
    cases=(
        ProbeCase(
            name="steps",
            buffers={"report": np.zeros((len(STEPS), len(QUESTIONS)), np.uint32)},
            arguments=(Pointer("report"),),
            outputs=("report",),
            block=32,
            shared=64,
        ),
    ),
    read=_read,
)

# ---- across a cluster ----

CTAS = 4

REMOTE = Probe(
    name="mbarrier_across_a_cluster",
    question="Do arrivals, expected bytes and st.async from other CTAs of a cluster complete a phase, once each?",
    ptx=kernel(
        ["u64 report"],
        f"""
ld.param.u64 %rd0, [report];
mov.u32 %r0, %cluster_ctarank;
mad.wide.u32 %rd0, %r0, 32, %rd0;
setp.ne.u32 %p0, %thread, 0;
@%p0 bra READY;
mbarrier.init.shared::cta.b64 [%base], {2 * CTAS};
st.shared.v4.b32 [%base+16], {{0, 0, 0, 0}};
fence.mbarrier_init.release.cluster;
READY:
{CLUSTER_SYNC}
@%p0 bra SENT;
mov.u32 %r1, 0;
NEXT:
mapa.shared::cluster.u32 %r2, %base, %r1;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r2], 4;
mad.lo.u32 %r3, %r0, 4, %r2;
add.u32 %r3, %r3, 16;
mad.lo.u32 %r4, %r0, 100, %r1;
add.u32 %r4, %r4, 1000;
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r3], %r4, [%r2];
add.u32 %r1, %r1, 1;
setp.lt.u32 %p2, %r1, {CTAS};
@%p2 bra NEXT;
SENT:
WAIT:
mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%base], 0;
@!%p1 bra WAIT;
{CLUSTER_SYNC}
@%p0 bra END;
mbarrier.test_wait.parity.shared::cta.b64 %p1, [%base], 1;
selp.u32 %r5, 1, 0, %p1;
ld.shared.v4.b32 {{%r6, %r7, %r8, %r9}}, [%base+16];
st.global.v4.b32 [%rd0], {{%r6, %r7, %r8, %r9}};
st.global.b32 [%rd0+16], %r5;
mbarrier.inval.shared::cta.b64 [%base];
END:
""",
    ),
    cases=(
        ProbeCase(
            name="cluster of 4",
            buffers={"report": np.zeros((CTAS, 8), np.uint32)},
            arguments=(Pointer("report"),),
            outputs=("report",),
            block=32,
            grid=(CTAS, 1),
            cluster=(CTAS, 1),
            shared=64,
        ),
    ),
    read=lambda outputs: {
        "what arrived": outputs["cluster of 4"]["report"][:, :4].tolist(),
        "second phase complete": outputs["cluster of 4"]["report"][:, 4].tolist(),
    },
)

PROBES = (FORMS, REMOTE)
