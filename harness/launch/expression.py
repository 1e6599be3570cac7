"""Expressions over buffers, such as ``A @ B.T + 2 * C``: the part of Python that is arithmetic, in float64.

Names are buffers as they were before the first launch. Whole-number types stay whole numbers.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ExpressionError(ValueError):
    """The expression is not one; says what is wrong and what may be written."""


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
    """A parsed expression. names: the buffers in it."""

    text: str
    tree: ast.expr
    names: tuple[str, ...]

    def evaluate(self, values: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Its value. values: of the buffers, as float64 or whole numbers. Raises ExpressionError, naming shapes."""
        try:
            with np.errstate(all="ignore"):
                return np.asarray(_evaluate(self.tree, values))
        except (ValueError, TypeError, IndexError, MemoryError, OverflowError) as error:
            shapes = ", ".join(f"{name} {list(values[name].shape)}" for name in self.names)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ExpressionError(f"{self.text}: {reason} ({shapes})") from error


def parse_expression(text: str, names: tuple[str, ...]) -> Expression:
    """Reads an expression over these names. Raises ExpressionError for anything that is no arithmetic."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise ExpressionError('cannot be read; write an expression over buffers, for example "A @ B.T"') from None
    used: dict[str, None] = {}
    _check(tree, names, used)
    return Expression(text, tree, tuple(used))


def _check(node: ast.expr, names: tuple[str, ...], used: dict[str, None]) -> None:
    """Refuses what is no arithmetic before anything is computed."""
    inner: list[ast.expr] = []
    match node:
        case ast.Constant(value=int() | float() | str()):
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
            inner = [*args, *(k.value for k in keywords if not isinstance(k.value, ast.Constant))]
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
            return _OPERATORS[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.UnaryOp(op=op, operand=operand):
            value = _evaluate(operand, values)
            return -value if isinstance(op, ast.USub) else value
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _COMPARISONS[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.Attribute(value=value):
            return _evaluate(value, values).T
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            named = {k.arg: _evaluate(k.value, values) for k in keywords if k.arg}
            return _FUNCTIONS[name](*(_evaluate(a, values) for a in args), **named)
        case ast.Subscript(value=value, slice=index):
            return _evaluate(value, values)[_evaluate(index, values)]
        case ast.Slice(lower=lower, upper=upper, step=step):
            return slice(*(_evaluate(part, values) for part in (lower, upper, step)))
        case ast.Tuple(elts=elements):
            return tuple(_evaluate(e, values) for e in elements)
        case ast.List(elts=elements):
            return [_evaluate(e, values) for e in elements]
    raise AssertionError(node)
