"""The command line: options in, reports and exit codes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.cli import render
from harness.cli.bench import bench
from harness.cli.check import check_command
from harness.cli.clear_errors import ClearErrors, complain
from harness.cli.doctor import examine, is_able
from harness.cli.inspection import build_command, explain
from harness.cli.options import GPU_SILENCE, check_output, config_options, run_options, shape_option
from harness.cli.report import report
from harness.compiler.build import Artifact, build_with_notice
from harness.config.catalog import KERNELS, find_kernel
from harness.config.config import make_config
from harness.config.presets import PRESETS, chosen_options
from harness.errors import (
    EXIT_CANNOT_RUN,
    EXIT_OK,
    EXIT_WRONG_RESULT,
    CannotRun,
)
from harness.problem.shape import Shape
from harness.report.published import published_figures
from harness.run import compare, records
from harness.run.device import choose_device
from harness.run.emulate import Accumulation, EmulationOptions, Schedule
from harness.run.runner import Outcome, Request, check_memory
from harness.run.runner import run as run_request


class Commands(ClearErrors, click.Group):
    """The program's commands."""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Compile, run and validate matmul kernels for Blackwell GPUs.

    Exit codes: 0 ok, 1 check has found errors, 2 usage, 3 could not run or measure, 4 wrong result.
    """


@main.command()
@click.argument("kernel")
@shape_option
@config_options
@run_options
def run(kernel: str, **options: Any) -> int:
    """Run KERNEL, check its result and log a record."""
    settings = _settings(options)
    [request] = settings.requests([kernel], options)
    outcome = _run_with_progress(request, build_with_notice([request.config])[0])
    record_file = settings.save(outcome)
    _report(outcome, settings.json_path, record_file)
    return EXIT_OK if outcome.validation.passed else EXIT_WRONG_RESULT


@main.command("compare")
@click.argument("kernels", nargs=-1, required=True, metavar="KERNEL...|all")
@shape_option
@config_options
@run_options
def compare_kernels(kernels: tuple[str, ...], **options: Any) -> int:
    """Run several KERNELs on the same problem and show what each step changes.

    Each result is checked, and logged as by run. Figures that others have published are shown below, as
    theirs.
    """
    settings = _settings(options)
    names = [name for word in kernels for name in (KERNELS if word == "all" else [word])]
    requests = settings.requests(list(dict.fromkeys(names)), options)
    artifacts = build_with_notice([request.config for request in requests])
    entries = []
    for request, artifact in zip(requests, artifacts, strict=True):
        try:
            outcome = _run_with_progress(request, artifact)
        except CannotRun as error:
            complain(f"{request.config.kernel}: {error}", EXIT_CANNOT_RUN)
            entries.append(compare.Entry(request.config, None, str(error)))
            continue
        settings.save(outcome)
        entries.append(compare.Entry(request.config, outcome))
    _report_comparison(settings.shape, entries, settings.json_path)
    return compare.exit_code(entries)


@main.command("list")
def list_kernels() -> None:
    """List the kernels and the presets."""
    console = Console()
    render.show_kernels(console, KERNELS.values())
    render.show_presets(console, PRESETS.values())


@main.command()
def doctor() -> int:
    """Show what is available and what will be used."""
    findings = examine()
    render.show_findings(Console(), findings)
    return EXIT_OK if is_able(findings) else EXIT_CANNOT_RUN


@dataclass(frozen=True)
class Settings:
    """What the options say about a run beside the configuration of the kernel."""

    shape: Shape
    device: str
    inputs: str | None
    seed: int
    schedule: Schedule
    accumulation: Accumulation
    jobs: int
    resident_clusters: int | None
    max_steps: int | None
    timeout: float | None
    strict: bool
    allow: tuple[str, ...]
    json_path: str | None
    no_save: bool

    def requests(self, kernels: Sequence[str], options: dict[str, Any]) -> list[Request]:
        """One for each kernel. What would make a run fail later is found here, before anything is built."""
        check_output(self.json_path, "--json")
        others = dict(options)
        preset = others.pop("preset")
        return [self._request(kernel, chosen_options(kernel, preset, others)) for kernel in kernels]

    def _request(self, kernel: str, chosen: dict[str, Any]) -> Request:
        gpu, arch = choose_device(self.device, find_kernel(kernel), chosen.get("arch", "auto"))
        request = Request(
            config=make_config(kernel, **{**chosen, "arch": arch, "shape": self.shape}),
            shape=self.shape,
            inputs=self.inputs or ("normal" if gpu else "integer"),
            seed=self.seed,
            emulation=EmulationOptions(
                accumulation=self.accumulation,
                schedule=self.schedule,
                seed=self.seed,
                jobs=self.jobs,
                resident_clusters=self.resident_clusters,
                max_steps=self.max_steps,
                timeout=self.timeout,
                strict=self.strict,
                allow=self.allow,
            ),
            gpu=gpu,
            timeout=self.timeout or GPU_SILENCE,
        )
        check_memory(self.shape, request.config.dtype)
        self._record_file(request)
        return request

    def save(self, outcome: Outcome) -> Path | None:
        """Adds the record to its file, before it is reported: a reader that goes away must not cost it."""
        path = self._record_file(outcome.request)
        if path:
            records.append(path, outcome.record)
        return path

    def _record_file(self, request: Request) -> Path | None:
        return None if self.no_save else records.record_file(request.device_kind)


def _settings(options: dict[str, Any]) -> Settings:
    """Takes its own out of the options; those of the configuration are left."""
    return Settings(**{field.name: options.pop(field.name) for field in fields(Settings)})


def _run_with_progress(request: Request, artifact: Artifact) -> Outcome:
    """Runs with a bar on standard error if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return run_request(request, artifact)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("clusters"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"emulating {request.config.kernel}", total=None)
        return run_request(
            request, artifact, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )


def _report(outcome: Outcome, json_path: str | None, record_file: Path | None) -> None:
    text = json.dumps(outcome.record, indent=2, allow_nan=False)
    if json_path == "-":
        click.echo(text)
        if not outcome.validation.passed:
            render.show_mistakes(Console(stderr=True), outcome.validation)
        return
    console = Console()
    render.show_outcome(console, outcome)
    if json_path:
        Path(json_path).write_text(text + "\n")
        render.show_line(console, f"record written to {json_path}")
    if record_file:
        render.show_line(console, f"record added to {record_file}")


def _report_comparison(shape: Shape, entries: list[compare.Entry], json_path: str | None) -> None:
    published = published_figures()
    data = {**compare.as_dict(entries), "published": [asdict(figure) for figure in published]}
    text = json.dumps(data, indent=2, allow_nan=False)
    if json_path == "-":
        click.echo(text)
        return
    console = Console()
    render.show_comparison(console, shape, entries, published)
    if json_path:
        Path(json_path).write_text(text + "\n")
        render.show_line(console, f"comparison written to {json_path}")


for command in (bench, build_command, check_command, explain, report):
    main.add_command(command)
