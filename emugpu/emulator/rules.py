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
    """``summary``: the rule itself, as a sentence. ``source``: the section of the PTX ISA, or the instruction. ``fix``:
    what usually mends a breach.
    """

    id: str
    severity: Severity
    summary: str
    source: str
    fix: str

    @property
    def way(self) -> str:
        """Returns how to go past a breach, or "" if everything after it would be undefined."""
        return f"--emulate allow={self.id}" if self.severity == "warning" else ""

    @property
    def advice(self) -> str:
        """Returns the end of a message: the fix, and the way past a breach that hardware tolerates."""
        past = f"; hardware is known to tolerate it, and {self.way} goes on" if self.way else ""
        return f"fix: {self.fix}{past}"


_ERRORS = {
    "unsupported": (
        "The emulator implements every instruction, modifier and operand that is executed.",
        "none: a limit of the emulator",
        "write it with instructions that are implemented (docs: PTX on the emulated GPU), or report it",
    ),
    "operand": (
        "Operands have values that the instruction accepts.",
        "Instructions, each one's description",
        "give the instruction an operand that its description allows",
    ),
    "undefined": (
        "A register is written before its value is stored, used as an address or decided upon.",
        "State Spaces: registers",
        "write the register on every path to this instruction; `x = 0` before a loop or a branch",
    ),
    "address": (
        "An address lies inside memory that exists, in the state space the instruction names.",
        "State Spaces; Addresses as Operands",
        "compute the address from the start of the variable or buffer, and bound its index",
    ),
    "alignment": (
        "An address is a multiple of what its access needs.",
        "Addresses as Operands: alignment",
        "align the variable or buffer (.align, __align__), or use a narrower access",
    ),
    "uninitialised": (
        "Memory is written before it is read.",
        "State Spaces",
        "write the memory first, or guard the access with the bounds of the data",
    ),
    "convergence": (
        "The lanes that an instruction needs execute it together, with agreeing operands.",
        "Instruction Statements; `.aligned` and `.sync` of each instruction",
        "bring the lanes together before it: bar.warp.sync (__syncwarp) after the branch, and the same operands in all",
    ),
    "trap": ("The program does not execute trap.", "`trap`", "look for the condition that leads to the trap"),
    "assert": (
        "The program's assertions hold.",
        "none: CUDA C++ Programming Guide, Assertion",
        "look for the condition that the assertion names",
    ),
    "mbarrier-init": (
        "An mbarrier is initialised once before it is used.",
        "`mbarrier.init`",
        "let one thread initialise the mbarrier, then fence.mbarrier_init and a barrier before its first use",
    ),
    "mbarrier-count": (
        "A phase of an mbarrier gets as many arrivals as it was initialised for.",
        "`mbarrier`: Phase of the mbarrier object",
        "initialise the mbarrier with the number of arrivals of a phase",
    ),
    "mbarrier-bytes": (
        "The bytes a phase expects are the bytes that arrive, and fewer than 2^20.",
        "`mbarrier`: Tracking asynchronous operations; valid range of tx-count",
        "expect_tx with the bytes of all copies that signal the mbarrier in a phase",
    ),
    "mbarrier-overwritten": (
        "Nothing is written over a live mbarrier.",
        "`mbarrier`: Contents of the mbarrier object",
        "give the mbarrier memory of its own, or mbarrier.inval it first",
    ),
    "barrier": (
        "Threads of a barrier agree on its count, and arrive once in each round.",
        "`bar`, `barrier`; `barrier.cluster`",
        "give all threads of the barrier the same number and count, a multiple of 32",
    ),
    "cluster": (
        "A cluster has the CTAs that are named or needed, and they are there when they are reached.",
        "`mapa`, `st.async`, `red.async`; Cooperative Thread Arrays, Cluster of Cooperative Thread Arrays",
        "name a CTA of the cluster, and end with barrier.cluster so that it is still there",
    ),
    "tensor-map": (
        "Tensor copies use tensor maps of the launch, with coordinates that fit them.",
        "Tensors; `cp.async.bulk.tensor`",
        "pass a tensor map made for this tensor (cuTensorMapEncodeTiled), with one coordinate for each dimension",
    ),
    "descriptor": (
        "Matrix and instruction descriptors have the fields their architecture defines.",
        "`tcgen05`: Matrix and Instruction descriptors; `wgmma`: Matrix Descriptor Format",
        "build the descriptor as the ISA's table of its fields says",
    ),
    "tmem-alloc": (
        "Tensor memory is allocated, used, and freed, each block once and as a pair where a pair uses it.",
        "`tcgen05.alloc`, `dealloc`, `relinquish_alloc_permit`",
        "allocate before the use, free each block once, and after a barrier with its last user",
    ),
    "wgmma": (
        "Accumulators and A registers are left alone until wgmma.wait_group, fenced before reuse.",
        "`wgmma.fence`, `wgmma.wait_group`",
        "wgmma.wait_group before the registers are touched",
    ),
    "registers": (
        "A warp raises or lowers its registers as setmaxnreg says, and the CTA has them.",
        "`setmaxnreg`",
        "setmaxnreg.dec in the warps that give registers away, and no more in sum than the CTA has",
    ),
    "exit": (
        "A thread leaves nothing behind: no tensor memory, no wgmma in flight.",
        "`tcgen05.dealloc`; `wgmma.wait_group`",
        "tcgen05.dealloc, or wgmma.wait_group 0, before the exit",
    ),
    "clc-after-failure": (
        "A CTA that has seen a failed cluster launch request does not make another.",
        "`clusterlaunchcontrol.try_cancel`",
        "leave the loop when the response says that no work is left",
    ),
    "clc-exit-pending": (
        "A CTA does not exit while a cluster launch request of it is in flight.",
        "`clusterlaunchcontrol.try_cancel`",
        "wait for the mbarrier of the response before the exit",
    ),
    "clc-failed-coordinates": (
        "The coordinates of a failed cluster launch request are not used.",
        "`clusterlaunchcontrol.query_cancel`",
        "test is_canceled before the coordinates are used",
    ),
    "clc-unarmed": (
        "Each CTA's mbarrier expects the 16 bytes of the response it will get.",
        "`clusterlaunchcontrol.try_cancel`",
        "mbarrier.arrive.expect_tx of 16 bytes in each CTA that gets the response",
    ),
}
_WARNINGS = {
    "register-before-wait": (
        "tcgen05.wait::ld stands between tcgen05.ld and the use of its registers.",
        "`tcgen05.ld`, `tcgen05.wait`",
        "tcgen05.wait::ld before the registers are used",
    ),
    "tmem-wait": (
        "tcgen05.wait::st stands between tcgen05.st and a tcgen05.ld of the same columns.",
        "`tcgen05`: Memory Consistency Model, `tcgen05.wait`",
        "tcgen05.wait::st between the store and the load",
    ),
    "tmem-address": (
        "All lanes of a warp pass the same address of tensor memory.",
        "`tcgen05.ld`, `tcgen05.st`: taddr",
        "take the address as tcgen05.alloc has stored it, plus 32 lanes for each warp of the warpgroup",
    ),
    "bytes-left": (
        "An mbarrier of a CTA that ends expects no bytes.",
        "`mbarrier`: Tracking asynchronous operations; `mbarrier.inval`",
        "no expect_tx for a copy that does not come, or mbarrier.inval before the exit",
    ),
    "exit-pending": (
        "A thread waits for the reads of its bulk stores before it exits.",
        "`cp.async.bulk.wait_group`",
        "cp.async.bulk.wait_group.read 0 before the exit",
    ),
    "peer-exited": (
        "Arrivals and commits reach CTAs that have not exited.",
        "`mapa`; `mbarrier.arrive`, `tcgen05.commit`",
        "barrier.cluster at the end of the kernel, or a wait for the last signal",
    ),
    "phase-lapped": (
        "A phase is waited for before the barrier completes the one after it.",
        "`mbarrier.test_wait`, `try_wait`: phaseParity",
        "let the waiting thread arrive at a barrier on which the next phase depends, or correct the parity",
    ),
    "wgmma-fence": (
        "wgmma.fence stands between an access to accumulator registers and the wgmma that takes them.",
        "`wgmma.fence`",
        "wgmma.fence before the first wgmma, and whenever registers have been written",
    ),
    "generic-address": (
        "An address operand of .shared::cta is an address in shared memory.",
        "`tcgen05.alloc`",
        "pass the address in shared memory (cvta.to.shared, __cvta_generic_to_shared)",
    ),
    "mbarrier-reinit": (
        "An mbarrier is initialised by one thread only.",
        "`mbarrier.init`",
        "let one elected thread initialise it",
    ),
    "mbarrier-after-inval": (
        "Nothing arrives at an mbarrier after mbarrier.inval.",
        "`mbarrier.inval`",
        "wait for the last arrival before mbarrier.inval",
    ),
    "scale-copies": (
        "The scale factors of an MMA are the same in all quadrants that use them, and those of B in both CTAs.",
        "`tcgen05.mma`: Block Scaling, layout of the scale factors",
        "copy the scale factors to all four quadrants of lanes (tcgen05.cp with .warpx4), and to both CTAs",
    ),
    "sparse-metadata": (
        "The sparsity metadata of an MMA has codes that keep two elements of four, or one of two of tf32.",
        "`tcgen05.mma.sp`: Sparse matrices",
        "pass metadata with two different indexes, in ascending order, for each group of four",
    ),
    "registers-differ": (
        "The four warps of a warpgroup ask for the same registers, and as often as one another.",
        "`setmaxnreg`",
        "let all four warps of the warpgroup execute the same setmaxnreg",
    ),
    "type-code": (
        "Instruction descriptors of kind::f8f6f4 name a type that exists: code 2 is none.",
        "`tcgen05`: Instruction descriptor",
        "use a type code that the table of the instruction descriptor has",
    ),
    "tmem-outside": (
        "tcgen05.ld and tcgen05.st stay within the columns that the CTA has allocated.",
        "`tcgen05.alloc`; Tensor Memory Allocation",
        "allocate the columns, or shorten the access",
    ),
    "tmem-freed": (
        "Tensor memory is freed after the loads from it have been waited for.",
        "`tcgen05.dealloc`, `tcgen05.wait`",
        "tcgen05.wait::ld in every warp that loads, then a barrier, before tcgen05.dealloc",
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
