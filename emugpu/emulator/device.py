"""The public interface of the emulator: modules, memory, launches."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from emugpu.emulator.arguments import pack
from emugpu.emulator.errors import EmulatorError, LaunchError
from emugpu.emulator.machine.code import Code
from emugpu.emulator.machine.counters import Counters
from emugpu.emulator.machine.events import GridStarted
from emugpu.emulator.machine.findings import Findings
from emugpu.emulator.machine.grid import Clusters, architecture, residency, sm_limits
from emugpu.emulator.machine.kernel_launch import KernelLaunch, Printed, Region
from emugpu.emulator.machine.machine import MOST_STEPS, Limits, Machine
from emugpu.emulator.machine.register_pool import registers_at_entry
from emugpu.emulator.machine.schedule import Schedule, make_schedule
from emugpu.emulator.machine.sinks import Sink, can_defer, fan_out
from emugpu.emulator.machine.state import Grid
from emugpu.emulator.memory.address_space import CONST_WINDOW, RESERVED_SHARED, space_of
from emugpu.emulator.memory.global_memory import GlobalMemory
from emugpu.emulator.memory.tensor_map import TensorMap
from emugpu.emulator.memory.tensor_map_bytes import encode
from emugpu.emulator.memory.unwritten import FAULT, Uninitialised
from emugpu.emulator.names import find_name, readable_name
from emugpu.emulator.native.engine import NativeEngine
from emugpu.emulator.native.library import Library
from emugpu.emulator.ptx.ast import PtxKernel
from emugpu.emulator.ptx.parser import parse_module
from emugpu.emulator.rules import RULES, RuleWarning
from emugpu.emulator.symbols import FIRST_CONSTANT, Symbols
from emugpu.emulator.translate.program import translate
from emugpu.emulator.translate.refusals import check_module
from emugpu.emulator.units.mma import MmaUnit
from emugpu.emulator.workers import run_in_processes
from emugpu.gpus import usual_gpu

MAX_CLUSTER = 16
MAX_THREADS = 1024
MAX_GRID = (0x7FFFFFFF, 0xFFFF, 0xFFFF)
"""CTAs along x, y and z (CUDA Programming Guide, technical specifications of compute capabilities)."""

Dim3 = int | Sequence[int]


class Module:
    """A parsed PTX file. Its kernels are translated when they are first launched."""

    def __init__(self, text: str):
        """Parses the text. Raises PtxSyntaxError, naming the line, if that fails or the target lacks an instruction."""
        self._parsed = parse_module(text)
        check_module(self._parsed)
        self._codes: dict[str, Code] = {}

    @classmethod
    def from_text(cls, text: str) -> Module:
        return cls(text)

    @classmethod
    def from_file(cls, path: str | Path) -> Module:
        return cls(Path(path).read_text(encoding="utf-8"))

    @property
    def target(self) -> str:
        """The ``.target`` for which the module was compiled, for example "sm_100a"."""
        return self._parsed.target

    @cached_property
    def entries(self) -> tuple[str, ...]:
        """The names of the kernels."""
        return tuple(self._parsed.kernels)

    def find(self, entry: str | None) -> PtxKernel:
        """Returns a kernel by name: mangled, demangled, or a part that no other name has. None: the only kernel."""
        if entry is None:
            if len(self.entries) != 1:
                raise LaunchError(f"the module has {len(self.entries)} kernels ({', '.join(self.entries)}); name one")
            return self._parsed.kernels[self.entries[0]]
        return self._parsed.kernels[find_name(entry, self.entries, "kernel")]

    def code(self, entry: str | None) -> Code:
        """Returns the translated kernel. For names see `find`."""
        kernel = self.find(entry)
        if kernel.name not in self._codes:
            self._codes[kernel.name] = translate(kernel, self._parsed)
        return self._codes[kernel.name]

    def place_variables(self, memory: GlobalMemory, constants: GlobalMemory) -> Symbols:
        """Gives the module's variables addresses in a device's memory. A device calls this once for each module."""
        return Symbols(self._parsed, memory, constants)


@dataclass(frozen=True)
class LaunchResult:
    """The result of a launch.

    ``seconds``: the emulator's own wall time, which says nothing about a GPU. ``warnings``: rules that the kernel
    breaks but that hardware is known to tolerate.
    """

    counters: Counters
    seconds: float
    warnings: tuple[RuleWarning, ...] = ()
    printed: tuple[Printed, ...] = ()
    """The output of printf, in the order in which it happened."""

    @property
    def output(self) -> str:
        """All printed text."""
        return "".join(p.text for p in self.printed)


class Device:
    """An emulated GPU: its global memory, and how it runs kernels.

    ``accumulation``: "f32" multiplies with the host's float32 BLAS; "tensor_core" follows the published rules of the
    hardware bit by bit (slow). ``schedule``: "fifo" (fast, always the same order), "random" (adversarial order and
    delays drawn from ``seed``; the same seed gives the same run), "declining" (fifo, but cluster launch control
    declines every other request), or "reversed" (fifo, but CTAs start in the reverse order of their numbers).
    """

    def __init__(
        self,
        accumulation: Literal["f32", "tensor_core"] = "f32",
        schedule: Literal["fifo", "random", "declining", "reversed"] = "fifo",
        seed: int = 0,
        memory: GlobalMemory | None = None,
        constants: GlobalMemory | None = None,
        uninitialised: Uninitialised = "fault",
        library: Library | None = None,
    ):
        """``memory``, ``constants``: global and constant memory to use instead of the device's own.

        ``uninitialised``: the result of reading memory before it is written (`Unwritten`), by default an error.
        ``library``: the compiled interpreter, which runs ordinary code natively; without it Python runs everything.
        """
        self._library = library
        self._memory = memory if memory is not None else GlobalMemory()
        self._constants = constants if constants is not None else GlobalMemory(FIRST_CONSTANT)
        """Constant memory, by addresses in its own state space."""
        self._mma_unit = MmaUnit(accumulation)
        self._schedule = schedule
        self._seed = seed
        self._uninitialised = uninitialised
        self._loaded: dict[Module, Symbols] = {}
        self._maps = 0
        """The number of tensor maps uploaded so far."""
        make_schedule(schedule, seed)

    def take_over(self, other: Device) -> None:
        """Takes over the loaded modules of another device with the same memory."""
        self._loaded, self._maps = other._loaded, other._maps

    def upload(self, array: ArrayLike, name: str = "", at: int | None = None) -> int:
        """Copies an array to the device. Returns its 64-bit device address. ``at``: as in `alloc`."""
        return self._memory.upload(array, name, at)

    def alloc(self, nbytes: int, name: str = "", at: int | None = None) -> int:
        """Allocates bytes and returns their device address. Reading them before they are written is an error.

        ``at``: the address to use, which must be free. Without it the device chooses one.
        """
        return self._memory.alloc(nbytes, name, at)

    def download(self, address: int, dtype: DTypeLike, shape: int | tuple[int, ...]) -> NDArray[Any]:
        """Copies an array back. Every element must have been written."""
        memory, place = self._memory_at(address)
        return memory.download(place, dtype, shape)

    def write(self, address: int, array: ArrayLike) -> None:
        """Copies an array (row-major) to a device address: over a buffer or a symbol, or a part of one."""
        source = np.ascontiguousarray(array)
        memory, place = self._memory_at(address)
        memory.write(place, source.reshape(-1).view(np.uint8))

    def memset(self, address: int, value: int, nbytes: int) -> None:
        """Writes the byte ``value`` to ``nbytes`` bytes of device memory."""
        if not 0 <= value < 256:
            raise LaunchError(f"memset {value}: a byte is 0 to 255")
        memory, place = self._memory_at(address)
        memory.fill(place, value, nbytes)

    def _memory_at(self, address: int) -> tuple[GlobalMemory, int]:
        """Returns the memory of a generic address, and the address in its own state space."""
        if space_of(address) == "const":
            return self._constants, address - CONST_WINDOW
        return self._memory, address

    def upload_tensor_map(self, tensor_map: TensorMap, name: str = "") -> int:
        """Puts a tensor map into global memory, for kernels that take a pointer to it. Returns its device address.

        Kernels may copy its 128 bytes and change them with tensormap.replace.
        """
        self._maps += 1
        return self._memory.upload(np.frombuffer(encode(tensor_map), np.uint8), name or f"tensor map {self._maps - 1}")

    def load(self, module: Module) -> None:
        """Gives a module's variables memory with their initial values. The first launch that needs them does so too."""
        if module not in self._loaded:
            self._loaded[module] = module.place_variables(self._memory, self._constants)

    def symbol(self, name: str, module: Module | None = None) -> int:
        """Returns the generic address of a ``__device__`` or ``__constant__`` variable, for `write` and `download`.

        The name may be mangled or not, or a part that no other variable has. ``module``: is loaded if necessary.
        Without it, all modules that were loaded or launched are searched.
        """
        symbols, found = self._find_symbol(name, module)
        return symbols.generic_address(found)

    def symbols(self, module: Module) -> dict[str, int]:
        """Returns the generic addresses of all variables of a module, by name."""
        self.load(module)
        loaded = self._loaded[module]
        return {name: loaded.generic_address(name) for name in loaded.addresses}

    def symbol_bytes(self, name: str, module: Module | None = None) -> int:
        """Returns the size in bytes of such a variable."""
        symbols, found = self._find_symbol(name, module)
        return symbols.variables[found].size

    def _addresses(self, module: Module, code: Code) -> dict[str, int]:
        """Returns the addresses of the variables that a kernel names, if there are any."""
        if not code.symbols:
            return {}
        self.load(module)
        addresses = self._loaded[module].addresses
        missing = [name for name in code.symbols if name not in addresses]
        if missing:
            raise LaunchError(f"kernel '{code.kernel.name}' names '{missing[0]}', which the module does not define")
        return addresses

    def _make_schedule(self) -> Schedule:
        return make_schedule(self._schedule, self._seed)

    def _make_machine(self, grid: Grid, schedule: Schedule, clusters: Clusters, limits: Limits) -> Machine:
        return Machine(grid, schedule, clusters, limits, self._make_engine(grid))

    def _make_engine(self, grid: Grid) -> NativeEngine | None:
        """Returns the native engine of a launch, or None.

        It needs a library, a sink that can receive events later, and a kernel that has native code.
        """
        quiet = grid.sink is None
        early = quiet and not grid.choices.splits_multicast
        plan = grid.code.native(quiet, early) if self._library is not None and can_defer(grid.sink) else None
        return NativeEngine(self._library, grid, plan) if self._library is not None and plan is not None else None

    def _find_symbol(self, name: str, module: Module | None) -> tuple[Symbols, str]:
        if module is not None:
            self.load(module)
        places = [self._loaded[module]] if module is not None else list(self._loaded.values())
        if not places:
            raise LaunchError(f"symbol '{name}': no module is loaded yet; call load(module), or pass module=")
        exact = [memory for memory in places if name in memory.addresses]
        if len(exact) > 1:
            raise LaunchError(f"symbol '{name}': {len(exact)} modules have it; pass module=")
        owners = {found: memory for memory in places for found in memory.addresses}
        found = find_name(name, owners, "variable")
        return owners[found], found

    def why_one_worker(self, code: Code) -> str:
        """Returns why several processes cannot run a kernel, or "" if they can.

        They give the same result only if no cluster depends on another one.
        """
        if code.between_clusters:
            return f"clusters may depend on one another by PTX {code.between_clusters}"
        if any("vprintf" in site.text for site in code.sites):
            return "its printf output has an order, which several processes would not keep"
        if self._schedule != "fifo":
            return f"a {self._schedule} schedule draws from one sequence for all clusters"
        return ""

    def launch(
        self,
        module: Module,
        entry: str | None = None,
        *,
        grid: Dim3,
        block: Dim3 | None = None,
        cluster: Dim3 | None = None,
        dynamic_smem: int = 0,
        arguments: Sequence[Any] | Mapping[str, Any] = (),
        progress: Callable[[int, int], None] | None = None,
        sinks: Sequence[Sink] = (),
        regions: Sequence[Region] = (),
        gpu: str | None = None,
        resident_clusters: int | None = None,
        cooperative: bool = False,
        workers: int = 1,
        max_steps: int | None = None,
        timeout: float | None = None,
        limit: float | None = None,
        watch: Callable[[], None] | None = None,
        strict: bool = False,
        allow: Collection[str] = (),
    ) -> LaunchResult:
        """Runs a kernel to its end.

        ``entry``: the kernel's name, mangled, demangled, or a part that no other kernel has. ``grid``, ``cluster``,
        ``block``: 1 to 3 sizes, x first; the grid counts CTAs. Sizes that the PTX requires (``.reqntid``,
        ``.reqnctapercluster``) may be omitted. ``dynamic_smem``: bytes. ``arguments``: one per kernel parameter, in
        order or by name: a TensorMap, an int, a float, a NumPy scalar, bytes, None (null), or the fields of a struct as
        a tuple or dict (see `emugpu.emulator.arguments`). ``progress`` is called with (clusters done, all clusters).
        ``sinks`` get every event of the run. ``regions``: names of parts of dynamic shared memory, for messages.
        ``gpu``: the target whose GPU runs the kernel, with its SMs and their limits; by default that of the module.
        ``resident_clusters``: how many clusters the GPU holds at once; by default as many as it has room for.
        ``cooperative``: all CTAs run at once, and have the workspace that cooperative_groups' ``grid.sync`` needs.
        ``workers``: the number of processes that share the clusters, for kernels whose clusters are independent.
        ``max_steps`` (warp instructions, by default a billion) ends a run that takes longer, ``timeout`` one of which
        no cluster has ended for so many seconds, ``limit`` one that takes so many seconds in all.
        ``watch`` is called now and then; an exception that it raises ends the run. If no cluster ends for half a
        minute, a warning of Python's logging says where the run is. ``strict``: warnings become Faults, except for the
        rules in ``allow``. Errors always end the run.

        Raises LaunchError for a wrong launch, Fault if the program breaks a rule of the machine, Deadlock if nothing
        can go on, Livelock if warps only poll, LimitExceeded. The message says where.
        """
        code = module.code(entry)
        addresses = self._addresses(module, code)
        parameters = pack(code.kernel, arguments)
        shape = _shape(
            code,
            grid,
            block,
            cluster,
            dynamic_smem,
            parameters=parameters.data,
            tensor_maps={at: (name, map.in_units) for at, (name, map) in parameters.maps.items()},
            regions=tuple(regions),
        )
        gpu = gpu or module.target
        _check(code, shape, gpu)
        _check_rules(allow)
        capacity = _capacity(code, shape, gpu, resident_clusters)
        if cooperative and shape.cluster_count > capacity:
            clusters = "CTAs" if shape.cluster_size == 1 else f"clusters of {shape.cluster_size} CTAs"
            raise LaunchError(
                f"grid {shape.grid}: a cooperative grid runs all at once, and the GPU has room for {capacity} "
                f"{clusters} of this kernel, not {shape.cluster_count}"
            )
        for name, value in (("workers", workers), ("max_steps", max_steps), ("timeout", timeout), ("limit", limit)):
            if value is not None and not value > 0:
                raise LaunchError(f"{name} {value}: must be above 0")
        limits = Limits(max_steps or MOST_STEPS, timeout, limit, watch)
        if cooperative:
            shape = replace(
                shape, workspace=self.upload(np.zeros(WORKSPACE, np.uint8), "the cooperative grid's barrier")
            )
        start = time.perf_counter()

        def make_grid() -> tuple[Grid, Machine]:
            schedule = self._make_schedule()
            findings = Findings(strict, allow)
            sink = fan_out(tuple(sinks))
            unit, constants = self._mma_unit, self._constants
            unwritten = self._uninitialised, self._seed
            grid = Grid(code, shape, self._memory, unit, schedule, findings, sink, addresses, constants, *unwritten)
            grid.architecture = architecture(gpu)
            grid.sms = usual_gpu(grid.architecture).sms
            self._memory.unwritten = self._constants.unwritten = grid.unwritten
            clusters = Clusters(shape.cluster_count, capacity, shape.cluster_size, schedule.reverses)
            return grid, self._make_machine(grid, schedule, clusters, limits)

        if workers > 1:
            reason = "event sinks see what happens in one process only" if sinks else self.why_one_worker(code)
            if reason:
                raise LaunchError(f"cannot run with several workers: {reason}; run with one")
            counters, findings = run_in_processes(make_grid, workers, shape.cluster_count, progress)
            printed: list[Printed] = []
        else:
            running, machine = make_grid()
            if running.sink is not None:
                dynamic = RESERVED_SHARED + code.static_shared
                running.sink(GridStarted(shape, self._memory.ranges(), dynamic, code.sites, code.values))
            printed = running.printed
            try:
                counters, findings = machine.run(progress), running.findings
            except EmulatorError as error:
                error.output = "".join(p.text for p in printed)
                error.warnings = running.findings.as_tuple()
                raise
            finally:
                self._memory.unwritten = self._constants.unwritten = FAULT
                if shape.workspace:
                    self._memory.remove(self._memory.find(shape.workspace, WORKSPACE)[0])
        return LaunchResult(counters, time.perf_counter() - start, findings.as_tuple(), tuple(printed))


