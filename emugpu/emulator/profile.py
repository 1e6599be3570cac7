"""Where the time of emulated launches goes: by kernel, PTX line and unit.

A thread looks at what the others do, a few hundred times a second, so that the emulator itself knows nothing of it and
pays nothing where nobody asks. Shares are those of a sample: one seen n times is right to about its square root.
"""

from __future__ import annotations

import sys
import threading
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
from emugpu.emulator.native.engine import Engine
from emugpu.emulator.native.fragment_runner import FragmentRunner

INTERVAL = 0.002
SWITCH = 0.00001
"""Seconds between two samples, and after which Python lets the sampling thread run. Were that longer, samples would be
taken where NumPy lets other threads run by itself, as it does in `take`, and nowhere else.
"""
_PACKAGE = Path(__file__).parent
_NATIVE = {FragmentRunner._call.__code__, Engine._answer.__code__}
"""They do little else than call native code."""
_MMA = ("mma", "mma_instruction", "operands", "sparsity", "sums", "tensor_kinds", "warp_mma", "wgmma")
_UNITS = {
    **{f"units/{name}.py": "MMA" for name in _MMA},
    **{f"instructions/{name}.py": "MMA" for name in ("tensor_core", "warp_mma", "wgmma", "wmma")},
    "machine/warpgroup.py": "MMA",
    **{place: "TMA" for place in ("units/tma.py", "instructions/tensor_copies.py", "instructions/bulk_copies.py")},
}
"""What files of this package do; of those on a stack the innermost one decides."""


class Key(NamedTuple):
    """What was seen: the kernel, the unit, the instruction (None: none in particular), and Python's functions."""

    kernel: str
    unit: str
    site: Site | None
    functions: tuple[str, ...]


@dataclass
class Profile:
    """Samples in order of time, each with its seconds."""

    samples: list[tuple[Key, float]] = field(default_factory=list)

    def by(self, *fields: str) -> Mapping[tuple[Any, ...], float]:
        """Seconds by some of the fields of `Key`, most first."""
        found: dict[tuple[Any, ...], float] = defaultdict(float)
        for key, seconds in self.samples:
            found[tuple(getattr(key, name) for name in fields)] += seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def speedscope(self) -> dict[str, Any]:
        """The file that https://www.speedscope.app reads: kernel, unit, PTX line, Python's functions."""
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
    """Samples all launches of this process while the block runs."""
    profile, ended, before = Profile(), threading.Event(), sys.getswitchinterval()
    thread = threading.Thread(target=_Sampler(profile, ended).run, daemon=True)
    sys.setswitchinterval(SWITCH)
    thread.start()
    try:
        yield profile
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(before)


class _Sampler:
    def __init__(self, profile: Profile, ended: threading.Event) -> None:
        self._samples, self._ended = profile.samples, ended
        self._last: dict[int, float] = {}
        """When each thread was seen last in a launch."""
        self._counts: dict[Machine, Any] = {}
        self._due: dict[Machine, Any] = {}
        """Of native blocks: how often each had run, and the instructions by which each lags behind in samples."""

    def run(self) -> None:
        while not self._ended.wait(INTERVAL):
            now = time.perf_counter()
            seen = {}
            for thread, frame in sys._current_frames().items():
                if (key := self._look(frame)) is not None:
                    seen[thread] = now
                    self._samples.append((key, now - self._last.get(thread, now - INTERVAL)))
            self._last = seen

    def _look(self, frame: FrameType | None) -> Key | None:
        """What a thread does; None: it runs no launch. frame: its innermost one."""
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
        """The start of a block that has run natively; blocks have their turns by the instructions they have run."""
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
    """What a function is a part of; "" if that is for those that have called it to say."""
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
    """The instruction whose generated code runs, or whose asynchronous operation is carried out."""
    for frame in stack:
        if frame.f_code.co_filename == code.filename:
            index = code.instruction_at[frame.f_lineno - 1]
            return None if index is None else code.sites[index]
        if frame.f_code is Machine._complete.__code__:
            site: Site = frame.f_locals["operation"].site
            return site
    return None
