"""Moves, address spaces and special registers (PTX ISA 9.7.9, 10)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

import numpy as np

from emugpu.emulator.instructions import values
from emugpu.emulator.instructions.accesses import join_halves
from emugpu.emulator.instructions.table import (
    Assign,
    Micro,
    Temporary,
    Translator,
    Unsupported,
    apart,
    bits_of,
    calculated,
    computed,
    instruction,
    kind_of,
    micro,
    micro_of,
    only,
    only_form,
    row_bits,
)
from emugpu.emulator.instructions.values import lanewise
from emugpu.emulator.machine.lanes import ALL_LANES, Value
from emugpu.emulator.machine.poison import of_operators
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.memory.address_space import (
    OFFSET_MASK,
    RANK_SHIFT,
    RESERVED_SHARED,
    SHARED_WINDOW,
    WINDOWS,
    space_of,
)
from emugpu.emulator.ptx.ast import Instruction, Label, Operand, Sink, Special, Symbol, Vector

# ---- special registers, as expressions ----

_LANES = ALL_LANES.astype(np.uint32)
_LANE_MASKS = {
    "eq": lambda lane: 1 << lane,
    "lt": lambda lane: (1 << lane) - 1,
    "le": lambda lane: (2 << lane) - 1,
    "gt": lambda lane: 0xFFFFFFFF & ~((2 << lane) - 1),
    "ge": lambda lane: 0xFFFFFFFF & ~((1 << lane) - 1),
}
_TICK = 32
"""The clock advances by this much at each read. It does not measure time."""


def thread_index(f: Fragment, axis: int) -> Value:
    value = f.warp.tid[axis]
    return int(value[f.single]) if f.single >= 0 and not isinstance(value, int) else value


def lane_index(f: Fragment) -> Value:
    return f.single if f.single >= 0 else _LANES


def lane_mask(f: Fragment, which: str) -> Value:
    return lanewise(32, _LANE_MASKS[which], lane_index(f))


def clock(f: Fragment, shift: int, bits: int) -> int:
    """Returns %clock or %globaltimer. They advance when they are read, and while all warps wait for them."""
    grid = f.grid
    grid.clock_reads += 1
    grid.clock += _TICK
    return grid.clock >> shift & ((1 << bits) - 1)


_CLOCKS = {
    "clock": (0, 32), "clock_hi": (32, 32), "clock64": (0, 64),
    "globaltimer": (0, 64), "globaltimer_lo": (0, 32), "globaltimer_hi": (32, 32),
}  # fmt: skip


def special_register(name: str, w: Translator) -> str:
    """Returns an expression of a special register's value, from the fragment ``f``."""
    base, _, axis = name.removeprefix("%").partition(".")
    index = "xyz".find(axis) if axis else 0
    if base == "tid":
        return f"{w.use(thread_index)}(f, {index})"
    if base == "laneid":
        return f"{w.use(lane_index)}(f)"
    if base.startswith("lanemask_"):
        return f"{w.use(lane_mask)}(f, '{base[9:]}')"
    if base in _CLOCKS:
        shift, bits = _CLOCKS[base]
        return f"{w.use(clock)}(f, {shift}, {bits})"
    known = {
        "ntid": f"f.grid.launch.block[{index}]",
        "ctaid": f"f.cta.index[{index}]",
        "nctaid": f"f.grid.launch.grid[{index}]",
        "clusterid": f"f.cta.cluster.index[{index}]",
        "nclusterid": f"f.grid.launch.clusters[{index}]",
        "cluster_ctaid": f"(f.cta.index[{index}] % f.grid.launch.cluster[{index}])",
        "cluster_nctaid": f"f.grid.launch.cluster[{index}]",
        "cluster_ctarank": "f.cta.rank",
        "cluster_nctarank": "len(f.cta.cluster.ctas)",
        "warpid": "f.warp.index",
        "nwarpid": "len(f.cta.warps)",
        "is_explicit_cluster": "(len(f.cta.cluster.ctas) > 1)",
        "dynamic_smem_size": "f.grid.launch.dynamic_shared",
        "total_smem_size": "f.grid.shared_bytes",
        "smid": "f.cta.sm",
        "nsmid": "f.grid.sms",
        "gridid": "1",
        "aggr_smem_size": "f.grid.shared_bytes",
        "current_graph_exec": "0",
        "reserved_smem_offset_begin": "0",
        "reserved_smem_offset_end": str(RESERVED_SHARED),
        "reserved_smem_offset_cap": str(RESERVED_SHARED),
    }
    if base in ("envreg1", "envreg2"):
        # cooperative_groups finds the barrier of its grid through these two halves of an address.
        return f"(f.grid.launch.workspace {'>> 32' if base == 'envreg1' else '& 0xFFFFFFFF'})"
    if base.startswith(("pm", "envreg", "reserved_smem_offset_")) and base not in known:
        # Performance counters stand still. The driver's values in the other registers have no meaning here.
        return "0"
    if base not in known:
        raise Unsupported
    return known[base]


# ---- moves and address spaces ----


