"""Files that hold what a machine answered to the probes.

{"machine": {...}, "probes": {name: {"question", "digest", "seconds", "answer", "outputs"} or {.., "error"}}}

Where some cases have no outputs, "failed" says why, by case, and there is no answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conformance.probe import Outputs, Probe, encode
from emugpu.files import write_text


def entry(probe: Probe, outputs: Outputs, seconds: float, failed: dict[str, str] | None = None) -> dict[str, Any]:
    """Returns the entry of a probe's results. ``failed`` holds the messages of cases without outputs."""
    kept = [case.name for case in probe.kept_cases if case.name in outputs]
    return {
        "question": probe.question,
        "digest": probe.digest(),
        "seconds": round(seconds, 2),
        **({"failed": failed} if failed else {"answer": _answer(probe, outputs)}),
        "outputs": encode({name: outputs[name] for name in kept}),
    }


def _answer(probe: Probe, outputs: Outputs) -> dict[str, Any]:
    """Returns the interpreted result. An unexpected one must not affect later probes: its outputs are kept in
    any case.
    """
    try:
        return probe.read(outputs)
    except Exception as error:
        return {"cannot be read": repr(error)}


def failure(probe: Probe, message: str) -> dict[str, Any]:
    """Returns the entry of a probe without results."""
    return {"question": probe.question, "digest": probe.digest(), "error": message}


def write(path: Path, machine: dict[str, Any], entries: dict[str, Any]) -> None:
    """Writes a recording. Entries of other probes in the file are kept."""
    kept = read(path)["probes"] if path.exists() else {}
    data = {"machine": machine, "probes": {**kept, **entries}}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(data, indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Reads a recording."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data
