"""Truth tables of the hand-offs between threads by barriers, by mbarriers, and by launch control."""

from __future__ import annotations

import pytest
from handovers import CLUSTER_BARRIER, CTA_BARRIER, FENCE, Outcome, Table, only, outcome, wait
from tensor_handovers import (
    AFTER,
    BEFORE,
    RELAXED_CLUSTER_BARRIER,
    allocated,
    freed,
    initialise,
    mma,
    pair_commit,
    placed,
)

OWN_WORD = "mov.b32 %r1, data; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2;"
"""%r1: a word of the lane's own."""
ZEROS = only("%warp eq 0", "st.shared.b32 [%r1], 0;") + CTA_BARRIER


# ---- bar.sync and bar.arrive, both ways ----


def meet(how: str, barrier: int, giver: int, taker: int) -> str:
    """Warp ``giver`` lets warp ``taker`` go on; both run this."""
    return {
        "sync": f"bar.sync {barrier}, 64;",
        "arrive": only(f"%warp eq {giver}", f"bar.arrive {barrier}, 64;")
        + only(f"%warp eq {taker}", f"bar.sync {barrier}, 64;"),
        "turned round": only(f"%warp eq {taker}", f"bar.arrive {barrier}, 64;")
        + only(f"%warp eq {giver}", f"bar.sync {barrier}, 64;"),
        "warps": "bar.warp.sync -1;",
        "fence": "fence.acq_rel.cta;",
        "none": "",
    }[how]


def named_barriers(s) -> str:
    """Warp 0 writes, warp 1 reads, once or twice."""
    text = OWN_WORD + ZEROS
    for n in range(s.rounds):
        text += meet(s.back, 2, 1, 0) if n else ""
        forth = meet(s.forth, 3 + n, 0, 1)
        write, read = "st.shared.b32 [%r1], %lane;", "ld.shared.b32 %r3, [%r1];"
        if s.early:
            text += forth + only("%warp eq 0", write) + only("%warp eq 1", read)
        else:
            text += only("%warp eq 0", write) + forth + only("%warp eq 1", read)
    return text


def named_barriers_expects(s) -> Outcome:
    """A bar.sync on the way back has the second write after the first read; that it comes before the second read is
    the way there.
    """
    orders = ("sync", "arrive")
    there = s.forth in orders and not s.early
    back = s.rounds == 1 or s.back in orders
    return outcome(not (there and back) and "race-shared")


# ---- distributed shared memory ----

ARRIVES = {
    "cluster": "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{}];",
    "cta": "mbarrier.arrive.shared::cluster.b64 _, [{}];",
    "relaxed": "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [{}];",
    "fence": "fence.acq_rel.cluster; mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [{}];",
}
WAITS = {
    "cluster": (".acquire.cluster", ""),
    "cta": ("", ""),
    "relaxed": (".relaxed.cluster", ""),
    "fence": (".relaxed.cluster", "fence.acq_rel.cluster;"),
}


def arrive(how: str, register: str) -> str:
    return ARRIVES[how].format(register)


def waiting(how: str, barrier: str, parity: int = 0) -> str:
    order, fence = WAITS[how]
    return wait(barrier, parity, order) + fence


def handed(release: str, acquire: str) -> str:
    """What is wrong with a hand-off of ordinary data to another CTA."""
    if "relaxed" in (release, acquire):
        return "race-shared"
    return "scope" if "cta" in (release, acquire) else ""


def distributed(s) -> str:
    """Rank 0 writes twice into the shared memory of rank 1, which reads. bars: full (rank 1), empty (rank 0)."""
    peers = "".join(
        f"mov.b32 %r{n}, {what}; mapa.shared::cluster.u32 %r{n}, %r{n}, {rank};"
        for n, what, rank in ((10, "bars", 1), (11, "bars+8", 0))
    )
    peers += "mapa.shared::cluster.u32 %r12, %r1, 1;"
    write = "st.shared::cluster.b32 [%r12], %lane;" + arrive(s.release, "%r10")
    read = "ld.shared.b32 %r3, [%r1];"
    rank_0 = write + waiting(s.back, "bars+8") + write
    rank_1 = waiting(s.acquire, "bars") + read + arrive(s.back, "%r11") + waiting(s.acquire, "bars", 1) + read
    return (
        OWN_WORD
        + ZEROS
        + only("%thread eq 0", initialise(32, 32))
        + "bar.warp.sync -1;"
        + (CLUSTER_BARRIER if s.start == "release" else RELAXED_CLUSTER_BARRIER)
        + peers
        + only("%rank eq 0", rank_0)
        + only("%rank eq 1", rank_1)
        + (CLUSTER_BARRIER if s.end else "")
    )


def distributed_expects(s) -> Outcome:
    """``start`` orders the zeros before the peer's writes, too. What goes back is that the word has been read: for
    that CTA scope is enough (a warning), but not for the zeros. No barrier is needed at the end: every access to a peer
    is one that the peer waits for.
    """
    return outcome(
        handed(s.release, s.acquire),
        s.back == "relaxed" and "race-shared",
        s.start == "relaxed" and "init",
        s.start == "relaxed" and "race-shared",
        s.start == "relaxed" and s.back == "cta" and "scope",
    )


def peers_lives(s) -> str:
    """One CTA writes into the other's shared memory, which does nothing with it. The one that runs first."""
    writer = 1 if s.start else 0
    return (
        OWN_WORD
        + (CLUSTER_BARRIER if s.start else "")
        + f"mapa.shared::cluster.u32 %r12, %r1, {1 - writer};"
        + only(f"%rank eq {writer}", "st.shared::cluster.b32 [%r12], %lane;")
        + (CLUSTER_BARRIER if s.end else "")
    )


