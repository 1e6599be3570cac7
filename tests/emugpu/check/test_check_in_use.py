"""What asynchronous operations use besides data: tensor maps until the copies are over, mbarriers until the signals."""

from __future__ import annotations

import pytest
from handovers import BOX, CTA_BARRIER, LOAD, Table, only, outcome, wait, words
from test_check_tensor_maps import ACQUIRE, RELEASE, REPLACE, maps

from emugpu.emulator import Device, Module

ZEROS = "mov.b32 %r1, data; shl.b32 %r2, %thread, 4; add.u32 %r1, %r1, %r2; st.shared.v4.b32 [%r1], {0, 0, 0, 0};"
INIT = (
    ZEROS
    + "fence.proxy.async.shared::cta;"
    + CTA_BARRIER
    + only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars], 1;")
    + CTA_BARRIER
)
EXPECT = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [bars], {4 * BOX};"
COPY = LOAD.format(0, "data", "bars")
STORE = """
mov.b32 %r20, 0;
cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%m0, {%r20}], [data];
cp.async.bulk.commit_group;
"""
STORED = "cp.async.bulk.wait_group{} 0;"
EDITS = {
    "replace": REPLACE.format("global", "%m0"),
    "st": "ld.global.b64 %d1, [%m0+32]; st.global.b64 [%m0+32], %d1;",
    "bulk copy": "cp.async.bulk.global.shared::cta.bulk_group [%m0+64], [data+512], 16; cp.async.bulk.commit_group;",
}


def reused_map(s) -> str:
    """A thread copies through a map, then changes the map, itself or by another thread after a barrier."""
    copy = EXPECT + COPY if s.copy == "load" else STORE
    waited = wait("bars") if s.copy == "load" else STORED.format(".read")
    edit = EDITS[s.edit] + (STORED.format("") if s.edit == "bulk copy" else "")
    drain = wait("bars") if s.copy == "load" else STORED.format("")
    first = INIT + only("%thread eq 0", ACQUIRE.format("sys", "%m0") + copy + (waited if s.waits else ""))
    between = CTA_BARRIER if s.editor else ""
    return first + between + only(f"%thread eq {s.editor}", edit + RELEASE.format("gpu")) + only("%thread eq 0", drain)


def invalidated_mbarrier(s) -> str:
    """A thread issues a copy that will signal an mbarrier, and another one invalidates the mbarrier.

    Between the two the first thread waits for a second copy, so that the first copy has landed in the run.
    """
    first = INIT + only("%thread eq 0", EXPECT + COPY + (wait("bars") if s.waits else ""))
    second = (EXPECT + COPY).replace("[bars]", "[bars+8]").replace("[data]", "[data+1024]")
    return (
        first
        + only("%thread eq 0", "mbarrier.init.shared::cta.b64 [bars+8], 1;" + second + wait("bars+8"))
        + CTA_BARRIER
        + only("%thread eq 32", "mbarrier.inval.shared::cta.b64 [bars];")
    )


TABLES = [
    Table(
        "tensor map changed while a copy may read it",
        dict(waits=(True, False), copy=("load", "store"), edit=tuple(EDITS), editor=(0, 32)),
        reused_map,
        lambda s: outcome(not s.waits and "tensormap"),
        arguments=maps,
        targets=("sm_100a", "sm_90a"),
    ),
    Table(
        "mbarrier invalidated before a signal",
        dict(waits=(True, False)),
        invalidated_mbarrier,
        lambda s: outcome(*["init", "peer-exited"] * (not s.waits)),
        arguments=words,
        targets=("sm_100a", "sm_90a"),
    ),
]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table(table):
    found = table.disagreements(table.targets[0])
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)


@pytest.mark.parametrize("copy, says", [("load", "the mbarrier that counts"), ("store", "cp.async.bulk.wait_group")])
def test_the_finding_names_the_wait_that_is_missing(copy, says):
    table = TABLES[0]
    number = next(n for n, s in enumerate(table.settings) if (s.waits, s.copy, s.edit) == (False, copy, "replace"))
    report, _ = table.report(Device(), Module.from_text(table.text("sm_100a")), f"setting{number}")
    (found,) = report.errors
    assert "may still read" in found.message
    assert "completion of the copy" in found.missing
    assert says in found.fix
    assert "cp.async.bulk.tensor" in found.first.text
    assert "tensormap.replace" in found.second.text
