"""Truth tables of the hand-offs between threads by a flag in memory, with fences of every scope."""

from __future__ import annotations

import numpy as np
import pytest
from handovers import (
    BOX,
    CLUSTER_BARRIER,
    CTA_BARRIER,
    INIT_FENCE,
    Outcome,
    Table,
    flag_words,
    only,
    outcome,
    spin,
    wait,
)
from tensor_handovers import commit, initialise
from test_check_handovers_threads import arrive

from emugpu.emulator import Device, Module, TensorMap


def initialised_by_flag(s) -> str:
    """Rank 0 initialises an mbarrier and raises a flag at rank 1, which sees it and arrives at the mbarrier."""
    peers = "".join(
        f"mov.b32 %r{n}, {what}; mapa.shared::cluster.u32 %r{n}, %r{n}, {rank};"
        for n, what, rank in ((10, "bars", 0), (11, "slot", 1))
    )
    raises = initialise(1) + s.fence + "st.relaxed.cluster.shared::cluster.b32 [%r11], 1;" + wait("bars")
    sees = spin(f"ld.{s.load}.cluster.shared::cta.b32 %r5, [slot];") + s.after + arrive("cluster", "%r10")
    return (
        only("%thread eq 0", "st.shared.b32 [slot], 0;")
        + CLUSTER_BARRIER
        + peers
        + only("%thread eq 0", only("%rank eq 0", raises) + only("%rank eq 1", sees))
        + CLUSTER_BARRIER
    )


def initialised_by_flag_expects(s) -> Outcome:
    """An initialisation happens before what follows a release and an acquire, as any write does. Its fence is a release
    of initialisations (PTX ISA, `fence`, .op_restrict).
    """
    acquired = s.load == "acquire" or s.after
    return outcome(not (s.fence and acquired) and "init")


# ---- a flag in global memory ----

FLAG_STORES = {
    "st.release.gpu.global.b32 [%m1], 1;": "release gpu",
    "st.relaxed.gpu.global.b32 [%m1], 1;": "relaxed gpu",
    "st.volatile.global.b32 [%m1], 1;": "relaxed gpu",
    "red.release.gpu.global.add.u32 [%m1], 1;": "release gpu",
    "red.relaxed.gpu.global.add.u32 [%m1], 1;": "relaxed gpu",
    "st.release.cta.global.b32 [%m1], 1;": "release cta",
    "st.relaxed.cta.global.b32 [%m1], 1;": "relaxed cta",
    "st.global.b32 [%m1], 1;": "weak",
}
FLAG_LOADS = {
    "ld.acquire.gpu.global.b32 %r5, [%m1];": "acquire gpu",
    "ld.relaxed.gpu.global.b32 %r5, [%m1];": "relaxed gpu",
    "ld.volatile.global.b32 %r5, [%m1];": "relaxed gpu",
    "atom.acquire.gpu.global.or.b32 %r5, [%m1], 0;": "acquire gpu",
    "ld.acquire.cta.global.b32 %r5, [%m1];": "acquire cta",
    "ld.global.b32 %r5, [%m1];": "weak",
}
ONE_SIDED = tuple(f"fence.{what}.gpu;" for what in ("acq_rel", "release", "acquire", "sc"))
GRID_FENCES = ("fence.acq_rel.gpu;", "", "fence.acq_rel.cta;", "membar.gl;")


def flag(s) -> str:
    """All of CTA 0 write, its thread 0 raises the flag; thread 0 of CTA 1 sees it, then all of CTA 1 read."""
    word = "mov.u32 %r6, %ctaid.x; mul.wide.u32 %d0, %thread, 4; add.s64 %d0, %m0, %d0;"
    raises = "st.global.b32 [%d0], %thread;" + CTA_BARRIER + only("%thread eq 0", s.before + s.store)
    sees = only("%thread eq 0", spin(s.load) + s.after) + CTA_BARRIER + "ld.global.b32 %r7, [%d0];"
    return word + only("%r6 eq 0", raises) + only("%r6 eq 1", sees)


