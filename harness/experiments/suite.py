"""Reads suite files: which kernels, configurations, shapes, types and inputs are measured, and on what.

A suite is a TOML file. Every ``[[cases]]`` table stands for all combinations of its lists, with the defaults
of the top level where it says nothing. What a case does not say (``stages``, for example) is left to the
kernel's defaults and is no part of the case's name: so a default that changes is found as a difference.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from harness import paths
from harness.build.config import KernelConfig, make_config, parse_cluster, parse_mma_shape
from harness.errors import UsageProblem
from harness.problem.dtypes import element_type
from harness.problem.inputs import KINDS
from harness.problem.shape import Shape, parse_shape

SCHEMA = 1
DEVICES = ("emulator", "gpu")
DEFAULT = "emulator"

# What a table of cases combines, with what it can leave to the top level, and the options of its kernels.
_WALK = ("scheduler", "raster_group", "accumulators", "clc_depth", "sms", "ping_pong")
_LISTS = ("kernels", "clusters", "shapes", "dtypes", "inputs")
_OPTIONS = ("arch", "cta_group", "mma_shape", "stages", "epilogue_width", "multicast", "seed", "check", *_WALK)
_TOP = ("schema", "summary", "device", "cases")


@dataclass(frozen=True)
class Case:
    """One measurement. Options that are None are the kernel's defaults, the cluster too; arch None: the device's.

    check: whether its synchronisation is checked, too; that changes nothing of what is measured.
    """

    kernel: str
    cluster: tuple[int, int] | None
    dtype: str
    shape: Shape
    inputs: str
    seed: int = 0
    arch: str | None = None
    cta_group: int | None = None
    mma_shape: tuple[int, int] | None = None
    stages: int | None = None
    epilogue_width: int | None = None
    multicast: bool = True
    scheduler: str | None = None
    raster_group: int | None = None
    accumulators: int | None = None
    clc_depth: int | None = None
    sms: int | None = None
    ping_pong: bool | None = None
    check: bool = False

    @property
    def id(self) -> str:
        """Names the case in the history: what was asked for, and nothing that follows from it."""
        words = [self.kernel, self.dtype, f"{self.cluster[0]}x{self.cluster[1]}" if self.cluster else "auto"]
        if self.arch:
            words.append(self.arch)
        if self.cta_group:
            words.append(f"cta_group={self.cta_group}")
        if self.mma_shape:
            words.append(f"mma={self.mma_shape[0]}x{self.mma_shape[1]}")
        if self.stages:
            words.append(f"stages={self.stages}")
        if self.epilogue_width:
            words.append(f"epilogue={self.epilogue_width}")
        if not self.multicast:
            words.append("no-multicast")
        words += [f"{name.replace('_', '-')}={getattr(self, name)}" for name in _WALK if getattr(self, name)]
        words += [str(self.shape), self.inputs]
        if self.seed:
            words.append(f"seed={self.seed}")
        return " ".join(words)

    def config(self, arch: str) -> KernelConfig:
        """What is to be compiled for this architecture; raises `UsageProblem` if that cannot be."""
        return make_config(
            self.kernel,
            arch=self.arch or arch,
            dtype=self.dtype,
            cta_group=self.cta_group,
            mma_shape=self.mma_shape,
            stages=self.stages,
            cluster=self.cluster,
            epilogue_width=self.epilogue_width,
            multicast=self.multicast,
            **{name: getattr(self, name) for name in _WALK},
            shape=self.shape,
        )


@dataclass(frozen=True)
class Suite:
    """A suite file as it was read. device: ``emulator`` or ``gpu``."""

    name: str
    summary: str
    device: str
    cases: tuple[Case, ...]


def find_suite(name: str) -> Path:
    """The file of a suite: one of `suite_names`, or a path."""
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
    """The suites that come with the project."""
    return sorted(path.stem for path in paths.suites_dir().glob("*.toml"))


def load_suite(name: str) -> Suite:
    """Reads a suite by name or path; errors name the file, the table and the value."""
    path = find_suite(name)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageProblem(f"suite {path}: cannot be read ({error.strerror}); name another file") from error
    except ValueError as error:
        raise UsageProblem(f"suite {path}: is not TOML ({error})") from error
    try:
        return _suite(path.stem, data)
    except UsageProblem as error:
        raise UsageProblem(f"suite {path}: {error}") from None


def _suite(name: str, data: dict[str, Any]) -> Suite:
    _check_keys(data, (*_TOP, *_LISTS, *_OPTIONS), "the top level")
    if data.get("schema") != SCHEMA:
        raise UsageProblem(f"schema is {data.get('schema')!r}; this harness reads {SCHEMA}")
    device = data.get("device", DEVICES[0])
    if device not in DEVICES:
        raise UsageProblem(f"device is {device!r}; use {' or '.join(DEVICES)}")
    tables = data.get("cases")
    if not isinstance(tables, list) or not tables:
        raise UsageProblem("there is no [[cases]] table; add one")
    shared = {key: data[key] for key in (*_LISTS, *_OPTIONS) if key in data}
    cases: dict[str, Case] = {}
    for number, table in enumerate(tables, start=1):
        where = f"[[cases]] number {number}"
        _check_keys(table, (*_LISTS, *_OPTIONS), where)
        try:
            for case in _cases({**shared, **table}):
                known = cases.get(case.id, case)
                cases[case.id] = replace(known, check=known.check or case.check)
        except UsageProblem as error:
            raise UsageProblem(f"{where}: {error}") from None
    return Suite(name, str(data.get("summary", "")), device, tuple(cases.values()))


def _cases(table: Mapping[str, Any]) -> list[Case]:
    missing = [name for name in _LISTS if name not in table]
    if missing:
        raise UsageProblem(f"{', '.join(missing)} missing, here and at the top level")
    lists = [_list(name, table[name]) for name in _LISTS]
    options = {name: table[name] for name in _OPTIONS if name in table}
    if "mma_shape" in options:
        options["mma_shape"] = parse_mma_shape(str(options["mma_shape"]))
    for name in ("cta_group", "stages", "epilogue_width", "seed", *_WALK[1:-1]):
        if name in options and (not isinstance(options[name], int) or isinstance(options[name], bool)):
            raise UsageProblem(f"{name} is {options[name]!r}; it must be a whole number")
    for name in ("multicast", "ping_pong", "check"):
        if not isinstance(options.get(name, True), bool):
            raise UsageProblem(f"{name} is {options[name]!r}; write true or false")
    made = []
    for kernel, cluster, shape, dtype, inputs in product(*lists):
        element_type(dtype)
        if inputs not in KINDS:
            raise UsageProblem(f"inputs {inputs!r} is not one of {', '.join(KINDS)}")
        case = Case(
            kernel=kernel,
            cluster=None if cluster == "auto" else parse_cluster(cluster),
            dtype=dtype,
            shape=parse_shape(shape),
            inputs=inputs,
            **options,
        )
        case.config(case.arch or "auto")
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
