"""The variables of a module in device memory: ``.global`` ones each on its own, ``.const`` ones in one constant bank.

What no initialiser sets is zero (PTX ISA 5.4.4). As with the CUDA runtime, constants have an address in global memory,
too, by which the host sets them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness.emulator.memory.global_memory import GlobalMemory
from harness.emulator.ptx.ast import Variable

CONSTANT_BANK_BYTES = 65_536
"""PTX ISA 5.1.3."""


@dataclass(frozen=True)
class ModuleMemory:
    """addresses: device address of every variable. sizes: its bytes. constants: where the constant bank begins."""

    addresses: dict[str, int]
    sizes: dict[str, int]
    constants: int


def constant_offsets(variables: Iterable[Variable]) -> dict[str, int]:
    """Where the constants lie in their bank."""
    offsets: dict[str, int] = {}
    end = 0
    for variable in variables:
        if variable.space == "const" and variable.size:
            offsets[variable.name] = -(-end // variable.align) * variable.align
            end = offsets[variable.name] + variable.size
    return offsets


def place_variables(variables: Iterable[Variable], memory: GlobalMemory) -> ModuleMemory:
    """Gives a module's variables memory and their first values. Variables without a size are another module's."""
    variables = [v for v in variables if v.space in ("global", "const") and v.size]
    offsets = constant_offsets(variables)
    constants = memory.upload(np.zeros(CONSTANT_BANK_BYTES, np.uint8), "constants") if offsets else 0
    addresses: dict[str, int] = {}
    for variable in variables:
        initial = np.frombuffer((variable.initializer or b"").ljust(variable.size, b"\0"), np.uint8)
        if variable.space == "const":
            addresses[variable.name] = constants + offsets[variable.name]
            memory.write(addresses[variable.name], initial)
        else:
            addresses[variable.name] = memory.upload(initial, variable.name)
    return ModuleMemory(addresses, {v.name: v.size for v in variables}, constants)
