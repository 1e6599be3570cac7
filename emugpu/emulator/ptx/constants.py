"""Numbers and constant expressions (PTX ISA 4.5)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

import numpy as np

from emugpu.emulator.ptx.ast import Immediate

Number = int | float

_NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?$")
_FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})$|0[dD]([0-9a-fA-F]{16})$")
_TOKEN = re.compile(
    r"\s*(0[fFdD][0-9a-fA-F]+|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?|\d+U?"
    r"|WARP_SZ|\(\s*\.[su]64\s*\)|<<|>>|<=|>=|==|!=|&&|\|\||[-+!~*/%<>&^|?:()])"
)
_WORD = 1 << 64


def number(text: str) -> Immediate | None:
    """Returns the number that a word or a constant expression denotes, or None. The value of a float is its bits."""
    return _literal(text) or _expression(text)


def integer(text: str) -> int:
    """Returns the value of an integer constant. Raises ValueError for any other text."""
    found = number(text.strip())
    if found is None or found.float_bits:
        raise ValueError(f"'{text.strip()}' is no integer constant")
    return found.value


def _literal(text: str) -> Immediate | None:
    sign = -1 if text.startswith("-") else 1
    float_match = _FLOAT.match(text)
    if float_match:
        if float_match.group(1):
            return Immediate(int(float_match.group(1), 16), 32)
        return Immediate(int(float_match.group(2), 16), 64)
    if _DECIMAL.match(text):
        return _decimal(float(text))
    if _NUMBER.match(text):
        return Immediate(sign * _integer(text.lstrip("+-")))
    return None


def _integer(text: str) -> int:
    digits = text.rstrip("U")
    return int(digits, 8 if len(digits) > 1 and digits[0] == "0" and digits.isdigit() else 0)


def _decimal(value: float) -> Immediate:
    return Immediate(int(np.float64(value).view(np.uint64)), 64)


def _expression(text: str) -> Immediate | None:
    tokens, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return None
        tokens.append(found[1])
        at = found.end()
    while tokens[:1] == ["("] and tokens[2:] == [")"]:
        tokens = tokens[1:2]
    if len(tokens) == 1 and tokens[0] != "WARP_SZ":
        return _literal(tokens[0])
    try:
        value = _Expression(tokens).value()
    except (IndexError, ValueError, TypeError, ZeroDivisionError, RecursionError):
        return None
    return _decimal(value) if isinstance(value, float) else Immediate(value)


def _quotient(a: Number, b: Number) -> Number:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shifted(a: Number, by: Number) -> Number:
    if isinstance(a, float) or isinstance(by, float) or not -64 < by < 64:
        raise ValueError
    return a << by if by >= 0 else a >> -by


_OPERATORS: tuple[dict[str, Callable[[Number, Number], Number]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {"<": lambda a, b: int(a < b), "<=": lambda a, b: int(a <= b), ">": lambda a, b: int(a > b),
     ">=": lambda a, b: int(a >= b)},
    {"<<": lambda a, b: _shifted(a, b), ">>": lambda a, b: _shifted(a, -b)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": lambda a, b: a % _WORD % (b % _WORD)},
)  # fmt: skip
"""The operators of two operands, the weakest first."""


def _is_large(token: str) -> bool:
    return _NUMBER.match(token) is not None and _integer(token) >= _WORD // 2


class _Expression:
    """A constant expression. Its integers have 64 bits, and none has a sign if one of them has none."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = [*tokens, ""]
        self._at = 0
        self._is_unsigned = any(t.endswith("U") or ".u64" in t or _is_large(t) for t in tokens)

    def value(self) -> Number:
        found = self._choice()
        if self._tokens[self._at]:
            raise ValueError
        return found

    def _take(self, *wanted: str) -> str:
        token = self._tokens[self._at]
        if token not in wanted:
            return ""
        self._at += 1
        return token

    def _choice(self) -> Number:
        condition = self._joined(0)
        if not self._take("?"):
            return condition
        yes = self._choice()
        if not self._take(":"):
            raise ValueError
        no = self._choice()
        return yes if condition else no

    def _joined(self, level: int) -> Number:
        if level == len(_OPERATORS):
            return self._single()
        left = self._joined(level + 1)
        while symbol := self._take(*_OPERATORS[level]):
            left = self._wrapped(_OPERATORS[level][symbol](left, self._joined(level + 1)))
        return left

    def _single(self) -> Number:
        token = self._tokens[self._at]
        self._at += 1
        if token == "(":
            value = self._choice()
            if not self._take(")"):
                raise ValueError
            return value
        if token.startswith("("):  # a cast
            return self._wrapped(int(self._single()))
        if token in ("+", "-", "!", "~"):
            value = self._single()
            if token == "~":
                return self._wrapped(~value)  # type: ignore[operator]
            return self._wrapped({"+": value, "-": -value, "!": int(not value)}[token])
        if token == "WARP_SZ":
            return 32
        literal = _literal(token)
        if literal is None or literal.float_bits == 32:
            raise ValueError
        return float(np.uint64(literal.value).view(np.float64)) if literal.float_bits else self._wrapped(literal.value)

    def _wrapped(self, value: Number) -> Number:
        if isinstance(value, float):
            return value
        value %= _WORD
        return value if self._is_unsigned or value < _WORD // 2 else value - _WORD
