"""Whole programs whose warps are looked at all the time: whether a warp only polls is found out without a trace.

A warp is watched, through a sink of the machine's own, once it has run long. Here it is from its first block on, in
runs without any sink and with one: everything a warp can start must come to the same end.
"""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import ALLOCATE, FREE, STORE_R1, WORDS, launch
from test_emulator_launch_control import test_in_order_the_resident_clusters_take_everything_over as take_over
from test_emulator_tensor_core import multiply
from test_emulator_tmem_programs import test_stores_of_several_groups_are_counted_and_waited_for as store_groups
from test_emulator_wgmma import COMMIT, FENCE, MULTIPLY, PRODUCT, STORE, WAIT, ZERO, matrix_of, program

from emugpu.emulator import Fault
from emugpu.emulator.machine import machine

SCHEDULES = [{}, {"schedule": "random", "seed": 1}, {"schedule": "random", "seed": 4}]
schedules = pytest.mark.parametrize("options", SCHEDULES, ids=["fifo", "random 1", "random 4"])


@pytest.fixture(autouse=True)
def watched(monkeypatch):
    monkeypatch.setattr(machine, "FIRST_LOOK", 1)


@schedules
def test_copies_and_products(options):
    multiply(1, [0, 0x80000001, 0xFFFFFFFF, 6], **options)
    multiply(2, [0] * 8, **options)


@schedules
def test_stores_in_groups(options):
    store_groups(options)


@schedules
def test_products_of_a_warpgroup(options):
    """More than the tensor core collects, so that the first ones complete while others are issued."""
    replaced = MULTIPLY.replace(", 1, 1, 1, 0, 0", ", 0, 1, 1, 0, 0")
    body = ZERO + FENCE + MULTIPLY + replaced + 3 * MULTIPLY + COMMIT + MULTIPLY + COMMIT + WAIT + STORE
    assert (matrix_of(program(body, **options)) == 5 * PRODUCT).all()


def test_launch_control():
    take_over(2, 2, {})


@schedules
def test_loads_from_tensor_memory_that_are_waited_for_later(options):
    """A second warp comes to the barrier between the load and the wait."""
    both = "setp.ge.u32 %p1, %r0, 32; @%p1 bra MEET;"
    body = both + ALLOCATE + "add.u32 %r8, %r0, 50; tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r0, %r8};"
    body += (
        "tcgen05.wait::st.sync.aligned; tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r10, %r11}, [%r2]; MEET: bar.sync 0;"
    )
    body += "mov.b32 %r1, 5; @%p1 bra STORE; tcgen05.wait::ld.sync.aligned; mad.lo.u32 %r1, %r10, 100, %r11;" + FREE
    body += "STORE:" + STORE_R1 + "ret;"
    out = launch(body, threads=64, module_scope=WORDS, **options).words(64)
    lane = np.arange(32)
    assert (out == np.concatenate([100 * lane + lane + 50, np.full(32, 5)])).all()


def test_sinks_get_the_same_events_watched_or_not(monkeypatch):
    body = "mov.b32 %r1, 0; LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 40; @%p1 bra LOOP; bar.sync 0;"

    def events() -> list[tuple[str, int]]:
        found = []
        launch(body + STORE_R1 + "ret;", threads=64, sinks=[found.append])
        return [(type(e).__name__, e.agent.warp) for e in found if hasattr(e, "agent")]

    often = events()
    monkeypatch.setattr(machine, "FIRST_LOOK", 10_000)
    assert often == events() and {"Access", "GroupArrived", "GroupLeft", "Exited"} <= {name for name, _ in often}


def test_an_exit_in_the_middle_of_a_program_is_named():
    """The last instruction of the text is another exit."""
    body = ALLOCATE + "setp.eq.u32 %p1, %r0, 99; @%p1 bra LATE; bra MIDDLE; MIDDLE: mov.b32 %r1, 1; exit; LATE: ret;"
    with pytest.raises(Fault, match=r"PTX line \d+: exit(.|\n)*tensor memory still allocated"):
        launch(body, module_scope=WORDS)
