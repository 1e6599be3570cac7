"""What a program did on the emulated GPU: lines for the person who watches, and a record of every launch."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from emugpu.check.findings import Finding
from emugpu.check.verdict import Verdict, Word, fidelity, races
from emugpu.emulator.machine.counters import Counters
from emugpu.emulator.names import short_name
from emugpu.emulator.ptx.ast import Kernel
from emugpu.emulator.rules import Finding as Warned

Dims = tuple[int, int, int]


@dataclass
class LaunchRecord:
    """Records one launch.

    ``error``: the whole report of why it did not come to its end, or nothing. ``result``: the CUresult that the
    program sees then. ``seconds``: of the emulation, no measure of any GPU.
    """

    number: int
    kernel: str
    grid: Dims
    cluster: Dims
    block: Dims
    dynamic_shared: int
    process: int
    cooperative: bool = False
    counters: Counters = field(default_factory=Counters)
    seconds: float = 0.0
    error: str = ""
    result: str = ""
    warnings: tuple[Warned, ...] = ()
    parameters: bytes = b""
    """The block that the kernel got; it is not part of the record."""
    findings: tuple[Finding, ...] = ()
    """Of the synchronisation checker, if it was asked for."""
    ended: Word = "clean"
    """What an error says of the program."""
    kernel_read: Kernel | None = None
    """The kernel as it was read; it is not part of the record."""

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "number": self.number,
            "process": self.process,
            "kernel": self.kernel,
            "grid": list(self.grid),
            "cluster": list(self.cluster),
            "block": list(self.block),
            "dynamic_shared": self.dynamic_shared,
            "counters": self.counters.as_dict(),
            "emulation_seconds": round(self.seconds, 6),
            "error": self.error or None,
            "result": self.result or None,
            "warnings": [f"{finding.rule}: {finding.message}" for finding in self.warnings],
            "findings": [finding.as_dict() for finding in self.findings],
        }


class Log:
    """Keeps what happened.

    ``unhandled``: functions that were refused, with how often. ``failure``: why the emulated GPU could not serve
    the program, the first reason; then what the program computed means nothing. ``computed``: functions of libraries
    that NumPy computed in place of NVIDIA's kernels, with how often.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.launches: list[LaunchRecord] = []
        self.unhandled: dict[str, int] = {}
        self.failure = ""
        self.computed: dict[str, int] = {}
        self.elapsed_asked = False
        """Whether a program asked for the time between events."""
        self.processes = 0
        self._quiet = quiet
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """Writes a line, or a report of several, to standard error."""
        print(f"emulated GPU: {text}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Says a line once, and not at all if it is to be quiet."""
        if not self._quiet and text not in self._said:
            self._said.add(text)
            self.say(text)

    def refused(self, function: str) -> None:
        """Notes the call of a function that the emulated driver has not."""
        if function not in self.unhandled:
            self.say(f"{function} is not supported (CUDA_ERROR_NOT_SUPPORTED)")
        self.unhandled[function] = self.unhandled.get(function, 0) + 1

    def failed(self, why: str) -> None:
        """Notes why the emulated GPU cannot serve the program."""
        if why not in self._said:
            self._said.add(why)
            self.say(why)
        self.failure = self.failure or why.splitlines()[0]


def judge(log: Log, program: str, failure: str, checked: bool) -> Verdict:
    """Returns the verdict on a program. failure: what it says itself is wrong, in a line, or nothing. checked: whether
    the synchronisation of its launches was looked at.
    """
    reasons: list[tuple[Word, str]] = []
    for launch in log.launches:
        where = f"launch {launch.number}, kernel '{short_name(launch.kernel)}'"
        if launch.error:
            # Most errors name the kernel.
            place = f"launch {launch.number}" if "kernel '" in launch.error else where
            reasons.append((launch.ended, f"{place}: {launch.error}"))
        reasons += [(word, f"{where}: {reason}") for word, reason in races(launch.findings)]
    if failure:
        # A program that did not get what it asked for may well fail: that says nothing of its kernels.
        hindered = log.failure or log.unhandled or any(launch.ended == "incomplete" for launch in log.launches)
        reasons.append(("wrong" if log.launches and not hindered else "incomplete", failure))
    if log.failure:
        reasons.append(("incomplete", f"the emulated GPU could not do what the program asked for: {log.failure}"))
    for name, count in sorted(log.unhandled.items()):
        reasons.append(("incomplete", f"{name} is not supported, called {count} times"))
    for name in sorted(log.computed if not log.launches else ()):
        reasons.append(("incomplete", f"{name} is computed by NumPy, and nothing else was launched"))
    if not log.launches and not log.computed:
        reasons.append(("incomplete", "the program has launched nothing on the emulated GPU"))
    kernels = {launch.kernel: launch.kernel_read for launch in log.launches if launch.kernel_read is not None}
    findings = tuple(finding for launch in log.launches for finding in launch.findings)
    compared = ("what the program compares itself",) if log.launches else ()
    trusted = fidelity(kernels.values())
    if log.computed:
        trusted["computed by NumPy"] = dict(log.computed)
    return Verdict(program, tuple(reasons), findings, len(log.launches), 1, compared, trusted, checked)
