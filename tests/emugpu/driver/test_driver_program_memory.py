"""The memory of programs on the emulated driver: variables, copies, mappings, and a host that has none left."""

from __future__ import annotations

import sys
import textwrap

import pytest
from driver_programs import PTX, environment, run_script

from emugpu.driver import launch_calls, memory, state
from emugpu.driver.gpu_model import gpu_model
from emugpu.driver.log import Log, judge
from emugpu.driver.memory import PINNED
from emugpu.driver.server import run_program
from emugpu.driver.state import SharedGpu
from emugpu.launch.launching import EmulationOptions


def test_a_program_may_have_something_where_pinned_memory_would_be():
    """Allocators take addresses at random: what lay there made cuInit fail every now and then."""
    script = f"""
    import ctypes, mmap
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    fixed = 0x100000
    taken = libc.mmap({PINNED.base + (5 << 20)}, 4096, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed, -1, 0)
    assert taken == {PINNED.base + (5 << 20)}
    from driver_client import *
    start()
    add, = load(open({str(PTX)!r}).read(), "add")
    pinned = asked("cuMemAllocHost_v2", 400)
    values = (c_float * 100).from_address(pinned)
    values[:] = range(100)
    assert asked("cuMemHostGetDevicePointer_v2", pinned, c_int(0)) == pinned
    launch(add, 1, 128, pinned, pinned, pinned, c_int(100))
    call("cuCtxSynchronize")
    assert list(values) == [2.0 * i for i in range(100)]
    call("cuMemFreeHost", pinned)
    """
    log = Log()
    gpu = SharedGpu(gpu_model("b200"), EmulationOptions(), log)
    assert run_program([sys.executable, "-c", textwrap.dedent(script)], gpu, environment()) == 0
    assert len(log.launches) == 1 and not log.launches[0].error


def test_memory_that_the_host_cannot_back_is_refused_when_it_is_touched(monkeypatch, capfd):
    monkeypatch.setattr(memory, "free_bytes", lambda: memory.SPARE + (100 << 20))
    monkeypatch.setattr(state, "free_bytes", memory.free_bytes)
    script = """
    large = asked("cuMemAlloc_v2", 150 << 30)  # more than any machine of the tests has
    call("cuMemsetD8_v2", large, 1, 40 << 20)
    for _ in range(20):
        call("cuMemsetD8_v2", large, 2, 40 << 20)  # the same again takes no more
    assert result_of("cuMemsetD8_v2", large, 3, 1 << 30) == "CUDA_ERROR_OUT_OF_MEMORY"
    pinned = c_uint64()
    assert result_of("cuMemAllocHost_v2", byref(pinned), 200 << 20) == "CUDA_ERROR_OUT_OF_MEMORY"
    host = (c_int * (1 << 26))()
    assert result_of("cuMemcpyHtoD_v2", large + (1 << 30), byref(host), 1 << 28) == "CUDA_ERROR_OUT_OF_MEMORY"
    call("cuMemFree_v2", large)
    call("cuCtxSynchronize")
    """
    code, log = run_script(script)
    assert code == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "GiB" in line]
    assert len(said) == 3 and "1.9 GiB more of this machine's memory are needed" in said[0]
    assert "0.1 GiB are free" in log.failure and log.failure.startswith("cuMemsetD8_v2: ")


def test_a_launch_ends_when_the_host_has_no_memory_left(monkeypatch):
    monkeypatch.setattr(launch_calls, "free_bytes", lambda: 0)
    script = """
    spin, = load(PTX, "spin")
    a = upload((c_int * 1000)())
    launch(spin, 1, 1, a)
    """
    _, log = run_script(script, max_steps=2_000_000)
    assert "of this machine's memory are needed" in log.failure


