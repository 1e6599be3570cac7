"""The debug information of a PTX text: DWARF, which compilers write there as lists of numbers and labels.

It speaks of the text: a label of the code is an address, and becomes the number of its line, so that a place holds for
the instructions of some lines. A register is a number whose bytes are the characters of its name.

Source: CUDA, "PTX Writer's Guide to Interoperability", section "CUDA-Specific DWARF".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from io import BytesIO
from itertools import accumulate
from typing import Any

import numpy as np
from elftools.dwarf.datatype_cpp import describe_cpp_datatype
from elftools.dwarf.dwarf_expr import DWARFExprParser
from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo
from elftools.dwarf.locationlists import LocationParser

from emugpu.debug.names import value_text
from emugpu.errors import UsageProblem

_SECTION = re.compile(r"\.section\s+(\.debug_\w+)\s*\{([^}]*)\}")
_ITEM = re.compile(r"\.b(8|16|32|64)\s+([^\n]+)|([\w$.]+):")
_LABEL = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*:(?!:)")
_TERM = re.compile(r"([+-]?)\s*([\w$.]+)")
_SYMBOL_BITS = 40
"""The address of a symbol is its number, from 1 on, above so many bits for what is added to it."""
_KINDS = {0x02: "b", 0x04: "f", 0x05: "i", 0x06: "i", 0x07: "u", 0x08: "u"}
"""Of base types: NumPy's kinds by encodings (DWARF 2.0.0, 7.8)."""


@dataclass(frozen=True)
class Variable:
    """dtype: of its values; None: it is neither of a base type nor a pointer nor an enum. text: a value in words.
    place: regx and a register's name, addr, a symbol and the bytes behind it, constant and its bytes, or another
    operation of DWARF; nothing: it has none.
    """

    name: str
    type: str
    dtype: np.dtype[Any] | None
    text: Callable[[Any], str]
    place: tuple[Any, ...]


def known_at(text: tuple[str, ...], line: int) -> tuple[list[Variable], range]:
    """The variables of the function that a line is in, of a name that of the innermost block; the function's lines.

    Raises UsageProblem where the debug information cannot be read.
    """
    found, function = dict[str, Variable](), range(0)
    try:
        dwarf, symbols = _dwarf(text)
        for die in (die for unit in dwarf.iter_CUs() for die in _around(unit.get_top_DIE(), line)):
            if die.tag == "DW_TAG_subprogram":
                function = _lines(die)
            elif die.tag in ("DW_TAG_variable", "DW_TAG_formal_parameter"):
                origin = "DW_AT_abstract_origin"
                of = die.get_DIE_from_attribute(origin) if origin in die.attributes else die
                name = of.attributes["DW_AT_name"].value.decode()
                place = _place(die, dwarf.location_lists(), symbols, line)
                found.setdefault(name, Variable(name, describe_cpp_datatype(of), *_values(of), place))
    except Exception as error:  # of the library, which raises whatever comes of bytes that are no DWARF
        raise UsageProblem(f"the PTX's debug information cannot be read ({error!r}); compile the PTX again") from error
    return list(found.values()), function


@lru_cache(maxsize=2)
def _dwarf(lines: tuple[str, ...]) -> tuple[Any, list[str]]:
    """What pyelftools reads, and the symbols that stand in it by their numbers."""
    sections, symbols = _sections(lines)
    parts = {n: DebugSectionDescriptor(BytesIO(data), n, 0, len(data), 0) for n, data in sections.items()}
    names = [name for name in signature(DWARFInfo).parameters if name != "config"]
    given: Any = {name: parts.get("." + name.removesuffix("_sec")) for name in names}
    return DWARFInfo(DwarfConfig(True, "PTX", 8), **given), symbols


