"""PyTorch's build for CPUs with the emulated GPU as its device.

The programs run in a Python that has PyTorch: this one, or one of EMULATED_GPU_PYTHONS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest
from driver_programs import PROGRAMS, run
from ptx_programs import STORE_R1, WORDS, source

from emugpu.driver.log import judge

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SEARCH = os.pathsep.join(map(str, (ROOT, ROOT / "tests/support")))


@cache
def torch_python() -> str | None:
    for python in [sys.executable, *filter(None, os.environ.get("EMULATED_GPU_PYTHONS", "").split(":"))]:
        if not subprocess.run([python, "-c", "import torch, numpy"], capture_output=True, timeout=120).returncode:
            return python
    return None


@pytest.fixture(autouse=True)
def python(monkeypatch):
    found = torch_python()
    if found is None:
        pytest.skip("no Python with PyTorch")
    monkeypatch.setenv("PYTHONPATH", SEARCH)
    return found


def test_the_device_is_like_one_of_cuda(capfd, python):
    done = run(capfd, "h100", python, PROGRAMS / "python/torch_device.py")
    found = json.loads(done.out.splitlines()[-1])
    assert len(found) == 20 and not any(found.values()), found
    assert done.code == 0 and "the time between events is not measured" in done.err
    graphs = {"CUDAGraph": 2, "graph": 1, "make_graphed_callables": 1, "graph_pool_handle": 1}
    refused = {f"torch.cuda.{name}": count for name, count in graphs.items()}
    assert done.log.unhandled == {"aten::_flash_attention_forward": 1, **refused}
    assert {"aten::bmm", "aten::topk", "aten::native_layer_norm_backward"} <= done.log.by_torch
    assert not done.log.by_torch & {"aten::view", "aten::empty", "aten::as_strided", "aten::copy_"}


@pytest.mark.parametrize(
    "case, word, reason",
    [
        ("right", "clean", ""),
        ("written", "clean", ""),
        ("pinned", "clean", ""),
        ("short", "wrong", "outside every allocation; the nearest is 'tensor of 124 bytes'"),
        ("freed", "wrong", "outside every allocation"),
        ("cpu", "wrong", "outside every allocation"),
    ],
)
def test_a_kernel_reads_and_writes_tensors_within_their_bounds(capfd, python, case, word, reason):
    done = run(capfd, "h100", python, PROGRAMS / "python/torch_memory.py", case, check=True, uninitialised="report")
    verdict = judge(done.log, "it", f"code {done.code}" if done.code else "", checked=True)
    assert verdict.word == word, verdict.lines()
    assert reason in "\n".join(verdict.lines()), verdict.lines()
    assert not done.log.launches[0].warnings
    assert ("CUDA error: illegal address" in done.err) == (word == "wrong"), done.err


@pytest.mark.parametrize(
    "case, first", [("unwritten", "byte 0 of 'tensor of 128"), ("half-written", "byte 164 of 'tensor of 256")]
)
def test_what_no_one_wrote_of_a_tensor_is_unwritten_memory(capfd, python, case, first):
    """Element 41 of the half-written tensor is the only one that PyTorch has left out."""
    done = run(capfd, "h100", python, PROGRAMS / "python/torch_memory.py", case, uninitialised="report")
    assert done.code == 0, done.err
    (launch,) = done.log.launches
    assert [warning.rule for warning in launch.warnings] == ["uninitialised"], launch.warnings
    assert first in launch.warnings[0].message


HOST_WAITS = [
    *((between, "default") for between in ("to", "copy_", "copy_ of pinned memory", "cpu", "item", "equal")),
    ("non_blocking copy_ to pageable memory", "default"),
    *((between, "default") for between in ("a mask", "nonzero", "unique", "repeats")),
    *((between, "default") for between in ("an index of the cpu", "a store by an index of the cpu")),
    ("a store to the cpu by an index", "default"),
    *((between, "a") for between in ("to", "cpu", "item")),
]
HOST_GOES_ON = [
    *((between, "default") for between in ("nothing", "on the device", "non_blocking to", "non_blocking to the cpu")),
    ("non_blocking copy_ of pinned memory", "default"),
    *((between, "default") for between in ("an index", "repeats of a known sum")),
    *((between, first) for between in ("to", "cpu", "item") for first in ("a in default", "default in a")),
]


def test_the_host_waits_for_the_current_stream_of_a_copy_or_a_size(capfd, python):
    cases = [*HOST_WAITS, *HOST_GOES_ON]
    done = run(
        capfd, "h100", python, PROGRAMS / "python/torch_streams.py", *(x for case in cases for x in case), check=True
    )
    assert done.code == 0 and len(done.log.launches) == 2 * len(cases), done.err
    found = {launch.number: [finding.rule for finding in launch.findings] for launch in done.log.launches}
    assert [cases[number // 2] for number, rules in found.items() if rules] == HOST_GOES_ON
    assert {rule for rules in found.values() for rule in rules} == {"race-launches"}


# ---- the plugin ----

SHARED = "mov.b32 %r4, words; shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r4; st.shared.b32 [%r3], %r0;"
NEIGHBOUR = "xor.b32 %r5, %r3, 128; ld.shared.b32 %r1, [%r5];" + STORE_R1 + "ret;"
KERNELS = {
    "right": source(SHARED + "bar.sync 0;" + NEIGHBOUR, WORDS, target="sm_90a"),
    "racy": source(SHARED + NEIGHBOUR, WORDS, target="sm_90a"),
}
SUITE = """
import driver_client as driver
import torch

