"""Which clusters of a grid run, which start next, and which cluster launch control gives away (PTX ISA 9.7.13.17).

Every cluster is launched or granted exactly once. As many as the GPU holds are launched at once, in the order of their
numbers; whenever there is room for one again, the lowest that is left is launched. What has not been launched can be
granted.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence

from emugpu.emulator.errors import LaunchError
from emugpu.emulator.machine.register_pool import SM_REGISTERS
from emugpu.emulator.machine.state import Cluster
from emugpu.gpus import USUAL, usual_gpu

SM_THREADS = 2048
SM_CTAS = 32
SM_SHARED = 233_472
"""228 KiB (CUDA Programming Guide, compute capabilities 9.0 and 10.0); each CTA takes 1 KiB more than it asks for."""
_TARGET = re.compile(r"sm_(\d+)([af]?)\b")


def architecture(target: str) -> str:
    """The architecture that is emulated for PTX of a target; raises LaunchError if there is none that could run it.

    PTX for a target without a suffix runs on every later architecture. What is new in sm_103 is emulated on an sm_100.
    """
    found = _TARGET.match(target)
    number, suffix = (int(found[1]), found[2]) if found else (0, "")
    if number in (100, 103):
        return "sm_100"
    if number == 90 or (0 < number < 90 and not suffix):
        return "sm_90"
    raise LaunchError(
        f"PTX for {target}: the emulated GPUs are {' and '.join(USUAL)}, which cannot run it; "
        "compile it for sm_90a or sm_100a, or for sm_90 or an earlier target without a suffix"
    )


def emulated_name(target: str) -> str:
    """The target, and what is emulated where that is another architecture: "sm_90 for PTX of sm_80"."""
    emulated = architecture(target)
    return target if target.startswith(emulated) else f"{emulated} for PTX of {target}"


def residency(target: str, cluster_size: int, shared_bytes: int, threads: int, registers: int | None) -> int:
    """How many clusters the GPU holds at once.

    ``shared_bytes``: of one CTA, the reserved KiB included. ``registers``: of a thread, if the kernel fixes them. That
    the CTAs of a cluster share a GPC, which on real chips leaves some SMs without one, is not considered.
    """
    warps = -(-threads // 32)
    ctas = min(SM_THREADS // (32 * warps), SM_CTAS, SM_SHARED // shared_bytes)
    if registers:
        ctas = min(ctas, SM_REGISTERS // (registers * 32 * warps))
    return max(1, usual_gpu(architecture(target)).sms * max(1, ctas) // cluster_size)


class _Left:
    """The numbers of a range that are left: taken in their order, or with ``rng`` from random places of their circle.

    It remembers the numbers that were taken out of their order, and not those that are left: a grid may have billions.
    """

    def __init__(self, numbers: Sequence[int], rng: random.Random | None) -> None:
        self._numbers = numbers
        self._rng = rng
        self._next = 0
        """How many of the numbers that are left come before the next one."""
        self._taken: list[int] = []
        """Positions that were taken, in their order; without ``rng`` it is those before ``_first``."""
        self._first = 0

    def __len__(self) -> int:
        return len(self._numbers) - self._first - len(self._taken)

    def take(self) -> int:
        """The next number, which is no longer left."""
        if self._rng is None:
            self._first += 1
            return self._numbers[self._first - 1]
        left = len(self)
        rank = (self._next - self._rng.randrange(left)) % left
        # Before the taken position t with the index i there are t - i that are left.
        position = rank + bisect_right(range(len(self._taken)), rank, key=lambda i: self._taken[i] - i)
        insort(self._taken, position)
        self._next = rank % max(left - 1, 1)
        return self._numbers[position]


class Clusters:
    """``capacity``: how many run at once; ``size``: CTAs of each; ``rng``: if given, clusters start and are granted in
    random order, and requests fail at random."""

    def __init__(self, total: int, capacity: int, size: int, rng: random.Random | None) -> None:
        self.total = total
        self.capacity = capacity
        self.size = size
        self.rng = rng
        self.left = _Left(range(total), rng)
        """The clusters that are neither launched nor granted."""
        self.launched: deque[int] = deque()
        """Launched, but not running yet."""
        self.running: list[Cluster] = []
        self.granted = 0
        self.ended = 0
        self._room = [capacity * size]
        """Each GPC has room for so many CTAs more, where GPCs are told apart; a cluster is within one."""
        self._held: dict[int, tuple[int, int]] = {}
        """The GPC of each cluster that is launched or runs, by its number, and how many of its CTAs have not ended."""
        self._fill()

    def _fill(self) -> None:
        """The next cluster goes where most room is."""
        while self.left and max(self._room) >= self.size:
            number = self.left.take()
            gpc = self._room.index(max(self._room))
            self._room[gpc] -= self.size
            self._held[number] = gpc, self.size
            self.launched.append(number)

    def take(self, numbers: Sequence[int], gpcs: int = 1) -> None:
        """Let only these run here. They are spread over ``gpcs``, or over as many as have room for one each."""
        gpcs = min(gpcs, self.capacity)
        self.launched.clear()
        self._held.clear()
        self._room = [(self.capacity + n) // gpcs * self.size for n in range(gpcs)]
        self.left = _Left(numbers, self.rng)
        self.total = len(self.left)
        self._fill()

    @property
    def living(self) -> list[Cluster]:
        """Running clusters with threads that have not left."""
        return [cluster for cluster in self.running if cluster.living_threads]

    @property
    def can_start(self) -> bool:
        return bool(self.launched)

    def start(self) -> int:
        """The number of a cluster that is to run now. CUDA promises no order: at random, any may be the next."""
        if self.rng is not None:
            self.launched.rotate(self.rng.randrange(len(self.launched)))
        return self.launched.popleft()

    def leave(self, number: int) -> None:
        """A CTA of a running cluster has ended, and its room is free before the others' is."""
        gpc, ctas = self._held[number]
        self._held[number] = gpc, ctas - 1
        self._room[gpc] += 1
        self._fill()

    def end(self, cluster: Cluster) -> None:
        """Note that a cluster has ended: there is room for another one."""
        self.running.remove(cluster)
        self.ended += 1
        gpc, ctas = self._held.pop(cluster.number)
        self._room[gpc] += ctas
        self._fill()

    def grant(self) -> int | None:
        """A cluster that will not be launched but is done by whoever asked; None if there is none to give."""
        if not self.left:
            return None
        self.granted += 1
        return self.left.take()
