"""The machine at a position: the program runs again, and stops after that many events."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.debug.recording import Recording, Watched
from emugpu.emulator.machine.events import Agent
from emugpu.emulator.machine.machine import Machine
from emugpu.emulator.machine.slots import slots_of
from emugpu.emulator.machine.state import Cta, Fragment
from emugpu.errors import CannotRun, UsageProblem
from emugpu.launch.launching import run

GONE = "not kept, because no instruction reads it any more"


class _Here(BaseException):
    """Stops the run at the event. No part of the machine catches it."""


class Stopped:
    """A machine that was stopped in the middle of a run.

    Its tensor memory is up to date: deferred multiplications are done.
    """

    def __init__(self, recording: Recording, position: int) -> None:
        self.device = Watched(recording.options)
        self._running: tuple[Agent, int, dict[str, Any]] | None = None
        count = 0

        def watch(event: Any) -> None:
            nonlocal count
            count += 1
            if count == position:
                self._keep_registers(event)
                raise _Here

        with suppress(_Here, CannotRun):
            run(recording.what, replace(recording.options, sinks=(watch,)), device=self.device, keep=())

    @property
    def machine(self) -> Machine:
        if not self.device.machines:
            raise UsageProblem("nothing has run yet; continue first")
        return self.device.machines[-1]

    def _keep_registers(self, event: Any) -> None:
        """Keeps registers that are local variables (v and the slot) of a block's function in the middle of the
        block.
        """
        agent = getattr(event, "agent", None)
        frame = sys._getframe(1)
        filename = self.machine.code.filename if self.device.machines else ""
        while agent is not None and frame is not None:
            if frame.f_code.co_filename == filename:
                index = self.machine.code.instruction_at[frame.f_lineno - 1]
                self._running = agent, -1 if index is None else index, dict(frame.f_locals)
                return
            frame = frame.f_back  # type: ignore[assignment]

    def cta(self, cluster: int, rank: int) -> Cta:
        for running in self.machine.clusters.running:
            if running.number == cluster and rank < len(running.ctas):
                return running.ctas[rank]
        raise UsageProblem(f"CTA {rank} of cluster {cluster} does not run here; `warps` shows who does")

    def fragments(self, cluster: int, cta: int, warp: int) -> list[Fragment]:
        warps = self.cta(cluster, cta).warps
        if warp >= len(warps):
            raise UsageProblem(f"warp {warp}: the CTA has {len(warps)} warps")
        return warps[warp].fragments

    def shared(self, cluster: int, cta: int, offset: int, nbytes: int) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Returns bytes of shared memory, and which of them were ever written."""
        memory = self.cta(cluster, cta).shared
        if not 0 <= offset <= offset + nbytes <= memory.data.size:
            raise UsageProblem(
                f"shared memory of a CTA has {memory.data.size:,} bytes; 0x{offset:x} + {nbytes} is outside of it"
            )
        part = slice(offset, offset + nbytes)
        return memory.data[part].copy(), memory.valid[part].astype(np.bool_).copy()

    def tensor(self, cluster: int, cta: int) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Returns tensor memory [128 lanes, 512 columns], and which words were ever written."""
        memory = self.cta(cluster, cta).tmem
        memory.settle()
        return memory.data.copy(), memory.valid.astype(np.bool_).copy()

    def registers(self, fragment: Fragment, wanted: Collection[str]) -> Iterator[tuple[str, str, Any]]:
        """Yields the name, type and value of registers of a fragment.

        Without ``wanted``, these are all registers that may be read later or have just been set. A value is one for
        all lanes, or 32 values, or `GONE` if no instruction reads the register any more.
        """
        code = self.machine.code
        _, live, local = self.place(fragment)
        held = live | {int(name[1:]) for name in local if name[0] == "v" and name[1:].isdecimal()}
        known: dict[int, tuple[str, str]] = {}
        for instruction in code.kernel.instructions:
            for operand in instruction.operands:
                for register in operand.registers():
                    if register.name in wanted or (not wanted and register.slot in held):
                        known[register.slot] = register.name, register.type
        if wanted and not known:
            raise UsageProblem(f"{' '.join(wanted)}: the kernel has no such register")
        for slot, (name, kind) in sorted(known.items()):
            yield name, kind, self.value(fragment, slot)

    def value(self, fragment: Fragment, slot: int) -> Any:
        """Returns the value of a register, as `registers` yields it."""
        index, live, local = self.place(fragment)
        if f"v{slot}" in local:
            return local[f"v{slot}"]
        return fragment.current(1 << slot)[slot] if slot in live or index < 0 else GONE

    def place(self, fragment: Fragment) -> tuple[int, set[int], dict[str, Any]]:
        """Returns the instruction that a fragment executes or will execute next, and what is needed to read its
        registers.

        The instruction is -1 if the fragment has left the kernel. The registers are those that may be read from the
        start of its block on. In the middle of a block, the local variables of the block's function hold the values.
        """
        code = self.machine.code
        index, local = code.first[fragment.block] if fragment.block >= 0 else -1, dict[str, Any]()
        if self._running is not None and self._running[0] == fragment.agent:
            # It may be in a later block than the fragment's, because several blocks run in a row.
            index, local = self._running[1:]
        return index, set(slots_of(code.live_in[bisect_right(code.first, index) - 1])) if index >= 0 else set(), local
