"""Programs on the emulated driver: right results, what kernels print, and errors as a GPU gives them."""

from __future__ import annotations

import errno
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from driver_programs import TESTS, command, environment, run_script

from emugpu.check.findings import Finding
from emugpu.cli.exec_output import as_json
from emugpu.driver import session
from emugpu.driver.gpu_model import gpu_model
from emugpu.driver.log import LaunchRecord, Log, judge
from emugpu.driver.recording import LaunchRecorder
from emugpu.driver.server import run_program
from emugpu.driver.state import SharedGpu
from emugpu.emulator.rules import WARNINGS, RuleWarning
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.launching import run as ptx_run

ADD = """
add, = load(PTX, "add")
n = 1000
a = upload((c_float * n)(*range(n)))
b = upload((c_float * n)(*(2 * i for i in range(n))))
c = asked("cuMemAlloc_v2", 4 * n)
launch(add, 4, 256, a, b, c, c_int(n))
call("cuCtxSynchronize")
assert download(c, c_float, n) == [3.0 * i for i in range(n)]
"""


def test_vector_add():
    code, log = run_script(ADD + "sys.exit(7)")
    assert code == 7  # the program's own
    [launch] = log.launches
    assert (launch.kernel, launch.grid, launch.block) == ("add", (4, 1, 1), (256, 1, 1))
    assert launch.counters.warps_finished == 32 and not launch.error
    assert not log.failure and not log.unhandled


@pytest.mark.parametrize(("target", "ctas"), [("sm_121a", 48), ("sm_120", 48), ("sm_120", 49)])
def test_the_gpu_and_not_its_ptx_says_how_many_ctas_run_at_once(target, ctas):
    """A barrier of the whole grid hangs on the 48 SMs of a DGX Spark if there are more CTAs, of one to an SM."""
    code, log = run_script(
        f"""
        text = open({str(TESTS / "data/cuda/residency.ptx")!r}).read()
        barrier, = load(text.replace(".target sm_100a", ".target {target}"), "grid_barrier")
        arrived, seen = upload((c_uint * 1)(0)), asked("cuMemAlloc_v2", 4 * {ctas})
        launch(barrier, {ctas}, 1024, arrived, seen)
        sys.exit(result_of("cuCtxSynchronize") != "CUDA_SUCCESS")
        """,
        gpu="spark",
    )
    assert code == (ctas > 48), log.launches[0].error


@pytest.mark.parametrize("traceback", [True, False])
def test_an_error_of_the_driver_itself_is_one_line(monkeypatch, capfd, traceback):
    """EMUGPU_TRACEBACK shows where it was, as for the commands."""
    monkeypatch.setitem(session.HANDLERS, "cuDeviceGetName", lambda *_: {}["name"])
    monkeypatch.delenv("HARNESS_TRACEBACK", raising=False)
    monkeypatch.setenv("EMUGPU_TRACEBACK", "1" if traceback else "")
    _, log = run_script('call("cuDeviceGetName", ctypes.create_string_buffer(9), c_int(9), c_int(0))')
    assert log.failure == "cuDeviceGetName: unexpected KeyError: 'name'; set EMUGPU_TRACEBACK=1 to see where"
    assert ("Traceback (most recent" in capfd.readouterr().err.partition("cuDeviceGetName: unexpected")[0]) == traceback


@pytest.mark.parametrize(
    ("message", "shown"), [("Unable to allocate 25.0 GiB", " (Unable to allocate 25.0 GiB)"), ("", "")]
)
def test_a_machine_without_the_memory_for_a_launch_is_one_line_that_says_so(monkeypatch, message, shown):
    """The checker's shadow of 100 GiB is refused where Linux sees that it can never have it all."""

    def short(*_):
        raise MemoryError(message)

    monkeypatch.setitem(session.HANDLERS, "cuDeviceGetName", short)
    _, log = run_script('call("cuDeviceGetName", ctypes.create_string_buffer(9), c_int(9), c_int(0))')
    assert log.failure == (
        f"cuDeviceGetName: this machine has not enough memory{shown}; allocate less, or use a machine that has more"
    )


