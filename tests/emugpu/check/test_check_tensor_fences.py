"""Tensor memory behind tcgen05.fence and behind exits: what the PTX ISA shows to be right, and what lacks a part of it.

Of the canonical synchronization patterns (9.7.16.6.4), these are those of two threads that do not form a pipeline. The
ISA lets the threads meet by relaxed operations, also by those on a flag (9.7.16.6.3, and the example of tcgen05.fence).
"""

from __future__ import annotations

import pytest
from handovers import CLUSTER_BARRIER, CTA_BARRIER, Outcome, Table, only, outcome, wait
from tensor_handovers import (  # fmt: skip
    A_BYTES,
    AFTER,
    B_BYTES,
    BEFORE,
    LD,
    LOAD_BOTH,
    PAIR_PREPARED,
    PREPARED,
    READ_OR_REFILLED,
    RELAXED_CLUSTER_BARRIER,
    ST,
    WAIT_LD,
    WAIT_ST,
    allocated,
    commit,
    freed,
    initialise,
    mma,
    operands,
    pair_commit,
)

from emugpu.emulator import Device, Module

pytestmark = pytest.mark.thorough

ORDERS = {"relaxed": (".relaxed.cta", ".relaxed.cta"), "release": ("", "")}
SWITCHES = dict(completed=(True, False), before=(True, False), after=(True, False), order=("relaxed", "release"))


def load_multiply(s) -> str:
    """Warp 0 loads an accumulator, thread 32 multiplies into it. bars: empty, drained."""
    arrive, acquire = ORDERS[s.order]
    late = "" if s.completed else WAIT_LD
    return (
        only("%thread eq 0", initialise(32, 1))
        + PREPARED
        + allocated(1)
        + only("%warp eq 0", LD + (WAIT_LD if s.completed else "") + (BEFORE if s.before else "")
               + f"mbarrier.arrive{arrive}.shared::cta.b64 _, [bars];" + late)
        + only("%thread eq 32", wait("bars", order=acquire) + (AFTER if s.after else "")
               + mma(1, 128, 16) + commit("bars+8"))
        + wait("bars+8")
        + AFTER
        + freed(1)
    )  # fmt: skip


def load_multiply_expects(s) -> Outcome:
    if not s.completed or (s.order == "relaxed" and not (s.before and s.after)):
        return outcome("tmem-race")
    return outcome(not (s.before and s.after) and "tmem-fence")


def multiply_load(s) -> str:
    """Thread 32 multiplies, warp 0 loads the result. bars: full."""
    _, acquire = ORDERS[s.order]
    multiply = mma(1, 128, 16) + commit("bars") if s.completed else commit("bars") + mma(1, 128, 16)
    return (
        only("%thread eq 0", initialise(1, 1))
        + PREPARED
        + allocated(1)
        + only("%thread eq 32", multiply + commit("bars+8"))
        + only("%warp eq 0", wait("bars", order=acquire) + (AFTER if s.after else "") + LD + WAIT_LD)
        + wait("bars+8")
        + AFTER
        + freed(1)
    )


def multiply_load_expects(s) -> Outcome:
    if not s.completed or (s.order == "relaxed" and not s.after):
        return outcome("tmem-race")
    return outcome(not s.after and "tmem-fence")


def copy_multiply_copy(s) -> str:
    """Thread 32 fills a stage, thread 64 multiplies it, thread 32 fills it again. bars: full, empty, passed on."""
    arrive, acquire = ORDERS[s.order]
    after = AFTER if s.after else ""
    fill = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {A_BYTES + B_BYTES};"
    fill += LOAD_BOTH.replace("BAR", "bars")
    full, filled = wait("bars", order=acquire), ""
    if s.passed_on:
        filled = wait("bars") + BEFORE + f"mbarrier.arrive{arrive}.shared::cta.b64 _, [bars+16];"
        full = wait("bars+16", order=acquire)
    refill = wait("bars+8", order=acquire) + after + fill + wait("bars", 1)
    return (
        only("%thread eq 0", initialise(1, 1, 1))
        + PREPARED
        + allocated(1)
        + only("%thread eq 32", fill + filled + refill)
        + only("%thread eq 64", full + after + mma(1, 128, 16) + commit("bars+8") + wait("bars+8"))
        + BEFORE
        + CTA_BARRIER
        + AFTER
        + freed(1)
    )


