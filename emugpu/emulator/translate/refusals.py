"""Checks of a module before it runs: instructions that its target lacks, or that are not implemented."""

from __future__ import annotations

from emugpu.emulator.errors import PtxSyntaxError
from emugpu.emulator.instructions.table import Unsupported, find
from emugpu.emulator.isa import lacking, target_problem
from emugpu.emulator.ptx.ast import Instruction, ParsedModule, PtxKernel
from emugpu.emulator.ptx.types import type_problem
from emugpu.emulator.translate.layout import VariableLayout
from emugpu.emulator.translate.writer import Operands


def check_module(module: ParsedModule) -> None:
    """Raises PtxSyntaxError for the first instruction that ptxas would refuse for its target or operands."""
    target = module.target.split(",")[0].strip()
    for kernel in module.kernels.values():
        for i in kernel.instructions:
            problem = problem_of(i, target)
            if problem:
                raise PtxSyntaxError(f"PTX line {i.line}: {i.text[:80]}\n  {problem}")


def problem_of(i: Instruction, target: str) -> str:
    """Returns why ptxas refuses an instruction: the target lacks it, or its operands have a wrong number or type.

    The operands of what the emulator lacks are not looked at.
    """
    problem = target_problem(i, target)
    if problem or lacking(i):
        return problem
    spec = find(i)
    if len(i.operands) not in spec.operands:
        few, many = spec.operands[0], spec.operands[-1]
        wanted = str(few) if few == many else f"{few} to {many}"
        return f"{spec.name} takes {wanted} operands, not {len(i.operands)}"
    return type_problem(i)


def unimplemented(kernel: PtxKernel, module: ParsedModule) -> list[Instruction]:
    """Returns the instructions that would fault when they are executed, in the order of their lines.

    Faults that depend on values at run time (a descriptor's fields) are not found. Raises PtxSyntaxError on an unknown
    symbol.
    """
    operands = Operands(VariableLayout(kernel, module))
    return [
        i
        for i in kernel.instructions
        if len(i.operands) not in find(i).operands or isinstance(operands.emit(i), Unsupported)
    ]
