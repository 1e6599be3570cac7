"""Reproduces a verdict in a smaller case: with one schedule, and with the smallest numbers that give the same error.

An error is the same if it breaks the same rule between the same instructions, or if the run ends at the same
instruction. A wrong result may have any cause in a smaller case, unless the expectation follows the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emugpu.check.checker import Checked
from emugpu.errors import CannotRun, UsageProblem
from emugpu.launch.check import CheckJob, CheckOptions, check_once, schedules_of
from emugpu.launch.launch_file import launch_file_data, read_launch
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.spec import Launchable
from emugpu.launch.toml_table import as_toml, is_whole

MOST_RUNS = 100
"""The largest number of smaller cases. The smallest ones run first, because they take the least time."""

WRITTEN = "# Written by emugpu verify --shrink, which may write it again.\n"
"""The first line of a smaller launch file."""

Cause = frozenset[tuple[object, ...]]


@dataclass(frozen=True)
class Numbers:
    """A case as a set of named numbers.

    ``make`` returns a launchable with other numbers; it raises UsageProblem or CannotRun if they are impossible.
    ``expects``: the expected result is known for any numbers.
    """

    values: Mapping[str, int]
    make: Callable[[Mapping[str, int]], Launchable]
    expects: bool


@dataclass(frozen=True)
class Smaller:
    """The smaller case. ``emulation`` has the one schedule. ``runs`` is the number of cases that were tried."""

    values: Mapping[str, int]
    emulation: EmulationOptions
    runs: int


def shrink(numbers: Numbers, options: CheckOptions) -> Smaller | None:
    """Returns the smaller case, or None if no schedule gives an error."""
    values = dict(numbers.values)
    what = numbers.make(values)
    for work in schedules_of(what, options):
        # Also use the inputs that only this schedule has.
        wanted = causes(check_once(replace(work, what=what)), numbers.expects)
        if wanted:
            break
    else:
        return None
    emulation, tried = work.emulation, {tuple(values.values())}

    def goes_wrong(values: Mapping[str, int]) -> bool:
        if tuple(values.values()) in tried or len(tried) > MOST_RUNS:
            return False
        tried.add(tuple(values.values()))
        try:
            return bool(wanted & causes(check_once(CheckJob(numbers.make(values), emulation)), numbers.expects))
        except (UsageProblem, CannotRun):
            return False

    before: dict[str, int] = {}
    while values != before:
        before = dict(values)
        for name, value in before.items():
            least = (2**n for n in range(value.bit_length()) if 2**n < value)
            values[name] = next((one for one in least if goes_wrong({**values, name: one})), value)
    return Smaller(values, emulation, len(tried) - 1)


def causes(checked: Checked, expects: bool) -> Cause:
    """Returns the errors of a run. ``expects``: a wrong result counts."""
    found: set[tuple[object, ...]] = {
        (f.rule, *(place.line for place in (f.first, f.second) if place)) for f in checked.report.errors
    }
    if checked.ended in ("wrong", "hung"):
        found |= {(checked.ended, line) for line in re.findall(r"PTX line (\d+)", checked.failure)}
    if checked.correct is False and expects:
        found.add(("wrong",))
    return frozenset(found)


def of_launch_file(path: Path) -> Numbers:
    """Returns the numbers of a launch file: the grids, and the arguments that are whole numbers."""
    data = launch_file_data(path)
    first = {name: _at(data, place) for name, place in _places(data).items()}
    return Numbers(first, lambda values: read_launch(path, _with(data, values)), expects=False)


def smaller_file(path: Path, values: Mapping[str, int]) -> str:
    """Returns the text of the same launch file with other numbers and without expectations."""
    data = _with(launch_file_data(path), values)
    return WRITTEN + "".join(f"{key} = {as_toml(value)}\n" for key, value in data.items())


def _with(data: Mapping[str, Any], values: Mapping[str, int]) -> dict[str, Any]:
    copy = deepcopy(dict(data))
    for name, place in _places(data).items():
        if values[name] != _at(data, place):
            _at(copy, place[:-1])[place[-1]] = values[name]
            copy.pop("expect", None)
    return copy


def _places(data: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Returns the numbers of launches: the name of each, and the keys that lead to it."""
    launches = data["launch"]
    several = [("launch", n) for n in range(len(launches))] if isinstance(launches, list) else [("launch",)]
    found = [(*one, key) for one in several for key in ("grid", "arguments") if key in _at(data, one)]
    found += [(*one, n) for one in found if isinstance(_at(data, one), list) for n in range(len(_at(data, one)))]
    return {".".join(map(str, one)): one for one in found if is_whole(_at(data, one))}


def _at(data: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        data = data[key]
    return data
