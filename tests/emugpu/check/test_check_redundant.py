"""Redundant synchronisation: the fence and the barrier that a program has twice, and nothing that it needs."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import WORDS, source

from emugpu.check import Checker
from emugpu.check.redundant import unneeded, variants
from emugpu.emulator import Device, EmulatorError, Module, TensorMap

STORED = """
mov.b32 %r3, words;
shl.b32 %r4, %r0, 2;
add.u32 %r4, %r4, %r3;
setp.eq.u32 %p0, %r0, 0;
mov.b32 %r30, 0;
st.shared.b32 [%r4], %r0;
{}
@!%p0 bra DONE;
cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [data, {{%r30}}], [%r3];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
DONE:
ret;
membar.gl;
"""
FENCE, BARRIER = "fence.proxy.async.shared::cta;", "bar.sync 0;"


def notes(between: str) -> list[str]:
    """What 64 threads could do without that write words and have them stored."""

    def run(ptx: str, sinks: tuple) -> object:
        device = Device()
        out = device.alloc(256)
        checker = Checker()
        try:
            arguments = [0, TensorMap.tiled(out, "u32", (64,), (64,))]
            device.launch(Module.from_text(ptx), grid=1, block=64, arguments=arguments, sinks=[checker, *sinks])
        except EmulatorError as error:
            checker.failed(error)
            return "failed"
        words = device.download(out, np.uint32, (64,)).tolist()
        return {finding.rule for finding in checker.report().findings}, words

    text = source(STORED.format(between), WORDS, parameters=("map data",))
    found = unneeded(text, run)
    assert all(finding.rule == "waste" and finding.severity == "note" for finding in found)
    places = [finding.first for finding in found]
    lines = text.splitlines()
    for place in places:
        assert place is not None and place.text in lines[place.line - 1]
    return [place.text for place in places if place is not None]


@pytest.mark.parametrize(
    ("between", "wanted"),
    {
        "all needed": (f"{FENCE}\n{BARRIER}", []),
        "a second fence": (f"{FENCE}\n{FENCE}\n{BARRIER}", [FENCE, FENCE]),
        "a second barrier": (f"{FENCE}\n{BARRIER}\n{BARRIER}", [BARRIER, BARRIER]),
        "a fence that nobody needs": (f"{FENCE}\nmembar.cta;\n{BARRIER}", ["membar.cta;"]),
    }.values(),
    ids=lambda value: str(value)[:40],
)
def test_what_is_there_twice_could_go(between, wanted):
    assert notes(between) == wanted


def test_a_variant_keeps_the_lines_and_lacks_one_thing():
    text = "a;\nbarrier.cluster.arrive.aligned;\nb;\nbarrier.cluster.wait.aligned;\nL: mbarrier.try_wait.parity.shared.b64 P, [x], 0;\n@!P bra L;\nbar.sync 1,\n 64;\n"  # noqa: E501
    found = list(variants(text))
    assert [variant.line for variant in found] == [7, 2, 5]
    assert all(variant.ptx.count("\n") == text.count("\n") for variant in found)
    assert "cluster" not in found[1].ptx and "bar.sync" in found[1].ptx
    assert "L: setp.eq.u32 P, 0, 0;" in found[2].ptx
