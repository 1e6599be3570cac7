"""Translates a parsed kernel: one Python function per basic block, and the data that the machine needs about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from emugpu.emulator.instructions import FAMILIES
from emugpu.emulator.instructions.table import Unsupported, find
from emugpu.emulator.machine.code import BlockFunction, Code
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.poison import unwritten
from emugpu.emulator.machine.slots import set_of
from emugpu.emulator.names import brief
from emugpu.emulator.native.plan import NativePlan, Planner
from emugpu.emulator.ptx.ast import TYPE_BYTES, Instruction, ParsedModule, PtxKernel
from emugpu.emulator.translate import cfg
from emugpu.emulator.translate.layout import VariableLayout
from emugpu.emulator.translate.loaded_values import LoadedValues
from emugpu.emulator.translate.writer import Operands, Writer

assert FAMILIES, "importing them fills the table of instructions"


def translate(kernel: PtxKernel, module: ParsedModule) -> Code:
    """Returns the kernel, ready to run. An instruction that is not implemented faults when it is executed."""
    layout = VariableLayout(kernel, module)
    operands = Operands(layout)
    instructions = kernel.instructions
    emitted = [operands.emit(i) for i in instructions]
    written = {r.slot for i in instructions for r in cfg.destinations(i)}
    for i in instructions:
        if any(r.slot in written for r in i.unused):
            # If nothing writes such a register, its use is reported as that of an unwritten register.
            emitted[i.index] = Unsupported()
    blocks, starting_at = cfg.build(kernel)
    unloaded_in = cfg.unloaded_at_start(blocks, instructions)
    writer = Writer(instructions, emitted, operands, unloaded_in, starting_at)
    for block in blocks:
        writer.block(block)
    source = "\n".join(writer.lines) + "\n"
    filename = f"<translated PTX kernel {kernel.name}>"
    sites = [_site(i) for i in instructions]
    names: dict[str, Any] = {**operands.names, **{f"S{site.index}": site for site in sites}}
    exec(compile(source, filename, "exec"), names)  # our own generated code
    accumulators = {r.slot for i in instructions for r in cfg.accumulators(i)}
    instruction_at = writer.line_instruction

    def write_pieces(number: int, parts: Sequence[cfg.BasicBlock]) -> list[BlockFunction]:
        """Returns parts of a block as functions. Their lines follow those of all blocks."""
        own = Writer(instructions, emitted, operands, unloaded_in, starting_at)
        made = own.pieces(parts)
        text = "\n" * len(instruction_at) + "\n".join(own.lines) + "\n"
        instruction_at.extend(own.line_instruction)
        names.update(operands.names)
        exec(compile(text, filename, "exec"), names)  # our own generated code
        return [names[name] for name in made]

    def make_plan(quiet: bool, early: bool) -> NativePlan | None:
        about = (instructions, emitted, blocks, starting_at, unloaded_in, dtypes)
        return Planner(*about, operands, write_pieces, quiet, early).plan()

    dtypes = _dtypes(kernel)
    initial: list[Any] = [
        None if slot in accumulators else False if dtype is np.bool_ else 0 for slot, dtype in enumerate(dtypes)
    ]
    for register in {r.slot: r for i in instructions for r in cfg.sources(i)}.values():
        if blocks and register.slot in blocks[0].live_in - accumulators:
            initial[register.slot] = unwritten(register.name, dtypes[register.slot])
    return Code(
        kernel=kernel,
        filename=filename,
        source=source,
        instruction_at=instruction_at,
        sites=sites,
        values=LoadedValues(instructions, emitted),
        functions=[names[f"b{block.index}"] for block in blocks],
        first=[block.first for block in blocks],
        last=[max(block.first, block.last - 1) for block in blocks],
        families=[Counter(find(i).family for i in instructions[b.first : b.last]) for b in blocks],
        live_in=[set_of(block.live_in) for block in blocks],
        dtypes=dtypes,
        initial=initial,
        static_shared=layout.static_shared,
        local_bytes=kernel.local_bytes,
        symbols=layout.symbols,
        places=layout.places,
        native=cache(make_plan),
        uses_launch_control=any(i.opcode == "clusterlaunchcontrol" for i in instructions),
        uses_tensor_memory=any(i.opcode == "tcgen05" for i in instructions),
        between_clusters=next(
            (
                f"line {i.line}: {i.text}"
                for i in instructions
                if i.opcode in ("clusterlaunchcontrol", "call") or cfg.reaches_other_ctas(i)
            ),
            "",
        ),
    )


def _site(i: Instruction) -> Site:
    """Returns the instruction as events and messages show it, with the memory semantics that PTX gives it."""
    words = set(i.modifiers)
    semantics = next(
        (m for m in ("acquire", "release", "acq_rel", "relaxed", "volatile", "weak", "sc") if m in words), ""
    )
    scope = next((m for m in ("cta", "cluster", "gpu", "sys") if m in words), "")
    verb = i.modifiers[0] if i.modifiers else ""
    if i.opcode == "mbarrier" and not semantics:
        waits = verb in ("try_wait", "test_wait")
        semantics, scope = (
            ("acquire" if waits else "release" if verb.startswith("arrive") else "relaxed"),
            scope or "cta",
        )
    elif i.opcode == "barrier" and verb == "cluster" and not semantics:
        semantics, scope = ("acquire" if "wait" in words else "release"), "cluster"
    elif i.opcode in ("atom", "red"):
        semantics, scope = semantics or "relaxed", scope or "gpu"
    elif i.opcode in ("ld", "st"):
        semantics = semantics or "weak"
    elif i.opcode == "fence" and verb in ("cta", "cluster", "gpu", "sys"):
        semantics = "acq_rel"
    elif i.opcode == "membar" and verb in ("cta", "gl", "sys"):
        semantics, scope = "sc", "gpu" if verb == "gl" else verb
    return Site(i.index, i.line, brief(i.text), i.opcode, i.modifiers, semantics, scope, i.source)


def _dtypes(kernel: PtxKernel) -> list[Any]:
    dtypes: list[Any] = [np.uint32] * kernel.register_count
    for i in kernel.instructions:
        guard = [i.guard] if i.guard else []
        for register in [*guard, *(r for o in i.operands for r in o.registers())]:
            if register.type == "pred":
                dtypes[register.slot] = np.bool_
            elif TYPE_BYTES[register.type] > 8:
                dtypes[register.slot] = object
            elif TYPE_BYTES[register.type] == 8:
                dtypes[register.slot] = np.uint64
    return dtypes
