"""Barriers of threads: bar.sync and bar.arrive of a CTA, barrier.cluster. What has been done before is known after."""

from __future__ import annotations

from harness.check.accesses import RELEASES, SCOPES
from harness.check.clocks import RELAXED, Clock, Thread
from harness.check.model import Model, drop_cluster
from harness.emulator.machine.events import GroupArrived, GroupLeft

GENERATIONS_KEPT = 4


class Group:
    """One generation of a barrier of threads."""

    def __init__(self) -> None:
        self.clock: Clock | None = None

    def arrive(self, thread: Thread, semantics: str) -> None:
        told = thread.release()
        if self.clock is None:
            self.clock = Clock(told.space)
        if semantics not in RELEASES:
            self.clock.join(told, RELAXED)
            if thread.fenced is not None and thread.fenced[1] >= SCOPES["cluster"]:
                self.clock.join(thread.fenced[0])
        else:
            self.clock.join(told)


class Groups:
    """Takes the events of these barriers."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._generations: dict[tuple[int, int, int], dict[int, Group]] = {}
        """By cluster, CTA (or -1) and barrier, the youngest generations."""

    def arrived(self, event: GroupArrived) -> None:
        generations = self._generations.setdefault(_key(event), {})
        group = generations.get(event.generation)
        if group is None:
            group = generations[event.generation] = Group()
            generations.pop(event.generation - GENERATIONS_KEPT, None)
        thread = self._model.threads.of(event.agent)
        group.arrive(thread, "release" if event.barrier >= 0 else event.site.semantics)

    def left(self, event: GroupLeft) -> None:
        clock = self._generations[_key(event)][event.generation].clock
        if clock is not None:
            self._model.threads.of(event.agent).acquire(clock)

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._generations)


def _key(event: GroupArrived | GroupLeft) -> tuple[int, int, int]:
    agent = event.agent
    return agent.cluster, agent.cta if event.barrier >= 0 else -1, event.barrier
