"""The instructions of a kernel that are not implemented, found without running it."""

from __future__ import annotations

from harness.emulator.instructions.table import Unsupported, find
from harness.emulator.ptx.ast import Instruction, Kernel, ParsedModule
from harness.emulator.translate.layout import Layout
from harness.emulator.translate.writer import Operands


def unimplemented(kernel: Kernel, module: ParsedModule) -> list[Instruction]:
    """Those that would fault when they are executed, in the order of their lines.

    What depends on values at run time (a descriptor's fields) is not seen. Raises PtxSyntaxError for an unknown symbol.
    """
    operands = Operands(Layout(kernel, module))
    return [i for i in kernel.instructions if not _is_implemented(i, operands)]


def _is_implemented(i: Instruction, operands: Operands) -> bool:
    spec = find(i)
    if spec is None or len(i.operands) not in spec.operands:
        return False
    try:
        spec.emit(i, operands)
    except (Unsupported, ValueError, IndexError, AttributeError):  # operands that the emitter did not expect
        return False
    return True
