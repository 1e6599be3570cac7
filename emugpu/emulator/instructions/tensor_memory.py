"""tcgen05 instructions that allocate, load, store and free tensor memory (PTX ISA 9.7.16.7, 9.7.16.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import loaded_origin, own_offset
from emugpu.emulator.instructions.fence import fence
from emugpu.emulator.instructions.floats import extremum
from emugpu.emulator.instructions.table import (
    NOTHING,
    Effect,
    Micro,
    OfWarp,
    Translator,
    Unsupported,
    address_parts,
    elements,
    immediate,
    instruction,
    only,
    registers,
    shared_pointer,
    tuple_of,
)
from emugpu.emulator.instructions.values import select
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.lanes import FULL_MASK, WARP_SIZE, Value, lane_array, lane_value, stack_rows
from emugpu.emulator.machine.poison import Poison, made
from emugpu.emulator.machine.state import Cta, Fragment, PendingLoad, PendingStore
from emugpu.emulator.memory.address_space import WINDOWS, shared_from_generic, space_of
from emugpu.emulator.memory.tmem import SHAPES, RegisterPlace, first_register, parts_of, place
from emugpu.emulator.ptx.ast import Immediate, Instruction, Operand, Register

GROUPS = ("cta_group::1", "cta_group::2")


def cta_group(i: Instruction) -> int:
    """Returns 1 or 2. Every tcgen05 instruction that takes a cta_group must name it."""
    named = [m for m in i.modifiers if m in GROUPS]
    if len(named) != 1:
        raise Unsupported
    return int(named[0][-1])


# ---- allocation ----


def alloc(f: Fragment, site: Site, destination: Value, columns: Value, group: int) -> object:
    """Executes ``tcgen05.alloc``: suspends until the columns are free, and writes the address to shared memory.

    For a CTA pair, the even CTA allocates in both tensor memories, and the odd CTA's own alloc waits for that.
    """
    f.require_whole_warp()
    cta = f.cta
    address, count = lane_value(destination, f.lanes[0]), lane_value(columns, f.lanes[0])
    if address >= WINDOWS["shared"] and space_of(address) == "shared":
        # ThunderKittens does this. The hardware takes the low 32 bits, which are the shared address.
        f.grid.findings.warn(
            "generic-address", site, f"the generic address 0x{address:x} is given as one of shared::cta"
        )
        address = shared_from_generic(address)
    offset = own_offset(f, address, "the place of the result of tcgen05.alloc")
    column = cta.tmem.allocate(count) if group == 1 else _allocate_in_pair(cta, offset, count)
    if column is None:
        cta.allocation_waiters.append(f)
        what = f"waits for {count} columns"
        if group == 2 and cta.rank & 1:
            what += " that the even CTA of the pair allocates by the matching tcgen05.alloc"
        return f.grid.wakeups.suspend(f, f"tensor memory of CTA rank {cta.rank}", what, site)
    cta.cta_group = group
    cta.shared.store_int(offset, 4, column)
    allocated = sum(size for _, size in cta.tmem.leaks())
    f.grid.counters.tmem_columns = max(f.grid.counters.tmem_columns, allocated)
    f.grid.wakeups.changes += 1
    sink = f.grid.sink
    if sink is not None:
        sink(events.TensorMemoryAllocated(f.agent, site, column, count))
        sink(events.Access(f.agent, site, "write", "shared", cta.rank, offset, 4, 1, column))
    return None


def _allocate_in_pair(cta: Cta, offset: int, count: int) -> int | None:
    """Returns the column for one CTA of a pair, or None if it has to wait."""
    even, odd = cta.pair
    if cta is even:
        column = even.tmem.allocate(count)
        if column is None:
            return None
        if odd.tmem.allocate(count) != column:
            raise Fault(
                "the two CTAs of the pair have different columns free; pair allocations must match", "tmem-alloc"
            )
        even.allocations.append((offset, count, column))
        _wake_allocators(odd)
        return column
    turn = len(odd.allocations)
    if turn >= len(even.allocations):
        return None
    even_offset, even_count, column = even.allocations[turn]
    if (even_offset, even_count) != (offset, count):
        raise Fault(
            f"tcgen05.alloc of {count} columns to offset 0x{offset:x}, but the even CTA of the pair "
            f"asked for {even_count} columns to offset 0x{even_offset:x}; both must agree",
            "tmem-alloc",
        )
    odd.allocations.append((offset, count, column))
    return column


def _wake_allocators(cta: Cta) -> None:
    cta.grid.wakeups.release(cta.allocation_waiters)


@instruction("tcgen05.alloc", operands=2, writes=0, blocks=True, family="tmem")
def _alloc(i: Instruction, w: Translator) -> Effect:
    only(i, GROUPS, "sync", "aligned", "shared::cta")
    return Effect(alloc, [shared_pointer(i, w, i.operands[0]), w.read(i.operands[1], "u32"), str(cta_group(i))])


def dealloc(f: Fragment, site: Site, address: Value, columns: Value, group: int) -> None:
    f.require_whole_warp()
    cta = f.cta
    if cta.mma_in_flight:
        raise Fault(
            f"frees tensor memory while {cta.mma_in_flight} MMA(s) that use this CTA's tensor memory are in flight",
            "tmem-alloc",
        )
    if cta.cta_group not in (0, group):
        raise Fault(
            f"tcgen05.dealloc.cta_group::{group} of tensor memory that cta_group::{cta.cta_group} has allocated",
            "tmem-alloc",
        )
    column, count = lane_value(address, f.lanes[0]), lane_value(columns, f.lanes[0])
    _take_late_loads(f, site, range(column, column + count))
    cta.tmem.deallocate(column, count)
    if f.grid.sink is not None:
        f.grid.sink(events.TensorMemoryFreed(f.agent, site, column, count))
    f.grid.wakeups.changes += 1
    _wake_allocators(cta)


def _take_late_loads(f: Fragment, site: Site, columns: range) -> None:
    """Completes loads that no wait has covered, with a warning, before the memory is freed."""
    for warp in f.cta.warps:
        for fragment in warp.fragments:
            for load in fragment.pending_loads:
                open_slots = any(lanes & fragment.mask for lanes in load.open)
                if open_slots and load.columns.start < columns.stop and columns.start < load.columns.stop:
                    f.grid.findings.warn(
                        "tmem-freed",
                        site,
                        f"frees tensor memory columns {columns.start}..{columns.stop - 1} while {warp} has not waited "
                        f"for its tcgen05.ld at PTX line {load.site.line}",
                    )
                    load.read()


@instruction("tcgen05.dealloc", operands=2, writes=0, family="tmem")
def _dealloc(i: Instruction, w: Translator) -> Effect:
    only(i, GROUPS, "sync", "aligned")
    return Effect(dealloc, [w.read(i.operands[0], "u32"), w.read(i.operands[1], "u32"), str(cta_group(i))])


def relinquish(f: Fragment, site: Site) -> None:
    f.require_whole_warp()
    f.cta.tmem.relinquish()
    if f.grid.sink is not None:
        f.grid.sink(events.TensorMemoryRelinquished(f.agent, site))


@instruction("tcgen05.relinquish_alloc_permit", operands=0, writes=0, family="tmem")
def _relinquish(i: Instruction, w: Translator) -> Effect:
    only(i, GROUPS, "sync", "aligned")
    return Effect(relinquish)


# ---- between tensor memory and registers ----


def _block(f: Fragment, where: RegisterPlace) -> tuple[events.Region, ...]:
    return (events.TensorBlock(f.cta.rank, where.lanes, range(where.first_column, where.end_column)),)


def _spot(f: Fragment, site: Site, where: tuple[Any, ...], address: Value) -> RegisterPlace:
    """Returns the place of an access's registers. where: (shape, .xN, pack or unpack, split).

    A B200 executes accesses beyond the CTA's own columns (the kernels of sf-tensor/tcgen05 make them in every case).
    """
    f.require_whole_warp()
    shape, num, packed, split = where
    spot = place(shape, num, _common_address(f, site, address), f.warp.index % 4, packed, split)
    outside = f.cta.tmem.not_allocated(spot)
    if outside:
        f.grid.findings.warn("tmem-outside", site, f"touches tensor memory {outside}")
    return spot


def _common_address(f: Fragment, site: Site, address: Value) -> int:
    """Returns the address of tensor memory that all lanes pass; their columns must agree.

    Kernels that run well pass addresses that differ in the lane of tensor memory. The first lane's is taken.
    """
    columns = f.uniform(address & 0xFFFF, "the column of tensor memory")
    first = lane_value(address, f.lanes[0])
    if not isinstance(address, int) and (address[f.lane_index] != first).any():
        f.grid.findings.warn(
            "tmem-address",
            site,
            f"passes addresses of column {columns} whose lanes of tensor memory differ; lane {f.lanes[0]}'s is taken",
        )
    return first


def _follow_stores(f: Fragment, site: Site, spot: RegisterPlace) -> None:
    """Warns of a load of what a store of the warp has written that no wait has covered.

    Kernels that run well do this: the load finds what was stored, so the stores of these columns are over.
    """
    overlapping = [store for store in f.pending_stores if np.isin(spot.flat, store.place.flat).any()]
    if not overlapping:
        return
    f.grid.findings.warn(
        "tmem-wait",
        site,
        f"loads what the warp's tcgen05.st at PTX line {overlapping[0].site.line} stores, and no tcgen05.wait::st "
        "stands between them",
    )
    _stores_are_over(f, site, "st by ld", overlapping)


def load(
    f: Fragment,
    site: Site,
    slots: Sequence[int],
    where: tuple[Any, ...],
    address: Value,
    reduction: tuple[str, str, bool, bool] | None = None,
) -> None:
    """Executes ``tcgen05.ld``. Its registers may be used after ``tcgen05.wait::ld``.

    The schedule decides whether the value is taken at issue or only at the wait. Both are legal. reduction: with
    ``.red``, the arguments of `least_or_greatest`, whose result is in the last register.
    """
    cta, spot = f.cta, _spot(f, site, where, address)
    _follow_stores(f, site, spot)
    operation = None
    if f.grid.sink is not None:
        operation = f.grid.operation("tmem.load", f, site, reads=_block(f, spot), place=spot)

    def read() -> Any:
        events.report_started(f.grid.sink, operation)
        try:
            count = len(slots) - bool(reduction)
            values: Any = cta.tmem.load(spot) if f.grid.computes else np.zeros((count, WARP_SIZE), np.uint32)
            if reduction:
                values = [*values, least_or_greatest(*reduction, values)]
        except Fault as fault:
            origin = loaded_origin(f, site, fault)
            rows, masks = cta.tmem.peek(spot)
            values = [made(row, missing, origin, fault.rule) for row, missing in zip(rows, masks, strict=True)]
            if reduction:
                undefined = np.where(masks.any(axis=0), np.uint32(0xFFFFFFFF), np.uint32(0))
                values.append(made(least_or_greatest(*reduction, rows), undefined, origin, fault.rule))
        pending.read = lambda: values
        return values

    columns = range(spot.first_column, spot.end_column)
    pending = PendingLoad(site, tuple(slots), [FULL_MASK] * len(slots), read, columns, operation)
    if f.grid.choices.early():
        pending.read()
    f.pending_loads.append(pending)


def least_or_greatest(operation: str, kind: str, magnitudes: bool, nan: bool, rows: Any) -> Any:
    """Returns the minimum or maximum of each thread's registers, with the rules of ``min`` and ``max``."""
    if kind != "f32":
        numbers = rows.view(np.int32 if kind == "s32" else np.uint32)
        return (numbers.min(axis=0) if operation == "min" else numbers.max(axis=0)).view(np.uint32)
    found = rows[0]
    for row in rows:
        found = extremum(operation, kind, False, nan, magnitudes, False, found, row)
    return np.broadcast_to(found, (WARP_SIZE,))


