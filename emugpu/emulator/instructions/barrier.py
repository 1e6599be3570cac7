"""bar, barrier and barrier.cluster: the threads of a CTA or of a cluster wait for one another.

PTX ISA 9.7.13.1 and 9.7.13.3.
"""

from __future__ import annotations

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.table import Effect, Micro, Translator, Unsupported, instruction, only
from emugpu.emulator.machine.barriers import CountingBarrier, WarpPart
from emugpu.emulator.machine.divergence import gather, wait_for_warp
from emugpu.emulator.machine.events import GroupArrived, GroupLeft, Site
from emugpu.emulator.machine.lanes import WARP_SIZE, Value, mask_of
from emugpu.emulator.machine.state import NAMED_BARRIERS, Fragment
from emugpu.emulator.ptx.ast import Instruction


def _named(f: Fragment, number: Value) -> CountingBarrier:
    index = f.uniform(number, "the barrier's number")
    if index >= NAMED_BARRIERS:
        raise Fault(f"names barrier {index}; a CTA has barriers 0..{NAMED_BARRIERS - 1}", "barrier")
    return f.cta.named[index]


def _arrive(
    f: Fragment, site: Site, barrier: CountingBarrier, count: Value, waits: bool, vote: int | None = None
) -> None:
    """Records that the fragment has arrived, with its ``vote``: the mask of the lanes with a true predicate.

    Without a count, every thread of the CTA that has not exited takes part.
    """

    def counted(generation: int) -> None:
        if vote is not None:
            yes, everybody = barrier.votes.get(generation, (0, 0))
            barrier.votes[generation] = yes + (vote & f.mask).bit_count(), everybody + f.count
        if waits:
            f.tokens[barrier] = generation
            arrived(generation)

    def arrived(generation: int) -> None:
        if f.grid.sink is not None:
            f.grid.sink(GroupArrived(f.agent, site, barrier.number, generation, waits))

    if not waits:
        arrived(barrier.generation)
    if count is None:
        counted(barrier.generation)
        barrier.arrive(f.count, f.cta.alive, everybody=True)
        return
    threads, most = f.uniform(count, "the barrier's thread count"), WARP_SIZE * len(f.cta.warps)
    if threads % WARP_SIZE or not 0 < threads <= most:
        raise Fault(
            f"barrier thread count {threads} must be a multiple of {WARP_SIZE}, at most the {most} of the CTA's warps",
            "barrier",
        )
    f.warp.arriving.append(barrier)
    barrier.gather(f.warp.index, WarpPart(f.mask, threads, counted), f.warp.alive)
    f.warp.forget_counted()


def _wait(f: Fragment, site: Site, barrier: CountingBarrier) -> object:
    """Suspends the fragment until the generation for which it has arrived is complete."""
    if barrier.generation == f.tokens[barrier]:
        barrier.waiters.append(f)
        return f.grid.wakeups.suspend(f, barrier, "waits", site)
    generation = f.tokens.pop(barrier)
    if f.grid.sink is not None:
        f.grid.sink(GroupLeft(f.agent, site, barrier.number, generation))
    return None


def _meets(f: Fragment, site: Site, barrier: CountingBarrier, count: Value, vote: int | None = None) -> object:
    """Arrives and waits. Returns None at the end of the generation."""
    if barrier not in f.tokens:
        if (suspended := wait_for_warp(f, site)) is not None:
            return suspended
        _arrive(f, site, barrier, count, True, vote)
    if barrier not in f.tokens:
        return wait_for_warp(f, site)
    return _wait(f, site, barrier)


def bar_sync(f: Fragment, site: Site, number: Value, count: Value, aligned: bool) -> object:
    if aligned and (suspended := gather(f, site)) is not None:
        return suspended
    return _meets(f, site, _named(f, number), count)


def bar_arrive(f: Fragment, site: Site, number: Value, count: Value, aligned: bool) -> object:
    if aligned and (suspended := gather(f, site)) is not None:
        return suspended
    if (suspended := wait_for_warp(f, site)) is not None:
        return suspended
    _arrive(f, site, _named(f, number), count, waits=False)
    return None


def _is_aligned(i: Instruction) -> bool:
    return i.opcode == "bar" or i.has("aligned")


