"""What only Blackwell has: tcgen05.mma and its commit, loads from tensor memory, cluster launch control."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from metrology.survey.micro.benchmark import OUT, Benchmark, Case, Clocks, statistics
from metrology.survey.micro.ptx import (
    BLACKWELL,
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

THREADS = 128
TMEM_COLUMNS = 512
TMEM_ADDRESS_AT = 64
A_BYTES, B_BYTES = 128 * 128, 256 * 128
"""A tile of 128 rows and one of 256, both of 64 columns."""
OPERAND = 2 << 61 | 1 << 46 | (8 * 128 >> 4) << 32
"""A K-major operand with the 128-byte swizzle, without its start address (PTX ISA 9.7.16.4.1)."""
SMS = 148


def _instruction(m: int, n: int) -> int:
    """Instruction descriptor: bf16 operands, f32 accumulator (PTX ISA 9.7.16.4.2)."""
    return 1 << 4 | 1 << 7 | 1 << 10 | n // 8 << 17 | m // 16 << 24


def _operand(address: str, result: str) -> str:
    return f"""{{
.reg .b32 start;
shr.u32 start, {address}, 4;
and.b32 start, start, 16383;
cvt.u64.u32 {result}, start;
or.b64 {result}, {result}, {OPERAND};
}}
"""


PREPARE = (
    f"""shl.b32 %r1, %thread, 2;
CLEAR_DATA:
add.u32 %r2, %r1, %base;
st.shared.b32 [%r2+{DATA_AT}], 0;
add.u32 %r1, %r1, {4 * THREADS};
setp.lt.u32 %p0, %r1, {A_BYTES + B_BYTES};
@%p0 bra CLEAR_DATA;
setp.ne.u32 %p0, %thread, 0;
@%p0 bra READY;
"""
    + init_barriers(0, 1, "1")
    + f"""READY:
bar.warp.sync -1;
setp.ge.u32 %p0, %thread, 32;
@%p0 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%base+{TMEM_ADDRESS_AT}], {TMEM_COLUMNS};
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
ALLOCATED:
fence.proxy.async.shared::cta;
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
ld.shared.b32 %tmem, [%base+{TMEM_ADDRESS_AT}];
add.u32 %r3, %base, {DATA_AT};
add.u32 %r4, %base, {DATA_AT + A_BYTES};
"""
    + _operand("%r3", "%a")
    + _operand("%r4", "%b")
)
"""All threads: operands of zeros, tensor memory, an mbarrier at byte 0."""
DECLARED = ".reg .b32 %count, %tmem, %i;\n.reg .b64 %a, %b;\nld.param.u32 %count, [count];\n"
RELEASE = f"""tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
setp.ge.u32 %p0, %thread, 32;
@%p0 bra LEFT;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tmem, {TMEM_COLUMNS};
LEFT:
"""


def _multiply(m: int, n: int) -> str:
    """One thread: ``%count`` multiplications, through the columns of the operands; the first overwrites."""
    return f"""mov.u32 %i, 0;
MULTIPLY:
setp.ne.u32 %p1, %i, 0;
and.b32 %r5, %i, 3;
shl.b32 %r5, %r5, 1;
cvt.u64.u32 %rd10, %r5;
add.u64 %rd11, %a, %rd10;
add.u64 %rd12, %b, %rd10;
tcgen05.mma.cta_group::1.kind::f16 [%tmem], %rd11, %rd12, {_instruction(m, n)}, %p1;
add.u32 %i, %i, 1;
setp.lt.u32 %p2, %i, %count;
@%p2 bra MULTIPLY;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%base];
"""


def _mma(m: int, n: int) -> str:
    return kernel(
        ["u64 out", "u32 count"],
        DECLARED
        + PREPARE
        + "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra DONE;\n"
        + START
        + _multiply(m, n)
        + wait("[%base]", "0")
        + END
        + report(HEAD)
        + "DONE:\nbar.warp.sync -1;\n"
        + RELEASE,
        threads=THREADS,
        target=BLACKWELL,
    )


MMA_SHAPES = tuple((m, n) for m in (64, 128) for n in (64, 128, 256))
MMA_COUNTS = (1, 4, 16, 256)


def _read_mma(case: Case, clocks: Clocks) -> dict[str, Any]:
    """cycles: from before the first until the thread has seen the commit; that of one is the latency."""
    cycles = float(np.median((clocks[:, 1] - clocks[:, 0]).astype(float)))
    return {"cycles": cycles, "cycles_per_mma": round(cycles / case.about["multiplications"], 2)}


def _mma_cases() -> Iterator[Case]:
    for m, n in MMA_SHAPES:
        for count in MMA_COUNTS:
            about = {"m": m, "n": n, "multiplications": count, "ctas": 1}
            yield _case(about, f"{m} {n}", count)
    yield _case({"m": 128, "n": 256, "multiplications": 256, "ctas": SMS}, "128 256", 256, SMS)


def _case(about: dict[str, Any], text: str, count: int, ctas: int = 1) -> Case:
    return Case(about, (OUT, count), HEAD, text, THREADS, ctas, shared=DATA_AT + A_BYTES + B_BYTES)


MMA = Benchmark(
    name="tcgen05_mma",
    question=QUESTIONS["tcgen05_mma"],
    texts={f"{m} {n}": _mma(m, n) for m, n in MMA_SHAPES},
    cases=tuple(_mma_cases()),
    read=_read_mma,
    archs=(BLACKWELL,),
)

COLUMNS = 32
"""Of one load: 32 lanes x 32 columns, a register for each column."""
LOADED_COLUMNS = 256


def _load(at_once: int) -> str:
    """Every warp: ``%count`` times so many loads of its own lanes, then the wait for them."""
    loads = ""
    for i in range(at_once):
        registers = ", ".join(f"%t{COLUMNS * i + j}" for j in range(COLUMNS))
        loads += f"tcgen05.ld.sync.aligned.32x32b.x{COLUMNS}.b32 {{{registers}}}, [%r20+{COLUMNS * i}];\n"
    used = "".join(f"xor.b32 %r21, %r21, %t{COLUMNS * i};\n" for i in range(at_once))
    return kernel(
        ["u64 out", "u32 count"],
        DECLARED
        + f".reg .b32 %t<{COLUMNS * at_once}>, %turns;\nmov.u32 %turns, %count;\nmov.u32 %count, 1;\n"
        + PREPARE
        + "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra MULTIPLIED;\n"
        + _multiply(128, LOADED_COLUMNS)
        + "MULTIPLIED:\nbar.warp.sync -1;\n"
        + wait("[%base]", "0")
        + """tcgen05.fence::after_thread_sync;