EARLY_READ = "register-before-wait"


def early_read(name: str, line: int) -> str:
    """Returns the message of a read of a register of the load at a line before its wait."""
    return f"reads register {name} of the tcgen05.ld at PTX line {line} before tcgen05.wait::ld"


def load_early(f: Fragment, site: Site, slot: int, name: str) -> Value:
    """Returns a register of a tcgen05.ld that is being read. If no wait has covered the load, warns."""
    for pending in f.pending_loads:
        if any(s == slot and lanes & f.mask for s, lanes in zip(pending.slots, pending.open, strict=True)):
            f.grid.findings.warn(EARLY_READ, site, early_read(name, pending.site.line))
            _deliver(f, pending)
            if pending.operation is None and not any(pending.open):
                f.pending_loads.remove(pending)
            elif f.grid.sink is not None and pending.operation is not None:
                f.grid.sink(events.TensorMemoryWaited(f.agent, site, "use", (pending.operation,)))
            break
    return f.current(1 << slot)[slot]


def forget_load(f: Fragment, slot: int) -> None:
    """Notes that a register is overwritten, so that an earlier load must not write it any more."""
    for pending in f.pending_loads:
        pending.open = [
            lanes & ~f.mask if s == slot else lanes for s, lanes in zip(pending.slots, pending.open, strict=True)
        ]


