"""A module's variables on a device: ``__device__`` ones in global memory, ``__constant__`` ones in constant memory."""

from __future__ import annotations

import numpy as np

from emugpu.emulator.errors import LaunchError
from emugpu.emulator.memory.address_space import CONST_WINDOW
from emugpu.emulator.memory.global_memory import GlobalMemory
from emugpu.emulator.ptx.ast import ParsedModule, Variable

FIRST_CONSTANT = 0x1000
"""The address of the first variable in constant memory."""


class Symbols:
    """``addresses``: the address of each variable, in its own state space. ``variables``: their declarations."""

    def __init__(self, module: ParsedModule, memory: GlobalMemory, constants: GlobalMemory) -> None:
        """Places every variable and gives it its initial value, which is zero by default (PTX ISA 5.4.4)."""
        placed = [v for v in module.variables.values() if v.space in ("global", "const") and not v.external]
        self.variables = {variable.name: variable for variable in placed}
        self.addresses: dict[str, int] = {}
        self._memories = {"global": memory, "const": constants}
        for variable in placed:
            data = np.frombuffer((variable.initializer or b"").ljust(max(variable.size, 1), b"\0"), np.uint8)
            self.addresses[variable.name] = self._memories[variable.space].upload(data, variable.name)
        for variable in placed:
            for offset, name, addend, generic in variable.addresses:
                self._write_address(variable, offset, name, addend, generic)

    def generic_address(self, name: str) -> int:
        """Returns the address of a variable in the generic address space, in which global memory is its own window."""
        window = CONST_WINDOW if self.variables[name].space == "const" else 0
        return self.addresses[name] + window

    def _write_address(self, variable: Variable, offset: int, name: str, addend: int, generic: bool) -> None:
        """Writes the address of another variable into a variable's initial value."""
        if name not in self.addresses:
            raise LaunchError(f"the initial value of '{variable.name}' is the address of '{name}', which is not known")
        address = (self.generic_address(name) if generic else self.addresses[name]) + addend
        self._memories[variable.space].store_int(self.addresses[variable.name] + offset, 8, address)
