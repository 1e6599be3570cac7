"""Truth tables of the hand-offs to tensor cores: tcgen05 of one CTA and of a pair, two accumulators, wgmma.

Between tcgen05.fence::before_thread_sync (which a commit implies) and ::after_thread_sync, relaxed operations order
what is in tensor memory (PTX ISA 9.7.16.6.3 and 9.7.16.6.4). They order nothing else.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from handovers import CLUSTER_BARRIER, CTA_BARRIER, Outcome, Table, only, outcome, wait

from emugpu.emulator import Device, TensorMap

pytestmark = pytest.mark.slow

A_BYTES, B_BYTES = 4096, 512
"""128 rows of A and 16 rows of B, 16 elements of K each: rows of 32 bytes, swizzled."""


def operands(rows: int):
    def arguments(device: Device) -> list[TensorMap]:
        tensor = np.ones((256, 16), ml_dtypes.bfloat16)
        return [TensorMap.tiled(device.upload(tensor), "bf16", tensor.shape, (box, 16), "32B") for box in (rows, 16)]

    return arguments


def instruction(m: int, n: int) -> int:
    """bf16 times bf16 to f32, both K-major."""
    return 1 << 4 | 1 << 7 | 1 << 10 | n >> 3 << 17 | m >> 4 << 24


DESCRIPTOR = 256 >> 4 << 32 | 1 << 46 | 6 << 61
"""Groups of 8 rows, 256 bytes apart; swizzle of 32 bytes."""


def operand(register: str, where: str) -> str:
    return f"""
    mov.b32 %r30, {where};
    and.b32 %r30, %r30, 0x3ffff;
    shr.u32 %r30, %r30, 4;
    cvt.u64.u32 {register}, %r30;
    or.b64 {register}, {register}, {DESCRIPTOR};
    """


def load(which: int, where: str, barrier: str) -> str:
    return f"""
    mov.b32 %r20, 0;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [{where}], [%m{which}, {{%r20, %r20}}], [{barrier}];
    """


def initialise(*counts: int) -> str:
    return "".join(f"mbarrier.init.shared::cta.b64 [bars+{8 * n}], {count};" for n, count in enumerate(counts))


LOAD_BOTH = load(0, "data", "BAR") + load(1, f"data+{A_BYTES}", "BAR")
PREPARED = (
    only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars+120], 1;")
    + CTA_BARRIER
    + only("%thread eq 0", f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars+120], {A_BYTES + B_BYTES};"
           + LOAD_BOTH.replace("BAR", "bars+120"))
    + wait("bars+120")
    + CTA_BARRIER
)  # fmt: skip
"""The operands are there before anything else: an MMA too early finds something."""

SIXTEEN = "{" + ", ".join(f"%r{n}" for n in range(40, 56)) + "}"
LD = f"tcgen05.ld.sync.aligned.32x32b.x16.b32 {SIXTEEN}, [%r10];"
ST = f"tcgen05.st.sync.aligned.32x32b.x16.b32 [%r10], {SIXTEEN};"
WAIT_LD, WAIT_ST = ("tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;")
BEFORE, AFTER = ("tcgen05.fence::before_thread_sync;", "tcgen05.fence::after_thread_sync;")


def allocated(group: int) -> str:
    """Warp 0 allocates 32 columns and writes zeros to them; %r10: their address, in all warps."""
    zeros = "".join(f"mov.b32 %r{n}, 0;" for n in range(40, 56))
    return (
        only("%warp eq 0", f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [slot], 32;")
        + CTA_BARRIER
        + "ld.shared.b32 %r10, [slot]; add.u32 %r11, %r10, 16;"
        + only("%warp eq 0", zeros + ST + ST.replace("%r10", "%r11") + WAIT_ST + BEFORE)
        + CTA_BARRIER
        + AFTER
    )


def freed(group: int, warp: int = 0) -> str:
    return only(
        f"%warp eq {warp}",
        f"tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;"
        f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r10, 32;",
    )


def mma(group: int, m: int, n: int, accumulator: str = "%r10") -> str:
    return (
        operand("%d0", "data")
        + operand("%d1", f"data+{A_BYTES}")
        + f"""
    mov.b32 %r31, {instruction(m, n)};
    setp.ne.u32 %p1, 0, 0;
    tcgen05.mma.cta_group::{group}.kind::f16 [{accumulator}], %d0, %d1, %r31, %p1;
    """
    )


def commit(barrier: str) -> str:
    return f"tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [{barrier}];"


def placed(what: str, where: str, around: str) -> str:
    """``what`` after or before ``around``, or nowhere."""
    return {"after": around + what, "before": what + around, "never": around}[where]


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


READ_OR_REFILLED = "stage-read-early|stage-refilled-early"
"""An MMA that does not wait: it may find what was there before the copy."""


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

PAIR_BYTES = 2 * (2048 + B_BYTES)


def pair_load(barrier: str) -> str:
    """Each CTA loads its rows of A, rank 0 loads B for both; all bytes count at the barrier of rank 0."""
    head = "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    return (
        f"mov.b32 %r20, 0; mov.b32 %r21, {barrier}; and.b32 %r21, %r21, 0xfeffffff;"
        "mov.b32 %r22, 1; shl.b32 %r22, %r22, %rank; cvt.u16.u32 %h1, %r22; mov.b16 %h2, 3;"
        f"{head}.multicast::cluster [data], [%m0, {{%r20, %r20}}], [%r21], %h1;"
        + only("%rank eq 0", f"{head}.multicast::cluster [data+{A_BYTES}], [%m1, {{%r20, %r20}}], [%r21], %h2;")
    )


def pair_commit(barrier: str, mask: int) -> str:
    return (
        f"mov.b16 %h3, {mask};"
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        f"[{barrier}], %h3;"
    )


RELAXED_CLUSTER_BARRIER = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
PAIR_PREPARED = (
    only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars+120], 1; fence.mbarrier_init.release.cluster;")
    + CLUSTER_BARRIER
    + only("%thread eq 32", only(
        "%rank eq 0", f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars+120], {PAIR_BYTES};"
    ) + pair_load("bars+120"))
    + only("%rank eq 0", wait("bars+120"))
    + CLUSTER_BARRIER
)  # fmt: skip


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

WGMMA_A_BYTES, WGMMA_B_BYTES = 2048, 512


def wgmma_descriptor(register: str, where: str) -> str:
    return operand(register, where).replace(str(DESCRIPTOR), str(256 >> 4 << 32 | 3 << 62))


WGMMA = (
    wgmma_descriptor("%d0", "data")
    + wgmma_descriptor("%d1", f"data+{WGMMA_A_BYTES}")
    + """
    setp.ne.u32 %p1, 0, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f0, %f1, %f2, %f3}, %d0, %d1, %p1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    """
)


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
