"""Reads suite files: the kernels, configurations, shapes, types and inputs to measure, and the device.

A suite is a TOML file. Every ``[[cases]]`` table stands for all combinations of its lists; the top level has its
defaults. The kernel chooses options that a case does not name (``stages``, for example), and they are no part of the
case's name: so a changed default shows as a difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from emugpu.errors import UsageProblem
from harness import paths
from harness.compile.config import KernelConfig, make_config
from harness.compile.options import OPTIONS
from harness.problem import KINDS, Shape, parse_shape
from harness.toml_files import read_toml

SCHEMA = 1
DEVICES = ("emulator", "gpu")
DEFAULT = "emulator"

# The keys that a table of cases combines, those that the top level may have, and the options of its kernels.
_LISTS = ("kernels", "clusters", "shapes", "dtypes", "inputs")
_SINGLE = tuple(name for name in OPTIONS if name not in ("dtype", "cluster"))
_OPTIONS = (*_SINGLE, "seed", "check")
_TOP = ("schema", "summary", "device", "alone", "cases")


@dataclass(frozen=True)
class SuiteCase:
    """One measurement. ``asked`` holds requested options with their values, in the order of `OPTIONS`; the others are
    the kernel's defaults, and the architecture is the device's.

    ``check`` says whether its synchronisation is checked, too, which does not change the measurement.
    """

    kernel: str
    shape: Shape
    inputs: str
    seed: int = 0
    asked: tuple[tuple[str, Any], ...] = ()
    check: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Returns the requested options, by the names of `OPTIONS`."""
        return dict(self.asked)

    @property
    def id(self) -> str:
        """Returns the name of the case in the history: the request, without anything that follows from it."""
        options = self.options
        dtype, cluster = (options.pop(name, None) for name in ("dtype", "cluster"))
        words = [
            self.kernel,
            dtype or OPTIONS["dtype"].default,
            OPTIONS["cluster"].show(cluster) if cluster else "auto",
        ]
        words += [OPTIONS[name].in_case(value) for name, value in options.items() if value != OPTIONS[name].default]
        words += [str(self.shape), self.inputs]
        if self.seed:
            words.append(f"seed={self.seed}")
        return " ".join(words)

    def config(self, arch: str) -> KernelConfig:
        """Returns the configuration for this architecture. Raises `UsageProblem` if it is impossible."""
        return make_config(self.kernel, shape=self.shape, **{"arch": arch, **self.options})

    def table(self) -> dict[str, Any]:
        """Returns the case as a table of a suite file, which older and newer versions of the harness can read, too."""
        options = self.options
        lists = {
            "kernels": self.kernel,
            "dtypes": options.pop("dtype"),
            "clusters": OPTIONS["cluster"].show(options.pop("cluster", "auto")),
            "shapes": f"{self.shape.m},{self.shape.n},{self.shape.k}",
            "inputs": self.inputs,
        }
        return {**lists, "seed": self.seed, **{name: OPTIONS[name].write(value) for name, value in options.items()}}


@dataclass(frozen=True)
class Suite:
    """A suite file. ``device`` is ``emulator`` or ``gpu``; on a GPU ``alone`` asks to time each contestant alone, too,
    and the host's part of a call.
    """

    name: str
    summary: str
    device: str
    alone: bool
    cases: tuple[SuiteCase, ...]


def find_suite(name: str) -> Path:
    """Returns the file of a suite: one of `suite_names`, or a path."""
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UsageProblem(f"suite {name!r} is not a file; use one of {', '.join(suite_names())}, or a path")
        return path
    if name not in suite_names():
        raise UsageProblem(
            f"there is no suite {name!r}; use one of {', '.join(suite_names())}, or the path of a .toml file"
        )
    return paths.suites_dir() / f"{name}.toml"


def suite_names() -> list[str]:
    """Returns the suites that come with the project."""
    return sorted(path.stem for path in paths.suites_dir().glob("*.toml"))


def load_suite(name: str) -> Suite:
    """Reads a suite by name or path. Errors name the file, the table and the value."""
    path = find_suite(name)
    return read_toml(path, f"suite {path}", lambda data: _suite(path.stem, data))


def _suite(name: str, data: dict[str, Any]) -> Suite:
    _check_keys(data, (*_TOP, *_LISTS, *_OPTIONS), "the top level")
    if data.get("schema") != SCHEMA:
        raise UsageProblem(f"schema is {data.get('schema')!r}; this harness reads {SCHEMA}")
    device = data.get("device", DEVICES[0])
    if device not in DEVICES:
        raise UsageProblem(f"device is {device!r}; use {' or '.join(DEVICES)}")
    alone = data.get("alone", False)
    if not isinstance(alone, bool) or (alone and device != "gpu"):
        raise UsageProblem(f"alone is {alone!r}; use true or false, and true on a gpu only")
    tables = data.get("cases")
    if not isinstance(tables, list) or not tables:
        raise UsageProblem("there is no [[cases]] table; add one")
    shared = {key: data[key] for key in (*_LISTS, *_OPTIONS) if key in data}
    cases: dict[str, SuiteCase] = {}
    for number, table in enumerate(tables, start=1):
        where = f"[[cases]] number {number}"
        _check_keys(table, (*_LISTS, *_OPTIONS), where)
        try:
            for case in _cases({**shared, **table}):
                known = cases.get(case.id, case)
                cases[case.id] = replace(known, check=known.check or case.check)
        except UsageProblem as error:
            raise UsageProblem(f"{where}: {error}") from None
    return Suite(name, str(data.get("summary", "")), device, alone, tuple(cases.values()))


def _cases(table: Mapping[str, Any]) -> list[SuiteCase]:
    missing = [name for name in _LISTS if name not in table]
    if missing:
        raise UsageProblem(f"{', '.join(missing)} missing, here and at the top level")
    lists = [_list(name, table[name]) for name in _LISTS]
    asked = {name: OPTIONS[name].read(table[name]) for name in _SINGLE if name in table}
    seed, check = table.get("seed", 0), table.get("check", False)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UsageProblem(f"seed is {seed!r}; it must be a whole number")
    if not isinstance(check, bool):
        raise UsageProblem(f"check is {check!r}; write true or false")
    made = []
    for kernel, cluster, shape, dtype, inputs in product(*lists):
        if inputs not in KINDS:
            raise UsageProblem(f"inputs {inputs!r} is not one of {', '.join(KINDS)}")
        listed = {"dtype": dtype} | ({} if cluster == "auto" else {"cluster": cluster})
        options = asked | {name: OPTIONS[name].read(value) for name, value in listed.items()}
        in_order = tuple((name, options[name]) for name in OPTIONS if name in options)
        case = SuiteCase(kernel, parse_shape(shape), inputs, seed, in_order, check)
        case.config("auto")
        made.append(case)
    return made


def _list(name: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(item, str) for item in values):
        raise UsageProblem(f"{name} is {value!r}; it must be a text or a list of texts")
    return values


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = [key for key in table if key not in known]
    if unknown:
        raise UsageProblem(f"{where}: {unknown[0]!r} is not known; use {', '.join(known)}")
