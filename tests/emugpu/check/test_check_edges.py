"""Programs of a few lines at the edges of the rules: each in a right form and in one or more wrong ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from handovers import BOX, CLUSTER_BARRIER, CTA_BARRIER, FENCE, LOAD, Table, only, outcome, wait
from tensor_handovers import (
    A_BYTES,
    AFTER,
    B_BYTES,
    BEFORE,
    LD,
    PREPARED,
    ST,
    WAIT_LD,
    WAIT_ST,
    WGMMA,
    allocated,
    commit,
    freed,
    initialise,
    load,
    mma,
    operand,
    operands,
    pair_commit,
)

from emugpu.emulator import Device, Module, TensorMap

OWN = "mov.b32 %r1, data; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2;"
ZERO = OWN + only("%warp eq 0", "st.shared.b32 [%r1], 0;") + CTA_BARRIER
WRITE, READ = "st.shared.b32 [%r1], %lane;", "ld.shared.b32 %r3, [%r1];"


def edge(name: str, forms: dict[str, str], body: Callable[[str], str], **options) -> Table:
    """``forms``: what has to be reported in each; the first is right."""
    return Table(
        name,
        {"form": tuple(forms)},
        lambda s: body(s.form),
        lambda s: outcome(*forms[s.form].split()),
        **options,
    )


# ---- memory and threads ----


def flag_in_shared_memory(form: str) -> str:
    """Warp 0 writes and raises a flag in shared memory, warp 1 waits for it and reads."""
    fence = "" if form == "no fence" else "membar.cta;"
    store, load = {"weak": ("st.shared", "ld.shared")}.get(form, ("st.volatile.shared", "ld.volatile.shared"))
    raises = WRITE + fence + "bar.warp.sync -1;" + only("%lane eq 0", f"{store}.b32 [slot], 1;")
    sees = f"SPIN: {load}.b32 %r5, [slot]; setp.eq.u32 %p1, %r5, 0; @%p1 bra SPIN;" + fence + READ
    return (
        ZERO
        + only("%thread eq 0", "st.shared.b32 [slot], 0;")
        + CTA_BARRIER
        + only("%warp eq 0", raises)
        + only("%warp eq 1", sees)
    )


def wait_without_an_answer(form: str) -> str:
    """Warp 1 waits for warp 0, in a loop, or without a look at whether it has waited (PTX ISA 9.7.13.15.16)."""
    name, _, does = form.partition(", ")
    one = name + ".parity.shared::cta.b64 %p3, [bars], 0;"
    select = "selp.b32 %r5, 1, 0, %p3;"
    waits = {
        "": one,
        "again": f"AGAIN: {one} @!%p3 bra AGAIN;",
        "a number again": f"AGAIN: {one} {select} setp.eq.u32 %p4, %r5, 0; @%p4 bra AGAIN;",
        "a number": one + select,
        "a branch to the next line": f"{one} @%p3 bra NEXT; NEXT:",
    }[does]
    signals = only("%lane eq 0", "mbarrier.arrive.shared::cta.b64 _, [bars];")
    return (
        ZERO
        + only("%thread eq 0", initialise(1))
        + CTA_BARRIER
        + only("%warp eq 0", WRITE + "bar.warp.sync -1;" + signals)
        + only("%warp eq 1", waits + READ)
    )


def atomics(form: str) -> str:
    """Both warps add to one word; then one of them only reads and writes it."""
    second = "red.shared.add.u32 [slot], 1;" if form == "both atomic" else "st.shared.b32 [slot], 1;"
    return (
        only("%thread eq 0", "st.shared.b32 [slot], 0;")
        + CTA_BARRIER
        + only("%thread eq 0", "red.shared.add.u32 [slot], 1;")
        + only("%thread eq 32", second)
    )


def branches(form: str) -> str:
    """Lane 0 writes in one branch, lane 1 reads in another, or behind a barrier of the warp."""
    meet = "bar.warp.sync 3;" if form == "bar.warp.sync" else ""
    return (
        only("%thread eq 0", "st.shared.b32 [slot], 0;")
        + "bar.warp.sync -1;"
        + "setp.gt.u32 %p1, %thread, 1; @%p1 bra DONE; setp.eq.u32 %p2, %thread, 1; @%p2 bra ONE;"
        + "st.shared.b32 [slot], 5;"
        + meet
        + "bra DONE; ONE:"
        + meet
        + "ld.shared.b32 %r3, [slot]; DONE:"
    )


def lanes_of_two_phases(count: int) -> str:
    """All lanes arrive by one instruction, twice: the last one of 32 is early for the next phase of 31."""
    arrive = "mbarrier.arrive.shared::cta.b64 _, [bars];"
    return only("%thread eq 0", initialise(count)) + CTA_BARRIER + arrive + wait("bars") + arrive + wait("bars", 1)


def lanes_in_turn(form: str) -> str:
    """Each half of a warp is a phase; or each of eight lanes arrives at another barrier in each turn."""
    arrive = "mbarrier.arrive.shared::cta.b64 _, [{}];"
    if form == "halves":
        return only("%thread eq 0", initialise(16)) + CTA_BARRIER + arrive.format("bars") + wait("bars", 1)
    own = "mov.b32 %r2, bars; shl.b32 %r1, %lane, 3; add.u32 %r3, %r2, %r1; setp.ge.u32 %p8, %lane, 8;"
    begin = "@!%p8 mbarrier.init.shared::cta.b64 [%r3], 1; bar.sync 0; @%p8 bra DONE; mov.b32 %r9, 0;"
    place = "sub.u32 %r10, %lane, %r9; and.b32 %r10, %r10, 7; shl.b32 %r10, %r10, 3; add.u32 %r10, %r10, %r2;"
    see = "and.b32 %r12, %r9, 1; SEE: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], %r12; @!%p3 bra SEE;"
    end = "bar.warp.sync 0xff; add.u32 %r9, %r9, 1; setp.lt.u32 %p6, %r9, 4; @%p6 bra TURN; DONE:"
    return own + begin + "TURN: " + place + arrive.format("%r10") + see + end


def inits_again(form: str) -> str:
    """A barrier is used, invalidated, and initialised again for other threads, which have to know."""
    meet = CTA_BARRIER if form == "barrier" else ""
    return (
        only("%thread eq 32", initialise(1))
        + only("%thread eq 32", "mbarrier.arrive.shared::cta.b64 _, [bars];" + wait("bars"))
        + only("%thread eq 32", "mbarrier.inval.shared::cta.b64 [bars];" + initialise(32))
        + meet
        + only("%warp eq 0", "mbarrier.arrive.shared::cta.b64 _, [bars];" + wait("bars"))
    )


def by_state(form: str) -> str:
    """Arrivals whose state is waited for, instead of a parity."""
    arrive = "mbarrier.arrive.relaxed.cta" if form == "relaxed" else "mbarrier.arrive"
    loop = "STATE: mbarrier.test_wait.shared::cta.b64 %p1, [bars], %d1; @!%p1 bra STATE;"
    return (
        ZERO
        + only("%thread eq 0", initialise(64))
        + CTA_BARRIER
        + only("%warp eq 0", WRITE)
        + f"{arrive}.shared::cta.b64 %d1, [bars];"
        + loop
        + only("%warp eq 1", READ)
    )


def overwritten(form: str) -> str:
    """Something is written over a live mbarrier."""
    return only("%thread eq 0", initialise(1) + ("st.shared.b32 [bars+4], 0;" if form == "over" else "")) + CTA_BARRIER


def too_many_arrivals(form: str) -> str:
    """One thread arrives for two others, or for three: more than the phase has room for."""
    arrivals = 2 if form == "two" else 3
    return (
        only("%thread eq 0", initialise(2))
        + CTA_BARRIER
        + only("%thread eq 0", f"mbarrier.arrive.shared::cta.b64 _, [bars], {arrivals};")
        + wait("bars")
    )


def different_counts(form: str) -> str:
    """Warps that meet at a barrier agree on how many they are."""
    return only("%warp eq 0", "bar.sync 1, 64;") + only("%warp eq 1", f"bar.sync 1, {form};")


# ---- copies ----


def tensor_of_words(device: Device) -> list[TensorMap]:
    return [TensorMap.tiled(device.upload(np.arange(4 * BOX, dtype=np.uint32)), "u32", (4 * BOX,), (BOX,))]


ARM = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {4 * BOX};"


def copy_and_store(form: str) -> str:
    """What TMA has loaded TMA stores elsewhere: asynchronous on both sides, no proxy fence."""
    store = "mov.b32 %r20, 32; cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%m0, {%r20}], [data];"
    return (
        OWN
        + only("%warp eq 0", WRITE + FENCE)
        + only("%thread eq 0", initialise(1))
        + CTA_BARRIER
        + only("%thread eq 0", ARM + LOAD.format(0, "data", "bars"))
        + only("%thread eq 32", (wait("bars") if form == "wait" else "") + store
               + "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;")
        + wait("bars")
    )  # fmt: skip


def beside_a_box(form: str, start: int = 8) -> str:
    """A box hangs over the edge of its tensor; another thread writes the last word inside or the first one outside."""
    store = (
        f"mov.b32 %r20, {start}; cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%m0, {{%r20}}], [data];"
    )
    word = {"outside": 24, "inside": 23}[form]
    return (
        OWN
        + only("%warp eq 0", WRITE + FENCE + "bar.warp.sync -1;")
        + only("%thread eq 0", store + "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;")
        + only("%thread eq 32", f"st.global.b32 [%m1+{4 * word}], 7;")
    )


def part_of_an_allocation(device: Device) -> list[TensorMap | int]:
    """A tensor of 24 words at the beginning of 32."""
    address = device.alloc(4 * BOX)
    return [TensorMap.tiled(address, "u32", (24,), (BOX,)), address]


def before_an_allocation(device: Device) -> list[TensorMap | int]:
    """The same words by a map that begins a box in front of them, in another allocation."""
    device.alloc(4 * BOX)
    address = device.alloc(4 * BOX)
    return [TensorMap.tiled(address - 4 * BOX, "u32", (BOX + 24,), (BOX,)), address]


def store_and_copy(form: str) -> str:
    """What TMA has stored TMA loads again: the store's writes have to be over, not only its reads."""
    store = "mov.b32 %r20, 32; cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%m0, {%r20}], [data];"
    return (
        OWN
        + only("%warp eq 0", WRITE + FENCE)
        + only("%thread eq 0", initialise(1))
        + CTA_BARRIER
        + only("%thread eq 0", store + f"cp.async.bulk.commit_group; cp.async.bulk.wait_group{form} 0;"
               + ARM + LOAD.format(32, "data+1024", "bars"))
        + wait("bars")
        + only("%thread eq 0", "cp.async.bulk.wait_group.read 0;")
    )  # fmt: skip


