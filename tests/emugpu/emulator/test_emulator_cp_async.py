"""cp.async: what is copied, what is filled with zeros, whom groups and mbarriers make wait."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_programs import WORDS, launch

from emugpu.emulator import Device, Fault
from emugpu.emulator.machine import events

SOURCE = np.arange(1, 257, dtype=np.uint32) * 0x01010101 & 0xFFFFFFFF
PARAMETERS = ["u64 from"]

ADDRESSES = """
ld.param.u64 %rd2, [from];
mul.wide.u32 %rd3, %r0, {size}; add.s64 %rd2, %rd2, %rd3;
mov.b32 %r2, words;
mad.lo.u32 %r2, %r0, {size}, %r2;
"""
"""%rd2 and %r2: this thread's item in global and in shared memory."""


def copied(size: int, body: str, *, threads: int = 32, schedule="fifo", seed: int = 0, sinks=()) -> np.ndarray:
    """The words of shared memory behind 32 items of ``size`` bytes after the body."""
    device = Device(schedule=schedule, seed=seed)
    source = device.upload(SOURCE)
    copy_out = f"""
    bar.sync 0;
    mov.u32 %r10, 0;
    mul.wide.u32 %rd4, %r0, {size}; add.s64 %rd4, %rd0, %rd4;
    LOOP: ld.shared.b32 %r11, [%r2]; st.global.b32 [%rd4], %r11;
    add.u32 %r2, %r2, 4; add.s64 %rd4, %rd4, 4; add.u32 %r10, %r10, 4;
    setp.lt.u32 %p5, %r10, {size}; @%p5 bra LOOP;
    """
    run = launch(ADDRESSES.format(size=size) + body + copy_out + "ret;", threads=threads, words=threads * size // 4,
                 module_scope=WORDS, parameters=PARAMETERS, arguments=[source], device=device, sinks=sinks)  # fmt: skip
    return run.words(threads * size // 4)


@pytest.mark.parametrize("schedule", ["fifo", "random"])
@pytest.mark.parametrize(("form", "size"), [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)])
def test_items_of_every_size(form, size, schedule):
    body = (
        f"cp.async.{form}.shared.global.L2::128B [%r2], [%rd2], {size}; cp.async.commit_group; cp.async.wait_group 0;"
    )
    assert copied(size, body, schedule=schedule).tolist() == SOURCE[: 8 * size].tolist()


def test_the_rest_of_an_item_is_zero():
    """src-size by lane: 0, 1, .. 16 bytes; nothing is read where it is 0, wherever the address points."""
    body = """
    rem.u32 %r3, %r0, 17; setp.eq.u32 %p1, %r3, 0; @%p1 mov.b64 %rd2, 64;
    cp.async.cg.shared::cta.global [%r2], [%rd2], 16, %r3; cp.async.wait_all;
    """
    raw = copied(16, body).view(np.uint8).reshape(32, 16)
    source = SOURCE.view(np.uint8)[:512].reshape(32, 16)
    for lane in range(32):
        given = lane % 17
        assert raw[lane].tolist() == [*source[lane, :given], *([0] * (16 - given))]


def test_lanes_that_ignore_their_source_get_zeros():
    body = """
    and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 1;
    cp.async.ca.shared.global [%r2], [%rd2], 8, %p1; cp.async.wait_all;
    """
    found = copied(8, body).reshape(32, 2)
    wanted = SOURCE[:64].reshape(32, 2).copy()
    wanted[1::2] = 0
    assert found.tolist() == wanted.tolist()


GROUPS = """
cp.async.ca.shared.global [%r2], [%rd2], 4; cp.async.commit_group;
cp.async.ca.shared.global [%r2+128], [%rd2+128], 4; cp.async.commit_group;
cp.async.wait_group {allowed};
ld.shared.b32 %r1, [%r2+{read}];
"""
OUT = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; st.global.b32 [%rd1], %r1; ret;"


