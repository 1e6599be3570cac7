"""The part that ``run`` and ``compare`` share: it turns options into requests, runs them and saves the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from emugpu.cli.emulation import GPU_SILENCE, Emulation
from emugpu.cli.program import print_error, warn
from emugpu.cli.render import progress_bar, show_line
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_OK, EXIT_WRONG_RESULT, CannotRun, UsageProblem
from emugpu.launch.spec import read_ptx
from emugpu.processes.engine import in_order
from harness.cli.options import ConfigOptions, Problem
from harness.cli.repeat import command_of
from harness.compile.artifacts import Artifact, build_with_notice, plan_json
from harness.compile.catalog import kernels_of
from harness.compile.compiler import Gpu
from harness.compile.config import KernelConfig, find_kernel
from harness.launch.tuned import configuration_for
from harness.problem import Shape, check_kind
from harness.run import records
from harness.run.case import Request
from harness.run.compare import ComparedKernel
from harness.run.edited import put_in_place
from harness.run.runner import NoDevice, Outcome, Progress, ScheduleProblem, check_memory, choose_device
from harness.run.runner import run as run_request


@dataclass(frozen=True)
class RunOptions:
    """How kernels run. ``ptx_file`` replaces the compiled PTX; only the emulator runs it."""

    device: str
    emulation: Emulation
    ptx_file: Path | None = None
    no_save: bool = False


@dataclass(frozen=True)
class Prepared:
    """A run that is ready to start. ``setting`` is that of `ConfigOptions`."""

    request: Request
    artifact: Artifact
    setting: str = ""

    def entry(self, outcome: Outcome | None, failure: str | None = None) -> ComparedKernel:
        return ComparedKernel(self.request.config, outcome, failure, self.request.ptx, self.setting)


def kernels_named(words: Sequence[str], dtype: str | None) -> list[str]:
    """Returns the word for each kernel once, in the order of the words; ``all`` stands for all kernels that multiply
    ``dtype``.
    """
    for word in words:
        if word.endswith(".toml"):
            raise UsageProblem(f"{word} is a launch file, not a kernel; emugpu runs it: emugpu run {word}")
    named = [name for word in words for name in (kernels_of(dtype) if word == "all" else [word])]
    return list(dict.fromkeys(find_kernel(name).word for name in named))


def prepare(
    words: Sequence[str], problem: Problem, configs: Sequence[ConfigOptions], options: RunOptions, beside: bool = False
) -> list[Prepared]:
    """Returns the compiled runs of each kernel in each configuration.

    Problems that would make a run fail later are found before anything is built. With ``beside``, a kernel whose PTX is
    given also runs as compiled.
    """
    edited = None
    if options.ptx_file is not None:
        if options.device == "gpu":
            raise UsageProblem(f"--ptx {options.ptx_file} runs on the emulator only; leave out --device gpu")
        edited, options = read_ptx(options.ptx_file), replace(options, device="emulator")
    named = [(kernel, config) for config in configs for kernel in kernels_named(words, config.dtype)]
    places = {kernel: place for place, (kernel, _) in reversed([*enumerate(named)])}
    named.sort(key=lambda one: places[one[0]])
    requests = [_request(kernel, problem, config, options) for kernel, config in named]
    if not options.no_save:
        try:
            for request in requests:
                records.record_file(request.device_kind)
        except CannotRun as error:
            raise CannotRun(f"{error}, or use --no-save") from error
    compiled = build_with_notice([request.config for request in requests])
    in_place = put_in_place(options.ptx_file, edited, compiled, problem.shape) if options.ptx_file and edited else {}
    found = []
    for place, (request, artifact, (_, config)) in enumerate(zip(requests, compiled, named, strict=True)):
        if beside or place not in in_place:
            found.append(Prepared(request, artifact, config.setting))
        if place in in_place:
            found.append(Prepared(replace(request, ptx=in_place[place].edited), in_place[place], config.setting))
    return found


def _request(kernel: str, problem: Problem, config: ConfigOptions, options: RunOptions) -> Request:
    emulation, shape = options.emulation, problem.shape
    try:
        gpu, arch = choose_device(options.device, find_kernel(kernel), config.wanted_arch(kernel))
    except NoDevice as error:
        raise CannotRun(f"{error}; use --device emulator") from None
    if gpu:
        emulation.refuse_on_gpu()
    request = Request(
        config=_configuration(kernel, shape, config.but(arch=arch), gpu),
        shape=shape,
        inputs=problem.inputs or ("normal" if gpu else "integer"),
        seed=problem.seed,
        emulation=emulation.options,
        schedules=emulation.schedules,
        gpu=gpu,
        timeout=emulation.options.timeout or GPU_SILENCE,
        ptxas=emulation.ptxas,
    )
    check_kind(request.inputs, request.config.dtype)
    plan_json(request.config, shape)  # refuses sizes before anything is compiled for them
    check_memory(shape, request.config.dtype)
    return request


def _configuration(kernel: str, shape: Shape, asked: ConfigOptions, gpu: Gpu | None) -> KernelConfig:
    """Returns the requested configuration. If nothing is requested, returns the best known one for this GPU."""
    plain = asked.configure(kernel, shape)
    if gpu is None or not asked.asks_nothing:
        return plain
    console = Console(stderr=True)
    found = configuration_for(
        gpu.kind, kernel, plain.arch, plain.dtype, shape, lambda message: show_line(console, message, "yellow")
    )
    if found is None or found == plain:
        return plain
    show_line(console, f"{found.label}, found by harness tune; -c preset=default runs the default")
    return found


def attempt_all(several: Sequence[Prepared], labels: Sequence[str]) -> Iterator[ComparedKernel]:
    """Runs each in this order, and reports those without a result by their labels.

    The processes of ``--jobs`` share emulated runs if there are several. Runs on a GPU are timed one at a time.
    """
    first = several[0].request
    jobs = min(first.emulation.jobs, len(several))
    shared = jobs > 1 and not first.gpu
    for entry, label in zip(_side_by_side(several, jobs) if shared else map(_alone, several), labels, strict=True):
        if entry.failure:
            print_error(f"{label}{entry.failure}", EXIT_CANNOT_RUN)
        yield entry


def _side_by_side(several: Sequence[Prepared], jobs: int) -> Iterator[ComparedKernel]:
    alone = [
        replace(one, request=replace(one.request, emulation=replace(one.request.emulation, jobs=1))) for one in several
    ]
    with progress_bar("emulating", "kernels") as report:
        for number, entry in enumerate(in_order(_attempt, alone, jobs), 1):
            report(number, len(alone))
            yield entry


def _alone(one: Prepared) -> ComparedKernel:
    with progress_bar(
        f"{'running' if one.request.gpu else 'emulating'} {one.request.config.kernel}", "clusters"
    ) as report:
        return _attempt(one, report)


def _attempt(one: Prepared, progress: Progress | None = None) -> ComparedKernel:
    try:
        return one.entry(run_request(one.request, one.artifact, progress=progress))
    except CannotRun as error:
        again = f"\nto repeat: {command_of(error.request)}" if isinstance(error, ScheduleProblem) else ""
        return one.entry(None, f"{error}{again}")


def save(outcome: Outcome) -> Path | None:
    """Adds the record to its file before it is printed, so a closed pipe cannot lose it.

    If the record cannot be written, a message says so, the result is still shown, and the function returns None.
    """
    try:
        path = records.record_file(outcome.request.device_kind)
        records.append(path, outcome.record)
    except CannotRun as error:
        warn(str(error))
        return None
    return path


def exit_code(entries: Sequence[ComparedKernel]) -> int:
    """Returns the exit code. A wrong result outweighs a kernel that could not run."""
    if any(entry.outcome and not entry.outcome.validation.passed for entry in entries):
        return EXIT_WRONG_RESULT
    return EXIT_OK if all(entry.outcome for entry in entries) else EXIT_CANNOT_RUN
