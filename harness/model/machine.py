"""The emulated machine with a clock: the earliest event happens next.

Warps run block by block, each at its time, and asynchronous operations complete when the units say so. So results that
depend on time are realistic: which warp polls, which CTA gets which tile, when a ring runs dry.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from emugpu.emulator import Device
from emugpu.emulator.errors import Fault
from emugpu.emulator.machine.code import BLOCKED
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.grid import Clusters
from emugpu.emulator.machine.machine import LIMIT_CHECK, Limits, Machine
from emugpu.emulator.machine.schedule import QuietSchedule
from emugpu.emulator.machine.state import AsyncOperation, Cluster, Cta, Fragment, Grid
from emugpu.emulator.machine.warpgroup import WarpgroupMma
from harness.model.constants import ENDLESS, GOLDEN, GpuConstants
from harness.model.costs import block_costs
from harness.model.units import Life, MemorySystem, Sm, Units

_CLUSTER_START = object()
WARPGROUP = 4
"""Warps that issue a wgmma together (PTX ISA 9.7.15)."""


class TimedTrace:
    """Receives the events with their cycles, in no particular order if several SMs are simulated. This one ignores
    everything.

    ``attach`` gets the machine before it runs. ``event`` gets what a sink of the emulator gets.
    """

    def attach(self, machine: Any) -> None: ...
    def event(self, event: Any) -> None: ...
    def cluster_started(self, cluster: Any, at: float) -> None: ...
    def ran(self, fragment: Any, block: int, start: float, end: float) -> None: ...
    def waited(self, fragment: Any, site: Any, since: float, until: float) -> None: ...
    def submitted(self, operation: Any, at: float, done: float) -> None: ...
    def completed(self, operation: Any, at: float) -> None: ...


class Issue:
    """The wgmma of one warpgroup that wait for room in the tensor core, with the earliest time of each, and the warps
    that wait until these are issued. ``at`` is when the last one was issued.
    """

    __slots__ = ("at", "held", "sm", "waiting")

    def __init__(self, sm: Sm) -> None:
        self.sm = sm
        self.waiting: deque[tuple[float, AsyncOperation]] = deque()
        self.held: list[tuple[float, Fragment]] = []
        self.at = 0.0


@dataclass(frozen=True, slots=True)
class BoxRequest:
    """A box of a load on its way to the units. ``at`` is the time of issue."""

    operation: AsyncOperation
    at: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """A box of a load reaches an SM. ``at`` is the time of the request."""

    operation: AsyncOperation
    at: float


class TimedSchedule(QuietSchedule):
    """The schedule of a timed machine: it decides when a submitted operation will be done."""

    splits_multicast = True

    def __init__(self) -> None:
        self.submitted: Callable[[AsyncOperation], None] = lambda operation: None

    def submit(self, operation: AsyncOperation) -> None:
        self.submitted(operation)

    def next(self, ready: Any, can_start: bool) -> Any:
        return None


class TimedMachine(Machine):
    """Runs one launch. ``end`` is the cycle in which its last cluster ended."""

    def __init__(
        self,
        grid: Grid,
        schedule: Any,
        clusters: Clusters,
        limits: Limits,
        gpu: GpuConstants,
        units: Units,
        sms: int,
        trace: TimedTrace | None = None,
        two_fit: bool = False,
    ) -> None:
        """Prepares a launch.

        With ``two_fit``, all CTAs of successive launches fit next to those of the launch before; if they wait for its
        end, they are prepared by then.
        """
        super().__init__(grid, schedule, clusters, limits)
        self.gpu = gpu
        self.units = units
        self.trace = trace or TimedTrace()
        self.costs = block_costs(grid.code, gpu)
        self.begin = gpu["launch.kernel"]
        self.prepares = two_fit and any(cost.follows for cost in self.costs)
        self.now = 0.0
        self.end = 0.0
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Any]] = []
        self.effect = 0.0
        """The time at which other warps can observe what happens now."""
        self._block: tuple[float, Any] | None = None
        """The running block: its start and its cost."""
        self._actor: Cta | None = None
        self._waits: dict[Fragment, tuple[float, Site]] = {}
        self._sms: dict[tuple[int, int], Sm] = {}
        self._arrived: dict[tuple[Cta, int], float] = {}
        """When a warp last arrived at an mbarrier of another CTA."""
        self._issues: dict[tuple[Cta, int], Issue] = {}
        # Successive values are far apart, so that CTAs of a cluster and of its neighbours are served differently.
        count = min(sms, clusters.capacity * clusters.size)
        self.sms = [Sm(2 * (n * GOLDEN % 1) - 1) for n in range(1, count + 1)]
        self._per_sm = -(-clusters.capacity * clusters.size // count)
        """CTAs that fit on an SM."""
        self._started: dict[tuple[int, int], float] = {}
        """Start times of the running CTAs, by cluster and rank."""
        self._wake = {
            "mbarrier": gpu["barrier.wake"],
            "bar": gpu["barrier.cta"],
            "wgmma": 0.0,
            "barrier": gpu["barrier.cluster"],
        }
        schedule.submitted = self._submit
        self.trace.attach(self)

    def sm(self, cta: Cta) -> Sm:
        return self._sms[cta.cluster.number, cta.rank]

    # ---- the loop ----

    def _loop(self) -> None:
        heap = self._heap
        self._launch(0.0 if self.prepares else self.begin)
        self._check_steps()
        turns = 0
        while True:
            if not heap:
                if not self._let_go() and not self.standby.carry_on():
                    break
                self._take_ready()
                continue
            self.now, _, item = heappop(heap)
            self.grid.clock = int(self.now)
            self.effect = self.now
            self._actor = None
            if item is _CLUSTER_START:
                self._start_cluster()
                self._take_ready()
            elif type(item) is Fragment:
                self._turn(item)
            elif type(item) is Issue:
                self._issue(item)
            elif type(item) is BoxRequest:
                self._ask(item, self.now)
            elif type(item) is Delivery:
                self._deliver(item)
            else:
                self.trace.completed(item, self.now)
                self._complete(item)
                self._take_ready()
            turns += 1
            if turns % LIMIT_CHECK == 0:
                self._check_limits()
        self.end = max([self.now, *(life.end for sm in self.sms for life in sm.lives)])

    def _push(self, at: float, item: Any) -> None:
        heappush(self._heap, (at, next(self._order), item))

    def _take_ready(self) -> None:
        """Makes woken fragments ready when the message has reached them."""
        ready = self.wakeups.ready
        while ready:
            fragment = ready.popleft()
            at = self.effect
            waited = self._waits.pop(fragment, None)
            if waited is not None:
                since, site = waited
                at += self._wake.get(site.opcode, 0.0)
                if self._actor is not None and self._actor is not fragment.cta and site.opcode == "mbarrier":
                    at += self.gpu["barrier.remote"]
                self.trace.waited(fragment, site, since, at)
            self._push(at, fragment)

    # ---- clusters ----

    def _start_all(self) -> None:
        """Starts the clusters one by one, each at its time."""

    def _launch(self, at: float) -> None:
        for _ in self.clusters.launched:
            self._push(at, _CLUSTER_START)

    def _start_cluster(self) -> None:
        super()._start_cluster()
        cluster = self.clusters.running[-1]
        taken: set[Sm] = set()
        for cta in cluster.ctas:
            # CTAs of one cluster share an SM only if no other SM has room, because they would advance together and wait
            # together.
            sm = min(self.sms, key=lambda each: (each.ctas >= self._per_sm, each in taken, each.ctas))
            taken.add(sm)
            sm.ctas += 1
            self._sms[cluster.number, cta.rank] = sm
            self._started[cluster.number, cta.rank] = self.now
        self.trace.cluster_started(cluster, self.now)

    def _end_if_done(self, cluster: Cluster) -> None:
        """Frees the room on an SM as soon as a CTA has ended, even if the rest of its cluster runs."""
        waiting = len(self.clusters.launched)
        number = cluster.number
        for cta in cluster.ctas:
            if cta.exited and (number, cta.rank) in self._started:
                sm = self.sm(cta)
                sm.ctas -= 1
                sm.lives.append(Life(number, cta.rank, self._started.pop((number, cta.rank)), self.effect))
                self.clusters.leave(number)
        ended = self.clusters.ended
        super()._end_if_done(cluster)
        if self.clusters.ended > ended:
            self._forget(cluster)
        for _ in range(len(self.clusters.launched) - waiting):
            self._push(self.effect + self.gpu["launch.cta"], _CLUSTER_START)

    def _forget(self, cluster: Cluster) -> None:
        for cta in cluster.ctas:
            del self._sms[cluster.number, cta.rank]
            for group in list(cta.warpgroups):
                self._issues.pop((cta, group), None)
            for warp in cta.warps:
                self._arrived.pop((cta, warp.index), None)

    # ---- warps ----

    def _turn(self, fragment: Fragment) -> None:
        """Runs blocks until the fragment waits, diverges or ends, or an earlier event is due."""
        functions, counts, costs, heap = self.code.functions, self.block_counts, self.costs, self._heap
        registers, join_block = fragment.registers, fragment.join_block
        cta = fragment.cta
        partition = self.sm(cta).issue[fragment.warp.index % 4]
        self._actor = cta
        at = self.now
        block = fragment.block
        while True:
            if block < 0 or block == join_block:
                fragment.block = block
                self._leave(fragment, block, at)
                return
            cost = costs[block]
            start = at if at > partition.free else partition.free
            self._block = (start, cost)
            self.effect = start + cost.signal
            before = self.grid.arrivals_elsewhere
            try:
                following = functions[block](fragment, registers)
            except (Fault, TypeError, AttributeError) as error:
                fragment.block = block
                raise self._error(error, fragment) from error
            self._block = None
            if following == BLOCKED:
                fragment.block = block
                if fragment.waiting is not None:
                    self._waits[fragment] = (start, fragment.waiting.site)
                self._take_ready()
                return
            counts[block] += 1
            partition.free = start + cost.slots
            partition.busy += cost.slots
            at = start + cost.cycles
            if self.grid.arrivals_elsewhere > before:
                self._arrived[cta, fragment.warp.index] = self.effect
            if cost.follows:
                at = max(at, self.begin)
            if cost.global_bytes:
                at = max(at, self._plain_access(start, cost.global_bytes))
            self.trace.ran(fragment, block, start, at)
            if following < 0:
                fragment.block = block
                self._leave(fragment, following, at)
                return
            if cost.multiplies and following != join_block and self._holds(fragment, at):
                fragment.block = following
                self._take_ready()
                return
            self._take_ready()
            block = following
            if heap and heap[0][0] < at:
                fragment.block = block
                self._push(at, fragment)
                return

    def _leave(self, fragment: Fragment, following: int, at: float) -> None:
        self.effect = at
        self._stop(fragment, following)
        self._take_ready()

    def _plain_access(self, at: float, nbytes: int) -> float:
        """Returns the time of loads and stores that are not tensor copies; they use the same L2."""
        return self.units.read_memory(at, nbytes) + self.units.dram_wait() - self.units.hit_latency

    # ---- asynchronous operations ----

    def _submit(self, operation: AsyncOperation) -> None:
        at = self.now
        if self._block is not None:
            start, cost = self._block
            at = start + cost.at.get(operation.site.index, 0.0)
        if isinstance(operation.subject, WarpgroupMma):
            issue = self._issue_of(operation.fragment)
            issue.waiting.append((at, operation))
            if len(issue.waiting) == 1:
                self._issue(issue)
            return
        self._start(operation, at)

    def _start(self, operation: AsyncOperation, at: float) -> None:
        if operation.kind == "tma.load":
            self._request(BoxRequest(operation, at))
        else:
            self._will_be_done(operation, at, self._finish(operation, at))

    def _request(self, request: BoxRequest) -> None:
        """Submits a load at once, or later if its warp has just arrived at another CTA's mbarrier."""
        fragment = request.operation.fragment
        arrived = self._arrived.get((fragment.cta, fragment.warp.index), -ENDLESS)
        heard = arrived + self.gpu["barrier.acknowledged"]
        if heard > request.at:
            self._push(heard, request)
        else:
            self._ask(request, request.at)

    def _ask(self, request: BoxRequest, at: float) -> None:
        load, destination = request.operation.subject
        cta = request.operation.fragment.cta
        reaches = self.units.tma_load(at, load, destination, cta, self.sm(cta))
        self._push(reaches, Delivery(request.operation, request.at))

    def _deliver(self, delivery: Delivery) -> None:
        load, number = delivery.operation.subject
        done = self.units.take(self.now, load, self.sm(load.routes[number][0]))
        self._will_be_done(delivery.operation, delivery.at, done)

    def _will_be_done(self, operation: AsyncOperation, at: float, done: float) -> None:
        done = self.units.in_order(operation.pipe, done)
        if operation.kind == "commit":
            done += self.units.commit_latency
        self.trace.submitted(operation, at, done)
        self._push(done, operation)

    def _issue_of(self, fragment: Fragment) -> Issue:
        key = fragment.cta, fragment.warp.index // WARPGROUP
        if key not in self._issues:
            self._issues[key] = Issue(self.sm(fragment.cta))
        return self._issues[key]

    def _issue(self, issue: Issue) -> None:
        """Issues as many as the tensor core has room for, and continues when there is room for the next."""
        while issue.waiting:
            earliest, operation = issue.waiting[0]
            room = issue.sm.tensor.room(self.units.tensor_queue)
            if room > max(earliest, self.now):
                self._push(room, issue)
                return
            issue.waiting.popleft()
            issue.at = max(earliest, room)
            self._start(operation, issue.at)
        for at, fragment in issue.held:
            self._push(max(at, issue.at), fragment)
        issue.held.clear()

    def _holds(self, fragment: Fragment, at: float) -> bool:
        """Returns whether the warp, at the end of a block with wgmma, must wait until all are issued: by the other
        warps of its warpgroup, and to a tensor core with room.
        """
        issue = self._issue_of(fragment)
        if not issue.waiting and not fragment.cta.warpgroups[fragment.warp.index // WARPGROUP].steps:
            return False
        issue.held.append((at, fragment))
        return True

    def _let_go(self) -> bool:
        """Releases held warps if nothing else happens, because the other warps need them to continue."""
        held = [(at, fragment) for issue in self._issues.values() for at, fragment in issue.held]
        for issue in self._issues.values():
            issue.held.clear()
        for at, fragment in held:
            self._push(max(at, self.now), fragment)
        return bool(held)

    def _finish(self, operation: AsyncOperation, at: float) -> float:
        """Returns when an operation will be done."""
        units, cta = self.units, operation.fragment.cta
        sm = self.sm(cta)
        subject = operation.subject
        match operation.kind:
            case "mma" if isinstance(subject, WarpgroupMma):
                return units.wgmma(at, subject.decoded.form, sm)
            case "mma":
                ctas = cta.pair if subject.cta_group == 2 else (cta,)
                return units.mma(at, subject, [self.sm(each) for each in ctas])
            case "tmem.copy":  # its share of the tensor core's time is not published, and counts as zero
                return at + units.tmem_latency
            case "tma.store.read":
                return units.tma_store(at, subject.tmap, subject.coordinates, sm)
            case "launch-control":
                return at + units.cluster_control
            case "commit" | "commit.arrive" | "tma.store.write" | "launch-control.response":
                return at
            case _:
                return at + units.hit_latency


class TimedDevice(Device):
    """An emulated GPU with a clock.

    ``computes``: whether data is moved and multiplied; otherwise only the time is computed. ``numbers``: the clusters
    of a grid that run here, or None for all. ``sms``, ``gpcs``: multiprocessors, and the GPCs, one of which a cluster
    needs, or None for all of the GPU. ``two_fit``: whether all CTAs of a launch fit next to those of the one before.
    ``machines``: one for each launch so far.
    """

    def __init__(
        self,
        gpu: GpuConstants,
        memory: MemorySystem,
        *,
        computes: bool,
        numbers: Sequence[int] | None = None,
        sms: int | None = None,
        gpcs: int | None = None,
        trace: TimedTrace | None = None,
        two_fit: bool = False,
    ) -> None:
        super().__init__(
            uninitialised="fault" if computes else "zero"
        )  # no copy has written the data that a kernel reads
        self.gpu = gpu
        self.l2_and_dram = memory
        self.computes = computes
        self.numbers = numbers
        self.sms = sms or gpu.sms
        self.gpcs = gpcs or len(gpu.gpcs)
        self.trace = trace
        self.two_fit = two_fit
        self.machines: list[TimedMachine] = []

    @property
    def allocated(self) -> int:
        """Returns the bytes of global memory."""
        return sum(nbytes for _, _, nbytes in self._memory.ranges())

    def _make_schedule(self) -> Any:
        return TimedSchedule()

    def _make_machine(self, grid: Grid, schedule: Any, clusters: Clusters, limits: Limits) -> Machine:
        grid.computes = self.computes
        numbers = range(clusters.total) if self.numbers is None else self.numbers
        clusters.take(numbers, self.gpcs)
        units = Units(self.gpu, self.l2_and_dram.fresh())
        machine = TimedMachine(grid, schedule, clusters, limits, self.gpu, units, self.sms, self.trace, self.two_fit)
        self.machines.append(machine)
        return machine
