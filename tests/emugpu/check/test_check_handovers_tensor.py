"""Truth tables of the hand-offs to tensor cores: tcgen05 of one CTA and of a pair, two accumulators, wgmma.

Between tcgen05.fence::before_thread_sync (which a commit implies) and ::after_thread_sync, relaxed operations order
what is in tensor memory (PTX ISA 9.7.16.6.3 and 9.7.16.6.4). They order nothing else.
"""

from __future__ import annotations

import pytest
from handovers import CLUSTER_BARRIER, CTA_BARRIER, Outcome, Table, only, outcome, wait
from tensor_handovers import (
    A_BYTES,
    AFTER,
    B_BYTES,
    BEFORE,
    LD,
    LOAD_BOTH,
    PAIR_BYTES,
    PAIR_PREPARED,
    PREPARED,
    READ_OR_REFILLED,
    RELAXED_CLUSTER_BARRIER,
    ST,
    WAIT_LD,
    WAIT_ST,
    WGMMA,
    WGMMA_A_BYTES,
    WGMMA_B_BYTES,
    allocated,
    commit,
    freed,
    initialise,
    load,
    mma,
    operands,
    pair_commit,
    pair_load,
    placed,
)

pytestmark = pytest.mark.slow


WAITS = ("acquire", "relaxed", "none")


def waiting(how: str, barrier: str, parity: int = 0) -> str:
    return {
        "acquire": wait(barrier, parity),
        "relaxed": wait(barrier, parity, ".relaxed.cta"),
        "none": "",
    }[how]


# ---- TMA load -> MMA -> tcgen05.ld ----


def load_multiply_read(s) -> str:
    """Thread 32 loads, thread 64 multiplies, warp 0 reads. bars: full, done, drained."""
    drained = commit("bars+16") + wait("bars+16")
    own_word = "mov.b32 %r1, data; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, 6144;"
    return (
        own_word
        +
        only("%thread eq 0", initialise(1, 1, 1))
        + PREPARED
        + allocated(1)
        + only("%thread eq 32", f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {A_BYTES + B_BYTES};"
               + LOAD_BOTH.replace("BAR", "bars") + wait("bars"))
        + only("%thread eq 64", waiting(s.full, "bars") + placed(commit("bars+8"), s.commit, mma(1, 128, 16)) + drained)
        + only("%warp eq 0", waiting(s.done, "bars+8") + (AFTER if s.fence else "") + LD
               + (WAIT_LD + BEFORE if s.loaded else "") + "st.shared.b32 [%r1], %r40;" + WAIT_LD)
        + CTA_BARRIER
        + freed(1)
    )  # fmt: skip


def load_multiply_read_expects(s) -> Outcome:
    hangs = s.commit == "never" and s.done != "none"
    known = s.commit == "after" and (s.done == "acquire" or (s.done == "relaxed" and s.fence))
    return outcome(
        s.full != "acquire" and READ_OR_REFILLED,
        not known and not hangs and "tmem-race",
        end="hangs" if hangs else "ends",
    )


# ---- an accumulator is allocated by one warp and used by another ----


def allocate_use_free(s) -> str:
    """Warp 1 allocates and frees, warp 0 uses. A relaxed mbarrier has them wait without ordering memory."""
    meet = {
        "barrier": lambda bar: CTA_BARRIER,
        "relaxed": lambda bar: (
            f"mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [{bar}];" + wait(bar, order=".relaxed.cta")
        ),
    }
    use = ST.replace("%r40", "%thread") + WAIT_ST + LD + WAIT_LD
    return (
        "".join(f"mov.b32 %r{n}, 0;" for n in range(40, 56))
        + only("%thread eq 0", initialise(64, 64))
        + CTA_BARRIER
        + only("%warp eq 1", "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;")
        + meet[s.published]("bars")
        + "ld.shared.b32 %r10, [slot];"
        + only("%warp eq 0", use + (BEFORE if s.fence else ""))
        + meet[s.joined]("bars+8")
        + (AFTER if s.fence else "")
        + freed(1, warp=1)
    )


def allocate_use_free_expects(s) -> Outcome:
    """Allocation and deallocation are synchronous (PTX ISA 9.7.16.6.1), the address lies in shared memory."""
    return outcome(s.published == "relaxed" and "race-shared")


