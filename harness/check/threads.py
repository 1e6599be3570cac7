"""Warps and their parts: who an agent of an event is, as a component with a clock.

A warp is one component while it is converged. Where it splits, one part stays the component and the others get their
own; where parts meet again they know what all of them knew. That lanes which execute together follow one another is
taken for granted, as compilers do.
"""

from __future__ import annotations

import numpy as np

from harness.check.clocks import EXECUTION, Clock, Components, Thread
from harness.emulator.machine.events import Agent

FULL = (1 << 32) - 1
COMPONENTS_OF_WARP = 2
COMPONENTS_OF_CTA = 20
"""What most kernels need: mbarriers, pipes, bulk groups. There may be more."""


class Warp:
    """``spare``: components of parts that have joined others again."""

    __slots__ = ("found", "parts", "spare")

    def __init__(self) -> None:
        self.parts: list[Thread] = []
        self.spare: list[int] = []
        self.found: dict[int, Thread] = {}


class Cta:
    """``started``: the component that stands for its being there. ``ended``: what its threads knew when they left."""

    __slots__ = ("cluster", "ended", "rank", "started", "warps")

    def __init__(self, cluster: Cluster, rank: int, started: int) -> None:
        self.cluster = cluster
        self.rank = rank
        self.started = started
        self.warps: dict[int, Warp] = {}
        self.ended: Clock | None = None


class Cluster:
    """Its CTAs by rank, and the components they share."""

    def __init__(self, number: int, warps: int, ctas: int) -> None:
        self.number = number
        self.components = Components(number, ctas * (warps * COMPONENTS_OF_WARP + COMPONENTS_OF_CTA))
        self.ctas: dict[int, Cta] = {}

    def start(self, rank: int, warps: int) -> Cta:
        cta = self.ctas[rank] = Cta(self, rank, self.components.new(rank))
        for index in range(warps):
            clock = Clock(self.components)
            clock.set(cta.started, 1)
            warp = cta.warps[index] = Warp()
            tensor = np.zeros(self.components.capacity, np.int32)
            warp.parts.append(Thread(self.components.new(rank), clock, tensor, rank, FULL))
        return cta


class Threads:
    """Finds who acts."""

    def __init__(self, ctas_of_cluster: int) -> None:
        self.size = ctas_of_cluster
        self.clusters: dict[int, Cluster] = {}

    def cta(self, cluster: int, rank: int) -> Cta:
        return self.clusters[cluster].ctas[rank]

    def start(self, number: int, rank: int, warps: int) -> Cta:
        cluster = self.clusters.get(number)
        if cluster is None:
            cluster = self.clusters[number] = Cluster(number, warps, self.size)
        return cluster.start(rank, warps)

    def of(self, agent: Agent) -> Thread:
        warp = self.clusters[agent.cluster].ctas[agent.cta].warps[agent.warp]
        found = warp.found.get(agent.lanes)
        if found is None:
            found = next(part for part in warp.parts if part.lanes & agent.lanes)
            warp.found[agent.lanes] = found
        return found

    def _warp(self, agent: Agent) -> tuple[Cluster, Warp]:
        cluster = self.clusters[agent.cluster]
        return cluster, cluster.ctas[agent.cta].warps[agent.warp]

    def split(self, agent: Agent, parts: tuple[Agent, ...]) -> None:
        whole = self.of(agent)
        cluster, warp = self._warp(agent)
        known = whole.release()
        for part in parts[1:]:
            own = warp.spare.pop() if warp.spare else cluster.components.new(whole.cta)
            made = Thread(own, known.copy(), whole.tensor, whole.cta, part.lanes)
            made.fenced, made.pending = whole.fenced, list(whole.pending)
            warp.parts.append(made)
        whole.lanes = parts[0].lanes
        warp.found.clear()

    def join(self, parts: tuple[Agent, ...]) -> None:
        first, *others = (self.of(part) for part in parts)
        _, warp = self._warp(parts[0])
        for other in others:
            _learn(first, other)
            first.lanes |= other.lanes
            warp.parts.remove(other)
            warp.spare.append(other.own)
        warp.found.clear()

    def meet(self, agent: Agent, members: int) -> None:
        """bar.warp.sync and the like: those that have met know the same."""
        if agent.lanes & members == members:
            return
        _, warp = self._warp(agent)
        parts = [part for part in warp.parts if part.lanes & members]
        for part in parts:
            for other in parts:
                if other is not part:
                    _learn(part, other)
        for part in parts:
            part.release()

    def leave(self, agent: Agent) -> Thread:
        """Its last clock is kept with its CTA."""
        thread = self.of(agent)
        cta = self.cta(agent.cluster, agent.cta)
        clock = thread.release()
        if cta.ended is None:
            cta.ended = clock.copy()
        else:
            cta.ended.join(clock)
        warp = cta.warps[agent.warp]
        thread.lanes &= ~agent.lanes
        warp.found.clear()
        return thread


def _learn(one: Thread, other: Thread) -> None:
    one.acquire(other.peek())
    wide = max(len(one.tensor), len(other.tensor))
    tensor = np.zeros(wide, np.int32)
    tensor[: len(one.tensor)] = one.tensor
    tensor[: len(other.tensor)] = np.maximum(tensor[: len(other.tensor)], other.tensor)
    one.tensor = tensor


def has_started(clock: Clock, cta: Cta) -> bool:
    return clock.knows(clock.space, cta.started, 1, EXECUTION)
