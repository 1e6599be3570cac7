"""What the run has to say beside its result: breaches of rules that are warnings."""

from __future__ import annotations

from collections.abc import Collection

from emugpu.emulator.errors import Fault
from emugpu.emulator.machine.events import Site
from emugpu.emulator.rules import Finding, cause


class Findings:
    """Findings of one cause at one place are one with a count. ``strict``: all are errors but those in ``allow``."""

    def __init__(self, strict: bool, allow: Collection[str]) -> None:
        self.strict = strict
        self.allow = frozenset(allow)
        self.found: dict[tuple[str, int], Finding] = {}
        """By cause and instruction."""

    def tolerates(self, rule: str) -> bool:
        """Whether a breach is a warning only."""
        return not self.strict or rule in self.allow

    def warn(self, rule: str, site: Site, message: str) -> None:
        """Note a breach, or raise Fault if it is not tolerated."""
        if not self.tolerates(rule):
            raise Fault(message, rule)
        self.note(rule, site, message)

    def note(self, rule: str, site: Site, message: str) -> None:
        """Keep a finding that is none of strictness."""
        self.add(Finding(rule, f"PTX line {site.line}: {site.text}: {message}", line=site.line), site.index)

    def add(self, finding: Finding, index: int) -> None:
        known = self.found.setdefault((cause(finding), index), finding)
        if known is not finding:
            known.count += finding.count

    def merge(self, found: dict[tuple[str, int], Finding]) -> None:
        """Take over what another process has found."""
        for (_, index), finding in found.items():
            self.add(finding, index)

    def as_tuple(self) -> tuple[Finding, ...]:
        return tuple(self.found.values())
