"""``harness list``."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Console

from emugpu.cli.options import as_json, check_output, json_option, write_output
from emugpu.cli.render import show_table
from harness.compile.catalog import KERNELS
from harness.compile.config import OPTIONS, PRESETS, Preset


@click.command("list")
@json_option
def list_command(json_path: str | None) -> None:
    """List the kernels and the presets."""
    if json_path is not None:
        check_output(json_path, "--json")
        kernels, presets = ([asdict(each) for each in table.values()] for table in (KERNELS, PRESETS))
        write_output(as_json({"schema": 1, "kernels": kernels, "presets": presets}), json_path)
        return
    console = Console()
    show_table(
        console,
        "kernels",
        ("kernel", "for", "what it is"),
        ((kernel.name, ", ".join(kernel.archs), kernel.summary) for kernel in KERNELS.values()),
    )
    show_table(
        console,
        "presets",
        ("preset", "options", "what it is"),
        ((preset.name, _options(preset), preset.summary) for preset in PRESETS.values()),
    )


def _options(preset: Preset) -> str:
    """As one would write them on the command line."""
    words = [word for name, value in preset.options.items() for word in OPTIONS[name].arguments(value)]
    depths = sorted(set(preset.stages.values()))
    if depths:
        words.append(f"--stages {'|'.join(map(str, depths))}")
    return " ".join(words)
