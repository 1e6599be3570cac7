"""Barriers order accesses: mbarriers with their phases, and barriers of threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from emugpu.check.clocks import (
    EXECUTION,
    INITIALISED,
    ONLY_EXECUTION,
    RELAXED,
    VISIBLE,
    Clock,
)
from emugpu.check.findings import Severity
from emugpu.check.mbarrier import Arrival, TrackedMBarrier, Wait
from emugpu.check.model import Model, drop_cluster
from emugpu.check.record import RELEASES, SCOPES, Record
from emugpu.check.threads import Thread, TrackedCta
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Agent, GroupArrived, GroupCompleted, GroupLeft, Site
from emugpu.emulator.machine.lanes import FULL_MASK


def check_use(model: Model, barrier: TrackedMBarrier, clock: Clock, site: Site, agent: Agent, what: str) -> None:
    """Checks that the initialisation of an mbarrier happened before its use and is visible to the agent of the use."""
    init = barrier.init

    def knows(row: int) -> bool:
        return clock.knows(init.space, init.who, init.time, row)

    visible, published = knows(VISIBLE), knows(INITIALISED)
    if published or (visible and agent.cta == barrier.cta):
        return
    place = model.names.shared(barrier.offset, barrier.cta)
    model.say(
        "init",
        "warning" if visible else "error",
        f"{what} {place}, whose initialisation {'was not published for other CTAs' if visible else 'may come later'}",
        (init.site, init.agent),
        (site, agent),
        place,
        "no fence.mbarrier_init on the path" if visible else "no path from the initialisation to the use",
        "fence.mbarrier_init.release.cluster after the initialisation, and a cluster barrier (a CTA barrier is enough "
        "for the threads of one CTA)",
        every_first=False,
    )


class MBarriers:
    """Handles the events of mbarriers: initialisation, arrival and wait."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._last: events.Arrived | None = None
        self._execution = 0

    def initialised(self, event: events.BarrierInit) -> None:
        model, agent = self._model, event.agent
        thread = model.threads.of(agent)
        key = (agent.cluster, event.cta, event.offset)
        clock = thread.clock
        record = Record(clock.space, thread.own, thread.time, "generic", True, agent, event.site)
        known = model.barriers.get(key)
        if known is not None:
            model.say(
                "init", "warning", f"{model.names.shared(event.offset, event.cta)} is initialised twice",
                (known.init.site, known.init.agent), (event.site, agent), fix="let one thread initialise it",
            )  # fmt: skip
        model.barriers[key] = TrackedMBarrier(event.cta, event.offset, event.arrivals, record)

    def invalidated(self, event: events.BarrierInvalidated) -> None:
        """Reports a use by a thread, or a signal of an asynchronous operation, that is not known to be over."""
        model = self._model
        barrier = model.barriers.pop((event.agent.cluster, event.cta, event.offset), None)
        if barrier is None:
            return
        place = model.names.shared(event.offset, event.cta)
        clock = model.threads.of(event.agent).clock
        signal, use = barrier.unknown_signal(clock), barrier.unknown_use(clock)
        if signal is not None:
            model.say(
                "init", "error", f"{place} is invalidated while {signal.site.verb} may still signal it",
                (signal.site, signal.agent), (event.site, event.agent), place,
                "no wait for the phase that this signal ends",
                "wait for the phase of each asynchronous operation that signals the mbarrier before mbarrier.inval",
            )  # fmt: skip
        elif use is not None:
            model.say(
                "init", "error", f"{place} is invalidated while others may still use it",
                (use.site, use.agent), (event.site, event.agent), place, "no path from that use to this",
                "a barrier of all threads that use it before mbarrier.inval",
            )  # fmt: skip

    def arrived(self, event: events.Arrived) -> None:
        model, agent, site = self._model, event.agent, event.site
        last, self._last = self._last, event
        if last is None or (last.site, last.agent) != (site, agent) or event.lane <= last.lane:
            self._execution += 1  # a new execution, not that of the previous arrival
        barrier = model.barriers[agent.cluster, event.cta, event.offset]
        thread = model.threads.of(agent)
        scope = SCOPES.get(site.scope, 0)
        check_use(model, barrier, thread.clock, site, agent, "arrives at")
        if event.cta != agent.cta:
            model.reach(thread.clock, agent.cluster, event.cta, site, agent, "an arrival")
            barrier.unseen.append(Arrival(event.phase, thread.own, thread.time, site, agent, False))
        barrier.arrivers.add((agent.cta, agent.warp))
        _count_arrival(model, barrier, event, self._execution)
        barrier.use(thread, site, agent)
        if event.arrivals:
            if site.semantics in RELEASES:
                model.release_lanes(agent, site)
            else:
                model.release_fenced_lanes(agent, site)
            barrier.arrive(thread, site.semantics, scope)

    def arrival_expected(self, event: events.ArrivalExpected) -> None:
        self._model.barriers[event.agent.cluster, event.cta, event.offset].pending += 1

    def completed(self, event: events.PhaseCompleted) -> None:
        model = self._model
        barrier = model.barriers[event.cluster, event.cta, event.offset]
        self._lapped(barrier, barrier.complete())

    def _lapped(self, barrier: TrackedMBarrier, waits: Sequence[Wait]) -> None:
        model = self._model
        for wait in waits:
            model.say(
                "phase-lapped", "warning",
                f"a wait at {model.names.shared(barrier.offset, barrier.cta)} has no part in the end of the next "
                "phase: if two phases end before it looks, it waits for ever",
                (wait.site, wait.agent), missing="no path from this wait to an arrival in the next phase",
                fix="let the waiting thread arrive at a barrier that the next phase depends on",
            )  # fmt: skip

    def lanes_met(self) -> None:
        """The lanes of a warp have waited for one another, so their next arrival belongs to another execution."""
        self._last = None

    def waited(self, event: events.Waited) -> None:
        self._last = None
        model, agent, site = self._model, event.agent, event.site
        barrier = model.barriers[agent.cluster, event.cta, event.offset]
        thread = model.threads.of(agent)
        check_use(model, barrier, thread.clock, site, agent, "waits at")
        barrier.use(thread, site, agent)
        thread.heard = site
        earlier = barrier.repeats(thread, event.phase, agent)
        if earlier is not None:
            name = model.names.shared(barrier.offset, barrier.cta)
            asks = f"asks for phase {event.phase}" if event.phase >= 0 else "asks for the phase before phase 0"
            model.suspect(
                "phase-repeated",
                f"this wait at {name} {asks}, which this thread has already seen end at PTX line {earlier.site.line}: "
                "it waits for nothing",
                (earlier.site, earlier.agent), (site, agent), "no change of the parity between the two waits",
                "change the parity once after each wait, and only then, so that the wait asks for the next phase",
                barrier.arrivers,
            )  # fmt: skip
        self._lapped(barrier, barrier.wait(thread, site.semantics, SCOPES.get(site.scope, 0), event.phase, site, agent))