def test_the_device_is_the_chosen_one():
    script = """
    name = ctypes.create_string_buffer(100)
    call("cuDeviceGetName", name, c_int(100), c_int(0))
    major = asked("cuDeviceGetAttribute", c_int(75), c_int(0), kind=c_int)
    assert (name.value, major) == (b"NVIDIA H200", 9), (name.value, major)
    assert result_of("cuDeviceGet", byref(c_int()), c_int(1)) == "CUDA_ERROR_INVALID_DEVICE"
    assert result_of("cuModuleLoadData", byref(c_uint64()), c_char_p(PTX.encode())) == "CUDA_ERROR_NO_BINARY_FOR_GPU"
    """
    code, log = run_script(script, gpu="h200")
    assert code == 0
    assert "sm_100a" in log.failure and "sm_90" in log.failure  # what the module is for, and what the GPU is


def test_what_kernels_print_comes_at_a_synchronisation(capfd):
    script = """
    say, = load(PTX, "say")
    libc = ctypes.CDLL(None)
    libc.puts(b"start")
    launch(say, 2, 32, c_int(41))
    asked("cuMemAlloc_v2", 4)
    libc.puts(b"launched")
    call("cuStreamSynchronize", 0)
    libc.puts(b"end")
    """
    assert run_script(script)[0] == 0
    assert capfd.readouterr().out == "start\nlaunched\nblock 0 says 41\nblock 1 says 41\nend\n"


@pytest.mark.parametrize(
    "kernel, launch, result, said",
    [
        ("add", "4, 256, a, a, a, c_int(1001)", "CUDA_ERROR_ILLEGAL_ADDRESS", "outside every allocation"),
        ("add", "1, 32, a + 2, a, a, c_int(1000)", "CUDA_ERROR_MISALIGNED_ADDRESS", "not aligned"),
        ("claim", "1, 32, c_int(0)", "CUDA_ERROR_ASSERT", "`n > 0`"),
        ("wait_for_all", "1, 64, a, c_int(32)", "CUDA_ERROR_LAUNCH_TIMEOUT", "deadlock"),
        ("spin", "1, 1, a", "CUDA_ERROR_LAUNCH_TIMEOUT", "steps|executed"),
    ],
)
def test_errors_of_kernels_stay(kernel, launch, result, said, capfd):
    script = f"""
    kernel, = load(PTX, "{kernel}")
    a = upload((c_int * 1000)())
    launch(kernel, {launch})                         # asynchronous: this is no error yet
    for function in ("cuCtxSynchronize", "cuCtxSynchronize"):
        assert result_of(function) == "{result}", result_of(function)
    assert result_of("cuMemAlloc_v2", byref(c_uint64()), 4) == "{result}"
    call("cuDevicePrimaryCtxReset_v2", c_int(0))
    call("cuCtxSynchronize")
    """
    code, log = run_script(script, max_steps=20_000)
    printed = capfd.readouterr()
    assert code == 0, printed
    assert not log.failure  # the emulated GPU did what it should
    [record] = log.launches
    assert record.result == result and any(part in record.error for part in said.split("|"))
    assert record.error.splitlines()[0] in printed.err
    if kernel == "claim":
        assert printed.out == "before\n"


