"""mbarriers, named barriers, cluster barriers: what an arrival, a wait and a message between warps or CTAs take."""

from __future__ import annotations

from typing import Any

import numpy as np

from metrology.probes.ptx import CLUSTER_SYNC
from metrology.survey.micro.benchmark import COUNTER, OUT, Benchmark, Case, Clocks
from metrology.survey.micro.ptx import END, HEAD, START, init_barriers, kernel, repeat, report, wait
from metrology.survey.micro.questions import QUESTIONS

TURNS = 256
UNROLLED = 16
DECLARED = """.reg .b32 %count, %parity, %size, %rank, %peer;
.reg .b64 %state;
ld.param.u32 %count, [count];
mov.u32 %size, %cluster_nctarank;
mov.u32 %rank, %cluster_ctarank;
mov.u32 %parity, 0;
mov.u32 %peer, %base;
"""
PARAMETERS = ["u64 out", "u32 count"]
ONE_THREAD = "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra DONE;\n"


def _alone(body: str, arrivals: str = "1") -> str:
    """One thread repeats something with the mbarrier at the start of shared memory."""
    return kernel(
        PARAMETERS,
        DECLARED
        + ONE_THREAD
        + init_barriers(0, 2, arrivals)
        + START
        + repeat(body, unrolled=UNROLLED)
        + END
        + report(HEAD)
        + "DONE:\n",
    )


def _together(body: str) -> str:
    """All threads of the CTA repeat something; thread 0 has the clocks."""
    return kernel(
        PARAMETERS,
        DECLARED
        + CLUSTER_SYNC
        + START
        + repeat(body, unrolled=UNROLLED)
        + END
        + ONE_THREAD
        + report(HEAD)
        + "DONE:\nbar.warp.sync -1;\n"
        + CLUSTER_SYNC,
        threads=1024,
    )


ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [%base];\n"
TEST = """{
.reg .pred done;
mbarrier.try_wait.parity.shared::cta.b64 done, [%base], 1;
}
"""
TEST_IN_CHAIN = """{
.reg .pred done;
mbarrier.try_wait.parity.shared::cta.b64 done, [%peer], 1;
selp.u32 %r10, 0, 8, done;
add.u32 %peer, %base, %r10;
}
"""
ARRIVE_AND_WAIT = ARRIVE + wait("[%base]", "%parity") + "xor.b32 %parity, %parity, 1;\n"
ARRIVE_EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], 0;\n"

SIDES = """setp.eq.u32 %p1, %side, 0;
@%p1 bra FIRST;
"""


def _ping_pong(in_cluster: bool, semantics: str) -> str:
    """Two threads signal each other in turn: of two warps of a CTA, or of the CTAs of ranks 0 and last. Side 0 waits on
    the barrier at byte 0 and arrives at byte 8 of the other; side 1 the other way round. semantics: of the arrival; the
    kernels have none for stages, which orders no more than accesses of the own CTA."""
    who = (
        """mov.u32 %side, %rank;
setp.ne.u32 %p2, %thread, 0;
@%p2 bra DONE;
sub.u32 %r10, %size, 1;
setp.eq.u32 %p3, %rank, 0;
setp.eq.u32 %p4, %rank, %r10;
or.pred %p5, %p3, %p4;
@!%p5 bra DONE;
selp.u32 %r11, %r10, 0, %p3;
mapa.shared::cluster.u32 %peer, %base, %r11;
"""
        if in_cluster
        else """and.b32 %r10, %thread, 31;
setp.ne.u32 %p2, %r10, 0;
@%p2 bra DONE;
shr.u32 %side, %thread, 5;
mapa.shared::cluster.u32 %peer, %base, %rank;
"""
    )
    arrive = f"mbarrier.arrive{semantics}.shared::cluster.b64 _, [%peer+{{}}];\n"
    turn = "xor.b32 %parity, %parity, 1;\n"
    first = arrive.format(8) + wait("[%base]", "%parity") + turn
    second = wait("[%base+8]", "%parity") + arrive.format(0) + turn
    return kernel(
        PARAMETERS,
        DECLARED
        + ".reg .b32 %side;\nsetp.ne.u32 %p0, %thread, 0;\n@%p0 bra READY;\n"
        + init_barriers(0, 2, "1")
        + "READY:\n"
        + CLUSTER_SYNC
        + who
        + START
        + SIDES
        + repeat(second)
        + "bra DONE;\nFIRST:\n"
        + repeat(first)
        + END
        + report(HEAD)
        + "DONE:\n"
        + CLUSTER_SYNC,
    )


