"""Bugs that others met and wrote about, rebuilt small: a finding in the broken form, none in the fixed one.

Where they were found: CUTLASS pull request 3316 and issues 3435, 2835, 3658, 3324; FBGEMM 5022; mirage 705; tilelang
2644; facebookexperimental/triton 783; humming 56. The programs are our own; only the mechanism is theirs.
"""

from __future__ import annotations

import pytest
from handovers import BOX, CLEAR, CLUSTER_BARRIER, CTA_BARRIER, LOAD, Outcome, Table, only, outcome, wait, words
from tensor_handovers import initialise, pair_commit
from test_check_handovers_threads import stores_to_pair_mma, stores_to_pair_mma_expects

BROKEN = {"broken": (False, True)}
ALLOC = "tcgen05.alloc.cta_group::{0}.sync.aligned.shared::cta.b32 [slot], 32;"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::{0}.sync.aligned;"
FREE = "ld.shared.b32 %r10, [slot]; tcgen05.dealloc.cta_group::{0}.sync.aligned.b32 %r10, 32;"


def pair_allocates_first(s) -> str:
    """The pair allocates tensor memory before anything has proved that the peer runs."""
    return (
        ("" if s.broken else CLUSTER_BARRIER)
        + (ALLOC + RELINQUISH).format(2)
        + "bar.warp.sync -1;"
        + CLUSTER_BARRIER
        + FREE.format(2)
    )


def pair_frees_early(s) -> str:
    """One CTA of the pair frees while the other one's allocation may still be in flight."""
    return (
        CLUSTER_BARRIER
        + (ALLOC + RELINQUISH).format(2)
        + "bar.warp.sync -1;"
        + ("" if s.broken else CLUSTER_BARRIER)
        + FREE.format(2)
        + CLUSTER_BARRIER
    )


def no_work(s) -> str:
    """The barrier that publishes the address of tensor memory stands in the loop over tiles, which may have none."""
    loop = f"""
    mov.u32 %r1, 0;
    TILES:
    setp.ge.u32 %p1, %r1, {s.tiles};
    @%p1 bra DONE;
    {CTA_BARRIER if s.broken else ""}
    add.u32 %r1, %r1, 1;
    bra TILES;
    DONE:
    """
    return (
        only("%warp eq 0", ALLOC.format(1))
        + ("" if s.broken else CTA_BARRIER)
        + loop
        + only("%warp eq 1", FREE.format(1))
    )


def mask_beyond(s) -> str:
    """The mask of a commit for a pair that the cluster has not: in a cluster of 2, bit 2 for the peer's pair."""
    return (
        only("%thread eq 0", initialise(1))
        + "bar.warp.sync -1;"
        + CLUSTER_BARRIER
        + only("%rank eq 0", only("%thread eq 0", pair_commit("bars", 7 if s.broken else 3)))
        + wait("bars")
        + CLUSTER_BARRIER
    )


def clamped_box(s) -> str:
    """The bytes are those of a box that was clamped on one side only."""
    arrive = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {2 * BOX if s.broken else 4 * BOX};"
    return (
        CLEAR
        + only("%thread eq 0", initialise(1))
        + CTA_BARRIER
        + only("%thread eq 0", arrive + LOAD.format(0, "data", "bars"))
        + wait("bars")
        + "ld.shared.b32 %r3, [%r1];"
    )


