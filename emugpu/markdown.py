"""Writes tables in Markdown, as GitHub and MkDocs read them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> Iterator[str]:
    """Yields the lines of a table: its head, a separator, and one line per row.

    ``right`` names right-aligned columns, for numbers. A cell holds any text: bars are escaped, and line ends become
    spaces.
    """
    yield _line(columns)
    yield f"|{'|'.join('---:' if column in right else '---' for column in columns)}|"
    yield from map(_line, rows)


def _line(cells: Sequence[str]) -> str:
    return f"|{'|'.join(f' {_one_line(cell)} ' if cell else ' ' for cell in cells)}|"


def _one_line(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
