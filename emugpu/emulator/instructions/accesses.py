"""What loads and stores do in each state space.

An address is one scalar if all lanes agree, else 32 lanes. The state space of a generic address is found lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault, UndefinedRead
from emugpu.emulator.instructions.values import M64
from emugpu.emulator.machine.divergence import merge_values, part
from emugpu.emulator.machine.events import Access, Site
from emugpu.emulator.machine.lanes import WARP_SIZE, Value, agreed
from emugpu.emulator.machine.poison import Poison, carrying, made, moves
from emugpu.emulator.machine.state import Cta, Fragment
from emugpu.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT, WINDOWS, space_of, spaces_of
from emugpu.emulator.memory.bytes import UNSIGNED, WORDS
from emugpu.emulator.memory.shared import SharedMemory

# ---- conversion of loaded bits ----

AS_IS, WIDEN = 0, 1
Result = Any
"""The result of a load: a register value, or a tuple of them."""


def finish(f: Fragment, values: Any, nbytes: int, extend: int) -> Value:
    """Returns items as a register value. extend: AS_IS, WIDEN to 64 bits, or minus the bits of a sign extension."""
    if isinstance(values, int):
        if extend < 0 and values >> (8 * nbytes - 1):
            return values | (((1 << -extend) - 1) & ~((1 << 8 * nbytes) - 1))
        return values
    if extend < 0:
        values = values.view(f"i{nbytes}").astype(f"i{-extend // 8}").view(f"u{-extend // 8}")
    wide = extend in (WIDEN, -64) or nbytes == 8
    dtype = np.uint64 if wide else np.uint32
    if f.count == WARP_SIZE:
        return values.astype(dtype, copy=False)
    out: np.ndarray = np.zeros(WARP_SIZE, dtype)
    out[f.lane_index] = values
    return out


def _lanes(f: Fragment, value: np.ndarray) -> np.ndarray:
    return value if f.count == WARP_SIZE else value[f.lane_index]


def every_lane(f: Fragment, value: Value) -> NDArray[np.uint64]:
    """Returns a register's value in each lane of the fragment."""
    if isinstance(value, int):
        return np.full(f.count, value, np.uint64)
    return np.asarray(_lanes(f, value)).astype(np.uint64)


def _check_vector(where: Any, nbytes: int, count: int) -> None:
    """Raises Fault unless a vector access is aligned to all of its bytes (PTX ISA 6.4.1)."""
    size = nbytes * count
    merged = where if isinstance(where, int) else int(np.bitwise_or.reduce(where))
    if merged % size:
        position = None if isinstance(where, int) else int(np.flatnonzero(where % size)[0])
        bad = where if position is None else int(where[position])
        message = f"address 0x{bad:x} is not aligned to the {size} bytes of the vector access"
        raise Fault(message, "alignment", position=position)


def _load(
    f: Fragment, site: Site, space: str, rank: int, memory: Any, where: Any, nbytes: int, count: int, extend: int
) -> Result:
    """Loads items of a memory at one place, or at one place for each lane. rank: of the memory's CTA, or -1."""
    if count > 1:
        _check_vector(where, nbytes, count)
    sink = f.grid.sink
    if sink is not None:
        sink(Access(f.agent, site, "read", space, rank, where, nbytes, count, None))
    try:
        found = [finish(f, item, nbytes, extend) for item in _items(memory, where, nbytes, count)]
    except Fault as fault:
        if space == "shared":
            _explain(memory, rank, where, nbytes * count)
        found = _poison(
            f, site, fault, lambda at: memory.peek(np.atleast_1d(where) + at, nbytes), nbytes, count, extend
        )
    return found[0] if count == 1 else tuple(found)


def _items(memory: Any, where: Any, nbytes: int, count: int) -> Iterable[Any]:
    """Returns the items that are loaded. Those of each lane are loaded as one word, if there is one of that size."""
    if isinstance(where, int):
        return [memory.load_int(where + n * nbytes, nbytes) for n in range(count)]
    if nbytes * count not in WORDS:
        return [memory.gather(where + n * nbytes, nbytes) for n in range(count)]
    words = memory.gather(where, nbytes * count)
    return np.ascontiguousarray(words.view(UNSIGNED[nbytes]).reshape(-1, count).T)


