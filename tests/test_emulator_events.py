"""The event stream of a run: complete, in order, and only made for those who listen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from conftest import SERIES
from kernel_runs import cluster_tile, run
from ptx_programs import ALLOCATE, FREE, STORE_R1, WORDS, launch
from replay import Contents, Memories, Replay

from harness.config import make_config
from harness.emulator import Device
from harness.emulator.machine import lifetime
from harness.emulator.machine.events import (
    Access,
    Agent,
    Arrived,
    Awaited,
    BarrierInit,
    BarrierInvalidated,
    BytesLanded,
    ClusterEnded,
    Committed,
    CtaEnded,
    CtaStarted,
    Diverged,
    Exited,
    Fenced,
    Finished,
    GlobalBox,
    GridStarted,
    GroupArrived,
    GroupCompleted,
    GroupLeft,
    Issued,
    PhaseCompleted,
    Polled,
    RegisterBlock,
    RegistersSet,
    Rejoined,
    Resumed,
    SharedBytes,
    Signalled,
    Site,
    Started,
    Suspended,
    TensorBlock,
    TensorMemoryAllocated,
    TensorMemoryFreed,
    TensorMemoryRelinquished,
    TensorMemoryWaited,
    Waited,
    WarpSynced,
)

# ---- everything can be rebuilt ----


@dataclass
class Watched:
    """The replays of the launches of a test, and what the machine held itself."""

    replays: list[Replay] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    ended: dict[tuple[int, int], Memories] = field(default_factory=dict)

    def check(self) -> None:
        """Every byte that was written, and no other, is in the replay."""
        ((replay, device),) = zip(self.replays, self.devices, strict=True)
        assert replay.ended.keys() == self.ended.keys()
        for name, held in self.ended.items():
            assert replay.ended[name].shared.differences(held.shared) == "", f"shared memory of CTA {name}"
            assert replay.ended[name].tensor.differences(held.tensor) == "", f"tensor memory of CTA {name}"
        for base, held in device_contents(device).items():
            assert replay.device[base].differences(held) == "", f"global memory at {base:#x}"


def device_contents(device: Device) -> dict[int, Contents]:
    """A copy of every allocation, by its first address."""
    found = {}
    for block in device._memory.allocations:
        valid = np.ones(block.data.size, np.bool_) if block.valid is None else block.valid.copy()
        found[block.base] = Contents(block.data.copy(), valid)
    return found


@pytest.fixture
def watched(monkeypatch) -> Watched:
    """Every launch is replayed, and the memories of every CTA are kept when it ends."""
    seen = Watched()
    launch, leave = Device.launch, lifetime.exit

    def launch_and_replay(device: Device, *arguments: Any, sinks=(), **options: Any):
        replay = Replay(device_contents(device))
        seen.replays.append(replay)
        seen.devices.append(device)
        return launch(device, *arguments, sinks=[*sinks, replay], **options)

    def leave_and_keep(f, site) -> None:
        cta = f.cta
        leave(f, site)
        if cta.exited:
            cta.tmem.settle()
            shared = Contents(cta.shared.data.copy(), cta.shared.valid.copy())
            tensor = Contents(cta.tmem.data.copy(), cta.tmem.valid.copy())
            seen.ended[cta.cluster.number, cta.rank] = Memories(shared, tensor)

    monkeypatch.setattr(Device, "launch", launch_and_replay)
    monkeypatch.setattr(lifetime, "exit", leave_and_keep)
    return seen


REPLAYED = {
    **{f"{kernel} 2x1": config for kernel, config in SERIES.items()},
    **{f"kernel6 {x}x{y}": make_config("kernel6", cluster=(x, y)) for x, y in ((2, 2), (4, 2))},
    **{f"{kernel} sm_90a": make_config(kernel, arch="sm_90a") for kernel in SERIES},
}
SCHEDULES = [("fifo", 0), ("random", 1)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s[0])
@pytest.mark.parametrize("config", REPLAYED.values(), ids=REPLAYED)
def test_the_stream_is_enough_to_rebuild_every_memory(watched, common, config, schedule):
    """The problem is ragged, and the clusters at its end are partly outside of it."""
    m, n = cluster_tile(config)
    name, seed = schedule
    _, verdict = run(common[config], (m - 37, n + 8, 200), "integer", schedule=name, seed=seed)
    assert verdict.passed
    watched.check()


WITHHELD = {
    "a box that has landed": lambda e: isinstance(e, Finished) and e.operation.kind == "tma.load",
    "a box that is stored": lambda e: isinstance(e, Finished) and e.operation.kind == "tma.store",
    "a multiplication": lambda e: isinstance(e, Started) and e.operation.kind == "mma",
    "the writes of a warp": lambda e: isinstance(e, Access) and e.site.opcode == "stmatrix",
    "the address of tensor memory": lambda e: isinstance(e, Access) and e.site.opcode == "tcgen05",
}


@pytest.mark.parametrize("withheld", WITHHELD.values(), ids=WITHHELD)
def test_a_replay_notices_that_one_event_is_missing(watched, series, monkeypatch, withheld):
    take, missing = Replay.__call__, []

    def take_all_but_one(replay: Replay, event: Any) -> None:
        if withheld(event) and not missing:
            missing.append(event)
        else:
            take(replay, event)

    monkeypatch.setattr(Replay, "__call__", take_all_but_one)
    with pytest.raises((AssertionError, KeyError)):
        run(series["kernel6"], (256, 256, 64), "integer")
        watched.check()
    assert missing


# ---- small programs ----

FIRST_WORD = 0x400
"""Offset of `WORDS` in shared memory."""
WHOLE_WARP = 0xFFFF_FFFF


def stream(body: str, **options: Any) -> list[Any]:
    """The events of a run, with `WORDS` in shared memory."""
    seen: list[Any] = []
    launch(body, sinks=[seen.append], **{"module_scope": WORDS, **options})
    return seen


def of(seen: list[Any], *kinds: type) -> list[Any]:
    return [event for event in seen if isinstance(event, kinds)]


def one(seen: list[Any], kind: type) -> Any:
    (event,) = of(seen, kind)
    return event


def instruction(event: Any) -> Site | None:
    """What a thread has executed, if the event is of that."""
    if isinstance(event, Issued):
        return event.operation.site
    return None if isinstance(event, Suspended) else getattr(event, "site", None)


def who(event: Any) -> Agent:
    return event.operation.agent if isinstance(event, Issued) else event.agent


def executed(seen: list[Any], cta: int = 0, warp: int = 0) -> list[tuple[str, str]]:
    """What a warp has done, in order: instruction as far as its first modifier, and the event that told of it."""
    done = []
    for event in seen:
        site = instruction(event)
        if site is not None and (who(event).cta, who(event).warp) == (cta, warp):
            done.append((".".join([site.opcode, *site.modifiers[:1]]), type(event).__name__))
    return done


# ---- order ----

EVERYTHING_A_THREAD_DOES = """
mov.b32 %r3, words;
shl.b32 %r4, %r0, 4;
add.u32 %r4, %r4, %r3;
add.u32 %r5, %r3, 3072;
st.shared.v4.b32 [%r4], {%r0, %r0, %r0, %r0};
bar.warp.sync -1;
ld.shared.v2.b32 {%r6, %r7}, [%r4+8];
stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r4], {%r6, %r6, %r6, %r6};
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r8, %r9, %r10, %r11}, [%r4];
shfl.sync.idx.b32 %r12, %r6, 0, 31, -1;
vote.sync.ballot.b32 %r12, %p0, -1;
elect.sync %r13|%p1, -1;
@%p1 mbarrier.init.shared.b64 [%r5], 1;
fence.mbarrier_init.release.cluster;
@%p1 mbarrier.expect_tx.relaxed.cta.shared.b64 [%r5], 16;
@%p1 mbarrier.complete_tx.relaxed.cta.shared.b64 [%r5], 16;
@%p1 mbarrier.arrive.shared.b64 %rd5, [%r5];
mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0;
mbarrier.test_wait.parity.shared.b64 %p2, [%r5], 0;
@%p1 mbarrier.inval.shared.b64 [%r5];
bar.arrive 1, 64;
bar.sync 0;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group.read 0;
@%p1 atom.shared.add.u32 %r14, [%r3], 1;
red.global.add.u32 [%rd0], 1;
st.global.b32 [%rd0], %r3;
ld.global.b32 %r6, [%rd0];
membar.cta;
ret;
"""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s[0])
def test_the_events_of_a_warp_come_in_program_order(schedule):
    """The second warp does the same as the first, each with a half of shared memory."""
    name, seed = schedule
    body = EVERYTHING_A_THREAD_DOES.replace("shl.b32 %r4, %r0, 4;", "and.b32 %r4, %r0, 31; shl.b32 %r4, %r4, 4;")
    body = body.replace("mov.b32 %r3, words;", "shr.u32 %r3, %r0, 5; shl.b32 %r3, %r3, 9; add.u32 %r3, %r3, words;")
    body = body.replace("add.u32 %r5, %r3, 3072;", "add.u32 %r5, %r3, 2048;")
    seen = stream(body, threads=64, initial=np.zeros(1), schedule=name, seed=seed)
    expected = [
        ("ld.param", "Access"),
        ("st.shared", "Access"),
        ("bar.warp", "WarpSynced"),
        ("ld.shared", "Access"),
        ("stmatrix.sync", "Access"),
        ("ldmatrix.sync", "Access"),
        ("shfl.sync", "WarpSynced"),
        ("vote.sync", "WarpSynced"),
        ("elect.sync", "WarpSynced"),
        ("mbarrier.init", "BarrierInit"),
        ("fence.mbarrier_init", "Fenced"),
        ("mbarrier.expect_tx", "Arrived"),
        ("mbarrier.complete_tx", "BytesLanded"),
        ("mbarrier.arrive", "Arrived"),
        ("mbarrier.try_wait", "Waited"),
        ("mbarrier.test_wait", "Waited"),
        ("mbarrier.inval", "BarrierInvalidated"),
        ("bar.arrive", "GroupArrived"),
        ("bar.sync", "GroupArrived"),
        ("bar.sync", "GroupLeft"),
        ("barrier.cluster", "GroupArrived"),
        ("barrier.cluster", "GroupLeft"),
        ("cp.async", "Committed"),
        ("cp.async", "Awaited"),
        ("atom.shared", "Access"),
        *[("red.global", "Access")] * 32,
        ("st.global", "Access"),
        ("ld.global", "Access"),
        ("membar.cta", "Fenced"),
    ]
    for warp in range(2):
        assert executed(seen, warp=warp) == expected
        indices = [instruction(e).index for e in seen if instruction(e) is not None and who(e).warp == warp]
        assert indices == sorted(indices)


def test_a_loop_gives_its_events_again_in_every_round():
    body = """
    mov.b32 %r3, words;
    mov.b32 %r4, 0;
    AGAIN:
    st.shared.b32 [%r3], %r4;
    ld.shared.b32 %r5, [%r3];
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p1, %r4, 3;
    @%p1 bra AGAIN;
    ret;
    """
    accesses = of(stream(body), Access)[1:]
    assert [(a.mode, a.where, a.values) for a in accesses] == [
        step for n in range(3) for step in (("write", FIRST_WORD, n), ("read", FIRST_WORD, None))
    ]


def test_the_life_of_a_grid_is_told_from_start_to_end():
    seen = stream("ret;", threads=40, grid=4, cluster=2)
    assert isinstance(seen[0], GridStarted)
    assert seen[0].launch.grid == (4, 1, 1) and [size for _, _, size in seen[0].allocations] == [160]
    starts = [(e.cluster, e.cta, e.ctaid, e.warps) for e in of(seen, CtaStarted)]
    assert starts == [(0, 0, (0, 0, 0), 2), (0, 1, (1, 0, 0), 2), (1, 0, (2, 0, 0), 2), (1, 1, (3, 0, 0), 2)]
    for cluster in range(2):
        own = [e for e in of(seen, Exited) if e.agent.cluster == cluster]
        assert [(e.agent.cta, e.agent.warp, e.agent.lanes) for e in own] == [
            (cta, warp, lanes) for cta in range(2) for warp, lanes in ((0, WHOLE_WARP), (1, 0xFF))
        ]
        ends = [seen.index(e) for e in of(seen, CtaEnded, ClusterEnded) if e.cluster == cluster]
        assert [type(seen[i]) for i in ends] == [CtaEnded, CtaEnded, ClusterEnded]
        assert ends[0] > seen.index(own[1]) and ends[1] > seen.index(own[3])


def test_lanes_that_go_separate_ways_are_told_and_that_they_meet_again():
    body = """
    mov.b32 %r3, words;
    setp.lt.u32 %p1, %r0, 8;
    @%p1 bra LOW;
    st.shared.b32 [%r3], %r0;
    bra.uni JOIN;
    LOW:
    st.shared.b32 [%r3+4], %r0;
    JOIN:
    st.shared.b32 [%r3+8], %r0;
    setp.eq.u32 %p2, %r0, 3;
    @%p2 exit;
    st.shared.b32 [%r3+12], %r0;
    ret;
    """
    seen = stream(body)
    first, second = of(seen, Diverged)
    assert first.agent == Agent(0, 0, 0, WHOLE_WARP) and {p.lanes for p in first.parts} == {0xFF, 0xFFFF_FF00}
    rejoined = of(seen, Rejoined)[0]
    assert rejoined.agent == first.agent and set(rejoined.parts) == set(first.parts)
    assert {p.lanes for p in second.parts} == {8, 0xFFFF_FFF7}
    stores = [(a.where - FIRST_WORD, a.agent.lanes, a.values) for a in of(seen, Access) if a.mode == "write"]
    assert sorted(stores) == [(0, 0xFFFF_FF00, 31), (4, 0xFF, 7), (8, WHOLE_WARP, 31), (12, 0xFFFF_FFF7, 31)]
    assert sorted(e.agent.lanes for e in of(seen, Exited)) == [8, 0xFFFF_FFF7]
    order = [seen.index(e) for e in (first, rejoined, second)]
    assert order == sorted(order)


MEETING = """
mov.b32 %r3, words;
setp.lt.u32 %p1, %r0, 8;
@%p1 bra LOW;
st.shared.b32 [%r3], %r0;
bar.warp.sync -1;
st.shared.b32 [%r3+16], %r0;
bra.uni JOIN;
LOW:
st.shared.b32 [%r3+4], %r0;
bar.warp.sync -1;
st.shared.b32 [%r3+20], %r0;
JOIN:
ret;
"""


@pytest.mark.parametrize("seed", range(4))
def test_all_who_meet_in_a_warp_sync_are_told_before_any_of_them_goes_on(seed):
    """Otherwise nobody could tell what came before the meeting from what came after it."""
    seen = stream(MEETING, schedule="random", seed=seed)
    told = [e for e in seen if isinstance(e, WarpSynced) or (isinstance(e, Access) and e.mode == "write")]
    assert [type(e) for e in told] == [Access, Access, WarpSynced, WarpSynced, Access, Access]
    assert {(e.agent.lanes, e.members) for e in told[2:4]} == {(0xFF, WHOLE_WARP), (0xFFFF_FF00, WHOLE_WARP)}


# ---- memory ----


def test_an_access_tells_addresses_and_values(watched):
    body = """
    mov.b32 %r3, words;
    shl.b32 %r4, %r0, 4;
    add.u32 %r4, %r4, %r3;
    mov.b32 %r5, 70000;
    st.shared.b32 [%r3+2048], %r5;
    st.shared.b16 [%r3+2052], %r5;
    st.shared.v4.b32 [%r4], {%r0, %r5, %r0, %r5};
    ld.shared.v4.b32 {%r6, %r7, %r8, %r9}, [%r4];
    shl.b32 %r10, %r0, 1;
    add.u32 %r10, %r10, %r3;
    st.shared.u16 [%r10+1024], %r0;
    ld.shared.u8 %r11, [%r3+2048];
    """
    body = body.replace("st.shared.b16 [%r3+2052], %r5;", "cvt.u16.u32 %rs1, %r5; st.shared.b16 [%r3+2052], %rs1;")
    body = body.replace("st.shared.u16 [%r10+1024], %r0;", "cvt.u16.u32 %rs2, %r0; st.shared.u16 [%r10+1024], %rs2;")
    seen = stream(body + "mov.b32 %r1, %r0;" + STORE_R1 + "ret;")
    parameter, word, half, vector, loaded, halves, byte, out = of(seen, Access)
    lanes = np.arange(32)
    assert {a.agent for a in of(seen, Access)} == {Agent(0, 0, 0, WHOLE_WARP)}
    assert parameter[2:] == ("read", "param", -1, 0, 8, 1, None)
    assert word[2:] == ("write", "shared", 0, FIRST_WORD + 2048, 4, 1, 70000)
    assert half[2:] == ("write", "shared", 0, FIRST_WORD + 2052, 2, 1, 70000 & 0xFFFF)
    assert (vector.mode, vector.nbytes, vector.items) == ("write", 4, 4)
    assert (vector.where == FIRST_WORD + 16 * lanes).all()
    first, second, third, fourth = vector.values
    assert (first == lanes).all() and second == fourth == 70000 and (third == lanes).all()
    assert loaded[2:5] == ("read", "shared", 0) and loaded[6:] == (4, 4, None)
    assert (loaded.where == vector.where).all()
    assert (halves.where == FIRST_WORD + 1024 + 2 * lanes).all() and halves.nbytes == 2
    assert (halves.values == lanes).all()
    assert byte[2:] == ("read", "shared", 0, FIRST_WORD + 2048, 1, 1, None)
    address = of(seen, GridStarted)[0].allocations[0][1]
    assert out[2:5] == ("write", "global", -1) and (out.where == address + 4 * lanes).all()
    assert (out.values == lanes).all()
    watched.check()


def test_a_guarded_access_is_that_of_its_lanes(watched):
    body = """
    mov.b32 %r3, words;
    shl.b32 %r4, %r0, 2;
    add.u32 %r4, %r4, %r3;
    setp.ge.u32 %p1, %r0, 28;
    @%p1 st.shared.b32 [%r4], %r0;
    @%p1 ld.shared.b32 %r5, [%r4];
    ret;
    """
    for access in of(stream(body), Access)[1:]:
        assert access.agent.lanes == 0xF000_0000
        assert access.where.tolist() == [FIRST_WORD + 4 * lane for lane in range(28, 32)]
        assert access.values is None or access.values.tolist() == [28, 29, 30, 31]
    watched.check()


def test_generic_and_cluster_addresses_are_told_apart(watched):
    """Of each CTA, lanes below 8 write to global memory, those below 16 to their own CTA, the others to the peer."""
    body = """
    mov.b32 %r3, words;
    mov.u32 %r4, %cluster_ctarank;
    xor.b32 %r5, %r4, 1;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    cvt.u64.u32 %rd4, %r3;
    cvta.shared.u64 %rd5, %rd4;
    mapa.u64 %rd6, %rd5, %r5;
    mul.wide.u32 %rd7, %r4, 128;
    add.s64 %rd7, %rd7, %rd0;
    setp.lt.u32 %p1, %r0, 16;
    @%p1 mov.b64 %rd6, %rd5;
    setp.lt.u32 %p1, %r0, 8;
    @%p1 mov.b64 %rd6, %rd7;
    mul.wide.u32 %rd8, %r0, 4;
    add.s64 %rd6, %rd6, %rd8;
    st.b32 [%rd6], %r0;
    ld.b32 %r6, [%rd6];
    mapa.shared::cluster.u32 %r7, %r3, %r5;
    st.shared::cluster.b32 [%r7+512], %r4;
    atom.shared::cluster.add.u32 %r8, [%r7+512], 1;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    ret;
    """
    seen = stream(body, grid=2, cluster=2, words=64)
    base = of(seen, GridStarted)[0].allocations[0][1]
    for cta in range(2):
        mine = [a for a in of(seen, Access) if a.agent.cta == cta and a.space != "param"]
        expected = {
            ("global", -1, 0xFF): [base + 128 * cta + 4 * lane for lane in range(8)],
            ("shared", cta, 0xFF00): [FIRST_WORD + 4 * lane for lane in range(8, 16)],
            ("shared", 1 - cta, 0xFFFF_0000): [FIRST_WORD + 4 * lane for lane in range(16, 32)],
        }
        for accesses, mode in ((mine[:3], "write"), (mine[3:6], "read")):
            found = {(a.space, a.cta, a.agent.lanes): a.where.tolist() for a in accesses}
            assert found == expected and {a.mode for a in accesses} == {mode}
        for access in mine[:3]:
            assert access.values.tolist() == [n for n in range(32) if access.agent.lanes >> n & 1]
        assert mine[6][2:] == ("write", "shared", 1 - cta, FIRST_WORD + 512, 4, 1, cta)
        for lane, access in enumerate(mine[7:]):
            assert access.agent.lanes == 1 << lane
            assert access[2:] == ("atomic", "shared", 1 - cta, FIRST_WORD + 512, 4, 1, cta + lane + 1)
    watched.check()


def test_atomics_are_told_lane_by_lane_with_what_they_leave_behind(watched):
    body = """
    mov.b32 %r3, words;
    mov.b32 %r4, 5;
    st.shared.b32 [%r3], %r4;
    atom.shared.add.u32 %r5, [%r3], %r0;
    setp.lt.u32 %p1, %r0, 2;
    @%p1 atom.global.cas.b32 %r6, [%rd0], 3, 9;
    mov.b64 %rd4, 1;
    @%p1 red.global.or.b64 [%rd0+8], %rd4;
    ret;
    """
    address = lambda seen: of(seen, GridStarted)[0].allocations[0][1]  # noqa: E731
    seen = stream(body, initial=np.array([3, 0, 6, 7]))
    atomics = [a for a in of(seen, Access) if a.mode == "atomic"]
    assert [a.agent.lanes for a in atomics] == [1 << lane for lane in (*range(32), 0, 1, 0, 1)]
    assert [a.values for a in atomics[:32]] == np.cumsum(np.arange(32)).__add__(5).tolist()
    assert [a[2:] for a in atomics[32:]] == [
        *[("atomic", "global", -1, address(seen), 4, 1, 9)] * 2,
        *[("atomic", "global", -1, address(seen) + 8, 8, 1, 6 | 7 << 32 | 1)] * 2,
    ]
    watched.check()


def test_matrix_accesses_are_told_row_by_row(watched):
    body = """
    mov.b32 %r3, words;
    shl.b32 %r4, %r0, 4;
    add.u32 %r4, %r4, %r3;
    stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r4], {%r0, %r0};
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r4];
    ret;
    """
    written, read = of(stream(body), Access)[1:]
    assert (written.nbytes, written.items, read.nbytes, read.items) == (16, 1, 16, 1)
    assert written.where.tolist() == [FIRST_WORD + 16 * row for row in range(16)]
    assert read.where.tolist() == [FIRST_WORD + 16 * row for row in range(8)]
    assert len(written.values) == 16 and written.values.itemsize == 16 and read.values is None
    watched.check()
