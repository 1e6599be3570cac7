"""``python -m metrology.validation.validate``: the model beside recordings of an H200: cycles, then seconds.

``--write`` makes the tables and the picture of docs/timing.md anew, and the predictions that the report shows; it takes
all runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import click
from rich.console import Console

from harness.cli.clear_errors import ClearErrors
from harness.errors import UsageProblem
from harness.files import write_text
from harness.paths import ROOT
from harness.timing.constants import Gpu, find_gpu
from harness.timing.what_if import parse_changes
from metrology.survey.uses import TIMED
from metrology.validation.validation import GPU, Measured, Row, compare, judge, read_recording
from metrology.validation.validation_kept import PREDICTED, as_json
from metrology.validation.validation_report import (
    SECONDS_BEGIN,
    by_use,
    markdown,
    put_between,
    scatter,
    seconds_markdown,
)
from metrology.validation.validation_seconds import MeasuredSeconds, SecondsRow, compare_seconds, read_seconds

PAGE = ROOT / "docs" / "timing.md"
PICTURE = ROOT / "docs" / "timing-validation.svg"
CYCLES, SECONDS = "cycles", "seconds"


@click.command(cls=ClearErrors)
@click.option(
    "--use", type=click.Choice([*TIMED, "all"]), default="all", show_default=True, help="Of cycles: which runs."
)
@click.option("--what", type=click.Choice([CYCLES, SECONDS, "both"]), default="both", show_default=True)
@click.option("--constant", "changes", multiple=True, metavar="NAME=VALUE", help="Try another value.")
@click.option("--match", default="", help="Only runs whose name has this in it.")
@click.option(
    "--detail", type=click.IntRange(1), help="Of cycles: CTA K-steps that are simulated.  [default: the model's]"
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs that are simulated side by side."
)
@click.option("--write", is_flag=True, help="Make what docs and report show of it anew.")
def main(use: str, what: str, changes: tuple[str, ...], match: str, detail: int | None, jobs: int, write: bool) -> None:
    """Compare the timing model with recordings of an H200."""
    if write and (use != "all" or what != "both" or match or changes or detail):
        raise UsageProblem("--write is of all runs and of the model as it is; leave the other options out")
    if what == SECONDS and (use != "all" or detail):
        raise UsageProblem(f"--what {SECONDS}: --use and --detail are of cycles; leave them out")
    gpu = _with_constants(find_gpu(GPU), changes)
    runs = [run for run in read_recording() if use in ("all", run.use) and match in run.name and what != SECONDS]
    long = [run for run in read_seconds() if match in run.name and what != CYCLES]
    if not runs and not long:
        among = "no run" if use == "all" else f"no run of --use {use}"
        raise UsageProblem(f"--match {match!r}: {among} has that in its name; shorten it, or leave it out")
    try:
        rows = _cycles(runs, gpu, detail, jobs)
        seconds = _seconds(long, gpu, jobs)
    except ArithmeticError as error:
        if not changes:
            raise
        raise UsageProblem(
            f"--constant {' '.join(changes)}: the model has no answer ({error}); use a value nearer to its own"
        ) from None
    if write:
        page = put_between(PAGE.read_text(encoding="utf-8"), markdown(rows))
        write_text(str(PAGE), put_between(page, seconds_markdown(seconds), SECONDS_BEGIN))
        write_text(str(PICTURE), scatter(rows))
        write_text(str(PREDICTED), as_json(rows, gpu))


def _with_constants(gpu: Gpu, texts: tuple[str, ...]) -> Gpu:
    for text in texts:
        if "." not in text.partition("=")[0]:
            known = ", ".join(sorted(gpu.constants))
            raise UsageProblem(f"--constant {text!r}: write NAME=VALUE, as l2.bandwidth=0.5x; there are {known}")
    try:
        for change in parse_changes(texts, gpu):
            gpu = gpu.with_values(change.constants)
    except UsageProblem as error:
        raise UsageProblem(str(error).replace("--what-if", "--constant")) from None
    return gpu


def _cycles(runs: Sequence[Measured], gpu: Gpu, detail: int | None, jobs: int) -> list[Row]:
    """Each as soon as it is there, then the verdicts."""
    rows = []
    for row in compare(runs, gpu, detail, jobs):
        rows.append(row)
        _say(
            f"[{len(rows):3}/{len(runs)}] {row.measured.use:9} {row.measured.name:92} measured "
            f"{row.measured.cycles:11,.0f} predicted {row.cycles:11,.0f} {100 * row.error:+6.1f} %"
        )
    for use, some in by_use(rows):
        if len(some) > 1:
            found = judge(some)
            _say(
                f"{use}: {found.runs} runs, mean absolute error {100 * found.mean:.1f} %, largest "
                f"{100 * found.largest:.1f} %, rank correlation {found.rank:.3f}"
            )
    return rows


def _seconds(runs: Sequence[MeasuredSeconds], gpu: Gpu, jobs: int) -> list[SecondsRow]:
    """Likewise."""
    rows = []
    for row in compare_seconds(runs, gpu, jobs):
        rows.append(row)
        _say(
            f"[{len(rows):3}/{len(runs)}] {row.measured.name:98} measured {1e6 * row.measured.seconds:8,.1f} us "
            f"predicted {1e6 * row.seconds:8,.1f} us at {row.hertz / 1e6:,.0f} MHz {100 * row.error:+6.1f} %"
        )
    errors = [abs(row.error) for row in rows if not row.measured.fitted]
    if errors:
        _say(
            f"seconds: {len(errors)} that the power model was not made from, mean absolute error "
            f"{100 * statistics.fmean(errors):.1f} %, largest {100 * max(errors):.1f} %"
        )
    return rows


def _say(line: str) -> None:
    Console(width=160).print(line, highlight=False, soft_wrap=True, markup=False)


if __name__ == "__main__":
    main()
