"""ld, st, atom, red, ldmatrix, stmatrix, mapa, and data exchange between lanes (PTX ISA 9.7.9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import Fault
from ..machine.fragment import WARP_SIZE, Fragment, Value, lane_value
from ..machine.grid import OFFSET_MASK, RANK_SHIFT
from ..machine.machine import PARAM_WINDOW, SHARED_WINDOW
from ..machine.observer import Access
from .sync import check_member_mask

_ROWS = np.arange(8)


def _dtype(nbytes: int) -> type:
    return np.uint64 if nbytes == 8 else np.uint32


def _own(f: Fragment, address: Value) -> Value:
    """Offsets of shared::cta addresses (scalar, or an array over the fragment's lanes)."""
    if isinstance(address, int):
        if address >> RANK_SHIFT != f.cta.rank:
            raise Fault(
                f"shared::cta address 0x{address:08x} names CTA rank {address >> RANK_SHIFT}, not its own {f.cta.rank}"
            )
        return address & OFFSET_MASK
    lanes = address[f.lane_index].astype(np.int64)
    if ((lanes >> RANK_SHIFT) != f.cta.rank).any():
        raise Fault(f"a shared::cta address names a CTA other than its own, rank {f.cta.rank}")
    return lanes & OFFSET_MASK


def _spread(f: Fragment, values: np.ndarray, nbytes: int) -> np.ndarray:
    """Values of the fragment's lanes as a 32-lane register."""
    if f.count == WARP_SIZE:
        return values.astype(_dtype(nbytes), copy=False)
    out: np.ndarray = np.zeros(WARP_SIZE, _dtype(nbytes))
    out[f.lane_index] = values
    return out


def _observe(f: Fragment, i: int, space: str, mode: str, where: Value, nbytes: int) -> None:
    machine = f.cta.machine
    if machine.observers:
        rank = f.cta.rank if space == "shared" else -1
        offsets = [where] if isinstance(where, int) else where.tolist()
        machine.observe(f"{space}.{mode}", f, i, [Access(space, rank, o, nbytes, mode) for o in offsets], done=True)


# ---- loads and stores ----


def load_param(f: Fragment, i: int, address: Value, nbytes: int) -> Value:
    offset = lane_value(address, f.lanes[0])
    block = f.cta.machine.launch.parameters
    if offset + nbytes > len(block):
        raise Fault(f"reads kernel parameter bytes {offset}..{offset + nbytes - 1} of {len(block)}")
    return int.from_bytes(block[offset : offset + nbytes], "little")


def load_shared(f: Fragment, i: int, address: Value, nbytes: int) -> Value:
    where = _own(f, address)
    _observe(f, i, "shared", "read", where, nbytes)
    if isinstance(where, int):
        _not_a_barrier(f, where)
        return f.cta.shared.load_int(where, nbytes)
    return _spread(f, f.cta.shared.gather(where, nbytes), nbytes)


def store_shared(f: Fragment, i: int, address: Value, nbytes: int, value: Value) -> None:
    where = _own(f, address)
    _observe(f, i, "shared", "write", where, nbytes)
    _store(f, where, nbytes, value, f.cta.shared.store_int, f.cta.shared.scatter, _not_a_barrier)


def load_global(f: Fragment, i: int, address: Value, nbytes: int) -> Value:
    memory = f.cta.machine.memory
    if isinstance(address, int):
        _observe(f, i, "global", "read", address, nbytes)
        return memory.load_int(address, nbytes)
    where = address[f.lane_index]
    _observe(f, i, "global", "read", where, nbytes)
    return _spread(f, memory.gather(where, nbytes), nbytes)


def store_global(f: Fragment, i: int, address: Value, nbytes: int, value: Value) -> None:
    memory = f.cta.machine.memory
    where = address if isinstance(address, int) else address[f.lane_index]
    _observe(f, i, "global", "write", where, nbytes)
    _store(f, where, nbytes, value, memory.store_int, memory.scatter)


def _store(
    f: Fragment,
    where: Value,
    nbytes: int,
    value: Value,
    store_int: Callable[[int, int, int], None],
    scatter: Callable[..., None],
    check: Callable[[Fragment, int], None] | None = None,
) -> None:
    if value is None:
        raise Fault("stores a register that was never written")
    mask = (1 << 8 * nbytes) - 1
    if isinstance(where, int):
        if check:
            check(f, where)
        # Several lanes may store to one address; which one wins is unspecified, here it is the last.
        store_int(where, nbytes, lane_value(value, f.lanes[-1]) & mask)
        return
    if check and f.cta.mbarriers:
        for offset in where.tolist():
            check(f, offset)
    values = np.full(len(where), value & mask, np.uint64) if isinstance(value, int) else value[f.lane_index]
    scatter(where, nbytes, values)


def _not_a_barrier(f: Fragment, offset: int) -> None:
    if offset & ~7 in f.cta.mbarriers:
        raise Fault(f"touches {f.cta.mbarriers[offset & ~7]} with an ordinary access; mbarriers are opaque")


def load_cluster(f: Fragment, i: int, address: Value, nbytes: int) -> Value:
    """``ld.shared::cluster``: each lane may name another CTA."""
    values = []
    for lane in f.lanes:
        cta, offset = f.cta.cluster.cta_at(lane_value(address, lane), "a load")
        values.append(cta.shared.load_int(offset, nbytes))
    return values[0] if f.single >= 0 else _spread(f, np.array(values, np.uint64), nbytes)


def store_cluster(f: Fragment, i: int, address: Value, nbytes: int, value: Value) -> None:
    for lane in f.lanes:
        cta, offset = f.cta.cluster.cta_at(lane_value(address, lane), "a store")
        cta.shared.store_int(offset, nbytes, lane_value(value, lane) & ((1 << 8 * nbytes) - 1))


def load_generic(f: Fragment, i: int, address: Value, nbytes: int) -> Value:
    space, where = _generic(f, address)
    loads = {"shared": load_cluster, "param": load_param, "global": load_global}
    return loads[space](f, i, where, nbytes)


def store_generic(f: Fragment, i: int, address: Value, nbytes: int, value: Value) -> None:
    space, where = _generic(f, address)
    if space == "param":
        raise Fault("stores to a kernel parameter; parameters are read-only")
    (store_cluster if space == "shared" else store_global)(f, i, where, nbytes, value)


def _generic(f: Fragment, address: Value) -> tuple[str, Value]:
    """State space and address in it; all lanes of one access must name the same space."""
    first = lane_value(address, f.lanes[0])
    if first >= SHARED_WINDOW:
        return "shared", address - SHARED_WINDOW
    if first >= PARAM_WINDOW:
        return "param", address - PARAM_WINDOW
    return "global", address


_ATOMICS: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda old, b, c: old + b,
    "and": lambda old, b, c: old & b,
    "or": lambda old, b, c: old | b,
    "xor": lambda old, b, c: old ^ b,
    "exch": lambda old, b, c: b,
    "cas": lambda old, b, c: c if old == b else old,
    "min": lambda old, b, c: min(old, b),
    "max": lambda old, b, c: max(old, b),
    "inc": lambda old, b, c: 0 if old >= b else old + 1,
    "dec": lambda old, b, c: b if old == 0 or old > b else old - 1,
}
ATOMIC_OPERATIONS = frozenset(_ATOMICS)


