"""TMA loads and stores together: what leaves and what arrives when an SM does both, and where the stores end up.

A kernel that writes one tile while it multiplies the next does both at the same time; C of a large problem is more than
L2 keeps. So a turn here is some loads and some stores of the same size, a few turns are in flight at once, and the
bytes that are stored to are few (they stay in L2) or many (each is written to DRAM in the end).
"""

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
    wait,
)
from metrology.survey.micro.questions import QUESTIONS
from metrology.survey.micro.tma import IN_DRAM, SMS

BOX_ROWS = 128
LOAD_COLUMNS = 64
LOAD_BYTES = 2 * LOAD_COLUMNS * BOX_ROWS
STORES_FROM = 1 << 17
"""Row of the tensor from which on stores go: loads are of the rows before it."""
TURNS = 256
DEPTHS = (2, 4)
MIB = 1 << 20
PARAMETERS = [
    *("map read", "map written", "u64 out", "u32 turns", "u32 loads", "u32 stores", "u32 columns"),
    *("u32 load_own", "u32 load_apart", "u32 store_own"),
]


def _place(number: str, apart: str, own: str, columns: str) -> str:
    """%x, %y: of box ``number`` of this CTA, which starts ``apart`` boxes after the CTA before it and comes back to its
    first box after ``own``. Boxes lie side by side in the rows of the tensor."""
    return f"""rem.u32 %r8, {number}, {own};
mad.lo.u32 %r8, %cta, {apart}, %r8;
div.u32 %r9, {COLUMNS}, {columns};
rem.u32 %x, %r8, %r9;
mul.lo.u32 %x, %x, {columns};
div.u32 %y, %r8, %r9;
mul.lo.u32 %y, %y, {BOX_ROWS};
"""


def _text(depth: int) -> str:
    names = ("turns", "loads", "stores", "columns", "load_own", "load_apart", "store_own")
    return kernel(
        PARAMETERS,
        f".reg .b32 {', '.join(f'%{name}' for name in names)}, %cta, %x, %y, %i, %slot, %parity, %at, %n, %taken;\n"
        + ".reg .b64 %from, %to;\n"
        + "".join(f"ld.param.u32 %{name}, [{name}];\n" for name in names)
        + f"""mov.b64 %from, read;
cvta.param.u64 %from, %from;
mov.b64 %to, written;
cvta.param.u64 %to, %to;
mov.u32 %cta, %ctaid.x;
shl.b32 %r1, %thread, 4;
FILL:
add.u32 %r3, %r1, %base;
st.shared.v4.b32 [%r3+{DATA_AT}], {{0, 0, 0, 0}};
add.u32 %r1, %r1, {16 * 32};
setp.lt.u32 %p0, %r1, {LOAD_BYTES};
@%p0 bra FILL;
fence.proxy.async.shared::cta;
bar.warp.sync -1;
setp.ne.u32 %p0, %thread, 0;
@%p0 bra DONE;
"""
        + init_barriers(0, depth, "1")
        + START
        + FIRST_SLOT
        + "TURN:\n"
        + free_slot(depth)
        + f"""cp.async.bulk.wait_group.read {depth - 1};
mul.lo.u32 %taken, %loads, {LOAD_BYTES};
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%at], %taken;
mul.lo.u32 %taken, %taken, %slot;
add.u32 %taken, %taken, %base;
mov.u32 %n, 0;
setp.eq.u32 %p1, %loads, 0;
@%p1 bra STORES;
LOAD:
mad.lo.u32 %r7, %i, %loads, %n;
"""
        + _place("%r7", "%load_apart", "%load_own", str(LOAD_COLUMNS))
        + f"""cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%taken+{DATA_AT + LOAD_BYTES}], [%from, {{%x, %y}}], [%at];
add.u32 %taken, %taken, {LOAD_BYTES};
add.u32 %n, %n, 1;
setp.lt.u32 %p1, %n, %loads;
@%p1 bra LOAD;
STORES:
mov.u32 %n, 0;
setp.eq.u32 %p1, %stores, 0;
@%p1 bra COMMIT;
STORE:
mad.lo.u32 %r7, %i, %stores, %n;
"""
        + _place("%r7", "%store_own", "%store_own", "%columns")
        + f"""add.u32 %y, %y, {STORES_FROM};
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%to, {{%x, %y}}], [%base+{DATA_AT}];
add.u32 %n, %n, 1;
setp.lt.u32 %p1, %n, %stores;
@%p1 bra STORE;
COMMIT:
cp.async.bulk.commit_group;
{next_slot(depth)}add.u32 %i, %i, 1;
setp.lt.u32 %p1, %i, %turns;
@%p1 bra TURN;
mov.u32 %n, 0;
LAST:
mad.lo.u32 %at, %slot, 8, %base;
"""
        + wait("[%at]", "%parity")
        + next_slot(depth)
        + f"""add.u32 %n, %n, 1;
setp.lt.u32 %p1, %n, {depth};
@%p1 bra LAST;
cp.async.bulk.wait_group 0;
"""
        + END
        + report(HEAD)
        + "DONE:\n",
    )


