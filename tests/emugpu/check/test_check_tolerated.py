"""What kernels do that run on hardware every day: at most a warning, never an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handovers import (
    BOX,
    CLEAR,
    CLUSTER_BARRIER,
    CTA_BARRIER,
    FENCE,
    INIT_FENCE,
    LOAD,
    STORE,
    Table,
    flag_words,
    only,
    outcome,
    spin,
    target,
    wait,
    words,
)
from tensor_handovers import (
    AFTER,
    BEFORE,
    LD,
    PAIR_BYTES,
    PREPARED,
    WAIT_LD,
    allocated,
    commit,
    freed,
    initialise,
    mma,
    operands,
    pair_commit,
    pair_load,
)
from test_check_handovers_tensor import TABLES as HANDOVERS

from emugpu.emulator import Device, Module, TensorMap

ARM_AND_LOAD = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {4 * BOX};" + LOAD.format(0, "data", "bars")
SPIN_TEST = "SPIN: mbarrier.test_wait.parity.shared::cta.b64 %p14, [bars], 0; @!%p14 bra SPIN;"
WAIT_WITH_HINT = "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 %p14, [bars], 0, 10000000; @!%p14 bra AGAIN;"


def copied(wait_for: str) -> str:
    """Thread 0 loads, everybody waits and reads."""
    return (
        CLEAR
        + only("%thread eq 0", initialise(1))
        + CTA_BARRIER
        + only("%thread eq 0", ARM_AND_LOAD)
        + wait_for
        + "ld.shared.b32 %r3, [%r1];"
    )


def repeated_inits(s) -> str:
    """Lane 0 of each warp initialises the same barrier in the same way."""
    return (
        only("%lane eq 0", initialise(2))
        + "bar.warp.sync -1;"
        + CTA_BARRIER
        + only("%lane eq 0", "mbarrier.arrive.shared::cta.b64 _, [bars];")
        + wait("bars")
    )


def elected_store(s) -> str:
    """A warp writes and fences; an elected lane stores, and only reads have to be over when it exits."""
    return (
        "mov.b32 %r1, data; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2;"
        "st.shared.b32 [%r1], %lane;"
        + FENCE
        + "elect.sync %r9|%p1, -1; @!%p1 bra DONE;"
        + STORE.format(0, "data")
        + "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; DONE:"
    )


def over_the_edge(s) -> str:
    """The box is twice as large as what is left of the tensor, and the rest of its source was never written."""
    write = only("%thread lt 16", "st.shared.b32 [%r1], %lane;")
    store = FENCE + STORE.format(48, "data") + "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"
    return (
        "mov.b32 %r1, data; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2;"
        + write
        + "bar.warp.sync -1;"
        + only("%thread eq 0", store)
    )


def small_tensor(device: Device) -> list[TensorMap]:
    return [TensorMap.tiled(device.alloc(256), "u32", (64,), (BOX,))]


def commits_in_order(s) -> str:
    """Rank 0 signals rank 1 twice; rank 1 waits for the second signal alone and leaves, without a last barrier."""
    return (
        only("%thread eq 0", initialise(1, 1))
        + "bar.warp.sync -1;"
        + CLUSTER_BARRIER
        + only("%rank eq 0", only("%thread eq 0", pair_commit("bars", 3) + pair_commit("bars+8", 3)))
        + wait("bars+8")
    )


def everybody_waits(s) -> str:
    """All lanes of a warp wait for each round, one of them multiplies and commits: no lane can be lapped in earnest."""
    rounds = "".join(
        wait("bars+8", n % 2 ^ 1) + only("%lane eq 0", mma(1, 128, 16) + commit("bars+8")) for n in range(3)
    )
    return (
        only("%thread eq 0", initialise(1, 1))
        + PREPARED
        + allocated(1)
        + only("%warp eq 1", rounds + wait("bars+8"))
        + CTA_BARRIER
        + only("%warp eq 0", "tcgen05.fence::after_thread_sync;" + LD + WAIT_LD)
        + freed(1)
    )


def registers_without_wait(s) -> str:
    """The hardware tracks the registers of tcgen05.ld; compilers leave the wait out."""
    return (
        "mov.b32 %r1, data; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2;"
        + allocated(1)
        + only("%warp eq 0", LD + "add.u32 %r40, %r40, 1; st.shared.b32 [%r1], %r40;" + WAIT_LD)
        + freed(1)
    )


def clean(s):
    return outcome()


NO_SWITCH = {"form": ("as it is",)}


def pair_allocates_and_multiplies(s) -> str:
    """An MMA of the pair as soon as its own CTA has allocated: what orders that after the peer's is the allocation."""
    return (
        only("%thread eq 0", initialise(1, 1))
        + "bar.warp.sync -1;"
        + CLUSTER_BARRIER
        + only("%thread eq 32", only(
            "%rank eq 0", f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {PAIR_BYTES};"
        ) + pair_load("bars"))
        + only("%warp eq 0", "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], 32;")
        + CTA_BARRIER
        + "ld.shared.b32 %r10, [slot];"
        + only("%thread eq 64", only("%rank eq 0", wait("bars") + mma(2, 128, 32) + pair_commit("bars+8", 3)))
        + only("%warp eq 0", wait("bars+8") + AFTER + LD + WAIT_LD + BEFORE)
        + CLUSTER_BARRIER
        + freed(2)
    )  # fmt: skip


