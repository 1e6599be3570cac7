"""``python -m harness.timing.validate``: the model beside the recording of an H200, run by run.

``--write`` makes the table and the picture of docs/timing.md anew, and the predictions that the report shows; it takes
all runs.
"""

from __future__ import annotations

import click
from rich.console import Console

from harness.errors import HarnessError, UsageProblem
from harness.files import write_text
from harness.paths import ROOT
from harness.timing.constants import find_gpu
from harness.timing.validation import GPU, compare, judge, read_recording
from harness.timing.validation_kept import PREDICTED, as_json
from harness.timing.validation_report import markdown, put_between, scatter
from harness.timing.what_if import parse_changes

PAGE = ROOT / "docs" / "timing.md"
PICTURE = ROOT / "docs" / "timing-validation.svg"


@click.command()
@click.option("--use", type=click.Choice(["fit", "judge", "all"]), default="all", show_default=True)
@click.option("--constant", "changes", multiple=True, metavar="NAME=VALUE", help="Try another value.")
@click.option("--match", default="", help="Only runs whose name has this in it.")
@click.option("--detail", type=click.IntRange(1), help="CTA K-steps that are simulated.  [default: the model's]")
@click.option("--write", is_flag=True, help="Make what docs and report show of it anew.")
def main(use: str, changes: tuple[str, ...], match: str, detail: int | None, write: bool) -> None:
    """Compare the timing model with the recording of an H200."""
    gpu = find_gpu(GPU)
    try:
        if write and (use != "all" or match or changes or detail):
            raise UsageProblem("--write is of all runs and of the model as it is; leave the other options out")
        for change in parse_changes(changes, gpu):
            gpu = gpu.with_values(change.constants)
        runs = [run for run in read_recording() if use in ("all", run.use) and match in run.name]
        if not runs:
            raise UsageProblem(f"--match '{match}': no run of the recording has that in its name")
        rows = compare(runs, gpu, detail)
    except HarnessError as error:
        raise click.UsageError(str(error)) from None
    console = Console(width=140)
    for row in rows:
        console.print(
            f"{row.measured.use:5} {row.measured.name:78} measured {row.measured.cycles:11,.0f} predicted "
            f"{row.cycles:11,.0f} {100 * row.error:+6.1f} %",
            highlight=False,
            soft_wrap=True,
        )
    for kind in ("fit", "judge"):
        some = [row for row in rows if row.measured.use == kind]
        if len(some) > 1:
            found = judge(some)
            console.print(
                f"{kind}: {found.runs} runs, mean absolute error {100 * found.mean:.1f} %, largest "
                f"{100 * found.largest:.1f} %, rank correlation {found.rank:.3f}",
                highlight=False,
            )
    if write:
        write_text(str(PAGE), put_between(PAGE.read_text(encoding="utf-8"), markdown(rows)))
        write_text(str(PICTURE), scatter(rows))
        write_text(str(PREDICTED), as_json(rows, gpu))


if __name__ == "__main__":
    main()