def _explain(shared: SharedMemory, rank: int, where: Any, nbytes: int) -> None:
    """Raises a more precise Fault for a load of unwritten bytes, if there is one."""
    if isinstance(where, int):
        shared.check_no_mbarrier(where, where + nbytes, "read")
    else:
        _check_rank(rank, where)


def _check_rank(rank: int, where: np.ndarray) -> None:
    beyond = where >> RANK_SHIFT
    if beyond.any():
        message = f"a shared::cta address names a CTA other than its own, rank {rank}"
        raise Fault(message, "address", position=int(np.flatnonzero(beyond)[0]))


def loaded_origin(f: Fragment, site: Site, fault: Fault) -> str:
    """Returns where the undefined bits that a load finds come from. Raises the fault unless such bits are values."""
    if fault.rule != "uninitialised" or f.grid.unwritten.mode != "poison":
        raise fault
    stored = fault.origin if isinstance(fault, UndefinedRead) else ""
    return stored or f"what {site.place} loads ({fault})"


def _poison(
    f: Fragment, site: Site, fault: Fault, peek: Callable[[int], tuple[Any, Any]], nbytes: int, count: int, extend: int
) -> list[Value]:
    """Returns poison for a load of unwritten bytes. peek: returns an item's bits, and the mask of undefined ones."""
    found, origin = [], loaded_origin(f, site, fault)
    for n in range(count):
        value, missing = (finish(f, np.broadcast_to(part, f.count).copy(), nbytes, extend) for part in peek(n * nbytes))
        found.append(made(value, missing, origin, fault.rule))
    return found


def _stored(f: Fragment, value: Value) -> tuple[Value, Any]:
    """Returns the bits to be stored, and the mask of undefined ones, or None."""
    if value is None:
        raise Fault("stores a register in which a wgmma accumulates that was not waited for", "wgmma")
    if not isinstance(value, Poison):
        return value, None
    if f.grid.unwritten.mode == "fault":
        return value.used(), None
    return value.value, value.undefined


def _store(
    f: Fragment, site: Site, space: str, rank: int, memory: Any, where: Any, nbytes: int, values: tuple[Value, ...]
) -> None:
    """Stores items at one place, or at one place for each lane. rank: of the memory's CTA, or -1."""
    try:
        stored = _written(f, site, memory, where, nbytes, values)
    except Fault:
        if space == "shared" and not isinstance(where, int):
            _check_rank(rank, where)
        raise
    f.grid.wakeups.changes += 1
    sink = f.grid.sink
    if sink is not None:
        sink(Access(f.agent, site, "write", space, rank, where, nbytes, len(values), stored))


def _written(f: Fragment, site: Site, memory: Any, where: Any, nbytes: int, values: tuple[Value, ...]) -> Any:
    """Writes the items of each lane. Returns the bits that each lane stores, or all of them."""
    if len(values) > 1:
        _check_vector(where, nbytes, len(values))
    mask = (1 << 8 * nbytes) - 1
    stored: list[Any] = []
    for n, register in enumerate(values):
        value, undefined = _stored(f, register)
        at = where + n * nbytes if n else where
        if isinstance(where, int):
            # If lanes store to one place, one of them wins. Here it is the last.
            item: Any = value & mask if isinstance(value, int) else agreed(_lanes(f, value) & value.dtype.type(mask))
            memory.store_int(at, nbytes, item if isinstance(item, int) else int(item[-1]))
        elif isinstance(value, int):
            item = value & mask
            memory.scatter(at, nbytes, item)
        else:
            item = _lanes(f, value) & value.dtype.type(mask) if nbytes < value.dtype.itemsize else _lanes(f, value)
            memory.scatter(at, nbytes, item)
        stored.append(item)
        if undefined is not None:
            places = [(at, f.lanes[-1])] if isinstance(where, int) else zip(at.tolist(), f.lanes, strict=True)
            for place, lane in places:
                what = f"{site.place} in CTA {f.cta.index}, warp {f.warp.index}, lane {lane} stores", register.origin
                memory.undefine(place + np.array(_undefined_bytes(undefined, lane, nbytes), np.int64), what)
    return stored[0] if len(stored) == 1 else tuple(stored)


