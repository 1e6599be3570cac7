"""The course of a CTA from its first instruction to its first data: cold, warm, and in a row of launches.

What a kernel does first it does on caches that do not know it: code, tensor maps, translations of addresses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from metrology.probes.ptx import CLUSTER_SYNC
from metrology.survey.micro.benchmark import COLUMNS, OUT, Benchmark, Case, Clocks, Tensor
from metrology.survey.micro.launch import DEPENDENT, KERNEL_THREADS, WHOLE_SM
from metrology.survey.micro.ptx import (
    CLOCKS,
    DATA_AT,
    END,
    HEAD,
    START,
    clear_clocks,
    init_barriers,
    keep_clock,
    kernel,
    report,
    wait,
)
from metrology.survey.micro.questions import QUESTIONS
from metrology.survey.micro.tma import IN_L2, SMS

BOX_ROWS, BOX_COLUMNS = 128, 64
BOX_BYTES = 2 * BOX_ROWS * BOX_COLUMNS
LOADS = 4
BESIDE = COLUMNS // (LOADS * BOX_COLUMNS)
"""CTAs whose boxes lie side by side."""
BARRIERS_READY, CLUSTER_READY, MAY_READ, ISSUED = range(4)
STEPS = ("barriers_ready", "cluster_ready", "may_read", "first_load_issued")
WORDS = HEAD + CLOCKS

_LOAD = f"""mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], {BOX_BYTES};
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%base+{DATA_AT}], [%map, {{%x, %y}}], [%base];
add.u32 %x, %x, {BOX_COLUMNS};
"""


def _text(prefetches: bool) -> str:
    """One load after the other, each of a box of its own; %clock64 is kept after every step."""
    loads = ""
    for number in range(LOADS):
        issued = keep_clock(str(ISSUED)) if number == 0 else ""
        loads += _LOAD + issued + wait("[%base]", str(number % 2)) + keep_clock(str(len(STEPS) + number))
    return kernel(
        ["map tensor", "u64 out"],
        START
        + f""".reg .b32 %x, %y;
.reg .b64 %map;
mov.b64 %map, tensor;
cvta.param.u64 %map, %map;
mov.u32 %y, %ctaid.x;
and.b32 %x, %y, {BESIDE - 1};
mul.lo.u32 %x, %x, {LOADS * BOX_COLUMNS};
div.u32 %y, %y, {BESIDE};
mul.lo.u32 %y, %y, {BOX_ROWS};
and.b32 %y, %y, {IN_L2 - 1};
setp.ne.u32 %p0, %thread, 0;
@%p0 bra READY;
"""
        + ("prefetch.tensormap [%map];\n" if prefetches else "")
        + init_barriers(0, 8, "1")
        + keep_clock(str(BARRIERS_READY))
        + "READY:\n"
        + CLUSTER_SYNC
        + "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra GO;\n"
        + keep_clock(str(CLUSTER_READY))
        + "GO:\n"
        + DEPENDENT
        + "@%p0 bra DONE;\n"
        + keep_clock(str(MAY_READ))
        + loads
        + END
        # The clocks that are not kept: after what is timed, for nothing may come before that.
        + clear_clocks(len(STEPS) + LOADS)
        + report(WORDS, kept=True)
        + "DONE:\n",
        threads=KERNEL_THREADS,
    )


TEXTS = {"prefetched": _text(True), "not prefetched": _text(False)}


def _read(case: Case, clocks: Clocks) -> dict[str, Any]:
    """Cycles after a CTA's first instruction, of the first CTA on an SM and of those that follow it; of loads after the
    first, how long each took."""
    first = np.zeros(len(clocks), bool)
    for sm in np.unique(clocks[:, 4]):
        mine = np.flatnonzero(clocks[:, 4] == sm)
        first[mine[np.argmin(clocks[mine, 0].astype(np.int64))]] = True
    answer: dict[str, Any] = {}
    for which, some in (("", first), ("following_", ~first)):
        if not some.any():
            continue
        steps = clocks[some, HEAD : HEAD + len(STEPS) + LOADS].astype(np.int64) - clocks[some, :1].astype(np.int64)
        middle = np.median(steps, axis=0)
        answer |= {f"{which}{name}_cycles": float(middle[n]) for n, name in enumerate(STEPS)}
        taken = np.median(np.diff(steps[:, ISSUED:], axis=1), axis=0)
        answer |= {f"{which}load_{n}_cycles": float(cycles) for n, cycles in enumerate(taken)}
    return answer


def _cases() -> Iterator[Case]:
    arguments = (Tensor(IN_L2, BOX_ROWS, BOX_COLUMNS), OUT)
    for text in TEXTS:
        for ctas, cluster in ((1, 1), (SMS, 1), (SMS, 2), (4 * SMS, 2)):
            for caches, warm, overlap, row in (
                ("cold", False, False, False),
                ("warm", True, False, False),
                ("in a row", True, False, True),
                ("in a row, overlapping", True, True, True),
            ):
                about = {"tensor_map": text, "ctas": ctas, "cluster": cluster, "caches": caches}
                yield Case(
                    about,
                    arguments,
                    WORDS,
                    text,
                    KERNEL_THREADS,
                    ctas,
                    cluster,
                    WHOLE_SM,
                    warm=warm,
                    overlap=overlap,
                    in_graph=100 if row else 0,
                    last_in_graph=row,
                )


CTA_STARTS = Benchmark(
    name="cta_starts",
    question=QUESTIONS["cta_starts"],
    texts=TEXTS,
    cases=tuple(_cases()),
    read=_read,
)
BENCHMARKS = (CTA_STARTS,)
