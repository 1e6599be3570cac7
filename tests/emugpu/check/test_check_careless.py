"""Kernels of a few lines as a careless engineer writes them, each with its right twin."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from handovers import BOX, CLUSTER_BARRIER, CTA_BARRIER, FENCE, Table, only, outcome, wait
from tensor_handovers import (
    AFTER,
    BEFORE,
    LD,
    PREPARED,
    WAIT_LD,
    WGMMA,
    WGMMA_A_BYTES,
    allocated,
    commit,
    freed,
    initialise,
    mma,
    operands,
)

from emugpu.emulator import Device, Module, TensorMap

OWN = "mov.b32 %r1, data; shl.b32 %r2, %thread, 2; add.u32 %r1, %r1, %r2;"
"""%r1: a word of the thread's own."""
READ, WRITE = "ld.shared.b32 %r3, [%r1];", "st.shared.b32 [%r1], %thread;"
ZERO = OWN + "mov.b32 %r9, 0; st.shared.b32 [%r1], %r9;" + FENCE + CTA_BARRIER
NBYTES = 4 * BOX


def arm(barrier: str = "bars", nbytes: int = NBYTES) -> str:
    return f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {nbytes};"


def load(where: str = "data", barrier: str = "bars", mask: str = "") -> str:
    multicast = ".multicast::cluster" if mask else ""
    return f"""
    mov.b32 %r20, 0;
    cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{multicast}
        [{where}], [%m1, {{%r20}}], [{barrier}]{", " + mask if mask else ""};
    """


STORE = "mov.b32 %r20, 0; cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%m0, {%r20}], [data];"
COMMIT, READ_OVER = "cp.async.bulk.commit_group;", "cp.async.bulk.wait_group.read 0;"


def words(device: Device) -> list[TensorMap]:
    """To store to, and to load from."""
    data = np.arange(BOX, dtype=np.uint32)
    return [TensorMap.tiled(device.upload(data), "u32", (BOX,), (BOX,)) for _ in range(2)]


def first(text: str) -> str:
    return only("%thread eq 0", text)


def peer(register: str, what: str, rank: str = "1") -> str:
    return f"mov.b32 {register}, {what}; mapa.shared::cluster.u32 {register}, {register}, {rank};"


# ---- copies ----


def loaded_over_a_store(form: str) -> str:
    """The buffer of a TMA store is filled by the next TMA load."""
    over = READ_OVER if form == "right" else ""
    store = STORE + COMMIT + over
    return ZERO + first(initialise(1)) + CTA_BARRIER + first(store + arm() + load() + wait("bars") + READ_OVER)


def waits_for_no_group(form: str) -> str:
    """wait_group before, after, without, or in another thread than commit_group; then the buffer is written again."""
    own = {"right": COMMIT + READ_OVER, "no commit": READ_OVER, "turned round": READ_OVER + COMMIT,
           "another thread": COMMIT}[form]  # fmt: skip
    other = only("%thread eq 32", READ_OVER) if form == "another thread" else ""
    end = first(COMMIT + READ_OVER)
    return ZERO + first(STORE + own) + other + CTA_BARRIER + WRITE + end


def fence_in_a_wrong_place(form: str) -> str:
    """The proxy fence of those who write, and what it covers."""
    fence = {"global": "fence.proxy.async.global;", "threads": "fence.acq_rel.gpu;"}.get(form, FENCE)
    write = fence + WRITE if form == "before the writes" else WRITE + fence
    return ZERO + write + CTA_BARRIER + first(STORE + COMMIT + READ_OVER)


def parity_forgotten(form: str) -> str:
    """Two rounds through one stage; the second wait has the parity of the first."""
    second = wait("bars", 0 if form == "same parity" else 1)
    look, release = "ld.shared.b32 %r3, [data];", "mbarrier.arrive.shared::cta.b64 _, [bars+8];"
    read = only("%warp eq 1", wait("bars") + look + FENCE + release + second + look)
    fill = first(arm() + load() + wait("bars+8") + arm() + load() + wait("bars", 1))
    return ZERO + first(initialise(1, 32)) + CTA_BARRIER + fill + read


