"""Turns the records of sweeps into rows for a CSV file or a ranking: one per job, from its last record."""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from harness.experiments.journal import read

Row = dict[str, Any]


def load(*files: Path, keys: Container[str] | None = None) -> list[Row]:
    """Returns the rows of these files of sweeps. ``keys`` are those of the wanted jobs; None means all, including jobs
    of older kernels or another harness.
    """
    last: dict[str, Row] = {}
    for path in files:
        for record in read(path):
            key = record["job"]["key"]
            if keys is None or key in keys:
                last.pop(key, None)
                last[key] = row_of(record)
    return list(last.values())


def row_of(record: Mapping[str, Any]) -> Row:
    """Returns the columns of one record. Columns with config_ and counter_ are as in the record; times are in
    seconds.
    """
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
    """The rows of one problem, type and device, the shortest time first. ``figure`` is the column, ``measured_seconds``
    or ``predicted_seconds``.
    """

    m: int
    n: int
    k: int
    dtype: str
    device: str
    figure: str
    rows: tuple[Row, ...]

    @property
    def choices(self) -> list[str]:
        """Returns the columns in which the requests differ. A row may lack columns."""
        names = [
            name for name in _columns(self.rows) if name.startswith("config_") or name in ("kernel", "inputs", "seed")
        ]
        return [name for name in names if len({row.get(name) for row in self.rows}) > 1]


def ranked(rows: Sequence[Row]) -> list[Ranking]:
    """Returns the rankings of the rows that have a time and are not wrong."""
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


def result_of(row: Row) -> str:
    """Returns the result of a job, in a few words."""
    if row["failure"]:
        return f"failed: {str(row['failure']).partition(chr(10))[0]}"
    if row["passed"] is False:
        return f"WRONG in {row['mismatches']:,} elements"
    if row["errors"]:
        return f"{row['errors']} errors of synchronisation"
    return "right" if row["passed"] else "sound"


def differing(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Returns those of the columns and of the configuration's columns in which the rows differ, but at least
    the first.
    """
    every = [*names, *(name for name in _columns(rows) if name.startswith("config_") and name != "config_label")]
    return [name for name in every if name == names[0] or len({row.get(name) for row in rows}) > 1]


def as_csv(rows: Sequence[Row]) -> str:
    """Returns rows as CSV. A column that a row lacks is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _columns(rows: Sequence[Row]) -> list[str]:
    """Returns the columns that any of the rows has."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _plain(name: str, value: object) -> object:
    """Returns a value for a table: pairs as text, ``256x128``. The launch plan adds K to the shape of an MMA; it is
    removed, because it is no choice.
    """
    if isinstance(value, list):
        return "x".join(map(str, value[:2] if name == "mma_shape" else value))
    return value