def _undefined_bytes(undefined: Any, lane: int, nbytes: int) -> list[int]:
    bits = int(undefined[lane])
    return [n for n in range(nbytes) if bits >> 8 * n & 0xFF]


# ---- shared memory ----


def own_offset(f: Fragment, address: int, what: str) -> int:
    """Returns the offset of an address in the CTA's own shared memory. ``what`` names it."""
    if address >> RANK_SHIFT != f.cta.rank:
        raise Fault(f"{what} 0x{address:08x} is not in the CTA's own shared memory (rank {f.cta.rank})", "address")
    return address & OFFSET_MASK


def own_offsets(f: Fragment, address: Value) -> Any:
    """Returns offsets of shared::cta addresses: a scalar, or one for each lane of the fragment.

    For an address of another CTA in a vector, the offset lies beyond any CTA's memory.
    """
    if isinstance(address, int):
        if address >> RANK_SHIFT != f.cta.rank:
            raise Fault(
                f"shared::cta address 0x{address:08x} names CTA rank {address >> RANK_SHIFT}, not its own {f.cta.rank}",
                "address",
            )
        return address & OFFSET_MASK
    lanes = _lanes(f, address)
    if lanes.dtype != np.uint32:
        lanes = lanes.astype(np.uint32)
    return lanes - np.uint32(f.cta.window)


def load_shared(f: Fragment, site: Site, address: Value, nbytes: int, count: int, extend: int) -> Result:
    where = own_offsets(f, address)
    return _load(f, site, "shared", f.cta.rank, f.cta.shared, where, nbytes, count, extend)


def store_shared(f: Fragment, site: Site, address: Value, nbytes: int, values: tuple[Value, ...]) -> None:
    _store(f, site, "shared", f.cta.rank, f.cta.shared, own_offsets(f, address), nbytes, values)


def _by_cta(f: Fragment, address: Value) -> list[tuple[Cta, Fragment, Any]]:
    """Returns the CTAs that shared::cluster addresses name, each with its lanes and their offsets."""
    if isinstance(address, int):
        cta, offset = f.cta.cluster.cta_at(address, "an access")
        cta.check_alive("an access reaches")
        return [(cta, f, offset)]
    lanes = _lanes(f, address).astype(np.uint32)
    ranks = lanes >> RANK_SHIFT
    found = []
    for rank in np.unique(ranks).tolist():
        cta, _ = f.cta.cluster.cta_at(rank << RANK_SHIFT, "an access")
        cta.check_alive("an access reaches")
        here = np.flatnonzero(ranks == rank)
        some = f if len(here) == f.count else part(f, sum(1 << f.lanes[p] for p in here.tolist()))
        found.append((cta, some, lanes[here] & np.uint32(OFFSET_MASK)))
    return found


def load_cluster(f: Fragment, site: Site, address: Value, nbytes: int, count: int, extend: int) -> Result:
    found = [
        (some, _load(some, site, "shared", cta.rank, cta.shared, where, nbytes, count, extend))
        for cta, some, where in _by_cta(f, address)
    ]
    return _join(found, count)


def store_cluster(f: Fragment, site: Site, address: Value, nbytes: int, values: tuple[Value, ...]) -> None:
    for cta, some, where in _by_cta(f, address):
        _store(some, site, "shared", cta.rank, cta.shared, where, nbytes, values)


def _join(found: list[tuple[Fragment, Result]], count: int) -> Result:
    """Merges the values that parts of a fragment have loaded."""
    if len(found) == 1:
        return found[0][1]
    if count > 1:
        return tuple(_join([(some, items[n]) for some, items in found], 1) for n in range(count))
    return merge_values(found, next((v.dtype for _, v in found if not isinstance(v, int)), np.uint64))


