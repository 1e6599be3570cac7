"""Which clusters of a grid run, which start next, and which cluster launch control grants (PTX ISA 9.7.13.17).

Every cluster is launched or granted exactly once. At first, as many clusters as the GPU holds are launched in the order
of their numbers. Whenever there is room again, the one with the lowest number that is left is launched. A cluster that
has not been launched can be granted. CUDA promises no order, but hardware keeps this one, and libraries rely on it
(CUB's decoupled look-back).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from emugpu.emulator.errors import LaunchError
from emugpu.emulator.machine.register_pool import SM_REGISTERS
from emugpu.emulator.machine.state import Cluster, Fragment
from emugpu.gpus import USUAL, usual_gpu


class SmLimits(NamedTuple):
    """What one SM holds at once. shared: bytes of shared memory; a CTA takes 1 KiB more of it than it asks for."""

    threads: int
    ctas: int
    shared: int


DATA_CENTRE, CONSUMER = SmLimits(2048, 32, 228 << 10), SmLimits(1536, 24, 100 << 10)
_LIMITS = {"sm_90": DATA_CENTRE, "sm_100": DATA_CENTRE, "sm_103": DATA_CENTRE, "sm_120": CONSUMER, "sm_121": CONSUMER}
"""CUDA Programming Guide, compute capabilities."""
_TARGET = re.compile(r"sm_(\d+)([af]?)\b")


def architecture(target: str) -> str:
    """Returns the architecture that is emulated for PTX of a target. Raises LaunchError if none could run it.

    PTX for a target without a suffix runs on every later architecture. sm_120 has neither wgmma nor tcgen05.
    """
    found = _TARGET.match(target)
    number, suffix = (int(found[1]), found[2]) if found else (0, "")
    if number in (100, 103, 120, 121):
        return f"sm_{number}"
    if number == 90 or (0 < number < 90 and not suffix):
        return "sm_90"
    raise LaunchError(
        f"PTX for {target}: the emulated GPUs are {', '.join(USUAL)}, which cannot run it; "
        "compile it for one of them, or for an earlier target without a suffix"
    )


def emulated_name(target: str) -> str:
    """Returns the target, and the emulated architecture if it is another one: "sm_90 for PTX of sm_80"."""
    emulated = architecture(target)
    return target if target.startswith(emulated) else f"{emulated} for PTX of {target}"


def sm_limits(target: str) -> SmLimits:
    """Returns what an SM holds of the GPU that is emulated for PTX of a target."""
    return _LIMITS[architecture(target)]


def residency(target: str, cluster_size: int, shared_bytes: int, threads: int, registers: int | None) -> int:
    """Returns how many clusters the GPU holds at once.

    ``shared_bytes``: shared memory of one CTA, with the reserved KiB. ``registers``: registers of a thread, if the
    kernel fixes them. On real chips the CTAs of a cluster share a GPC, which leaves some SMs unused; this is not
    modelled.
    """
    warps = -(-threads // 32)
    limits = sm_limits(target)
    ctas = min(limits.threads // (32 * warps), limits.ctas, limits.shared // shared_bytes)
    if registers:
        ctas = min(ctas, SM_REGISTERS // (registers * 32 * warps))
    return max(1, usual_gpu(architecture(target)).sms * max(1, ctas) // cluster_size)


class Clusters:
    """The clusters of a grid: launched, running, granted and left.

    ``capacity``: how many run at once. ``size``: the number of CTAs in each. ``reverses``: clusters start and are
    granted in the reverse order of their numbers.
    """

    def __init__(self, total: int, capacity: int, size: int, reverses: bool = False) -> None:
        self.total = total
        self.capacity = capacity
        self.size = size
        self.reverses = reverses
        self._numbers: Sequence[int] = range(total)[::-1] if reverses else range(total)
        self._taken = 0
        """How many of the numbers were launched or granted."""
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

    @property
    def left(self) -> int:
        """The number of clusters that are neither launched nor granted."""
        return len(self._numbers) - self._taken

    def _take(self) -> int:
        self._taken += 1
        return self._numbers[self._taken - 1]

    def _fill(self) -> None:
        """Launches clusters while there is room, each in the GPC that has the most."""
        while self.left and max(self._room) >= self.size:
            number = self._take()
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
        self._numbers, self._taken = numbers[::-1] if self.reverses else numbers, 0
        self.total = len(numbers)
        self._fill()

    @property
    def living(self) -> list[Cluster]:
        """The running clusters that have threads left."""
        return [cluster for cluster in self.running if cluster.living_threads]

    @property
    def fragments(self) -> list[Fragment]:
        """The fragments of the running clusters."""
        return [f for cluster in self.living for cta in cluster.ctas for warp in cta.warps for f in warp.fragments]

    @property
    def can_start(self) -> bool:
        return bool(self.launched)

    @property
    def in_row(self) -> int:
        """The number of clusters that have not started, if they start in the order of their numbers; or else 0."""
        in_order = isinstance(self._numbers, range) and self._numbers.step == 1
        return len(self.launched) + self.left if in_order else 0

    def start(self) -> int:
        """Returns the number of the cluster to run next."""
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
        return self._take()
