"""The history: all records of a kind of device, and pointers into it.

Records are lines of results/<device kind>.jsonl and pointers (named baselines) lines of
results/baselines.jsonl. Both files are only ever added to, a whole line at a time (see `harness.run.records`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import paths
from harness.run import records
from harness.run.records import DamagedLine

BASELINES = "baselines"


@dataclass(frozen=True)
class Machine:
    """What two measurements must share to be compared: the GPU and its driver. driver None: emulated."""

    gpu: str
    driver: str | None

    def __str__(self) -> str:
        return f"{self.gpu}, driver {self.driver}" if self.driver else self.gpu


@dataclass(frozen=True)
class History:
    """Records of benchmark runs, oldest first, and the lines that could not be read."""

    records: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[DamagedLine] = field(default_factory=list)

    def of_run(self, run: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["bench"]["run"] == run]


def load(path: Path) -> History:
    """Reads a file of records, without those of ``harness run`` and of edited PTX. No file is an empty history."""
    history = History()
    for entry in records.read(path, _problem) if path.exists() else ():
        if isinstance(entry, DamagedLine):
            history.damaged.append(entry)
        elif "bench" in entry and not is_edited(entry):
            history.records.append(entry)
    return history


# What is read from a record of a benchmark run without asking whether it is there.
_NEEDED = {
    "bench": ("run", "case"),
    "device": ("kind", "name"),
    "facts": ("ptx_instructions",),
    "validation": ("passed",),
}


def _problem(record: Mapping[str, Any]) -> str | None:
    if "bench" not in record:  # of a single run, which takes no part
        return None if isinstance(record.get("device"), dict) else "a record without device"
    optional = {"soundness": ("errors", "findings")} if record.get("soundness") else {}
    for part, names in (_NEEDED | optional).items():
        for name in names:
            if not isinstance(record.get(part), dict) or name not in record[part]:
                return f"a record of a benchmark without {part}.{name}"
    return None


def machine_of(record: Mapping[str, Any]) -> Machine:
    return Machine(record["device"]["name"], record["device"].get("driver"))


def case_of(record: Mapping[str, Any]) -> str:
    """Kernel, configuration as asked for, type, shape and inputs (see `Case.id`)."""
    return record["bench"]["case"]


def key_of(record: Mapping[str, Any]) -> tuple:
    """What a measurement is a measurement of: GPU, driver, toolchain, and the case."""
    toolchain = record.get("toolchain") or {}
    versions = tuple((name, toolchain.get(name)) for name in ("mojo", "max"))
    return (machine_of(record), versions, case_of(record))


def is_edited(record: Mapping[str, Any]) -> bool:
    """Whether PTX edited by hand was run: such a record says nothing of the kernel."""
    return bool((record.get("ptx") or {}).get("edited"))


def is_right(record: Mapping[str, Any]) -> bool:
    """Whether the output was checked and right, also while the synchronisation was checked."""
    return bool(record["validation"]["passed"]) and (record.get("soundness") or {}).get("correct") is not False


@dataclass(frozen=True)
class Pointer:
    """A named baseline: a run of the suite on a kind of device."""

    name: str
    device: str
    run: str


def pointers_file() -> Path:
    return paths.results_dir() / f"{BASELINES}.jsonl"


def load_pointers(device: str) -> tuple[list[Pointer], list[DamagedLine]]:
    """The pointers into the history of a kind of device, oldest first."""
    found: list[Pointer] = []
    damaged: list[DamagedLine] = []
    path = pointers_file()
    for entry in records.read(path, _pointer_problem) if path.exists() else ():
        if isinstance(entry, DamagedLine):
            damaged.append(entry)
        elif entry["device"] == device:
            found.append(Pointer(entry["baseline"], device, entry["run"]))
    return found, damaged


def _pointer_problem(record: Mapping[str, Any]) -> str | None:
    missing = [name for name in ("baseline", "device", "run") if not isinstance(record.get(name), str)]
    return f"a baseline without {missing[0]}" if missing else None


def save_pointer(name: str, device: str, run: str) -> Path:
    """Makes ``name`` point at a run. An older pointer of this name stays, for cases that the run lacks."""
    path = records.record_file(BASELINES)
    records.append(path, records.new_record(baseline=name, device=device, run=run))
    return path
