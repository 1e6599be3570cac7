"""Lanes of a producer warp that wait for a free stage and have no part in filling it may miss the phase.

One stage: the barrier at 0 says that it is full, the one at 8 that it is empty; at first it is empty, so producers wait
for parity 1, which has passed as long as phase 0 has not ended.
"""

from __future__ import annotations

from typing import Any

import pytest
from ptx_programs import WORDS, launch

from emugpu.check.checker import Checker
from emugpu.check.findings import Finding
from emugpu.emulator import Deadlock, Device
from emugpu.emulator.native.library import library_for

START = """
mov.b32 %r3, words; mov.u32 %r5, %laneid; setp.eq.u32 %p5, %r5, 0; setp.ge.u32 %p4, %r0, 32; setp.ne.u32 %p1, %r0, 0;
@%p1 bra READY; mbarrier.init.shared.b64 [%r3], 1; mbarrier.init.shared.b64 [%r3+8], 1;
READY: bar.sync 0; mov.b32 %r8, 0; mov.b32 %r9, 0; mov.b32 %r10, 1; @%p4 bra CONSUMER;
"""
CONSUMER = """
CONSUMER: FULL: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], %r9; @!%p3 bra FULL;
bar.warp.sync -1; @%p5 mbarrier.arrive.shared.b64 _, [%r3+8];
xor.b32 %r9, %r9, 1; add.u32 %r8, %r8, 1; setp.lt.u32 %p6, %r8, ROUNDS; @%p6 bra FULL;
ret;
"""


def rounds(name: str, fill: str) -> str:
    return f"""
    {name}: mbarrier.try_wait.parity.shared.b64 %p3, [%r3+8], %r10; @!%p3 bra {name};
    {fill} xor.b32 %r10, %r10, 1; add.u32 %r8, %r8, 1; setp.lt.u32 %p6, %r8, ROUNDS; @%p6 bra {name};
    ret;
    """


FILL = "mbarrier.arrive.shared.b64 _, [%r3];"
PRODUCERS = {
    "all wait, one fills": rounds("EMPTY", "@%p5 " + FILL),
    "all wait, one fills in a branch": rounds("EMPTY", f"@!%p5 bra FILLED; {FILL} FILLED:"),
    "one lane alone": "@!%p5 exit;" + rounds("EMPTY", FILL),
    "apart, and together again each round": "@%p5 bra ONE;"
    + rounds("EMPTY", "bar.warp.sync -1;")
    + "ONE:"
    + rounds("AGAIN", "bar.warp.sync -1;" + FILL),
}
"""Right ones."""
APART = "@%p5 bra ONE;" + rounds("EMPTY", "") + "ONE:" + rounds("AGAIN", FILL)
"""The other lanes wait by themselves, and nobody waits for them."""


def found(producer: str, times: int, engine: Any = "native", **options: Any) -> tuple[str, list[Finding]]:
    checker, failure = Checker(), ""
    body = (START + producer + CONSUMER).replace("ROUNDS", str(times))
    try:
        device = Device(library=library_for(engine), **options)
        launch(body, threads=64, module_scope=WORDS, device=device, sinks=[checker])
    except Deadlock as error:
        failure = str(error)
        checker.failed(error)
    return failure, list(checker.report().findings)


@pytest.mark.parametrize("engine", ["python", "native"])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_lanes_that_nobody_waits_for_are_reported_in_whatever_order_they_come(times, engine):
    failure, [finding] = found(APART, times, engine)
    assert not failure and (finding.rule, finding.severity, finding.count) == ("phase-lapped", "warning", times)
    assert finding.first is not None and "%r10" in finding.first.text and "if two phases end" in finding.message


@pytest.mark.parametrize("name", PRODUCERS)
@pytest.mark.parametrize("times", [1, 2, 5])
def test_lanes_that_have_a_part_in_the_next_phase_are_not(name, times):
    for schedule in (("fifo", 0), ("random", 1), ("random", 2), ("random", 3)):
        assert found(PRODUCERS[name], times, schedule=schedule[0], seed=schedule[1]) == ("", [])


def test_a_run_that_hangs_says_that_a_phase_had_ended_before_the_first_look():
    hung = [one for one in (found(APART, 1, schedule="random", seed=seed) for seed in range(12)) if one[0]]
    assert len(hung) >= 2
    for failure, findings in hung:
        assert (
            "[its first look, in phase 1: phase-lapped, if a barrier whose phase 0 has not ended was meant]" in failure
        )
        [finding] = [finding for finding in findings if finding.severity == "error"]
        assert finding.rule == "phase-lapped"
        assert "ended before this wait looked: it waits for phase 1" in finding.message