def copy_multiply_copy_expects(s) -> Outcome:
    """Operands lie in shared memory, which tcgen05.fence does not order. If nobody passes the first copy on, thread 32
    has not waited for it, and the second one may overtake it.
    """
    relaxed = s.order == "relaxed"
    return outcome(
        relaxed and READ_OR_REFILLED,
        relaxed and "stage-refilled-early",
        relaxed and not s.passed_on and "race-shared",
    )


FLAG = "shared::cluster.b32 [%r12]"
RAISES = {
    "relaxed": f"st.relaxed.cta.{FLAG}, 1;",
    "volatile": f"st.volatile.{FLAG}, 1;",
    "release": f"st.release.cta.{FLAG}, 1;",
    "atomic": "atom.relaxed.cta.shared::cluster.add.u32 %r6, [%r12], 1;",
}
SEES = {
    "relaxed": f"ld.relaxed.cta.{FLAG.replace(' ', ' %r5, ')};",
    "volatile": f"ld.volatile.{FLAG.replace(' ', ' %r5, ')};",
    "acquire": f"ld.acquire.cta.{FLAG.replace(' ', ' %r5, ')};",
}
NO_FLAG = "mov.b32 %r12, slot+8;" + only("%thread eq 0", f"st.volatile.{FLAG}, 0;")


def spin(load: str) -> str:
    return f"SPIN: {load} setp.eq.u32 %p13, %r5, 0; @%p13 bra SPIN;"


def load_flag_multiply(s) -> str:
    """Warp 0 loads an accumulator and raises a flag, thread 32 sees it and multiplies. bars: drained."""
    return (
        only("%thread eq 0", initialise(1))
        + NO_FLAG
        + PREPARED
        + allocated(1)
        + only("%warp eq 0", LD + (WAIT_LD if s.completed else "") + (BEFORE if s.before else "")
               + RAISES[s.raised] + WAIT_LD)
        + only("%thread eq 32", spin(SEES[s.seen]) + (AFTER if s.after else "") + mma(1, 128, 16) + commit("bars"))
        + wait("bars")
        + AFTER
        + freed(1)
    )  # fmt: skip


def load_flag_multiply_expects(s) -> Outcome:
    is_ordered = (s.raised, s.seen) == ("release", "acquire")
    if not s.completed or not (is_ordered or (s.before and s.after)):
        return outcome("tmem-race")
    return outcome(not (s.before and s.after) and "tmem-fence")


def copy_flag_multiply(s) -> str:
    """Thread 32 waits for a copy and raises a flag, thread 64 sees it and multiplies. bars: full, drained."""
    fill = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {A_BYTES + B_BYTES};"
    fill += LOAD_BOTH.replace("BAR", "bars") + wait("bars")
    return (
        only("%thread eq 0", initialise(1, 1))
        + NO_FLAG
        + PREPARED
        + allocated(1)
        + only("%thread eq 32", fill + BEFORE + RAISES[s.raised])
        + only("%thread eq 64", spin(SEES[s.seen]) + AFTER + mma(1, 128, 16) + commit("bars+8"))
        + wait("bars+8")
        + AFTER
        + freed(1)
    )


def copy_flag_multiply_expects(s) -> Outcome:
    """Operands lie in shared memory, which tcgen05.fence does not order."""
    return outcome((s.raised, s.seen) != ("release", "acquire") and READ_OR_REFILLED)


def load_flag_multiply_pair(s) -> str:
    """As `load_multiply_pair`, with a flag in the shared memory of rank 0. bars: drained."""
    multiply = spin(SEES["relaxed"].replace("cta", s.seen, 1)) + AFTER + mma(2, 128, 32) + pair_commit("bars", 1)
    return (
        NO_FLAG
        + PAIR_PREPARED
        + only("%thread eq 0", initialise(1) + "fence.mbarrier_init.release.cluster;")
        + allocated(2)
        + BEFORE
        + CLUSTER_BARRIER
        + AFTER
        + "mapa.shared::cluster.u32 %r12, %r12, 0;"
        + only("%rank eq 1", only("%warp eq 0", LD + WAIT_LD + BEFORE + RAISES["relaxed"].replace("cta", s.raised, 1)))
        + only("%rank eq 0", only("%thread eq 32", multiply + wait("bars")))
        + CLUSTER_BARRIER
        + freed(2)
    )


