"""Reads published tables of a GPU: CSV files, each with its columns and its source.

The functions that predict the rows explain a table (`harness.model.silicon.times`).
"""

from __future__ import annotations

import csv
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from emugpu.errors import UsageProblem

SHIPPED = Path(__file__).parent
"""The shipped tables, in a folder per GPU."""
Value = str | int | float
Row = Mapping[str, Value]
Read = Callable[[str], Value]
"""Raises ValueError for a value that the column cannot have."""


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError
    return value


def _one_of(*names: str) -> Read:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError
        return text

    read.__doc__ = f"one of {', '.join(names)}"
    return read


RULES: dict[Read, str] = {_count: "a whole number, 1 or more", _positive: "a number above 0"}
MMA_FORMATS = _one_of("BF16", "F16", "TF32", "E4M3", "E5M2", "F8", "F6", "F4", "MXF8", "MXF6", "MXF4", "NVF4", "S8")
MMA: dict[str, Read] = {"format": MMA_FORMATS, "a_in": _one_of("shared", "tmem"), "cta_group": _one_of("1", "2")}
MMA |= {"m": _count, "n": _count}
BOX: dict[str, Read] = {"box_elements_wide": _count, "box_rows": _count}
COLUMNS: dict[str, Mapping[str, Read]] = {
    "mma_intervals": {**MMA, "latency_cycles": _positive, "interval_cycles": _positive},
    "mma_depth": {**MMA, "in_flight": _count, "cycles_per_mma": _positive},
    "mainloops": {
        "format": _one_of("bf16", "f16", "e4m3", "e5m2"),
        **dict.fromkeys(("tile_m", "tile_n", "tile_k", "stages", "k"), _count),
        "microseconds": _positive,
    },
    "multicast": {
        "mode": _one_of("implicit_l2_intra", "explicit_mcast"),
        "cluster": _count,
        **BOX,
        "sm_cycles": _positive,
        "tma_instructions": _count,
    },
    "tma_latency_all_sms": {"ctas_per_sm": _count, **BOX, "latency_cycles_median": _positive},
    "tma_throughput_dram": {
        "ctas_per_sm": _count,
        "boxes_in_flight": _count,
        **BOX,
        "sm_cycles": _positive,
        "boxes_per_sm": _positive,
    },
}
"""The used columns, and how each is read, by the name of a table, which may have other columns."""


@dataclass(frozen=True)
class TableSource:
    """The source of a table. ``date``: of publication. ``licence``: that of the table. ``what``: its content."""

    source: str
    link: str
    date: str
    licence: str
    what: str


@dataclass(frozen=True)
class PublishedTable:
    """A table. ``rows`` are in the order of the file, with only the columns of `COLUMNS`."""

    name: str
    path: Path
    rows: tuple[Row, ...]


def gpus_with_tables() -> list[str]:
    """Returns the GPUs with shipped tables."""
    return sorted(place.parent.name for place in SHIPPED.glob("*/sources.toml"))


def read_sources(gpu: str) -> dict[str, TableSource]:
    """Returns the sources of a GPU's tables, by the names of their files."""
    with (SHIPPED / gpu / "sources.toml").open("rb") as file:
        return {name: TableSource(**entry) for name, entry in tomllib.load(file).items()}


def find_tables(folder: Path) -> tuple[list[Path], list[Path]]:
    """Returns the files of sums (.json) and the known tables (.csv) of a folder; others are left out.

    Raises UsageProblem if there is no such folder, or nothing in it.
    """
    if not folder.is_dir():
        raise UsageProblem(f"--data {folder}: is no folder; name one with tables, or leave it out for those shipped")
    sums = sorted(folder.glob("*.json"))
    tables = [folder / f"{name}.csv" for name in COLUMNS if (folder / f"{name}.csv").is_file()]
    if not sums and not tables:
        raise UsageProblem(
            f"--data {folder}: has no file to hold the model against; put sums.json or one of "
            f"{', '.join(f'{name}.csv' for name in COLUMNS)} there"
        )
    return sums, tables


def read_table(path: Path) -> PublishedTable:
    """Reads a table by its name. Raises UsageProblem, with the place, for a value that breaks the rule of its
    column.
    """
    columns = COLUMNS[path.stem]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageProblem(
                    f"{path}: column {', '.join(missing)}: is missing; a table of that name must have "
                    f"{', '.join(columns)} in its first line"
                )
            rows = tuple(_row(path, reader.line_num, row, columns) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageProblem(f"{path}: cannot be read as a CSV file ({error}); write it as text in UTF-8") from None
    if not rows:
        raise UsageProblem(f"{path}: has no rows; leave the file out, or put rows into it")
    return PublishedTable(path.stem, path, rows)


def _row(path: Path, line: int, row: Mapping[str, str | None], columns: Mapping[str, Read]) -> Row:
    read: dict[str, Value] = {}
    for name, convert in columns.items():
        text = row[name] or ""
        try:
            read[name] = convert(text)
        except ValueError:
            rule = RULES.get(convert) or convert.__doc__
            raise UsageProblem(f"{path}, line {line}: {name} {text!r}: must be {rule}; correct the row") from None
    return read
