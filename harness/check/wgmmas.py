"""wgmma: four warps issue it together, and wait for groups of them."""

from __future__ import annotations

import numpy as np

from harness.check.clocks import NARROW, Clock
from harness.check.flights import Flight, Flights
from harness.check.model import drop_cluster
from harness.check.operands import read_operand
from harness.check.threads import Thread
from harness.check.unit import Unit
from harness.emulator.machine.events import Agent, Awaited, Committed, SharedChunks

WARPGROUP = 4
GROUPS_KEPT = 16


class Wgmmas(Unit):
    kinds = ("wgmma",)

    def __init__(self, flights: Flights) -> None:
        super().__init__(flights)
        self._issued: dict[int, list[Clock]] = {}
        """By operation: what each warp knew that has issued it."""
        self._of_warp: dict[tuple[int, int, int], int] = {}
        """The last wgmma that a warp has issued."""
        self._committed: dict[tuple[int, int, int, int], int] = {}
        """The last wgmma that a warp had issued when it committed a group."""
        self._collective: dict[tuple[int, int, int], dict[int, Clock]] = {}
        """By warpgroup: what those who issued a wgmma knew, the last one of each group."""
        self._ends: dict[tuple[int, int, int], set[int]] = {}
        """By warpgroup: wgmmas that are the last of a group."""

    def issue(self, flight: Flight, agent: Agent) -> None:
        self._flights.enter(flight, self._flights.pipe("wgmma", agent, agent.warp // WARPGROUP))
        self._issued[flight.operation.id] = []
        self._joins(flight, flight.clock, agent)

    def issued_again(self, flight: Flight, thread: Thread, agent: Agent) -> None:
        """By another warp of the warpgroup."""
        self._joins(flight, thread.release(), agent)

    def _joins(self, flight: Flight, clock: Clock, agent: Agent) -> None:
        self._issued[flight.operation.id].append(clock)
        self._of_warp[agent[:3]] = flight.time

    def _read(self, flight: Flight) -> None:
        """Each warp must have waited for what it multiplies: what counts is what all of them knew."""
        operation, clocks = flight.operation, self._issued.pop(flight.operation.id)
        told = clocks[0].copy()
        for clock in clocks[1:]:
            told.join(clock)
        group = _warpgroup(operation.agent)
        held = self._collective.setdefault(group, {})
        if held and (last := next(reversed(held))) not in self._ends.get(group, ()):
            told.join(held.pop(last))
        held[flight.time] = told
        if len(held) > GROUPS_KEPT:
            del held[next(iter(held))]
        width = min(clock.rows.shape[1] for clock in clocks)
        rows = np.minimum.reduce([clock.rows[:, :width] for clock in clocks])
        flight.clock = Clock(flight.clock.space, rows)
        record, observer = flight.record("wgmma", False), flight.observer()
        for region in operation.reads:
            if isinstance(region, SharedChunks):
                read_operand(self._model, operation, region, record, observer)

    def committed(self, event: Committed) -> None:
        agent = event.agent
        ((_, group),) = event.groups
        count = self._of_warp.get(agent[:3], 0)
        self._committed[agent.cluster, agent.cta, agent.warp, group] = count
        self._ends.setdefault(_warpgroup(agent), set()).add(count)

    def awaited(self, event: Awaited) -> None:
        agent = event.agent
        thread = self._model.threads.of(agent)
        component = self._flights.pipe("wgmma", agent, agent.warp // WARPGROUP).component
        for _, group in event.groups:
            if group < 0:
                continue
            count = self._committed.pop((agent.cluster, agent.cta, agent.warp, group), 0)
            thread.own_clock().set(component, count)
            # All four warps have issued it, so what they had done before has happened.
            told = self._collective.get(_warpgroup(agent), {}).get(count)
            if told is not None:
                thread.acquire(told, NARROW)

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._of_warp, self._committed, self._collective, self._ends)


def _warpgroup(agent: Agent) -> tuple[int, int, int]:
    return agent.cluster, agent.cta, agent.warp // WARPGROUP
