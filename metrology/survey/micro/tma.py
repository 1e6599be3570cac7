"""TMA loads: latency and throughput by box, by number in flight, by where the data is, plain and multicast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.gpus import facts
from metrology.probes.ptx import CLUSTER_SYNC
from metrology.survey.micro.benchmark import OUT, Benchmark, Case, Clocks, Tensor, statistics
from metrology.survey.micro.ptx import (
    CLEAR_CLOCKS,
    CLOCKS,
    DATA_AT,
    END,
    HEAD,
    START,
    init_barriers,
    keep_clock,
    kernel,
    report,
    wait,
)
from metrology.survey.micro.questions import QUESTIONS

PARAMETERS = ["map tensor", "u64 out", "u32 loads", "u32 depth", "u32 box_rows", "u32 rows", "u32 first"]
WORDS = HEAD + CLOCKS
BARRIERS = 16
EMPTY_AT = 8 * BARRIERS
ROW_BYTES = 128
IN_L2 = 2048
"""Rows of a tensor of 16 MiB, which stays in the L2 cache."""
IN_DRAM = 1 << 18
"""Rows of one of 2 GiB, which does not."""
SMS = facts("h200").sms
MOST_CTAS = {2: SMS, 4: 112}
"""CTAs that surely run at the same time, by cluster: one lies within a GPC, and not every GPC has a multiple of SMs."""
APART = 37
"""Boxes between the first ones of two CTAs in L2. Odd: a tensor has a power of two of them, so no two start alike."""

LOAD_PARAMETERS = """
ld.param.u32 %count, [loads];
ld.param.u32 %depth, [depth];
ld.param.u32 %box_rows, [box_rows];
ld.param.u32 %rows, [rows];
ld.param.u32 %first, [first];
mov.b64 %map, tensor;
cvta.param.u64 %map, %map;
sub.u32 %rows, %rows, 1;
mov.u32 %size, %cluster_nctarank;
mov.u32 %rank, %cluster_ctarank;
mov.u32 %box, %ctaid.x;
div.u32 %box, %box, %size;
mul.lo.u32 %box, %box, %first;
shl.b32 %slice, %box_rows, 7;
mul.lo.u32 %bytes, %slice, %size;
"""
DECLARED = """.reg .b32 %count, %depth, %box_rows, %rows, %first, %size, %rank, %box, %slice, %bytes;
.reg .b32 %i, %slot, %parity;
.reg .b64 %map;
"""


def _issue(number: str, multicast: bool) -> str:
    """Load ``number`` of this CTA, or its slice of it, into stage %slot. Boxes that follow each other lie side by side
    in the rows of the tensor, as those of a GEMM do along K."""
    copy = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    form, mask = (".multicast::cluster", ", every") if multicast else ("", "")
    return f"""{{
.reg .b32 place, column, row, to, full, ones;
.reg .b16 every;
add.u32 place, %box, {number};
and.b32 column, place, 63;
shl.b32 column, column, 6;
shr.u32 row, place, 6;
mad.lo.u32 row, row, %size, %rank;
mul.lo.u32 row, row, %box_rows;
and.b32 row, row, %rows;
mad.lo.u32 to, %slot, %bytes, %base;
mad.lo.u32 to, %rank, %slice, to;
add.u32 to, to, {DATA_AT};
mad.lo.u32 full, %slot, 8, %base;
mov.u32 ones, 1;
shl.b32 ones, ones, %size;
sub.u32 ones, ones, 1;
cvt.u16.u32 every, ones;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], %bytes;
{copy}{form} [to], [%map, {{column, row}}], [full]{mask};
}}
"""


ADVANCE = """add.u32 %slot, %slot, 1;
setp.eq.u32 %p2, %slot, %depth;
@%p2 xor.b32 %parity, %parity, 1;
@%p2 mov.u32 %slot, 0;
add.u32 %i, %i, 1;
"""

LOADS = kernel(
    PARAMETERS,
    DECLARED
    + LOAD_PARAMETERS
    + """setp.ne.u32 %p0, %thread, 0;
@%p0 bra DONE;
"""
    + CLEAR_CLOCKS
    + init_barriers(0, BARRIERS, "1")
    + "prefetch.tensormap [%map];\n"
    + START
    + "mov.u32 %i, 0;\nmov.u32 %slot, 0;\nmov.u32 %parity, 0;\nFILL:\n"
    + _issue("%i", multicast=False)
    + """add.u32 %i, %i, 1;
add.u32 %slot, %slot, 1;
setp.lt.u32 %p1, %i, %depth;
@%p1 bra FILL;
mov.u32 %i, 0;
mov.u32 %slot, 0;
NEXT:
mad.lo.u32 %r3, %slot, 8, %base;
"""
    + wait("[%r3]", "%parity")
    + keep_clock("%i")
    + """add.u32 %r4, %i, %depth;
