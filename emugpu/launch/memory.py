"""The buffers, symbols and tensor maps of a launchable on a device, and the arguments of its launches.

The first values of buffers:

integer        whole numbers in -4..4, for unsigned types 0..8, for ue8m0 1, 2 or 4: sums of products are exact
index          values that distinguish rows, columns and slices of K (`index_operand`); for
               whole-number types the element's number, modulo the type's range
normal         standard normal; for ue8m0 powers of two about 1; for whole-number types 16 times as large, rounded
uniform        uniform in [-1, 1); for ue8m0 1/2 or 1; for whole-number types over the whole range
zeros, nan     all the same
uninitialised  no values: reading them is an error
"""

from __future__ import annotations

import gc
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator import EmulatorError, LaunchError, Module, TensorMap
from emugpu.emulator.arguments import order
from emugpu.emulator.errors import UndefinedRead
from emugpu.emulator.memory.tensor_map import TensorMapElement
from emugpu.emulator.ptx.ast import Parameter, PtxKernel
from emugpu.errors import CannotRun, UsageProblem
from emugpu.host_memory import SPARE, free_bytes
from emugpu.launch.spec import (
    DATA_TYPES,
    PIECE,
    AddressArgument,
    Argument,
    Buffer,
    DataType,
    ExpectationResult,
    Fill,
    Launch,
    Launchable,
    Map,
    Null,
    Raw,
    Scalar,
    Struct,
    find_unfit,
    round_to_tf32,
)

CHUNK = 8
"""Elements of K in the 16 bytes that a swizzle moves as a unit."""
SCALES = 8
EMPTY = ("absent", "uninitialised")
"""Fills that take no memory before a kernel writes to the buffer."""
LARGE = 1 << 26
"""A launch that needs at most so many bytes is never refused: the emulator itself takes more."""
COMPARING = 40
"""Bytes for each element that is compared: the values, the expected values and their differences, most in float64."""


def make_values(fill: Fill, dtype: DataType, shape: tuple[int, ...], number: int) -> NDArray[Any] | None:
    """Returns the values of a buffer that is not filled from a file, or None if it is uninitialised.

    ``number`` is that of the buffer, so that buffers of the same kind differ.
    """
    if fill.kind == "uninitialised":
        return None
    if fill.kind == "array":
        return fill.array
    rng = np.random.default_rng((fill.seed, number))
    draw = _exponents if dtype.name == "ue8m0" else _floats if dtype.is_float else _wholes
    values = np.empty(shape, dtype.numpy)
    flat = values.reshape(-1)
    step = PIECE
    # At least eight rows, because bytes are drawn four at a time.
    if fill.kind == "index" and dtype.is_float:
        step = shape[1] * CHUNK * max(1, PIECE // (shape[1] * CHUNK))
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, flat.size, step):
            piece = flat[first : first + step]
            piece[:] = to_type(draw(fill, dtype, shape, range(first, first + len(piece)), rng), dtype)
    return values


def to_type(values: NDArray[Any], dtype: DataType) -> NDArray[Any]:
    """Rounds values to the type. Whole numbers that do not fit wrap around; floats lose their fraction first, as in C.
    What NaN and infinity become in a type of whole numbers is undefined.
    """
    values = np.asarray(values)
    if not dtype.is_float and values.dtype.kind == "f":
        # The remainder is exact, and C defines no cast of numbers outside the range.
        wide = np.fmod(values.astype(np.float64, copy=False), 2.0**64)
        wrapped = np.abs(wide).astype(np.uint64)
        np.negative(wrapped, out=wrapped, where=wide < 0)
        return wrapped.astype(dtype.numpy)
    made = values.astype(dtype.numpy, copy=False)
    return round_to_tf32(made) if dtype.name == "tf32" else made


