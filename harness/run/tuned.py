"""What tuning has found, in ``results/tuned/<kind of GPU>.toml``: a table for each kernel, type and class of shapes,
with the configuration and the evidence for it. Only what was measured is kept.
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
from harness import paths
from harness.compile.config import KernelConfig, try_config
from harness.problem import Shape
from harness.run.records import lock_of

SCHEMA = 1
_NAMED = ("kernel", "arch", "dtype")
ROWS = 256
"""The most rows of a tile; those of the others divide it, but for the last tiles along M."""
FEW_ROWS = (16, 32, 48, 64, 128)
"""Up to which M other tiles are offered (`harness.compile.catalog`)."""


@dataclass(frozen=True)
class ShapeClass:
    """M from first to last, N and K as they are: layers of a model, and tokens by how many tiles they fill."""

    first: int
    last: int
    n: int
    k: int

    def has(self, shape: Shape) -> bool:
        return self.first <= shape.m <= self.last and (self.n, self.k) == (shape.n, shape.k)

    def __str__(self) -> str:
        return f"M {self.first} to {self.last}, N {self.n}, K {self.k}"


def class_of(shape: Shape) -> ShapeClass:
    """The class of a problem."""
    ends = [0, *FEW_ROWS, *range(ROWS, shape.m + ROWS, ROWS)]
    place = bisect_left(ends, shape.m)
    return ShapeClass(ends[place - 1] + 1, ends[place], shape.n, shape.k)


@dataclass(frozen=True)
class Entry:
    """config: as `KernelConfig.as_dict` has it. evidence: see results/README.md."""

    kernel: str
    arch: str
    dtype: str
    shapes: ShapeClass
    config: Mapping[str, Any]
    evidence: Mapping[str, Any]

    @property
    def place(self) -> tuple[str, str, str, ShapeClass]:
        """What it is the only one of in its file."""
        return self.kernel, self.arch, self.dtype, self.shapes

    def configuration(self) -> KernelConfig:
        """Raises `UsageProblem` if the kernel has changed so that it no longer can be, or that another default than
        what it was faster than may be faster still."""
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
    """An entry to be kept."""
    options = {name: value for name, value in config.as_dict().items() if name not in _NAMED}
    return Entry(config.kernel, config.arch, config.dtype, shapes, options, evidence)


def file_of(device_kind: str) -> Path:
    """For example of ``nvidia-h200``."""
    return paths.results_dir() / "tuned" / f"{device_kind}.toml"


def find(device_kind: str, kernel: str, arch: str, dtype: str, shape: Shape) -> Entry | None:
    """The entry that holds for a problem on a GPU."""
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
    """What was found for a problem on a GPU; None: nothing, or, as warn is told, nothing that still counts."""
    entry = find(device_kind, kernel, arch, dtype, shape)
    try:
        return entry.configuration() if entry else None
    except UsageProblem as error:
        warn(
            f"{kernel} runs as by default: what {file_of(device_kind)} has for {shape} no longer counts ({error}); "
            "tune it anew"
        )
        return None


def everywhere(kernel: str, arch: str, dtype: str, shape: Shape) -> dict[str, Entry]:
    """The entries that hold for a problem, by kind of GPU. arch: ``auto`` is any."""
    return {
        path.stem: entry
        for path in sorted(file_of("any").parent.glob("*.toml"))
        for entry in load(path)
        if (entry.kernel, entry.dtype) == (kernel, dtype) and arch in ("auto", entry.arch) and entry.shapes.has(shape)
    }


def load(path: Path) -> list[Entry]:
    """The entries of a file; none if there is none. Raises `CannotRun` for a file that cannot be read."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        if data.get("schema") != SCHEMA:
            raise ValueError(f"schema is {data.get('schema')!r}; this harness reads {SCHEMA}")
        return [_entry(table) for table in data.get("tuned", [])]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotRun(f"{path} cannot be read ({error}); fix it, or take -c preset=default") from None


def _entry(table: Mapping[str, Any]) -> Entry:
    shapes = ShapeClass(**table["shapes"])
    return Entry(table["kernel"], table["arch"], table["dtype"], shapes, dict(table["config"]), dict(table["evidence"]))


def keep(device_kind: str, entry: Entry) -> Path:
    """Puts an entry into its file, in place of an older one for the same."""
    path = file_of(device_kind)
    with lock_of(path):
        others = [one for one in load(path) if one.place != entry.place]
        entries = sorted([*others, entry], key=lambda one: (one.kernel, one.arch, one.dtype, str(one.shapes)))
        write_text(path, _as_toml(entries))
    return path


def _as_toml(entries: Sequence[Entry]) -> str:
    lines = ["# Written by harness tune; see results/README.md.", f"schema = {SCHEMA}"]
    for entry in entries:
        lines += ["", "[[tuned]]", *(f"{name} = {_value(getattr(entry, name))}" for name in _NAMED)]
        lines.append(f"shapes = {_value(asdict(entry.shapes))}")
        for name in ("config", "evidence"):
            lines += [f"[tuned.{name}]", *(f"{key} = {_value(v)}" for key, v in getattr(entry, name).items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """TOML of plain data. Strings are written as JSON has them, which TOML reads alike."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