def load_flag_multiply_pair_expects(s) -> Outcome:
    is_narrow = "cta" in (s.raised, s.seen)
    return outcome(is_narrow and "tmem-race", is_narrow and "race-shared")


def load_multiply_pair(s) -> str:
    """Warp 0 of rank 1 loads its half of a sum, thread 32 of rank 0 multiplies into both. bars: empty, drained."""
    arrive = f"mapa.shared::cluster.u32 %r30, bars, 0; mbarrier.arrive{s.arrive}.shared::cluster.b64 _, [%r30];"
    multiply = wait("bars", order=s.wait) + AFTER + mma(2, 128, 32) + pair_commit("bars+8", 1) + wait("bars+8")
    return (
        PAIR_PREPARED
        + only("%thread eq 0", initialise(32, 1) + "fence.mbarrier_init.release.cluster;")
        + allocated(2)
        + BEFORE
        + CLUSTER_BARRIER
        + AFTER
        + only("%rank eq 1", only("%warp eq 0", LD + WAIT_LD + BEFORE + arrive))
        + only("%rank eq 0", only("%thread eq 32", multiply))
        + CLUSTER_BARRIER
        + freed(2)
    )


def load_multiply_pair_expects(s) -> Outcome:
    """What is relaxed on one side at least needs a scope on both sides that holds both threads."""
    relaxed = "relaxed" in s.arrive + s.wait
    return outcome(relaxed and not ("cluster" in s.arrive and "cluster" in s.wait) and "tmem-race")


TABLES = [
    Table("a load, then an MMA", SWITCHES, load_multiply, load_multiply_expects, arguments=operands(128)),
    Table(
        "an MMA, then a load", {key: SWITCHES[key] for key in ("completed", "after", "order")}, multiply_load,
        multiply_load_expects, arguments=operands(128),
    ),
    Table(
        "a copy, then an MMA, then a copy",
        dict(order=("relaxed", "release"), after=(True, False), passed_on=(True, False)),
        copy_multiply_copy, copy_multiply_copy_expects, threads=96, arguments=operands(128),
    ),
    Table(
        "a load, a flag, then an MMA",
        dict(
            raised=tuple(RAISES), seen=tuple(SEES), completed=(True, False), before=(True, False), after=(True, False),
        ),
        load_flag_multiply, load_flag_multiply_expects, arguments=operands(128),
    ),
    Table(
        "a copy, a flag, then an MMA", dict(raised=("release", "relaxed"), seen=("acquire", "relaxed", "volatile")),
        copy_flag_multiply, copy_flag_multiply_expects, threads=96, arguments=operands(128),
    ),
    Table(
        "a load, a flag, then an MMA of a pair", dict(raised=("cluster", "gpu", "cta"), seen=("cluster", "cta")),
        load_flag_multiply_pair, load_flag_multiply_pair_expects, grid=2, cluster=2, arguments=operands(64),
    ),
    Table(
        "a load, then an MMA of a pair",
        dict(
            arrive=(".release.cta", ".release.cluster", ".relaxed.cta", ".relaxed.cluster"),
            wait=(".acquire.cta", ".acquire.cluster", ".relaxed.cta", ".relaxed.cluster"),
        ),
        load_multiply_pair, load_multiply_pair_expects, grid=2, cluster=2, arguments=operands(64),
    ),
]  # fmt: skip


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_canonical_pattern_is_clean_and_without_a_part_of_it_is_not(table):
    found = table.disagreements("sm_100a", warnings=True)
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)


def multiply_flag_load(s) -> str:
    """Thread 32 multiplies, warp 2 waits for it and raises a flag, warp 0 sees it and loads the result. bars: full."""
    third = wait("bars", order=".relaxed.cta") + RAISES["relaxed"]
    return (
        only("%thread eq 0", initialise(1))
        + NO_FLAG
        + PREPARED
        + allocated(1).replace(BEFORE, "")
        + only("%thread eq 32", mma(1, 128, 16) + commit("bars"))
        + only("%warp eq 2", third)
        + only("%warp eq 0", spin(SEES["relaxed"]) + (AFTER if s.after else "") + LD + WAIT_LD)
        + CTA_BARRIER
        + freed(1)
    )


