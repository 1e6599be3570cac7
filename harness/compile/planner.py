"""Runs the compiled planner, ``kernels/host/plan.mojo``, and reads the launch plans that it computes.

Only the planner knows the rules of a configuration and completes one. It keeps running and answers each line of options
with a line, in tens of microseconds. A plan has grid, cluster, shared memory, barriers and arguments for one problem.
The kernels compute it in the code that their host launch uses; here it gets types.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from emugpu import cache
from emugpu.errors import CannotRun, UsageProblem
from emugpu.processes.program import end, start
from harness import fp8
from harness.block_scaling import FORMATS, BlockFormat
from harness.compile.compiler import (
    PLANNER,
    ask,
    compiled,
    key_of,
    options_text,
    planner_source_with,
    with_notice,
    words_of,
)
from harness.compile.plan_words import add_words
from harness.epilogues import Epilogue
from harness.problem import C_TYPES, ElementType, Shape, operand_bits


class ConfigError(UsageProblem):
    """A configuration breaks a rule. ``subject`` is the option at fault; ``instead`` are others that could be changed
    in its place.
    """

    def __init__(self, message: str, subject: str, instead: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.subject = subject
        self.instead = tuple(instead)


def planner(root: Path, needed: Mapping[str, Any] | None = None) -> Path:
    """Returns the program of the sources in ``root``, from the cache or compiled now, with a message.

    ``needed`` holds the options of a kernel that is likely to be built next. It is compiled in the same run, because
    Mojo's standard library takes more than half of a compilation's time: see `compiled_with_planner`.
    """
    place = cache.place("programs", key_of(PLANNER, root)) / "program"
    if not cache.is_whole(place):
        also = f" and {needed['kernel']}" if needed else ""
        with_notice(f"the planner (once){also}", lambda: _compile(place, root, needed))
    return place


def own_planner(root: Path, needed: Mapping[str, Any] | None = None) -> Path:
    """Returns the program that this process uses for the sources in ``root``. It is looked up once, because its key
    depends on all its sources. ``needed`` is that of `planner`.
    """
    place = (root, cache.root())
    if place not in _found or not cache.is_whole(_found[place]):
        _found[place] = planner(root, needed)
    return _found[place]


_found: dict[tuple[Path, Path], Path] = {}
"""The programs, by the folder of the sources and that of the cache."""

_compiled_with_planner: dict[Path, tuple[str, str]] = {}
"""The requested options and the PTX of the kernel that this process compiled together with the planner, by the folder
of the sources.
"""


def compiled_with_planner(options: Mapping[str, Any], root: Path) -> str | None:
    """Returns the PTX of a complete configuration, if it was compiled together with the planner."""
    if root not in _compiled_with_planner:
        return None
    (asked, ptx), program = _compiled_with_planner[root], own_planner(root)
    return ptx if _answer(program, asked) == _answer(program, options_text(options)) else None


def _compile(place: Path, root: Path, needed: Mapping[str, Any] | None) -> None:
    if needed:
        try:
            with compiled(planner_source_with(needed), root) as program:
                _compiled_with_planner[root] = options_text(needed), ask(program, "ptx", 0)
                return _publish(program, place)
        except CannotRun:
            pass  # the kernel breaks a rule, which the planner explains better than the compiler
    with compiled(PLANNER, root) as program:
        _publish(program, place)


def _publish(program: Path, place: Path) -> None:
    cache.publish(program.parent, place.parent, lambda: cache.is_whole(place))


def plan_json(options: Mapping[str, Any], shape: Shape, root: Path) -> str:
    """Returns the launch plan of a complete configuration: one line of JSON, with null for the entry's name."""
    return ask_plan(own_planner(root), options, shape)


def ask_plan(program: Path, options: Mapping[str, Any], shape: Shape) -> str:
    """Works as `plan_json`, with a planner that may be another commit's."""
    more = [f"groups={shape.groups_text}"] if shape.groups else []
    more += [f"ld={shape.ld_text}"] if shape.ld else []
    answer = _plan(program, shape.rows_in_memory, shape.n, shape.k, *more, *words_of(options))
    return json.dumps(add_words(json.loads(answer))) + "\n"


_plan = functools.lru_cache(maxsize=256)(ask)
"""A program's result for a plan never changes."""