def atomic(f: Fragment, i: int, space: str, operation: str, address: Value, nbytes: int, b: Value, c: Value) -> Value:
    """Unsigned and bitwise ``atom``/``red``: lane after lane, in lane order. Returns the old values."""
    function, mask = _ATOMICS[operation], (1 << 8 * nbytes) - 1
    memory = f.cta.shared if space == "shared" else f.cta.machine.memory
    olds = []
    for lane in f.lanes:
        where = lane_value(address, lane)
        if space == "shared":
            where = int(_own(f, where))
            _not_a_barrier(f, where)
        old = memory.load_int(where, nbytes)
        memory.store_int(where, nbytes, function(old, lane_value(b, lane), lane_value(c, lane)) & mask)
        olds.append(old)
    f.cta.machine.progress += 1
    return olds[0] if f.single >= 0 else _spread(f, np.array(olds, np.uint64), nbytes)


# ---- matrices ----


def _row_offsets(f: Fragment, address: Value, matrices: int) -> np.ndarray:
    """Offsets of the 8 rows of each matrix: row j of matrix m comes from lane 8m + j."""
    f.require_whole_warp()
    if isinstance(address, int):
        raise Fault("stmatrix/ldmatrix got one address for all rows; every row needs its own lane's address")
    rows = address[: 8 * matrices].astype(np.int64)
    if ((rows >> RANK_SHIFT) != f.cta.rank).any():
        raise Fault(f"a row address names a CTA other than its own, rank {f.cta.rank}")
    rows &= OFFSET_MASK
    if (rows & 15).any():
        raise Fault(f"row address 0x{int(rows[(rows & 15) != 0][0]):x} is not a multiple of 16")
    return rows