def _floats(
    fill: Fill, dtype: DataType, shape: tuple[int, ...], places: range, rng: np.random.Generator
) -> NDArray[Any]:
    """Draws the elements at ``places``, row-major; for "index" these are whole rows."""
    size = len(places)
    match fill.kind:
        case "integer":
            return rng.integers(-4, 5, size=size).astype(np.float32)
        case "index":
            k = shape[1]
            return index_operand(size // k, k, rng, places.start // k).reshape(-1)
        case "normal":
            return rng.standard_normal(size, dtype=np.float32)
        case "uniform":
            return rng.random(size, dtype=np.float32) * 2 - 1
        case "nan":
            return np.full(size, np.nan, dtype.numpy)
    return np.full(size, fill.number, np.float64)


def _wholes(
    fill: Fill, dtype: DataType, shape: tuple[int, ...], places: range, rng: np.random.Generator
) -> NDArray[Any]:
    size = len(places)
    signed = dtype.name[0] == "s"
    info = np.iinfo(dtype.numpy)
    match fill.kind:
        case "integer":
            return rng.integers(-4, 5, size=size) if signed else rng.integers(0, 9, size=size)
        case "index":
            return np.arange(places.start, places.stop, dtype=np.uint64)
        case "normal":
            values = np.rint(16 * rng.standard_normal(size)).astype(np.int64)
            return values if signed else np.abs(values)
        case "uniform":
            return rng.integers(info.min, info.max, size=size, dtype=dtype.numpy, endpoint=True)
    return np.full(size, fill.number, dtype.numpy)


def _exponents(
    fill: Fill, dtype: DataType, shape: tuple[int, ...], places: range, rng: np.random.Generator
) -> NDArray[Any]:
    size = len(places)
    match fill.kind:
        case "integer":
            return np.exp2(rng.integers(0, 3, size=size))
        case "normal":
            return np.exp2(np.rint(rng.standard_normal(size)))
        case "uniform":
            return np.exp2(rng.integers(-1, 1, size=size).astype(np.float64))
        case "nan":
            return np.full(size, np.nan)
    return np.full(size, fill.number, np.float64)


def index_operand(rows: int, k: int, rng: np.random.Generator, first: int = 0) -> np.ndarray:
    """Returns values [rows, k] that show the place of every row and of every 16 bytes of K.

    ``first`` is the number of the first row.

    K is divided into chunks of 8 elements, 16 bytes, which a swizzle moves as a unit. Each chunk of each row is
    one of 16 words: the 8 Walsh functions (rows of a Hadamard matrix) and their negatives, drawn
    independently. Two words multiply to +8 or -8 if they are the same function and to 0 otherwise, so a
    chunk that meets another chunk of the other operand than it should adds something else. No element is
    zero: each one of them counts.

    Each row is scaled by a power of two, from the sum of the octal digits of its number. Rows that are a
    swizzle row, a slice, a tile or a CTA apart differ in a digit, so that each nonzero element of a
    misplaced row is off by a power of two.

    An element of C is then 8 * j * 2^s, where j is the end of a random walk of K / 8 steps, one in eight of
    which moves, and s is between -12 and 2. |j| <= 256, which 8 bits of significand hold exactly, is 8
    standard deviations at K = 65536: rounding the output hides nothing. These are numbers between 2^-9 and
    2^13, well inside the range of fp16.
    """
    values: NDArray[Any] = index_words(rows, k, rng) * row_scales(rows, first)[:, None]
    return values


def index_words(rows: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the words of `index_operand` without the scales of rows: 1 and -1."""
    words = _walsh_words()
    drawn = rng.integers(0, len(words), size=(rows, -(-k // CHUNK)), dtype=np.uint8)
    return words[drawn].reshape(rows, -1)[:, :k]


def row_scales(rows: int, first: int = 0) -> np.ndarray:
    """Returns one power of two per row, 2^-6 to 2^1, by the sum of the octal digits of the row number."""
    number = np.arange(first, first + rows)
    digit_sum = np.zeros(rows, dtype=np.int64)
    while number.any():
        digit_sum += number % 8
        number = number // 8
    return np.exp2((digit_sum % SCALES - 6).astype(np.float32))


def _walsh_words() -> np.ndarray:
    """Returns the 8 rows of the Hadamard matrix of order 8 (Sylvester's construction) and their negatives: [16, 8]."""
    matrix = np.ones((1, 1), dtype=np.float32)
    for _ in range(3):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.concatenate([matrix, -matrix])


def load_file(path: Path, dtype: DataType, shape: tuple[int, ...] | None, where: str) -> NDArray[Any]:
    """Returns an array of a .npy file in the buffer's type. ``where`` is the key that names the file, for messages.

    NumPy saves types that it lacks as plain bytes; those of the right size are taken as elements.
    """
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UsageProblem(
            f"{where}: cannot read {path} as a .npy file: {reason}; write one with numpy.save"
        ) from error
    if not isinstance(values, np.ndarray):
        raise UsageProblem(f"{where}: {path} holds several arrays (.npz); write one with numpy.save")
    if values.dtype.kind == "V":
        if values.dtype.itemsize != dtype.numpy.itemsize:
            raise UsageProblem(
                f"{where}: {path} holds elements of {values.dtype.itemsize} bytes, {dtype.name} has others"
            )
        values = values.view(dtype.numpy)
    if values.dtype.kind not in "fiubV" and values.dtype != dtype.numpy:
        raise UsageProblem(f"{where}: {path} holds {values.dtype}; save numbers")
    if shape is not None and values.shape != shape:
        raise UsageProblem(f"{where}: {path} has shape {list(values.shape)}, but shape = {list(shape)} is given")
    if not values.shape or not values.size:
        raise UsageProblem(f"{where}: {path} has shape {list(values.shape)}; at least one element is needed")
    if (unfit := find_unfit(values, dtype)) is not None:
        place, value = unfit
        shown = f"{value:g}" if values.dtype.kind == "f" else value
        raise UsageProblem(f"{where}: {path} holds {shown} at {place}, which is no value of {dtype.name}; save others")
    return to_type(values, dtype)


def as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Returns values for arithmetic: float64, or whole numbers of 64 bits."""
    whole = {"i": np.int64, "u": np.uint64 if values.dtype == np.uint64 else np.int64}
    return values.astype(whole.get(values.dtype.kind, np.float64))


POINTER_BYTES = 8


class DeviceMemory(Protocol):
    """The memory of a device, emulated or not, as `emugpu.emulator.Device` has it."""

    def upload(self, array: NDArray[Any], name: str = "", at: int | None = None) -> int: ...

    def alloc(self, nbytes: int, name: str = "", at: int | None = None) -> int: ...

    def write(self, address: int, array: NDArray[Any]) -> None: ...

    def download(self, address: int, dtype: Any, shape: int | tuple[int, ...]) -> NDArray[Any]: ...

    def symbol(self, name: str, module: Module | None = None) -> int: ...

    def symbol_bytes(self, name: str, module: Module | None = None) -> int: ...

    def upload_tensor_map(self, tensor_map: TensorMap, name: str = "") -> int: ...


class UndefinedResult(CannotRun):
    """A result cannot be compared, because an element of it was never written, or is undefined."""


@dataclass(frozen=True)
class PlacedBuffer:
    """A buffer at its device address. ``first`` holds its values before the first launch; None: unknown."""

    buffer: Buffer
    address: int
    shape: tuple[int, ...]
    first: NDArray[Any] | None


def require_host_memory(what: Launchable) -> None:
    """Raises CannotRun if this machine cannot hold the `host_bytes` of a large launch."""
    needed = host_bytes(what)
    if needed <= LARGE:
        return
    gc.collect()  # Python counts objects, not bytes: it would keep the memory of ended launches for long
    have = free_bytes() - SPARE
    if needed > have:
        largest = max(what.buffers.values(), key=_bytes_of)
        raise CannotRun(
            f"{what.place(f'buffers.{largest.name}')}: the buffers need {needed / 2**30:.1f} GiB of this machine's "
            f"memory, and {max(have, 0) / 2**30:.1f} GiB are free; make them smaller"
        )


def host_bytes(what: Launchable) -> int:
    """Returns the bytes of this machine that a run takes for the buffers' first values, their copy on the emulated GPU,
    and the largest comparison.
    """
    sizes = {name: _elements(buffer) for name, buffer in what.buffers.items()}
    comparing = [
        COMPARING * (sizes[each.buffer] if each.size is None else each.size)
        + 8 * sum(sizes[name] for name in each.operands)
        for each in what.expectations
    ]
    return sum(_bytes_of(each) for each in what.buffers.values()) + max(comparing, default=0)


def _elements(buffer: Buffer) -> int:
    if buffer.shape is None and buffer.fill is not None and buffer.fill.file is not None:
        with suppress(OSError, ValueError, EOFError):  # load_file reports it
            return np.lib.format.open_memmap(buffer.fill.file, mode="r").size
    return prod(buffer.shape or ())


def _bytes_of(buffer: Buffer) -> int:
    fill = buffer.fill
    if fill is None or fill.kind in EMPTY:
        return 0
    if fill.file is not None:
        return 2 * fill.file.stat().st_size if fill.file.is_file() else 0
    shape = buffer.shape or ()
    values = 0 if fill.kind == "array" else prod(shape) * buffer.dtype.numpy.itemsize
    return values + buffer.dtype.memory_bytes(shape)


class LaunchMemory:
    """The memory of a launchable on the device; every run makes a new one."""

    def __init__(self, what: Launchable, device: DeviceMemory, module: Module) -> None:
        self.what = what
        self.device = device
        self.buffers: Mapping[str, PlacedBuffer] = {
            name: self._symbol(buffer, module, n) if buffer.symbol else self._buffer(buffer, n)
            for n, (name, buffer) in enumerate(what.buffers.items())
        }
        self.maps: Mapping[str, TensorMap] = {name: self._map(wanted) for name, wanted in what.maps.items()}
        self._pointers: dict[str, int] = {}

    def pointer_to_map(self, name: str) -> int:
        """Returns the address of a tensor map in global memory, and copies the map there on first use."""
        if name not in self._pointers:
            self._pointers[name] = self.device.upload_tensor_map(self.maps[name], f"map {name}")
        return self._pointers[name]

    def download(self, name: str) -> NDArray[Any]:
        """Returns the current values of a buffer. Raises UndefinedResult if an element of it is undefined."""
        placed = self.buffers[name]
        dtype = placed.buffer.dtype
        try:
            data = self.device.download(placed.address, np.uint8, dtype.memory_bytes(placed.shape))
        except UndefinedRead as fault:
            index = np.unravel_index((fault.place - placed.address) * 8 // dtype.bits, placed.shape)
            state = f"is undefined: {fault.store} {fault.origin}" if fault.store else "was never written"
            raise UndefinedResult(f"{name}[{','.join(map(str, index))}] {state}") from fault
        except EmulatorError as error:
            raise CannotRun(f"buffer {name}: {error}") from error
        return dtype.from_memory(data, placed.shape)

    def contents(self, names: Collection[str]) -> dict[str, NDArray[Any]]:
        """Returns the values of these buffers, without those that were not written completely."""
        found = {}
        for name in names:
            with suppress(CannotRun):
                found[name] = self.download(name)
        return found

    def judge(self) -> tuple[ExpectationResult, ...]:
        """Returns the outcomes of the expectations."""
        first = {name: placed.first for name, placed in self.buffers.items()}
        return tuple(each.judge(self.download(each.buffer), first) for each in self.what.expectations)

    def arguments(self, launch: Launch, kernel: PtxKernel) -> list[Any]:
        """Returns one value per parameter. Raises LaunchError for names and numbers that do not fit the kernel."""
        given: Sequence[Argument] | Mapping[str, Argument]
        given = dict(launch.arguments) if launch.by_name else [argument for _, argument in launch.arguments]
        return [self._value(a, p) for a, p in zip(order(kernel, given), kernel.parameters, strict=True)]

    def _value(self, argument: Argument, parameter: Parameter | None) -> Any:
        """Returns the value of an argument. ``parameter`` is that of the kernel, or None inside a struct."""
        match argument:
            case Null():
                return None
            case Scalar(value, None):
                return value
            case Scalar(value, DataType() as dtype):
                return dtype.numpy.type(value)
            case Raw(data):
                return data
            case Struct(fields):
                return {name: self._value(field, None) for name, field in fields}
            case AddressArgument(name, pointer, offset) if name in self.maps:
                # A parameter of 8 bytes cannot hold a map, so it is a pointer to one.
                if pointer or (parameter is not None and parameter.size == POINTER_BYTES):
                    return self.pointer_to_map(name)
                return self.maps[name]
            case AddressArgument(name, _, offset):
                return self.buffers[name].address + offset
        raise AssertionError(argument)

    # ---- placing ----

    def _values(self, buffer: Buffer, shape: tuple[int, ...] | None, number: int) -> NDArray[Any] | None:
        fill = buffer.fill
        assert fill is not None
        if fill.file is not None:
            where = self.what.place(f"{'symbols' if buffer.symbol else 'buffers'}.{buffer.name}.init")
            return load_file(fill.file, buffer.dtype, shape, where)
        assert shape is not None
        return make_values(fill, buffer.dtype, shape, number)

    def _buffer(self, buffer: Buffer, number: int) -> PlacedBuffer:
        where = self.what.place(f"buffers.{buffer.name}")
        if buffer.fill is not None and buffer.fill.kind == "absent":
            assert buffer.address is not None and buffer.shape is not None
            return PlacedBuffer(buffer, buffer.address, buffer.shape, None)
        values = self._values(buffer, buffer.shape, number)
        try:
            if values is not None:
                data = buffer.dtype.to_memory(values)
                return PlacedBuffer(buffer, self.device.upload(data, buffer.name, buffer.address), values.shape, values)
            assert buffer.shape is not None
            nbytes = buffer.dtype.memory_bytes(buffer.shape)
            address = self.device.alloc(nbytes, buffer.name, buffer.address)
        except ValueError as error:
            raise UsageProblem(f"{where}: {error}") from None
        for offset, file in buffer.parts:
            part = load_file(file, DATA_TYPES["u8"], None, f"{where}.parts")
            if not 0 <= offset <= nbytes - part.nbytes:
                raise UsageProblem(f"{where}.parts: {file} at {offset} does not fit the {nbytes} bytes of the buffer")
            self.device.write(address + offset, part)
        return PlacedBuffer(buffer, address, buffer.shape, None)

    def _symbol(self, buffer: Buffer, module: Module, number: int) -> PlacedBuffer:
        where = self.what.place(f"symbols.{buffer.name}")
        try:
            address = self.device.symbol(buffer.name, module)
            size = self.device.symbol_bytes(buffer.name, module)
        except LaunchError as error:
            raise UsageProblem(f"{where}: {error}") from None
        shape = buffer.shape
        if shape is None and (buffer.fill is None or buffer.fill.kind != "file"):
            shape = (size * 8 // buffer.dtype.bits,)
        values = self._values(buffer, shape, number) if buffer.fill else None
        shape = values.shape if values is not None else shape
        assert shape is not None
        if not 0 < buffer.dtype.memory_bytes(shape) <= size:
            raise UsageProblem(
                f"{where}.shape = {list(shape)}: {buffer.dtype.memory_bytes(shape)} bytes of {buffer.dtype.name}, the "
                f"variable has {size}; make the shape smaller"
            )
        if values is not None:
            self.device.write(address, buffer.dtype.to_memory(values))
        placed = PlacedBuffer(buffer, address, shape, values)
        if values is None and buffer.fill is None:
            data = self.device.download(address, np.uint8, buffer.dtype.memory_bytes(shape))
            placed = PlacedBuffer(buffer, address, shape, buffer.dtype.from_memory(data, shape))
        return placed

    def _map(self, wanted: Map) -> TensorMap:
        placed = self.buffers[wanted.buffer]
        dims = wanted.dims or tuple(reversed(placed.shape))
        strides = wanted.strides or _packed_strides(dims, placed.buffer.dtype)
        if wanted.tile is not None:
            if len(wanted.tile) > len(dims):
                self._refuse(wanted, f"tile = {list(wanted.tile)} has more entries than the {len(dims)} dimensions")
            box = (*reversed(wanted.tile), *(1 for _ in range(len(dims) - len(wanted.tile))))
        else:
            box = wanted.box or ()
        try:
            return TensorMap(
                placed.address + wanted.offset,
                TensorMapElement.from_name(wanted.element),
                dims,
                strides,
                box,
                wanted.element_strides,
                wanted.swizzle,
                wanted.fill_nan,
            )
        except ValueError as error:
            self._refuse(wanted, str(error))

    def _refuse(self, wanted: Map, problem: str) -> NoReturn:
        raise UsageProblem(f"{self.what.place(f'maps.{wanted.name}')}: {problem}")


def _packed_strides(dims: tuple[int, ...], dtype: DataType) -> tuple[int, ...]:
    return tuple(int(np.prod(dims[:n], dtype=np.int64)) * dtype.bits // 8 for n in range(1, len(dims)))
