"""Fused epilogues: functions of the product A . B^T between a kernel's accumulator and C.

The kernels compute them in f32 (``kernels/common/epilogues.mojo``); here they are formulas, which NumPy evaluates in
float64. The names in them are ``product`` [M, N]; ``bias`` [N]; ``residual`` [M, N]; ``alpha`` and ``beta``; and, if C
has half as many columns, ``gate`` and ``up`` [M, N/2]: the first 8 and the last 8 of each 16 columns of the product.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product as all_of
from pathlib import Path
from typing import Any

import numpy as np

from emugpu.errors import UsageProblem
from emugpu.launch.expression import Expression, ExpressionError, parse_expression

NONE = "none"
NAMES = ("product", "gate", "up", "bias", "residual", "alpha", "beta")
EXACT = {"abs", "maximum", "minimum", "where"}
"""Functions that do not round."""
ROUNDING = 2.0**-22
"""Relative error of a few operations in f32."""
APPROXIMATION = 2.0**-15
"""Relative error of the functions in ``kernels/common/epilogues.mojo``, which use ``ex2.approx`` and ``rcp.approx``:
the exponent of e^-x, at most 128 in magnitude, is rounded five times with an error of 2^-24 of it; each power of two is
off by ln 2 times that.
"""
UNDERFLOW = 2.0**-100
"""Numbers smaller than this may become 0. It is more than e^-88 times the argument, beyond which a sigmoid is 0
in f32.
"""


@dataclass(frozen=True)
class Epilogue:
    """One epilogue. ``formula`` defines C. ``file`` is the source of a user's own epilogue."""

    name: str
    summary: str
    formula: str
    file: str | None = None

    @property
    def word(self) -> str:
        """Returns the word for it on a command line: its file, or the name."""
        return self.file or self.name

    @cached_property
    def expression(self) -> Expression:
        return parse_expression(self.formula, NAMES)

    def takes(self, name: str) -> bool:
        """Returns whether a name is in the formula."""
        return name in self.expression.names

    @property
    def halves(self) -> bool:
        """Returns whether C has half as many columns as the product."""
        return self.takes("gate") or self.takes("up")

    @property
    def is_exact(self) -> bool:
        """Returns whether it does not round if every f32 sum is exact."""
        return not any(map(_rounds, ast.walk(self.expression.tree)))

    @property
    def error(self) -> float:
        """Returns the relative error of a kernel's f32 result, before it is rounded."""
        return ROUNDING if self.is_exact else APPROXIMATION

    def of(self, product: np.ndarray, given: Mapping[str, Any]) -> np.ndarray:
        """Returns C in float64, before it is rounded. ``given`` holds the operands by their names."""
        rows, columns = product.shape
        values = {"product": product, **{name: np.asarray(value, np.float64) for name, value in given.items()}}
        if self.halves:
            pairs = product.reshape(rows, columns // 16, 2, 8)
            values |= {name: pairs[:, :, n].reshape(rows, -1) for n, name in enumerate(("gate", "up"))}
        try:
            found = self.expression.evaluate(values)
        except ExpressionError as error:
            raise UsageProblem(f"epilogue {self.name}: {error}") from None
        expected = (rows, columns // 2 if self.halves else columns)
        if found.shape != expected:
            raise UsageProblem(f"epilogue {self.name}: {self.formula} has the shape {found.shape}, C {expected}")
        return found

    def bound(self, product: np.ndarray, error: np.ndarray, given: Mapping[str, Any]) -> np.ndarray:
        """Returns the largest error of C relative to `of`, if each element of the product is off by at most `error` and
        each operation rounds.

        The result is of first order: the formula is evaluated at the ends of each interval. Roundings also count as an
        error of the product, because the rest of the formula may cancel the terms that they are relative to.
        """
        error = error + self.error * np.abs(product)
        middle = self.of(product, given)
        found = self.error * np.abs(middle) + (0 if self.is_exact else UNDERFLOW)
        gates = np.arange(product.shape[1]) // 8 % 2 == 0
        ends = 0 * middle
        for first, second in all_of((-1, 1), repeat=2) if self.halves else ((-1, -1), (1, 1)):
            moved = self.of(product + np.where(gates, first, second) * error, given)
            ends = np.maximum(ends, np.abs(moved - middle))
        return found + ends


def _rounds(node: ast.AST) -> bool:
    """Returns whether a part of a formula rounds numbers that f32 represents exactly."""
    match node:
        case ast.Constant(float() | int() as value):
            return float(np.float32(value)) != value
        case ast.Call(ast.Name(function)):
            return function not in EXACT
        case ast.BinOp(left, ast.Mult(), right):
            return all(_has_sums(side) for side in (left, right))
        case ast.BinOp(_, operator, _):
            return not isinstance(operator, ast.Add | ast.Sub)
    return False


def _has_sums(node: ast.AST) -> bool:
    return any(isinstance(part, ast.Name) and part.id in ("product", "gate", "up") for part in ast.walk(node))


def _sigmoid(x: str) -> str:
    return f"1 / (1 + exp(-({x})))"


def _gelu(x: str) -> str:
    """Returns the tanh form of GELU: 1 + tanh(u) is twice the sigmoid of 2u."""
    return f"{x} * ({_sigmoid(f'2 * 0.7978845608028654 * ({x} + 0.044715 * {x} ** 3)')})"


EPILOGUES = {
    epilogue.name: epilogue
    for epilogue in (
        Epilogue(NONE, "C is the product", "product"),
        Epilogue("bias", "+ a bias for each column", "product + bias"),
        Epilogue("bias-gelu", "+ bias, then GELU (tanh form)", _gelu("(product + bias)")),
        Epilogue("bias-relu", "+ bias, then ReLU", "maximum(product + bias, 0)"),
        Epilogue("gelu", "GELU (tanh form)", _gelu("product")),
        Epilogue("relu", "ReLU", "maximum(product, 0)"),
        Epilogue("residual", "alpha * product + beta * residual", "alpha * product + beta * residual"),
        Epilogue("silu", "SiLU", f"product * ({_sigmoid('product')})"),
        Epilogue("swiglu", "SiLU(gate) * up; C has N/2 columns", f"gate * ({_sigmoid('gate')}) * up"),
    )
}


def find_epilogue(word: str) -> Epilogue:
    """Looks up an epilogue by name, or reads the user's own from a Mojo file."""
    if word.endswith(".mojo"):
        return read(word)
    if word not in EPILOGUES:
        raise UsageProblem(f"there is no epilogue {word!r}; use one of: {', '.join(EPILOGUES)}, or a Mojo file")
    return EPILOGUES[word]


_DECLARED = re.compile(
    r"^\s+comptime (name|formula|results|takes_bias|takes_residual)\b[^=\n]*=[ \t]*([^#\n]*)", re.MULTILINE
)


def text_of(word: str) -> str:
    """Reads a Mojo file of the user's."""
    try:
        return Path(word).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageProblem(f"{word} cannot be read: {why}; name a Mojo file") from None


def read(word: str) -> Epilogue:
    """Reads the epilogue in a Mojo file."""
    text = text_of(word)
    declared = {key: value.strip() for key, value in _DECLARED.findall(text)}
    if "struct OwnEpilogue(" not in text or "name" not in declared:
        raise UsageProblem(
            f"{word} declares no epilogue: it needs a `struct OwnEpilogue(FusedEpilogue)` with a line such as "
            '`comptime name = "mine"`, as docs/epilogues.md says'
        )
    if "formula" not in declared:
        raise UsageProblem(
            f'{word} does not say what C must be: it needs a line such as `comptime formula = "product + bias"`'
        )
    for key in ("name", "formula"):
        if not re.fullmatch(r'"[^"\\]*"', declared[key]):
            raise UsageProblem(f"{word}: {key} is {declared[key]}; write one text in double quotes, whole on its line")
        declared[key] = declared[key][1:-1]
    name = declared["name"]
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise UsageProblem(f"{word}: name is {name!r}; write it in lower case, with digits and hyphens")
    if name in EPILOGUES:
        raise UsageProblem(f"{word} names its epilogue {name}, which there is already; take another name")
    file = str(Path(word).absolute())
    found = Epilogue(name, f"your own, {file}", declared["formula"], file)
    try:
        _ = found.expression
    except ExpressionError as error:
        raise UsageProblem(f"{word}: formula: {error}") from None
    for operand in ("bias", "residual"):
        says, takes = declared.get(f"takes_{operand}", "False"), found.takes(operand)
        if says != str(takes):
            has = "has" if takes else "has no"
            raise UsageProblem(
                f"{word}: the formula {has} {operand}, and takes_{operand} is {says}; write "
                f"`comptime takes_{operand} = {takes}`, or another formula"
            )
    product = np.ones((16, 32))
    try:
        shape = found.of(product, {"bias": product[0], "residual": product, "alpha": 1.0, "beta": 1.0}).shape
    except UsageProblem as error:
        raise UsageProblem(f"{word}: formula: of a product [16, 32], {error}") from None
    if declared.get("results", "8") != ("4" if found.halves else "8"):
        raise UsageProblem(
            f"{word}: the formula makes {shape[1]} columns of 32, and results is {declared.get('results', '8')}; write "
            f"`comptime results = {4 if found.halves else 8}`, or another formula"
        )
    return found
