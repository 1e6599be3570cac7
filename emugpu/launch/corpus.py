"""A folder of PTX files and launch files: what is implemented of each kernel, and what comes out of those that are
launched.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from emugpu.emulator import LaunchError
from emugpu.emulator.names import find_name, short_name
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_OK, EXIT_WRONG_RESULT, ReportedError, UsageProblem
from emugpu.files import read_text_file
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions, Outcome, run
from emugpu.launch.listing import ListedKernel, list_kernels
from emugpu.launch.spec import Launchable, read_ptx
from emugpu.processes.engine import in_order

EXACT, CLOSE, RAN, WRONG, FAILED, NOT_RUN = "exact", "within tolerance", "ran", "WRONG", "could not run", "-"


Work = tuple[Path | None, tuple[Path, ...]]
"""A PTX file and its launch files; without one: launch files whose PTX is not in the folder."""


@dataclass(frozen=True)
class Row:
    """One kernel of one file, launched by one launch file or by none.

    result: `EXACT`, ...; reason: why it is not right. warnings: rules broken, None if it did not run. seconds: of
    emulation.
    """

    file: str
    kernel: str
    compiler: str
    implemented: str
    launch: str | None = None
    result: str = NOT_RUN
    reason: str = ""
    warnings: int | None = None
    seconds: float | None = None


def look_through(
    folder: Path, options: EmulationOptions, jobs: int = 1, progress: Callable[[int, int], None] | None = None
) -> list[Row]:
    """Returns a row for every kernel below the folder, and one for each launch of it. jobs: files at a time.

    Launch files are the .toml files with a ``ptx`` key. progress is called with (files done, files).
    """
    if not folder.is_dir():
        raise UsageProblem(f"{folder} is not a folder; name one with .ptx files and launch files")
    files = sorted(folder.rglob("*.ptx"))
    if not files:
        raise UsageProblem(f"{folder} has no .ptx file; name a folder that has")
    launches = _launch_files(folder)
    known = {file.resolve() for file in files}
    strays = [toml for ptx, several in launches.items() if ptx not in known for toml in several]
    one = partial(_rows, folder, options)
    work: list[Work] = [(file, tuple(launches.get(file.resolve(), ()))) for file in files]
    work += [(None, (toml,)) for toml in strays]
    rows: list[Row] = []
    for done, found in enumerate(in_order(one, work, min(jobs, len(work))), 1):
        rows += found
        if progress:
            progress(done, len(work))
    return rows


def exit_code(rows: Sequence[Row]) -> int:
    """A wrong result outweighs a launch that could not run; what is not launched is not judged."""
    results = {row.result for row in rows}
    return EXIT_WRONG_RESULT if WRONG in results else EXIT_CANNOT_RUN if FAILED in results else EXIT_OK


def _launch_files(folder: Path) -> dict[Path, list[Path]]:
    """Launch files by the PTX file that they name."""
    found: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("*.toml")):
        try:
            ptx = tomllib.loads(read_text_file(path)).get("ptx")
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(ptx, str):
            found.setdefault((path.parent / ptx).resolve(), []).append(path)
    return found


def _rows(folder: Path, options: EmulationOptions, work: Work) -> list[Row]:
    """Returns the rows of one file. Whatever goes wrong with it is told in its rows: other files have theirs."""
    ptx, launches = work
    if ptx is None:
        found = _launched(Row("elsewhere", "?", "", "?"), folder, launches[0], options, {})
        return [row for _, row in found]
    name = str(ptx.relative_to(folder))
    try:
        listing = list_kernels(read_ptx(ptx))
    except Exception as error:
        return [Row(name, "?", "", f"no: {_one_line(error)}")]
    plain = {k.name: Row(name, short_name(k.name), listing.compiler, _implemented(k)) for k in listing.kernels}
    found = [
        one
        for launch in launches
        for one in _launched(Row(name, "?", listing.compiler, ""), folder, launch, options, plain)
    ]
    ran = {kernel for kernel, _ in found}
    return [row for _, row in found] + [row for kernel, row in plain.items() if kernel not in ran]


def _launched(
    row: Row, folder: Path, launch: Path, options: EmulationOptions, plain: dict[str, Row]
) -> list[tuple[str, Row]]:
    """Returns the kernels that a launch file launches, by their names in the PTX ("" if that is not known), and their
    rows.
    """
    row = replace(row, launch=str(launch.relative_to(folder)))
    name = ""
    try:
        file = read_launch_file(launch)
        name = _named(file, plain)
        row = replace(plain.get(name, row), launch=row.launch)
        outcome = run(file, options, keep=())
    except Exception as error:
        return [(name, replace(row, result=FAILED, reason=_one_line(error)))]
    result, reason = _verdict(outcome)
    return [
        (
            kernel,
            replace(
                plain.get(kernel, replace(row, kernel=short_name(kernel), compiler=outcome.compiler)),
                launch=row.launch,
                result=result,
                reason=reason,
                warnings=len(outcome.warnings),
                seconds=round(outcome.seconds, 3),
            ),
        )
        for kernel in dict.fromkeys(one.kernel for one in outcome.launched)
    ]


def _named(file: Launchable, plain: dict[str, Row]) -> str:
    """Returns the name in the PTX of the kernel that is launched first, "" if that is not clear."""
    wanted = file.launches[0].kernel
    if wanted is None:
        return next(iter(plain)) if len(plain) == 1 else ""
    try:
        return find_name(wanted, plain, "kernel")
    except LaunchError:
        return ""


def _verdict(outcome: Outcome) -> tuple[str, str]:
    wrong = [
        f"{expected.buffer}: {verdict.mismatches:,} of {verdict.elements:,} elements"
        for expected, verdict in zip(outcome.what.expectations, outcome.verdicts, strict=True)
        if not verdict.passed
    ]
    if wrong:
        return WRONG, "; ".join(wrong)
    if not outcome.verdicts:
        return RAN, "nothing is expected of the result"
    return (EXACT if all(v.exact for v in outcome.verdicts) else CLOSE), ""


def _implemented(kernel: ListedKernel) -> str:
    if kernel.problem:
        return "no: " + kernel.problem.splitlines()[0]
    lacking = len(kernel.unimplemented)
    return "yes" if not lacking else f"all but {lacking} of {kernel.instructions}"


def _one_line(error: Exception) -> str:
    unexpected = "" if isinstance(error, ReportedError) else f"unexpected {type(error).__name__}: "
    return unexpected + " ".join(str(error).splitlines()[:2])
