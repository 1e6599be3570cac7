"""The generic proxy: loads, stores and atomics of threads, and fences (PTX ISA 8.6 to 8.9).

An atomic, volatile, relaxed, acquire or release access is *strong*. Two strong accesses do not race. A reader that
finds the value of another thread's strong write learns what that thread released, by the write itself or by a fence
before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from emugpu.check.clocks import (
    ALL,
    EXECUTION,
    FOUND,
    GLOBAL,
    INITIALISED,
    LOCAL,
    NARROW,
    ONLY_BEFORE,
    ONLY_EXECUTION,
    ONLY_INITIALISED,
    ORDER,
    REMOTE,
    VISIBLE,
    Clock,
    Components,
    Rows,
)
from emugpu.check.flags import FlagWrite
from emugpu.check.footprint import kind_of
from emugpu.check.history import Observer
from emugpu.check.lanes import LaneMeetings
from emugpu.check.model import Model
from emugpu.check.pending import Chunks, span
from emugpu.check.record import ACQUIRES, RELEASES, SCOPES, WEAK, Record, needed_scope, scope_of
from emugpu.check.shadow import READ_ONLY, owner, places_of, record_of
from emugpu.check.signals_for_lanes import Found, joined
from emugpu.check.threads import Thread
from emugpu.emulator.machine.events import Access, Accesses, Agent, Fenced, Site, TensorMapRead
from emugpu.emulator.memory.bytes import CHUNK
from emugpu.emulator.memory.tensor_map_bytes import NBYTES

RELEASES_KEPT = 16
SC_FENCES_KEPT = 64
ACQUIRES_KEPT = 64


class Fence(NamedTuple):
    """A release or an acquire: the agent that executed it, the time, and the agent's knowledge at that time."""

    space: Components
    who: int
    time: int
    scope: int
    agent: Agent
    clock: Clock

    def is_known(self, clock: Clock, row: int) -> bool:
        return clock.knows(self.space, self.who, self.time, row)