@instruction("mov", operands=2)
def _mov(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    destination, source = i.operands
    if kind == "b128" and any(isinstance(o, Vector) and len(o.elements) != 2 for o in i.operands):
        raise Unsupported  # PTX packs 128 bits of two halves only
    if isinstance(destination, Vector):
        return Assign(*_parts(destination.elements, source, kind))
    if isinstance(source, Vector):
        return Assign(_whole(destination, source.elements, kind))
    return Assign(micro(f"mov.{min(64, row_bits(kind))}", destination, kind, source))


@of_operators
def part_of(value: Value, first: int, bits: int) -> Value:
    """Returns some bits of a register."""
    return values.narrow(value >> first, bits)


def _parts(parts: Sequence[Operand], source: Operand, kind: str) -> tuple[Micro, ...]:
    """Returns micro-operations that divide a register into parts of equal size."""
    bits = bits_of(kind) // len(parts)
    if (len(parts), bits) == (2, 32):
        found = [micro(name, part, kind, source) for name, part in zip(("trunc.32", "high.32"), parts, strict=True)]
    elif (len(parts), bits) == (2, 16):
        low, high = parts
        found = [micro("and.32", low, kind, source, 0xFFFF), micro("shr.32", high, kind, source, 16)]
    else:
        read = ((source, kind),)
        found = [calculated(part_of, part, read, n * bits, bits) for n, part in enumerate(parts)]
    return apart([m for m in found if not isinstance(m.destination, Sink)])


@of_operators
def whole_of(bits: int, *parts: Value) -> Value:
    """Returns parts of equal size as one register. The row of a short part may have undefined bits above it."""
    shifted = [values.widen(values.narrow(part, bits)) << n * bits for n, part in enumerate(parts)]
    return values.narrow(reduce(operator.or_, shifted), bits * len(parts))


def _whole(destination: Operand, parts: Sequence[Operand], kind: str) -> Micro:
    """Returns the micro-operation that makes one register of parts."""
    bits = bits_of(kind) // len(parts)
    read = tuple((part, f"b{bits}") for part in parts)
    if len(parts) == 2 and bits in (16, 32):
        return Micro("join.64" if bits == 32 else "join.halves", destination, read)
    if bits == 64:
        return calculated(join_halves, destination, read)
    return calculated(whole_of, destination, read, before=(bits,))


@instruction("cvta", operands=2)
def _cvta(i: Instruction, w: Translator) -> Assign:
    """Emits cvta, which converts an address from a state space to the generic address space, or back."""
    spaces = ("global", "shared", "shared::cta", "shared::cluster", "param", "param::entry", "const", "local")
    only_form(i, *(f"{to}{space}.u64" for to in ("", "to.") for space in spaces))
    window = WINDOWS[i.modifiers[-2].partition("::")[0]]
    if not window:
        return Assign(micro_of(i, "mov.64", "u64"))
    return Assign(micro("sub.64" if i.has("to") else "add.64", i.operands[0], "u64", i.operands[1], window))


def is_in_space(address: Value, rank: int, space: str) -> Value:
    """Computes ``isspacep``: whether a generic address lies in a space. "shared::cta" is the CTA's own part."""

    def of_lane(a: int) -> bool:
        held_in = space_of(a)
        if held_in == "param" and space == "global":
            # The window of kernel parameters lies in the window of global memory.
            return True
        if held_in != space.partition("::")[0]:
            return False
        return space != "shared::cta" or (a - SHARED_WINDOW) >> RANK_SHIFT == rank

    if isinstance(address, int):
        return of_lane(address)
    return np.array([of_lane(a) for a in address.tolist()])


@instruction("isspacep", operands=2)
def _isspacep(i: Instruction, w: Translator) -> Assign:
    only_form(i, "const", "global", "local", "shared", "shared::cta", "shared::cluster", "param", "param::entry")
    named = {"shared": "shared::cta"}.get(i.modifiers[0], i.modifiers[0])
    sources = ((i.operands[1], "u64"), (Special("%cluster_ctarank"), "u32"))
    return Assign(calculated(is_in_space, i.operands[0], sources, named))


def map_to_rank(address: Value, rank: Value) -> Value:
    """Computes ``mapa.shared::cluster``: the same offset in another CTA of the cluster."""
    if isinstance(address, int) and isinstance(rank, int):
        return (address & OFFSET_MASK) | (rank & 0xFF) << RANK_SHIFT
    ranks = rank if isinstance(rank, int) else rank.astype(np.uint32)
    return (np.asarray(address, np.uint32) & OFFSET_MASK) | ((ranks & 0xFF) << RANK_SHIFT)


def map_generic_to_rank(address: Value, rank: Value) -> Value:
    """Computes ``mapa.u64``, the same for a generic address."""
    mapped = map_to_rank(values.narrow(address, 32), rank)
    return (mapped if isinstance(mapped, int) else mapped.astype(np.uint64)) + SHARED_WINDOW


@instruction("mapa", operands=3)
def _mapa(i: Instruction, w: Translator) -> Assign:
    only_form(i, "shared::cluster.u32", "shared::cluster.u64", "u64")
    generic = i.modifiers == ("u64",)
    destination, source, rank = i.operands
    if generic and isinstance(source, Symbol | Label):
        raise Unsupported
    if i.modifiers != ("shared::cluster", "u64"):
        return Assign(computed(i, map_generic_to_rank if generic else map_to_rank, (i.modifiers[-1], "u32")))
    low = Temporary()
    return Assign(
        micro("trunc.32", low, "u64", source),
        calculated(map_to_rank, low, ((low, "u32"), (rank, "u32"))),
        micro("zext.64", destination, "u32", low),
    )


@instruction("getctarank", operands=2)
def _getctarank(i: Instruction, w: Translator) -> Assign:
    only_form(i, "shared::cluster.u32", "shared::cluster.u64", "u64")
    destination, source = i.operands
    if i.modifiers[-1] == "u32":
        return Assign(micro("shr.32", destination, "u32", source, RANK_SHIFT))
    low = micro("trunc.32", destination, "u64", source)
    return Assign(low, micro("shr.32", destination, "u32", destination, RANK_SHIFT))