def bytes_by_another(form: str) -> str:
    """The bytes are announced by a thread other than the one that arrives, before the arrival or at any time."""
    return (
        OWN
        + only("%warp eq 0", WRITE + FENCE)
        + only("%thread eq 0", initialise(1))
        + CTA_BARRIER
        + only("%thread eq 0", f"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bars], {4 * BOX};")
        + CTA_BARRIER
        + only("%thread eq 0", LOAD.format(0, "data", "bars"))
        + only("%thread eq 32", "mbarrier.arrive.shared::cta.b64 _, [bars];")
        + wait("bars")
        + READ
    )


def signal_of_a_copy(form: str) -> str:
    """Warp 0 writes elsewhere, then thread 0 issues a copy; warp 1 waits for the copy and reads what was written.

    The completion of a copy hands over the copy alone. Thread 0 arrives itself, or thread 32 does for it.
    """
    arms = {"writer": "%thread eq 0", "reader": "%thread eq 32"}[form]
    return (
        ZERO
        + only("%thread eq 0", initialise(1))
        + CTA_BARRIER
        + only("%warp eq 0", WRITE + "bar.warp.sync -1;")
        + only(arms, ARM)
        + only("%thread eq 0", LOAD.format(0, "data+1024", "bars"))
        + only("%warp eq 1", wait("bars") + READ)
        + only("%thread eq 0", wait("bars"))
    )


