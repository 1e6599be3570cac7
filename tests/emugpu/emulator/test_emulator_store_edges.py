"""TMA stores of boxes that hang over the tensor's edge: only what lies inside is read and stored (PTX ISA 5.5.3)."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import WORDS, launch

from emugpu.emulator import Device, Fault, TensorMap

ROWS, COLUMNS = 6, 20
BOX_ROWS, BOX_COLUMNS = 8, 32

STORE = """
mov.b32 %r3, words;
mov.b32 %r4, 0;
ROW:
{place}
add.u32 %r6, %r6, %r3;
mul.lo.u32 %r7, %r4, 100; add.u32 %r7, %r7, %r0;
setp.lt.u32 %p1, %r0, {columns};
@%p1 st.shared.b32 [%r6], %r7;
add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, {rows}; @%p2 bra ROW;
fence.proxy.async.shared::cta;
bar.warp.sync -1;
mov.b64 %rd4, map; cvta.param.u64 %rd4, %rd4;
mov.b32 %r8, {x};
mov.b32 %r9, {y};
elect.sync %r10|%p3, -1;
@!%p3 bra DONE;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {{%r8, %r9}}], [%r3];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE: ret;
"""
"""Writes 100 row + column into the first rows and columns of the box and stores the box at column x, row y."""

PLAIN = "mul.lo.u32 %r6, %r4, 128; shl.b32 %r5, %r0, 2; add.u32 %r6, %r6, %r5;"
SWIZZLED = """
mul.lo.u32 %r6, %r4, 128;
shr.u32 %r5, %r0, 2;
and.b32 %r7, %r4, 7;
xor.b32 %r5, %r5, %r7;
shl.b32 %r5, %r5, 4; add.u32 %r6, %r6, %r5;
and.b32 %r5, %r0, 3;
shl.b32 %r5, %r5, 2; add.u32 %r6, %r6, %r5;
"""
"""128-byte swizzle: chunk c of row r is at c xor r."""

PLACES = {"none": PLAIN, "128B": SWIZZLED}
OLD = 7


def store(swizzle: str, x: int, y: int, rows: int, columns: int, **schedule) -> np.ndarray:
    device = Device(**schedule)
    tensor = device.upload(np.full((ROWS, COLUMNS), OLD, np.uint32))
    tile = TensorMap.tiled(tensor, "u32", (ROWS, COLUMNS), (BOX_ROWS, BOX_COLUMNS), swizzle)
    body = STORE.format(place=PLACES[swizzle], x=x, y=y, rows=rows, columns=columns)
    launch(body, module_scope=WORDS, parameters=["map map"], arguments=[tile], device=device)
    return device.download(tensor, np.uint32, (ROWS, COLUMNS))


def expected(x: int, y: int) -> np.ndarray:
    out = np.full((ROWS, COLUMNS), OLD)
    for row in range(y, min(ROWS, y + BOX_ROWS)):
        for column in range(x, min(COLUMNS, x + BOX_COLUMNS)):
            out[row, column] = 100 * (row - y) + column - x
    return out


CORNERS = [(0, 0), (8, 0), (0, 2), (16, 5), (4, 3)]


@pytest.mark.parametrize(("x", "y"), CORNERS)
@pytest.mark.parametrize("swizzle", PLACES)
def test_shared_memory_that_is_not_stored_need_not_be_written(swizzle, x, y):
    for schedule in ({}, dict(schedule="random", seed=1), dict(schedule="random", seed=2)):
        found = store(swizzle, x, y, rows=ROWS - y, columns=COLUMNS - x, **schedule)
        assert (found == expected(x, y)).all()


@pytest.mark.parametrize(("x", "y"), CORNERS)
@pytest.mark.parametrize("swizzle", PLACES)
def test_a_box_that_is_written_whole_stores_what_lies_inside(swizzle, x, y):
    assert (store(swizzle, x, y, rows=BOX_ROWS, columns=BOX_COLUMNS) == expected(x, y)).all()


@pytest.mark.parametrize(("x", "y"), CORNERS)
@pytest.mark.parametrize("swizzle", PLACES)
def test_shared_memory_that_is_stored_must_be_written(swizzle, x, y):
    with pytest.raises(Fault, match="never written"):
        store(swizzle, x, y, rows=ROWS - y, columns=COLUMNS - x - 1)
    if ROWS - y > 1:
        with pytest.raises(Fault, match="never written"):
            store(swizzle, x, y, rows=ROWS - y - 1, columns=COLUMNS - x)


@pytest.mark.parametrize(("x", "y"), [(20, 0), (0, 6), (400, 400)])
def test_a_box_outside_the_tensor_stores_nothing(x, y):
    assert (store("none", x, y, rows=1, columns=1) == OLD).all()
