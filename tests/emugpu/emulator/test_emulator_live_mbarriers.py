"""A live mbarrier is opaque: whatever writes over it stops the run and is told which mbarrier that was.

After mbarrier.inval the same bytes are ordinary memory again.
"""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import WORDS, launch, run

from emugpu.emulator import Device, Fault, TensorMap

VICTIM = "mbarrier at shared 0x440 of CTA rank 0 is there; mbarriers are opaque"
"""``words`` begins at 0x400; the mbarrier is 64 bytes behind it."""

SETUP = """
mov.b32 %r3, words;
mov.b64 %rd5, 7;
cvt.u64.u32 %rd4, %r3; cvta.shared.u64 %rd4, %rd4;
shl.b32 %r4, %r0, 2; add.u32 %r4, %r4, %r3;
setp.eq.u32 %p1, %r0, 0; @!%p1 bra READY;
mbarrier.init.shared.b64 [%r3+64], 1;
{inval}
READY: bar.warp.sync -1;
"""
"""%r3: words, %rd4: the same as a generic address, %r4 = words + 4 tid, %p1: thread 0."""

INVAL = "mbarrier.inval.shared.b64 [%r3+64];"

CLEARED = "st.shared.b32 [%r3+64], %r0; st.shared.b32 [%r3+68], %r0;"
"""Atomics need something to begin with."""

WRITES = {
    "st.shared": "@%p1 st.shared.b32 [%r3+64], %r0;",
    "st.shared, second half": "@%p1 st.shared.b32 [%r3+68], %r0;",
    "st.shared of one byte": "@%p1 st.shared.b8 [%r3+71], %r0;",
    "st.shared.v4 that ends in it": "@%p1 st.shared.v4.b32 [%r3+64], {%r0, %r0, %r0, %r0};",
    "st.shared by all lanes": "st.shared.b32 [%r4], %r0;",
    "st.shared::cluster": "@%p1 st.shared::cluster.b32 [%r3+64], %r0;",
    "st.shared::cluster by all lanes": "st.shared::cluster.b32 [%r4], %r0;",
    "generic st": "@%p1 st.b32 [%rd4+64], %r0;",
    "generic st of 64 bits": "@%p1 st.b64 [%rd4+64], %rd5;",
    "atom.shared": "@%p1 atom.shared.add.u32 %r5, [%r3+64], 1;",
    "atom.shared of 64 bits": "@%p1 atom.shared.exch.b64 %rd6, [%r3+64], %rd5;",
    "atom.shared::cluster": "@%p1 atom.shared::cluster.add.u32 %r5, [%r3+64], 1;",
    "generic atom": "@%p1 atom.add.u32 %r5, [%rd4+64], 1;",
    "red.shared": "@%p1 red.shared.add.u32 [%r3+68], 1;",
    "generic red": "@%p1 red.add.u32 [%rd4+68], 1;",
    "stmatrix": (
        "shl.b32 %r6, %r0, 4; and.b32 %r6, %r6, 127; add.u32 %r6, %r6, %r3;"
        "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6], {%r0};"
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_over_a_live_mbarrier_is_reported(write):
    with pytest.raises(Fault, match=VICTIM):
        run(SETUP.format(inval="") + write + "ret;", module_scope=WORDS)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_the_same_write_after_inval_is_legal(write):
    launch(SETUP.format(inval=INVAL + CLEARED) + write + "ret;", module_scope=WORDS)


@pytest.mark.parametrize(
    "write", ["st.shared::cluster.b32 [%r7+64], %r0;", "atom.shared::cluster.add.u32 %r5, [%r7+64], 1;"]
)
def test_a_write_over_a_peers_live_mbarrier_is_reported(write):
    body = (
        SETUP.format(inval="")
        + """
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 %r6, %cluster_ctarank; xor.b32 %r6, %r6, 1;
    mapa.shared::cluster.u32 %r7, %r3, %r6;
    setp.eq.u32 %p2, %r6, 0;
    and.pred %p1, %p1, %p2;
    @%p1 """
        + write
        + """
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    ret;
    """
    )
    with pytest.raises(Fault, match=VICTIM):
        launch(body, grid=2, cluster=2, module_scope=WORDS)


# ---- TMA ----

LOAD = """
@!%p1 bra DONE;
mbarrier.init.shared.b64 [%r3+2048], 1;
mbarrier.arrive.expect_tx.shared.b64 %rd6, [%r3+2048], 128;
mov.b64 %rd7, map; cvta.param.u64 %rd7, %rd7;
mov.b32 %r6, 0;
add.u32 %r7, %r3, {at};
add.u32 %r8, %r3, 2048;
cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{more}
[%r7], [%rd7, {{%r6}}], [%r8]{mask};
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r3+2048], 0; @!%p2 bra WAIT;
DONE: ret;
"""


def tma_load(inval: str, at: int, more: str = "", mask: str = "", **schedule) -> None:
    device = Device(**schedule)
    tensor = device.upload(np.arange(32, dtype=np.uint32))
    tile = TensorMap.tiled(tensor, "u32", (32,), (32,))
    body = SETUP.format(inval=inval) + "mov.b16 %rs1, 1;" + LOAD.format(at=at, more=more, mask=mask)
    launch(body, module_scope=WORDS, parameters=["map map"], arguments=[tile], device=device)


@pytest.mark.parametrize(("more", "mask"), [("", ""), (".multicast::cluster", ", %rs1")], ids=["alone", "multicast"])
@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_a_tma_load_over_a_live_mbarrier_is_reported(schedule, more, mask):
    with pytest.raises(Fault, match=VICTIM):
        tma_load("", 0, more, mask, schedule=schedule)


@pytest.mark.parametrize(("inval", "at"), [("", 128), (INVAL, 0)], ids=["beside it", "after inval"])
def test_a_tma_load_beside_it_or_after_inval_is_legal(inval, at):
    tma_load(inval, at)


def test_a_tma_load_over_the_barrier_it_signals_is_reported():
    device = Device()
    tile = TensorMap.tiled(device.upload(np.arange(32, dtype=np.uint32)), "u32", (32,), (32,))
    body = SETUP.format(inval=INVAL) + LOAD.format(at=2048, more="", mask="")
    with pytest.raises(Fault, match="mbarrier at shared 0xc00"):
        launch(body, module_scope=WORDS, parameters=["map map"], arguments=[tile], device=device)


# ---- other misuse ----


def test_an_allocation_that_writes_its_address_over_a_live_mbarrier_is_reported():
    allocate = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r6], 32;"
    body = SETUP.format(inval="") + "add.u32 %r6, %r3, 64;" + allocate + "ret;"
    with pytest.raises(Fault, match=VICTIM):
        run(body, module_scope=WORDS)


def test_initialising_over_half_of_a_live_mbarrier_is_reported():
    with pytest.raises(Fault, match=r"0x444|multiple of 8"):
        run(SETUP.format(inval="") + "@%p1 mbarrier.init.shared.b64 [%r3+68], 1; ret;", module_scope=WORDS)


@pytest.mark.parametrize("row", [0, 16, 48, 80, 96, 112, 128])
def test_rows_of_a_matrix_on_either_side_of_it_are_legal(row):
    """Eight rows in one place; the guard that never holds makes the address one a lane."""
    store = f"add.u32 %r6, %r3, {row}; setp.gt.u32 %p2, %r0, 99; @%p2 mov.b32 %r6, %r0;"
    launch(
        SETUP.format(inval="") + store + "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6], {%r0}; ret;",
        module_scope=WORDS,
    )
