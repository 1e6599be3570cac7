"""Truth tables of the hand-offs by TMA copies, all of them with ordinary accesses on the other side."""

from __future__ import annotations

import pytest
from handovers import BOX, CLEAR, CTA_BARRIER, FENCE, LOAD, STORE, Outcome, Table, only, outcome, target, wait, words

# ---- TMA load -> ld ----


def load_then_read(s) -> str:
    load = LOAD.format(0, "data", "bars")
    arrive = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {s.bytes};"
    late = f"""
    mbarrier.arrive.shared::cta.b64 _, [bars];
    mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bars], {s.bytes};
    """
    tell = {"together": arrive + load, "load first": load + arrive, "after the arrival": late + load}[s.expect]
    drain = wait("bars", 0)
    if s.expect == "after the arrival":
        drain = "mbarrier.arrive.shared::cta.b64 _, [bars];" + wait("bars", 1)
    return (
        CLEAR
        + only("%thread eq 32", "mbarrier.init.shared::cta.b64 [bars], 1;")
        + (CTA_BARRIER if s.published else "")
        + only("%thread eq 0", tell + drain)
        + only(
            "%warp eq 1",
            {"acquire": wait("bars"), "relaxed": wait("bars", order=".relaxed.cta"), "none": ""}[s.wait]
            + "ld.shared.b32 %r3, [%r1];",
        )
    )


def load_then_read_expects(s) -> Outcome:
    """Who expects bytes after the arrival that ends the phase lets the waiter through before they have landed."""
    wrong_bytes = s.bytes != 4 * BOX
    gets_through = not wrong_bytes or s.expect == "after the arrival" or s.wait == "none"
    observes = s.wait == "acquire" and s.expect != "after the arrival"
    return outcome(
        not s.published and "init",
        wrong_bytes and "bytes",
        gets_through and not observes and "race-shared",
        end="hangs" if wrong_bytes else "ends",
    )


# ---- st -> TMA store ----

COVERING = ("fence.proxy.async.shared::cta;", "fence.proxy.async;")
FENCES = (*COVERING, "", "fence.proxy.async.global;", "fence.acq_rel.cta;")


def write_then_store(s) -> str:
    """Warp 1 writes, thread 0 stores."""
    together = {
        "bar.sync": CTA_BARRIER,
        "bar.arrive": only("%warp eq 1", "bar.arrive 1, 64;") + only("%warp eq 0", "bar.sync 1, 64;"),
        "the other way round": only("%warp eq 0", "bar.arrive 1, 64;") + only("%warp eq 1", "bar.sync 1, 64;"),
        "none": "",
    }[s.barrier]
    return (
        CLEAR
        + only("%warp eq 1", "st.shared.b32 [%r1], %lane;" + s.writers)
        + together
        + only(
            "%thread eq 0",
            s.issuer + STORE.format(0, "data") + "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;",
        )
    )


UNORDERED = "race-shared|store-source-reused"
"""A write and a bulk store's read of the same bytes, and no path either way."""


def write_then_store_expects(s) -> Outcome:
    if s.barrier not in ("bar.sync", "bar.arrive"):
        return outcome(UNORDERED)
    return outcome(s.writers not in COVERING and s.issuer not in COVERING and "proxy-write-read")


def store_then_rewrite(s) -> str:
    """Thread 0 stores what warp 1 has written and then writes anew."""
    return (
        CLEAR
        + only(
            "%warp eq 0",
            only("%lane eq 0", STORE.format(0, "data") + s.commit)
            + only({"issuer": "%lane eq 0", "neighbour": "%lane eq 1", "warp": "%lane ge 0"}[s.waiter], s.wait),
        )
        + s.barrier
        + only("%warp eq 1", "st.shared.b32 [%r1], %lane;")
    )


READ_0, READ_1, FULL_0 = (f"cp.async.bulk.wait_group{n};" for n in (".read 0", ".read 1", " 0"))


def store_then_rewrite_expects(s) -> Outcome:
    waited = s.commit and s.wait in (READ_0, FULL_0) and s.waiter != "neighbour"
    if waited:
        return outcome(not s.barrier and UNORDERED)
    return outcome("store-source-reused" if s.barrier else UNORDERED)


# ---- a ring of stages, both ways ----


