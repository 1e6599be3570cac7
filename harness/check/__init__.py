"""Checks the synchronisation of a kernel while it runs on the emulated GPU."""

from harness.check.checker import Checker
from harness.check.findings import Finding, Place, Report
from harness.check.rules import RULES, Rule

__all__ = ["RULES", "Checker", "Finding", "Place", "Report", "Rule"]
