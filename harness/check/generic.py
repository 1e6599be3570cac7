"""Loads, stores and atomics of threads, and fences: the generic proxy (PTX ISA 8.6 to 8.9).

An atomic, volatile, relaxed, acquire or release access is *strong*: two of them do not race, and a reader that finds
what another thread wrote learns what that one had released, by the write itself or by a fence in front of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.check.accesses import Observer, Record
from harness.check.barriers import ACQUIRES, RELEASES, SCOPES
from harness.check.clocks import ALL, GLOBAL, INITIALISED, NARROW, ORDER, RELAXED, SHARED, VISIBLE, Clock, Rows, Thread
from harness.check.model import Model
from harness.check.operations import write_first
from harness.emulator.machine.events import Access, Agent, Fenced, Site

STRONG = ("relaxed", "acquire", "release", "acq_rel", "volatile", "sc")
ATOMICS = ("atom", "red")
SYSTEM = SCOPES["sys"]


class Told(NamedTuple):
    """What a strong write tells its readers, and how far its scope reaches."""

    clock: Clock
    scope: int
    cluster: int
    cta: int


class Generic:
    """Takes accesses and fences."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._flags: dict[tuple[str, int, int, int], list[Told]] = {}

    # ---- accesses ----

    def access(self, event: Access) -> None:
        if event.space == "param":
            return
        agent, site = event.agent, event.site
        thread = self.model.threads.of(agent)
        strong = site.semantics in STRONG or site.opcode in ATOMICS
        reads, writes = event.mode != "write", event.mode != "read"
        if strong and reads:
            self._learn(event, thread)
        record = _record(thread, agent, site, writes, strong)
        observer = Observer(thread.peek())
        nbytes = event.nbytes * event.items
        if event.space == "shared":
            if event.cta != agent.cta:
                self._reach_peer(event, thread)
            self.model.shared[agent.cluster, event.cta].access(event.where, nbytes, record, observer)
        else:
            self._access_global(event.where, nbytes, record, observer)
        if writes:
            self._tell(event, thread, strong)

    def _reach_peer(self, event: Access, thread: Thread) -> None:
        agent, site = event.agent, event.site
        self.model.reach(thread.clock, agent.cluster, event.cta, site, agent, "an access")
        cta = self.model.threads.cta(agent.cluster, event.cta)
        self.model.touch(cta, thread.own, thread.time, site, agent, f"the access by {site.opcode}")

    def _access_global(self, where: Any, nbytes: int, record: Record, observer: Observer) -> None:
        first = where if isinstance(where, int) else int(where[0])
        allocation = self.model.allocation(first)
        if allocation is None:
            return
        places = np.atleast_1d(np.asarray(where)).astype(np.int64)
        if int(places.max()) >= allocation.base + allocation.nbytes or int(places.min()) < allocation.base:
            for place in places.tolist():
                self._access_global(place, nbytes, record, observer)
            return
        if not record.writes and not allocation.written:
            allocation.reads.append(((places, nbytes), record))
            return
        write_first(allocation, observer)
        allocation.memory.access(places - allocation.base, nbytes, record, observer)

    # ---- flags ----

    def _places(self, event: Access) -> list[tuple[str, int, int, int]]:
        cluster = event.agent.cluster if event.space == "shared" else -1
        where = [event.where] if isinstance(event.where, int) else np.unique(event.where).tolist()
        return [(event.space, cluster, event.cta, place) for place in where]

    def _learn(self, event: Access, thread: Thread) -> None:
        agent, site = event.agent, event.site
        for place in self._places(event):
            for told in self._flags.get(place, ()):
                needed = _needed(told, agent)
                acquires = site.semantics in ACQUIRES and SCOPES[site.scope] >= needed
                wide = told.scope >= needed
                thread.acquire(told.clock, (ALL if wide else NARROW) if acquires else RELAXED)
                if not acquires:
                    thread.pending.append((told.clock, needed if wide else SYSTEM + 1))

    def _tell(self, event: Access, thread: Thread, strong: bool) -> None:
        agent, site = event.agent, event.site
        if not strong:
            if self._flags:
                for place in self._places(event):
                    self._flags.pop(place, None)
            return
        told = None
        if site.semantics in RELEASES:
            told = Told(thread.release(), SCOPES[site.scope], agent.cluster, agent.cta)
        elif thread.fenced is not None:
            told = Told(*thread.fenced, agent.cluster, agent.cta)
        for place in self._places(event):
            held = self._flags.get(place, []) if event.mode == "atomic" else []
            self._flags[place] = _with(held, told) if told is not None else held

    # ---- fences ----

    def fenced(self, event: Fenced) -> None:
        site = event.site
        thread = self.model.threads.of(event.agent)
        words = site.modifiers
        if site.opcode == "tcgen05":
            if words[0].endswith("before_thread_sync"):
                thread.fence_before()
            else:
                thread.fence_after()
        elif site.opcode == "wgmma":
            return
        elif words[0] == "proxy":
            _fence_proxy(thread, words)
        elif words[0] == "mbarrier_init":
            _publish(thread.own_clock(), INITIALISED, VISIBLE)
            thread.release()
        else:
            _fence_threads(thread, SCOPES[site.scope])


