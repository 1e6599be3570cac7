"""Lanes of one warp that exchange data through shared memory must meet between the write and the read.

Since Volta the lanes of a warp may progress at different paces, even where they seem to execute together. Only
bar.warp.sync orders one lane's accesses before another lane's (PTX ISA 9.7.13.2); here, instructions that make lanes
wait for one another do, too: shfl, vote, elect, and barriers of all threads. A breach between loads and stores of
single lanes is an error: the compiler may move a load, which never reads what its own lane stored, above the store.
Compilers do not move collective and asynchronous instructions, so a breach with one of them is a warning. The other
parts of the checker treat lanes that execute together as ordered.

The time between two meetings of all lanes of a warp is an *interval*. Only intervals with both reads and writes are
checked byte by byte. Meetings of some lanes divide an interval into *epochs*; each lane knows the epochs of the others
that it has met, also through third lanes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from emugpu.check.model import SHARED_BYTES, Model, drop_cluster
from emugpu.emulator.machine.events import Access, Accesses, Agent, Operation, SharedChunks, Site
from emugpu.emulator.machine.lanes import FULL_MASK, lanes_of
from emugpu.emulator.memory.bytes import CHUNK, aligned_bytes

READERS = ("tma.store", "bulk.store", "mma", "tmem.copy")
"""Operations of one lane that read what other lanes may have written."""
ALONE = ("ld", "st", "atom", "red")
"""Instructions that each lane executes for itself."""
MANY_READ, MANY_WROTE = 32, 33
"""Stand for a lane if many lanes made the access together."""
LANE_BITS, EPOCH_BITS = 6, 12
LONGEST = 1 << 12
"""An interval with more accesses than this drops the earlier ones."""

Bytes = NDArray[np.int64]


class WarpInterval:
    """The accesses ("read" and "written") of a warp since its lanes met, and how many of them the marks include.

    ``met[i, j]`` is the first epoch of lane j that lane i does not know. Many lanes count as met after any meeting.
    """

    __slots__ = ("_done", "count", "epoch", "marked", "met", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self._done: dict[str, list[Access | Accesses]] = {"read": [], "written": []}
        self.count = self.epoch = 0
        self.marked = {"read": 0, "written": 0}
        self.met = np.zeros((MANY_WROTE + 1, MANY_WROTE + 1), np.int64)

    def add(self, what: str, accesses: Access | Accesses) -> None:
        self._done[what].append(accesses)
        self.count += len(accesses) if isinstance(accesses, Accesses) else 1

    def has(self, what: str) -> bool:
        return bool(self._done[what])

    def meet(self, members: int) -> None:
        """Begins an epoch: these lanes know what any of them knows, and what all of them have done."""
        lanes = lanes_of(members)[1]
        self.epoch += 1
        known = self.met[lanes].max(axis=0)
        known[lanes] = self.epoch
        self.met[lanes] = known
        self.met[MANY_READ:] = self.met[:, MANY_READ:] = self.epoch

    def have_not_met(self, lanes: Bytes | np.int64, marks: Bytes) -> NDArray[np.bool_]:
        """Returns for each marked access whether these lanes have not met the one that made it since then."""
        others, epochs = marks & (1 << LANE_BITS) - 1, marks >> LANE_BITS & (1 << EPOCH_BITS) - 1
        found: NDArray[np.bool_] = (others != lanes) & (epochs >= self.met[lanes, others])
        return found

    def all(self, what: str) -> list[Access]:
        """Returns all reads, or all writes, one by one."""
        found, marked = self._done[what], self.marked[what]
        new = found[marked:]  # those before are no runs
        if any(isinstance(one, Accesses) for one in new):
            found[marked:] = [event for one in new for event in (one if isinstance(one, Accesses) else (one,))]
        return found  # type: ignore[return-value]  # they are no runs now


class LaneMeetings:
    """Handles weak accesses to the shared memory of one's own CTA, and the events at which the lanes of a warp meet."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._intervals: dict[tuple[int, int, int], WarpInterval] = {}
        self._marks: dict[tuple[int, int, str], NDArray[np.int64]] = {}
        """By cluster, CTA, and "read" or "written": for each byte, the interval and lane of the last access."""
        self._count = 0
        self._reported: set[Site] = set()

    def meet(self, agent: Agent, members: int = FULL_MASK) -> None:
        """Handles a meeting: the lanes ``members`` of a warp have waited for one another."""
        members = self._model.threads.lanes_met(agent, members)
        interval = self._intervals.get(agent[:3])
        if interval is None or members == FULL_MASK or interval.epoch == (1 << EPOCH_BITS) - 1:
            self.end_interval(agent)
        else:
            self._mark(agent, interval, "read")
            self._mark(agent, interval, "written")
            interval.meet(members)

    def end_interval(self, agent: Agent) -> None:
        """Handles what may let some lanes of a warp wait for others."""
        self._intervals.pop(agent[:3], None)

    def access(self, event: Access) -> None:
        interval = self._interval(event.agent)
        mine, other = ("read", "written") if event.mode == "read" else ("written", "read")
        interval.add(mine, event)
        if interval.has(other) and event.site not in self._reported:
            self._mark(event.agent, interval, other)
            places, lanes = _spread(event)
            self._compare(event.agent, event.site, interval, other, places, lanes, mine)

    def accesses(self, run: Accesses) -> None:
        interval = self._interval(run.agent)
        mine, other = ("read", "written") if run.mode == "read" else ("written", "read")
        if interval.has(other) or interval.count + len(run) > LONGEST:
            for event in run:
                self.access(event)
        else:
            interval.add(mine, run)

    def issued(self, operation: Operation, agent: Agent) -> None:
        """Handles an asynchronous operation that reads shared memory for a lane."""
        interval = self._intervals.get(agent[:3])
        if interval is None or operation.kind not in READERS or operation.site in self._reported:
            return
        if not interval.has("written"):
            return
        self._mark(agent, interval, "written")
        lane = (agent.lanes & -agent.lanes).bit_length() - 1
        for region in operation.reads:
            if isinstance(region, SharedChunks) and region.cta == agent.cta:
                places = (region.chunks.ravel()[:, None] * CHUNK + np.arange(CHUNK)).ravel()
                self._compare(agent, operation.site, interval, "written", places, np.int64(lane), "read")

    def _interval(self, agent: Agent) -> WarpInterval:
        found = self._intervals.get(agent[:3])
        if found is None or found.count > LONGEST:
            self._count += 1
            found = self._intervals[agent[:3]] = WarpInterval(self._count)
        return found

    def _mark(self, agent: Agent, interval: WarpInterval, what: str) -> None:
        """Updates the marks of reads, or of writes."""
        key = (agent.cluster, agent.cta, what)
        marks = self._marks.get(key)
        if marks is None:
            marks = self._marks[key] = aligned_bytes(8 * SHARED_BYTES).view(np.int64)
        accesses = interval.all(what)
        for event in accesses[interval.marked[what] :]:
            places, lanes = _spread(event)
            marks[places] = (interval.number << EPOCH_BITS | interval.epoch) << LANE_BITS | lanes
        interval.marked[what] = len(accesses)

    def _compare(
        self,
        agent: Agent,
        site: Site,
        interval: WarpInterval,
        other: str,
        places: Bytes,
        lanes: Bytes | np.int64,
        mine: str,
    ) -> None:
        marks = self._marks[agent.cluster, agent.cta, other][places]
        foreign = (marks >> LANE_BITS + EPOCH_BITS == interval.number) & interval.have_not_met(lanes, marks)
        if not foreign.any():
            return
        place = int(places[int(foreign.argmax())])
        earlier = _last_at(interval.all(other), place)
        self._reported.add(site)
        alone = earlier.site.opcode in ALONE and site.opcode in ALONE
        self._model.say(
            "race-lanes", "error" if alone else "warning",
            f"a lane {'reads' if mine == 'read' else 'writes'} what another lane of its warp has {other}, and nothing "
            "makes one wait for the other",
            (earlier.site, earlier.agent), (site, agent), self._model.names.shared(place, agent.cta),
            "no bar.warp.sync between the two", "bar.warp.sync -1 (__syncwarp) between them",
        )  # fmt: skip

    def forget(self, cluster: int) -> None:
        drop_cluster(cluster, self._intervals, self._marks)