def bytes_of_the_cluster(s) -> str:
    """Each pair of a cluster of four expects what the whole cluster loads."""
    nbytes = 4 * BOX * (4 if s.broken else 2)
    load = LOAD.replace("shared::cluster.global", "cta_group::2.shared::cluster.global").format(0, "data", "%r21")
    return (
        only("%thread eq 0", initialise(1))
        + "bar.warp.sync -1;"
        + CLUSTER_BARRIER
        + "mov.b32 %r21, bars; and.b32 %r21, %r21, 0xfeffffff; and.b32 %r22, %rank, 1;"
        + only("%thread eq 0", only(
            "%r22 eq 0", f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {nbytes};") + load)
        + only("%r22 eq 0", wait("bars"))
        + CLUSTER_BARRIER
    )  # fmt: skip


def fixed_mask(s) -> str:
    """The leader of every pair tells the CTAs of the first one."""
    own = "and.b32 %r2, %rank, 2; mov.b32 %r3, 3; shl.b32 %r3, %r3, %r2; cvt.u16.u32 %h3, %r3;"
    commit = pair_commit("bars", 3)
    if not s.broken:
        commit = commit.replace("mov.b16 %h3, 3;", own)
    return (
        only("%thread eq 0", initialise(1))
        + "bar.warp.sync -1;"
        + CLUSTER_BARRIER
        + "and.b32 %r1, %rank, 1;"
        + only("%thread eq 0", only("%r1 eq 0", commit))
        + wait("bars")
        + CLUSTER_BARRIER
    )


def next_tile(s) -> str:
    """Rank 0 loads each tile into both CTAs, and waits until its own CTA has read the one before.

    bars: full (of each CTA), empty and armed (of rank 0). What the readers signal is only that the stage is free: CTA
    scope is enough for them.
    """
    readers = 32 if s.broken else 64
    load = """
    mov.b32 %r20, 0;
    mov.b16 %h1, 3;
    cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
        [data], [%m0, {%r20}], [bars], %h1;
    """
    arrive = "mbarrier.arrive.shared::cluster.b64 _, [%r10];"
    produce = read = ""
    for tile in range(s.tiles):
        produce += wait("bars", tile % 2 ^ 1) if tile else ""
        produce += f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {4 * BOX};"
        produce += "mbarrier.arrive.shared::cluster.b64 _, [%r11];"
        produce += only("%rank eq 0", wait("bars+16", tile % 2) + wait("bars+8", tile % 2 ^ 1) + load)
        read += wait("bars", tile % 2) + "ld.shared.b32 %r3, [%r1];"
        read += only("%rank eq 0", arrive) if s.broken else arrive
    return (
        CLEAR
        + only("%thread eq 0", initialise(1, readers, 2))
        + "bar.warp.sync -1;"
        + CLUSTER_BARRIER
        + "mov.b32 %r10, bars+8; mapa.shared::cluster.u32 %r10, %r10, 0;"
        + "mov.b32 %r11, bars+16; mapa.shared::cluster.u32 %r11, %r11, 0;"
        + only("%thread eq 0", produce)
        + only("%warp eq 1", read)
        + CLUSTER_BARRIER
    )


def last_stage(s) -> str:
    """A ring of two stages is read in a loop, the last step behind it; its parity is wrong if the steps are even."""
    load = read = ""
    for step in range(s.steps):
        stage, parity = step % 2, step // 2 % 2
        full, empty = f"bars+{8 * stage}", f"bars+{16 + 8 * stage}"
        load += wait(empty, parity ^ 1)
        load += f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{full}], {4 * BOX};"
        load += LOAD.format(BOX * step, f"data+{1024 * stage}", full)
        if step == s.steps - 1 and s.broken:
            parity = s.steps // 2 % 2
        read += wait(full, parity) + f"ld.shared.b32 %r3, [%r1+{1024 * stage}];"
        read += f"mbarrier.arrive.shared::cta.b64 _, [{empty}];"
    drain = wait(full, (s.steps - 1) // 2 % 2)
    return (
        CLEAR
        + only("%thread eq 0", initialise(1, 1, 32, 32))
        + CTA_BARRIER
        + only("%thread eq 0", load + drain)
        + only("%warp eq 1", read)
    )


def last_stage_expects(s) -> Outcome:
    """With two steps the wrong wait is the first one at its barrier; it asks for the phase before phase 0."""
    is_wrong = s.broken and s.steps % 2 == 0
    return outcome(is_wrong and "race-shared", is_wrong and s.steps > 2 and "phase-repeated")


def scope_settings(s):
    """As a setting of the table of that hand-off: arrival and wait of CTA scope, or of cluster scope."""
    scope = "cta" if s.broken else "cluster"
    return type(s)(release=scope, acquire=scope, writers="fence.proxy.async;", issuer="")


PAIR = dict(threads=32, grid=2, cluster=2)
BUGS = [
    Table("CUTLASS 3316", BROKEN, pair_allocates_first, lambda s: outcome(s.broken and "tmem-alloc-order"), **PAIR),
    Table("CUTLASS 3435", BROKEN, pair_frees_early, lambda s: outcome(s.broken and "tmem-alloc-order"), **PAIR),
    Table("CUTLASS 2835, FBGEMM 5022", {"tiles": (1, 0, 2), **BROKEN}, no_work,
          lambda s: outcome(*["race-shared", "tmem-alloc-order"] * (s.broken and s.tiles == 0))),
    Table("CUTLASS 3658", BROKEN, mask_beyond,
          lambda s: outcome(s.broken and "mask", end="stops" if s.broken else "ends"), **PAIR),
    Table("CUTLASS 3324", BROKEN, lambda s: stores_to_pair_mma(scope_settings(s)),
          lambda s: stores_to_pair_mma_expects(scope_settings(s)), threads=96, grid=2, cluster=2),
    Table("mirage 705", BROKEN, clamped_box,
          lambda s: outcome(s.broken and "bytes", end="hangs" if s.broken else "ends"), arguments=words,
          targets=("sm_100a", "sm_90a")),
    Table("tilelang 2644", BROKEN, bytes_of_the_cluster,
          lambda s: outcome(s.broken and "bytes", end="hangs" if s.broken else "ends"),
          threads=32, grid=4, cluster=4, arguments=words),
    Table("triton 783", BROKEN, fixed_mask,
          lambda s: outcome(end="hangs" if s.broken else "ends"), threads=32, grid=4, cluster=4),
    Table("humming 56", {"tiles": (1, 2), **BROKEN}, next_tile,
          lambda s: outcome(s.broken and s.tiles > 1 and "race-shared"), grid=2, cluster=2, arguments=words,
          targets=("sm_100a", "sm_90a")),
    Table("the parity of the last stage", {"steps": (3, 2, 4, 5), **BROKEN}, last_stage,
          last_stage_expects, arguments=words,
          targets=("sm_100a", "sm_90a")),
]  # fmt: skip
TABLES = BUGS


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_public_bug(bug):
    # The allocation itself waits for both CTAs of the pair, so that one is a warning.
    found = bug.disagreements(bug.targets[0], warnings=bug.name == "CUTLASS 3316")
    assert not found, "\n".join(found)
