"""What the write-out does in shared memory and registers: stores, loads, matrix stores, conversions."""

from __future__ import annotations

from typing import Any

import numpy as np

from metrology.survey.micro.benchmark import OUT, Benchmark, Case, Clocks
from metrology.survey.micro.ptx import END, HEAD, START, kernel, repeat, report
from metrology.survey.micro.questions import QUESTIONS

TURNS = 256
UNROLLED = 16
WARP_BYTES = 4096
WARPS = (1, 4, 8)

PLACE = f"""and.b32 %r10, %thread, 31;
shr.u32 %r11, %thread, 5;
mad.lo.u32 %r12, %r11, {WARP_BYTES}, %base;
shl.b32 %r13, %r10, 4;
add.u32 %r13, %r13, %r12;
and.b32 %r14, %r10, 15;
shr.u32 %r15, %r10, 4;
and.b32 %r16, %r14, 7;
xor.b32 %r15, %r15, %r16;
mad.lo.u32 %r16, %r14, 128, %r12;
mad.lo.u32 %r16, %r15, 16, %r16;
mov.u32 %r20, 0;
mov.u32 %r21, 1;
mov.u32 %r22, 2;
mov.u32 %r23, 3;
mov.f32 %f0, 0f3F800000;
st.shared.v4.b32 [%r13], {{0, 0, 0, 0}};
bar.sync 0;
"""
"""What they give is used, or the compiler would leave them out. %r13: 16 bytes a lane, side by side. %r16: rows of
8 elements under the 128-byte swizzle, as the kernels write C."""

BODIES = {
    "st.shared.v4": "st.volatile.shared.v4.b32 [%r13], {%r20, %r21, %r22, %r23};\nadd.u32 %r20, %r20, 1;\n",
    "stmatrix.x4": "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r16], {%r20, %r21, %r22, %r23};\n",
    "ld.shared.v4": """ld.volatile.shared.v4.b32 {%r24, %r25, %r26, %r27}, [%r13];
xor.b32 %r24, %r24, %r25;
xor.b32 %r26, %r26, %r27;
xor.b32 %r20, %r20, %r24;
xor.b32 %r20, %r20, %r26;
""",
    "ld.shared, each from the one before": "ld.volatile.shared.b32 %r20, [%r13];\nadd.u32 %r13, %r13, %r20;\n",
    "cvt.rn.bf16x2.f32": """{
.reg .b32 packed;
cvt.rn.bf16x2.f32 packed, %f0, %f0;
xor.b32 %r20, %r20, packed;
}
add.f32 %f0, %f0, 0f3F800000;
""",
    "reading the clock": "mov.u32 %r24, %clock;\nxor.b32 %r20, %r20, %r24;\n",
}
TEXTS = {
    name: kernel(
        ["u64 out", "u32 count"],
        ".reg .b32 %count;\n.reg .f32 %f<2>;\nld.param.u32 %count, [count];\n"
        + PLACE
        + START
        + repeat(body, unrolled=UNROLLED)
        + "bar.sync 0;\n"
        + END
        + "st.shared.b32 [%r12], %r20;\nsetp.ne.u32 %p0, %thread, 0;\n@%p0 bra DONE;\n"
        + report(HEAD)
        + "DONE:\n",
    )
    for name, body in BODIES.items()
}


def _read(case: Case, clocks: Clocks) -> dict[str, Any]:
    """The end is when every warp is there, a CTA barrier later."""
    cycles = float(np.median((clocks[:, 1] - clocks[:, 0]).astype(float)))
    warps = case.about["warps"]
    return {
        "cycles_per_instruction_of_a_warp": round(cycles / TURNS, 2),
        "cycles_per_instruction_of_the_sm": round(cycles / TURNS / warps, 2),
    }


SHARED = Benchmark(
    name="shared_memory",
    question=QUESTIONS["shared_memory"],
    texts=TEXTS,
    cases=tuple(
        Case({"what": name, "warps": warps}, (OUT, TURNS), HEAD, name, 32 * warps, shared=WARP_BYTES * warps)
        for name in TEXTS
        for warps in WARPS
    ),
    read=_read,
)
BENCHMARKS = (SHARED,)
