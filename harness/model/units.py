"""The units of an SM and of its memory, which serve one request after another, and their latencies.

A unit is a queue: a request starts when it arrives or when the unit is free, and occupies the unit for its bytes or
multiplications. Times are in cycles of the SM's clock from the start of the launch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp
from random import Random
from typing import Any

from emugpu.emulator.machine.state import Cta
from emugpu.emulator.memory.tensor_map import TensorMap
from emugpu.emulator.units.mma_instruction import Mma
from harness.model.boxes import LINE, SECTOR, alignment, in_a_row, lines_of, parts, row_of
from harness.model.constants import ENDLESS, GpuConstants
from harness.model.first_use import FirstUse
from harness.model.tcgen05 import K_BYTES, MmaTimes, form_of

SUB_PARTITIONS = 4
WGMMA_ROWS = 64
MOST_AT_ONCE = 64
"""The number of recent multiplications that a tensor core remembers."""
LEFT = 0.2
"""The part of a wait for DRAM that remains however far other clusters are ahead: 90 to 120 of 490 cycles in kernels
with events on an H200.
"""
LOAD_CYCLES, MOST_LOAD = 4000, 0.85
"""The cycles over which a unit's load is averaged, with decreasing weights, and the largest load."""


class Unit:
    """A queue with one server. ``busy`` counts the cycles in which it worked."""

    __slots__ = ("busy", "free")

    def __init__(self) -> None:
        self.free = 0.0
        self.busy = 0.0

    def serve(self, at: float, cycles: float) -> float:
        """Returns when a request is done that arrives at this time and takes ``cycles``."""
        start = at if at > self.free else self.free
        self.free = start + cycles
        self.busy += cycles
        return self.free

    def serve_soon(self, at: float, cycles: float, slack: float) -> float:
        """Returns the same, but serves a request after a pause at once if its average share is not exceeded. Up to
        ``slack`` cycles of the pause count.
        """
        return max(at, Unit.serve(self, at - slack, cycles))


class Contended(Unit):
    """A unit that all SMs of a GPU share, seen from the simulated ones.

    When these request something at once, others do so at other times. So a request after a pause is served soon, with
    ``slack`` cycles. Requests of others arrive before it at random: if the unit is busy for a part ``load`` of the
    time, a request waits for ``wait * load**2 / (1 - load)`` cycles: little while there is room, as in rings that find
    everything in L2. The load of the simulated SMs stands for that of all.
    """

    __slots__ = ("load", "seen", "slack", "wait")

    def __init__(self) -> None:
        super().__init__()
        self.slack = self.wait = 0.0
        self.load = 0.0
        """The part of the recent cycles in which it was busy, according to its requests."""
        self.seen = 0.0
        """The time up to which the load has been counted."""

    def serve(self, at: float, cycles: float) -> float:
        served = self.serve_soon(at, cycles, self.slack)
        if at > self.seen:
            self.load *= exp((self.seen - at) / LOAD_CYCLES)
            self.seen = at
        self.load += cycles / LOAD_CYCLES
        load = min(self.load, MOST_LOAD)
        return served + self.wait * load**2 / (1 - load)


class Tensor(Unit):
    """A tensor core, and when it has worked, as spans without gaps. ``ends`` are the ends of its recent work."""

    __slots__ = ("ends", "spans")

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[tuple[float, float]] = []
        self.ends: deque[float] = deque(maxlen=MOST_AT_ONCE)

    def room(self, depth: float) -> float:
        """Returns when it accepts one more, if it accepts ``depth`` at once."""
        return self.ends[-int(depth)] if len(self.ends) >= depth else 0.0

    def serve(self, at: float, cycles: float) -> float:
        before = self.free
        end = super().serve(at, cycles)
        if self.spans and end - cycles <= before:
            self.spans[-1] = (self.spans[-1][0], end)
        else:
            self.spans.append((end - cycles, end))
        self.ends.append(end)
        return end


