"""Where the time of a launch goes: the loop that takes it must be where a profile says it is."""

from __future__ import annotations

import threading

import pytest
from ptx_programs import STORE_R1, launch

from emugpu.benchmark import ADDRESSES, loop_text
from emugpu.emulator import Device, Module
from emugpu.emulator.native.library import library_for
from emugpu.emulator.native.workspace import Files
from emugpu.emulator.profile import profiling

TEXT = loop_text(ADDRESSES)
LINES = [number for number, line in enumerate(TEXT.splitlines(), 1) if line in ADDRESSES.splitlines() and line]
UNITS = {"python": "Python instructions", "native": "native"}


@pytest.mark.parametrize("engine", UNITS)
def test_a_loop_takes_the_time(engine):
    library = library_for(engine)
    if engine == "native" and library is None:
        pytest.skip("no Mojo compiler")
    device = Device(library=library)
    out = device.alloc(4 * 128)
    count = 6000 if engine == "python" else 200_000
    with profiling() as profile:
        seconds = device.launch(Module(TEXT), grid=1, block=128, arguments=[out, count]).seconds
    share = profile.by("unit")[(UNITS[engine],)]
    assert 0.25 * seconds < share < seconds  # of few samples where the machine is busy
    loop = {site: share for (site,), share in profile.by("site").items() if site is not None and site.line in LINES}
    assert sum(loop.values()) > 0.25 * seconds
    site = next(iter(loop))
    found = profile.speedscope()
    (one,) = found["profiles"]
    names = [frame["name"] for frame in found["shared"]["frames"]]
    assert one["endValue"] == pytest.approx(sum(one["weights"])) and len(one["samples"]) == len(one["weights"])
    assert {names[stack[0]] for stack in one["samples"]} == {"work"}
    assert any(f"PTX line {site.line}: " in names[index] for stack in one["samples"] for index in stack)


ATOMICS = """
mad.lo.u32 %r4, %r9, 7, %r3; and.b32 %r4, %r4, 127; mul.wide.u32 %d2, %r4, 4; add.s64 %d3, %d0, %d2;
ld.global.u32 %r5, [%d3];
atom.global.add.u32 %r6, [%d3], %r5;
"""


def test_what_lets_other_threads_run_does_not_get_all_samples():
    """NumPy does where a load gathers; the lanes of an atomic, one after another, take many times as long."""
    device = Device()
    out = device.alloc(4 * 128)
    device.memset(out, 0, 4 * 128)
    with profiling() as profile:
        device.launch(Module(loop_text(ATOMICS)), grid=1, block=128, arguments=[out, 400])
    seconds = {site.opcode: share for (site,), share in profile.by("site").items() if site is not None}
    assert seconds["atom"] > 1.5 * seconds.get("ld", 0)


def test_no_other_thread_frees_what_native_code_uses(monkeypatch):
    """A thread that held the launch's frames did, while native code ran: launches then hung or went wrong."""
    library = library_for("native")
    if library is None:
        pytest.skip("no Mojo compiler")
    threads = set()
    give_back = Files.give_back

    def note(files: Files, number: int) -> None:
        threads.add(threading.get_ident())
        give_back(files, number)

    monkeypatch.setattr(Files, "give_back", note)
    body = """
    mov.u32 %r4, 0; mul.lo.u32 %r5, %r0, 7; and.b32 %r5, %r5, 63;
    LOOP: add.u32 %r4, %r4, 1; setp.ge.u32 %p1, %r4, %r5; @%p1 bra DONE; bra LOOP;
    DONE: mov.u32 %r1, %r4;
    """
    device = Device(library=library)
    with profiling() as profile:
        launch(body + STORE_R1 + "ret;", threads=128, grid=400, device=device)
    assert profile.samples and threads == {threading.get_ident()}


def test_nothing_is_sampled_outside():
    device = Device()
    out = device.alloc(4 * 128)
    with profiling() as profile:
        pass
    device.launch(Module(TEXT), grid=1, block=128, arguments=[out, 40])
    assert profile.samples == [] and profile.by("unit") == {}
