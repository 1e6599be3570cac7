"""Between tensor memory and registers: what tcgen05.st puts there, when tcgen05.ld has it, what waits are needed.

PTX ISA 9.7.16.8: the registers of a tcgen05.ld may be read after tcgen05.wait::ld, what a tcgen05.st wrote may be
used after tcgen05.wait::st; neither wait stands for the other.
"""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import ALLOCATE, FREE, STORE_R1, WORDS, launch, run

from emugpu.emulator import Fault, PtxSyntaxError
from emugpu.emulator.machine.events import TensorMemoryWaited

LANES = np.arange(32)
SCHEDULES = [("fifo", 0), *(("random", seed) for seed in range(6))]

FILLED = (
    ALLOCATE
    + """
mul.lo.u32 %r4, %r0, 10; add.u32 %r4, %r4, 1000;
add.u32 %r5, %r4, 1;
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r4, %r5};
tcgen05.wait::st.sync.aligned;
"""
)
"""Lane l, column c of tensor memory holds 1000 + 10 l + c, in two columns."""

LOAD = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r6, %r7}, [%r2];\n"
WAIT = "tcgen05.wait::ld.sync.aligned;\n"
CELLS = 1000 + 10 * LANES
JOINED = "mul.lo.u32 %r1, %r7, 65536; add.u32 %r1, %r1, %r6;"
EXPECTED = (CELLS + 1) * 65536 + CELLS


def everywhere(body: str, **options) -> list[np.ndarray]:
    """``out`` under several schedules."""
    text = body + STORE_R1 + FREE + "ret;"
    return [run(text, schedule=s, seed=n, module_scope=WORDS, **options) for s, n in SCHEDULES]


# ---- what is stored ----


def test_every_store_counts():
    """The second store replaces the second column only, the third what it says of both."""
    again = """
    add.u32 %r8, %r0, 7;
    add.u32 %r9, %r2, 1;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r9], {%r8};
    tcgen05.wait::st.sync.aligned;
    """
    for out in everywhere(FILLED + again + LOAD + WAIT + JOINED):
        assert (out == (LANES + 7) * 65536 + CELLS).all()
    third = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r5, %r0}; tcgen05.wait::st.sync.aligned;"
    for out in everywhere(FILLED + again + third + LOAD + WAIT + JOINED):
        assert (out == LANES * 65536 + CELLS + 1).all()


