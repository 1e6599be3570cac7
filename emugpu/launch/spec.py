"""What can be launched, as plain data: PTX, buffers, tensor maps, launches with their arguments, expectations.

A launch file (`emugpu.launch.launch_file`) or a program makes a `Launchable`. An emulated device
(`emugpu.launch.launching`) or a CUDA device (`emugpu.cuda.launch`) runs it.

This module also has the element types of buffers: their names, their NumPy types, and their layout in memory. Types
of less than a byte are packed as in hardware (PTX ISA 5.2.3): element 0 in the lowest bits, 2 elements of 4 bits in
a byte, 4 elements of 6 bits in 3 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isinf, isnan, prod
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from emugpu.emulator import Region, Swizzle
from emugpu.errors import UsageProblem
from emugpu.files import read_text_file

PIECE = 1 << 20
"""Elements are drawn and packed in pieces of this size, because that takes more memory than the values."""


@dataclass(frozen=True)
class DataType:
    """An element type.

    ``name`` is its PTX name, ``numpy`` the NumPy type of one element, ``bits`` its size in memory, ``aliases`` its
    other names.
    """

    name: str
    numpy: np.dtype
    bits: int
    aliases: tuple[str, ...] = ()

    @property
    def is_float(self) -> bool:
        return self.name[0] not in "su" or self.name == "ue8m0"

    @property
    def packed(self) -> bool:
        """Returns whether several elements share bytes."""
        return self.bits < 8

    @property
    def group(self) -> int:
        """Returns the smallest number of elements that fill whole bytes."""
        return {4: 2, 6: 4}.get(self.bits, 1)

    def to_memory(self, values: NDArray[Any]) -> NDArray[np.uint8]:
        """Returns the bytes of an array in memory, row-major."""
        held = np.ascontiguousarray(values, self.numpy)
        codes = held.reshape(-1).view(np.uint8)
        if not self.packed:
            return codes
        found = np.empty(self.memory_bytes(held.shape), np.uint8)
        for first in range(0, codes.size, PIECE):
            bits = np.unpackbits(codes[first : first + PIECE, None], axis=1, bitorder="little")[:, : self.bits]
            packed = np.packbits(bits.reshape(-1), bitorder="little")
            start = first * self.bits // 8
            found[start : start + packed.size] = packed
        return found

    def from_memory(self, data: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[Any]:
        """Returns the array of bytes in memory: the reverse of `to_memory`."""
        if not self.packed:
            return data.view(self.numpy).reshape(shape)
        codes = np.empty(prod(shape), np.uint8)
        for first in range(0, codes.size, PIECE):
            piece = codes[first : first + PIECE]
            packed = data[first * self.bits // 8 :][: -(-piece.size * self.bits // 8)]
            bits = np.unpackbits(packed, bitorder="little", count=piece.size * self.bits)
            piece[:] = np.packbits(bits.reshape(-1, self.bits), axis=1, bitorder="little").reshape(-1)
        return codes.view(self.numpy).reshape(shape)

    def memory_bytes(self, shape: tuple[int, ...]) -> int:
        return prod(shape) * self.bits // 8


def _type(name: str, held: DTypeLike, bits: int, *aliases: str) -> DataType:
    return DataType(name, np.dtype(held), bits, aliases)


_FLOATS = (
    _type("f64", np.float64, 64, "float64", "fp64", "double"),
    _type("f32", np.float32, 32, "float32", "fp32", "float"),
    _type("tf32", np.float32, 32),
    _type("f16", np.float16, 16, "float16", "fp16", "half"),
    _type("bf16", ml_dtypes.bfloat16, 16, "bfloat16"),
    _type("e4m3", ml_dtypes.float8_e4m3fn, 8, "float8_e4m3fn", "ue4m3", "fp8_e4m3"),
    _type("e5m2", ml_dtypes.float8_e5m2, 8, "float8_e5m2", "fp8_e5m2"),
    _type("ue8m0", ml_dtypes.float8_e8m0fnu, 8, "float8_e8m0fnu", "e8m0"),
    _type("e3m2", ml_dtypes.float6_e3m2fn, 6, "float6_e3m2fn", "fp6_e3m2"),
    _type("e2m3", ml_dtypes.float6_e2m3fn, 6, "float6_e2m3fn", "fp6_e2m3"),
    _type("e2m1", ml_dtypes.float4_e2m1fn, 4, "float4_e2m1fn", "fp4", "fp4_e2m1"),
)
_SIGNED = tuple(_type(f"s{bits}", f"i{bits // 8}", bits, f"int{bits}", f"i{bits}") for bits in (8, 16, 32, 64))
_UNSIGNED = tuple(_type(f"u{bits}", f"u{bits // 8}", bits, f"uint{bits}", f"b{bits}") for bits in (8, 16, 32, 64))
DATA_TYPES = {t.name: t for t in (*_FLOATS, *_SIGNED, *_UNSIGNED)}
_BY_ALIAS = {alias: t for t in DATA_TYPES.values() for alias in (t.name, *t.aliases)}


def find_type(name: str) -> DataType | None:
    """Returns a type by any of its names, or None."""
    return _BY_ALIAS.get(name.lower())


def fits(value: int | float, dtype: DataType) -> bool:
    """Returns whether a type can hold a value. A type of floats rounds it to the nearest one, which may be its largest
    (3.4028235e38 is the largest f32 in eight digits), but neither NaN nor infinity if the value is not.
    """
    if dtype.is_float:
        info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
        # A quarter of eps is at most half of the step above the largest value. Types of 4 and 6 bits clamp.
        if float(info.max) * (1 + float(info.eps) / 4) < abs(value) != inf:
            return False
        with np.errstate(invalid="ignore"):
            held = float(np.float64(value).astype(dtype.numpy))
        return isnan(held) == isnan(value) and isinf(held) == isinf(value)
    least = -(1 << dtype.bits - 1) if dtype.name[0] == "s" else 0
    return isinstance(value, int) and least <= value < least + (1 << dtype.bits)


def find_unfit(values: NDArray[Any], dtype: DataType) -> tuple[list[int], int | float] | None:
    """Returns the place of a number of an array that a type cannot hold, in the sense of `fits`, and the number, or
    None.
    """
    if values.dtype == dtype.numpy:
        return None
    flat = values.ravel(order="K")
    for first in range(0, flat.size, PIECE):
        piece = flat[first : first + PIECE]
        finite = np.isfinite(piece)
        numbers = piece[finite]
        suspects = [*np.unique(piece[~finite]), *((numbers.min(), numbers.max()) if numbers.size else ())]
        if not dtype.is_float and piece.dtype.kind == "f":
            suspects += [*numbers[numbers != np.trunc(numbers)][:1]]
        for suspect in suspects:
            value = suspect.item()
            if not dtype.is_float and float(value).is_integer():
                value = int(value)
            if not fits(value, dtype):
                same = np.isnan(values) if isnan(value) else values == suspect
                return np.argwhere(same)[0].tolist(), value
    return None


def round_to_tf32(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the nearest values with 10 bits of fraction, ties away from zero, as ``cvt.rna.tf32.f32`` does."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


NULL = "null"
"""Stands for a null argument; no buffer may have this name."""
INITS = ("integer", "index", "normal", "uniform", "zeros", "nan", "uninitialised")


@dataclass(frozen=True)
class Fill:
    """The first values of a buffer. ``kind`` is one of `INITS`, "number", "file", "array" or "absent".

    An absent buffer has an address but no memory, for runs that only measure time.
    """

    kind: str
    number: int | float = 0
    file: Path | None = None
    seed: int = 0
    array: NDArray[Any] | None = field(default=None, compare=False, repr=False)

    @property
    def exact(self) -> bool:
        """Returns whether sums of products of such values have no rounding error, so that results can be exact."""
        whole = self.kind == "number" and float(self.number).is_integer()
        return whole or self.kind in ("integer", "index", "zeros")


@dataclass(frozen=True)
class Buffer:
    """Device memory with a name.

    If ``shape`` is None, it is the shape of the file that fills the buffer, or one element of a symbol. ``symbol``:
    the buffer is a variable of the module. If ``fill`` is None, the symbol keeps the value in the PTX. ``address``
    is its device address, or None for any. ``parts`` are the written bytes of an uninitialised buffer, by offset, as
    .npy files.
    """

    name: str
    dtype: DataType
    shape: tuple[int, ...] | None
    fill: Fill | None
    symbol: bool = False
    address: int | None = None
    parts: tuple[tuple[int, Path], ...] = ()


@dataclass(frozen=True)
class Map:
    """A tensor map over a buffer. Sizes are innermost first, as in the driver API; None stands for the whole
    buffer's.

    ``element`` is a name in `emugpu.emulator.memory.tensor_map.ELEMENT_TYPES`. ``tile`` gives the box with the
    outermost dimension first, with at most as many entries as the buffer has dimensions. ``l2_promotion`` is the
    number of bytes that a copy makes a GPU's L2 fetch at once; the emulator ignores it. ``gpu_swizzle`` is a swizzle
    that only a GPU has and that replaces the other one: a name in `emugpu.cuda.driver.SWIZZLES`.
    """

    name: str
    buffer: str
    tile: tuple[int, ...] | None = None
    box: tuple[int, ...] | None = None
    dims: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    element_strides: tuple[int, ...] = ()
    element: str = "bf16"
    swizzle: Swizzle = Swizzle.NONE
    fill_nan: bool = False
    offset: int = 0
    l2_promotion: int = 0
    gpu_swizzle: str = ""


@dataclass(frozen=True)
class Null:
    """A null pointer, or zeros for a whole parameter."""


@dataclass(frozen=True)
class Scalar:
    """A number. If ``dtype`` is None, it has the parameter's type."""

    value: int | float
    dtype: DataType | None = None


