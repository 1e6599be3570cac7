"""The values of variables of the source where a run has stopped, each at the place that the debug information names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from emugpu.debug.stopped import Stopped
from emugpu.emulator.errors import Fault
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.memory.address_space import RESERVED_SHARED
from emugpu.emulator.ptx.ast import Instruction, Memory, Symbol
from emugpu.errors import CannotRun, UsageProblem, needs

if TYPE_CHECKING:
    from emugpu.debug.dwarf import Variable


def values_of(stopped: Stopped, fragment: Fragment) -> Iterator[tuple[Variable, str, Any]]:
    """Each variable that a fragment knows; where it is, as in "in %r1", or ""; its value: a text, or what a register
    holds that is no number. Raises UsageProblem where the debug information, or pyelftools, is not there to be read.
    """
    try:
        needs("variables")
    except CannotRun as error:
        raise UsageProblem(str(error)) from error
    from emugpu.debug.dwarf import known_at

    code, index = stopped.machine.code, stopped.place(fragment)[0]
    if index < 0:
        return
    variables, lines = known_at(tuple(code.kernel.text), code.kernel.instructions[index].line)
    # Each call of a function has registers and variables of its own, and with it the lines of the text begin again: of
    # a name it is those of the last call until here.
    own = list[Instruction]()
    for i in (i for i in code.kernel.instructions if i.line in lines):
        if own and i.line < own[-1].line and index <= own[-1].index:
            break
        own.append(i)
    operands = [o for i in own for o in (*i.operands, *([i.guard] if i.guard else []))]
    slots = {register.name: register.slot for o in operands for register in o.registers()}
    bases = [o.base if isinstance(o, Memory) else o for o in operands]
    renamed = {b.name.partition("#")[0].rpartition("::")[2]: b.name for b in bases if isinstance(b, Symbol)}
    for variable in variables:
        match variable.place:
            case ("regx", name) if name in slots:
                yield variable, f"in {name}", _in_register(variable, fragment, stopped.value(fragment, slots[name]))
            case ("addr", name, offset) if renamed.get(name, name) in code.places:
                space, at = code.places[renamed.get(name, name)]
                at += offset + (RESERVED_SHARED if space == "shared" else 0)
                yield variable, f"in {space} memory at 0x{at:x}", _in_memory(variable, stopped, fragment, space, at)
            case ("constant", data):
                yield variable, "as a constant", _text(variable, np.frombuffer(data, np.uint8)[None])
            case () | ("regx", _):
                yield variable, "", "has no place here"
            case (what, *_):
                yield variable, f"by {what}", "not shown: such places are not read"


def _in_register(variable: Variable, fragment: Fragment, value: Any) -> Any:
    items = np.atleast_1d(value[list(fragment.lanes)] if isinstance(value, np.ndarray) else value)
    if items.dtype.kind not in "biu":
        return value
    return _text(variable, items.astype(np.uint64).view(np.uint8).reshape(-1, 8))


def _in_memory(variable: Variable, stopped: Stopped, fragment: Fragment, space: str, at: int) -> str:
    nbytes, lanes = variable.dtype.itemsize if variable.dtype else 1, np.array(fragment.lanes)
    try:
        if space == "local":
            words, missing = fragment.warp.local.peek(lanes, np.full(len(lanes), at), nbytes)
            return _text(variable, words.view(np.uint8).reshape(-1, nbytes), missing == 0)
        if space == "shared":
            data, valid = stopped.shared(*fragment.agent[:2], at, nbytes)
            return _text(variable, data[None], np.array([valid.all()]))
        if space == "param":
            data = np.frombuffer(fragment.grid.launch.parameters, np.uint8)[at : at + nbytes]
            return _text(variable, data[None])
    except (Fault, UsageProblem, ValueError) as error:  # by wrong debug information
        return f"not shown: {error}"
    return "not shown: `buffer` names global memory"


def _text(variable: Variable, data: NDArray[np.uint8], written: NDArray[np.bool_] | None = None) -> str:
    """Bytes [N, at least those of a value] of N lanes as one value, or N where they differ; a dot is what nobody has
    written.
    """
    if variable.dtype is None:
        return "not shown: no base type, pointer or enum"
    items = np.ascontiguousarray(data[:, : variable.dtype.itemsize]).view(variable.dtype)[:, 0]
    known = [True] * len(items) if written is None else written
    texts = [variable.text(item) if there else "." for item, there in zip(items, known, strict=True)]
    return texts[0] if len(set(texts)) == 1 else " ".join(texts)
