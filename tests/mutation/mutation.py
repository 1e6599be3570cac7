"""Where small faults can be planted in Python source, and which: see ``mutants.py``."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

LEFT_OUT = {  # "name()": a function, and the arguments of calls; "name=": an argument; "name": what it is set to or by
    "__repr__()": "text for people",
    "__str__()": "text for people",
    "_describe()": "text for people",
    "_disagreement()": "text for people",
    "_who()": "text for people",
    "_nearest()": "text for people",
    "name_of()": "text for people",
    "region_at()": "text for people",
    "state()": "text for people",
    "isinstance()": "types",
    "strict=": "guards against slips of the programmer",
    "repr=": "text for people",
    "copy=": "costs time, changes no value",
    "maxsize=": "size of a cache",
    "choice()": "what a random schedule picks from: every order is legal",
    "_change()": "shares and priorities of a random schedule: every order is legal",
    "CANDIDATES": "how many warps a random schedule picks from: every order is legal",
    "FIRST_LOOK": "how soon a warp is looked at whether it polls",
    "WINDOW": "how soon a polling loop is recognised",
    "SLICE": "how soon a warp gives way: every order is legal",
    "CLOCK_ROUNDS": "patience before a livelock is reported",
    "PATIENCE": "patience before a livelock is reported",
    "PATIENCE_WITH_SIBLINGS": "patience before a livelock is reported",
    "LIMIT_CHECK": "how often the limits are looked at",
    "self._turns": "how often the limits are looked at",
    "self._steps_to_change": "when a random schedule changes its shares: every order is legal",
    "_TICK": "how far a clock goes on when it is read: no measure of any time",
    "PANEL_SLICES": "how much is multiplied at a time",
    "_CACHE_LINE": "costs time, changes no value",
}
EXCEPTIONS = re.compile(r"(_error|\w*Error|Fault|Deadlock|Unsupported)\(\)")  # text for people
F_STRINGS_ARE_CODE = re.compile(r"/(instructions|translate)/")  # they are the source of translated programs
REPORTS = re.compile(r"/reports\.py$")  # functions there that return text make it for people
SAYS = re.compile(r"(\w+\.)*(warn|suspend)")  # f-strings among the arguments are text for people

_PAIRS: list[tuple[type, type]] = [
    (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.LShift, ast.RShift), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or),
    (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE),
]  # fmt: skip
SWAPS = dict(_PAIRS) | {b: a for a, b in _PAIRS} | {ast.Mod: ast.FloorDiv, ast.Div: ast.Mult, ast.BitXor: ast.BitOr}
NEGATIONS = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)  # swapping them negates the comparison


# ---- places for faults ----


@dataclass
class Point:
    """A slot of the tree and what can stand there instead of the node."""

    parent: ast.AST
    field: str
    index: int | None
    node: Any
    choices: list[ast.AST]
    statement: Any

    def plant(self, new: ast.AST) -> str:
        """Puts a node into the slot; returns the expression or statement as it then reads."""
        if self.index is None:
            setattr(self.parent, self.field, new)
        else:
            getattr(self.parent, self.field)[self.index] = new
        whole = ast.expr | ast.keyword | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return
        around = type(self.node) in SWAPS or (isinstance(self.node, ast.Constant) and isinstance(self.parent, whole))
        return " ".join(ast.unparse(self.parent if around else new).split())

    def lines(self) -> tuple[int, int]:
        """First and last line of the statement, of a compound one without its body."""
        first, body = self.statement.lineno, getattr(self.statement, "body", None)
        return first, max(first, body[0].lineno - 1 if body else self.statement.end_lineno)


class Kind(NamedTuple):
    """What is special about a file. f_strings: they are code; reports: functions that return text are left out."""

    f_strings: bool = False
    reports: bool = False


def points(tree: ast.AST, kind: Kind) -> list[Point]:
    """Every point in the order of the file."""
    return list(_points(tree, None, set(), kind))


def _points(node: ast.AST, statement: ast.stmt | None, bound: set[str], kind: Kind) -> Iterator[Point]:
    for name, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _left_out(node, name, child, kind):
                continue
            within = child if isinstance(child, ast.stmt) else statement
            for choices in _choices(name, child, bound):
                yield Point(node, name, index, child, choices, within)
            inside = bound
            if isinstance(child, ast.FunctionDef):
                inside = {a.arg for a in ast.walk(child.args) if isinstance(a, ast.arg)}
                if child.name == "__init__":
                    inside.discard("self")  # its attributes have no value yet
            yield from _points(child, within, inside, kind)
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                bound.add(child.id)


def _left_out(parent: ast.AST, name: str, node: ast.AST, kind: Kind) -> bool:
    called = ""
    if name in ("annotation", "returns", "decorator_list"):
        return True
    match node:
        case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign([ast.Name("__slots__")]):  # costs memory, changes no value
            return True
        case ast.Expr(value):
            return _left_out(node, "", value, kind)
        case ast.JoinedStr():
            said = isinstance(parent, ast.Call) and SAYS.fullmatch(ast.unparse(parent.func))
            return not kind.f_strings or bool(said)
        case ast.BinOp(left, ast.BitOr(), right):  # int | None
            words = [ast.unparse(side).split(".")[-1] for side in (left, right)]
            return any(re.fullmatch(r"[A-Z]\w*[a-z]\w*(\[.*\])?", word) for word in words)
        case ast.cmpop() if isinstance(parent, ast.Compare) and _draws(parent):
            return True
        case ast.UnaryOp(ast.USub(), ast.Constant(1)) if isinstance(parent, ast.Call):
            return ast.unparse(parent.func).endswith(".reshape")
        case ast.If(test):
            return "TYPE_CHECKING" in ast.unparse(test)
        case ast.FunctionDef(returns=ast.expr() as returns) if kind.reports and "str" in ast.unparse(returns):
            return True
        case ast.FunctionDef(called):
            called += "()"
        case ast.Call(func):
            called = ast.unparse(func).split(".")[-1] + "()"
        case ast.keyword(arg):
            called = f"{arg}="
        case ast.expr() if isinstance(parent, ast.Assign | ast.AnnAssign) and name == "value":
            called = ast.unparse(parent.targets[0] if isinstance(parent, ast.Assign) else parent.target)
        case ast.AugAssign(target):
            called = ast.unparse(target)
    return called in LEFT_OUT or EXCEPTIONS.fullmatch(called) is not None


def _draws(comparison: ast.Compare) -> bool:
    """Whether it asks if a random number is below a share: which side its border is on cannot be noticed."""
    return ast.unparse(comparison.left).endswith(".random()") and isinstance(comparison.ops[0], ast.Lt | ast.GtE)


def _choices(name: str, node: ast.AST, bound: set[str]) -> Iterator[list[ast.AST]]:
    match node:
        case ast.operator() | ast.boolop() | ast.cmpop() if type(node) in SWAPS:
            yield [SWAPS[type(node)]()]
        case ast.Constant(bool() as flag):
            yield [ast.Constant(not flag)]
        case ast.Constant(int() as number):
            yield [ast.Constant(number + 1), ast.Constant(number - 1)]
        case ast.UnaryOp(ast.Not(), operand):
            yield [operand]
        case ast.Expr(ast.Call()) | ast.Break() | ast.Continue() | ast.AugAssign():
            yield [ast.Pass()]
        case ast.Assign(targets) if all(_has_value(target, bound) for target in targets):
            yield [ast.Pass()]
        case ast.AnnAssign(target, value=ast.expr()) if _has_value(target, bound):
            yield [ast.Pass()]
    swapped = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], NEGATIONS)
    if name in ("test", "ifs", "guard") and not swapped and not isinstance(node, ast.Constant | ast.UnaryOp):
        yield [ast.UnaryOp(ast.Not(), node)]  # type: ignore[arg-type]


def _has_value(target: ast.expr, bound: set[str]) -> bool:
    """Before the assignment: without it the program still runs."""
    match target:
        case ast.Tuple(elements):
            return all(_has_value(element, bound) for element in elements)
        case ast.Name(name) | ast.Attribute(ast.Name(name)):
            return name in bound
    return True


# ---- faults ----


@dataclass(frozen=True)
class Mutant:
    """A fault in one file (its path from the root)."""

    path: str
    point: int
    choice: int
    line: int
    lines: tuple[int, int]
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before} -> {self.after}"


def _parse(root: Path, path: str) -> tuple[ast.Module, list[Point]]:
    tree = ast.parse((root / path).read_text())
    return tree, points(tree, Kind(F_STRINGS_ARE_CODE.search(path) is not None, REPORTS.search(path) is not None))


def draw(root: Path, under: str, count: int, seed: int, only: Sequence[str] = ()) -> list[Mutant]:
    """Faults at ``count`` points of the files under a folder, every point as likely; in the order of the files."""
    rng, found = random.Random(seed), []
    for path in sorted(file.relative_to(root).as_posix() for file in (root / under).rglob("*.py")):
        for number, point in enumerate(_parse(root, path)[1]):
            choice, (first, last) = rng.randrange(len(point.choices)), point.lines()
            at = getattr(point.node, "lineno", getattr(point.parent, "lineno", first))  # operators have no line
            line = min(max(at, first), last)  # it can be off inside an f-string
            before, after, _ = (point.plant(node) for node in (point.node, point.choices[choice], point.node))
            found.append(Mutant(path, number, choice, line, (first, last), before, after))
    if only:
        found = [mutant for mutant in found if {mutant.path, f"{mutant.path}:{mutant.line}"} & set(only)]
    return [found[n] for n in sorted(rng.sample(range(len(found)), min(count, len(found))))]


def compiled(root: Path, mutant: Mutant) -> CodeType:
    """The file with the fault in it."""
    tree, found = _parse(root, mutant.path)
    point = found[mutant.point]
    point.plant(point.choices[mutant.choice])
    return compile(ast.fix_missing_locations(tree), str(root / mutant.path), "exec", dont_inherit=True)