def flag_expects(s) -> Outcome:
    """Two accesses to the flag that are not both strong at a scope that covers both CTAs race themselves."""
    unordered = "race-global|scope"
    store, load = FLAG_STORES[s.store], FLAG_LOADS[s.load]
    wide = ("fence.acq_rel.gpu;", "membar.gl;")
    released = store == "release gpu" or (store == "relaxed gpu" and s.before in wide)
    acquired = load == "acquire gpu" or (load == "relaxed gpu" and s.after in wide)
    return outcome(not (released and acquired) and unordered)


def one_sided_fences_expect(s) -> Outcome:
    """A fence.release is no acquire, and a fence.acquire no release (PTX ISA, `fence`)."""
    return outcome(("acquire" in s.before or "release" in s.after) and "race-global")


def one_wide_fence(s) -> str:
    """CTAs 0 and 1 hand over a word each by a flag each; CTA 2 waits for the flags in a loop, then reads both words."""
    word = "mul.wide.u32 %d0, %r6, 4; add.s64 %d1, %m0, %d0; add.s64 %d2, %m1, %d0;"
    raises = word + "st.global.b32 [%d1], 1; fence.acq_rel.gpu; st.relaxed.gpu.global.b32 [%d2], 1;"
    sees = "mov.b64 %d1, %m1; add.s64 %d2, %m1, 8; FLAGS: " + spin("ld.relaxed.gpu.global.b32 %r5, [%d1];")
    sees += "fence.acq_rel.cta; add.s64 %d1, %d1, 4; setp.ne.u64 %p11, %d1, %d2; @%p11 bra FLAGS;" + s.after
    reads = "ld.global.b32 %r7, [%m0]; ld.global.b32 %r8, [%m0+4];"
    ranks = "mov.u32 %r6, %ctaid.x; setp.ne.u32 %p12, %thread, 0; @%p12 exit;"
    return ranks + only("%r6 ne 2", raises) + only("%r6 eq 2", sees + reads)


def raised_twice(s) -> str:
    """Thread 0 of CTA 0 writes and raises a flag, it or thread 1 writes and raises the flag again. CTA 1 waits for the
    second time.
    """
    raises = only("%thread eq 0", s.earlier + "st.global.b32 [%m0], 1;" + s.first) + "bar.warp.sync 3;"
    raises += only(f"%thread eq {s.thread}", "st.global.b32 [%m0+4], 2;" + s.second)
    reads = f"ld.global.b32 %r7, [%m0+{0 if s.read == 'the first' else 4}];"
    sees = spin("ld.acquire.gpu.global.b32 %r5, [%m1]; setp.ne.u32 %p11, %r5, 2; @%p11 mov.b32 %r5, 0;")
    ranks = "mov.u32 %r6, %ctaid.x; setp.gt.u32 %p12, %thread, 1; @%p12 exit;"
    return ranks + only("%r6 eq 0", raises) + only("%r6 eq 1", sees + reads)


def raised_twice_expects(s) -> Outcome:
    """A release operation and a later strong write of a thread to the same place are a release pattern, too (PTX ISA
    8.8). An atomic of any thread hands on what it finds (8.9.2).
    """
    is_released = s.read == "the first" and s.first == "st.release.gpu.global.b32 [%m1], 1;"
    is_handed_on = is_released and (s.thread == 0 or s.second.startswith("atom"))
    return outcome(not is_handed_on and "release" not in s.second and "race-global")


