"""A folder of PTX files and launch files: what is implemented of each kernel, and the verdict on each launch file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from emugpu.check.verdict import Verdict
from emugpu.emulator import LaunchError
from emugpu.emulator.names import find_name, short_name
from emugpu.errors import ReportedError, UsageProblem
from emugpu.launch.check import CheckOptions, check, judge
from emugpu.launch.launch_file import launch_file_data, read_launch_file
from emugpu.launch.launching import load_module
from emugpu.launch.listing import ListedKernel, compiler_of, list_kernels
from emugpu.launch.ptxas import require_accepted
from emugpu.launch.spec import Launchable, read_ptx
from emugpu.processes.engine import in_order

NOT_LAUNCHED = "-"
Work = tuple[Path | None, tuple[Path, ...]]
"""A PTX file and its launch files; without one: launch files whose PTX is not in the folder."""


@dataclass(frozen=True)
class Row:
    """One kernel of one file, launched by one launch file or by none. ptx: the file that PTX lines are of. verdict: on
    the launch file. seconds: that it took.
    """

    file: str
    kernel: str
    compiler: str
    implemented: str
    ptx: str
    launch: str | None = None
    verdict: Verdict | None = None
    seconds: float | None = None

    @property
    def result(self) -> str:
        return self.verdict.word if self.verdict else NOT_LAUNCHED

    @property
    def reason(self) -> str:
        """Returns why the verdict is not clean."""
        return "; ".join(reason for _, reason in self.verdict.reasons) if self.verdict else ""

    @property
    def warnings(self) -> int | None:
        return len(self.verdict.report.warnings) if self.verdict else None

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "file": self.file,
            "kernel": self.kernel,
            "compiler": self.compiler,
            "implemented": self.implemented,
            "launch": self.launch,
            "result": self.result,
            "reason": self.reason,
            "warnings": self.warnings,
            "seconds": self.seconds,
        }


def look_through(
    folder: Path, options: CheckOptions, ptxas: bool = True, progress: Callable[[int, int], None] | None = None
) -> list[Row]:
    """Returns a row for every kernel below the folder, and one for each launch of it. options: their jobs are files at
    a time. ptxas: whether PTX that it refuses is not launched.

    Launch files are the .toml files with a ``ptx`` key, and those that cannot be read, which may have one. progress is
    called with (files done, files).
    """
    files = sorted(folder.rglob("*.ptx"))
    launches = _launch_files(folder)
    if not files and not launches:
        raise UsageProblem(f"{folder} has no .ptx file and no launch file; name a folder that has")
    known = {os.path.realpath(file) for file in files}
    unmatched = [toml for ptx, several in launches.items() if ptx not in known for toml in several]
    one = partial(_rows, folder, replace(options, emulation=replace(options.emulation, jobs=1)), ptxas)
    work: list[Work] = [(file, tuple(launches.get(os.path.realpath(file), ()))) for file in files]
    work += [(None, (toml,)) for toml in unmatched]
    rows: list[Row] = []
    for done, found in enumerate(in_order(one, work, min(options.emulation.jobs, len(work))), 1):
        rows += found
        if progress:
            progress(done, len(work))
    return rows


def _launch_files(folder: Path) -> dict[str, list[Path]]:
    """Launch files by the PTX file that they name; one that cannot be read by its own path."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*.toml")):
        try:
            ptx = launch_file_data(path).get("ptx")
            if isinstance(ptx, str):
                found.setdefault(os.path.realpath(path.parent / ptx), []).append(path)
        except (UsageProblem, ValueError):  # realpath: a null character
            found[str(path)] = [path]
    return found


def _rows(folder: Path, options: CheckOptions, ptxas: bool, work: Work) -> list[Row]:
    """Returns the rows of one file. A file that cannot be run gets rows that say why; the other files still run."""
    ptx, launches = work
    if ptx is None:
        found = _launched(Row("elsewhere", "?", "", "?", ""), folder, launches[0], options, ptxas, {})
        return [row for _, row in found]
    name = str(ptx.relative_to(folder))
    unknown = Row(name, "?", "", "", str(ptx))
    plain: dict[str, Row] = {}
    try:
        listing = list_kernels(read_ptx(ptx))
        unknown = replace(unknown, compiler=listing.compiler)
        plain = {
            k.name: replace(unknown, kernel=short_name(k.name), implemented=_implemented(k)) for k in listing.kernels
        }
    except Exception as error:
        plain[""] = replace(unknown, implemented=f"no: {_one_line(error)}")
    found = [one for launch in launches for one in _launched(unknown, folder, launch, options, ptxas, plain)]
    ran = {kernel for kernel, _ in found}
    return [row for _, row in found] + [row for kernel, row in plain.items() if kernel not in ran]


def _launched(
    row: Row, folder: Path, launch: Path, options: CheckOptions, ptxas: bool, plain: dict[str, Row]
) -> list[tuple[str, Row]]:
    """Returns the kernels that a launch file launches, by their names in the PTX ("" if that is not known), and their
    rows.
    """
    row = replace(row, launch=str(launch.relative_to(folder)))
    name = ""
    start = time.perf_counter()
    try:
        what = read_launch_file(launch)
        name = _named(what, plain)
        row = replace(plain.get(name, row), launch=row.launch)
        if ptxas:
            require_accepted(what)
        [checked] = check([what], options)
        verdict = judge(what, checked)
        module = load_module(what)
        kernels = dict.fromkeys(module.find(one.kernel).name for one in what.launches)
    except Exception as error:
        return [(name, replace(row, verdict=_incomplete(launch, error)))]
    seconds = round(time.perf_counter() - start, 3)
    compiler = compiler_of(what.text)
    return [
        (
            kernel,
            replace(
                plain.get(kernel, replace(row, kernel=short_name(kernel), compiler=compiler, ptx=str(what.ptx))),
                launch=row.launch,
                verdict=verdict,
                seconds=seconds,
            ),
        )
        for kernel in kernels
    ]


def _incomplete(launch: Path, error: Exception) -> Verdict:
    """The verdict on what could not be launched."""
    return Verdict(str(launch), (("incomplete", _one_line(error)),), (), 0, 0, (), {}, checked=False)


def _named(file: Launchable, plain: dict[str, Row]) -> str:
    """Returns the name in the PTX of the kernel that is launched first, "" if that is not clear."""
    wanted = file.launches[0].kernel
    if wanted is None:
        return next(iter(plain)) if len(plain) == 1 else ""
    try:
        return find_name(wanted, plain, "kernel")
    except LaunchError:
        return ""


def _implemented(kernel: ListedKernel) -> str:
    if kernel.problem:
        return "no: " + kernel.problem.splitlines()[0]
    lacking = len(kernel.unimplemented)
    return "yes" if not lacking else f"all but {lacking} of {kernel.instructions}"


def _one_line(error: Exception) -> str:
    unexpected = "" if isinstance(error, ReportedError) else f"unexpected {type(error).__name__}: "
    return unexpected + " ".join(str(error).splitlines()[:2])
