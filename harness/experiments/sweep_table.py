"""The records of sweeps as rows, for a CSV file or a ranking: one for each job, from its last record."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from emugpu.errors import UsageProblem
from emugpu.files import write_text
from harness.experiments.journal import read

Row = dict[str, Any]


def load(*files: Path, keys: Container[str] | None = None) -> list[Row]:
    """Returns the rows of these files of sweeps. keys: of the jobs that are wanted; None: all, also those that older
    kernels or another harness have done."""
    last: dict[str, Row] = {}
    for path in files:
        for record in read(path):
            key = record["job"]["key"]
            if keys is None or key in keys:
                last.pop(key, None)
                last[key] = row_of(record)
    return list(last.values())


def row_of(record: Mapping[str, Any]) -> Row:
    """Returns the columns of one record. config_, counter_: as in the record; times in seconds."""
    job, timing = record.get("job", {}), record.get("timing") or {}
    row: Row = {
        "key": job.get("key"),
        "kind": job.get("kind"),
        "time": record["time"],
        "kernel": record["kernel"],
        **record["problem"],
        "inputs": record["inputs"]["kind"],
        "seed": record["inputs"]["seed"],
        "schedule_seed": job.get("schedule_seed"),
        "device": (record.get("device") or {}).get("kind"),
        "passed": (record.get("validation") or {}).get("passed"),
        "mismatches": (record.get("validation") or {}).get("mismatches"),
        "errors": (record.get("soundness") or {}).get("errors"),
        "measured_seconds": timing.get("seconds"),
        "measured_tflops": timing.get("tflops"),
        "predicted_seconds": (record.get("predicted") or {}).get("seconds"),
        "predicted_tflops": (record.get("predicted") or {}).get("tflops"),
        "failure": (record.get("failure") or {}).get("reason"),
    }
    row |= {f"config_{name}": _plain(name, value) for name, value in record["config"].items()}
    counters = (record.get("counters") or {}).items()
    return row | {f"counter_{name}": value for name, value in counters if isinstance(value, int | float)}


@dataclass(frozen=True)
class Ranking:
    """The rows of one problem, type and device, the shortest time first. figure: the column, ``measured_seconds`` or
    ``predicted_seconds``."""

    m: int
    n: int
    k: int
    dtype: str
    device: str
    figure: str
    rows: tuple[Row, ...]

    @property
    def choices(self) -> list[str]:
        """The columns in which what was asked for differs."""
        names = [name for name in self.rows[0] if name.startswith("config_") or name in ("kernel", "inputs", "seed")]
        return [name for name in names if len({row[name] for row in self.rows}) > 1]


def ranked(rows: Sequence[Row]) -> list[Ranking]:
    """Returns what has a time, and is not wrong."""
    groups: dict[tuple[int, int, int, str, str, str], list[Row]] = {}
    for figure in ("measured_seconds", "predicted_seconds"):
        for row in rows:
            if row[figure] and row["passed"] is not False:
                place = (row["m"], row["n"], row["k"], row["config_dtype"], row["device"], figure)
                groups.setdefault(place, []).append(row)
    return [
        Ranking(m, n, k, dtype, device, figure, tuple(sorted(group, key=itemgetter(figure))))
        for (m, n, k, dtype, device, figure), group in groups.items()
    ]


def write(rows: Sequence[Row], path: Path) -> None:
    """Writes rows as CSV, whole or not at all; a column that a row does not have is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def check_name(path: Path) -> None:
    """Refuses what `write` cannot write; to be asked before the work is done."""
    if path.suffix != ".csv":
        raise UsageProblem(f"--table {path}: the table is CSV; name it .csv")
    if not path.resolve().parent.is_dir():
        raise UsageProblem(f"--table {path}: there is no folder {path.parent}; name one that exists")
    if path.is_dir():
        raise UsageProblem(f"--table {path} is a folder; name a file")
    if not os.access(path if path.exists() else path.resolve().parent, os.W_OK):
        raise UsageProblem(f"--table {path} cannot be written (permission denied); name another file")


def _plain(name: str, value: object) -> object:
    """Writes pairs as text, ``256x128``. The launch plan adds K to the shape of an MMA, which is no choice."""
    if isinstance(value, list):
        return "x".join(map(str, value[:2] if name == "mma_shape" else value))
    return value
