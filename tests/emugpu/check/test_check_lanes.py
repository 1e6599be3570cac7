"""Lanes of one warp that hand data to one another through shared memory, with and without something to meet at."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handovers import FENCE, STORE, Table, only, outcome, target
from tensor_handovers import freed

OWN = "mov.b32 %r1, data; shl.b32 %r2, %lane, 2; add.u32 %r1, %r1, %r2; xor.b32 %r3, %r1, 4;"
"""%r1: the lane's word; %r3: its neighbour's."""
HALVES = "mov.b32 %r1, data; shl.b32 %r2, %lane, 1; add.u32 %r1, %r1, %r2; mov.b16 %h0, 1;"
WRITE, READ = "st.shared.b32 [%r1], %lane;", "ld.shared.b32 %r4, [%r3];"
SYNC = "bar.warp.sync -1;"
BULK = STORE.format(0, "data") + "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"
ALLOCATE = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;"
MATRICES = (
    "mov.b32 %r1, data; shl.b32 %r2, %lane, 4; add.u32 %r1, %r1, %r2; mov.b32 %r5, 1;"
    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r1], {{%r5, %r5, %r5, %r5}};"
    "{} ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r6, %r7, %r8, %r9}}, [%r1];"
)
MEETINGS = {
    "bar.warp.sync": SYNC,
    "shfl": "shfl.sync.idx.b32 %r9, %lane, 0, 31, -1;",
    "elect": "elect.sync %r9|%p1, -1;",
    "bar.sync": "bar.sync 0;",
    "none": "",
    "fence": "membar.cta;",
}
EXCHANGES = {
    "read": lambda meet: WRITE + meet + READ,
    "written over": lambda meet: WRITE + SYNC + READ + meet + WRITE,
    "by one lane, read by all": lambda meet: only("%lane eq 3", "st.shared.b32 [data], 7;") + meet
    + "ld.shared.b32 %r4, [data];",
    "stored": lambda meet: WRITE + FENCE + meet + only("%lane eq 0", BULK),
    "swapped twice": lambda meet: (WRITE + SYNC + READ + SYNC) * 2 + WRITE + meet + READ,
}  # fmt: skip
ALONE = {
    "its own word": WRITE + "ld.shared.b32 %r4, [%r1];",
    "its own half of a word": HALVES + "st.shared.b16 [%r1], %h0; ld.shared.u16 %h1, [%r1];",
    "one lane all along": only("%lane eq 0", "st.shared.b32 [data], 7; ld.shared.b32 %r4, [data];"),
    "all of them one word": "st.shared.b32 [data], 7; ld.shared.b32 %r4, [data];",
    "volatile": "st.volatile.shared.b32 [%r1], %lane; ld.volatile.shared.b32 %r4, [%r3];",
    "two lanes one word": "shr.u32 %r4, %lane, 1; shl.b32 %r5, %r4, 2; mov.b32 %r1, data; add.u32 %r1, %r1, %r5;"
    "st.shared.b32 [%r1], %r4; ld.shared.b32 %r6, [%r1];",
    "atomics": WRITE + SYNC + "atom.shared.add.u32 %r4, [%r1], 1; atom.shared.add.u32 %r4, [%r3], 1;",
}


RAISED = "@%p2 st.shared.b32 [data + 256], 0; bar.warp.sync -1;"
SPIN = "{}: {} %r6, [data + 256]; setp.ne.u32 %p4, %r6, {}; @%p4 bra {};"
FLAGS = {
    "release and acquire": "@!%p2 bra SEE; st.shared.b32 [data], 7; st.release.cta.shared.b32 [data + 256], 1; bra END;"
    + SPIN.format("SEE", "ld.acquire.cta.shared.b32", 1, "SEE") + "ld.shared.b32 %r5, [data]; END:",
    "acq_rel of all": WRITE + "atom.acq_rel.cta.shared.add.u32 %r6, [data + 256], 1;"
    + SPIN.format("SEE", "ld.acquire.cta.shared.b32", 32, "SEE") + READ,
    "fences": "@%p2 st.shared.b32 [data], 7; @%p2 membar.cta; @%p2 st.volatile.shared.b32 [data + 256], 1;"
    + SPIN.format("SEE", "ld.volatile.shared.b32", 1, "SEE") + "membar.cta; ld.shared.b32 %r5, [data];",
    "no fence": "@%p2 st.shared.b32 [data], 7; @%p2 st.volatile.shared.b32 [data + 256], 1;"
    + SPIN.format("SEE", "ld.volatile.shared.b32", 1, "SEE") + "ld.shared.b32 %r5, [data];",
}  # fmt: skip
"""Lanes that hand over by a flag."""


def together(*parts):
    """Meetings of some lanes, one after the other: (first, number) of each."""
    return "".join(
        f"sub.u32 %r5, %lane, {first}; setp.lt.u32 %p1, %r5, {number};"
        f"@%p1 bar.warp.sync {((1 << number) - 1) << first:#x};"
        for first, number in parts
    )


APART = "xor.b32 %r3, %r1, 64;" + WRITE
"""%r3: the word of a lane of the other half."""
READ_16 = only("%lane eq 0", "ld.shared.b32 %r4, [data + 64];")
PARTS = {
    "each half, its own words": WRITE + together((0, 16), (16, 16)) + READ,
    "each half, the words of the other": APART + together((0, 16), (16, 16)) + READ,
    "each half, then all": APART + together((0, 16), (16, 16)) + SYNC + READ,
    "each half writes over what the other has read": APART + SYNC + READ + together((0, 16), (16, 16)) + WRITE,
    "lane 16 is met through others": WRITE + together((8, 16), (0, 16)) + READ_16,
    "lane 16 is met too late": WRITE + together((0, 16), (8, 16)) + READ_16,
    "lane 16 writes again": WRITE + together((0, 32)) + only("%lane eq 16", WRITE) + together((0, 16)) + READ_16,
}
UNMET = (
    "each half, the words of the other", "each half writes over what the other has read", "lane 16 is met too late",
    "lane 16 writes again",
)  # fmt: skip
"""The PTX ISA says of bar.warp.sync that it orders accesses among the lanes of its mask."""

WARP = dict(threads=32, arguments=target)
TABLES = [
    Table("exchange", dict(meet=tuple(MEETINGS), exchange=tuple(EXCHANGES)),
          lambda s: OWN + EXCHANGES[s.exchange](MEETINGS[s.meet]),
          lambda s: outcome(s.meet in ("none", "fence") and "race-lanes"), **WARP),
    Table("parts", dict(form=tuple(PARTS)), lambda s: OWN + PARTS[s.form],
          lambda s: outcome(s.form in UNMET and "race-lanes"), **WARP),
    Table("alone", dict(form=tuple(ALONE)), lambda s: OWN + ALONE[s.form], lambda s: outcome(), **WARP),
    Table("by a flag", dict(form=tuple(FLAGS)), lambda s: OWN + "setp.eq.u32 %p2, %lane, 0;" + RAISED + FLAGS[s.form],
          lambda s: outcome(s.form == "no fence" and "race-lanes"), **WARP),
    Table("matrices", dict(meet=(SYNC, "")), lambda s: MATRICES.format(s.meet),
          lambda s: outcome(not s.meet and "race-lanes"), **WARP),
    Table("the address of tensor memory", dict(meet=(SYNC, "")),
          lambda s: ALLOCATE + s.meet + "ld.shared.b32 %r10, [slot];" + freed(1),
          lambda s: outcome(not s.meet and "race-lanes"), **WARP),
]  # fmt: skip


ALL_WARNINGS = ("matrices", "the address of tensor memory")
SEVERE = Table("severity", dict(meet=("bar.warp.sync", "none"), exchange=tuple(EXCHANGES)),
               lambda s: OWN + EXCHANGES[s.exchange](MEETINGS[s.meet]),
               lambda s: outcome(s.meet == "none" and s.exchange != "stored" and "race-lanes"), **WARP)  # fmt: skip


@pytest.mark.parametrize("table", [SEVERE, TABLES[1], *TABLES[3:]], ids=lambda table: table.name)
def test_only_between_loads_and_stores_of_lanes_it_is_an_error(table):
    if table.name in ALL_WARNINGS:
        table = replace(table, expected=lambda s: outcome())
    assert not table.disagreements("sm_100a")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_table(table):
    found = table.disagreements("sm_100a", warnings=True)
    assert not found, f"{len(found)} settings:\n" + "\n".join(found)
