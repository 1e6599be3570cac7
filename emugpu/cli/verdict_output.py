"""Shows verdicts and findings as text, JUnit XML and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from rich.console import Console

from emugpu.check.findings import Finding, by_cause
from emugpu.check.verdict import Verdict
from emugpu.cli.render import show_line
from emugpu.markdown import table

MOST_PLACES = 8
"""Most further places of one cause that are shown."""
_STYLES = {"error": "bold red", "warning": "yellow", "note": ""}
_WORDS = {"clean": "bold green", "incomplete": "bold yellow"}


def show_verdict(console: Console, verdict: Verdict, notes: bool) -> None:
    """Shows the findings with their places, the basis of the verdict, and the verdict itself last."""
    for cause in by_cause(verdict.findings):
        if notes or cause[0].severity != "note":
            show_finding(console, cause)
    *lines, word = verdict.lines()
    shown = {f"racy: {cause[0].rule}: {cause[0].message}" for cause in by_cause(verdict.findings)}
    for line in lines:
        if line not in shown:
            show_line(console, line)
    show_line(console, word, _WORDS.get(verdict.word, "bold red"))


def show_finding(console: Console, cause: Sequence[Finding]) -> None:
    """Shows a finding: its first place, then the other places with the same finding."""
    finding, *others = cause
    counts = [f"{len(cause)} places"] if others else []
    counts += [f"{times} times"] if (times := sum(one.count for one in cause)) > 1 else []
    how_often = f" ({', '.join(counts)})" if counts else ""
    head = f"{finding.severity} {finding.rule}: {finding.message}{how_often}"
    show_line(console, head, _STYLES[finding.severity])
    for label, text in (
        ("first  ", finding.first),
        ("then   ", finding.second),
        ("missing", finding.missing),
        ("fix    ", finding.fix),
    ):
        if text:
            show_line(console, f"  {label}  {text}")
    if others:
        more = f" and {len(others) - MOST_PLACES} more, which -o FILE.json lists" if len(others) > MOST_PLACES else ""
        show_line(console, f"  also     PTX lines {', '.join(map(_lines, others[:MOST_PLACES]))}{more}")


def _lines(finding: Finding) -> str:
    return " -> ".join(str(place.line) for place in (finding.first, finding.second) if place)


def as_junit(verdicts: Sequence[Verdict]) -> str:
    """Returns JUnit XML with a test case for each verdict: wrong, racy and hung are failures, incomplete is skipped."""
    skipped = sum(verdict.word == "incomplete" for verdict in verdicts)
    failed = sum(verdict.word not in ("clean", "incomplete") for verdict in verdicts)
    counts = {"tests": str(len(verdicts)), "failures": str(failed), "skipped": str(skipped)}
    suite = ElementTree.Element("testsuite", {"name": "emugpu verify", **counts})
    for verdict in verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname="emugpu.verify", name=verdict.target)
        if verdict.word != "clean":
            outcome = "skipped" if verdict.word == "incomplete" else "failure"
            element = ElementTree.SubElement(case, outcome, message=verdict.word)
            element.text = "\n".join(reason for _, reason in verdict.reasons)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def as_markdown(verdicts: Sequence[Verdict]) -> str:
    """Returns a table of the verdicts with their reasons."""
    rows = [(one.target, one.word, "; ".join(reason for _, reason in one.reasons)) for one in verdicts]
    return "\n".join(table(("target", "verdict", "reasons"), rows)) + "\n"
