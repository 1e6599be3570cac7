"""Probes of warps and barriers: elect.sync, stmatrix and ldmatrix, the phases of an mbarrier."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.probe import Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import dump, fill, kernel

LANES = 32

# ---- elect.sync ----

MASKS = (
    0xFFFFFFFF, 0xFFFFFFFE, 0x80000000, 0x00010000, 0xAAAAAAAA, 0x55550000, 0x7FFF8000, 0x0000FF00, 0x00000001,
    0xC0000003, 0xFFFF0000, 0x12345678,
)  # fmt: skip

ELECT = Probe(
    name="elect_sync",
    question="Which lane of a member mask does elect.sync elect?",
    ptx=kernel(
        ["u64 masks", "u64 report"],
        """
ld.param.u64 %rd0, [masks];
ld.param.u64 %rd1, [report];
mov.u32 %r0, %ctaid.x;
mul.wide.u32 %rd2, %r0, 4;
add.u64 %rd2, %rd2, %rd0;
ld.global.u32 %r1, [%rd2];
mul.wide.u32 %rd3, %r0, 256;
mul.wide.u32 %rd4, %thread, 8;
add.u64 %rd3, %rd3, %rd4;
add.u64 %rd3, %rd3, %rd1;
mov.u32 %r2, 99;
mov.u32 %r3, 99;
shr.u32 %r4, %r1, %thread;
and.b32 %r4, %r4, 1;
setp.eq.u32 %p0, %r4, 0;
@%p0 bra OUT;
elect.sync %r2|%p1, %r1;
selp.u32 %r3, 1, 0, %p1;
OUT:
st.global.u32 [%rd3], %r2;
st.global.u32 [%rd3+4], %r3;
""",
    ),
    cases=(
        ProbeCase(
            name="masks",
            buffers={
                "masks": np.array(MASKS, np.uint32),
                "report": np.zeros((len(MASKS), LANES, 2), np.uint32),
            },
            arguments=(Pointer("masks"), Pointer("report")),
            outputs=("report",),
            block=LANES,
            grid=(len(MASKS), 1),
        ),
    ),
    read=lambda outputs: {
        f"{mask:#010x}": np.flatnonzero(report[:, 1] == 1).tolist()
        for mask, report in zip(MASKS, outputs["masks"]["report"], strict=True)
    },
)

# ---- stmatrix and ldmatrix ----

AREA = 1024
"""Bytes for each form: 32 rows of 16 bytes, 32 bytes apart, in the order lane -> row 5 * lane % 32."""
FORMS = [(count, trans) for count in (1, 2, 4) for trans in (False, True)]


def _matrix_body() -> str:
    lines = [
        fill(0, 2 * len(FORMS) * AREA, LANES),
        """