@dataclass(frozen=True)
class AddressArgument:
    """The address of a buffer or symbol, or a tensor map. ``pointer``: the address of a tensor map in global memory."""

    name: str
    pointer: bool = False
    offset: int = 0


@dataclass(frozen=True)
class Raw:
    """Bytes that become the parameter unchanged."""

    data: bytes


@dataclass(frozen=True)
class Struct:
    """A struct by value: fields in order, with their names if they have any."""

    fields: tuple[tuple[str, Argument], ...]


Argument = Null | Scalar | AddressArgument | Raw | Struct


@dataclass(frozen=True)
class WarpRole:
    """The role of a group of warps, for the checker's messages."""

    name: str
    warps: tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """One launch.

    If ``kernel``, ``cluster`` or ``block`` is None, the PTX determines it. ``arguments`` are in the kernel's order,
    or ``by_name``. ``where`` is the launch's key in the launch file. ``regions`` names parts of dynamic shared
    memory. ``overlap``: the launch may begin while the previous one ends (programmatic stream serialisation); None
    if the launch file does not say. ``cooperative``: all CTAs run at the same time.
    """

    kernel: str | None
    grid: tuple[int, ...]
    cluster: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    dynamic_shared: int = 0
    arguments: tuple[tuple[str, Argument], ...] = ()
    by_name: bool = False
    where: str = "launch"
    regions: tuple[Region, ...] = ()
    overlap: bool | None = None
    cooperative: bool = False


