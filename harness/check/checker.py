"""The checker: a sink of the event stream that finds what no run has to show.

It builds the happens-before relation of a run and compares every access with those that came before. What it reports
is unordered whatever order the run has chosen. It observes only: nothing in the machine knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from harness.check import failures, lifetime
from harness.check.accesses import SCOPES, Record
from harness.check.barriers import Arrival, Group, MBarrier, Wait
from harness.check.clocks import ORDER
from harness.check.findings import Report
from harness.check.generic import Generic
from harness.check.model import Model
from harness.check.names import Names
from harness.check.operations import Operations
from harness.check.tensor_life import TensorLife
from harness.check.threads import Threads
from harness.check.uses import check_use
from harness.emulator.machine import events

GENERATIONS_KEPT = 4


class Checker:
    """Give it to ``Device.launch(sinks=[...])``, one for each launch; then ask for its `report`.

    ``regions``: names of parts of dynamic shared memory (by default those of the launch). ``roles``: of warps, each
    with a ``name`` and ``warps``.
    """

    def __init__(self, regions: Sequence[Any] = (), roles: Sequence[Any] = ()) -> None:
        self._regions = tuple(regions)
        self._roles = tuple(roles)
        self._take: dict[type, Callable[[Any], None]] = {events.GridStarted: self._grid_started}
        self._model: Model | None = None
        self._finished = False

    def __call__(self, event: Any) -> None:
        take = self._take.get(type(event))
        if take is not None:
            take(event)

    def report(self) -> Report:
        """What has been found. A run that has not come to its end is looked at as far as it went."""
        if self._model is None:
            return Report(())
        if not self._finished:
            self._finished = True
            self._operations.flush()
        return self._model.findings.report()

    def failed(self, error: Exception) -> None:
        """The run has ended with this error: what it says about synchronisation is a finding, too."""
        if self._model is not None:
            failures.note(self._model, error, self._waiting)

    # ---- the grid ----

    def _grid_started(self, event: events.GridStarted) -> None:
        launch = event.launch
        names = Names(self._regions or launch.regions, self._roles)
        names.dynamic_start = event.dynamic_shared
        model = self._model = Model(names, prod(launch.cluster), event.allocations)
        operations = self._operations = Operations(model)
        generic = Generic(model)
        threads: Threads = model.threads
        self._groups: dict[tuple[int, int, int], dict[int, Group]] = {}
        tensor_life = self._tensor_life = TensorLife(model)
        self._waiting: dict[events.Agent, events.Suspended] = {}
        self._take.update(
            {
                events.CtaStarted: lambda e: model.start(e.cluster, e.cta, e.warps),
                events.CtaEnded: lambda e: lifetime.check_ended(model, e),
                events.ClusterEnded: self._cluster_ended,
                events.Exited: self._exited,
                events.Missed: self._missed,
                events.Diverged: lambda e: threads.split(e.agent, e.parts),
                events.Rejoined: lambda e: threads.join(e.parts),
                events.WarpSynced: lambda e: threads.meet(e.agent, e.members),
                events.Suspended: self._suspended,
                events.Resumed: self._resumed,
                events.Access: generic.access,
                events.Fenced: generic.fenced,
                events.Issued: operations.issued,
                events.Started: operations.started,
                events.Finished: operations.finished,
                events.BytesLanded: operations.landed,
                events.Signalled: operations.signalled,
                events.Committed: operations.committed,
                events.Awaited: operations.awaited,
                events.TensorMemoryWaited: operations.tensor_awaited,
                events.BarrierInit: self._initialised,
                events.BarrierInvalidated: self._invalidated,
                events.Arrived: self._arrived,
                events.ArrivalExpected: self._arrival_expected,
                events.PhaseCompleted: self._completed,
                events.Waited: self._waited,
                events.GroupArrived: self._group_arrived,
                events.GroupLeft: self._group_left,
                events.TensorMemoryAllocated: tensor_life.allocated,
                events.TensorMemoryFreed: tensor_life.freed,
            }
        )

    def _cluster_ended(self, event: events.ClusterEnded) -> None:
        model = self._checked_model
        failures.check_bytes(model, event.cluster)
        self._operations.forget(event.cluster)
        self._tensor_life.forget(event.cluster)
        model.forget(event.cluster)
        for key in [key for key in self._groups if key[0] == event.cluster]:
            del self._groups[key]

    @property
    def _checked_model(self) -> Model:
        assert self._model is not None
        return self._model

    # ---- threads ----

    def _exited(self, event: events.Exited) -> None:
        model, agent = self._checked_model, event.agent
        thread = model.threads.leave(agent)
        self._waiting.pop(agent, None)
        for (cluster, cta, warp, lane), bulk in self._operations.bulk.items():
            if (cluster, cta, warp) != agent[:3] or not agent.lanes >> lane & 1 or bulk.last is None:
                continue
            if not thread.clock.knows(thread.clock.space, bulk.reads, bulk.youngest, ORDER):
                model.say(
                    "exit-pending", "error", "the thread exits while its bulk store may still read shared memory",
                    bulk.last, missing="no cp.async.bulk.wait_group.read that covers the store",
                    mend="cp.async.bulk.wait_group.read 0 by the thread that issued it, before it exits",
                )  # fmt: skip

    def _missed(self, event: events.Missed) -> None:
        model = self._checked_model
        if event.operation is not None:
            who, time = self._operations.missed(event.operation)
        else:
            thread = model.threads.of(event.agent)
            who, time = thread.own, thread.time
        lifetime.missed(model, event, who, time)

    def _suspended(self, event: events.Suspended) -> None:
        self._waiting[event.agent] = event

    def _resumed(self, event: events.Resumed) -> None:
        self._waiting.pop(event.agent, None)

    # ---- mbarriers ----

    def _initialised(self, event: events.BarrierInit) -> None:
        model, agent = self._checked_model, event.agent
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

    def _invalidated(self, event: events.BarrierInvalidated) -> None:
        self._checked_model.barriers.pop((event.agent.cluster, event.cta, event.offset), None)

    def _arrived(self, event: events.Arrived) -> None:
        model, agent, site = self._checked_model, event.agent, event.site
        barrier = model.barriers[agent.cluster, event.cta, event.offset]
        thread = model.threads.of(agent)
        scope = SCOPES.get(site.scope, 0)
        check_use(model, barrier, thread.clock, site, agent, "arrives at")
        if event.cta != agent.cta:
            model.reach(thread.clock, agent.cluster, event.cta, site, agent, "an arrival")
            barrier.unseen.append(Arrival(event.phase, thread.own, thread.time, site, agent, False))
        failures.count_arrival(model, barrier, event)
        barrier.used = True
        if event.arrivals:
            barrier.arrive(thread, site.semantics, scope)

    def _arrival_expected(self, event: events.ArrivalExpected) -> None:
        self._checked_model.barriers[event.agent.cluster, event.cta, event.offset].pending += 1

    def _completed(self, event: events.PhaseCompleted) -> None:
        model = self._checked_model
        barrier = model.barriers[event.cluster, event.cta, event.offset]
        self._lapped(barrier, barrier.complete())

    def _lapped(self, barrier: MBarrier, waits: Sequence[Wait]) -> None:
        model = self._checked_model
        for wait in waits:
            model.say(
                "phase-lapped", "warning",
                f"a wait at {model.names.shared(barrier.offset, barrier.cta)} has no part in the end of the next "
                "phase: if two phases end before it looks, it waits for ever",
                (wait.site, wait.agent), missing="no path from this wait to an arrival in the next phase",
                mend="let the one who waits arrive somewhere that the next phase depends on",
            )  # fmt: skip

    def _waited(self, event: events.Waited) -> None:
        model, agent, site = self._checked_model, event.agent, event.site
        barrier = model.barriers[agent.cluster, event.cta, event.offset]
        thread = model.threads.of(agent)
        check_use(model, barrier, thread.clock, site, agent, "waits at")
        barrier.used = True
        self._lapped(barrier, barrier.wait(thread, site.semantics, SCOPES.get(site.scope, 0), event.phase, site, agent))

    # ---- barriers of threads ----

    def _group_arrived(self, event: events.GroupArrived) -> None:
        agent, site = event.agent, event.site
        ofcta = event.barrier >= 0
        generations = self._groups.setdefault((agent.cluster, agent.cta if ofcta else -1, event.barrier), {})
        group = generations.get(event.generation)
        if group is None:
            group = generations[event.generation] = Group()
            generations.pop(event.generation - GENERATIONS_KEPT, None)
        thread = self._checked_model.threads.of(agent)
        group.arrive(thread, "release" if ofcta else site.semantics, plain=ofcta)

    def _group_left(self, event: events.GroupLeft) -> None:
        agent = event.agent
        key = (agent.cluster, agent.cta if event.barrier >= 0 else -1, event.barrier)
        clock = self._groups[key][event.generation].clock
        if clock is not None:
            self._checked_model.threads.of(agent).acquire(clock)
