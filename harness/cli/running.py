"""What ``run`` and ``compare`` share: options become requests, requests become results, results are kept."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from emugpu.cli.options import NamedPath, check_output, given_options, launch_timeout_option, refuse_seed_of_fifo
from emugpu.cli.program import print_error, warn
from emugpu.cli.render import progress_bar, show_line
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_OK, EXIT_WRONG_RESULT, CannotRun, UsageProblem
from emugpu.launch.spec import read_ptx
from emugpu.processes.engine import in_order
from harness.cli.options import GPU_SILENCE, ConfigOptions, OutputOptions, RunOptions, own_or_named
from harness.cli.repeat import command_of
from harness.compile import planner
from harness.compile.artifacts import Artifact
from harness.compile.catalog import KERNELS, kernels_of
from harness.compile.compiler import Gpu
from harness.compile.config import OPTIONS, KernelConfig, find_kernel
from harness.problem import Shape, check_kind
from harness.run import records
from harness.run.compare import Entry
from harness.run.runner import (
    EMULATED_GPU,
    NoDevice,
    Outcome,
    Progress,
    Request,
    ScheduleProblem,
    check_memory,
    choose_device,
)
from harness.run.runner import run as run_request
from harness.run.tuned import configuration_for


def kernels_named(words: Sequence[str], dtype: str | None) -> list[str]:
    """Each kernel once, in the order they are named in; ``all`` names all that multiply the type asked for."""
    return list(dict.fromkeys(name for word in words for name in (kernels_of(dtype) if word == "all" else [word])))


def make_requests(
    kernels: Sequence[str], shape: Shape, config: ConfigOptions, run: RunOptions, output: OutputOptions
) -> list[Request]:
    """Returns a request for each kernel. What would make a run fail later is found here, before anything is built."""
    check_output(output.json_path, "--json")
    emulation = run.emulation
    if run.device == EMULATED_GPU and emulation.resident_clusters is not None:
        raise UsageProblem(
            f"--resident-clusters {emulation.resident_clusters} is for launches by the harness itself; leave it out, "
            "or take --device emulator"
        )
    check_schedules(run.schedules, emulation.schedule, emulation.uninitialised)
    requests = [_request(kernel, shape, config, run) for kernel in kernels]
    if not output.no_save:
        try:
            for request in requests:
                records.record_file(request.device_kind)
        except CannotRun as error:
            raise CannotRun(f"{error}, or use --no-save") from error
    return requests


def check_schedules(schedules: int, schedule: str, uninitialised: str = "poison") -> None:
    """Refuses what would be ignored: a schedule together with several, a seed where nothing is random."""
    if schedules > 1 and schedule != "fifo":
        raise UsageProblem(
            f"--schedules {schedules} runs fifo and {schedules - 1} random; leave --schedule {schedule} "
            "out, or take --schedules 1"
        )
    if schedules == 1:
        refuse_seed_of_fifo(schedule, uninitialised, "schedule_seed", ", or --schedules N")


def read_edited_for(path: Path | None, run: RunOptions) -> tuple[str | None, RunOptions]:
    """Returns the PTX to run in place of the compiled one, if any; on a GPU MAX compiles and launches the kernels
    itself.
    """
    if path is None:
        return None, run
    if run.device in ("gpu", EMULATED_GPU):
        raise UsageProblem(f"--ptx {path} runs on the emulator only; leave out --device {run.device}")
    return read_ptx(path), replace(run, device="emulator")


def _request(kernel: str, shape: Shape, config: ConfigOptions, run: RunOptions) -> Request:
    try:
        gpu, arch = choose_device(run.device, find_kernel(kernel), config.wanted_arch(kernel))
    except NoDevice as error:
        raise CannotRun(f"{error}; use --device emulator") from None
    if gpu and (run.schedules > 1 or run.emulation.schedule != "fifo"):
        raise UsageProblem(f"schedules are the emulator's, and {gpu.name} would run the kernel; add --device emulator")
    request = Request(
        config=_configuration(kernel, shape, config.but(arch=arch), gpu, run.tuned),
        shape=shape,
        inputs=run.inputs or ("normal" if gpu else "integer"),
        seed=run.seed,
        emulation=run.emulation,
        through_max=run.device == EMULATED_GPU,
        schedules=run.schedules,
        gpu=gpu,
        timeout=run.emulation.timeout or GPU_SILENCE,
        ptxas=run.ptxas,
    )
    check_kind(request.inputs, request.config.dtype)
    planner.plan_json(request.config.options(), shape)  # refuses sizes before anything is compiled for them
    check_memory(shape, request.config.dtype)
    return request


def _configuration(kernel: str, shape: Shape, asked: ConfigOptions, gpu: Gpu | None, tuned: bool) -> KernelConfig:
    """What is asked for; where that is nothing, what was found to be best on this GPU."""
    plain = asked.configure(kernel, shape)
    if gpu is None or not tuned or not asked.asks_nothing:
        return plain
    console = Console(stderr=True)
    found = configuration_for(
        gpu.kind, kernel, plain.arch, plain.dtype, shape, lambda message: show_line(console, message, "yellow")
    )
    if found is None or found == plain:
        return plain
    show_line(console, f"{found.label}, as harness tune has found; --no-tuned runs the default")
    return found


def attempt_all(pairs: Sequence[tuple[Request, Artifact]], labels: Sequence[str]) -> Iterator[Entry]:
    """Runs each, in this order, and says which have no result, with its label; the processes of ``--jobs`` share them
    if there are several. What is timed on a GPU is timed alone.
    """
    jobs = min(pairs[0][0].emulation.jobs, len(pairs))
    several = jobs > 1 and not pairs[0][0].gpu
    for entry, label in zip(_side_by_side(pairs, jobs) if several else map(_alone, pairs), labels, strict=True):
        if entry.failure:
            print_error(f"{label}{entry.failure}", EXIT_CANNOT_RUN)
        yield entry


def _side_by_side(pairs: Sequence[tuple[Request, Artifact]], jobs: int) -> Iterator[Entry]:
    alone = [(replace(request, emulation=replace(request.emulation, jobs=1)), artifact) for request, artifact in pairs]
    with progress_bar("emulating", "kernels") as report:
        for number, entry in enumerate(in_order(_attempt, alone, jobs), 1):
            report(number, len(alone))
            yield entry


def _alone(pair: tuple[Request, Artifact]) -> Entry:
    request = pair[0]
    doing = "running" if request.gpu or request.through_max else "emulating"
    with progress_bar(f"{doing} {request.config.kernel}", "clusters") as report:
        return _attempt(pair, report)


def _attempt(pair: tuple[Request, Artifact], progress: Progress | None = None) -> Entry:
    request, artifact = pair
    try:
        return Entry(request.config, run_request(request, artifact, progress=progress), edited=request.ptx)
    except CannotRun as error:
        again = f"\nto repeat: {command_of(error.request)}" if isinstance(error, ScheduleProblem) else ""
        return Entry(request.config, None, f"{error}{again}", request.ptx)


def save(outcome: Outcome) -> Path | None:
    """Adds the record to its file, before it is reported: a reader that goes away must not cost it.

    A record that cannot be kept must not cost the result: it is said, and None comes back.
    """
    try:
        path = records.record_file(outcome.request.device_kind)
        records.append(path, outcome.record)
    except CannotRun as error:
        warn(str(error))
        return None
    return path


OF_KERNELS = (
    "shape",
    "groups",
    "masked",
    "preset",
    *OPTIONS,
    "ptx_file",
    "ptx",
    "inputs",
    "tuned",
    "what_if",
)
"""Parameters that say what a kernel is compiled to, and what it computes: a launch file says so itself."""


def read_target(words: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """What a command is to look at, by its words, and whether that is a program with its arguments and not a kernel or
    launch files. Takes in a Mojo file. Raises UsageProblem for a word that is nothing of the kind."""
    found = (own_or_named(words[0]), *words[1:])
    if found[0] in KERNELS or found[0].endswith(".toml"):
        return found, False
    if shutil.which(found[0]) is None:
        kernels, file = ", ".join(KERNELS), Path(found[0])
        ways = {
            ".ptx": f"make a launch file of it: harness ptx init {file} -o {file.stem}.toml",
            ".py": f"name what runs it, too: -- python {file}",
            ".cu": "compile it first, to a program, or to PTX: nvcc -ptx",
        }
        raise UsageProblem(
            f"{found[0]!r} is no kernel ({kernels}), no FILE.mojo or LAUNCH.toml, and no program that can be started; "
            f"{ways.get(file.suffix, 'name one')}"
        )
    return found, True


def launch_files_named(words: Sequence[str | Path]) -> list[Path]:
    """Returns the launch files among the words, which then are all of them: a name that ends in .toml, or that of a
    file.
    """
    files = [Path(word) for word in words if isinstance(word, Path) or _is_file(word)]
    if files and len(files) != len(words):
        kernels = ", ".join(str(word) for word in words if not isinstance(word, Path) and not _is_file(word))
        raise UsageProblem(f"{files[0]} is a launch file, and {kernels} none; name kernels or launch files, not both")
    return files


def _is_file(word: str) -> bool:
    return word.endswith(".toml") or (word not in (*KERNELS, "all") and Path(word).is_file())


def one_launch_file(words: Sequence[str | Path]) -> Path | None:
    """Returns the launch file that is named; None: kernels are."""
    files = launch_files_named(words)
    if len(files) > 1:
        raise UsageProblem(f"{len(files)} launch files are named, {', '.join(map(str, files))}; name one")
    return files[0] if files else None


def refuse_what_kernels_have(file: Path, *more: str) -> None:
    """Options that a launch file has no use for must not be ignored."""
    ignored = given_options(*OF_KERNELS, *more)
    if ignored:
        raise UsageProblem(f"{file} says itself what is launched; leave {', '.join(ignored)} out")


def for_launch_files(command: click.Command, text: str, without: Collection[str] = ()) -> click.Command:
    """Returns a command of ``harness ptx``: the same, with the options that launch files have. text: its help."""
    left_out = (*OF_KERNELS, "kernels", *without)
    kept = [_of_launch_files(p) for p in command.params if p.name not in left_out]
    callback = command.callback
    assert callback is not None

    @wraps(callback)
    def with_defaults(**values: Any) -> Any:
        defaults = command.make_context(command.name, ["-"], resilient_parsing=True).params
        return callback(**{**defaults, **values})

    return click.Command(command.name, params=[_FILES, *kept], callback=with_defaults, help=text)


def _of_launch_files(parameter: click.Parameter) -> click.Parameter:
    """The same option as launch files have it: a limit for each launch; and the seed of the schedules may be called
    --seed, as no inputs are drawn.
    """
    if parameter.name == "timeout":
        return _parameter(launch_timeout_option)
    if parameter.name == "schedule_seed":
        parameter = copy(parameter)
        parameter.opts = [*parameter.opts, "--seed"]
    return parameter


def _parameter(option: Any) -> click.Parameter:
    """The parameter that a decorator adds."""

    @option
    def command() -> None: ...

    parameter: click.Parameter = command.__click_params__[0]
    return parameter


_FILES = click.Argument(["kernels"], nargs=-1, required=True, metavar="LAUNCH.toml", type=NamedPath(path_type=Path))


def exit_code(entries: Sequence[Entry]) -> int:
    """A wrong result outweighs a kernel that could not run."""
    if any(entry.outcome and not entry.outcome.validation.passed for entry in entries):
        return EXIT_WRONG_RESULT
    return EXIT_OK if all(entry.outcome for entry in entries) else EXIT_CANNOT_RUN
