"""What the checker has to say: findings, each with its two places, equal ones as one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from harness.check.rules import ORDER, RULES, Severity


@dataclass(frozen=True)
class Place:
    """Who executed what: a PTX instruction with its source line, if it has one, and the agent.

    ``lanes``: a mask. ``role``: of the warp, where a plan gives it one. ``cluster``: its number in the grid.
    """

    line: int
    text: str
    source: str
    cluster: int
    cta: int
    warp: int
    lanes: int
    role: str = ""

    def __str__(self) -> str:
        who = f"CTA {self.cta} warp {self.warp}"
        if self.role:
            who += f" ({self.role})"
        source = f", {self.source}" if self.source else ""
        return f"PTX line {self.line}: {self.text}{source}, by {who}"


@dataclass(frozen=True)
class Finding:
    """A breach of a rule. ``first`` should come before ``second``; one place if there is no second.

    ``bytes``: what both touch, by name. ``missing``: the edge that is not there. ``mend``: the shortest way to have it.
    ``count``: how often, in all warps, CTAs and rounds.
    """

    rule: str
    severity: Severity
    message: str
    first: Place | None
    second: Place | None = None
    bytes: str = ""
    missing: str = ""
    mend: str = ""
    count: int = 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Report:
    """All findings of a run, the gravest first."""

    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        return self.of("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return self.of("warning")

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == severity)


class Collection:
    """Findings by what makes them equal: rule, severity and instructions."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], list[Any]] = {}

    def seen(self, rule: str, severity: Severity, first: Any, second: Any) -> bool:
        """Count a finding at two sites; False if it is new and has to be added."""
        known = self._found.get((rule, severity, first, second))
        if known is None:
            return False
        known[1] += 1
        return True

    def add(self, finding: Finding, first: Any, second: Any) -> None:
        assert finding.rule in RULES, finding.rule
        self._found[finding.rule, finding.severity, first, second] = [finding, finding.count]

    def has(self, rule: str) -> bool:
        return any(key[0] == rule for key in self._found)

    def report(self) -> Report:
        found = [_counted(finding, count) for finding, count in self._found.values()]
        found.sort(key=_rank)
        return Report(tuple(found))


def _counted(finding: Finding, count: int) -> Finding:
    return Finding(**{**finding.__dict__, "count": count})


def _rank(finding: Finding) -> tuple[int, str, int, int]:
    return (
        ORDER.index(finding.severity),
        finding.rule,
        finding.first.line if finding.first else 0,
        finding.second.line if finding.second else 0,
    )


def merged(reports: list[Report]) -> Report:
    """Findings of several runs of one program: equal ones are one with the largest count."""
    found: dict[tuple[Any, ...], Finding] = {}
    for report in reports:
        for finding in report.findings:
            key = (
                finding.rule,
                finding.severity,
                finding.first.line if finding.first else finding.message,
                finding.second.line if finding.second else 0,
            )
            known = found.get(key)
            if known is None or known.count < finding.count:
                found[key] = finding
    return Report(tuple(sorted(found.values(), key=_rank)))