TEXTS = {f"{depth} turns": _text(depth) for depth in DEPTHS}


def _read(case: Case, clocks: Clocks) -> dict[str, Any]:
    """Of all SMs together, until the slowest is done; a CTA's own rates are the median of the CTAs."""
    about = case.about
    loaded, stored = (about["turns"] * about[what] * about[f"{what[:-1]}_bytes"] for what in ("loads", "stores"))
    cycles = (clocks[:, 1] - clocks[:, 0]).astype(float)
    middle, last = float(np.median(cycles)), float(cycles.max())
    nanoseconds = float(clocks[:, 3].max() - clocks[:, 2].min())
    answer: dict[str, Any] = {"cycles_per_turn": round(middle / about["turns"], 1)}
    for what, nbytes in (("loaded", loaded), ("stored", stored)):
        answer[f"{what}_bytes_per_cycle_per_sm"] = round(nbytes / middle, 2)
        answer[f"{what}_bytes_per_cycle"] = round(len(clocks) * nbytes / last, 1)
        answer[f"{what}_gigabytes_per_second"] = round(len(clocks) * nbytes / nanoseconds, 1) if nanoseconds else None
    return answer


def _case(
    loads: int, stores: int, columns: int = 64, stored: int = 16, loaded: int = 16, ctas: int = SMS, same: bool = False
) -> Case:
    """stored, loaded: MiB that all SMs together store to and load from; each SM has its own part, or with ``same`` all
    load the same."""
    depth = 4 if loads + stores <= 2 else 2
    store_bytes = 2 * columns * BOX_ROWS
    load_own = _own(loaded, LOAD_BYTES)
    about = {
        "loads": loads,
        "stores": stores,
        "load_bytes": LOAD_BYTES,
        "store_bytes": store_bytes,
        "store_columns": columns,
        "store_mib": stored,
        "load_mib": loaded,
        "data": "the same for all" if same else "each its own",
        "turns_at_once": depth,
        "turns": TURNS,
        "ctas": ctas,
    }
    tensors = (Tensor(IN_DRAM, BOX_ROWS, LOAD_COLUMNS), Tensor(IN_DRAM, BOX_ROWS, columns))
    numbers = (TURNS, loads, stores, columns, load_own, 0 if same else load_own, _own(stored, store_bytes))
    shared = DATA_AT + (1 + depth * loads) * LOAD_BYTES
    return Case(about, (*tensors, OUT, *numbers), HEAD, f"{depth} turns", grid=ctas, shared=shared)


def _own(mib: int, box_bytes: int) -> int:
    """Boxes of each SM."""
    return max(1, mib * MIB // box_bytes // SMS)


FOOTPRINTS = (8, 16, 24, 32, 48, 64, 128, 512)
RATIOS = ((3, 0), (3, 1), (2, 1), (1, 1), (1, 2), (0, 1))


def _cases() -> Iterator[Case]:
    for columns in (16, 32, 64):
        for stored in FOOTPRINTS:
            yield _case(0, 1, columns, stored)
    for columns in (16, 32, 64):
        for loads, stores in RATIOS[1:-1]:
            for stored in (16, 32, 128, 512):
                yield _case(loads, stores, columns, stored)
    for loaded in (32, 64, 512):
        for loads, stores in RATIOS[:-1]:
            yield _case(loads, stores, 64, 512, loaded)
    for loads, stores in RATIOS[:-1]:
        yield _case(loads, stores, 64, 512, same=True)
    for loads, stores in RATIOS:
        yield _case(loads, stores, ctas=1)


MIXED = Benchmark(
    name="tma_mixed",
    question=QUESTIONS["tma_mixed"],
    texts=TEXTS,
    cases=tuple(_cases()),
    read=_read,
)
BENCHMARKS = (MIXED,)