@pytest.mark.parametrize(("allowed", "read"), [(1, 0), (0, 128)])
def test_a_wait_lets_the_youngest_groups_pend(allowed, read):
    device = Device()
    body = ADDRESSES.format(size=4) + GROUPS.format(allowed=allowed, read=read) + OUT
    run = launch(body, module_scope=WORDS, parameters=PARAMETERS, arguments=[device.upload(SOURCE)], device=device)
    assert run.words(32).tolist() == SOURCE[read // 4 : read // 4 + 32].tolist()


@pytest.mark.parametrize(("allowed", "read"), [(1, 128), (2, 0)])
def test_without_the_wait_the_copy_is_not_there(allowed, read):
    device = Device()
    body = ADDRESSES.format(size=4) + GROUPS.format(allowed=allowed, read=read) + OUT
    with pytest.raises(Fault, match="never written"):
        launch(body, module_scope=WORDS, parameters=PARAMETERS, arguments=[device.upload(SOURCE)], device=device)


@pytest.mark.parametrize("allowed", [0, 1])
def test_a_warp_waits_once_however_many_copies_land(allowed):
    told: list[events.Event] = []
    copied(4, GROUPS.format(allowed=allowed, read=0), sinks=[told.append])
    assert sum(isinstance(event, events.Suspended) for event in told) == 1


def test_groups_belong_to_threads():
    """Odd lanes commit once more than even ones: for them the first copy is two groups back."""
    body = """
    cp.async.ca.shared.global [%r2], [%rd2], 4; cp.async.commit_group;
    and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 1;
    @%p1 cp.async.commit_group;
    @!%p1 bra LAST;
    cp.async.wait_group 1; ld.shared.b32 %r1, [%r2];
    LAST: cp.async.wait_group 0; ld.shared.b32 %r1, [%r2];
    """
    for seed in range(3):
        device = Device(schedule="random", seed=seed)
        run = launch(ADDRESSES.format(size=4) + body + OUT, module_scope=WORDS, parameters=PARAMETERS,
                     arguments=[device.upload(SOURCE)], device=device)  # fmt: skip
        assert run.words(32).tolist() == SOURCE[:32].tolist()


BARRIER = """
mov.b32 %r4, words; add.u32 %r4, %r4, 2048;
setp.eq.u32 %p1, %r0, 0;
@%p1 mbarrier.init.shared.b64 [%r4], {count};
bar.sync 0;
cp.async.ca.shared.global [%r2], [%rd2], 4;
{arrive}
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0; @!%p2 bra WAIT;
xor.b32 %r5, %r0, 63; mov.b32 %r6, words; mad.lo.u32 %r6, %r5, 4, %r6;
ld.shared.b32 %r1, [%r6];
"""


@pytest.mark.parametrize("schedule", ["fifo", "random"])
@pytest.mark.parametrize(
    ("count", "arrive"),
    [
        (64, "cp.async.mbarrier.arrive.noinc.shared.b64 [%r4];"),
        (64, "cp.async.mbarrier.arrive.shared::cta.b64 [%r4]; mbarrier.arrive.shared.b64 _, [%r4];"),
        (64, "cvt.u64.u32 %rd5, %r4; cvta.shared.u64 %rd5, %rd5; cp.async.mbarrier.arrive.noinc.b64 [%rd5];"),
    ],
)
def test_an_mbarrier_waits_for_the_copies_of_other_threads(count, arrive, schedule):
    """Without .noinc the phase awaits the copies beside the arrivals it was initialised for."""
    device = Device(schedule=schedule, seed=3)
    body = ADDRESSES.format(size=4) + BARRIER.format(count=count, arrive=arrive) + OUT
    run = launch(
        body, threads=64, module_scope=WORDS, parameters=PARAMETERS, arguments=[device.upload(SOURCE)], device=device
    )
    assert run.words(64).tolist() == SOURCE[:64][::-1].tolist()


def test_misaligned_and_foreign_addresses_are_refused():
    for body, message in (
        ("add.u32 %r2, %r2, 4; cp.async.ca.shared.global [%r2], [%rd2], 8;", "destination of cp.async is not aligned"),
        ("cp.async.cg.shared.global [%r2], [%rd2+8], 16;", "source of cp.async is not aligned"),
        ("cp.async.cg.shared.global [%r2], [%rd2], 16, 17;", "copies 17 bytes; cp-size is 16"),
    ):
        with pytest.raises(Fault, match=message):
            copied(16, body)


def test_what_is_told():
    seen: list = []
    body = """
    setp.lt.u32 %p1, %r0, 8;
    @%p1 cp.async.ca.shared.global [%r2], [%rd2], 4, 4; cp.async.commit_group; cp.async.wait_group 0;
    @!%p1 st.shared.b32 [%r2], 0;
    """
    copied(4, body, sinks=[seen.append])
    (operation,) = {e.operation for e in seen if isinstance(e, events.Issued)}
    assert operation.kind == "cp.async" and operation.agent.lanes == 0xFF
    (written,), (read,) = operation.writes, operation.reads
    assert written.offsets.tolist() == [1024 + 4 * n for n in range(8)] and written.nbytes == 4
    assert (np.diff(read.addresses) == 4).all() and read.nbytes.tolist() == [4] * 8
    assert operation.detail["values"].view(np.uint32).ravel().tolist() == SOURCE[:8].tolist()
    assert operation.detail["groups"] == tuple((lane, 0) for lane in range(8))
    order = [type(e).__name__ for e in seen if isinstance(e, events.Issued | events.Started | events.Finished
                                                         | events.Committed | events.Awaited)]  # fmt: skip
    assert order == ["Issued", "Committed", "Started", "Finished", "Awaited"]
    (awaited,) = [e for e in seen if isinstance(e, events.Awaited)]
    assert awaited.kind == "cp.async" and awaited.groups == tuple((lane, 0) for lane in range(32))


@pytest.mark.parametrize(
    "copy",
    [
        "cp.async.cg.shared.global [%r2], [%rd2], 16; cp.async.wait_all;",
        "ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd2]; st.shared.v4.b32 [%r2], {%r4, %r5, %r6, %r7};",
    ],
    ids=["cp.async", "ld"],
)
def test_lanes_that_read_sixteen_bytes_of_two_allocations(copy):
    device = Device()
    sources = [device.upload(SOURCE + n) for n in (0, 1)]
    body = """
    ld.param.u64 %rd2, [first]; ld.param.u64 %rd5, [second]; and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 1;
    @%p1 mov.b64 %rd2, %rd5; mul.wide.u32 %rd3, %r0, 16; add.s64 %rd2, %rd2, %rd3; add.s64 %rd4, %rd0, %rd3;
    mov.b32 %r2, words; mad.lo.u32 %r2, %r0, 16, %r2;
    """
    copy_out = "ld.shared.v4.b32 {%r4, %r5, %r6, %r7}, [%r2]; st.global.v4.b32 [%rd4], {%r4, %r5, %r6, %r7}; ret;"
    done = launch(body + copy + copy_out, words=128, module_scope=WORDS, parameters=["u64 first", "u64 second"],
                  arguments=sources, device=device)  # fmt: skip
    odd = np.arange(32)[:, None] % 2
    assert done.words(128).reshape(32, 4).tolist() == (SOURCE[:128].reshape(32, 4) + odd).tolist()
