"""The state of a checked run: agents, memories, barriers and findings. All parts of the checker share it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.check import diagnosis
from emugpu.check.clocks import EXECUTION, VISIBLE, Clock, Components
from emugpu.check.diagnosis import Diagnosis
from emugpu.check.findings import CollectedFindings, Finding, Names, Severity
from emugpu.check.flags import Flags
from emugpu.check.footprint import Footprint, kind_of
from emugpu.check.history import Conflict, Observer
from emugpu.check.lane_findings import LaneFindings
from emugpu.check.mbarrier import TrackedMBarrier
from emugpu.check.pending import Chunks, Known
from emugpu.check.record import ACQUIRES, ATOMICS, RELEASES, WEAK, Record, element_size, scope_of
from emugpu.check.shadow import (
    ShadowAllocation,
    ShadowMemory,
    ShadowTensorMemory,
    chunks_of,
    places_of,
    record_of,
)
from emugpu.check.signals_for_lanes import LaneRelease, dropped_loads, silent_meetings
from emugpu.check.threads import Moment, Thread, Threads, TrackedCta, has_started
from emugpu.check.unused_loads import UnusedLoads
from emugpu.emulator.machine.events import Access, Agent, Site
from emugpu.emulator.machine.lanes import lanes_of
from emugpu.emulator.translate.loaded_values import LoadedValues

SHARED_BYTES = 1 << 18
"""An upper bound on the shared memory of a CTA, in bytes."""


class Incoming(NamedTuple):
    """The last operation of a component that reaches a CTA from outside."""

    time: int
    site: Site
    agent: Agent
    what: str


class Model:
    """The checker's state of one launch."""

    def __init__(
        self,
        names: Names,
        ctas_of_cluster: int,
        allocations: tuple[tuple[str, int, int], ...],
        sites: Sequence[Site],
        values: LoadedValues,
        footprint: Footprint | None = None,
    ) -> None:
        self.names = names
        self._sites, self._silent = sites, silent_meetings(sites)
        self.unused, self.of_lanes = UnusedLoads(values, len(sites)), LaneFindings()
        self.footprint = footprint
        """What the launch touches of global memory, if somebody wants to know."""
        self.defers = True
        """Whether the checker may report a finding later than the access that causes it."""
        self.threads = Threads(ctas_of_cluster, self._silent)
        self.findings = CollectedFindings()
        self.flags = Flags()
        self.shared: dict[tuple[int, int], ShadowMemory] = {}
        self.tensor: dict[tuple[int, int], ShadowTensorMemory] = {}
        self.barriers: dict[tuple[int, int, int], TrackedMBarrier] = {}
        self.responses: dict[tuple[int, int], dict[int, dict[tuple[int, int, int], tuple[int, Site, Agent]]]] = {}
        """The responses of launch control by cluster and CTA, and by 16-byte chunk: the first load of a part by each
        warp.
        """
        self.queries_responses = any(site.verb == "clusterlaunchcontrol.query_cancel" for site in sites)
        self.incoherent = np.array([site.is_incoherent for site in sites])
        """By instruction: whether it is a load by ld.global.nc or ldu."""
        self.has_incoherent = bool(self.incoherent.any())
        self.has_arrivals = any(
            site.opcode in ("bar", "barrier") and "arrive" in site.modifiers and "cluster" not in site.modifiers
            for site in sites
        )
        """Whether a warp may arrive at a barrier of threads and not wait."""
        self.has_tensor_fences = any("fence::after_thread_sync" in site.modifiers for site in sites)
        self.orders_by_strong = self.has_arrivals or any(map(_orders_by_strong, sites))
        """Whether a strong access may order other accesses, by what it releases or acquires itself or with a fence."""
        strong = [site for site in sites if _is_strong(site)]
        sizes = {element_size(site) for site in strong}
        self.has_mixed_sizes = len(sizes) > 1 and any(site.opcode not in ATOMICS for site in strong)
        """Whether strong accesses have elements of several sizes, so that two of them may race."""
        self.flag_bytes = min(sizes - {0}, default=1)
        """The size of the smallest elements of strong accesses."""
        self._phases: dict[int, dict[tuple[int, int], int]] = {}
        """By cluster, CTA and barrier of threads, the component whose times are the phases that are over."""
        self.incoming: dict[tuple[int, int], dict[int, Incoming]] = {}
        self.allocations = [self._allocation(*one) for one in sorted(allocations, key=lambda a: a[1])]
        self._bases = [one.base for one in self.allocations]

    # ---- memories ----

    def start(self, cluster: int, rank: int, ctaid: tuple[int, int, int], warps: int) -> None:
        self.threads.start(cluster, rank, warps)
        key = (cluster, rank)
        self.names.blocks[key] = ctaid
        self.incoming[key] = {}
        self.shared[key] = ShadowMemory(SHARED_BYTES, partial(self._judge, "shared", rank), self.defers)
        self.tensor[key] = ShadowTensorMemory(partial(self._judge_tensor, rank))

    def forget(self, cluster: int) -> None:
        """Drops the state of a cluster that has ended."""
        for rank in self.threads.clusters[cluster].ctas:
            self.shared[cluster, rank].settle()
            del self.shared[cluster, rank], self.tensor[cluster, rank], self.incoming[cluster, rank]
        drop_cluster(cluster, self.barriers, self.responses)
        self._phases.pop(cluster, None)
        del self.threads.clusters[cluster]

    def end_responses(self, cluster: int, rank: int, chunks: Chunks) -> None:
        """Handles writes over chunks of shared memory, which then hold no responses of launch control any more."""
        held = self.responses.get((cluster, rank))
        if held:
            for chunk in held.keys() & set(chunks.ravel().tolist()):
                del held[chunk]

    def _allocation(self, name: str, base: int, nbytes: int) -> ShadowAllocation:
        return ShadowAllocation(name, base, nbytes, ShadowMemory(nbytes, partial(self._judge, "global", name)))

    def allocation(self, address: int) -> ShadowAllocation | None:
        position = bisect_right(self._bases, address) - 1
        if position < 0:
            return None
        found = self.allocations[position]
        return found if address < found.base + found.nbytes else None

    def access_global(self, places: NDArray[np.int64], nbytes: int, record: Record, observer: Observer) -> None:
        """Records an access to bytes at device addresses, which may lie in several allocations."""
        allocation = self.allocation(int(places[0]))
        if allocation is None:
            return
        inside = (places >= allocation.base) & (places < allocation.base + allocation.nbytes)
        self.note_places(allocation, places[inside], nbytes, record, observer)
        allocation.access((places[inside], nbytes), record, observer)
        if not inside.all():
            self.access_global(places[~inside], nbytes, record, observer)

    def note_places(
        self, allocation: ShadowAllocation, places: NDArray[np.int64], nbytes: int, record: Record, observer: Observer
    ) -> None:
        """Adds bytes of an allocation to the footprint."""
        kind = kind_of(record.writes, record.scope != WEAK)
        self._note_bytes(allocation, places, nbytes, kind, observer.clock)
        if observer.behind and record.kind == "generic":
            self.note_behind(allocation, places, nbytes, record.agent, record.site, kind, observer)

    def phases_of(self, space: Components, cluster: int, cta: int, barrier: int) -> int:
        """Returns the component whose times are the phases of a barrier of threads that are over."""
        phases = self._phases.setdefault(cluster, {})
        if (cta, barrier) not in phases:
            phases[cta, barrier] = space.new(cta)
        return phases[cta, barrier]

    def phases_over(self, known: Clock, cluster: int) -> list[tuple[int, int]]:
        """Returns the components of a cluster's barriers of threads, and the last phase that a clock knows is over."""
        whos = self._phases.get(cluster, {}).values()
        return [(who, time) for who in whos if (time := known.latest(known.space, who, EXECUTION))]

    def note_behind(
        self, allocation: ShadowAllocation, places: NDArray[np.int64], nbytes: int, agent: Agent, site: Site, kind: int,
        observer: Observer,
    ) -> None:  # fmt: skip
        """Adds to the footprint what those lanes of an access touch that know less than the others."""
        for one in observer.behind:
            if one.lanes & agent.lanes and not one.have_met(site):
                lanes = np.isin(lanes_of(agent.lanes)[1], lanes_of(one.lanes)[1])
                mine = places[lanes] if len(lanes) == len(places) else places
                self._note_bytes(allocation, mine, nbytes, kind, one.clock)

    def _note_bytes(
        self, allocation: ShadowAllocation, places: NDArray[np.int64], nbytes: int, kind: int, clock: Clock
    ) -> None:
        if self.footprint is not None and nbytes and len(places):
            whole, parts = chunks_of(places - allocation.base, nbytes)
            chunks = np.array([chunk for chunk, _ in parts], np.int64)
            self.footprint.add(allocation.base, allocation.nbytes, chunks, whole, kind, clock)

    def note_incoherent(self, loads: Iterable[Access]) -> None:
        """Adds loads by ld.global.nc to the footprint of a launch that may start early."""
        if self.footprint is None or self.footprint.early is None:
            return
        for event in loads:
            places, nbytes = places_of(event)
            allocation = self.allocation(int(places[0]))
            if allocation is not None:
                whole, parts = chunks_of(places - allocation.base, nbytes)
                chunks = np.array([chunk for chunk, _ in parts], np.int64)
                self.footprint.add_incoherent(allocation.base, allocation.nbytes, chunks, whole)

    def note_chunks(self, base: int, kind: int, chunks: NDArray[Any], whole: NDArray[Any], clock: Clock | None) -> None:
        """Adds accesses of a kind, by threads with this knowledge, to chunks of an allocation to the footprint."""
        allocation = self.allocation(base) if self.footprint is not None else None
        if self.footprint is not None and allocation is not None:
            self.footprint.add(base, allocation.nbytes, chunks, whole, kind, clock)

    def add_pending_global(
        self, base: int, writes: bool, chunks: Chunks, owners: int | NDArray[np.int64], weak: bool | NDArray[np.bool_],
        count: int, accesses: Known,
    ) -> None:  # fmt: skip
        """Adds accesses of threads to the pending ones of an allocation if they are certainly in order; else checks
        each.

        ``base`` is an address in the allocation, or 0 if the accesses touch several. The other arguments are those of
        `ShadowAllocation.add_pending`.
        """
        found = self.allocation(base)
        if found is None or not found.add_pending(writes, chunks, owners, weak, count, accesses):
            for event, moment in accesses:
                self.access_global(*places_of(event), record_of(event, moment), moment.observer)

    def release_lanes(self, agent: Agent, site: Site) -> None:
        """Handles a release by the lanes of an agent: it does not pass on what other lanes of the warp have done since
        all of them met.
        """
        thread = self.threads.of(agent)
        self._release_lanes(thread, thread.own, thread.time, thread.unmet, agent, site)

    def release_fenced_lanes(self, agent: Agent, site: Site) -> None:
        """Handles a relaxed write or arrival by the lanes of an agent, which publishes what they did before a fence."""
        thread = self.threads.of(agent)
        if thread.fence is not None:
            self._release_lanes(thread, *thread.fence, agent, site)

    def _release_lanes(
        self, thread: Thread, who: int, time: int, moments: list[Moment], agent: Agent, site: Site
    ) -> None:
        if thread.unmet and moments:
            new = thread.releasing(LaneRelease(agent.lanes, who, time, site, self._silent), moments)
            if new:
                self.shared[agent.cluster, agent.cta].leave_to_histories(new)

    # ---- findings ----

    @cached_property
    def _dropped_loads(self) -> frozenset[int]:
        return dropped_loads(self._sites)

    def _judge(
        self,
        space: str,
        holder: Any,
        conflicts: list[Conflict],
        ordered: list[tuple[Record, Record]],
        place: int,
        nbytes: int,
        who: Observer,
    ) -> None:
        """Reports the conflicts that a memory found. ``holder`` is the rank of a CTA, or the name of an allocation."""
        for conflict in conflicts:
            verdict = diagnosis.unordered(conflict, who, space)
            if verdict.rule == "wait-for-lanes" and conflict.new.site.index in self._dropped_loads:
                continue
            where = self._bytes(space, place, nbytes, holder)
            tell = partial(self._blame_used, conflict, verdict, where, who.clock)
            if self.defers and verdict.rule in ("signal-for-lanes", "wait-for-lanes"):
                in_order = partial(self._judge_ordered, space, holder, conflict.old, conflict.new, place, nbytes, who)
                self.of_lanes.hold(conflict.old, conflict.new, who, tell, in_order)
            else:
                tell()
        for first, second in ordered:
            self._judge_ordered(space, holder, first, second, place, nbytes, who)

    def _judge_ordered(
        self, space: str, holder: Any, first: Record, second: Record, place: int, nbytes: int, who: Observer
    ) -> None:
        """Reports what is wrong with two accesses that are in order, if anything."""
        found = diagnosis.ordered(first, second, who, space, holder, self._has_acquired)
        if found is not None:
            tell = partial(self.blame, found, first, second, self._bytes(space, place, nbytes, holder), who.clock)
            is_held = found.rule == "incoherent-load" and self.unused.holds(
                Conflict(first, second, False, "one" if first.writes else "of warp"), found.rule, tell
            )
            if not is_held:
                tell()

    def _has_acquired(self, write: Record, reader: Agent) -> bool:
        """Returns whether a write is visible to a thread of the CTA of a reader."""
        cluster = self.threads.clusters.get(reader.cluster)
        warps = cluster.ctas[reader.cta].warps.values() if cluster is not None else ()
        return any(
            thread.clock.knows(write.space, write.who, write.time, VISIBLE) for warp in warps for thread in warp.parts
        )

    def _blame_used(self, conflict: Conflict, verdict: Diagnosis, where: str, known: Clock) -> None:
        """Reports a conflict, as soon as a value that it concerns is used."""
        tell = partial(self.blame, verdict, conflict.old, conflict.new, where, known)
        if not self.unused.holds(conflict, verdict.rule, tell):
            tell()

    def _judge_tensor(
        self,
        rank: int,
        conflicts: list[Conflict],
        ordered: list[tuple[Record, Record]],
        columns: range,
        who: Observer,
    ) -> None:
        where = f"tensor memory columns {columns.start}-{columns.stop - 1} of CTA {rank}"
        for conflict in conflicts:
            self.blame(diagnosis.tensor_unordered(conflict, who.clock), conflict.old, conflict.new, where)
        for first, second in ordered:
            found = diagnosis.tensor_ordered(first, second, who)
            if found is not None:
                self.blame(found, first, second, where)

    def _bytes(self, space: str, place: int, nbytes: int, holder: Any) -> str:
        if space == "shared":
            return self.names.shared(place, holder, nbytes)
        name = f"'{holder}'" if holder else "an allocation"
        return f"{name} + {place} ({nbytes} bytes)"

    def blame(self, verdict: Diagnosis, old: Record, new: Record, where: str, known: Clock | None = None) -> None:
        """Adds a finding about two accesses.

        ``known`` is what the agent of the later one knew; if it is given, a flag between the two is looked for.
        """
        first, second = (new, old) if verdict.swap else (old, new)
        if self.findings.seen(verdict.rule, verdict.severity, first.site.line, second.site.line):
            return
        lack = None
        if known is not None and old.agent[:2] != new.agent[:2]:
            lack = self.flags.between(old, new, known)
        missing, fix = lack or (verdict.missing, verdict.fix)
        self.say(
            verdict.rule, verdict.severity, f"{where}: {verdict.what}", (first.site, first.agent),
            (second.site, second.agent), where, missing, fix,
        )  # fmt: skip

    def say(
        self,
        rule: str,
        severity: Severity,
        message: str,
        first: tuple[Site, Agent] | None,
        second: tuple[Site, Agent] | None = None,
        where: str = "",
        missing: str = "",
        fix: str = "",
        every_first: bool = True,
    ) -> None:
        """Adds a finding about a rule that is broken at one or two places.

        ``every_first``: each first place gets a finding of its own.
        """
        lines = (first[0].line if first and every_first else 0, second[0].line if second else 0)
        if self.findings.seen(rule, severity, *lines):
            return
        apart = bool(first and second and first[1].cluster != second[1].cluster)
        places = [self.names.place(*one, apart) if one else None for one in (first, second)]
        self.findings.add(Finding(rule, severity, message, places[0], places[1], where, missing, fix), *lines)

    def suspect(
        self, rule: str, message: str, first: tuple[Site, Agent], second: tuple[Site, Agent], missing: str, fix: str,
        others: Iterable[tuple[int, int]] = (),
    ) -> None:  # fmt: skip
        """Adds what is an error only if others follow from it. ``others``: the CTA ranks and warps that arrive
        at the same barrier.
        """
        begins, again = self.names.place(*first), self.names.place(*second)
        finding = Finding(rule, "error", message, begins, again, missing=missing, fix=fix)
        self.findings.suspect(finding, (second[1].cta, second[1].warp), others)

    # ---- other CTAs ----

    def reach(self, clock: Clock, cluster: int, rank: int, site: Site, agent: Agent, what: str) -> None:
        """Checks that a CTA is known to run before an operation of another CTA reaches it."""
        if rank == agent.cta:
            return
        cta = self.threads.cta(cluster, rank)
        if not has_started(clock, cta):
            self.say(
                "peer-not-started", "error", f"{what} reaches CTA {rank}, which may not have started", (site, agent),
                missing=f"nothing that CTA {rank} has done is known here",
                fix="a cluster barrier (arrive and wait by all threads) before",
            )  # fmt: skip

    def touch(self, cta: TrackedCta, who: int, time: int, site: Site, agent: Agent, what: str) -> None:
        """Records that an operation from outside reaches a CTA.

        The CTA must know that the operation is over before it exits.
        """
        held = self.incoming[cta.cluster.number, cta.rank]
        known = held.get(who)
        if known is None or known.time < time:
            held[who] = Incoming(time, site, agent, what)


def _is_strong(site: Site) -> bool:
    return site.opcode in ("ld", "st", *ATOMICS) and scope_of(site) != WEAK


def _orders_by_strong(site: Site) -> bool:
    """Returns whether an instruction gives strong accesses an order to pass on, or is one that does."""
    if site.opcode in ("fence", "membar"):
        return site.modifiers[:1] != ("proxy",)
    return site.opcode not in ("mbarrier", "barrier") and site.semantics in {*ACQUIRES, *RELEASES}


def drop_cluster(cluster: int, *tables: dict[Any, Any]) -> None:
    """Deletes the entries of a cluster from tables whose keys begin with its number."""
    for held in tables:
        for key in [key for key in held if key[0] == cluster]:
            del held[key]