def word_and_parts(s) -> str:
    """CTA 0 writes a word and raises a flag by a write of 64 bits; CTA 1 waits for 32 of them, then reads the word."""
    ranks = "mov.u32 %r6, %ctaid.x; setp.ne.u32 %p12, %thread, 0; @%p12 exit; mov.b64 %d5, 0x100000000;"
    sees = spin(s.read) + "fence.acq_rel.gpu; ld.global.b32 %r7, [%m0]; st.global.b32 [%m0+8], %r7;"
    return ranks + only("%r6 eq 0", "st.global.b32 [%m0], 1;" + s.write) + only("%r6 eq 1", sees)


def slot_handed_back(s) -> str:
    """Rank 1 reads its own slot and hands it back to rank 0, which writes the next word into it."""
    start = only("%thread eq 0", initialise(1) + "st.shared.b32 [data], 0;" + INIT_FENCE) + CLUSTER_BARRIER
    start += "mov.b32 %r10, bars; mapa.shared::cluster.u32 %r10, %r10, 0; mov.b32 %r11, data;"
    reads = f"ld.shared.b32 %r7, [data]; mbarrier.arrive.release.{s.scope}.shared::cluster.b64 _, [%r10];"
    waits = wait("bars", 0, f".acquire.{s.scope}") + "mapa.shared::cluster.u32 %r11, %r11, 1;"
    takes = only("%rank eq 0", waits + "st.shared::cluster.b32 [%r11], 2;") + only("%rank eq 1", reads)
    return start + only("%thread eq 0", takes) + CLUSTER_BARRIER


def narrow_after_wide(s) -> str:
    """CTA 1 finds what CTA 0 has written, so that its own writes come later, whatever their scopes (PTX ISA 8.9.5)."""
    ranks = "mov.u32 %r6, %ctaid.x; setp.ne.u32 %p12, %thread, 0; @%p12 exit;"
    finds = spin("ld.relaxed.gpu.global.b32 %r5, [%m1];") + 2 * "red.relaxed.cta.global.add.u32 [%m1], 1;"
    return ranks + only("%r6 eq 0", "st.relaxed.gpu.global.b32 [%m1], 1;") + only("%r6 eq 1", finds)


PARTS = Table(
    "a word and its parts",
    dict(
        write=("st.release.gpu.global.b64 [%m1], %d5;", "red.release.gpu.global.add.u64 [%m1], %d5;",
               "st.release.gpu.global.v2.b32 [%m1], {%r6, 1};"),
        read=("ld.relaxed.gpu.global.b32 %r5, [%m1+4];", "atom.relaxed.gpu.global.or.b32 %r5, [%m1+4], 0;"),
    ),
    word_and_parts, clean, grid=2, arguments=flag_words,
)  # fmt: skip
SLOT = Table(
    "a slot handed back with CTA scope", dict(scope=("cluster", "cta")), slot_handed_back, clean,
    threads=32, grid=2, cluster=2,
)  # fmt: skip
TOLERATED = [
    Table("waits of several kinds", {"form": (wait("bars"), wait("bars") + wait("bars"), SPIN_TEST, WAIT_WITH_HINT)},
          lambda s: copied(s.form), clean, arguments=words, targets=("sm_100a", "sm_90a")),
    Table("repeated initialisation", NO_SWITCH, repeated_inits, clean),
    Table("store by an elected lane", NO_SWITCH, elected_store, clean, threads=32, arguments=target),
    Table("box over the edge", NO_SWITCH, over_the_edge, clean, threads=32, arguments=small_tensor),
    Table("commits in order, no last barrier", NO_SWITCH, commits_in_order, clean, threads=32, grid=2, cluster=2),
    Table("a warp waits, one lane issues", NO_SWITCH, everybody_waits, clean, arguments=operands(128)),
    Table("registers before their wait", NO_SWITCH, registers_without_wait, clean),
    Table("a pair allocates together", NO_SWITCH, pair_allocates_and_multiplies, clean, threads=96, grid=2, cluster=2,
          arguments=operands(64)),
    Table("a narrow reduction of what was found", NO_SWITCH, narrow_after_wide, clean, grid=2, arguments=flag_words),
    PARTS,
    SLOT,
]  # fmt: skip
TABLES = TOLERATED


def test_loads_that_nobody_waits_for_are_told_to_be_waited_for():
    """The MMA of the next tile and the deallocation come too early, and not the loads themselves."""
    [table] = [table for table in HANDOVERS if table.name == "two accumulators in turn"]
    module = Module.from_text(table.text("sm_100a", 1).replace(WAIT_LD.removesuffix(";"), ""))
    report, _ = table.report(Device(), module, "setting0")
    assert {finding.rule for finding in report.errors} == {"tmem-race", "tmem-alloc-order"}
    for finding in report.errors:
        assert finding.fix.startswith("tcgen05.wait::ld after the load"), finding
        assert finding.as_dict()["mend"] == finding.fix, "records keep their key"


def test_accesses_of_two_sizes_are_warned_of():
    """Unless both are atomics, which are performed one after the other whatever their sizes (PTX ISA 8.7.2)."""

    def expects(s):
        is_mixed = "64" in s.write and not ("red" in s.write and "atom" in s.read)
        return outcome(is_mixed and "race-global")

    found = replace(PARTS, expected=expects).disagreements("sm_100a", warnings=True)
    assert not found, "\n".join(found)


def test_a_slot_handed_back_with_cta_scope_is_warned_of():
    table = replace(SLOT, expected=lambda s: outcome(s.scope == "cta" and "scope"))
    found = table.disagreements("sm_100a", warnings=True)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("table", TOLERATED, ids=lambda table: table.name)
def test_no_error(table):
    found = table.disagreements(table.targets[0], [("fifo", 0), ("random", 1), ("random", 2)])
    assert not found, "\n".join(found)
