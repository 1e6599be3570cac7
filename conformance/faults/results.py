"""The file with the results: what each program did in each column, and on which machine.

{"gpu": {...}, "sanitizer": {...}, "checker": {...}, "programs": {ID: {"gpu": {...}, "racecheck": {...}, ...}}}
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.faults.programs import by_id
from emugpu.errors import UsageProblem
from emugpu.files import write_text


@dataclass
class Results:
    """``about`` says how each part was measured, ``programs`` has the entries by program and column."""

    path: Path
    about: dict[str, Any] = field(default_factory=dict)
    programs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def keep(self, id: str, column: str, result: dict[str, Any]) -> None:
        self.programs.setdefault(id, {})[column] = result

    def forget(self, ids: Collection[str], *columns: str) -> None:
        """Drops what is measured anew: these columns of these programs, or of all if none is named."""
        for id in ids or self.programs:
            for column in columns:
                self.programs.get(id, {}).pop(column, None)

    def save(self) -> None:
        ordered = {id: self.programs[id] for id in by_id() if id in self.programs}
        write_text(self.path, json.dumps({**self.about, "programs": ordered}, indent=1) + "\n")


def read(path: Path) -> Results:
    """Reads a file of results. If there is none, it is empty. Raises UsageProblem for a file of another kind."""
    if not path.exists():
        return Results(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        programs = {
            id: {column: dict(found) for column, found in each.items()} for id, each in data["programs"].items()
        }
        about = {part: dict(how) for part, how in data.items() if part != "programs"}
        return Results(path, about, programs)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageProblem(f"{path} holds no results of these programs; name another file") from None