def peers_lives_expects(s) -> Outcome:
    return outcome(not s.start and "peer-not-started", not s.end and "peer-exited")


# ---- ordinary stores -> an MMA of the pair ----


def stores_to_pair_mma(s) -> str:
    """Warp 1 of each CTA writes operands; thread 64 of rank 0 multiplies. bars: written, done."""
    rows = "".join(f"st.shared.v4.b32 [%r1+{512 * n}], {{%lane, %lane, %lane, %lane}};" for n in range(9))
    leader = "mov.b32 %r12, bars; mapa.shared::cluster.u32 %r12, %r12, 0;"
    done = pair_commit("bars+8", 3)
    return (
        "mov.b32 %r1, data; shl.b32 %r2, %lane, 4; add.u32 %r1, %r1, %r2;"
        + only("%thread eq 0", initialise(64, 1))
        + "bar.warp.sync -1;"
        + CLUSTER_BARRIER
        + allocated(2)
        + BEFORE
        + CLUSTER_BARRIER
        + AFTER
        + leader
        + only("%warp eq 1", rows + s.writers + arrive(s.release, "%r12"))
        + only("%rank eq 0", only("%thread eq 64", waiting(s.acquire, "bars") + s.issuer + mma(2, 128, 32) + done))
        + only("%warp eq 0", wait("bars+8"))
        + CLUSTER_BARRIER
        + freed(2)
    )


def stores_to_pair_mma_expects(s) -> Outcome:
    """What the issuer's own CTA has written needs no more than CTA scope. A fence of the issuer's own shared memory
    does not cover the peer's.
    """
    unordered = handed(s.release, s.acquire)
    local = unordered if unordered == "race-shared" else not (s.writers or s.issuer) and "proxy-write-read"
    peers = unordered or (not (s.writers or s.issuer == "fence.proxy.async;") and "proxy-write-read")
    return outcome(local, peers)


# ---- responses of cluster launch control ----


def launch_control(s) -> str:
    """Thread 0 asks three times, warp 1 reads the answers. bars: full, empty of each slot."""
    ask, read = "", ""
    for n in range(3):
        slot, parity = n % s.slots, n // s.slots % 2
        full, empty, response = f"bars+{16 * slot}", f"bars+{16 * slot + 8}", f"data+{16 * slot}"
        ask += wait(empty, parity ^ 1, s.empty)
        ask += f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{full}], 16;"
        ask += (
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 "
            f"[{response}], [{full}];"
        )
        arrives = f"mbarrier.arrive.shared::cta.b64 _, [{empty}];"
        look = f"ld.shared.b128 %q0, [{response}];" + s.fence
        read += wait(full, parity, "" if s.full == "acquire" else ".relaxed.cta")
        read += placed(arrives, s.arrive, look)
    # The responses are there before the CTA ends, whatever the reader waits for.
    landed = "".join(wait(f"bars+{16 * slot}", 2 // s.slots % 2) for slot in range(s.slots))
    zeros = only("%thread eq 32", "".join(f"st.shared.b32 [data+{4 * n}], 0;" for n in range(12)) + FENCE)
    return (
        zeros
        + only("%thread eq 0", initialise(*[1, 32] * s.slots))
        + CTA_BARRIER
        + only("%thread eq 0", ask + landed)
        + only("%warp eq 1", read)
    )


def launch_control_expects(s) -> Outcome:
    """Of three requests for one slot the last follows the first read even if each read is released too early."""
    reused = s.slots == 1
    return outcome(
        (s.full != "acquire" or (reused and not (s.empty == "" and s.arrive == "after"))) and "race-shared|clc-slot",
        reused and s.empty == "" and not s.fence and "proxy-read-overwrite",
    )


TABLES = [
    Table(
        "named barriers",
        dict(
            rounds=(2, 1),
            early=(False, True),
            forth=("sync", "arrive", "turned round", "warps", "fence", "none"),
            back=("sync", "arrive", "turned round", "warps", "fence", "none"),
        ),
        named_barriers,
        named_barriers_expects,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "distributed shared memory",
        dict(
            release=tuple(ARRIVES),
            acquire=tuple(WAITS),
            back=tuple(ARRIVES),
            start=("release", "relaxed"),
            end=(True, False),
        ),
        distributed,
        distributed_expects,
        threads=32,
        grid=2,
        cluster=2,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "a peer's life",
        dict(start=(True, False), end=(True, False)),
        peers_lives,
        peers_lives_expects,
        threads=32,
        grid=2,
        cluster=2,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "st -> MMA of the pair",
        dict(
            release=tuple(ARRIVES),
            acquire=tuple(WAITS),
            writers=("fence.proxy.async;", FENCE, ""),
            issuer=("", "fence.proxy.async;", FENCE),
        ),
        stores_to_pair_mma,
        stores_to_pair_mma_expects,
        threads=96,
        grid=2,
        cluster=2,
    ),
    Table(
        "launch control",
        dict(
            slots=(1, 3),
            full=("acquire", "relaxed"),
            empty=("", ".relaxed.cta"),
            arrive=("after", "before"),
            fence=(FENCE, ""),
        ),
        launch_control,
        launch_control_expects,
        grid=4,
        launch={"resident_clusters": 1},
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table(table):
    found = table.disagreements(table.targets[0])
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)
