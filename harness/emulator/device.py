"""The public face of the emulator: modules, memory, launches."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from harness.emulator.errors import LaunchError
from harness.emulator.machine.code import Code
from harness.emulator.machine.counters import Counters
from harness.emulator.machine.events import GridStarted, Sink, fan_out
from harness.emulator.machine.findings import Findings
from harness.emulator.machine.grid import Clusters, residency
from harness.emulator.machine.machine import Limits, Machine
from harness.emulator.machine.register_pool import registers_at_entry
from harness.emulator.machine.schedule import make_schedule
from harness.emulator.machine.state import Grid, Launch, Printed, Region
from harness.emulator.memory.address_space import PARAM_WINDOW, RESERVED_SHARED
from harness.emulator.memory.global_memory import GlobalMemory
from harness.emulator.memory.tensor_map import TensorMap
from harness.emulator.memory.tensor_map_bytes import encode
from harness.emulator.ptx.ast import Kernel, Parameter, Variable
from harness.emulator.ptx.parser import parse_module
from harness.emulator.rules import RULES, Finding
from harness.emulator.symbols import Symbols
from harness.emulator.translate.check import check_module
from harness.emulator.translate.program import translate
from harness.emulator.units.mma import MmaUnit
from harness.emulator.workers import run_in_processes

SHARED_MEMORY_LIMIT = 232_448
"""Largest shared memory of one CTA: 227 KB on sm_90 and sm_100 (CUDA Programming Guide, compute capabilities)."""
MAX_CLUSTER = 16
MAX_THREADS = 1024
TENSOR_MAP_BYTES = 128

Dim3 = int | Sequence[int]


class Module:
    """A parsed PTX file. Its kernels are translated when they are first launched."""

    def __init__(self, text: str):
        """Raises PtxSyntaxError, naming the line, if the text cannot be understood or its target lacks an
        instruction.
        """
        self._parsed = parse_module(text)
        check_module(self._parsed)
        self._codes: dict[str, Code] = {}

    @classmethod
    def from_text(cls, text: str) -> Module:
        return cls(text)

    @classmethod
    def from_file(cls, path: str | Path) -> Module:
        return cls(Path(path).read_text())

    @property
    def target(self) -> str:
        """The ``.target`` the module was compiled for, for example "sm_100a"."""
        return self._parsed.target

    @cached_property
    def entries(self) -> tuple[str, ...]:
        """Names of the kernels."""
        return tuple(self._parsed.kernels)

    def variable(self, name: str) -> Variable:
        """A variable in global or constant memory, by its name or, if only one fits, by a part of it."""
        known = {v.name: v for v in self._parsed.variables.values() if v.space in ("global", "const")}
        found = [name] if name in known else [n for n in known if name in n]
        if len(found) != 1:
            which = f"fits {', '.join(found)}" if found else f"is none of {', '.join(known) or 'none'}"
            raise LaunchError(f"variable '{name}' of the module {which}")
        return known[found[0]]

    def place(self, memory: GlobalMemory) -> Symbols:
        """Put the variables into the memory of a device."""
        return Symbols(self._parsed, memory)

    def code(self, entry: str | None) -> Code:
        """The translated kernel; ``entry`` may be left out if there is only one."""
        if entry is None:
            if len(self.entries) != 1:
                raise LaunchError(f"the module has {len(self.entries)} kernels ({', '.join(self.entries)}); name one")
            entry = self.entries[0]
        if entry not in self._parsed.kernels:
            raise LaunchError(f"no kernel '{entry}' in the module; it has {', '.join(self.entries) or 'none'}")
        if entry not in self._codes:
            self._codes[entry] = translate(self._parsed.kernels[entry], self._parsed)
        return self._codes[entry]


@dataclass(frozen=True)
class LaunchResult:
    """What a launch did. ``seconds`` is the emulator's own wall time, no measure of any GPU. ``warnings``: rules that
    the kernel breaks but that hardware is known to tolerate.
    """

    counters: Counters
    seconds: float
    warnings: tuple[Finding, ...] = ()
    printed: tuple[Printed, ...] = ()
    """By printf, in the order in which it happened."""

    @property
    def output(self) -> str:
        """All that was printed."""
        return "".join(p.text for p in self.printed)


class Device:
    """An emulated GPU: its global memory, and how it runs things.

    ``accumulation``: "f32" multiplies with the host's float32 BLAS; "tensor_core" models the hardware's truncating
    accumulation bit by bit (slow). ``schedule``: "fifo" (fast, always the same order) or "random" (adversarial order
    and delays drawn from ``seed``; the same seed gives the same run).
    """

    def __init__(
        self,
        accumulation: Literal["f32", "tensor_core"] = "f32",
        schedule: Literal["fifo", "random"] = "fifo",
        seed: int = 0,
    ):
        self._memory = GlobalMemory()
        self._symbols: dict[Module, Symbols] = {}
        self._mma_unit = MmaUnit(accumulation)
        self._schedule = schedule
        self._seed = seed
        make_schedule(schedule, seed)

    def upload(self, array: ArrayLike, name: str = "") -> int:
        """Copy an array to the device; returns its 64-bit device address."""
        return self._memory.upload(array, name)

    def alloc(self, nbytes: int, name: str = "") -> int:
        """Reserve bytes that hold nothing: reading them before they are written is an error."""
        return self._memory.alloc(nbytes, name)

    def download(self, address: int, dtype: DTypeLike, shape: int | tuple[int, ...]) -> NDArray[Any]:
        """Copy an array back; every element must have been written."""
        return self._memory.download(address, dtype, shape)

    def upload_tensor_map(self, tensor_map: TensorMap, name: str = "") -> int:
        """Put a tensor map into device memory, for kernels that take a pointer to it; returns its address."""
        return self._memory.upload(np.frombuffer(encode(tensor_map), np.uint8), name)

    def symbol(self, module: Module, name: str) -> int:
        """Device address of a ``__device__`` variable of a module, which keeps its value from launch to launch."""
        variable = module.variable(name)
        if variable.space != "global":
            raise LaunchError(f"'{variable.name}' is in {variable.space} memory, which has no device address")
        return self._symbols_of(module).addresses[variable.name]

    def set_symbol(self, module: Module, name: str, value: ArrayLike) -> None:
        """Give a ``__device__`` or ``__constant__`` variable of a module a value: as many bytes as it has, or fewer."""
        variable, symbols = module.variable(name), self._symbols_of(module)
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        if data.size > variable.size:
            raise LaunchError(f"'{variable.name}' has {variable.size} bytes; the value has {data.size}")
        memory = self._memory if variable.space == "global" else symbols.constants
        memory.write(symbols.addresses[variable.name], data)

    def _symbols_of(self, module: Module) -> Symbols:
        if module not in self._symbols:
            self._symbols[module] = module.place(self._memory)
        return self._symbols[module]

    def launch(
        self,
        module: Module,
        entry: str | None = None,
        *,
        grid: Dim3,
        block: Dim3,
        cluster: Dim3 = 1,
        dynamic_smem: int = 0,
        arguments: Sequence[Any] = (),
        progress: Callable[[int, int], None] | None = None,
        sinks: Sequence[Sink] = (),
        regions: Sequence[Region] = (),
        resident_clusters: int | None = None,
        workers: int = 1,
        max_steps: int | None = None,
        timeout: float | None = None,
        strict: bool = False,
        allow: Collection[str] = (),
    ) -> LaunchResult:
        """Run a kernel to its end.

        ``grid``, ``cluster``, ``block``: 1 to 3 sizes, x first; the grid counts CTAs. ``dynamic_smem``: bytes.
        ``arguments``: one per kernel parameter: a TensorMap, an int, a float, a NumPy scalar, or bytes.
        ``progress`` is called with (clusters done, clusters in all). ``sinks`` get every event of the run.
        ``regions``: names of parts of dynamic shared memory, for messages.
        ``resident_clusters``: how many clusters the GPU holds at once; by default as many as it has room for.
        ``workers``: processes that share the clusters out among them, for kernels whose clusters are independent.
        ``max_steps`` (warp instructions) and ``timeout`` (seconds) end a run that takes longer.
        ``strict``: what would be a warning is a Fault, except for the rules in ``allow``. Errors end the run always.

        Raises LaunchError for a wrong launch, Fault when the program breaks a rule of the machine, Deadlock when
        nothing can go on, Livelock when nothing is done but polling, LimitExceeded. The message says where.
        """
        code = module.code(entry)
        shape = Launch(
            grid=_dim3("grid", grid),
            cluster=_dim3("cluster", cluster),
            block=_dim3("block", block),
            dynamic_shared=dynamic_smem,
            regions=tuple(regions),
            **_pack_arguments(code.kernel, arguments),
        )
        _check(code, shape)
        _check_rules(allow)
        capacity = _capacity(code, shape, module.target, resident_clusters)
        for name, value in (("workers", workers), ("max_steps", max_steps), ("timeout", timeout)):
            if value is not None and not value > 0:
                raise LaunchError(f"{name} {value}: must be above 0")
        limits = Limits(max_steps, timeout)
        symbols = self._symbols_for(module, code)
        start = time.perf_counter()

        def make_grid() -> tuple[Grid, Machine]:
            schedule = make_schedule(self._schedule, self._seed)
            findings = Findings(strict, allow)
            sink = fan_out(tuple(sinks))
            where = symbols.addresses if symbols else {}
            constants = symbols.constants if symbols else None
            grid = Grid(code, shape, self._memory, self._mma_unit, schedule, findings, sink, where, constants)
            clusters = Clusters(shape.cluster_count, capacity, schedule.rng)
            return grid, Machine(grid, schedule, clusters, limits)

        if workers > 1:
            _check_independent(code, self._schedule, sinks)
            counters, findings = run_in_processes(make_grid, workers, shape.cluster_count, progress)
            printed: list[Printed] = []
        else:
            running, machine = make_grid()
            if running.sink is not None:
                running.sink(GridStarted(shape, self._memory.ranges()))
            counters, findings = machine.run(progress), running.findings
            printed = running.printed
        return LaunchResult(counters, time.perf_counter() - start, findings.as_tuple(), tuple(printed))

    def _symbols_for(self, module: Module, code: Code) -> Symbols | None:
        """The variables that a kernel names, if there are any."""
        if not code.symbols:
            return None
        symbols = self._symbols_of(module)
        missing = [name for name in code.symbols if name not in symbols.addresses]
        if missing:
            raise LaunchError(f"kernel '{code.kernel.name}' names '{missing[0]}', which the module does not define")
        return symbols


def _check_rules(allow: Collection[str]) -> None:
    for name in allow:
        if name not in RULES:
            raise LaunchError(f"allow '{name}': no such rule; the rules are {', '.join(RULES)}")


def _capacity(code: Code, launch: Launch, target: str, asked: int | None) -> int:
    """How many clusters are resident at once."""
    if asked is not None:
        if asked < 1:
            raise LaunchError(f"resident_clusters {asked}: must be at least 1")
        return asked
    size = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    shared = RESERVED_SHARED + code.static_shared + launch.dynamic_shared
    return residency(target, size, shared, launch.threads, registers_at_entry(code.kernel.directives))


def _check_independent(code: Code, schedule: str, sinks: Sequence[Sink]) -> None:
    """Several processes give the same result only if no cluster looks at what another one does."""
    reason = ""
    if code.between_clusters:
        reason = f"clusters may depend on one another by PTX {code.between_clusters}"
    elif sinks:
        reason = "event sinks see what happens in one process only"
    elif schedule != "fifo":
        reason = "a random schedule draws from one sequence for all clusters"
    if reason:
        raise LaunchError(f"cannot run with several workers: {reason}; run with one")


def _dim3(name: str, value: Dim3) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(sizes) <= 3 or any(int(s) != s or s < 1 for s in sizes):
        raise LaunchError(f"{name} {value}: give 1 to 3 sizes of at least 1")
    x, y, z = (*sizes, 1, 1)[:3]
    return int(x), int(y), int(z)


def _check(code: Code, launch: Launch) -> None:
    """The limits of the device and the kernel's own directives."""
    kernel, directives = code.kernel, code.kernel.directives
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if threads > MAX_THREADS:
        raise LaunchError(f"block {launch.block} has {threads} threads; the limit is {MAX_THREADS}")
    for name, limit in (("maxntid", directives.get("maxntid")), ("reqntid", directives.get("reqntid"))):
        if limit:
            allowed = int(np.prod(limit))
            if threads > allowed or (name == "reqntid" and threads != allowed):
                raise LaunchError(
                    f"block {launch.block} has {threads} threads; kernel '{kernel.name}' says .{name} {allowed}"
                )
    required = directives.get("reqnctapercluster")
    if required and (*required, 1, 1)[:3] != launch.cluster:
        raise LaunchError(f"cluster {launch.cluster}: kernel '{kernel.name}' was compiled for cluster {required}")
    size = launch.cluster[0] * launch.cluster[1] * launch.cluster[2]
    if size > MAX_CLUSTER:
        raise LaunchError(f"cluster {launch.cluster} has {size} CTAs; the limit is {MAX_CLUSTER}")
    for axis, g, c in zip("xyz", launch.grid, launch.cluster, strict=True):
        if g % c:
            raise LaunchError(f"grid.{axis} = {g} is not a multiple of the cluster's {c}")
    shared = code.static_shared + launch.dynamic_shared
    if shared > SHARED_MEMORY_LIMIT:
        raise LaunchError(
            f"shared memory {shared} bytes (static and dynamic) exceeds the limit of {SHARED_MEMORY_LIMIT}"
        )


