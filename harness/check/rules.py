"""The rules of synchronisation: an id for each, how grave a breach is, and the rule as a sentence.

An *error* is a fault of the program. A *warning* is formally wrong but not known to break on hardware. A *note* says
what could be better. One rule may give findings of several severities: ``severity`` is the gravest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Rule:
    """``summary``: the rule as a sentence."""

    id: str
    severity: Severity
    summary: str


_ERRORS = {
    "race-shared": "Conflicting accesses to shared memory are ordered.",
    "race-global": "Conflicting accesses to global memory are ordered.",
    "stage-read-early": "An MMA reads a stage after the copies into it have been observed.",
    "stage-refilled-early": "A stage is written again after the MMAs that read it are known to be complete.",
    "store-source-reused": "The source of a bulk store is rewritten after its issuer has waited for the read.",
    "proxy-write-read": "A proxy fence stands between generic writes of shared memory and their asynchronous readers.",
    "proxy-global": "A proxy fence stands between generic writes of global memory and their asynchronous readers.",
    "tensormap": "A tensor map in global memory is released and acquired with fence.proxy.tensormap before it is used.",
    "proxy-read-overwrite": "A proxy fence stands between reading a launch-control response and the next one.",
    "scope": "What is handed to another CTA by generic accesses goes through cluster scope on both sides.",
    "register-before-wait": "Registers of asynchronous loads and multiplications are left alone until their wait.",
    "exit-pending": "A thread waits for the reads of its bulk stores before it exits.",
    "phase-unobserved": "A phase that somebody waits for can complete.",
    "count": "A phase of an mbarrier gets the arrivals it was initialised for.",
    "bytes": "The bytes a phase expects are the bytes that arrive, and fewer than 2^20.",
    "init": "An mbarrier is initialised once, and this is visible to whoever uses it.",
    "overwritten": "Nothing is written over a live mbarrier.",
    "peer-not-started": "A CTA is reached only when a cluster barrier has proved that it runs.",
    "peer-exited": "Nothing can reach a CTA that may have exited.",
    "mask": "Masks and addresses name CTAs of the cluster that the instruction may reach.",
    "tmem-race": "Conflicting accesses to tensor memory are ordered.",
    "tmem-uninit": "Tensor memory is written before it is read.",
    "tmem-alloc-order": "Tensor memory is allocated, used and freed in an order that both CTAs of a pair keep.",
    "convergence": "The lanes that an instruction needs execute it together, with agreeing operands.",
    "clc-slot": "A launch-control response is overwritten after all its readers have released it.",
    "clc-after-failure": "A CTA that has seen a failed launch-control request does not make another.",
    "clc-exit-pending": "A CTA does not exit while a launch-control request of it is under way.",
    "clc-failed-coordinates": "The coordinates of a failed launch-control request are not used.",
    "memory": "Memory is written before it is read.",
}
_WARNINGS = {
    "proxy-overwrite": "A proxy fence stands between generic writes and an asynchronous write over them.",
    "race-lanes": "Lanes of a warp that hand data to one another through shared memory meet in between.",
    "tmem-fence": "tcgen05.fence stands around a synchronisation between tcgen05 operations of two threads.",
    "phase-lapped": "Whoever waits for a phase has looked before the one after it can complete.",
    "inval": "Nothing arrives at an mbarrier after mbarrier.inval.",
}
_NOTES = {
    "waste": "Every fence, barrier and wait orders something.",
    "proxy-war": "A proxy fence stands between generic reads and an asynchronous write that follows them.",
}
_BY_SEVERITY: tuple[tuple[Severity, dict[str, str]], ...] = (
    ("error", _ERRORS),
    ("warning", _WARNINGS),
    ("note", _NOTES),
)
RULES = {id: Rule(id, severity, summary) for severity, rules in _BY_SEVERITY for id, summary in rules.items()}