# ---- tensor memory ----


def with_operands(text: str) -> str:
    return only("%thread eq 0", initialise(1, 1)) + PREPARED + allocated(1) + text + freed(1)


def commit_by(form: str) -> str:
    """The MMA is thread 32's; the commit is its own or that of thread 64."""
    issue = mma(1, 128, 16)
    own, other = (commit("bars"), "") if form == "own" else ("", commit("bars"))
    return with_operands(
        only("%thread eq 32", issue + own + commit("bars+8") + wait("bars+8"))
        + only("%thread eq 64", other)
        + only("%warp eq 0", wait("bars") + AFTER + LD + WAIT_LD + BEFORE)
        + CTA_BARRIER
    )


def two_multiplications(form: str) -> str:
    """Two MMAs of one accumulator: of one thread and shape they are pipelined."""
    first, second = mma(1, 128, 16), mma(1, 128, 16 if form != "other shape" else 8)
    if form == "two threads":
        work = only("%thread eq 32", first + commit("bars") + wait("bars"))
        work += only("%thread eq 64", second + commit("bars+8") + wait("bars+8"))
    else:
        work = only("%thread eq 32", first + second + commit("bars") + wait("bars"))
    return with_operands(work + BEFORE + CTA_BARRIER + AFTER + only("%warp eq 0", LD + WAIT_LD))


