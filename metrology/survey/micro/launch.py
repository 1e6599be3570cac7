"""Launches: what one costs in a row of them, how far apart CTAs start, and how soon the next CTA follows on an SM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from metrology.probes.ptx import CLUSTER_SYNC
from metrology.survey.micro.benchmark import OUT, Benchmark, Case, Clocks, statistics
from metrology.survey.micro.ptx import END, HEAD, START, init_barriers, kernel, report
from metrology.survey.micro.questions import QUESTIONS
from metrology.survey.micro.tma import SMS

WHOLE_SM = 200 * 1024
"""Bytes of shared memory that let one CTA at a time run on an SM."""
KERNEL_THREADS = 384

SPIN = """ld.param.u32 %r10, [spin];
cvt.u64.u32 %rd10, %r10;
add.u64 %rd10, %rd10, %c0;
SPIN:
mov.u64 %rd11, %clock64;
setp.lt.u64 %p3, %rd11, %rd10;
@%p3 bra SPIN;
"""
"""Every thread, until so many cycles after its start."""
DEPENDENT = "griddepcontrol.launch_dependents;\ngriddepcontrol.wait;\n"


def _text(prologue: str) -> str:
    return kernel(
        ["u64 out", "u32 spin"],
        START
        + prologue
        + SPIN
        + END
        + "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra DONE;\n"
        + report(HEAD)
        + "st.global.u64 [%rd0+48], %rd20;\nDONE:\n",
        threads=1024,
    )


TEXTS = {
    "bare": _text("mov.u64 %rd20, 0;\n"),
    "as a kernel": _text(
        "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra READY;\n"
        + init_barriers(0, 8, "1")
        + "READY:\n"
        + CLUSTER_SYNC
        + "mov.u64 %rd20, %clock64;\nsub.u64 %rd20, %rd20, %c0;\n"
        + DEPENDENT
    ),
}
"""A kernel initialises mbarriers and waits for its cluster before anything else; word 6 says how long that took."""


def _read(case: Case, clocks: Clocks) -> dict[str, Any]:
    """spread: from the first CTA's first instruction in the grid to each other's, by the global timer; follow: from the
    end of a CTA to the first instruction of the next on the same SM, by the SM's clock."""
    first = clocks[:, 2].astype(np.int64)
    steps = np.diff(np.unique(clocks[:, 2:4].astype(np.int64)))
    answer: dict[str, Any] = {"global_timer_step_ns": int(steps.min()) if len(steps) else None}
    waves = first[: SMS if len(first) > SMS else len(first)]
    answer |= statistics(waves - waves.min(), "spread_ns")
    answer["whole_grid_ns"] = int(clocks[:, 3].max() - clocks[:, 2].min())
    answer["start_cycles"] = float(np.median(clocks[:, 6]))
    follow = _follow(clocks)
    if len(follow):
        answer |= statistics(follow, "follow_cycles")
    answer["multiprocessors"] = len(np.unique(clocks[:, 4]))
    return answer


def _follow(clocks: Clocks) -> np.ndarray:
    """Cycles between CTAs that ran one after the other on the same SM."""
    gaps: list[int] = []
    for sm in np.unique(clocks[:, 4]):
        mine = clocks[clocks[:, 4] == sm].astype(np.int64)
        mine = mine[np.argsort(mine[:, 0])]
        gaps += (mine[1:, 0] - mine[:-1, 1]).tolist()
    return np.array(gaps)


def _cases() -> Iterator[Case]:
    for text in TEXTS:
        for ctas, cluster in ((1, 1), (SMS, 1), (SMS, 2), (SMS, 4), (128, 8), (8 * SMS, 1), (8 * SMS, 2), (8 * SMS, 4)):
            for overlap in (False, True) if text == "as a kernel" else (False,):
                yield _case(text, ctas, cluster, overlap)


def _case(text: str, ctas: int, cluster: int, overlap: bool) -> Case:
    spin = 2000 if ctas > SMS else 0
    about = {"what": text, "ctas": ctas, "cluster": cluster, "overlap": overlap, "spin_cycles": spin}
    return Case(about, (OUT, spin), HEAD, text, KERNEL_THREADS, ctas, cluster, WHOLE_SM, overlap=overlap, in_graph=100)


LAUNCH = Benchmark(
    name="launches",
    question=QUESTIONS["launches"],
    texts=TEXTS,
    cases=tuple(_cases()),
    read=_read,
)
BENCHMARKS = (LAUNCH,)
