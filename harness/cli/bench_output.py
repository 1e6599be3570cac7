"""Writes the outcome of a benchmark as a table, JSON, Markdown or JUnit."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from emugpu.cli.render import several, show_line, show_table
from emugpu.markdown import table
from harness.experiments.facts import FigureChange, in_words
from harness.experiments.verdict import MEANINGS, REGRESSIONS, Judgement, exit_code
from harness.run.records import BEST

STYLES = {
    "SAME": "green",
    "FASTER": "bold green",
    "BETTER": "bold green",
    "SLOWER": "bold red",
    "WORSE": "bold red",
    "UNSOUND": "bold red",
    "WRONG": "bold white on red",
    "UNSURE": "yellow",
    "CHANGED": "yellow",
    "NOT MEASURED": "magenta",
    "NEW": "cyan",
}
MARKDOWN_LIMIT = 60_000
"""GitHub accepts comments of 65,536 characters; the rest is for text around the table."""
CELL = 300
"""Most characters of a cell in Markdown. The message of a hang has thousands; the JSON and JUnit files have all of it.
"""
ROOM_FOR_REST = 1000
"""Characters reserved for the last lines of tables that do not fit."""
SHOWN = 40
"""Most rows of the table of changes. The others are counted; the files have them all."""


@dataclass(frozen=True)
class BaselineComparison:
    """The comparison of a run of a suite with a baseline. ``notes`` are messages about the whole run."""

    suite: str
    run: str
    baseline: str
    threshold: float
    judgements: tuple[Judgement, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return exit_code(self.judgements)

    @property
    def summary(self) -> str:
        counts = Counter(judgement.verdict for judgement in self.judgements)
        found = ", ".join(f"{counts[verdict]} {verdict}" for verdict in MEANINGS if counts[verdict])
        return f"{several(len(self.judgements), 'case')} against {self.baseline}: {found or 'nothing'}"


def show(console: Console, outcome: BaselineComparison) -> None:
    """Shows a table of the cases that are not SAME on a terminal; otherwise shows plain lines of all cases."""
    columns = ("case", "verdict", *_time_columns(outcome), "what")
    folded = console.is_terminal
    shown = [judgement for judgement in outcome.judgements if not (folded and judgement.verdict == "SAME")]
    rows = [_row(judgement, len(columns)) for judgement in shown]
    title = f"suite {outcome.suite}, baseline {outcome.baseline}"
    if not rows:
        show_line(console, title)
    elif console.is_terminal:
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            cells = [escape(cell) for cell in row]
            table.add_row(cells[0], f"[{STYLES[row[1]]}]{cells[1]}[/]", *cells[2:])
        console.print(table)
    else:
        show_table(console, title, columns, rows)
    if len(shown) < len(outcome.judgements):
        folded_away = len(outcome.judgements) - len(shown)
        verb = "is" if folded_away == 1 else "are"
        show_line(console, f"{several(folded_away, 'case')} {verb} SAME and not shown; -o FILE.md has all")
    changed = grouped_changes(outcome.judgements)
    if changed:
        groups = [_change_row(group, outcome) for group in changed[:SHOWN]]
        show_table(console, "what changed", CHANGE_COLUMNS, groups)
    if len(changed) > SHOWN:
        show_line(console, f"... and {len(changed) - SHOWN} more; -o FILE.json and -o FILE.md have them all")
    for note in outcome.notes:
        show_line(console, note)
    style = "bold red" if outcome.exit_code in (1, 4) else "bold"
    show_line(console, outcome.summary, style)


@dataclass(frozen=True)
class ChangeGroup:
    """A figure that changed by the same amount in several cases. ``example`` is the change of the first case."""

    example: FigureChange
    cases: list[str]


def grouped_changes(judgements: Sequence[Judgement]) -> list[ChangeGroup]:
    """Groups equal changes with the cases that show them. Causes come before effects, and worse before better."""
    groups: dict[tuple[str, int], ChangeGroup] = {}
    for judgement in judgements:
        for change in judgement.changes:
            group = groups.setdefault((change.name, change.difference), ChangeGroup(change, []))
            group.cases.append(judgement.case.id)
    return sorted(groups.values(), key=lambda group: (*group.example.rank, -len(group.cases)))


def as_dict(outcome: BaselineComparison) -> dict[str, Any]:
    """Returns plain data for JSON."""
    return {
        "schema": 1,
        "suite": outcome.suite,
        "run": outcome.run,
        "baseline": outcome.baseline,
        "threshold": outcome.threshold,
        "exit_code": outcome.exit_code,
        "summary": outcome.summary,
        "notes": list(outcome.notes),
        "cases": [_case(judgement) for judgement in outcome.judgements],
    }


def to_json(outcome: BaselineComparison) -> str:
    return json.dumps(as_dict(outcome), indent=2, allow_nan=False) + "\n"


def to_markdown(outcome: BaselineComparison) -> str:
    """Writes a comment for a pull request: the summary, the cases that are not SAME, and all cases in a folded section.

    The text has at most `MARKDOWN_LIMIT` characters: long cells and tables are cut, and the missing rows are counted.
    """
    columns = ("case", "verdict", *_time_columns(outcome), "what")
    rows = [_row(judgement, len(columns)) for judgement in outcome.judgements]
    notable = [row for row in rows if row[1] not in ("SAME", "NEW")]
    parts = [f"### Benchmark `{outcome.suite}`", f"**{outcome.summary}**", *(_cut(note) for note in outcome.notes)]
    left = MARKDOWN_LIMIT - ROOM_FOR_REST - sum(len(part) + 2 for part in parts)
    changed = [_change_row(group, outcome) for group in grouped_changes(outcome.judgements)]
    for title, names, cells in (
        ("", columns, notable),
        (f"{several(len(changed), 'figure')} changed", CHANGE_COLUMNS, changed),
        (f"all cases: {len(rows)}", columns, rows),
    ):
        if not cells:
            continue
        around = [f"<details><summary>{title}</summary>", "</details>"] if title else []
        shown = _as_many_as_fit(names, cells, left - sum(len(part) + 2 for part in around))
        added = [around[0], shown, around[1]] if around else [shown]
        left -= sum(len(part) + 2 for part in added)
        parts += added
    return "\n\n".join(parts) + "\n"


def to_junit(outcome: BaselineComparison) -> str:
    """Writes JUnit XML. Regressions, unsound kernels and wrong results are failures; cases that could not be measured
    are errors.
    """
    judgements = outcome.judgements
    failed = [j for j in judgements if j.verdict in (*REGRESSIONS, "WRONG")]
    errors = [j for j in judgements if j.verdict == "NOT MEASURED"]
    suite = ET.Element(
        "testsuite",
        name=f"bench {outcome.suite}",
        tests=str(len(judgements)),
        failures=str(len(failed)),
        errors=str(len(errors)),
        skipped="0",
    )
    for judgement in judgements:
        case = ET.SubElement(suite, "testcase", classname=judgement.case.kernel, name=judgement.case.id)
        lines = [judgement.reason, *judgement.notes, *map(str, judgement.changes)]
        text = "\n".join(line for line in lines if line)
        kind = "failure" if judgement in failed else "error" if judgement in errors else "system-out"
        child = ET.SubElement(case, kind)
        if kind != "system-out":
            child.set("message", f"{judgement.verdict}: {_what(judgement)}")
        child.text = f"{judgement.verdict}\n{text}"
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _row(judgement: Judgement, columns: int) -> list[str]:
    times = [] if columns == 3 else _time_cells(judgement)
    return [judgement.case.id, judgement.verdict, *times, _what(judgement)]


def _time_columns(outcome: BaselineComparison) -> tuple[str, ...]:
    timed = any(_timing(judgement).get("seconds") for judgement in outcome.judgements)
    return ("time", "TFLOPS", "new/old", "interval") if timed else ()


def _time_cells(judgement: Judgement) -> list[str]:
    timing, interval = _timing(judgement), judgement.time and judgement.time.interval
    if not timing.get("seconds"):
        return ["-"] * 4
    return [
        f"{timing['seconds'] * 1e6:.1f} us",
        f"{timing['tflops']:.1f}",
        f"{interval.ratio:.4f}" if interval else "-",
        f"{interval.low:.4f} to {interval.high:.4f}" if interval else "-",
    ]


def _what(judgement: Judgement) -> str:
    """Returns the most important fact about a case, for one cell."""
    reason = " ".join(judgement.reason.split())
    return "; ".join(filter(None, (reason, *in_words(judgement.changes, 3), *judgement.notes)))


CHANGE_COLUMNS = ("", "figure", "by", "for example", "in")


def _change_row(group: ChangeGroup, outcome: BaselineComparison) -> list[str]:
    change = group.example
    example = str(change).removeprefix(f"{change.name} ")
    return [change.direction, change.name, f"{change.difference:+,}", example, _where(group.cases, outcome)]


def _where(cases: list[str], outcome: BaselineComparison) -> str:
    """Names the cases, or says that they are all cases of a kernel."""
    if len(cases) == 1:
        return cases[0]
    kernels = sorted({case.split()[0] for case in cases})
    measured = [j.case.id for j in outcome.judgements if j.record and j.case.kernel in kernels]
    return f"{'all ' if len(measured) == len(cases) else ''}{len(cases)} cases of {', '.join(kernels)}"


def _case(judgement: Judgement) -> dict[str, Any]:
    record = judgement.record or {}
    timing = _timing(judgement)
    return {
        "case": judgement.case.id,
        "verdict": judgement.verdict,
        "reason": judgement.reason,
        "notes": list(judgement.notes),
        "device": (record.get("device") or {}).get("name"),
        "commit": _commit(record),
        "seconds": timing.get("seconds"),
        "tflops": timing.get("tflops"),
        "time": asdict(judgement.time) if judgement.time else None,
        **_figures(timing),
        "soundness": record.get("soundness"),
        "baseline": _baseline(judgement.baseline),
        "changes": [{"name": c.name, "old": c.old, "new": c.new, "direction": c.direction} for c in judgement.changes],
    }


def _figures(timing: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a GPU measured, by the way of timing; None where it did not.

    ``ratio`` is the kernel's speed over the vendor's. ``best_of_cublaslt`` has this ratio in turns and alone.
    """
    vendors, alone = timing.get("vendor") or {}, timing.get("alone")
    in_turns = None
    if timing.get("seconds"):
        these = {"kernel": timing, **vendors}
        keys = ("seconds", "tflops", "ratio")
        in_turns = {name: {key: one[key] for key in keys if key in one} for name, one in these.items()}
    best = {"in_turns": vendors.get(BEST, {}).get("ratio"), "alone": (alone or {}).get(BEST, {}).get("ratio")}
    return {
        "in_turns": in_turns,
        "alone": alone,
        "host_us": timing.get("host_us"),
        BEST: best if any(best.values()) else None,
    }