def pair_copies(form: str) -> str:
    """Each CTA of a pair loads; the leader copies the data of both to tensor memory, as CuTe DSL's example
    2cta_mma_blockscale_m128.py does. Has it waited for the load of the other one?
    """
    tell = "mov.b32 %r12, bars+8; mapa.shared::cluster.u32 %r12, %r12, 0;"
    tell += "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];"
    arm = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {A_BYTES};"
    hear = wait("bars+8", 0, ".acquire.cluster")
    if form == "own only":
        tell = hear = ""
    copy = operand("%d0", "data") + "tcgen05.cp.cta_group::2.32x128b.warpx4 [%r10], %d0;" + pair_commit("bars+16", 3)
    return (
        only("%thread eq 0", initialise(1, 1, 1))
        + CLUSTER_BARRIER
        + allocated(2)
        + BEFORE
        + CLUSTER_BARRIER
        + AFTER
        + only("%thread eq 32", arm + load(0, "data", "bars") + only("%rank eq 1", wait("bars") + tell))
        + only("%thread eq 64", only("%rank eq 0", wait("bars") + hear + copy + wait("bars+16")))
        + CLUSTER_BARRIER
        + freed(2)
    )


def stores_for_one_warpgroup(form: str) -> str:
    """Two warpgroups store, and the first one multiplies, in each step, as ThunderKittens' backward pass for Hopper
    does with dS. Does the second one wait for the product before it stores again?
    """
    steps = "mov.b32 %r1, data; shl.b32 %r2, %thread, 4; add.u32 %r1, %r1, %r2;"
    for _ in range(2):
        steps += "st.shared.v4.b32 [%r1], {0, 0, 0, 0};" + FENCE + CTA_BARRIER
        steps += only("%warp lt 4", WGMMA + "wgmma.wait_group.sync.aligned 0;")
        steps += CTA_BARRIER if form == "waits" else ""
    return "".join(f"mov.f32 %f{n}, 0f00000000;" for n in range(4)) + steps


