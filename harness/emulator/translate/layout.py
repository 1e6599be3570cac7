"""Where a kernel's variables live: static and dynamic shared memory, parameters, constants."""

from __future__ import annotations

from ..errors import PtxSyntaxError
from ..ptx.ast import Kernel, ParsedModule


class Layout:
    """Offsets of variables in their state spaces.

    Static shared variables come first, dynamic shared memory follows at the alignment its ``.extern`` declares.
    """

    def __init__(self, kernel: Kernel, module: ParsedModule):
        self.places: dict[str, tuple[str, int]] = {p.name: ("param", p.offset) for p in kernel.parameters}
        variables = {**module.variables, **kernel.variables}
        offset = 0
        for variable in variables.values():
            if variable.space == "shared" and not variable.external:
                offset = -(-offset // variable.align) * variable.align
                self.places[variable.name] = ("shared", offset)
                offset += variable.size
        self.static_shared = offset
        for variable in variables.values():
            if variable.space == "shared" and variable.external:
                start = -(-offset // variable.align) * variable.align
                self.places[variable.name] = ("shared", start)
                self.static_shared = max(self.static_shared, start)
            elif variable.space != "shared":
                self.places[variable.name] = (variable.space, 0)

    def find(self, name: str) -> tuple[str, int]:
        """(state space, offset) of a variable."""
        if name not in self.places:
            raise PtxSyntaxError(f"unknown symbol '{name}'")
        return self.places[name]
