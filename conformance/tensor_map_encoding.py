"""What a GPU's driver makes of tensor maps: the arguments of many, the code it returns, the 128 bytes it writes.

    python -m conformance.tensor_map_encoding FILE.json

No memory is touched: the driver only looks at the numbers. Some maps
break a rule, so that its error code is seen; some are changed by ``tensormap.replace``, so that it is seen which bits
are the field's.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from emugpu.cuda.driver import Driver
from emugpu.errors import CannotRun

ADDRESS = 0x7F12_3456_7800
NBYTES = 128
UNTOUCHED = 0xEE
TYPE_BYTES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 4, 11: 4, 12: 4}
"""Bytes of the types of cuda.h that have whole bytes: u8, u16, u32, s32, u64, s64, f16, f32, f64, bf16, f32 and tf32
with and without flushing.
"""
F16, F32 = 6, 7
U4_ALIGN8, U4_ALIGN16, U6_ALIGN16 = 13, 14, 15
FLOATS = (6, 7, 8, 9, 10, 11, 12)
SWIZZLE_SPANS = {0: 256, 1: 32, 2: 64, 3: 128}
CORNER_LIMITS = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}

Map = dict[str, Any]
"""Arguments by name, as numbers: those of the driver's function, and `call` and `name`."""

TILED: Map = {
    "call": "cuTensorMapEncodeTiled",
    "type": F16,
    "address": ADDRESS,
    "dims": [256, 64],
    "strides": [512],
    "box": [32, 16],
    "element_strides": [1, 1],
    "interleave": 0,
    "swizzle": 0,
    "l2_promotion": 0,
    "fill": 0,
}
IM2COL: Map = {
    "call": "cuTensorMapEncodeIm2col",
    "type": F16,
    "address": ADDRESS,
    "dims": [64, 20, 18, 4],
    "strides": [128, 2560, 46080],
    "lower": [-1, -2],
    "upper": [1, 2],
    "channels": 32,
    "pixels": 64,
    "element_strides": [1, 1, 1, 1],
    "interleave": 0,
    "swizzle": 0,
    "l2_promotion": 0,
    "fill": 0,
}
WIDE: Map = {
    **{name: value for name, value in IM2COL.items() if name not in ("lower", "upper")},
    "call": "cuTensorMapEncodeIm2colWide",
    "lower_width": -1,
    "upper_width": 1,
    "mode": 0,
    "swizzle": 3,
}


def tiled(name: str, **changes: Any) -> Map:
    return {"name": name, **TILED, **changes}


def im2col(name: str, **changes: Any) -> Map:
    return {"name": name, **IM2COL, **changes}


def wide(name: str, **changes: Any) -> Map:
    return {"name": name, **WIDE, **changes}


def packed(rank: int, size: int = 2, extents: tuple[int, ...] = (64, 24, 12, 6, 5)) -> Map:
    """Returns dimensions and strides of a tensor without gaps, and a small box in it."""
    dims = list(extents[:rank])
    strides, pitch = [], size
    for extent in dims[:-1]:
        pitch *= extent
        strides.append(pitch)
    return {"dims": dims, "strides": strides, "box": [16, 8, 4, 2, 3][:rank], "element_strides": [1] * rank}


# ---- one thing at a time ----


def _types() -> Iterator[Map]:
    for number, size in TYPE_BYTES.items():
        yield tiled(f"type {number}", type=number, strides=[256 * size])
        yield tiled(f"type {number} filled with NaN", type=number, strides=[256 * size], fill=1)
    packed_box = {"dims": [256, 64], "strides": [128], "box": [128, 16]}
    for number in (U4_ALIGN8, U4_ALIGN16, U6_ALIGN16):
        yield tiled(f"type {number}", type=number, **{**packed_box, "strides": [192 if number == U6_ALIGN16 else 128]})
        yield tiled(f"type {number} swizzled", type=number, **{**packed_box, "strides": [192]}, swizzle=3)
    yield tiled("type 13, a short box", type=U4_ALIGN8, dims=[96, 8], strides=[48], box=[32, 8])
    yield tiled("type 16", type=16)
    yield tiled("type 13 filled with NaN", type=U4_ALIGN8, **packed_box, fill=1)


