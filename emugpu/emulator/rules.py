"""The rules of the machine: an id for each, and the severity of a breach.

An *error* stops the run, because everything after it would be undefined. A *warning* breaks the PTX ISA or relies on
what it leaves open, but hardware is known to tolerate it and compilers emit it. Warnings are collected and shown at the
end of the run. With ``strict`` a warning is an error too, unless its id is allowed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Rule:
    """``summary``: the rule itself, as a sentence. ``source``: the section of the PTX ISA, or the instruction."""

    id: str
    severity: Severity
    summary: str
    source: str


_ERRORS = {
    "unsupported": (
        "The emulator implements every instruction, modifier and operand that is executed.",
        "none: a limit of the emulator",
    ),
    "operand": (
        "Operands have values that the instruction accepts.",
        "Instructions, each one's description",
    ),
    "undefined": (
        "A register is written before its value is stored, used as an address or decided upon.",
        "State Spaces: registers",
    ),
    "address": (
        "An address lies inside memory that exists, in the state space the instruction names.",
        "State Spaces; Addresses as Operands",
    ),
    "alignment": (
        "An address is a multiple of what its access needs.",
        "Addresses as Operands: alignment",
    ),
    "uninitialised": (
        "Memory is written before it is read.",
        "State Spaces",
    ),
    "convergence": (
        "The lanes that an instruction needs execute it together, with agreeing operands.",
        "Instruction Statements; `.aligned` and `.sync` of each instruction",
    ),
    "trap": (
        "The program does not execute trap.",
        "`trap`",
    ),
    "assert": (
        "The program's assertions hold.",
        "none: CUDA C++ Programming Guide, Assertion",
    ),
    "mbarrier-init": (
        "An mbarrier is initialised once before it is used.",
        "`mbarrier.init`",
    ),
    "mbarrier-count": (
        "A phase of an mbarrier gets as many arrivals as it was initialised for.",
        "`mbarrier`: Phase of the mbarrier object",
    ),
    "mbarrier-bytes": (
        "The bytes a phase expects are the bytes that arrive, and fewer than 2^20.",
        "`mbarrier`: Tracking asynchronous operations; valid range of tx-count",
    ),
    "mbarrier-overwritten": (
        "Nothing is written over a live mbarrier.",
        "`mbarrier`: Contents of the mbarrier object",
    ),
    "barrier": (
        "Threads of a barrier agree on its count, and arrive once in each round.",
        "`bar`, `barrier`; `barrier.cluster`",
    ),
    "cluster": (
        "A cluster has the CTAs that are named or needed, and they are there when they are reached.",
        "`mapa`, `st.async`, `red.async`; Cooperative Thread Arrays, Cluster of Cooperative Thread Arrays",
    ),
    "tensor-map": (
        "Tensor copies use tensor maps of the launch, with coordinates that fit them.",
        "Tensors; `cp.async.bulk.tensor`",
    ),
    "descriptor": (
        "Matrix and instruction descriptors have the fields their architecture defines.",
        "`tcgen05`: Matrix and Instruction descriptors; `wgmma`: Matrix Descriptor Format",
    ),
    "tmem-alloc": (
        "Tensor memory is allocated, used, and freed, each block once and as a pair where a pair uses it.",
        "`tcgen05.alloc`, `dealloc`, `relinquish_alloc_permit`",
    ),
    "tmem-wait": (
        "tcgen05.wait stands between dependent accesses to tensor memory of one thread.",
        "`tcgen05`: Memory Consistency Model, `tcgen05.wait`",
    ),
    "wgmma": (
        "Accumulators and A registers are left alone until wgmma.wait_group, fenced before reuse.",
        "`wgmma.fence`, `wgmma.wait_group`",
    ),
    "registers": (
        "Warps of a warpgroup ask for registers as often as one another, and the CTA has them.",
        "`setmaxnreg`",
    ),
    "exit": (
        "A thread leaves nothing behind: no tensor memory, no wgmma in flight.",
        "`tcgen05.dealloc`; `wgmma.wait_group`",
    ),
    "clc-after-failure": (
        "A CTA that has seen a failed cluster launch request does not make another.",
        "`clusterlaunchcontrol.try_cancel`",
    ),
    "clc-exit-pending": (
        "A CTA does not exit while a cluster launch request of it is in flight.",
        "`clusterlaunchcontrol.try_cancel`",
    ),
    "clc-failed-coordinates": (
        "The coordinates of a failed cluster launch request are not used.",
        "`clusterlaunchcontrol.query_cancel`",
    ),
    "clc-unarmed": (
        "Each CTA's mbarrier expects the 16 bytes of the response it will get.",
        "`clusterlaunchcontrol.try_cancel`",
    ),
}
_WARNINGS = {
    "register-before-wait": (
        "tcgen05.wait::ld stands between tcgen05.ld and the use of its registers.",
        "`tcgen05.ld`, `tcgen05.wait`",
    ),
    "exit-pending": (
        "A thread waits for the reads of its bulk stores before it exits.",
        "`cp.async.bulk.wait_group`",
    ),
    "peer-exited": (
        "Arrivals and commits reach CTAs that have not exited.",
        "`mapa`; `mbarrier.arrive`, `tcgen05.commit`",
    ),
    "phase-lapped": (
        "A phase is waited for before the barrier completes the one after it.",
        "`mbarrier.test_wait`, `try_wait`: phaseParity",
    ),
    "wgmma-fence": (
        "wgmma.fence stands between an access to accumulator registers and the wgmma that takes them.",
        "`wgmma.fence`",
    ),
    "generic-address": (
        "An address operand of .shared::cta is an address in shared memory.",
        "`tcgen05.alloc`",
    ),
    "mbarrier-reinit": (
        "An mbarrier is initialised by one thread only.",
        "`mbarrier.init`",
    ),
    "mbarrier-after-inval": (
        "Nothing arrives at an mbarrier after mbarrier.inval.",
        "`mbarrier.inval`",
    ),
    "scale-copies": (
        "The scale factors of an MMA are the same in all quadrants of lanes, and those of B in both CTAs of a pair.",
        "`tcgen05.mma`: Block Scaling, layout of the scale factors",
    ),
    "sparse-metadata": (
        "The sparsity metadata of an MMA has codes that keep two elements of four, or one of two of tf32.",
        "`tcgen05.mma.sp`: Sparse matrices",
    ),
    "registers-differ": (
        "The four warps of a warpgroup ask for the same registers.",
        "`setmaxnreg`",
    ),
    "type-code": (
        "Instruction descriptors of kind::f8f6f4 name a type that exists: code 2 is none.",
        "`tcgen05`: Instruction descriptor",
    ),
    "tmem-outside": (
        "tcgen05.ld and tcgen05.st stay within the columns that the CTA has allocated.",
        "`tcgen05.alloc`; Tensor Memory Allocation",
    ),
    "tmem-freed": (
        "Tensor memory is freed after the loads from it have been waited for.",
        "`tcgen05.dealloc`, `tcgen05.wait`",
    ),
}
RULES = {
    **{id: Rule(id, "error", *texts) for id, texts in _ERRORS.items()},
    **{id: Rule(id, "warning", *texts) for id, texts in _WARNINGS.items()},
}
WARNINGS = tuple(_WARNINGS)


@dataclass
class RuleWarning:
    """A warning of a run.

    ``count``: how often it happened at this place, in all warps, CTAs and phases. ``line``: the line of the PTX.
    """

    rule: str
    message: str
    count: int = 1
    line: int = 0


def cause(finding: RuleWarning) -> str:
    """Returns the part that findings have in common if they differ only in numbers, such as addresses."""
    return f"{finding.rule}: {re.sub(r'0x[0-9a-f]+|[0-9]+', '', finding.message)}"