def test_wrong_calls_are_refused():
    code, _ = run_script("""
    add, dynamic = load(PTX, "add", "dynamic")
    out = asked("cuMemAlloc_v2", 4096)
    assert result_of("cuMemAlloc_v2", byref(c_uint64()), 1 << 60) == "CUDA_ERROR_OUT_OF_MEMORY"
    assert result_of("cuMemAlloc_v2", byref(c_uint64()), 0) == "CUDA_ERROR_INVALID_VALUE"
    assert result_of("cuMemFree_v2", out + 512) == "CUDA_ERROR_INVALID_VALUE"
    assert result_of("cuMemcpyHtoD_v2", out + 4000, b"0" * 200, 200) == "CUDA_ERROR_INVALID_VALUE"
    assert result_of("cuMemcpyHtoD_v2", 4096, b"0" * 200, 200) == "CUDA_ERROR_INVALID_VALUE"
    assert result_of("cuStreamSynchronize", 77) == "CUDA_ERROR_INVALID_HANDLE"
    assert result_of("cuModuleGetFunction", byref(c_uint64()), add, c_char_p(b"add")) == "CUDA_ERROR_INVALID_HANDLE"
    lines = ".version 9.0", ".target sm_90", ".entry f() {", "foo.bar %r1;", "}", ".entry g() {", "ret;", "}"
    module = asked("cuModuleLoadData", c_char_p(chr(10).join(lines).encode()))
    assert result_of("cuModuleGetFunction", byref(c_uint64()), module, c_char_p(b"f")) == "CUDA_ERROR_INVALID_PTX"
    launch(asked("cuModuleGetFunction", module, c_char_p(b"g")), 1, 1)      # another kernel's fault is not its own
    one, none = c_uint(1), None
    sizes = lambda threads, shared: (one, one, one, c_uint(threads), one, one, c_uint(shared), none)
    pointer = (ctypes.c_void_p * 1)(ctypes.addressof(c_uint64(out)))
    assert result_of("cuLaunchKernel", dynamic, *sizes(2048, 64), pointer, none) == "CUDA_ERROR_INVALID_VALUE"
    assert result_of("cuLaunchKernel", dynamic, *sizes(32, 50000), pointer, none) == "CUDA_ERROR_INVALID_VALUE"
    assert result_of("cuLaunchKernel", dynamic, *sizes(32, 128), none, none) == "CUDA_ERROR_INVALID_VALUE"
    call("cuFuncSetAttribute", dynamic, c_int(8), c_int(60000))
    launch(dynamic, 1, 32, out, shared=50000)
    assert download(out, c_float, 32) == [36.0 - i for i in range(32)]
    call("cuMemFree_v2", out)
    assert result_of("cuMemcpyDtoH_v2", ctypes.create_string_buffer(4), out, 4) == "CUDA_ERROR_INVALID_VALUE"
    """)
    assert code == 0


def test_without_a_context_there_is_nothing():
    code, _ = run_script("""
    call("cuCtxSetCurrent", None)
    assert result_of("cuMemAlloc_v2", byref(c_uint64()), 4) == "CUDA_ERROR_INVALID_CONTEXT"
    """)
    assert code == 0


def test_functions_that_are_not_there_are_named(capfd):
    code, log = run_script("""
    assert result_of("cuGraphCreate", byref(c_uint64()), c_uint(0)) == "CUDA_ERROR_NOT_SUPPORTED"
    assert result_of("cuStreamBeginCapture_v2", None, c_uint(0)) == "CUDA_ERROR_NOT_SUPPORTED"
    assert result_of("cuTexObjectCreate", None, None, None, None) == "CUDA_ERROR_NOT_SUPPORTED"
    """)
    assert code == 0 and set(log.unhandled) == {"cuGraphCreate", "cuStreamBeginCapture_v2", "cuTexObjectCreate"}
    said = capfd.readouterr().err
    graphs = "the emulated GPU has no CUDA graphs; run the code without capturing it"
    for name in ("cuGraphCreate", "cuStreamBeginCapture_v2"):
        assert f"emulated GPU: {name} is not supported: {graphs} (CUDA_ERROR_NOT_SUPPORTED)\n" in said
    assert "emulated GPU: cuTexObjectCreate is not supported (CUDA_ERROR_NOT_SUPPORTED)\n" in said


