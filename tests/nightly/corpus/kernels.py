"""The verdict on each kernel, from the answers of the worker on a program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from emugpu.check.verdict import ORDER

SEVERITY = ("clean", "warned", *reversed(ORDER))


@dataclass(frozen=True)
class Kernel:
    """A kernel and its verdict under all schedules; ``why`` has the first reason, or the rules of the warnings."""

    project: str
    program: str
    name: str
    word: str
    why: str = ""

    @property
    def identity(self) -> str:
        """Names of scripts differ in their sizes and types only, so each script has its own kernels."""
        return self.name if "caller.py" in self.program else f"{self.program.split()[0]} {self.name}"


def kernels_of(project: str, program: str, answers: Sequence[dict[str, Any]]) -> list[Kernel]:
    """Returns the kernels that a program has launched.

    A reason that names no launch holds for the whole program: for its kernels that have no reason of their own, unless
    another one explains it. A program that has launched nothing counts as one incomplete kernel.
    """
    found: dict[str, tuple[str, str]] = {}
    for answer in answers:
        for name, word, why in _verdicts(answer):
            if name not in found or SEVERITY.index(word) > SEVERITY.index(found[name][0]):
                found[name] = (word, why)
    launched = {name: verdict for name, verdict in found.items() if name}
    if not launched:
        launched = {program: found.get("", ("incomplete", "it has ended without an answer"))}
    elif "" in found:
        launched = {
            name: found[""] if verdict[0] in ("clean", "warned") else verdict for name, verdict in launched.items()
        }
    return [Kernel(project, program, name, word, why) for name, (word, why) in launched.items()]


def _verdicts(answer: dict[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Yields kernels with a word and the reason; the program itself has the name ""."""
    if "incomplete" in answer:
        yield "", "incomplete", answer["incomplete"]
        return
    launches = answer["launches"]
    blamed: dict[int, tuple[str, str]] = {}
    others: list[tuple[str, str]] = []
    for word, reason in answer["reasons"]:
        named = re.match(r"launch (\d+)\b", reason)
        if named:
            blamed.setdefault(int(named[1]), (word, reason))
        else:
            others.append((word, reason))
    for number, launch in enumerate(launches):
        warned = sorted({f["rule"] for f in launch["findings"] if f["severity"] == "warning"})
        word, why = blamed.get(number) or (("warned", ", ".join(warned)) if warned else ("clean", ""))
        yield launch["kernel"], word, why
    if others and not blamed:
        yield "", *others[0]
