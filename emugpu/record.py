"""The common fields of all JSON records of runs: schema version, time and source."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from emugpu.paths import git

SCHEMA = 1


def new_record(**fields: object) -> dict[str, Any]:
    """Returns a record with these fields and the common ones: schema version, time and source."""
    return {
        "schema": SCHEMA,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **({} if "git" in fields else {"git": source_version()}),
        **fields,
    }


def source_version() -> dict[str, Any] | None:
    """Returns the commit of the checkout, and whether files other than results differ from it; None outside of git."""
    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    changed = git("status", "--porcelain", "--", ".", ":!results")
    return {"commit": commit.decode().strip(), "dirty": bool(changed and changed.strip())}
