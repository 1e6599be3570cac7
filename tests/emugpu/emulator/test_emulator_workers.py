"""Several processes for one launch: the same result and the same counters, or a refusal that says why."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_programs import cuda
from ptx_programs import source
from test_emulator_launch_control import persistent

from emugpu.emulator import Deadlock, Device, Fault, LaunchError, LimitExceeded, Module


def both(launch, schedule: str = "fifo", seed: int = 0):
    """What ``launch(device, workers=...)`` returns with one process and with two; they must agree on the counters."""
    one, two = (launch(Device(schedule=schedule, seed=seed), workers=workers) for workers in (1, 2))
    assert one[0].counters == two[0].counters
    return one[1], two[1]


def test_two_processes_give_the_same_product_and_counters():
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((64, 64)).astype(np.float32) for _ in range(2))

    def launch(device, workers):
        c = device.alloc(a.nbytes, "c")
        arguments = [device.upload(a), device.upload(b), c, 64, 64]
        result = device.launch(
            cuda("sgemm"), "sgemm", grid=(2, 2), block=(32, 32), arguments=arguments, workers=workers
        )
        return result, device.download(c, np.float32, (64, 64))

    one, two = both(launch)
    assert one.tobytes() == two.tobytes()
    assert np.allclose(one, a @ b, atol=1e-4)


def test_bytes_that_no_cta_writes_stay_what_they_were():
    """Two words out of 40 are written per CTA; the rest of the first buffer keeps its values, of the second nothing."""

    def launch(device, workers):
        before = np.arange(40 * 7, dtype=np.uint32) + 5
        kept = device.upload(before, "kept")
        device.launch(cuda("residency"), "names", grid=7, block=2, arguments=[kept, 40], workers=workers)
        poisoned = device.alloc(before.nbytes, "poisoned")
        result = device.launch(cuda("residency"), "names", grid=7, block=2, arguments=[poisoned, 40], workers=workers)
        with pytest.raises(Fault, match=r"never written|poison"):
            device.download(poisoned, np.uint32, before.size)
        for cta in range(7):
            assert device.download(poisoned + 160 * cta, np.uint32, 2).tolist() == [1000 * cta, 1000 * cta + 1]
        return result, device.download(kept, np.uint32, before.size).reshape(7, 40)

    one, two = both(launch)
    assert (one == two).all()
    assert (two[:, :2] == 1000 * np.arange(7)[:, None] + [0, 1]).all()
    assert (two[:, 2:] == np.arange(280).reshape(7, 40)[:, 2:] + 5).all()


def test_a_launch_reads_what_the_one_before_has_written():
    def launch(device, workers):
        x = device.upload(np.ones(256, np.float32))
        y = device.upload(np.zeros(256, np.float32))
        for _ in range(2):
            arguments = [x, y, 3.0, 256]
            device.launch(cuda("sgemm"), "scale_and_add", grid=4, block=64, arguments=arguments, workers=workers)
        result = device.launch(
            cuda("sgemm"), "scale_and_add", grid=4, block=64, arguments=[y, x, 2.0, 256], workers=workers
        )
        return result, device.download(x, np.float32, 256)

    one, two = both(launch)
    assert (one == 13).all() and (two == 13).all()


def test_clusters_stay_together_and_atomics_in_shared_memory_are_no_obstacle():
    def launch(device, workers):
        out = device.alloc(4 * 6)
        result = device.launch(
            cuda("residency"), "tickets_in_shared_memory", grid=6, cluster=2, block=32, arguments=[out], workers=workers
        )
        return result, device.download(out, np.uint32, 6)

    one, two = both(launch)
    assert (one == two).all()
    assert (two == 496 + 32 * np.arange(6)).all()


def test_there_may_be_more_processes_than_clusters():
    device = Device()
    out = device.alloc(8)
    device.launch(cuda("residency"), "names", grid=1, block=2, arguments=[out, 2], workers=4)
    assert device.download(out, np.uint32, 2).tolist() == [0, 1]


def test_progress_is_told_up_to_the_last_cluster():
    calls = []
    device = Device()
    out = device.alloc(4 * 2 * 8)
    device.launch(
        cuda("residency"),
        "names",
        grid=8,
        block=2,
        arguments=[out, 2],
        workers=2,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls[-1] == (8, 8) and all(total == 8 for _, total in calls)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


FAULTY = """
mov.u32 %r5, %ctaid.x; setp.ne.u32 %p1, %r5, 3;
@%p1 ret;
add.s32 %r1, %r9, 1; st.shared.b32 [%r1], %r1;
ret;
"""


def test_a_fault_in_another_process_is_told_as_ever():
    def message(workers):
        device = Device()
        with pytest.raises(Fault) as error:
            device.launch(
                Module.from_text(source(FAULTY)), grid=5, block=32, arguments=[device.alloc(4)], workers=workers
            )
        return str(error.value)

    assert "by CTA (3, 0, 0)" in message(2) and message(1) == message(2)


def test_a_deadlock_in_another_process_is_told_as_ever():
    body = """
    mov.u32 %r5, %ctaid.x; setp.ne.u32 %p1, %r5, 3;
    setp.ge.or.u32 %p1, %r0, 32, %p1;
    @%p1 ret;
    bar.sync 1, 64;
    ret;
    """
    device = Device()
    with pytest.raises(Deadlock, match=r"bar.sync 1, 64") as error:
        device.launch(Module.from_text(source(body)), grid=5, block=64, arguments=[device.alloc(4)], workers=2)
    assert "3" in str(error.value)


def test_limits_hold_in_other_processes():
    device = Device()
    for limit in ({"max_steps": 10_000}, {"timeout": 0.3}):
        with pytest.raises(LimitExceeded, match=r"PTX line 14"):
            device.launch(
                Module.from_text(source("mov.b32 %r1, 0; LOOP: add.s32 %r1, %r1, 1; bra LOOP;")),
                grid=4,
                block=32,
                arguments=[0],
                workers=2,
                **limit,
            )


# ---- refusals ----


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("atom.global.add.u32 %r1, [%rd0], 1; ret;", r"atom"),
        ("red.global.add.u32 [%rd0], 1; ret;", r"atom|red"),
        ("atom.add.u32 %r1, [%rd0], 1; ret;", r"atom"),
        ("ld.acquire.gpu.global.b32 %r1, [%rd0]; ret;", r"acquire"),
        ("st.release.gpu.global.b32 [%rd0], %r0; ret;", r"release"),
        ("ld.relaxed.gpu.global.b32 %r1, [%rd0]; ret;", r"relaxed"),
        ("st.relaxed.sys.b32 [%rd0], %r0; ret;", r"relaxed"),
        ("ld.volatile.global.b32 %r1, [%rd0]; ret;", r"volatile"),
        ("st.volatile.global.b32 [%rd0], %r0; ret;", r"volatile"),
    ],
)
def test_kernels_whose_ctas_may_talk_to_each_other_are_refused(body, reason):
    device = Device()
    out = device.upload(np.zeros(32, np.uint32))
    with pytest.raises(LaunchError, match=rf"workers(.|\n)*{reason}") as error:
        device.launch(Module.from_text(source(body)), grid=2, block=32, arguments=[out], workers=2)
    assert "PTX line 14" in str(error.value), "it says which instruction is in the way"
    device.launch(Module.from_text(source(body)), grid=2, block=32, arguments=[out], workers=1)


@pytest.mark.parametrize(
    ("file", "entry", "arguments"),
    [
        ("flag_chain", "chain_forward", 3),
        ("split_k", "split_k_f32", 6),
        ("tile_counter", "tiles_by_atomic", 5),
        ("handoff", "handoff_fence_relaxed", 5),
        ("handoff", "handoff_membar_volatile", 5),
    ],
)
def test_compiled_programs_that_communicate_are_refused(file, entry, arguments):
    with pytest.raises(LaunchError, match=r"workers"):
        Device().launch(cuda(file), entry, grid=2, block=32, arguments=[0] * arguments, workers=2)


@pytest.mark.parametrize(("depth", "cluster"), [(1, 1), (2, 2)])
def test_cluster_launch_control_is_refused(depth, cluster):
    with pytest.raises(LaunchError, match=r"workers(.|\n)*(clusterlaunchcontrol|cluster launch control)"):
        Device().launch(
            Module.from_text(persistent(depth, cluster)), grid=4, cluster=cluster, block=64, arguments=[0, 0], workers=2
        )


def test_a_random_schedule_is_refused():
    device = Device(schedule="random", seed=4)
    with pytest.raises(LaunchError, match=r"workers(.|\n)*random schedule"):
        device.launch(cuda("residency"), "names", grid=2, block=2, arguments=[device.alloc(16), 2], workers=2)


def test_event_sinks_are_refused():
    device = Device()
    with pytest.raises(LaunchError, match=r"workers(.|\n)*event sinks"):
        device.launch(
            cuda("residency"), "names", grid=2, block=2, arguments=[device.alloc(16), 2], workers=2, sinks=[print]
        )
