"""Basic steps through the text of a PTX file, and the syntax of numbers (PTX ISA 4.5)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

import numpy as np

from emugpu.emulator.errors import PtxSyntaxError
from emugpu.emulator.ptx.ast import Immediate

_NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_DECIMAL = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?$")
_FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})$|0[dD]([0-9a-fA-F]{16})$")


_CONSTANT = re.compile(r"-?\([\s\d+\-*/%&|^~<>()a-fA-FxXU]+\)")
_C_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: int.__add__, ast.Sub: int.__sub__, ast.Mult: int.__mul__, ast.LShift: int.__lshift__,
    ast.RShift: int.__rshift__, ast.BitAnd: int.__and__, ast.BitOr: int.__or__, ast.BitXor: int.__xor__,
    ast.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}  # fmt: skip


def fold(text: str) -> str:
    """Replaces constant expressions in parentheses (PTX ISA 4.5.4) by their values: ``(4*2-1)`` becomes ``7``."""
    return _CONSTANT.sub(_folded, text) if "(" in text else text


def _folded(match: re.Match[str]) -> str:
    text = re.sub(r"(?<=[0-9a-fA-F])U", "", match[0])
    try:
        return str(_value(ast.parse(text, mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return match[0]


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _C_OPERATORS:
        return _C_OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd | ast.Invert):
        operand = _value(node.operand)
        return -operand if isinstance(node.op, ast.USub) else ~operand if isinstance(node.op, ast.Invert) else operand
    raise ValueError


def number(text: str) -> Immediate | None:
    """Returns the number that a word denotes, or None. The value of a float is its bits."""
    sign = -1 if text.startswith("-") else 1
    float_match = _FLOAT.match(text)
    if float_match:
        if float_match.group(1):
            return Immediate(int(float_match.group(1), 16), 32)
        return Immediate(int(float_match.group(2), 16), 64)
    if _DECIMAL.match(text):
        return Immediate(int(np.float64(text).view(np.uint64)), 64, decimal=True)
    if _NUMBER.match(text):
        digits = text.lstrip("+-").rstrip("U")
        base = 8 if len(digits) > 1 and digits[0] == "0" and digits.isdigit() else 0
        return Immediate(sign * int(digits, base))
    return None


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_FILE = re.compile(r"\.file\s+(\d+)\s+\"([^\"\n]*)\"[^\n]*")
_PRAGMA = re.compile(r"(\.pragma\s+\")(?!used_bytes_mask)([^\"\n]*)(\")")
SPACE = re.compile(r"\s+")
_BRACE = re.compile(r"[{}]")


class Scanner:
    """A position in a text. ``at``: the next character. ``lines``: the original lines of the file, for messages."""

    def __init__(self, text: str) -> None:
        # Comments become spaces, so that offsets and line numbers remain those of the file.
        self.lines = text.splitlines()
        text = _PRAGMA.sub(lambda m: m[1] + " " * len(m[2]) + m[3], text)
        self.text = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
        self.at = 0
        self.files: dict[str, str] = {}
        """Source files by their number (.file)."""

    def file(self) -> bool:
        """Takes a .file directive if one is next."""
        found = self.take(_FILE)
        if found:
            self.files[found[1]] = found[2]
        return found is not None

    def skip_space(self) -> bool:
        match = SPACE.match(self.text, self.at)
        if match:
            self.at = match.end()
        return self.at < len(self.text)

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def word(self) -> str:
        match = re.compile(r"[.%A-Za-z_$][\w$.:]*").match(self.text, self.at)
        if not match:
            raise self.error(self.at, f"cannot understand '{self.text[self.at : self.at + 20].splitlines()[0]}'")
        self.at = match.end()
        return match.group()

    def rest_of_line(self) -> str:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        rest, self.at = self.text[self.at : end].strip(), end
        return rest

    def until(self, stop: str) -> str:
        end = self.text.find(stop, self.at)
        if end < 0:
            raise self.error(self.at, f"missing '{stop}'")
        found, self.at = self.text[self.at : end], end + 1
        return found

    def skip_braces(self, what: str = "") -> None:
        end = closing_brace(self.text, self.at)
        if end < 0:
            raise self.error(self.at, f"{what} has no closing brace" if what else "missing '}'")
        self.at = end

    def line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def error(self, position: int, message: str) -> PtxSyntaxError:
        return PtxSyntaxError(f"PTX line {self.line(position)}: {message}")


def closing_brace(text: str, start: int) -> int:
    """Returns the position after the brace that closes the first one from ``start`` on, or -1 if there is none."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return -1


def split(text: str) -> list[str]:
    """Splits operands at commas outside brackets and braces."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]
