"""The constants of the timing model: one TOML file per GPU, with value, unit, source and status of each.

A constant is named ``table.name``, as in ``l2.bandwidth``. Cycles are those of the SM's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from emugpu.errors import UsageProblem
from emugpu.gpus import facts, names
from harness.toml_files import read_toml

GOLDEN = (5**0.5 - 1) / 2
"""The fractional parts of its multiples fill the range from 0 to 1 evenly, for any number of them."""
ENDLESS = 1e30
"""Bytes per cycle that take no time."""
FOLDER = Path(__file__).parent / "gpus"
STATUSES = ("measured", "published", "estimated", "fitted")
"""``measured``: by us on such a GPU. ``published``: measured by others. ``estimated``: from similar facts. ``fitted``:
to our measurements of whole kernels (results/nvidia-h200-timing.json).
"""
UNITS = (
    "cycles", "byte", "byte/cycle", "byte/s", "FLOP/cycle", "Hz", "s", "W", "J/FLOP", "J/byte", "SMs", "CTAs", "count",
    "ratio",
)  # fmt: skip


@dataclass(frozen=True)
class Constant:
    """One value. ``source`` says in words where it comes from."""

    value: float
    unit: str
    source: str
    status: str


@dataclass(frozen=True)
class GpuConstants:
    """The constants of one GPU.

    ``gpcs``: the SMs of each GPC; a thread-block cluster must fit into one GPC. ``spare``: pairs of SMs that clusters
    with one CTA per SM leave over in the GPCs; they hold more clusters if an SM holds several CTAs.
    """

    name: str
    title: str
    arch: str
    gpcs: tuple[int, ...]
    constants: Mapping[str, Constant]
    spare: int = 0

    def __getitem__(self, name: str) -> float:
        return self.constants[name].value

    def with_values(self, values: Mapping[str, float]) -> GpuConstants:
        """Returns the GPU with changed constants. Raises UsageProblem for an unknown name."""
        changed = dict(self.constants)
        for name, value in values.items():
            self.require(name)
            if not math.isfinite(value) or value < 0:
                raise UsageProblem(f"constant {name}={value}: must be a finite number, 0 or more")
            if changed[name].unit == "count" and (value < 1 or value != int(value)):
                raise UsageProblem(f"constant {name}={value:g}: counts something; must be a whole number, 1 or more")
            changed[name] = replace(changed[name], value=value)
        return replace(self, constants=changed)

    def require(self, name: str) -> Constant:
        if name not in self.constants:
            raise UsageProblem(
                f"constant '{name}': {self.title} has no such constant; there are {', '.join(sorted(self.constants))}"
            )
        return self.constants[name]

    def in_steps(self) -> GpuConstants:
        """Returns a GPU on which each instruction and operation takes one step: it gives the order of a run without
        times.
        """
        values = {name: 1.0 for name, constant in self.constants.items() if constant.unit == "cycles"}
        rates = ("byte/cycle", "byte/s")
        values |= {name: ENDLESS for name, constant in self.constants.items() if constant.unit in rates}
        return self.with_values({**values, "tensor.overhead": 0.0, "tensor.per_instruction": 1.0, "dram.latency": 0.0})

    @property
    def has_tcgen05(self) -> bool:
        """Returns whether its tensor cores are Blackwell's, which have their own constants."""
        return self.arch.startswith("sm_10")

    @property
    def sms(self) -> int:
        return sum(self.gpcs)

    @property
    def compared(self) -> bool:
        """Returns whether the error of the model is known for such a GPU, from our measurements or from others'.
        Otherwise a prediction is a guess.
        """
        return self.constants["model.error"].status in ("measured", "published")

    def error_in_words(self, percent: float) -> str:
        """Returns a remark about the error of the predicted cycles."""
        if self.constants["model.error"].status == "published":
            return f"the cycles may be wrong by {percent:.0f} %, by what others have published of the {self.title}"
        if self.compared:
            return f"the cycles may be wrong by {percent:.0f} %"
        return f"±{percent:.0f} % of the cycles is a guess, as no {self.title} was compared with the model"

    def resident_clusters(self, size: int, ctas_per_sm: int = 1) -> int:
        """Returns how many clusters of this size run at once. A cluster has all its CTAs in one GPC, almost always one
        per SM.
        """
        left = sum(sms % size // 2 for sms in self.gpcs)
        alone = min(self.spare, left) * (2 * ctas_per_sm // size)
        return max(1, ctas_per_sm * sum(sms // size for sms in self.gpcs) + alone)


def gpu_names() -> list[str]:
    """Returns the GPUs that have a file."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_gpu(name: str) -> GpuConstants:
    """Returns the GPU with that name. Raises UsageProblem if there is none."""
    if name not in gpu_names():
        raise UsageProblem(f"GPU '{name}': the timing model has no constants for it; it has {', '.join(gpu_names())}")
    return _load(name)


@cache
def _load(name: str) -> GpuConstants:
    return read(FOLDER / f"{name}.toml")


def read(path: Path) -> GpuConstants:
    """Reads a file of constants. Raises UsageProblem, with the entry's name, if it breaks the schema."""
    return read_toml(path, str(path), lambda data: _gpu(path.stem, data))


def _gpu(name: str, data: dict[str, Any]) -> GpuConstants:
    about = data.pop("gpu", {})
    if about.get("facts") not in names():
        raise UsageProblem(f"[gpu] facts = {about.get('facts')!r}: must be one of {', '.join(names())}")
    known = facts(about["facts"])
    constants = {
        f"{table}.{key}": _constant(f"{table}.{key}", entry)
        for table, entries in data.items()
        for key, entry in entries.items()
    }
    return GpuConstants(name, known.title, known.arch, known.gpcs, constants, about.get("spare", 0))


def _constant(where: str, entry: Any) -> Constant:
    if not isinstance(entry, dict) or set(entry) != {"value", "unit", "source", "status"}:
        raise UsageProblem(f"{where}: must have value, unit, source and status, and nothing else")
    if isinstance(entry["value"], bool) or not isinstance(entry["value"], int | float):
        raise UsageProblem(f"{where}: value {entry['value']!r} must be a number")
    if entry["unit"] not in UNITS:
        raise UsageProblem(f"{where}: unit {entry['unit']!r} must be one of {', '.join(UNITS)}")
    if entry["status"] not in STATUSES:
        raise UsageProblem(f"{where}: status {entry['status']!r} must be one of {', '.join(STATUSES)}")
    if not entry["source"]:
        raise UsageProblem(f"{where}: source is empty; say where the value is from")
    return Constant(float(entry["value"]), entry["unit"], entry["source"], entry["status"])
