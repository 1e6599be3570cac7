"""Operands that compilers write and people forget: the sink ``_`` under a guard, generic addresses of barriers."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, launch, run

LANES = np.arange(32)
SCHEDULES = [("fifo", 0), *(("random", seed) for seed in range(4))]

# ---- the sink ----

BARRIER = """
mov.b32 %r3, words;
setp.eq.u32 %p1, %r0, 0; @!%p1 bra READY;
mbarrier.init.shared.b64 [%r3], {count};
READY: bar.warp.sync -1;
setp.lt.u32 %p2, %r0, {lanes};
"""

DONE = """
AGAIN: mbarrier.try_wait.parity.shared.b64 %p4, [%r3], 0; @!%p4 bra AGAIN;
mov.b32 %r1, 6;
"""

ARRIVALS = {
    "arrive": "@%p2 mbarrier.arrive.shared.b64 _, [%r3];",
    "arrive with a count": "@%p2 mbarrier.arrive.shared.b64 _, [%r3], 1;",
    "arrive and expect": (
        "@%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 16;"
        "@%p2 mbarrier.complete_tx.relaxed.cta.shared.b64 [%r3], 16;"
    ),
    "arrive at a cluster address": "@%p2 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];",
    "arrive and expect at a cluster address": (
        "@%p2 mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r3], 16;"
        "@%p2 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r3], 16;"
    ),
    "arrive and drop": "@%p2 mbarrier.arrive_drop.shared.b64 _, [%r3];",
}


@pytest.mark.parametrize("lanes", [1, 7, 32])
@pytest.mark.parametrize("arrival", ARRIVALS.values(), ids=ARRIVALS)
def test_a_guarded_arrival_may_throw_its_state_away(arrival, lanes):
    """One more arrival follows, so that the barrier still has something to await if all the others are dropped."""
    body = BARRIER.format(count=lanes + 1, lanes=lanes) + arrival + "@%p1 mbarrier.arrive.shared.b64 %rd5, [%r3];"
    for schedule, seed in SCHEDULES:
        assert (run(body + DONE + STORE_R1 + "ret;", module_scope=WORDS, schedule=schedule, seed=seed) == 6).all()


@pytest.mark.parametrize("guard", ["", "@%p2 "], ids=["plain", "guarded"])
@pytest.mark.parametrize(
    ("instruction", "r5"),
    [
        ("mov.b64 {%r5, _}, %rd4;", 4),
        ("mov.b64 {_, %r5}, %rd4;", 9),
        ("ld.shared.v2.b32 {%r5, _}, [%r3];", 20),
        ("ld.shared.v2.b32 {_, %r5}, [%r3];", 30),
        ("atom.shared.add.u32 _, [%r6], 1;", 1),
        ("setp.ge.u32 %p3|_, %r0, 3; @%p3 mov.b32 %r5, 8;", None),
        ("elect.sync _|%p3, -1;", 1),
    ],
)
def test_a_result_may_be_thrown_away(instruction, r5, guard):
    body = f"""
    mov.b32 %r3, words;
    mov.b64 %rd4, 38654705668;
    mov.b32 %r7, 20;
    mov.b32 %r8, 30;
    mov.b32 %r5, 1;
    shl.b32 %r6, %r0, 2; add.u32 %r6, %r6, %r3;
    st.shared.b32 [%r6+64], %r7;
    st.shared.v2.b32 [%r3], {{%r7, %r8}};
    add.u32 %r6, %r6, 64;
    setp.lt.u32 %p2, %r0, 99;
    {guard}{instruction}
    mov.b32 %r1, %r5;
    """
    expected = np.where(LANES < 3, 1, 8) if r5 is None else r5
    assert (run(body + STORE_R1 + "ret;", module_scope=WORDS) == expected).all()


def test_the_first_of_two_predicates_may_be_thrown_away():
    body = "mov.b32 %r1, 1; setp.lt.u32 _|%p3, %r0, 3; @%p3 mov.b32 %r1, 8;"
    assert (run(body + STORE_R1 + "ret;") == np.where(LANES < 3, 1, 8)).all()


# ---- tcgen05.commit ----

COMMIT = """
mov.b32 %r3, words;
cvt.u64.u32 %rd4, %r3; cvta.shared.u64 %rd5, %rd4;
mov.u32 %r4, %cluster_ctarank; xor.b32 %r5, %r4, 1;
mapa.shared::cluster.u32 %r6, %r3, %r5;
{generic_peer}
mov.b16 %rs1, 3;
setp.eq.u32 %p1, %r0, 0; @!%p1 bra READY;
mbarrier.init.shared.b64 [%r3], {count};
READY: bar.warp.sync -1;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
elect.sync _|%p2, -1;
@%p2 tcgen05.commit.cta_group::1.mbarrier::arrive::one.{commit}
AGAIN: mbarrier.try_wait.parity.shared.b64 %p4, [%r3], 0; @!%p4 bra AGAIN;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mul.lo.u32 %r4, %r4, 32; add.u32 %r0, %r0, %r4;
mov.b32 %r1, 6;
"""

COMMITS = {
    "own, generic": ("b64 [%rd5];", 1),
    "own, shared::cluster": ("shared::cluster.b64 [%r3];", 1),
    "own, shared::cluster in 64 bits": ("shared::cluster.b64 [%rd4];", 1),
    "peer, shared::cluster": ("shared::cluster.b64 [%r6];", 1),
    "peer, generic": ("b64 [%rd6];", 1),
    "own, a shared address without a space": ("b64 [%rd4];", 1),
    "own, a shared address of 32 bits without a space": ("b64 [%r3];", 1),
    "both, generic": ("multicast::cluster.b64 [%rd5], %rs1;", 2),
    "both, shared::cluster": ("shared::cluster.multicast::cluster.b64 [%r3], %rs1;", 2),
}


@pytest.mark.parametrize("name", COMMITS)
def test_a_commit_takes_generic_and_cluster_addresses(name):
    """Either CTA commits nothing to the barriers named, which get as many arrivals as they await.

    The machine takes the low 32 bits of the address, and compilers give it shared addresses without a state space.
    """
    commit, count = COMMITS[name]
    generic_peer = "mapa.u64 %rd6, %rd5, %r5;" if name == "peer, generic" else ""
    body = COMMIT.format(commit=commit, count=count, generic_peer=generic_peer)
    for schedule, seed in SCHEDULES:
        shape = dict(grid=2, cluster=2, words=64, module_scope=WORDS, schedule=schedule, seed=seed)
        assert (launch(body + STORE_R1 + "ret;", **shape).words(64) == 6).all()
