"""Runs one launch: clusters one after the other, warps and asynchronous operations as the schedule decides."""

from __future__ import annotations

import itertools
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import Deadlock, Fault
from ..memory import GlobalMemory
from ..mma import MmaUnit
from ..ptx.cfg import EXIT, sources
from ..tensor_map import TensorMap
from .barriers import CountingBarrier, MBarrier
from .counters import Counters, add_instructions
from .fragment import BLOCKED, FULL_MASK, SPLIT, SUSPENDED, Fragment, Waiting
from .grid import RESERVED_SHARED, Cluster
from .observer import Access, Observer, Operation
from .register_pool import registers_at_entry
from .schedule import AsyncOperation, FifoSchedule, RandomSchedule

if TYPE_CHECKING:
    from ..translate.program import Program

PARAM_WINDOW = 0x7E00_0000_0000
"""Generic address of the first byte of the kernel parameters."""
SHARED_WINDOW = 0x7F00_0000_0000
"""Generic address of shared::cluster address 0."""
MAX_IDLE_POLLS = 1000
"""How often in a row polling loops are told that nothing has happened, before that is called a deadlock."""


@dataclass(frozen=True)
class Launch:
    """Shape and arguments of one launch. ``parameters`` is the kernel's parameter block."""

    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int
    parameters: bytes
    tensor_maps: dict[int, tuple[str, TensorMap]] = field(default_factory=dict)
    """By generic address: a name for counters, and the map."""