WORKSPACE = 64
"""Bytes of a cooperative grid's workspace. Its barrier is the second word."""


def _check_rules(allow: Collection[str]) -> None:
    for name in allow:
        if name not in RULES:
            raise LaunchError(f"allow '{name}': no such rule; the rules are {', '.join(RULES)}")


def _capacity(code: Code, launch: KernelLaunch, target: str, asked: int | None) -> int:
    """Returns how many clusters are resident at once."""
    if asked is not None:
        if asked < 1:
            raise LaunchError(f"resident_clusters {asked}: must be at least 1")
        return asked
    shared = RESERVED_SHARED + code.static_shared + launch.dynamic_shared
    return residency(target, launch.cluster_size, shared, launch.threads, registers_at_entry(code.kernel))


def _shape(
    code: Code, grid: Dim3, block: Dim3 | None, cluster: Dim3 | None, dynamic_smem: int, **more: Any
) -> KernelLaunch:
    if cluster is None:
        cluster = code.kernel.directives.get("reqnctapercluster") or 1
    return KernelLaunch(
        grid=_dim3("grid", grid),
        cluster=_dim3("cluster", cluster),
        block=_block(code.kernel, block),
        dynamic_shared=dynamic_smem,
        **more,
    )


def some_start_later(
    module: Module,
    entry: str | None,
    *,
    grid: Dim3,
    block: Dim3 | None,
    cluster: Dim3 | None,
    dynamic_smem: int,
    resident_clusters: int | None,
) -> bool:
    """Returns whether the GPU has no room for all clusters at once. The arguments are those of `Device.launch`."""
    code = module.code(entry)
    shape = _shape(code, grid, block, cluster, dynamic_smem, parameters=b"")
    return shape.cluster_count > _capacity(code, shape, module.target, resident_clusters)


