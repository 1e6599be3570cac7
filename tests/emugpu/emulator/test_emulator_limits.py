"""Limits of a launch: so many warp instructions, so many seconds; the report says where everybody is."""

from __future__ import annotations

import re
import time
import tracemalloc

import numpy as np
import pytest
from cuda_programs import cuda
from ptx_programs import STORE_R1, source

from emugpu.emulator import Deadlock, Device, EmulatorError, LimitExceeded, Livelock, Module
from emugpu.emulator.machine import machine

ENDLESS = """
mov.b32 %r1, 0;
setp.ge.u32 %p1, %r0, 32;
@%p1 bra SECOND;
FIRST: add.s32 %r1, %r1, 1;
bra FIRST;
SECOND: bar.sync 1, 64;
ret;
"""
"""Warp 0 counts for ever, warp 1 waits for it at a barrier."""

COUNT_TO_1000 = """
mov.b32 %r1, 0;
LOOP: add.s32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, 1000;
@%p1 bra LOOP;
"""


def launch(body: str, *, device: Device | None = None, threads: int = 32, grid: int = 1, **options):
    device = device or Device()
    out = device.alloc(4 * threads * grid)
    result = device.launch(Module.from_text(source(body)), grid=grid, block=threads, arguments=[out], **options)
    return result, device.download(out, np.uint32, threads)


@pytest.mark.parametrize("schedule", ["fifo", "random"])
@pytest.mark.parametrize("limit", [{"max_steps": 5000}, {"timeout": 0.3}, {"limit": 0.3}], ids=str)
def test_an_endless_loop_ends_at_the_limit_and_the_report_says_where(schedule, limit):
    start = time.perf_counter()
    with pytest.raises(LimitExceeded) as error:
        launch(ENDLESS, device=Device(schedule=schedule, seed=1), threads=64, **limit)
    assert time.perf_counter() - start < 5
    report = str(error.value)
    assert "kernel 'kernel'" in report
    assert ("5000" if "max_steps" in limit else "0.3") in report.replace(",", "")
    assert re.search(r"warp 0\b.*PTX line (18|19)\b", report), "inside the loop"
    assert re.search(r"warp 1\b", report) and "bar.sync" in report
    assert isinstance(error.value, EmulatorError) and not isinstance(error.value, Deadlock)


class Ticks:
    """A clock that goes on by a second whenever somebody looks at it."""

    def __init__(self) -> None:
        self.now = 0

    def monotonic(self) -> float:
        self.now += 1
        return float(self.now)


def test_the_seconds_are_counted_since_a_cluster_ended(monkeypatch):
    monkeypatch.setattr(machine, "time", Ticks())
    launch(COUNT_TO_1000 + STORE_R1 + "ret;", grid=100, timeout=50.0)
    assert machine.time.now > 100
    with pytest.raises(LimitExceeded, match=r"no cluster of it has ended for 50 seconds, its limit \(timeout\)"):
        launch(ENDLESS, threads=64, timeout=50.0)


WATCH_THE_CLOCK = "LOOP: mov.u32 %r1, %clock; add.s32 %r2, %r1, 1; bra LOOP;"
COUNT_WITHOUT_END = "mov.b32 %r1, 0; LOOP: add.s32 %r1, %r1, 1; bra LOOP;"


def test_a_loop_that_comes_round_unchanged_is_found_without_a_limit():
    with pytest.raises(Livelock, match=r"loops without end, PTX line \d+: bra LOOP"):
        launch("LOOP: bra LOOP;", threads=64)


def test_every_running_warp_is_in_the_report():
    with pytest.raises(LimitExceeded) as error:
        launch(WATCH_THE_CLOCK, threads=64, grid=3, max_steps=100_000)
    report = str(error.value)
    for cta in range(3):
        assert re.search(rf"CTA \({cta}, 0, 0\).*warps 0-1\b", report)


def test_a_report_on_very_many_warps_stays_readable():
    with pytest.raises(LimitExceeded) as error:
        launch(COUNT_WITHOUT_END, threads=1024, grid=40, max_steps=10_000)
    assert len(str(error.value).splitlines()) < 200