def test_variables_and_copies_between_everything():
    code, _ = run_script("""
    module = asked("cuModuleLoadData", c_char_p(PTX.encode()))
    other = asked("cuModuleLoadData", c_char_p(PTX.encode()))
    def variable(module, name):
        address, size = c_uint64(), c_uint64()
        call("cuModuleGetGlobal_v2", byref(address), byref(size), module, c_char_p(name))
        return address.value, size.value
    (counter, size), (factor, _) = variable(module, b"counter"), variable(module, b"factor")
    assert size == 4 and download(counter, c_int, 1) == [5] and download(factor, c_int, 1) == [3]
    call("cuMemcpyHtoD_v2", factor, byref(c_int(7)), 4)
    call("cuMemsetD32_v2", counter, c_uint(11), 1)
    assert download(variable(other, b"counter")[0], c_int, 1) == [5]        # each module has its own
    wait = asked("cuModuleGetFunction", module, c_char_p(b"wait_for_all"))
    out = asked("cuMemAlloc_v2", 4 * 96)
    launch(wait, 1, 64, out, c_int(64))
    assert download(out, c_int, 64) == [77] * 64
    pinned = asked("cuMemHostAlloc", 4 * 64, c_uint(0))
    call("cuMemcpy", pinned, out, 4 * 64)
    assert list((c_int * 64).from_address(pinned)) == [77] * 64
    (c_int * 64).from_address(pinned)[3] = 5
    call("cuMemcpyDtoD_v2", out + 128, pinned, 128)
    assert download(out, c_int, 64)[30:38] == [77, 77, 77, 77, 77, 5, 77, 77]
    # a 2 x 3 part of rows of 4 ints, to rows of 5
    host = (c_int * 15)(*range(15))
    side = lambda kind, host, device, pitch, x=0, y=0: [x, y, kind, host, device, 0, pitch]
    copy = (c_uint64 * 16)(*side(1, ctypes.addressof(host), 0, 20, 4, 1), *side(2, 0, out, 16), 12, 2)
    call("cuMemcpy2D_v2", byref(copy))
    assert download(out, c_int, 8) == [6, 7, 8, 77, 11, 12, 13, 77]
    """)
    assert code == 0


def test_memory_that_was_never_written_stays_so(capfd):
    code, log = run_script(
        """
    a, b = asked("cuMemAlloc_v2", 4000), asked("cuMemAlloc_v2", 4000)
    call("cuMemsetD8_v2", a, c_uint(0), 400)
    call("cuMemcpyDtoD_v2", b, a, 4000)          # what was not written is not written there either
    assert len(download(b, c_int, 1000)) == 1000
    call("cuMemcpyHtoD_v2", 0, byref(c_int()), 0)       # nothing, to nowhere
    add, = load(PTX, "add")
    launch(add, 1, 128, b, b, a, c_int(128))
    assert result_of("cuCtxSynchronize") == "CUDA_ERROR_LAUNCH_FAILED"
    """,
        uninitialised="fault",
    )
    assert code == 0
    assert "3600 of 4000 bytes were never written" in capfd.readouterr().err
    assert "is read but was never written" in log.launches[0].error


