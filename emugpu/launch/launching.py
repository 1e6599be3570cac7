"""Runs a launchable on an emulated GPU, with its memory, launches and expectations, under one or several schedules."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from emugpu.emulator import Device, EmulatorError, LaunchError, LaunchResult, Module, PtxSyntaxError, RuleWarning
from emugpu.emulator.machine.counters import MAXIMA
from emugpu.emulator.machine.grid import emulated_name
from emugpu.emulator.machine.sinks import Sink, can_defer, fan_out
from emugpu.emulator.memory.global_memory import GlobalMemory
from emugpu.emulator.memory.unwritten import Uninitialised
from emugpu.emulator.names import find_name, readable_name
from emugpu.emulator.native.library import Engine, library_for
from emugpu.emulator.ptx.ast import PtxKernel
from emugpu.emulator.ptx.sections import blank_kernels, kernel_sections
from emugpu.errors import CannotRun, UsageProblem
from emugpu.launch.listing import compiler_of
from emugpu.launch.memory import LaunchMemory, require_host_memory
from emugpu.launch.spec import ExpectationResult, Launch, Launchable, target_of
from emugpu.processes.engine import in_order

Accumulation = Literal["f32", "tensor_core"]
Schedule = Literal["fifo", "random", "declining", "reversed"]
LARGEST_SEED = 2**32 - 1
"""The largest seed of inputs, and of random schedules."""


@dataclass(frozen=True)
class EmulationOptions:
    """How to emulate.

    ``jobs`` is the number of processes. ``resident_clusters`` is the number of clusters that run at the same time;
    None: as many as the GPU holds. ``max_steps`` (warp instructions) and ``timeout`` (seconds without a cluster ending)
    limit a launch; None: no limit. ``strict``: a breach of a rule that hardware is known to tolerate is an error,
    except for the rules in ``allow``. ``uninitialised`` selects the values that kernels read from unwritten memory
    (`emugpu.emulator.memory.unwritten`). ``sinks`` receive every event. ``engine`` selects the interpreter of plain
    code; the results are the same.
    """

    accumulation: Accumulation = "f32"
    schedule: Schedule = "fifo"
    seed: int = 0
    jobs: int = 1
    resident_clusters: int | None = None
    max_steps: int | None = None
    timeout: float | None = None
    strict: bool = True
    allow: tuple[str, ...] = ()
    uninitialised: Uninitialised = "poison"
    sinks: tuple[Sink, ...] = ()
    engine: Engine = "native"

    def make_device(self, memory: GlobalMemory | None = None, constants: GlobalMemory | None = None) -> Device:
        """Returns an emulated GPU with these options; ``memory`` and ``constants`` are those of `Device`."""
        library = library_for(self.engine_used)
        return Device(self.accumulation, self.schedule, self.seed, memory, constants, self.uninitialised, library)

    @property
    def engine_used(self) -> Engine:
        """Returns the engine that runs: the native engine needs its library, and sinks that accept events later."""
        return "native" if can_defer(fan_out(self.sinks)) and library_for(self.engine) is not None else "python"

    @property
    def schedule_name(self) -> str:
        return f"{self.schedule} schedule{f' of seed {self.seed}' if self.schedule == 'random' else ''}"


STRICT = EmulationOptions()
TOLERANT = EmulationOptions(strict=False)


def name_schedules(schedule: str, seed: int, count: int = 1) -> str:
    """Returns a description of the schedules of `under_schedules`, with their seeds."""
    if count == 1:
        return f"{schedule} schedule" + (f", seed {seed}" if schedule == "random" else "")
    random = f"a random one of seed {seed}" if count == 2 else f"random ones of seeds {seed} to {seed + count - 2}"
    return f"{count} schedules: fifo, and {random}"


def under_schedules(options: EmulationOptions, count: int) -> list[EmulationOptions]:
    """Returns the options under ``count`` schedules: fifo, then random ones with consecutive seeds.

    A single schedule is the one that the options name.
    """
    if count == 1:
        return [options]
    seeds = range(options.seed, options.seed + count - 1)
    return [replace(options, schedule="fifo"), *(replace(options, schedule="random", seed=seed) for seed in seeds)]


Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Launched:
    """A launch that has ended. ``kernel`` is its full name. ``result`` is None on a GPU, which has no counters."""

    where: str
    kernel: str
    grid: tuple[int, ...]
    result: LaunchResult | None


@dataclass(frozen=True)
class LaunchOutcome:
    """The outcome of a run.

    ``device`` describes the device as plain data. ``verdicts`` are those of the expectations. ``contents`` holds the
    final values of buffers and symbols.
    """

    what: Launchable
    device: Mapping[str, Any]
    target: str
    launched: tuple[Launched, ...]
    verdicts: tuple[ExpectationResult, ...]
    seconds: float
    contents: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(verdict.passed for verdict in self.verdicts)

    @property
    def results(self) -> list[LaunchResult]:
        """Returns the emulator's results, launch by launch."""
        return [one.result for one in self.launched if one.result]

    @property
    def warnings(self) -> tuple[RuleWarning, ...]:
        """Returns the warnings of all launches; equal ones become one."""
        found: dict[tuple[str, int, str], RuleWarning] = {}
        for finding in (f for result in self.results for f in result.warnings):
            key = (finding.rule, finding.line, finding.message)
            known = found.get(key)
            found[key] = replace(finding, count=finding.count + (known.count if known else 0))
        return tuple(found.values())

    @property
    def output(self) -> str:
        """Returns what the kernels printed."""
        return "".join(result.output for result in self.results)

    @property
    def counters(self) -> dict[str, Any]:
        """Returns the counters of all launches together."""
        return add_counters([result.counters.as_dict() for result in self.results])

    @property
    def why_no_time(self) -> str:
        return f"not measured: {'emulated' if self.results else 'run once'}"

    @property
    def compiler(self) -> str:
        """Returns the compiler that wrote the PTX, or "" if it is unknown."""
        return compiler_of(self.what.text)

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "launch_file": str(self.what.file),
            "ptx": {
                "file": str(self.what.ptx),
                "sha256": hashlib.sha256(self.what.text.encode()).hexdigest(),
                "target": self.target,
                "compiler": self.compiler,
            },
            "device": dict(self.device),
            "launches": [
                {
                    "kernel": one.kernel,
                    "grid": list(one.grid),
                    "counters": one.result.counters.as_dict() if one.result else {},
                }
                for one in self.launched
            ],
            "validation": self._validation(),
            "counters": self.counters,
            "warnings": [asdict(finding) for finding in self.warnings],
            "output": self.output,
            "timing": {"seconds": None, "reason": self.why_no_time},
        }

    def _validation(self) -> dict[str, Any] | None:
        if not self.verdicts:
            return None
        return {
            "passed": self.passed,
            "exact": all(v.exact for v in self.verdicts),
            "elements": sum(v.elements for v in self.verdicts),
            "mismatches": sum(v.mismatches for v in self.verdicts),
            "expectations": [v.as_dict() for v in self.verdicts],
        }