def _record(thread: Thread, agent: Agent, site: Site, writes: bool, strong: bool) -> Record:
    """The same one as long as the thread learns and tells nothing."""
    key = (site.index, agent.lanes, writes)
    version, record = thread.records.get(key, (-1, None))
    if version == thread.version and record is not None:
        return record
    version, order = thread.records.get("order", (-1, None))
    if version != thread.version:
        order = thread.clock.rows[ORDER].copy()
        thread.records.clear()
        thread.records["order"] = (thread.version, order)
    record = Record(
        thread.clock.space, thread.own, thread.time, "generic", writes, agent, site, order, strong
    )  # fmt: skip
    thread.records[key] = (thread.version, record)
    return record


def _needed(told: Told, agent: Agent) -> int:
    """The scope that holds both threads."""
    if told.cluster != agent.cluster:
        return SCOPES["gpu"]
    return SCOPES["cluster"] if told.cta != agent.cta else SCOPES["cta"]


def _with(held: list[Told], told: Told) -> list[Told]:
    """Those of one CTA and scope are joined: atomics continue what others have released."""
    rest = []
    for one in held:
        if one[1:] == told[1:] and one.clock.space is told.clock.space:
            clock = one.clock.copy()
            clock.join(told.clock)
            told = told._replace(clock=clock)
        else:
            rest.append(one)
    return [*rest, told]


def _fence_threads(thread: Thread, scope: int) -> None:
    """fence and membar: what relaxed reads have found is acquired, what follows as a relaxed write is released."""
    for clock, needed in thread.pending:
        if isinstance(needed, slice):
            thread.acquire(clock, needed)
        else:
            thread.acquire(clock, ALL if scope >= needed else NARROW)
    thread.pending.clear()
    thread.fenced = (thread.release(), scope)


def _fence_proxy(thread: Thread, words: tuple[str, ...]) -> None:
    if not words[1].startswith("async"):
        return
    spaces = [word for word in words if word.startswith("shared") or word == "global"]
    clock = thread.own_clock()
    if spaces != ["global"]:
        _publish(clock, SHARED, ORDER)
    if spaces in ([], ["global"]):
        _publish(clock, GLOBAL, ORDER)
    thread.release()


def _publish(clock: Clock, row: int, source: int) -> None:
    """What is known in one sense is known in another one, too."""

    def of(rows: Rows) -> None:
        np.maximum(rows[row], rows[source], out=rows[row])

    of(clock.rows)
    if clock.foreign:
        clock.foreign = {space: rows.copy() for space, rows in clock.foreign.items()}
        for rows in clock.foreign.values():
            of(rows)
