"""TMA in im2col mode: columns of pixels of a convolution's input, and the convolution they make."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import launch

from emugpu.emulator import Device, Fault, Im2colMap, TensorMap
from emugpu.emulator.memory.global_memory import GlobalMemory

CHANNELS, PIXELS = 8, 16
ROOM = ".shared .align 1024 .b8 words[512]; .shared .align 8 .b64 full;"
PROGRAM = """
mov.b32 %r2, words; mov.b32 %r3, full; setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r3], 1; bar.sync 0;
mov.b32 %r4, {c}; mov.b32 %r5, {w}; mov.b32 %r6, {h}; mov.b32 %r7, {n};
mov.b16 %rs1, {offset_w}; mov.b16 %rs2, {offset_h};
@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r3], {nbytes};
@%p1 cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes
     [%r2], [map, {{%r4, %r5, %r6, %r7}}], [%r3], {{%rs1, %rs2}};
W: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra W;
mad.lo.u32 %r8, %r0, 16, %r2; add.u32 %r8, %r8, {nbytes}; sub.u32 %r8, %r8, 512; mad.wide.u32 %rd6, %r0, 16, %rd0;
ld.shared.v4.b32 {{%r4, %r5, %r7, %r8}}, [%r8]; st.global.v4.b32 [%rd6], {{%r4, %r5, %r7, %r8}}; ret;
"""


def images(n: int, h: int, w: int, c: int) -> np.ndarray:
    return np.arange(1, n * h * w * c + 1, dtype=np.float32).reshape(n, h, w, c)


def im2col_map(device: Device, x: np.ndarray, **fields) -> Im2colMap:
    n, h, w, c = x.shape
    strides = (4 * c, 4 * c * w, 4 * c * w * h)
    given = {"lower": (-1, -1), "upper": (-1, -1), "pixels": PIXELS, **fields}
    return Im2colMap(device.upload(x), "f32", (c, w, h, n), strides, (CHANNELS, 1, 1, 1), **given)


def column(device: Device, tensor_map: TensorMap, pixels: int = PIXELS, **start) -> np.ndarray:
    """The last PIXELS pixels of what an instruction fetches."""
    nbytes = 4 * CHANNELS * pixels
    given = {"c": 0, "w": -1, "h": -1, "n": 0, "offset_w": 0, "offset_h": 0, "nbytes": nbytes, **start}
    room = ROOM.replace("512", str(nbytes))
    run = launch(PROGRAM.format(**given), words=128, module_scope=room, parameters=["map map"], arguments=[tensor_map],
                 device=device)  # fmt: skip
    return run.words(128).view(np.float32).reshape(PIXELS, CHANNELS)


@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_columns_make_a_convolution(schedule):
    """3 x 3 filters with padding 1: for each place of the filter the column moves by an offset; the sums are right."""
    n, h, w = 2, 3, 5
    rng = np.random.default_rng(1)
    x = rng.integers(-3, 4, (n, h, w, CHANNELS)).astype(np.float32)
    filters = rng.integers(-3, 4, (3, 3, CHANNELS)).astype(np.float32)
    device = Device(schedule=schedule, seed=1)
    tensor_map = im2col_map(device, x)
    found = np.zeros(PIXELS, np.float32)
    for dy in range(3):
        for dx in range(3):
            found += column(device, tensor_map, offset_w=dx, offset_h=dy) @ filters[dy, dx]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    wanted = [
        sum((padded[i, r + dy, s + dx] @ filters[dy, dx]) for dy in range(3) for dx in range(3))
        for i in range(n) for r in range(h) for s in range(w)
    ]  # fmt: skip
    # The column goes on from image to image.
    assert found.tolist() == wanted[:PIXELS]


def test_a_column_starts_anywhere_and_steps():
    device = Device()
    x = images(1, 6, 8, 16)
    tensor_map = im2col_map(device, x, lower=(0, 0), upper=(0, 0), element_strides=(1, 2, 3, 1), swizzle="none")
    found = column(device, tensor_map, c=8, w=2, h=0)
    pixels = [(0, 2), (0, 4), (0, 6), *((3, w) for w in (0, 2, 4, 6))]
    wanted = np.zeros((PIXELS, CHANNELS), np.float32)
    for row, (h, w) in enumerate(pixels):
        wanted[row] = x[0, h, w, 8:]
    # Behind the last image there is nothing.
    assert found.tolist() == wanted.tolist()


def test_a_column_has_up_to_1024_pixels():
    device = Device()
    x = images(1, 40, 30, CHANNELS)
    found = column(device, im2col_map(device, x, lower=(0, 0), upper=(0, 0), pixels=1024), 1024, w=3, h=5)
    last = 5 * 30 + 3 + 1024
    assert found.tolist() == x.reshape(-1, CHANNELS)[last - PIXELS : last].tolist()
    with pytest.raises(ValueError, match="pixels = 1025"):
        im2col_map(device, x, pixels=1025)


@pytest.mark.parametrize("lanes", [32, 7])
def test_pixels_are_stored(lanes):
    """Only some lanes write their part of the pixels: the rest of what is stored is undefined."""
    memory = GlobalMemory()
    device = Device(memory=memory, uninitialised="poison")
    tensor_map = im2col_map(device, np.zeros((1, 4, 5, CHANNELS), np.float32), lower=(0, 0), upper=(0, 0))
    body = (
        f"setp.lt.u32 %p2, %r0, {lanes};"
        """
    mov.b32 %r2, words; mad.lo.u32 %r8, %r0, 16, %r2; mad.lo.u32 %r9, %r0, 4, 1; cvt.rn.f32.u32 %r9, %r9;
    @%p2 st.shared.v4.b32 [%r8], {%r9, %r9, %r9, %r9}; fence.proxy.async; bar.sync 0;
    setp.eq.u32 %p1, %r0, 0; mov.b32 %r4, 0; mov.b32 %r5, 3; mov.b32 %r6, 1;
    @%p1 cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [map, {%r4, %r5, %r6, %r4}], [%r2];
    @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; ret;
    """
    )
    launch(body, module_scope=ROOM, parameters=["map map"], arguments=[tensor_map], device=device)
    block, _ = memory.find(tensor_map.address, 640)
    found = block.data.view(np.float32).reshape(20, 2, 4)
    assert not found[:8].any()
    defined = min(lanes, 24)
    assert found[8:, :, 0].ravel()[:defined].tolist() == [4.0 * t + 1 for t in range(defined)]
    valid = np.ones(640, np.bool_) if block.valid is None else block.valid
    assert (valid == (np.arange(640) < 8 * 32 + 16 * defined)).all()


def test_the_mode_of_a_map_must_be_that_of_the_instruction():
    device = Device()
    tiled = TensorMap(device.upload(images(1, 4, 4, 8)), "f32", (8, 4, 4, 1), (32, 128, 512), (8, 1, 1, 1))
    with pytest.raises(Fault, match="uses a tiled tensor map where one in im2col mode is needed"):
        column(device, tiled)
    with pytest.raises(ValueError, match=r"rank 3\.\.5"):
        Im2colMap(256, "f32", (8, 4), (32,), (8, 1), pixels=4)