def overwritten_between(s) -> str:
    """CTA 0 writes and raises a flag, CTA 1 overwrites it, and CTA 0 writes it again; CTA 2 waits for that."""
    spins = [spin(f"ld.{s.load if n == 3 else 'relaxed'}.gpu.global.b32 %r5, [%m1]; setp.ne.u32 %p11, %r5, {n};"
                  "@%p11 mov.b32 %r5, 0;") for n in (1, 2, 3)]  # fmt: skip
    raises = f"st.global.b32 [%m0], 1;{s.first}{spins[1]}{s.again}"
    ranks = "mov.u32 %r6, %ctaid.x; setp.ne.u32 %p12, %thread, 0; @%p12 exit;"
    overwrites = only("%r6 eq 1", spins[0] + s.overwrites)
    return ranks + only("%r6 eq 0", raises) + overwrites + only("%r6 eq 2", spins[2] + "ld.global.b32 %r7, [%m0];")


def overwritten_between_expects(s) -> Outcome:
    """What others write between the two writes of a release pattern does not matter (PTX ISA 8.8), but the scopes of
    its release and of its last write do (8.9.4), and the acquire.
    """
    is_released = "release.gpu" in s.first and "relaxed.gpu" in s.again and s.load == "acquire"
    races = "race-global|scope"
    return outcome((not is_released or "cta" in s.again) and races)


def reduction_first(s) -> str:
    """Thread 0 of each CTA counts in an atomic way; that of CTA 1 then reads what the one of CTA 0 has written."""
    raises = "st.global.b32 [%m0], 1; fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [%m1], 1;"
    sees = spin(s.count) if "%r5" in s.count else s.count
    ranks = "mov.u32 %r6, %ctaid.x; setp.ne.u32 %p12, %thread, 0; @%p12 exit;"
    return ranks + only("%r6 eq 0", raises) + only("%r6 eq 1", sees + "fence.acq_rel.gpu; ld.global.b32 %r7, [%m0];")


def reduction_first_expects(s) -> Outcome:
    """A reduction finds nothing, so it is no part of an acquire pattern (PTX ISA 8.8)."""
    return outcome(s.count.startswith("red") and "race-global")


ACCESSES = {
    "write": "st.global.b32 [%m0], %r6;",
    "read": "ld.global.b32 %r7, [%m0]; st.global.b32 [%m0+8], %r7;",
    "atomic": "atom.relaxed.gpu.global.add.u32 %r7, [%m0], 1;",
}


def two_accesses(s) -> str:
    """Thread 0 of CTA 0 makes an access and hands over to that of CTA 1 by fences and a flag."""
    raises = f"{ACCESSES[s.first]} fence.acq_rel.{s.release}; st.relaxed.gpu.global.b32 [%m1], 1;"
    sees = spin("ld.relaxed.gpu.global.b32 %r5, [%m1];") + f"fence.acq_rel.{s.acquire};" + ACCESSES[s.second]
    ranks = "mov.u32 %r6, %ctaid.x; setp.ne.u32 %p12, %thread, 0; @%p12 exit;"
    return ranks + only("%r6 eq 0", raises) + only("%r6 eq 1", sees)


def two_accesses_expects(s) -> Outcome:
    """Without a scope that holds both threads there is no order between the two, whatever they are (PTX ISA 8.9.4);
    two reads, or two atomics, need none, but both readers here store what they have read in one place.
    """
    is_atomic = s.first == s.second == "atomic"
    return outcome(not is_atomic and (s.release, s.acquire) != ("gpu", "gpu") and "scope")


PEERS = {"write": "st.shared::cluster.b32 [%r11], %rank;", "read": "ld.shared::cluster.b32 %r7, [%r11];"}


