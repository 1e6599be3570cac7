"""What is to be seen in a timeline, in every drawing of one: kinds of spans with their words and colours, and rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """Of spans. words: in a legend. colour: on white. light, dark: on the report's page, where what is predicted is no
    more than an outline.
    """

    words: str
    colour: str
    light: str
    dark: str


KINDS = {
    "load": Kind("TMA load", "#4c78a8", light="#2a66ad", dark="#6ea8ec"),
    "mma": Kind("MMA", "#2e7d32", light="#1f7a33", dark="#74c27c"),
    "store": Kind("TMA store", "#b5651d", light="#a85a00", dark="#e8a05c"),
    "control": Kind("cluster launch control", "#6d4c9f", light="#6d4c9f", dark="#b79be4"),
    "issue": Kind("issues", "#7aa6d1", light="#4a8fd0", dark="#a5cdf3"),
    "convert": Kind("reads and converts", "#e0a030", light="#a67c00", dark="#e2bf5a"),
    "work": Kind("other instructions", "#9e9e9e", light="#7d838c", dark="#858b95"),
    "wait": Kind("waits", "#eceff1", light="#6b727c", dark="#949ba6"),
}
"""By the names that spans have, in the order of a legend."""
_ROWS: tuple[str | tuple[str, ...], ...] = (
    ("TMA load", "loads"),
    "tensor core",
    "TMA store",
    "cluster launch control",
    "warp",
)
"""How rows begin: what feeds the tensor core before it, and what takes from it after it."""


def row_order(row: str) -> tuple[int, str, int]:
    """To sort rows by: units first, then warps, those of one kind by their number."""
    head = row.rstrip("0123456789")
    number = row[len(head) :]
    first = next((n for n, start in enumerate(_ROWS) if row.startswith(start)), len(_ROWS))
    return first, head, int(number) if number else -1
