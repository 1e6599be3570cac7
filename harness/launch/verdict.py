"""Compares what buffers hold at the end with what they should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.launch.elements import DataType
from harness.launch.spec import Expectation
from harness.launch.values import as_numbers, to_type
from harness.problem.validation import json_number

SHOWN = 10


@dataclass(frozen=True)
class Mistake:
    """A wrong element. index: its place in the buffer."""

    index: tuple[int, ...]
    got: float
    expected: float


@dataclass(frozen=True)
class Verdict:
    """The outcome of one expectation; errors are over elements where both values are finite."""

    buffer: str
    expected: str
    rule: str
    exact: bool
    elements: int
    mismatches: int
    non_finite: int
    max_abs_error: float
    mistakes: tuple[Mistake, ...] = ()

    @property
    def passed(self) -> bool:
        return self.mismatches == 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; values it cannot hold become text."""
        return {
            "buffer": self.buffer,
            "expected": self.expected,
            "rule": self.rule,
            "passed": self.passed,
            "exact": self.exact,
            "elements": self.elements,
            "mismatches": self.mismatches,
            "non_finite": self.non_finite,
            "max_abs_error": json_number(self.max_abs_error),
            "first_mismatches": [
                {"index": list(m.index), "got": json_number(m.got), "expected": json_number(m.expected)}
                for m in self.mistakes
            ],
        }


def judge(expectation: Expectation, dtype: DataType, got: NDArray, expected: NDArray) -> Verdict:
    """got: the buffer. expected: float64 or whole numbers, of the same shape."""
    if expectation.exact:
        # Rounded once to the buffer's type, and wrapped around as its sums are.
        with np.errstate(over="ignore", invalid="ignore"):
            expected = to_type(expected, dtype)
        expected = as_numbers(expected, dtype)
    values = as_numbers(got, dtype)
    floats, wanted = values.astype(np.float64), expected.astype(np.float64)
    both_nan = np.isnan(floats) & np.isnan(wanted)
    with np.errstate(invalid="ignore"):
        error = np.abs(floats - wanted)
        if expectation.exact:
            right = values == expected
        else:
            right = (floats == wanted) | (error <= expectation.absolute + expectation.relative * np.abs(wanted))
    wrong = ~(right | both_nan)
    finite = np.isfinite(error)
    places = np.argwhere(wrong)[:SHOWN]
    return Verdict(
        expectation.buffer,
        expectation.text,
        expectation.rule,
        expectation.exact,
        int(values.size),
        int(np.count_nonzero(wrong)),
        int(values.size - np.count_nonzero(np.isfinite(floats))),
        float(error[finite].max()) if finite.any() else 0.0,
        tuple(Mistake(tuple(p), float(floats[tuple(p)]), float(wanted[tuple(p)])) for p in places.tolist()),
    )