TABLES = {"unknown": ("ERROR_NOT_FOUND", 16 * "ab"), "known": ("SUCCESS", "6bd5fb6c5bf4e74a8987d93912fd9df9")}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("table", [None, *TABLES])
def test_a_program_that_fails_after_a_private_table_was_missing_is_incomplete(table, fails):
    asks = ""
    if table is not None:
        result, id = TABLES[table]
        asks = f"result = result_of('cuGetExportTable', byref(c_uint64()), bytes.fromhex({id!r}))\n"
        asks += f"assert result == 'CUDA_{result}', result\n"
    code, log = run_script(ADD + asks + f"sys.exit({3 * fails})", check=True)
    assert code == 3 * fails
    verdict = judge(log, "the program", "the program ended with code 3" if fails else "", True)
    assert verdict.word == ("clean" if not fails else "incomplete" if table == "unknown" else "wrong")
    told = [reason for _, reason in verdict.reasons if "cuGetExportTable has no table abab" in reason]
    assert len(told) == (fails and table == "unknown")
    # The caller is named: here ctypes' libffi, elsewhere the library that NVIDIA's runtime is linked into.
    assert all(re.search(r" for \S+\.so\S*; .* a build with the shared runtime is needed", reason) for reason in told)


FAILURES = {
    "the program ended with code 1": True,
    "the test failed: AssertionError: assert 1 == 2": False,
    "the test failed: AssertionError: Tensor-likes are not close! device='cuda:0'": False,
    "the test failed: AssertionError: assert <cudaError_t.cudaErrorUnknown: 999> == 0": True,
    "the program raised RuntimeError: the runtime has not started": True,
}
"""Whether a private table that is missing may be why."""


@pytest.mark.parametrize("failure", FAILURES)
def test_a_missing_private_table_explains_only_the_failure_that_may_come_from_it(failure):
    missing = f"assert result_of('cuGetExportTable', byref(c_uint64()), {bytes(16)!r}) == 'CUDA_ERROR_NOT_FOUND'\n"
    for script in (missing + ADD, ADD + missing):
        _, log = run_script(script, check=True)
        verdict = judge(log, "the program", failure, True)
        assert verdict.word == ("incomplete" if FAILURES[failure] else "wrong"), verdict.reasons


def test_a_missing_private_table_does_not_explain_what_follows_from_a_launch_that_fails():
    script = """
    assert result_of("cuGetExportTable", byref(c_uint64()), bytes(16)) == "CUDA_ERROR_NOT_FOUND"
    kernel, = load(PTX, "add")
    a = upload((c_int * 1000)())
    launch(kernel, 4, 256, a, a, a, c_int(1001))
    assert result_of("cuCtxSynchronize") == "CUDA_ERROR_ILLEGAL_ADDRESS"
    """
    _, log = run_script(script, check=True)
    verdict = judge(log, "the program", "the program ended with code 1", True)
    assert verdict.word == "wrong" and not any("cuGetExportTable" in reason for _, reason in verdict.reasons)


def test_a_cubin_alone_is_refused_with_the_way_out(capfd):
    elf = "b'\\x7fELF' + bytes(60)"
    code, log = run_script(f"""
    assert result_of("cuModuleLoadData", byref(c_uint64()), {elf}) == "CUDA_ERROR_NO_BINARY_FOR_GPU"
    """)
    assert code == 0 and "code=compute_100a" in log.failure