# ---- global memory and parameters ----


def _places(f: Fragment, address: Value) -> Any:
    return address if isinstance(address, int) else _lanes(f, address)


def load_global(f: Fragment, site: Site, address: Value, nbytes: int, count: int, extend: int) -> Result:
    return _load(f, site, "global", -1, f.grid.memory, _places(f, address), nbytes, count, extend)


def store_global(f: Fragment, site: Site, address: Value, nbytes: int, values: tuple[Value, ...]) -> None:
    _store(f, site, "global", -1, f.grid.memory, _places(f, address), nbytes, values)


class Parameters:
    """The parameter block of a kernel as a memory."""

    def __init__(self, block: bytes) -> None:
        self._block = block

    def _read(self, offset: int, nbytes: int) -> bytes:
        block = self._block
        if offset % nbytes:
            raise Fault(f"parameter address {offset} is not aligned to the {nbytes} bytes of the access", "alignment")
        if offset + nbytes > len(block):
            raise Fault(f"reads kernel parameter bytes {offset}..{offset + nbytes - 1} of {len(block)}", "address")
        return block[offset : offset + nbytes]

    def load_int(self, offset: int, nbytes: int) -> int:
        return int.from_bytes(self._read(offset, nbytes), "little")

    def gather(self, offsets: np.ndarray, nbytes: int) -> np.ndarray:
        return np.frombuffer(b"".join(self._read(offset, nbytes) for offset in offsets.tolist()), WORDS[nbytes])


def load_param(f: Fragment, site: Site, address: Value, nbytes: int, count: int, extend: int) -> Result:
    block = Parameters(f.grid.launch.parameters)
    return _load(f, site, "param", -1, block, _places(f, address), nbytes, count, extend)


# ---- local and constant memory ----


def offsets(f: Fragment, address: Value) -> Any:
    """Returns the local address of each lane."""
    return every_lane(f, address).astype(np.int64)


def load_local(f: Fragment, site: Site, address: Value, nbytes: int, count: int, extend: int) -> Result:
    """Loads from local memory, which also holds the parameters of functions."""
    where, local = offsets(f, address), f.warp.local
    if count > 1:
        _check_vector(where, nbytes, count)
    if f.grid.sink is not None:
        f.grid.sink(Access(f.agent, site, "read", "local", -1, where, nbytes, count, None))
    try:
        rows = [local.load(f.lane_index, where + n * nbytes, nbytes) for n in range(count)]
        found = [finish(f, int(row[0]) if f.single >= 0 else row, nbytes, extend) for row in rows]
    except Fault as fault:
        found = _poison(f, site, fault, lambda at: local.peek(f.lane_index, where + at, nbytes), nbytes, count, extend)
    return found[0] if count == 1 else tuple(found)


def store_local(f: Fragment, site: Site, address: Value, nbytes: int, values: tuple[Value, ...]) -> None:
    where, local = offsets(f, address), f.warp.local
    if len(values) > 1:
        _check_vector(where, nbytes, len(values))
    mask, stored = (1 << 8 * nbytes) - 1, []
    for n, register in enumerate(values):
        value, undefined = _stored(f, register)
        item = value & mask if isinstance(value, int) else _lanes(f, value) & value.dtype.type(mask)
        local.store(f.lane_index, where + n * nbytes, nbytes, item)
        for offset, lane in zip(where.tolist(), f.lanes if undefined is not None else (), strict=False):
            for byte in _undefined_bytes(undefined, lane, nbytes):
                local.forget(lane, offset + n * nbytes + byte)
        stored.append(item)
    f.grid.wakeups.changes += 1
    if f.grid.sink is not None:
        held = stored[0] if len(stored) == 1 else tuple(stored)
        f.grid.sink(Access(f.agent, site, "write", "local", -1, where, nbytes, len(values), held))


def load_constant(f: Fragment, site: Site, address: Value, nbytes: int, count: int, extend: int) -> Result:
    return _load(f, site, "const", -1, f.grid.constants, _places(f, address), nbytes, count, extend)