class MapReader(Observer):
    """A tensor copy that reads its tensor map. ``acquires`` are the earlier acquires of the map in its CTA."""

    __slots__ = ("_acquires", "_agent", "_releases")

    def __init__(self, clock: Clock, agent: Agent, acquires: list[Fence], releases: list[Fence]) -> None:
        super().__init__(clock)
        self._agent = agent
        self._acquires = acquires
        self._releases = releases

    def misses(self, write: Record) -> str:
        """Returns why the tensormap proxy does not see an earlier write, or "" if it does."""
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
    """Handles fences of the tensormap proxy, and its reads of tensor maps in global memory.

    The tensormap proxy sees a write after two steps. First the thread that wrote, or one that follows it, releases the
    write (fence.proxy.tensormap or tensormap.cp_fenceproxy). Then a thread of the reader's CTA acquires the map's
    address (PTX ISA 9.7.13.4). A map that the host wrote must be acquired, too.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._releases: dict[tuple[Components, int], deque[Fence]] = {}
        """The latest releases, by component."""
        self._acquires: dict[int, deque[Fence]] = {}
        """The latest acquires, by address."""
        self._of_next = -1
        """The map of the operation that is issued next."""

    def take(self) -> int:
        """Returns the address of the map that the operation which is now issued has read, or -1."""
        address, self._of_next = self._of_next, -1
        return address

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
        self._of_next = event.address
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
                fix="fence.proxy.tensormap::generic.acquire.gpu [map], 128 before (.sys if the host writes the map)",
            )  # fmt: skip
            return
        releases = [fence for kept in self._releases.values() for fence in kept]
        record = Record(clock.space, thread.own, thread.time, "map", False, agent, site, clock.rows[ORDER].copy())
        places = np.array([event.address], np.int64)
        model.access_global(places, NBYTES, record, MapReader(clock, agent, acquires, releases))


class Released(NamedTuple):
    """The knowledge that a strong write passes to its readers.

    ``scope`` is the scope in which it passes it; ``written`` is the scope of the write itself, which differs if a fence
    or a release operation before the write is the release. ``agent`` has the lanes of a release operation; it has none
    if a fence is the release.
    """

    clock: Clock
    scope: int
    written: int
    agent: Agent


class GenericProxy:
    """Handles accesses and fences of threads."""

    def __init__(self, model: Model, lanes: LaneMeetings, tensor_maps: TensorMaps) -> None:
        self.model = model
        self._lanes = lanes
        self._tensor_maps = tensor_maps
        self._flags: dict[int, dict[tuple[str, int, int, int], list[Released]]] = {}
        """By cluster, or -1 for global memory, and by place: what strong writes have released there."""
        self._patterns: dict[int, dict[tuple[object, ...], list[Released]]] = {}
        """By cluster, and by place, CTA and warp: what release operations of the warp have released there."""
        self._sc_fences: dict[Components, dict[tuple[int, int], list[Fence]]] = {}
        """By component and scope, in the component's order."""

    # ---- accesses ----

    def access(self, event: Access) -> None:
        if event.space not in ("shared", "global"):
            return
        agent, site = event.agent, event.site
        thread = self.model.threads.of(agent)
        scope = scope_of(site)
        strong = scope != WEAK
        writes = event.mode != "read"
        if strong and event.mode != "write" and site.opcode != "red":  # a reduction finds nothing (PTX ISA 8.8)
            self._learn(event, thread, scope)
        moment = thread.accessing(agent.lanes, site if strong and not writes else None)
        if event.space == "shared":
            memory = self.model.shared[agent.cluster, event.cta]
            self._read_responses((event,), span(event)[1], agent, event.cta)
            if event.cta != agent.cta:
                self._reach_peer(event, thread)
            if event.cta == agent.cta and not strong:
                if memory.add_pending((event,), event.mode, moment, *span(event)):
                    self._lanes.access(event)
            else:
                record = record_of(event, moment)
                memory.access(event.where, event.nbytes * event.items, record, moment.observer)
        else:
            self.model.access_global(*places_of(event), record_of(event, moment), moment.observer)
            if site.is_incoherent:
                self.model.note_incoherent((event,))
        if writes:
            self.model.unused.executed(agent, site)
            self._release(event, thread, scope)

    def accesses(self, run: Accesses) -> None:
        """Handles weak accesses of one thread; those to shared memory are to the thread's own CTA."""
        if run.space == "shared":
            thread = self.model.threads.of(run.agent)
            memory = self.model.shared[run.agent.cluster, run.cta]
            moment = thread.accessing(run.lanes)
            self._read_responses(run, run.chunks, run.agent, run.cta)
            if memory.add_pending(run, run.mode, moment, run.whole, run.chunks):
                self._lanes.accesses(run)
        elif run.space == "global":
            moment = self.model.threads.of(run.agent).accessing(run.lanes)
            own = owner(moment.space, moment.who)
            if self.model.has_incoherent and next(iter(run)).site.is_incoherent:
                self.model.note_incoherent(run)
                own = READ_ONLY
            kind = kind_of(run.mode != "read", strong=False)
            self.model.note_chunks(run.base, kind, run.chunks, run.whole, moment.clock)
            allocation = self.model.allocation(run.base)
            if moment.observer.behind and allocation is not None:
                for event in run:
                    places, nbytes = places_of(event)
                    about = (event.agent, event.site, kind, moment.observer)
                    self.model.note_behind(allocation, places, nbytes, *about)
            accesses = ((event, moment) for event in run)
            self.model.add_pending_global(run.base, run.mode != "read", run.chunks, own, True, len(run), accesses)
        if run.mode != "read" and run.space != "local":
            self.overwrite(run)

    def _read_responses(self, accesses: Iterable[Access], chunks: Chunks, agent: Agent, cta: int) -> None:
        """Reports a warp that loads the parts of a launch-control response one by one. Stores end the response."""
        held = self.model.responses.get((agent.cluster, cta))
        if not held or not np.isin(chunks, list(held)).any():
            return
        for event in accesses:
            places = np.unique(np.asarray(event.where, np.int64)).tolist()
            for place in places:
                loaded = held.get(place // CHUNK)
                if loaded is None:
                    continue
                if event.mode != "read":
                    del held[place // CHUNK]
                elif len(places) == 1 and event.nbytes * event.items < CHUNK:
                    first = loaded.setdefault(agent[:3], (place, event.site, event.agent))
                    if first[0] != place:
                        self._say_opaque(place, first[1:], (event.site, event.agent))

    def _say_opaque(self, place: int, first: tuple[Site, Agent], second: tuple[Site, Agent]) -> None:
        model = self.model
        model.say(
            "clc-opaque", "warning" if model.queries_responses else "error",
            "a launch-control response is loaded in parts: its format is opaque, and the parts may be of two responses",
            first, second, model.names.shared(place // CHUNK * CHUNK, second[1].cta, CHUNK),
            "no load of all 16 bytes at once", "ld.shared.b128, and clusterlaunchcontrol.query_cancel for what it says",
        )  # fmt: skip

    def _reach_peer(self, event: Access, thread: Thread) -> None:
        agent, site = event.agent, event.site
        self.model.reach(thread.clock, agent.cluster, event.cta, site, agent, "an access")
        cta = self.model.threads.cta(agent.cluster, event.cta)
        self.model.touch(cta, thread.own, thread.time, site, agent, f"the access by {site.opcode}")

    # ---- flags ----

    def _places(self, event: Access) -> list[tuple[str, int, int, int]]:
        """Returns the places of the smallest elements in an access, so that one of another size finds them, too."""
        cluster = event.agent.cluster if event.space == "shared" else -1
        where = [event.where] if isinstance(event.where, int) else np.unique(event.where).tolist()
        size, nbytes = self.model.flag_bytes, event.nbytes * event.items
        places = (place for one in where for place in range(one // size * size, one + nbytes, size))
        return [(event.space, cluster, event.cta, place) for place in places]

    def _learn(self, event: Access, thread: Thread, scope: int) -> None:
        agent, site = event.agent, event.site
        if event.space == "global":
            self.model.flags.read(event.where, (thread.clock.space, thread.own, thread.time), scope, site)
        for place in self._places(event):
            held = self._flags.get(place[1], {}).get(place)
            if not held:
                continue
            is_known = not thread.behind and thread.learned.get((place, site.index)) is held
            thread.learned[place, site.index] = held
            thread.heard = site
            thread.version += 1
            for released in held:
                needed = needed_scope(released.agent, agent)
                meets = min(scope, released.written) >= needed
                rows = ALL if meets and released.scope >= needed else NARROW
                acquires = site.semantics in ACQUIRES and meets
                if not is_known:
                    thread.acquire(released.clock, rows if acquires else FOUND if meets else ONLY_EXECUTION)
                is_own = released.agent[:3] == agent[:3]
                if acquires and is_own:
                    self._lanes.meet(agent)
                elif not acquires and meets and released.scope != WEAK:
                    thread.find(Found(released.clock, rows, needed, agent.lanes, site))
                    thread.heard_own |= is_own

    def overwrite(self, stores: Iterable[Access]) -> None:
        """Weak stores delete what strong writes to the same places have released."""
        if self._flags:
            for event in stores:
                for place in self._places(event):
                    self._flags.get(place[1], {}).pop(place, None)

    def forget_flags(self, cluster: int) -> None:
        """Forgets what was released in the shared memory of a cluster of one CTA, all of whose threads know it."""
        self._flags.pop(cluster, None)

    def forget(self, cluster: int) -> None:
        """Drops the state of a cluster that has ended."""
        self._flags.pop(cluster, None)
        self._patterns.pop(cluster, None)

    def _release(self, event: Access, thread: Thread, scope: int) -> None:
        agent, site = event.agent, event.site
        if scope == WEAK:
            self.overwrite((event,))
            return
        known = thread.peek()
        if site.semantics in RELEASES:
            self.model.release_lanes(agent, site)
            released = [(thread.release(), scope)]
        else:
            self.model.release_fenced_lanes(agent, site)
            released = list(thread.fenced)
            tells = self._tells(thread, agent)
            if tells is not None:
                released.append((tells, WEAK))
        if event.space == "global":
            passed = [(clock, min(scope, one)) for clock, one in released if one != WEAK]
            self.model.flags.wrote(FlagWrite(event.where, agent, known, passed, site))
        by = agent if site.semantics in RELEASES else agent._replace(lanes=0)
        releases = [Released(clock, one, scope, by) for clock, one in released]
        patterns = self._patterns.setdefault(agent.cluster, {})
        for place in self._places(event):
            flags = self._flags.setdefault(place[1], {})
            held = flags.get(place, []) if event.mode == "atomic" else []
            # A release operation and a later strong write of a thread are a release pattern, whatever others write in
            # between (PTX ISA 8.8).
            own = patterns.get((place, *agent[1:3]), [])
            for one in (*(one._replace(written=scope) for one in own if one.agent.lanes & agent.lanes), *releases):
                held = _with(held, one)
            flags[place] = held
            if site.semantics in RELEASES:
                patterns[place, *agent[1:3]] = [
                    *(one for one in own if (one.agent, one.scope) != (agent, scope)), *releases,
                ]  # fmt: skip

    def _tells(self, thread: Thread, agent: Agent) -> Clock | None:
        """Returns what a strong write tells without a release: which phases of barriers of threads are over; which
        tcgen05 operations come before a tcgen05.fence::before_thread_sync (PTX ISA 9.7.16.6.3); and, so that one
        fence.sc can follow another, what happened before it, as executed. What relaxed reads alone found is not among
        that.
        """
        over = self.model.phases_over(thread.peek(), agent.cluster)
        has_tensor_fences = self.model.has_tensor_fences
        if not over and not self._sc_fences and not has_tensor_fences:
            return None
        clock = thread.release().executed() if self._sc_fences else Clock(thread.clock.space)
        if has_tensor_fences:
            clock.join(thread.peek(), ONLY_BEFORE)
        for who, time in over:
            clock.set(who, time, ONLY_EXECUTION)
        return clock

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
        elif site.opcode == "tensormap" or words[1:2] == ("tensormap::generic",):
            self._tensor_maps.fenced(event)
        elif site.opcode not in ("fence", "membar"):
            return
        elif words[0] == "proxy":
            _fence_proxy(thread, words)
        elif words[0] == "mbarrier_init":
            _fence_initialisations(thread)
        else:
            scope, sequential = SCOPES.get(site.scope, 0), site.opcode == "membar" or words[0] == "sc"
            if sequential:
                self._follow_sc_fences(thread, scope, event.agent)
            if words[0] != "release":
                self.model.flags.fenced(thread, scope)
                if thread.pending:
                    thread.heard = site
                if thread.heard_own:  # lanes of its own warp released part of it
                    self._lanes.meet(event.agent)
                _acquire_by_fence(thread, scope, self.model.threads.silent)
            own, time, released = thread.own, thread.time, thread.release()
            if words[0] != "acquire":
                thread.fence = (own, time, list(thread.unmet))
                thread.fenced = (*(one for one in thread.fenced if one[1] > scope), (released, scope))
            if sequential:
                released, _ = thread.fenced[-1]
                fence = Fence(thread.clock.space, thread.own, thread.time - 1, scope, event.agent, released)
                kept = self._sc_fences.setdefault(fence.space, {}).setdefault((fence.who, scope), [])
                kept.append(fence)
                if len(kept) > SC_FENCES_KEPT:
                    # Join the two oldest: a thread that knows the first is taken to follow the second.
                    first, second = kept[:2]
                    kept[:2] = [second._replace(time=first.time)]

    def _follow_sc_fences(self, thread: Thread, scope: int, agent: Agent) -> None:
        """A fence.sc synchronises with later ones in the total order of fence.sc (PTX ISA 8.9.2, 8.9.4).

        A fence that is known to have been executed before another one, for example by relaxed atomics, precedes it in
        that order.
        """
        clock = thread.peek()
        for space in (clock.space, *(clock.foreign or ())):
            for (who, of_fence), kept in self._sc_fences.get(space, {}).items():
                if min(scope, of_fence) < needed_scope(kept[0].agent, agent):
                    continue
                latest = clock.latest(space, who, EXECUTION)
                known = next((fence for fence in reversed(kept) if fence.time <= latest), None)
                if known is not None:  # includes what the earlier fences released
                    thread.acquire(known.clock)


def _with(held: list[Released], released: Released) -> list[Released]:
    """Adds a release, and joins releases of one CTA and scope, because an atomic continues what others released."""
    rest = []
    for one in held:
        if one[1:] == released[1:] and one.clock.space is released.clock.space:
            clock = one.clock.copy()
            clock.join(released.clock)
            released = released._replace(clock=clock)
        else:
            rest.append(one)
    return [*rest, released]


def _acquire_by_fence(thread: Thread, scope: int, silent: Sequence[int]) -> None:
    """Acquires what relaxed reads have found.

    Only the lanes that have read, and those that they have met since then, acquire it. A later fence acquires what
    needs a wider scope. ``silent`` holds the `silent_meetings` of the kernel.
    """
    for found in thread.pending:
        rows = found.rows if scope >= found.needed else NARROW
        thread.hear(found.lanes, partial(Clock.join, other=found.clock, rows=rows), found.site, silent)
    thread.pending = _left_by_fence(scope, thread.pending)
    thread.heard_own = False


def _fence_initialisations(thread: Thread) -> None:
    """Handles fence.mbarrier_init, a release of the initialisations alone (PTX ISA, `fence`, .op_restrict)."""
    scope = SCOPES["cluster"]
    _publish(thread.own_clock(), INITIALISED, VISIBLE)
    released = Clock(thread.clock.space)
    released.join(thread.release(), ONLY_INITIALISED)
    for clock, _ in (one for one in thread.fenced if one[1] == scope):
        released.join(clock)
    thread.fenced = (*(one for one in thread.fenced if one[1] != scope), (released, scope))


def _left_by_fence(scope: int, pending: Iterable[Found]) -> list[Found]:
    """Returns what is left to a fence of a wider scope, which makes writes visible that a fence has only ordered."""
    return joined(found for found in pending if scope < found.needed and found.rows != NARROW)


def _fence_proxy(thread: Thread, words: tuple[str, ...]) -> None:
    """Handles fence.proxy.async of one state space or of all; .shared::cta covers the memory of the thread's CTA."""
    if not words[1].startswith("async"):
        return
    space = words[2] if len(words) > 2 and words[1] == "async" else ""
    clock = thread.own_clock()
    if space == "shared::cta":
        own = clock.space.of(thread.cta, clock.rows.shape[1])
        local, remote, known = clock.rows[LOCAL], clock.rows[REMOTE], clock.rows[ORDER]
        np.maximum(local, known, out=local, where=own)
        np.maximum(remote, known, out=remote, where=~own)
    elif space != "global":
        _publish(clock, LOCAL, ORDER)
        _publish(clock, REMOTE, ORDER)
    if space in ("", "global"):
        _publish(clock, GLOBAL, ORDER)
    thread.release()


def _publish(clock: Clock, row: int, source: int) -> None:
    """Copies the knowledge of one row to another row."""

    def of(rows: Rows) -> None:
        np.maximum(rows[row], rows[source], out=rows[row])

    of(clock.rows)
    if clock.foreign:
        clock.foreign = {space: rows.copy() for space, rows in clock.foreign.items()}
        for rows in clock.foreign.values():
            of(rows)