def every_lane_arms(form: str) -> str:
    """expect_tx by a whole warp at a barrier for one arrival."""
    who = "%warp eq 0" if form == "every lane" else "%thread eq 0"
    return ZERO + first(initialise(1)) + CTA_BARRIER + only(who, arm()) + first(load()) + wait("bars") + CTA_BARRIER


def initialised_again(form: str) -> str:
    """Between two tiles the barrier gets another count."""
    inval = "mbarrier.inval.shared::cta.b64 [bars];" if form != "no inval" else ""
    meet = CTA_BARRIER if form != "no barrier" else ""
    again = first(inval + "mbarrier.init.shared::cta.b64 [bars], 2;")
    arrive = only("%thread lt 33", only("%lane eq 0", "mbarrier.arrive.shared::cta.b64 _, [bars];"))
    return (
        first(initialise(1)) + CTA_BARRIER + first("mbarrier.arrive.shared::cta.b64 _, [bars];") + wait("bars")
        + meet + again + CTA_BARRIER + arrive + wait("bars") + CTA_BARRIER
    )  # fmt: skip


def matrices(form: str) -> str:
    """ldmatrix reads what TMA loads, by its own warp or another one."""
    see = {
        "own wait": wait("bars"),
        "one lane waits": only("%lane eq 0", wait("bars")) + "bar.warp.sync -1;",
        "no wait": "",
    }
    read = see[form] + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r5];" + wait("bars")
    row = "and.b32 %r5, %lane, 7; shl.b32 %r5, %r5, 4; mov.b32 %r6, data; add.u32 %r5, %r5, %r6;"
    return ZERO + row + first(initialise(1)) + CTA_BARRIER + first(arm() + load()) + only("%warp eq 1", read)


def added_up(form: str) -> str:
    """Atomics in shared memory, and a bulk store of the sums."""
    add = "mov.b32 %r6, data; red.shared.add.u32 [%r6], 1;"
    return ZERO + add + (FENCE if form == "right" else "") + CTA_BARRIER + first(STORE + COMMIT + READ_OVER)


def two_producers(form: str) -> str:
    """Two threads bring one half each."""
    halves = [
        only(f"%thread eq {32 * n}", arm() + load(f"data+{NBYTES * n}").replace("SKIP", f"SKIP{n}")) for n in range(2)
    ]
    count = 1 if form == "counted as one" else 2
    return ZERO + first(initialise(count)) + CTA_BARRIER + "".join(halves) + wait("bars") + READ


def cleared_then_loaded(form: str) -> str:
    """Threads clear a buffer that TMA fills."""
    fence = FENCE if form == "right" else ""
    own = "mov.b32 %r1, data; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2; mov.b32 %r9, 0;"
    clear = own + only("%warp eq 1", "st.shared.b32 [%r1], %r9;" + fence)
    meet = CTA_BARRIER if form != "no barrier" else ""
    return first(initialise(1)) + CTA_BARRIER + clear + meet + first(arm() + load()) + wait("bars") + READ


def told_of_a_store(form: str) -> str:
    """CTA 0 stores a box, raises a flag; CTA 1 reads it. Reading the source is not the end of a store."""
    over = READ_OVER if form == "only read" else "cp.async.bulk.wait_group 0;"
    raises = STORE + COMMIT + over + "fence.acq_rel.gpu; st.relaxed.gpu.global.b32 [%m2], 1;"
    sees = "SPIN: ld.acquire.gpu.global.b32 %r5, [%m2]; setp.eq.u32 %p13, %r5, 0; @%p13 bra SPIN;"
    return (
        "mov.u32 %r7, %ctaid.x;"
        + ZERO
        + first(only("%r7 eq 0", raises) + only("%r7 eq 1", sees + "ld.global.b32 %r6, [%m3];"))
    )


def tensor_and_flag(device: Device) -> list:
    stored, loaded = words(device)
    return [stored, loaded, device.upload(np.zeros(1, np.uint32)), stored.address]


# ---- clusters ----