class ExpectationResult(Protocol):
    """The outcome of one expectation."""

    @property
    def passed(self) -> bool: ...

    @property
    def exact(self) -> bool:
        """Returns whether every element had to be equal."""

    @property
    def elements(self) -> int: ...

    @property
    def mismatches(self) -> int: ...

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""


Differences = tuple[NDArray[Any], NDArray[np.bool_]]
"""The expected elements of a buffer, and which elements are wrong."""


class Expectation(Protocol):
    """The values that a buffer should have at the end."""

    @property
    def buffer(self) -> str: ...

    @property
    def compared(self) -> str:
        """Returns the buffer's name for the verdict, with the tolerance if there is one."""

    @property
    def operands(self) -> Collection[str]:
        """Returns the buffers whose first values `judge` computes with."""

    @property
    def size(self) -> int | None:
        """Returns how many elements are compared, from the first on; None: all."""

    def judge(self, got: NDArray[Any], first: Mapping[str, NDArray[Any] | None]) -> ExpectationResult:
        """Compares the values of the buffer.

        ``first`` holds the values of all buffers before the first launch; None: unknown.
        """

    def differences(self, got: NDArray[Any], first: Mapping[str, NDArray[Any] | None]) -> Differences:
        """Returns, element by element, the differences that `judge` counts."""


@dataclass(frozen=True)
class Launchable:
    """PTX, the memory that it uses, its launches in order, and the values that memory should have afterwards.

    ``ptx`` is the file of the PTX; ``text_given`` is its text, if it is not read from the file. ``file`` is the
    launch file, if there is one; error messages then name it. ``label`` is one line about the launch, ``about`` the
    same as data, for reports. ``persistent``: its CTAs compute tile after tile, so fewer of them than fit on a GPU
    do the same work. ``roles`` are those of the warps in every launch.
    """

    ptx: Path
    buffers: Mapping[str, Buffer]
    maps: Mapping[str, Map]
    launches: tuple[Launch, ...]
    expectations: tuple[Expectation, ...] = ()
    file: Path | None = None
    text_given: str | None = None
    label: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    persistent: bool = False
    roles: tuple[WarpRole, ...] = ()

    @cached_property
    def text(self) -> str:
        """Returns the PTX. Raises UsageProblem if there is none."""
        return read_ptx(self.ptx) if self.text_given is None else self.text_given

    def place(self, key: str) -> str:
        """Returns the beginning of a message about one part: the launch file and the key in it, or the key alone."""
        return f"{self.file}: {key}" if self.file else key


def read_ptx(path: Path) -> str:
    """Returns the text of a PTX file. Raises UsageProblem if there is none."""
    try:
        text = read_text_file(path)
    except OSError as error:
        raise UsageProblem(f"cannot read {path}: {error.strerror}; name a .ptx file") from error
    except UnicodeDecodeError:
        raise UsageProblem(f"{path} is not text; name a .ptx file (cuobjdump -ptx extracts it from a binary)") from None
    if ".target" not in text:
        raise UsageProblem(f"{path} is not PTX: it has no .target directive; name a .ptx file")
    return text


def target_of(directive: str) -> str:
    """Returns the target without options: ``sm_100a`` for ``sm_100a, debug``."""
    return directive.partition(",")[0].strip()
