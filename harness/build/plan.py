"""The launch plan of a kernel: grid, cluster, shared memory, barriers and arguments for one problem.

The Mojo side computes it, in the same code that its host launch uses, and prints it as JSON (``emit
plan``). This file only gives it types.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields
from typing import TypeVar

from harness.errors import CannotRun
from harness.problem.shape import Shape

SCHEMA = 1
T = TypeVar("T")


@dataclass(frozen=True)
class SharedPart:
    """A part of dynamic shared memory. detail: how the bytes come about, for people. count: of parts of the same size,
    of which each is called `one` and has a number, if it has that name; 0: what is in it has names elsewhere.
    """

    name: str
    bytes: int
    detail: str
    count: int = 1
    one: str = ""


@dataclass(frozen=True)
class Role:
    """What a group of warps does."""

    name: str
    warps: tuple[int, ...]
    does: str


@dataclass(frozen=True)
class Barrier:
    """An array of mbarriers. offset: byte of the first in dynamic shared memory; arrivals and bytes: of one
    phase.
    """

    name: str
    offset: int
    count: int
    arrivals: int
    bytes: int
    arrives: str
    waits: str


@dataclass(frozen=True)
class Multicast:
    """What one CTA of the cluster sends to others, as masks with one bit per rank.

    a, b: receivers of its slices of A and B; a_rows, b_rows: first rows of these slices in the tile; commit:
    receivers of the message that a stage has been read.
    """

    rank: int
    a: int
    b: int
    commit: int
    a_rows: tuple[int, ...]
    b_rows: tuple[int, ...]


@dataclass(frozen=True)
class TileOrder:
    """The order in which the tiles of C are computed, in units of cluster tiles. order: (row, column) of the first."""

    rows: int
    columns: int
    order: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TensorMapArgument:
    """A tensor map over A, B or C. dims and box are innermost first, in elements; strides in bytes, of dims
    1 and up. l2_promotion: bytes that a copy makes L2 fetch at once.
    """

    name: str
    tensor: str
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str
    l2_promotion: int


@dataclass(frozen=True)
class ScalarArgument:
    """A number. type: the PTX type, for example ``u32``."""

    name: str
    type: str
    value: int


@dataclass(frozen=True)
class CounterArgument:
    """The address of a counter in global memory, so many bytes. It must be 0 before the launch, and is 0 after it."""

    name: str
    bytes: int


Argument = TensorMapArgument | ScalarArgument | CounterArgument


@dataclass(frozen=True)
class Plan:
    """How a kernel is launched; arguments are in the order of the kernel's parameters.

    entry: name of the kernel in its PTX, None in a plan made without compiling it. tiles: None where each CTA computes
    the tile at its place in the grid.
    """

    kernel: str
    arch: str
    entry: str | None
    config: dict
    problem: Shape
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_smem: int
    shared_memory: tuple[SharedPart, ...]
    tmem_columns: int
    tiles: TileOrder | None
    roles: tuple[Role, ...]
    barriers: tuple[Barrier, ...]
    multicast: tuple[Multicast, ...]
    arguments: tuple[Argument, ...]

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of C that one CTA computes: the MMA's, with the rows split over the CTAs of a
        group.
        """
        rows, columns, _ = self.config["mma_shape"]
        return rows // self.config["cta_group"], columns


_ARGUMENTS: dict[str, type] = {"tensor_map": TensorMapArgument, "scalar": ScalarArgument, "counter": CounterArgument}


def parse_plan(text: str) -> Plan:
    """Reads what ``emit plan`` prints."""
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise CannotRun(f"the launch plan has schema {data['schema']}; this harness reads schema {SCHEMA}")
        return Plan(
            kernel=data["kernel"],
            arch=data["arch"],
            entry=data["entry"],
            config=data["config"],
            problem=Shape(**data["problem"]),
            grid=_three(data["grid"]),
            cluster=_three(data["cluster"]),
            block=_three(data["block"]),
            dynamic_smem=data["dynamic_smem"],
            shared_memory=_all(SharedPart, data["shared_memory"]),
            tmem_columns=data["tmem_columns"],
            tiles=_tiles(data["tiles"]),
            roles=_all(Role, data["roles"]),
            barriers=_all(Barrier, data["barriers"]),
            multicast=_all(Multicast, data["multicast"]),
            arguments=tuple(_make(_ARGUMENTS[argument["kind"]], argument) for argument in data["arguments"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CannotRun(
            f"the launch plan cannot be read ({type(error).__name__}: {error}): {text.strip()[:120]!r}"
        ) from error


def _three(values: list[int]) -> tuple[int, int, int]:
    x, y, z = values
    return x, y, z


def _tiles(data: dict | None) -> TileOrder | None:
    if data is None:
        return None
    return TileOrder(data["rows"], data["columns"], tuple((row, column) for row, column in data["order"]))


def _all(kind: type[T], objects: list[dict]) -> tuple[T, ...]:
    return tuple(_make(kind, data) for data in objects)


def _make(kind: type[T], data: dict) -> T:
    """An instance of a dataclass from the JSON fields of the same names; fields it does not know are left."""
    known = [field for field in fields(kind) if field.name in data or field.default is MISSING]  # type: ignore[arg-type]
    values = {field.name: data[field.name] for field in known}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