def multicast(form: str) -> str:
    """Rank 0 fills a stage of both CTAs twice. bars: full; bars+8 of rank 0: both have read."""
    empty = peer("%r10", "bars+8", "0")
    release = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10];"
    armed = arm() if form != "peer not armed" else only("%rank eq 0", arm())
    copies = [only("%rank eq 0", "mov.b16 %h0, 3;" + load(mask="%h0")) for _ in range(2)]
    owner = only("%rank eq 0", wait("bars+8")) if form != "no handshake" else ""
    consume = only("%warp eq 1", wait("bars") + READ + release)
    again = only("%warp eq 1", wait("bars", 1) + READ)
    return (
        ZERO + first(initialise(1, 64)) + "fence.mbarrier_init.release.cluster;" + CLUSTER_BARRIER + empty
        + first(armed + copies[0]) + consume + first(wait("bars") + arm() + owner + copies[1] + wait("bars", 1)) + again
        + CLUSTER_BARRIER
    )  # fmt: skip


def reads_a_peer(form: str) -> str:
    """A CTA reads what its peer has written into its own shared memory."""
    meet = CTA_BARRIER if form == "bar.sync" else CLUSTER_BARRIER
    end = "" if form == "leaves" else CLUSTER_BARRIER
    return (
        ZERO + CLUSTER_BARRIER + WRITE + meet + peer("%r10", "%r1", "0")
        + only("%rank eq 1", "ld.shared::cluster.b32 %r3, [%r10];") + end
    )  # fmt: skip


def sent(form: str) -> str:
    """st.async into the peer, twice. bars of rank 1: full; bars+8 of rank 0: read."""
    send = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r10], %r9, [%r11];"
    full = wait("bars", order=".acquire.cluster") if form != "not waited" else ""
    empty = wait("bars+8", order=".acquire.cluster") if form != "too soon" else ""
    read = full + READ + "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];"
    return (
        ZERO + first(initialise(1, 32)) + "fence.mbarrier_init.release.cluster;" + CLUSTER_BARRIER
        + peer("%r10", "%r1") + peer("%r11", "bars") + peer("%r12", "bars+8", "0")
        + only("%rank eq 1", first(arm()))
        + only("%rank eq 0", send + empty + send)
        + only("%rank eq 1", read + first(wait("bars") + arm()) + wait("bars", 1))
        + CLUSTER_BARRIER
    )  # fmt: skip


READY = "fence.mbarrier_init.release.cluster;" + CLUSTER_BARRIER + peer("%r10", "%r1") + peer("%r11", "bars")
SEND = "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r10], %thread, [%r11];"


def full(parity: int = 0) -> str:
    return wait("bars", parity, ".acquire.cluster")


def stored_on(form: str) -> str:
    """Rank 1 stores by TMA what the st.async of rank 0 (or its own) have brought: through the generic proxy."""
    sender = "%rank eq 1" if form.startswith("to oneself") else "%rank eq 0"
    send = SEND + (FENCE if form == "sender's fence" else "")
    seen = {
        "right": full() + FENCE, "to oneself": full() + FENCE, "fence too early": FENCE + full(), "not waited": "",
        "fence by the waiter": only("%thread eq 32", full() + FENCE) + CTA_BARRIER,
    }.get(form, full())  # fmt: skip
    return (
        ZERO + first(initialise(1)) + READY + only(sender, only("%warp eq 0", send))
        + only("%rank eq 1", first(arm()) + seen + first(STORE + COMMIT + READ_OVER) + full()) + CLUSTER_BARRIER
    )  # fmt: skip


def loaded_over(form: str) -> str:
    """Rank 1 fills by TMA what the st.async of rank 0 have filled before."""
    fence = FENCE if form == "right" else ""
    seen = full() if form != "not waited" else ""
    fill = seen + fence + first(arm("bars+8") + load("data", "bars+8") + wait("bars+8"))
    return (
        ZERO + first(initialise(1, 1)) + READY + only("%rank eq 0", SEND)
        + only("%rank eq 1", first(arm()) + fill + full()) + CLUSTER_BARRIER
    )  # fmt: skip


