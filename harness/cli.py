"""The command line: options in, reports and exit codes out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, get_args

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness import records, render
from harness.build import build, is_built
from harness.catalog import ARCHITECTURES, KERNELS
from harness.config import KernelConfig, make_config, parse_cluster
from harness.device import CHOICES, choose_device
from harness.doctor import examine, is_able
from harness.dtypes import ELEMENT_TYPES
from harness.emulate import Accumulation, Schedule
from harness.errors import (
    EXIT_CANNOT_RUN,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    EXIT_WRONG_RESULT,
    HarnessError,
)
from harness.inputs import KINDS
from harness.problem import Shape, parse_shape
from harness.runner import Outcome, Request, check_memory
from harness.runner import run as run_request

DEFAULT_SHAPE = "1024"
LARGEST_SEED = 2**32 - 1


class Parsed(click.ParamType):
    """An option whose text is read by one of the harness's own functions."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        return self.parse(value) if isinstance(value, str) else value


class Commands(click.Group):
    """Turns every problem into one clear message and the right exit code, never a traceback."""

    def main(self, *args, **kwargs) -> NoReturn:  # type: ignore[override]
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = EXIT_USAGE
        except click.ClickException as error:
            code = _complain(error.format_message().replace("\n", " "), EXIT_USAGE)
        except HarnessError as error:
            code = _complain(str(error), error.exit_code)
        except (KeyboardInterrupt, click.Abort):
            code = _complain("interrupted", EXIT_INTERRUPTED)
        except MemoryError as error:
            code = _complain(f"out of memory ({error}); use a smaller --shape", EXIT_CANNOT_RUN)
        except Exception as error:
            if os.environ.get("HARNESS_TRACEBACK"):
                raise
            what = f"{type(error).__name__}: {error}".replace("\n", " ")
            code = _complain(f"unexpected {what}; set HARNESS_TRACEBACK=1 to see where", EXIT_CANNOT_RUN)
        sys.exit(code if isinstance(code, int) else EXIT_OK)


def _complain(message: str, code: int) -> int:
    click.echo(f"harness: error: {message}", err=True)
    return code


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Compile, run and validate matmul kernels for Blackwell GPUs.

    Exit codes: 0 ok, 2 usage, 3 could not run or measure, 4 wrong result.
    """


@main.command()
@click.argument("kernel")
@click.option(
    "--shape",
    type=Parsed("M,N,K", parse_shape),
    default=DEFAULT_SHAPE,
    show_default=True,
    help="M,N,K or one number for all three.",
)
@click.option(
    "--cluster",
    type=Parsed("CMxCN", parse_cluster),
    help="CTAs along M x CTAs along N.  [default: the kernel's]",
)
@click.option("--stages", type=int, help="Depth of the shared-memory ring.  [default: the kernel's]")
@click.option("--dtype", type=click.Choice(list(ELEMENT_TYPES)), default="bf16", show_default=True)
@click.option("--device", type=click.Choice(CHOICES), default="auto", show_default=True)
@click.option(
    "--arch",
    type=click.Choice(["auto", *ARCHITECTURES]),
    default="auto",
    show_default=True,
)
@click.option(
    "--inputs",
    type=click.Choice(KINDS),
    default="integer",
    show_default=True,
    help="Values of A and B; integer and index must match exactly.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, LARGEST_SEED),
    default=0,
    show_default=True,
    help="For the inputs and the random schedule.",
)
@click.option(
    "--schedule",
    type=click.Choice(get_args(Schedule)),
    default="fifo",
    show_default=True,
    help="Order in which the emulator completes things.",
)
@click.option(
    "--accumulation",
    type=click.Choice(get_args(Accumulation)),
    default="f32",
    show_default=True,
    help="Arithmetic of the emulated tensor core.",
)
@click.option(
    "--json", "json_path", metavar="PATH|-", help="Write the record there; - prints it instead of the report."
)
@click.option("--no-save", is_flag=True, help="Do not add a record to results/.")
def run(
    kernel: str,
    shape: Shape,
    cluster: tuple[int, int] | None,
    stages: int | None,
    dtype: str,
    device: str,
    arch: str,
    inputs: str,
    seed: int,
    schedule: Schedule,
    accumulation: Accumulation,
    json_path: str | None,
    no_save: bool,
) -> int:
    """Run KERNEL, check its result and log a record."""
    config = make_config(kernel, arch=arch, dtype=dtype, cluster=cluster, stages=stages)
    _check_json_path(json_path)
    choose_device(device, config)
    request = Request(config, shape, inputs, seed, schedule, accumulation)
    record_file = None if no_save else records.record_file(request.device_kind)
    check_memory(shape, dtype)
    outcome = _run_with_progress(request)
    # Saved first: a reader of the report that goes away must not cost the record.
    if record_file:
        records.append(record_file, outcome.record)
    _report(outcome, json_path, record_file)
    return EXIT_OK if outcome.validation.passed else EXIT_WRONG_RESULT


@main.command("list")
def list_kernels() -> None:
    """List the kernels."""
    render.show_kernels(Console(), KERNELS.values())


@main.command()
def doctor() -> int:
    """Show what is available and what will be used."""
    findings = examine()
    render.show_findings(Console(), findings)
    return EXIT_OK if is_able(findings) else EXIT_CANNOT_RUN


def _run_with_progress(request: Request) -> Outcome:
    """Builds and runs, with a spinner and a bar on standard error if that is a terminal."""
    console = Console(stderr=True)
    [artifact] = _build(console, request.config)
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


def _build(console: Console, config: KernelConfig) -> list:
    if is_built(config):
        return build([config])
    message = f"compiling {config.label} with Mojo ..."
    if not console.is_terminal:
        render.show_line(console, message)
        return build([config])
    with console.status(message):
        return build([config])


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


def _check_json_path(json_path: str | None) -> None:
    if json_path in (None, "-"):
        return
    path = Path(json_path)
    if not json_path or path.is_dir() or not path.parent.is_dir():
        raise click.UsageError(
            f"--json {json_path!r} is not a file in an existing folder; name one, or use - for the screen"
        )
