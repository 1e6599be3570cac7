"""Findings in the Static Analysis Results Interchange Format 2.1.0, which code-scanning services read (OASIS SARIF)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.check.findings import Finding, Place, Report
from harness.check.rules import RULES

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(reports: Iterable[tuple[str, Report]]) -> dict[str, Any]:
    """``reports``: each with the file that PTX lines are of. A source line stands in their place where there is one."""
    rules = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.summary},
            "defaultConfiguration": {"level": rule.severity},
        }
        for rule in RULES.values()
    ]
    results = [_result(finding, file) for file, report in reports for finding in report.findings]
    driver = {"name": "harness check", "rules": rules}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(finding: Finding, file: str) -> dict[str, Any]:
    # The place to mend is the later one: what it does comes too early.
    places = [place for place in (finding.second, finding.first) if place is not None]
    text = ". ".join(part for part in (finding.message, finding.missing, finding.mend) if part)
    return {
        "ruleId": finding.rule,
        "ruleIndex": list(RULES).index(finding.rule),
        "level": finding.severity,
        "message": {"text": text},
        "occurrenceCount": finding.count,
        "locations": [_location(place, file) for place in places[:1]],
        "relatedLocations": [
            {"id": n, **_location(place, file), "message": {"text": str(place)}} for n, place in enumerate(places)
        ],
    }


def _location(place: Place, file: str) -> dict[str, Any]:
    name, line = file, place.line
    path, _, number = place.source.rpartition(":")
    if path and number.isdecimal():
        name, line = path, int(number)
    return {"physicalLocation": {"artifactLocation": {"uri": name}, "region": {"startLine": max(1, line)}}}
