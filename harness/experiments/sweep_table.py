"""Records as one Arrow table, for pandas, polars or DuckDB: a row for each job, the last record of it."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emugpu.errors import CannotRun, UsageProblem
from emugpu.files import whole_file
from harness.experiments.journal import read

if TYPE_CHECKING:
    import pyarrow

ROWS = 5000
"""Rows that are held as Python objects at a time."""
FORMATS = (".parquet", ".arrow", ".csv")
TYPES = {
    "schedule_seed": "int64",
    "passed": "bool",
    "mismatches": "int64",
    "errors": "int64",
    "measured_seconds": "float64",
    "measured_tflops": "float64",
    "predicted_seconds": "float64",
    "predicted_tflops": "float64",
    "failure": "string",
}
"""Of columns in which a sweep may have nothing at all. Without it, tables of two sweeps could not be put together."""


def load(*files: Path, keys: Container[str] | None = None) -> pyarrow.Table:
    """Returns the records of these files of sweeps. keys: of the jobs that are wanted; None: all, also those that older
    kernels or another harness have done."""
    import pyarrow

    last: dict[str, tuple[Path, int]] = {}
    for path in files:
        for number, record in enumerate(read(path)):
            key = record["job"]["key"]
            if keys is None or key in keys:
                last[key] = (path, number)
    kept = set(last.values())
    rows = (row_of(r) for path in files for number, r in enumerate(read(path)) if (path, number) in kept)
    parts = [pyarrow.Table.from_pylist(part, schema=_schema(part)) for part in _chunks(rows)]
    return pyarrow.concat_tables(parts, promote_options="permissive") if parts else pyarrow.table({})


def row_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns of one record. config_, counter_: as in the record; times in seconds."""
    job, timing = record.get("job", {}), record.get("timing") or {}
    row: dict[str, Any] = {
        "key": job.get("key"),
        "kind": job.get("kind"),
        "time": datetime.fromisoformat(record["time"]),
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
    rows: tuple[dict[str, Any], ...]

    @property
    def choices(self) -> list[str]:
        """The columns in which what was asked for differs."""
        names = [name for name in self.rows[0] if name.startswith("config_") or name in ("kernel", "inputs", "seed")]
        return [name for name in names if len({row[name] for row in self.rows}) > 1]


def ranked(table: pyarrow.Table) -> list[Ranking]:
    """Returns what has a time, and is not wrong."""
    groups: dict[tuple[int, int, int, str, str, str], list[dict[str, Any]]] = {}
    for figure in ("measured_seconds", "predicted_seconds"):
        for row in table.to_pylist() if table.num_rows else ():
            if row[figure] and row["passed"] is not False:
                place = (row["m"], row["n"], row["k"], row["config_dtype"], row["device"], figure)
                groups.setdefault(place, []).append(row)
    return [
        Ranking(m, n, k, dtype, device, figure, tuple(sorted(rows, key=itemgetter(figure))))
        for (m, n, k, dtype, device, figure), rows in groups.items()
    ]


def write(table: pyarrow.Table, path: Path) -> None:
    """Writes a table as Parquet, Arrow (Feather) or CSV, by the ending of the name; whole or not at all."""
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet

    writers: dict[str, Any] = {
        ".parquet": pyarrow.parquet.write_table,
        ".arrow": pyarrow.feather.write_feather,
        ".csv": pyarrow.csv.write_csv,
    }
    check_name(path)
    try:
        with whole_file(path.resolve()) as file:
            writers[path.suffix](table, file)
    except OSError as error:
        raise CannotRun(f"cannot write {path}: {error.strerror or error}") from error


def check_name(path: Path) -> None:
    """Refuses what `write` cannot write; to be asked before the work is done."""
    if path.suffix not in FORMATS:
        raise UsageProblem(f"--table {path}: the name must end with one of {', '.join(FORMATS)}")
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


def _schema(rows: list[dict[str, Any]]) -> pyarrow.Schema:
    """Names all columns of all rows: pyarrow alone would take those of the first."""
    import pyarrow

    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return pyarrow.schema([(name, _type(name, values)) for name, values in columns.items()])


def _type(name: str, values: list[Any]) -> pyarrow.DataType:
    import pyarrow

    if name == "time":
        return pyarrow.timestamp("ms", tz="UTC")  # Parquet has no seconds
    return pyarrow.type_for_alias(TYPES[name]) if name in TYPES else pyarrow.array(values).type


def _chunks(rows: Iterable[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    for row in rows:
        part.append(row)
        if len(part) == ROWS:
            yield part
            part = []
    if part:
        yield part
