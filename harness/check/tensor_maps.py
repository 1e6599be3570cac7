"""Tensor maps in global memory: threads write them, and tensor copies read them through the tensormap proxy.

That proxy sees a write once its thread, or one that comes after it, has released it (fence.proxy.tensormap or
tensormap.cp_fenceproxy), and after that a thread of the reader's CTA has acquired the map's address (PTX ISA 9.7.13.4).
A map that the host has written has to be acquired, too.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from harness.check.accesses import SCOPES, Observer, Record, needed_scope
from harness.check.clocks import ORDER, VISIBLE, Clock, Components
from harness.check.model import Model
from harness.emulator.machine.events import Agent, Fenced, TensorMapRead

NBYTES = 128
RELEASES_KEPT = 16
ACQUIRES_KEPT = 64


class Fence(NamedTuple):
    """A release, or an acquire: who executed it when, and what was known then."""

    space: Components
    who: int
    time: int
    scope: int
    agent: Agent
    clock: Clock

    def is_known(self, clock: Clock, row: int) -> bool:
        return clock.knows(self.space, self.who, self.time, row)


class MapReader(Observer):
    """A tensor copy that reads its map. ``acquires``: of the map, in its CTA, before it."""

    __slots__ = ("_acquires", "_agent", "_releases")

    def __init__(self, clock: Clock, agent: Agent, acquires: list[Fence], releases: list[Fence]) -> None:
        super().__init__(clock)
        self._agent = agent
        self._acquires = acquires
        self._releases = releases

    def misses(self, write: Record) -> str:
        """What keeps the tensormap proxy from seeing a write that happened before; nothing if it does see it."""
        released = [r for r in self._releases if r.clock.knows(write.space, write.who, write.time, VISIBLE)]
        if not released:
            return "no fence.proxy.tensormap::generic.release after the write"
        pairs = [(a, r) for a in self._acquires for r in released if r.is_known(a.clock, VISIBLE)]
        if not pairs:
            return "no fence.proxy.tensormap::generic.acquire of this map after that release"
        if all(min(a.scope, r.scope) < needed_scope(r.agent, self._agent) for a, r in pairs):
            return "the scope of fence.proxy.tensormap does not hold both CTAs"
        return ""


class TensorMaps:
    """Takes fences of the tensormap proxy, and its reads."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._releases: dict[tuple[Components, int], deque[Fence]] = {}
        """By component, the youngest."""
        self._acquires: dict[int, deque[Fence]] = {}
        """By address, the youngest."""

    def fenced(self, event: Fenced) -> None:
        thread = self._model.threads.of(event.agent)
        space, who, time = thread.clock.space, thread.own, thread.time
        fence = Fence(space, who, time, SCOPES.get(event.site.scope, 0), event.agent, thread.release())
        if "release" in event.site.modifiers or event.site.opcode == "tensormap":
            self._releases.setdefault((space, who), deque(maxlen=RELEASES_KEPT)).append(fence)
        else:
            for address in np.unique(event.address).tolist():
                self._acquires.setdefault(address, deque(maxlen=ACQUIRES_KEPT)).append(fence)

    def read(self, event: TensorMapRead) -> None:
        model, agent, site = self._model, event.agent, event.site
        thread = model.threads.of(agent)
        clock = thread.peek()
        acquires = [
            fence
            for fence in self._acquires.get(event.address, ())
            if fence.agent[:2] == agent[:2] and fence.is_known(clock, ORDER)
        ]
        if not acquires:
            model.say(
                "tensormap", "error", "a tensor map in global memory is used, and no thread of the CTA has acquired it",
                (site, agent), missing="no fence.proxy.tensormap::generic.acquire of its address on the path",
                mend="fence.proxy.tensormap::generic.acquire.gpu [map], 128 before (.sys if the host writes the map)",
            )  # fmt: skip
            return
        releases = [fence for kept in self._releases.values() for fence in kept]
        record = Record(clock.space, thread.own, thread.time, "map", False, agent, site, clock.rows[ORDER].copy())
        places = np.array([event.address], np.int64)
        model.access_global(places, NBYTES, record, MapReader(clock, agent, acquires, releases))
