"""The exact figures of a record: the composition of a kernel, and what it executed.

They do not scatter. A figure that differs is a change of the kernel (or of its compiler), however small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from emugpu.emulator.ptx.parser import parse_module
from harness.compile.artifacts import Artifact
from harness.compile.planner import Plan

Direction = Literal["better", "worse", "changed"]

# Fewer is better, or more is better; other figures are neither.
_FEWER = {
    "PTX instructions",
    "registers",
    "spill store bytes",
    "spill load bytes",
    "stack bytes",
    "instructions executed",
    "mma instructions",
    "mma flops",
    "tma loads",
    "tma global bytes read",
    "tma shared bytes written",
    "tma stores",
    "tma global bytes written",
    "mbarrier waits",
    "mbarrier stalls",
    "mbarrier arrivals",
}
_MORE = {"stages"}


@dataclass(frozen=True)
class FigureChange:
    """A figure that differs, or is None on one side. ``executed`` marks figures of a run, not of the kernel."""

    name: str
    old: int | None
    new: int | None
    executed: bool = False

    @property
    def direction(self) -> Direction:
        less = (self.new or 0) < (self.old or 0)
        if self.name in _FEWER:
            return "better" if less else "worse"
        if self.name in _MORE:
            return "worse" if less else "better"
        return "changed"

    @property
    def difference(self) -> int:
        return (self.new or 0) - (self.old or 0)

    @property
    def rank(self) -> tuple[int, int]:
        """Returns the order: causes come before effects. First the launch plan, then the opcodes, their sum, and
        executed figures.
        """
        if self.executed:
            kind = 3
        elif self.name == "PTX instructions":
            kind = 2
        else:
            kind = int(self.name.startswith("PTX "))
        return kind, ("worse", "better", "changed").index(self.direction)

    def __str__(self) -> str:
        return f"{self.name} {_number(self.old)} -> {_number(self.new)}"


def in_words(changes: Sequence[FigureChange], most: int) -> list[str]:
    """Returns the first ``most`` changes as texts, and the number of the others."""
    others = len(changes) - most
    return [*map(str, changes[:most]), *([f"{others} more"] if others > 0 else [])]


def static_facts(artifact: Artifact, plan: Plan) -> dict[str, Any]:
    """Returns the facts of a kernel that are known before it runs; results/README.md describes them."""
    return {
        "ptx_instructions": count_instructions(artifact.ptx),
        "stages": plan.config["stages"],
        "threads": plan.block[0] * plan.block[1] * plan.block[2],
        "dynamic_shared_bytes": plan.dynamic_smem,
        "shared_memory": {part.name: part.bytes for part in plan.shared_memory},
        "barriers": {barrier.name: barrier.count for barrier in plan.barriers},
        "planned_tmem_columns": plan.tmem_columns,
    }


def count_instructions(ptx: str) -> dict[str, int]:
    """Counts the instructions of a PTX text by opcode with its modifiers, for example ``add.s32``."""
    counts: Counter[str] = Counter()
    for kernel in parse_module(ptx).kernels.values():
        for instruction in kernel.instructions:
            counts[".".join((instruction.opcode, *instruction.modifiers))] += 1
    return dict(sorted(counts.items()))


def static_figures(record: Mapping[str, Any]) -> dict[str, int]:
    """Returns the figures of the kernel itself by name. Unknown ones (without ptxas) are left out."""
    found: dict[str, int] = {}
    facts = record.get("facts")
    if facts:
        found["PTX instructions"] = sum(facts["ptx_instructions"].values())
        found.update({f"PTX {name}": count for name, count in facts["ptx_instructions"].items()})
        found.update(_flatten({name: value for name, value in facts.items() if name != "ptx_instructions"}))
    ptxas = (record.get("ptx") or {}).get("ptxas") or {}
    if "error" not in ptxas:
        found.update({_name(name): value for name, value in ptxas.items() if isinstance(value, int)})
    return found


def executed_figures(record: Mapping[str, Any]) -> dict[str, int]:
    """Returns the figures of the run by name; none if it was not emulated."""
    counters = record.get("counters") or {}
    if not counters:
        return {}
    executed = counters.get("instructions") or {}
    found = {"instructions executed": sum(executed.values())}
    found.update({f"executed {family}": count for family, count in executed.items()})
    found.update(_flatten({name: value for name, value in counters.items() if name != "instructions"}))
    return found


# The figures of a group are all known, or all unknown.
_GROUPS = (("facts",), ("ptx", "ptxas"), ("counters",))


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[FigureChange]:
    """Returns the figures that differ between two records of the same case. Causes come before effects."""
    old, new = _comparable(old, new), _comparable(new, old)
    old, new = _known_counters(old, new), _known_counters(new, old)
    found = []
    for executed, part in ((False, static_figures), (True, executed_figures)):
        before, after = part(old), part(new)
        found += [
            FigureChange(name, before.get(name), after.get(name), executed)
            for name in dict.fromkeys((*after, *before))
            if before.get(name, 0) != after.get(name, 0)
        ]
    return sorted(found, key=lambda change: change.rank)


def not_compared(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns what one of two records lacks, in words."""
    words = {
        ("facts",): "PTX and launch plan",
        ("ptx", "ptxas"): "registers and spills",
        ("counters",): "emulated counters",
    }
    return [words[group] for group in _GROUPS if _known(old, group) != _known(new, group)]


def _comparable(record: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the record without the groups of figures that the other one lacks."""
    missing = {group[0] for group in _GROUPS if not _known(other, group)}
    return {name: value for name, value in record.items() if name not in missing}


def _known_counters(record: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the record without the counters that the other one's emulator did not have."""
    ours, theirs = record.get("counters") or {}, other.get("counters") or {}
    return {**record, "counters": {name: value for name, value in ours.items() if name in theirs}}


def _known(record: Mapping[str, Any], group: tuple[str, ...]) -> bool:
    value: Any = record
    for name in group:
        value = (value or {}).get(name)
    return bool(value) and "error" not in value


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{_name(name)}: ")
        elif isinstance(value, int) and not isinstance(value, bool):
            yield f"{prefix}{_name(name)}", value


def _name(name: str) -> str:
    return name.replace("_", " ")


def _number(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"
