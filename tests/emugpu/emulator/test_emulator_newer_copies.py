"""Copies and mbarriers as PTX ISA 9.2 and 9.3 have them: over the edge of a buffer, of 128 bits, layouts and phases."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import STORE_R1, launch, run
from test_emulator_bulk_copies import COMPLETE, DATA, EXPECT, PEER, ROOM, SCHEDULES, START, STORE, WAIT
from test_emulator_bulk_copies import run as run_copies

from emugpu.check import Checker
from emugpu.emulator import Device, Fault, PtxSyntaxError

COPY = "@%p1 cp.async.bulk{weak}.shared::cta.global." + COMPLETE
COPY += ".ignore_oob [%r2], [%rd2], 64, {left}, {right}, [%r3];"
ONE_WORD = "ld.shared.b32 %r1, [%r2+{at}]; mad.wide.u32 %rd6, %r0, 4, %rd0; st.global.b32 [%rd6], %r1; ret;"


def copied(at: int, *, left: int = 0, right: int = 0, words: int = 16, weak: str = "", **options) -> int:
    """The word at a byte of 64 that were copied of a buffer of so many words."""
    device = Device()
    body = EXPECT.format(bytes=64) + COPY.format(left=left, right=right, weak=weak) + WAIT + ONE_WORD.format(at=at)
    given = [device.upload(DATA[:words])]
    text = START + "ld.param.u64 %rd2, [from];" + body
    launched = launch(text, module_scope=ROOM, device=device, parameters=["u64 from"], arguments=given, **options)
    return int(launched.words(1)[0])


def test_bytes_that_are_ignored_may_lie_outside_of_the_buffer():
    for at in (0, 52):
        assert copied(at, right=8, words=14) == DATA[at // 4]
    with pytest.raises(Fault, match="global"):
        copied(0, right=4, words=14)
    with pytest.raises(Fault, match="global"):
        copied(0, words=14)


@pytest.mark.parametrize(("at", "edges"), [(0, {"left": 4}), (60, {"right": 4}), (60, {"right": 1})])
def test_what_is_copied_of_ignored_bytes_is_undefined(at, edges):
    assert copied(4, **edges) == DATA[1] and copied(56, **edges) == DATA[14]
    with pytest.raises(Fault, match="never written"):
        copied(at, **edges)


def test_a_weak_copy_is_one_without_the_word():
    assert copied(0, weak=".weak") == DATA[0]


@pytest.mark.parametrize("edges", [{"left": 16}, {"right": 16}])
def test_at_most_15_bytes_are_ignored(edges):
    with pytest.raises(Fault, match=r"each must be 0\.\.15"):
        copied(0, **edges)


def test_the_checker_sees_the_bytes_that_are_copied_alone():
    """A thread writes the last word while the copy is in flight: a race, unless the copy ignores it."""
    found = {}
    for right in (0, 4):
        checker, device = Checker(), Device()
        write = "setp.eq.u32 %p4, %r0, 1; @%p4 st.global.b32 [%rd2+60], 1;"
        body = EXPECT.format(bytes=64) + COPY.format(left=0, right=right, weak="") + write + WAIT + "ret;"
        text, given = START + "ld.param.u64 %rd2, [from];" + body, [device.upload(DATA[:16])]
        launch(text, module_scope=ROOM, device=device, parameters=["u64 from"], arguments=given, sinks=[checker])
        found[right] = checker.report().errors
    assert found[0] and not found[4]


@pytest.mark.parametrize("options", SCHEDULES)
def test_a_register_of_128_bits_to_the_other_cta(options):
    body = EXPECT + PEER + """
    mad.lo.u32 %r11, %r0, 16, %r11; mad.lo.u32 %r6, %r4, 1000, %r0; mov.b32 %r7, 5;
    mov.b64 %rd3, {%r6, %r7}; mov.b64 %rd4, {%r0, %r4}; { .reg .b128 whole; mov.b128 whole, {%rd3, %rd4};
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b128 [%r11], whole, [%r12]; }
    """ + WAIT + STORE  # fmt: skip
    found = run_copies(body.replace("{bytes}", "512"), 512, ctas=2, **options)
    for rank in range(2):
        lanes = np.arange(32)
        wanted = np.stack([1000 * (1 - rank) + lanes, np.full(32, 5), lanes, np.full(32, 1 - rank)], 1)
        assert (found[rank].reshape(32, 4) == wanted).all()


INIT = """
mov.b32 %r3, words; setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init{layout}.shared::cta.b64 [%r3], {count}; bar.warp.sync -1;
"""
SHARED = ".shared .align 8 .b64 words[4];"


@pytest.mark.parametrize(("layout", "is_v1"), [("", 0), (".layout::v0", 0), (".layout::v1", 1)])
def test_an_mbarrier_has_the_layout_that_it_was_given(layout, is_v1):
    body = INIT.format(layout=layout, count=1) + """
    mbarrier.check_layout.layout::v0.shared::cta.b64 %p2, [%r3]; selp.b32 %r1, 10, 0, %p2;
    mbarrier.check_layout.layout::v1.shared::cta.b64 %p2, [%r3]; selp.b32 %r4, 1, 0, %p2; add.u32 %r1, %r1, %r4;
    """  # fmt: skip
    assert set(run(body + STORE_R1 + "ret;", module_scope=SHARED).tolist()) == {1 if is_v1 else 10}


def test_a_live_mbarrier_keeps_its_layout():
    again = "@%p1 mbarrier.init.layout::{}.shared::cta.b64 [%r3], 1; ret;"
    body = INIT.format(layout=".layout::v0", count=1) + again
    launch(body.format("v0"), module_scope=SHARED)
    with pytest.raises(Fault, match=r"mbarrier.inval must come first"):
        launch(body.format("v1"), module_scope=SHARED)


def test_the_layout_of_what_is_no_mbarrier():
    body = "mov.b32 %r3, words; mbarrier.check_layout.layout::v0.shared::cta.b64 %p2, [%r3]; ret;"
    with pytest.raises(Fault, match="mbarrier"):
        launch(body, module_scope=SHARED)


def test_layout_v1_counts_to_511():
    for layout, count, most in ((".layout::v1", 511, None), (".layout::v1", 512, 511), (".layout::v0", 512, None)):
        body = INIT.format(layout=layout, count=count) + "ret;"
        if most is None:
            launch(body, module_scope=SHARED)
        else:
            with pytest.raises(Fault, match=rf"the count must be 1\.\.{most}"):
                launch(body, module_scope=SHARED)


def test_layout_v1_awaits_at_most_511_arrivals():
    """cp.async.mbarrier.arrive makes the phase await one more, which layout v1 cannot count after 511."""
    for layout, count, ends in (("v1", 510, False), ("v1", 511, True), ("v0", 511, False)):
        body = (
            INIT.format(layout=f".layout::{layout}", count=count)
            + "@%p1 cp.async.mbarrier.arrive.shared.b64 [%r3]; ret;"
        )
        if ends:
            with pytest.raises(Fault, match="awaits 511 arrivals already"):
                launch(body, module_scope=SHARED)
        else:
            launch(body, module_scope=SHARED)


@pytest.mark.parametrize("layout", ["v0", "v1"])
@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_both_phases_end_together_and_report_nothing(layout, schedule):
    body = INIT.format(layout=f".layout::{layout}", count=32) + """
    mbarrier.arrive.shared::cta.b64 %rd4, [%r3];
    P: mbarrier.try_wait.parity.phase_type::primary.shared::cta.b64 %p2|%p3, [%r3], 0; @!%p2 bra P;
    C: mbarrier.try_wait.parity.phase_type::conditional.acquire.cta.shared::cta.b64 %p4, [%r3], 0; @!%p4 bra C;
    { .reg .b8 value; .reg .b32 wide; .reg .pred said;
    S: mbarrier.try_wait.phase_type::primary.shared::cta.b64 %p2|said, value, [%r3], %rd4, 100; @!%p2 bra S;
    cvt.u32.u8 wide, value; selp.b32 %r1, 100, 7, %p3; @said add.u32 %r1, %r1, 1000; add.u32 %r1, %r1, wide; }
    mbarrier.test_wait.parity.phase_type::primary.shared::cta.b64 %p2|%p3, [%r3], 1; @%p2 add.u32 %r1, %r1, 50;
    """  # fmt: skip
    found = run(body + STORE_R1 + "ret;", module_scope=SHARED, schedule=schedule, seed=3)
    assert found.tolist() == [7] * 32


@pytest.mark.parametrize("use", ["@%p3 bra OUT;", "cvt.u32.u8 %r1, value; setp.eq.u32 %p4, %r1, 0; @%p4 bra OUT;"])
def test_a_report_is_undefined_until_the_phase_is_over(use):
    look = INIT.format(layout=".layout::v1", count=1) + "{}{{ .reg .b8 value;"
    look += "mbarrier.test_wait.parity.phase_type::primary.shared::cta.b64 %p2|%p3, value, [%r3], 0;"
    arrive = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r3]; bar.warp.sync -1;"
    launch(look.format("") + "@!%p2 bra OUT;" + use + "} OUT: ret;", module_scope=SHARED)
    launch(look.format(arrive) + use + "} OUT: ret;", module_scope=SHARED)
    with pytest.raises(Fault, match=r"the report of .*, whose phase is not over"):
        launch(look.format("") + use + "} OUT: ret;", module_scope=SHARED)


@pytest.mark.parametrize(
    "wait",
    [
        "mbarrier.try_wait.phase_type::conditional.shared::cta.b64 %p2, [%r3], %rd4;",
        "mbarrier.try_wait.parity.shared::cta.b64 %p2|%p3, [%r3], 0;",
        "mbarrier.try_wait.parity.phase_type::conditional.shared::cta.b64 %p2|%p3, [%r3], 0;",
        "mbarrier.inval.layout::v0.shared::cta.b64 [%r3];",
        "mbarrier.check_layout.shared::cta.b64 %p2, [%r3];",
    ],
)
def test_forms_that_do_not_exist(wait):
    with pytest.raises((Fault, PtxSyntaxError), match="not implemented"):
        launch(INIT.format(layout="", count=1) + "mov.b64 %rd4, 0;" + wait + "ret;", module_scope=SHARED)