def run(
    what: Launchable,
    options: EmulationOptions = STRICT,
    progress: Progress | None = None,
    device: Device | None = None,
    keep: Collection[str] | None = None,
) -> LaunchOutcome:
    """Runs a launchable once.

    ``device`` is an empty device to run it on, in place of one that the options describe. ``keep`` lists the buffers
    whose values the outcome keeps; None: all.

    Raises UsageProblem for an error in a launch file, CannotRun if a kernel cannot be parsed or ends with an error.
    """
    module = load_module(what)
    for wanted in what.maps.values():
        if wanted.gpu_swizzle:
            raise CannotRun(f"{what.place(f'maps.{wanted.name}')}: swizzle {wanted.gpu_swizzle} works only on a GPU")
    device = device or options.make_device()
    start = time.perf_counter()
    require_host_memory(what)
    try:
        memory = LaunchMemory(what, device, module)
    except (MemoryError, OSError) as error:
        where = what.place("not enough memory on this machine for the buffers")
        raise CannotRun(f"{where} ({error}); make them smaller") from error
    launched = tuple(_launch(launch, what, module, device, memory, options, progress) for launch in what.launches)
    seconds = time.perf_counter() - start
    contents = memory.contents(what.buffers if keep is None else keep)
    target = target_of(module.target)
    about = about_device(target, options, seconds)
    return LaunchOutcome(what, about, target, launched, memory.judge(), seconds, contents)


def about_device(target: str, options: EmulationOptions, seconds: float) -> dict[str, Any]:
    """Returns a description of the emulated GPU for `LaunchOutcome`. ``seconds`` is the time of the emulation."""
    return {
        "kind": f"emulated-{target}",
        "name": f"emulated {emulated_name(target)}",
        "accumulation": options.accumulation,
        "schedule": options.schedule,
        "schedule_seed": options.seed,
        "engine": options.engine_used,
        "emulation_seconds": round(seconds, 3),
    }


def load_module(what: Launchable) -> Module:
    """Returns the module with the launched kernels; the emulator need not support the other kernels."""
    try:
        return _module(launched_ptx(what))
    except PtxSyntaxError as error:
        raise CannotRun(f"{what.ptx if what.file else type(error).__name__}: {error}") from error


def launched_ptx(what: Launchable) -> str:
    """Returns the PTX with blanks in place of kernels that are not launched. Raises UsageProblem without a kernel."""
    sections = kernel_sections(what.text)
    names = [section.name for section in sections]
    if not names:
        raise UsageProblem(f"{what.place('ptx')} = {what.ptx.name}: it has no kernel (.entry)")
    wanted = set()
    for launch in what.launches:
        where = what.place(f"{launch.where}.kernel")
        if launch.kernel is None and len(names) > 1:
            listed = ", ".join(map(readable_name, names))
            key = where if what.file else "kernel"  # a key of the launch file, or an argument of `run_ptx`
            raise UsageProblem(f"{key} is missing: {what.ptx.name} has {listed}; name one")
        try:
            wanted.add(names[0] if launch.kernel is None else find_name(launch.kernel, names, "kernel"))
        except LaunchError as error:
            raise UsageProblem(f"{where}: {error}") from None
    require_whole(what.ptx, what.text, wanted)
    return blank_kernels(what.text, lambda name: name not in wanted)


