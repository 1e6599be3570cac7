"""The results of tuning, in ``results/tuned/<kind of GPU>.toml``: a table for each kernel, type and class of shapes,
with the configuration and its evidence. Only measured results are kept.
"""

from __future__ import annotations

import json
import tomllib
import warnings
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emugpu.errors import CannotRun, UsageProblem
from emugpu.files import write_text
from emugpu.launch.toml_table import as_toml
from harness import paths
from harness.compile.config import KernelConfig, try_config
from harness.problem import Shape

SCHEMA = 1
_NAMED = ("kernel", "arch", "dtype")
ROWS = 256
"""Most rows of a tile. Other heights divide it, except in the last tiles along M."""
FEW_ROWS = (8, 16, 32, 48, 64, 128)
"""Other tiles are available up to these M (`harness.compile.catalog`); 8 and 16 are those of the kernel rows."""


@dataclass(frozen=True)
class ShapeClass:
    """A class of shapes: M from ``first`` to ``last`` with fixed N and K. N and K belong to a layer of a model; M is
    the number of tokens, grouped by the number of tiles that they fill.
    """

    first: int
    last: int
    n: int
    k: int

    def has(self, shape: Shape) -> bool:
        return self.first <= shape.m <= self.last and (self.n, self.k) == (shape.n, shape.k)

    def __str__(self) -> str:
        return f"M {self.first} to {self.last}, N {self.n}, K {self.k}"


def class_of(shape: Shape) -> ShapeClass:
    """Returns the class of a problem."""
    ends = [0, *FEW_ROWS, *range(ROWS, shape.m + ROWS, ROWS)]
    place = bisect_left(ends, shape.m)
    return ShapeClass(ends[place - 1] + 1, ends[place], shape.n, shape.k)


@dataclass(frozen=True)
class Entry:
    """An entry of the file. ``config`` has the form of `KernelConfig.to_json`; results/README.md describes
    ``evidence``.
    """

    kernel: str
    arch: str
    dtype: str
    shapes: ShapeClass
    config: Mapping[str, Any]
    evidence: Mapping[str, Any]

    @property
    def place(self) -> tuple[str, str, str, ShapeClass]:
        """Returns the key that is unique in its file."""
        return self.kernel, self.arch, self.dtype, self.shapes

    def configuration(self) -> KernelConfig:
        """Returns the configuration. Raises `UsageProblem` if the kernel no longer has it, or if the default changed
        since the comparison, so that the new default may be faster.
        """
        if {"default", "shape"} <= self.evidence.keys():
            shape = Shape(*self.evidence["shape"])
            default = try_config(self.kernel, arch=self.arch, dtype=self.dtype, shape=shape).label
            if default != self.evidence["default"]:
                raise UsageProblem(f"the default of {shape} was {self.evidence['default']} and is now {default}")
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.config.items()
        }
        return try_config(self.kernel, arch=self.arch, dtype=self.dtype, **options)


def entry_of(config: KernelConfig, shapes: ShapeClass, evidence: Mapping[str, Any]) -> Entry:
    """Returns an entry to be kept."""
    options = {name: value for name, value in json.loads(config.to_json()).items() if name not in _NAMED}
    return Entry(config.described_kernel.word, config.arch, config.dtype, shapes, options, evidence)


def file_of(device_kind: str) -> Path:
    """Returns the file of a kind of device, for example of ``nvidia-h200``."""
    return paths.results_dir() / "tuned" / f"{device_kind}.toml"


def find(device_kind: str, kernel: str, arch: str, dtype: str, shape: Shape) -> Entry | None:
    """Returns the entry for a problem on a GPU."""
    for entry in load(file_of(device_kind)):
        if (entry.kernel, entry.arch, entry.dtype) == (kernel, arch, dtype) and entry.shapes.has(shape):
            return entry
    return None


def configuration_for(
    device_kind: str,
    kernel: str,
    arch: str,
    dtype: str,
    shape: Shape,
    warn: Callable[[str], object] = warnings.warn,
) -> KernelConfig | None:
    """Returns the configuration found for a problem on a GPU, or None if there is none. If an entry is no longer valid,
    calls ``warn`` and returns None.
    """
    entry = find(device_kind, kernel, arch, dtype, shape)
    try:
        return entry.configuration() if entry else None
    except UsageProblem as error:
        warn(
            f"{kernel} runs its default: the entry for {shape} in {file_of(device_kind)} is no longer valid ({error}); "
            "run harness tune again"
        )
        return None


def everywhere(kernel: str, arch: str, dtype: str, shape: Shape) -> dict[str, Entry]:
    """Returns the entries for a problem, by kind of GPU. ``arch`` may be ``auto`` for any."""
    return {
        path.stem: entry
        for path in sorted(file_of("any").parent.glob("*.toml"))
        for entry in load(path)
        if (entry.kernel, entry.dtype) == (kernel, dtype) and arch in ("auto", entry.arch) and entry.shapes.has(shape)
    }


def load(path: Path) -> list[Entry]:
    """Returns the entries of a file, or none if there is no file. Raises `CannotRun` for a file that cannot be read."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        if data.get("schema") != SCHEMA:
            raise ValueError(f"schema is {data.get('schema')!r}; this harness reads {SCHEMA}")
        return [_entry(table) for table in data.get("tuned", [])]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotRun(f"{path} cannot be read ({error}); fix it, or use -c preset=default") from None


def _entry(table: Mapping[str, Any]) -> Entry:
    shapes = ShapeClass(**table["shapes"])
    return Entry(table["kernel"], table["arch"], table["dtype"], shapes, dict(table["config"]), dict(table["evidence"]))


def keep(device_kind: str, entry: Entry) -> Path:
    """Puts an entry into its file, and replaces an older one with the same key."""
    path = file_of(device_kind)
    with paths.lock_of(path):
        others = [one for one in load(path) if one.place != entry.place]
        entries = sorted([*others, entry], key=lambda one: (one.kernel, one.arch, one.dtype, str(one.shapes)))
        write_text(path, _text(entries))
    return path


def _text(entries: Sequence[Entry]) -> str:
    lines = ["# Written by harness tune; see results/README.md.", f"schema = {SCHEMA}"]
    for entry in entries:
        lines += ["", "[[tuned]]", *(f"{name} = {as_toml(getattr(entry, name))}" for name in _NAMED)]
        lines.append(f"shapes = {as_toml(asdict(entry.shapes))}")
        for name in ("config", "evidence"):
            lines += [f"[tuned.{name}]", *(f"{key} = {as_toml(v)}" for key, v in getattr(entry, name).items())]
    return "\n".join(lines) + "\n"