def _count_arrival(model: Model, barrier: TrackedMBarrier, event: events.Arrived, execution: int) -> None:
    """Counts an arrival, and reports it if the phase expects no more arrivals.

    ``execution`` is a number for the execution of the instruction.
    """
    barrier.bytes += event.expected_bytes
    if event.expected_bytes:
        barrier.last_expect = (event.site, event.agent)
    if event.arrivals > barrier.pending:
        model.say(
            "count", "error",
            f"phase {event.phase} of {model.names.shared(event.offset, event.cta)} gets more than its "
            f"{barrier.expected} arrivals",
            barrier.last or (event.site, event.agent), (event.site, event.agent),
            fix="count every arrival of a phase in mbarrier.init",
        )  # fmt: skip
    elif _straddles(barrier, event, execution):
        model.say(
            "count", "error",
            f"the lanes of one instruction end phase {event.phase - 1} of "
            f"{model.names.shared(event.offset, event.cta)} and go on to the next one: it was initialised for "
            f"{barrier.expected} arrivals",
            (barrier.init.site, barrier.init.agent), (event.site, event.agent),
            fix="count every arrival of a phase in mbarrier.init",
        )  # fmt: skip
    barrier.pending -= event.arrivals
    if event.drop:
        barrier.expected -= event.arrivals
    if event.arrivals:
        barrier.last = (event.site, event.agent)
        barrier.last_arrival = (execution, event.phase)