def test_kernels_of_a_cubin_can_be_asked_about_and_not_launched(capfd):
    """The head of the ELF file says that one table of sections begins at byte 64, and how large it is."""
    code, log = run_script("""
    names = b"\\0.text.first\\0.text.other\\0"
    elf = bytearray(b"\\x7fELF" + bytes(60) + names)
    elf[40], elf[58], elf[60] = 64, len(names), 1
    module = asked("cuModuleLoadData", bytes(elf))
    assert asked("cuModuleGetFunctionCount", module, kind=c_uint) == 2
    first = asked("cuModuleGetFunction", module, c_char_p(b"first"))
    call("cuFuncSetAttribute", first, c_int(8), c_int(100000))
    room = asked("cuOccupancyMaxActiveBlocksPerMultiprocessor", first, c_int(1), c_uint64(100000), kind=c_int)
    assert room == 2, room
    assert result_of("cuModuleGetFunction", byref(c_uint64()), module, c_char_p(b"x")) == "CUDA_ERROR_NOT_FOUND"
    assert result_of("cuLaunchKernel", first, *[c_uint(1)] * 7, None, None, None) == "CUDA_ERROR_NO_BINARY_FOR_GPU"
    """)
    assert code == 0 and not log.launches
    assert log.failure.startswith("kernel 'first' cannot be launched: the module has machine code and no PTX")
    assert log.failure in capfd.readouterr().err


def test_streams_events_and_host_functions(capfd):
    code, log = run_script("""
    stream = asked("cuStreamCreate", c_uint(1))
    first, second = (asked("cuEventCreate", c_uint(0)) for _ in range(2))
    say, = load(PTX, "say")
    assert result_of("cuEventElapsedTime", byref(c_float()), first, second) == "CUDA_ERROR_INVALID_HANDLE"
    call("cuEventRecord", first, stream)
    launch(say, 1, 32, c_int(1))
    call("cuEventRecord", second, stream)
    called = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(called.append)
    call("cuLaunchHostFunc", stream, function, 99)
    assert called == [99]
    assert asked("cuEventElapsedTime", first, second, kind=c_float) > 0
    """)
    assert code == 0 and log.elapsed_asked
    assert "say nothing about any GPU" in capfd.readouterr().err


def test_a_forked_process_cannot_go_on_and_a_new_one_starts_afresh():
    code, log = run_script("""
    a = asked("cuMemAlloc_v2", 4)
    if os.fork() == 0:
        os._exit(0 if result_of("cuMemAlloc_v2", byref(c_uint64()), 4) == "CUDA_ERROR_NOT_INITIALIZED" else 1)
    assert os.wait()[1] == 0
    call("cuMemFree_v2", a)
    again = [sys.executable, "-c", "from driver_client import *; start(); print(asked('cuMemAlloc_v2', 4))"]
    one, two = (subprocess.Popen(again, close_fds=True) for _ in range(2))     # two at once
    assert (one.wait(), two.wait()) == (0, 0)
    """)
    assert code == 0 and log.processes == 3


def test_a_program_that_is_killed_leaves_nothing():
    before = leftovers()
    code, log = run_script("upload((c_int * 1000)()); os.kill(os.getpid(), signal.SIGKILL)")
    assert code == 128 + signal.SIGKILL and not log.failure
    assert leftovers() == before


def test_a_program_that_ends_while_its_kernel_runs_ends_the_emulation():
    started = time.monotonic()
    code, _ = run_script("""
    spin, = load(PTX, "spin")
    flag = upload((c_int * 2)())
    import threading
    threading.Timer(0.3, lambda: os._exit(5)).start()
    launch(spin, 1, 1, flag)
    """)
    assert code == 5 and time.monotonic() - started < 20


SUM = """
TEXT = '''.version 8.6
.target sm_90
.address_size 64
.visible .entry sum(.param .u64 result) {
.reg .b32 %a, %b; .reg .f32 %c, %d<4>; .reg .u64 %result;
mov.b32 %a, 0x04000400; mov.b32 %b, 0x0C000C00; mov.f32 %c, 0f3F800000; // 2^-14, 2^-12, 1
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
    {%d0, %d1, %d2, %d3}, {%a, %a, %a, %a}, {%b, %b}, {%c, %c, %c, %c};
ld.param.u64 %result, [result];
st.global.f32 [%result], %d0;
ret;
}'''
kernel, = load(TEXT, "sum")
place = asked("cuMemAlloc_v2", 4)
launch(kernel, 1, 32, place)
call("cuCtxSynchronize")
print(download(place, c_uint, 1)[0] - 0x3F800000)
"""


