"""One launch as the checker sees it: its parts, and which of them takes which event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from harness.check import failures, lifetime
from harness.check.findings import Report
from harness.check.generic import Generic
from harness.check.groups import Groups
from harness.check.lanes import Lanes
from harness.check.mbarrier_events import MBarriers
from harness.check.model import Model
from harness.check.names import Names
from harness.check.operations import Operations
from harness.check.tensor_life import TensorLife
from harness.check.tensor_maps import TensorMaps
from harness.emulator.machine import events


class Launch:
    """``take``: what takes the events of each type."""

    def __init__(self, event: events.GridStarted, regions: Sequence[Any], roles: Sequence[Any]) -> None:
        launch = event.launch
        names = Names(regions or launch.regions, roles)
        names.dynamic_start = event.dynamic_shared
        model = self.model = Model(names, prod(launch.cluster), event.allocations)
        operations = self._operations = Operations(model)
        tensor_maps = TensorMaps(model)
        lanes = self._lanes = Lanes(model)
        generic = Generic(model, lanes, tensor_maps)
        threads = model.threads
        mbarriers = self._mbarriers = MBarriers(model)
        groups = self._groups = Groups(model)
        tensor_life = self._tensor_life = TensorLife(model)
        self._waiting: dict[events.Agent, events.Suspended] = {}
        self.take: dict[type, Callable[[Any], None]] = {
            events.CtaStarted: lambda e: model.start(e.cluster, e.cta, e.warps),
            events.CtaEnded: lambda e: lifetime.check_ended(model, e),
            events.ClusterEnded: self._cluster_ended,
            events.Exited: self._exited,
            events.Missed: self._missed,
            events.Diverged: lambda e: threads.split(e.agent, e.parts),
            events.Rejoined: lambda e: threads.join(e.parts),
            events.WarpSynced: self._warp_synced,
            events.Suspended: self._suspended,
            events.Resumed: self._resumed,
            events.Access: generic.access,
            events.Fenced: generic.fenced,
            events.TensorMapRead: tensor_maps.read,
            events.Issued: self._issued,
            events.Started: operations.started,
            events.Finished: operations.finished,
            events.BytesLanded: operations.landed,
            events.Signalled: operations.signalled,
            events.Committed: operations.committed,
            events.Awaited: operations.awaited,
            events.TensorMemoryWaited: operations.tensor_awaited,
            events.BarrierInit: mbarriers.initialised,
            events.BarrierInvalidated: mbarriers.invalidated,
            events.Arrived: mbarriers.arrived,
            events.ArrivalExpected: mbarriers.arrival_expected,
            events.PhaseCompleted: mbarriers.completed,
            events.Waited: self._waited,
            events.GroupArrived: groups.arrived,
            events.GroupLeft: self._group_left,
            events.TensorMemoryAllocated: tensor_life.allocated,
            events.TensorMemoryFreed: tensor_life.freed,
        }
        self._ended = False

    def report(self) -> Report:
        """What has been found. A run that has not come to its end is looked at as far as it went."""
        if not self._ended:
            self._ended = True
            self._operations.flush()
        return self.model.findings.report()

    def failed(self, error: Exception) -> None:
        """The run has ended with this error."""
        failures.note(self.model, error, self._waiting)

    def _cluster_ended(self, event: events.ClusterEnded) -> None:
        model = self.model
        failures.check_bytes(model, event.cluster)
        self._operations.forget(event.cluster)
        self._tensor_life.forget(event.cluster)
        self._groups.forget(event.cluster)
        self._lanes.forget(event.cluster)
        model.forget(event.cluster)

    # ---- what several parts look at ----

    def _warp_synced(self, event: events.WarpSynced) -> None:
        self.model.threads.meet(event.agent, event.members)
        self._lanes.meet(event.agent)

    def _waited(self, event: events.Waited) -> None:
        self._mbarriers.waited(event)
        self._lanes.meet(event.agent)

    def _group_left(self, event: events.GroupLeft) -> None:
        self._groups.left(event)
        self._lanes.meet(event.agent)

    def _issued(self, event: events.Issued) -> None:
        self._lanes.issued(event.operation, event.agent)
        self._operations.issued(event)

    # ---- threads ----

    def _exited(self, event: events.Exited) -> None:
        model, agent = self.model, event.agent
        thread = model.threads.leave(agent)
        self._waiting.pop(agent, None)
        self._operations.exited(agent, thread)

    def _missed(self, event: events.Missed) -> None:
        model = self.model
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