def test_a_store_of_one_shape_is_read_in_another():
    """16x64b: thread t has lane t / 4 + 8 (t % 2) and column t / 2 % 2."""
    body = FILLED + "tcgen05.ld.sync.aligned.16x64b.x1.b32 {%r1}, [%r2];" + WAIT
    for out in everywhere(body):
        assert (out == 1000 + 10 * (LANES // 4 + 8 * (LANES % 2)) + LANES // 2 % 2).all()


def test_a_load_of_what_nobody_stored_is_reported():
    with pytest.raises(Fault, match=r"never written|holds nothing"):
        run(ALLOCATE + LOAD + WAIT + JOINED + STORE_R1 + FREE + "ret;", module_scope=WORDS)


def test_packing_halves_two_columns_into_one_register():
    body = FILLED + "tcgen05.ld.sync.aligned.32x32b.x1.pack::16b.b32 {%r1}, [%r2];" + WAIT
    for out in everywhere(body):
        assert (out == EXPECTED).all()


# ---- divergence before the wait ----

BRANCH = """
and.b32 %r8, %r0, 1; setp.eq.u32 %p1, %r8, 1;
mov.b32 %r9, 5;
@%p1 bra ODD;
add.u32 %r9, %r9, 1;
bra JOIN;
ODD: add.u32 %r9, %r9, 2;
JOIN: bar.warp.sync -1;
"""

ONE_LANE = """
elect.sync %r8|%p1, -1;
mov.b32 %r9, 7;
@!%p1 bra JOIN;
mov.b32 %r9, 6; st.shared.b32 [%r3+64], %r9;
JOIN: bar.warp.sync -1;
"""

LOOP = """
mov.b32 %r9, 5;
and.b32 %r8, %r0, 7;
LOOP: setp.eq.u32 %p1, %r8, 0; @%p1 bra JOIN;
sub.u32 %r8, %r8, 1;
bra LOOP;
JOIN: bar.warp.sync -1;
"""


@pytest.mark.parametrize("between", [BRANCH, ONE_LANE, LOOP], ids=["branch", "elected lane", "loop"])
def test_a_load_survives_divergence_before_its_wait(between):
    for out in everywhere(FILLED + LOAD + between + WAIT + JOINED):
        assert (out == EXPECTED).all()


def test_two_loads_survive_a_branch_between_them():
    second = "add.u32 %r10, %r2, 1; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r11}, [%r10];\n"
    body = FILLED + LOAD + BRANCH + second + LOOP.replace("LOOP", "AGAIN").replace("JOIN", "MET") + WAIT + JOINED
    for out in everywhere(body + "sub.u32 %r11, %r11, %r7; add.u32 %r1, %r1, %r11;"):
        assert (out == EXPECTED).all()


def test_a_load_under_a_guard_that_holds_nowhere_leaves_its_registers():
    keep = "mov.b32 %r6, 1; mov.b32 %r7, 2; setp.gt.u32 %p1, %r0, 99; @%p1 "
    for out in everywhere(FILLED + keep + LOAD + WAIT + JOINED):
        assert (out == 2 * 65536 + 1).all()


# ---- waits ----


NO_WAIT = FILLED.replace("tcgen05.wait::st.sync.aligned;", "")
WAITS = {
    "both": (FILLED + LOAD + WAIT + JOINED, []),
    "none for loads": (FILLED + LOAD + JOINED, ["register-before-wait"]),
    "that for stores in place of that for loads": (
        FILLED + LOAD + "tcgen05.wait::st.sync.aligned;" + JOINED, ["register-before-wait"]),
    "none for stores": (NO_WAIT + LOAD + WAIT + JOINED, ["tmem-wait"]),
    "that for loads in place of that for stores": (NO_WAIT + WAIT + LOAD + WAIT + JOINED, ["tmem-wait"]),
    "none for stores to other columns": (
        FILLED + "add.u32 %r9, %r2, 8; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r9], {%r0};" + LOAD + WAIT + JOINED, []),
}  # fmt: skip
"""Programs with some of the waits, and the rules that they break."""


@pytest.mark.parametrize("waits", WAITS)
def test_each_wait_is_needed_and_no_other_one(waits):
    """Without one the registers hold the same: on hardware, the machine code waits for the registers it reads."""
    body, rules = WAITS[waits]
    for schedule, seed in SCHEDULES:
        done = launch(body + STORE_R1 + FREE + "ret;", module_scope=WORDS, schedule=schedule, seed=seed)
        assert (done.words(32) == EXPECTED).all()
        assert sorted({warning.rule for warning in done.result.warnings}) == rules


# ---- freeing ----

PAIR = """
mov.b32 %r3, words;
tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r3], 32;
bar.warp.sync -1;
ld.shared.b32 %r2, [%r3];
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
"""
DEALLOC = "tcgen05.dealloc.cta_group::{}.sync.aligned.b32 %r2, 32; ret;"


@pytest.mark.parametrize(("allocate", "group"), [(PAIR, 2), (ALLOCATE, 1)])
def test_what_was_allocated_is_freed_by_as_many_ctas(allocate, group):
    shape = dict(grid=2, cluster=2, module_scope=WORDS)
    launch(allocate + DEALLOC.format(group), **shape)
    with pytest.raises((Fault, PtxSyntaxError), match="cta_group"):
        launch(allocate + DEALLOC.format(3 - group), **shape)


def test_a_wait_tells_of_the_loads_since_the_last_one():
    load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r10}, [%r2]; "
    store = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r0}; "
    body = ALLOCATE + 2 * store + "tcgen05.wait::st.sync.aligned;" + load + "tcgen05.wait::ld.sync.aligned;"
    body += 2 * load + "tcgen05.wait::ld.sync.aligned;" + store + "tcgen05.wait::st.sync.aligned;" + FREE
    found = []
    launch(body + "ret;", module_scope=WORDS, sinks=[found.append])
    waits = [(e.kind, len(e.operations)) for e in found if isinstance(e, TensorMemoryWaited)]
    assert waits == [("st", 2), ("ld", 1), ("ld", 2), ("st", 1)]
