"""cp.async: each thread copies 4, 8 or 16 bytes from global to shared memory (PTX ISA 9.7.9.25.3).

The copies of one warp complete here in issue order. The ISA orders only their groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import every_lane, own_offset, own_offsets
from emugpu.emulator.instructions.copied import Bytes, copied
from emugpu.emulator.instructions.mbarrier import reached
from emugpu.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    immediate,
    instruction,
    only,
    only_form,
    shared_pointer,
)
from emugpu.emulator.machine import events
from emugpu.emulator.machine.copies import CopyQueue, CopyQueues
from emugpu.emulator.machine.events import Operation, Site
from emugpu.emulator.machine.lanes import Value, lane_value, lanes_of
from emugpu.emulator.machine.state import AsyncOperation, Fragment
from emugpu.emulator.memory.bytes import WORDS
from emugpu.emulator.ptx.ast import Instruction, Negated, Operand, Register

SIZES = {"ca": (4, 8, 16), "cg": (16,)}


def _queues(f: Fragment) -> CopyQueues:
    if f.warp.copies is None:
        f.warp.copies = CopyQueues()
    return f.warp.copies


def _pipe(f: Fragment) -> object:
    return ("cp.async", f.cta.cluster.number, f.cta.rank, f.warp.index)


def _numbers(queues: Sequence[CopyQueue], behind: int = 0) -> tuple[tuple[int, int], ...]:
    """Returns (lane, number) for each lane: the number of its open group, or of the group `behind` before it."""
    return tuple(sorted((lane, q.number - behind) for q in queues for lane in lanes_of(q.mask)[0]))


def copy(f: Fragment, site: Site, destination: Value, source: Value, nbytes: int, given: Value, ignore: Value) -> None:
    """Executes ``cp.async``: each lane copies ``given`` bytes (all, if None), and fills up to nbytes with zeros.

    ignore: lanes for which it is true write zeros only.
    """
    grid = f.grid
    offsets, addresses = own_offsets(f, destination), every_lane(f, source)
    if isinstance(offsets, int):
        offsets = np.full(f.count, offsets)
    sizes = _sizes(f, nbytes, given, ignore)
    for what, places in (("destination", offsets), ("source", addresses if sizes is None else addresses[sizes > 0])):
        if int(np.bitwise_or.reduce(places)) % nbytes:
            raise Fault(f"a {what} of cp.async is not aligned to the {nbytes} bytes of the copy", "alignment")
    copies = _queues(f)
    copies.issued += 1
    queues = copies.of(f.mask)
    for queue in queues:
        queue.last = copies.issued
    operation = None
    if grid.sink is not None:
        read = events.GlobalItems(addresses, np.full(f.count, nbytes) if sizes is None else sizes)
        written = events.SharedItems(f.cta.rank, offsets, nbytes)
        operation = grid.operation("cp.async", f, site, (read,), (written,), groups=_numbers(queues))
    run = partial(_land, f, site, offsets, addresses, sizes, nbytes, operation)
    grid.submit(AsyncOperation("cp.async", run, f, site, _pipe(f)))


def _sizes(f: Fragment, nbytes: int, given: Value, ignore: Value) -> NDArray[np.int64] | None:
    """Returns how many bytes each lane copies, or None if it is nbytes."""
    if (given is None or (isinstance(given, int) and given == nbytes)) and (ignore is None or ignore is False):
        return None
    sizes = every_lane(f, nbytes if given is None else given).astype(np.int64)
    if (sizes > nbytes).any():
        raise Fault(f"cp.async copies {int(sizes.max())} bytes; cp-size is {nbytes}", "operand")
    if ignore is not None:
        held = ignore[f.lane_index] if isinstance(ignore, np.ndarray) else np.full(f.count, ignore)
        sizes = np.where(held, 0, sizes)
    return sizes


def _land(
    f: Fragment,
    site: Site,
    offsets: NDArray[np.integer],
    addresses: NDArray[np.uint64],
    sizes: NDArray[np.int64] | None,
    nbytes: int,
    operation: Operation | None,
) -> None:
    # Threads may exit before their copies have landed. The CTA remains until then.
    grid, shared = f.grid, f.cta.shared
    events.report_started(grid.sink, operation)
    content = copied(f, site, partial(_read, f, addresses, sizes, nbytes))
    shared.scatter(offsets, nbytes, content.data.view(WORDS[nbytes]).ravel())
    content.undefine(shared, lambda: offsets[:, None] + np.arange(nbytes))
    if operation is not None:
        operation.detail["values"] = content.data
    events.report_finished(grid.sink, operation)
    grid.wakeups.resume_all(_queues(f).land(grid.choices.wakes_early))


def _read(f: Fragment, addresses: NDArray[np.uint64], sizes: NDArray[np.int64] | None, nbytes: int) -> Bytes:
    """Returns a row of bytes for each lane, with zeros behind those that it copies."""
    memory = f.grid.memory
    if sizes is None:
        return memory.gather(addresses, nbytes).view(np.uint8).reshape(f.count, nbytes)
    full = sizes == nbytes
    rows = np.zeros((f.count, nbytes), np.uint8)
    if full.any():
        rows[full] = memory.gather(addresses[full], nbytes).view(np.uint8).reshape(-1, nbytes)
    for lane in np.flatnonzero(~full & (sizes > 0)).tolist():
        size = int(sizes[lane])
        rows[lane, :size] = memory.read(int(addresses[lane]), size)
    return rows


@instruction("cp.async.ca", "cp.async.cg", operands=range(3, 6), writes=0, family="memory")
def _copy(i: Instruction, w: Translator) -> Effect:
    only(i, "async", "ca", "cg", "shared", "shared::cta", "global", "L2::cache_hint", "L2::64B", "L2::128B", "L2::256B")
    if not (i.has("shared") or i.has("shared::cta")) or not i.has("global"):
        raise Unsupported
    destination, source, size, *rest = i.operands
    nbytes = immediate(size)
    if nbytes not in SIZES[i.modifiers[1]]:
        raise Unsupported
    if i.has("L2::cache_hint"):
        if not rest:
            raise Unsupported
        rest.pop()
    if len(rest) > 1:
        raise Unsupported
    given, ignore = "None", "None"
    if rest and _is_predicate(rest[0]):
        ignore = w.read(rest[0], "pred")
    elif rest:
        given = w.read(rest[0], "u32")
    pointers = [w.pointer(destination), w.pointer(source)]
    return Effect(copy, [*pointers, str(nbytes), given, ignore])


def _is_predicate(operand: Operand) -> bool:
    return isinstance(operand, Negated) or (isinstance(operand, Register) and operand.type == "pred")


def commit_group(f: Fragment, site: Site) -> None:
    """Makes a group, possibly empty, of the open copies of each lane."""
    queues = _queues(f).of(f.mask)
    if f.grid.sink is not None:
        f.grid.sink(events.Committed(f.agent, site, "cp.async", _numbers(queues)))
    for queue in queues:
        queue.commit()


def wait_group(f: Fragment, site: Site, allowed: int) -> object:
    """Suspends until at most ``allowed`` of each lane's youngest groups are pending; -1: until no copy is pending."""
    queues = _queues(f)
    mine = queues.of(f.mask)
    awaited = max(queue.awaited(allowed, queues.landed) for queue in mine)
    if awaited > queues.landed:
        queues.waiters.append((f, awaited))
        what = f"waits until at most {allowed} groups are pending" if allowed >= 0 else "waits for all of them"
        return f.grid.wakeups.suspend(f, f"cp.async copies of {f.warp}", what, site)
    if f.grid.sink is not None:
        # Copies in no group yet count as those of the next group.
        f.grid.sink(events.Awaited(f.agent, site, "cp.async", _numbers(mine, allowed + 1), False))
    return None