ld.param.u64 %rd0, [memory];
ld.param.u64 %rd1, [registers];
mul.lo.u32 %r0, %thread, 160;
and.b32 %r0, %r0, 1023;
add.u32 %r0, %r0, %base;
shl.b32 %r1, %thread, 3;
or.b32 %r1, %r1, 16777216;
mad.lo.u32 %r1, %thread, 524288, %r1;
bar.warp.sync -1;
""",
    ]
    # Halves of register j of a lane: 0x(01)(8 * lane + 2j) + 1 above 0x00(8 * lane + 2j), all different.
    for j in range(4):
        lines.append(f"add.u32 %r{10 + j}, %r1, {(2 * j + 1) << 16 | 2 * j};\n")
    for number, (count, trans) in enumerate(FORMS):
        registers = ", ".join(f"%r{10 + j}" for j in range(count))
        form = f"x{count}{'.trans' if trans else ''}"
        lines.append(f"stmatrix.sync.aligned.m8n8.{form}.shared.b16 [%r0+{number * AREA}], {{{registers}}};\n")
    # For ldmatrix every half of its area has a different value.
    first = len(FORMS) * AREA
    lines.append(
        f"""{{
.reg .b32 at, value;
.reg .pred more;
shl.b32 at, %thread, 2;
IDS:
mad.lo.u32 value, at, 32768, at;
shr.u32 value, value, 1;
or.b32 value, value, 65536;
add.u32 %r2, at, %base;
st.shared.b32 [%r2+{first}], value;
add.u32 at, at, {4 * LANES};
setp.lt.u32 more, at, {len(FORMS) * AREA};
@more bra IDS;
}}
bar.warp.sync -1;
mul.wide.u32 %rd2, %thread, 4;
add.u64 %rd1, %rd1, %rd2;
"""
    )
    at = 0
    for number, (count, trans) in enumerate(FORMS):
        registers = ", ".join(f"%r{20 + j}" for j in range(count))
        form = f"x{count}{'.trans' if trans else ''}"
        lines.append(f"ldmatrix.sync.aligned.m8n8.{form}.shared.b16 {{{registers}}}, [%r0+{first + number * AREA}];\n")
        for j in range(count):
            lines.append(f"st.global.b32 [%rd1+{4 * LANES * at}], %r{20 + j};\n")
            at += 1
    return "".join(lines) + dump(0, len(FORMS) * AREA, LANES, "%rd0")


REGISTERS = sum(count for count, _ in FORMS)

MATRIX = Probe(
    name="stmatrix_ldmatrix",
    question="Which register of which lane holds which element of an 8 x 8 matrix, in every form of stmatrix and "
    "ldmatrix?",
    ptx=kernel(["u64 memory", "u64 registers"], _matrix_body()),
    cases=(
        ProbeCase(
            name="all forms",
            buffers={
                "memory": np.zeros(len(FORMS) * AREA // 4, np.uint32),
                "registers": np.zeros((REGISTERS, LANES), np.uint32),
            },
            arguments=(Pointer("memory"), Pointer("registers")),
            outputs=("memory", "registers"),
            block=LANES,
            shared=2 * len(FORMS) * AREA,
        ),
    ),
    read=lambda outputs: {
        "row 0 of an x1 store, transposed": [
            hex(v) for v in outputs["all forms"]["memory"].view(np.uint16)[AREA // 2 : AREA // 2 + 8].tolist()
        ]
    },
)

# ---- mbarrier ----

_STEPS = (
    "mbarrier.init.shared::cta.b64 [%base], 2;",
    "mbarrier.arrive.shared::cta.b64 _, [%base];",
    "mbarrier.arrive.shared::cta.b64 _, [%base];",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 100;",
    "mbarrier.arrive.shared::cta.b64 _, [%base];",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%base], 60;",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%base], 40;",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%base], 16;",
    "mbarrier.arrive.shared::cta.b64 _, [%base];",
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 16;",
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%base], 32;",
    "mbarrier.arrive.shared::cta.b64 _, [%base], 2;",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%base], 32;",
    "mbarrier.arrive_drop.shared::cta.b64 _, [%base];",
    "mbarrier.arrive.shared::cta.b64 _, [%base];",
    "mbarrier.arrive.shared::cta.b64 _, [%base];",
)


def _barrier_body() -> str:
    lines = ["setp.ne.u32 %p0, %thread, 0;\n@%p0 bra DONE;\nld.param.u64 %rd0, [report];\n"]
    for number, step in enumerate(_STEPS):
        lines.append(step + "\n")
        for parity in range(2):
            lines.append(
                f"mbarrier.test_wait.parity.shared::cta.b64 %p1, [%base], {parity};\n"
                "selp.u32 %r0, 1, 0, %p1;\n"
                f"st.global.u32 [%rd0+{8 * number + 4 * parity}], %r0;\n"
            )
    return "".join(lines) + "mbarrier.inval.shared::cta.b64 [%base];\nDONE:\n"


BARRIER = Probe(
    name="mbarrier_phases",
    question="Which phases of an mbarrier are complete after arrivals, drops, expected and completed bytes?",
    ptx=kernel(["u64 report"], _barrier_body()),
    cases=(
        ProbeCase(
            name="steps",
            buffers={"report": np.zeros((len(_STEPS), 2), np.uint32)},
            arguments=(Pointer("report"),),
            outputs=("report",),
            block=LANES,
            shared=64,
        ),
    ),
    read=lambda outputs: _read_barrier(outputs),
)


def _read_barrier(outputs: Outputs) -> dict[str, Any]:
    """Returns, by step, the results of the waits for parity 0 and for parity 1."""
    return {
        f"{number} {step.split('.b64')[0]}": tests.tolist()
        for number, (step, tests) in enumerate(zip(_STEPS, outputs["steps"]["report"], strict=True))
    }


PROBES = (ELECT, MATRIX, BARRIER)