class Dram(Unit):
    """DRAM. Reads are served as they arrive; writes wait in L2 until there is nothing to read, or no room.

    ``dirty``: bytes of L2 to be written, at most ``room``; ``rate``: bytes written per cycle.
    """

    __slots__ = ("dirty", "rate", "room", "seen")

    def __init__(self) -> None:
        super().__init__()
        self.dirty = 0.0
        self.room = self.rate = ENDLESS
        self.seen = 0.0
        """The time up to which the writes have been computed."""

    def serve(self, at: float, cycles: float) -> float:
        self._settle(at)
        return super().serve(at, cycles)

    def write(self, at: float, nbytes: float) -> float:
        """Returns when L2 has room for these bytes: older bytes must be written first if there is none."""
        self._settle(at)
        self.dirty += nbytes
        if self.dirty <= self.room:
            return at
        excess, self.dirty = self.dirty - self.room, self.room
        return super().serve(at, excess / self.rate)

    def _settle(self, at: float) -> None:
        idle = at - max(self.seen, self.free)
        if idle > 0 and self.dirty:
            written = min(self.dirty, idle * self.rate)
            self.dirty -= written
            self.busy += written / self.rate
        self.seen = max(self.seen, at)


@dataclass(frozen=True)
class Life:
    """The life of a CTA on an SM."""

    cluster: int
    cta: int
    start: float
    end: float


class Sm:
    """One multiprocessor: four sub-partitions that issue, a tensor core, a TMA engine for loads and stores, a port.

    ``maps``: the tensor maps it has used. ``lives``: the CTAs it has had. The four sub-partitions' tensor cores work as
    one. ``behind``: from -1 (served sooner than others if all wait for L2) to 1 (later).
    """

    def __init__(self, behind: float = 0.0) -> None:
        self.behind = behind
        self.issue = [Unit() for _ in range(SUB_PARTITIONS)]
        self.tensor = Tensor()
        self.boxes = Unit()
        self.tma = Unit()
        self.port = Unit()
        self.maps: set[int] = set()
        self.ctas = 0
        self.lives: list[Life] = []


@dataclass
class Traffic:
    """The moved bytes. ``l2``: between SMs and L2. ``dram``: read into L2 and written by stores."""

    l2_read: float = 0.0
    l2_written: float = 0.0
    dram: float = 0.0
    loads: int = 0
    stores: int = 0


@dataclass
class MemorySystem:
    """L2 and DRAM, or the share of a part of the GPU.

    ``share``: that part. ``miss``: fraction of the bytes read that come from DRAM. ``waits``: fraction of the loads
    from DRAM that wait for it; the others find that another SM has requested the data before. ``first_use``: which
    loads by tensor maps come from DRAM, if that is known (it decides who waits; ``miss`` decides the number of bytes);
    otherwise all may. ``coalesced``: bytes that L2 delivers per requested byte, by the alignment of the rows
    (`harness.model.sharing`). ``left``: bytes that the launch before has left in L2, still to be written. ``outside``:
    for each wave, these boxes' part of the bytes that all boxes have outside of their tensors. ``clusters``: how many
    of a GEMM's clusters are simulated at once, and stand for others; ENDLESS: nothing stands for others.
    """

    share: float
    clock: float
    miss: float = 1.0
    waits: float = 1.0
    coalesced: Mapping[int, float] = field(default_factory=dict)
    left: float = 0.0
    outside: Sequence[float] = (1.0,)
    first_use: FirstUse | None = None
    clusters: float = ENDLESS
    l2: Contended = field(default_factory=Contended)
    rows: Contended = field(default_factory=Contended)
    fill: Unit = field(default_factory=Unit)
    writes: Unit = field(default_factory=Unit)
    dram: Dram = field(default_factory=Dram)
    traffic: Traffic = field(default_factory=Traffic)

    def fresh(self) -> MemorySystem:
        """Returns the same memory without any work yet."""
        return replace(
            self, l2=Contended(), rows=Contended(), fill=Unit(), writes=Unit(), dram=Dram(), traffic=Traffic()
        )


