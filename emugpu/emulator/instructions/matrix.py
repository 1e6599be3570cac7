"""ldmatrix and stmatrix of 16, 8, 6 and 4 bits (PTX ISA 9.7.14.5.15, 9.7.14.5.16).

The rows of the matrices are 16 bytes each in shared memory, and every lane gives the address of one row. The layout of
types of 8 bits and fewer in the lanes follows CuTe DSL 4.8. Elements of fewer bits go to the low bits of their byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from emugpu.emulator.errors import Fault, UndefinedRead
from emugpu.emulator.instructions.accesses import loaded_origin
from emugpu.emulator.instructions.table import (
    Effect,
    Micro,
    Translator,
    Unsupported,
    address_parts,
    elements,
    instruction,
    only,
    shared_pointer,
    tuple_of,
)
from emugpu.emulator.machine.events import Access, Site
from emugpu.emulator.machine.lanes import FULL_MASK, WARP_SIZE, Value, stack_rows
from emugpu.emulator.machine.poison import Poison, made
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT
from emugpu.emulator.memory.bytes import CHUNK
from emugpu.emulator.ptx.ast import Instruction, Operand
from emugpu.emulator.units.operands import unpacked

# ---- rows ----

Loaded = Value | list[Value]
"""A register, or several of them."""
ROWS = 8
"""The number of rows of one matrix, of 16 bytes each."""


class Rows(NamedTuple):
    """Rows of matrices in a CTA's shared memory. span: the first byte of all rows, and the end of the last."""

    offsets: np.ndarray
    chunks: np.ndarray
    span: tuple[int, int]


def rows_of(f: Fragment, address: Value, matrices: int, writes: bool = False) -> Rows:
    """Returns the 8 rows of each matrix. Lane 8m + j gives the address of row j of matrix m.

    All rows may be read from one place, but not written to it.
    """
    if f.mask != FULL_MASK:
        f.require_whole_warp()
    if isinstance(address, int):
        if writes:
            raise Fault("stmatrix got one address for all rows; every row needs its own lane's address", "address")
        address = np.full(WARP_SIZE, address, np.uint64)
    return _rows_at(address.tobytes(), address.itemsize, matrices, f.cta.window)