def used_and_sent_to(used: str, by: str) -> str:
    """Threads use what rank 0 then fills from afar, in order but without a proxy fence."""
    own = peer("%r12", "data") + "mov.b32 %r13, data;"
    bulk = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r12], [%r13], 128, [%r11];"
    near = only("%rank eq 1", first(arm()) + {"written": WRITE, "read": READ}.get(used, ""))
    far = "st.shared::cluster.b32 [%r10], %thread;" if used == "written by the sender" else ""
    return (
        ZERO + first(initialise(1)) + READY + own + near + CLUSTER_BARRIER
        + only("%rank eq 0", far + (SEND if by == "st.async" else first(bulk)))
        + only("%rank eq 1", full() + READ) + CLUSTER_BARRIER
    )  # fmt: skip


def sent_to_oneself(form: str) -> str:
    """A CTA without others in its cluster."""
    send = {"right": "st.shared.b32 [data], 7; mbarrier.arrive.shared::cta.b64 _, [bars];",
            "st.async": arm(nbytes=4) + SEND}[form]  # fmt: skip
    place = peer("%r10", "data", "0") + peer("%r11", "bars", "0")
    return ZERO + first(initialise(1)) + place + CTA_BARRIER + first(send) + full()


# ---- tensor cores ----


def operand_by_threads(form: str) -> str:
    """wgmma multiplies what the warpgroup has written with st.shared."""
    nbytes = WGMMA_A_BYTES + 512
    fill = "".join(f"st.shared.b32 [%r1+{512 * n}], %r9;" for n in range(nbytes // 512))
    fence = FENCE if form != "no fence" else "wgmma.fence.sync.aligned;"
    meet = CTA_BARRIER if form != "no barrier" else ""
    zeros = "".join(f"mov.f32 %f{n}, 0f00000000;" for n in range(4))
    end = "wgmma.wait_group.sync.aligned 0;"
    early = "add.f32 %f4, %f0, %f1;" if form == "used early" else ""
    return OWN + "mov.b32 %r9, 0;" + zeros + fill + fence + meet + WGMMA + early + end + "add.f32 %f4, %f0, %f1;"


def operand_by_the_peer(form: str) -> str:
    """wgmma multiplies what the st.async of rank 0 have brought, twice. bars+8 of rank 0: read."""
    nbytes = WGMMA_A_BYTES + 512
    clear = "".join(f"st.shared.b32 [%r1+{512 * n}], %r9;" for n in range(nbytes // 512))
    zeros = "".join(f"mov.f32 %f{n}, 0f00000000;" for n in range(4))
    multiply = WGMMA + "wgmma.wait_group.sync.aligned 0;"
    release = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r12];"
    fence = FENCE if form != "no fence" else ""
    again = full(1) + FENCE if form != "not waited" else ""
    read = first(arm()) + full() + fence + multiply + release + first(arm()) + again + multiply + full(1)
    send = SEND + wait("bars+8", order=".acquire.cluster") + SEND
    return (
        OWN + "mov.b32 %r9, 0;" + zeros + clear + FENCE + first(initialise(1, 128)) + READY
        + peer("%r12", "bars+8", "0") + only("%rank eq 0", only("%warp eq 0", send))
        + only("%rank eq 1", read) + CLUSTER_BARRIER
    )  # fmt: skip


def accumulates_from_the_start(form: str) -> str:
    """The first MMA of a tile adds to what is there."""
    multiply = mma(1, 128, 16)
    if form == "accumulates":
        multiply = multiply.replace("setp.ne.u32 %p1, 0, 0;", "setp.eq.u32 %p1, 0, 0;")
    alloc = only("%warp eq 0", "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;")
    return (
        first(initialise(1)) + PREPARED + alloc + CTA_BARRIER + "ld.shared.b32 %r10, [slot];"
        + first(multiply + commit("bars")) + wait("bars") + CTA_BARRIER + freed(1)
    )  # fmt: skip


def one_warp_waits(form: str) -> str:
    """Warp 0 waits for the MMA; both warps read the accumulator."""
    everybody = wait("bars")
    waits = {"right": everybody, "a barrier": only("%warp eq 0", everybody) + BEFORE + CTA_BARRIER,
             "one warp": only("%warp eq 0", everybody)}[form]  # fmt: skip
    return (
        first(initialise(1)) + PREPARED + allocated(1) + only("%thread eq 64", mma(1, 128, 16) + commit("bars"))
        + only("%warp lt 2", waits.replace(CTA_BARRIER, "bar.sync 1, 64;") + AFTER
               + "shl.b32 %r12, %warp, 21; add.u32 %r11, %r10, %r12;" + LD.replace("%r10", "%r11") + WAIT_LD + BEFORE)
        + CTA_BARRIER + AFTER + wait("bars") + freed(1)
    )  # fmt: skip


def freed_too_early(form: str) -> str:
    """Warp 0 frees the columns that warp 1 still reads."""
    meet = CTA_BARRIER if form == "right" else ""
    read = only("%warp eq 1", AFTER + "add.u32 %r11, %r10, 0x200000;" + LD.replace("%r10", "%r11") + WAIT_LD + BEFORE)
    body = first(initialise(1)) + PREPARED + allocated(1) + first(mma(1, 128, 16) + commit("bars")) + wait("bars")
    return body + CTA_BARRIER + read + meet + AFTER + freed(1)


def answer_for_two_warps(form: str) -> str:
    """Two warps read each answer of launch control, which a third one asks for. bars: full, empty."""
    ask = arm(nbytes=16) + (
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [data], [bars];"
    )
    release = "mbarrier.arrive.shared::cta.b64 _, [bars+8];"
    released = only("%warp eq 1", release) if form == "one warp" else release
    count = 32 if form == "one warp" else 64
    zeros = first("".join(f"st.shared.b32 [data+{4 * n}], 0;" for n in range(4)) + FENCE)
    asks = only("%thread eq 64", ask + wait("bars+8") + ask + wait("bars", 1))
    read = wait("bars") + "ld.shared.b128 %q0, [data];" + FENCE + released + wait("bars", 1)
    read = only("%warp lt 2", read + "ld.shared.b128 %q0, [data];")
    return zeros + first(initialise(1, count)) + CTA_BARRIER + asks + read


def careless(name: str, forms: dict[str, str], body: Callable[[str], str], **options) -> Table:
    """``forms``: what has to be reported in each, among other things; nothing in the right ones."""
    return Table(
        name, {"form": tuple(forms)}, lambda s: body(s.form), lambda s: outcome(*forms[s.form].split()), **options
    )


CLUSTER = dict(grid=2, cluster=2)
TABLES = [
    careless("loaded over a store", {"right": "", "wrong": "store-source-reused"}, loaded_over_a_store,
             arguments=words),
    careless("wait_group", {"right": "", "no commit": "store-source-reused", "turned round": "store-source-reused",
                            "another thread": "store-source-reused"}, waits_for_no_group, arguments=words),
    careless("proxy fence", {"right": "", "before the writes": "proxy-write-read", "global": "proxy-write-read",
                             "threads": "proxy-write-read"}, fence_in_a_wrong_place, arguments=words),
    careless("parity", {"right": "", "same parity": "phase-repeated"}, parity_forgotten, arguments=words),
    careless("every lane arms", {"right": "", "every lane": "count"}, every_lane_arms, arguments=words),
    careless("initialised again", {"right": "", "no barrier": "init|phase-unobserved", "no inval": "init"},
             initialised_again),
    careless("matrices", {"own wait": "", "one lane waits": "", "no wait": "race-shared"}, matrices, arguments=words),
    careless("added up", {"right": "", "no fence": "proxy-write-read"}, added_up, arguments=words),
    careless("two producers", {"right": "", "counted as one": "count|phase-lapped"}, two_producers, arguments=words),
    careless("cleared", {"right": "", "no fence": "proxy-overwrite", "no barrier": "race-shared"}, cleared_then_loaded,
             arguments=words),
    careless("told of a store", {"right": "", "only read": "race-global"}, told_of_a_store, grid=2,
             arguments=tensor_and_flag),
    careless("multicast", {"right": "", "peer not armed": "bytes", "no handshake": "race-shared"}, multicast,
             arguments=words, **CLUSTER),
    careless("reads a peer", {"right": "", "bar.sync": "race-shared", "leaves": "peer-exited"}, reads_a_peer,
             **CLUSTER),
    careless("st.async", {"right": "", "not waited": "race-shared", "too soon": "race-shared"}, sent, threads=32,
             **CLUSTER),
    careless("st.async and a TMA store",
             {"right": "", "fence by the waiter": "", "to oneself": "", "no fence": "proxy-write-read",
              "fence too early": "proxy-write-read", "sender's fence": "proxy-write-read",
              "to oneself, no fence": "proxy-write-read", "not waited": "race-shared|store-source-reused"},
             stored_on, arguments=words, **CLUSTER),
    careless("st.async and a TMA load", {"right": "", "no fence": "proxy-overwrite", "not waited": "race-shared"},
             loaded_over, threads=32, arguments=words, **CLUSTER),
    careless("st.async alone", {"right": "", "st.async": "mask"}, sent_to_oneself),
    careless("operand by the peer", {"right": "", "no fence": "proxy-write-read", "not waited": "stage-read-early"},
             operand_by_the_peer, threads=128, targets=("sm_90a",), **CLUSTER),
    careless("operand by threads", {"right": "", "no fence": "proxy-write-read", "no barrier": "race-shared",
                                    "used early": "register-before-wait"}, operand_by_threads,
             threads=128, targets=("sm_90a",)),
    careless("accumulates", {"right": "", "accumulates": "tmem-uninit"}, accumulates_from_the_start,
             arguments=operands(128)),
    careless("one warp waits", {"right": "", "a barrier": "", "one warp": "tmem-uninit"}, one_warp_waits,
             threads=96, arguments=operands(128)),
    careless("freed", {"right": "", "wrong": "tmem-alloc-order"}, freed_too_early, arguments=operands(128)),
    careless("answer for two warps", {"right": "", "one warp": "clc-slot"}, answer_for_two_warps, grid=4, threads=96,
             launch={"resident_clusters": 1}),
]  # fmt: skip


THROUGH_ANOTHER_PROXY = {"written": "proxy-overwrite", "read": "proxy-war", "written by the sender": "proxy-overwrite"}


@pytest.mark.parametrize(("schedule", "seed"), [("fifo", 0), ("random", 1)])
def test_st_async_follows_what_threads_have_done_without_a_proxy_fence(schedule, seed):
    """And a bulk copy, through the async proxy, does not."""
    table = Table(
        "used and sent to", {"by": ("st.async", "bulk"), "used": tuple(THROUGH_ANOTHER_PROXY)},
        lambda s: used_and_sent_to(s.used, s.by), lambda s: outcome(), threads=32, **CLUSTER,
    )  # fmt: skip
    module = Module.from_text(table.text("sm_90a"))
    for number, setting in enumerate(table.settings):
        report, end = table.report(Device(schedule=schedule, seed=seed), module, f"setting{number}")
        wanted = {THROUGH_ANOTHER_PROXY[setting.used]} if setting.by == "bulk" else set()
        assert ({finding.rule for finding in report.findings}, end) == (wanted, "ends"), setting


def test_what_st_async_has_brought_is_fenced_after_the_wait_for_it():
    """A fence of the sender would come before the bytes."""
    table = careless("mend", {"no fence": ""}, stored_on, arguments=words, **CLUSTER)
    report, _ = table.report(Device(), Module.from_text(table.text("sm_90a")), "setting0")
    (finding,) = report.errors
    assert finding.fix.startswith("fence.proxy.async.shared::cta after the wait for the phase of its mbarrier")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_careless_kernel_is_found_and_its_twin_is_clean(table):
    module = Module.from_text(table.text(table.targets[0]))
    for number, setting in enumerate(table.settings):
        wanted = table.expected(setting).errors
        for schedule, seed in (("fifo", 0), ("random", 1)):
            report, end = table.report(Device(schedule=schedule, seed=seed), module, f"setting{number}")
            found = {finding.rule for finding in (*report.errors, *report.warnings)}
            seen = all(found & set(names.split("|")) for names in wanted)
            assert seen and (wanted or (end == "ends" and not found)), (setting.form, schedule, end, found)
