"""ldmatrix and stmatrix (PTX ISA 9.7.14.5.15, 9.7.14.5.16); those of fewer than 16 bits are in `matrix_bytes`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.emulator.instructions.matrix_bytes import load_bytes, load_one_register, store_bytes
from harness.emulator.instructions.matrix_rows import ROWS, rows_of
from harness.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    elements,
    instruction,
    memory,
    only,
    tuple_of,
)
from harness.emulator.machine.events import Access, Site
from harness.emulator.machine.lanes import Value, stack_rows
from harness.emulator.machine.state import Fragment
from harness.emulator.memory.address_space import shared_from_generic
from harness.emulator.memory.bytes import CHUNK
from harness.emulator.ptx.ast import Instruction, Operand


def store_matrix(f: Fragment, site: Site, address: Value, values: Sequence[Value], transpose: bool) -> None:
    """``stmatrix.m8n8.b16``: thread t holds row t/4, columns 2(t%4) and 2(t%4)+1 of each matrix."""
    rows = rows_of(f, address, len(values))
    words = stack_rows(values)
    if transpose:
        halves = words.view(np.uint16).reshape(-1, ROWS, ROWS)
        words = np.ascontiguousarray(halves.transpose(0, 2, 1))
    items = words.reshape(-1).view(np.complex128)
    f.cta.shared.write_chunks(rows.chunks, items, rows.span)
    f.grid.wakeups.changes += 1
    sink = f.grid.sink
    if sink is not None:
        sink(Access(f.agent, site, "write", "shared", f.cta.rank, rows.offsets, CHUNK, 1, items))


def load_matrix(f: Fragment, site: Site, address: Value, matrices: int, transpose: bool) -> list[np.ndarray]:
    """``ldmatrix.m8n8.b16``: the inverse mapping."""
    rows = rows_of(f, address, matrices)
    sink = f.grid.sink
    if sink is not None:
        sink(Access(f.agent, site, "read", "shared", f.cta.rank, rows.offsets, CHUNK, 1, None))
    halves = np.ascontiguousarray(f.cta.shared.read_chunks(rows.chunks)).view(np.uint16).reshape(matrices, ROWS, ROWS)
    if transpose:
        halves = np.ascontiguousarray(halves.transpose(0, 2, 1))
    return list(halves.reshape(matrices, 64).view(np.uint32))


def load_one_matrix(f: Fragment, site: Site, address: Value, transpose: bool) -> np.ndarray:
    return load_matrix(f, site, address, 1, transpose)[0]


_FORMS = ("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")


def _check_form(i: Instruction, count: int) -> None:
    only(i, _FORMS)
    if not i.has(f"x{count}") or not i.has("m8n8") or i.modifiers[-1] != "b16":
        raise Unsupported


def _pointer(i: Instruction, w: Translator, operand: Operand) -> str:
    """The shared address; without a state space it is a generic one."""
    pointer = w.pointer(memory(operand))
    if i.has("shared") or i.has("shared::cta"):
        return pointer
    return f"{w.use(shared_from_generic)}({pointer})"


@instruction("stmatrix", operands=2, writes=0, family="matrix")
def _stmatrix(i: Instruction, w: Translator) -> Effect:
    sources = elements(i.operands[1])
    values = tuple_of(w.read(e, "b32") for e in sources)
    if i.modifiers[-1] == "b8":
        only(i, "sync", "aligned", "m16n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")
        if not (i.has("m16n8") and i.has("trans") and i.has(f"x{len(sources)}")):
            raise Unsupported
        return Effect(store_bytes, [_pointer(i, w, i.operands[0]), values])
    _check_form(i, len(sources))
    return Effect(store_matrix, [_pointer(i, w, i.operands[0]), values, str(i.has("trans"))])


@instruction("ldmatrix", operands=2, family="matrix")
def _ldmatrix(i: Instruction, w: Translator) -> Effect:
    destinations = elements(i.operands[0])
    if i.modifiers[-1] in _BITS:
        return _load_bytes(i, w, destinations)
    _check_form(i, len(destinations))
    pointer, transpose = _pointer(i, w, i.operands[1]), str(i.has("trans"))
    if len(destinations) == 1:
        return Effect(load_one_matrix, [pointer, transpose], destinations)
    return Effect(load_matrix, [pointer, str(len(destinations)), transpose], destinations)


_BITS = {"b8": 8, "b6x16_p32": 6, "b4x16_p64": 4}
"""Types in shared memory: 16 elements to a row of 16 bytes."""


def _load_bytes(i: Instruction, w: Translator, destinations: Sequence[Operand]) -> Effect:
    """16 x 16 is always transposed, and 8 x 16 never; that is only for elements of fewer than 8 bits."""
    bits = _BITS[i.modifiers[-1]]
    square = i.has("m16n16")
    only(i, "sync", "aligned", "m16n16" if square else "m8n16", "x1", "x2", "x4", "shared", "shared::cta",
         "trans" if square else (), "b8x16" if bits < 8 else (), _BITS)  # fmt: skip
    matrices = len(destinations) // 2 if square else len(destinations)
    shaped = i.has("trans") if square else i.has("m8n16") and bits < 8
    if not shaped or not i.has(f"x{matrices}") or i.has("b8x16") != (bits < 8) or (square and len(destinations) % 2):
        raise Unsupported
    pointer = _pointer(i, w, i.operands[1])
    if len(destinations) == 1:
        return Effect(load_one_register, [pointer, str(bits)], destinations)
    return Effect(load_bytes, [pointer, str(matrices), str(square), str(bits)], destinations)
