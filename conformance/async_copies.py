"""Probes of cp.async: which bytes it copies or fills with zeros, and when an mbarrier receives its arrival."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.probe import Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import UNTOUCHED, dump, fill, kernel, poll

THREADS, AREA = 32, 512
"""Each form has an area of shared memory, in which a thread has 16 bytes."""
FORMS = {
    "ca 4": "cp.async.ca.shared.global [{to}], [%rd4], 4;",
    "ca 8": "cp.async.ca.shared.global [{to}], [%rd4], 8;",
    "ca 16": "cp.async.ca.shared.global.L2::128B [{to}], [%rd4], 16;",
    "cg 16": "cp.async.cg.shared.global [{to}], [%rd4], 16;",
    "ca 4, source lane % 5": "rem.u32 %r5, %thread, 5;\ncp.async.ca.shared.global [{to}], [%rd4], 4, %r5;",
    "ca 8, source lane % 9": "rem.u32 %r5, %thread, 9;\ncp.async.ca.shared.global [{to}], [%rd4], 8, %r5;",
    "cg 16, source lane % 17": "rem.u32 %r5, %thread, 17;\ncp.async.cg.shared.global [{to}], [%rd4], 16, %r5;",
    "ca 16, odd lanes ignore the source": "cp.async.ca.shared.global [{to}], [%rd4], 16, %p3;",
    "cg 16, odd lanes do not take part": "@!%p3 cp.async.cg.shared.global [{to}], [%rd4], 16;",
}


def _body() -> str:
    lines = [
        fill(0, AREA * len(FORMS), THREADS),
        """
ld.param.u64 %rd0, [source];
ld.param.u64 %rd1, [memory];
mad.wide.u32 %rd4, %thread, 16, %rd0;
mad.lo.u32 %r4, %thread, 16, %base;
and.b32 %r5, %thread, 1;
setp.ne.u32 %p3, %r5, 0;
bar.warp.sync -1;
""",
    ]
    for number, form in enumerate(FORMS.values()):
        lines.append(form.format(to=f"%r4+{AREA * number}") + "\ncp.async.commit_group;\n")
    return "".join(lines) + "cp.async.wait_group 0;\nbar.warp.sync -1;\n" + dump(0, AREA * len(FORMS), THREADS, "%rd1")


SOURCE = np.random.default_rng(70).integers(1, 1 << 32, 4 * THREADS, np.uint32)

COPIES = Probe(
    name="cp_async_forms",
    question="Which bytes does cp.async write in each size, with fewer source bytes and with an ignored source?",
    ptx=kernel(["u64 source", "u64 memory"], _body()),
    cases=(
        ProbeCase(
            name="all forms",
            buffers={"source": SOURCE, "memory": np.zeros((len(FORMS), AREA // 4), np.uint32)},
            arguments=(Pointer("source"), Pointer("memory")),
            outputs=("memory",),
            block=THREADS,
            shared=AREA * len(FORMS),
        ),
    ),
    read=lambda outputs: _read_copies(outputs),
)


def _read_copies(outputs: Outputs) -> dict[str, Any]:
    """Returns, by form, how many words came from the source, became zero, and stayed unchanged."""
    answer = {}
    for name, words in zip(FORMS, outputs["all forms"]["memory"], strict=True):
        counts = (words == SOURCE, words == 0, words == UNTOUCHED)
        answer[name] = dict(zip(("copied", "zero", "untouched"), (int(c.sum()) for c in counts), strict=True))
    return answer


# ---- arrival on an mbarrier ----

ARRIVALS = Probe(
    name="cp_async_mbarrier",
    question="Does cp.async.mbarrier.arrive count as an arrival of the phase with .noinc, and add none without it?",
    ptx=kernel(
        ["u64 source", "u64 report"],
        "".join(
            f"""{{
.reg .b32 barrier, item, answer;
.reg .b64 from, to;
.reg .pred first, done;
add.u32 barrier, %base, {1024 + 16 * number};
mad.lo.u32 item, %thread, 16, %base;
ld.param.u64 from, [source];
mad.wide.u32 from, %thread, 16, from;
ld.param.u64 to, [report];
setp.eq.u32 first, %thread, 0;
@first mbarrier.init.shared::cta.b64 [barrier], {count};
bar.warp.sync -1;
cp.async.cg.shared.global [item], [from], 16;
cp.async.mbarrier.arrive{form}.shared.b64 [barrier];
{after}
cp.async.wait_all;
bar.warp.sync -1;
{poll("barrier", 0, "done")}
selp.u32 answer, 1, 0, done;
mad.wide.u32 to, %thread, 4, to;
st.global.u32 [to+{128 * number}], answer;
bar.warp.sync -1;
@first mbarrier.inval.shared::cta.b64 [barrier];
}}
"""
            for number, (form, count, after) in enumerate(
                (
                    (".noinc", 32, ""),
                    (".noinc", 64, ""),
                    (".noinc", 64, "mbarrier.arrive.shared::cta.b64 _, [barrier];"),
                    ("", 32, "mbarrier.arrive.shared::cta.b64 _, [barrier];"),
                    ("", 32, ""),
                )
            )
        ),
    ),
    cases=(
        ProbeCase(
            name="one warp",
            buffers={"source": SOURCE, "report": np.zeros((5, THREADS), np.uint32)},
            arguments=(Pointer("source"), Pointer("report")),
            outputs=("report",),
            block=THREADS,
            shared=2048,
        ),
    ),
    read=lambda outputs: {
        name: bool(row.all())
        for name, row in zip(
            (
                ".noinc, 32 expected: phase complete",
                ".noinc, 64 expected: phase complete",
                ".noinc, 64 expected, each thread arrives too: phase complete",
                "32 expected, each thread arrives too: phase complete",
                "32 expected: phase complete",
            ),
            outputs["one warp"]["report"],
            strict=True,
        )
    },
)

PROBES = (COPIES, ARRIVALS)
