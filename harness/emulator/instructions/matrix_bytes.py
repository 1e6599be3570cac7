"""ldmatrix and stmatrix of 8-bit elements, and of 6 or 4 bits that become 8 (PTX ISA 9.7.14.5.15, 9.7.14.5.16).

Which lane holds what is as CuTe DSL 4.8 has it. Elements of fewer bits come to the low bits of their byte.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.emulator.instructions.matrix_rows import rows_of
from harness.emulator.machine.events import Access, Site
from harness.emulator.machine.lanes import Value, stack_rows
from harness.emulator.machine.state import Fragment
from harness.emulator.memory.bytes import CHUNK
from harness.emulator.units.elements import unpacked


def load_bytes(f: Fragment, site: Site, address: Value, matrices: int, square: bool, bits: int) -> list[np.ndarray]:
    """``ldmatrix.m16n16...trans`` (square) and ``ldmatrix.m8n16``.

    square: byte e of register r of thread t is row 4 (t % 4) + e, column t / 4 + 8 r. Otherwise of a matrix's one
    register it is row t / 4, column 4 (t % 4) + e.
    """
    rows = rows_of(f, address, 2 * matrices if square else matrices)
    sink = f.grid.sink
    if sink is not None:
        sink(Access(f.agent, site, "read", "shared", f.cta.rank, rows.offsets, CHUNK, 1, None))
    raw = np.ascontiguousarray(f.cta.shared.read_chunks(rows.chunks)).view(np.uint8).reshape(-1, CHUNK)
    items = raw if bits == 8 else unpacked(raw, bits)
    if square:
        items = items.reshape(matrices, 4, 4, 2, 8).transpose(0, 3, 4, 1, 2)
    return list(np.ascontiguousarray(items).reshape(-1, 128).view(np.uint32))


def load_one_register(f: Fragment, site: Site, address: Value, bits: int) -> np.ndarray:
    """``ldmatrix.m8n16.x1``"""
    return load_bytes(f, site, address, 1, False, bits)[0]


def store_bytes(f: Fragment, site: Site, address: Value, values: Sequence[Value]) -> None:
    """``stmatrix.m16n8.trans``: byte a + 2 b of a register of thread t is row 2 (t % 4) + a, column t / 4 + 8 b."""
    rows = rows_of(f, address, len(values))
    parts = stack_rows(values).view(np.uint8).reshape(len(values), 8, 4, 2, 2)
    items = np.ascontiguousarray(parts.transpose(0, 2, 4, 3, 1)).reshape(-1).view(np.complex128)
    f.cta.shared.write_chunks(rows.chunks, items, rows.span)
    f.grid.wakeups.changes += 1
    sink = f.grid.sink
    if sink is not None:
        sink(Access(f.agent, site, "write", "shared", f.cta.rank, rows.offsets, CHUNK, 1, items))
