"""Events of asynchronous copies: boxes, groups of them, single words, and tensor maps in global memory."""

from __future__ import annotations

import numpy as np
import pytest
from event_programs import COPY_SINGLY, ROOM, told_of_a_map_in_memory
from event_streams import FIRST_WORD, SCHEDULES, of, stream
from ptx_programs import WORDS, launch

from emugpu.emulator import Device, TensorMap
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import (
    Agent,
    Awaited,
    BytesLanded,
    Committed,
    Fenced,
    Finished,
    GlobalBox,
    Issued,
    Started,
)

COPY = """
mov.b32 %r3, words;
add.u32 %r4, %r3, 256;
mov.u32 %r5, %cluster_ctarank;
mov.b64 %rd4, from; cvta.param.u64 %rd4, %rd4;
mov.b64 %rd5, to; cvta.param.u64 %rd5, %rd5;
setp.eq.u32 %p1, %r0, 0;
setp.eq.and.u32 %p2, %r5, 0, %p1;
mov.b16 %rs1, 3;
mov.b32 %r6, 16;
shl.b32 %r7, %r5, 5;
@%p1 mbarrier.init.shared.b64 [%r4], 1;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 128;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
@%p2 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
[%r3], [%rd4, {%r6}], [%r4], %rs1;
AGAIN: mbarrier.try_wait.parity.shared.b64 %p3, [%r4], 0; @!%p3 bra AGAIN;
@%p1 cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd5, {%r7}], [%r3];
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd5, {%r7}], [%r3];
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group.read 1;
@%p1 cp.async.bulk.wait_group 0;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
ret;
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s[0])
def test_boxes_tell_where_they_come_from_and_where_they_land(watched, schedule):
    name, seed = schedule
    device = Device(schedule=name, seed=seed)
    source, target = device.upload(np.arange(40, dtype=np.uint32)), device.alloc(256)
    maps = [TensorMap.tiled(source, "u32", (40,), (32,)), TensorMap.tiled(target, "u32", (64,), (32,))]
    shape = dict(grid=2, cluster=2, parameters=["map from", "map to"])
    seen = stream(COPY, arguments=maps, device=device, **shape)
    watched.check()

    load, *stores = [e.operation for e in of(seen, Issued)]
    assert load.kind == "tma.load" and load.agent == Agent(0, 0, 0, 1)
    assert load.reads == (GlobalBox(maps[0], (16,)),)
    assert [(r.cta, r.chunks.tolist()) for r in load.writes] == [(cta, list(range(64, 72))) for cta in range(2)]
    assert load.detail == {"offset": FIRST_WORD, "signals": ((0, FIRST_WORD + 256), (1, FIRST_WORD + 256))}
    of_load = [e for e in of(seen, Started, Finished, BytesLanded) if e.operation is load]
    assert [type(e) for e in of_load] == [Started, Finished, BytesLanded, Finished, BytesLanded]
    for finished, landed in zip(of_load[1::2], of_load[2::2], strict=True):
        (region,) = finished.regions
        assert (landed.cta, landed.offset, landed.phase, landed.nbytes) == (region.cta, FIRST_WORD + 256, 0, 128)

    assert sorted((s.kind, s.agent.cta, s.detail["group"]) for s in stores) == [
        ("tma.store", cta, (0, number)) for cta in range(2) for number in range(2)
    ]
    for cta in range(2):
        mine = [s for s in stores if s.agent.cta == cta]
        for store in mine:
            assert store.reads[0].cta == cta and store.writes == (GlobalBox(maps[1], (32 * cta,)),)
            life = [e for e in of(seen, Issued, Started, Finished) if e.operation is store]
            assert [type(e) for e in life] == [Issued, Started, Finished]
        commits = [e for e in of(seen, Committed) if e.agent.cta == cta]
        assert [(e.kind, e.groups) for e in commits] == [("bulk", ((0, 0),)), ("bulk", ((0, 1),))]
        waits = [e for e in of(seen, Awaited) if e.agent.cta == cta]
        assert [(e.kind, e.groups, e.reads_only) for e in waits] == [
            ("bulk", ((0, 0),), True),
            ("bulk", ((0, 1),), False),
        ]
        of_first = [e for e in of(seen, Started, Finished) if e.operation is mine[0]]
        assert seen.index(of_first[0]) < seen.index(waits[0])
        finished = [e for e in of(seen, Finished) if e.operation in mine]
        assert all(seen.index(e) < seen.index(waits[1]) for e in finished)


MOVE = """
mov.b32 %r3, words;
add.u32 %r4, %r3, 2048;
mov.b64 %rd4, from; cvta.param.u64 %rd4, %rd4;
mov.b64 %rd5, to; cvta.param.u64 %rd5, %rd5;
setp.eq.u32 %p1, %r0, 0; @!%p1 bra DONE;
mov.b32 %r6, -4;
mov.b32 %r7, -3;
mov.b32 %r8, 12;
mov.b32 %r9, 2;
mbarrier.init.shared.b64 [%r4], 1;
mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 256;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd4, {%r6, %r7}], [%r4];
AGAIN: mbarrier.try_wait.parity.shared.b64 %p3, [%r4], 0; @!%p3 bra AGAIN;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd5, {%r8, %r9}], [%r3];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE: ret;
"""


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_boxes_that_reach_beyond_the_tensor_can_be_rebuilt(watched, swizzle):
    """Rows of 32 bytes, of which longer spans of a swizzle leave the rest untouched."""
    device = Device()
    source, target = device.upload(np.arange(1, 161, dtype=np.uint32)), device.alloc(4 * 16 * 8)
    maps = [
        TensorMap.tiled(source, "u32", (10, 16), (8, 8), swizzle),
        TensorMap.tiled(target, "u32", (8, 16), (8, 8), swizzle),
    ]
    launch(MOVE, module_scope=WORDS, parameters=["map from", "map to"], arguments=maps, device=device)
    watched.check()
    moved = watched.replays[0].device[target]
    expected = np.zeros((8, 8), np.uint32)
    expected[3:, 4:] = np.arange(1, 161).reshape(10, 16)[:5, :4]
    assert np.array_equal(moved.data.view(np.uint32).reshape(8, 16)[2:, 12:], expected[:6, :4])
    assert np.count_nonzero(moved.valid) == 4 * 6 * 4


def test_small_copies_are_replayed(watched):
    stream(COPY_SINGLY.replace("ret;", "bar.sync 0; ld.shared.b32 %r5, [%r4]; ret;"), module_scope=ROOM)
    watched.check()


def test_a_copy_tells_of_its_tensor_map_in_global_memory_and_a_fence_of_its_address():
    at, seen = told_of_a_map_in_memory()
    (fence,), (read,) = of(seen, Fenced), of(seen, events.TensorMapRead)
    assert (fence.address, read.address, read.agent.lanes) == (at, at, 1)
