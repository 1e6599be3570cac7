"""TMA loads of boxes that lie partly or wholly outside of the tensor: what is filled in with zeros costs time, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from metrology.survey.micro.benchmark import COLUMNS, OUT, Benchmark, Case, Clocks, Tensor
from metrology.survey.micro.ptx import (
    DATA_AT,
    END,
    FIRST_SLOT,
    HEAD,
    START,
    free_slot,
    init_barriers,
    kernel,
    next_slot,
    report,
)
from metrology.survey.micro.questions import QUESTIONS
from metrology.survey.micro.tma import IN_L2, ROW_BYTES, SMS

BOX_COLUMNS = 64
LOADS = 128
DEPTHS = (1, 4)


def _text(depth: int) -> str:
    """One thread: loads of the same box, so many in flight."""
    return kernel(
        ["map tensor", "u64 out", "u32 loads", "u32 bytes", "u32 column", "u32 row"],
        """.reg .b32 %count, %bytes, %x, %y, %i, %slot, %parity, %at, %to;
.reg .b64 %map;
ld.param.u32 %count, [loads];
ld.param.u32 %bytes, [bytes];
ld.param.u32 %x, [column];
ld.param.u32 %y, [row];
mov.b64 %map, tensor;
cvta.param.u64 %map, %map;
setp.ne.u32 %p0, %thread, 0;
@%p0 bra DONE;
"""
        + init_barriers(0, depth, "1")
        + START
        + FIRST_SLOT
        + "NEXT:\nmad.lo.u32 %to, %slot, %bytes, %base;\n"
        + free_slot(depth)
        + f"""setp.ge.u32 %p1, %i, %count;
@%p1 bra NO_MORE;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%at], %bytes;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%to+{DATA_AT}], [%map, {{%x, %y}}], [%at];
NO_MORE:
{next_slot(depth)}add.u32 %i, %i, 1;
add.u32 %r5, %count, {depth};
setp.lt.u32 %p1, %i, %r5;
@%p1 bra NEXT;
"""
        + END
        + report(HEAD)
        + "DONE:\n",
    )


TEXTS = {f"{depth} in flight": _text(depth) for depth in DEPTHS}


def _read(case: Case, clocks: Clocks) -> dict[str, Any]:
    cycles = (clocks[:, 1] - clocks[:, 0]).astype(float)
    return {
        "cycles_per_load": round(float(np.median(cycles)) / LOADS, 2),
        "slowest_cta_cycles_per_load": round(float(cycles.max()) / LOADS, 2),
    }


def _case(kib: int, depth: int, ctas: int, rows_inside: float, columns_inside: float) -> Case:
    """Parts of the box that are inside; one without any lies a whole box beyond the edge."""
    box_rows = kib * 1024 // ROW_BYTES
    about = {
        "box_bytes": kib * 1024,
        "in_flight": depth,
        "ctas": ctas,
        "rows_inside": int(rows_inside * box_rows),
        "columns_inside": int(columns_inside * BOX_COLUMNS),
        "loads": LOADS,
    }
    row = IN_L2 - int(rows_inside * box_rows) + (box_rows if not rows_inside else 0)
    column = COLUMNS - int(columns_inside * BOX_COLUMNS) + (BOX_COLUMNS if not columns_inside else 0)
    arguments = (Tensor(IN_L2, box_rows, BOX_COLUMNS), OUT, LOADS, kib * 1024, column, row)
    return Case(about, arguments, HEAD, f"{depth} in flight", grid=ctas, shared=DATA_AT + depth * kib * 1024)


def _cases() -> Iterator[Case]:
    for kib in (8, 16, 32):
        for depth in DEPTHS:
            for rows_inside in (1.0, 0.75, 0.5, 0.25, 0.0):
                yield _case(kib, depth, 1, rows_inside, 1.0)
            for columns_inside in (0.75, 0.5, 0.125, 0.0):
                yield _case(kib, depth, 1, 1.0, columns_inside)
        for rows_inside in (1.0, 0.5, 0.0):
            yield _case(kib, 4, SMS, rows_inside, 1.0)
    for ctas in (4, 16, 33, 66):
        for rows_inside in (0.5, 0.0):
            yield _case(16, 4, ctas, rows_inside, 1.0)


EDGES = Benchmark(
    name="tma_edges",
    question=QUESTIONS["tma_edges"],
    texts=TEXTS,
    cases=tuple(_cases()),
    read=_read,
)
BENCHMARKS = (EDGES,)