def _deliver(f: Fragment, pending: PendingLoad) -> None:
    """Writes the fragment's registers that the load has not written yet."""
    rows = pending.read()
    if f.mask == min(pending.open) == FULL_MASK:
        pending.open = [0] * len(pending.slots)
        for slot, row in zip(pending.slots, rows, strict=True):
            f.set(slot, row)
        return
    for n, slot in enumerate(pending.slots):
        lanes = pending.open[n] & f.mask
        pending.open[n] &= ~f.mask
        if not lanes:
            continue
        if f.single >= 0:
            row = rows[n]
            f.set(slot, row.of_lane(f.single) if isinstance(row, Poison) else lane_value(row, f.single))
        elif lanes == f.mask:
            f.set(slot, rows[n])
        else:
            f.set(slot, select(lane_array(lanes), rows[n], f.current(1 << slot)[slot]))


def wait_for_loads(f: Fragment, site: Site) -> None:
    """Executes ``tcgen05.wait::ld``: the registers of earlier loads become readable."""
    f.require_whole_warp()
    for pending in f.pending_loads:
        _deliver(f, pending)
    if f.grid.sink is not None:
        covered = tuple(p.operation for p in f.pending_loads if p.operation is not None)
        f.grid.sink(events.TensorMemoryWaited(f.agent, site, "ld", covered))
    f.pending_loads.clear()