@pytest.mark.parametrize(("accumulation", "more"), [("f32", "2"), ("tensor_core", "0")])
def test_programs_add_up_as_they_are_told_to(accumulation, more, tmp_path):
    """1 and 16 products of 2^-26: a tensor core cuts off each of them."""
    path = tmp_path / "out.json"
    words = ("--emulate", f"accumulation={accumulation}", "--json", str(path), "--", *command(SUM))
    with emugpu(*words, stdout=subprocess.PIPE) as process:
        assert process.communicate()[0] == f"{more}\n" and process.returncode == 0
    assert json.loads(path.read_text())["accumulation"] == accumulation


def leftovers() -> set[str]:
    """Files that could be left of an emulated GPU: none, as its memory and its socket have no files."""
    return {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob("*emulated*gpu*")}


def emugpu(*arguments: str, **keywords) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "emugpu", "exec", *arguments],
        env=environment(),
        cwd=TESTS.parent,
        text=True,
        **keywords,
    )


@pytest.mark.slow
def test_the_command_writes_json_and_a_killed_emulator_is_told(tmp_path):
    path = tmp_path / "out.json"
    script = ADD + 'print("go", flush=True)\ninput()\nprint(result_of("cuCtxSynchronize"), flush=True)\n'
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    well, killed = (emugpu("--json", str(path), "--", *command(script), **pipes) for _ in range(2))
    assert [p.stdout.readline() for p in (well, killed)] == ["go\n", "go\n"]
    killed.kill()
    killed.wait()
    out, err = killed.communicate("\n")
    assert out == "CUDA_ERROR_DEVICE_UNAVAILABLE\n" and "emulated GPU: its process has ended" in err
    out, err = well.communicate("\n")
    assert (well.returncode, out) == (0, "CUDA_SUCCESS\n"), err
    assert "1 launch" in err and "add" in err
    record = json.loads(path.read_text())
    assert record["unhandled"] == [] and record["exit_code"] == 0
    [launch] = record["launches"]
    assert launch["kernel"] == "add" and launch["grid"] == [4, 1, 1] and launch["error"] is None
    assert launch["counters"]["warps_finished"] == 32
    assert not leftovers()


def test_the_synchronisation_of_every_launch_is_checked_if_asked_for():
    script = """
    race, say = load(PTX, "race", "say")
    out = asked("cuMemAlloc_v2", 4 * 64)
    launch(say, 1, 32, c_int(1))
    launch(race, 1, 64, out)
    assert download(out + 128, c_float, 32) == list(range(32))      # right, by luck
    """
    code, log = run_script(script, check=True)
    assert code == 0
    sound, racy = log.launches
    assert not sound.findings
    [finding] = racy.findings
    assert finding.severity == "error"
    assert json.loads(as_json(log, "b200", code, "f32"))["launches"][1]["findings"][0]["rule"] == finding.rule
    _, log = run_script(script)
    assert not log.launches[1].findings


def test_a_recorded_launch_is_replayed(tmp_path, capfd):
    """With memory at its addresses, written only where it was, and with a variable that the program has changed."""
    recorder = LaunchRecorder(tmp_path / "kept")
    log = Log()
    script = """
    module = asked("cuModuleLoadData", c_char_p(PTX.encode()))
    add, wait = (asked("cuModuleGetFunction", module, c_char_p(name)) for name in (b"add", b"wait_for_all"))
    call("cuMemsetD32_v2", asked("cuModuleGetGlobal_v2", None, module, c_char_p(b"counter")), c_uint(100), 1)
    out = asked("cuMemAlloc_v2", 4 * 64)
    launch(wait, 1, 64, out, c_int(64))
    half = upload((c_float * 32)(*range(32)))
    c = asked("cuMemAlloc_v2", 4 * 1000)
    call("cuMemsetD8_v2", c + 2000, c_uint(1), 400)
    launch(add, 1, 32, half, half, c, c_int(32))
    """
    assert (
        run_program(command(script), SharedGpu(gpu_model("b200"), EmulationOptions(), log, recorder), environment())
        == 0
    )
    first, second = (ptx_run(read_launch_file(tmp_path / "kept" / f"launch-{n}" / "launch.toml")) for n in range(2))
    assert [int(v) for v in first.contents["memory_0"].view(np.int32)] == [300] * 64
    assert first.launched[0].result.counters == log.launches[0].counters
    assert "memory_2" not in second.contents  # a part of c was never written
    kept = {path.name for path in (tmp_path / "kept" / "launch-1").glob("memory*.npy")}
    assert kept == {"memory_0-0.npy", "memory_1-0.npy", "memory_2-2000.npy"}
    assert second.launched[0].result.counters == log.launches[1].counters