@instruction("cp.async.commit_group", operands=0, writes=0, family="memory")
def _commit(i: Instruction, w: Translator) -> Effect:
    only_form(i, "async.commit_group")
    return Effect(commit_group)


@instruction("cp.async.wait_group", "cp.async.wait_all", operands=range(2), writes=0, blocks=True, family="barrier")
def _wait(i: Instruction, w: Translator) -> Effect:
    only_form(i, "async.wait_group", "async.wait_all")
    everything = i.has("wait_all")
    if len(i.operands) != 1 - everything:
        raise Unsupported
    allowed = -1 if everything else immediate(i.operands[0])
    return Effect(wait_group, [str(allowed)])


def arrive(f: Fragment, site: Site, address: Value, counted: bool) -> None:
    """Executes ``cp.async.mbarrier.arrive``: one arrival for each lane once its copies so far have landed.

    Without ``counted`` (``.noinc``), the phase awaits one more arrival from now on.
    """
    grid, cta = f.grid, f.cta
    lanes = []
    for lane in f.lanes:
        offset = own_offset(f, lane_value(address, lane), "the mbarrier of cp.async.mbarrier.arrive")
        barrier = reached(f, site, cta, offset, "cp.async.mbarrier.arrive")
        if barrier is None:
            continue
        if not counted:
            barrier.expect_arrival()
            if grid.sink is not None:
                grid.sink(events.ArrivalExpected(f.agent, site, lane, cta.rank, offset, barrier.phase))
        lanes.append((lane, offset))
    operation = None
    if grid.sink is not None:
        signals = tuple((cta.rank, offset) for _, offset in lanes)
        operation = grid.operation("cp.async.arrive", f, site, signals=signals)
    run = partial(_arrive, f, site, lanes, operation)
    grid.submit(AsyncOperation("cp.async.arrive", run, f, site, _pipe(f)))


def _arrive(f: Fragment, site: Site, lanes: list[tuple[int, int]], operation: Operation | None) -> None:
    """Arrives on the mbarrier. The pipe orders this after the warp's earlier copies."""
    grid = f.grid
    for lane, offset in lanes:
        barrier = reached(f, site, f.cta, offset, "cp.async.mbarrier.arrive", operation)
        if barrier is None:
            continue
        if operation is not None and grid.sink is not None:
            grid.sink(events.Signalled(operation, f.cta.rank, offset, barrier.phase))
        barrier.arrive(1, f"cp.async of CTA rank {f.cta.rank} warp {f.warp.index} lane {lane}")
        grid.counters.mbarrier_arrivals += 1


@instruction("cp.async.mbarrier", operands=1, writes=0, family="barrier")
def _mbarrier(i: Instruction, w: Translator) -> Effect:
    spaces = ("", ".shared", ".shared::cta")
    only_form(i, *(f"async.mbarrier.arrive{n}{s}.b64" for n in ("", ".noinc") for s in spaces))
    return Effect(arrive, [shared_pointer(i, w, i.operands[0]), str(i.has("noinc"))])