setp.ge.u32 %p1, %r4, %count;
@%p1 bra NO_MORE;
"""
    + _issue("%r4", multicast=False)
    + "NO_MORE:\n"
    + ADVANCE
    + "setp.lt.u32 %p1, %i, %count;\n@%p1 bra NEXT;\n"
    + END
    + report(WORDS, kept=True)
    + "DONE:\n",
)
"""One thread waits for the oldest load in flight and starts the next in its place. With one in flight the time of a
load is its latency: from its issue until the thread has seen the barrier complete."""


def _ring(multicast: bool) -> str:
    return kernel(
        PARAMETERS,
        DECLARED
        + LOAD_PARAMETERS
        + "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra READY;\n"
        + CLEAR_CLOCKS
        + init_barriers(0, BARRIERS, "1")
        + init_barriers(EMPTY_AT, BARRIERS, "%size")
        + "READY:\n"
        + CLUSTER_SYNC
        + START
        + """mov.u32 %i, 0;
mov.u32 %slot, 0;
mov.u32 %parity, 0;
setp.eq.u32 %p0, %thread, 0;
@%p0 bra PRODUCE;
setp.ne.u32 %p0, %thread, 32;
@%p0 bra LEAVE;
CONSUME:
mad.lo.u32 %r3, %slot, 8, %base;
"""
        + wait("[%r3]", "%parity")
        + keep_clock("%i")
        + f"""mov.u32 %r5, 0;
RELEASE:
mapa.shared::cluster.u32 %r6, %r3, %r5;
mbarrier.arrive.shared::cluster.b64 _, [%r6+{EMPTY_AT}];
add.u32 %r5, %r5, 1;
setp.lt.u32 %p1, %r5, %size;
@%p1 bra RELEASE;
"""
        + ADVANCE
        + "setp.lt.u32 %p1, %i, %count;\n@%p1 bra CONSUME;\n"
        + END
        + report(WORDS, kept=True)
        + "bra LEAVE;\nPRODUCE:\nmad.lo.u32 %r3, %slot, 8, %base;\nxor.b32 %r4, %parity, 1;\n"
        + wait(f"[%r3+{EMPTY_AT}]", "%r4")
        + _issue("%i", multicast)
        + ADVANCE
        + "setp.lt.u32 %p1, %i, %count;\n@%p1 bra PRODUCE;\nLEAVE:\n"
        + CLUSTER_SYNC,
    )


RING = _ring(multicast=False)
MULTICAST_RING = _ring(multicast=True)
"""As the kernels do it: a producer fills stages, a consumer in another warp empties them and tells every CTA that
wrote into them. With multicast each CTA of a cluster loads one slice of a stage for all of them."""


BURST = kernel(
    PARAMETERS,
    DECLARED
    + LOAD_PARAMETERS
    + "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra DONE;\n"
    + CLEAR_CLOCKS
    + init_barriers(0, 1, "1")
    + """prefetch.tensormap [%map];
mul.lo.u32 %r3, %bytes, %count;
add.u32 %r4, %base, 4096;
mov.u32 %r5, 0;
mov.u32 %r6, 0;
mov.u32 %i, 0;
"""
    + START
    + """mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], %r3;
