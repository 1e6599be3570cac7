"""A kernel ready to run: one Python function per basic block, and what the machine needs to know about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import Fault
from ..machine.counters import family
from ..machine.fragment import ALL_LANES, BLOCKED, SUSPENDED, Fragment, Value
from ..machine.machine import PARAM_WINDOW, SHARED_WINDOW
from ..operations import bulk, memory, sync, tensor_core, warpgroup
from ..ptx import cfg
from ..ptx.ast import TYPE_BYTES, Kernel, ParsedModule, Register
from . import values
from .layout import Layout
from .writer import Writer

_LANE_MASKS = {
    "eq": lambda lane: 1 << lane,
    "lt": lambda lane: (1 << lane) - 1,
    "le": lambda lane: (2 << lane) - 1,
    "gt": lambda lane: 0xFFFFFFFF & ~((2 << lane) - 1),
    "ge": lambda lane: 0xFFFFFFFF & ~((1 << lane) - 1),
}
_LANES = ALL_LANES.astype(np.uint32)


def thread_index(f: Fragment, axis: int) -> Value:
    values_ = f.warp.tid[axis]
    return int(values_[f.single]) if f.single >= 0 else values_


def lane_index(f: Fragment) -> Value:
    return f.single if f.single >= 0 else _LANES


def lane_mask(f: Fragment, which: str) -> Value:
    return values.lanewise(32, _LANE_MASKS[which], lane_index(f))


def fence(f: Fragment, i: int) -> None:
    machine = f.cta.machine
    if machine.observers:
        text = machine.program.kernel.instructions[i]
        machine.observe(".".join((text.opcode, *text.modifiers)), f, i, done=True)


def unsupported(text: str) -> None:
    raise Fault(f"this instruction, or one of its modifiers or operands, is not implemented: {text}")


def pending(name: str) -> None:
    raise Fault(f"reads register {name} before the wait that makes it readable")


def select_constant(predicate: Value, yes: int, no: int, bits: int) -> Value:
    if predicate is True:
        return yes
    if predicate is False:
        return no
    return np.where(predicate, yes, no).astype(values.dtype_for(bits))


def truth(test: Any) -> Value:
    return test if isinstance(test, np.ndarray) else bool(test)


def _namespace() -> dict[str, Any]:
    names: dict[str, Any] = {"np": np, "SUSPENDED": SUSPENDED, "BLOCKED": BLOCKED}
    names.update(PARAM_WINDOW=PARAM_WINDOW, SHARED_WINDOW=SHARED_WINDOW)
    for module in (values, sync, memory, bulk, warpgroup):
        names.update({k: v for k, v in vars(module).items() if not k.startswith("_") and callable(v)})
    for function in (thread_index, lane_index, lane_mask, fence, unsupported, pending, select_constant, truth):
        names[function.__name__] = function
    names.update(
        mma=tensor_core.mma,
        commit=tensor_core.commit,
        tmem_alloc=tensor_core.alloc,
        tmem_dealloc=tensor_core.dealloc,
        tmem_relinquish=tensor_core.relinquish,
        tmem_load=tensor_core.load,
        tmem_store=tensor_core.store,
    )
    return names


_NAMES = _namespace()


class Program:
    """A translated kernel.

    ``functions[b]`` runs basic block ``b``; ``families[b]`` is the histogram of its instructions by family.
    """

    def __init__(self, kernel: Kernel, module: ParsedModule):
        self.kernel = kernel
        self.filename = f"<translated PTX kernel {kernel.name}>"
        layout = Layout(kernel, module)
        self.static_shared = layout.static_shared
        self.blocks = cfg.build(kernel)
        writer = Writer(kernel.instructions, layout)
        starting_at = {block.first: block.index for block in self.blocks}
        for block in self.blocks:
            writer.block(block, starting_at)
        self.source = "\n".join(writer.lines) + "\n"
        self._line_instruction = writer.line_instruction
        names = {**_NAMES, **writer.constants}
        exec(compile(self.source, self.filename, "exec"), names)  # our own generated code
        self.functions = [names[f"b{block.index}"] for block in self.blocks]
        self.families = [
            Counter(
                family(i.opcode, i.modifiers[0] if i.modifiers else "") for i in kernel.instructions[b.first : b.last]
            )
            for b in self.blocks
        ]
        self._live_in = [sorted(block.live_in) for block in self.blocks]
        self.register_dtypes = _register_dtypes(kernel)

    def live_in(self, block: int) -> Sequence[int]:
        """Slots of the registers that may be read at or after the start of a block."""
        return self._live_in[block] if block >= 0 else ()

    def instruction_at(self, python_line: int) -> int | None:
        """Index of the instruction a line of the generated source belongs to."""
        return self._line_instruction[python_line - 1]


def _register_dtypes(kernel: Kernel) -> list[Any]:
    dtypes: list[Any] = [np.uint32] * kernel.register_count

    def note(register: Register) -> None:
        if register.type == "pred":
            dtypes[register.slot] = np.bool_
        elif TYPE_BYTES[register.type] >= 8:
            dtypes[register.slot] = np.uint64

    for instruction in kernel.instructions:
        if instruction.guard:
            note(instruction.guard)
        for operand in instruction.operands:
            for register in cfg.registers(operand):
                note(register)
    return dtypes
