"""A profiler of emulated launches: time by kernel, PTX line and unit.

A timer interrupts the main thread a few hundred times a second, and the thread then looks at its own stack. So the
emulator itself knows nothing of it, and nothing is slower without a profile. The times are estimates: a count of n
samples is accurate to about the square root of n.

No other thread may look: the frames that it holds keep the emulator's objects alive, and it would then free them while
native code runs that uses the same tables (`emugpu.emulator.native.workspace.File`).
"""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from emugpu.emulator.machine.code import Code
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.machine import Machine
from emugpu.emulator.native.engine import NativeEngine
from emugpu.emulator.native.fragment_runner import FragmentRunner

INTERVAL = 0.002
"""Seconds between two samples. A sample that native code delays counts for the whole time since the last one."""
_PACKAGE = Path(__file__).parent
_NATIVE = {FragmentRunner._call.__code__, NativeEngine._call_native.__code__}
"""Functions that do little else than call native code."""
_MMA = ("mma", "mma_instruction", "operands", "sparsity", "sums", "tensor_kinds", "warp_mma", "wgmma")
_UNITS = {
    **{f"units/{name}.py": "MMA" for name in _MMA},
    **{f"instructions/{name}.py": "MMA" for name in ("tensor_core", "warp_mma", "wgmma", "wmma")},
    "machine/warpgroup.py": "MMA",
    **{place: "TMA" for place in ("units/tma.py", "instructions/tensor_copies.py", "instructions/bulk_copies.py")},
}
"""The unit of each file of this package. The innermost file on a stack that has one decides."""


class Key(NamedTuple):
    """The key of a sample: the kernel, the unit, the instruction (None: no particular one), and Python's functions."""

    kernel: str
    unit: str
    site: Site | None
    functions: tuple[str, ...]


@dataclass
class Profile:
    """Samples in order of time, each with its seconds."""

    samples: list[tuple[Key, float]] = field(default_factory=list)

    def by(self, *fields: str) -> Mapping[tuple[Any, ...], float]:
        """Returns seconds by some of the fields of `Key`, largest first."""
        found: dict[tuple[Any, ...], float] = defaultdict(float)
        for key, seconds in self.samples:
            found[tuple(getattr(key, name) for name in fields)] += seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def speedscope(self) -> dict[str, Any]:
        """Returns the file that https://www.speedscope.app reads: kernel, unit, PTX line, Python's functions."""
        frames: dict[str, int] = {}
        stacks = []
        for key, _ in self.samples:
            line = [f"PTX line {key.site.line}: {key.site.text}"] if key.site is not None else []
            names = [key.kernel, key.unit, *line, *key.functions]
            stacks.append([frames.setdefault(name, len(frames)) for name in names])
        weights = [seconds for _, seconds in self.samples]
        about = {"type": "sampled", "name": "emulated launches", "unit": "seconds", "startValue": 0}
        return {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": [{"name": name} for name in frames]},
            "profiles": [{**about, "endValue": sum(weights), "samples": stacks, "weights": weights}],
        }


@contextmanager
def profiling() -> Iterator[Profile]:
    """Samples all launches of the main thread while the block runs. Only the main thread may call this."""
    profile = Profile()
    before = signal.signal(signal.SIGALRM, _Sampler(profile).sample)
    signal.setitimer(signal.ITIMER_REAL, INTERVAL, INTERVAL)
    try:
        yield profile
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Sampler:
    def __init__(self, profile: Profile) -> None:
        self._samples = profile.samples
        self._last: float | None = None
        """When the thread was last seen in a launch, if it still was at the last sample."""
        self._counts: dict[Machine, Any] = {}
        self._due: dict[Machine, Any] = {}
        """For native blocks: how often each had run, and its instructions that no sample has been counted for yet."""

    def sample(self, number: int, frame: FrameType | None) -> None:
        """Handles the timer's signal."""
        now = time.perf_counter()
        key = self._look(frame)
        if key is not None:
            self._samples.append((key, INTERVAL if self._last is None else now - self._last))
        self._last = now if key is not None else None

    def _look(self, frame: FrameType | None) -> Key | None:
        """Returns what the thread does, or None if it runs no launch. frame: the thread's innermost frame."""
        stack: list[FrameType] = []
        while frame is not None and frame.f_code is not Machine.run.__code__:
            stack.append(frame)
            frame = frame.f_back
        if frame is None:
            return None
        machine: Machine = frame.f_locals["self"]
        code = machine.code
        unit = next(filter(None, (_unit(inner, code.filename) for inner in stack)), "turns")
        site = self._native_site(machine) if unit == "native" else _site(stack, code)
        functions = tuple(f.f_code.co_name for f in reversed(stack) if f.f_code.co_filename != code.filename)
        return Key(code.kernel.name, unit, site, functions)

    def _native_site(self, machine: Machine) -> Site | None:
        """Returns the start of a block that has run natively. Blocks are chosen in proportion to their instructions."""
        if machine.engine is None:
            return None
        counts = machine.engine.counts.copy()
        ran = (counts - self._counts.get(machine, 0)) * np.array(machine._block_sizes)
        self._counts[machine] = counts
        due = self._due[machine] = self._due.get(machine, 0) + ran
        block = int(due.argmax())
        due[block] -= ran.sum()
        return machine.code.sites[machine.code.first[block]]


def _unit(frame: FrameType, generated: str) -> str:
    """Returns the unit that a function belongs to, or "" if its callers decide."""
    place = Path(frame.f_code.co_filename)
    if frame.f_code in _NATIVE:
        return "native"
    if frame.f_code.co_filename == generated:
        return "Python instructions"
    if not place.is_relative_to(_PACKAGE):
        return "sinks" if place.is_relative_to(_PACKAGE.parent) else ""
    name = place.relative_to(_PACKAGE).as_posix()
    return "hand-over" if name.startswith("native/") else _UNITS.get(name, "")


def _site(stack: list[FrameType], code: Code) -> Site | None:
    """Returns the instruction whose generated code runs, or whose asynchronous operation is carried out."""
    for frame in stack:
        if frame.f_code.co_filename == code.filename:
            index = code.instruction_at[frame.f_lineno - 1]
            return None if index is None else code.sites[index]
        if frame.f_code is Machine._complete.__code__:
            site: Site = frame.f_locals["operation"].site
            return site
    return None
