"""What the steps of a write-out take: groups of TMA stores, stores behind a proxy fence, a jump, a whole step.

A turn of a loop is timed. What goes on in it is by all warps at once; the loop itself, with a store, is one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from metrology.survey.micro.benchmark import OUT, Benchmark, Case, Clocks, Tensor
from metrology.survey.micro.ptx import DATA_AT, END, HEAD, ROLLED, START, init_barriers, kernel, repeat, report
from metrology.survey.micro.questions import QUESTIONS
from metrology.survey.micro.tma import IN_L2

TURNS = 256
BOX_ROWS, BOX_COLUMNS = 64, 32
BOX_BYTES = 2 * BOX_ROWS * BOX_COLUMNS
GROUP_BYTES = 2 * BOX_BYTES
"""Of shared memory, of each warpgroup: two boxes, one of which is written while the other is stored."""
WARP_BYTES = GROUP_BYTES // 4
WAYS = 6

READY = f"""{{
.reg .pred all;
.reg .b32 lane, warp, within;
and.b32 lane, %thread, 31;
shr.u32 warp, %thread, 5;
mad.lo.u32 %own, warp, {WARP_BYTES}, %base;
mad.lo.u32 %own, lane, 16, %own;
add.u32 %own, %own, {DATA_AT};
shr.u32 %group, %thread, 7;
add.u32 %barrier, %group, 1;
mul.lo.u32 %row, %group, {BOX_ROWS};
mad.lo.u32 %box, %group, {GROUP_BYTES}, %base;
add.u32 %box, %box, {DATA_AT};
and.b32 within, %thread, 127;
mad.lo.u32 %part, within, 16, %box;
and.b32 warp, warp, 3;
setp.eq.u32 %leads, warp, 0;
setp.eq.u32 %first, lane, 0;
mov.u32 %column, 0;
mov.u32 %half, 0;
mov.u32 %way, 0;
mov.u32 %value, 0;
mov.b64 %map, tensor;
cvta.param.u64 %map, %map;
mov.u32 %r1, %cluster_ctarank;
mapa.shared::cluster.u32 %peer, %base, %r1;
setp.eq.u32 all, %thread, 0;
@!all bra INITIALISED;
{init_barriers(0, 1, "1")}INITIALISED:
}}
bar.warp.sync -1;
bar.sync 0;
"""
"""%own: 16 bytes of the thread, those of a warp side by side. %box, %part: of the warpgroup, of the thread in that."""


def _elected(body: str) -> str:
    """One thread of the first warp of each warpgroup."""
    return f"""{{
.reg .pred one;
@!%leads bra PAST;
elect.sync _|one, -1;
@!one bra PAST;
{body}PAST:
}}
"""


def _stored(count: int, of: str = "%own") -> str:
    return "".join(
        f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [{of}+{512 * i}], {{%value, %value, %value, %value}};\n"
        for i in range(count)
    )


def _switch() -> str:
    """A jump through a table, to as many places that do almost the same, each in turn."""
    cases = "".join(f"WAY{i}:\nst.volatile.shared.b32 [%own+{4 * (i % 4)}], {i};\nbra MET;\n" for i in range(WAYS))
    return f"""{{
.reg .pred last;
WAYS: .branchtargets {", ".join(f"WAY{i}" for i in range(WAYS))};
brx.idx %way, WAYS;
{cases}MET:
add.u32 %way, %way, 1;
setp.eq.u32 last, %way, {WAYS};
@last mov.u32 %way, 0;
}}
"""


STORE = "st.volatile.shared.b32 [%own], %value;\n"
COMMIT = "cp.async.bulk.commit_group;\n"
FENCE = "fence.proxy.async.shared::cta;\n"
MEET = "bar.sync %barrier, 128;\n"
STEP = (
    _elected("cp.async.bulk.wait_group.read 1;\n")
    + MEET
    + f"""add.u32 %at, %part, %half;
stmatrix.sync.aligned.m8n8.x4.shared.b16 [%at], {{%value, %value, %value, %value}};
stmatrix.sync.aligned.m8n8.x4.shared.b16 [%at+{BOX_BYTES // 2}], {{%value, %value, %value, %value}};
{FENCE}{MEET}add.u32 %at, %box, %half;
"""
    + _elected("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {%column, %row}], [%at];\n" + COMMIT)
    + f"""xor.b32 %half, %half, {BOX_BYTES};
add.u32 %column, %column, {BOX_COLUMNS};
and.b32 %column, %column, 2047;
"""
)
"""As the kernels write a part of C: the box that was stored two steps before is free, is filled, and is stored."""

LOOP, ELECTED, WHOLE = "the loop and a store", "elected: a store", "a step"
BODIES = {
    LOOP: STORE,
    ELECTED: _elected(STORE),
    "elected: commit_group": _elected(COMMIT),
    "elected: wait_group.read": _elected("cp.async.bulk.wait_group.read 1;\n"),
    "elected: commit_group, wait_group.read": _elected(COMMIT + "cp.async.bulk.wait_group.read 1;\n"),
    "1 stmatrix, fence": _stored(1) + FENCE,
    "4 stmatrix, fence": _stored(4) + FENCE,
    "brx.idx": _switch(),
    "arrive, release.cluster": "@%first mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%peer];\n",
    "arrive, relaxed.cluster": "@%first mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%peer];\n",
    WHOLE: STEP,
}


def _text(body: str) -> str:
    return kernel(
        ["map tensor", "u64 out", "u32 count"],
        ".reg .b32 %count, %own, %group, %barrier, %row, %column, %box, %part, %half, %at, %way, %value, %peer;\n"
        + ".reg .b64 %map;\n.reg .pred %leads, %first;\nld.param.u32 %count, [count];\n"
        + READY
        + START
        + repeat(ROLLED + body)
        + END
        + "cp.async.bulk.wait_group 0;\nsetp.ne.u32 %p0, %thread, 0;\n@%p0 bra DONE;\n"
        + report(HEAD)
        + "DONE:\n",
        threads=256,
    )


def _read(case: Case, clocks: Clocks) -> dict[str, Any]:
    return {"cycles": round(float(np.median((clocks[:, 1] - clocks[:, 0]).astype(float))) / TURNS, 2)}


def _cases() -> Iterator[Case]:
    tensor = Tensor(IN_L2, BOX_ROWS, BOX_COLUMNS)
    for name in BODIES:
        for warps in (4, 8) if name == WHOLE else (1, 4, 8):
            shared = DATA_AT + 2 * GROUP_BYTES
            about = {"what": name, "warps": warps, "turns": TURNS}
            yield Case(about, (tensor, OUT, TURNS), HEAD, name, 32 * warps, shared=shared)


WRITE_OUT = Benchmark(
    name="write_out",
    question=QUESTIONS["write_out"],
    texts={name: _text(body) for name, body in BODIES.items()},
    cases=tuple(_cases()),
    read=_read,
)
BENCHMARKS = (WRITE_OUT,)
