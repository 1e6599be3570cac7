"""A wait for a phase that came and went: a warning where the run would hang, of the phase the lanes had seen last.

A wait by parity cannot tell a phase from the one two before it (PTX ISA 9.7.13.15.16). Whoever waits for the end of
phase n + 1, having seen the end of phase n, is stuck if phases n + 1 and n + 2 have both ended before it looks.
"""

from __future__ import annotations

import pytest
from ptx_programs import WORDS, launch

from emugpu.emulator import Deadlock, LaunchResult

SETUP = """
mov.b32 %r3, words;
setp.ne.u32 %p1, %r0, 0; @%p1 bra READY;
mbarrier.init.shared.b64 [%r3], 1;
READY: bar.sync 0;
setp.ge.u32 %p2, %r0, 32;
setp.lt.u32 %p6, %r0, 16;
and.b32 %r9, %r0, 31; setp.eq.u32 %p7, %r9, 0;
"""
"""Warp 0 waits, warp 1 arrives; %p6: lanes 0 to 15 of warp 0, %p7: the first lane of a warp."""


def wait(parity: int, name: str) -> str:
    return f"{name}: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], {parity}; @!%p3 bra {name};"


def arrive(times: int) -> str:
    """Warp 1 ends so many phases while warp 0 waits at the barrier of the CTA."""
    return (
        "bar.sync 0; @!%p2 bra A#; @%p7 bra D#; bra A#; D#:"
        + times * ("mbarrier.arrive.shared.b64 _, [%r3];")
        + "A#: bar.warp.sync -1; bar.sync 0;"
    )


def run(*steps: str, **options) -> LaunchResult:
    text = SETUP + "".join(step.replace("#", str(n)) for n, step in enumerate(steps)) + "ret;"
    return launch(text, threads=64, module_scope=WORDS, **options).result


def waiter(body: str) -> str:
    """What warp 0 does alone."""
    return f"@%p2 bra W#; {body} W#: bar.warp.sync -1;"


SEEN = (arrive(1), waiter(wait(0, "L#")))
"""Phase 0 has ended, and warp 0 has seen it."""


def lapped(result: LaunchResult) -> list[str]:
    assert {w.rule for w in result.warnings} <= {"phase-lapped"}
    return [w.message for w in result.warnings]


@pytest.mark.parametrize("options", [{}, {"schedule": "random", "seed": 2}])
def test_a_wait_that_was_lapped_ends_with_a_warning(options):
    [message] = lapped(run(*SEEN, arrive(2), waiter(wait(1, "L#")), **options))
    assert "end of phase 1, but the barrier is in phase 3 already" in message


@pytest.mark.parametrize("phases", [1, 3])
def test_a_wait_that_finds_its_parity_passes(phases):
    assert not lapped(run(*SEEN, arrive(phases), waiter(wait(1, "L#"))))


@pytest.mark.parametrize("phases", [0])
def test_a_wait_for_a_phase_that_has_not_ended_is_a_deadlock(phases):
    with pytest.raises(Deadlock) as error:
        run(*SEEN, arrive(phases), waiter(wait(1, "L#")))
    assert "phase-lapped" not in str(error.value)


def test_a_first_wait_has_no_history():
    """Phases 0 and 1 have ended before warp 0 looks for the first time: it may as well wait for phase 2."""
    with pytest.raises(Deadlock):
        run(arrive(2), waiter(wait(0, "L#")))


def test_a_strict_run_reports_the_hang_and_names_the_rule():
    with pytest.raises(Deadlock, match=r"phase-lapped: it last saw phase 0 end, and the barrier is in phase 3"):
        run(*SEEN, arrive(2), waiter(wait(1, "L#")), strict=True)
    run(*SEEN, arrive(2), waiter(wait(1, "L#")), strict=True, allow=["phase-lapped"])


def test_lanes_that_go_their_own_way_remember_what_the_warp_has_seen():
    half = waiter("@!%p6 bra H#;" + wait(1, "L#") + "H#: bar.warp.sync -1;")
    [message] = lapped(run(*SEEN, arrive(2), half))
    assert "end of phase 1, but the barrier is in phase 3" in message


def test_a_warp_remembers_what_some_of_its_lanes_have_seen():
    """Lanes 0 to 15 alone have seen the end of phase 0."""
    half = waiter("@!%p6 bra H#;" + wait(0, "L#") + "H#: bar.warp.sync -1;")
    [message] = lapped(run(arrive(1), half, arrive(2), waiter(wait(1, "L#"))))
    assert "end of phase 1, but the barrier is in phase 3" in message


@pytest.mark.parametrize("first", ["%p6", "!%p6"])
def test_of_what_lanes_have_seen_the_latest_counts(first):
    """Half the lanes have seen the end of phase 1, the others that of phase 0: waiting for phase 3 is no lap."""
    half = waiter(f"@{first} bra H#;" + wait(1, "L#") + "H#: bar.warp.sync -1;")
    with pytest.raises(Deadlock) as error:
        run(*SEEN, arrive(1), half, arrive(1), waiter(wait(1, "L#")))
    assert "phase-lapped" not in str(error.value)


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("state", [False, True])
def test_a_wait_that_sleeps_through_two_phases_has_still_seen_its_own_end(parity, state):
    """Warp 0 is suspended when warp 1 ends two phases in one go: the parity it looks for is the current one again."""
    before = [arrive(1)] if parity else []
    look = f"L#: mbarrier.try_wait.parity.shared.b64 %p3, [%r3], {parity}; @!%p3 bra L#;"
    if state:
        look = f"mov.b64 %rd5, {parity}; L#: mbarrier.try_wait.shared.b64 %p3, [%r3], %rd5; @!%p3 bra L#;"
    both = f"@%p2 bra B#; {look} bra E#; B#: @!%p7 bra E#;"
    both += 2 * "mbarrier.arrive.shared.b64 _, [%r3];" + "E#: bar.warp.sync -1; bar.sync 0;"
    assert not lapped(run(*before, both))