def test_a_launch_that_cannot_be_recorded_leaves_no_part_of_itself(tmp_path, monkeypatch):
    def save(path, values):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", save)
    log, recorder = Log(), LaunchRecorder(tmp_path / "kept")
    assert run_program(command(ADD), SharedGpu(gpu_model("b200"), EmulationOptions(), log, recorder), environment())
    assert "cannot record to" in log.failure and "No space left on device" in log.failure
    assert not list((tmp_path / "kept").iterdir())


BLAS = """
import numpy as np
blas = ctypes.CDLL("libcublas.so.13")
handle = ctypes.c_void_p()
assert blas.cublasCreate_v2(byref(handle)) == 0
rng = np.random.default_rng(1)
a, b, c = (rng.integers(-4, 5, shape) for shape in ((5, 7), (7, 4), (5, 4)))
size = lambda kind, shape: int(np.prod(shape)) * np.dtype(kind).itemsize
put = lambda x, kind: upload((ctypes.c_char * size(kind, x.shape)).from_buffer_copy(x.astype(kind).tobytes("F")))
got = lambda at, kind, shape: np.frombuffer(bytes(download(at, ctypes.c_uint8, size(kind, shape))), kind)
get = lambda at, kind, shape: got(at, kind, shape).reshape(shape, order="F")
two, three = c_float(2), c_float(3)
i32, at = ctypes.c_int32, ctypes.c_uint64
"""


BLAS_CALLS = """
A, B, C = put(a, "f4"), put(b, "f4"), put(c, "f4")
sizes = [i32(5), i32(4), i32(7)]
arguments = [handle, i32(0), i32(0), *sizes, byref(two), at(A), i32(5), at(B), i32(7), byref(three)]
assert blas.cublasSgemm_v2(*arguments, at(C), i32(5)) == 0
assert (get(C, "f4", (5, 4)) == 2 * a @ b + 3 * c).all()
tall = np.vstack([b.T, np.zeros((2, 7))])                       # B^T, with rows that do not belong to it
A, B, C = put(a.T, "f2"), put(tall, "f2"), put(c, "f4")
one, none = c_float(1), c_float(0)
ex = [handle, i32(1), i32(1), i32(5), i32(4), i32(7), byref(one), at(A), i32(2), i32(7), at(B), i32(2), i32(6)]
assert blas.cublasGemmEx(*ex, byref(none), at(C), i32(0), i32(5), i32(68), i32(-1)) == 0
assert (get(C, "f4", (5, 4)) == a @ b).all()
both = np.concatenate([a.ravel("F"), a.ravel("F") * 2])
A, B, C = put(both, "f4"), put(b, "f4"), put(np.zeros(40), "f4")
batch = [handle, i32(0), i32(0), i32(5), i32(4), i32(7), byref(one), at(A), i32(5), at(35), at(B), i32(7), at(0)]
assert blas.cublasSgemmStridedBatched(*batch, byref(none), at(C), i32(5), at(20), i32(2)) == 0
assert (get(C, "f4", (40,)) == np.concatenate([(a @ b).ravel("F"), (2 * a @ b).ravel("F")])).all()
assert blas.cublasSgemm_v2(*arguments, at(C), i32(4)) == 7      # a leading dimension below the rows
assert blas.cublasSaxpy_v2() == 15
"""