def test_a_launch_within_its_limits_is_not_touched():
    result, out = launch(COUNT_TO_1000 + STORE_R1 + "ret;")
    steps = result.counters.total_instructions()
    again, same = launch(COUNT_TO_1000 + STORE_R1 + "ret;", max_steps=steps, timeout=60.0)
    assert (out == 1000).all() and (same == out).all()
    assert again.counters == result.counters
    with pytest.raises(LimitExceeded):
        launch(COUNT_TO_1000 + STORE_R1 + "ret;", max_steps=steps - 1)


def test_steps_are_counted_over_all_ctas():
    body = COUNT_TO_1000 + "mov.u32 %r5, %ctaid.x; shl.b32 %r5, %r5, 5; add.s32 %r0, %r0, %r5;" + STORE_R1 + "ret;"
    steps = launch(body)[0].counters.total_instructions()
    with pytest.raises(LimitExceeded):
        launch(body, grid=4, max_steps=2 * steps)
    launch(body, grid=4, max_steps=4 * steps)


def test_polling_with_a_clock_that_decides_nothing_ends_at_the_limit():
    """The clock changes from look to look, so this may look alive for ever."""
    body = """
    mov.b32 %r4, 0;
    st.global.b32 [%rd0], %r4;
    POLL: mov.u64 %rd5, %clock64;
    ld.volatile.global.b32 %r5, [%rd0];
    setp.eq.s32 %p1, %r5, 0;
    @%p1 bra POLL;
    ret;
    """
    with pytest.raises((LimitExceeded, Livelock, Deadlock)) as error:
        launch(body, max_steps=20_000, timeout=10.0)
    assert "ld.volatile" in str(error.value) or re.search(r"PTX line (1[6-9]|20)", str(error.value))


def test_a_hang_is_explained_before_the_limit_strikes():
    device = Device()
    flags = device.upload(np.zeros(3, np.uint32), "flags")
    arguments = [flags, device.upload(np.zeros(96, np.int32)), device.alloc(12), 1]
    with pytest.raises(Deadlock, match="flags"):
        device.launch(
            cuda("flag_chain"), "chain_with_a_silent_cta", grid=3, block=32, arguments=arguments, timeout=60.0
        )


def test_the_device_can_be_used_after_a_limit_was_exceeded():
    device = Device()
    kept = device.upload(np.arange(4, dtype=np.uint32))
    with pytest.raises(LimitExceeded):
        launch(ENDLESS, device=device, threads=64, max_steps=1000)
    assert (launch(COUNT_TO_1000 + STORE_R1 + "ret;", device=device)[1] == 1000).all()
    assert (device.download(kept, np.uint32, 4) == np.arange(4)).all()


@pytest.mark.parametrize("schedule", ["fifo", "random"])
@pytest.mark.parametrize("steps", [10, 1000, 5000])
def test_a_limit_of_steps_is_kept_to_within_a_basic_block(schedule, steps):
    with pytest.raises(LimitExceeded) as error:
        launch(COUNT_WITHOUT_END, device=Device(schedule=schedule), threads=256, max_steps=steps)
    found = re.search(r"executed ([\d,]+) warp instructions", str(error.value))
    assert found and steps < int(found[1].replace(",", "")) <= steps + 4


def test_without_a_limit_given_there_is_one_all_the_same(monkeypatch):
    monkeypatch.setattr("emugpu.emulator.device.MOST_STEPS", 20_000)
    with pytest.raises(
        LimitExceeded, match=r"its limit \(max_steps\) is 20,000, and --emulate max-steps=N sets another\n"
    ):
        launch(COUNT_WITHOUT_END)


def test_a_run_without_news_says_where_it_is(monkeypatch, caplog):
    monkeypatch.setattr("emugpu.emulator.machine.machine.SILENCE", 0.05)
    with pytest.raises(LimitExceeded):
        launch(COUNT_WITHOUT_END, timeout=0.5)
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= len(lines) <= 4, "every one comes after twice the time"
    said = r"kernel 'kernel' still runs after .* 0 of 1 clusters done, at PTX line \d+: \w+.*; the limit is 1,"
    assert all(re.match(said, line) for line in lines)


def test_a_giant_grid_takes_no_memory_for_what_has_not_started():
    module = Module.from_text(source("ret;"))
    module.code(None)
    tracemalloc.start()
    with pytest.raises(LimitExceeded, match="max_steps"):
        Device().launch(module, grid=2**31 - 1, block=32, arguments=[0], max_steps=5000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100 << 20
