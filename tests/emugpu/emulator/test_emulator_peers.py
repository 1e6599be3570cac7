"""What reaches a CTA that has exited, and reads that meet a live mbarrier: each access is told what it has hit."""

from __future__ import annotations

import pytest
from ptx_programs import WORDS, launch

from emugpu.emulator import Fault

# ---- memory of a CTA that has exited ----

PEER = """
mov.b32 %r3, words;
mov.b32 %r4, 5; st.shared.b32 [%r3], %r4;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
mov.u32 %r5, %cluster_ctarank; setp.eq.u32 %p1, %r5, 0; @%p1 exit;
mov.b32 %r6, 500;
DELAY: sub.u32 %r6, %r6, 1; setp.ne.u32 %p2, %r6, 0; @%p2 bra DELAY;
and.b32 %r7, %r0, {some};
min.u32 %r7, %r7, 1;
sub.u32 %r7, 1, %r7;
mapa.shared::cluster.u32 %r8, %r3, %r7;
cvt.u64.u32 %rd4, %r8; cvta.shared::cluster.u64 %rd4, %rd4;
"""
"""Rank 0 leaves. %r8 and %rd4: a word in rank 1 where tid & some is 0, which lives, and elsewhere in rank 0."""

ACCESSES = {
    "ld": "ld.shared::cluster.b32 %r9, [%r8];",
    "generic ld": "ld.b32 %r9, [%rd4];",
    "st": "st.shared::cluster.b32 [%r8], %r4;",
    "generic st": "st.b32 [%rd4], %r4;",
    "atom": "atom.shared::cluster.add.u32 %r9, [%r8], 1;",
    "red": "red.shared::cluster.add.u32 [%r8], 1;",
    "generic atom": "atom.add.u32 %r9, [%rd4], 1;",
}


@pytest.mark.parametrize("access", ACCESSES.values(), ids=ACCESSES)
@pytest.mark.parametrize("some", [0, 1, 16], ids=["no lane", "odd lanes", "the upper lanes"])
def test_memory_of_a_cta_that_has_exited_is_not_reached(access, some):
    def go() -> None:
        launch(PEER.format(some=some) + access + "ret;", grid=2, cluster=2, module_scope=WORDS)

    if not some:
        go()
        return
    with pytest.raises(Fault, match="CTA rank 0, which has already exited") as error:
        go()
    assert error.value.rule == "cluster"


def test_one_address_of_a_cta_that_has_exited():
    for access in ACCESSES.values():
        body = PEER.format(some=0).replace("sub.u32 %r7, 1, %r7;", "mov.b32 %r7, 0;") + access
        with pytest.raises(Fault, match="CTA rank 0, which has already exited"):
            launch(body + "ret;", grid=2, cluster=2, module_scope=WORDS)


@pytest.mark.parametrize("space", ["shared", "shared::cta"])
@pytest.mark.parametrize("access", ["atom.{}.add.u32 %r9, [%r8], 1;", "ld.{}.b32 %r9, [%r8];", "st.{}.b32 [%r8], %r4;"])
def test_shared_cta_addresses_name_no_other_cta(access, space):
    """The peer lives, and the word is there: only the state space is wrong."""
    body = PEER.format(some=1).replace("@%p1 exit;", "") + access.format(space)
    with pytest.raises(Fault, match=r"shared::cta address") as error:
        launch(body + "barrier.cluster.arrive; barrier.cluster.wait; ret;", grid=2, cluster=2, module_scope=WORDS)
    assert error.value.rule == "address"


# ---- reads of a live mbarrier ----

LIVE = """
mov.b32 %r3, words;
setp.ne.u32 %p1, %r0, 0; @%p1 exit;
mov.b32 %r4, 7; st.shared.b32 [%r3+56], %r4;
st.shared.b32 [%r3+60], %r4;
mbarrier.init.shared.b64 [%r3+64], 1;
"""

READS = [
    ("ld.shared.b8 %r5, [%r3+63];", False),
    ("ld.shared.b32 %r5, [%r3+60];", False),
    ("ld.shared.v2.b32 {%r5, %r6}, [%r3+56];", False),
    ("ld.shared.b8 %r5, [%r3+64];", True),
    ("ld.shared.b8 %r5, [%r3+71];", True),
    ("ld.shared.b64 %rd5, [%r3+64];", True),
    ("ld.shared.v2.b64 {%rd5, %rd6}, [%r3+64];", True),
    ("ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r3+64];", True),
]


@pytest.mark.parametrize(("read", "hit"), READS)
def test_reading_a_live_mbarrier_names_it(read, hit):
    if not hit:
        launch(LIVE + read + "ret;", module_scope=WORDS)
        return
    with pytest.raises(Fault, match="is read, but the live mbarrier at shared 0x440") as error:
        launch(LIVE + read + "ret;", module_scope=WORDS)
    assert error.value.rule == "mbarrier-overwritten"


@pytest.mark.parametrize("read", ["ld.shared.b8 %r5, [%r3+72];", "ld.shared.v2.b32 {%r5, %r6}, [%r3+72];"])
def test_reading_behind_a_live_mbarrier_what_was_never_written(read):
    with pytest.raises(Fault, match="never written") as error:
        launch(LIVE + read + "ret;", module_scope=WORDS)
    assert error.value.rule == "uninitialised"


# ---- ranks that the cluster does not have ----


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("access", ACCESSES.values(), ids=ACCESSES)
def test_a_rank_that_the_cluster_does_not_have(access, cluster):
    for rank in (cluster, cluster + 1, 200):
        body = f"""
        mov.b32 %r3, words;
        mov.b32 %r4, 5;
        mapa.shared::cluster.u32 %r8, %r3, {rank};
        cvt.u64.u32 %rd4, %r8; cvta.shared::cluster.u64 %rd4, %rd4;
        """
        with pytest.raises(Fault, match=f"names CTA rank {rank} of a cluster of {cluster}") as error:
            launch(body + access + "ret;", grid=cluster, cluster=cluster, module_scope=WORDS)
        assert error.value.rule == "cluster"