ISSUE:
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4], [%map, {%r5, %r6}], [%base];
add.u32 %r4, %r4, %bytes;
add.u32 %r5, %r5, 64;
add.u32 %i, %i, 1;
setp.lt.u32 %p1, %i, %count;
@%p1 bra ISSUE;
"""
    + keep_clock("0")
    + wait("[%base]", "0")
    + END
    + report(WORDS, kept=True)
    + "DONE:\n",
)
"""Loads one after the other, all on one barrier: what the engine needs for each, which the waiting in `LOADS` hides."""


def read_loads(case: Case, clocks: Clocks) -> dict[str, Any]:
    """latency: of each load, where one is in flight. The first load, which also meets a cold TMA unit, is apart."""
    loads, size = case.about["loads"], case.about.get("cluster", 1)
    cycles = (clocks[:, 1] - clocks[:, 0]).astype(float)
    nanoseconds = float(clocks[:, 3].max() - clocks[:, 2].min())
    loaded = len(clocks) * loads * case.about["box_bytes"]
    answer = {
        "cycles_per_load": round(float(np.median(cycles)) / loads, 2),
        "slowest_cta_cycles_per_load": round(float(cycles.max()) / loads, 2),
        "bytes_per_cycle_per_sm": round(loads * case.about["box_bytes"] / float(np.median(cycles)), 2),
        "bytes_per_cycle": round(loaded / float(cycles.max()), 1),
        "gigabytes_per_second": round(loaded / nanoseconds, 1) if nanoseconds else None,
        "sm_clock_mhz": round(float(np.median(cycles)) / float(np.median(clocks[:, 3] - clocks[:, 2])) * 1000, 1)
        if nanoseconds
        else None,
        "first_load_cycles": round(float(np.median(clocks[:, HEAD] - clocks[:, 0])), 1),
    }
    answer["bytes_read_from_l2_per_cycle"] = round(answer["bytes_per_cycle"] / size, 1)
    if case.about["in_flight"] == 1:
        kept = clocks[:, HEAD : HEAD + min(loads, CLOCKS)].astype(np.int64)
        answer |= statistics(np.diff(kept, axis=1), "latency_cycles")
    return answer


def load_case(
    text: str, kib: int, depth: int, loads: int, rows: int, grid: int = 1, cluster: int = 1, same: bool = False
) -> Case:
    """kib: of a stage. The slices of a cluster together are one stage. same: all CTAs load the same rows."""
    threads = 32 if text == "loads" else 64
    box_rows = kib * 1024 // ROW_BYTES // cluster
    first = 0 if same else APART if rows == IN_L2 else -(-loads // 64) * 64
    about = {
        "how": text,
        "box_bytes": kib * 1024,
        "in_flight": depth,
        "loads": loads,
        "ctas": grid,
        "cluster": cluster,
        "where": "L2" if rows == IN_L2 else "DRAM",
        "data": "the same for all" if same else "each its own",
    }
    arguments = (Tensor(rows, box_rows), OUT, loads, depth, box_rows, rows, first)
    shared = DATA_AT + max(depth, 1) * kib * 1024
    return Case(about, arguments, WORDS, text, threads, grid, cluster, shared, warm=rows == IN_L2)


def _cases() -> Iterator[Case]:
    for rows in (IN_L2, IN_DRAM):
        for kib in (1, 2, 4, 8, 16, 32):
            yield load_case("loads", kib, 1, 64, rows)
    yield load_case("loads", 1, 1, 64, IN_L2, SMS)
    yield load_case("loads", 8, 1, 64, IN_L2, SMS)
    for kib in (1, 2, 4, 8, 16, 32):
        for depth in (2, 3, 4, 6, 8, 12):
            if depth * kib <= 192:
                yield load_case("loads", kib, depth, 256, IN_L2)
    for kib, depth in (
        (8, 1),
        (8, 2),
        (8, 4),
        (8, 8),
        (16, 1),
        (16, 2),
        (16, 4),
        (16, 8),
        (32, 1),
        (32, 2),
        (32, 4),
        (32, 6),
    ):
        yield load_case("loads", kib, depth, 512, IN_L2, SMS)
        yield load_case("loads", kib, depth, 256, IN_DRAM, SMS)
    for ctas in (8, 16, 33, 66, 99):
        yield load_case("loads", 32, 4, 512, IN_L2, ctas)
        yield load_case("loads", 32, 4, 512, IN_DRAM, ctas)
    for kib, depth in ((16, 4), (32, 4)):
        yield load_case("loads", kib, depth, 512, IN_L2, SMS, same=True)
    for kib, depth in ((16, 1), (16, 2), (32, 1), (32, 2), (32, 4), (32, 6)):
        yield load_case("ring", kib, depth, 256, IN_L2)
        yield load_case("ring", kib, depth, 512, IN_L2, SMS)
        for cluster in (2, 4):
            yield load_case("multicast", kib, depth, 256, IN_L2, cluster, cluster=cluster)
            yield load_case("multicast", kib, depth, 512, IN_L2, MOST_CTAS[cluster], cluster=cluster)


TMA = Benchmark(
    name="tma_loads",
    question=QUESTIONS["tma_loads"],
    texts={"loads": LOADS, "ring": RING, "multicast": MULTICAST_RING},
    cases=tuple(_cases()),
    read=read_loads,
)


def _read_burst(case: Case, clocks: Clocks) -> dict[str, Any]:
    """cycles: from before the first load until the barrier has completed; issue: until the last has been issued."""
    return {
        "cycles": float(np.median((clocks[:, 1] - clocks[:, 0]).astype(float))),
        "issue_cycles": float(np.median((clocks[:, HEAD] - clocks[:, 0]).astype(float))),
    }


def _burst(kib: int, loads: int) -> Case:
    about = {"box_bytes": kib * 1024, "loads": loads}
    box_rows = kib * 1024 // ROW_BYTES
    arguments = (Tensor(IN_L2, box_rows), OUT, loads, 1, box_rows, IN_L2, 0)
    return Case(about, arguments, WORDS, "burst", shared=DATA_AT + loads * kib * 1024)


TMA_BURST = Benchmark(
    name="tma_bursts",
    question=QUESTIONS["tma_bursts"],
    texts={"burst": BURST},
    cases=tuple(
        _burst(kib, loads) for kib in (1, 2, 4, 8, 16, 32) for loads in (1, 2, 3, 4, 6, 8, 12) if loads * kib <= 192
    ),
    read=_read_burst,
)
BENCHMARKS = (TMA, TMA_BURST)
