"""The log of a program on the emulated GPU: lines for the user, and a record of every launch."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import Any

from emugpu.check.findings import Finding, emulator_warnings
from emugpu.check.verdict import Verdict, Word, fidelity, races
from emugpu.emulator.machine.counters import Counters
from emugpu.emulator.names import short_name
from emugpu.emulator.ptx.ast import PtxKernel
from emugpu.emulator.rules import RuleWarning

Dims = tuple[int, int, int]
_OF_GRAPHS = re.compile(r"[Gg]raph(?!ics)|Capture")
_COMPARES = re.compile(r"\bAssertionError\b(?!.*(cudaError|CUDA_ERROR))")
"""A failure that is a comparison of results, and none of the result code of a CUDA function."""


@dataclass
class LaunchRecord:
    """The record of one launch.

    ``error`` is the full report of why it did not run to its end, or "". ``result`` is the CUresult that the program
    then gets. ``seconds`` is the time of the emulation, which says nothing about a GPU.
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
    warnings: tuple[RuleWarning, ...] = ()
    parameters: bytes = b""
    """The parameter block of the kernel; it is not part of the record."""
    findings: tuple[Finding, ...] = ()
    """The findings of the synchronisation checker, if it was on."""
    ended: Word = "clean"
    """The verdict that follows from the error."""
    kernel_read: PtxKernel | None = None
    """The parsed kernel; it is not part of the record."""
    gpu: str = ""
    """The target of the GPU that runs it; it is not part of the record."""

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
    """The events of a program's run.

    ``unhandled`` counts the refused functions by name. ``failure`` is the first reason why the emulated GPU could not
    serve the program; the program's results then mean nothing. ``lacking`` says what the emulated driver lacks and most
    programs do without. ``computed`` counts the library functions
    that NumPy computed in place of NVIDIA's kernels.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.launches: list[LaunchRecord] = []
        self.unhandled: dict[str, int] = {}
        self.failure = ""
        self.lacking: list[str] = []
        self.computed: dict[str, int] = {}
        self.by_torch: set[str] = set()
        """The operators that PyTorch has computed on the CPU."""
        self.unlooked: list[str] = []
        """What was not looked at, a line each."""
        self.guessed = ""
        """The first launch that has read memory that was never written."""
        self.elapsed_asked = False
        """Whether the program has queried the time between events."""
        self.processes = 0
        self._quiet = quiet
        self._reported: set[str] = set()

    def say(self, text: str) -> None:
        """Writes one or several lines to standard error."""
        print(f"emulated GPU: {text}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Writes a line once, unless the log is quiet."""
        if not self._quiet and text not in self._reported:
            self._reported.add(text)
            self.say(text)

    def refused(self, function: str) -> None:
        """Counts a call of a function that the emulated driver does not have."""
        if function not in self.unhandled:
            self.say(f"{_unsupported(function)} (CUDA_ERROR_NOT_SUPPORTED)")
        self.unhandled[function] = self.unhandled.get(function, 0) + 1

    def launched(self, launch: LaunchRecord) -> None:
        """Records a launch that has ended."""
        self.launches.append(launch)
        if any(warning.rule == "uninitialised" for warning in launch.warnings):
            self.guessed = self.guessed or f"launch {launch.number}, kernel '{short_name(launch.kernel)}'"

    def not_looked_at(self, what: str) -> None:
        """Records what the checker met and did not look at."""
        if what not in self.unlooked:
            self.unlooked.append(what)

    def lacks(self, what: str) -> None:
        """Records what the emulated driver lacks. It counts only if the program fails."""
        if what not in self.lacking:
            self.lacking.append(what)

    def may_explain(self, failure: str) -> list[str]:
        """Returns what the emulated driver lacks and may be why the program failed.

        It does not explain why results differ, nor what follows from a launch that has failed. That the program has
        launched kernels since it asked says nothing: other libraries may have done so.
        """
        if _COMPARES.search(failure) or any(launch.error for launch in self.launches):
            return []
        return self.lacking

    def failed(self, why: str) -> None:
        """Records why the emulated GPU cannot serve the program."""
        if why not in self._reported:
            self._reported.add(why)
            self.say(why)
        self.failure = self.failure or why.splitlines()[0]


def _unsupported(function: str) -> str:
    """Returns what is said of a function that the emulated driver, or PyTorch on it, does not have."""
    hint = ": the emulated GPU has no CUDA graphs; run the code without capturing it"
    return f"{function} is not supported{hint if _OF_GRAPHS.search(function) else ''}"


def judge(log: Log, program: str, failure: str, checked: bool) -> Verdict:
    """Returns the verdict on a program.

    ``failure`` is one line with the error that the program itself reports, or "". ``checked``: the synchronisation of
    its launches was checked.
    """
    reasons: list[tuple[Word, str]] = []
    for launch in log.launches:
        where = f"launch {launch.number}, kernel '{short_name(launch.kernel)}'"
        if launch.error:
            # Most errors already name the kernel.
            place = f"launch {launch.number}" if "kernel '" in launch.error else where
            reasons.append((launch.ended, f"{place}: {launch.error}"))
        reasons += [(word, f"{where}: {reason}") for word, reason in races(launch.findings)]
    if failure:
        # If a call was refused, the program may fail because of that; its kernels may be right.
        lacking = log.may_explain(failure)
        refused = log.failure or log.unhandled or lacking
        incomplete = refused or any(launch.ended == "incomplete" for launch in log.launches)
        reasons.append(("wrong" if log.launches and not incomplete else "incomplete", failure))
        reasons += [("incomplete", f"perhaps because {what}") for what in lacking]
    if log.failure:
        reasons.append(("incomplete", f"the emulated GPU could not do what the program asked for: {log.failure}"))
    reasons += [("incomplete", f"not looked at: {what}") for what in log.unlooked]
    for name, count in sorted(log.unhandled.items()):
        reasons.append(("incomplete", f"{_unsupported(name)}; {count} call{'s' if count > 1 else ''}"))
    for name in sorted(log.computed if not log.launches else ()):
        reasons.append(("incomplete", f"{name} is computed by NumPy, and nothing else was launched"))
    if not log.launches and not log.computed:
        reasons.append(("incomplete", "the program has launched nothing on the emulated GPU"))
    kernels = {one.kernel: (one.kernel_read, one.gpu) for one in log.launches if one.kernel_read is not None}
    findings = tuple(
        finding for launch in log.launches for finding in (*launch.findings, *emulator_warnings(launch.warnings))
    )
    compared = ("what the program compares itself",) if log.launches else ()
    trusted = fidelity(kernels.values())
    if log.computed:
        trusted["computed by NumPy"] = dict(log.computed)
    return Verdict(
        program, tuple(reasons), findings, len(log.launches), 1, compared, trusted, checked,
        by_torch=tuple(sorted(log.by_torch)),
    )  # fmt: skip