def _straddles(barrier: TrackedMBarrier, event: events.Arrived, execution: int) -> bool:
    """Returns whether the lanes of one execution of an instruction complete a phase and also arrive in the next one."""
    if not event.arrivals or barrier.last_arrival != (execution, event.phase - 1):
        return False
    return event.agent.lanes.bit_count() % max(1, barrier.expected) > 0


def check_bytes(model: Model, cluster: int) -> None:
    """Reports the barriers of a cluster that has ended if they still expect bytes."""
    for (number, rank, offset), barrier in model.barriers.items():
        if number == cluster and barrier.bytes:
            report_wrong_bytes(model, barrier, rank, offset, "warning" if barrier.bytes > 0 else "error")


def report_wrong_bytes(
    model: Model, barrier: TrackedMBarrier, rank: int, offset: int, severity: Severity = "error"
) -> None:
    """Reports a barrier that expects more or fewer bytes than arrive.

    Bytes that nobody waits for when the CTA ends are a warning: kernels that run well expect some for no copy.
    """
    more = "more" if barrier.bytes > 0 else "fewer"
    model.say(
        "bytes", severity,
        f"{model.names.shared(offset, rank)} expects {abs(barrier.bytes)} bytes {more} than arrive, "
        f"up to its phase {barrier.phase}",
        barrier.last_expect or (barrier.init.site, barrier.init.agent),
        fix="expect_tx with the bytes of all copies that signal this barrier in a phase",
    )  # fmt: skip


GENERATIONS_KEPT = 4


@dataclass(slots=True, eq=False)
class Generation:
    """The joint knowledge of the threads that arrive in one generation of a barrier.

    ``waiting`` is the number of agents that have not left. ``arrived`` holds the arrivals by CTA and warp, and
    ``times`` the component and time of each. ``over`` is the component and time by which clocks know that it is over.
    """

    clock: Clock | None = None
    waiting: int = 0
    arrived: dict[tuple[int, int], list[GroupArrived]] = field(default_factory=dict)
    times: list[tuple[int, int]] = field(default_factory=list)
    over: tuple[int, int] | None = None

    def is_over(self, clock: Clock) -> bool:
        """Returns whether a clock knows that all have arrived."""
        if self.over is not None and clock.knows(clock.space, *self.over, EXECUTION):
            return True
        return all(clock.knows(clock.space, who, time, EXECUTION) for who, time in self.times)

    def arrive(self, thread: Thread, semantics: str) -> None:
        self.times.append((thread.own, thread.time))
        known = thread.release()
        if self.clock is None:
            self.clock = Clock(known.space)
        if semantics not in RELEASES:
            self.clock.join(known, RELAXED)
            for clock, scope in thread.fenced:
                if scope >= SCOPES["cluster"]:
                    self.clock.join(clock)
        else:
            self.clock.join(known)


