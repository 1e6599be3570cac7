"""Reads lists and ranges: ``3:6``, ``512:8192:512``, ``2,4,8``, ``2x1,2x2``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, TypeVar

from emugpu.errors import UsageProblem
from harness.compile.options import Option
from harness.problem import Shape

T = TypeVar("T")
MOST = 10_000_000
"""Most values of one range; a longer one is probably a mistake."""


def parse_numbers(text: str, what: str) -> list[int] | range:
    """Reads ``A``, ``A:B``, ``A:B:STEP`` (including B), or several of these separated by commas."""
    parts = [_range(part.strip(), what) for part in text.split(",")]
    return parts[0] if len(parts) == 1 else list(dict.fromkeys(n for part in parts for n in part))


def parse_values(text: str, parse: Callable[[str], T]) -> list[T]:
    """Reads words separated by commas, each with ``parse``."""
    return list(dict.fromkeys(parse(word.strip()) for word in text.split(",")))


def several(option: Option, text: str) -> Sequence[Any]:
    """Returns the values of an option: one, a list, or for numbers also a range."""
    if option.kind == "number" and any(mark in text for mark in ",:"):
        return parse_numbers(text, option.words)
    return parse_values(text, option.parse)


def parse_shapes(text: str) -> Iterator[Shape]:
    """Reads ``M,N,K`` with a range for each size, or one range of cubes. Yields all combinations in this order.

    Raises `UsageProblem` for other texts, and, when it reaches them, for impossible shapes.
    """
    parts = text.split(",")
    if len(parts) not in (1, 3):
        raise UsageProblem(
            f"shape {text!r} is not M,N,K or one size, each a number or a range; write for example "
            "512:2048:512,4096,4096, and --shape once more for others"
        )
    ranges = [_range(part.strip(), "shape") for part in parts]
    if len(ranges) == 1:
        return (Shape(n, n, n) for n in ranges[0])
    return (Shape(m, n, k) for m, n, k in product(*ranges))


def _range(text: str, what: str) -> range:
    parts = text.split(":")
    if not 1 <= len(parts) <= 3 or not all(p.isascii() and p.isdecimal() and len(p) <= 12 for p in parts):
        raise UsageProblem(f"{what} {text!r} is not a number or a range; write for example 4, 3:6 or 512:4096:512")
    first, last, step = int(parts[0]), int(parts[min(1, len(parts) - 1)]), int(parts[2]) if len(parts) == 3 else 1
    if step < 1 or last < first:
        raise UsageProblem(f"{what} {text!r}: it must go up, from the first to the last, which belongs to it")
    values = range(first, last + 1, step)
    if len(values) > MOST:
        raise UsageProblem(f"{what} {text!r} has {len(values):,} values; at most {MOST:,} are possible")
    return values