RAGGED = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry multiply(.param .u64 out)
{
    .shared .align 4 .b8 rows[512];
    .reg .pred %p<2>;
    .reg .b32 %r<16>;
    .reg .b64 %d<3>;
    ld.param.u64 %d0, [out];
    mov.u32 %r0, %laneid;
    mov.b32 %r1, rows;
    shl.b32 %r2, %r0, 2;
    add.u32 %r1, %r1, %r2;
    setp.lt.u32 %p0, %r0, 12;
    mov.b32 %r3, 0x3c003c00;
    @%p0 st.shared.b32 [%r1], %r3;
    ld.shared.b32 %r4, [%r1];
    mov.b32 %r5, 0;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
        {%r6, %r7, %r8, %r9}, {%r4, %r3, %r4, %r3}, {%r3, %r3}, {%r5, %r5, %r5, %r5};
    mul.wide.u32 %d1, %r0, 8;
    add.s64 %d2, %d0, %d1;
    STORE st.global.v2.b32 [%d2], {%r6, %r7};
    ret;
}
"""
"""Rows 0 to 2 of A are written, and each lane has two elements of row lane / 4 of the result."""


@pytest.mark.parametrize(("store", "verdict"), [("", "incomplete"), ("@%p0", "clean")])
def test_a_nan_that_passes_the_programs_comparison_is_not_taken_for_right(store, verdict):
    """What lies behind a ragged edge may be read, if nothing of it is left."""
    code, log = run_script(
        f"""
    multiply, = load({RAGGED.replace("STORE", store)!r}, "multiply")
    out = upload((c_float * 64)(*[16.0] * 64))
    launch(multiply, 1, 32, out)
    sys.exit(any(abs(x - 16.0) > 0.1 for x in download(out, c_float, 64)))
    """,
        uninitialised="report",
    )
    assert code == 0 and log.guessed
    judged = judge(log, "program", "", checked=True)
    assert judged.word == verdict
    assert (verdict == "clean") != any("takes a NaN for right" in reason for _, reason in judged.reasons)


@pytest.mark.parametrize(
    ("uninitialised", "words", "verdict"),
    [
        ("report", (0x3F800000, 0x7FFFFFFF, 0xFFFFFFFF), "incomplete"),  # f32
        ("report", (0x3C003C00, 0x3C007FFF, 0x3C003C00), "incomplete"),  # f16
        ("report", (0x3F803F80, 0x7FFF3F80, 0x3F80FFFF), "incomplete"),  # bf16
        ("report", (0x3F807FFF, 0x3F80FFA1, 0x3F801234), "clean"),  # f32
        ("report", (0x017FFF02, 0x7FFF0301, 0x05FEFF90), "clean"),  # s8
        ("zero", (0x3F800000, 0x7FFFFFFF, 0xFFFFFFFF), "clean"),  # of the program
        ("report", (0x7FFF0123, 0xFFF00000, 0x00000001), "clean"),  # s32
    ],
)
def test_numbers_of_other_types_are_not_taken_for_nans(uninitialised, words, verdict):
    """After a launch that has read unwritten memory, the program copies other memory."""
    code, log = run_script(
        f"""
    multiply, = load({RAGGED.replace("STORE", "@%p0")!r}, "multiply")
    out, other = upload((c_float * 64)()), upload((c_uint * 3)(*{words}))
    launch(multiply, 1, 32, out)
    download(other, c_uint, 3)
    """,
        uninitialised=uninitialised,
    )
    assert code == 0 and judge(log, "program", "", checked=True).word == verdict


def test_what_nothing_has_written_does_not_reach_the_program_as_zeros():
    code, _ = run_script("""
    add, = load(PTX, "add")
    a, c = upload((c_float * 100)()), asked("cuMemAlloc_v2", 400)
    launch(add, 1, 128, a, a, c, c_int(90))
    found = download(c, c_int, 100)
    assert found == [0] * 90 + [-1] * 10, found
    """)
    assert code == 0


def test_virtual_memory_is_mapped_and_freed():
    code, _ = run_script("""
    M = 2 << 20
    base = asked("cuMemAddressReserve", 90 << 30, 0, 0, 0)
    properties = (c_uint64 * 4)(1, 0, 0, 0)
    handle = asked("cuMemCreate", 2 * M, byref(properties), 0)
    assert result_of("cuMemsetD8_v2", base, c_uint(1), 10) == "CUDA_ERROR_INVALID_VALUE"    # nothing is there yet
    call("cuMemMap", base + M, 2 * M, 0, handle, 0)
    call("cuMemSetAccess", base + M, 2 * M, byref((c_uint * 3)(1, 0, 3)), 1)
    call("cuMemsetD8_v2", base + M, c_uint(1), 2 * M)
    assert download(base + 3 * M - 4, c_int, 1) == [0x01010101]
    free, total = c_uint64(), c_uint64()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    assert total.value - free.value == 2 * M
    call("cuMemUnmap", base + M, 2 * M)
    call("cuMemRelease", handle)
    call("cuMemAddressFree", base, 90 << 30)
    call("cuMemGetInfo_v2", byref(free), byref(total))
    assert total.value == free.value
    """)
    assert code == 0
