"""Candidates: right kernels, faults drawn among those that can be planted in them, and the verdict on each."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emugpu.check.verdict import Word
from emugpu.emulator.machine.events import Issued
from emugpu.launch.check import CheckOptions, check, judge
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import TOLERANT, EmulationOptions, run
from emugpu.launch.spec import Launchable
from tests.nightly.candidates import mojo_kernels
from tests.nightly.candidates.equivalent import why_equivalent
from tests.nightly.candidates.faults import KINDS, Fault, faults

SCHEDULES = 4
"""As many as `emugpu verify` tries."""
TIMEOUT = 60.0
"""Seconds of one launch."""


@dataclass(frozen=True)
class Answer:
    """What came of a candidate. fault: its kind, nothing of a right kernel. equivalent: why the fault is none."""

    kernel: str
    fault: str
    line: int
    text: str
    word: Word
    why: str
    seconds: float
    equivalent: str = ""

    @property
    def as_it_should_be(self) -> bool:
        return self.word == "clean" if not self.fault or self.equivalent else self.word not in ("clean", "incomplete")


def verify(what: Launchable, fault: Fault | None, name: str) -> Answer:
    """Returns the verdict on a launchable, as `emugpu verify` gives it."""
    begun = time.perf_counter()
    if fault:
        what = replace(what, text_given=fault.ptx)
    [checked] = check([what], CheckOptions(SCHEDULES, EmulationOptions(seed=1, timeout=TIMEOUT, strict=False)))
    verdict = judge(what, checked)
    why = "; ".join(reason for _, reason in verdict.reasons[:2])
    planted = (fault.kind, fault.line, fault.text) if fault else ("", 0, "")
    reason = why_equivalent(name, fault) if fault else ""
    return Answer(name, *planted, verdict.word, why, round(time.perf_counter() - begun, 2), reason)


def verify_job(job: tuple[Launchable, Fault | None, str]) -> Answer:
    """The same of a job, in a worker process."""
    return verify(*job)


def right_kernels(folder: Path) -> dict[str, Launchable]:
    """Returns what is launched, by name: the launch files of a folder and of the test data, and kernels 5 to 9."""
    data = Path(__file__).parents[3] / "tests" / "data" / "launches"
    found = {path.stem: read_launch_file(path) for path in sorted(folder.glob("*.toml"))}
    found |= {path.stem.replace("_", "-", 1): read_launch_file(path) for path in sorted(data.glob("*.toml"))}
    return found | dict(mojo_kernels.launchables())


def reached(what: Launchable) -> set[int]:
    """Returns the lines of the PTX that a run executes."""
    lines: set[int] = set()

    def note(event: Any) -> None:
        site = event.operation.site if isinstance(event, Issued) else getattr(event, "site", None)
        if site is not None:
            lines.add(site.line)

    run(what, replace(TOLERANT, sinks=(note,)), keep=())
    return lines


def draw(kernels: dict[str, Launchable], count: int, seed: int) -> Iterator[tuple[Launchable, Fault, str]]:
    """Yields faults that are reached and not known to be none, of each kind in turn, and of every kernel in turn."""
    dice = random.Random(seed)
    left: dict[str, dict[str, list[Fault]]] = {kind: {} for kind in KINDS}
    for name, what in kernels.items():
        lines = reached(what)
        for fault in faults(what.text, _entry(what)):
            span = range(fault.line, fault.line + 1 + fault.text.count(";"))
            if lines.intersection(span) and not why_equivalent(name, fault):
                left[fault.kind].setdefault(name, []).append(fault)
    taken: Counter[str] = Counter()
    while count and any(left.values()):
        for by_kernel in left.values():
            if by_kernel and count:
                fewest = min(taken[name] for name in by_kernel)
                name = dice.choice([name for name in by_kernel if taken[name] == fewest])
                fault = by_kernel[name].pop(dice.randrange(len(by_kernel[name])))
                if not by_kernel[name]:
                    del by_kernel[name]
                taken[name] += 1
                count -= 1
                yield kernels[name], fault, name


def _entry(what: Launchable) -> str:
    """Returns the whole name of the kernel that is launched first."""
    named = re.findall(r"\.entry\s+([\w$]+)", what.text)
    wanted = what.launches[0].kernel
    return next(
        (name for name in named if name == wanted), next((n for n in named if wanted and wanted in n), named[0])
    )


def table(answers: list[Answer]) -> Iterator[str]:
    """Yields the lines of a table in Markdown: what became of each kind."""
    words: tuple[Word, ...] = ("clean", "racy", "wrong", "hung", "incomplete")
    yield "| candidates | " + " | ".join(("", *words)) + " |"
    yield "|---|" + "---|" * 6
    compilers = [f"right, {a.kernel.partition('-')[0]}" for a in answers if not a.fault]
    rows = [*dict.fromkeys(compilers), *(kind for kind in KINDS if any(a.fault == kind for a in answers))]
    for row in rows:
        of = [a for a in answers if row == (a.fault or f"right, {a.kernel.partition('-')[0]}")]
        seen = Counter(a.word for a in of)
        yield f"| {row} | {len(of)} | " + " | ".join(str(seen[word] or "") for word in words) + " |"
