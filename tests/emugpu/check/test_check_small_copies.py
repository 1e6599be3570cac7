"""cp.async: a copy of a thread's own, through the generic proxy, that others see after a wait and a barrier."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import WORDS, source

from emugpu.check import Checker
from emugpu.check.findings import Finding
from emugpu.emulator import Device, EmulatorError, Module, TensorMap

COPY = """
mov.b32 %r3, words;
shl.b32 %r4, %r0, 4;
add.u32 %r5, %r3, %r4;
cvt.u64.u32 %rd1, %r4;
add.u64 %rd1, %rd0, %rd1;
setp.eq.u32 %p0, %r0, 0;
mov.b32 %r30, 0;
@%p0 mbarrier.init.shared.b64 [%r3+2048], 64;
st.shared.b32 [%r5], %r30;
bar.sync 0;
cp.async.cg.shared.global [%r5], [%rd1], 16;
{published}
xor.b32 %r6, %r5, 512;
{use}
ret;
"""
GROUP = "cp.async.commit_group;"
WAIT = "cp.async.wait_group 0;"
READ = "ld.shared.b32 %r7, [%r6];"
STORE = """
@!%p0 bra DONE;
cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [data, {%r30}], [%r3];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
DONE:
"""
SIGNAL = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r3+2048];"
AWAITED = "AGAIN: mbarrier.try_wait.parity.shared.b64 %p1, [%r3+2048], 0; @!%p1 bra AGAIN;"
PROXY = "fence.proxy.async.shared::cta;"


def errors(published: str, use: str, schedule: str, seed: int) -> list[Finding]:
    device = Device(schedule=schedule, seed=seed)
    out = device.upload(np.zeros(1024, np.uint32))
    other = TensorMap.tiled(device.alloc(1024), "u32", (256,), (256,))
    checker = Checker()
    try:
        device.launch(
            Module.from_text(source(COPY.format(published=published, use=use), WORDS, parameters=("map data",))),
            grid=1,
            block=64,
            arguments=[out, other],
            sinks=[checker],
        )
    except EmulatorError as error:
        checker.failed(error)
    return checker.report().errors


CASES = {
    "waited, then a barrier": (GROUP + WAIT + "bar.sync 0;", READ, set()),
    "all waited, in no group": ("cp.async.wait_all; bar.sync 0;", READ, set()),
    "no barrier": (GROUP + WAIT, READ, {"race-shared"}),
    "not waited": (GROUP + "bar.sync 0;", READ, {"race-shared"}),
    "the wait leaves one group": (GROUP + "cp.async.wait_group 1; bar.sync 0;", READ, {"race-shared"}),
    "an mbarrier": (SIGNAL + AWAITED, READ, set()),
    "an mbarrier nobody waits for": (SIGNAL, READ, {"race-shared"}),
    "stored by TMA": (GROUP + WAIT + PROXY + "bar.sync 0;", STORE, set()),
    "stored by TMA, no fence": (GROUP + WAIT + "bar.sync 0;", STORE, {"proxy-write-read"}),
    "own copy, waited": (GROUP + WAIT, "ld.shared.b32 %r7, [%r5];", set()),
    "own copy, not waited": (GROUP, "ld.shared.b32 %r7, [%r5];", {"race-shared"}),
}


@pytest.mark.parametrize(("published", "use", "expected"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_copies_of_a_thread(published, use, expected, seed):
    found = errors(published, use, "random" if seed else "fifo", seed)
    assert {finding.rule for finding in found} == expected


def test_a_fence_covers_copies_that_have_been_waited_for():
    published, use, _ = CASES["stored by TMA, no fence"]
    (finding,) = errors(published, use, "fifo", 0)
    assert "after the wait for it (cp.async.wait_group) by each thread that copies" in finding.fix


# ---- bulk copies without a tensor map ----

BULK = """
mov.b32 %r3, words;
shl.b32 %r4, %r0, 2;
add.u32 %r5, %r3, %r4;
setp.eq.u32 %p0, %r0, 0;
mov.b32 %r30, 0;
@%p0 mbarrier.init.shared.b64 [%r3+2048], 1;
st.shared.b32 [%r5], %r30;
{fence}
bar.sync 0;
{body}
ret;
"""
ARM = "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r3+2048], 256;"
LOAD = "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd0], 256, [%r3+2048];"
OWN_READ = "ld.shared.b32 %r7, [%r5];"
OUT = "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r3], 256; @%p0 cp.async.bulk.commit_group;"
READ_OVER = "@%p0 cp.async.bulk.wait_group.read 0;"
REWRITE = "bar.sync 0; st.shared.b32 [%r5], %r0;"
BULK_CASES = {
    "loaded and waited for": (PROXY, ARM + LOAD + AWAITED + OWN_READ, set()),
    "loaded, not waited for": (PROXY, ARM + LOAD + OWN_READ + AWAITED, {"race-shared"}),
    "stored": (PROXY, OUT + READ_OVER, set()),
    "stored without a fence": ("", OUT + READ_OVER, {"proxy-write-read"}),
    "stored, source reused": (PROXY, OUT + READ_OVER + REWRITE, set()),
    "stored, source reused early": (PROXY, OUT + REWRITE + READ_OVER, {"store-source-reused"}),
    "stored, exits": (PROXY, OUT, {"exit-pending"}),
}


@pytest.mark.parametrize(("fence", "body", "expected"), BULK_CASES.values(), ids=BULK_CASES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bulk_copies(fence, body, expected, seed):
    device = Device(schedule="random" if seed else "fifo", seed=seed)
    out = device.upload(np.zeros(1024, np.uint32))
    checker = Checker()
    device.launch(
        Module.from_text(source(BULK.format(fence=fence, body=body), WORDS)),
        grid=1,
        block=64,
        arguments=[out],
        sinks=[checker],
    )
    report = checker.report()
    assert {finding.rule for finding in (*report.errors, *report.warnings)} == expected
