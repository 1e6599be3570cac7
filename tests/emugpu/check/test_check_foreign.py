"""What other compilers make, and runs on hardware every day, has no error: kernels of nvcc, Triton and CuTe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ptx_programs import ALLOCATE, FREE, STORE_R1, WORDS, source

from emugpu.check import Checker
from emugpu.check.findings import Finding, Place, by_cause
from emugpu.emulator import Deadlock, Device, Fault, Module, TensorMap
from emugpu.emulator.native.library import library_for
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


def judged(body: str, threads: int = 64, words: str = WORDS, seed: int = 5, **launch):
    """The rules that the machine warns of, and the checker's findings."""
    device, checker = Device(schedule="random", seed=seed), Checker()
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


OVERLAPPING = {
    "words": "mad.lo.u32 %r5, %r6, 4, %r3; st.shared.b32 [%r5], VALUE;",
    "bytes": "add.u32 %r5, %r6, %r3; st.shared.b8 [%r5], VALUE;",
    "two words, and a word": "mad.lo.u32 %r5, %r6, 8, %r3; st.shared.v2.b32 [%r5], {VALUE, VALUE};",
    "global memory": "mul.wide.u32 %rd1, %r6, 4; add.s64 %rd1, %rd0, %rd1; st.global.b32 [%rd1], VALUE;",
    "some lanes": "mad.lo.u32 %r5, %r7, 4, %r3; setp.lt.u32 %p1, %r0, 40; @%p1 st.shared.b32 [%r5], VALUE;",
    "lanes that disagree": "shr.u32 %r5, %r7, 1; add.u32 %r5, %r5, %r8; mad.lo.u32 %r5, %r5, 4, %r3;"
    "and.b32 %r9, %r7, 1; st.shared.b32 [%r5], %r9;",
    "an unrolled loop": "mad.lo.u32 %r5, %r6, 4, %r3; st.shared.b32 [%r5], VALUE; st.shared.b32 [%r5+4], VALUE;",
    "two instructions": "mad.lo.u32 %r5, %r6, 4, %r3; setp.lt.u32 %p1, %r0, 32; mov.b32 %r9, VALUE;"
    "@%p1 st.shared.b32 [%r5], VALUE; @!%p1 st.shared.b32 [%r5], %r9;",
    "long words": "mad.lo.u32 %r5, %r6, 8, %r3; cvt.u64.u32 %rd1, VALUE; st.shared.b64 [%r5], %rd1;",
}
"""Two warps store to places of which some are the same. %r6: the lane + the warp, %r7: the lane, %r8: the warp, %r10:
256 times the warp.
"""
DIFFER = {
    "some lanes": {"%r6": "error", "%r7": "note"},
    "bytes": {"%r10": "note"},
    "an unrolled loop": {"%r6": "error"},
    **{kind: dict.fromkeys(("258", "%r6"), "error") for kind in ("lanes that disagree", "two instructions")},
}
"""Where the severity is another one than for words."""


@pytest.mark.parametrize("engine", ["native", "python"])
@pytest.mark.parametrize(
    ("value", "severity"), [("258", "note"), ("%r6", "note"), ("%r7", "error"), ("%r8", "error"), ("%r10", "error")]
)
@pytest.mark.parametrize("kind", OVERLAPPING)
def test_stores_of_the_same_values_to_overlapping_places_have_a_note(kind, value, severity, engine):
    severity = DIFFER.get(kind, {}).get(value, severity)
    start = (
        "mov.b32 %r3, words; and.b32 %r7, %r0, 31; shr.u32 %r8, %r0, 5; add.u32 %r6, %r7, %r8; shl.b32 %r10, %r8, 8;"
    )
    module = Module.from_text(source(start + OVERLAPPING[kind].replace("VALUE", value) + "ret;", WORDS))
    for seed in range(2):
        device, checker = Device(schedule="random", seed=seed, library=library_for(engine)), Checker()
        out = device.upload(np.zeros(64, np.uint32))
        device.launch(module, grid=1, block=64, arguments=[out], sinks=[checker])
        findings = checker.report().findings
        assert findings and findings[0].severity == severity, findings


BULK_STORES = {
    "bulk": "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r5], 128;",
    "box": "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [data, {%r9}], [%r5];",
}


@pytest.mark.parametrize("kind", BULK_STORES)
@pytest.mark.parametrize(("source_of_warp", "severity"), [("0", "note"), ("128", "error")])
def test_warps_that_store_the_same_bytes_have_a_note(kind, source_of_warp, severity):
    """One lane of each of two warps stores the words 0 to 31; where each stores words of its own it is a race."""
    body = f"""mov.b32 %r3, words; mad.lo.u32 %r4, %r0, 4, %r3; st.shared.b32 [%r4], %r0; mov.b32 %r9, 0;
    fence.proxy.async.shared::cta; bar.sync 0; and.b32 %r5, %r0, 31; setp.ne.u32 %p1, %r5, 0; @%p1 bra DONE;
    shr.u32 %r5, %r0, 5; mad.lo.u32 %r5, %r5, {source_of_warp}, %r3; {BULK_STORES[kind]}
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; DONE: ret;"""
    for seed in range(3):
        device, checker = Device(schedule="random", seed=seed), Checker()
        out = device.upload(np.zeros(64, np.uint32))
        module = Module.from_text(source(body, WORDS, parameters=("map data",)))
        box = TensorMap.tiled(out, "u32", (64,), (32,))
        device.launch(module, grid=1, block=64, arguments=[out, box], sinks=[checker])
        assert [(f.rule, f.severity) for f in checker.report().findings] == [("race-global", severity)]


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


