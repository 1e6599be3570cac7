"""Which clusters of a grid run, which start next, and which cluster launch control grants (PTX ISA 9.7.13.17).

Every cluster is launched or granted exactly once. At first, as many clusters as the GPU holds are launched in the order
of their numbers. Whenever there is room again, the one with the lowest number that is left is launched. A cluster that
has not been launched can be granted.
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
"""228 KiB (CUDA Programming Guide, compute capabilities 9.0 and 10.0). Each CTA takes 1 KiB more than it asks for."""
_TARGET = re.compile(r"sm_(\d+)([af]?)\b")


def architecture(target: str) -> str:
    """Returns the architecture that is emulated for PTX of a target. Raises LaunchError if none could run it.

    PTX for a target without a suffix runs on every later architecture. The features of sm_103 are emulated on an
    sm_100.
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
    """Returns the target, and the emulated architecture if it is another one: "sm_90 for PTX of sm_80"."""
    emulated = architecture(target)
    return target if target.startswith(emulated) else f"{emulated} for PTX of {target}"


def residency(target: str, cluster_size: int, shared_bytes: int, threads: int, registers: int | None) -> int:
    """Returns how many clusters the GPU holds at once.

    ``shared_bytes``: shared memory of one CTA, with the reserved KiB. ``registers``: registers of a thread, if the
    kernel fixes them. On real chips the CTAs of a cluster share a GPC, which leaves some SMs unused; this is not
    modelled.
    """
    warps = -(-threads // 32)
    ctas = min(SM_THREADS // (32 * warps), SM_CTAS, SM_SHARED // shared_bytes)
    if registers:
        ctas = min(ctas, SM_REGISTERS // (registers * 32 * warps))
    return max(1, usual_gpu(architecture(target)).sms * max(1, ctas) // cluster_size)


class _Left:
    """The numbers of a range that are left: taken in order or, with ``rng``, from random places of their circle.

    The object stores the numbers that were taken out of order, not those that are left: a grid may have billions.
    """

    def __init__(self, numbers: Sequence[int], rng: random.Random | None) -> None:
        self._numbers = numbers
        self._rng = rng
        self._next = 0
        """How many of the numbers that are left come before the next one."""
        self._taken: list[int] = []
        """The taken positions, in increasing order. Without ``rng``, they are those before ``_first``."""
        self._first = 0

    def __len__(self) -> int:
        return len(self._numbers) - self._first - len(self._taken)

    def take(self) -> int:
        """Removes the next number and returns it."""
        if self._rng is None:
            self._first += 1
            return self._numbers[self._first - 1]
        left = len(self)
        rank = (self._next - self._rng.randrange(left)) % left
        # Before the taken position t with the index i, t - i positions are left.
        position = rank + bisect_right(range(len(self._taken)), rank, key=lambda i: self._taken[i] - i)
        insort(self._taken, position)
        self._next = rank % max(left - 1, 1)
        return self._numbers[position]


class Clusters:
    """The clusters of a grid: launched, running, granted and left.

    ``capacity``: how many run at once. ``size``: the number of CTAs in each. ``rng``: if given, clusters start and are
    granted in random order, and requests fail at random.
    """

    def __init__(self, total: int, capacity: int, size: int, rng: random.Random | None) -> None:
        self.total = total
        self.capacity = capacity
        self.size = size
        self.rng = rng
        self.left = _Left(range(total), rng)
        """The clusters that are neither launched nor granted."""
        self.launched: deque[int] = deque()
        """The clusters that are launched but do not run yet."""
        self.running: list[Cluster] = []
        self.granted = 0
        self.ended = 0
        self._room = [capacity * size]
        """For each GPC, the number of CTAs it has room for.

        A cluster lies within one GPC; by default there is one GPC.
        """
        self._held: dict[int, tuple[int, int]] = {}
        """For each cluster that is launched or runs, by number: its GPC, and how many of its CTAs have not ended."""
        self._fill()

    def _fill(self) -> None:
        """Launches clusters while there is room, each in the GPC that has the most."""
        while self.left and max(self._room) >= self.size:
            number = self.left.take()
            gpc = self._room.index(max(self._room))
            self._room[gpc] -= self.size
            self._held[number] = gpc, self.size
            self.launched.append(number)

    def take(self, numbers: Sequence[int], gpcs: int = 1) -> None:
        """Lets only these clusters run here, spread over ``gpcs`` GPCs or as many as have room for one cluster each."""
        gpcs = min(gpcs, self.capacity)
        self.launched.clear()
        self._held.clear()
        self._room = [(self.capacity + n) // gpcs * self.size for n in range(gpcs)]
        self.left = _Left(numbers, self.rng)
        self.total = len(self.left)
        self._fill()

    @property
    def living(self) -> list[Cluster]:
        """The running clusters that have threads left."""
        return [cluster for cluster in self.running if cluster.living_threads]

    @property
    def can_start(self) -> bool:
        return bool(self.launched)

    def start(self) -> int:
        """Returns the number of the cluster to run next. CUDA promises no order, so with ``rng`` it may be any."""
        if self.rng is not None:
            self.launched.rotate(self.rng.randrange(len(self.launched)))
        return self.launched.popleft()

    def leave(self, number: int) -> None:
        """Frees the room of one CTA of a running cluster, which has ended before the others."""
        gpc, ctas = self._held[number]
        self._held[number] = gpc, ctas - 1
        self._room[gpc] += 1
        self._fill()

    def end(self, cluster: Cluster) -> None:
        """Records that a cluster has ended, so that there is room for another one."""
        self.running.remove(cluster)
        self.ended += 1
        gpc, ctas = self._held.pop(cluster.number)
        self._room[gpc] += ctas
        self._fill()

    def grant(self) -> int | None:
        """Grants a cluster to a requester, so that it is not launched. Returns None if none is left."""
        if not self.left:
            return None
        self.granted += 1
        return self.left.take()