def _sections(lines: Sequence[str]) -> tuple[dict[str, bytes], list[str]]:
    """The bytes of each section, and the symbols."""
    places = {label[1]: number for number, line in enumerate(lines, 1) if (label := _LABEL.match(line))}
    items = {name: _ITEM.findall(inside) for name, inside in _SECTION.findall("\n".join(lines))}
    for name, found in items.items():
        offsets = accumulate((int(bits or 0) // 8 for bits, _, _ in found), initial=0)
        places |= {name: 0} | {label: at for (_, _, label), at in zip(found, offsets, strict=False) if label}
    symbols = {"": 0}

    def number(word: str) -> int:
        if word[0].isdecimal():
            return int(word, 0)
        return places[word] if word in places else symbols.setdefault(word, len(symbols)) << _SYMBOL_BITS

    def encoded(bits: int, text: str) -> bytes:
        value = sum(-number(word) if sign == "-" else number(word) for sign, word in _TERM.findall(text))
        return (value % (1 << bits)).to_bytes(bits // 8, "little")

    sections = {name: b"".join(encoded(int(bits), w) for bits, w, _ in found if bits) for name, found in items.items()}
    return sections, list(symbols)


def _around(die: Any, line: int) -> Iterator[Any]:
    """The function that a line is in, and what is in those of its blocks that the line is in, inner blocks first."""
    for child in die.iter_children():
        if line in _lines(child):
            yield from _around(child, line)
    if line in _lines(die):
        yield from (die, *die.iter_children())


def _lines(die: Any) -> range:
    low, high = (die.attributes.get(f"DW_AT_{end}_pc") for end in ("low", "high"))
    return range(low.value, high.value) if low and high else range(0)


def _place(die: Any, lists: Any, symbols: Sequence[str], line: int) -> tuple[Any, ...]:
    said, version = die.attributes, die.cu["version"]
    if "DW_AT_const_value" in said:
        value = said["DW_AT_const_value"].value
        return "constant", value.to_bytes(8, "little", signed=value < 0) if isinstance(value, int) else bytes(value)
    if "DW_AT_location" not in said:
        return ()
    where: Any = LocationParser(lists).parse_from_attribute(said["DW_AT_location"], version)
    parts = [e for e in where if e.begin_offset <= line < e.end_offset] if isinstance(where, list) else [where]
    operations = DWARFExprParser(die.cu.structs).parse_expr(parts[0].loc_expr) if parts else []
    names = tuple(operation.op_name.removeprefix("DW_OP_") for operation in operations)
    if names == ("regx",):
        return "regx", operations[0].args[0].to_bytes(8, "big").lstrip(b"\0").decode("ascii")
    if names in (("addr",), ("addr", "plus_uconst")):
        symbol, offset = divmod(sum(operation.args[0] for operation in operations), 1 << _SYMBOL_BITS)
        return "addr", symbols[symbol], offset
    return names


def _values(die: Any) -> tuple[np.dtype[Any] | None, Callable[[Any], str]]:
    """`dtype` and `text` of a variable."""
    while die.tag.endswith(("variable", "parameter", "const_type", "volatile_type", "typedef")):
        die = die.get_DIE_from_attribute("DW_AT_type")
    if die.tag.endswith(("pointer_type", "reference_type")):
        return np.dtype("u8"), hex
    said = {name: attribute.value for name, attribute in die.attributes.items()}
    if die.tag == "DW_TAG_enumeration_type":
        values = [child.attributes for child in die.iter_children()]
        names = {v["DW_AT_const_value"].value: v["DW_AT_name"].value.decode() for v in values}
        kind = "i" if min(names, default=0) < 0 else "u"
        return np.dtype(f"{kind}{said['DW_AT_byte_size']}"), lambda value: names.get(value) or value_text(value)
    kind = _KINDS.get(said.get("DW_AT_encoding", ""), "")
    text = value_text if kind != "b" else lambda value: str(value).lower()
    return np.dtype(f"{kind}{said['DW_AT_byte_size']}") if kind else None, text
