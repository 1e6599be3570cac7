"""The row of one line of suites.toml: what the verdicts on its tests were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emugpu.check.verdict import ORDER
from tests.nightly.corpus.records import Ended, Lines, record_of
from tests.nightly.corpus.table import Program, Project

HERE = Path(__file__).parent
RANK = ("skips", "launches nothing", "clean", *reversed(ORDER))
"""What becomes of a test, the worst last."""
WORDS = (*RANK[2:], *RANK[1::-1])
TESTS_RAN = (0, 1, 5)
"""The exit codes of pytest that mean that it has run the tests: all passed, some failed, there were none."""


@dataclass(frozen=True)
class Row:
    """The tests of one line. ``versions`` are those of the packages; ``ended`` says why not all tests were run."""

    project: str
    version: str
    gpu: str
    tests: str
    counts: dict[str, int]
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    ended: str = ""
    reasons: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The verdicts that its tests have; incomplete if there are none, or if not all tests were run."""
        found = [word for word in self.counts if word in ("clean", *ORDER)]
        return [*found, "incomplete"] if self.ended or not found else found

    def cells(self) -> list[str]:
        suite = f"{self.project} {self.version}, {self.gpu}: {self.tests}" + (f" ({self.ended})" if self.ended else "")
        counts = [str(self.counts.get(word) or "") for word in WORDS]
        return [suite, str(sum(self.counts.values())), *counts, f"{self.seconds:.0f}"]


def run_suite(work: tuple[Project, Program], *, python: str, sources: Path, answers: Path, limit: float) -> Row:
    """Runs one line of the table with pytest, and returns its row. A record that has tests stays as it is."""
    project, program = work

    def start(record: Path) -> tuple[list[str], dict[str, str]]:
        options = ["-p", "emugpu.pytest_plugin", "-p", "suite_record", "--emulated-gpu", program.gpu, "--check"]
        return [python, "-m", "pytest", *options], {"PYTHONPATH": str(HERE), "SUITE_RECORD": str(record)}

    def finish(lines: Lines, ended: Ended) -> Lines:
        why = "" if ended.code in TESTS_RAN else f"pytest ended with code {ended.code}"
        if ended.code is None:
            why = f"as far as {limit:g} s went"
        return [{"seconds": round(ended.seconds, 1), "ended": why}]

    record, lines = record_of(work, start, finish, sources=sources, answers=answers, limit=limit)
    found = row(project, program, lines)
    if not found.counts:
        record.unlink()
    return found


def row(project: Project, program: Program, lines: Sequence[dict[str, Any]]) -> Row:
    """Returns the row that the lines of a record give."""
    found = {key: value for line in lines if "test" not in line for key, value in line.items()}
    tests = list(_tests(line for line in lines if "test" in line))
    ended = found["ended"] or ("" if tests else "no test was run")
    return Row(
        project.name, project.version, program.gpu, program.name, dict(Counter(word for word, _ in tests)),
        found["seconds"], found.get("versions", {}), ended, tuple(why for _, why in tests if why),
    )  # fmt: skip


def _tests(lines: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str]]:
    """Yields what became of each test, and why. Of the lines of a test, of which its fixtures may have some, the worst
    counts.
    """
    found: dict[str, tuple[str, str]] = {}
    for line in lines:
        word = line["verdict"] or {"passed": "launches nothing", "skipped": "skips"}.get(line["outcome"], "incomplete")
        why = "" if word in ("clean", "launches nothing", "skips") else f"{word} {line['test']}: {line['why']}"
        if line["test"] not in found or RANK.index(word) > RANK.index(found[line["test"]][0]):
            found[line["test"]] = word, why
    yield from found.values()
