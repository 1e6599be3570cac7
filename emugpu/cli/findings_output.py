"""How findings are told: options, text, JSON, SARIF and exit codes of the commands that check."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import click
from rich.console import Console

from emugpu.check.checker import Checked, chosen
from emugpu.check.findings import RULES, Finding, as_sarif, by_cause
from emugpu.cli import render
from emugpu.cli.options import check_output, group, json_option, strict_option, write_output
from emugpu.cli.program import try_write
from emugpu.errors import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, EXIT_WRONG_RESULT

MOST_PLACES = 8
"""Other places of one cause that are told."""
_STYLES = {"error": "bold red", "warning": "yellow", "note": ""}


@dataclass(frozen=True)
class Shown:
    """Says which findings are shown, and where."""

    strict: bool
    notes: bool
    allow: tuple[str, ...]
    json_path: str | None
    sarif_path: str | None

    def check(self) -> None:
        """Refuses files that cannot be written."""
        check_output(self.json_path, "--json")
        check_output(self.sarif_path, "--sarif")


shown_options = group(
    "shown",
    Shown,
    strict_option(False, "no-strict"),
    click.option("--notes", is_flag=True, help="Show notes, too."),
    click.option(
        "--allow",
        multiple=True,
        type=click.Choice(list(RULES)),
        metavar="RULE",
        help="Leave out this rule, of those that harness check --rules lists; may be repeated.",
    ),
    json_option,
    click.option("--sarif", "sarif_path", metavar="PATH", help="Write SARIF 2.1.0 there, for code-scanning services."),
)


def tell(found: Sequence[Checked], shown: Shown) -> int:
    """Tells what has been found; returns the exit code."""
    picked = [chosen(one, shown.strict, shown.notes, shown.allow) for one in found]
    written = _tell(picked, shown)
    return _exit_code(picked) or (EXIT_OK if written else EXIT_CANNOT_RUN)


def _exit_code(found: Sequence[Checked]) -> int:
    """A wrong result outweighs a run that did not end, as in every command."""
    if any(one.correct is False for one in found):
        return EXIT_WRONG_RESULT
    if any(one.failure for one in found):
        return EXIT_CANNOT_RUN
    return EXIT_FINDINGS if any(one.report.errors for one in found) else EXIT_OK


def _tell(found: Sequence[Checked], shown: Shown) -> bool:
    """Whether all could be written. Files first: a reader of the screen that goes away must not cost them."""
    files = []
    if shown.sarif_path:
        files.append(("SARIF", shown.sarif_path, as_sarif([(one.file, one.report) for one in found])))
    if shown.json_path:
        files.append(("report", shown.json_path, {"reports": [one.as_dict() for one in found]}))
    done = []
    for what, path, data in files:
        if try_write(partial(write_output, json.dumps(data, indent=2) + "\n", path)):
            done.append(f"{what} written to {path}")
    shown_too = shown.json_path == "-" or try_write(lambda: _show_all(found, done))
    return shown_too and len(done) == len(files)


def _show_all(found: Sequence[Checked], done: Sequence[str]) -> None:
    console = Console()
    for one in found:
        _show(console, one)
    for line in done:
        render.show_line(console, line)


def _show(console: Console, one: Checked) -> None:
    for cause in by_cause(one.report.findings):
        head, *rest = _lines(cause)
        render.show_line(console, head, _STYLES[cause[0].severity])
        for line in rest:
            render.show_line(console, line)
    if one.failure:
        render.show_line(console, f"a run did not come to its end: {one.failure}", "bold red")
    if one.correct is False:
        render.show_line(console, "the result is wrong", "bold red")
    errors, warnings = len(one.report.errors), len(one.report.warnings)
    runs = "one schedule" if one.schedules == 1 else f"{one.schedules} schedules"
    verdict = f"{_causes(one.report.errors, 'error')}, {_causes(one.report.warnings, 'warning')}"
    if one.failure:
        verdict = "no verdict, as a run did not end" + (f"; until then {verdict}" if errors or warnings else "")
    elif one.is_sound and not warnings:
        verdict = "sound"
    render.show_line(console, f"{one.label}, {runs}: {verdict}", "bold green" if one.is_sound else "bold red")


def _several(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def _causes(findings: Sequence[Finding], what: str) -> str:
    """How many there are; of one cause they are one, though at many places."""
    causes = by_cause(findings)
    return _several(len(causes), what) + (f" at {len(findings)} places" if len(findings) > len(causes) else "")


def _lines(cause: Sequence[Finding]) -> list[str]:
    """What is wrong for a person: the first place, then where else it is the same."""
    finding, *others = cause
    counts = [f"{len(cause)} places"] if others else []
    counts += [f"{times} times"] if (times := sum(one.count for one in cause)) > 1 else []
    how_often = f" ({', '.join(counts)})" if counts else ""
    found = [f"{finding.severity} {finding.rule}: {finding.message}{how_often}"]
    for label, text in (
        ("first  ", finding.first),
        ("then   ", finding.second),
        ("missing", finding.missing),
        ("fix    ", finding.fix),
    ):
        if text:
            found.append(f"  {label}  {text}")
    if others:
        more = f" and {len(others) - MOST_PLACES} more, which --json lists" if len(others) > MOST_PLACES else ""
        found.append(f"  also     PTX lines {', '.join(map(_pair, others[:MOST_PLACES]))}{more}")
    return found


def _pair(finding: Finding) -> str:
    return " -> ".join(str(place.line) for place in (finding.first, finding.second) if place)
