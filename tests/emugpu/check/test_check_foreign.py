"""What other compilers make, and runs on hardware every day, has no error: kernels of nvcc, Triton and CuTe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ptx_programs import STORE_R1, WORDS, source

from emugpu.check import Checker
from emugpu.check.findings import Finding, Place, by_cause
from emugpu.emulator import Device, Module
from emugpu.launch.check import CheckOptions, check
from emugpu.launch.launch_file import read_launch_file
from harness.paths import ROOT

FILES = sorted((ROOT / "tests" / "data" / "launches").glob("*.toml"))


@pytest.mark.thorough
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_kernel_of_another_compiler_has_no_error(file):
    [checked] = check([read_launch_file(file)], CheckOptions(schedules=2))
    assert [f"{finding.rule}: {finding.message}" for finding in checked.report.errors] == []
    assert checked.is_sound


def test_there_are_kernels_of_three_compilers():
    assert {file.stem.split("_")[0] for file in FILES} == {"nvcc", "triton", "cute"}
    assert len(FILES) >= 20


# ---- the machine and the checker agree, and one cause is one finding ----


def judged(body: str, threads: int = 64, words: str = WORDS, **launch):
    """The rules that the machine warns of, and the checker's findings."""
    device, checker = Device(schedule="random", seed=5), Checker()
    out = device.upload(np.zeros(1024, np.uint32))
    module = Module.from_text(source(body, words))
    done = device.launch(module, block=threads, arguments=[out], sinks=[checker], **launch)
    return {w.rule for w in done.warnings}, checker.report()


def test_an_exit_before_a_store_has_read_is_a_warning_of_both():
    body = """mov.b32 %r3, words; mad.lo.u32 %r4, %r0, 4, %r3; st.shared.b32 [%r4], %r0;
    fence.proxy.async.shared::cta; bar.sync 0; setp.ne.u32 %p1, %r0, 0; @%p1 ret;
    cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r3], 256; cp.async.bulk.commit_group; ret;"""
    warned, report = judged(body, grid=1)
    assert warned == {"exit-pending"} and not report.errors
    assert [f.rule for f in report.warnings] == ["exit-pending"]


def test_warps_that_write_the_same_words_have_a_note():
    """As a compiler has it that gives all warps the same part of a tensor; with other values it is a race."""
    body = """mov.b32 %r3, words; and.b32 %r5, %r0, 31; mad.lo.u32 %r4, %r5, 4, %r3;
    st.shared.b32 [%r4], {0}; bar.sync 0; ld.shared.b32 %r1, [%r4];"""
    _, report = judged(body.format("%r5") + STORE_R1 + "ret;", grid=1)
    assert [(f.rule, f.severity) for f in report.findings] == [("race-shared", "note")]
    _, report = judged(body.format("%r0") + STORE_R1 + "ret;", grid=1)
    assert [(f.rule, f.severity) for f in report.findings] == [("race-shared", "error")]


def test_a_warp_may_leave_a_barrier_long_after_the_others_have_used_it_again():
    """Warps 1 and 2 meet eight times while warp 0, which has met them once, is not run."""
    body = """setp.lt.u32 %p1, %r0, 32; mov.u32 %r5, 0; bar.sync 1, 96; @%p1 bra DONE;
    AGAIN: bar.sync 1, 64; add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 8; @%p2 bra AGAIN; DONE: ret;"""
    for seed in range(12):
        device, checker = Device(schedule="random", seed=seed), Checker()
        out = device.upload(np.zeros(64, np.uint32))
        device.launch(Module.from_text(source(body)), grid=1, block=96, arguments=[out], sinks=[checker])
        assert not checker.report().errors


def test_all_that_lacks_the_order_of_one_allocation_is_one_cause():
    def used_by(line: int, text: str) -> Finding:
        places = [Place(at, words, "", 0, 0, 0, 1) for at, words in ((3, "tcgen05.alloc.x [%r3], 32"), (line, text))]
        return Finding("tmem-alloc-order", "error", f"used by line {line}", *places, missing="no path between the two")

    several = [
        used_by(7, "tcgen05.ld.x8 {%r1}, [%r2]"),
        used_by(8, "tcgen05.st [%r2], {%r1}"),
        used_by(9, "tcgen05.mma"),
    ]
    assert [len(cause) for cause in by_cause(several)] == [3]
    races = [replace(finding, rule="tmem-race") for finding in several]
    assert [len(cause) for cause in by_cause(races)] == [1, 1, 1]
