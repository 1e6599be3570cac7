"""The history: all records of a kind of device, named baselines, and the choice of the record to compare with.

Records are lines of results/<device kind>.jsonl, and named baselines are lines of results/baselines.jsonl. Both files
are only appended to, a whole line at a time (see `harness.run.records`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emugpu.errors import UsageProblem
from emugpu.record import new_record
from harness import paths
from harness.experiments.baseline_build import can_build
from harness.paths import find_commit
from harness.run import records
from harness.run.records import DamagedLine

BASELINES = "baselines"
LAST = "last"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Platform:
    """What two comparable measurements must share: the GPU and its driver. ``driver`` is None for emulation."""

    gpu: str
    driver: str | None

    def __str__(self) -> str:
        return f"{self.gpu}, driver {self.driver}" if self.driver else self.gpu


@dataclass(frozen=True)
class History:
    """Records of benchmark runs, and of ``harness run``, both oldest first, and the unreadable lines."""

    records: list[dict[str, Any]] = field(default_factory=list)
    single_runs: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[DamagedLine] = field(default_factory=list)

    def of_run(self, run: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["bench"]["run"] == run]


def load(path: Path) -> History:
    """Reads a file of records, without those of edited PTX. A missing file is an empty history."""
    history = History()
    for entry in records.read(path, _problem) if path.exists() else ():
        if isinstance(entry, DamagedLine):
            history.damaged.append(entry)
        elif not is_edited(entry):
            (history.records if "bench" in entry else history.single_runs).append(entry)
    return history


# The code reads these fields of a benchmark record without a check.
_NEEDED = {
    "bench": ("run", "case"),
    "device": ("kind", "name"),
    "facts": ("ptx_instructions",),
    "validation": ("passed",),
}


def _problem(record: Mapping[str, Any]) -> str | None:
    if "bench" not in record:  # single runs take no part in comparisons
        needed = ("device", "config", "problem", "inputs", "validation")
        missing = [name for name in needed if not isinstance(record.get(name), dict)]
        return f"a record without {missing[0]}" if missing else None
    optional = {"soundness": ("errors", "findings")} if record.get("soundness") else {}
    for part, names in (_NEEDED | optional).items():
        for name in names:
            if not isinstance(record.get(part), dict) or name not in record[part]:
                return f"a record of a benchmark without {part}.{name}"
    return None


def platform_of(record: Mapping[str, Any]) -> Platform:
    return Platform(record["device"]["name"], record["device"].get("driver"))


def case_of(record: Mapping[str, Any]) -> str:
    """Returns the name of the case: kernel, requested configuration, type, shape and inputs (see `SuiteCase.id`)."""
    return record["bench"]["case"]


def is_edited(record: Mapping[str, Any]) -> bool:
    """Returns whether the record belongs to PTX edited by hand, which says nothing about the kernel."""
    return bool((record.get("ptx") or {}).get("edited"))


def is_right(record: Mapping[str, Any]) -> bool:
    """Returns whether the output was checked and right, also during the check of the synchronisation."""
    return bool(record["validation"]["passed"]) and (record.get("soundness") or {}).get("correct") is not False


@dataclass(frozen=True)
class NamedBaseline:
    """A named baseline: a run of the suite on a kind of device."""

    name: str
    device: str
    run: str


def baselines_file() -> Path:
    return paths.results_dir() / f"{BASELINES}.jsonl"


def load_baselines(device: str) -> tuple[list[NamedBaseline], list[DamagedLine]]:
    """Returns the named baselines of a kind of device, oldest first."""
    found: list[NamedBaseline] = []
    damaged: list[DamagedLine] = []
    path = baselines_file()
    for entry in records.read(path, _baseline_problem) if path.exists() else ():
        if isinstance(entry, DamagedLine):
            damaged.append(entry)
        elif entry["device"] == device:
            found.append(NamedBaseline(entry["baseline"], device, entry["run"]))
    return found, damaged


def _baseline_problem(record: Mapping[str, Any]) -> str | None:
    missing = [name for name in ("baseline", "device", "run") if not isinstance(record.get(name), str)]
    return f"a baseline without {missing[0]}" if missing else None


def append_baseline(name: str, device: str, run: str) -> Path:
    """Names a run as a baseline. An older baseline with this name stays, for cases that the run lacks."""
    path = records.record_file(BASELINES)
    records.append(path, new_record(baseline=name, device=device, run=run))
    return path


@dataclass(frozen=True)
class Baseline:
    """The baseline: runs, newest first (for a named baseline), a commit, or, with neither, the last run."""

    label: str
    runs: tuple[str, ...] | None = None
    commit: str | None = None

    def find(
        self, history: History, case: str, platform: Platform, current_run: str
    ) -> tuple[dict[str, Any] | None, str]:
        """Returns the record to compare a case with, or None and the reason.

        Only records of the same GPU and driver with a right result count. Those of the current run count only if the
        baseline names it.
        """
        candidates = [
            record for record in history.records if case_of(record) == case and self.holds(record, current_run)
        ]
        if self.runs is not None:
            order = {run: index for index, run in enumerate(self.runs)}
            candidates.sort(key=lambda record: order[record["bench"]["run"]], reverse=True)
        right = [record for record in candidates if is_right(record)]
        here = [record for record in right if platform_of(record) == platform]
        if here:
            return here[-1], ""
        if right:
            return None, f"baseline {self.label} is of other hardware: {platform_of(right[-1])}"
        if candidates:
            return None, f"baseline {self.label} had a wrong result"
        return None, f"baseline {self.label} has no such case" if self.label != LAST else "no earlier run"

    def holds(self, record: dict[str, Any], current_run: str) -> bool:
        """Returns whether a record belongs to the baseline. The current run belongs to it only if the baseline names
        it.
        """
        run = record["bench"]["run"]
        if self.runs is not None:
            return run in self.runs
        if run == current_run:
            return False
        git = record.get("git") or {}
        return self.commit is None or (git.get("commit") == self.commit and not git.get("dirty"))


def resolve(text: str, history: History, named: list[NamedBaseline]) -> Baseline:
    """Returns the baseline for a user's text: ``last``, a saved name, or anything that git accepts as a commit."""
    if text == LAST:
        return Baseline(LAST)
    runs = [one.run for one in reversed(named) if one.name == text]
    if runs:
        return Baseline(text, runs=tuple(dict.fromkeys(runs)))
    commit = _known_commit(text, history) or find_commit(text)
    if commit is None:
        names = sorted({one.name for one in named})
        saved = f"saved are {', '.join(names)}" if names else "none is saved"
        raise UsageProblem(f"baseline {text!r} is not {LAST}, a saved name or a commit; {saved}")
    measured = [record for record in history.records if (record.get("git") or {}).get("commit") == commit]
    if not any(not record["git"].get("dirty") for record in measured) and not can_build(commit):
        how = "only with uncommitted changes" if measured else "not"
        raise UsageProblem(
            f"baseline {text!r}: commit {commit[:10]} was {how} measured on this kind of device, and there is "
            "no harness in it to build; name a later commit"
        )
    return Baseline(commit[:10], commit=commit)


def check_name(name: str) -> str:
    """Returns a name that `resolve` will find again. Raises `UsageProblem` for others."""
    if name == LAST or not _NAME.fullmatch(name):
        raise UsageProblem(f"baseline name {name!r}: use up to 64 letters, digits, '.', '_' and '-', and not {LAST!r}")
    return name


def _known_commit(text: str, history: History) -> str | None:
    """Returns the only commit of the history that starts with this text, or None. It needs no git."""
    if not re.fullmatch(r"[0-9a-f]{4,40}", text):
        return None
    commits = {(record.get("git") or {}).get("commit") or "" for record in history.records}
    found = {commit for commit in commits if commit.startswith(text)}
    return found.pop() if len(found) == 1 else None