def _arguments(i: Instruction, w: Translator) -> list[str]:
    only(i, "cta", "sync", "arrive", "aligned")
    count = w.read(i.operands[1], "u32") if len(i.operands) > 1 else "None"
    return [w.read(i.operands[0], "u32"), count, str(_is_aligned(i))]


_SYNCS = ("bar.sync", "barrier.sync", "bar.cta.sync", "barrier.cta.sync")
_ARRIVES = ("bar.arrive", "barrier.arrive", "bar.cta.arrive", "barrier.cta.arrive")


@instruction(*_SYNCS, operands=range(1, 3), writes=0, blocks=True, family="barrier")
def _sync(i: Instruction, w: Translator) -> Effect:
    alignment = WARP_SIZE if _is_aligned(i) else 1
    native = Micro("bar.sync", None, tuple((o, "u32") for o in i.operands), alignment=alignment)
    return Effect(bar_sync, _arguments(i, w), micro=(native,))


@instruction(*_ARRIVES, operands=2, writes=0, blocks=True, family="barrier")
def _bar_arrive(i: Instruction, w: Translator) -> Effect:
    return Effect(bar_arrive, _arguments(i, w))


def bar_reduce(f: Fragment, site: Site, operation: str, number: Value, count: Value, p: Value, aligned: bool) -> object:
    """Executes ``bar.red``: how many threads (popc), or whether all (and) or any (or), have a true predicate."""
    if aligned and (suspended := gather(f, site)) is not None:
        return suspended
    barrier = _named(f, number)
    generation = f.tokens.get(barrier, barrier.generation)
    if (suspended := _meets(f, site, barrier, count, mask_of(p))) is not None:
        return suspended
    for old in [g for g in barrier.votes if g < generation - 1]:
        del barrier.votes[old]
    yes, everybody = barrier.votes[generation]
    return {"popc": yes, "and": yes == everybody, "or": yes > 0}[operation]


_REDUCTIONS = ("bar.red", "barrier.red", "bar.cta.red", "barrier.cta.red")


@instruction(*_REDUCTIONS, operands=range(3, 5), blocks=True, family="barrier")
def _bar_red(i: Instruction, w: Translator) -> Effect:
    only(i, "cta", "red", "aligned", "popc", "and", "or")
    operation = next((m for m in i.modifiers if m in ("popc", "and", "or")), "")
    if not operation or i.modifiers[-1] != ("u32" if operation == "popc" else "pred"):
        raise Unsupported
    number, *rest = i.operands[1:]
    count = w.read(rest[0], "u32") if len(rest) == 2 else "None"
    arguments = [repr(operation), w.read(number, "u32"), count, w.read(rest[-1], "pred"), str(_is_aligned(i))]
    return Effect(bar_reduce, arguments, i.operands[:1])


# ---- the cluster barrier ----


def cluster_arrive(f: Fragment, site: Site, aligned: bool) -> object:
    if aligned and (suspended := gather(f, site)) is not None:
        return suspended
    barrier = f.cta.cluster.barrier
    if barrier in f.tokens:
        raise Fault("arrives at the cluster barrier twice without waiting (PTX ISA 9.7.13.3)", "barrier")
    if f.grid.sink is not None:
        f.grid.sink(GroupArrived(f.agent, site, barrier.number, barrier.generation, False))
    f.tokens[barrier] = barrier.arrive(f.count, f.cta.cluster.living_threads, everybody=True)
    return None


def cluster_wait(f: Fragment, site: Site, aligned: bool) -> object:
    if aligned and (suspended := gather(f, site)) is not None:
        return suspended
    barrier = f.cta.cluster.barrier
    if barrier not in f.tokens:
        raise Fault("waits for the cluster barrier without having arrived (PTX ISA 9.7.13.3)", "barrier")
    return _wait(f, site, barrier)


@instruction("barrier.cluster.arrive", operands=0, writes=0, blocks=True, family="barrier")
def _cluster_arrive(i: Instruction, w: Translator) -> Effect:
    only(i, "release", "relaxed", "aligned")
    return Effect(cluster_arrive, [str(i.has("aligned"))])


@instruction("barrier.cluster.wait", operands=0, writes=0, blocks=True, family="barrier")
def _cluster_wait(i: Instruction, w: Translator) -> Effect:
    only(i, "acquire", "aligned")
    return Effect(cluster_wait, [str(i.has("aligned"))])
