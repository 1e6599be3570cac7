"""TMA loads of all SMs from L2 where groups of SMs load the same boxes at the same time, as CTAs of a GEMM do.

A group lies on SMs whose numbers follow each other or are far apart; rows begin with cache lines or not; of pairs, the
second SM may be late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from metrology.survey.micro.benchmark import COUNTER, OUT, Benchmark, Case, Clocks, Tensor
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
from metrology.survey.micro.tma import SMS

WARPS = 4
"""That issue loads, as one alone may be too slow."""
DEPTH = 2
"""Loads in flight of each warp."""
BOX_ROWS, BOX_COLUMNS = 128, 64
BOX_BYTES = 2 * BOX_ROWS * BOX_COLUMNS
BOXES = 8
"""Of each group, again and again: of 132 groups 16.5 MiB, which stay in L2."""
ROWS = 4096
"""Of the tensor: 17 boxes of the largest number of groups lie above each other."""
LOADS = 128
"""Of each warp."""
SOON_NS = 4000
"""After the last CTA has come, all start. A time further away than twice that is none, and is not waited for."""
POLLS = 1 << 10
GROUPS = (1, 2, 4, 11, 22, 33, 66, 132)
OVER = (0, 16, 32, 64)
LATE = (100, 200, 400, 800)
NEIGHBOURS, SPREAD = "neighbours", "spread"

TOGETHER = f"""{{
.reg .b64 meeting;
.reg .b32 come, at, now, polls;
.reg .pred is, more;
ld.param.u64 meeting, [counter];
setp.eq.u32 is, %thread, 0;
@!is bra COME;
atom.relaxed.gpu.global.add.u32 come, [meeting], 1;
add.u32 come, come, 1;
mov.u32 at, %nctaid.x;
setp.eq.u32 is, come, at;
@!is bra COME;
mov.u32 at, %globaltimer_lo;
add.u32 at, at, {SOON_NS};
or.b32 at, at, 1;
st.relaxed.gpu.global.u32 [meeting+4], at;
COME:
mov.u32 polls, 0;
POLL:
ld.relaxed.gpu.global.u32 at, [meeting+4];
add.u32 polls, polls, 1;
setp.eq.u32 is, at, 0;
setp.lt.and.u32 more, polls, {POLLS}, is;
@more bra POLL;
SOON:
mov.u32 now, %globaltimer_lo;
sub.u32 now, at, now;
sub.u32 now, now, 1;
setp.lt.u32 more, now, {2 * SOON_NS};
@more bra SOON;
}}
"""
"""The last CTA that comes says by the global timer when all start. Where they cannot all be there, none waits long."""

LATER = """{
.reg .b64 until, now;
.reg .pred more;
mul.lo.u32 %late, %late, %position;
cvt.u64.u32 until, %late;
mov.u64 now, %clock64;
add.u64 until, until, now;
LATER:
mov.u64 now, %clock64;
setp.lt.u64 more, now, until;
@more bra LATER;
}
"""

TEXT = kernel(
    ["map tensor", "u64 out", "u64 counter", "u32 loads", "u32 apart", "u32 spread", "u32 late"],
    f""".reg .b32 %count, %apart, %spread, %late, %group, %position, %first, %warp, %data, %to, %x, %y;
