"""A module's variables on a device: ``__device__`` ones in global memory, ``__constant__`` ones in constant memory."""

from __future__ import annotations

import numpy as np

from harness.emulator.errors import LaunchError
from harness.emulator.memory.address_space import CONST_WINDOW
from harness.emulator.memory.global_memory import GlobalMemory
from harness.emulator.ptx.ast import ParsedModule, Variable

FIRST_CONSTANT = 0x1000
"""Address of the first variable in constant memory."""


class Symbols:
    """``addresses``: of each variable, in its own state space."""

    def __init__(self, module: ParsedModule, memory: GlobalMemory) -> None:
        """Place every variable and give it its initial value, which is zero by default (PTX ISA 5.4.4)."""
        self.constants = GlobalMemory(FIRST_CONSTANT)
        self.addresses: dict[str, int] = {}
        placed = [v for v in module.variables.values() if v.space in ("global", "const") and not v.external]
        for variable in placed:
            space = memory if variable.space == "global" else self.constants
            data = np.frombuffer((variable.initializer or b"").ljust(max(variable.size, 1), b"\0"), np.uint8)
            self.addresses[variable.name] = space.upload(data, variable.name)
        for variable in placed:
            for offset, name, addend, generic in variable.addresses:
                self._write_address(module, variable, offset, name, addend, generic, memory)

    def _write_address(
        self,
        module: ParsedModule,
        variable: Variable,
        offset: int,
        name: str,
        addend: int,
        generic: bool,
        memory: GlobalMemory,
    ) -> None:
        if name not in self.addresses:
            raise LaunchError(f"the initial value of '{variable.name}' is the address of '{name}', which is not known")
        address = self.addresses[name] + addend
        if generic and module.variables[name].space == "const":
            address += CONST_WINDOW
        space = memory if variable.space == "global" else self.constants
        space.store_int(self.addresses[variable.name] + offset, 8, address)