KERNELS = {kernels!r}

def launched(name):
    driver.start()
    (kernel,) = driver.load(KERNELS[name], "kernel")
    out = torch.zeros(64, dtype=torch.int32, device="cuda")
    driver.launch(kernel, 1, 64, out.data_ptr())
    return out

def test_right():
    assert torch.equal(launched("right"), torch.arange(64, device="cuda", dtype=torch.int32).roll(32))

def test_racy():
    assert launched("racy").is_cuda

def test_of_cuda_alone():
    launched("right")
    q = torch.zeros(1, 16, 4, 8, device="cuda").half()
    torch.ops.aten._flash_attention_forward(q, q, q, None, None, 16, 16, 0.0, False, False)

def test_of_types_that_the_cpu_refuses():
    launched("right")
    numbers = torch.zeros(128, 64, dtype=torch.uint8, device="cuda").view(torch.float4_e2m1fn_x2)
    scales = torch.ones(1024, device="cuda").to(torch.float8_e4m3fn)
    torch._scaled_mm(numbers, numbers.t(), scales, scales, out_dtype=torch.bfloat16)

def test_torch_alone():
    assert torch.ones(3, device="cuda").sum() == 3
"""


def test_each_test_of_a_suite_that_imports_torch_has_a_verdict(python, tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE.replace("{kernels!r}", repr(KERNELS)))
    command = [python, "-m", "pytest", "-p", "emugpu.pytest_plugin", "-p", "no:cacheprovider", "-v", "-rA"]
    done = subprocess.run(
        [*command, "--emulated-gpu", "h100", "--check", "test_suite.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert "test_right PASSED (clean)" in done.stdout, done.stdout + done.stderr
    assert "test_racy FAILED (racy)" in done.stdout
    assert "test_of_cuda_alone FAILED (incomplete)" in done.stdout
    assert "test_of_types_that_the_cpu_refuses FAILED (incomplete)" in done.stdout
    assert "test_torch_alone PASSED " in done.stdout
    assert "computed by PyTorch on the CPU, not looked at: aten::zero_" in done.stdout.replace("fill_", "zero_")


def test_torch_may_be_imported_before_the_gpu_is_there(python, tmp_path):
    program = """
        import torch
        from emugpu import emulated_gpu
        assert not torch.cuda.is_available()
        for _ in range(2):
            with emulated_gpu("b200") as gpu:
                assert torch.ones(4, device="cuda").add(1).sum().item() == 8
            assert torch.cuda.get_device_capability() == (10, 0)
            assert "aten::add" in gpu.verdict.as_dict()["fidelity"]["by_torch"], gpu.verdict.as_dict()
    """
    done = subprocess.run([python, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_benchmark_of_triton_runs_once_and_is_infinite(capfd, python):
    if subprocess.run([python, "-c", "import triton"], capture_output=True, timeout=120).returncode:
        pytest.skip("no Triton")
    program = """
        from triton import testing
        from triton.runtime import driver
        runs = []
        found = [
            measure(lambda: runs.append(0), **how)
            for measure in (testing.do_bench, testing.do_bench_cudagraph, driver.active.get_benchmarker())
            for how in ({}, {"return_mode": "all"}, {"quantiles": [0.5]}, {"quantiles": [0.5, 0.2]})
        ]
        print(len(runs), *found[:4], found == 3 * found[:4])
    """
    done = run(capfd, "h100", python, "-c", textwrap.dedent(program))
    assert done.out == "12 inf [inf] inf [inf, inf] True\n", done.err
    assert done.err.count("is not measured") == 1


TUNED = """
import gc, weakref, torch, triton, triton.language as tl