class Units:
    """All units of the simulated part of a GPU. It decides when an asynchronous operation is done."""

    def __init__(self, gpu: GpuConstants, memory: MemorySystem) -> None:
        self.gpu = gpu
        self.memory = memory
        share = memory.share
        self.l2_rate = gpu["l2.bandwidth"] / memory.clock * share
        self.write_rate = gpu["l2.write_bandwidth"] / memory.clock * share
        self.write_row = gpu["l2.write_row"]
        self.write_slack = gpu["l2.write_slack"]
        self.write_slack_parts = gpu["l2.write_slack_parts"]
        for unit in (memory.l2, memory.rows):
            unit.slack = gpu["l2.slack"] / memory.clusters
            unit.wait = gpu["l2.wait"]
        self.dram_rate = gpu["dram.bandwidth"] / memory.clock * share
        memory.dram.rate = gpu["dram.write_bandwidth"] / memory.clock * share
        memory.dram.room = gpu["l2.dirty"] * share
        memory.dram.dirty = min(memory.left, memory.dram.room)
        self.port_rate = gpu["l2.port"]
        self.tma_issue = gpu["tma.issue"]
        self.tma_rate = gpu["tma.rate"]
        self.tma_box, self.tma_line = (gpu["tma.box"], gpu["tma.line"]) if gpu.has_tcgen05 else (0.0, 0.0)
        self.fill_rates = [gpu["l2.fill_bandwidth"] / memory.clock * part for part in memory.outside]
        self.cut_rows = gpu["tma.cut_rows"]
        self.split = {
            LINE: 1.0,
            64: gpu["tma.rows_of_64"],
            32: gpu["tma.rows_of_32"],
            16: gpu["tma.rows_of_16"],
        }
        rows = {LINE: "l2.rows_of_128", 64: "l2.rows_of_64", 32: "l2.rows_of_32", 16: "l2.rows_of_16"}
        self.row_rate = {aligned: gpu[name] / memory.clock * share for aligned, name in rows.items()}
        self.saved = {LINE: 1.0, 64: gpu["l2.saved_of_64"], 32: gpu["l2.saved_of_32"], 16: 0.0}
        self.uneven = gpu["l2.uneven"]
        self.request_rate = self.row_rate[16] / LINE * gpu["l2.requests_of_16"]
        self.hit_latency = gpu["tma.latency"] + gpu["l2.latency"]
        self.split_waits = gpu["l2.together_split"]
        self.l2_spread = gpu["l2.spread"]
        self.distances = Random(0)
        """Always the same seed, so that predictions do not change from run to run."""
        self.dram_latency = gpu["dram.latency"] * memory.clock
        self.dram_in_a_row = gpu["dram.in_a_row"] if gpu.has_tcgen05 else 1.0
        self.descriptor_latency = gpu["tma.descriptor"]
        self.cold = gpu["dram.cold"] if memory.miss > 0 else 0.0
        self.store_rate = gpu["tma.store_rate"]
        self.store_latency = gpu["tma.store_latency"]
        self.sectors = {16: gpu["tma.sectors_of_16"], 32: gpu["tma.sectors_of_32"]}
        self.cast_sectors = {16: gpu["tma.cast_sectors_of_16"], 32: gpu["tma.cast_sectors_of_32"]}
        self.stored_split = gpu["tma.stored_rows_of_16"]
        self.stored_sectors = gpu["tma.stored_sectors"]
        self.tensor_overhead = gpu["tensor.overhead"]
        self.tensor_each = gpu["tensor.per_instruction"]
        self.tensor_latency = gpu["tensor.latency"]
        self.tensor_queue = gpu["tensor.queue"]
        self.commit_latency = gpu["tensor.commit"]
        self.shared_rate = gpu["shared.port"]
        if gpu.has_tcgen05:
            self.mma_times = MmaTimes(gpu)
            self.tmem_latency = gpu["tmem.latency"]
        self.remote = gpu["barrier.remote"]
        self.cluster_control = gpu["launch.cluster_control"]
        self.descriptors: set[tuple[int, int, int]] = set()
        """The tensor maps that a CTA has fetched: its cluster, its rank, the map."""
        self._along_k: dict[tuple[int, int, int], tuple[int, int]] = {}
        """For each CTA and tensor: where along K its last box began, and how many tiles came before."""
        self._last_load: tuple[Any, float] = (None, 0.0)
        self.multiplied = (0.0, 0.0)
        """When the tensor core starts and ends the last issued multiplication."""
        self.pipes: dict[Any, float] = {}
        """When everything issued to a queue will be done."""

    # ---- copies ----

    def read_memory(
        self,
        at: float,
        nbytes: float,
        ready: float = 0.0,
        aligned: int = LINE,
        times: float = 1.0,
        behind: float = 0.0,
    ) -> float:
        """Returns when the last of the bytes for an SM arrive from L2 or through it, if L2 has them.

        ``at``: when they are requested, which is their place in the queues. ``ready``: when an SM has requested the
        last of them. ``aligned``: the alignment of their rows. ``times``: how many bytes L2 delivers for each, as it
        delivers whole sectors. ``behind``: that of the `Sm`. L2 saves time if it delivers once for several SMs, less if
        rows lie in two lines; the way to L2 saves nothing.
        """
        memory = self.memory
        memory.traffic.l2_read += nbytes
        saved = self.saved[aligned] * (1 - memory.coalesced.get(aligned, 1.0))
        leaves = max(
            ready,
            memory.l2.serve(at, nbytes * (1 - saved) * times / self.l2_rate),
            memory.rows.serve(at, nbytes / self.row_rate[aligned]),
        )
        if memory.miss > 0:
            missed = nbytes * memory.miss
            memory.traffic.dram += missed
            leaves = max(leaves, memory.dram.serve(at, missed / self.dram_rate))
        if aligned < LINE:
            leaves += self.uneven * behind * (leaves - max(at, ready))
        return leaves + self.hit_latency + self.l2_spread * (2 * self.distances.random() - 1)

    def dram_wait(self, aligned: int = LINE, new: float = 1.0, ahead: float = 0.0) -> float:
        """Returns by how many cycles bytes arrive later than from L2. ``new`` is the part that comes from DRAM;
        ``ahead`` the cycles by which others requested it before.
        """
        waits = new * self.memory.waits * (1.0 if aligned == LINE else self.split_waits)
        cycles = waits * self.dram_latency
        return max(LEFT * cycles, cycles - ahead)

    def tma_load(self, at: float, load: Any, destination: int, cta: Cta, sm: Sm) -> float:
        """Requests a box for one of its destination CTAs. Returns when it reaches that CTA's SM: early enough that the
        SM takes the last bytes as they arrive. Memory is read once, for the first of these CTAs.

        An SM also requests the parts outside of the tensor, but these are answered from one place.
        """
        nbytes = load.tmap.box_bytes
        aligned = alignment(load.tmap)
        cast = len(load.routes) > 1
        if self._last_load[0] is not load or destination == 0:
            part = parts(load.tmap, load.coordinates)
            # The rest of a cut row lies in no more lines than the whole row.
            longer = max(self.split[aligned], self.cut_rows if part.cut else 1.0)
            sent = self._send(at, load.tmap, longer, sm)
            sent += self._first_load(load, cta, sm)
            self.memory.traffic.loads += 1
            # The saving for several SMs was fitted to sectors of boxes without multicast.
            times = self._sectors(load) if cast else 1.0
            wave = self._walk(load, cta)
            arrives = self.read_memory(at, part.inside, sent, aligned, times, sm.behind)
            new, ahead = self._new(load, wave)
            if in_a_row(load.tmap):
                new *= self.dram_in_a_row
            arrives += self.dram_wait(aligned, new, ahead)
            if part.filled:
                filled = self.memory.fill.serve(at, part.filled / self.fill_rates[wave])
                arrives = max(arrives, filled + self.hit_latency)
            self._last_load = (load, arrives)
        return self._last_load[1] - nbytes * self._sectors(load) / self.port_rate

    def _send(self, at: float, box: TensorMap, longer: float, sm: Sm) -> float:
        """Returns when an SM's engine has requested all of a box. ``longer`` is the factor for the time of its rows.

        On a B200 the engine starts a box every few cycles, and requests a line every few cycles, even if a row needs
        few of its bytes; both overlap. For Hopper only their sum is known.
        """
        if self.tma_box:
            at = sm.boxes.serve(at, self.tma_box)
        cycles = max(box.box_bytes / self.tma_rate, lines_of(box) * self.tma_line)
        return sm.tma.serve(at, self.tma_issue + cycles * longer)

    def take(self, at: float, load: Any, sm: Sm) -> float:
        """Returns when an SM has taken a box through its port, where boxes follow one another as they arrive."""
        return sm.port.serve(at, load.tmap.box_bytes * self._sectors(load) / self.port_rate)

    def _sectors(self, load: Any) -> float:
        """Returns the ratio of the bytes in whole sectors to the bytes of the box."""
        sectors = self.cast_sectors if len(load.routes) > 1 else self.sectors
        return sectors.get(alignment(load.tmap), 1.0)

    def _first_load(self, load: Any, cta: Cta, sm: Sm) -> float:
        """Returns the extra time of the first load by a tensor map, for a CTA and for an SM."""
        cycles = 0.0
        key = cta.cluster.number, cta.rank, id(load.tmap)
        if key not in self.descriptors:
            self.descriptors.add(key)
            cycles += self.descriptor_latency
        if id(load.tmap) not in sm.maps:
            sm.maps.add(id(load.tmap))
            cycles += self.cold
        return cycles

    def _walk(self, load: Any, cta: Cta) -> int:
        """Advances a CTA to this load, once. Returns its wave, if that is known.

        Boxes of a tile come in their order along K, so one that begins before the last belongs to the next tile. With a
        single K step all belong to the first tile.
        """
        if self.memory.first_use is None:
            return 0
        k, address, cluster = load.coordinates[0], load.tmap.address, cta.cluster.number
        before, turn = self._along_k.get((cluster, cta.rank, address), (k, 0))
        turn += k < before
        self._along_k[cluster, cta.rank, address] = k, turn
        return self.memory.first_use.wave(cluster, turn)

    def _new(self, load: Any, wave: int) -> tuple[float, float]:
        """Returns the part of a box that comes from DRAM in a wave, if that is known, and the cycles by which others
        requested it before.
        """
        first_use = self.memory.first_use
        if first_use is None:
            return 1.0, 0.0
        k, row = load.coordinates
        if first_use.came_before(load.tmap, k):
            return 0.0, 0.0
        box = load.tmap.address, row, wave
        return first_use.new(*box), first_use.ahead(*box)

    def tma_store(self, at: float, box: TensorMap, coordinates: Sequence[int], sm: Sm) -> float:
        """Returns when the source may be written again: L2 takes the bytes as they are read, row by row, if it has
        room. Parts outside of the tensor are not written.
        """
        memory = self.memory
        nbytes = parts(box, coordinates).inside
        memory.traffic.l2_written += nbytes
        memory.traffic.dram += nbytes
        memory.traffic.stores += 1
        row = row_of(box)
        # A row that begins within a sector is read as one more sector, each of which takes longer.
        split = alignment(box) < SECTOR
        times = self.stored_sectors * (1 + SECTOR / row) if split else 1.0
        read = sm.tma.serve(at, self.tma_issue + times * nbytes / self.store_rate)
        times = self.stored_split if split else 1.0
        room = memory.dram.write(at, nbytes)
        # On the way to L2 each line of a row is a request, and there is one more if it begins within a sector.
        memory.rows.serve(at, nbytes / row * (-(-row // LINE) + split) / self.request_rate)
        slack = self.write_slack if row >= LINE else self.write_slack_parts
        taken = memory.writes.serve_soon(room, times * nbytes * (1 + self.write_row / row) / self.write_rate, slack)
        return max(taken, read) + self.store_latency

    # ---- the tensor core ----

    def wgmma(self, at: float, form: Any, sm: Sm) -> float:
        """Returns when a warpgroup's m64nNk16 (or the same bytes of K), issued now, is done."""
        compute = form.n / 2 * self.tensor_overhead + self.tensor_each
        operands = (form.n + (0 if form.a_in_registers else WGMMA_ROWS)) * K_BYTES / self.shared_rate
        cycles = max(compute, operands)
        done = sm.tensor.serve(at, cycles)
        self.multiplied = (done - cycles, done)
        return done + self.tensor_latency

    def mma(self, at: float, what: Mma, sms: list[Sm]) -> float:
        """Returns when a tcgen05.mma of one CTA or of a pair is done. Both tensor cores of a pair work in step."""
        form = form_of(what)
        start = max(at, *(sm.tensor.free for sm in sms))
        cycles = self.mma_times.interval(form, loaded=True)
        taken = max(sm.tensor.serve(start, cycles) for sm in sms)
        self.multiplied = (taken - cycles, taken)
        return taken - cycles + self.mma_times.latency(form)

    def in_order(self, pipe: Any, done: float) -> float:
        """Returns when an operation is done, which is not before earlier operations of the same pipe."""
        if pipe is None:
            return done
        done = max(done, self.pipes.get(pipe, 0.0))
        self.pipes[pipe] = done
        return done