# ---- generic addresses ----


def _by_space(f: Fragment, address: Value) -> list[tuple[str, Fragment, Value]]:
    """Returns the state spaces of generic addresses, each with its lanes and their addresses in that space.

    Shared memory is that of the cluster.
    """
    if isinstance(address, int):
        return [_in_space(space_of(address), f, address)]
    found = spaces_of(_lanes(f, address))
    if len(found) == 1:
        return [_in_space(found[0][0], f, address)]
    return [_in_space(s, part(f, sum(1 << f.lanes[p] for p in here.tolist())), address) for s, here in found]


def _in_space(space: str, f: Fragment, address: Value) -> tuple[str, Fragment, Value]:
    name = "cluster" if space == "shared" else space
    return name, f, address - (WINDOWS[space] if isinstance(address, int) else np.uint64(WINDOWS[space]))


def load_generic(f: Fragment, site: Site, address: Value, nbytes: int, count: int, extend: int) -> Result:
    found = []
    for space, some, local in _by_space(f, address):
        found.append((some, LOAD_FUNCTIONS[space](some, site, local, nbytes, count, extend)))
    return _join(found, count)


def store_generic(f: Fragment, site: Site, address: Value, nbytes: int, values: tuple[Value, ...]) -> None:
    for space, some, local in _by_space(f, address):
        if space not in STORE_FUNCTIONS:
            raise Fault(f"stores to a generic address in {space} memory", "address")
        STORE_FUNCTIONS[space](some, site, local, nbytes, values)


LOAD_FUNCTIONS: dict[str, Callable[..., Result]] = {
    "shared": load_shared,
    "cluster": load_cluster,
    "global": load_global,
    "param": load_param,
    "local": load_local,
    "const": load_constant,
    "generic": load_generic,
}
STORE_FUNCTIONS: dict[str, Callable[..., None]] = {
    "shared": store_shared,
    "cluster": store_cluster,
    "global": store_global,
    "local": store_local,
    "generic": store_generic,
}
"""By state space; "generic" if the instruction names none."""


# ---- parts of vectors, and 128 bits ----


def load_some(
    f: Fragment,
    site: Site,
    load: Callable[..., Result],
    vector: Value,
    addresses: tuple[Value, ...],
    nbytes: int,
    count: int,
    extend: int,
) -> Result:
    """Loads some elements of a vector; sinks take the others. Each element at ``addresses`` is an access of its own.

    If a compiler reads three elements as a vector of four, nothing uses the fourth one. It may lie outside the
    allocation, which is harmless on hardware because the whole vector is aligned, and other threads may write it.
    """
    _check_vector(vector if isinstance(vector, int) else _lanes(f, vector), nbytes, count)
    found = tuple(load(f, site, address, nbytes, 1, extend) for address in addresses)
    return found[0] if len(found) == 1 else found


def load_128(f: Fragment, site: Site, load: Callable[..., Result], address: Value) -> Value:
    """Executes ``ld.b128``: both halves become one register, which is an int or an array of ints."""
    low, high = load(f, site, address, 8, 2, AS_IS)
    return carrying(join_halves)(low, high)


@moves(2)
def join_halves(low: Value, high: Value) -> Value:
    """Joins two 64-bit values to one of 128 bits."""
    if isinstance(low, int) and isinstance(high, int):
        return low | high << 64
    halves = (v if isinstance(v, int) else v.astype(object) for v in (low, high))
    return next(halves) | (next(halves) << 64)


def store_128(f: Fragment, site: Site, store: Callable[..., None], address: Value, value: Value) -> None:
    """Executes ``st.b128``: stores the two halves of one register."""
    if isinstance(value, int):
        halves: tuple[Value, Value] = (value & M64, value >> 64)
    else:
        both = [int(v) for v in value]
        halves = (np.array([v & M64 for v in both], np.uint64), np.array([v >> 64 for v in both], np.uint64))
    store(f, site, address, 8, halves)
