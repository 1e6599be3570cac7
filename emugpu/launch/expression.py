"""Expressions over buffers, such as ``A @ B.T + 2 * C``: Python's arithmetic, in float64.

Names stand for buffers as they were before the first launch. Whole-number types stay whole numbers.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = 10_000
"""The largest number of characters in an expression."""
MOST_ELEMENTS = 1 << 28
"""The largest number of elements in an array of an expression: 2 GiB of float64."""
MOST_BITS = 1024
"""The largest number of bits in a whole number of an expression; no buffer type has as many."""


class ExpressionError(ValueError):
    """The text is not a valid expression; the message says why, and what is allowed."""


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in (
        "abs", "exp", "exp2", "log", "log2", "sqrt", "tanh", "sin", "cos", "floor", "ceil", "rint", "maximum",
        "minimum", "where", "sum", "prod", "max", "min", "mean", "var", "cumsum", "sort", "transpose", "reshape",
        "concatenate", "arange", "zeros", "ones", "full", "tile", "repeat", "flip", "roll", "einsum", "bincount",
    )
}  # fmt: skip
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


@dataclass(frozen=True)
class Expression:
    """A parsed expression. ``names`` are the buffers in it."""

    text: str
    tree: ast.expr
    names: tuple[str, ...]

    def evaluate(self, values: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Returns the value.

        ``values`` are those of the buffers, as float64 or whole numbers. Raises ExpressionError with the shapes.
        """
        try:
            with np.errstate(all="ignore"):
                found = np.asarray(_evaluate(self.tree, values))
                if found.dtype.kind not in "biuf":
                    raise TypeError(f"its value is of type {found.dtype}, and a buffer holds real numbers")
                return found
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            MemoryError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            shapes = ", ".join(f"{name} {list(values[name].shape)}" for name in self.names)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if isinstance(error, RecursionError):
                reason = "its operations are nested too deeply"
            if isinstance(error, OverflowError):
                reason = "a number becomes larger than any that a buffer can hold"
            raise ExpressionError(f"{self.text}: {reason}{f' ({shapes})' if shapes else ''}") from error


def parse_expression(text: str, names: tuple[str, ...]) -> Expression:
    """Reads an expression over these names. Raises ExpressionError for anything but arithmetic."""
    if len(text) > LONGEST:
        raise ExpressionError(f"has {len(text)} characters, at most {LONGEST} are read; use a .npy file")
    used: dict[str, None] = {}
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        _check(tree, names, used)
    except ExpressionError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExpressionError('cannot be read; write an expression over buffers, for example "A @ B.T"') from None
    return Expression(text, tree, tuple(used))


def _check(node: ast.expr, names: tuple[str, ...], used: dict[str, None]) -> None:
    """Refuses anything but arithmetic, before anything is computed."""
    inner: list[ast.expr] = []
    match node:
        case ast.Constant(value=int() | float()):
            pass
        case ast.Name(id=name):
            if name not in names:
                raise ExpressionError(f"there is no buffer {name}; the buffers are {', '.join(names)}")
            used[name] = None
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            inner = [left, right]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            inner = [operand]
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            inner = [left, right]
        case ast.Attribute(value=value, attr="T"):
            inner = [value]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _FUNCTIONS:
            # Only functions such as einsum take text.
            inner = [a for a in (*args, *(k.value for k in keywords)) if not isinstance(a, ast.Constant)]
        case ast.Subscript(value=value, slice=index):
            inner = [value, index]
        case ast.Slice(lower=lower, upper=upper, step=step):
            inner = [part for part in (lower, upper, step) if part is not None]
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            inner = list(elements)
        case _:
            raise ExpressionError(
                f"'{ast.unparse(node)}' is not allowed; there are + - * / // % ** @ .T, comparisons, slices, and "
                f"{', '.join(_FUNCTIONS)}"
            )
    for part in inner:
        _check(part, names, used)