def test_products_of_cublas_are_computed_by_numpy_and_said_to_be(capfd):
    """Of f32 by columns; transposed, of f16 to f32, with a leading dimension; in a batch; what is none is named."""
    code, log = run_script(BLAS + BLAS_CALLS)
    assert code == 0
    err = capfd.readouterr().err
    assert "cublasSgemm_v2 is computed by NumPy" in err and "cublasSaxpy_v2 is not supported" in err
    assert log.computed == {"cublasSgemm_v2": 1, "cublasGemmEx": 1, "cublasSgemmStridedBatched": 1}
    verdict = judge(log, "program", "", False)
    assert verdict.fidelity["computed by NumPy"] == log.computed
    assert ("incomplete", "cublasGemmEx is computed by NumPy, and nothing else was launched") in verdict.reasons


def test_a_program_that_was_refused_something_and_fails_is_not_called_wrong():
    log = Log(quiet=True)
    log.launches.append(LaunchRecord(0, "k", (1, 1, 1), (1, 1, 1), (32, 1, 1), 0, 0))
    assert judge(log, "program", "it ended with code 1", False).word == "wrong"
    log.unhandled["cuGraphLaunch"] = 1
    assert judge(log, "program", "it ended with code 1", False).word == "incomplete"


FOUND_BY_THE_CHECKER = (
    "register-before-wait", "bytes-left", "exit-pending", "peer-exited", "phase-lapped", "mbarrier-reinit",
    "tmem-wait", "tmem-freed",
)  # fmt: skip
"""The emulator's warnings that the checker gives under a rule of its own, so that a verdict would have them twice."""
NAMES = {"uninitialised": "memory", "mbarrier-after-inval": "inval"}


@pytest.mark.parametrize(
    ("warned", "rule"),
    [(id, NAMES.get(id, id)) for id in ("uninitialised", *WARNINGS) if id not in FOUND_BY_THE_CHECKER],
)
def test_a_verdict_on_a_program_has_warnings_of_the_emulator(warned, rule):
    """`emugpu exec` shows them, so a clean verdict must not hide them."""
    record = LaunchRecord(0, "k", (1, 1, 1), (1, 1, 1), (32, 1, 1), 0, 1)
    log = Log(quiet=True)
    log.launches = [replace(record, warnings=(RuleWarning(warned, "shared memory byte 0x480", 32, 40),))]
    verdict = judge(log, "program", "", True)
    [finding] = verdict.findings
    assert (finding.rule, finding.severity, finding.count) == (rule, "warning", 32)
    assert (finding.message, verdict.word) == ("shared memory byte 0x480", "clean")


def test_a_verdict_names_a_kernel_once_and_shortly():
    long = "cudapy::__main__::axpy[abi:v1][abi:" + "cw51cXTLSUw" * 9 + "](Array<float, 1>, Array<float, 1>, float)"
    record = LaunchRecord(0, long, (1, 1, 1), (1, 1, 1), (32, 1, 1), 0, 1)
    record.error, record.ended = "Fault: kernel 'cudapy::__main__::axpy', PTX line 3: st.global", "wrong"
    found = Finding("race-shared", "error", "the write by st overwrites what may still be read", None)
    log = Log(quiet=True)
    log.launches = [replace(record, findings=(found,)), replace(record, error="it has no memory left")]
    assert [reason for _, reason in judge(log, "program", "", True).reasons] == [
        "launch 0: Fault: kernel 'cudapy::__main__::axpy', PTX line 3: st.global",
        "launch 0, kernel 'cudapy::__main__::axpy': race-shared: the write by st overwrites what may still be read",
        "launch 0, kernel 'cudapy::__main__::axpy': it has no memory left",
    ]
