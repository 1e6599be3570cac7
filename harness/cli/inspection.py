"""The commands that look at a kernel without running it: ``explain`` and ``build``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from harness.cli import render
from harness.cli.options import check_output, config_options, shape_option
from harness.compiler.build import build_with_notice, plan_json
from harness.compiler.emit import KINDS, emit
from harness.compiler.plan import parse_plan
from harness.config.presets import configure
from harness.errors import CannotRun
from harness.explain.svg import as_svg
from harness.explain.text import as_dict, as_text
from harness.problem.shape import Shape

FORMATS = ("text", "svg", "json")
output_option = click.option(
    "-o",
    "--output",
    metavar="PATH|-",
    default="-",
    show_default=True,
    help="Where to write; - is the screen.",
)


@click.command()
@click.argument("kernel")
@shape_option
@config_options
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@output_option
def explain(kernel: str, shape: Shape, form: str, output: str, **options: Any) -> None:
    """Explain how KERNEL is launched: shared memory, roles, barriers, multicast.

    Everything shown is computed from the launch plan.
    """
    check_output(output, "--output")
    text = plan_json(configure(kernel, shape=shape, **options), shape)
    plan = parse_plan(text)
    if form == "svg":
        _write(as_svg(plan), output)
    elif form == "json":
        _write(json.dumps(as_dict(plan, json.loads(text)), indent=2) + "\n", output)
    else:
        _write(as_text(plan) + "\n", output)


@click.command("build")
@click.argument("kernel")
@shape_option
@config_options
@click.option(
    "--emit",
    "what",
    type=click.Choice(list(KINDS)),
    help="Write this: PTX, machine code, the launch plan for the shape, or figures about the code.",
)
@output_option
def build_command(kernel: str, shape: Shape, what: str | None, output: str, **options: Any) -> None:
    """Compile KERNEL, and write its code or what is known about it."""
    check_output(output, "--output")
    if what is None and output != "-":
        raise click.UsageError("--output needs to know what to write; add --emit ptx, sass, plan or asm-stats")
    [artifact] = build_with_notice([configure(kernel, shape=shape, **options)])
    if what is not None:
        _write(emit(artifact, what, shape), output)
        return
    done = "compiled" if artifact.compiled_now else "was compiled before"
    render.show_line(Console(), f"{artifact.config.label}: {done}, PTX in {artifact.folder / 'kernel.ptx'}")


def _write(text: str, output: str) -> None:
    if output == "-":
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text)
    except OSError as error:
        raise CannotRun(f"cannot write {output}: {error.strerror}") from error
