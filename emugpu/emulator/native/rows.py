"""The rows in which native code keeps registers, intermediate values, literals and special registers of a fragment.

A register's slot is the number of its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emugpu.emulator.errors import PtxSyntaxError
from emugpu.emulator.instructions.table import OfWarp, Temporary, Unsupported
from emugpu.emulator.ptx.ast import TYPE_BYTES, Immediate, Register, Special, Symbol

ROW_BYTES = 256
NARROW, WIDE, PREDICATE = 0, 1, 2
"""Kinds of rows: 32 bits per lane, 64 bits per lane, or a predicate."""


class NotNative(Exception):
    """No micro-operations do what the instruction does here."""


class Rows:
    """The rows of one kernel."""

    def __init__(self, dtypes: Sequence[Any], operands: Any, excluded: frozenset[int]) -> None:
        """``excluded`` are the slots of registers that native code may not access."""
        self._dtypes = dtypes
        self._operands = operands
        self._excluded = excluded
        self.registers: set[int] = set()
        """The registers that native code accesses."""
        self.kinds = [PREDICATE if t is np.bool_ else WIDE if t is np.uint64 else NARROW for t in dtypes]
        self.literals: list[tuple[int, int]] = []
        self.expressions: dict[tuple[str, int], int] = {}
        self._known: dict[Any, int] = {}

    def _new(self, kind: int) -> int:
        self.kinds.append(kind)
        return len(self.kinds) - 1

    def accessible(self, slot: int) -> tuple[int, int]:
        """Returns (row, kind of the row) of a register. Raises NotNative if native code may not access it."""
        if slot in self._excluded or self._dtypes[slot] is object:
            raise NotNative
        self.registers.add(slot)
        return slot, self.kinds[slot]

    def literal(self, value: int, kind: int) -> int:
        key = ("literal", value, kind)
        if key not in self._known:
            self._known[key] = self._new(kind)
            self.literals.append((self._known[key], value))
        return self._known[key]

    def between(self, kind: int, number: int) -> int:
        key = ("between", kind, number)
        if key not in self._known:
            self._known[key] = self._new(kind)
        return self._known[key]

    def expression(self, text: str, kind: int) -> int:
        if (text, kind) not in self.expressions:
            self.expressions[text, kind] = self._new(kind)
        return self.expressions[text, kind]

    def read(self, operand: Any, kind: str) -> tuple[int, int]:
        """Returns (row, kind of the row) of an operand that is read as a PTX type."""
        wanted = PREDICATE if kind == "pred" else WIDE if TYPE_BYTES[kind] == 8 else NARROW
        if isinstance(operand, Temporary):
            row_kind = WIDE if operand.is_wide else NARROW
            return self.between(row_kind, operand.number), row_kind
        if isinstance(operand, OfWarp):
            return self.expression(operand.text, wanted), wanted
        if isinstance(operand, Register):
            return self.accessible(operand.slot)
        if isinstance(operand, Immediate | Special | Symbol):
            try:
                text = self._operands.read(operand, kind)
            except (Unsupported, PtxSyntaxError):
                raise NotNative from None
            if text in ("True", "False"):
                return self.literal(int(text == "True"), wanted), wanted
            if text.isdigit():
                return self.literal(int(text), wanted), wanted
            if "clock" not in text and "timer" not in text:
                return self.expression(text, wanted), wanted
        raise NotNative