def a_overwritten(form: str) -> str:
    """An MMA reads A in tensor memory, and one of another shape overwrites A, as CUTLASS's attention does."""
    first = mma(1, 128, 16, "%r11").replace("%d0, %d1, %r31", "[%r10], %d1, %r31")
    second = mma(1, 128, 8)
    if form == "two threads":
        work = only("%thread eq 32", first + commit("bars") + wait("bars"))
        work += only("%thread eq 64", second + commit("bars+8") + wait("bars+8"))
    else:
        between = commit("bars+8") + wait("bars+8") + AFTER if form == "wait" else ""
        work = only("%thread eq 32", first + between + second + commit("bars") + wait("bars"))
    stored = f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r10], {{{', '.join(8 * ['%thread'])}}};"
    every_lane = "add.u32 %r11, %r10, 16;" + stored + WAIT_ST + BEFORE + CTA_BARRIER + AFTER
    return with_operands(every_lane + work + BEFORE + CTA_BARRIER)


def a_of_64_rows(form: str) -> str:
    """A of 64 rows in tensor memory: 16 lanes of each warp. Does warp 2 store its ones? Nobody stores the others."""
    stored = "tcgen05.st.sync.aligned.16x128b.x2.b32 [%r11], {%thread, %thread, %thread, %thread};" + WAIT_ST
    multiply = mma(1, 64, 16).replace("%d0, %d1, %r31", "[%r11], %d1, %r31")
    return with_operands(
        "add.u32 %r11, %r10, 16;"
        + (stored if form == "all" else only("%warp ne 2", stored))
        + BEFORE + CTA_BARRIER + AFTER
        + only("%thread eq 32", multiply + commit("bars") + wait("bars"))
        + BEFORE + CTA_BARRIER
    )  # fmt: skip


def half_of_an_operand(form: str) -> str:
    """Half of A is loaded: the last tile of a sequence, whose other rows nobody uses. Does the rest come later?

    In "nothing", the half goes to another place, so that no row of the result is of use.
    """
    half = A_BYTES // 2

    def loads(barrier: str, *copies: str, nbytes: int) -> str:
        return f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {nbytes};" + "".join(copies)

    where = "data" if form != "nothing" else f"data+{A_BYTES + 1024}"
    first = loads("bars", load(0, where, "bars"), load(1, f"data+{A_BYTES}", "bars"), nbytes=half + B_BYTES)
    rest = loads("bars+8", load(0, f"data+{half}", "bars+8"), nbytes=half)
    multiply = mma(1, 128, 16)
    multiply = {"later": multiply + rest, "not waited": rest + multiply}.get(form, multiply)
    issue = first + wait("bars") + multiply + commit("bars+16") + wait("bars+16")
    return (
        only("%thread eq 0", initialise(1, 1, 1))
        + allocated(1)
        + only("%thread eq 32", issue + (wait("bars+8") if rest in multiply else ""))
        + CTA_BARRIER
        + freed(1)
    )


def store_then_multiply(form: str) -> str:
    """A tcgen05.st of warp 0, and an MMA of thread 32 that overwrites it."""
    stored = ST + (WAIT_ST if form != "no wait" else "") + (BEFORE if form != "no fence" else "")
    fence = AFTER if form != "no fence" else ""
    return with_operands(
        only("%warp eq 0", stored)
        + CTA_BARRIER
        + only("%thread eq 32", fence + mma(1, 128, 16) + commit("bars") + wait("bars"))
        + CTA_BARRIER
        + only("%warp eq 0", WAIT_ST)
    )


def uninitialised_columns(form: str) -> str:
    """The first MMA of a tile accumulates into columns that nobody has written."""
    issue = mma(1, 128, 16)
    if form == "accumulates":
        issue = issue.replace("setp.ne.u32 %p1, 0, 0;", "setp.eq.u32 %p1, 0, 0;")
    alloc = only("%warp eq 0", "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;")
    return (
        only("%thread eq 0", initialise(1))
        + PREPARED
        + alloc
        + CTA_BARRIER
        + "ld.shared.b32 %r10, [slot];"
        + only("%thread eq 32", issue + commit("bars") + wait("bars"))
        + CTA_BARRIER
        + freed(1)
    )


# ---- clusters ----