def _spread(event: Access) -> tuple[Bytes, Bytes | np.int64]:
    """Returns the bytes of an access with their lanes.

    It leaves out bytes that many lanes write, because each lane may read its own value.
    """
    nbytes, mask = event.nbytes * event.items, event.agent.lanes
    collective = "sync" in event.site.modifiers
    many = np.int64(MANY_READ if event.mode == "read" else MANY_WROTE)
    if isinstance(event.where, int):
        if not mask & (mask - 1):
            return event.where + np.arange(nbytes), np.int64(mask.bit_length() - 1)
        touched = nbytes if collective or event.mode == "read" else 0
        return event.where + np.arange(touched), many
    places = (np.asarray(event.where, np.int64)[:, None] + np.arange(nbytes)).ravel()
    if collective:
        return places, many
    lanes = np.repeat(lanes_of(mask)[1], nbytes)
    distinct, where, counts = np.unique(places, return_inverse=True, return_counts=True)
    if len(distinct) == len(places):
        return places, lanes
    alone = counts[where] == 1
    if event.mode == "read":
        return places, np.where(alone, lanes, many)
    return places[alone], lanes[alone]


def _last_at(events: Iterable[Access], place: int) -> Access:
    """Returns the last access that touches a byte."""
    return [event for event in events if place in _spread(event)[0]][-1]
