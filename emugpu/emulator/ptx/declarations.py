"""Declarations of variables and parameters (PTX ISA 5.4, 11)."""

from __future__ import annotations

import re

import numpy as np

from emugpu.emulator.ptx.ast import TYPE_BYTES, Parameter, Variable
from emugpu.emulator.ptx.constants import integer, number
from emugpu.emulator.ptx.scanner import SPACE, Scanner, split

_ALIGN = r"(?:\.align\s+(?P<{}>[^.\s]+)\s*)?"
_TYPE = re.compile(
    _ALIGN.format("align") + r"(?:\.v(?P<vector>[248])\s*)?\.(?P<type>[a-z]\w+)\s*" + _ALIGN.format("late")
)
_VARIABLE = re.compile(r"(?P<name>[\w$%]+)\s*(?P<array>(?:\[[^\]]*\]\s*)*)(?:=\s*(?P<init>.+))?$", re.S)
_POINTER = re.compile(r"(?P<generic>generic\s*\()?\s*(?P<name>[A-Za-z_$%][\w$]*)\s*\)?\s*(?:\+(?P<addend>.+))?$")
_PARAMETER = re.compile(
    r"\.(?P<space>param|reg)\s*" + _ALIGN.format("align") + r"\.(?P<type>[a-z]\w+)\s*" + _ALIGN.format("late")
    + r"(?:\.ptr\b\s*(?:\.(?!align)\w+\s*)*(?:\.align\s+\w+\s*)?)?(?P<name>[\w$%]+)\s*(?:\[\s*(?P<count>\w+)\s*\])?$"
)  # fmt: skip


def variables(scanner: Scanner, space: str, external: bool) -> list[Variable]:
    """Returns the variables of one declaration, up to its semicolon."""
    start = scanner.at
    body = scanner.until(";")
    opaque = re.match(r"\s*(\.texref|\.samplerref|\.surfref)\b", body)
    if opaque:
        raise scanner.error(start, f"variables of type '{opaque[1]}' are not supported: there are no textures")
    found = _TYPE.match(body.strip().removeprefix(".attribute(.managed)").strip())
    if not found or found["type"] not in TYPE_BYTES:
        raise scanner.error(start, f"cannot read the variable declaration '{body.strip()}'")
    element = TYPE_BYTES[found["type"]] * int(found["vector"] or 1)
    align = _alignment(scanner, start, found["align"] or found["late"] or str(element))
    made = []
    for item in split(found.string[found.end() :]):
        match = _VARIABLE.match(item)
        if not match:
            raise scanner.error(start, f"cannot read the variable declaration '{body.strip()}'")
        size = element
        for extent in re.findall(r"\[([^\]]*)\]", match["array"]):
            size *= integer(extent) if extent.strip() else 0
        data: bytes | None = None
        addresses: tuple[tuple[int, str, int, bool], ...] = ()
        if match["init"]:
            scalar = TYPE_BYTES[found["type"]]
            data, addresses = _initial_value(scanner, start, match["init"], scalar, found["type"])
            size = size or -(-len(data) // align) * align
            data = data.ljust(size, b"\0")
        made.append(Variable(match["name"], space, align, size, external, data, addresses, TYPE_BYTES[found["type"]]))
    return made


def _initial_value(
    scanner: Scanner, start: int, text: str, element: int, kind: str
) -> tuple[bytes, tuple[tuple[int, str, int, bool], ...]]:
    """Returns the bytes of ``= {1, 0f3F800000, generic(name) + 8}``, and the addresses in it (PTX ISA 5.4.4)."""
    data, addresses = bytearray(), []
    for item in split(re.sub(r"[{}]", " ", text)):
        literal = number(item)
        if literal is None:
            pointer = _POINTER.match(item)
            if pointer is None or element != 8:
                raise scanner.error(start, f"cannot read the initial value '{item}'")
            addresses.append((len(data), pointer["name"], integer(pointer["addend"] or "0"), bool(pointer["generic"])))
            value = 0
        elif literal.float_bits == 64 and kind == "f32":
            value = int(np.uint64(literal.value).view(np.float64).astype(np.float32).view(np.uint32))
        else:
            value = literal.value
        data += (value & ((1 << 8 * element) - 1)).to_bytes(element, "little")
    return bytes(data), tuple(addresses)


def parameters(scanner: Scanner) -> list[Parameter]:
    """Returns a list of ``.param`` (or, for functions, ``.reg``) declarations in parentheses."""
    scanner.at += 1
    found: list[Parameter] = []
    offset = 0
    for item in filter(None, (part.strip() for part in scanner.until(")").split(","))):
        match = _PARAMETER.match(SPACE.sub(" ", item))
        if not match or match["type"] not in TYPE_BYTES:
            raise scanner.error(scanner.at, f"cannot read the parameter '{item}'")
        element = TYPE_BYTES[match["type"]]
        size = element * integer(match["count"] or "1")
        align = _alignment(scanner, scanner.at, match["align"] or match["late"] or str(element))
        offset = -(-offset // align) * align
        in_register = match["space"] == "reg"
        found.append(
            Parameter(match["name"], offset, size, align, match["type"], match["count"] is not None, in_register)
        )
        offset += size
    return found


def _alignment(scanner: Scanner, position: int, text: str) -> int:
    """Returns an alignment, which must be a power of two."""
    align = integer(text)
    if align.bit_count() != 1:
        raise scanner.error(position, f".align {text}: must be a power of two")
    return align


def plain(parameter: Parameter) -> str:
    """Returns the untyped name of a scalar parameter's type."""
    return "pred" if parameter.type == "pred" else f"b{8 * parameter.size}"