def mask_without_receiver(form: str) -> str:
    """A copy for two CTAs whose mask names one; the other waits for its bytes."""
    load = LOAD.replace("complete_tx::bytes", "complete_tx::bytes.multicast::cluster").format(0, "data", "bars")
    load = load.replace("[bars];", f"[bars], {3 if form == 'both' else 1};")
    return (
        only("%thread eq 0", initialise(1) + ARM)
        + "bar.warp.sync -1;"
        + CLUSTER_BARRIER
        + only("%rank eq 0", only("%thread eq 0", load))
        + wait("bars")
        + CLUSTER_BARRIER
    )


CTA_OF_96 = dict(threads=96, arguments=operands(128))
EDGES = [
    edge("flag in shared memory", {"fences": "", "no fence": "race-shared", "weak": "race-shared"},
         flag_in_shared_memory),
    edge("wait without an answer", {
        "mbarrier.try_wait, again": "", "mbarrier.test_wait, again": "", "mbarrier.try_wait, a number again": "",
        "mbarrier.try_wait": "race-shared", "mbarrier.test_wait": "race-shared",
        "mbarrier.try_wait, a number": "race-shared", "mbarrier.try_wait, a branch to the next line": "race-shared",
    }, wait_without_an_answer),
    edge("atomics", {"both atomic": "", "one writes": "race-shared"}, atomics),
    Table("branches", {"form": ("bar.warp.sync", "none")}, lambda s: branches(s.form),
          lambda s: outcome(*(("race-shared", "race-lanes") if s.form == "none" else ())), threads=32),
    Table("initialised again", {"form": ("barrier", "none")}, lambda s: inits_again(s.form),
          lambda s: outcome(s.form == "none" and "init", end="stops" if s.form == "none" else "ends")),
    edge("wait by state", {"release": "", "relaxed": "race-shared"}, by_state),
    edge("loaded and stored", {"wait": "", "none": "race-shared|store-source-reused"}, copy_and_store,
         arguments=tensor_of_words),
    edge("stored and loaded", {"": "", ".read": "race-global"}, store_and_copy, arguments=tensor_of_words),
    edge("box over the edge", {"outside": "", "inside": "race-global"}, beside_a_box, arguments=part_of_an_allocation),
    edge("box of a map that begins before what it touches", {"outside": "", "inside": "race-global"},
         lambda form: beside_a_box(form, BOX + 8), arguments=before_an_allocation),
    edge("bytes announced by another thread", {"before the arrival": ""}, bytes_by_another,
         arguments=tensor_of_words),
    edge("commit", {"own": "", "another's": "tmem-race"}, commit_by, **CTA_OF_96),
    edge("two multiplications", {"pipelined": "", "other shape": "tmem-race", "two threads": "tmem-race"},
         two_multiplications, **CTA_OF_96),
    edge("copy of a pair", {"told": "", "own only": "stage-read-early"}, pair_copies, threads=96, grid=2, cluster=2,
         arguments=operands(128)),
    edge("stores for one warpgroup", {"waits": "", "goes on": "stage-refilled-early"}, stores_for_one_warpgroup,
         threads=256, targets=("sm_90a",)),
    edge("A overwritten by an MMA", {"wait": "", "one thread": "", "two threads": "tmem-race"}, a_overwritten,
         threads=128, arguments=operands(128)),
    edge("tcgen05.st before an MMA", {"wait": "", "no wait": "tmem-race", "no fence": ""},
         store_then_multiply, **CTA_OF_96),
    Table("written over a barrier", {"form": ("beside", "over")}, lambda s: overwritten(s.form),
          lambda s: outcome(s.form == "over" and "overwritten", end="stops" if s.form == "over" else "ends")),
    Table("lanes of two phases", {"count": (32, 31)}, lambda s: lanes_of_two_phases(s.count),
          lambda s: outcome(s.count == 31 and "count"), threads=32),
    Table("lanes of two phases on purpose", {"form": ("halves", "in turn")}, lambda s: lanes_in_turn(s.form),
          lambda s: outcome(), threads=32),
    Table("arrivals", {"form": ("two", "three")}, lambda s: too_many_arrivals(s.form),
          lambda s: outcome(s.form == "three" and "count", end="stops" if s.form == "three" else "ends")),
    Table("threads of a barrier", {"form": ("64", "96")}, lambda s: different_counts(s.form),
          lambda s: outcome(s.form == "96" and "convergence", end="stops" if s.form == "96" else "ends"), threads=96),
    Table("columns of nobody", {"form": ("overwrites", "accumulates")}, lambda s: uninitialised_columns(s.form),
          lambda s: outcome(s.form == "accumulates" and "tmem-uninit",
                            end="stops" if s.form == "accumulates" else "ends"), **CTA_OF_96),
    Table("mask of a copy", {"form": ("both", "one")}, lambda s: mask_without_receiver(s.form),
          lambda s: outcome(s.form == "one" and "bytes", end="hangs" if s.form == "one" else "ends"),
          threads=32, grid=2, cluster=2, arguments=tensor_of_words),
]  # fmt: skip
TABLES = EDGES