class ThreadBarriers:
    """Handles the events of bar.sync and bar.arrive of a CTA, and of barrier.cluster."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._generations: dict[tuple[int, int, int], dict[int, Generation]] = {}
        """The latest generations, by cluster, CTA (or -1) and barrier."""
        self._exits: dict[tuple[int, int, int], Clock] = {}
        """What threads knew when they exited, by cluster, CTA and warp, until the cluster's barrier tells of it."""

    def arrived(self, event: GroupArrived) -> None:
        generations = self._generations.setdefault(_key(event), {})
        generation = generations.get(event.generation)
        if generation is None:
            oldest = event.generation - GENERATIONS_KEPT
            for old in [g for g, one in generations.items() if g <= oldest and one.waiting <= 0]:
                del generations[old]
            generation = generations[event.generation] = Generation()
        generation.waiting += event.waits
        thread = self._model.threads.of(event.agent)
        if event.barrier >= 0:
            self._check_once(generations, event, thread.clock)
        else:
            generation.arrived[event.agent.cta, event.agent.warp] = [event]
        thread.lanes_met()
        generation.arrive(thread, "release" if event.barrier >= 0 else event.site.semantics)

    def _check_once(self, generations: dict[int, Generation], event: GroupArrived, known: Clock) -> None:
        """Looks for a warp that arrives again without a wait for the end of the phase in which it has arrived.

        In the same phase it is suspected only, because a program may count on it. In a later one it is an error: under
        another schedule the two arrivals are in one phase. ``known`` is what the thread knows.
        """
        agent, site = event.agent, event.site
        key = (agent.cta, agent.warp)
        newest = (generations[number].arrived.get(key, ()) for number in sorted(generations, reverse=True))
        earlier = next((one for kept in newest for one in reversed(kept) if one.agent.lanes & agent.lanes), None)
        generations[event.generation].arrived.setdefault(key, []).append(event)
        if earlier is None or earlier.waits:
            return
        fix = "use another barrier in turn, or let the warp wait (bar.sync) before it arrives again"
        missing = "no wait for the end of the phase between the two arrivals"
        pair = (earlier.site, earlier.agent), (site, agent)
        begins = f"warp {agent.warp} arrives at barrier {event.barrier} again"
        line = f"PTX line {earlier.site.line}"
        if earlier.generation == event.generation:
            message = f"{begins} in the same phase: it has arrived at {line}, and does not wait for the others"
            self._model.suspect("barrier-repeated", message, *pair, missing, fix)
        elif not generations[earlier.generation].is_over(known):
            message = f"{begins}, and nothing says that the phase in which it has arrived at {line} is over"
            self._model.say("barrier-repeated", "error", message, *pair, missing=missing, fix=fix)

    def exited(self, agent: Agent, thread: Thread) -> None:
        """Keeps what a thread has done until the barrier of its cluster no longer waits for it."""
        if self._model.threads.size > 1:
            held = self._exits.setdefault(agent[:3], Clock(thread.clock.space))
            held.join(thread.peek(), ONLY_EXECUTION)

    def completed(self, event: GroupCompleted) -> None:
        """Handles a phase of the cluster's barrier that ends: warps that have not arrived have exited.

        barrier.cluster.wait waits for all threads that have not exited (PTX ISA, `barrier.cluster`), so what the others
        have done has been executed. No text says that an exit makes it visible.
        """
        if event.barrier >= 0:
            return
        generation = self._generations[event.cluster, event.cta, event.barrier][event.generation]
        if generation.clock is None:
            return
        for key in [key for key in self._exits if key[0] == event.cluster and key[1:] not in generation.arrived]:
            generation.clock.join(self._exits.pop(key), ONLY_EXECUTION)

    def take_joint(self, cta: TrackedCta, number: int) -> tuple[Clock, Site, list[int]] | None:
        """Forgets a generation of barrier 0 of a CTA if all warps wait in it. Returns what they know together, an
        instruction by which one has arrived, and the time of each arrival; or None if some warp does not wait.
        """
        generations = self._generations.get((cta.cluster.number, cta.rank, 0), {})
        generation = generations.get(number)
        warps = [warp.parts for warp in cta.warps.values()]
        if generation is None or generation.clock is None or len(generation.times) != generation.waiting:
            return None
        if generation.waiting != len(warps) or any([part.lanes for part in parts] != [FULL_MASK] for parts in warps):
            return None
        del generations[number]
        times = dict(generation.times)
        site = next(iter(generation.arrived.values()))[0].site
        return generation.clock, site, [times[part.own] for (part,) in warps]

    def left(self, event: GroupLeft) -> None:
        generation = self._generations[_key(event)][event.generation]
        generation.waiting -= 1
        clock = generation.clock
        if clock is None:
            return
        if self._model.has_arrivals and event.barrier >= 0 and generation.over is None:
            component = self._model.phases_of(clock.space, *_key(event))
            generation.over = component, event.generation + 1
            clock.set(*generation.over)
        self._model.threads.of(event.agent).acquire(clock)

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._generations, self._exits)


def _key(event: GroupArrived | GroupLeft) -> tuple[int, int, int]:
    agent = event.agent
    return agent.cluster, agent.cta if event.barrier >= 0 else -1, event.barrier