def two_accesses_in_a_cluster(s) -> str:
    """Thread 0 of rank 1 accesses the memory of rank 0 and arrives at its mbarrier, at which its thread 0 waits."""
    peers = "".join(
        f"mov.b32 %r{n}, {what}; mapa.shared::cluster.u32 %r{n}, %r{n}, 0;" for n, what in ((10, "bars"), (11, "data"))
    )
    start = only("%thread eq 0", initialise(1) + "st.shared.b32 [data], 0;" + INIT_FENCE) + CLUSTER_BARRIER + peers
    waits = f"WAIT: mbarrier.try_wait.parity.acquire.{s.acquire}.shared::cta.b64 %p13, [bars], 0; @!%p13 bra WAIT;"
    gives = PEERS[s.first] + f"mbarrier.arrive.release.{s.release}.shared::cluster.b64 _, [%r10];"
    takes = only("%rank eq 1", gives) + only("%rank eq 0", waits + PEERS[s.second])
    return start + only("%thread eq 0", takes) + CLUSTER_BARRIER


def fences_of_two_scopes(s) -> str:
    """Thread 0 of CTA 0 writes in front of one fence and behind it, and raises the flag; that of CTA 1 reads both."""
    raises = "st.global.b32 [%m0], 1;" + s.first + "st.global.b32 [%m0+4], 2;" + s.second
    raises += "st.relaxed.gpu.global.b32 [%m1], 1;"
    reads = f"ld.global.b32 %r7, [%m0+{0 if s.read == 'the first' else 4}];"
    sees = spin("ld.relaxed.gpu.global.b32 %r5, [%m1];") + s.after + reads
    ranks = "mov.u32 %r6, %ctaid.x; setp.ne.u32 %p12, %thread, 0; @%p12 exit;"
    return ranks + only("%r6 eq 0", raises) + only("%r6 eq 1", sees)


def fences_of_two_scopes_expects(s) -> Outcome:
    """A fence anywhere between the access and the flag will do, whatever other fences there are (PTX ISA 8.8)."""
    between = s.first + s.second if s.read == "the first" else s.second
    wide = ("gpu" in between or "gl" in between) and ("gpu" in s.after or "gl" in s.after)
    return outcome(not wide and ("scope" if between else "race-global"))


SC_FENCES = ("membar.gl;", "fence.sc.gpu;", "fence.acq_rel.gpu;", "fence.sc.cta;", "")


def fences_of_all(s) -> str:
    """All of CTA 0 write and fence, then thread 0 raises the flag; that of CTA 1 sees it, then all fence and read.
    CTA 0 runs ahead with so many more fences."""
    word = "mov.u32 %r6, %ctaid.x; mul.wide.u32 %d0, %thread, 4; add.s64 %d0, %m0, %d0;"
    raises = "st.global.b32 [%d0], %thread;" + s.before + CTA_BARRIER
    raises += only("%thread eq 0", "red.relaxed.gpu.global.add.u32 [%m1], 1;") + "membar.gl;" * s.more
    sees = only("%thread eq 0", spin("ld.relaxed.gpu.global.b32 %r5, [%m1];")) + CTA_BARRIER + s.after
    return word + only("%r6 eq 0", raises) + only("%r6 eq 1", sees + "ld.global.b32 %r7, [%d0];")


def fences_of_all_expects(s) -> Outcome:
    """A fence in front of the barrier is no release by thread 0; those of fence.sc are ordered all the same."""
    sequential = SC_FENCES[:2]
    return outcome(not (s.before in sequential and s.after in sequential) and "race-global|scope")


def fence_of_another(s) -> str:
    """Warp 1 of CTA 0 writes, all or it alone fence; thread 0 raises the flag for warp 1 of CTA 1."""
    word = "mov.u32 %r6, %ctaid.x; mul.wide.u32 %d0, %thread, 4; add.s64 %d0, %m0, %d0;"
    fences = {"all": "membar.gl;", "the writers": only("%warp eq 1", "membar.gl;"), "nobody": ""}
    raises = only("%warp eq 1", "st.global.b32 [%d0], %thread;") + fences[s.who] + CTA_BARRIER
    raises += only("%thread eq 0", "red.relaxed.gpu.global.add.u32 [%m1], 1;")
    sees = only("%thread eq 0", spin("ld.relaxed.gpu.global.b32 %r5, [%m1];")) + CTA_BARRIER + "membar.gl;"
    sees += only("%warp eq 1", "ld.global.b32 %r7, [%d0];")
    return word + only("%r6 eq 0", raises) + only("%r6 eq 1", sees)


