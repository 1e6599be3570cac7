"""The command ``harness report``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from emugpu.cli.options import NamedPath, check_folder
from emugpu.cli.render import progress_bar, several, show_line
from emugpu.errors import CannotRun
from emugpu.files import write_text
from harness import paths
from harness.compile.artifacts import plan_json
from harness.compile.catalog import ARCHITECTURES, KERNELS
from harness.compile.config import make_config
from harness.compile.planner import parse_plan
from harness.extras import needs
from harness.model.silicon.times import confront_shipped
from harness.problem import Shape
from harness.report.data import Results, load_results
from harness.report.published import published_figures
from harness.report.svg import as_svg

if TYPE_CHECKING:
    from harness.report.page import PlanPicture

PICTURED = Shape(4096, 4096, 4096)
"""The problem shown in the pictures of launch plans."""


@click.command()
@click.option(
    "-o",
    "--output",
    type=NamedPath(file_okay=False, path_type=Path),
    metavar="DIR/",
    default=Path("report"),
    show_default=True,
    help="Folder for index.html and the figures as SVG and PNG.",
)
def report(output: Path) -> None:
    """Draw the history as one HTML page that needs no network.

    Its figures are in the same folder, as SVG and PNG. harness doctor shows where the history is.
    """
    needs("report")
    from harness.report.figures import draw_all
    from harness.report.maps import draw, load_maps
    from harness.report.page import page

    check_folder(output, "-o")
    folder = paths.results_dir()
    if not folder.is_dir():
        raise CannotRun(f"there is no history in {folder}; run `harness bench` first")
    found = load_results(folder)
    errors = Console(stderr=True)
    for line in found.damaged:
        show_line(errors, str(line), "yellow")
    maps = load_maps(folder)
    if not found.devices and not maps:
        raise CannotRun(
            f"{folder} has no right result of a kernel and no sweep of several shapes and configurations; "
            "run `harness bench`, `harness run` or `harness sweep` first"
        )
    published = published_figures()
    with progress_bar("drawing", "pictures") as progress:
        figures = [*draw_all(found.devices, published, confront_shipped()), *map(draw, maps)]
        launched = _launched(found)
        numbers, total = count(1), len(figures) + len(launched)

        def one_more() -> None:
            progress(next(numbers), total)

        try:
            output.mkdir(parents=True, exist_ok=True)
            written = []
            for figure in figures:
                written += figure.save(output)
                one_more()
            pictures = _pictures(launched, errors, one_more)
            write_text(output / "index.html", page(found, figures, published, pictures))
        except OSError as error:
            raise CannotRun(f"cannot write to {output}: {error.strerror}; name another folder with -o") from error
    console = Console()
    drawn = f"{several(len(figures), 'figure')}, {several(len(found.devices), 'device')}"
    show_line(console, f"{output / 'index.html'}: {drawn}")
    show_line(console, f"{several(len(written), 'figure file')} in the same folder")


def _launched(found: Results) -> list[tuple[str, str]]:
    """Returns the kernels and architectures in the history."""
    configs = {
        (record["kernel"], record["config"]["arch"])
        for device in found.devices
        for record in device.records
        if record["kernel"] in KERNELS and record["config"].get("arch") in ARCHITECTURES
    }
    return sorted(configs)


def _pictures(launched: Sequence[tuple[str, str]], console: Console, each: Callable[[], None]) -> list[PlanPicture]:
    """Draws the default launch of each kernel."""
    from harness.report.page import PlanPicture

    pictures = []
    for kernel, arch in launched:
        try:
            plan = parse_plan(plan_json(make_config(kernel, arch=arch, shape=PICTURED), PICTURED))
        except CannotRun as error:
            show_line(console, f"no pictures of launch plans: {error}", "yellow")
            return []
        pictures.append(PlanPicture(kernel, f"{kernel} on {arch}, {PICTURED}", as_svg(plan)))
        each()
    return pictures
