"""Control flow (PTX ISA 9.7.12), which the translation itself takes care of, and trap (9.7.19).

Calls are replaced by the function's body when the PTX is parsed; those that are left are in `system`.
"""

from __future__ import annotations

from harness.emulator.errors import Fault
from harness.emulator.instructions.table import Effect, Translator, instruction, only, only_form
from harness.emulator.machine.events import Site
from harness.emulator.machine.state import Fragment
from harness.emulator.ptx.ast import Instruction


@instruction("bra", "brx.idx", "ret", "exit", operands=range(3), writes=0, family="branch")
def _branch(i: Instruction, w: Translator) -> None:
    """The end of a basic block."""
    only(i, "uni")


def trap(f: Fragment, site: Site) -> None:
    raise Fault("the program executes trap: it has found something wrong itself", "trap")


@instruction("trap", "brkpt", operands=0, writes=0, family="other")
def _trap(i: Instruction, w: Translator) -> Effect:
    only_form(i, "")
    return Effect(trap)


@instruction("pmevent", operands=1, writes=0, family="other")
def _pmevent(i: Instruction, w: Translator) -> None:
    """A mark for performance tools."""
    only(i, "mask")
