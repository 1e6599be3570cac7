"""The Python expressions of a plain instruction, put together from its micro-operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from emugpu.emulator.instructions.operations import BY_NAME, FUNCTIONS
from emugpu.emulator.instructions.table import Micro, OfWarp, Temporary, Translator, Unsupported, bits_of
from emugpu.emulator.instructions.values import M32, narrow
from emugpu.emulator.machine.poison import carrying
from emugpu.emulator.ptx.ast import TYPE_BYTES, Operand, Register

_WORD = re.compile(r"\b(?:[abc]|imm)\b|\w+(?=\()")
_CALL = re.compile(r"\w+\([^()]*\)")
_MASKED = re.compile(rf"(\([^()]*\)) & {M32}")
_END = "\0"


def expressions(operations: Sequence[Micro], w: Translator) -> list[tuple[Register, str]]:
    """Returns each register that the operations write, with an expression of its new value.

    The expressions have to be evaluated in this order: a value that several operations read is given a name where it
    is first used. Raises Unsupported if an operand cannot be read.
    """
    results: list[str] = []
    """The text of each operation's result. ``<n>`` stands in it for the result of the n-th operation."""
    held: dict[Operand | Temporary | OfWarp, int] = {}
    for m in operations:
        sources = [_read(operand, kind, held, w) for operand, kind in m.sources]
        results.append(_text(m, sources, w))
        if isinstance(m.destination, Register | Temporary):
            held[m.destination] = len(results) - 1
    written = [(to, number) for to, number in held.items() if isinstance(to, Register)]
    if len(results) == 1:
        return [(to, results[0]) for to, _ in written]
    whole = _END.join(f"<{number}>" for _, number in written)
    for number in reversed(range(len(results))):
        whole = _resolved(whole, number, results[number])
    return [(to, text) for (to, _), text in zip(written, whole.split(_END), strict=True)]


def _read(
    operand: Operand | Temporary | OfWarp, kind: str, held: dict[Operand | Temporary | OfWarp, int], w: Translator
) -> str:
    if not held or operand not in held:
        assert not isinstance(operand, Temporary | OfWarp), operand
        return w.read(operand, kind)
    if isinstance(operand, Register) and kind != "pred" and TYPE_BYTES[operand.type] > TYPE_BYTES[kind]:
        return f"{w.use(narrow)}(<{held[operand]}>, {bits_of(kind)})"
    return f"<{held[operand]}>"


def _text(m: Micro, sources: Sequence[str], w: Translator) -> str:
    """Returns an operation's text, with its sources in place."""
    if m.function is not None:
        f = m.function
        arguments = [*map(repr, f.before), *sources, *map(repr, f.after)]
        return f"{w.use(carrying(f.function))}({', '.join(arguments)})"
    operation = BY_NAME[m.name]
    if len(sources) != len(operation.sources):
        raise Unsupported
    folds = operation.with_literal and sources[1].isdigit()
    template, functions = _template(operation.with_literal if folds else operation.python)
    known = {name: w.use(carrying(FUNCTIONS[name])) for name in functions}
    return template.format(imm=m.imm, **known, **dict(zip("abc", sources, strict=False)))


@cache
def _template(text: str) -> tuple[str, tuple[str, ...]]:
    """Returns a text with braces around the words to replace, and those of them that are functions."""
    words = {found[0] for found in _WORD.finditer(text)}
    return _WORD.sub(r"{\g<0>}", text), tuple(words & FUNCTIONS.keys())


def _resolved(whole: str, number: int, text: str) -> str:
    """Puts the text of a result in its places: in parentheses, or under a name if there are several.

    The mask of a sum is left out before another mask with a number, which is narrower.
    """
    place = f"<{number}>"
    uses = whole.count(place)
    masked = _MASKED.fullmatch(text)
    if masked and uses == 1 and re.search(rf"{place} & \d", whole):
        return whole.replace(place, masked[1])
    is_atom = re.fullmatch(r"\w+", text) or _CALL.fullmatch(text)
    if uses > 1 and not re.fullmatch(r"\w+", text):
        whole = whole.replace(place, f"(t{number} := {text})", 1)
        return whole.replace(place, f"t{number}")
    alone = f"{_END}{whole}{_END}".find(f"{_END}{place}{_END}") >= 0
    return whole.replace(place, text if is_atom or alone else f"({text})")