@pytest.mark.parametrize("table", EDGES, ids=lambda table: table.name)
def test_edge(table):
    found = table.disagreements(table.targets[0])
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("form", "severity"), [("wait", None), ("one thread", "warning")])
def test_an_mma_that_overwrites_a_of_one_before_is_a_warning(form, severity):
    table = Table("mma", {"form": (form,)}, lambda s: a_overwritten(form), lambda s: outcome(), threads=128,
                  arguments=operands(128))  # fmt: skip
    report, end = table.report(Device(), Module.from_text(table.text("sm_100a")), "setting0")
    found = [finding.severity for finding in report.findings if finding.rule == "tmem-race"]
    assert (found, end) == ([severity] if severity else [], "ends")


@pytest.mark.parametrize(("form", "errors"), [("all", []), ("three warps", ["tmem-uninit"])])
def test_an_a_of_64_rows_reads_half_of_the_lanes(form, errors):
    """PTX ISA 9.7.16.10.5: rows 0 to 15 are lanes 0 to 15, rows 16 to 31 lanes 32 to 47."""
    table = Table("a", {"form": (form,)}, lambda s: a_of_64_rows(form), lambda s: outcome(), threads=128,
                  arguments=operands(128))  # fmt: skip
    report, end = table.report(Device(uninitialised="report"), Module.from_text(table.text("sm_100a")), "setting0")
    assert sorted({finding.rule for finding in report.findings}) == errors
    assert end == "ends"


@pytest.mark.parametrize(
    ("form", "errors", "warnings"),
    [
        ("never", [], ["stage-read-early"]),
        ("nothing", ["stage-read-early"], []),
        ("later", ["stage-refilled-early"], ["stage-read-early"]),
        ("not waited", ["stage-read-early"], []),
    ],
)
def test_a_part_of_an_operand_that_nobody_writes_is_a_warning(form, errors, warnings):
    """FROST multiplies tiles of two chunks, and loads one of them where a sequence has no more."""
    table = Table("half", {"form": (form,)}, lambda s: half_of_an_operand(form), lambda s: outcome(), threads=64,
                  arguments=operands(64))  # fmt: skip
    report, end = table.report(Device(uninitialised="report"), Module.from_text(table.text("sm_100a")), "setting0")
    assert sorted({finding.rule for finding in report.errors}) == errors
    assert sorted({finding.rule for finding in report.warnings}) == warnings
    assert end == "ends"


@pytest.mark.parametrize(("form", "severity"), [("writer", None), ("reader", "warning")])
def test_a_copy_hands_over_itself_alone(form, severity):
    """Hardware completes what comes before the issue first, so this is no error."""
    table = Table("copy", {"form": (form,)}, lambda s: signal_of_a_copy(form), lambda s: outcome(),
                  arguments=tensor_of_words)  # fmt: skip
    report, end = table.report(Device(), Module.from_text(table.text("sm_100a")), "setting0")
    found = [finding.severity for finding in report.findings if finding.rule == "race-shared"]
    assert (found, end) == ([severity] if severity else [], "ends")