shr.u32 %r20, %thread, 5;
shl.b32 %r20, %r20, 21;
add.u32 %r20, %r20, %tmem;
mov.u32 %r21, 0;
mov.u32 %i, 0;
bar.sync 0;
"""
        + START
        + "LOAD:\n"
        + loads
        + "tcgen05.wait::ld.sync.aligned;\n"
        + used
        + """add.u32 %i, %i, 1;
setp.lt.u32 %p2, %i, %turns;
@%p2 bra LOAD;
bar.sync 0;
"""
        + END
        + "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra DONE;\n"
        + report(HEAD)
        + "cvt.u64.u32 %rd20, %r21;\nst.global.u64 [%rd0+48], %rd20;\nDONE:\nbar.warp.sync -1;\n"
        + RELEASE,
        threads=THREADS,
        target=BLACKWELL,
    )


TURNS = 64
AT_ONCE = (1, 2, 4)


def _read_loads(case: Case, clocks: Clocks) -> dict[str, Any]:
    """Four warps at once, each its own 32 lanes; the end is when all of them are there."""
    cycles = float(np.median((clocks[:, 1] - clocks[:, 0]).astype(float))) / TURNS
    loaded = 4 * 32 * COLUMNS * 4 * case.about["loads_at_once"]
    return {"cycles_per_turn": round(cycles, 2), "bytes_per_cycle_per_sm": round(loaded / cycles, 1)}


LOADS = Benchmark(
    name="tensor_memory",
    question=QUESTIONS["tensor_memory"],
    texts={str(at_once): _load(at_once) for at_once in AT_ONCE},
    cases=tuple(_case({"loads_at_once": at_once}, str(at_once), TURNS) for at_once in AT_ONCE),
    read=_read_loads,
    archs=(BLACKWELL,),
)

ANSWER_AT = 128
ASK = kernel(
    ["u64 out", "u32 count"],
    """.reg .b32 %i, %parity;
.reg .b128 %answer;
setp.ne.u32 %p0, %thread, 0;
@%p0 bra DONE;
"""
    + CLEAR_CLOCKS
    + init_barriers(0, 1, "1")
    + START
    + f"""mov.u32 %i, 0;
mov.u32 %parity, 0;
NEXT:
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 16;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%base+{ANSWER_AT}], [%base];
"""
    + wait("[%base]", "%parity")
    + keep_clock("%i")
    + f"""ld.shared.b128 %answer, [%base+{ANSWER_AT}];
fence.proxy.async.shared::cta;
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %answer;
xor.b32 %parity, %parity, 1;
add.u32 %i, %i, 1;
@%p1 bra NEXT;
"""
    + END
    + report(HEAD + CLOCKS, kept=True)
    + "DONE:\n",
    target=BLACKWELL,
)
"""Each CTA that runs cancels others until there are none left."""


def _read_answers(case: Case, clocks: Clocks) -> dict[str, Any]:
    """Cycles from one answer to the next, of the CTAs that ran."""
    ran = clocks[clocks[:, 1] != 0].astype(np.int64)
    gaps = [np.diff(row[row != 0]) for row in ran[:, HEAD:]]
    answers = np.concatenate(gaps) if gaps else np.zeros(0)
    return {"ctas_that_ran": len(ran), **(statistics(answers, "answer_cycles") if len(answers) else {})}


def _ask(ctas: int) -> Case:
    # So much shared memory that one CTA at a time runs on an SM.
    return Case({"ctas": ctas}, (OUT, 0), HEAD + CLOCKS, "ask", 32, ctas, shared=200 * 1024)


CONTROL = Benchmark(
    name="launch_control",
    question=QUESTIONS["launch_control"],
    texts={"ask": ASK},
    cases=(_ask(SMS + 16), _ask(4 * SMS), _ask(16 * SMS)),
    read=_read_answers,
    archs=(BLACKWELL,),
)
BENCHMARKS = (MMA, LOADS, CONTROL)
