"""Probes of boxes: what a TMA load writes and signals, and what a TMA store writes, at edges and with every swizzle."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.probe import MapArgument, Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import CTA_SYNC, ONLY_THREAD_0, UNTOUCHED, dump, fill, kernel, poll, tma_load
from emugpu.emulator import Swizzle

THREADS = 64
REGION = 1024
"""The place of boxes; the mbarrier is at 0."""
REGION_BYTES = 4096
ROWS, COLUMNS = 20, 72
"""The tensor, of 16-bit elements. Neither is a multiple of the boxes below."""
BLANK = 0xA5A5

BOX = kernel(
    ["map loaded", "map stored", "u64 memory", "u64 flags", "u64 place", "u64 corner"],
    fill(REGION, REGION_BYTES, THREADS)
    + ONLY_THREAD_0
    + f"""
ld.param.u64 %rd0, [memory];
ld.param.u64 %rd1, [flags];
ld.param.u64 %rd2, [place];
ld.param.u64 %rd3, [corner];
mov.b64 %rd4, loaded;
cvta.param.u64 %rd4, %rd4;
mov.b64 %rd5, stored;
cvta.param.u64 %rd5, %rd5;
ld.global.u32 %r0, [%rd2];
ld.global.u32 %r1, [%rd2+4];
add.u32 %r0, %r0, %base;
add.u32 %r0, %r0, {REGION};
ld.global.u32 %r2, [%rd3];
ld.global.u32 %r3, [%rd3+4];
ld.global.u32 %r4, [%rd3+8];
@%p0 bra READY;
mbarrier.init.shared::cta.b64 [%base], 1;
fence.mbarrier_init.release.cluster;
READY:
fence.proxy.async.shared::cta;
{CTA_SYNC}
@%p0 bra LOADED;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], %r1;
"""
    + tma_load("%r0", "%rd4", "%r2", "%r3", "%base")
    + poll("%base", 0, "%p1")
    + """
selp.u32 %r5, 1, 0, %p1;
st.global.u32 [%rd1], %r5;
LOADED:
"""
    + CTA_SYNC
    + dump(REGION, REGION_BYTES, THREADS, "%rd0")
    + CTA_SYNC
    + """
@%p0 bra DONE;
setp.eq.u32 %p2, %r4, 0;
@%p2 bra STORED;
fence.proxy.async.shared::cta;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd5, {%r2, %r3}], [%r0];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
STORED:
mbarrier.inval.shared::cta.b64 [%base];
DONE:
""",
)
"""Loads a box, dumps shared memory, and optionally stores the box through the other map at the same corner."""


def _case(
    name: str,
    rows: int,
    columns: int,
    swizzle: str,
    corner: tuple[int, int] = (0, 0),
    offset: int = 0,
    element: str = "bf16",
    nan: bool = False,
) -> ProbeCase:
    """Returns a case with a box of rows x columns at corner (row, column), to shared offset REGION + offset."""
    ids = np.arange(ROWS * COLUMNS, dtype=np.uint16) + 0x1000
    row, column = corner
    store = row >= 0 and column >= 0
    box = (rows, columns)
    return ProbeCase(
        name=name,
        buffers={
            "tensor": ids,
            "copy": np.full(ROWS * COLUMNS, BLANK, np.uint16),
            "memory": np.zeros(REGION_BYTES // 4, np.uint32),
            "flags": np.full(1, 9, np.uint32),
            "place": np.array([offset, 2 * rows * columns], np.uint32),
            "corner": np.array([column, row, store], np.int32),
        },
        arguments=(
            MapArgument("tensor", element, (ROWS, COLUMNS), box, swizzle, nan),
            MapArgument("copy", element, (ROWS, COLUMNS), box, swizzle),
            Pointer("memory"),
            Pointer("flags"),
            Pointer("place"),
            Pointer("corner"),
        ),
        outputs=("memory", "flags", "copy"),
        block=THREADS,
        shared=REGION + REGION_BYTES,
    )


def _read(outputs: Outputs) -> dict[str, Any]:
    """Returns, by case, whether the barrier saw exactly the box's bytes, and how many elements arrived, were filled,
    and were stored.
    """
    answer = {}
    for name, arrays in outputs.items():
        halves = arrays["memory"].view(np.uint16)
        touched = halves != UNTOUCHED & 0xFFFF
        loaded = (halves >= 0x1000) & (halves < 0x1000 + ROWS * COLUMNS)
        answer[name] = {
            "whole box signalled": bool(arrays["flags"][0] == 1),
            "elements loaded": int(loaded.sum()),
            "elements filled": int((touched & ~loaded).sum()),
            "elements stored": int((arrays["copy"] != BLANK).sum()),
            "rows 0 and 1 begin at": _row_starts(halves),
        }
    return answer


def _row_starts(halves: np.ndarray) -> list[int]:
    """Returns the bytes from REGION to the first elements of the box's rows 0 and 1, if they arrived."""
    first = min((h for h in halves.tolist() if 0x1000 <= h < 0x1000 + ROWS * COLUMNS), default=0)
    places = [np.flatnonzero(halves == first + row * COLUMNS) for row in range(2)]
    return [int(2 * p[0]) for p in places if len(p) == 1]


_CORNERS = [(0, 0), (0, 64), (8, 0), (16, 64), (19, 56), (0, 72), (20, 0), (64, 96), (-4, -8), (-15, 24), (-16, 0)]
_CORNERS += [(4, -16), (16, -8), (-100, -800)]

OUT_OF_BOUNDS = Probe(
    name="tma_out_of_bounds",
    question="How many bytes does a TMA load signal, and what does it write, for a box that lies partly or wholly "
    "outside the tensor? What does a store leave out?",
    ptx=BOX,
    cases=tuple(
        _case(f"{element} {swizzle} fill {'nan' if nan else 'zero'} at {row},{column}", 16, 16, swizzle, (row, column),
              element=element, nan=nan)
        for element, swizzle, nan in (("bf16", "none", False), ("bf16", "32B", True), ("f16", "64B", True))
        for row, column in _CORNERS
    ),
    read=_read,
)  # fmt: skip

ROW_PITCH = Probe(
    name="tma_row_pitch",
    question="How far apart are the rows of a box that is narrower than the span of its swizzle?",
    ptx=BOX,
    cases=tuple(
        _case(f"{swizzle} box {columns * 2} bytes wide at {offset}", 8, columns, swizzle, (0, 8), offset)
        for swizzle in ("32B", "64B", "128B")
        for columns in (8, 16, 24, 32)
        if columns * 2 < Swizzle.from_name(swizzle).span_bytes
        for offset in (0, 384)
    ),
    read=_read,
)

SWIZZLE = Probe(
    name="tma_swizzle",
    question="Where does a TMA load put the 16-byte chunks of a box, at any alignment of the destination, and does a "
    "store bring them back?",
    ptx=BOX,
    cases=tuple(
        _case(f"{swizzle} at {offset}", 16, columns, swizzle, (2, 0), offset)
        for swizzle, columns in (("none", 24), ("32B", 16), ("64B", 32))
        for offset in (0, 128, 256, 640, 896)
    )
    + tuple(_case(f"128B at {offset}", 12, 64, "128B", (1, 0), offset) for offset in (0, 128, 256, 640, 896)),
    read=_read,
)

PROBES = (OUT_OF_BOUNDS, ROW_PITCH, SWIZZLE)