@triton.autotune([triton.Config({"SIZE": size}) for size in (4096, 64, 128)], key=["n"])
@triton.jit
def kernel(out, n, SIZE: tl.constexpr):
    tl.static_assert(SIZE < 1000)
    tl.store(out, SIZE)

def tune():
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    for n in (8, 8, 16):
        kernel[(1,)](out, n)
    print(out.item(), kernel.best_config.kwargs)
    return weakref.ref(out)

kept = tune()
gc.collect()
print(kept())
"""


def test_the_autotuner_of_triton_takes_the_first_configuration_that_runs(capfd, python, tmp_path):
    """It tries it once for each of the two keys, and no other one after it. It keeps no tensor."""
    if subprocess.run([python, "-c", "import triton"], capture_output=True, timeout=120).returncode:
        pytest.skip("no Triton")
    (tmp_path / "tuned.py").write_text(TUNED)
    done = run(capfd, "h100", python, tmp_path / "tuned.py")
    assert done.out == "64 {'SIZE': 64}\nNone\n", done.err
    assert len(done.log.launches) == 5


def test_torch_compile_runs_its_kernels_on_the_emulated_gpu(capfd, python, monkeypatch, tmp_path):
    if subprocess.run([python, "-c", "import triton"], capture_output=True, timeout=120).returncode:
        pytest.skip("no Triton")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    done = run(capfd, "h100", python, PROGRAMS / "python/torch_compile.py", check=True)
    verdict = judge(done.log, "it", f"code {done.code}" if done.code else "", checked=True)
    assert verdict.word == "clean", [*verdict.lines(), done.err]
    kernels = [launch.kernel for launch in done.log.launches]
    assert any("native_layer_norm" in name for name in kernels), kernels
    assert any("native_dropout" in name or "bernoulli" in name for name in kernels), kernels
    assert "aten::native_layer_norm_backward" in done.log.by_torch


def test_a_build_of_torch_for_gpus_gets_one_line(python, tmp_path):
    """A stand-in for torch; the line says what to install."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("__version__ = '2.13.0+cu130'\nfrom . import version\n")
    (tmp_path / "torch/version.py").write_text("cuda = '13.0'\nhip = None\n")
    search = os.pathsep.join([str(tmp_path), SEARCH])
    program = "from emugpu.pytorch.importing import activate_when_imported as a; a(); import torch; print('goes on')"
    done = subprocess.run(
        [python, "-c", program], env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "goes on\n"
    assert done.stderr.count("\n") == 1 and "pip install torch --index-url" in done.stderr, done.stderr


def test_a_program_without_the_path_of_the_driver_gets_one_line(capfd, python):
    program = "import torch; print(torch.cuda.is_available())"
    done = run(capfd, "h100", "env", "-u", "LD_LIBRARY_PATH", python, "-c", program)
    assert done.code == 0 and done.out == "False\n", done.err
    assert done.err.count("does not find the emulated driver") == 1 and "Traceback" not in done.err, done.err
