"""The event stream of a run: complete, in order, and only made for those who listen."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from conftest import SERIES
from kernel_runs import cluster_tile, run
from ptx_programs import ALLOCATE, FREE, STORE_R1, WORDS, launch, source
from replay import Contents, Memories, Replay

from harness.config.config import make_config
from harness.emulator import Device, Module, TensorMap
from harness.emulator.machine import events, lifetime
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
    Missed,
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
    if isinstance(event, BytesLanded) and event.operation is not None:
        return None
    return None if isinstance(event, Suspended) else getattr(event, "site", None)


def who(event: Any) -> Agent:
    return event.operation.agent if isinstance(event, Issued) else event.agent


def executed(seen: list[Any], cta: int = 0, warp: int = 0) -> list[tuple[str, str]]:
    """What a warp has done, in order: instruction as far as its first modifier, and the event that told of it. What
    is told lane by lane counts once.
    """
    done = []
    for event in seen:
        site = instruction(event)
        if site is not None and (who(event).cta, who(event).warp) == (cta, warp):
            done.append((site.index, ".".join([site.opcode, *site.modifiers[:1]]), type(event).__name__))
    return [(name, kind) for (_, name, kind), _ in itertools.groupby(done)]


# ---- order ----

MUCH = """
shr.u32 %r3, %r0, 5;
shl.b32 %r3, %r3, 9;
add.u32 %r3, %r3, words;
and.b32 %r4, %r0, 31;
shl.b32 %r4, %r4, 4;
add.u32 %r4, %r4, %r3;
add.u32 %r5, %r3, 2048;
setp.eq.u32 %p0, %r0, 0;
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
    """Both warps do the same, in parts of shared memory of their own."""
    name, seed = schedule
    seen = stream(MUCH, threads=64, initial=np.zeros(1), schedule=name, seed=seed)
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
        ("red.global", "Access"),
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
    address = one(seen, GridStarted).allocations[0][1]
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
    base = one(seen, GridStarted).allocations[0][1]
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
    seen = stream(body, initial=np.array([3, 0, 6, 7]))
    ((_, address, _),) = one(seen, GridStarted).allocations
    atomics = [a for a in of(seen, Access) if a.mode == "atomic"]
    assert [a.agent.lanes for a in atomics] == [1 << lane for lane in (*range(32), 0, 1, 0, 1)]
    assert [a.values for a in atomics[:32]] == (np.cumsum(np.arange(32)) + 5).tolist()
    assert [a[2:] for a in atomics[32:]] == [
        *[("atomic", "global", -1, address, 4, 1, 9)] * 2,
        *[("atomic", "global", -1, address + 8, 8, 1, 6 | 7 << 32 | 1)] * 2,
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


# ---- mbarriers ----


def test_small_copies_are_replayed(watched):
    stream(COPY_SINGLY.replace("ret;", "bar.sync 0; ld.shared.b32 %r5, [%r4]; ret;"), module_scope=ROOM)
    watched.check()


PHASES = """
mov.b32 %r3, words;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r3+8], 33;
bar.warp.sync -1;
mbarrier.arrive.shared.b64 %rd4, [%r3+8];
@%p1 mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r3+8], 48;
mbarrier.test_wait.parity.shared.b64 %p2, [%r3+8], 0;
@%p1 mbarrier.expect_tx.relaxed.cta.shared.b64 [%r3+8], 16;
@%p1 mbarrier.complete_tx.relaxed.cta.shared.b64 [%r3+8], 64;
mbarrier.try_wait.parity.shared.b64 %p2, [%r3+8], 0;
mbarrier.test_wait.shared.b64 %p2, [%r3+8], %rd4;
mbarrier.arrive_drop.shared.b64 %rd4, [%r3+8];
@%p1 mbarrier.arrive.shared.b64 %rd5, [%r3+8], 1;
mbarrier.try_wait.parity.shared.b64 %p2, [%r3+8], 1;
@%p1 mbarrier.arrive.shared.b64 %rd5, [%r3+8];
mbarrier.try_wait.parity.shared.b64 %p2, [%r3+8], 0;
@%p1 mbarrier.inval.shared.b64 [%r3+8];
ret;
"""


def test_an_mbarrier_tells_every_arrival_phase_and_wait():
    seen = stream(PHASES)
    at = (0, FIRST_WORD + 8)
    assert one(seen, BarrierInit)[2:] == (*at, 33) and one(seen, BarrierInit).agent.lanes == 1
    assert one(seen, BarrierInvalidated)[2:] == at
    arrivals = [(e.lane, e.phase, e.arrivals, e.expected_bytes, e.drop) for e in of(seen, Arrived)]
    assert arrivals == [
        *[(lane, 0, 1, 0, False) for lane in range(32)],
        (0, 0, 1, 48, False),
        (0, 0, 0, 16, False),
        *[(lane, 1, 1, 0, True) for lane in range(32)],
        (0, 1, 1, 0, False),
        (0, 2, 1, 0, False),
    ]
    assert {(e.cta, e.offset) for e in of(seen, Arrived, Waited, Polled, PhaseCompleted)} == {at}
    polled = one(seen, Polled)
    assert polled.phase == 0 and polled.agent.lanes == WHOLE_WARP
    waits = [(e.lanes, e.phase, e.parity) for e in of(seen, Waited)]
    assert waits == [(WHOLE_WARP, phase, parity) for phase, parity in ((0, 0), (0, -1), (1, 1), (2, 0))]
    completed = of(seen, PhaseCompleted)
    assert [e.phase for e in completed] == [0, 1, 2] and {e.cluster for e in completed} == {0}
    for phase, cause in zip(completed, (BytesLanded, Arrived, Arrived), strict=True):
        assert isinstance(seen[seen.index(phase) - 1], cause)


def test_bytes_completed_by_a_thread_tell_who_it_was():
    """Two clusters have a CTA of rank 0 and a barrier at that place each."""
    seen = stream(PHASES, grid=2)
    landed = of(seen, BytesLanded)
    assert [(e.operation, e.cta, e.offset, e.phase, e.nbytes) for e in landed] == [(None, 0, FIRST_WORD + 8, 0, 64)] * 2
    assert sorted((e.agent.cluster, e.agent.lanes, e.site.modifiers[0]) for e in landed) == [
        (0, 1, "complete_tx"),
        (1, 1, "complete_tx"),
    ]


def test_lanes_that_look_at_different_mbarriers_are_told_apart():
    body = """
    mov.b32 %r3, words;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r3], 1;
    @%p1 mbarrier.init.shared.b64 [%r3+8], 1;
    @%p1 mbarrier.arrive.shared.b64 %rd5, [%r3];
    bar.warp.sync -1;
    and.b32 %r4, %r0, 1;
    shl.b32 %r4, %r4, 3;
    add.u32 %r4, %r4, %r3;
    mbarrier.test_wait.parity.shared.b64 %p2, [%r4], 0;
    ret;
    """
    seen = stream(body)
    for kind, offset, lanes in ((Waited, FIRST_WORD, 0x5555_5555), (Polled, FIRST_WORD + 8, 0xAAAA_AAAA)):
        told = of(seen, kind)
        assert {(e.offset, e.phase) for e in told} == {(offset, 0)}
        assert sum(e.lanes for e in told) == lanes


def test_a_wait_tells_the_phase_it_has_waited_for_even_if_another_has_ended_since():
    """Warp 0 waits before warp 1 may go on; that ends two phases in a row."""
    body = """
    mov.b32 %r3, words;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r3], 1;
    @%p1 mbarrier.init.shared.b64 [%r3+8], 1;
    bar.sync 0;
    setp.lt.u32 %p2, %r0, 32;
    @!%p2 bra OTHER;
    @%p1 mbarrier.arrive.shared.b64 %rd5, [%r3+8];
    mbarrier.try_wait.parity.shared.b64 %p3, [%r3], 0;
    ret;
    OTHER:
    mbarrier.try_wait.parity.shared.b64 %p3, [%r3+8], 0;
    setp.eq.u32 %p1, %r0, 32;
    @%p1 mbarrier.arrive.shared.b64 %rd5, [%r3];
    @%p1 mbarrier.arrive.shared.b64 %rd5, [%r3];
    ret;
    """
    seen = stream(body, threads=64)
    (wait,) = [e for e in of(seen, Waited) if e.agent.warp == 0]
    assert [e.phase for e in of(seen, PhaseCompleted) if e.offset == wait.offset] == [0, 1]
    assert (wait.phase, wait.parity) == (0, 0)
    suspended = [e for e in of(seen, Suspended) if e.agent.warp == 0 and e.site.opcode == "mbarrier"]
    (slept,) = suspended
    assert "parity 0" in slept.what
    after = seen[seen.index(slept) :]
    assert after.index(next(e for e in of(after, Resumed) if e.agent == slept.agent)) < after.index(wait)


# ---- barriers of threads ----


def test_the_barriers_of_a_cta_tell_generations():
    """Warps 0 and 1 meet at barrier 1, where warp 0 does not wait; then all three meet twice at barrier 0."""
    body = """
    setp.ge.u32 %p1, %r0, 32;
    @%p1 bra NEXT;
    bar.arrive 1, 64;
    bra.uni ALL;
    NEXT:
    setp.ge.u32 %p1, %r0, 64;
    @%p1 bra ALL;
    bar.sync 1, 64;
    ALL:
    bar.sync 0;
    bar.sync 0;
    ret;
    """
    for schedule, seed in SCHEDULES:
        seen = stream(body, threads=96, schedule=schedule, seed=seed)
        arrived = [(e.barrier, e.generation, e.agent.warp, e.waits) for e in of(seen, GroupArrived)]
        left = [(e.barrier, e.generation, e.agent.warp) for e in of(seen, GroupLeft)]
        everybody = [(0, generation, warp) for generation in range(2) for warp in range(3)]
        assert sorted(arrived) == [*((*who, True) for who in everybody), (1, 0, 0, False), (1, 0, 1, True)]
        assert sorted(left) == [*everybody, (1, 0, 1)]
        completed = [e[:] for e in of(seen, GroupCompleted)]
        assert sorted(completed) == [(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0)]
        for event in of(seen, GroupCompleted):
            same = [
                e
                for e in of(seen, GroupArrived, GroupLeft)
                if (e.barrier, e.generation) == (event.barrier, event.generation)
            ]
            for other in same:
                assert (seen.index(other) < seen.index(event)) == isinstance(other, GroupArrived)


def test_the_barrier_of_the_cluster_tells_generations():
    body = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" * 2 + "ret;"
    seen = stream(body, grid=4, cluster=2)
    for cluster in range(2):
        expected = [(-1, generation, cta) for generation in range(2) for cta in range(2)]
        for kind in (GroupArrived, GroupLeft):
            mine = [e for e in of(seen, kind) if e.agent.cluster == cluster]
            assert sorted((e.barrier, e.generation, e.agent.cta) for e in mine) == expected
        completed = [e for e in of(seen, GroupCompleted) if e.cluster == cluster]
        assert [e[1:] for e in completed] == [(-1, -1, 0), (-1, -1, 1)]
    assert not any(e.waits for e in of(seen, GroupArrived))


# ---- boxes, and groups of them ----

COPY = """
mov.b32 %r3, words;
add.u32 %r4, %r3, 256;
mov.u32 %r5, %cluster_ctarank;
mov.b64 %rd4, from;
cvta.param.u64 %rd4, %rd4;
mov.b64 %rd5, to;
cvta.param.u64 %rd5, %rd5;
setp.eq.u32 %p1, %r0, 0;
setp.eq.and.u32 %p2, %r5, 0, %p1;
mov.b16 %rs1, 3;
mov.b32 %r6, 16;
shl.b32 %r7, %r5, 5;
@%p1 mbarrier.init.shared.b64 [%r4], 1;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 128;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
@%p2 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
[%r3], [%rd4, {%r6}], [%r4], %rs1;
AGAIN:
mbarrier.try_wait.parity.shared.b64 %p3, [%r4], 0;
@!%p3 bra AGAIN;
@%p1 cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd5, {%r7}], [%r3];
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd5, {%r7}], [%r3];
@%p1 cp.async.bulk.commit_group;
@%p1 cp.async.bulk.wait_group.read 1;
@%p1 cp.async.bulk.wait_group 0;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
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
mov.b64 %rd4, from;
cvta.param.u64 %rd4, %rd4;
mov.b64 %rd5, to;
cvta.param.u64 %rd5, %rd5;
setp.eq.u32 %p1, %r0, 0;
@!%p1 bra DONE;
mov.b32 %r6, -4;
mov.b32 %r7, -3;
mov.b32 %r8, 12;
mov.b32 %r9, 2;
mbarrier.init.shared.b64 [%r4], 1;
mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 256;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd4, {%r6, %r7}], [%r4];
AGAIN:
mbarrier.try_wait.parity.shared.b64 %p3, [%r4], 0;
@!%p3 bra AGAIN;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd5, {%r8, %r9}], [%r3];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
ret;
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


# ---- matrices ----

ROOM = ".shared .align 1024 .b8 words[8192];"
MULTIPLY = """
mov.b32 %r3, words;
add.u32 %r10, %r3, 6144;
shl.b32 %r4, %r0, 2;
add.u32 %r4, %r4, %r3;
mov.b32 %r5, 0x3c003c00;
mov.b32 %r6, 0;
FILL:
st.shared.b32 [%r4], %r5;
add.u32 %r4, %r4, 128;
add.u32 %r6, %r6, 1;
setp.lt.u32 %p1, %r6, 36;
@%p1 bra FILL;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r10], 1;
fence.proxy.async.shared::cta;
bar.warp.sync -1;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r10+16], 32;
bar.warp.sync -1;
ld.shared.b32 %r2, [%r10+16];
mov.b32 %r7, 0x8020010;
shr.u32 %r8, %r3, 4;
cvt.u64.u32 %rd4, %r8;
or.b64 %rd4, %rd4, {descriptor};
add.u64 %rd5, %rd4, 256;
setp.eq.u32 %p2, %r0, 99;
@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd4, %rd5, %r7, %p2;
@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd4, %rd5, %r7, %p1;
@%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r10];
AGAIN:
mbarrier.try_wait.parity.shared.b64 %p3, [%r10], 0;
@!%p3 bra AGAIN;
tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x4.b32 {{%r20, %r21, %r22, %r23}}, [%r2];
tcgen05.ld.sync.aligned.32x32b.x1.b32 {{%r24}}, [%r2+7];
tcgen05.wait::ld.sync.aligned;
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r2+16], {{%r0, %r23}};
tcgen05.st.sync.aligned.16x128b.x1.unpack::16b.b32 [%r2+20], {{%r0, %r23}};
tcgen05.wait::st.sync.aligned;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
mov.b32 %r1, %r24;
"""
CORE_MATRICES = 128 >> 4 << 16 | 256 >> 4 << 32
"""Of a descriptor: no swizzle, 128 bytes from core matrix to core matrix along K, 256 along the rows."""


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s[0])
def test_multiplications_and_tensor_memory_tell_what_they_touch(watched, schedule):
    """D is 128 x 8; A and B hold ones, and the product is added twice."""
    name, seed = schedule
    body = MULTIPLY.format(descriptor=CORE_MATRICES | 1 << 46) + STORE_R1 + "ret;"
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
    body = MULTIPLY.format(descriptor=CORE_MATRICES | 1 << 46) + STORE_R1 + "ret;"
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


WARPGROUP = """
{{
.reg .f32 %d<4>;
mov.b32 %r3, words;
shl.b32 %r4, %r0, 4;
add.u32 %r4, %r4, %r3;
mov.b32 %r5, 0;
st.shared.v4.b32 [%r4], {{%r5, %r5, %r5, %r5}};
st.shared.v4.b32 [%r4+2048], {{%r5, %r5, %r5, %r5}};
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r8, %r3, 4;
cvt.u64.u32 %rd4, %r8;
or.b64 %rd4, %rd4, {descriptor};
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
    body = WARPGROUP.format(descriptor=CORE_MATRICES) + STORE_R1 + "ret;"
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
    body = WARPGROUP.format(descriptor=CORE_MATRICES) + STORE_R1 + "ret;"
    seen = stream(body, threads=128, target="sm_90a", schedule=name, seed=seed)
    for warp in range(4):
        told = [e for e in of(seen, Issued, Fenced, Committed) if e.agent.warp == warp and not is_proxy_fence(e)]
        assert [type(e) for e in told] == [Fenced, Issued, Committed, Issued, Committed]
    assert len({e.operation for e in of(seen, Issued)}) == 2


def is_proxy_fence(event: Any) -> bool:
    return isinstance(event, Fenced) and "proxy" in event.site.modifiers


# ---- clusters and registers that are asked for ----


REQUEST = """
mov.b32 %r3, words;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r3+16], 1;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3+16], 16;
@%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r3], [%r3+16];
bar.warp.sync -1;
AGAIN:
mbarrier.try_wait.parity.shared.b64 %p2, [%r3+16], 0;
@!%p2 bra AGAIN;
ret;
"""


def test_requests_to_cluster_launch_control_tell_where_the_answer_goes(watched):
    seen = stream(REQUEST, grid=(1, 2), resident_clusters=1)
    watched.check()
    assert len(of(seen, CtaStarted)) == 1
    operation = one(seen, Issued).operation
    answer = SharedBytes(0, FIRST_WORD, 16)
    assert (operation.kind, operation.agent, operation.writes) == ("launch-control", Agent(0, 0, 0, 1), (answer,))
    assert operation.detail["signals"] == ((0, FIRST_WORD + 16),)
    assert operation.detail["answer"].tobytes() == (1 << 32 | 1 << 64).to_bytes(16, "little")
    assert one(seen, Finished) == (operation, (answer,))
    landed = one(seen, BytesLanded)
    assert (landed.operation, landed.cta, landed.offset, landed.phase, landed.nbytes) == (
        *(operation, 0, FIRST_WORD + 16),
        *(0, 16),
    )
    assert isinstance(seen[seen.index(landed) + 1], PhaseCompleted)


def test_granted_registers_are_told():
    body = "setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.inc.sync.aligned.u32 56; ret;"
    seen = stream(body, threads=128, directives=".maxnreg 64")
    for warp in range(4):
        assert [e.registers for e in of(seen, RegistersSet) if e.agent.warp == warp] == [40, 56]


# ---- memory semantics ----

SEMANTICS = {
    "ld.shared.b32 %r1, [%r3];": ("weak", ""),
    "ld.acquire.gpu.global.b32 %r1, [%rd0];": ("acquire", "gpu"),
    "ld.relaxed.cluster.shared::cluster.b32 %r1, [%r3];": ("relaxed", "cluster"),
    "st.shared.b32 [%r3], %r1;": ("weak", ""),
    "st.release.cta.shared::cta.b32 [%r3], %r1;": ("release", "cta"),
    "st.volatile.global.b32 [%rd0], %r1;": ("volatile", ""),
    "atom.global.add.u32 %r1, [%rd0], 1;": ("relaxed", "gpu"),
    "atom.acq_rel.sys.global.add.u32 %r1, [%rd0], 1;": ("acq_rel", "sys"),
    "atom.acquire.global.add.u32 %r1, [%rd0], 1;": ("acquire", "gpu"),
    "red.shared::cluster.add.u32 [%r3], 1;": ("relaxed", "gpu"),
    "red.release.cluster.global.add.u32 [%rd0], 1;": ("release", "cluster"),
    "mbarrier.arrive.shared::cta.b64 %rd4, [%r3];": ("release", "cta"),
    "mbarrier.arrive.shared::cluster.b64 _, [%r3];": ("release", "cta"),
    "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];": ("release", "cluster"),
    "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r3];": ("relaxed", "cluster"),
    "mbarrier.arrive.expect_tx.shared.b64 %rd4, [%r3], 16;": ("release", "cta"),
    "mbarrier.arrive_drop.shared.b64 %rd4, [%r3];": ("release", "cta"),
    "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r3], 16;": ("relaxed", "cluster"),
    "mbarrier.complete_tx.shared.b64 [%r3], 16;": ("relaxed", "cta"),
    "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0;": ("acquire", "cta"),
    "mbarrier.test_wait.shared.b64 %p1, [%r3], %rd4;": ("acquire", "cta"),
    "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r3], 0;": ("acquire", "cluster"),
    "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p1, [%r3], 0;": ("relaxed", "cluster"),
    "barrier.cluster.arrive;": ("release", "cluster"),
    "barrier.cluster.arrive.relaxed.aligned;": ("relaxed", "cluster"),
    "barrier.cluster.wait.aligned;": ("acquire", "cluster"),
    "barrier.cluster.wait.acquire;": ("acquire", "cluster"),
    "fence.sc.gpu;": ("sc", "gpu"),
    "fence.acq_rel.cluster;": ("acq_rel", "cluster"),
    "fence.cta;": ("acq_rel", "cta"),
    "fence.mbarrier_init.release.cluster;": ("release", "cluster"),
    "fence.proxy.async;": ("", ""),
    "membar.cta;": ("sc", "cta"),
    "membar.gl;": ("sc", "gpu"),
    "membar.sys;": ("sc", "sys"),
}


@pytest.mark.parametrize(("text", "expected"), SEMANTICS.items(), ids=SEMANTICS)
def test_an_instruction_has_the_semantics_and_scope_that_ptx_gives_it(text, expected):
    module = Module.from_text(source(f"mov.b32 %r3, words; {text} ret;", WORDS))
    site = next(s for s in module.code(None).sites if s.text.rstrip(";") == text.rstrip(";"))
    assert (site.semantics, site.scope) == expected


# ---- somebody listens, and nobody does ----

TOLD = [t for t in vars(events).values() if isinstance(t, type) and issubclass(t, tuple) and t is not Agent]
"""Events, and the regions of operations."""
REGIONS = (
    events.SharedChunks, SharedBytes, events.SharedItems, events.GlobalItems, GlobalBox, TensorBlock, RegisterBlock,
)  # fmt: skip


COPY_SINGLY = """
mov.b32 %r3, words; mad.lo.u32 %r4, %r0, 4, %r3;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r3+1024], 32;
mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; st.global.b32 [%rd1], %r0;
bar.warp.sync -1;
cp.async.ca.shared.global [%r4], [%rd1], 4;
cp.async.mbarrier.arrive.shared.b64 [%r3+1024];
cp.async.wait_all;
ret;
"""
"""Every lane copies a word, and an mbarrier learns of it."""


PRINT = """
.local .b64 nothing;
mov.b64 %rd2, letters; mov.b64 %rd3, nothing; cvta.local.u64 %rd3, %rd3;
{ .param .b64 f; .param .b64 a; .param .b32 r;
st.param.b64 [f], %rd2; st.param.b64 [a], %rd3; call (r), vprintf, (f, a); }
ret;
"""
PRINTER = ".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a); .global .b8 letters[2] = {65};"


LATE = """
mov.b32 %r3, words;
setp.ne.u32 %p1, %r0, 0;
@%p1 ret;
mbarrier.init.shared.b64 [%r3], 1;
mov.u32 %r4, %cluster_ctarank;
setp.eq.u32 %p2, %r4, 0;
@%p2 ret;
mov.b32 %r5, 2000;
DELAY:
sub.u32 %r5, %r5, 1;
setp.ne.u32 %p3, %r5, 0;
@%p3 bra DELAY;
mapa.shared::cluster.u32 %r7, %r3, 0;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r7];
mov.b16 %rs1, 1;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r3], %rs1;
ret;
"""
"""The CTA of rank 0 has left when a thread of the other one arrives there, and when a commit does."""


def test_an_arrival_at_a_cta_that_has_exited_is_told():
    thread, commit = of(stream(LATE, grid=2, cluster=2), Missed)
    assert (thread.agent.cta, thread.cta, thread.offset, thread.operation) == (1, 0, 0x400, None)
    assert (commit.cta, commit.offset, commit.operation.kind) == (0, 0x400, "commit")


def test_the_use_of_a_register_before_the_wait_for_its_load_is_told():
    load = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r0}; tcgen05.wait::st.sync.aligned;"
    load += "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r1}, [%r2];"
    seen = stream(ALLOCATE + load + "add.u32 %r4, %r1, 1;" + FREE + "ret;")
    _, use = of(seen, TensorMemoryWaited)
    assert (use.kind, use.site.opcode) == ("use", "add")
    assert [o.kind for o in use.operations] == ["tmem.load"]


def test_a_wait_for_an_mbarrier_says_for_which_phase():
    body = """
    mov.b32 %r3, words;
    setp.eq.u32 %p1, %r0, 0;
    @%p1 mbarrier.init.shared.b64 [%r3+8], 1;
    bar.sync 0;
    setp.lt.u32 %p2, %r0, 32;
    @%p2 bra AGAIN;
    bar.sync 1, 32;
    setp.eq.u32 %p2, %r0, 32;
    mov.b32 %r5, 2000;
    DELAY:
    sub.u32 %r5, %r5, 1;
    setp.ne.u32 %p3, %r5, 0;
    @%p3 bra DELAY;
    @%p2 mbarrier.arrive.shared.b64 _, [%r3+8];
    ret;
    AGAIN:
    mbarrier.try_wait.parity.shared.b64 %p4, [%r3+8], 0;
    @!%p4 bra AGAIN;
    ret;
    """
    waits = [e.mbarrier for e in of(stream(body, threads=64), Suspended)]
    assert waits == [None, (0x408, 0)]


MAP_IN_MEMORY = """
mov.b32 %r3, words; setp.eq.u32 %p1, %r0, 0; ld.param.u64 %rd1, [pointer];
@%p1 mbarrier.init.shared.b64 [%r3+256], 1;
fence.proxy.tensormap::generic.acquire.sys [%rd1], 128;
@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r3+256], 128; mov.b32 %r4, 0;
@%p1 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd1, {%r4}], [%r3+256];
W: mbarrier.try_wait.parity.shared.b64 %p2, [%r3+256], 0; @!%p2 bra W;
ret;
"""


def told_of_a_map_in_memory() -> tuple[int, list[Any]]:
    """The map's address, and what has been told of a copy that uses it."""
    device = Device()
    at = device.upload_tensor_map(TensorMap.tiled(device.upload(np.zeros(32, np.uint32)), "u32", (32,), (32,)))
    seen: list[Any] = []
    module = Module.from_text(source(MAP_IN_MEMORY, WORDS, parameters=("u64 pointer",)))
    device.launch(module, grid=1, block=32, arguments=[0, at], sinks=[seen.append])
    return at, seen


def test_a_copy_tells_of_its_tensor_map_in_global_memory_and_a_fence_of_its_address():
    at, seen = told_of_a_map_in_memory()
    (fence,), (read,) = of(seen, Fenced), of(seen, events.TensorMapRead)
    assert (fence.address, read.address, read.agent.lanes) == (at, at, 1)


def test_every_kind_of_event_and_region_occurs(common):
    """In a kernel of either architecture, and a few programs."""
    seen: list[Any] = []
    for config in (make_config("kernel7", cluster=(2, 1)), make_config("kernel7", arch="sm_90a")):
        run(common[config], (256, 256, 64), "integer", sinks=(seen.append,))
    for body in (PHASES, MEETING, REQUEST, COPY_SINGLY, MULTIPLY.format(descriptor=CORE_MATRICES | 1 << 46) + "ret;"):
        seen += stream(body, module_scope=ROOM)
    seen += stream(PRINT, module_scope=PRINTER)
    seen += stream(LATE, grid=2, cluster=2)
    seen += told_of_a_map_in_memory()[1]
    operations = [e.operation for e in of(seen, Issued)]
    found = {type(e) for e in seen} | {type(r) for o in operations for r in (*o.reads, *o.writes)}
    assert found == set(TOLD)
    kinds = {"tma.load", "tma.store", "mma", "commit", "wgmma", "tmem.load", "tmem.store", "launch-control"}
    kinds |= {"cp.async", "cp.async.arrive"}
    assert {o.kind for o in operations} == kinds


def test_without_a_sink_no_event_is_made(monkeypatch, common):
    """Nor an operation, nor a region of one; not even in programs that use a bit of everything."""

    def fail(made: type, *arguments: Any, **named: Any) -> None:
        raise AssertionError(f"{made.__name__} is made")

    assert {Access, Finished, *REGIONS} <= set(TOLD)
    for kind in TOLD:
        monkeypatch.setattr(kind, "__new__", fail)
    monkeypatch.setattr(events.Operation, "__init__", fail)
    for config in (make_config("kernel6", cluster=(2, 1)), make_config("kernel6", arch="sm_90a")):
        run(common[config], (256, 256, 64), "integer")
    options = dict(module_scope=ROOM)
    launch(MUCH, threads=64, initial=np.zeros(1), **options)
    launch(PHASES, **options)
    launch(MEETING, **options)
    launch(COPY_SINGLY, **options)
    launch(MULTIPLY.format(descriptor=CORE_MATRICES | 1 << 46) + "ret;", **options)
    with pytest.raises(AssertionError, match="is made"):
        stream("ret;")
