"""Probes of generic addresses: the state space that they name, what conversions keep, and the place that accesses
reach.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.probe import Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import CLUSTER_SYNC, kernel

SPACES = ("const", "global", "local", "shared::cta", "shared::cluster", "param")
PLACES = {
    "start of shared memory": "cvta.shared.u64 %rd1, %rd2;",
    "shared memory": "add.u64 %rd2, %rd2, 256; cvta.shared.u64 %rd1, %rd2;",
    "shared memory of the other CTA": "mapa.shared::cluster.u32 %r4, %base, %r9;\ncvt.u64.u32 %rd2, %r4;\n"
    "cvta.shared::cluster.u64 %rd1, %rd2;",
    "shared memory of this CTA in the cluster": "mapa.shared::cluster.u32 %r4, %base, %r10;\ncvt.u64.u32 %rd2, %r4;\n"
    "cvta.shared::cluster.u64 %rd1, %rd2;",
    "a generic address mapped to the other CTA": "cvta.shared.u64 %rd1, %rd2;\nmapa.u64 %rd1, %rd1, %r9;",
    "global buffer": "mov.u64 %rd1, %rd0;",
    "global variable": "mov.u64 %rd1, variable;\ncvta.global.u64 %rd1, %rd1;",
    "constant variable": "mov.u64 %rd1, constant;\ncvta.const.u64 %rd1, %rd1;",
    "local variable": "mov.u64 %rd1, mine;\ncvta.local.u64 %rd1, %rd1;",
    "parameter": "mov.b64 %rd1, report;\ncvta.param.u64 %rd1, %rd1;",
    "null": "mov.b64 %rd1, 0;",
}
ASK_SPACES = "mov.u32 %r0, 0;\n" + "".join(
    f"isspacep.{space} %p1, %rd1;\nselp.u32 %r1, {1 << n}, 0, %p1;\nor.b32 %r0, %r0, %r1;\n"
    for n, space in enumerate(SPACES)
)
WRITABLE = {"shared memory": "shared", "global variable": "global", "local variable": "local"}
MODULE_VARIABLES = ".global .align 16 .b32 variable[4];\n.const .align 16 .b32 constant[4] = {77, 78, 79, 80};\n"


def _body() -> str:
    lines = [
        """.local .align 16 .b32 mine[4];
ld.param.u64 %rd0, [report];
mov.u32 %r8, %cluster_ctarank;
mov.u32 %r10, %r8;
xor.b32 %r9, %r8, 1;
mad.wide.u32 %rd0, %r8, 512, %rd0;
setp.ne.u32 %p0, %thread, 0;
""",
        CLUSTER_SYNC,
        "@%p0 bra DONE;\n",
    ]
    for number, place in enumerate(PLACES.values()):
        lines.append(f"cvt.u64.u32 %rd2, %base;\n{place}\n{ASK_SPACES}st.global.u32 [%rd0+{4 * number}], %r0;\n")
    at = 4 * len(PLACES)
    for number, (place, space) in enumerate(WRITABLE.items()):
        value = 1000 * (number + 1)
        atom = (
            f"atom.add.u32 %r0, [%rd1], 7;\nld.{space}.u32 %r3, [%rd3];\n" if space != "local" else "mov.u32 %r3, 0;\n"
        )
        lines.append(
            f"""cvt.u64.u32 %rd2, %base;
{PLACES[place]}
cvta.to.{space}.u64 %rd3, %rd1;
st.{space}.u32 [%rd3], {value};
ld.u32 %r1, [%rd1];
add.u32 %r0, %r1, 5;
st.u32 [%rd1], %r0;
ld.{space}.u32 %r2, [%rd3];
{atom}st.global.u32 [%rd0+{at}], %r1;
st.global.u32 [%rd0+{at + 4}], %r2;
st.global.u32 [%rd0+{at + 8}], %r3;
"""
        )
        at += 12
    # In a generic address of shared memory, the bits above 24 give the place of its window; below them is the offset.
    lines.append(
        f"""cvt.u64.u32 %rd2, %base;
cvta.shared.u64 %rd1, %rd2;
cvt.u32.u64 %r0, %rd1;
sub.u32 %r0, %r0, %base;
and.b32 %r0, %r0, 16777215;
st.global.u32 [%rd0+{at}], %r0;
mapa.shared::cluster.u32 %r4, %base, %r9;
cvt.u64.u32 %rd2, %r4;
cvta.shared::cluster.u64 %rd2, %rd2;
sub.u64 %rd3, %rd2, %rd1;
cvt.u32.u64 %r0, %rd3;
st.global.u32 [%rd0+{at + 4}], %r0;
ld.const.u32 %r0, [constant+4];
mov.u64 %rd1, constant;
cvta.const.u64 %rd1, %rd1;
ld.u32 %r1, [%rd1+4];
st.global.v2.u32 [%rd0+{at + 8 + at % 8}], {{%r0, %r1}};
DONE:
{CLUSTER_SYNC}
"""
    )
    return "".join(lines)


def _read(outputs: Outputs) -> dict[str, Any]:
    words = outputs["two CTAs"]["report"]
    answer: dict[str, Any] = {}
    for number, place in enumerate(PLACES):
        answer[place] = [[s for n, s in enumerate(SPACES) if int(row[number]) >> n & 1] for row in words]
    at = len(PLACES)
    for number, place in enumerate(WRITABLE):
        # Both CTAs add to the same global variable, so the value that the last one reads depends on time.
        last = 2 if WRITABLE[place] == "global" else 3
        answer[f"accesses: {place}"] = words[:, at + 3 * number : at + 3 * number + last].tolist()
    return answer


GENERIC = Probe(
    name="generic_addresses",
    question="Which spaces does isspacep find for an address of every kind, and do generic accesses reach their place?",
    ptx=kernel(["u64 report"], _body()).replace(".extern", f"{MODULE_VARIABLES}.extern", 1),
    cases=(
        ProbeCase(
            name="two CTAs",
            buffers={"report": np.zeros((2, 128), np.uint32)},
            arguments=(Pointer("report"),),
            outputs=("report",),
            block=32,
            grid=(2, 1),
            cluster=(2, 1),
            shared=1024,
        ),
    ),
    read=_read,
    exact=False,
)

PROBES = (GENERIC,)