def wait_for_stores(f: Fragment, site: Site) -> None:
    """Executes ``tcgen05.wait::st``: stored data may be loaded."""
    f.require_whole_warp()
    _stores_are_over(f, site, "st", f.pending_stores)


def _stores_are_over(f: Fragment, site: Site, kind: str, stores: Sequence[PendingStore]) -> None:
    if f.grid.sink is not None:
        covered = tuple(p.operation for p in stores if p.operation is not None)
        f.grid.sink(events.TensorMemoryWaited(f.agent, site, kind, covered))
    f.pending_stores = [store for store in f.pending_stores if store not in stores]


@instruction("tcgen05.wait::ld", operands=0, writes=0, settles=True, family="tmem")
def _wait_ld(i: Instruction, w: Translator) -> Effect:
    only(i, "sync", "aligned")
    return Effect(wait_for_loads, micro=(Micro("tcgen05.wait::ld", None, (), quiet=True, early=True),))


@instruction("tcgen05.wait::st", operands=0, writes=0, family="tmem")
def _wait_st(i: Instruction, w: Translator) -> Effect:
    only(i, "sync", "aligned")
    return Effect(wait_for_stores, micro=(Micro("tcgen05.wait::st", None, (), quiet=True),))


def store(f: Fragment, site: Site, values: Sequence[Value], where: tuple[Any, ...], address: Value) -> None:
    """Executes ``tcgen05.st``. It takes effect at once, but programs may rely on it only after ``tcgen05.wait::st``."""
    spot = _spot(f, site, where, address)
    undefined = None
    if f.grid.unwritten.mode != "fault" and any(isinstance(v, Poison) for v in values):
        undefined = stack_rows([v.undefined if isinstance(v, Poison) else 0 for v in values])
        values = [v.value if isinstance(v, Poison) else v for v in values]
    rows = stack_rows(values)
    f.cta.tmem.store(spot, rows)
    if undefined is not None:
        f.cta.tmem.forget(spot, undefined)
    f.grid.wakeups.changes += 1
    operation = None
    if f.grid.sink is not None:
        operation = f.grid.operation("tmem.store", f, site, writes=_block(f, spot), place=spot, values=rows)
        f.grid.sink(events.Finished(operation, operation.writes))
    f.pending_stores.append(PendingStore(site, lane_value(address, f.lanes[0]), spot, operation))