def _evaluate(node: ast.expr | None, values: Mapping[str, NDArray[Any]]) -> Any:
    match node:
        case None:
            return None
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _operate(type(op), _evaluate(left, values), _evaluate(right, values))
        case ast.UnaryOp(op=op, operand=operand):
            value = _evaluate(operand, values)
            return -value if isinstance(op, ast.USub) else value
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _COMPARISONS[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.Attribute(value=value):
            return _evaluate(value, values).T
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            named = {k.arg: _evaluate(k.value, values) for k in keywords if k.arg}
            return _call(name, [_evaluate(a, values) for a in args], named)
        case ast.Subscript(value=value, slice=index):
            return _evaluate(value, values)[_evaluate(index, values)]
        case ast.Slice(lower=lower, upper=upper, step=step):
            return slice(*(_evaluate(part, values) for part in (lower, upper, step)))
        case ast.Tuple(elts=elements):
            return tuple(_evaluate(e, values) for e in elements)
        case ast.List(elts=elements):
            return [_evaluate(e, values) for e in elements]
    raise AssertionError(node)


# ---- limits ----


def _operate(kind: type, left: Any, right: Any) -> Any:
    """Computes an operation, after a check that the result is small enough in memory and time."""
    left, right = (np.asarray(each) if isinstance(each, list | tuple) else each for each in (left, right))
    if isinstance(left, int) and isinstance(right, int):
        power = left.bit_length() * abs(right) if kind is ast.Pow else 0
        _allow(max(power, left.bit_length() + right.bit_length()), MOST_BITS, "bits of a whole number")
    elif kind is ast.MatMult:
        _allow(math.prod(np.shape(left)[:-1]) * math.prod(np.shape(right)[-1:]), MOST_ELEMENTS, "elements")
    else:
        _allow(math.prod(np.broadcast_shapes(np.shape(left), np.shape(right))), MOST_ELEMENTS, "elements")
    return _OPERATORS[kind](left, right)


def _call(name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
    """Calls a function, after a check that the result is small enough.

    Arguments that are not arrays may be sizes of the result.
    """
    given = [*arguments, *named.values()]
    held = [np.size(each) for each in given if isinstance(each, np.ndarray)]
    sizes = [each for each in given if not isinstance(each, np.ndarray | str) and not _has_arrays(each)]
    numbers = [abs(math.prod(np.ravel(each).tolist())) for each in sizes]
    if name == "arange" and len(arguments) == 3:
        start, stop, step = map(float, arguments)
        _allow(abs((stop - start) / step) if step else math.inf, MOST_ELEMENTS, "elements")
    elif name in ("zeros", "ones", "full", "arange"):
        _allow(max((size for size in numbers if np.isfinite(size)), default=0), MOST_ELEMENTS, "elements")
    elif name in ("tile", "repeat"):
        _allow(math.prod(held) * math.prod(numbers), MOST_ELEMENTS, "elements")
    elif name == "einsum":
        _allow(_elements_of_einsum(arguments), MOST_ELEMENTS, "elements")
    elif name == "bincount" and held:
        _allow(int(np.max(arguments[0])), MOST_ELEMENTS, "elements")
    elif name in ("maximum", "minimum", "where"):
        _allow(math.prod(np.broadcast_shapes(*map(np.shape, given))), MOST_ELEMENTS, "elements")
    return _FUNCTIONS[name](*arguments, **named)


def _has_arrays(value: Any) -> bool:
    """Returns whether a value is an argument of concatenate, whose parts may differ in size."""
    return isinstance(value, list | tuple) and any(isinstance(each, np.ndarray) for each in value)


def _elements_of_einsum(arguments: list[Any]) -> int:
    """Returns the number of elements of the result. Its indices are those after the arrow, or all indices."""
    if not arguments or not isinstance(arguments[0], str):
        raise ValueError('einsum: write the subscripts first, for example einsum("ij,kj->ik", A, B)')
    inputs, _, output = arguments[0].replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for indices, array in zip(inputs.split(","), arguments[1:], strict=False):
        sizes.update(zip(indices, np.shape(array), strict=False))
    return math.prod(sizes.get(index, 1) for index in (output or dict.fromkeys(inputs)))


def _allow(count: float, most: int, what: str) -> None:
    if count > most:
        raise ValueError(f"{count:.4g} {what} are more than the {most:,} that an expression may have")