@lru_cache(maxsize=4096)
def _rows_at(addresses: bytes, nbytes: int, matrices: int, window: int) -> Rows:
    """Returns the rows at addresses given as bytes, cached because loops use the same addresses again."""
    rows = np.frombuffer(addresses, f"u{nbytes}")[: ROWS * matrices].astype(np.int64) - window
    merged = int(np.bitwise_or.reduce(rows))
    if merged >> RANK_SHIFT:
        raise Fault(f"a row address names a CTA other than its own, rank {window >> RANK_SHIFT}", "address")
    if merged & (CHUNK - 1):
        bad = int(np.flatnonzero(rows & (CHUNK - 1))[0])
        offset = int(rows[bad]) & OFFSET_MASK
        raise Fault(f"row address 0x{offset:x} is not a multiple of {CHUNK}", "alignment", offset, bad)
    rows.setflags(write=False)
    return Rows(rows, rows // CHUNK, (int(rows.min()), int(rows.max()) + CHUNK))


def _store(
    f: Fragment, site: Site, rows: Rows, values: Sequence[Value], arrange: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Stores registers. ``arrange`` returns the words of the rows from the registers [registers, 32]."""
    poison = next((v for v in values if type(v) is Poison), None)
    if poison is not None and f.grid.unwritten.mode == "fault":
        poison.used()
    words = arrange(stack_rows([v.value if type(v) is Poison else v for v in values]))
    items = words.reshape(-1).view(np.complex128)
    f.cta.shared.write_chunks(rows.chunks, items, rows.span)
    if poison is not None:
        masks = arrange(stack_rows([v.undefined if type(v) is Poison else 0 for v in values]))
        stored = f"{site.place} in CTA {f.cta.index}, warp {f.warp.index} stores", poison.origin
        places = (rows.offsets[:, None] + np.arange(CHUNK)).ravel()
        f.cta.shared.undefine(places[masks.reshape(-1).view(np.uint8) != 0], stored)
    f.grid.wakeups.changes += 1
    sink = f.grid.sink
    if sink is not None:
        sink(Access(f.agent, site, "write", "shared", f.cta.rank, rows.offsets, CHUNK, 1, items))


def _load(f: Fragment, site: Site, rows: Rows, arrange: Callable[[np.ndarray], np.ndarray]) -> Loaded:
    """Loads rows. ``arrange`` returns the registers [registers, 32] that hold them."""
    sink = f.grid.sink
    if sink is not None:
        sink(Access(f.agent, site, "read", "shared", f.cta.rank, rows.offsets, CHUNK, 1, None))
    shared = f.cta.shared
    try:
        registers: list[Value] = list(arrange(np.ascontiguousarray(shared.read_chunks(rows.chunks))))
    except UndefinedRead as fault:
        origin = loaded_origin(f, site, fault)
        parts = (arrange(np.ascontiguousarray(part)) for part in shared.peek_chunks(rows.chunks))
        registers = [made(value, undefined, origin, fault.rule) for value, undefined in zip(*parts, strict=True)]
    return registers if len(registers) > 1 else registers[0]


# ---- elements of 8 bits, and of 6 or 4 bits that become 8 ----


def load_bytes(f: Fragment, site: Site, address: Value, matrices: int, square: bool, bits: int) -> Loaded:
    """Executes ``ldmatrix.m16n16...trans`` (square) or ``ldmatrix.m8n16``.

    square: byte e of register r of thread t is row 4 (t % 4) + e, column t / 4 + 8 r. Otherwise a matrix has one
    register, and byte e of it is row t / 4, column 4 (t % 4) + e.
    """

    def arrange(loaded: np.ndarray) -> np.ndarray:
        raw = loaded.view(np.uint8).reshape(-1, CHUNK)
        items = raw if bits == 8 else unpacked(raw, bits)
        if square:
            items = items.reshape(matrices, 4, 4, 2, 8).transpose(0, 3, 4, 1, 2)
        return np.ascontiguousarray(items).reshape(-1, 128).view(np.uint32)

    return _load(f, site, rows_of(f, address, 2 * matrices if square else matrices), arrange)


def store_bytes(f: Fragment, site: Site, address: Value, values: Sequence[Value]) -> None:
    """Executes ``stmatrix.m16n8.trans``: byte a + 2 b of thread t is row 2 (t % 4) + a, column t / 4 + 8 b."""

    def arrange(words: np.ndarray) -> np.ndarray:
        parts = words.view(np.uint8).reshape(len(values), 8, 4, 2, 2)
        return np.ascontiguousarray(parts.transpose(0, 2, 4, 3, 1))

    _store(f, site, rows_of(f, address, len(values), writes=True), values, arrange)


# ---- elements of 16 bits ----


def store_matrix(f: Fragment, site: Site, address: Value, values: Sequence[Value], transpose: bool) -> None:
    """Executes ``stmatrix.m8n8.b16``: thread t holds row t/4, columns 2(t%4) and 2(t%4)+1 of each matrix."""

    def arrange(words: np.ndarray) -> np.ndarray:
        if not transpose:
            return words
        halves = words.view(np.uint16).reshape(-1, ROWS, ROWS)
        return np.ascontiguousarray(halves.transpose(0, 2, 1))

    _store(f, site, rows_of(f, address, len(values), writes=True), values, arrange)


def load_matrix(f: Fragment, site: Site, address: Value, matrices: int, transpose: bool) -> Loaded:
    """Executes ``ldmatrix.m8n8.b16``, with the inverse mapping."""

    def arrange(loaded: np.ndarray) -> np.ndarray:
        halves = loaded.view(np.uint16).reshape(matrices, ROWS, ROWS)
        if transpose:
            halves = np.ascontiguousarray(halves.transpose(0, 2, 1))
        return halves.reshape(matrices, 64).view(np.uint32)

    return _load(f, site, rows_of(f, address, matrices), arrange)


_FORMS = ("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")


def _check_form(i: Instruction, count: int) -> None:
    only(i, _FORMS)
    if not i.has(f"x{count}") or not i.has("m8n8") or i.modifiers[-1] != "b16":
        raise Unsupported


@instruction("stmatrix", operands=2, writes=0, family="matrix")
def _stmatrix(i: Instruction, w: Translator) -> Effect:
    sources = elements(i.operands[1])
    values = tuple_of(w.read(e, "b32") for e in sources)
    if i.modifiers[-1] == "b8":
        only(i, "sync", "aligned", "m16n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")
        if not (i.has("m16n8") and i.has("trans") and i.has(f"x{len(sources)}")):
            raise Unsupported
        return Effect(store_bytes, [shared_pointer(i, w, i.operands[0]), values])
    _check_form(i, len(sources))
    base, width, offset = address_parts(i.operands[0])
    name = "stmatrix.trans" if i.has("trans") else "stmatrix"
    native = tuple(
        Micro(name, None, ((base, width), (e, "b32")), offset=offset, is_first=n == 0, part=n, quiet=True)
        for n, e in enumerate(sources if i.has("shared") or i.has("shared::cta") else ())
    )
    return Effect(store_matrix, [shared_pointer(i, w, i.operands[0]), values, str(i.has("trans"))], micro=native)


@instruction("ldmatrix", operands=2, family="matrix")
def _ldmatrix(i: Instruction, w: Translator) -> Effect:
    destinations = elements(i.operands[0])
    if i.modifiers[-1] in _BITS:
        return _load_bytes(i, w, destinations)
    _check_form(i, len(destinations))
    pointer, transpose = shared_pointer(i, w, i.operands[1]), str(i.has("trans"))
    return Effect(load_matrix, [pointer, str(len(destinations)), transpose], destinations)


_BITS = {"b8": 8, "b6x16_p32": 6, "b4x16_p64": 4}
"""Types in shared memory, with 16 elements in a row of 16 bytes."""


def _load_bytes(i: Instruction, w: Translator, destinations: Sequence[Operand]) -> Effect:
    """Emits ldmatrix of bytes. 16 x 16 is always transposed; 8 x 16 never is, and has only types below 8 bits."""
    bits = _BITS[i.modifiers[-1]]
    square = i.has("m16n16")
    only(i, "sync", "aligned", "m16n16" if square else "m8n16", "x1", "x2", "x4", "shared", "shared::cta",
         "trans" if square else (), "b8x16" if bits < 8 else (), _BITS)  # fmt: skip
    matrices = len(destinations) // 2 if square else len(destinations)
    shaped = i.has("trans") if square else i.has("m8n16") and bits < 8
    if not shaped or not i.has(f"x{matrices}") or i.has("b8x16") != (bits < 8) or (square and len(destinations) % 2):
        raise Unsupported
    arguments = [shared_pointer(i, w, i.operands[1]), str(matrices), str(square), str(bits)]
    return Effect(load_bytes, arguments, destinations)
