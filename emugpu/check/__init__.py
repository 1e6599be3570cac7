"""Checks the synchronisation of a kernel while it runs on the emulated GPU."""

from emugpu.check.checker import Checker
from emugpu.check.findings import RULES, Finding, Place, Report, SynchronisationRule

__all__ = ["RULES", "Checker", "Finding", "Place", "Report", "SynchronisationRule"]