def complete(options: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """Returns all choices of a configuration, by the names of the plan. Raises `ConfigError` if it breaks a rule."""
    words = words_of(options)
    odd = next((word for word in words if not word.isprintable() or " " in word), None)
    if odd is not None:
        raise UsageProblem(f"option value {odd!r} contains a space or a control character; write it without")
    answer = json.loads(_answer(own_planner(root, needed=options), options_text(options)))
    if "refused" in answer:
        refused = answer["refused"]
        raise ConfigError(refused["message"], refused["subject"], tuple(filter(None, refused["instead"].split(","))))
    if "error" in answer:
        raise UsageProblem(answer["error"])
    return answer["config"]


@functools.lru_cache(maxsize=4096)
def _answer(program: Path, line: str) -> str:
    for _ in range(2):  # restart a planner that was ended, for example by Ctrl-C in its terminal
        server = _server(program, os.getpid())
        found = server.ask(line)
        if found:
            return found
        _server.cache_clear()
    raise CannotRun(f"the planner {program} does not answer")


@functools.cache
def _server(program: Path, process: int) -> _Server:
    """Returns the server of this process; a child of `fork` must not use its parent's."""
    return _Server(program)


class _Server:
    def __init__(self, program: Path) -> None:
        self._turn = threading.Lock()
        self._child = start([program, "configs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
        atexit.register(end, self._child)

    def ask(self, line: str) -> str:
        """Returns the reply, or an empty text if the program has ended."""
        assert self._child.stdin and self._child.stdout
        with self._turn:
            try:
                self._child.stdin.write(f"{line}\n")
                self._child.stdin.flush()
            except (BrokenPipeError, ValueError):
                return ""
            return self._child.stdout.readline()


SCHEMA = 1
T = TypeVar("T")


@dataclass(frozen=True)
class SharedPart:
    """A part of dynamic shared memory.

    ``detail`` explains its size to people. ``count`` is the number of parts of the same size, each named ``one`` with a
    number, if it has that name; 0 means that its contents have their names elsewhere.
    """

    name: str
    bytes: int
    detail: str
    count: int = 1
    one: str = ""


@dataclass(frozen=True)
class Role:
    """The work of a group of warps."""

    name: str
    warps: tuple[int, ...]
    does: str


@dataclass(frozen=True)
class Barrier:
    """An array of mbarriers. ``offset``: byte of the first in dynamic shared memory. ``arrivals`` and ``bytes``: of one
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
    """The data that one CTA of the cluster sends to others, as masks with one bit per rank.

    ``a``, ``b``: receivers of its slices of A and B. ``a_rows``, ``b_rows``: first rows of these slices in the tile, or
    lines of shared memory for an MN-major operand. ``commit``: receivers of the signal that a stage has been read.
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
    """A tensor map over A, B or C.

    ``dims`` and ``box`` are innermost first, in elements; ``strides`` are in bytes, for dims 1 and up.
    ``l2_promotion``: bytes that a copy makes L2 fetch at once. ``offset``: bytes from the tensor's start to the map's,
    which lies before it in a map of windows (kernels/common/groups.mojo).
    """

    name: str
    tensor: str
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str
    l2_promotion: int
    offset: int = 0


@dataclass(frozen=True)
class ScalarArgument:
    """A number. ``type`` is its PTX type, for example ``u32``."""

    name: str
    type: str
    value: int


@dataclass(frozen=True)
class WorkspaceArgument:
    """The address of this many bytes of global memory. The words at its start, ``counters`` of 4 bytes, must be 0
    before the launch, and are 0 after it; partial sums of split-K follow.
    """

    name: str
    counters: int
    bytes: int


@dataclass(frozen=True)
class TensorArgument:
    """The address of a row-major tensor that a fused epilogue reads, or of the sizes of groups. The tensor has the
    argument's name.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


Argument = TensorMapArgument | ScalarArgument | WorkspaceArgument | TensorArgument


@dataclass(frozen=True)
class Plan:
    """The launch of a kernel. Arguments are in the order of the kernel's parameters.

    ``entry``: name of the kernel in its PTX, None in a plan made without compiling it. ``tiles``: None if each CTA
    computes the tile at its place in the grid.
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
    own_epilogue: Epilogue | None = None

    @property
    def scaling(self) -> BlockFormat | None:
        """Returns the format of block-scaled A and B."""
        return FORMATS.get(self.config["dtype"])

    @property
    def has_f32_factors(self) -> bool:
        """Returns whether e4m3 has scale factors of blocks."""
        return self.scaling is None and self.config["scales"] == "block"

    @property
    def out_type(self) -> ElementType:
        """Returns the type of C."""
        return C_TYPES[self.config["out_dtype"]]

    @property
    def operand_bytes(self) -> float:
        """Returns the bytes of an element of A or B in memory, with its part of a scale factor."""
        own = operand_bits(self.config["dtype"]) / 8
        if self.has_f32_factors:
            return own + 4 / fp8.BLOCK
        return own if self.scaling is None else own + 1 / self.scaling.block

    @property
    def tile(self) -> tuple[int, int]:
        """Returns rows and columns of the product that one CTA computes: the MMA's, with the rows split over the CTAs
        of a group. The product is C, or swapped its transpose.
        """
        rows, columns, _ = self.config["mma_shape"]
        return rows // self.config["cta_group"], columns

    @property
    def is_direct(self) -> bool:
        """Returns whether the kernel reads addresses, so that it has no tensor maps, stages and barriers."""
        return not any(isinstance(argument, TensorMapArgument) for argument in self.arguments)

    @property
    def output(self) -> tuple[int, int]:
        """Returns rows and columns of C, which a fused epilogue may reduce."""
        if self.is_direct:
            rows, columns = next(a.shape for a in self.arguments if isinstance(a, TensorArgument) and a.name == "C")
            return rows, columns
        dims = next(a.dims for a in self.arguments if isinstance(a, TensorMapArgument) and a.tensor == "C")
        in_element = 8 // self.out_type.bits if self.out_type.bits < 8 else 1  # of a map of bytes
        return self.problem.rows_in_memory, dims[0] * in_element

    @property
    def stored_output(self) -> tuple[int, int]:
        """Returns the rows of C in memory, and the elements from one to the next."""
        rows, columns = self.output
        return rows, (self.problem.ld or (0, 0, 0))[2] or columns

    @property
    def output_tile(self) -> tuple[int, int]:
        """Returns rows and columns of C that one CTA writes."""
        rows, columns = self.tile
        return (columns, rows) if self.swapped else (rows, columns * self.output[1] // self.problem.n)

    @property
    def layout(self) -> str:
        """Returns the layout of A and B: see `harness.compile.options.OPTIONS`."""
        return str(self.config.get("layout", "nt"))

    def operand(self, name: str) -> TensorMapArgument:
        """Returns the tensor map of the MMA's A or B; swapped, A is the tensor B."""
        maps = (argument for argument in self.arguments if isinstance(argument, TensorMapArgument))
        return next(argument for argument in maps if argument.name == f"{name.lower()}_map")

    def is_mn_major(self, name: str) -> bool:
        """Returns whether the MMA's A or B is MN-major: a tensor A of [K, M], or B of [K, N]."""
        tensor = self.operand(name).tensor
        return self.layout["AB".index(tensor)] == ("t" if tensor == "A" else "n")

    @property
    def swapped(self) -> bool:
        """Returns whether the kernel multiplies B . A^T and stores the transpose."""
        return bool(self.config.get("swapped"))  # a plan of an older commit lacks this

    @property
    def split_k(self) -> int:
        """Returns the number of parts of K whose sums are added to a tile."""
        return int(self.config.get("split_k", 1))

    def of_product(self) -> Plan:
        """Returns the same launch with the kernel's operands and boxes: the kernel knows only the product, and swapped
        its A is the tensor B.
        """
        if not self.swapped:
            return self
        names = {"A": "B", "B": "A", "C": "C"}
        arguments = tuple(
            replace(each, tensor=names[each.tensor], box=each.box[::-1] if each.tensor == "C" else each.box)
            if isinstance(each, TensorMapArgument)
            else each
            for each in self.arguments
        )
        return replace(self, arguments=arguments)

    @property
    def product(self) -> tuple[int, int]:
        """Returns rows and columns of the product."""
        return (self.problem.n, self.problem.m) if self.swapped else (self.problem.m, self.problem.n)


_ARGUMENTS: dict[str, type] = {
    "tensor_map": TensorMapArgument,
    "scalar": ScalarArgument,
    "workspace": WorkspaceArgument,
    "tensor": TensorArgument,
}


def parse_plan(text: str, own_epilogue: Epilogue | None = None) -> Plan:
    """Reads the output of ``emit plan``, which only names the user's own epilogue."""
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise CannotRun(f"the launch plan has schema {data['schema']}; this harness reads schema {SCHEMA}")
        return Plan(
            kernel=data["kernel"],
            arch=data["arch"],
            entry=data["entry"],
            config=data["config"],
            problem=Shape.from_dict(data["problem"]),
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
            arguments=tuple(_argument(argument) for argument in data["arguments"]),
            own_epilogue=own_epilogue,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CannotRun(
            f"the launch plan cannot be read ({type(error).__name__}: {error}): {text.strip()[:120]!r}"
        ) from error


def _argument(data: dict[str, Any]) -> Argument:
    if data["kind"] == "counter":  # the name of a one-word workspace in a plan of an older commit
        data = {"kind": "workspace", "counters": 1, **{key: value for key, value in data.items() if key != "kind"}}
    made: Argument = _make(_ARGUMENTS[data["kind"]], data)
    return made


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
    """Makes an instance of a dataclass from the JSON fields of the same names; unknown fields are ignored."""
    known = [field for field in fields(kind) if field.name in data or field.default is MISSING]  # type: ignore[arg-type]
    values = {field.name: data[field.name] for field in known}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
