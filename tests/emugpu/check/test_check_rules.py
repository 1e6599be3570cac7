"""The programs of docs/synchronisation.md: each breaks its rule as it is, and has no finding once it is fixed."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
from ptx_programs import source

from emugpu.check import RULES, Checker, Report
from emugpu.emulator import Device, EmulatorError, Module, TensorMap
from harness.paths import ROOT

PAGE = (ROOT / "docs" / "synchronisation.md").read_text()
SCHEDULES = [("fifo", 0), ("random", 1), ("random", 2)]
MEMORY = (
    ".shared .align 1024 .b8 words[4096];\n.shared .align 8 .b8 bars[64];\n.shared .align 8 .b8 slot[8];\n"
    ".global .align 64 .b8 map[128];"
)
PRELUDE = """
mov.b32 %r1, words;
shl.b32 %r3, %r0, 2;
add.u32 %r3, %r3, %r1;
mov.u32 %r2, %cluster_ctarank;
mov.b32 %r9, 0;
mov.b32 %r30, 0;
setp.eq.u32 %p0, %r0, 0;
setp.lt.u32 %p1, %r0, 32;
setp.eq.u32 %p2, %r2, 0;
or.b32 %r31, %r2, %r0;
setp.eq.u32 %p3, %r31, 0;
setp.eq.u32 %p9, %r0, 1000;
mov.u64 %rd7, map;
"""
TENSOR = """
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;
bar.warp.sync -1;
ld.shared.b32 %r10, [slot];
mov.b32 %r7, 0x8020010;
shr.u32 %r8, %r1, 4;
cvt.u64.u32 %rd4, %r8;
or.b64 %rd4, %rd4, {descriptor};
"""
FREE = """
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;
"""
DESCRIPTOR = 1 << 46 | 128 >> 4 << 16 | 256 >> 4 << 32
FILL = """
mov.b32 %r11, %r3;
mov.b32 %r12, 0;
FILL:
st.shared.b32 [%r11], %r9;
add.u32 %r11, %r11, 128;
add.u32 %r12, %r12, 1;
setp.lt.u32 %p10, %r12, 32;
@%p10 bra FILL;
"""
MAP = """
mov.b64 %rd5, data;
cvta.param.u64 %rd5, %rd5;
mul.wide.u32 %rd6, %r0, 4;
add.s64 %rd5, %rd5, %rd6;
ld.b32 %r13, [%rd5];
add.s64 %rd6, %rd7, %rd6;
st.global.b32 [%rd6], %r13;
"""
OPERANDS = (
    FILL
    + """
@%p0 mbarrier.init.shared.b64 [bars+8], 1;
fence.proxy.async.shared::cta;
bar.warp.sync -1;
"""
)
WAIT = "WAIT{n}: mbarrier.try_wait.parity.shared.b64 %p11, [bars+{at}], {parity}; @!%p11 bra WAIT{n};"


@dataclass(frozen=True)
class Example:
    """``lines``: of the difference. ``marks``: what the page says of the launch."""

    rule: str
    marks: tuple[str, ...]
    lines: tuple[str, ...]

    def body(self, fixed: bool) -> str:
        kept = [line[line[:1] in "+-" :] for line in self.lines if line[:1] != ("-" if fixed else "+")]
        text = "\n".join(kept).replace("BEGIN_FILL", FILL).replace("BEGIN_OPERANDS", OPERANDS).replace("BEGIN_MAP", MAP)
        number = iter(range(len(kept)))
        text = re.sub(
            r"^wait (\d+), (\d+)$",
            lambda m: WAIT.format(n=next(number), at=m[1], parity=m[2]),
            text,
            flags=re.MULTILINE,
        )
        if "tensor" in self.marks:
            return PRELUDE + TENSOR.format(descriptor=DESCRIPTOR) + text + FREE + "ret;"
        return PRELUDE + text + "\nret;"

    def check(self, fixed: bool, schedule: str, seed: int) -> Report:
        """What the checker says of a run."""
        device = Device(schedule=schedule, seed=seed)
        out = device.upload(np.zeros(1024, np.uint32), "out")
        data = TensorMap.tiled(out, "u32", (256, 4), (256, 4))
        cluster, grid = (2 if mark in self.marks else 1 for mark in ("cluster", "grid"))
        checker = Checker()
        try:
            device.launch(
                Module.from_text(source(self.body(fixed), MEMORY, parameters=("map data",))),
                grid=4 if "grid-clc" in self.marks else cluster * grid,
                cluster=cluster,
                block=32 if {"warp", "tensor"} & set(self.marks) else 64,
                arguments=[out, data],
                sinks=[checker],
                resident_clusters=1 if "grid-clc" in self.marks else None,
            )
        except EmulatorError as error:
            checker.failed(error)
        return checker.report()


EXAMPLES = {
    rule: Example(rule, tuple(marks.split()), tuple(body.strip("\n").split("\n")))
    for rule, marks, body in re.findall(r"^```diff (\S+)(.*)\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
}
examples = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
schedules = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: f"{s[0]}-{s[1]}")


@examples
@schedules
def test_the_wrong_program_breaks_its_rule(example, schedule):
    report = example.check(False, *schedule)
    (finding, *_) = [finding for finding in report.findings if finding.rule == example.rule]
    stated = re.search(rf"\*\*{example.rule}\*\* \((warning|note)", PAGE)
    severe = example.rule != "register-before-wait" and stated is None
    hangs = example.rule == "phase-lapped" and finding.severity == "error"
    assert finding.severity == ("error" if severe else "warning") or hangs
    assert finding.message
    for place in (finding.first, finding.second):
        assert place is None or str(place.line) in str(place)


@examples
@schedules
def test_the_fixed_program_has_no_finding(example, schedule):
    found = example.check(True, *schedule).findings
    assert [finding for finding in found if finding.severity != "note"] == []


def test_the_page_has_an_entry_for_each_rule():
    assert set(re.findall(r"\*\*([a-z]+(?:-[a-z]+)*)\*\*", PAGE)) == set(RULES)
    assert set(EXAMPLES) <= set(RULES)
    assert len(EXAMPLES) >= 25