# ---- a pair multiplies what each of its CTAs has loaded ----


def pair(s) -> str:
    """In each CTA thread 32 loads and warp 0 reads; thread 64 of rank 0 multiplies. bars: full, done, drained."""
    publish = {
        "release": CLUSTER_BARRIER,
        "fence": only("%thread eq 0", "fence.mbarrier_init.release.cluster;")
        + "bar.warp.sync -1;" + RELAXED_CLUSTER_BARRIER,
        "relaxed": RELAXED_CLUSTER_BARRIER,
    }[s.published]  # fmt: skip
    arm = only("%rank eq 0", f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {s.bytes};")
    multiply = placed(pair_commit("bars+8", s.mask), s.commit, mma(2, 128, 32))
    drained = pair_commit("bars+16", 1) + wait("bars+16")
    return (
        PAIR_PREPARED
        + allocated(2)
        + BEFORE
        + CLUSTER_BARRIER
        + AFTER
        + only("%thread eq 0", initialise(1, 1, 1))
        + "bar.warp.sync -1;"
        + publish
        + only("%thread eq 32", arm + pair_load("bars") + only("%rank eq 0", wait("bars")))
        + only("%thread eq 64", only("%rank eq 0", waiting(s.full, "bars") + multiply + drained))
        + only("%warp eq 0", waiting(s.done, "bars+8") + AFTER + LD + WAIT_LD + BEFORE)
        + CLUSTER_BARRIER
        + freed(2)
    )


def pair_expects(s) -> Outcome:
    wrong_bytes = s.bytes != PAIR_BYTES
    multiplies = not wrong_bytes or s.full == "none"
    told = multiplies and s.commit != "never"
    waits = s.done != "none"
    unordered = s.commit == "before" or not waits
    return outcome(
        s.published == "relaxed" and "init",
        wrong_bytes and "bytes",
        s.full == "none" and READ_OR_REFILLED,
        multiplies and (told or not waits) and unordered and "tmem-race",
        end="hangs" if wrong_bytes or (waits and not (told and s.mask == 3)) else "ends",
    )


# ---- two accumulators in turn ----


def ping_pong(s) -> str:
    """Thread 32 multiplies, warp 0 reads. bars: full 0, full 1, empty 0, empty 1, drained."""
    multiply, read = "", ""
    for tile in range(s.tiles):
        n, parity, accumulator = tile % 2, tile // 2 % 2, f"%r{10 + tile % 2}"
        full, empty = f"bars+{8 * n}", f"bars+{16 + 8 * n}"
        multiply += waiting(s.empty, empty, parity ^ 1) + AFTER
        multiply += placed(commit(full), s.commit, mma(1, 128, 16, accumulator))
        arrive = f"mbarrier.arrive{s.order}.shared::cta.b64 _, [{empty}];"
        load = LD.replace("%r10", accumulator)
        read += waiting(s.full, full, parity) + AFTER + {
            "after the wait": load + WAIT_LD + BEFORE + arrive,
            "before the wait": load + arrive + WAIT_LD,
            "before the load": arrive + load + WAIT_LD,
        }[s.arrive]  # fmt: skip
    return (
        only("%thread eq 0", initialise(1, 1, 32, 32, 1))
        + PREPARED
        + allocated(1)
        + only("%thread eq 32", multiply + commit("bars+32") + wait("bars+32"))
        + only("%warp eq 0", read)
        + CTA_BARRIER
        + freed(1)
    )


def ping_pong_expects(s) -> Outcome:
    given_back = s.empty != "none" and s.arrive == "after the wait"
    return outcome((s.commit == "before" or (s.tiles > 2 and not given_back)) and "tmem-race")


# ---- TMA load -> wgmma, and back ----


def load_wgmma(s) -> str:
    """Thread 128 fills a stage, warps 0 to 3 multiply. bars: full, empty."""
    nbytes = WGMMA_A_BYTES + WGMMA_B_BYTES
    both = load(0, "data", "BAR") + load(1, f"data+{WGMMA_A_BYTES}", "BAR")

    def fill(barrier: str) -> str:
        arrive = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {nbytes};"
        return arrive + both.replace("BAR", barrier)

    produce = consume = ""
    for step in range(s.steps):
        produce += waiting(s.empty, "bars+8", step % 2 ^ 1) + fill("bars")
        if s.full == "one warp relaxed":
            consume += only("%warp eq 0", waiting("relaxed", "bars", step % 2))
            consume += only("%warp ne 0", waiting("acquire", "bars", step % 2))
        else:
            consume += waiting(s.full, "bars", step % 2)
        consume += WGMMA
        arrive = f"mbarrier.arrive{s.order}.shared::cta.b64 _, [bars+8];"
        consume += placed(arrive, s.arrive, f"wgmma.wait_group.sync.aligned {s.pending};")
    use, wait_for_all = "add.f32 %f4, %f0, %f1;", "wgmma.wait_group.sync.aligned 0;"
    return (
        "".join(f"mov.f32 %f{n}, 0f00000000;" for n in range(4))
        + only("%thread eq 0", initialise(1, 128) + "mbarrier.init.shared::cta.b64 [bars+120], 1;")
        + CTA_BARRIER
        + only("%thread eq 0", fill("bars+120"))
        + wait("bars+120")
        + CTA_BARRIER
        + only("%thread eq 128", produce + wait("bars", (s.steps - 1) % 2))
        + only("%warp lt 4", consume + placed(use, s.use, wait_for_all))
    )


def load_wgmma_expects(s) -> Outcome:
    """The accumulators of the last step are used before their wait only if its group is still pending then: the machine
    stops before that wgmma has read anything. The second copy comes after the first one if all the waits between them
    order memory, wherever the multiplication ends: those of one warp will do.
    """
    in_order = s.full != "relaxed" and s.empty == "acquire" and not s.order
    given_back = s.empty == "acquire" and s.arrive == "after" and s.pending == 0 and not s.order
    early = s.use == "before" and s.pending > 0
    reads_early = s.full != "acquire" and not (early and s.steps == 1)
    return outcome(
        (reads_early or (s.steps > 1 and not given_back)) and READ_OR_REFILLED,
        s.steps > 1 and not in_order and "race-shared",
        early and "register-before-wait",
        end="stops" if early else "ends",
    )


TABLES = [
    Table(
        "TMA load -> wgmma -> TMA load",
        dict(
            steps=(2, 1),
            full=("acquire", "relaxed", "one warp relaxed"),
            empty=("acquire", "relaxed"),
            pending=(0, 1),
            arrive=("after", "before"),
            order=("", ".relaxed.cta"),
            use=("after", "before"),
        ),
        load_wgmma,
        load_wgmma_expects,
        threads=160,
        arguments=operands(64),
        targets=("sm_90a",),
    ),
    Table(
        "TMA load -> MMA -> tcgen05.ld",
        dict(
            full=WAITS,
            commit=("after", "before", "never"),
            done=WAITS,
            fence=(True, False),
            loaded=(True, False),
        ),
        load_multiply_read,
        load_multiply_read_expects,
        threads=96,
        arguments=operands(128),
    ),
    Table(
        "tensor memory, allocated and freed",
        dict(published=("barrier", "relaxed"), joined=("barrier", "relaxed"), fence=(True, False)),
        allocate_use_free,
        allocate_use_free_expects,
    ),
    Table(
        "pair",
        dict(
            published=("release", "fence", "relaxed"),
            full=("acquire", "none"),
            bytes=(PAIR_BYTES, PAIR_BYTES + 16),
            commit=("after", "before", "never"),
            mask=(3, 1),
            done=("acquire", "none"),
        ),
        pair,
        pair_expects,
        threads=96,
        grid=2,
        cluster=2,
        arguments=operands(64),
    ),
    Table(
        "two accumulators in turn",
        dict(
            tiles=(3, 2),
            commit=("after", "before"),
            full=("acquire", "relaxed"),
            empty=WAITS,
            arrive=("after the wait", "before the wait", "before the load"),
            order=("", ".relaxed.cta"),
        ),
        ping_pong,
        ping_pong_expects,
        arguments=operands(128),
    ),
]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table(table):
    found = table.disagreements(table.targets[0])
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)
