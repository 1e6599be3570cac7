"""Launches and copies in several streams, with and without events, waits of the host, and early starts."""

from __future__ import annotations

import numpy as np
import pytest
from driver_programs import run_script

from emugpu.check import footprint
from emugpu.check.footprint import Footprint, TouchedMemory
from emugpu.driver.log import Log, judge
from emugpu.driver.memory import Window
from emugpu.driver.stream_order import KEPT, LEGACY, NON_BLOCKING, StreamOperation, StreamOrder

KERNELS = """
.version 8.0
.target sm_90
.address_size 64
"""
ENTRY = """
.visible .entry {name}(.param .u64 from, .param .u64 to)
{{
.reg .b32 %r<4>; .reg .b64 %d<6>; .reg .pred %p;
ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to];
mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4; add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3;
{body}
ret;
}}
"""
WRITE = "st.global.b32 [%d2], %r1;"
COPY = "ld.global.b32 %r2, [%d1]; st.global.b32 [%d2], %r2;"
WARP_WAITS = "setp.gt.u32 %p, %r1, 31; @%p bra NEXT; griddepcontrol.wait; NEXT: "
CTA_WAITS = (
    "mov.u32 %r2, %ctaid.x; setp.ne.u32 %p, %r2, 0; sub.u64 %d3, %d2, %d3; @%p bra HEAR; griddepcontrol.wait;"
    "bar.sync 0; setp.ne.u32 %p, %r1, 0; @%p bra NEXT; st.{}.gpu.global.b32 [%d3+2048], 1; bra NEXT;"
    "HEAR: ld.{}.gpu.global.b32 %r2, [%d3+2048]; setp.ne.u32 %p, %r2, 1; @%p bra HEAR;" + COPY + "NEXT: "
)
"""CTA 0 waits and sets a flag; CTA 1 copies when it has seen the flag."""
BODIES = {
    "fill": WRITE,
    "fill_late": "griddepcontrol.launch_dependents;" + WRITE,
    "pass_on": COPY,
    "read": "ld.global.b32 %r2, [%d1];",
    "wait_first": "griddepcontrol.wait;" + COPY,
    "wait_late": "ld.global.b32 %r2, [%d1]; griddepcontrol.wait; st.global.b32 [%d2], %r2;",
    "warp_waits": WARP_WAITS + "bar.sync 0;" + COPY,
    "warp_waits_late": "bar.sync 0;" + WARP_WAITS + COPY,
    "cta_waits": CTA_WAITS.format("release", "acquire"),
    "cta_waits_relaxed": CTA_WAITS.format("relaxed", "relaxed"),
    "count": "red.relaxed.gpu.global.add.u32 [%d2], 1;",
    "every_other": "add.u64 %d2, %d2, %d3; st.global.b32 [%d2], %r1;",
    "every_other_next": "add.u64 %d2, %d2, %d3; st.global.b32 [%d2+4], %r1;",
}
PTX = KERNELS + "".join(ENTRY.format(name=name, body=body) for name, body in BODIES.items())
HEAD = f"""
names = {list(BODIES)!r}
kernels = dict(zip(names, load({PTX!r}, *names)))
p, q, out = (asked("cuMemAlloc_v2", 4096) for _ in range(3))
pinned = asked("cuMemAllocHost_v2", 4096)
addressof = ctypes.addressof
for memory in (p, q, out):
    call("cuMemsetD8_v2", memory, c_uint(0), 4096)
call("cuCtxSynchronize")
a, b = (asked("cuStreamCreate", c_uint(1)) for _ in range(2))  # that do not wait for the legacy stream
blocking = asked("cuStreamCreate", c_uint(0))
event = asked("cuEventCreate", c_uint(2))

def run(name, source, target, stream=0, early=False, grid=1):
    values = [c_uint64(source), c_uint64(target)]
    pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(v) for v in values))
    attribute = (c_uint * 18)(6, 0, 1)
    config = (c_uint64 * 7)()
    words = (c_uint * 14).from_buffer(config)
    words[:7] = [grid, 1, 1, 128, 1, 1, 0]
    config[4], config[5], words[12] = stream, ctypes.addressof(attribute), int(early)
    call("cuLaunchKernelEx", byref(config), kernels[name], pointers, None)

"""
RACE, WARNED, UNSURE = "race-launches", "warning", "not looked at"
PROGRAMS = {
    "two streams": ("run('fill', 0, p, a); run('pass_on', p, out, b)", RACE),
    "an event between": (
        "run('fill', 0, p, a); call('cuEventRecord', event, a); call('cuStreamWaitEvent', b, event, c_uint(0));"
        "run('pass_on', p, out, b)", ""),
    "an event recorded too early": (
        "call('cuEventRecord', event, a); run('fill', 0, p, a); call('cuStreamWaitEvent', b, event, c_uint(0));"
        "run('pass_on', p, out, b)", RACE),
    "the host waits for the stream": (
        "run('fill', 0, p, a); call('cuStreamSynchronize', a); run('pass_on', p, out, b)", ""),
    "the host waits for the other stream": (
        "run('fill', 0, p, a); call('cuStreamSynchronize', b); run('pass_on', p, out, b)", RACE),
    "the host waits for the event": (
        "run('fill', 0, p, a); call('cuEventRecord', event, a); call('cuEventSynchronize', event);"
        "run('pass_on', p, out, b)", ""),
    "other memory": ("run('fill', 0, p, a); run('pass_on', q, out, b)", ""),
    "both read": ("run('read', p, 0, a); run('read', p, 0, b)", ""),
    "write after read": ("run('read', p, 0, a); run('fill', 0, p, b)", RACE),
    "both count": ("run('count', 0, p, a); run('count', 0, p, b)", ""),
    "the legacy stream waits for blocking streams": ("run('fill', 0, p, blocking); run('pass_on', p, out)", ""),
    "and they wait for it": ("run('fill', 0, p); run('pass_on', p, out, blocking)", ""),
    "not for streams that do not block": ("run('fill', 0, p, a); run('pass_on', p, out)", RACE),
    "a copy waits like a launch": (
        "run('fill', 0, p, a); values = (c_int * 9)(); call('cuMemcpyDtoH_v2', byref(values), p, 36)", RACE),
    "a copy behind a wait": (
        "run('fill', 0, p, a); call('cuStreamSynchronize', a);"
        "values = (c_int * 9)(); call('cuMemcpyDtoH_v2', byref(values), p, 36)", ""),
    "memset in another stream": (
        "run('fill', 0, p, a); call('cuMemsetD32Async', p, c_uint(0), 64, b)", RACE),
    "freed in another stream": ("run('fill', 0, p, a); call('cuMemFreeAsync', p, b)", RACE),
    "freed in its stream": ("run('fill', 0, p, a); call('cuMemFreeAsync', p, a)", ""),
    "freed by the host": ("run('fill', 0, p, a); call('cuMemFree_v2', p)", ""),
    "a copy from pinned memory in another stream": (
        "call('cuMemcpyHtoDAsync_v2', p, pinned, 512, a); run('pass_on', p, out, b)", RACE),
    "a copy of the host from pinned memory": (
        "call('cuMemcpyHtoD_v2', p, pinned, 512); run('pass_on', p, out, b)", ""),
    "a copy on the device does not hold the host": (
        "call('cuMemcpyDtoD_v2', p, q, 512); run('pass_on', p, out, b)", RACE),
    "a copy of pageable memory to the device may still run": (
        "values = (c_uint * 128)(); call('cuMemcpyAsync', p, addressof(values), 512, a); run('pass_on', p, out, b)",
        RACE),
    "a copy to pageable memory holds the host": (
        "run('fill', 0, p, a); values = (c_uint * 128)(); call('cuMemcpyAsync', addressof(values), p, 512, a);"
        "run('fill', 0, p, b)", ""),
    "a copy to pinned memory does not": (
        "call('cuMemcpyAsync', pinned, p, 512, a); run('fill', 0, p, b)", RACE),
    "a fill of rows": (
        "run('fill', 0, p, a); call('cuMemsetD2D32Async', p, 128, c_uint(0), 8, 4, b)", RACE),
    "a fill of rows beside it": (
        "run('fill', 0, p, a); call('cuMemsetD2D32Async', p + 512, 128, c_uint(0), 8, 4, b)", ""),
    "a copy beyond the end of an allocation": (
        "assert result_of('cuMemcpyDtoD_v2', p, q, 8192) == 'CUDA_ERROR_INVALID_VALUE'; run('fill', 0, p, a)", ""),
    "nothing is freed": ("run('fill', 0, p, a); call('cuMemFree_v2', 0); run('pass_on', p, out, b)", RACE),
    "the same 16 bytes, perhaps not the same bytes": (
        "run('every_other', 0, p, a); run('every_other_next', 0, p, b)", UNSURE),
    "early without a wait": ("run('fill_late', 0, p, a); run('pass_on', p, out, a, True)", RACE),
    "early with a wait": ("run('fill_late', 0, p, a); run('wait_first', p, out, a, True)", ""),
    "early with a wait that is too late": ("run('fill_late', 0, p, a); run('wait_late', p, out, a, True)", RACE),
    "early with a wait of one warp, and a barrier": (
        "run('fill_late', 0, p, a); run('warp_waits', p, out, a, True)", ""),
    "early with a wait of one warp behind the barrier": (
        "run('fill_late', 0, p, a); run('warp_waits_late', p, out, a, True)", RACE),
    "early with a wait of one CTA, and a flag": (
        "run('fill_late', 0, p, a); run('cta_waits', p, out, a, True, 2)", ""),
    "early with a wait of one CTA, and a relaxed flag": (
        "run('fill_late', 0, p, a); run('cta_waits_relaxed', p, out, a, True, 2)", RACE),
    "early, over what the first one writes": ("run('fill_late', 0, p, a); run('fill', 0, p, a, True)", RACE),
    "early, of other memory": ("run('fill_late', 0, p, a); run('pass_on', q, out, a, True)", ""),
    "not early": ("run('fill_late', 0, p, a); run('pass_on', p, out, a)", ""),
    "a launch between that neither waits nor lets": (
        "run('fill_late', 0, p, a); run('read', q, 0, a, True); run('wait_first', p, out, a, True)", RACE),
    "a launch between that waits": (
        "run('fill_late', 0, p, a); run('wait_first', q, q, a, True); run('pass_on', p, out, a, True)", ""),
    "a launch between that does neither, and an ordinary launch": (
        "run('fill_late', 0, p, a); run('read', q, 0, a, True); run('pass_on', p, out, a)", ""),
    "what the launch between writes is covered": (
        "run('fill_late', 0, q, a); run('fill', 0, p, a, True); run('wait_first', p, out, a, True)", ""),
    "a fill of another stream between, which waits for both": (
        "run('fill_late', 0, p, blocking); run('fill', 0, q); run('pass_on', p, out, blocking, True)", ""),
    "early in the legacy stream without a wait": ("run('fill_late', 0, p); run('pass_on', p, out, 0, True)", RACE),
    "early in the legacy stream with a wait": ("run('fill_late', 0, p); run('wait_first', p, out, 0, True)", ""),
    "early in the legacy stream behind a fill of another stream, which waits for both": (
        "run('fill_late', 0, p); run('fill', 0, q, blocking); run('pass_on', p, out, 0, True)", ""),
    "early behind a launch that does not let it": ("run('fill', 0, p, a); run('pass_on', p, out, a, True)", WARNED),
    "early behind a launch that does not let it, with a wait": (
        "run('fill', 0, p, a); run('wait_first', p, out, a, True)", ""),
    "early behind a launch that does not let it, over what that reads": (
        "run('read', p, 0, a); run('fill', 0, p, a, True)", ""),
    "early behind a fill": ("call('cuMemsetD32Async', p, c_uint(0), 128, a); run('pass_on', p, out, a, True)", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_verdict_says_of_a_program(name):
    script, wanted = PROGRAMS[name]
    text = "\n".join(line.strip() for line in script.split(";"))
    code, log = run_script(HEAD + text + "\ncall('cuCtxSynchronize')", check=True)
    assert code == 0
    verdict = judge(log, "the program", "", True)
    severity = {RACE: "error", WARNED: "warning"}.get(wanted)
    told = [(finding.rule, finding.severity) for finding in verdict.findings]
    assert told == ([(RACE, severity)] if severity else []), verdict.reasons
    assert verdict.word == {"": "clean", WARNED: "clean", RACE: "racy", UNSURE: "incomplete"}[wanted], verdict.reasons


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("writes", ["call('cuMemcpyDtoHAsync_v2', pinned, p, 64, a)", "run('fill', 0, pinned, a)"])
def test_pinned_memory_for_which_the_host_never_waits_is_not_looked_at(writes, waits):
    script = f"{HEAD}{writes}\n" + ("call('cuStreamSynchronize', a)" if waits else "")
    _, log = run_script(script + "\nrun('read', p, 0)", check=True)
    verdict = judge(log, "the program", "", True)
    assert verdict.word == ("clean" if waits else "incomplete")
    assert waits or "the host does not wait for it" in verdict.reasons[0][1]


def test_the_finding_names_both_launches_and_what_is_missing():
    _, log = run_script(HEAD + "run('fill', 0, p, a)\nrun('pass_on', p, out, b)", check=True)
    [finding] = log.launches[1].findings
    assert "launch 1 of kernel 'pass_on'" in finding.message and "launch 0 of kernel 'fill' writes" in finding.message
    assert "512" in finding.message
    assert finding.missing.startswith("no event or wait of the host between stream")
    _, log = run_script(HEAD + "run('fill_late', 0, p, a)\nrun('pass_on', p, out, a, True)", check=True)
    [finding] = log.launches[1].findings
    assert "before its griddepcontrol.wait" in finding.message
    assert "griddepcontrol.wait" in finding.fix


def touched_memory(order: StreamOrder, kind: int) -> TouchedMemory:
    touched = TouchedMemory()
    touched.add_range(order.key(4096), 4096, 0, 4096, kind)
    return touched.close()


def test_a_stream_that_does_not_block_stays_so_when_another_program_begins():
    """The clocks of streams that exist are renewed with the log of the next program."""
    for flags in (0, NON_BLOCKING):
        log = Log()
        before = StreamOrder(Log())
        before.stream(0x1000, flags)
        order = before.renewed(log)
        for stream in (0x1000, LEGACY):
            order.submit(StreamOperation("a fill", stream, touched_memory(order, footprint.WRITE)))
        assert bool(log.unlooked) == (flags == NON_BLOCKING)


@pytest.mark.parametrize(
    ("early", "host_waits", "unlooked"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_many_launches_that_start_early_one_after_the_other_are_not_compared_silently(early, host_waits, unlooked):
    log = Log()
    order = StreamOrder(log)
    for number in range(KEPT + 2):
        launch = Footprint(order.key, early and number > 0)
        launch.close()
        order.submit(StreamOperation("a launch", 0, touched_memory(order, footprint.READ)), launch)
        if host_waits and number == KEPT // 2:
            order.host_waits()
    assert bool(log.unlooked) == unlooked, log.unlooked


@pytest.mark.parametrize("waits", [False, True])
def test_many_operations_after_a_write_to_pinned_memory_do_not_hide_that_the_host_never_waits_for_it(waits):
    log, pinned = Log(), Window("pinned", 4096, 4096, 0)
    order = StreamOrder(log)
    order.submit(StreamOperation("a copy", 0, touched_memory(order, footprint.WRITE)))
    for _ in range(KEPT + 1):
        order.submit(StreamOperation("a launch", 0, TouchedMemory().close()))
    if waits:
        order.host_waits()
    order.end(pinned)
    assert bool(log.unlooked) == (not waits), log.unlooked


@pytest.mark.parametrize("whole", [False, True])
def test_ranges_and_chunks_of_accesses_compare_alike(whole):
    """A range as a copy adds it, and the same chunks as a launch adds them, of a large allocation."""
    key, nbytes, start, end = (4096, 0), 1 << 44, 1 << 40, (1 << 40) + 160
    copied = TouchedMemory()
    copied.add_range(key, nbytes, start, end, footprint.WRITE)
    copied.add_range(key, nbytes, start + 1600, end + 1600, footprint.READ)
    copied.close()
    other = TouchedMemory()
    other.add_range(key, nbytes, start + 144, start + (160 if whole else 152), footprint.READ)
    [(_, found)] = copied.overlaps(other.close())
    assert (found.place, found.nbytes, found.certain, found.first_writes) == (start + 144, 16, True, True)
    beside = TouchedMemory()
    beside.add_range(key, nbytes, end, end + 1600, footprint.READ)
    assert not list(copied.overlaps(beside.close()))
    launched = TouchedMemory()
    launched.add(key, 1 << 12, np.array([9, 40]), np.array([9]), footprint.READ)
    copied = TouchedMemory()
    copied.add_range(key, 1 << 12, 144, 160, footprint.WRITE)
    [(_, found)] = launched.close().overlaps(copied.close())
    assert (found.place, found.nbytes, found.certain, found.first_writes) == (144, 16, True, False)
    both = TouchedMemory()
    both.add(key, 1 << 12, np.array([9]), np.array([9]), footprint.READ)
    both.add_range(key, 1 << 12, 0, 16, footprint.WRITE)
    with pytest.raises(AssertionError, match="an allocation has accesses of both kinds"):
        both.close()


def test_a_row_of_launches_that_start_early_reaches_beyond_the_last_one():
    """The middle one lets the third one start before it has itself waited for the first."""
    script = """
    run('fill_late', 0, p, a)
    run('fill_late', 0, q, a, True)
    run('pass_on', p, out, a, True)
    """
    _, log = run_script(HEAD + "\n".join(line.strip() for line in script.splitlines()), check=True)
    assert [finding.rule for finding in log.launches[2].findings] == [RACE]
    assert "launch 0" in log.launches[2].findings[0].message
