"""Instructions with other operands in every lane: each lane gets the answer to its own question."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch, run

LANES = np.arange(32)
SCHEDULES = [("fifo", 0), *(("random", seed) for seed in range(4))]

# ---- kernel parameters ----

TABLE = np.arange(100, 160, dtype=np.uint32)
TABLE_PARAMETERS = ["map first", "map second"]
"""Two blocks of 128 bytes, one behind the other: 64 words."""


def from_table(body: str) -> np.ndarray:
    words = np.concatenate([TABLE, np.zeros(4, np.uint32)])
    arguments = [words[:32].tobytes(), words[32:].tobytes()]
    return launch(body + STORE_R1 + "ret;", parameters=TABLE_PARAMETERS, arguments=arguments).words(32)


@pytest.mark.parametrize("space", ["param", "param::entry"])
def test_every_lane_loads_its_own_parameter_word(space):
    body = f"""
    mov.b64 %rd4, first;
    mul.wide.u32 %rd5, %r0, 4; add.u64 %rd4, %rd4, %rd5;
    ld.{space}.b32 %r1, [%rd4];
    """
    assert (from_table(body) == TABLE[:32]).all()


def test_lanes_load_parameter_words_in_any_order():
    body = """
    mov.b64 %rd4, first;
    mul.lo.u32 %r2, %r0, 13;
    and.b32 %r2, %r2, 31;
    mul.wide.u32 %rd5, %r2, 4; add.u64 %rd4, %rd4, %rd5;
    ld.param.b32 %r1, [%rd4+16];
    """
    assert (from_table(body) == TABLE[4 + LANES * 13 % 32]).all()


def test_lanes_load_pairs_and_halves_of_parameter_words():
    body = """
    mov.b64 %rd4, first;
    and.b32 %r2, %r0, 15;
    mul.wide.u32 %rd5, %r2, 8; add.u64 %rd4, %rd4, %rd5;
    ld.param.v2.b32 {%r3, %r4}, [%rd4];
    ld.param.b64 %rd6, [%rd4];
    ld.param.u8 %r5, [%rd4+4];
    cvt.u32.u64 %r6, %rd6;
    mul.lo.u32 %r1, %r4, 1000; add.u32 %r1, %r1, %r3;
    mul.lo.u32 %r5, %r5, 1000000; add.u32 %r1, %r1, %r5;
    sub.u32 %r1, %r1, %r6;
    """
    pairs = TABLE[:32].reshape(16, 2)[LANES % 16]
    assert (from_table(body) == pairs[:, 1] * 1000 + pairs[:, 1] * 1_000_000).all()


def test_lanes_load_four_parameter_words():
    body = """
    mov.b64 %rd4, first;
    and.b32 %r2, %r0, 7;
    mul.wide.u32 %rd5, %r2, 16; add.u64 %rd4, %rd4, %rd5;
    ld.param.v4.b32 {%r3, %r4, %r5, %r6}, [%rd4];
    mad.lo.u32 %r1, %r3, 3, %r4; mad.lo.u32 %r1, %r1, 3, %r5; mad.lo.u32 %r1, %r1, 3, %r6;
    """
    fours = TABLE[:32].reshape(8, 4)[LANES % 8]
    assert (from_table(body) == fours @ np.uint32([27, 9, 3, 1])).all()


def test_lanes_load_parameter_words_through_generic_addresses():
    body = """
    mov.b64 %rd4, first; cvta.param.u64 %rd4, %rd4;
    mul.wide.u32 %rd5, %r0, 4;
    sub.u64 %rd4, %rd4, %rd5;
    ld.b32 %r1, [%rd4+124];
    """
    assert (from_table(body) == TABLE[31 - LANES]).all()


def test_some_lanes_load_a_parameter_word():
    body = """
    mov.b64 %rd4, first;
    mul.wide.u32 %rd5, %r0, 4; add.u64 %rd4, %rd4, %rd5;
    mov.b32 %r1, 1;
    setp.gt.u32 %p1, %r0, 20;
    @%p1 ld.param.b32 %r1, [%rd4];
    """
    assert (from_table(body) == np.where(LANES > 20, TABLE[:32], 1)).all()


# ---- the state an arrival returns ----

TWO_BARRIERS = """
mov.b32 %r3, words;
setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 16;
mbarrier.init.shared.b64 [%r3+8], 1;
mbarrier.arrive.shared.b64 %rd9, [%r3+8];
mbarrier.inval.shared.b64 [%r3+8];
mbarrier.init.shared.b64 [%r3+8], 16;
mbarrier.arrive.shared.b64 %rd9, [%r3+8], 16;
READY: bar.warp.sync -1;
setp.ge.u32 %p1, %r0, 16;
{choice}
add.u32 %r5, %r5, %r3;
"""
"""The barrier at 0 is in phase 0, the one at 8 in phase 1, and both await 16 arrivals; %r5 is one of them."""

HALF_EACH = ["selp.b32 %r5, 8, 0, %p1;", "selp.b32 %r5, 0, 8, %p1;"]

ARRIVALS = {
    "arrive": "mbarrier.arrive.shared.b64 %rd5, [%r5];",
    "arrive with a count": "mbarrier.arrive.shared.b64 %rd5, [%r5], 1;",
    "arrive with semantics": "mbarrier.arrive.release.cta.shared::cta.b64 %rd5, [%r5];",
    "arrive and expect": (
        "mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r5], 16;mbarrier.complete_tx.relaxed.cta.shared.b64 [%r5], 16;"
    ),
}


@pytest.mark.parametrize("choice", HALF_EACH, ids=["last lanes ahead", "first lanes ahead"])
@pytest.mark.parametrize("arrival", ARRIVALS.values(), ids=ARRIVALS)
def test_every_lane_gets_the_phase_of_its_own_barrier(arrival, choice):
    """All arrivals are made and all phases over, so every lane's state names a completed phase."""
    test = "bar.warp.sync -1; mbarrier.test_wait.shared.b64 %p2, [%r5], %rd5; selp.b32 %r1, 1, 0, %p2;"
    body = TWO_BARRIERS.format(choice=choice) + arrival + test
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == 1).all()


