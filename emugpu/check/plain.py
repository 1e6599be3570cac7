"""CTAs whose warps have so far done no more than load, store, split up, become one again, and meet at one barrier.

Of such a CTA the interpreter says whether its accesses to shared memory are in order for certain (`sift` in its
library), and no events are made of them: the trace is kept, and what a warp knows follows from how often it has left
the barrier, its *epoch*. What lanes do while they are apart is in order for certain, too, as if they were together. As
soon as anything else happens in the CTA, events are made of all that a finding can still name, and the other parts of
the checker take it from there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.check.clocks import OWN, Clock
from emugpu.check.model import SHARED_BYTES, Model
from emugpu.check.shadow import owner
from emugpu.check.threads import Moment, TrackedCta
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Access, Agent, Site
from emugpu.emulator.machine.lanes import FULL_MASK
from emugpu.emulator.memory.bytes import CHUNK
from emugpu.emulator.native.layout import NOT_YET, WHOLE_CHUNK, Event, Sift, Sifted, SiftedCta, SiftedWarp, Traced
from emugpu.emulator.native.trace import Batch

KEPT = 1 << 20
"""Entries of the trace that are kept, after which those are forgotten that no finding can name any more."""
WORD = 4
"""Bytes of shared memory for which it is known which lane was the last."""
NUMBER = (1 << 32) - 1
"""In an arrival, the number of the warp; the time is above it."""
NOBODY = 0
"""The row of the table of CTAs that stands for all that are not plain."""
Numbers = NDArray[np.int64]


class _Plain:
    """A plain CTA, and its row of the table. own: its warps' components. numbers: of those that were seen in the trace,
    there; exits: of warps. What is kept of it begins behind an entry of a part of the trace, after generation ``since``
    of its barrier was complete, or from its start on; site: of that entry.
    """

    def __init__(self, cta: TrackedCta, row: int, part: int) -> None:
        self.row = row
        self.components, self._started = cta.cluster.components, cta.started
        self.shadow: NDArray[np.int32] = np.zeros((SHARED_BYTES // CHUNK, len(Sifted)), np.int32)
        self.marks: NDArray[np.int32] = np.zeros((2, SHARED_BYTES // WORD), np.int32)
        self.exits: list[events.Exited] = []
        self.part, self.entry, self.since = part, -1, 0
        self.site: Site | None = None
        self.own = [warp.parts[0].own for warp in cta.warps.values()]
        self.numbers: list[int] = []
        self.arrivals: list[list[int]] = [[] for _ in self.own]
        """The times at which each warp has arrived at the barrier."""
        self._moments: dict[tuple[int, int], Moment] = {}

    def moment(self, warp: int, time: int) -> Moment:
        """A warp at a time of its own: it knows all that the others had done before they arrived at the barrier that it
        has left last.
        """
        found = self._moments.get((warp, time))
        if found is None:
            epoch = bisect_left(self.arrivals[warp], time)
            clock = Clock(self.components)
            clock.rows[:, self._started] = 1
            if epoch:
                clock.rows[OWN[:, None], self.own] = [times[epoch - 1] for times in self.arrivals]
            clock.rows[OWN, self.own[warp]] = time
            found = self._moments[warp, time] = Moment(clock, self.own[warp], time)
        return found

    def oldest_needed(self) -> int | None:
        """Since how many generations of the barrier all that was ever accessed was written twice over; None: there is
        nothing.
        """
        touched = (self.shadow[:, Sifted.WRITE] | self.shadow[:, Sifted.READ]) != 0
        return int(self.shadow[touched, Sifted.WHOLE_BEFORE].min()) - 1 if touched.any() else None


@dataclass(eq=False)
class _Part:
    """A part of the trace that is kept. clusters: by entry; completed: the entries that end generations of barriers."""

    batch: Batch
    clusters: Numbers
    completed: Numbers


class PlainCtas:
    """Keeps plain CTAs of one launch from the other parts of the checker."""

    def __init__(
        self,
        model: Model,
        take: dict[type, Callable[[Any], None]],
        overwrite: Callable[[Iterable[Access]], None],
    ) -> None:
        """take: which part takes the events of each type. overwrite: is told of stores to global memory."""
        self._model, self._take, self._overwrite = model, take, overwrite
        self.by_cluster: dict[int, _Plain] = {}
        self._ctas: Numbers = np.zeros((1, len(SiftedCta)), np.int64)
        self._free: list[int] = []
        self._warps: Numbers = np.zeros((0, len(SiftedWarp)), np.int64)
        self._clusters: Numbers = np.zeros(0, np.int64)
        self._owners: Numbers = np.zeros(0, np.int64)
        self._plain: list[_Plain | None] = []
        """By the numbers that warps have in the trace: their clusters, who they are to allocations, and their CTAs."""
        self._apart: dict[int, tuple[int, int]] = {}
        """Of the warps whose lanes are apart, since which part of the trace, and which entry there."""
        self._held: list[tuple[int, Batch, Numbers]] = []
        """Accesses of those to global memory, with the number of the part."""
        self._parts: list[_Part] = []
        self._forgotten, self._count, self._most = 0, 0, KEPT

    def start(self, event: events.CtaStarted) -> None:
        """A CTA has started: a plain one, if it is alone in its cluster and findings may be told of later."""
        if self._model.threads.size > 1 or not self._model.defers:
            return
        if not self._free:
            rows = len(self._ctas)
            self._ctas = np.concatenate([self._ctas, np.zeros_like(self._ctas)])
            self._free += range(rows, 2 * rows)
        cta = self._model.threads.cta(event.cluster, event.cta)
        one = _Plain(cta, self._free.pop(), self._forgotten + len(self._parts))
        self.by_cluster[event.cluster] = one
        self._ctas[one.row] = 0
        self._ctas[one.row, [SiftedCta.ODD_AT, SiftedCta.WARPS]] = NOT_YET, event.warps
        self._ctas[one.row, [SiftedCta.SHADOW, SiftedCta.CHUNKS]] = one.shadow.ctypes.data, len(one.shadow)
        self._ctas[one.row, [SiftedCta.MARKS, SiftedCta.INTERVALS]] = one.marks.ctypes.data, event.warps + 1

    def is_plain(self, event: Any) -> bool:
        """Whether an event that Python has made is one of a plain CTA."""
        return bool(self.by_cluster) and getattr(getattr(event, "agent", event), "cluster", -1) in self.by_cluster

    def passes(self, event: Any) -> bool:
        """Whether an event that Python has made concerns nobody else. Most of those of a plain CTA end that."""
        kind = type(event)
        if kind not in self._take or kind is events.CtaStarted:
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
            self._give_up(agent.cluster)
        return False

    def take(self, batch: Batch) -> None:
        """Take a part of the trace."""
        if not self.by_cluster:
            self._tell(batch, np.arange(len(batch.entries)))
            return
        self._know_warps(batch)
        others, accesses, exits, completed, arrivals = self._sift(batch)
        for arrival in arrivals.tolist():
            warp = arrival & NUMBER
            self._of(warp).arrivals[self._warps[warp, SiftedWarp.INDEX]].append(arrival >> 32)
        self._hold(batch, accesses)
        for _, _, warp, lanes, *_ in batch.entries[exits].tolist():
            self._of(warp).exits.append(events.Exited(batch.trace.agent(warp, lanes)))
        if len(others) < len(batch.entries):
            self._parts.append(_Part(batch, self._clusters[batch.entries["warp"]], completed))
            self._count += len(batch.entries)
        for cluster, one in [*self.by_cluster.items()]:
            if (odd_at := int(self._ctas[one.row, SiftedCta.ODD_AT])) != NOT_YET:
                self._give_up(cluster, odd_at)
        self._tell(batch, others)
        if self._count > self._most or not self.by_cluster:
            self._forget()

    def end(self) -> None:
        """The run is over, perhaps by a fault: look at what lanes have done that are still apart."""
        for cluster in {int(self._clusters[warp]) for warp in self._apart}:
            if cluster in self.by_cluster:
                self._give_up(cluster)

    def _of(self, warp: int) -> _Plain:
        """The CTA of a warp that is, or was, in a plain one."""
        one = self._plain[warp]
        assert one is not None
        return one

    def _know_warps(self, batch: Batch) -> None:
        """Give a row to each warp that is traced for the first time."""
        new = batch.trace.who[len(self._warps) :]
        if not new:
            return
        rows, owners = [], []
        for number, (cluster, _, index) in enumerate(new, len(self._warps)):
            one = self.by_cluster.get(cluster)
            self._plain.append(one)
            row = [0] * len(SiftedWarp)
            row[SiftedWarp.CTA], row[SiftedWarp.INDEX] = NOBODY if one is None else one.row, index
            row[SiftedWarp.TIME], row[SiftedWarp.INTERVAL] = 1, index + 1
            rows.append(row)
            owners.append(0 if one is None else owner(one.components, one.own[index]))
            if one is not None:
                one.numbers.append(number)
        self._warps = np.concatenate([self._warps, np.array(rows, np.int64)])
        self._clusters = np.append(self._clusters, [cluster for cluster, _, _ in new])
        self._owners = np.append(self._owners, owners)

    def _sift(self, batch: Batch) -> list[Numbers]:
        """Lists entries: of other CTAs; of plain ones accesses to global memory, exits, and ends of generations."""
        count = len(batch.entries)
        lists = np.empty((Sift.LISTS, count), np.int64)
        table = np.zeros(len(Sift), np.int64)
        table[Sift.COUNT], table[Sift.CHUNK_COUNT] = count, len(batch.chunks)
        for field, array in (
            (Sift.LISTS, lists), (Sift.ENTRIES, batch.entries), (Sift.CHUNKS, batch.chunks), (Sift.WORDS, batch.words),
            (Sift.SIZES, batch.trace.sizes), (Sift.WARPS, self._warps), (Sift.CTAS, self._ctas),
        ):  # fmt: skip
            table[field] = array.ctypes.data
        self._warps[:, SiftedWarp.SPLIT_AT] = -1
        batch.trace.library.sift(table.ctypes.data)
        return [found[:length] for found, length in zip(lists, table.tolist(), strict=False)]

    def _tell(self, batch: Batch, which: Numbers) -> None:
        for event in batch.events(which) if len(which) else ():
            take = self._take.get(type(event))
            if take is not None:
                take(event)

    # ---- global memory ----

    def _take_global(self, batch: Batch, which: Numbers) -> None:
        """Take accesses to global memory; each allocation knows whether they can be out of order."""
        part = batch.select(which)
        chunks, counts = batch.chunks_of(which)
        entries = part.entries
        stores = entries["flags"] & Traced.STORE != 0
        self._overwrite(map(part.access, np.flatnonzero(stores).tolist()))
        owners = np.repeat(self._owners[entries["warp"]], counts)
        for base in np.unique(entries["base"]).tolist():
            mine = entries["base"] == base
            its = np.repeat(mine, counts)
            accesses = self._accesses(part, np.flatnonzero(mine).tolist())
            touched = chunks[its] & (WHOLE_CHUNK - 1)
            self._model.note_global(base, bool(stores[mine].any()), touched, owners[its], int(mine.sum()), accesses)

    def _hold(self, batch: Batch, accesses: Numbers) -> None:
        """Take accesses to global memory as soon as the lanes of their warps are together: what those do that are apart
        is looked at one by one if anything else happens in between.
        """
        now, split_at = self._forgotten + len(self._parts), self._warps[:, SiftedWarp.SPLIT_AT].tolist()
        are_apart = (self._warps[:, SiftedWarp.APART] != 0) & (self._warps[:, SiftedWarp.CTA] != NOBODY)
        apart = np.flatnonzero(are_apart).tolist()
        self._apart = {warp: (now, at) if (at := split_at[warp]) >= 0 else self._apart[warp] for warp in apart}
        waiting, self._held = [*self._held, (now, batch, accesses)], []
        for number, part, which in waiting:
            is_held = self._is_since_apart(number, part.entries["warp"][which], which)
            if is_held.any():
                self._held.append((number, part, which[is_held]))
            if not is_held.all():
                self._take_global(part, which[~is_held])

    def _is_since_apart(self, number: int, warps: Numbers, at: Numbers) -> NDArray[np.bool_]:
        """Of entries of a part of the trace, whether they are of lanes that have been apart since."""
        found = np.zeros(len(at), np.bool_)
        for warp, since in self._apart.items():
            if since[0] <= number:
                found |= (warps == warp) & ((since[0] < number) | (at >= since[1]))
        return found

    def _accesses(self, part: Batch, which: list[int]) -> Iterator[tuple[Access, Moment]]:
        """Accesses, each with the moment. That may be asked when the CTAs have long ended."""
        for k in which:
            warp, time = int(part.entries["warp"][k]), int(part.entries["number"][k])
            yield part.access(k), self._of(warp).moment(int(self._warps[warp, SiftedWarp.INDEX]), time)

    # ---- what is kept ----

    def _drop(self, cluster: int) -> _Plain:
        """A CTA is plain no longer."""
        one = self.by_cluster.pop(cluster)
        self._warps[one.numbers, SiftedWarp.CTA] = NOBODY
        held, self._held = self._held, []
        for number, part, which in held:
            others = which[~np.isin(part.entries["warp"][which], one.numbers)]
            if len(others):
                self._held.append((number, part, others))
        self._free.append(one.row)
        one.shadow, one.marks = one.shadow[:0].copy(), one.marks[:0].copy()
        return one

    def _give_up(self, cluster: int, odd_at: int | None = None) -> None:
        """Something else happens in a CTA: make events of what is kept of it. odd_at: of the last part, from where on
        that includes accesses to global memory; those before are taken, but for what lanes have done that are apart.
        """
        one = self._drop(cluster)
        if one.site is not None:
            self._bring_up(cluster, one, one.site)
        for number, part, at in self._kept(one, cluster):
            entries = part.batch.entries[at]
            is_taken = (entries["kind"] == Event.ACCESS) & (entries["flags"] & Traced.GLOBAL != 0)
            if odd_at is not None and part is self._parts[-1]:
                is_taken &= at < odd_at
            is_taken &= ~self._is_since_apart(number, entries["warp"], at)
            self._tell(part.batch, at[~is_taken & (entries["kind"] != Event.EXITED)])
        for event in one.exits:
            self._take[events.Exited](event)

    def _kept(self, one: _Plain, cluster: int) -> Iterator[tuple[int, _Part, Numbers]]:
        """The parts of the trace that are kept of a CTA, by their numbers, with its entries in each."""
        for number, part in enumerate(self._parts[one.part - self._forgotten :], one.part):
            at = np.flatnonzero(part.clusters == cluster)
            yield number, part, at[at > one.entry] if number == one.part else at

    def _bring_up(self, cluster: int, one: _Plain, site: Site) -> None:
        """Have threads know what they knew where what is kept begins: all are at the barrier, and none has left."""
        warps = self._model.threads.cta(cluster, 0).warps
        for index, warp in warps.items():
            warp.parts[0].become(one.moment(index, one.arrivals[index][one.since - 1]))
        for index in warps:
            arrival = events.GroupArrived(Agent(cluster, 0, index, FULL_MASK), site, 0, one.since - 1, True)
            self._take[events.GroupArrived](arrival)

    def _forget(self) -> None:
        """Forget what no finding can name any more; give a CTA up of which that is nothing, and much is kept."""
        middle = self._forgotten + len(self._parts) // 2
        for cluster, one in [*self.by_cluster.items()]:
            if not self._move(cluster, one) and one.part < middle:
                self._give_up(cluster)
        end = self._forgotten + len(self._parts)
        first = min((one.part for one in self.by_cluster.values()), default=end)
        del self._parts[: first - self._forgotten]
        self._forgotten = first
        self._count = sum(len(part.clusters) for part in self._parts)
        self._most = max(KEPT, 2 * self._count)

    def _move(self, cluster: int, one: _Plain) -> bool:
        """Have what is kept of a CTA begin later, if it can."""
        arrived = self._warps[one.numbers, SiftedWarp.ARRIVED]
        since = one.oldest_needed()
        if self._warps[one.numbers, SiftedWarp.APART].any():
            return False
        if since is None and not arrived.any():
            one.part, one.entry = self._forgotten + len(self._parts), -1
            return True
        since = int(arrived.min(initial=0)) if since is None else since
        if since <= one.since or len(one.numbers) < len(one.own):
            return False
        for number, part in enumerate(self._parts):
            at = part.completed[part.clusters[part.completed] == cluster]
            at = at[part.batch.entries["value"][at] == since - 1]
            if len(at):
                one.part, one.entry, one.since = self._forgotten + number, int(at[0]), since
                one.site = part.batch.trace.site(int(part.batch.entries["site"][at[0]]))
                return True
        return False
