"""Builds the complete Mojo source of the interpreter, including the operations of the table."""

from __future__ import annotations

from pathlib import Path

from emugpu.emulator.instructions.operations import MOJO_TYPES, OPERATIONS, MicroOperation
from emugpu.emulator.native.layout import constants
from emugpu.emulator.native.operations import (
    ACCESSES,
    ATOMIC_ACCESSES,
    ATOMICS,
    EXCHANGES,
    MATRICES,
    SPACES,
    Control,
    Flag,
)

_FOLDER = Path(__file__).with_name("interpreter")
_FIRST = {
    "EXCHANGE": min(EXCHANGES.values()),
    "ACCESS": ACCESSES["ld", "shared", 1],
    "STORE": ACCESSES["st", "shared", 1],
    "ATOMIC": min(ATOMIC_ACCESSES.values()),
    "MATRIX": min(MATRICES.values()),
}
"""The number with which a kind of operations begins."""
_ROWS = ("pa", "pb", "px")


def _handler(operation: MicroOperation) -> list[str]:
    lines = [
        f"    var {name}{name} = load[{MOJO_TYPES[kind]}]({row})"
        for name, row, kind in zip("abc", _ROWS, operation.sources, strict=False)
    ]
    names = dict(zip("abc", ("aa", "bb", "cc"), strict=True))
    words = _rename(operation.mojo, names)
    if operation.nearly:
        ftz = ".ftz." in operation.name
        lines += [
            f"    var wide = {words}",
            "    if not is_certain(wide, active):",
            "        status = STOP_FAILED",
            "        break",
            f"    var r = {'flush(' if ftz else ''}wide.cast[DType.float32](){')' if ftz else ''}",
            "    put(pd, canonical(r))",
        ]
    elif operation.result == "f32":
        lines.append(f"    put(pd, canonical({words}))")
    else:
        lines.append(f"    put[{MOJO_TYPES[operation.result]}](pd, {words})")
    return lines


def _rename(expression: str, names: dict[str, str]) -> str:
    """Returns an expression with a, b and c replaced by names of the interpreter's variables."""
    found, word = "", ""
    for character in expression + " ":
        if character.isalnum() or character == "_":
            word += character
            continue
        found += names.get(word, word) + character
        word = ""
    return found.rstrip()


def _access(verb: str, space: str, nbytes: int) -> str:
    kind = f"{SPACES.index(space)}, {nbytes}"
    if verb == "ld":
        return f"result = load_lanes[{kind}](c, f, pd, pa, same, o, active)"
    stored = f"store_lanes[{kind}](c, f, pa, same, pb, o, active)"
    return f"result = STORED if missing_lanes(file, slots, b) & active == 0 and {stored} else -1"


def _atomic(space: str, nbytes: int) -> list[str]:
    """Returns the code of an atomic. If it changes nothing, the loop may only poll, and Python examines what it
    polls.
    """
    kind = f"{SPACES.index(space)}, {nbytes}"
    return [
        "    var is_single = mask & (mask - 1) == 0",
        "    if (missing_lanes(file, slots, b) | missing_lanes(file, slots, x)) & active == 0:",
        f"        result = atomic_lanes[{kind}](c, f, pd, pa, same, pb, px, o, active, is_single)",
        "    if result >= 0:",
        "        changes += result",
        "        loads += MANY_LOADS",
        "        result = STORED if d == NONE else UNIFORM if is_single else VARIED",
    ]


_MATRICES = {
    "tcgen05.ld": "VARIED if load_tensor_memory(c, f, pd, pa, pb, o)",
    "stmatrix": "STORED if not same and missing_lanes(file, slots, b) == 0 and store_matrix[False](c, pa, pb, o)",
    "stmatrix.trans": "STORED if not same and missing_lanes(file, slots, b) == 0 and store_matrix[True](c, pa, pb, o)",
    "tcgen05.st": "STORED if missing_lanes(file, slots, x) == 0 and store_tensor_memory(c, f, pa, pb, px, o)",
    "tcgen05.wait::st": "STORED if end_stores(c, f)",
}


def _chain(cases: list[tuple[int, list[str]]]) -> str:
    """Returns a chain of ifs, which the compiler turns into a jump table."""
    lines: list[str] = []
    for position, (number, body) in enumerate(cases):
        lines.append(f"{'elif' if position else 'if'} op == {number}:")
        lines += body
    return "\n".join(" " * 12 + line for line in lines)


def mojo_source() -> dict[str, str]:
    """Returns the files of the library and of the package that it imports, by name."""
    numbers = [f"comptime {name.replace('.', '_').upper()} = {number}" for name, number in EXCHANGES.items()]
    numbers += [f"comptime ATOMIC_{name.replace('.', '_').upper()} = {n}" for n, name in enumerate(ATOMICS)]
    numbers += [f"comptime SPACE_{space.upper()} = {n}" for n, space in enumerate(SPACES)]
    numbers += [f"comptime FIRST_{what} = {number}" for what, number in _FIRST.items()]
    numbers += [f"comptime CONTROL_{control.name} = {control.value}" for control in Control]
    numbers += [f"comptime {flag.name} = {flag.value}" for flag in Flag]
    found = {f"interpreter/{path.name}": path.read_text(encoding="utf-8") for path in sorted(_FOLDER.glob("*.mojo"))}
    found["interpreter/layout.mojo"] = "\n".join([constants(), *numbers, ""])
    handlers = _chain([(number, _handler(operation)) for number, operation in enumerate(OPERATIONS)])
    accesses = _chain([(number, ["    " + _access(*key)]) for key, number in ACCESSES.items()])
    accesses += "\n" + _chain([(number, _atomic(*key)) for key, number in ATOMIC_ACCESSES.items()])
    accesses += "\n" + _chain(
        [(number, [f"    result = {_MATRICES[name]} else -1"]) for name, number in MATRICES.items()]
    )
    blocks = found["interpreter/run_blocks.mojo"]
    blocks = blocks.replace("@HANDLERS@\n", handlers + "\n").replace("@ACCESSES@\n", accesses + "\n")
    library = found.pop("interpreter/library.mojo")
    return {**found, "interpreter/run_blocks.mojo": blocks, "library.mojo": library}
