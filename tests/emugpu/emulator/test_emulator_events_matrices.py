"""Events of multiplications and of tensor memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from event_programs import CORE_MATRICES, MULTIPLY, ROOM
from event_streams import FIRST_WORD, SCHEDULES, of, one, stream
from ptx_programs import ALLOCATE, FREE, STORE_R1

from emugpu.emulator.machine.events import (
    Access,
    Awaited,
    Committed,
    Fenced,
    Finished,
    Issued,
    PhaseCompleted,
    RegisterBlock,
    Signalled,
    Started,
    TensorBlock,
    TensorMemoryAllocated,
    TensorMemoryFreed,
    TensorMemoryRelinquished,
    TensorMemoryWaited,
)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s[0])
def test_multiplications_and_tensor_memory_tell_what_they_touch(watched, schedule):
    """D is 128 x 8; A and B hold ones, and the product is added twice."""
    name, seed = schedule
    body = MULTIPLY + STORE_R1 + "ret;"
    seen = stream(body, module_scope=ROOM, schedule=name, seed=seed)
    watched.check()
    assert [a.values.view(np.float32).tolist() for a in of(seen, Access) if a.space == "global"] == [[32.0] * 32]

    allocated = one(seen, TensorMemoryAllocated)
    assert (allocated.column, allocated.columns) == (0, 32)
    told = seen[seen.index(allocated) + 1]
    assert told[2:] == ("write", "shared", 0, FIRST_WORD + 6144 + 16, 4, 1, 0)
    assert one(seen, TensorMemoryFreed)[2:] == (0, 32)
    assert seen.index(one(seen, TensorMemoryRelinquished)) < seen.index(one(seen, TensorMemoryFreed))

    first, second, commit, *tensor = [e.operation for e in of(seen, Issued)]
    d = TensorBlock(0, range(128), range(8))
    for multiplication, reads_d in ((first, False), (second, True)):
        assert multiplication.kind == "mma" and multiplication.agent.lanes == 1
        assert multiplication.writes == (d,)
        assert multiplication.detail["mma"].accumulate == reads_d and multiplication.detail["ctas"] == (0,)
        a, b, *more = multiplication.reads
        assert sorted(a.chunks.ravel().tolist()) == list(range(64, 64 + 256)) and a.cta == 0
        assert sorted(b.chunks.ravel().tolist()) == list(range(64 + 256, 64 + 272)) and b.cta == 0
        assert more == [d] * reads_d
        life = [type(e) for e in of(seen, Issued, Started, Finished) if e.operation is multiplication]
        assert life == [Issued, Started, Finished]
    assert (commit.kind, commit.detail) == ("commit", {"signals": ((0, FIRST_WORD + 6144),)})
    signalled = one(seen, Signalled)
    assert signalled == (commit, 0, FIRST_WORD + 6144, 0)
    assert isinstance(seen[seen.index(signalled) + 1], PhaseCompleted)
    done = [seen.index(e) for e in of(seen, Finished) if e.operation in (first, second)]
    assert max(done) < seen.index(signalled)

    loads, stores = tensor[:2], tensor[2:]
    blocks = [TensorBlock(0, range(32), range(4)), TensorBlock(0, range(32), range(7, 8))]
    assert [(o.kind, o.reads) for o in loads] == [("tmem.load", (block,)) for block in blocks]
    blocks = [TensorBlock(0, range(32), range(16, 18)), TensorBlock(0, range(16), range(20, 28))]
    assert [(o.kind, o.writes) for o in stores] == [("tmem.store", (block,)) for block in blocks]
    waits = of(seen, TensorMemoryWaited)
    assert [(e.kind, list(e.operations)) for e in waits] == [("ld", loads), ("st", stores)]
    for wait in waits:
        for operation in wait.operations:
            life = [e for e in of(seen, Issued, Started, Finished) if e.operation is operation]
            expected = Started if wait.kind == "ld" else Finished
            assert [type(e) for e in life] == [Issued, expected] and seen.index(life[1]) < seen.index(wait)


def test_a_multiplication_that_leaves_lanes_alone_can_be_rebuilt(watched):
    body = MULTIPLY + STORE_R1 + "ret;"
    before = "@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd4, %rd5, %r7, %p1;"
    assert before in body
    masked = before.replace("%r7, %p1", "%r7, {%r30, %r31, %r31, %r30}, %p1")
    seen = stream(body.replace(before, "mov.b32 %r30, 5; mov.b32 %r31, 0;" + masked), module_scope=ROOM)
    watched.check()
    (out,) = [a for a in of(seen, Access) if a.space == "global"]
    assert out.values.view(np.float32).tolist() == [16.0, 32.0, 16.0, *[32.0] * 29]


@pytest.mark.parametrize("seed", range(4))
def test_a_load_from_tensor_memory_that_is_read_before_its_wait_starts_once(seed):
    body = f"""
    {ALLOCATE}
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {{%r0}};
    tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r20}}, [%r2];
    mov.b32 %r1, %r20;
    tcgen05.wait::ld.sync.aligned;
    {FREE}
    """
    seen = stream(body + STORE_R1 + "ret;", schedule="random", seed=seed)
    (load,) = [e.operation for e in of(seen, Issued) if e.operation.kind == "tmem.load"]
    assert [type(e) for e in of(seen, Issued, Started) if e.operation is load] == [Issued, Started]


def test_the_use_of_a_register_before_the_wait_for_its_load_is_told():
    load = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r0}; tcgen05.wait::st.sync.aligned;"
    load += "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r2];"
    seen = stream(ALLOCATE + load + "add.u32 %r4, %r1, 1;" + FREE + "ret;")
    _, use = of(seen, TensorMemoryWaited)
    assert (use.kind, use.site.opcode) == ("use", "add")
    assert [o.kind for o in use.operations] == ["tmem.load"]


WARPGROUP = f"""
{{
.reg .f32 %d<4>;
mov.b32 %r3, words;
shl.b32 %r4, %r0, 4; add.u32 %r4, %r4, %r3;
mov.b32 %r5, 0;
st.shared.v4.b32 [%r4], {{%r5, %r5, %r5, %r5}};
st.shared.v4.b32 [%r4+2048], {{%r5, %r5, %r5, %r5}};
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r8, %r3, 4;
cvt.u64.u32 %rd4, %r8;
or.b64 %rd4, %rd4, {CORE_MATRICES};
add.u64 %rd5, %rd4, 128;
setp.eq.u32 %p2, %r0, 999;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%d0, %d1, %d2, %d3}}, %rd4, %rd5, %p2, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%d0, %d1, %d2, %d3}}, %rd4, %rd5, 1, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 1;
wgmma.wait_group.sync.aligned 0;
mov.b32 %r1, %d3;
}}
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s[0])
def test_multiplications_of_a_warpgroup_tell_what_they_touch(watched, schedule):
    name, seed = schedule
    body = WARPGROUP + STORE_R1 + "ret;"
    seen = stream(body, threads=128, target="sm_90a", schedule=name, seed=seed)
    watched.check()
    first, second = dict.fromkeys(e.operation for e in of(seen, Issued))
    for operation in (first, second):
        assert operation.kind == "wgmma"
        assert {"form", "a", "b", "keep"} <= operation.detail.keys()
        assert operation.detail["keep"] == (operation is second)
        a, b = operation.reads
        assert sorted(a.chunks.ravel().tolist()) == list(range(64, 64 + 128))
        assert sorted(b.chunks.ravel().tolist()) == list(range(64 + 128, 64 + 144))
        names = ("%d0", "%d1", "%d2", "%d3")
        assert operation.writes == tuple(RegisterBlock(warp, names) for warp in range(4))
        life = [type(e) for e in of(seen, Started, Finished) if e.operation is operation]
        assert life == [Started, Finished]
    for warp in range(4):
        commits = [e for e in of(seen, Committed) if e.agent.warp == warp]
        assert [(e.kind, e.groups) for e in commits] == [("wgmma", ((-1, 0),)), ("wgmma", ((-1, 1),))]
        waits = [e for e in of(seen, Awaited) if e.agent.warp == warp]
        assert [(e.kind, e.groups, e.reads_only) for e in waits] == [
            ("wgmma", ((-1, 0),), False),
            ("wgmma", ((-1, 1),), False),
        ]
        for operation, wait in zip((first, second), waits, strict=True):
            (finished,) = [e for e in of(seen, Finished) if e.operation is operation]
            assert seen.index(finished) < seen.index(wait)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s[0])
def test_every_warp_of_a_warpgroup_tells_that_it_issues_a_multiplication(schedule):
    """Otherwise nobody could tell between which fences and commits of a warp it stands."""
    name, seed = schedule
    body = WARPGROUP + STORE_R1 + "ret;"
    seen = stream(body, threads=128, target="sm_90a", schedule=name, seed=seed)
    for warp in range(4):
        told = [e for e in of(seen, Issued, Fenced, Committed) if e.agent.warp == warp and not is_proxy_fence(e)]
        assert [type(e) for e in told] == [Fenced, Issued, Committed, Issued, Committed]
    assert len({e.operation for e in of(seen, Issued)}) == 2


def is_proxy_fence(event: Any) -> bool:
    return isinstance(event, Fenced) and "proxy" in event.site.modifiers
