"""The command ``harness tune`` finds the best configuration of a kernel for a problem, and explains it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console

from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.render import show_line, show_table
from emugpu.errors import CannotRun, UsageProblem
from harness.cli.options import (
    SEVERAL,
    Problem,
    kernel_argument,
    no_save_option,
    problem_options,
    read_settings,
    settings_option,
)
from harness.cli.sweep import Where, job_timeout_option, where_options
from harness.compile import few_rows
from harness.compile.config import KernelConfig, find_kernel, try_config
from harness.compile.options import OPTIONS
from harness.experiments.race import Runner
from harness.experiments.ranges import several
from harness.experiments.space import differences, space_of
from harness.experiments.tune import FIGURES, Tuned, TuningLimits, as_dict, evidence_of
from harness.experiments.tune import tune as run_tune
from harness.extras import needs
from harness.launch import tuned as store
from harness.launch.tuned import class_of
from harness.problem import ELEMENT_TYPES, Shape
from harness.run.runner import NoDevice, check_memory, choose_device


@click.command("tune")
@kernel_argument
@problem_options("inputs")
@settings_option(f"{SEVERAL} Only these values are tried.")
@click.option(
    "--dtype", type=click.Choice(list(ELEMENT_TYPES)), default="bf16", show_default=True, help="Type of A and B."
)
@click.option(
    "--device",
    type=click.Choice(["gpu", "model", "emulator"]),
    default="gpu",
    show_default=True,
    help="Measure times, predict them, or count the bytes that TMA moves from and to global memory.",
)
@click.option(
    "--budget",
    type=click.IntRange(2),
    metavar="N",
    default=24,
    show_default=True,
    help="Configurations to compile, in addition to the default.",
)
@job_timeout_option
@where_options
@click.option(
    "--explain",
    is_flag=True,
    help="Show the configurations tried, and how the best differs from the default. Entries of results/tuned/ are not "
    "measured again.",
)
@no_save_option
@output_option("json")
def tune(
    kernel: str,
    problem: Problem,
    words: tuple[str, ...],
    dtype: str,
    device: str,
    budget: int,
    timeout: float,
    where: Where,
    explain: bool,
    no_save: bool,
    outputs: Outputs,
) -> int:
    """Find the best configuration of KERNEL for a problem.

    The kernel declares the space. Tiles and clusters are tried first, then the other options around the best of them.
    On GPUs it is a race: the worse half drops out, and the winner has to beat the default in five fresh processes. The
    result is kept in results/tuned/, where run, compare and harness.pytorch find it, unless -c leaves out a part of
    the space.
    """
    kernel, shape = find_kernel(kernel).word, problem.shape
    settings = read_settings(words)
    if settings.keys() & {"preset", "dtype"}:
        raise UsageProblem("-c: a preset is one configuration, and the type is --dtype; leave them out")
    arch = str(OPTIONS["arch"].parse(settings.pop("arch", "auto")) or "auto")
    only = {name: several(OPTIONS[name], text) for name, text in settings.items()}
    screen = Console(stderr=not outputs.shows_report)
    kept = store.everywhere(kernel, arch, dtype, shape) if explain and device == "gpu" else {}
    if kept:
        for kind, entry in kept.items():
            _explain_kept(screen, kind, entry, shape)
        entries = [{"gpu": kind, **asdict(entry)} for kind, entry in kept.items()]
        return outputs.write(json=lambda: json.dumps(entries) + "\n").exit_code
    if kernel == few_rows.NAME and device != "gpu":
        raise UsageProblem(f"--device {device} knows loads by TMA only, and {kernel} has none; use --device gpu")
    gpu_kind, arch = _device(kernel, device, arch, where)
    if device == "gpu":
        needs("bench")
    if device == "emulator":
        check_memory(shape, dtype)
    candidates = space_of(kernel, arch, dtype, shape, only)
    is_kept = device == "gpu" and not no_save and not only
    if gpu_kind and is_kept:
        store.load(store.file_of(gpu_kind))  # report an unreadable file before anything is measured
    limits = TuningLimits(
        device,  # type: ignore[arg-type]  # one of its values
        budget,
        limit=timeout,
        inputs=problem.inputs or ("normal" if device == "gpu" else "integer"),
        workers=where.count,
    )
    progress = Console(stderr=True)

    def say(message: str) -> None:
        show_line(progress, message)

    refused = ", ".join(f"{count:,} for {option}" for option, count in candidates.refused.most_common())
    say(f"{kernel} on {arch}, {shape}: {candidates.combinations:,} combinations; refused: {refused}")
    with where.engine(device, say) as engine:
        found = run_tune(candidates, shape, limits, engine, say)
    _show(screen, found, explain)
    written = outputs.write(json=lambda: json.dumps(as_dict(found), allow_nan=False) + "\n")
    if outputs.shows_report:
        written.show(screen)
    if is_kept:
        kind = gpu_kind or found.record["device"]["kind"]
        say(f"kept in {store.keep(kind, store.entry_of(found.best, class_of(shape), evidence_of(found)))}")
    elif device == "gpu" and not no_save:
        say(f"not kept in results/tuned/: -c {', '.join(only)} left out a part of the space")
    return written.exit_code


def _device(kernel: str, device: str, arch: str, where: Where) -> tuple[str | None, str]:
    """Returns the kind of GPU, if it is one of this machine, and the architecture."""
    found = find_kernel(kernel)
    if device != "gpu":
        return None, found.archs[0] if arch == "auto" else arch
    if where.cluster_address is not None:
        if arch == "auto":
            raise UsageProblem("the GPUs of the workers are not known here; name their architecture: -c arch=sm_90a")
        return None, arch
    try:
        gpu, chosen = choose_device("gpu", found, arch)
    except NoDevice as error:
        other = "--cluster-address uses GPUs of other machines"
        if kernel != few_rows.NAME:
            other = "--device model predicts, and --device emulator counts bytes"
        raise CannotRun(f"{error}; {other}") from None
    assert gpu is not None
    return gpu.kind, chosen


def _show(console: Console, found: Tuned, explain: bool) -> None:
    if explain:
        for decided, runners in found.heats.items():
            rows = [_row(runner, found) for runner in runners]
            show_table(console, decided, ("configuration", FIGURES[found.limits.device], "runs", "out in round"), rows)
        _show_why(console, differences(found.default, found.best, found.shape))
    for reason, count in Counter(reason.partition("\n")[0] for reason in found.failures.values()).most_common():
        show_line(console, f"{count} without a result: {reason}", "red")
    best, default = found.figures[found.best], found.figures[found.default]
    word = FIGURES[found.limits.device]
    show_line(console, f"default  {found.default.label}: {_with_unit(default, found)} ({word})")
    show_line(console, f"best     {found.best.label}: {_with_unit(best, found)} ({word})")
    verdict = f", {found.verdict.verdict}" if found.verdict else ""
    if found.best == found.default:
        show_line(console, f"nothing was better than the default{verdict}")
    else:
        show_line(console, f"gain {found.gain:.3f}{verdict}")


def _row(runner: Runner[KernelConfig], found: Tuned) -> tuple[str, ...]:
    figure = _with_unit(runner.figure, found) if runner.values else "-"
    return runner.candidate.label, figure, str(len(runner.values)), "" if runner.out is None else str(runner.out)


def _explain_kept(console: Console, kind: str, entry: store.Entry, shape: Shape) -> None:
    """Shows an entry: its evidence, and its differences from the present default."""
    show_line(console, f"{entry.kernel} on {kind}, {entry.dtype}, {entry.shapes}")
    show_table(console, "evidence", ("", ""), [(name, str(value)) for name, value in entry.evidence.items()])
    default = try_config(entry.kernel, arch=entry.arch, dtype=entry.dtype, shape=shape)
    try:
        _show_why(console, differences(default, entry.configuration(), shape))
    except UsageProblem as error:
        show_line(console, f"this entry is no longer valid, so the default is used: {error}", "yellow")


def _show_why(console: Console, rows: Sequence[tuple[str, ...]]) -> None:
    show_table(console, "why", ("", "default", "best"), rows)


def _with_unit(value: float, found: Tuned) -> str:
    return f"{value:,.0f} bytes" if found.unit == "bytes" else f"{1e6 * value:,.2f} us"
