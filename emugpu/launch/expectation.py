"""The expected final values of a buffer in a launch file: the value of an expression, or a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.errors import UsageProblem
from emugpu.launch.expression import Expression, ExpressionError
from emugpu.launch.memory import as_numbers, load_file, to_type
from emugpu.launch.spec import DataType, Differences

SHOWN = 10
MOST_TOLERANCE = 1.0
"""The largest tolerance of an element, absolute and relative: with a larger one, almost any value would be right."""


@dataclass(frozen=True)
class Holds:
    """A buffer should have the value of an expression over the first values of buffers, of a .npy file, or of an
    array.

    An element x may differ by absolute + relative * \\|x\\|; ``exact``: it must be x rounded once to the buffer's
    type. ``where`` is the expectation's key in the launch file, for messages. ``size`` is the number of elements
    that are compared, from the first on; None: all.
    """

    buffer: str
    dtype: DataType
    text: str
    expression: Expression | None = None
    file: Path | None = None
    exact: bool = True
    absolute: float = 0.0
    relative: float = 0.0
    where: str = ""
    size: int | None = None
    values: NDArray[Any] | None = field(default=None, compare=False, repr=False)

    def judge(self, got: NDArray[Any], first: Mapping[str, NDArray[Any] | None]) -> Comparison:
        """Judges a buffer: see `emugpu.launch.spec.Expectation`.

        Raises UsageProblem for an error in the launch file.
        """
        got = got[: self.size]
        return compare(self.buffer, self.text, got, self._expected(got.shape, first), self.dtype, self._error)

    def differences(self, got: NDArray[Any], first: Mapping[str, NDArray[Any] | None]) -> Differences:
        """Returns, element by element, the differences that `judge` counts."""
        expected, wrong = differences(got, self._expected(got.shape, first), self.dtype, self._error)
        if self.size is not None:
            wrong[self.size :] = False
        return expected, wrong

    @property
    def compared(self) -> str:
        """Returns the buffer's name, with the tolerance if there is one."""
        return self.buffer if self.exact else f"{self.buffer} {_rule(self._error)}"

    @property
    def operands(self) -> tuple[str, ...]:
        """Returns the buffers in the expression."""
        return self.expression.names if self.expression is not None else ()

    @property
    def _error(self) -> tuple[float, float] | None:
        return None if self.exact else (self.absolute, self.relative)

    def _expected(self, shape: tuple[int, ...], first: Mapping[str, NDArray[Any] | None]) -> NDArray[Any]:
        if self.values is not None:
            return as_numbers(self.values)
        if self.expression is None:
            assert self.file
            return as_numbers(load_file(self.file, self.dtype, shape, self.where))
        expected = self._evaluate(self.expression, first)
        try:
            return np.broadcast_to(expected, shape)
        except ValueError:
            raise UsageProblem(
                f"{self.where} = {self.text}: its shape is {list(expected.shape)}, that of the buffer {list(shape)}; "
                "they must agree"
            ) from None

    def _evaluate(self, expression: Expression, first: Mapping[str, NDArray[Any] | None]) -> NDArray[Any]:
        values = {}
        for name in expression.names:
            array = first[name]
            if array is None:
                raise UsageProblem(f"{self.where} = {self.text}: {name} is uninitialised; give it an init")
            values[name] = as_numbers(array)
        try:
            return expression.evaluate(values)
        except ExpressionError as error:
            raise UsageProblem(f"{self.where}: {error}; change the expression") from None


def compare(
    buffer: str,
    text: str,
    got: NDArray[Any],
    expected: NDArray[Any],
    dtype: DataType,
    error: tuple[float, float] | None = None,
) -> Comparison:
    """Compares the values of a buffer with the expected values, of the same shape.

    ``text`` describes the expected values. ``error`` is the allowed difference of an element x, absolute + relative
    * \\|x\\|; None: it must be x rounded once to the buffer's type.
    """
    expected, wrong = differences(got, expected, dtype, error)
    floats, wanted = _floats(as_numbers(got)), _floats(expected)
    with np.errstate(invalid="ignore"):
        off = np.abs(floats - wanted)
    finite = np.isfinite(off)
    places = np.argwhere(wrong)[:SHOWN]
    return Comparison(
        buffer,
        text,
        _rule(error),
        error is None,
        int(got.size),
        int(np.count_nonzero(wrong)),
        int(got.size - np.count_nonzero(np.isfinite(floats))),
        float(off[finite].max()) if finite.any() else 0.0,
        tuple(Mistake(tuple(p), float(floats[tuple(p)]), float(wanted[tuple(p)])) for p in places.tolist()),
    )


def _floats(numbers: NDArray[Any]) -> NDArray[np.float64]:
    return numbers.astype(np.float64, copy=False)


def _rule(error: tuple[float, float] | None) -> str:
    return "equal" if error is None else f"within {error[0]:g} + {error[1]:g} |x|"


def differences(
    got: NDArray[Any], expected: NDArray[Any], dtype: DataType, error: tuple[float, float] | None = None
) -> Differences:
    """Returns the expected elements, and which elements are wrong. The arguments are those of `compare`."""
    if error is None:
        # Round once to the buffer's type; whole numbers wrap around as the buffer's sums do.
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = as_numbers(to_type(expected, dtype))
        if not dtype.is_float and not (finite := np.isfinite(expected)).all():
            rounded = np.where(finite, rounded, expected)  # no whole number is NaN or infinite
        expected = rounded
    values = as_numbers(got)
    floats, wanted = _floats(values), _floats(expected)
    both_nan = np.isnan(floats) & np.isnan(wanted)
    with np.errstate(invalid="ignore"):
        right = values == expected
        if error is not None:
            right |= np.isfinite(wanted) & (np.abs(floats - wanted) <= error[0] + error[1] * np.abs(wanted))
    return expected, ~(right | both_nan)


@dataclass(frozen=True)
class Mistake:
    """A wrong element. ``index`` is its place in the buffer."""

    index: tuple[int, ...]
    got: float
    expected: float


@dataclass(frozen=True)
class Comparison:
    """The verdict on one buffer; the errors are over elements that are finite in both."""

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
        """Returns plain data for JSON; values that JSON cannot hold become text."""
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


def json_number(value: float) -> float | str:
    """Returns a number for JSON, which cannot hold infinity and NaN: they become text."""
    return value if np.isfinite(value) else str(value)