def require_whole(file: Path, text: str, kernels: Collection[str]) -> None:
    """Raises UsageProblem if the text of a file ends in the middle of one of these kernels."""
    for section in kernel_sections(text):
        if section.name in kernels and not section.is_closed:
            line = text.count("\n", 0, section.start) + 1
            raise UsageProblem(
                f"{file}: kernel '{readable_name(section.name)}', PTX line {line}, has no closing brace: the file "
                "ends in the middle of it; write the whole file"
            )


@lru_cache(maxsize=4)
def _module(text: str) -> Module:
    """Translates the text once, for all schedules."""
    return Module.from_text(text)


def _launch(
    launch: Launch,
    what: Launchable,
    module: Module,
    device: Device,
    memory: LaunchMemory,
    options: EmulationOptions,
    progress: Progress | None,
) -> Launched:
    try:
        kernel = module.find(launch.kernel)
        result = device.launch(
            module,
            kernel.name,
            grid=launch.grid,
            cluster=launch.cluster,
            block=launch.block,
            dynamic_smem=launch.dynamic_shared,
            arguments=_arguments(launch, what, memory, kernel),
            progress=progress,
            regions=launch.regions,
            workers=options.jobs,
            resident_clusters=options.resident_clusters,
            cooperative=launch.cooperative,
            max_steps=options.max_steps,
            timeout=options.timeout,
            strict=options.strict,
            allow=options.allow,
            sinks=options.sinks,
        )
    except LaunchError as error:
        raise UsageProblem(f"{what.place(launch.where)}: {error}") from error
    except EmulatorError as error:
        where = f"{what.place(launch.where)}: " if what.file else ""
        found = "".join(f"\n  warning {w.rule}: {w.message}" for w in error.warnings)
        raise CannotRun(f"{where}{type(error).__name__}: {error}{found}") from error
    return Launched(launch.where, kernel.name, launch.grid, result)


def _arguments(launch: Launch, what: Launchable, memory: LaunchMemory, kernel: PtxKernel) -> list[Any]:
    try:
        return memory.arguments(launch, kernel)
    except OverflowError as error:
        raise UsageProblem(f"{what.place(launch.where)}.arguments: {error}") from error


def add_counters(several: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the joint counters of several launches: the largest value of each maximum, and sums of the others."""
    total: dict[str, Any] = {}
    for counters in several:
        for name, value in counters.items():
            if isinstance(value, dict):
                total[name] = add_counters([total.get(name, {}), value])
            elif name in MAXIMA:
                total[name] = max(total.get(name, 0), value)
            else:
                total[name] = total.get(name, 0) + value
    return total


@dataclass(frozen=True)
class ScheduleOutcome:
    """The outcome of one schedule, or the reason why there is none. ``options`` include the schedule."""

    options: EmulationOptions
    outcome: LaunchOutcome | None
    error: str = ""

    @property
    def seed(self) -> int | None:
        """Returns the seed of a random schedule, or None for another schedule."""
        return self.options.seed if self.options.schedule == "random" else None

    @property
    def name(self) -> str:
        return self.options.schedule if self.seed is None else f"seed {self.seed}"

    def require(self) -> LaunchOutcome:
        """Returns the outcome. Raises CannotRun if there is none."""
        if self.outcome is None:
            raise CannotRun(self.error)
        return self.outcome

    @property
    def passed(self) -> bool:
        return self.outcome is not None and self.outcome.passed


def run_schedules(
    what: Launchable,
    options: EmulationOptions,
    count: int,
    progress: Progress | None = None,
    keep: Collection[str] | None = None,
) -> Iterator[ScheduleOutcome]:
    """Yields the outcomes of the schedules in the order of `under_schedules`, each as soon as it is done.

    With one schedule, the processes share its clusters; with several, whole runs are parallel. ``keep`` is that of
    `emugpu.launch.launching.run`. ``progress`` is called with the number of parts done and the number of all parts.
    Raises UsageProblem for an error in a launch file.
    """
    each = under_schedules(options if count == 1 else replace(options, jobs=1), count)
    if count == 1 or options.jobs == 1:
        for number, one in enumerate(each):
            yield _try(what, keep, one, _share(progress, number, count))
        return
    for number, tried in enumerate(in_order(partial(_try, what, keep), each, min(options.jobs, count)), 1):
        if progress:
            progress(number, count)
        yield tried


def _try(
    what: Launchable, keep: Collection[str] | None, options: EmulationOptions, progress: Progress | None = None
) -> ScheduleOutcome:
    try:
        return ScheduleOutcome(options, run(what, options, progress, keep=keep))
    except CannotRun as error:
        return ScheduleOutcome(options, None, str(error))


def _share(progress: Progress | None, before: int, count: int) -> Progress | None:
    """Returns a callback that reports the progress of one of several runs as a part of all of them."""
    if progress is None:
        return None
    return lambda done, total: progress(before * total + done, count * total)
