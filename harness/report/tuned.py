"""What `harness tune` has found on GPUs, as tables: what it kept for which problems, and how much it gained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.errors import CannotRun, UsageProblem
from harness.run.tuned import Entry, load

COLUMNS = ("problems", "kept", "gain", "beside the default", "tried", "measured at", "date")


@dataclass(frozen=True)
class Tuned:
    """What was found on one kind of GPU. missing: why its file could not be read, or empty."""

    gpu: str
    rows: tuple[tuple[str, ...], ...] = ()
    missing: str = ""


def tuned_tables(folder: Path) -> list[Tuned]:
    """Makes a table for each file of ``tuned`` in a folder of results."""
    return [_table(path) for path in sorted((folder / "tuned").glob("*.toml"))]


def _table(path: Path) -> Tuned:
    try:
        entries = load(path)
        rows = tuple(map(_row, entries))
    except CannotRun as error:
        return Tuned(path.stem, missing=f"{error}.")
    except (KeyError, TypeError, ValueError) as error:
        return Tuned(path.stem, missing=f"{path} has evidence that harness tune does not write ({error!r}); tune anew.")
    devices = [entry.evidence["device"] for entry in entries if "device" in entry.evidence]
    return Tuned(devices[0] if devices else path.stem, rows)


def _row(entry: Entry) -> tuple[str, ...]:
    evidence = entry.evidence
    try:
        kept = entry.configuration().label.removeprefix(f"{entry.kernel} {entry.arch} ")
    except UsageProblem as error:
        kept = f"no longer possible: {error}"
    low, high = evidence.get("interval", (None, None))
    default = evidence.get("gain") == 1.0
    return (
        f"{entry.kernel} {entry.dtype} {entry.shapes}",
        f"the default, {kept}" if default else kept,
        f"{evidence['gain']:.3f}" + (f" ({low:.3f} to {high:.3f})" if low and not default else ""),
        str(evidence.get("verdict", "first in the race")),
        str(evidence.get("candidates", "")),
        "x".join(map(str, evidence.get("shape", ()))),
        str(evidence.get("time", ""))[:10],
    )