# ---- what shipped kernels do: a warning, and the wrong twin an error ----

ARMED = """setp.eq.u32 %p1, %r0, 0; mov.u32 %r5, words; @%p1 mbarrier.init.shared.b64 [%r5], 1;
fence.mbarrier_init.release.cluster; bar.sync 0; @!%p1 exit;
"""
EXPECT = "mbarrier.arrive.expect_tx.shared.b64 _, [%r5], {};"
COPY = """cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [words+128], [%rd0], 256, [%r5];"""
WAITED = "W: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra W;"
TAILS = {
    "nothing has come": EXPECT.format(32768),
    "a round before it": EXPECT.format(256) + COPY + WAITED + EXPECT.format(32768),
}


@pytest.mark.parametrize("what", TAILS)
def test_bytes_that_an_ended_cta_expects_are_a_warning(what):
    """The tail of a producer: it acquires a stage once more than it fills one."""
    warned, report = judged(ARMED + TAILS[what] + "ret;", grid=1)
    assert warned == {"bytes-left"} and not report.errors
    assert [f.rule for f in report.warnings] == ["bytes"]


def test_a_copy_into_a_cta_that_may_have_ended_is_an_error():
    _, report = judged(ARMED + EXPECT.format(256) + COPY + "ret;", grid=1, seed=1)
    assert [f.rule for f in report.errors] == ["peer-exited"]


def test_more_bytes_than_expected_are_an_error():
    with pytest.raises(Fault, match="-128 bytes pending") as error:
        judged(ARMED + EXPECT.format(128) + COPY + "ret;", grid=1, seed=1)
    assert error.value.rule == "mbarrier-bytes"


def test_bytes_that_somebody_waits_for_are_a_deadlock():
    with pytest.raises(Deadlock, match="pending: 128 bytes"):
        judged(ARMED + EXPECT.format(128) + WAITED + "ret;", grid=1)


@pytest.mark.parametrize("some", ["setp.lt.u32 %p1, %r0, 32;", "setp.ge.u32 %p1, %r0, 32;"])
def test_setmaxnreg_by_some_warps_of_a_warpgroup_is_a_warning(some):
    body = f"{some} @!%p1 bra L; setmaxnreg.dec.sync.aligned.u32 64; L: ret;"
    device = Device()
    module = Module.from_text(source(body, directives=".maxnreg 128"))
    done = device.launch(module, grid=1, block=128, arguments=[device.alloc(4)])
    assert [w.rule for w in done.warnings] == ["registers-differ"]
    with pytest.raises(Fault, match="all four must execute the same"):
        device.launch(module, grid=1, block=128, arguments=[device.alloc(4)], strict=True)


STORED = "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2], {%r0, %r0};"
LOADED = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r2]; tcgen05.wait::ld.sync.aligned;"


def tensor(body: str):
    return judged(ALLOCATE + body + STORE_R1 + FREE + "ret;", threads=32, grid=1)


def test_a_load_of_what_its_warp_has_stored_is_a_warning():
    warned, report = tensor(STORED + LOADED)
    assert warned == {"tmem-wait"} and not report.errors
    assert [f.rule for f in report.warnings] == ["tmem-race"]
    assert "tcgen05.wait::st" in report.warnings[0].fix
    warned, report = tensor(STORED + "tcgen05.wait::st.sync.aligned;" + LOADED)
    assert not warned and not report.findings


def test_a_load_shows_nothing_of_stores_to_other_columns():
    other = "add.u32 %r4, %r2, 8; " + STORED.replace("[%r2]", "[%r4]")
    _, report = tensor(STORED + other + LOADED)
    assert [f.rule for f in report.errors] == ["tmem-alloc-order"]
    _, report = tensor(STORED + other + LOADED + "tcgen05.wait::st.sync.aligned;")
    assert not report.errors
    warned, report = tensor(STORED + other + LOADED + LOADED.replace("[%r2]", "[%r4]"))
    assert warned == {"tmem-wait"} and not report.errors


def test_a_store_that_is_only_freed_is_an_error():
    _, report = tensor(STORED + "mov.b32 %r1, 0;")
    assert [f.rule for f in report.errors] == ["tmem-alloc-order"]


def test_lanes_may_pass_addresses_that_differ_in_the_lane():
    own = "shl.b32 %r4, %r0, 16; add.u32 %r4, %r4, %r2;"
    stored = STORED.replace("[%r2]", "[%r4]") + "tcgen05.wait::st.sync.aligned;"
    warned, report = tensor(own + stored + LOADED)
    assert warned == {"tmem-address"} and not report.findings
    with pytest.raises(Fault, match="different values as the column of tensor memory"):
        tensor("add.u32 %r4, %r0, %r2;" + stored + LOADED)
