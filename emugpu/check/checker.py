"""The checker is a sink of the event stream. It finds races that a run does not have to show.

The checker builds the happens-before relation of a run and compares every access with earlier ones. The accesses that
it reports are unordered under every schedule, not only under that of the run. It only observes: no part of the emulated
machine knows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from emugpu.check.barriers import MBarriers, ThreadBarriers, check_bytes
from emugpu.check.findings import Finding, Names, Report, merged
from emugpu.check.footprint import Footprint
from emugpu.check.generic import GenericProxy, TensorMaps
from emugpu.check.lanes import LaneMeetings
from emugpu.check.mbarrier import Arrival
from emugpu.check.model import Model
from emugpu.check.operations import AsynchronousOperations
from emugpu.check.single_barrier import SingleBarrierCtas
from emugpu.check.tensor_core import TensorMemoryLife
from emugpu.check.termination import check_ended, check_missed, note_error
from emugpu.check.verdict import ORDER, Word
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Accesses, GridStarted
from emugpu.emulator.machine.sinks import DeferredSink


class Checker(DeferredSink):
    """Checks the synchronisation of all launches of a program: pass it to ``Device.launch(sinks=[...])``, then call
    `report`.

    The checker treats successive launches as ordered; `emugpu.driver.stream_order` compares those of a program.
    ``regions`` names parts of dynamic shared memory (by default,
    each launch names its own). ``roles`` names warps: each has a ``name`` and ``warps``. ``on_finding`` is called with
    each new finding as soon as the checker finds it. ``footprints`` get what each launch touches.
    """

    takes_local = False

    def __init__(
        self,
        regions: Sequence[Any] = (),
        roles: Sequence[Any] = (),
        on_finding: Callable[[Finding], None] | None = None,
        footprints: Iterable[Footprint] = (),
    ) -> None:
        self._on_finding = on_finding
        self.is_deferred = on_finding is None
        self.batches: SingleBarrierCtas | None = None
        self._regions = tuple(regions)
        self._roles = tuple(roles)
        self._footprints = iter(footprints)
        self._launches: list[_CheckedLaunch] = []
        self._take: dict[type, Callable[[Any], None]] = {GridStarted: self._started}

    def __call__(self, event: Any) -> None:
        if self.batches is not None and self.batches.by_cluster and self.batches.passes(event):
            return
        if type(event) is Accesses and event.mode == "write":  # `SingleBarrierCtas.take` gets those of a batch
            for store in event:
                self._launches[-1].model.unused.executed(store.agent, store.site)
        take = self._take.get(type(event))
        if take is not None:
            take(event)

    def _started(self, event: GridStarted) -> None:
        launch = _CheckedLaunch(event, self._regions, self._roles, next(self._footprints, None))
        if self._on_finding is not None:
            launch.model.findings.on_finding = self._on_finding
            launch.model.defers = False
        self._launches.append(launch)
        self.batches = launch.single_barrier
        self._take = {**launch.take, GridStarted: self._started}

    def report(self) -> Report:
        """Returns the findings. A run that did not end is checked up to the point that it reached."""
        return merged([launch.report() for launch in self._launches])

    def name_of(self, address: int) -> str:
        """Returns the name of the memory of the last launch that holds a device address."""
        found = self._launches[-1].model.allocation(address)
        return f"'{found.name}'" if found is not None and found.name else f"{address:#x}"

    def failed(self, error: Exception) -> None:
        """Handles the error that ended the last launch; an error about synchronisation becomes a finding, too."""
        if self._launches:
            self._launches[-1].failed(error)


class _CheckedLaunch:
    """Checks one launch. ``take`` maps each type of event to the part of the checker that handles it."""

    def __init__(
        self, event: events.GridStarted, regions: Sequence[Any], roles: Sequence[Any], footprint: Footprint | None
    ) -> None:
        launch = event.launch
        names = Names(regions or launch.regions, roles)
        names.dynamic_start = event.dynamic_shared
        self._values = event.values
        model = self.model = Model(names, prod(launch.cluster), event.allocations, event.sites, event.values, footprint)
        operations = self._operations = AsynchronousOperations(model)
        tensor_maps = self._tensor_maps = TensorMaps(model)
        lanes = self._lanes = LaneMeetings(model)
        generic = GenericProxy(model, lanes, tensor_maps)
        self._generic, threads = generic, model.threads
        mbarriers = self._mbarriers = MBarriers(model)
        thread_barriers = self._thread_barriers = ThreadBarriers(model)
        tensor_life = self._tensor_life = TensorMemoryLife(model)
        self._waiting: dict[events.Agent, events.Suspended] = {}
        self.take: dict[type, Callable[[Any], None]] = {
            events.CtaStarted: self._cta_started,
            events.CtaEnded: lambda e: check_ended(model, e),
            events.ClusterEnded: self._cluster_ended,
            events.Exited: self._exited,
            events.Missed: self._missed,
            events.Diverged: lambda e: threads.split(e.agent, e.parts),
            events.Rejoined: lambda e: threads.join(e.parts),
            events.WarpSynced: self._warp_synced,
            events.Suspended: self._suspended,
            events.Resumed: self._resumed,
            events.Access: generic.access,
            events.Accesses: generic.accesses,
            events.Fenced: generic.fenced,
            events.GridDependency: self._depends,
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
            events.GroupArrived: thread_barriers.arrived,
            events.GroupCompleted: thread_barriers.completed,
            events.GroupLeft: self._group_left,
            events.TensorMemoryAllocated: tensor_life.allocated,
            events.TensorMemoryFreed: self._freed,
        }
        self.single_barrier = SingleBarrierCtas(model, self.take, generic, thread_barriers, event.sites)
        self._ended = False

    def report(self) -> Report:
        """Returns the findings. A run that did not end is checked up to the point that it reached."""
        self._end()
        return self.model.findings.report()

    def failed(self, error: Exception) -> None:
        """Reports the error that ended the run. The earlier findings decide whether it is a finding of its own."""
        self._end()
        note_error(self.model, error, self._waiting)

    def _end(self) -> None:
        """Checks the accesses that are still pending."""
        if not self._ended:
            self._ended = True
            self.single_barrier.end()
            self._operations.flush()
            for memory in self.model.shared.values():
                memory.settle()
            self.model.of_lanes.decide()
            self.model.unused.end()

    def _cta_started(self, event: events.CtaStarted) -> None:
        self.model.start(event.cluster, event.cta, event.ctaid, event.warps)
        self.single_barrier.start(event)

    def _cluster_ended(self, event: events.ClusterEnded) -> None:
        model = self.model
        check_bytes(model, event.cluster)
        self._operations.forget(event.cluster)
        self._tensor_life.forget(event.cluster)
        self._thread_barriers.forget(event.cluster)
        self._lanes.forget(event.cluster)
        self._generic.forget(event.cluster)
        model.forget(event.cluster)
        model.unused.ended(event.cluster)

    # ---- events that several parts handle ----

    def _warp_synced(self, event: events.WarpSynced) -> None:
        self.model.threads.meet(event.agent, event.members)
        self._mbarriers.lanes_met()
        self._lanes.meet(event.agent, event.members)

    def _waited(self, event: events.Waited) -> None:
        if not self._values.is_used(event.site.index):
            return  # the thread does not know whether it has waited (PTX ISA 9.7.13.15.16)
        self._mbarriers.waited(event)
        self._lanes.end_interval(event.agent)

    def _group_left(self, event: events.GroupLeft) -> None:
        self._thread_barriers.left(event)
        self._lanes.meet(event.agent)

    def _issued(self, event: events.Issued) -> None:
        self.model.unused.executed(event.agent, event.operation.site)
        self._lanes.issued(event.operation, event.agent)
        self._operations.issued(event, self._tensor_maps.take())

    def _freed(self, event: events.TensorMemoryFreed) -> None:
        self.model.unused.executed(event.agent, event.site)
        self._tensor_life.freed(event)

    # ---- threads ----

    def _depends(self, event: events.GridDependency) -> None:
        if self.model.footprint is not None:
            thread = self.model.threads.of(event.agent)
            self.model.footprint.depends(event.agent, thread, event.site, self.model.threads.silent)

    def _exited(self, event: events.Exited) -> None:
        model, agent = self.model, event.agent
        thread = model.threads.leave(agent)
        self._waiting.pop(agent, None)
        self._thread_barriers.exited(agent, thread)
        self._operations.exited(agent, thread)

    def _missed(self, event: events.Missed) -> None:
        model = self.model
        if event.operation is not None:
            who, time = self._operations.missed(event.operation)
        else:
            thread = model.threads.of(event.agent)
            who, time = thread.own, thread.time
        of_no_phase = -1
        arrival = Arrival(of_no_phase, who, time, event.site, event.agent, commit=event.operation is not None)
        check_missed(model, event, arrival)

    def _suspended(self, event: events.Suspended) -> None:
        self._waiting[event.agent] = event

    def _resumed(self, event: events.Resumed) -> None:
        self._waiting.pop(event.agent, None)


@dataclass(frozen=True)
class Checked:
    """The outcome of checking a program under all its schedules.

    ``label`` is one line with the program and how it is launched; ``about`` holds the same as data. ``file`` is the
    file of its PTX. ``failure`` says why a run did not end, or is empty; ``ended`` is the verdict that follows from it.
    ``correct`` says whether the result is right, or is None if there is no result to compare. ``where`` names the run
    with the wrong result, if that run has inputs of its own, and the buffers that are wrong. ``is_limited``: a run
    has reached a limit of time or instructions. ``unsure`` says what was not looked at.
    """

    label: str
    about: dict[str, Any]
    file: str
    report: Report
    failure: str
    correct: bool | None
    schedules: int = 1
    ended: Word = "clean"
    where: str = ""
    is_limited: bool = False
    unsure: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Returns whether all runs ended without an error and without a wrong result."""
        return not self.report.errors and not self.failure and self.correct is not False

    def as_dict(self) -> dict[str, Any]:
        return {
            **self.about,
            "schedules": self.schedules,
            "failure": self.failure or None,
            "correct": self.correct,
            "findings": [finding.as_dict() for finding in self.report.findings],
        }


def together(runs: Sequence[Checked]) -> Checked:
    """Joins the outcomes of one program under several schedules. Of several failures, the most severe counts."""
    verdicts = {run.correct for run in runs}
    failed = min((run for run in runs if run.failure), key=lambda run: ORDER.index(run.ended), default=None)
    return replace(
        runs[0],
        report=merged([run.report for run in runs]),
        failure=failed.failure if failed else "",
        ended=failed.ended if failed else "clean",
        correct=False if False in verdicts else None if None in verdicts else True,
        schedules=len(runs),
        where=next((run.where for run in runs if run.correct is False), ""),
        unsure=tuple(dict.fromkeys(text for run in runs for text in run.unsure)),
    )


def chosen(checked: Checked, strict: bool, notes: bool, allow: Sequence[str]) -> Checked:
    """Returns the same outcome with the findings that the options select.

    ``strict`` turns warnings into errors, ``notes`` keeps the notes, and ``allow`` lists the rules whose findings are
    dropped.
    """
    findings = tuple(
        replace(finding, severity="error") if strict and finding.severity == "warning" else finding
        for finding in checked.report.findings
        if finding.rule not in allow and (notes or finding.severity != "note")
    )
    return replace(checked, report=Report(findings))