class Machine:
    """State of a running launch."""

    def __init__(
        self,
        program: Program,
        launch: Launch,
        memory: GlobalMemory,
        mma_unit: MmaUnit,
        schedule: FifoSchedule | RandomSchedule,
        observers: Sequence[Observer] = (),
    ):
        self.program = program
        self.launch = launch
        self.memory = memory
        self.mma_unit = mma_unit
        self.schedule = schedule
        self.observers = tuple(observers)
        self.counters = Counters()
        self.shared_bytes = RESERVED_SHARED + program.static_shared + launch.dynamic_shared
        self.registers_at_entry = registers_at_entry(program.kernel.directives)
        self.ready: deque[Fragment] = deque()
        self.polling: list[Fragment] = []
        self.idle_polls = 0
        self.block_counts = [0] * len(program.functions)
        self.progress = 0
        """Grows whenever something happens that a polling loop could notice."""
        self.ids = itertools.count()
        self.cluster: Cluster | None = None

    # ---- running ----

    def run(self, progress: Callable[[int, int], None] | None = None) -> Counters:
        """Run every cluster of the grid to its end, in linear order; returns the counters."""
        launch = self.launch
        counts = [g // c for g, c in zip(launch.grid, launch.cluster, strict=True)]
        total = counts[0] * counts[1] * counts[2]
        done = 0
        for z in range(counts[2]):
            for y in range(counts[1]):
                for x in range(counts[0]):
                    self._run_cluster((x, y, z))
                    done += 1
                    if progress:
                        progress(done, total)
        families: Counter[str] = Counter()
        for histogram, times in zip(self.program.families, self.block_counts, strict=True):
            add_instructions(families, histogram, times)
        self.counters.instructions = dict(sorted(families.items()))
        self.counters.clusters = total
        return self.counters

    def _run_cluster(self, index: tuple[int, int, int]) -> None:
        cluster = self.cluster = Cluster(self, index)
        self.counters.ctas += len(cluster.ctas)
        slots = self.program.kernel.register_count
        for cta in cluster.ctas:
            for warp in cta.warps:
                fragment = Fragment(warp, warp.alive, [None] * slots, 0, [])
                warp.fragments.append(fragment)
                self.ready.append(fragment)
        self.schedule.drive(self)
        if cluster.living_threads:
            raise Deadlock(self._deadlock_report(cluster))
        for cta in cluster.ctas:
            for barrier in cta.mbarriers.values():
                if barrier.bytes:
                    raise Fault(
                        f"kernel '{self.program.kernel.name}', cluster {index}: the launch ended with "
                        f"{barrier.bytes} bytes pending on {barrier}: expect_tx and the copies' bytes differ"
                    )

    def run_fragment(self, fragment: Fragment, budget: int = 0) -> None:
        """Run until the fragment blocks, splits, joins or exits, or has run ``budget`` blocks (0: no limit)."""
        if fragment.block == fragment.join_block:
            fragment.arrive_at_join()
            return
        functions, counts, registers = self.program.functions, self.block_counts, fragment.registers
        join_block = fragment.join_block
        block = fragment.block
        try:
            while True:
                following = functions[block](fragment, registers)
                if following >= 0:
                    counts[block] += 1
                    block = following
                    if block == join_block:
                        fragment.block = block
                        fragment.arrive_at_join()
                        return
                    budget -= 1
                    if budget == 0:
                        fragment.block = block
                        self.ready.append(fragment)
                        return
                elif following == BLOCKED:
                    fragment.block = block
                    return
                else:
                    counts[block] += 1
                    if following == EXIT:
                        fragment.exit()
                    else:
                        assert following == SPLIT
                    return
        except (Fault, TypeError, AttributeError) as error:
            raise self._located(error, fragment) from error

    def resume(self, fragment: Fragment) -> None:
        fragment.waiting = None
        self.ready.append(fragment)

    def suspend(self, fragment: Fragment, on: Any, what: str, instruction: int) -> object:
        """Record why the fragment cannot go on; the caller keeps it where it will be resumed from."""
        fragment.waiting = Waiting(on, what, instruction)
        return SUSPENDED

    def release_pollers(self) -> bool:
        """Nothing else can run: let polling loops look again, if anything has happened since they last did.

        Where nothing has, they are told so a limited number of times: a loop may give up by itself.
        """
        again = [f for f in self.polling if f.polled != self.progress]
        idle = not again and self.idle_polls < MAX_IDLE_POLLS
        self.idle_polls = self.idle_polls + 1 if idle else 0
        if idle:
            again = self.polling
        self.polling = [f for f in self.polling if f not in again]
        for fragment in again:
            fragment.polled = -1 if idle else self.progress
            self.resume(fragment)
        return bool(again)

    # ---- asynchronous operations and observers ----

    def submit(self, operation: AsyncOperation) -> None:
        self.schedule.submit(operation)

    def complete(self, operation: AsyncOperation) -> None:
        try:
            operation.run()
        except Fault as error:
            fragment, index = operation.origin
            raise Fault(self._place(str(error), fragment, index, asynchronous=True)) from error

    def observe(
        self, kind: str, fragment: Fragment, instruction: int, accesses: Sequence[Access] = (), *, done: bool = False
    ) -> Operation:
        """Tell the observers that an operation was issued (and, if synchronous, completed)."""
        operation = Operation(
            next(self.ids),
            kind,
            self.program.kernel.instructions[instruction].line,
            fragment.cta.cluster.index,
            fragment.cta.rank,
            fragment.warp.index,
            fragment.mask,
            tuple(accesses),
        )
        for observer in self.observers:
            observer.issued(operation)
            if done:
                observer.completed(operation)
        return operation

    def observe_started(self, operation: Operation | None) -> None:
        if operation is not None:
            for observer in self.observers:
                observer.started(operation)

    def observe_completed(self, operation: Operation | None) -> None:
        if operation is not None:
            for observer in self.observers:
                observer.completed(operation)

    # ---- messages ----

    def _place(self, message: str, fragment: Fragment, index: int, asynchronous: bool = False) -> str:
        instruction = self.program.kernel.instructions[index]
        cta, warp = fragment.cta, fragment.warp
        lanes = "" if fragment.mask == FULL_MASK else f", lanes 0x{fragment.mask:08x}"
        when = " (while it completed asynchronously)" if asynchronous else ""
        return (
            f"kernel '{self.program.kernel.name}', PTX line {instruction.line}: {instruction.text}\n"
            f"  by CTA {cta.index} (rank {cta.rank} of its cluster), warp {warp.index}{lanes}{when}:\n"
            f"  {message}"
        )

    def _located(self, error: Exception, fragment: Fragment) -> Exception:
        """The error with the PTX instruction it came from; internal errors are returned as they are."""
        for frame, python_line in reversed(list(traceback.walk_tb(error.__traceback__))):
            if frame.f_code.co_filename != self.program.filename:
                continue
            index = self.program.instruction_at(python_line)
            if index is None:
                break
            if isinstance(error, Fault):
                return Fault(self._place(str(error), fragment, index))
            for register in sources(self.program.kernel.instructions[index]):
                if frame.f_locals.get(f"v{register.slot}", 0) is None:
                    member = fragment.warp.member
                    why = "never written, or a pending load"
                    if member is not None and member.pending(register.slot):
                        why = "a wgmma accumulates in it, and no wgmma.wait_group has covered that"
                    text = f"reads register {register.name}, which holds nothing yet ({why})"
                    return Fault(self._place(text, fragment, index))
            break
        return error

    def _deadlock_report(self, cluster: Cluster) -> str:
        """Who waits for what, and the state of everything somebody waits for."""
        instructions = self.program.kernel.instructions
        lines = [
            f"deadlock in kernel '{self.program.kernel.name}', cluster {cluster.index}: "
            "no warp can run and nothing asynchronous is under way"
        ]
        waits: dict[object, list[str]] = {}
        joins: list[str] = []
        for cta in cluster.ctas:
            for warp in cta.warps:
                for fragment in warp.fragments:
                    who = f"CTA rank {cta.rank} warp {warp.index} lanes 0x{fragment.mask:08x}"
                    waiting = fragment.waiting
                    if waiting is None:
                        block = self.program.blocks[fragment.block]
                        joins.append(f"  {who}: waits to re-join its warp at PTX line {instructions[block.first].line}")
                        continue
                    instruction = instructions[waiting.instruction]
                    text = f"    {who}: {waiting.what}, PTX line {instruction.line}: {instruction.text}"
                    waits.setdefault(waiting.on, []).append(text)
        for on, texts in waits.items():
            lines.append("  " + (on.describe() if isinstance(on, MBarrier | CountingBarrier) else str(on)))
            lines.extend(texts)
        return "\n".join(lines + joins)