RELEASE = ", release.cluster"
CLUSTER_RELAXED = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n"
CLUSTER_FULL = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
ATOMIC = kernel(
    ["u64 out", "u32 count", "u64 counter"],
    ".reg .b64 %counter;\nld.param.u64 %counter, [counter];\n"
    + DECLARED
    + ONE_THREAD
    + START
    + repeat(
        """atom.relaxed.gpu.global.inc.u32 %r10, [%counter], 1000000000;
shr.u32 %r10, %r10, 31;
cvt.u64.u32 %rd10, %r10;
add.u64 %counter, %counter, %rd10;
""",
        unrolled=UNROLLED,
    )
    + END
    + report(HEAD)
    + "DONE:\n",
)
"""Each atomic waits for the one before: its address depends on what that gave, which is less than 2^31."""

TEXTS = {
    "arrive": _alone(ARRIVE, "1"),
    "arrive.expect_tx": _alone(ARRIVE_EXPECT, "1"),
    "try_wait, completed": _alone(TEST),
    "try_wait, its answer used": _alone(TEST_IN_CHAIN),
    "arrive, then wait": _alone(ARRIVE_AND_WAIT),
    "arrive at a peer": _alone(
        "mapa.shared::cluster.u32 %peer, %base, %rank;\nmbarrier.arrive.shared::cluster.b64 _, [%peer];\n"
    ),
    "fence.proxy.async": _alone("fence.proxy.async.shared::cta;\n"),
    "bar.sync": _together("bar.sync 0;\n"),
    "syncwarp": _together("bar.warp.sync -1;\n"),
    "cluster barrier, relaxed": _together(CLUSTER_RELAXED),
    "cluster barrier": _together(CLUSTER_FULL),
    "message between warps": _ping_pong(False, ""),
    "message between CTAs": _ping_pong(True, ""),
    "message between warps, release.cluster": _ping_pong(False, ".release.cluster"),
    "message between CTAs, release.cluster": _ping_pong(True, ".release.cluster"),
    "atomic": ATOMIC,
}


def _read(case: Case, clocks: Clocks) -> dict[str, Any]:
    """A message: from before the arrival until the other side has seen it, half of a round trip."""
    written = clocks[clocks[:, 1] != 0]
    cycles = (written[:, 1] - written[:, 0]).astype(float) / case.about["turns"]
    if case.ptx.startswith("message"):
        cycles /= 2
    return {"cycles": round(float(np.median(cycles)), 2), "largest_cycles": round(float(cycles.max()), 2)}


def _case(text: str, threads: int = 32, ctas: int = 1, cluster: int = 1) -> Case:
    about = {"what": text, "threads": threads, "ctas": ctas, "cluster": cluster, "turns": TURNS}
    more = (COUNTER,) if text == "atomic" else ()
    return Case(about, (OUT, TURNS, *more), HEAD, text, threads, ctas, cluster, shared=1024)


BARRIERS = Benchmark(
    name="barriers",
    question=QUESTIONS["barriers"],
    texts=TEXTS,
    cases=(
        *(_case(text) for text in TEXTS if not text.startswith(("message", "cluster barrier", "atomic", "bar.sync"))),
        *(_case("bar.sync", threads) for threads in (32, 64, 128, 256, 384, 512)),
        *(
            _case(text, threads, cluster, cluster)
            for text in ("cluster barrier, relaxed", "cluster barrier")
            for threads in (128, 384)
            for cluster in (1, 2, 4, 8)
        ),
        *(_case(f"message between warps{how}", 64) for how in ("", RELEASE)),
        *(_case(f"message between CTAs{how}", 32, size, size) for how in ("", RELEASE) for size in (2, 4, 8)),
        _case("message between CTAs", 32, 132, 2),
        *(_case("atomic", 32, ctas) for ctas in (1, 16, 66, 132)),
    ),
    read=_read,
)
BENCHMARKS = (BARRIERS,)