def second_flag(s) -> str:
    """CTA 0 writes, fences and raises a flag; CTA 1 sees it and raises another for CTA 2, which fences and reads."""
    word = "mov.u32 %r6, %ctaid.x; mul.wide.u32 %d0, %thread, 4; add.s64 %d0, %m0, %d0;"
    raises = "st.global.b32 [%d0], %thread; fence.sc.gpu;" + CTA_BARRIER
    raises += only("%thread eq 0", "red.relaxed.gpu.global.add.u32 [%m1], 1;")
    seen = spin("ld.relaxed.gpu.global.b32 %r5, [%m1];") + s.between
    passes = s.before + only("%thread eq 0", seen + "red.relaxed.gpu.global.add.u32 [%m1+4], 1;")
    sees = only("%thread eq 0", spin("ld.relaxed.gpu.global.b32 %r5, [%m1+4];")) + CTA_BARRIER + "fence.sc.gpu;"
    return (
        word
        + only("%r6 eq 0", raises)
        + only("%r6 eq 1", passes)
        + only("%r6 eq 2", sees + "ld.global.b32 %r7, [%d0];")
    )


ASYNC_FENCES = ("fence.proxy.async;", "fence.proxy.async.global;", "", "fence.proxy.async.shared::cta;")


def flag_then_copy(s) -> str:
    """CTA 0 writes to global memory, CTA 1 copies it with TMA once it has seen the flag."""
    store = "st.release.gpu.global.b32 [%m1], 1;" if s.sync == "release" else "st.relaxed.gpu.global.b32 [%m1], 1;"
    load = "ld.acquire.gpu.global.b32 %r5, [%m1];"
    copy = f"""
    mbarrier.init.shared::cta.b64 [bars], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {4 * BOX};
    mov.b32 %r20, 0;
    cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [data], [%m0, {{%r20}}], [bars];
    """
    raises = "st.global.b32 [%d0], %thread;" + s.writers + CTA_BARRIER + only("%thread eq 0", store)
    sees = only("%thread eq 0", spin(load) + s.issuer + copy + wait("bars"))
    word = "mov.u32 %r6, %ctaid.x; mul.wide.u32 %d0, %lane, 4; add.s64 %d0, %m2, %d0;"
    return word + only("%r6 eq 0", raises) + only("%r6 eq 1", sees)


def flag_then_copy_expects(s) -> Outcome:
    if s.sync == "relaxed":
        return outcome("race-global")
    covering = ("fence.proxy.async;", "fence.proxy.async.global;")
    return outcome(s.writers not in covering and s.issuer not in covering and "proxy-global")


def flag_and_tensor(device: Device) -> list[TensorMap | int]:
    data = device.upload(np.zeros(BOX, np.uint32))
    return [TensorMap.tiled(data, "u32", (BOX,), (BOX,)), device.upload(np.zeros(1, np.uint32)), data]