def _modes() -> Iterator[Map]:
    for number in range(9):
        yield tiled(f"swizzle {number}", swizzle=number, box=[16, 16])
    for number in range(6):
        yield tiled(f"L2 promotion {number}", l2_promotion=number)
    yield tiled("fill 2", fill=2)
    for rank in range(1, 6):
        yield tiled(f"rank {rank}", **packed(rank))
    yield tiled("rank 0", dims=[], strides=[], box=[], element_strides=[])
    yield tiled("rank 6", dims=[64] * 6, strides=[128] * 5, box=[16] + [1] * 5, element_strides=[1] * 6)
    for interleave in range(4):
        for rank in (2, 3, 4, 5):
            for swizzle in (0, 1, 3):
                name = f"interleave {interleave}, rank {rank}, swizzle {swizzle}"
                yield tiled(name, **packed(rank), interleave=interleave, swizzle=swizzle)
    yield tiled("interleave 1, element stride 0 is 2", **{**packed(3), "element_strides": [2, 1, 1]}, interleave=1)
    yield tiled("interleave 2 at 16 bytes", **packed(3), interleave=2, swizzle=1, address=ADDRESS + 16)


def _extents() -> Iterator[Map]:
    for address in (0, 16, 8, 1 << 40, (1 << 47) - 16, 1 << 47, 1 << 48, 1 << 56, 1 << 60, (1 << 64) - 16):
        yield tiled(f"address {address:#x}", address=address)
    for extent in (0, 1, 2, 255, 4096, 1 << 16, (1 << 16) + 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1):
        yield tiled(f"dimension 0 of {extent}", type=0, dims=[extent, 2], strides=[1 << 33], box=[16, 2])
        yield tiled(f"dimension 1 of {extent}", type=0, dims=[64, extent], strides=[64], box=[16, 2])
    for extent in (0, 8, 16, 24, 64, 128, 256, 264):
        yield tiled(f"box 0 of {extent}", type=0, box=[extent, 16])
        yield tiled(f"box 1 of {extent}", box=[8, extent])
    for axis in range(5):
        box = [16, 1, 1, 1, 1]
        box[axis] = 48 + 16 * axis
        yield tiled(f"box {axis} of rank 5", **{**packed(5, 2, (64, 256, 256, 256, 256)), "box": box})
    yield tiled("box of 256 x 256 bytes", type=0, box=[256, 256])
    yield tiled("box of 256 x 256 x 4 bytes", type=0, **{**packed(3, 1, (256, 256, 4)), "box": [256, 256, 4]})
    yield tiled("box of 256 x 227 x 4 bytes", type=0, **{**packed(3, 1, (256, 256, 4)), "box": [256, 227, 4]})
    yield tiled("box wider than swizzle 128B", swizzle=3, box=[128, 16])
    yield tiled("box wider than swizzle 32B", swizzle=1, box=[32, 16])
    yield tiled("box beyond the tensor", dims=[16, 3], strides=[32], box=[64, 8])


def _strides() -> Iterator[Map]:
    for exponent in (0, 3, 4, 5, 9, 20, 31, 32, 34, 35, 36, 37, 38, 39, 40):
        stride = 1 << exponent
        yield tiled(f"stride of 2^{exponent}", type=0, dims=[16, 2], strides=[stride], box=[16, 2])
        if exponent > 4:
            yield tiled(f"stride of 2^{exponent} - 16", type=0, dims=[16, 2], strides=[stride - 16], box=[16, 2])
    yield tiled("stride of 0", strides=[0])
    yield tiled("stride shorter than a row", strides=[256])
    yield tiled("falling strides", **{**packed(4), "strides": [4096, 1024, 128]})
    for axis in range(4):
        strides = [128, 256, 512, 1024]
        strides[axis] = (5 << 36) + 48
        yield tiled(f"large stride {axis}", **{**packed(5, 2, (16, 2, 2, 2, 2)), "strides": strides})
    for axis in range(5):
        for step in (0, 2, 3, 7, 8, 9):
            steps = [1, 1, 1, 1, 1]
            steps[axis] = step
            yield tiled(f"element stride {axis} of {step}", **{**packed(5), "element_strides": steps})


