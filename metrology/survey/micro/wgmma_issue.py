"""How long wgmma takes to issue: the tensor cores take some before the first of them ends, the next waits for room.

The warpgroup that issues them does nothing else meanwhile, so what it prepares for the next step comes that much later.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from metrology.probes.ptx import wgmma as one_wgmma
from metrology.survey.micro.benchmark import OUT, Benchmark, Case, Clocks
from metrology.survey.micro.ptx import END, HEAD, ROLLED, START, kernel, repeat
from metrology.survey.micro.questions import QUESTIONS
from metrology.survey.micro.wgmma import A_BYTES, B_BYTES, READY, report_of_warpgroup

COLUMNS = (128, 256)
COUNTS = (1, 2, 4, 6, 7, 8, 9, 10, 12, 16)
COMPUTED_COUNTS = (1, 2, 4, 6, 8)
SAME, COMPUTED = "the same", "computed"
"""Descriptors of the multiplications: a kernel adds to them between one and the next, as each has its own 16 of K."""
REPEATED = 3
"""The last one counts: the others have brought the instructions into the caches."""
ISSUED = 6
"""Word of a warpgroup's clock after the last was issued."""


def _text(n: int, count: int, descriptors: str) -> str:
    d = [f"%f{i}" for i in range(n // 2)]
    issue = ""
    for i in range(count):
        a, b = "%rd10", "%rd11"
        if descriptors == COMPUTED:
            a, b = "%rd12", "%rd13"
            step = 2 * (i % 4)  # 32 bytes, in units of 16
            issue += f"add.u64 {a}, %rd10, {step};\nadd.u64 {b}, %rd11, {step};\n"
        issue += one_wgmma(n, "bf16", d, a, b, "%p1", "1, 1, 0, 0")
    timed = (
        ROLLED
        + "bar.sync 0;\nwgmma.fence.sync.aligned;\n"
        + START
        + issue
        + "wgmma.commit_group.sync.aligned;\nmov.u64 %rd22, %clock64;\nwgmma.wait_group.sync.aligned 0;\n"
        + END
    )
    return kernel(
        ["u64 out", "u32 turns"],
        f".reg .f32 %f<{n // 2}>;\n.reg .b32 %count;\nld.param.u32 %count, [turns];\n"
        + "".join(f"mov.f32 {register}, 0f00000000;\n" for register in d)
        + READY
        + repeat(timed)
        + "".join(f"add.f32 %f0, %f0, {register};\n" for register in d[1:])
        + report_of_warpgroup()
        + f"st.global.u64 [%rd0+{8 * ISSUED}], %rd22;\nst.global.f32 [%rd0+{8 * ISSUED + 8}], %f0;\nDONE:\n",
        threads=256,
    )


def _read(case: Case, clocks: Clocks) -> dict[str, Any]:
    """Of the slower warpgroup. issue: until the last was issued and committed; cycles: until all were waited for."""
    parts = clocks.reshape(-1, 2, HEAD)[:, : case.threads // 128].astype(np.int64)
    issue, cycles = (float(np.median((parts[..., word] - parts[..., 0]).max(axis=1))) for word in (ISSUED, 1))
    return {"issue_cycles": issue, "cycles": cycles}


def _name(n: int, count: int, descriptors: str) -> str:
    return f"{count} of {n}, descriptors {descriptors}"


def _forms() -> Iterator[tuple[int, int, str]]:
    for n in COLUMNS:
        for count in COUNTS:
            yield n, count, SAME
        for count in COMPUTED_COUNTS:
            yield n, count, COMPUTED


def _cases() -> Iterator[Case]:
    for n, count, descriptors in _forms():
        for warpgroups in (1, 2):
            about = {"n": n, "count": count, "descriptors": descriptors, "warpgroups": warpgroups}
            name = _name(n, count, descriptors)
            yield Case(about, (OUT, REPEATED), 2 * HEAD, name, 128 * warpgroups, shared=2 * A_BYTES + B_BYTES)


WGMMA_ISSUE = Benchmark(
    name="wgmma_issue",
    question=QUESTIONS["wgmma_issue"],
    texts={_name(*form): _text(*form) for form in _forms()},
    cases=tuple(_cases()),
    read=_read,
    archs=("sm_90a",),
)
BENCHMARKS = (WGMMA_ISSUE,)