@pytest.mark.parametrize("arrive", ["arrive", "arrive_drop"])
@pytest.mark.parametrize("choice", HALF_EACH, ids=["last lanes ahead", "first lanes ahead"])
def test_the_phase_of_an_unfinished_barrier_is_unfinished_in_every_lane(choice, arrive):
    """One arrival is lacking at each barrier; then one lane makes both."""
    body = (
        TWO_BARRIERS.replace("[%r3], 16;", "[%r3], 17;")
        .replace("init.shared.b64 [%r3+8], 16;", "init.shared.b64 [%r3+8], 17;")
        .replace("[%r3+8], 16;", "[%r3+8], 17;")
        .format(choice=choice)
        + f"""
    mbarrier.{arrive}.shared.b64 %rd5, [%r5];
    bar.warp.sync -1;
    mbarrier.test_wait.shared.b64 %p2, [%r5], %rd5;
    selp.b32 %r1, 1, 0, %p2;
    bar.warp.sync -1;
    setp.eq.u32 %p3, %r0, 9;
    @%p3 mbarrier.arrive.shared.b64 %rd6, [%r3];
    @%p3 mbarrier.arrive.shared.b64 %rd6, [%r3+8];
    bar.warp.sync -1;
    mbarrier.test_wait.shared.b64 %p2, [%r5], %rd5;
    selp.b32 %r2, 2, 0, %p2;
    or.b32 %r1, %r1, %r2;
    """
    )
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == 2).all()


def test_lanes_wait_with_the_states_they_got():
    wait = "AGAIN: mbarrier.try_wait.shared.b64 %p2, [%r5], %rd5; @!%p2 bra AGAIN; mov.b32 %r1, 1;"
    body = TWO_BARRIERS.format(choice=HALF_EACH[0]) + "mbarrier.arrive.shared.b64 %rd5, [%r5];" + wait
    for schedule, seed in SCHEDULES:
        assert (run(body + STORE_R1 + "ret;", module_scope=WORDS, schedule=schedule, seed=seed) == 1).all()


# ---- other operands that may differ ----


def test_lanes_arrive_at_peers_of_their_own():
    """Lane t of either CTA arrives at rank t % 2; each barrier gets 16 arrivals of each CTA."""
    body = """
    mov.b32 %r3, words;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
    mbarrier.init.shared.b64 [%r3], 32;
    READY: bar.warp.sync -1;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    and.b32 %r4, %r0, 1;
    mapa.shared::cluster.u32 %r5, %r3, %r4;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
    AGAIN: mbarrier.try_wait.parity.acquire.cluster.shared.b64 %p2, [%r3], 0; @!%p2 bra AGAIN;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 %r4, %cluster_ctarank;
    mul.lo.u32 %r4, %r4, 32; add.u32 %r0, %r0, %r4;
    mov.b32 %r1, %r0;
    """
    for schedule, seed in SCHEDULES:
        shape = dict(grid=2, cluster=2, words=64, module_scope=WORDS, schedule=schedule, seed=seed)
        assert (launch(body + STORE_R1 + "ret;", **shape).words(64) == np.arange(64)).all()


def test_lanes_of_different_counts():
    """Lane t arrives t + 1 times: 528 in all."""
    body = """
    mov.b32 %r3, words;
    setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
    mbarrier.init.shared.b64 [%r3], 528;
    READY: bar.warp.sync -1;
    add.u32 %r4, %r0, 1;
    mbarrier.arrive.shared.b64 %rd5, [%r3], %r4;
    mbarrier.test_wait.shared.b64 %p2, [%r3], %rd5;
    selp.b32 %r1, 1, 0, %p2;
    """
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == 1).all()
