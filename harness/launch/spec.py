"""What a launch file says, as plain data: buffers, tensor maps, launches with their arguments, expectations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.emulator import Swizzle
from harness.launch.elements import DataType
from harness.launch.expression import Expression

NULL = "null"
"""How a null argument is written; no buffer may be called so."""
INITS = ("integer", "index", "normal", "uniform", "zeros", "nan", "uninitialised")


@dataclass(frozen=True)
class Fill:
    """The first values of a buffer. kind: one of `INITS`, "number" or "file"."""

    kind: str
    number: int | float = 0
    file: Path | None = None
    seed: int = 0

    @property
    def exact(self) -> bool:
        """Whether sums of products of such values have no rounding error, so that equality may be asked for."""
        whole = self.kind == "number" and float(self.number).is_integer()
        return whole or self.kind in ("integer", "index", "zeros")


@dataclass(frozen=True)
class Buffer:
    """Device memory with a name. shape None: that of the file it is filled from, or one element of a symbol.

    symbol: it is a variable of the module. fill None: it keeps what the PTX says. address: where it is to be, None:
    anywhere. parts: bytes of an uninitialised one that are written, by offset, as .npy files.
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
    """A tensor map over a buffer. Sizes are innermost first, as in the driver API; None: the whole buffer's.

    element: a name of `harness.emulator.memory.tensor_map.ELEMENT_TYPES`.
    tile: the box with the outermost dimension first instead, at most as many entries as the buffer has dimensions.
    """

    name: str
    buffer: str
    tile: tuple[int, ...] | None
    box: tuple[int, ...] | None
    dims: tuple[int, ...] | None
    strides: tuple[int, ...] | None
    element_strides: tuple[int, ...]
    element: str
    swizzle: Swizzle
    fill_nan: bool
    offset: int


@dataclass(frozen=True)
class Null:
    """A null pointer, or zeros for a whole parameter."""


@dataclass(frozen=True)
class Scalar:
    """A number; dtype None: the parameter's own type."""

    value: int | float
    dtype: DataType | None = None


@dataclass(frozen=True)
class Reference:
    """A buffer's or symbol's address, or a tensor map. pointer: the address of a map that is put into global memory."""

    name: str
    pointer: bool = False
    offset: int = 0


@dataclass(frozen=True)
class Raw:
    """Bytes as they are."""

    data: bytes


@dataclass(frozen=True)
class Struct:
    """A struct by value: fields in order, with names if they have any."""

    fields: tuple[tuple[str, Argument], ...]


Argument = Null | Scalar | Reference | Raw | Struct


@dataclass(frozen=True)
class Launch:
    """One launch. where: its key in the file. None: what the PTX says. arguments: with parameter names, or without."""

    where: str
    kernel: str | None
    grid: tuple[int, ...]
    cluster: tuple[int, ...] | None
    block: tuple[int, ...] | None
    dynamic_shared: int
    arguments: tuple[tuple[str, Argument], ...]
    by_name: bool


@dataclass(frozen=True)
class Expectation:
    """What a buffer should hold at the end: the value of an expression, or a file.

    An element x may be off by absolute + relative * \\|x\\|; exact: it must be x rounded once to the buffer's type.
    """

    buffer: str
    text: str
    expression: Expression | None
    file: Path | None
    exact: bool
    absolute: float
    relative: float

    @property
    def rule(self) -> str:
        return "equal" if self.exact else f"within {self.absolute:g} + {self.relative:g} |x|"


@dataclass(frozen=True)
class LaunchFile:
    """A launch file as it is written."""

    path: Path
    ptx: Path
    buffers: Mapping[str, Buffer]
    maps: Mapping[str, Map]
    launches: tuple[Launch, ...]
    expectations: tuple[Expectation, ...]