TABLES = [
    Table(
        "an mbarrier initialised, then a flag",
        dict(
            fence=(INIT_FENCE + "fence.acq_rel.cluster;", INIT_FENCE, ""),
            load=("acquire", "relaxed"),
            after=("fence.acq_rel.cluster;", ""),
        ),
        initialised_by_flag,
        initialised_by_flag_expects,
        threads=32,
        grid=2,
        cluster=2,
    ),
    Table(
        "flag in global memory",
        dict(store=tuple(FLAG_STORES), before=GRID_FENCES, load=tuple(FLAG_LOADS), after=GRID_FENCES[:2]),
        flag,
        flag_expects,
        grid=2,
        arguments=flag_words,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "a relaxed flag with fences that only release or only acquire",
        dict(
            before=ONE_SIDED,
            after=ONE_SIDED,
            store=("st.relaxed.gpu.global.b32 [%m1], 1;",),
            load=("ld.relaxed.gpu.global.b32 %r5, [%m1];",),
        ),
        flag,
        one_sided_fences_expect,
        grid=2,
        arguments=flag_words,
    ),
    Table(
        "one wide fence for all flags, after a narrow one for each",
        dict(after=("fence.acq_rel.gpu;", "fence.acq_rel.cluster;", "")),
        one_wide_fence,
        lambda s: outcome("gpu" not in s.after and "scope"),
        grid=3,
        arguments=flag_words,
    ),
    Table(
        "a flag that is raised twice",
        dict(
            first=(
                "st.release.gpu.global.b32 [%m1], 1;",
                "st.release.gpu.global.b32 [%m1+4], 1;",
                "st.relaxed.gpu.global.b32 [%m1], 1;",
            ),
            second=(
                "st.relaxed.gpu.global.b32 [%m1], 2;",
                "st.release.gpu.global.b32 [%m1], 2;",
                "atom.relaxed.gpu.global.exch.b32 %r5, [%m1], 2;",
            ),
            earlier=("", "fence.acq_rel.gpu;"),
            thread=(0, 1),
            read=("the first", "the second"),
        ),
        raised_twice,
        raised_twice_expects,
        grid=2,
        arguments=flag_words,
    ),
    Table(
        "a flag that another CTA overwrites before it is raised again",
        dict(
            first=("st.release.gpu.global.b32 [%m1], 1;", "st.relaxed.gpu.global.b32 [%m1], 1;"),
            overwrites=(
                "st.relaxed.gpu.global.b32 [%m1], 2;",
                "st.release.gpu.global.b32 [%m1], 2;",
                "atom.relaxed.gpu.global.exch.b32 %r5, [%m1], 2;",
            ),
            again=("st.relaxed.gpu.global.b32 [%m1], 3;", "red.relaxed.gpu.global.add.u32 [%m1], 1;"),
            load=("acquire", "relaxed"),
        ),
        overwritten_between,
        overwritten_between_expects,
        grid=3,
        arguments=flag_words,
    ),
    Table(
        "two accesses with a flag and fences of every scope between them",
        dict(
            first=tuple(ACCESSES),
            second=tuple(ACCESSES),
            release=("gpu", "cluster", "cta"),
            acquire=("gpu", "cluster", "cta"),
        ),
        two_accesses,
        two_accesses_expects,
        grid=2,
        arguments=flag_words,
    ),
    Table(
        "two accesses with an mbarrier of another CTA between them",
        dict(first=tuple(PEERS), second=tuple(PEERS), release=("cluster", "cta"), acquire=("cluster", "cta")),
        two_accesses_in_a_cluster,
        lambda s: outcome(s.first == "write" and "cta" in (s.release, s.acquire) and "scope"),
        threads=32,
        grid=2,
        cluster=2,
    ),
    Table(
        "a reduction where another CTA has raised a flag",
        dict(
            count=(
                "ld.relaxed.gpu.global.b32 %r5, [%m1];",
                "atom.relaxed.gpu.global.or.b32 %r5, [%m1], 0;",
                "red.relaxed.gpu.global.add.u32 [%m1], 1;",
            )
        ),
        reduction_first,
        reduction_first_expects,
        grid=2,
        arguments=flag_words,
    ),
    Table(
        "fences of two scopes around a relaxed flag",
        dict(
            first=("fence.acq_rel.gpu;", "fence.acq_rel.cta;", "membar.gl;", ""),
            second=("fence.acq_rel.cta;", "fence.acq_rel.gpu;", "membar.cta;", ""),
            after=("fence.acq_rel.gpu; fence.acq_rel.cta;", "membar.cta; membar.gl;", "fence.acq_rel.cluster;"),
            read=("the first", "the second"),
        ),
        fences_of_two_scopes,
        fences_of_two_scopes_expects,
        grid=2,
        arguments=flag_words,
    ),
    Table(
        "fences of all threads around a relaxed flag",
        dict(before=SC_FENCES, after=SC_FENCES, more=(0, 5, 70)),
        fences_of_all,
        fences_of_all_expects,
        grid=2,
        arguments=flag_words,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "a fence of another thread than the one that raises the flag",
        dict(who=("all", "the writers", "nobody")),
        fence_of_another,
        lambda s: outcome(s.who == "nobody" and "race-global|scope"),
        grid=2,
        arguments=flag_words,
    ),
    Table(
        "a relaxed flag that is passed on",
        dict(before=("", "fence.acq_rel.gpu;", "membar.cta;"), between=("", "fence.acq_rel.gpu;")),
        second_flag,
        lambda s: outcome(not s.between and "race-global|scope"),
        grid=3,
        arguments=flag_words,
    ),
    Table(
        "flag in global memory -> TMA load",
        dict(sync=("release", "relaxed"), writers=ASYNC_FENCES, issuer=ASYNC_FENCES),
        flag_then_copy,
        flag_then_copy_expects,
        threads=32,
        grid=2,
        arguments=flag_and_tensor,
        targets=("sm_100a", "sm_90a"),
    ),
]