def test_a_flag_passes_on_what_a_commit_has_told():
    """A commit implies tcgen05.fence::before_thread_sync, so that the kernel has none."""
    table = Table(
        "an MMA, a flag, then a load",
        dict(after=(True, False)),
        multiply_flag_load,
        lambda s: outcome(not s.after and "tmem-race"),
        threads=96,
        arguments=operands(128),
    )
    found = table.disagreements("sm_100a")
    assert not found, "\n".join(found)


def load_exit_free(s) -> str:
    """In both CTAs of a pair, warp 1 loads its lanes and exits; warp 0 frees the memory."""
    arrive = "barrier.cluster.arrive.aligned;"
    zeros = "".join(f"mov.b32 %r{n}, 0;" for n in range(40, 56))
    load = zeros + ST + WAIT_ST + LD + (WAIT_LD if s.completed else "")
    loader = {
        "exits": load + "exit;",
        "arrives, exits": load + arrive + "exit;",
        "arrives too early": arrive + load + "exit;",
        "meets": load + BEFORE,
    }[s.loader]
    return (
        CLUSTER_BARRIER
        + allocated(2)
        + BEFORE
        + CLUSTER_BARRIER
        + AFTER
        + only("%warp eq 1", "add.u32 %r10, %r10, 0x200000;" + loader)
        + CLUSTER_BARRIER
        + AFTER
        + freed(2)
    )


EXITS = Table(
    "a load, then a deallocation",
    dict(completed=(True, False), loader=("exits", "arrives, exits", "arrives too early", "meets")),
    load_exit_free,
    lambda s: outcome(not (s.completed and s.loader != "arrives too early") and "tmem-alloc-order"),
    grid=2,
    cluster=2,
)


def test_whoever_leaves_the_barrier_of_a_cluster_follows_the_threads_that_have_exited():
    found = EXITS.disagreements("sm_100a", schedules=[("fifo", 0), ("random", 1)])
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)


def test_an_exit_is_no_synchronisation_that_the_isa_names():
    """So it is a warning where it alone orders a deallocation behind what has ended."""
    module = Module.from_text(EXITS.text("sm_100a"))
    for number, setting in enumerate(EXITS.settings):
        report, _ = EXITS.report(Device(), module, f"setting{number}")
        warned = {finding.rule for finding in report.warnings}
        assert warned == ({"tmem-alloc-order"} if setting.loader == "exits" else set()), setting


def allocate_free(s) -> str:
    """Warp 0 of each CTA of a pair allocates with its peer, and frees."""
    allocate = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], 32;"
    return (
        CLUSTER_BARRIER
        + only("%warp eq 0", allocate + "bar.warp.sync -1; ld.shared.b32 %r10, [slot];")
        + {"release": CLUSTER_BARRIER, "relaxed": RELAXED_CLUSTER_BARRIER, "none": ""}[s.barrier]
        + freed(2)
    )


def test_a_relaxed_barrier_tells_a_cta_that_its_peer_has_allocated():
    table = Table(
        "an allocation, then a deallocation",
        dict(barrier=("release", "relaxed", "none")),
        allocate_free,
        lambda s: outcome(s.barrier == "none" and "tmem-alloc-order"),
        threads=32,
        grid=2,
        cluster=2,
    )
    found = table.disagreements("sm_100a", warnings=True)
    assert not found, "\n".join(found)


def allocate_use(s) -> str:
    """Warp 0 of each CTA of a pair allocates, and warp 1 uses the address, as in DeepGEMM's products with pairs."""
    return (
        CLUSTER_BARRIER
        + only("%warp eq 0", "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], 32;")
        + {"release": CLUSTER_BARRIER, "relaxed": RELAXED_CLUSTER_BARRIER}[s.barrier]
        + "ld.shared.b32 %r10, [slot];"
        + only("%warp eq 1", "setp.ne.u32 %p1, %r10, 0; @%p1 trap;")
        + CLUSTER_BARRIER
        + freed(2)
    )


def test_a_relaxed_barrier_does_not_publish_the_address():
    table = Table(
        "an allocation, then its address",
        dict(barrier=("release", "relaxed")),
        allocate_use,
        lambda s: outcome(s.barrier == "relaxed" and "race-shared"),
        grid=2,
        cluster=2,
    )
    found = table.disagreements("sm_100a", [("fifo", 0), ("random", 1)], warnings=True)
    assert not found, "\n".join(found)
