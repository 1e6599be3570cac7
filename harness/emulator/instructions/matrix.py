"""ldmatrix and stmatrix of 8x8 matrices of 16-bit elements (PTX ISA 9.7.14.5.15, 9.7.14.5.16)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from harness.emulator.errors import Fault
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
from harness.emulator.machine.lanes import FULL_MASK, Value, stack_rows
from harness.emulator.machine.state import Fragment
from harness.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT, shared_from_generic
from harness.emulator.memory.bytes import CHUNK
from harness.emulator.ptx.ast import Instruction, Operand

ROWS = 8
"""Rows of one matrix, of 16 bytes each."""


class _Rows(NamedTuple):
    """Rows of matrices in a CTA's shared memory. span: the first byte of any, and the one behind the last."""

    offsets: np.ndarray
    chunks: np.ndarray
    span: tuple[int, int]


def _rows(f: Fragment, address: Value, matrices: int) -> _Rows:
    """The 8 rows of each matrix: row j of matrix m comes from lane 8m + j."""
    if f.mask != FULL_MASK:
        f.require_whole_warp()
    if isinstance(address, int):
        raise Fault("stmatrix/ldmatrix got one address for all rows; every row needs its own lane's address", "address")
    return _rows_at(address.tobytes(), address.itemsize, matrices, f.cta.window)


@lru_cache(maxsize=4096)
def _rows_at(addresses: bytes, nbytes: int, matrices: int, window: int) -> _Rows:
    """The same from the bytes of the addresses: loops use the same ones again and again."""
    rows = np.frombuffer(addresses, f"u{nbytes}")[: ROWS * matrices].astype(np.int64) - window
    merged = int(np.bitwise_or.reduce(rows))
    if merged >> RANK_SHIFT:
        raise Fault(f"a row address names a CTA other than its own, rank {window >> RANK_SHIFT}", "address")
    if merged & (CHUNK - 1):
        bad = int(np.flatnonzero(rows & (CHUNK - 1))[0])
        offset = int(rows[bad]) & OFFSET_MASK
        fault = Fault(f"row address 0x{offset:x} is not a multiple of {CHUNK}", "alignment", offset)
        fault.position = bad
        raise fault
    rows.setflags(write=False)
    return _Rows(rows, rows // CHUNK, (int(rows.min()), int(rows.max()) + CHUNK))


def store_matrix(f: Fragment, site: Site, address: Value, values: Sequence[Value], transpose: bool) -> None:
    """``stmatrix.m8n8.b16``: thread t holds row t/4, columns 2(t%4) and 2(t%4)+1 of each matrix."""
    rows = _rows(f, address, len(values))
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
    rows = _rows(f, address, matrices)
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
    _check_form(i, len(sources))
    values = tuple_of(w.read(e, "b32") for e in sources)
    return Effect(store_matrix, [_pointer(i, w, i.operands[0]), values, str(i.has("trans"))])


@instruction("ldmatrix", operands=2, family="matrix")
def _ldmatrix(i: Instruction, w: Translator) -> Effect:
    destinations = elements(i.operands[0])
    _check_form(i, len(destinations))
    pointer, transpose = _pointer(i, w, i.operands[1]), str(i.has("trans"))
    if len(destinations) == 1:
        return Effect(load_one_matrix, [pointer, transpose], destinations)
    return Effect(load_matrix, [pointer, str(len(destinations)), transpose], destinations)