.reg .b32 %i, %slot, %parity, %at;
.reg .b64 %map;
ld.param.u32 %count, [loads];
ld.param.u32 %apart, [apart];
ld.param.u32 %spread, [spread];
ld.param.u32 %late, [late];
mov.b64 %map, tensor;
cvta.param.u64 %map, %map;
mov.u32 %r1, %smid;
div.u32 %r2, %r1, %apart;
rem.u32 %r3, %r1, %apart;
setp.ne.u32 %p1, %spread, 0;
selp.u32 %group, %r3, %r2, %p1;
selp.u32 %position, %r2, %r3, %p1;
mul.lo.u32 %first, %group, 5;
shr.u32 %warp, %thread, 5;
add.u32 %first, %first, %warp;
mad.lo.u32 %data, %warp, {DEPTH * BOX_BYTES}, %base;
setp.ne.u32 %p0, %thread, 0;
@%p0 bra READY;
{init_barriers(0, WARPS * DEPTH, "1")}prefetch.tensormap [%map];
READY:
bar.warp.sync -1;
bar.sync 0;
mad.lo.u32 %base, %warp, {8 * DEPTH}, %base;
and.b32 %r1, %thread, 31;
setp.ne.u32 %p0, %r1, 0;
@%p0 bra LOADED;
"""
    + TOGETHER
    + LATER
    + START
    + FIRST_SLOT
    + "NEXT:\n"
    + free_slot(DEPTH)
    + f"""setp.ge.u32 %p1, %i, %count;
@%p1 bra NO_MORE;
mad.lo.u32 %r1, %i, {WARPS}, %first;
and.b32 %r1, %r1, {BOXES - 1};
mad.lo.u32 %r1, %group, {BOXES}, %r1;
and.b32 %x, %r1, 63;
mul.lo.u32 %x, %x, {BOX_COLUMNS};
shr.u32 %y, %r1, 6;
mul.lo.u32 %y, %y, {BOX_ROWS};
mad.lo.u32 %to, %slot, {BOX_BYTES}, %data;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%at], {BOX_BYTES};
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%to+{DATA_AT}], [%map, {{%x, %y}}], [%at];
NO_MORE:
{next_slot(DEPTH)}add.u32 %i, %i, 1;
add.u32 %r5, %count, {DEPTH};
setp.lt.u32 %p1, %i, %r5;
@%p1 bra NEXT;
LOADED:
bar.warp.sync -1;
bar.sync 0;
"""
    + END
    + "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra DONE;\n"
    + report(HEAD)
    + "DONE:\n",
    threads=32 * WARPS,
)
"""The first thread of each warp: every fourth box of its group, the next one when the oldest in flight is there."""


def _read(case: Case, clocks: Clocks) -> dict[str, Any]:
    """Of all SMs together until the last has its data, and of the median SM."""
    cycles = (clocks[:, 1] - clocks[:, 0]).astype(float)
    nanoseconds = float(clocks[:, 3].max() - clocks[:, 2].min())
    loaded = WARPS * LOADS * BOX_BYTES
    return {
        "bytes_per_cycle_per_sm": round(loaded / float(np.median(cycles)), 2),
        "bytes_per_cycle": round(len(clocks) * loaded / float(cycles.max()), 1),
        "gigabytes_per_second": round(len(clocks) * loaded / nanoseconds, 1) if nanoseconds else None,
        "started_within_ns": int(clocks[:, 2].max() - clocks[:, 2].min()),
    }


def _case(group: int, where: str, over: int, late: int = 0) -> Case:
    about = {"group": group, "on": where, "over": over, "late_cycles": late, "loads": WARPS * LOADS, "ctas": SMS}
    apart = group if where == NEIGHBOURS else SMS // group
    numbers = (LOADS, apart, int(where == SPREAD), late)
    shared = DATA_AT + WARPS * DEPTH * BOX_BYTES
    tensor = Tensor(ROWS, BOX_ROWS, BOX_COLUMNS, over)
    return Case(about, (tensor, OUT, COUNTER, *numbers), HEAD, "loads", 32 * WARPS, SMS, shared=shared)


def _cases() -> Iterator[Case]:
    for over in OVER:
        for group in GROUPS:
            for where in (NEIGHBOURS, SPREAD) if 1 < group < SMS else (NEIGHBOURS,):
                yield _case(group, where, over)
    for late in LATE:
        yield _case(2, NEIGHBOURS, 0, late)


SHARED_LOADS = Benchmark(
    name="shared_loads",
    question=QUESTIONS["shared_loads"],
    texts={"loads": TEXT},
    cases=tuple(_cases()),
    read=_read,
)
BENCHMARKS = (SHARED_LOADS,)
