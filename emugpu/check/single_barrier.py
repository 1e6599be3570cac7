"""Single-barrier CTAs: so far, their warps have only loaded, stored, fenced, diverged, reconverged, and met at one
barrier.

The emulator's access filter finds the accesses to shared memory of such a CTA that are certainly in order. These do not
become events: the trace is kept, and a warp's knowledge follows from how often it has left the barrier, its *epoch*.
Accesses of lanes that have diverged are certainly in order, too, as if the lanes were together. Strong accesses are
like others if the kernel has none that orders accesses, and if the lanes are together. A fence orders nothing before a
strong access follows it; until then it is one entry of the trace, and a tick of its warp's time. As soon as anything
else happens in the CTA, everything since its warps last met becomes events, and the other parts of the checker take
over. They get what came before only if a finding may name it.

When all warps wait at the barrier again, they know the same, and nothing is under way in a kernel without asynchronous
operations. So the CTA *resumes*: it is a single-barrier CTA again, whose warps begin with what they know by then. It
ends at a strong access and at a fence, too, because what these acquire depends on what the CTA has found before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.check.barriers import ThreadBarriers
from emugpu.check.clocks import OWN, Clock
from emugpu.check.flags import ALL
from emugpu.check.footprint import READ, STRONG_READ, STRONG_WRITE, WRITE
from emugpu.check.generic import GenericProxy
from emugpu.check.model import SHARED_BYTES, Model
from emugpu.check.pending import Earlier
from emugpu.check.record import SCOPES, WEAK, scope_of
from emugpu.check.shadow import READ_ONLY, owner
from emugpu.check.threads import Moment, TrackedCta
from emugpu.check.unmet import Interval, meetings, note
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Access, Agent, Site
from emugpu.emulator.machine.lanes import FULL_MASK
from emugpu.emulator.native.access_filter import AccessFilter, CtaFilter, Numbers
from emugpu.emulator.native.layout import WHOLE_CHUNK, Traced, TraceEvent
from emugpu.emulator.native.trace import Batch

FEWEST = 32
"""A CTA resumes for at least this many entries of the trace, because resuming takes time, too."""
KEPT = 1 << 20
"""With more trace entries than this, those that no finding can name any more are deleted."""


class _SingleBarrierCta:
    """A single-barrier CTA, and the filter's view of it. ``own``: the components of its warps. ``exits``: the exits of
    warps. A CTA that resumes gets another one.

    The kept trace of the CTA begins after entry ``entry`` of part ``part``, when ``since`` generations of its barrier
    were complete, or from the CTA's start. ``site`` is that of the entry. ``parts`` are the kept ones that have entries
    of the CTA, and perhaps earlier ones.
    """

    def __init__(self, cta: TrackedCta, filtered: CtaFilter, part: int, base: Clock) -> None:
        """``base`` is what all warps know at first."""
        self.filtered = filtered
        self.components, self._base = cta.cluster.components, base
        self.exits: list[events.Exited] = []
        self.part, self.entry, self.since = part, -1, 0
        self.parts: list[int] = []
        self.site: Site | None = None
        self.own = [warp.parts[0].own for warp in cta.warps.values()]
        self.fences: list[list[tuple[int, events.Fenced]]] = [[] for _ in self.own]
        """The fences of each warp, with their times."""
        self.is_resumed, self.first = False, 0
        """Whether the CTA has resumed, and the first generation of the barrier whose arrivals are known."""
        self.arrivals: list[list[int]] = [[] for _ in self.own]
        """The times at which each warp has arrived at that generation and at later ones."""
        self.times: dict[int, int] = {}
        """The times of the warps where the kept trace begins, if all of them have left the barrier before it."""
        self.unmet: dict[int, dict[Interval, int]] = {}
        """By warp: when it has accessed global memory, and which lanes, if not all of them have met since."""
        self._moments: dict[tuple[int, Interval], Moment] = {}

    def moment(self, warp: int, time: int, part: int = -1, met: int = 0) -> Moment:
        """Returns the moment of a warp at a time of its own. ``met``: how often its lanes had met before in this part
        of the trace; without a part their meetings do not matter.

        The warp knows all that the others had done before they arrived at the barrier that it left last.
        """
        found = self._moments.get((warp, (time, part, met)))
        if found is None:
            epoch = bisect_left(self.arrivals[warp], time)
            clock = self._base.copy()
            if epoch:
                clock.rows[OWN[:, None], self.own] = [times[epoch - 1] for times in self.arrivals]
            clock.rows[OWN, self.own[warp]] = time
            found = self._moments[warp, (time, part, met)] = Moment(clock, self.own[warp], time)
        return found

    def arrived(self, warp: int) -> int:
        """Returns the time at which a warp arrived at the barrier before the kept trace."""
        return self.arrivals[warp][self.since - 1 - self.first]

    def drop_fences(self) -> None:
        """Drops fences before the kept trace, except the last one by each instruction: every thread that can learn of
        an earlier one learns of the last one, too.
        """
        for number, fences in enumerate(self.fences):
            arrived = self.arrived(number)
            last = {fenced.site.index: time for time, fenced in fences if time < arrived}
            self.fences[number] = [one for one in fences if one[0] >= last.get(one[1].site.index, 0)]


@dataclass(eq=False)
class _Part:
    """A part of the kept trace. ``clusters`` is by entry; ``completed`` holds the entries that complete generations."""

    batch: Batch
    clusters: Numbers
    completed: Numbers


class SingleBarrierCtas:
    """Keeps the single-barrier CTAs of one launch away from the other parts of the checker."""

    def __init__(
        self,
        model: Model,
        take: dict[type, Callable[[Any], None]],
        generic: GenericProxy,
        barriers: ThreadBarriers,
        sites: Sequence[Site],
    ) -> None:
        """``take`` maps types of events to their handlers. ``sites`` are the instructions of the kernel."""
        self._model, self._events, self._generic, self._barriers = model, take, generic, barriers
        self._resumes = model.threads.size == 1 and not model.has_arrivals and not any(map(_is_asynchronous, sites))
        """Whether CTAs may resume."""
        self.by_cluster: dict[int, _SingleBarrierCta] = {}
        self._checks_strong = model.orders_by_strong or model.has_mixed_sizes
        """Whether strong accesses may order other accesses, or race."""
        self._filter = AccessFilter(passes_strong=not self._checks_strong)
        self._filtered_kinds = [TraceEvent.ACCESS] if self._checks_strong else [TraceEvent.ACCESS, TraceEvent.STRONG]
        self._scopes = np.array([scope_of(site) for site in sites])
        """By instruction: the scope of a strong access, or WEAK."""
        self._clusters: Numbers = np.zeros(0, np.int64)
        self._owners: Numbers = np.zeros(0, np.int64)
        self._of_warps: list[_SingleBarrierCta | None] = []
        """By the numbers of warps in the trace: their clusters, their numbers as owners of chunks, and their CTAs."""
        self._split: dict[int, tuple[int, int]] = {}
        """For each warp whose lanes have diverged, the part of the trace and the entry at which they did."""
        self._held: list[tuple[int, Batch, Numbers]] = []
        """Accesses of these warps to global memory, with the number of the part."""
        self._parts: list[_Part] = []
        self._forgotten, self._count, self._most = 0, 0, KEPT

    def start(self, event: events.CtaStarted) -> None:
        """Handles the start of a CTA.

        It is a single-barrier CTA if it is alone in its cluster and findings may be reported later.
        """
        if self._model.threads.size > 1 or not self._model.defers:
            return
        cta = self._model.threads.cta(event.cluster, event.cta)
        filtered = self._filter.add_cta(event.warps, SHARED_BYTES)
        base = Clock(cta.cluster.components)
        base.set(cta.started, 1)
        self.by_cluster[event.cluster] = _SingleBarrierCta(cta, filtered, self._now, base)

    def includes(self, event: Any) -> bool:
        """Returns whether an event from Python belongs to a single-barrier CTA."""
        return bool(self.by_cluster) and getattr(getattr(event, "agent", event), "cluster", -1) in self.by_cluster

    def passes(self, event: Any) -> bool:
        """Returns whether no other part has to see an event from Python.

        Most other events end the CTA's single-barrier state.
        """
        kind = type(event)
        if kind not in self._events or kind is events.CtaStarted:
            return False
        operation = getattr(event, "operation", None)
        agent = getattr(operation or event, "agent", event)
        one = self.by_cluster.get(agent.cluster)
        if one is None:
            return False
        if kind is events.CtaEnded or (kind is Access and event.space not in ("shared", "global")):
            return True
        if kind is events.ClusterEnded:
            self._drop(agent.cluster)
        else:
            self._exit(self._give_up(agent.cluster)[1])
        return False

    @property
    def _now(self) -> int:
        """The number of the next part of the trace."""
        return self._forgotten + len(self._parts)

    def take(self, batch: Batch) -> None:
        """Handles a part of the trace."""
        self._model.unused.traced(batch, self._filtered_kinds)
        self._know_warps(batch)
        begin = 0
        for entry in self._resumptions(batch):
            self._take(batch.part(begin, entry + 1))
            self._resume(batch, entry)
            begin = entry + 1
        if begin < len(batch.entries):
            self._take(batch.part(begin, len(batch.entries)))

    def _take(self, batch: Batch) -> None:
        if not self.by_cluster:
            self._pass_on(batch, np.arange(len(batch.entries)))
            return
        others, accesses, exits, completed, arrivals = self._filter.filter(batch)
        for warp, time in arrivals:
            self._of(warp).arrivals[batch.trace.who[warp][2]].append(time)
        fences = np.flatnonzero((batch.entries["kind"] == TraceEvent.FENCED) & (batch.entries["number"] > 0))
        for _, _, warp, lanes, site, *_, time, _ in batch.entries[fences].tolist():
            fenced = events.Fenced(batch.trace.agent(warp, lanes), batch.trace.site(site))
            self._of(warp).fences[self._filter.index_of(warp)].append((time, fenced))
        for _, _, warp, lanes, *_ in batch.entries[exits].tolist():
            self._of(warp).exits.append(events.Exited(batch.trace.agent(warp, lanes)))
        clusters = self._clusters[batch.entries["warp"]]
        singles = sorted(self._clusters_of(batch) & self.by_cluster.keys())
        present = [(cluster, self.by_cluster[cluster]) for cluster in singles]
        now = self._now
        if len(others) < len(batch.entries):
            for _, one in present:
                one.parts.append(now)
            self._parts.append(_Part(batch, clusters, completed))
            self._count += len(batch.entries)
        stops = [(cluster, at) for cluster, one in present if (at := self._filter.stopped_at(one.filtered)) is not None]
        rest = []
        if stops or len(others):
            # Strong accesses to global memory come in the order in which they happened, also those of several CTAs.
            strong = accesses[batch.entries["kind"][accesses] == TraceEvent.STRONG]
            unlike = np.unique(clusters[strong])
            rest = [self._give_up(cluster, 0) for cluster in unlike.tolist()]
            accesses = accesses[~np.isin(clusters[accesses], unlike)]
            stops = [stop for stop in stops if stop[0] in self.by_cluster]
        self._hold(now, batch, accesses)
        rest += [self._give_up(*stop) for stop in stops]
        self._pass_on(batch, np.sort(np.concatenate([others, *(entries for entries, _ in rest)])))
        self._exit(exit for _, exits in rest for exit in exits)
        if self._count > self._most or not self.by_cluster:
            self._forget()

    def end(self) -> None:
        """Ends the run, perhaps after a fault: checks the accesses of lanes that are still apart."""
        for cluster in {int(self._clusters[warp]) for warp in self._split}:
            if cluster in self.by_cluster:
                self._exit(self._give_up(cluster)[1])

    def _of(self, warp: int) -> _SingleBarrierCta:
        """Returns the CTA of a warp that is, or was, in a single-barrier CTA."""
        one = self._of_warps[warp]
        assert one is not None
        return one

    def _clusters_of(self, batch: Batch) -> set[int]:
        """Returns the clusters of which a part of the trace has entries."""
        return {*self._clusters[np.flatnonzero(np.bincount(batch.entries["warp"]))].tolist()}

    def _resumptions(self, batch: Batch) -> list[int]:
        """Returns the entries of a part of the trace after which it pays to resume a CTA: they complete its barrier,
        and no strong access and no fence follows soon.
        """
        entries = batch.entries
        if not self._resumes or not self._model.defers:
            return []
        is_strong = entries["kind"] == TraceEvent.STRONG
        may_end = is_strong | (entries["kind"] == TraceEvent.FENCED)
        if not may_end.any() and self._clusters_of(batch) <= self.by_cluster.keys():
            return []
        clusters = self._clusters[entries["warp"]]
        is_single = np.isin(clusters, [*self.by_cluster])
        is_first = np.isin(clusters, [cluster for cluster, one in self.by_cluster.items() if not one.is_resumed])
        ends = may_end & ~is_first
        if (is_strong & is_first).any():
            ends |= is_strong & (self._checks_strong | self._filter.are_apart(batch))
        if is_single.all() and not ends.any():
            return []
        # The stops divide the entries of each CTA into stretches. It may resume at the first complete barrier of each.
        order = np.argsort(clusters, kind="stable")
        is_last = np.append(np.diff(clusters[order]) != 0, True)
        stops = np.flatnonzero(ends[order] | is_last)
        complete = np.flatnonzero((entries["kind"][order] == TraceEvent.COMPLETED) & (entries["number"][order] == 0))
        which, first = np.unique(np.searchsorted(stops, complete), return_index=True)
        complete = complete[first]
        pays = (stops[which] - complete >= FEWEST) | ~ends[order][stops[which]]
        is_first_of_cta = np.append(True, is_last[stops])[which]
        found = order[complete[pays & ~(is_first_of_cta & is_single[order][complete])]]
        return sorted(found.tolist())

    def _resume(self, batch: Batch, entry: int) -> None:
        """Resumes the CTA whose barrier an entry completes, if that is no single-barrier CTA and all its warps wait."""
        warp, generation = (int(batch.entries[column][entry]) for column in ("warp", "value"))
        cluster = int(self._clusters[warp])
        if cluster in self.by_cluster or cluster not in self._model.threads.clusters:
            return
        cta = self._model.threads.cta(cluster, 0)
        numbers = {batch.trace.who[n][2]: n for n in np.flatnonzero(self._clusters == cluster).tolist()}
        joint = self._barriers.take_joint(cta, generation) if len(numbers) == len(cta.warps) else None
        if joint is None:
            return
        self._generic.forget_flags(cluster)  # weak stores that overwrite some from now on may stay unseen
        base, site, times = joint
        warps = {number: times[index] + 1 for index, number in numbers.items()}
        filtered = self._filter.resume_cta(warps, SHARED_BYTES, generation)
        one = self.by_cluster[cluster] = _SingleBarrierCta(cta, filtered, self._now, base)
        one.is_resumed, one.first, one.since, one.site = True, generation, generation + 1, site
        one.arrivals = [[time] for time in times]
        for index, number in numbers.items():
            self._of_warps[number], self._owners[number] = one, owner(one.components, one.own[index])

    def _know_warps(self, batch: Batch) -> None:
        """Adds each warp that is traced for the first time to the filter."""
        new = batch.trace.who[len(self._clusters) :]
        if not new:
            return
        found = [(self.by_cluster.get(cluster), index) for cluster, _, index in new]
        owners = [0 if one is None else owner(one.components, one.own[index]) for one, index in found]
        self._of_warps += [one for one, _ in found]
        self._filter.add_warps([(one.filtered if one else None, index) for one, index in found])
        self._clusters = np.append(self._clusters, [cluster for cluster, _, _ in new])
        self._owners = np.append(self._owners, owners)

    def _pass_on(self, batch: Batch, which: Numbers) -> None:
        for event in batch.events(which) if len(which) else ():
            take = self._events.get(type(event))
            if take is not None:
                take(event)

    def _exit(self, exits: Iterable[events.Exited]) -> None:
        for event in exits:
            self._events[events.Exited](event)

    # ---- global memory ----

    def _take_global(self, now: int, batch: Batch, which: Numbers) -> None:
        """Handles accesses to global memory of part ``now``; each allocation knows whether they can be out of order."""
        part, met = batch.select(which), meetings(batch.entries)[which]
        chunks, counts = batch.chunks_of(which)
        entries = part.entries
        stores, scopes = entries["flags"] & Traced.STORE != 0, self._scopes[entries["site"]]
        if self._model.orders_by_strong:
            self._generic.overwrite(map(part.access, np.flatnonzero(stores).tolist()))
        flags = self._model.flags
        ctas = {warp: self._of(warp) for warp in np.unique(entries["warp"]).tolist()}
        for k in np.flatnonzero(scopes != WEAK).tolist() if flags.has_room else ():
            make = partial(self._accesses, ctas, now, part, [k], [int(which[k])], [int(met[k])])
            flags.later((now, int(which[k])), int(entries["lanes"][k]).bit_count(), make)
        flags.reached = (now, -1)
        owners = self._owners[entries["warp"]]
        if self._model.has_incoherent:
            owners = np.where(self._model.incoherent[entries["site"]], READ_ONLY, owners)
        owners, weak = (
            np.repeat(owners, counts),
            np.repeat((scopes < SCOPES["gpu"]) | self._model.has_mixed_sizes, counts),
        )
        kinds = np.where(scopes == WEAK, np.where(stores, WRITE, READ), np.where(stores, STRONG_WRITE, STRONG_READ))
        bases = entries["base"]
        if (bases[scopes != WEAK] == 0).any():
            # A strong access to several allocations stays in order with those to each of them.
            bases = np.zeros_like(bases)
        for base in np.unique(bases).tolist():
            mine = bases == base
            of_base = np.repeat(mine, counts)
            numbers = np.flatnonzero(mine).tolist(), which[mine].tolist(), met[mine].tolist()
            accesses = self._accesses(ctas, now, part, *numbers)
            touched = chunks[of_base] & (WHOLE_CHUNK - 1)
            if self._model.footprint is not None:
                is_whole, are = chunks[of_base] >= WHOLE_CHUNK, np.repeat(kinds, counts)[of_base]
                for kind in np.unique(kinds[mine]).tolist():
                    some = are == kind
                    self._model.note_chunks(base, kind, touched[some], touched[some & is_whole], None)
            self._model.add_pending_global(
                base, bool(stores[mine].any()), touched, owners[of_base], weak[of_base], int(mine.sum()), accesses
            )
        flags.reached = ALL

    def _hold(self, now: int, batch: Batch, accesses: Numbers) -> None:
        """Handles accesses to global memory as soon as the lanes of their warps are together.

        If anything else happens while lanes are apart, their accesses are checked one by one. ``now`` is the number of
        the part.
        """
        split = self._filter.split_warps()
        self._split = {warp: self._split[warp] if at is None else (now, at) for warp, at in split.items()}
        waiting, self._held = [*self._held, (now, batch, accesses)], []
        for number, part, which in waiting:
            is_held = self._is_since_split(number, part.entries["warp"][which], which)
            if is_held.any():
                self._held.append((number, part, which[is_held]))
            if not is_held.all():
                self._take_global(number, part, which[~is_held])

    def _is_since_split(self, number: int, warps: Numbers, at: Numbers) -> NDArray[np.bool_]:
        """Returns for each entry of a part of the trace whether its warp was diverged then and still is."""
        found = np.zeros(len(at), np.bool_)
        for warp, since in self._split.items():
            if since[0] <= number:
                found |= (warps == warp) & ((since[0] < number) | (at >= since[1]))
        return found

    def _accesses(
        self, ctas: dict[int, _SingleBarrierCta], now: int, part: Batch, which: list[int], at: list[int], met: list[int]
    ) -> Iterator[tuple[Access, Moment]]:
        """Yields accesses, each with its moment. ``at``: their entries in part ``now`` of the trace. ``met``: how often
        lanes of their warps had met before them in that part. ``ctas``: the CTAs by the numbers of their warps; when a
        caller asks, they may have ended long ago, or begun anew.
        """
        for k, entry, count in zip(which, at, met, strict=True):
            warp, time = int(part.entries["warp"][k]), int(part.entries["number"][k])
            moment = ctas[warp].moment(self._filter.index_of(warp), time, now, count)
            self._model.flags.reach((now, entry))
            for event in part.accesses(k):
                yield event, moment

    # ---- the kept trace ----

    def _drop(self, cluster: int) -> _SingleBarrierCta:
        """Ends the single-barrier state of a CTA."""
        one = self.by_cluster.pop(cluster)
        self._filter.remove_cta(one.filtered)
        held, self._held = self._held, []
        for number, part, which in held:
            others = which[~np.isin(part.entries["warp"][which], one.filtered.warps)]
            if len(others):
                self._held.append((number, part, others))
        return one

    def _give_up(self, cluster: int, stopped_at: int | None = None) -> tuple[Numbers, list[events.Exited]]:
        """Ends the single-barrier state of a CTA in which something else happens, and makes events of its trace since
        the last time that all its warps met. Shared memory gets the earlier accesses only if a finding may name them.

        The accesses to global memory have been handled already, except those of diverged lanes. ``stopped_at`` is the
        entry of the last part at which something else happened. Returns the CTA's entries from there on, and its exits,
        which the caller passes on.
        """
        one = self._drop(cluster)
        rest: Numbers = np.zeros(0, np.int64)
        kept = [*self._kept(one, cluster)]
        if self._begin_at(cluster, one, self._generations(kept, cluster, stopped_at)):
            moment = partial(self._moment, one)
            self._model.shared[cluster, 0].pass_barrier(Earlier(self._accesses_before(one, kept), moment))
        if one.site is not None:
            self._bring_up(cluster, one, one.site)
        for index, time in one.times.items():
            self._model.threads.cta(cluster, 0).warps[index].parts[0].become(one.moment(index, time))
        self._hand_over_unmet(cluster, one)
        for number, part, at in self._kept(one, cluster):
            if stopped_at is not None and part is self._parts[-1]:
                at, rest = at[at < stopped_at], at[at >= stopped_at]
                rest = rest[part.batch.entries["kind"][rest] != TraceEvent.EXITED]
            fences = np.flatnonzero(part.batch.entries["kind"][at] == TraceEvent.FENCED)
            for some in np.split(at, fences):
                self._pass_on_kept(cluster, one, number, part.batch, some)
        return rest, one.exits

    def _pass_on_kept(
        self, cluster: int, one: _SingleBarrierCta, number: int, batch: Batch, at: NDArray[np.int64]
    ) -> None:
        """Makes events of entries of a kept part, of which at most the first one is a fence."""
        entries = batch.entries[at]
        is_taken = np.isin(entries["kind"], self._filtered_kinds) & (entries["flags"] & Traced.GLOBAL != 0)
        is_taken &= ~self._is_since_split(number, entries["warp"], at)
        self._pass_on(batch, at[~is_taken & (entries["kind"] != TraceEvent.EXITED)])
        note(one.unmet, self._filter.index_of, number, batch, at, is_taken)
        self._hand_over_unmet(cluster, one)

    def _hand_over_unmet(self, cluster: int, one: _SingleBarrierCta) -> None:
        """Hands what lanes have done since they met over to their threads."""
        for index, unmet in one.unmet.items():
            for thread in self._model.threads.cta(cluster, 0).warps[index].parts:
                for interval, lanes in unmet.items():
                    moment = one.moment(index, *interval)
                    moment.lanes |= lanes
                    if moment not in thread.unmet:
                        thread.unmet.append(moment)
        one.unmet = {}

    def _kept(self, one: _SingleBarrierCta, cluster: int) -> Iterator[tuple[int, _Part, Numbers]]:
        """Yields the kept parts of a CTA's trace: the number, the part, and the CTA's entries in it."""
        for number in one.parts[bisect_left(one.parts, one.part) :]:
            part = self._parts[number - self._forgotten]
            at = np.flatnonzero(part.clusters == cluster)
            yield number, part, at[at > one.entry] if number == one.part else at

    def _bring_up(self, cluster: int, one: _SingleBarrierCta, site: Site) -> None:
        """Sets the threads to their knowledge at the barrier before the kept trace, where all wait, or have waited."""
        warps = self._model.threads.cta(cluster, 0).warps
        for index, warp in warps.items():
            arrived = one.arrived(index)
            for time, fenced in one.fences[index]:
                if time < arrived:
                    warp.parts[0].become(one.moment(index, time))
                    self._events[events.Fenced](fenced)
            warp.parts[0].become(one.moment(index, arrived))
        for index in warps:
            arrival = events.GroupArrived(Agent(cluster, 0, index, FULL_MASK), site, 0, one.since - 1, True)
            self._events[events.GroupArrived](arrival)
        for index in one.times:
            left = events.GroupLeft(Agent(cluster, 0, index, FULL_MASK), site, 0, one.since - 1)
            self._events[events.GroupLeft](left)

    def _forget(self) -> None:
        """Deletes what no finding can name any more. Gives a CTA up if all of a long trace may still be named."""
        middle = self._forgotten + len(self._parts) // 2
        for cluster, one in [*self.by_cluster.items()]:
            if not self._move(cluster, one) and one.part < middle:
                self._exit(self._give_up(cluster)[1])
        end = self._forgotten + len(self._parts)
        first = min((one.part for one in self.by_cluster.values()), default=end)
        del self._parts[: first - self._forgotten]
        self._forgotten = first
        self._count = sum(len(part.clusters) for part in self._parts)
        self._most = max(KEPT, 2 * self._count)

    def _move(self, cluster: int, one: _SingleBarrierCta) -> bool:
        """Moves the start of a CTA's kept trace forward. Returns False if it cannot."""
        arrived = self._filter.arrived(one.filtered)
        since = one.filtered.oldest_needed()
        if self._filter.is_split(one.filtered):
            return False
        if since is None and self._filter.left(one.filtered) == arrived == [one.since] * len(arrived):
            if any(one.fences):
                return False  # a later flag releases what came before them, and only the trace says what that is
            for number, part, at in self._kept(one, cluster):
                entries = part.batch.entries[at]
                is_global = np.isin(entries["kind"], self._filtered_kinds) & (entries["flags"] & Traced.GLOBAL != 0)
                note(one.unmet, self._filter.index_of, number, part.batch, at, is_global)
            one.part, one.entry, one.times = self._now, -1, self._filter.times(one.filtered)
            return True
        return self._begin_at(cluster, one, min(arrived, default=0) if since is None else since)

    def _generations(self, kept: list[tuple[int, _Part, Numbers]], cluster: int, stopped_at: int | None) -> int:
        """Returns how many generations of a CTA's barrier were complete when it stopped, or 0 if the trace has none."""
        for _, part, _ in reversed(kept):
            at = part.completed[part.clusters[part.completed] == cluster]
            if stopped_at is not None and part is self._parts[-1]:
                at = at[at < stopped_at]
            if len(at):
                return int(part.batch.entries["value"][at[-1]]) + 1
        return 0

    def _begin_at(self, cluster: int, one: _SingleBarrierCta, since: int) -> bool:
        """Lets the kept trace of a CTA begin when this many generations were complete. Returns False if it cannot."""
        if since <= one.since or len(one.filtered.warps) < len(one.own):
            return False
        for number in one.parts[bisect_left(one.parts, one.part) :]:
            part = self._parts[number - self._forgotten]
            at = part.completed[part.clusters[part.completed] == cluster]
            at = at[part.batch.entries["value"][at] == since - 1]
            if len(at):
                one.part, one.entry, one.since, one.times = number, int(at[0]), since, {}
                one.site = part.batch.trace.site(int(part.batch.entries["site"][at[0]]))
                one.drop_fences()
                return True
        return False

    def _accesses_before(self, one: _SingleBarrierCta, kept: Iterable[tuple[int, _Part, Numbers]]) -> list[Batch]:
        """Returns the accesses to shared memory of a trace before the kept one begins."""
        found = []
        for number, part, at in kept:
            if number > one.part:
                break
            at = at[at < one.entry] if number == one.part else at
            entries = part.batch.entries[at]
            is_access = np.isin(entries["kind"], [TraceEvent.ACCESS, TraceEvent.STRONG])
            found.append(part.batch.select(at[is_access & (entries["flags"] & Traced.SHARED != 0)]))
        return found

    def _moment(self, one: _SingleBarrierCta, warp: int, time: int) -> Moment:
        """Returns the moment of a warp, by its number in the trace."""
        return one.moment(self._filter.index_of(warp), time)


def _is_asynchronous(site: Site) -> bool:
    """Returns whether an instruction belongs to asynchronous operations, or depends on an earlier launch."""
    opcodes = ("clusterlaunchcontrol", "cp", "griddepcontrol", "mbarrier", "tcgen05", "tensormap", "wgmma")
    return site.opcode in opcodes or "async" in site.modifiers
