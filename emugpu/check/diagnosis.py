"""Turns a pair of accesses into a diagnosis: the broken rule, the missing edge, and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from emugpu.check.clocks import EXECUTION, GLOBAL, LOCAL, REMOTE, VISIBLE, Clock, column
from emugpu.check.findings import Severity
from emugpu.check.history import TENSOR, Conflict, Observer
from emugpu.check.record import SCOPES, WEAK, Record, element_size, needed_scope
from emugpu.check.same_values import are_alike
from emugpu.check.signals_for_lanes import Behind
from emugpu.emulator.machine.events import Agent

ASYNC = ("copy", "store", "mma", "wgmma", "cp", "response")
"""Kinds of accesses through the async proxy."""
MULTIPLIES = ("mma", "wgmma", "cp")
BYTES = ("copy", "st.async")
"""Kinds of writes whose bytes an mbarrier counts: copies to shared memory."""
COUNTED = (*BYTES, "response")


def _meeting(one: Record, other: Record) -> str:
    """Returns the synchronisation that orders the accesses of two agents."""
    if one.agent.cluster != other.agent.cluster:
        return (
            "a flag in global memory, written after a release and read before an acquire of GPU scope (an atomic with "
            "__threadfence() before and after it)"
        )
    if one.agent.cta != other.agent.cta:
        return "a cluster barrier, or an mbarrier's arrive and wait, of cluster scope"
    return "a barrier (bar.sync, or an mbarrier's arrive and wait)"


def _then_meet(one: Record, other: Record) -> str:
    """Returns what a wait by one thread needs in addition to order the access of another one."""
    return "" if one.agent[:3] == other.agent[:3] else f", then {_meeting(one, other)}"


class Diagnosis(NamedTuple):
    """The fault of a pair of accesses.

    ``swap``: the access that the run made later should come first.
    """

    rule: str
    severity: Severity
    what: str
    missing: str
    fix: str
    swap: bool = False


def unordered(conflict: Conflict, observer: Observer, space: str) -> Diagnosis:
    """Diagnoses unordered accesses to shared or global memory."""
    old, new = conflict.old, conflict.new
    if observer.follows(old):
        behind = observer.waits_for_lanes(old, new, new.agent.lanes)
        return _not_passed_on(old, new) if behind is None else _not_heard(old, new, behind)
    if old.scope != WEAK != new.scope:
        return _strong_alone(old, new, space)
    if old.writes and new.writes:
        return _two_writes(old, new, space)
    read, write = (new, old) if old.writes else (old, new)
    if conflict.is_alike:
        return Diagnosis(
            f"race-{space}", "warning",
            f"{_name(read)} finds the value of {_name(write)}, or of another write of the same value in this run",
            "no path from the write to the read", "one thread writes it, or each has a place of its own", new is write,
        )  # fmt: skip
    # Report the pair in the order it should have: a late write follows the read, an early read the write.
    swap = (new is write) != conflict.late
    executed = observer.clock.knows(old.space, old.who, old.time, EXECUTION)
    weak = "; the synchronisation between them is relaxed, which orders execution only" if executed else ""
    if conflict.late:
        return _written_too_early(read, write, space, swap, weak)
    return _read_too_early(read, write, space, swap, weak)


def _not_passed_on(old: Record, new: Record) -> Diagnosis:
    """Diagnoses accesses that only a signal of other lanes orders."""
    signal = next(r for r in old.released or () if r.site is not None)
    assert signal.site is not None
    lanes = [lane for lane in range(32) if signal.lanes >> lane & 1]
    who = f"lane {lanes[0]} signals" if len(lanes) == 1 else f"lanes {lanes[0]} to {lanes[-1]} signal"
    done = "wrote" if old.writes else "read"
    return Diagnosis(
        "signal-for-lanes", "error",
        f"{who} in line {signal.site.line} what other lanes of the warp {done}, and nothing makes it wait for "
        f"them before {_name(new)}",
        f"no bar.warp.sync between line {old.site.line} and line {signal.site.line}",
        f"bar.warp.sync -1 (__syncwarp) before line {signal.site.line}, or a signal by each lane",
    )  # fmt: skip


def _not_heard(old: Record, new: Record, behind: Behind) -> Diagnosis:
    """Diagnoses accesses that only a wait of other lanes orders."""
    line = behind.heard.line
    return Diagnosis(
        "wait-for-lanes", "error",
        f"{_name(new)} is made by lanes of the warp that have not waited for {_name(old)}: other lanes wait for it in "
        f"line {line}, and nothing makes these wait for them",
        f"no bar.warp.sync between line {line} and line {new.site.line}",
        f"bar.warp.sync -1 (__syncwarp) after line {line}, or a wait by each lane",
    )  # fmt: skip


def _strong_alone(old: Record, new: Record, space: str) -> Diagnosis:
    """Diagnoses two strong accesses that are not morally strong relative to each other (PTX ISA 8.7).

    Different sizes are a warning: nothing orders such accesses (8.7.2), but GPUs perform an aligned access as a whole,
    and kernels that write a value and its flag as one word and read the flag alone rely on it.
    """
    swap = new.site.line < old.site.line
    what = f"{_name(old)} and {_name(new)} of one place race, although both are strong"
    if old.agrees(new):
        sizes = " and ".join(map(str, sorted(8 * element_size(one.site) for one in (old, new))))
        return Diagnosis(
            f"race-{space}", "warning", what, f"they must overlap completely, but have elements of {sizes} bits",
            "accesses of one size", swap,
        )  # fmt: skip
    narrow = min((old, new), key=lambda one: one.scope)
    names = {number: name for name, number in SCOPES.items()}
    wide = names[needed_scope(old.agent, new.agent)]
    return Diagnosis(
        f"race-{space}", "error", what,
        f"{narrow.site.verb} at {narrow.site.place} has the scope .{names[narrow.scope]}, which does not hold both "
        "threads",
        f".{wide} in PTX line {narrow.site.line}", swap,
    )  # fmt: skip


def _read_too_early(read: Record, write: Record, space: str, swap: bool, weak: str) -> Diagnosis:
    rule = f"race-{space}"
    if write.kind in BYTES and read.kind in MULTIPLIES:
        rule = "stage-read-early"
    elif read.kind == "map":
        rule = "tensormap"
    what = f"{_name(read)} does not wait for {_name(write)} of what it reads{weak}"
    if write.kind in COUNTED:
        missing = "no wait for the phase of the mbarrier that counts the bytes of the write"
        fix = "wait for that phase before the read, in the thread that issues it"
    elif write.kind == "cp.async":
        missing = "no cp.async.wait_group or cp.async.mbarrier.arrive by the thread that copies, and a barrier after it"
        fix = "cp.async.wait_group in each thread that copies, then a barrier"
    elif write.kind == "store":
        missing = "no cp.async.bulk.wait_group by the thread that issued the store"
        fix = f"cp.async.bulk.wait_group 0 by the issuer, then {_meeting(read, write)}"
    else:
        is_one_cta = read.agent[:2] == write.agent[:2]
        missing = "no barrier between the write and the read" if is_one_cta else "no path from the write to the read"
        fix = f"{_meeting(read, write)} between them"
    return Diagnosis(rule, "error", what, missing, fix, swap)


def _written_too_early(read: Record, write: Record, space: str, swap: bool, weak: str) -> Diagnosis:
    rule = f"race-{space}"
    missing = "no path from the end of the read to the write"
    fix = f"{_meeting(read, write)} between the read and the write"
    if read.kind in MULTIPLIES and space == "shared":
        rule = "stage-refilled-early"
        end = "tcgen05.commit" if read.kind != "wgmma" else "wgmma.wait_group and an arrival"
        missing = f"no wait for the {end} that follows the MMA"
        fix = f"before the write, wait for the mbarrier that the {end} signals"
    elif read.kind == "store" and space == "shared":
        rule = "store-source-reused"
        missing = "no cp.async.bulk.wait_group.read by the thread that issued the store, or no barrier after it"
        fix = "cp.async.bulk.wait_group.read in the issuing thread, then a barrier with the threads that write"
    elif read.kind == "copy":
        missing = "no wait for the phase of the mbarrier that counts the bytes of the copy"
        fix = f"wait for that phase before the write{_then_meet(read, write)}"
    elif read.kind == "cp.async":
        missing = "no cp.async.wait_group by the thread that copies, or no barrier after it"
        fix = f"cp.async.wait_group in the thread that copies before the write{_then_meet(read, write)}"
    elif read.kind == "map":
        rule = "tensormap"
        missing = "no wait for the completion of the copy that was issued through the map as it was"
        fix = (
            "before the write, wait for the mbarrier that counts the bytes of each such load, and for each such store "
            "with cp.async.bulk.wait_group.read"
        )
    elif write.kind == "copy":
        missing = "no arrival of the reader, after its read, that the thread that issues the copy has waited for"
        fix = "each reader arrives at an mbarrier after its read, and the issuer waits for it; or a barrier of all"
    elif write.kind == "response":
        rule = "clc-slot"
        missing = "no arrival of the reader that the requesting thread has waited for"
        fix = "each reader arrives at the slot's mbarrier after its read; the request waits for all of them"
    return Diagnosis(
        rule, "error", f"{_name(write)} overwrites what {_name(read)} may still read{weak}", missing, fix, swap
    )


def _two_writes(old: Record, new: Record, space: str) -> Diagnosis:
    swap = new.site.line < old.site.line
    if are_alike(old, new):
        return Diagnosis(
            f"race-{space}", "note", "several threads write the same values to one place",
            "no path from one write to the other", "one thread writes it", swap,
        )  # fmt: skip
    what = f"{_name(old)} and {_name(new)} write to one place in any order"
    missing, fix = "no path from one write to the other", f"{_meeting(old, new)} between them"
    if (new if swap else old).kind in COUNTED:
        missing = "no wait for the phase of the mbarrier that counts the bytes of the first write"
        fix = "wait for that phase before the second write is issued, in the thread that issues it"
    return Diagnosis(f"race-{space}", "error", what, missing, fix, swap)


def ordered(
    first: Record,
    second: Record,
    observer: Observer,
    space: str,
    holder: object,
    has_acquired: Callable[[Record, Agent], bool],
) -> Diagnosis | None:
    """Diagnoses ordered accesses: their writes may be invisible, or a proxy fence may be missing.

    ``holder`` is the CTA of shared memory. ``has_acquired`` says whether a write is visible to a thread of an agent's
    CTA. Returns None if there is no fault.
    """
    if second.kind == "map":
        missing = observer.misses(first)
        return _stale_map(first, missing) if missing else None
    if first.site.is_incoherent or second.site.is_incoherent:
        return _incoherent(first, second)
    clock = observer.clock
    row = GLOBAL if space == "global" else LOCAL if first.agent.cta == holder else REMOTE

    def knows(row: int) -> bool:
        return clock.knows(first.space, first.who, first.time, row)

    if second.writes and not observer.may_overwrite(first, second):
        return _out_of_scope(first, second, "the two may take place in any order")
    if first.writes and not second.writes:
        if not knows(VISIBLE) and not first.agrees(second):
            is_near = first.agent[:2] == second.agent[:2]
            if is_near or (observer.is_over(first) and has_acquired(first, second.agent)):
                return _only_completed(space)
            return _out_of_scope(first, second, "the write may not be visible in another CTA")
        if second.kind in ASYNC and not knows(row):
            return _no_proxy_fence(first, second, space)
    elif first.writes and "reduce" in second.site.modifiers and second.kind in ASYNC and not knows(row):
        return _no_proxy_fence(first, second, space)  # a reduction reads what it replaces
    elif first.writes and second.kind in ASYNC and not knows(row):
        return Diagnosis(
            "proxy-overwrite", "warning",
            f"{_name(second)} overwrites this through another proxy, and this may land later", "no proxy fence",
            f"fence.proxy.async {_covering(first)}",
        )  # fmt: skip
    elif second.kind in ASYNC and not knows(row):
        if second.kind == "response":
            return Diagnosis(
                "proxy-read-overwrite", "error",
                "the next response may overtake this read: they go through different proxies",
                "no proxy fence between the read and the arrival that releases the slot",
                "fence.proxy.async.shared::cta after the read, before the arrival",
            )  # fmt: skip
        return Diagnosis(
            "proxy-war", "warning", f"{_name(second)} follows this read through another proxy, and may overtake it",
            "no proxy fence between the read and the arrival",
            "fence.proxy.async after the read, before the arrival",
        )  # fmt: skip
    return None


def _incoherent(first: Record, second: Record) -> Diagnosis:
    """Diagnoses an ordered read and write of memory that a load needs to be read-only while the kernel runs.

    It is a warning if the write comes later, as in kernels that work in place, and for .L1::no_allocate, by which
    DeepEP reads what others write.
    """
    fix = "ld.global without .nc (no const __restrict__ and no __ldg)"
    if second.writes:
        return Diagnosis(
            "incoherent-load", "warning",
            f"{_name(second)} overwrites what {_name(first)} has read",
            "memory that nobody writes while the kernel runs: compilers may move the load behind a barrier", fix,
        )  # fmt: skip
    tolerated = any("no_allocate" in word for word in second.site.modifiers)
    return Diagnosis(
        "incoherent-load", "warning" if tolerated else "error",
        f"{_name(second)} may find what was there before {_name(first)}, which the same kernel makes",
        "memory that nobody writes while the kernel runs: no barrier orders such a load, compilers may move it before "
        "the write, and its cache may hold the old bytes", fix,
    )  # fmt: skip


def _stale_map(first: Record, missing: str) -> Diagnosis:
    return Diagnosis(
        "tensormap", "error", "the copy may use the tensor map as it was before this write", missing,
        f"fence.proxy.tensormap::generic.release.gpu after line {first.site.line} (or tensormap.cp_fenceproxy), then "
        "in the CTA that uses the map fence.proxy.tensormap::generic.acquire.gpu [map], 128",
    )  # fmt: skip


def _covering(write: Record) -> str:
    """Returns the place for a proxy fence that covers a generic write.

    An asynchronous write must be known to be over before the fence.
    """
    if write.kind == "st.async":
        return "after the wait for the phase of its mbarrier by the thread that waits"
    if write.kind == "cp.async":
        return "after the wait for it (cp.async.wait_group) by each thread that copies, before the barrier"
    return f"after line {write.site.line} by each thread that writes, before the barrier"


def _no_proxy_fence(first: Record, second: Record, space: str) -> Diagnosis:
    """Diagnoses a write that is over and visible to the reader, but not to the async proxy.

    Operands that cp.async or st.async has brought are a warning: CUTLASS's main loops with cp.async and FlashMLA's
    decode on Hopper have no fence there, and hardware is not known to punish it.
    """
    rule = "proxy-write-read" if space == "shared" else "proxy-global"
    suffix = ".shared::cta" if space == "shared" else ".global"
    severity: Severity = "warning" if first.kind in ("cp.async", "st.async") and second.kind in MULTIPLIES else "error"
    return Diagnosis(
        rule, severity, f"{_name(second)} reads through the async proxy what this wrote through the generic one",
        "a barrier orders them, but no proxy fence lies on the path",
        f"fence.proxy.async{suffix} {_covering(first)}, or before line {second.site.line} by the thread that issues it",
    )  # fmt: skip


def _only_completed(space: str) -> Diagnosis:
    """Diagnoses a write that the reader's CTA has made or acquired, and of which only a signal tells the reader.

    The signal has the scope of the cluster (PTX ISA, tcgen05.commit, cp.async.bulk), but the ISA does not say that it
    also releases what the thread that issued the operation has done or acquired.
    """
    return Diagnosis(
        f"race-{space}", "warning",
        "the write is over when this reads, but only the completion of an asynchronous operation shows it",
        "no release and acquire between the threads",
        "an arrival at the mbarrier that is waited for, by the writer or by a thread that has acquired the write",
    )  # fmt: skip


def _out_of_scope(first: Record, second: Record, may: str) -> Diagnosis:
    has = f"{may}: the synchronisation between them has"
    if first.agent.cluster != second.agent.cluster:
        return Diagnosis(
            "scope", "error", f"{has} a scope narrower than .gpu", "no release and acquire of GPU scope on the path",
            "__threadfence() (fence.acq_rel.gpu), or .release.gpu and .acquire.gpu",
        )  # fmt: skip
    # By an arrival of CTA scope many kernels tell a CTA of their cluster that they have read something, or that a stage
    # is free for st.async.
    severity: Severity = "error" if first.writes and second.kind != "st.async" else "warning"
    return Diagnosis(
        "scope", severity, f"{has} CTA scope", "no release and acquire of cluster scope on the path",
        ".release.cluster at the arrival and .acquire.cluster at the wait",
    )  # fmt: skip


def tensor_unordered(conflict: Conflict, known: Clock) -> Diagnosis:
    """Returns what is wrong with two accesses to tensor memory. ``known`` is what the agent of the later one knew."""
    old, new = conflict.old, conflict.new
    if (new.kind == "free" or old.kind == "alloc") and known.knows(old.space, old.who, old.time, EXECUTION):
        # Allocation and deallocation are synchronous, and what has been executed has ended (PTX ISA 9.7.16.6.1).
        return Diagnosis(
            "tmem-alloc-order", "warning",
            f"only a relaxed synchronisation or the exit of a thread lies between {_name(old)} and {_name(new)}",
            "no release and acquire, and no tcgen05.fence on both sides",
            "a barrier with release and acquire, at which every warp that uses the memory arrives, between them",
        )  # fmt: skip
    life = [r for r in (old, new) if r.kind in ("alloc", "free")]
    if life:
        does = "allocates" if life[0].kind == "alloc" else "frees"
        user = _other(conflict, life[0])
        waits = "tcgen05.wait::ld after the load, and " if user.kind == "load" else ""
        return Diagnosis(
            "tmem-alloc-order", "error",
            f"tensor memory is used by {_name(user)} while another warp {does} it",
            "no path between the two", f"{waits}a cluster barrier (or a CTA barrier without pairs) between them",
            _comes_first(new) > _comes_first(old),
        )  # fmt: skip
    one_thread = old.kind == "mma" and (old.who, old.space) == (new.who, new.space)
    if one_thread and (new.kind == "cp" or (new.kind == "mma" and new.writes and not old.writes)):
        # CUTLASS's attention (example 77) has such MMAs: the next scores overwrite the probabilities.
        return Diagnosis(
            "tmem-race", "warning", f"{_name(new)} overwrites columns that an MMA issued before it may still use",
            "the two are not among the pairs that execute in the order of their issue (PTX ISA 9.7.16.6)",
            "wait for a tcgen05.commit after the MMA, or write to other columns in turn",
        )  # fmt: skip
    if old.writes != new.writes:
        read, write = (new, old) if old.writes else (old, new)
        swap = (new is write) != conflict.late
        if conflict.late:
            what = f"{_name(write)} overwrites columns that {_name(read)} may still read"
            fix = "tcgen05.wait::ld after the loads, then an arrival that the thread that issues the MMA waits for"
        else:
            what = f"{_name(read)} does not wait for {_name(write)} of the columns"
            fix = "wait for the mbarrier of a tcgen05.commit after the MMA (tcgen05.wait::st after a tcgen05.st)"
    else:
        swap = new.site.line < old.site.line
        what, fix = f"{_name(old)} and {_name(new)} write the same columns in any order", "a commit and a wait"
    return Diagnosis("tmem-race", "error", what, "no path from one to the other", fix, swap)


def _comes_first(record: Record) -> int:
    return {"alloc": 2, "free": 0}.get(record.kind, 1)


def _other(conflict: Conflict, one: Record) -> Record:
    return conflict.new if conflict.old is one else conflict.old


def tensor_ordered(first: Record, second: Record, observer: Observer) -> Diagnosis | None:
    """Checks that tcgen05.fence surrounds the synchronisation between tcgen05 operations of two threads."""
    if first.kind not in TENSOR or second.kind not in TENSOR or observer.tensor is None:
        return None
    if first.who == observer.pipe or column(observer.tensor, first.who) >= first.time:
        return None
    return Diagnosis(
        "tmem-fence", "warning",
        f"{_name(second)} follows {_name(first)} of another thread without tcgen05.fence on both sides",
        "tcgen05.fence::before_thread_sync before, or ::after_thread_sync after the synchronisation is missing",
        "tcgen05.fence::before_thread_sync before the arrival and tcgen05.fence::after_thread_sync after the wait",
    )  # fmt: skip


_NAMES = {
    "copy": "the TMA copy",
    "store": "the bulk store",
    "mma": "the MMA",
    "wgmma": "the wgmma",
    "cp": "the tcgen05.cp",
    "cp.async": "the cp.async",
    "map": "the copy that uses the tensor map",
    "response": "the launch-control response",
    "load": "the tcgen05.ld",
    "keep": "the tcgen05.st",
    "alloc": "the allocation",
    "free": "the deallocation",
}


def _name(record: Record) -> str:
    if record.kind == "st.async":
        return f"the {record.site.verb}"
    if record.kind != "generic":
        return _NAMES[record.kind]
    opcode = "ld.global.nc" if "nc" in record.site.modifiers else record.site.opcode
    return f"the {'write' if record.writes else 'read'} by {opcode}"
