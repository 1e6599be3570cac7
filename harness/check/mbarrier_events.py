"""mbarriers are initialised, arrived at and waited for."""

from __future__ import annotations

from collections.abc import Sequence

from harness.check import failures
from harness.check.accesses import SCOPES, Record
from harness.check.mbarrier import Arrival, MBarrier, Wait
from harness.check.model import Model
from harness.check.uses import check_use
from harness.emulator.machine import events


class MBarriers:
    """Takes the events of mbarriers."""

    def __init__(self, model: Model) -> None:
        self._model = model

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
                (known.init.site, known.init.agent), (event.site, agent), mend="let one thread initialise it",
            )  # fmt: skip
        model.barriers[key] = MBarrier(clock.space, event.cta, event.offset, event.arrivals, record)

    def invalidated(self, event: events.BarrierInvalidated) -> None:
        """Whoever has used it must be known to be through."""
        model = self._model
        barrier = model.barriers.pop((event.agent.cluster, event.cta, event.offset), None)
        use = barrier.unknown_use(model.threads.of(event.agent).clock) if barrier is not None else None
        if use is not None:
            place = model.names.shared(event.offset, event.cta)
            model.say(
                "init", "error", f"{place} is invalidated while others may still use it",
                (use.site, use.agent), (event.site, event.agent), place, "no path from that use to this",
                "a barrier of all who use it before mbarrier.inval",
            )  # fmt: skip

    def arrived(self, event: events.Arrived) -> None:
        model, agent, site = self._model, event.agent, event.site
        barrier = model.barriers[agent.cluster, event.cta, event.offset]
        thread = model.threads.of(agent)
        scope = SCOPES.get(site.scope, 0)
        check_use(model, barrier, thread.clock, site, agent, "arrives at")
        if event.cta != agent.cta:
            model.reach(thread.clock, agent.cluster, event.cta, site, agent, "an arrival")
            barrier.unseen.append(Arrival(event.phase, thread.own, thread.time, site, agent, False))
        failures.count_arrival(model, barrier, event)
        barrier.use(thread, site, agent)
        if event.arrivals:
            barrier.arrive(thread, site.semantics, scope)

    def arrival_expected(self, event: events.ArrivalExpected) -> None:
        self._model.barriers[event.agent.cluster, event.cta, event.offset].pending += 1

    def completed(self, event: events.PhaseCompleted) -> None:
        model = self._model
        barrier = model.barriers[event.cluster, event.cta, event.offset]
        self._lapped(barrier, barrier.complete())

    def _lapped(self, barrier: MBarrier, waits: Sequence[Wait]) -> None:
        model = self._model
        for wait in waits:
            model.say(
                "phase-lapped", "warning",
                f"a wait at {model.names.shared(barrier.offset, barrier.cta)} has no part in the end of the next "
                "phase: if two phases end before it looks, it waits for ever",
                (wait.site, wait.agent), missing="no path from this wait to an arrival in the next phase",
                mend="let the one who waits arrive somewhere that the next phase depends on",
            )  # fmt: skip

    def waited(self, event: events.Waited) -> None:
        model, agent, site = self._model, event.agent, event.site
        barrier = model.barriers[agent.cluster, event.cta, event.offset]
        thread = model.threads.of(agent)
        check_use(model, barrier, thread.clock, site, agent, "waits at")
        barrier.use(thread, site, agent)
        self._lapped(barrier, barrier.wait(thread, site.semantics, SCOPES.get(site.scope, 0), event.phase, site, agent))