def store_matrix(f: Fragment, i: int, address: Value, values: Sequence[Value], transpose: bool) -> None:
    """``stmatrix.m8n8.b16``: thread t holds row t/4, columns 2(t%4) and 2(t%4)+1 of each matrix."""
    rows = _row_offsets(f, address, len(values))
    _observe(f, i, "shared", "write", rows, 16)
    if any(v is None for v in values):
        raise Fault("stores a register that was never written, or a load or wgmma that was not waited for")
    if all(isinstance(v, np.ndarray) for v in values):
        words = np.array(values, np.uint32)
    else:
        words = np.array([np.broadcast_to(np.asarray(v, np.uint32), WARP_SIZE) for v in values])
    if transpose:
        halves = words.view(np.uint16).reshape(-1, 8, 8)
        words = np.ascontiguousarray(halves.transpose(0, 2, 1))
    f.cta.shared.write_chunks(rows >> 4, words.reshape(-1).view(np.complex128))


def load_matrix(f: Fragment, i: int, address: Value, matrices: int, transpose: bool) -> list[np.ndarray]:
    """``ldmatrix.m8n8.b16``: the inverse mapping."""
    rows = _row_offsets(f, address, matrices)
    _observe(f, i, "shared", "read", rows, 16)
    halves = np.ascontiguousarray(f.cta.shared.read_chunks(rows >> 4)).view(np.uint16).reshape(matrices, 8, 8)
    if transpose:
        halves = np.ascontiguousarray(halves.transpose(0, 2, 1))
    return list(halves.reshape(matrices, 64).view(np.uint32))


# ---- addresses of peers ----


def map_to_rank(address: Value, rank: Value) -> Value:
    """``mapa.shared::cluster``: the same offset in another CTA of the cluster."""
    if isinstance(address, int) and isinstance(rank, int):
        return (address & OFFSET_MASK) | (rank & 0xFF) << RANK_SHIFT
    ranks = rank if isinstance(rank, int) else rank.astype(np.uint32)
    return (np.asarray(address, np.uint32) & OFFSET_MASK) | ((ranks & 0xFF) << RANK_SHIFT)


# ---- between lanes ----


def shuffle(f: Fragment, i: int, mode: str, value: Value, b: Value, c: Value, mask: Value) -> tuple[Value, Value]:
    """``shfl.sync``: (value, in-range predicate) per lane."""
    check_member_mask(f, mask, "shfl.sync")
    if value is None:
        raise Fault("shuffles a register that was never written")
    bound = lane_value(c, f.lanes[0])
    if mode == "idx" and isinstance(b, int) and bound == 31:
        source = b & 31
        if not f.mask >> source & 1:
            raise Fault(f"shfl.sync reads lane {source}, which does not take part")
        return lane_value(value, source), True
    if f.single >= 0:
        raise Fault("shfl.sync by a single lane other than idx is not supported")
    lanes = np.arange(WARP_SIZE)
    clamp, segment = bound & 31, bound >> 8 & 31
    highest = (lanes & segment) | (clamp & ~segment & 31)
    lowest = lanes & segment
    by = np.broadcast_to(np.asarray(b, np.int64), WARP_SIZE) & 31
    wanted: np.ndarray = {
        "idx": lowest | (by & ~segment & 31),
        "up": lanes - by,
        "down": lanes + by,
        "bfly": lanes ^ by,
    }[mode]
    inside = wanted >= highest if mode == "up" else wanted <= highest
    chosen = np.where(inside, wanted, lanes) & 31
    full = np.broadcast_to(np.asarray(value, np.uint32), WARP_SIZE)
    return full[chosen], inside


def vote(f: Fragment, i: int, mode: str, predicate: Value, mask: Value) -> Value:
    """``vote.sync``: all, any, uni or ballot over the member lanes."""
    members = check_member_mask(f, mask, "vote.sync")
    ballot = 0
    for lane in f.lanes:
        ballot |= int(predicate if isinstance(predicate, bool) else predicate[lane]) << lane
    if mode == "ballot":
        return ballot
    every = ballot == members & f.mask
    return {"all": every, "any": ballot != 0, "uni": every or ballot == 0}[mode]


def reduce(f: Fragment, i: int, operation: str, is_signed: bool, value: Value, mask: Value) -> int:
    """``redux.sync`` on 32-bit integers."""
    check_member_mask(f, mask, "redux.sync")
    values = [lane_value(value, lane) for lane in f.lanes]
    if is_signed and operation in ("min", "max"):
        values = [v - (1 << 32) if v >> 31 else v for v in values]
    result = values[0]
    for v in values[1:]:
        result = {"add": result + v, "min": min(result, v), "max": max(result, v), "and": result & v,
                  "or": result | v, "xor": result ^ v}[operation]  # fmt: skip
    return result & 0xFFFFFFFF
