"""Runs a launch file on an emulated GPU: memory, launches in order, expectations, and a record of it all."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from numpy.typing import NDArray

from harness.emulator import Device, EmulatorError, Finding, LaunchError, LaunchResult, Module, PtxSyntaxError
from harness.emulator.names import find_name, readable_name
from harness.emulator.ptx.sections import blank_kernels, kernel_sections
from harness.errors import CannotRun, UsageProblem
from harness.launch.arguments import make_arguments
from harness.launch.listing import compiler_of, read_ptx, target_of
from harness.launch.memory import Memory
from harness.launch.spec import Launch, LaunchFile
from harness.launch.verdict import Verdict
from harness.run import records
from harness.run.emulate import EmulationOptions

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Options(EmulationOptions):
    """How to emulate: warnings are no errors unless strict."""

    strict: bool = False


@dataclass(frozen=True)
class Launched:
    """One launch that has ended. kernel: its full name."""

    where: str
    kernel: str
    grid: tuple[int, ...]
    result: LaunchResult


@dataclass(frozen=True)
class Outcome:
    """What a launch file gave. verdicts: of its expectations. contents: of buffers and symbols at the end."""

    file: LaunchFile
    options: Options
    target: str
    compiler: str
    ptx_sha256: str
    launched: tuple[Launched, ...]
    verdicts: tuple[Verdict, ...]
    seconds: float
    contents: Mapping[str, NDArray] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(verdict.passed for verdict in self.verdicts)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Of all launches; equal ones are one."""
        found: dict[tuple[str, int, str], Finding] = {}
        for finding in (f for one in self.launched for f in one.result.warnings):
            key = (finding.rule, finding.line, finding.message)
            known = found.get(key)
            found[key] = replace(finding, count=finding.count + (known.count if known else 0))
        return tuple(found.values())

    @property
    def output(self) -> str:
        """What the kernels printed."""
        return "".join(one.result.output for one in self.launched)

    def record(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **records.new_record(),
            "launch_file": str(self.file.path),
            "ptx": {
                "file": str(self.file.ptx),
                "sha256": self.ptx_sha256,
                "target": self.target,
                "compiler": self.compiler,
            },
            "device": {
                "kind": f"emulated-{self.target}",
                "name": f"emulated {self.target}",
                "accumulation": self.options.accumulation,
                "schedule": self.options.schedule,
                "schedule_seed": self.options.seed,
                "emulation_seconds": round(self.seconds, 3),
            },
            "launches": [
                {"kernel": one.kernel, "grid": list(one.grid), "counters": one.result.counters.as_dict()}
                for one in self.launched
            ],
            "validation": self._validation(),
            "counters": add_counters([one.result.counters.as_dict() for one in self.launched]),
            "warnings": [asdict(finding) for finding in self.warnings],
            "output": self.output,
            "timing": {"seconds": None, "reason": "not measured: emulated"},
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


DEFAULT = Options()


def run(
    file: LaunchFile, options: Options = DEFAULT, progress: Progress | None = None, device: Device | None = None
) -> Outcome:
    """Runs a launch file once. device: an empty one to run it on, in place of one that the options describe.

    Raises UsageProblem for what the file asks wrongly, CannotRun if a kernel is not understood or does not end well.
    """
    text = read_ptx(file.ptx)
    module = load_module(text, file)
    device = device or Device(options.accumulation, options.schedule, options.seed)
    start = time.perf_counter()
    try:
        memory = Memory(file, device, module)
    except (MemoryError, OSError) as error:
        raise CannotRun(
            f"{file.path}: this machine has no memory for the buffers ({error}); make them smaller"
        ) from error
    launched = tuple(_launch(launch, file, module, device, memory, options, progress) for launch in file.launches)
    seconds = time.perf_counter() - start
    return Outcome(
        file,
        options,
        target_of(module.target),
        compiler_of(text),
        hashlib.sha256(text.encode()).hexdigest(),
        launched,
        tuple(memory.judge(expectation) for expectation in file.expectations),
        seconds,
        memory.contents(),
    )


def load_module(text: str, file: LaunchFile) -> Module:
    """The module with the kernels that the file launches; others need not be understood."""
    names = [section.name for section in kernel_sections(text)]
    if not names:
        raise UsageProblem(f"{file.path}: ptx = {file.ptx.name}: it has no kernel (.entry)")
    wanted = set()
    for launch in file.launches:
        if launch.kernel is None and len(names) > 1:
            listed = ", ".join(map(readable_name, names))
            raise UsageProblem(f"{file.path}: {launch.where}.kernel is missing: {file.ptx.name} has {listed}; name one")
        try:
            wanted.add(names[0] if launch.kernel is None else find_name(launch.kernel, names, "kernel"))
        except LaunchError as error:
            raise UsageProblem(f"{file.path}: {launch.where}.kernel: {error}") from None
    try:
        return _module(text, frozenset(wanted))
    except PtxSyntaxError as error:
        raise CannotRun(f"{file.ptx}: {error}") from error


@lru_cache(maxsize=4)
def _module(text: str, wanted: frozenset[str]) -> Module:
    """Translated once, for all schedules."""
    return Module.from_text(blank_kernels(text, lambda name: name not in wanted))


def _launch(
    launch: Launch,
    file: LaunchFile,
    module: Module,
    device: Device,
    memory: Memory,
    options: Options,
    progress: Progress | None,
) -> Launched:
    where = f"{file.path}: {launch.where}"
    try:
        kernel = module.find(launch.kernel)
        result = device.launch(
            module,
            kernel.name,
            grid=launch.grid,
            cluster=launch.cluster,
            block=launch.block,
            dynamic_smem=launch.dynamic_shared,
            arguments=make_arguments(launch, kernel, memory),
            progress=progress,
            workers=options.jobs,
            resident_clusters=options.resident_clusters,
            max_steps=options.max_steps,
            timeout=options.timeout,
            strict=options.strict,
            allow=options.allow,
            sinks=options.sinks,
        )
    except LaunchError as error:
        raise UsageProblem(f"{where}: {error}") from error
    except OverflowError as error:
        raise UsageProblem(f"{where}.arguments: {error}") from error
    except EmulatorError as error:
        raise CannotRun(f"{where}: {type(error).__name__}: {error}") from error
    return Launched(launch.where, kernel.name, launch.grid, result)


def add_counters(several: list[dict[str, Any]]) -> dict[str, Any]:
    """Counters of several launches together: sums, and of those that are a maximum the greatest."""
    total: dict[str, Any] = {}
    for counters in several:
        for name, value in counters.items():
            if isinstance(value, dict):
                total[name] = add_counters([total.get(name, {}), value])
            elif name in _GREATEST:
                total[name] = max(total.get(name, 0), value)
            else:
                total[name] = total.get(name, 0) + value
    return total


_GREATEST = ("max_stores_in_flight", "tmem_columns")
