"""Findings of a run beside its result: breaches of rules that are only warnings."""

from __future__ import annotations

from collections.abc import Collection

from emugpu.emulator.errors import Fault
from emugpu.emulator.machine.events import Site
from emugpu.emulator.rules import RuleWarning, cause


class Findings:
    """Findings with the same cause and place are counted as one.

    ``strict``: all are errors except those in ``allow``.
    """

    def __init__(self, strict: bool, allow: Collection[str]) -> None:
        self.strict = strict
        self.allow = frozenset(allow)
        self.found: dict[tuple[str, int], RuleWarning] = {}
        """The findings by cause and instruction."""

    def tolerates(self, rule: str) -> bool:
        """Returns whether a breach of the rule is only a warning."""
        return not self.strict or rule in self.allow

    def warn(self, rule: str, site: Site, message: str) -> None:
        """Records a breach, or raises Fault if it is not tolerated."""
        if not self.tolerates(rule):
            raise Fault(message, rule)
        self.note(rule, site, message)

    def note(self, rule: str, site: Site, message: str, count: int = 1) -> None:
        """Records a finding that is a warning in strict mode too."""
        self.add(RuleWarning(rule, f"PTX line {site.line}: {site.text}: {message}", count, site.line), site.index)

    def add(self, finding: RuleWarning, index: int) -> None:
        known = self.found.setdefault((cause(finding), index), finding)
        if known is not finding:
            known.count += finding.count

    def merge(self, found: dict[tuple[str, int], RuleWarning]) -> None:
        """Adds the findings of another process."""
        for (_, index), finding in found.items():
            self.add(finding, index)

    def as_tuple(self) -> tuple[RuleWarning, ...]:
        return tuple(self.found.values())
