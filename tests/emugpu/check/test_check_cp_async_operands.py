"""Operands that cp.async and st.async bring, and that wgmma and tcgen05.mma read through the async proxy.

Both write through the generic proxy (PTX ISA, cp.async and st.async), so the multiplication needs a proxy fence.
CUTLASS's main loops and FlashMLA's decode on Hopper have none and run well, so its absence is a warning, if the copies
are over and visible.
"""

from __future__ import annotations

import pytest
from handovers import CTA_BARRIER, FENCE, Outcome, Table, only, outcome, wait
from tensor_handovers import A_BYTES, B_BYTES, WGMMA, WGMMA_A_BYTES, allocated, commit, freed, initialise, mma
from test_check_careless import OWN

from emugpu.emulator import Device, Module

GROUP = "cp.async.commit_group; cp.async.wait_group 0;"
COMPLETIONS = {
    "group": GROUP + CTA_BARRIER,
    "mbarrier": "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [bars+8];" + wait("bars+8"),
    "not waited": "cp.async.commit_group;" + CTA_BARRIER,
    "no barrier": GROUP,
}
COPY = "cp.async.ca.shared.global [%r1+{0}], [%d4+{0}], 4;"
STORE = "st.shared.b32 [%r1+{0}], %r9;"
SEND = (
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bars+8], 4; mov.b32 %r20, bars; add.s32 %r20, %r20, 8;"
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1+{0}], %r9, [%r20];"
)
SENT = "mbarrier.arrive.shared::cta.b64 _, [bars+8];" + wait("bars+8")


def filled(nbytes: int, write: str) -> str:
    """128 threads clear the operands, and then write them."""
    each = range(0, nbytes, 512)
    clear = "mov.b32 %r9, 0;" + "".join(STORE.format(at) for at in each) + FENCE + CTA_BARRIER
    source = "cvt.u64.u32 %d4, %r2; add.s64 %d4, %d4, %m0;"
    return OWN + only("%thread eq 0", initialise(1, 128)) + clear + source + "".join(write.format(at) for at in each)


def by_wgmma(s, write: str = COPY) -> str:
    zeros = "".join(f"mov.f32 %f{n}, 0f00000000;" for n in range(4))
    multiply = WGMMA + "wgmma.wait_group.sync.aligned 0; add.f32 %f4, %f0, %f1;"
    return zeros + filled(WGMMA_A_BYTES + 512, write) + COMPLETIONS.get(s.completion, s.completion) + s.fence + multiply


def by_tcgen05(s, write: str = COPY) -> str:
    multiply = only("%thread eq 0", mma(1, 128, 16) + commit("bars")) + wait("bars")
    written = filled(A_BYTES + B_BYTES, write) + COMPLETIONS.get(s.completion, s.completion)
    return allocated(1) + written + s.fence + multiply + CTA_BARRIER + freed(1)


def is_over(s) -> bool:
    return s.completion in ("group", "mbarrier")


def errors(s) -> Outcome:
    return outcome(not is_over(s) and "stage-read-early|stage-refilled-early")


def array(device: Device) -> list[int]:
    return [device.upload(bytes(8192))]


def table(name: str, body, target: str) -> Table:
    switches = {"completion": tuple(COMPLETIONS), "fence": (FENCE, "")}
    return Table(name, switches, body, errors, threads=128, targets=(target,), arguments=array)


TABLES = [table("wgmma of copies", by_wgmma, "sm_90a"), table("tcgen05.mma of copies", by_tcgen05, "sm_100a")]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_fence_after_copies_is_no_error(table):
    found = table.disagreements(table.targets[0], [("fifo", 0), ("random", 1)])
    assert not found, "\n".join(found)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_its_absence_is_a_warning(table):
    module = Module.from_text(table.text(table.targets[0]))
    for number, setting in enumerate(table.settings):
        if is_over(setting):
            report, _ = table.report(Device(), module, f"setting{number}")
            expected = set() if setting.fence else {"proxy-write-read"}
            assert {finding.rule for finding in report.warnings} == expected


@pytest.mark.parametrize(("body", "target"), [(by_wgmma, "sm_90a"), (by_tcgen05, "sm_100a")])
def test_after_stores_of_threads_it_is_an_error(body, target):
    stored = table("stores", lambda s: body(s, STORE), target)
    report, _ = stored.report(Device(), Module.from_text(stored.text(target, 2)), "setting1")
    assert {finding.rule for finding in report.errors} == {"proxy-write-read"}


@pytest.mark.parametrize(("body", "target"), [(by_wgmma, "sm_90a"), (by_tcgen05, "sm_100a")])
def test_what_st_async_has_brought_is_a_warning(body, target):
    sent = Table("sent", {"completion": (SENT,), "fence": (FENCE, "")}, lambda s: body(s, SEND), lambda s: outcome(),
                 threads=128, targets=(target,), arguments=array, grid=2, cluster=2)  # fmt: skip
    module = Module.from_text(sent.text(target))
    for number, expected in enumerate((set(), {"proxy-write-read"})):
        report, end = sent.report(Device(), module, f"setting{number}")
        assert (report.errors, {finding.rule for finding in report.warnings}, end) == ((), expected, "ends")
