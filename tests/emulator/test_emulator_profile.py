"""Where the time of a launch goes: the loop that takes it must be where a profile says it is."""

from __future__ import annotations

import pytest

from harness.benchmark import _ADDRESSES, _MODULE
from harness.emulator import Device, Module
from harness.emulator.native.library import library_for
from harness.emulator.profile import profiling

TEXT = _MODULE.replace("BODY", _ADDRESSES)
LINES = [number for number, line in enumerate(TEXT.splitlines(), 1) if line in _ADDRESSES.splitlines() and line]
UNITS = {"python": "Python instructions", "native": "native"}


@pytest.mark.parametrize("engine", UNITS)
def test_a_loop_takes_the_time(engine):
    library = library_for(engine)
    if engine == "native" and library is None:
        pytest.skip("no Mojo compiler")
    device = Device(library=library)
    out = device.alloc(4 * 128)
    count = 400 if engine == "python" else 200_000
    with profiling() as profile:
        seconds = device.launch(Module(TEXT), grid=1, block=128, arguments=[out, count]).seconds
    unit, share = next(iter(profile.by("unit").items()))
    assert unit == (UNITS[engine],) and 0.5 * seconds < share < seconds
    (site,) = next(iter(profile.by("site")))
    assert site.line in LINES
    found = profile.speedscope()
    (one,) = found["profiles"]
    names = [frame["name"] for frame in found["shared"]["frames"]]
    assert one["endValue"] == pytest.approx(sum(one["weights"])) and len(one["samples"]) == len(one["weights"])
    assert {names[stack[0]] for stack in one["samples"]} == {"work"}
    assert any(f"PTX line {site.line}: " in names[index] for stack in one["samples"] for index in stack)


def test_nothing_is_sampled_outside():
    device = Device()
    out = device.alloc(4 * 128)
    with profiling() as profile:
        pass
    device.launch(Module(TEXT), grid=1, block=128, arguments=[out, 40])
    assert profile.samples == [] and profile.by("unit") == {}
