"""What can be launched, as plain data: PTX, buffers, tensor maps, launches with their arguments, expectations.

A `Launchable` is made from a launch file (`harness.launch.launch_file`), from the plan of one of our kernels
(`harness.build.kernel_launch`), or by hand. An emulated device runs it (`harness.launch.launching`), and a CUDA device
does (`harness.run.cuda`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from harness.emulator import Region, Swizzle
from harness.errors import UsageProblem
from harness.files import read_text_file
from harness.launch.elements import DataType

NULL = "null"
"""How a null argument is written; no buffer may be called so."""
INITS = ("integer", "index", "normal", "uniform", "zeros", "nan", "uninitialised")


@dataclass(frozen=True)
class Fill:
    """The first values of a buffer. kind: one of `INITS`, "number", "file", "array" or "absent".

    An absent buffer has an address and no memory: for runs of which only the time is wanted.
    """

    kind: str
    number: int | float = 0
    file: Path | None = None
    seed: int = 0
    array: NDArray[Any] | None = field(default=None, compare=False, repr=False)

    @property
    def exact(self) -> bool:
        """Returns whether sums of products of such values have no rounding error, so that equality may be asked for."""
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
    l2_promotion: bytes that a copy makes the L2 of a GPU fetch at once; the emulator has no use for it.
    gpu_swizzle: a swizzle that only a GPU has, in place of the other: a name of `harness.run.driver.SWIZZLES`.
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
class WarpRole:
    """What a group of warps does, for messages of the checker."""

    name: str
    warps: tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """One launch. kernel, cluster, block None: what the PTX says. arguments: in the kernel's order, or by_name.

    where: its key in the launch file. regions: names of parts of dynamic shared memory. overlap: on a GPU it may begin
    while the launch before it ends (programmatic stream serialisation).
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
    overlap: bool = False


class Verdict(Protocol):
    """Whether one expectation is met."""

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


class Expectation(Protocol):
    """What a buffer should hold at the end."""

    @property
    def buffer(self) -> str: ...

    def judge(self, got: NDArray[Any], first: Mapping[str, NDArray[Any] | None]) -> Verdict:
        """Compares what the buffer holds. first: what all buffers held before the first launch, None: unknown."""


@dataclass(frozen=True)
class Launchable:
    """PTX, the memory it works on, its launches in order, and what memory should hold afterwards.

    ptx: the file it lies in; text_given: the text, if it is not to be read from there. file: the launch file that says
    all this, if one does: what is wrong with it is then its writer's to fix. label: what is launched, in one line;
    about: the same as data, for reports. persistent: whether its CTAs compute tile after tile, so that fewer of them
    than fit on a GPU do the same work. roles: of the warps, in every launch.
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
        """Returns how a message about a part of it begins: with the launch file and the key in it, if there is one."""
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
