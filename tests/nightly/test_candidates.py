"""Faults are planted where they are meant to be, and a verdict on a kernel with one is not clean."""

from __future__ import annotations

from collections import Counter

import pytest

from emugpu.launch.launch_file import read_launch_file
from tests.nightly.candidates.candidate import Answer, draw, reached, verify
from tests.nightly.candidates.equivalent import why_equivalent
from tests.nightly.candidates.faults import KINDS, faults
from tests.nightly.candidates.written_kernels import write

PIECES = """.visible .entry other() { bar.sync 0; }
.visible .entry kernel() {
@%p1 bar.sync 0;
fence.proxy.async.shared::cta;
@%p2 mbarrier.init.shared::cta.b64 [bars], %r1;
mbarrier.try_wait.parity.shared::cta.b64 %p3, [bars], %r2;
@!%p3 bra AGAIN;
st.shared.b32 [%r3], %r4;
wgmma.wait_group.sync.aligned 0;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], 4096;
cp.async.bulk.wait_group.read 1;
ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%rd1+16];
shfl.sync.bfly.b32 %r9, %r9, 16, 31, -1;
ret;
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("candidates")
    write(folder)
    return {path.stem: read_launch_file(path) for path in sorted(folder.glob("*sm_90a.toml"))}


def test_every_kind_is_planted_in_its_kernel_alone_and_lines_stay():
    found = list(faults(PIECES, "kernel"))
    assert set(KINDS) == {fault.kind for fault in found}
    lines = PIECES.splitlines()
    for fault in found:
        put = fault.ptx.splitlines()
        assert len(put) == len(lines) and put[0] == lines[0]
        changed = [n for n, line in enumerate(put, 1) if line != lines[n - 1]]
        assert changed[0] == fault.line
    first = {fault.kind: fault.ptx.splitlines()[fault.line - 1] for fault in reversed(found)}
    assert first["barrier of threads left out"] == ""  # its guard goes with it
    assert first["wrong slice of K"].endswith("[%rd1+32];")  # a vector stays aligned
    assert first["store an element further"] == "st.shared.b32 [%r3+4], %r4;"
    assert "and.b32 changed, 16, 0;" in first["warps not together, or another lane"]


def test_right_kernels_are_clean_and_a_fault_of_each_kind_is_not(kernels):
    assert [verify(what, None, name).word for name, what in kernels.items()] == ["clean"] * 4
    drawn = list(draw(kernels, 24, 1))
    assert max(Counter(name for _, _, name in drawn).values()) <= 8
    answers = [verify(what, fault, name) for what, fault, name in drawn]
    assert len({answer.fault for answer in answers}) >= 8
    assert [answer for answer in answers if not answer.as_it_should_be] == []


def test_only_what_is_reached_is_drawn_and_what_is_no_fault_is_not(kernels):
    what = kernels["ptx-adds-sm_90a"]
    lines = reached(what)
    every = list(faults(what.text, "adds"))
    meant = [f.line for f in every if f.line in lines and not why_equivalent("ptx-adds-sm_90a", f)]
    drawn = [fault.line for _, fault, _ in draw({"ptx-adds-sm_90a": what}, 1000, 1)]
    assert sorted(drawn) == sorted(meant) and len(drawn) < len(every)


@pytest.mark.parametrize(
    ("fault", "word", "equivalent", "should"),
    [("", "clean", "", True), ("", "racy", "", False), ("kind", "hung", "", True), ("kind", "incomplete", "", False),
     ("kind", "clean", "", False), ("kind", "clean", "why", True)],
)  # fmt: skip
def test_what_an_answer_should_be(fault, word, equivalent, should):
    assert Answer("kernel", fault, 1, "", word, "", 0.1, equivalent).as_it_should_be is should