def _pack_arguments(kernel: Kernel, arguments: Sequence[Any]) -> dict[str, Any]:
    """The parameter block, and the tensor maps by the address the kernel will pass."""
    if len(arguments) != len(kernel.parameters):
        raise LaunchError(f"kernel '{kernel.name}' takes {len(kernel.parameters)} arguments, {len(arguments)} given")
    block = bytearray(kernel.parameter_bytes)
    maps: dict[int, tuple[str, TensorMap]] = {}
    for position, (parameter, argument) in enumerate(zip(kernel.parameters, arguments, strict=True)):
        where = f"argument {position}"
        if isinstance(argument, TensorMap):
            if parameter.size != TENSOR_MAP_BYTES or parameter.align < 64:
                raise LaunchError(
                    f"{where} is a tensor map, but parameter '{parameter.name}' is {parameter.size} bytes aligned to "
                    f"{parameter.align}; a tensor map needs {TENSOR_MAP_BYTES} bytes aligned to 64 (grid constant)"
                )
            maps[PARAM_WINDOW + parameter.offset] = (where, argument)
            block[parameter.offset : parameter.offset + TENSOR_MAP_BYTES] = encode(argument)
        else:
            block[parameter.offset : parameter.offset + parameter.size] = _encode(where, parameter, argument)
    return {"parameters": bytes(block), "tensor_maps": maps}


def _encode(where: str, parameter: Parameter, argument: Any) -> bytes:
    if isinstance(argument, bytes | bytearray):
        if len(argument) != parameter.size:
            raise LaunchError(f"{where} has {len(argument)} bytes; parameter '{parameter.name}' has {parameter.size}")
        return bytes(argument)
    if parameter.is_array:
        raise LaunchError(f"{where} must be a TensorMap or {parameter.size} bytes for parameter '{parameter.name}'")
    if isinstance(argument, np.generic):
        data = argument.tobytes()
    elif isinstance(argument, float):
        data = (np.float64 if parameter.size == 8 else np.float32)(argument).tobytes()
    elif isinstance(argument, int):
        limit = 1 << 8 * parameter.size
        if not -limit // 2 <= argument < limit:
            raise LaunchError(f"{where} = {argument} does not fit the {parameter.size} bytes of '{parameter.name}'")
        data = (argument % limit).to_bytes(parameter.size, "little")
    else:
        raise LaunchError(f"{where} has type {type(argument).__name__}; give a TensorMap, int, float or bytes")
    if len(data) != parameter.size:
        raise LaunchError(f"{where} has {len(data)} bytes; parameter '{parameter.name}' has {parameter.size}")
    return data
