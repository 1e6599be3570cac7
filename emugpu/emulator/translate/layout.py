"""The offsets of a kernel's variables: static and dynamic shared memory, parameters, local memory."""

from __future__ import annotations

from emugpu.emulator.errors import PtxSyntaxError
from emugpu.emulator.ptx.ast import Label, MemoryOperand, Operand, ParsedModule, PtxKernel, Symbol, Vector


class VariableLayout:
    """Offsets of variables in their state spaces.

    Static shared variables come first. Dynamic shared memory follows at the alignment that its ``.extern`` declares. Of
    the module's variables, only those that the kernel names get a place. Addresses of global variables are known at the
    launch.
    """

    def __init__(self, kernel: PtxKernel, module: ParsedModule):
        self.places: dict[str, tuple[str, int]] = {p.name: ("param", p.offset) for p in kernel.parameters}
        named = {name for i in kernel.instructions for operand in i.operands for name in _names(operand)}
        variables = {name: v for name, v in module.variables.items() if name in named} | kernel.variables
        offset = 0
        for variable in variables.values():
            if variable.space == "shared" and not variable.external:
                offset = -(-offset // variable.align) * variable.align
                self.places[variable.name] = ("shared", offset)
                offset += variable.size
        self.static_shared = offset
        self.symbols = tuple(v.name for v in variables.values() if v.space in ("global", "const"))
        """Device variables that the kernel names. The launch gives their addresses."""
        for variable in variables.values():
            if variable.space == "shared" and variable.external:
                start = -(-offset // variable.align) * variable.align
                self.places[variable.name] = ("shared", start)
                self.static_shared = max(self.static_shared, start)
            elif variable.space != "shared":
                self.places[variable.name] = (variable.space, variable.offset)

    def find(self, name: str) -> tuple[str, int]:
        """Returns (state space, offset) of a variable."""
        if name not in self.places:
            raise PtxSyntaxError(f"unknown symbol '{name}'")
        return self.places[name]


def _names(operand: Operand) -> list[str]:
    """Returns the symbols that an operand names."""
    if isinstance(operand, Symbol | Label):
        return [operand.name]
    if isinstance(operand, MemoryOperand):
        return _names(operand.base)
    if isinstance(operand, Vector):
        return [name for element in operand.elements for name in _names(element)]
    return []
