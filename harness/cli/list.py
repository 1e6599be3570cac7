"""The command ``harness list``."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Console

from emugpu.cli.options import as_json
from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.render import show_table
from harness.compile.catalog import KERNELS
from harness.compile.options import OPTIONS, Option
from harness.compile.presets import DEFAULT, PRESETS, Preset


@click.command("list")
@output_option("json")
def list_command(outputs: Outputs) -> int:
    """List the kernels, and what -c sets: options and presets."""
    kernels, presets = ([asdict(each) for each in table.values()] for table in (KERNELS, PRESETS))
    written = outputs.write(json=lambda: as_json({"schema": 1, "kernels": kernels, "presets": presets}))
    if outputs.shows_report:
        show(Console())
        written.show(Console())
    return written.exit_code


def show(console: Console) -> None:
    """Shows the tables."""
    show_table(
        console,
        "kernels",
        ("kernel", "for", "what it is"),
        ((kernel.name, ", ".join(kernel.archs), kernel.summary) for kernel in KERNELS.values()),
    )
    show_table(
        console,
        "options of a configuration: -c NAME=VALUE",
        ("name", "values", "what it is"),
        ((option.name, _values(option), " ".join(option.help.split())) for option in OPTIONS.values()),
    )
    show_table(
        console,
        "presets: -c preset=NAME",
        ("preset", "options", "what it is"),
        ((preset.name, _options(preset), preset.summary) for preset in (DEFAULT, *PRESETS.values())),
    )


def _values(option: Option) -> str:
    if option.kind == "switch":
        return "true|false"
    return option.written or "|".join(option.choices) or "N"


def _options(preset: Preset) -> str:
    """Returns the options of a preset as ``-c`` takes them."""
    words = [OPTIONS[name].setting(value) for name, value in preset.options.items()]
    depths = sorted(set(preset.stages.values()))
    if depths:
        words.append(f"stages={'|'.join(map(str, depths))}")
    return " ".join(words)