def _dim3(name: str, value: Dim3) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(sizes) <= 3 or any(int(s) != s or s < 1 for s in sizes):
        raise LaunchError(f"{name} {value}: give 1 to 3 sizes of at least 1")
    x, y, z = (*sizes, 1, 1)[:3]
    return int(x), int(y), int(z)


def _block(kernel: PtxKernel, asked: Dim3 | None) -> tuple[int, int, int]:
    required = kernel.directives.get("reqntid")
    if asked is None and not required:
        raise LaunchError(f"block: none is given, and kernel '{readable_name(kernel.name)}' has no .reqntid; give one")
    return _dim3("block", asked if asked is not None else required or ())


def _check(code: Code, launch: KernelLaunch, target: str) -> None:
    """Checks a launch against the limits of the device and the kernel's own directives."""
    kernel, directives = code.kernel, code.kernel.directives
    threads = launch.threads
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
    size = launch.cluster_size
    if size > MAX_CLUSTER:
        raise LaunchError(f"cluster {launch.cluster} has {size} CTAs; the limit is {MAX_CLUSTER}")
    for axis, g, c, most in zip("xyz", launch.grid, launch.cluster, MAX_GRID, strict=True):
        if g > most:
            raise LaunchError(f"grid.{axis} = {g}: the limit is {most}")
        if g % c:
            raise LaunchError(f"grid.{axis} = {g} is not a multiple of the cluster's {c}")
    if launch.dynamic_shared < 0:
        raise LaunchError(f"dynamic shared memory {launch.dynamic_shared} bytes: must be 0 or more")
    shared = code.static_shared + launch.dynamic_shared
    most = sm_limits(target).shared - RESERVED_SHARED
    if shared > most:
        raise LaunchError(f"shared memory {shared} bytes (static and dynamic) exceeds the limit of {most}")
