"""wgmma: initiation interval and latency by N, by where A comes from, by groups in flight and warpgroups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.emulator import Swizzle
from metrology.probes.ptx import descriptor, with_start
from metrology.probes.ptx import wgmma as one_wgmma
from metrology.survey.micro.benchmark import OUT, Benchmark, Case, Clocks
from metrology.survey.micro.ptx import END, HEAD, START, kernel, repeat, report
from metrology.survey.micro.questions import QUESTIONS

COLUMNS = (64, 96, 128, 160, 192, 256)
A_BYTES = 64 * 128
B_BYTES = 256 * 128
OPERAND = descriptor(16, 1024, Swizzle.B128)
CYCLES_OF_IDEAL = 2
"""An m64nNk16 has N / 2 cycles of work for the tensor cores of an SM."""


READY = f"""shl.b32 %r1, %thread, 2;
CLEAR:
add.u32 %r2, %r1, %base;
st.shared.b32 [%r2], 0;
mov.u32 %r3, %ntid.x;
mad.lo.u32 %r1, %r3, 4, %r1;
setp.lt.u32 %p0, %r1, {2 * A_BYTES + B_BYTES};
@%p0 bra CLEAR;
shr.u32 %r4, %thread, 7;
mad.lo.u32 %r5, %r4, {A_BYTES}, %base;
add.u32 %r6, %base, {2 * A_BYTES};
{with_start(OPERAND, "%r5", "%rd10")}{with_start(OPERAND, "%r6", "%rd11")}setp.eq.u32 %p1, 0, 0;
fence.proxy.async.shared::cta;
bar.sync 0;
"""
"""All threads: operands of zeros. %rd10 is the descriptor of the warpgroup's own A, %rd11 of the B that all share:
tiles of 64 columns with the 128-byte swizzle. %r4: the number of the warpgroup; %p1: true."""


def report_of_warpgroup() -> str:
    """The first thread of each warpgroup: `report`, in its own `HEAD` words of the CTA's. %rd0: where they are."""
    words = report(2 * HEAD).replace(
        "st.global.u64 [%rd0], %c0;", "add.u64 %rd0, %rd0, %rd20;\nst.global.u64 [%rd0], %c0;"
    )
    return f"""and.b32 %r7, %thread, 127;
setp.ne.u32 %p2, %r7, 0;
@%p2 bra DONE;
mul.lo.u32 %r8, %r4, {8 * HEAD};
cvt.u64.u32 %rd20, %r8;
{words}"""


def _text(n: int, source: str, per_group: int, pending: int) -> str:
    """``per_group`` multiplications, commit, wait until ``pending`` groups are left; so many times, then all are waited
    for. Both operands are tiles of 64 columns with the 128-byte swizzle, whose columns the group goes through."""
    d = [f"%f{i}" for i in range(n // 2)]
    group = "wgmma.fence.sync.aligned;\n"
    for i in range(per_group):
        step = 2 * (i % 4)  # 32 bytes, in units of 16
        group += f"add.u64 %rd12, %rd10, {step};\nadd.u64 %rd13, %rd11, {step};\n"
        a, flags = ("%rd12", "1, 1, 0, 0") if source == "shared" else ("{%r20, %r21, %r22, %r23}", "1, 1, 0")
        group += one_wgmma(n, "bf16", d, a, "%rd13", "%p1", flags)
    group += f"wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned {pending};\n"
    zero = "".join(f"mov.f32 {register}, 0f00000000;\n" for register in d)
    total = "".join(f"add.f32 %f0, %f0, {register};\n" for register in d[1:])
    return kernel(
        ["u64 out", "u32 groups"],
        f""".reg .f32 %f<{n // 2}>;
.reg .b32 %count;
ld.param.u32 %count, [groups];
{zero}mov.b32 %r20, 0;
mov.b32 %r21, 0;
mov.b32 %r22, 0;
mov.b32 %r23, 0;
{READY}"""
        + START
        + repeat(group)
        + "wgmma.wait_group.sync.aligned 0;\n"
        + END
        + total
        + report_of_warpgroup()
        + "st.global.f32 [%rd0+48], %f0;\nDONE:\n",
        threads=256,
    )


def _read(case: Case, clocks: Clocks) -> dict[str, Any]:
    """cycles: of the slower warpgroup, from its first instruction until it has waited for its last group."""
    groups = case.threads // 128
    parts = clocks.reshape(-1, 2, HEAD)[:, :groups]
    cycles = (parts[..., 1] - parts[..., 0]).astype(float)
    total = float(np.median(cycles.max(axis=1)))
    count = case.about["groups"] * case.about["per_group"]
    return {
        "cycles": total,
        "cycles_per_wgmma_of_a_warpgroup": round(total / count, 2),
        "cycles_per_wgmma_of_the_sm": round(total / count / groups, 2),
        "ideal_cycles": case.about["n"] / CYCLES_OF_IDEAL,
    }


FORMS = ((1, 0), (2, 0), (4, 0), (8, 0), (4, 1), (8, 1))
"""Multiplications in a group, and groups that may be pending when it has been committed."""
STEADY = 128


def _cases() -> Iterator[Case]:
    for n in COLUMNS:
        for source in ("shared", "registers"):
            for per_group, pending in FORMS:
                if source == "registers" and per_group != 4:
                    continue
                for groups in (1, STEADY) if not pending else (STEADY,):
                    for warpgroups in (1, 2):
                        yield _case(n, source, per_group, pending, groups, warpgroups)
    for n in (128, 256):
        yield _case(n, "shared", 4, 1, STEADY, 2, ctas=132)


def _case(n: int, source: str, per_group: int, pending: int, groups: int, warpgroups: int, ctas: int = 1) -> Case:
    about = {
        "n": n,
        "a_from": source,
        "per_group": per_group,
        "pending": pending,
        "groups": groups,
        "warpgroups": warpgroups,
        "ctas": ctas,
    }
    return Case(
        about,
        (OUT, groups),
        2 * HEAD,
        f"{n} {source} {per_group} {pending}",
        128 * warpgroups,
        grid=ctas,
        shared=2 * A_BYTES + B_BYTES,
    )


WGMMA = Benchmark(
    name="wgmma",
    question=QUESTIONS["wgmma"],
    texts={
        f"{n} {source} {per_group} {pending}": _text(n, source, per_group, pending)
        for n in COLUMNS
        for source in ("shared", "registers")
        for per_group, pending in FORMS
        if source == "shared" or per_group == 4
    },
    cases=tuple(_cases()),
    read=_read,
    archs=("sm_90a",),
)
BENCHMARKS = (WGMMA,)