def _sizes() -> Iterator[Map]:
    """Yields sizes around powers of two, with and without gaps, because the driver stores the size of the tensor in the
    map.
    """
    for exponent in range(12, 24):
        for more in (-1, 0, 1):
            rows = (1 << exponent) // 512 + more
            yield tiled(f"{rows} rows of 512 bytes", dims=[256, rows])
    for elements in (65535, 65536, 65537, 131056, 131071, 131072, 131073, 1 << 20):
        yield tiled(f"{elements} bytes in one row", type=0, **{**packed(1, 1, (elements,)), "box": [16]})
        yield tiled(f"{elements} halves in one row", **{**packed(1, 2, (elements,)), "box": [16]})
    for rows in (2, 127, 128, 129, 255, 256, 257, 1024):
        yield tiled(f"{rows} rows 1024 bytes apart, 32 used", dims=[16, rows], strides=[1024], box=[16, 2])
        yield tiled(f"{rows} rows 1024 bytes apart, 512 used", dims=[256, rows], strides=[1024])
    for count in (1, 7, 8, 9, 16):
        yield tiled(f"{count} planes of 16 KiB", **packed(3, 2, (128, 64, count)))
        yield tiled(f"{count} planes in all of rank 5", **packed(5, 2, (128, 16, 2, 2, count)))
    for number in (0, 1, 4, 10, 11, 12):
        size = TYPE_BYTES[number]
        for nbytes in (131072 - 512, 131072, 131072 + 512):
            yield tiled(f"{nbytes} bytes of type {number}", type=number, dims=[512 // size, nbytes // 512], box=[16, 4])


def _im2col() -> Iterator[Map]:
    for rank in (2, 3, 4, 5, 6):
        corners = {"lower": [-1] * (rank - 2), "upper": [2] * (rank - 2)}
        shape = packed(min(rank, 5), 2, (64, 20, 18, 6, 3))
        if rank == 6:
            shape = {"dims": [64] * 6, "strides": [128] * 5, "element_strides": [1] * 6}
        yield im2col(f"im2col rank {rank}", **_without_box(shape), **corners)
    for rank, limit in CORNER_LIMITS.items():
        shape = _without_box(packed(rank, 2, (64, 60000 if rank == 3 else 300, 300, 40, 3)))
        for axis in range(rank - 2):
            for corner in (-limit - 1, -limit, -2, 0, 1, limit - 1, limit):
                at = [0] * (rank - 2)
                at[axis] = corner
                zeros = [0] * (rank - 2)
                yield im2col(f"im2col rank {rank}, lower corner {axis} of {corner}", **shape, lower=at, upper=zeros)
                yield im2col(f"im2col rank {rank}, upper corner {axis} of {corner}", **shape, lower=zeros, upper=at)
    for pixels in (0, 1, 2, 255, 256, 257, 512, 1023, 1024, 1025):
        yield im2col(f"im2col of {pixels} pixels", pixels=pixels)
    for channels in (0, 4, 8, 16, 64, 128, 256, 264):
        yield im2col(f"im2col of {channels} channels", channels=channels)
    for number in (0, 1, 7, 9, 11, 12, 13, 14, 15):
        yield im2col(f"im2col of type {number}", type=number, channels=128, pixels=8)
    for swizzle in range(8):
        yield im2col(f"im2col with swizzle {swizzle}", swizzle=swizzle, channels=16)
    for interleave in range(3):
        yield im2col(f"im2col with interleave {interleave}", interleave=interleave, swizzle=1, channels=16)
        yield im2col(f"im2col with interleave {interleave}, no swizzle", interleave=interleave, channels=16)
    for promotion in range(4):
        yield im2col(f"im2col with L2 promotion {promotion}", l2_promotion=promotion)
    yield im2col("im2col filled with NaN", fill=1)
    for axis in range(4):
        for step in (0, 2, 8, 9):
            steps = [1, 1, 1, 1]
            steps[axis] = step
            yield im2col(f"im2col, element stride {axis} of {step}", element_strides=steps)
    yield im2col("im2col with an empty bounding box", lower=[0, 0], upper=[-20, 0])
    yield im2col("im2col of a large tensor", dims=[64, 512, 512, 16], strides=[128, 65536, 1 << 25])
    for mode in (0, 1, 2):
        yield wide(f"im2col wide, mode {mode}", mode=mode)
    for swizzle in range(7):
        yield wide(f"im2col wide with swizzle {swizzle}", swizzle=swizzle, channels=16)
    yield wide("im2col wide with corners", lower_width=-300, upper_width=299, pixels=77)


def _without_box(shape: Map) -> Map:
    return {name: value for name, value in shape.items() if name != "box"}


# ---- everything at once ----


def _any_tiled(number: int) -> Map:
    """Returns a valid map in which everything is random."""
    draw = random.Random(f"tiled {number}")
    rank = draw.randint(1, 5)
    element = draw.choice(list(TYPE_BYTES))
    size = TYPE_BYTES[element]
    swizzle = draw.choice([0, 1, 2, 3])
    dims = [draw.randint(1, 1 << draw.choice([3, 6, 10, 16])) for _ in range(rank)]
    strides, pitch = [], -(-dims[0] * size // 16) * 16
    for extent in dims[1:]:
        strides.append(min(pitch + 16 * draw.choice([0, 0, 1, 77]), (1 << 40) - 16))
        pitch = strides[-1] * extent
    chunks = draw.randint(1, min(SWIZZLE_SPANS[swizzle], 256 * size) // 16)
    box = [chunks * 16 // size]
    room = 200_000 // (chunks * 16)
    for _ in range(rank - 1):
        box.append(draw.randint(1, max(1, min(256, room))))
        room //= box[-1]
    return tiled(
        f"any tiled map {number}",
        type=element,
        address=draw.randrange(1 << 20, 1 << 47) // 256 * 256 + 16 * draw.randrange(16),
        dims=dims,
        strides=strides,
        box=box,
        element_strides=[draw.choice([1, 1, 1, 2, 5, 8]) for _ in range(rank)],
        swizzle=swizzle,
        l2_promotion=draw.randrange(4),
        fill=draw.randrange(2) if element in FLOATS else 0,
    )


def _any_im2col(number: int) -> Map:
    draw = random.Random(f"im2col {number}")
    rank = draw.randint(3, 5)
    element = draw.choice(list(TYPE_BYTES))
    size = TYPE_BYTES[element]
    limit = min(CORNER_LIMITS[rank], 100)
    dims = [draw.randint(1, 400)] + [draw.randint(2 * limit, 2 * limit + 300) for _ in range(rank - 2)]
    dims.append(draw.randint(1, 9))
    strides, pitch = [], -(-dims[0] * size // 16) * 16
    for extent in dims[1:]:
        strides.append(pitch + 16 * draw.choice([0, 0, 3]))
        pitch = strides[-1] * extent
    chunks = draw.randint(1, min(128, 256 * size) // 16)
    return im2col(
        f"any im2col map {number}",
        type=element,
        address=draw.randrange(1 << 20, 1 << 47) // 256 * 256,
        dims=dims,
        strides=strides,
        lower=[draw.randrange(-limit, limit) for _ in range(rank - 2)],
        upper=[draw.randrange(-limit, limit) for _ in range(rank - 2)],
        channels=chunks * 16 // size,
        pixels=draw.choice([1, 8, 100, 256, 300, 1024]),
        element_strides=[draw.choice([1, 1, 2, 7]) for _ in range(rank)],
        swizzle=draw.choice([0, 3]),
        l2_promotion=draw.randrange(4),
        fill=draw.randrange(2) if element in FLOATS else 0,
    )


def maps() -> list[Map]:
    """Returns all maps, in order, with unique names."""
    found = [*_types(), *_modes(), *_extents(), *_strides(), *_sizes(), *_im2col()]
    found += [_any_tiled(number) for number in range(150)]
    found += [_any_im2col(number) for number in range(50)]
    return found


# ---- asking the driver ----


def _array(kind: Any, values: list[int]) -> Any:
    return (kind * max(len(values), 1))(*values)


def encoded(api: Driver, arguments: Map) -> tuple[int, str]:
    """Returns the driver's code for a map, and the 128 bytes in hexadecimal digits (which may be unchanged)."""
    room = (ctypes.c_uint8 * (NBYTES + 64))(*([UNTOUCHED] * (NBYTES + 64)))
    skip = -ctypes.addressof(room) % 64
    numbers = [
        ctypes.c_int(arguments["type"]),
        ctypes.c_uint32(len(arguments["dims"])),
        ctypes.c_void_p(arguments["address"]),
        _array(ctypes.c_uint64, arguments["dims"]),
        _array(ctypes.c_uint64, arguments["strides"]),
    ]
    if "box" in arguments:
        numbers += [_array(ctypes.c_uint32, arguments["box"])]
    elif "mode" in arguments:
        numbers += [ctypes.c_int(arguments["lower_width"]), ctypes.c_int(arguments["upper_width"])]
    else:
        numbers += [_array(ctypes.c_int, arguments["lower"]), _array(ctypes.c_int, arguments["upper"])]
    if "channels" in arguments:
        numbers += [ctypes.c_uint32(arguments["channels"]), ctypes.c_uint32(arguments["pixels"])]
    numbers += [_array(ctypes.c_uint32, arguments["element_strides"]), ctypes.c_int(arguments["interleave"])]
    if "mode" in arguments:
        numbers += [ctypes.c_int(arguments["mode"])]
    numbers += [ctypes.c_int(arguments[name]) for name in ("swizzle", "l2_promotion", "fill")]
    code = api.result(arguments["call"], ctypes.c_void_p(ctypes.addressof(room) + skip), *numbers)
    return code, bytes(room[skip : skip + NBYTES]).hex()


def readdressed(api: Driver, data: str, address: int) -> tuple[int, str]:
    """Returns the same for cuTensorMapReplaceAddress."""
    room = (ctypes.c_uint8 * (NBYTES + 64))()
    skip = -ctypes.addressof(room) % 64
    room[skip : skip + NBYTES] = list(bytes.fromhex(data))
    code = api.result(
        "cuTensorMapReplaceAddress", ctypes.c_void_p(ctypes.addressof(room) + skip), ctypes.c_void_p(address)
    )
    return code, bytes(room[skip : skip + NBYTES]).hex()


# ---- tensormap.replace ----

REPLACED = tiled("all of rank 5", **packed(5), l2_promotion=2)
"""The map whose fields are replaced."""
REPLACE = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry change(.param .u64 map)
{{
.reg .b64 %rd<4>;
.reg .b32 %r<4>;
ld.param.u64 %rd0, [map];
cvta.to.global.u64 %rd0, %rd0;
mov.b64 %rd1, {value};
cvt.u32.u64 %r1, %rd1;
tensormap.replace.tile.{field}.global.b1024.{width} [%rd0], {operands};
ret;
}}
"""
REPLACEMENTS = [
    ("global_address", None, 0x7F65_4321_0FF0),
    *(("rank", None, value) for value in range(5)),
    *(("global_dim", axis, value) for axis in range(5) for value in (1, 0x89ABCDEF)),
    *(("global_stride", axis, value) for axis in range(4) for value in (16, 0x12_3456_7890, 0xFF_FFFF_FFF0)),
    *(("box_dim", axis, value) for axis in range(5) for value in (1, 99, 256)),
    *(("element_stride", axis, value) for axis in range(5) for value in (1, 3, 8)),
    *(("elemtype", None, value) for value in range(13)),
    *(("interleave_layout", None, value) for value in range(3)),
    *(("swizzle_mode", None, value) for value in range(4)),
    *(("fill_mode", None, value) for value in range(2)),
]
"""Field, ordinal and value."""
IN_REGISTERS = ("global_address", "rank", "global_dim", "global_stride", "box_dim", "element_stride")


def change(field: str, ordinal: int | None, value: int) -> str:
    """Returns a kernel that replaces one field of the map at the given address."""
    width = "b64" if field in ("global_address", "global_stride") else "b32"
    operand = str(value) if field not in IN_REGISTERS else "%rd1" if width == "b64" else "%r1"
    operands = operand if ordinal is None else f"{ordinal}, {operand}"
    return REPLACE.format(field=field, width=width, value=value, operands=operands)


def replaced(driver: Driver, data: str, ptx: str) -> str:
    """Returns the 128 bytes in global memory after the kernel."""
    function = driver.load(ptx.encode(), "change")
    address = driver.allocate(NBYTES)
    driver.upload(address, np.frombuffer(bytes.fromhex(data), np.uint8))
    driver.launcher(function, [ctypes.c_uint64(address)], (1, 1, 1), (1, 1, 1))()
    driver.synchronize()
    return driver.download(address, np.empty(NBYTES, np.uint8)).tobytes().hex()


def record(path: Path) -> None:
    """Records everything. Writes the earlier results before anything runs on the GPU."""
    api = Driver()
    machine = api.describe()
    found: dict[str, Any] = {"machine": {"gpu": machine["name"], "cuda": machine["cuda"]}, "maps": []}
    for arguments in maps():
        code, data = encoded(api, arguments)
        found["maps"].append({"arguments": arguments, "result": code, "bytes": data})
    code, data = encoded(api, REPLACED)
    found["replaced_map"] = {"arguments": REPLACED, "result": code, "bytes": data}
    found["addresses"] = [[address, *readdressed(api, data, address)] for address in (0, 8, 16, ADDRESS, 1 << 56)]
    _write(path, found)
    found["replacements"] = []
    for field, ordinal, value in REPLACEMENTS:
        try:
            after = replaced(api, data, change(field, ordinal, value))
        except CannotRun as error:
            after = str(error)
        found["replacements"].append({"field": field, "ordinal": ordinal, "value": value, "bytes": after})
    _write(path, found)


def _write(path: Path, found: dict[str, Any]) -> None:
    """Writes JSON with one map per line."""
    blocks = []
    for name, content in found.items():
        lines = ",\n  ".join(json.dumps(item) for item in content)
        blocks.append(
            f'"{name}": [\n  {lines}\n ]' if isinstance(content, list) else f'"{name}": {json.dumps(content)}'
        )
    path.write_text("{\n " + ",\n ".join(blocks) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
