"""Records as one Arrow table, for pandas, polars or DuckDB: a row for each job, the last record of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import CannotRun, UsageProblem
from harness.files import whole_file
from harness.sweep.journal import read

if TYPE_CHECKING:
    import pyarrow

ROWS = 5000
"""Rows that are held as Python objects at a time."""
FORMATS = (".parquet", ".arrow", ".csv")


def load(*files: Path) -> pyarrow.Table:
    """The records of these files of sweeps."""
    import pyarrow

    last: dict[str, tuple[Path, int]] = {}
    for path in files:
        for number, record in enumerate(read(path)):
            last[record["job"]["key"]] = (path, number)
    kept = {place for place in last.values()}
    rows = (row_of(r) for path in files for number, r in enumerate(read(path)) if (path, number) in kept)
    parts = [pyarrow.Table.from_pylist(part, schema=_schema(part)) for part in _chunks(rows)]
    return pyarrow.concat_tables(parts, promote_options="permissive") if parts else pyarrow.table({})


def row_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of one record. config_, counter_: as in the record; times in seconds."""
    job, timing = record.get("job", {}), record.get("timing") or {}
    row: dict[str, Any] = {
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


def write(table: pyarrow.Table, path: Path) -> None:
    """As Parquet, Arrow (Feather) or CSV, by the ending of the name; whole or not at all."""
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


def _plain(name: str, value: object) -> object:
    """Pairs as text, ``256x128``. The launch plan adds K to the shape of an MMA, which is no choice."""
    if isinstance(value, list):
        return "x".join(map(str, value[:2] if name == "mma_shape" else value))
    return value


def _schema(rows: list[dict[str, Any]]) -> pyarrow.Schema:
    """All columns of all rows: pyarrow alone would take those of the first."""
    import pyarrow

    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return pyarrow.schema([(name, pyarrow.array(values).type) for name, values in columns.items()])


def _chunks(rows: Iterable[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    for row in rows:
        part.append(row)
        if len(part) == ROWS:
            yield part
            part = []
    if part:
        yield part