@pytest.mark.thorough
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table(table):
    found = table.disagreements(table.targets[0])
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)


def passed_on(s) -> str:
    """A thread writes, and thread 32 of CTA 1 reads behind an mbarrier of its CTA, for which one thread signals."""
    peer = "mov.b32 %r10, bars; mapa.shared::cluster.u32 %r10, %r10, 1;"
    writes = "st.global.b32 [%m0], 1;"
    raises = writes + "st.release.gpu.global.b32 [%m1], 1;"
    zero, one = {
        "acquired": (raises, spin("ld.acquire.gpu.global.b32 %r5, [%m1];") + s.signal),
        "acquired with CTA scope": (raises, spin("ld.acquire.cta.global.b32 %r5, [%m1];") + s.signal),
        "written in CTA 1": ("", writes + s.signal),
        "written in CTA 0, which signals": (writes + s.signal, ""),
    }[s.how]
    return (
        only("%thread eq 0", initialise(1) + INIT_FENCE) + CLUSTER_BARRIER + peer
        + only("%thread eq 0", only("%rank eq 0", zero) + only("%rank eq 1", one))
        + only("%rank eq 1", only("%thread eq 32", wait("bars") + "ld.global.b32 %r7, [%m0];"))
        + CLUSTER_BARRIER
    )  # fmt: skip


COMMIT, ARRIVAL = commit("%r10"), "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10];"


@pytest.mark.parametrize(
    "how, signal, errors, warnings",
    [
        ("acquired", ARRIVAL, set(), set()),
        ("acquired", COMMIT, set(), {"race-global"}),
        ("acquired with CTA scope", COMMIT, {"race-global"}, set()),
        ("written in CTA 1", COMMIT, set(), {"race-global"}),
        ("written in CTA 0, which signals", COMMIT, {"scope"}, set()),
    ],
)
def test_a_commit_passes_on_what_its_thread_knows_within_its_cta_with_a_warning(how, signal, errors, warnings):
    """A commit's arrival has cluster scope (PTX ISA, tcgen05.commit); no text says that it releases such writes."""
    table = Table("passed on", {"how": (how,), "signal": (signal,)}, passed_on, lambda s: outcome(), grid=2, cluster=2,
                  arguments=flag_words)  # fmt: skip
    report, end = table.report(Device(), Module.from_text(table.text("sm_100a")), "setting0")
    found = [{finding.rule for finding in kind} - {"peer-exited"} for kind in (report.errors, report.warnings)]
    assert (*found, end) == (errors, warnings, "ends"), report
