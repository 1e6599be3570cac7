"""Reads launch files. In TOML, they say how to launch the kernels of a PTX file, and what these should compute.

    ptx = "gemm.ptx"                                # beside this file
    [buffers]
    A = { dtype = "bf16", shape = [256, 128], init = "integer" }
    C = { dtype = "f32", shape = [256, 256], init = "nan" }
    [maps]
    a = { buffer = "A", tile = [128, 64], swizzle = "128B" }
    [launch]                                        # or several [[launch]], in order
    kernel = "gemm"
    grid = [2, 2]
    arguments = ["a", "C", 128, { fields = ["A", { s32 = 4 }] }, "null"]
    [expect]
    C = "A @ A.T"

This module turns the text into the data of `emugpu.launch.spec`. It does not read the PTX.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emugpu.emulator import Swizzle
from emugpu.emulator.memory.tensor_map import ELEMENT_TYPES
from emugpu.errors import UsageProblem
from emugpu.files import read_text_file
from emugpu.launch.argument_reader import ArgumentReader
from emugpu.launch.expectation import MOST_TOLERANCE, Holds
from emugpu.launch.expression import Expression, ExpressionError, parse_expression
from emugpu.launch.launching import LARGEST_SEED
from emugpu.launch.memory import CHUNK
from emugpu.launch.spec import (
    DATA_TYPES,
    INITS,
    NULL,
    Buffer,
    DataType,
    Fill,
    Launch,
    Launchable,
    Map,
    find_type,
    fits,
)
from emugpu.launch.toml_table import LARGEST_SIZE, TomlTable, is_whole

LARGEST_SHARED = 232_448
MOST_BYTES = 192 << 30
"""More than the memory of any emulated GPU."""
LARGEST_ADDRESS = 1 << 56
TOO_DEEP = "its tables or arrays are nested too deeply; a launch file needs a few levels"


def read_launch_file(path: Path) -> Launchable:
    """Reads a launch file. Raises UsageProblem that names the file, the key, its value, the rule and the fix."""
    try:
        return read_launch(path, launch_file_data(path))
    except RecursionError:
        raise UsageProblem(f"{path}: {TOO_DEEP}") from None


def launch_file_data(path: Path) -> dict[str, Any]:
    """Returns the data of a launch file. Raises UsageProblem if the file cannot be read or is not TOML."""
    try:
        return tomllib.loads(read_text_file(path))
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        can_make = missing and path.suffix == ".toml"
        way_out = f"make one with: emugpu ptx init FILE.ptx -o {path}" if can_make else "name a .toml file"
        raise UsageProblem(f"cannot read {path}: {error.strerror}; {way_out}") from error
    except RecursionError:
        raise UsageProblem(f"{path}: {TOO_DEEP}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        way_out = f"; make a launch file of it: emugpu ptx init {path} -o {path.stem}.toml"
        raise UsageProblem(f"{path} is not TOML: {error}{way_out * (path.suffix == '.ptx')}") from None


def read_launch(path: Path, data: Mapping[str, Any]) -> Launchable:
    """Reads the data of a launch file. Raises UsageProblem as `read_launch_file` does."""
    top = TomlTable(path, "", data)
    top.only("ptx", "buffers", "maps", "symbols", "launch", "expect")
    ptx = path.parent / top.text("ptx", 'the PTX file, relative to this file, for example ptx = "kernel.ptx"')
    buffers = {name: _buffer(name, table) for name, table in top.tables("buffers", "a table per buffer")}
    for name, table in top.tables("symbols", "a table per variable of the module"):
        if name in buffers:
            raise UsageProblem(f"{path}: symbols.{name}: there is a buffer of that name; rename the buffer")
        buffers[name] = _buffer(name, table, symbol=True)
    maps = {name: _map(name, table, buffers) for name, table in top.tables("maps", "a table per tensor map")}
    for name in (*buffers, *maps):
        if name == NULL or (name in maps and name in buffers):
            raise UsageProblem(f"{path}: the name {name} is taken; give the buffer or map another one")
    launches = _launches(top, buffers, maps)
    expectations = _expectations(top, buffers)
    kernels = ", ".join(dict.fromkeys(launch.kernel or ptx.name for launch in launches))
    about = {"kernel": kernels, "config": {"launch_file": str(path), "ptx": str(ptx)}}
    return Launchable(ptx, buffers, maps, launches, expectations, path, label=f"{path}: {kernels}", about=about)


# ---- buffers ----


def _dtype(table: TomlTable, key: str, rule: str) -> DataType:
    name = table.text(key, rule)
    found = find_type(name)
    if found is None:
        table.fail(key, name, f"must be one of {', '.join(DATA_TYPES)}")
    return found


def _buffer(name: str, table: TomlTable, symbol: bool = False) -> Buffer:
    table.only("dtype", "shape", "init", "seed", *(() if symbol else ("address", "parts")))
    if "seed" in table and "init" not in table:
        table.lacks("init", "seed is for values that are drawn; name what to draw, or leave seed out")
    dtype = _dtype(table, "dtype", f"the type of the elements: {', '.join(DATA_TYPES)}")
    shape = table.sizes("shape", "the shape, outermost dimension first, for example shape = [64, 32]", most_entries=8)
    fill = _fill(table, dtype, shape) if not symbol or "init" in table else None
    if shape is None and not symbol and (fill is None or fill.kind != "file"):
        table.lacks("shape", "write for example shape = [64, 32], or init = a .npy file that has one")
    if shape and shape[-1] % dtype.group:
        table.fail(
            "shape", list(shape), f"{dtype.group} elements of {dtype.name} are whole bytes; make the last a multiple"
        )
    if shape and math.prod(shape) * dtype.bits // 8 > MOST_BYTES:
        table.fail(
            "shape", list(shape), f"is more than the {MOST_BYTES >> 30} GiB that a buffer may have; make it smaller"
        )
    address = table.whole("address", 16, LARGEST_ADDRESS, "the device address", default=0) or None
    parts = _parts(table, fill)
    return Buffer(name, dtype, shape, fill, symbol, address, parts)


def _parts(table: TomlTable, fill: Fill | None) -> tuple[tuple[int, Path], ...]:
    """Returns the written parts of recorded memory."""
    given = table.take("parts", [])
    rule = 'must be [[offset in bytes, "FILE.npy"], ...], of a buffer with init = "uninitialised"'
    well_formed = isinstance(given, list) and all(
        isinstance(part, list)
        and len(part) == 2
        and is_whole(part[0])
        and isinstance(part[1], str)
        and "\0" not in part[1]
        for part in given
    )
    if not well_formed or (given and (fill is None or fill.kind != "uninitialised")):
        table.fail("parts", given, rule)
    return tuple((offset, table.path.parent / name) for offset, name in given)


def _fill(table: TomlTable, dtype: DataType, shape: tuple[int, ...] | None) -> Fill:
    rule = f"must be one of {', '.join(INITS)}, a number, or the name of a .npy file"
    if "init" not in table:
        table.lacks("init", rule)
    value = table.take("init")
    seed = table.whole("seed", 0, LARGEST_SEED, "for values that are drawn", default=0)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not fits(value, dtype):
            table.fail("init", value, f"must be a value of {dtype.name}; write one, or another dtype")
        return Fill("number", value)
    if isinstance(value, str) and value.endswith(".npy") and "\0" not in value:
        return Fill("file", file=table.path.parent / value)
    if value not in INITS:
        table.fail("init", value, rule)
    if value == "zeros" and not fits(0, dtype):
        table.fail("init", value, f"{dtype.name} has no zero, its least value is 2^-127; write a power of two")
    if value == "nan" and (not dtype.is_float or dtype.packed):
        table.fail("init", value, f'{dtype.name} has no NaN; use "uninitialised", which stops a kernel that reads it')
    if value == "index" and dtype.is_float and (dtype.packed or dtype.name == "ue8m0" or not _is_matrix(shape)):
        table.fail("init", value, f"needs a matrix with a multiple of {CHUNK} columns, of 8 bits and more; use integer")
    return Fill(value, seed=seed)


def _is_matrix(shape: tuple[int, ...] | None) -> bool:
    return shape is not None and len(shape) == 2 and shape[1] % CHUNK == 0


# ---- tensor maps ----


def _map(name: str, table: TomlTable, buffers: Mapping[str, Buffer]) -> Map:
    table.only("buffer", "tile", "box", "dims", "strides", "element_strides", "element", "swizzle", "fill", "offset")
    buffer = table.text("buffer", "the buffer that the tensor map is over")
    if buffer not in buffers:
        table.fail("buffer", buffer, f"there is no such buffer; the buffers are {', '.join(buffers) or 'none'}")
    tile = table.sizes("tile", "rows and columns of the box, for example tile = [128, 64]")
    box = table.sizes("box", "the box, innermost dimension first, for example box = [64, 128]")
    if (tile is None) == (box is None):
        given = "both are given" if tile else "neither is given"
        table.fail("tile", list(tile or ()), f"{given}; write tile = [rows, columns], or box = [innermost, ...]")
    swizzle = table.text("swizzle", "none, 32B, 64B or 128B", default="none")
    try:
        mode = Swizzle.from_name(swizzle)
    except ValueError:
        table.fail("swizzle", swizzle, "must be one of none, 32B, 64B, 128B")
    return Map(
        name,
        buffer,
        tile,
        box,
        table.sizes("dims", "the tensor's extents, innermost first"),
        table.sizes("strides", "bytes between neighbours along dimensions 1 and up", least=0),
        table.sizes("element_strides", "steps along each dimension, innermost first") or (),
        _element(table, buffers[buffer].dtype),
        mode,
        table.choice("fill", ("zeros", "nan"), "zeros") == "nan",
        table.whole("offset", 0, LARGEST_SIZE, "bytes from the buffer's start", default=0),
    )


def _element(table: TomlTable, dtype: DataType) -> str:
    """Returns the tensor map's element type: the given one, else the buffer's, else one with as many bits."""
    name = table.optional_text("element", f"one of {', '.join(ELEMENT_TYPES)}")
    if name is None:
        own = {"e2m1": "b4x16", "e2m3": "b6x16_p32", "e3m2": "b6x16_p32"}.get(dtype.name, dtype.name)
        return own if own in ELEMENT_TYPES else f"u{dtype.bits}"
    if name not in ELEMENT_TYPES:
        table.fail("element", name, f"must be one of {', '.join(ELEMENT_TYPES)}")
    return name


# ---- launches ----


def _launches(top: TomlTable, buffers: Mapping[str, Buffer], maps: Mapping[str, Map]) -> tuple[Launch, ...]:
    value = top.take("launch")
    if value is None:
        top.lacks("launch", "write a [launch] table, or several [[launch]]")
    several = isinstance(value, list)
    tables = [
        top.table(f"launch[{n}]" if several else "launch", item, "a launch")
        for n, item in enumerate(value if several else [value])
    ]
    if not tables:
        top.fail("launch", value, "must be at least one table")
    launches = tuple(_launch(table, buffers, maps) for table in tables)
    if launches[0].overlap:
        tables[0].fail("overlap", True, "leave it out of the first launch, which has none in front of it")
    return launches


def _launch(table: TomlTable, buffers: Mapping[str, Buffer], maps: Mapping[str, Map]) -> Launch:
    table.only("kernel", "grid", "cluster", "block", "dynamic_shared", "cooperative", "overlap", "arguments")
    kernel = table.optional_text("kernel", "the kernel's name, or a part that no other has")
    grid = table.sizes("grid", "CTAs along x, y, z", most_entries=3)
    if grid is None:
        table.lacks("grid", "CTAs along x, y, z, for example grid = [4, 2]")
    cluster = table.sizes("cluster", "CTAs of a cluster along x, y, z", most_entries=3)
    block = table.sizes("block", "threads along x, y, z", most_entries=3)
    shared = table.whole("dynamic_shared", 0, LARGEST_SHARED, "bytes of dynamic shared memory", default=0)
    cooperative = table.truth("cooperative", "whether all CTAs run at once, for grid.sync", default=False)
    rule = "whether it may start before the launch in front of it has ended (programmaticStreamSerialization)"
    overlap = table.truth("overlap", rule, default=False) if "overlap" in table else None
    given = table.take("arguments", [])
    if not isinstance(given, list | dict):
        table.fail("arguments", given, "must be an array in the kernel's order, or a table by parameter name")
    named = given.items() if isinstance(given, dict) else ((f"[{n}]", item) for n, item in enumerate(given))
    reader = ArgumentReader(table, (*buffers, *maps), tuple(maps))
    arguments = tuple(
        (name, reader.read(f"arguments{'.' if isinstance(given, dict) else ''}{name}", item)) for name, item in named
    )
    by_name = isinstance(given, dict)
    return Launch(
        kernel, grid, cluster, block, shared, arguments, by_name, table.where, overlap=overlap, cooperative=cooperative
    )  # fmt: skip


# ---- expectations ----


def _expectations(top: TomlTable, buffers: Mapping[str, Buffer]) -> tuple[Holds, ...]:
    table = top.table("expect", top.take("expect", {}), "what buffers should hold at the end")
    return tuple(_expectation(table, name, value, buffers) for name, value in table.items())


def _expectation(table: TomlTable, name: str, value: Any, buffers: Mapping[str, Buffer]) -> Holds:
    if name not in buffers:
        table.fail(name, value, f"there is no buffer {name}; the buffers are {', '.join(buffers) or 'none'}")
    rule = 'what it should hold: an expression such as "A @ B.T", or a .npy file'
    inner = TomlTable(table.path, table.key(name), value if isinstance(value, dict) else {"value": value})
    inner.only("value", "tolerance", "absolute", "relative", "exact")
    text = inner.text("value", rule)
    tolerance = inner.number("tolerance", MOST_TOLERANCE, "for absolute and relative") if "tolerance" in inner else None
    absolute = (
        inner.number("absolute", MOST_TOLERANCE, "the largest error of an element")
        if "absolute" in inner
        else tolerance
    )
    off = "the largest error of an element, relative to its value"
    relative = inner.number("relative", MOST_TOLERANCE, off) if "relative" in inner else tolerance
    exact = inner.truth("exact", "whether elements must be equal", default=False)
    loose = absolute is not None or relative is not None
    if exact and loose:
        inner.fail("exact", True, "cannot be combined with a tolerance; leave one out")
    if text.endswith(".npy"):
        file, expression = table.path.parent / text, None
        exact = exact or not loose
    else:
        file, expression = None, _expression(inner, text, buffers)
        drawn = [n for n in expression.names if not _sums_are_exact(buffers[n])]
        if not loose and not exact and drawn:
            inner.fail(
                "value",
                text,
                f"{drawn[0]} may hold more than small whole numbers, so results are rounded; write for example "
                f'{name} = {{ value = "{text}", tolerance = 1e-2 }}, or exact = true',
            )
        exact = exact or not loose
    where = f"{table.path}: {table.key(name)}"
    dtype = buffers[name].dtype
    return Holds(name, dtype, text, expression, file, exact, absolute or 0.0, relative or 0.0, where)


def _sums_are_exact(buffer: Buffer) -> bool:
    return not buffer.dtype.is_float or (buffer.fill is not None and buffer.fill.exact)


def _expression(table: TomlTable, text: str, buffers: Mapping[str, Buffer]) -> Expression:
    try:
        return parse_expression(text, tuple(buffers))
    except ExpressionError as error:
        table.fail("value", text, str(error))