def layout_of(i: Instruction, *words: str) -> tuple[str, int, bool, int]:
    """Returns (shape, .xN, pack or unpack, immHalfSplitoff) of a tcgen05.ld or tcgen05.st, which may have words."""
    packs = "pack::16b" if i.modifiers[0] == "ld" else "unpack::16b"
    shape = next((m for m in i.modifiers if m[0].isdigit()), "")
    times = next((m for m in i.modifiers if m[0] == "x"), "")
    if not shape or not times[1:].isdigit():
        raise Unsupported
    only(i, "sync", "aligned", shape, times, packs, words)
    if not words and i.modifiers[-1] != "b32":
        raise Unsupported
    split = 0
    if shape == "16x32bx2":
        split = next((immediate(o) for o in i.operands[1:] if isinstance(o, Immediate)), 0)
    return shape, int(times[1:]), i.has(packs), split


@instruction("tcgen05.ld", operands=range(2, 4), family="tmem")
def _ld(i: Instruction, w: Translator) -> Effect:
    destinations = registers(i.operands[0])
    slots = str(tuple(r.slot for r in destinations))
    arguments = [slots, repr(layout_of(i)), w.pointer(i.operands[1])]
    return Effect(load, arguments, poisons=destinations, micro=_by_register(i, w, i.operands[1], destinations))


@instruction("tcgen05.ld.red", operands=range(3, 5), writes=2, family="tmem")
def _ld_red(i: Instruction, w: Translator) -> Effect:
    """A load with the minimum or maximum of what each thread loads, which is two registers at least."""
    kind, operation = i.modifiers[-1], next((m for m in i.modifiers if m in ("min", "max")), "")
    floats = ("abs", "NaN") if kind == "f32" else ()
    where = layout_of(i, operation, *floats)
    loaded, result = registers(i.operands[0]), registers(i.operands[1])
    if not operation or kind not in ("f32", "u32", "s32"):
        raise Unsupported
    if where[0] not in ("32x32b", "16x32bx2") or where[1] < 2 or where[2]:
        raise Unsupported
    reduction = (operation, kind, i.has("abs"), i.has("NaN"))
    slots = tuple(r.slot for r in (*loaded, *result))
    arguments = [str(slots), repr(where), w.pointer(i.operands[2]), repr(reduction)]
    return Effect(load, arguments, poisons=(*loaded, *result))


def _by_register(i: Instruction, w: Translator, address: Operand, values: Sequence[Operand]) -> tuple[Micro, ...]:
    """Returns a load or a store register by register, if all threads' registers have the same layout."""
    base, width, offset = address_parts(address)
    shape, _, packed, _ = layout_of(i)
    if packed or shape == "16x32bx2" or shape not in SHAPES or not isinstance(base, Register):
        return ()
    lanes = OfWarp(f"{w.use(first_register)}({shape!r}, f.warp.index % 4)")
    sources = ((base, width), (lanes, "b32"))
    loads = i.modifiers[0] == "ld"
    return tuple(
        Micro(f"tcgen05.{i.modifiers[0]}", value if loads else None, sources if loads else (*sources, (value, "b32")),
              offset=offset, alignment=SHAPES[shape].lane_alignment, is_first=n == 0, part=part, quiet=True,
              early=loads)
        for n, (value, part) in enumerate(zip(values, parts_of(shape, len(values)), strict=True))
    )  # fmt: skip


@instruction("tcgen05.st", operands=range(2, 4), writes=0, family="tmem")
def _st(i: Instruction, w: Translator) -> Effect:
    values = elements(i.operands[-1])
    arguments = [tuple_of(w.read(e, "b32") for e in values), repr(layout_of(i)), w.pointer(i.operands[0])]
    return Effect(store, arguments, micro=_by_register(i, w, i.operands[0], values))


@instruction(
    "tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync", operands=0, writes=0, family="fence"
)
def _fence(i: Instruction, w: Translator) -> Effect:
    only(i)
    return Effect(fence, micro=(NOTHING,))
