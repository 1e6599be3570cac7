"""The registers of a CTA, which its warps exchange with setmaxnreg (PTX ISA 9.7.19.5)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from emugpu.emulator.machine.lanes import WARP_SIZE
from emugpu.emulator.ptx.ast import Immediate, PtxKernel

SM_REGISTERS = 65_536
"""The number of 32-bit registers of one SM (CUDA Programming Guide, compute capabilities 9.0 and 10.0)."""
LARGEST = 256
GRANULE = 8
WARPS = 4
"""setmaxnreg acts on warpgroups, and registers are allocated for four warps at a time."""


def registers_at_entry(kernel: PtxKernel) -> int | None:
    """Returns the registers per thread with which the warps start, or None if the kernel's directives do not fix them.

    The rule for .maxntid with .minnctapersm is that of ptxas 13.0 for sm_90a: no warp starts with more registers than
    the largest setmaxnreg.inc of the kernel requests.
    """
    directives = kernel.directives
    if "maxnreg" in directives:
        return directives["maxnreg"][0]
    threads = directives.get("maxntid") or directives.get("reqntid")
    if not threads or "minnctapersm" not in directives:
        return None
    granted = WARPS * WARP_SIZE
    per_cta = SM_REGISTERS // directives["minnctapersm"][0]
    share = per_cta // (-(-prod(threads) // granted) * granted)
    asked = [
        operand.value
        for i in kernel.instructions
        if i.opcode == "setmaxnreg" and i.has("inc")
        for operand in i.operands
        if isinstance(operand, Immediate)
    ]
    return min(LARGEST, share // GRANULE * GRANULE, max(asked, default=LARGEST))


class RegisterPool:
    """The registers per thread that each warp holds. ``free``: the registers given back, per thread of a warp."""

    def __init__(self, at_entry: int | None) -> None:
        self.at_entry = at_entry
        self.free = 0
        self.held: dict[int, int] = {}
        self.waiters: list[Any] = []
        self._requests: dict[int, list[int]] = {}
        self._made: dict[int, int] = {}

    def differs(self, warp: int, count: int) -> int | None:
        """Returns the different count that another warp of the warpgroup requested, or None if the requests agree.

        All four warps must execute the same setmaxnreg.
        """
        requests = self._requests.setdefault(warp // WARPS, [])
        turn = self._made.get(warp, 0)
        if turn == len(requests):
            requests.append(count)
        return requests[turn] if requests[turn] != count else None

    def note(self, warp: int, count: int) -> None:
        """Records that a request was granted."""
        self._made[warp] = self._made.get(warp, 0) + 1
        self.held[warp] = count

    def missed(self, warps: int) -> Iterator[str]:
        """Returns, when the CTA has exited, what is wrong with the requests of warpgroups: warps that made fewer."""
        for group, requests in self._requests.items():
            for warp in range(WARPS * group, min(WARPS * (group + 1), warps)):
                if self._made.get(warp, 0) != len(requests):
                    yield (
                        f"exits although warp {warp} executed {self._made.get(warp, 0)} setmaxnreg "
                        f"instructions and another warp of its warpgroup {len(requests)}; all four must "
                        "execute the same"
                    )
                    break