def _baseline(record: Any) -> dict[str, Any] | None:
    if not record:
        return None
    timing = record.get("timing") or {}
    return {
        "run": record["bench"]["run"],
        "time": record.get("time"),
        "commit": _commit(record),
        "seconds": timing.get("seconds"),
    }


def _timing(judgement: Judgement) -> dict[str, Any]:
    return (judgement.record or {}).get("timing") or {}


def _commit(record: Any) -> str:
    git = (record or {}).get("git") or {}
    return f"{git.get('commit', '')[:10]}{'+' if git.get('dirty') else ''}" if git else ""


def _as_many_as_fit(columns: Sequence[str], rows: Sequence[Sequence[str]], limit: int) -> str:
    """Returns a table of as many rows as fit into the limit, and the number of those left out."""
    head, below, *lines = table(columns, [[_cut(cell) for cell in row] for row in rows])
    left = limit - len(head) - len(below) - 2
    for number, line in enumerate(lines):
        left -= len(line) + 1
        if left < 0:
            more = f"... and {len(lines) - number} more; the JSON and JUnit files have all"
            return "\n".join([head, below, *lines[:number], "", more])
    return "\n".join([head, below, *lines])


def _cut(text: str) -> str:
    return text if len(text) <= CELL else f"{text[: CELL - 4]} ..."
