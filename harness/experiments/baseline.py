"""Finds what a case is compared with: the last run, a named baseline, or a commit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from harness.errors import UsageProblem
from harness.experiments.beside import can_build
from harness.experiments.history import History, Machine, Pointer, case_of, is_right, machine_of
from harness.git import find_commit

LAST = "last"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Baseline:
    """What to compare with: runs, newest first (a named baseline), a commit, or (neither) the last run."""

    label: str
    runs: tuple[str, ...] | None = None
    commit: str | None = None

    def find(
        self, history: History, case: str, machine: Machine, current_run: str
    ) -> tuple[dict[str, Any] | None, str]:
        """The record to compare a case with, or None and the reason.

        Only records of the same GPU and driver with a right result count, and none of the current run,
        unless the baseline names it.
        """
        candidates = [
            record for record in history.records if case_of(record) == case and self.holds(record, current_run)
        ]
        if self.runs is not None:
            order = {run: index for index, run in enumerate(self.runs)}
            candidates.sort(key=lambda record: order[record["bench"]["run"]], reverse=True)
        right = [record for record in candidates if is_right(record)]
        here = [record for record in right if machine_of(record) == machine]
        if here:
            return here[-1], ""
        if right:
            return None, f"baseline {self.label} is of other hardware: {machine_of(right[-1])}"
        if candidates:
            return None, f"baseline {self.label} had a wrong result"
        return None, f"baseline {self.label} has no such case" if self.label != LAST else "no earlier run"

    def holds(self, record: dict[str, Any], current_run: str) -> bool:
        """Whether a record is one of those to compare with; the current run is only if the baseline names it."""
        run = record["bench"]["run"]
        if self.runs is not None:
            return run in self.runs
        if run == current_run:
            return False
        git = record.get("git") or {}
        return self.commit is None or (git.get("commit") == self.commit and not git.get("dirty"))


def resolve(text: str, history: History, pointers: list[Pointer]) -> Baseline:
    """The baseline a user means: ``last``, a saved name, or anything that git takes for a commit."""
    if text == LAST:
        return Baseline(LAST)
    runs = [pointer.run for pointer in reversed(pointers) if pointer.name == text]
    if runs:
        return Baseline(text, runs=tuple(dict.fromkeys(runs)))
    commit = _known_commit(text, history) or find_commit(text)
    if commit is None:
        names = sorted({pointer.name for pointer in pointers})
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
    """A name that `resolve` will find again."""
    if name == LAST or not _NAME.fullmatch(name):
        raise UsageProblem(f"baseline name {name!r}: use up to 64 letters, digits, '.', '_' and '-', and not {LAST!r}")
    return name


def _known_commit(text: str, history: History) -> str | None:
    """A commit of the history that starts with this, if there is only one; works outside of git, too."""
    if not re.fullmatch(r"[0-9a-f]{4,40}", text):
        return None
    commits = {(record.get("git") or {}).get("commit") or "" for record in history.records}
    found = {commit for commit in commits if commit.startswith(text)}
    return found.pop() if len(found) == 1 else None
