"""TMA stores: how long until one has read shared memory, until it is done, and how many bytes a cycle leave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from metrology.survey.micro.benchmark import OUT, Benchmark, Case, Clocks, Tensor
from metrology.survey.micro.ptx import CLEAR_CLOCKS, DATA_AT, END, START, keep_clock, kernel, report
from metrology.survey.micro.questions import QUESTIONS
from metrology.survey.micro.tma import ADVANCE, APART, DECLARED, IN_DRAM, IN_L2, LOAD_PARAMETERS, PARAMETERS, SMS, WORDS


def _text(pending: int, waits_for: str) -> str:
    """One thread: a store in a group of its own, then it waits until so many groups are left."""
    read = ".read" if waits_for == "read" else ""
    return kernel(
        PARAMETERS,
        DECLARED
        + LOAD_PARAMETERS
        + f"""shl.b32 %r1, %thread, 4;
mul.lo.u32 %r2, %bytes, %depth;
FILL:
add.u32 %r3, %r1, %base;
st.shared.v4.b32 [%r3+{DATA_AT}], {{0, 0, 0, 0}};
add.u32 %r1, %r1, {16 * 32};
setp.lt.u32 %p0, %r1, %r2;
@%p0 bra FILL;
fence.proxy.async.shared::cta;
bar.warp.sync -1;
setp.ne.u32 %p0, %thread, 0;
@%p0 bra DONE;
"""
        + CLEAR_CLOCKS
        + START
        + f"""mov.u32 %i, 0;
mov.u32 %slot, 0;
mov.u32 %parity, 0;
NEXT:
add.u32 %r3, %box, %i;
and.b32 %r4, %r3, 63;
shl.b32 %r4, %r4, 6;
shr.u32 %r5, %r3, 6;
mul.lo.u32 %r5, %r5, %box_rows;
and.b32 %r5, %r5, %rows;
mad.lo.u32 %r6, %slot, %bytes, %base;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {{%r4, %r5}}], [%r6+{DATA_AT}];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group{read} {pending};
"""
        + keep_clock("%i")
        + ADVANCE
        + "setp.lt.u32 %p1, %i, %count;\n@%p1 bra NEXT;\ncp.async.bulk.wait_group 0;\n"
        + END
        + report(WORDS, kept=True)
        + "DONE:\n",
    )


PENDING = (0, 1, 3)
TEXTS = {f"{waits_for} {pending}": _text(pending, waits_for) for waits_for in ("read", "done") for pending in PENDING}


def read_stores(case: Case, clocks: Clocks) -> dict[str, Any]:
    """The end is when all stores are done."""
    stores, box = case.about["stores"], case.about["box_bytes"]
    cycles = (clocks[:, 1] - clocks[:, 0]).astype(float)
    nanoseconds = float(clocks[:, 3].max() - clocks[:, 2].min())
    kept = clocks[:, 8 : 8 + min(stores, 64)].astype(np.int64)
    return {
        "cycles_per_store": round(float(np.median(cycles)) / stores, 2),
        "between_stores_cycles": round(float(np.median(np.diff(kept, axis=1))), 2),
        "bytes_per_cycle_per_sm": round(stores * box / float(np.median(cycles)), 2),
        "bytes_per_cycle": round(len(clocks) * stores * box / float(cycles.max()), 1),
        "gigabytes_per_second": round(len(clocks) * stores * box / nanoseconds, 1) if nanoseconds else None,
    }


LONG = 128
"""Stores of a launch that shows at which rate they go on."""
BURSTS_KIB = (64, 128)
"""Of each SM at once, which L2 takes sooner than at that rate."""


def store_case(waits_for: str, pending: int, kib: int, columns: int, rows: int, ctas: int, stores: int = LONG) -> Case:
    # The kernel takes 128 bytes for a row of a box; narrower boxes have more rows for the same bytes.
    about = {
        "waits_until": waits_for,
        "pending": pending,
        "box_bytes": kib * 1024,
        "box_columns": columns,
        "stores": stores,
        "ctas": ctas,
        "where": "L2" if rows == IN_L2 else "DRAM",
    }
    box_rows = kib * 1024 // (2 * columns)
    first = APART if rows == IN_L2 else stores
    arguments = (Tensor(rows, box_rows, columns), OUT, stores, pending + 1, box_rows, rows, first)
    shared = DATA_AT + (pending + 1) * 128 * box_rows
    return Case(about, arguments, WORDS, f"{waits_for} {pending}", grid=ctas, shared=shared, warm=rows == IN_L2)


def _cases() -> Iterator[Case]:
    for waits_for in ("read", "done"):
        for kib in (2, 4, 8, 16):
            yield store_case(waits_for, 0, kib, 64, IN_L2, 1)
    for columns, kib in ((64, 8), (64, 16), (32, 4), (32, 8), (16, 2), (16, 4)):
        for pending in (1, 3):
            yield store_case("read", pending, kib, columns, IN_L2, 1)
            yield store_case("read", pending, kib, columns, IN_L2, SMS)
    for columns, kib in ((64, 8), (32, 4), (16, 2)):
        for burst in BURSTS_KIB:
            yield store_case("read", 3, kib, columns, IN_L2, SMS, burst // kib)
    for kib in (8, 16):
        yield store_case("read", 3, kib, 64, IN_DRAM, SMS, 256)


STORES = Benchmark(
    name="tma_stores",
    question=QUESTIONS["tma_stores"],
    texts=TEXTS,
    cases=tuple(_cases()),
    read=read_stores,
)
BENCHMARKS = (STORES,)