def ring(s) -> str:
    """Thread 0 fills two stages in turn, warp 1 reads them. bars: full 0, full 1, empty 0, empty 1."""
    produce, consume = "", ""
    for step in range(s.steps):
        stage, parity = step % 2, step // 2 % 2
        full, empty, where = f"bars+{8 * stage}", f"bars+{16 + 8 * stage}", 1024 * stage
        produce += {"acquire": wait(empty, parity ^ 1), "relaxed": wait(empty, parity ^ 1, ".relaxed.cta")}[s.empty]
        produce += f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{full}], {4 * BOX};"
        produce += LOAD.format(BOX * step, f"data+{where}", full)
        consume += {"acquire": wait(full, parity), "relaxed": wait(full, parity, ".relaxed.cta")}[s.full]
        read, arrive = f"ld.shared.b32 %r3, [%r1+{where}];", f"mbarrier.arrive{s.order}.shared::cta.b64 _, [{empty}];"
        consume += {"after": read + s.fence + arrive, "before": arrive + read, "never": read}[s.arrive]
    # The copies have landed before the CTA ends, whatever the reader waits for.
    drain = "".join(wait(f"bars+{8 * (step % 2)}", step // 2 % 2) for step in (s.steps - 2, s.steps - 1))
    inits = "".join(f"mbarrier.init.shared::cta.b64 [bars+{8 * n}], {count};" for n, count in enumerate((1, 1, 32, 32)))
    return (
        CLEAR
        + only("%thread eq 0", inits)
        + CTA_BARRIER
        + only("%thread eq 0", produce + drain)
        + only("%warp eq 1", consume)
    )


def ring_expects(s) -> Outcome:
    refilled = s.steps > 2
    hangs = refilled and s.arrive == "never"
    given_back = s.empty == "acquire" and s.arrive == "after" and s.order != ".relaxed.cta"
    races = s.full == "relaxed" or (refilled and not hangs and not given_back)
    return outcome(races and "race-shared", end="hangs" if hangs else "ends")


# ---- an epilogue with two buffers ----


def epilogue(s) -> str:
    """Warps 0 and 1 write slices into two buffers in turn, thread 64 stores them."""
    text = CLEAR + "mov.b32 %r1, data; shl.b32 %r2, %thread, 1; cvt.u16.u32 %h0, %thread; add.u32 %r1, %r1, %r2;"
    for n in range(s.slices):
        where = 1024 * (n % 2)
        text += only("%warp lt 2", f"st.shared.b16 [%r1+{where}], %h0;" + (FENCE if s.fence == "writers" else ""))
        text += s.written
        fence = FENCE if s.fence == "issuer" else ""
        store = fence + STORE.format(BOX * n, f"data+{where}") + "cp.async.bulk.commit_group;"
        text += only("%thread eq 64", store + s.wait) + s.free
    return text + only("%thread eq 64", s.last)


def epilogue_expects(s) -> Outcome:
    """With two buffers a slice reuses that of the store before the last: ``read 1`` is enough, and one barrier behind
    it; ``read 0`` has waited a slice earlier, so that the barrier before the next store carries it on, too.
    """
    allowed = {"": 9, "cp.async.bulk.wait_group.read 0;": 0, "cp.async.bulk.wait_group.read 1;": 1,
               "cp.async.bulk.wait_group.read 2;": 2}[s.wait]  # fmt: skip
    reused = s.slices > 2 and not ((allowed <= 1 and s.free) or (allowed == 0 and s.written))
    return outcome(
        not s.written and UNORDERED,
        s.written and not s.fence and "proxy-write-read",
        reused and (s.written or s.free) and "store-source-reused",
    )


BYTES = (4 * BOX, 2 * BOX, 8 * BOX, 4 * BOX - 16)
TABLES = [
    Table(
        "TMA load -> ld",
        dict(
            published=(True, False),
            wait=("acquire", "relaxed", "none"),
            bytes=BYTES,
            expect=("together", "load first", "after the arrival"),
        ),
        load_then_read,
        load_then_read_expects,
        arguments=words,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "st -> TMA store",
        dict(barrier=("bar.sync", "bar.arrive", "the other way round", "none"), writers=FENCES, issuer=FENCES),
        write_then_store,
        write_then_store_expects,
        arguments=target,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "TMA store -> st",
        dict(
            commit=("cp.async.bulk.commit_group;", ""),
            wait=(READ_0, FULL_0, READ_1, ""),
            waiter=("issuer", "warp", "neighbour"),
            barrier=(CTA_BARRIER, ""),
        ),
        store_then_rewrite,
        store_then_rewrite_expects,
        arguments=target,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "ring of stages",
        dict(
            steps=(3, 2, 5),
            full=("acquire", "relaxed"),
            empty=("acquire", "relaxed"),
            arrive=("after", "before", "never"),
            order=("", ".release.cluster", ".relaxed.cta"),
            fence=("", FENCE),
        ),
        ring,
        ring_expects,
        arguments=words,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "epilogue with two buffers",
        dict(
            slices=(3, 2),
            fence=("writers", "issuer", ""),
            written=(CTA_BARRIER, ""),
            wait=("cp.async.bulk.wait_group.read 1;", "cp.async.bulk.wait_group.read 0;",
                  "cp.async.bulk.wait_group.read 2;", ""),
            free=(CTA_BARRIER, ""),
            last=("cp.async.bulk.wait_group.read 0;", ""),
        ),
        epilogue,
        epilogue_expects,
        threads=96,
        arguments=target,
        targets=("sm_100a", "sm_90a"),
    ),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table(table):
    found = table.disagreements(table.targets[0])
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)


def test_a_store_that_reads_late_is_the_one_whose_source_is_reused():
    """A buffer that is written twice before a store of it has read: the store stands before the writes, and was issued
    before them, so it is never one that has not waited for them.
    """
    waits = ("cp.async.bulk.wait_group.read 1;", "cp.async.bulk.wait_group.read 2;", "")
    switches = dict(
        slices=(8,), fence=("writers",), written=(CTA_BARRIER,), wait=waits, free=(CTA_BARRIER,),
        last=("cp.async.bulk.wait_group.read 0;",),
    )  # fmt: skip
    table = Table("many slices", switches, epilogue, epilogue_expects, threads=96, arguments=target)
    found = table.disagreements("sm_90a", [("random", seed) for seed in range(12)])
    assert not found, "\n".join(found)
