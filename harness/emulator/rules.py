"""The rules of the machine: an id for each, and how grave a breach is.

An *error* stops the run: what follows would be undefined. A *warning* is something that the PTX ISA forbids or leaves
open but that hardware is known to tolerate and compilers to emit; it is collected and shown at the end of the run.
Under ``strict`` a warning is an error, too, unless its id is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Rule:
    """``summary``: the rule itself, as a sentence."""

    id: str
    severity: Severity
    summary: str


_ERRORS = {
    "unsupported": "The emulator implements every instruction, modifier and operand that is executed.",
    "operand": "Operands have values that the instruction accepts.",
    "undefined": "A register is written before its value is stored, used as an address or decided upon.",
    "address": "An address lies inside memory that exists, in the state space the instruction names.",
    "alignment": "An address is a multiple of what its access needs.",
    "uninitialised": "Memory is written before it is read.",
    "convergence": "The lanes that an instruction needs execute it together, with agreeing operands.",
    "trap": "The program does not execute trap.",
    "assert": "The program's assertions hold.",
    "mbarrier-init": "An mbarrier is initialised once before it is used.",
    "mbarrier-count": "A phase of an mbarrier gets as many arrivals as it was initialised for.",
    "mbarrier-bytes": "The bytes a phase expects are the bytes that arrive, and fewer than 2^20.",
    "mbarrier-overwritten": "Nothing is written over a live mbarrier.",
    "barrier": "Threads of a barrier agree on its count, and arrive once in each round.",
    "cluster": "A CTA of the cluster that is named exists, and is there when it is reached.",
    "tensor-map": "Tensor copies use tensor maps of the launch, with coordinates that fit them.",
    "descriptor": "Matrix and instruction descriptors have the fields their architecture defines.",
    "tmem-alloc": "Tensor memory is allocated, used, and freed, each block once and as a pair where a pair uses it.",
    "tmem-wait": "tcgen05.wait stands between dependent accesses to tensor memory of one thread.",
    "wgmma": "Accumulators and A registers are left alone until wgmma.wait_group, fenced before reuse.",
    "registers": "Warps of a warpgroup ask for the same registers, and the CTA has them.",
    "exit": "A thread leaves nothing behind: no tensor memory, no wgmma under way.",
    "clc-after-failure": "A CTA that has seen a failed cluster launch request does not make another.",
    "clc-exit-pending": "A CTA does not exit while a cluster launch request of it is under way.",
    "clc-failed-coordinates": "The coordinates of a failed cluster launch request are not used.",
    "clc-unarmed": "Each CTA's mbarrier expects the 16 bytes of the response it will get.",
}
_WARNINGS = {
    "register-before-wait": "tcgen05.wait::ld stands between tcgen05.ld and the use of its registers.",
    "exit-pending": "A thread waits for the reads of its bulk stores before it exits.",
    "peer-exited": "Arrivals and commits reach CTAs that have not exited.",
    "phase-lapped": "A phase is waited for before the barrier completes the one after it.",
    "mbarrier-reinit": "An mbarrier is initialised by one thread only.",
    "mbarrier-after-inval": "Nothing arrives at an mbarrier after mbarrier.inval.",
    "tmem-freed": "Tensor memory is freed after the loads from it have been waited for.",
}
RULES = {
    **{id: Rule(id, "error", summary) for id, summary in _ERRORS.items()},
    **{id: Rule(id, "warning", summary) for id, summary in _WARNINGS.items()},
}
WARNINGS = tuple(_WARNINGS)


@dataclass
class Finding:
    """A warning of a run. ``count``: how often it happened at this place, in all warps, CTAs and rounds."""

    rule: str
    message: str
    count: int = 1
