"""The kernels on a real GPU. `make test-gpu` runs these; elsewhere they are skipped."""

from __future__ import annotations

import pytest
from real_gpu import ARCH, GPUS, needs_gpu

from conftest import BF16_KERNELS
from emugpu.errors import CannotRun
from emugpu.gpus import arch_of_gpu, check_arch
from harness.compile.artifacts import build
from harness.compile.config import make_config
from harness.problem import Shape
from harness.run.case import Request
from harness.run.measure import measure
from harness.run.records import VENDORS

pytestmark = pytest.mark.gpu


@needs_gpu
@pytest.mark.parametrize(
    ("size", "inputs"),
    [((1024, 1024, 512), "index"), ((500, 296, 584), "normal"), ((8, 8, 8), "integer")],
    ids=lambda value: value if isinstance(value, str) else "x".join(map(str, value)),
)
@pytest.mark.parametrize("kernel", BF16_KERNELS)
def test_right_on_the_gpu(kernel, size, inputs):
    artifact = build([make_config(kernel, arch=ARCH)])[0]
    shape = Shape(*size)
    [result] = measure([artifact], Request(artifact.config, shape, inputs, seed=1, gpu=GPUS[0]), time=False)
    assert result.failure is None and result.validation["passed"], result


@needs_gpu
def test_timing_comes_with_the_vendors():
    artifact = build([make_config("kernel7", arch=ARCH)])[0]
    [result] = measure([artifact], Request(artifact.config, Shape(2048, 2048, 2048), "normal", seed=1, gpu=GPUS[0]))
    timing = result.timing
    assert timing["tflops"] > 50
    for vendor in VENDORS:
        assert timing["vendor"][vendor]["tflops"] > 50 and 0.1 < timing["vendor"][vendor]["ratio"] < 3


@needs_gpu
@pytest.mark.parametrize("options", [{}, {"epilogue": "bias-gelu"}, {"dtype": "e4m3"}, {"layout": "tn"}], ids=str)
def test_alone_and_the_host(options):
    if ARCH == "sm_100a" and options.get("dtype") == "e4m3":
        pytest.skip("e4m3 is kernel 8's of sm_90a")
    artifact = build([make_config("kernel8", arch=ARCH, **options)])[0]
    asked = Request(artifact.config, Shape(1024, 1024, 1024), "normal", seed=1, gpu=GPUS[0], alone=True)
    [result] = measure([artifact], asked)
    assert result.failure is None and result.validation["passed"], result
    alone, host = result.timing["alone"], result.timing["host_us"]
    assert alone.keys() == {"kernel", *VENDORS}, result.notes
    for one in alone.values():
        assert one["tflops"] > 50 and one["joules"] > 0 and one["sm_clock_mhz"] > 500
    assert 1 < host["kernel"] < 100 and 1 < host["cublas"] < 100


@needs_gpu
@pytest.mark.parametrize("size", [(4100, 4104, 520), (300, 6000, 64), (1024, 1032, 2048)], ids=str)
def test_many_tiles_a_cta(size):
    """Three tiles and more for each CTA, and fewer than CTAs."""
    artifact = build([make_config("kernel8", arch=ARCH, mma_shape=(128, 128))])[0]
    [result] = measure([artifact], Request(artifact.config, Shape(*size), seed=1, gpu=GPUS[0]), time=False)
    assert result.failure is None and result.validation["passed"], result


@needs_gpu
@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({"dtype": "e4m3"}, "codes"),
        ({"dtype": "e4m3", "scales": "block"}, "index"),
        ({"epilogue": "bias-gelu"}, "normal"),
        ({"epilogue": "swiglu", "dtype": "fp16", "out_dtype": "f32"}, "normal"),
        ({"epilogue": "residual"}, "index"),
        ({"layout": "tn"}, "index"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()),
)
def test_scale_factors_and_epilogues_are_right_and_timed(options, inputs):
    if ARCH == "sm_100a" and options.get("dtype") == "e4m3":
        pytest.skip("e4m3 is kernel 8's of sm_90a")
    artifact = build([make_config("kernel8", arch=ARCH, **options)])[0]
    shape = Shape(1000, 1040, 1040)
    [result] = measure([artifact], Request(artifact.config, shape, inputs, seed=1, gpu=GPUS[0], processes=2))
    assert result.failure is None and result.validation["passed"], result
    assert len(result.timing["processes"]) == 2
    # PyTorch has no C of another type, and wants whole blocks of K.
    assert ("cublas" in result.timing["vendor"]) == (not {"out_dtype", "scales"} & options.keys()), result.notes


@pytest.mark.parametrize(
    ("wanted", "capability", "message"),
    [
        ("sm_100a", (9, 0), r"kernels for sm_100a need B200 or GB200.*this GPU is X, compute capability 9.0"),
        ("sm_90a", (10, 0), r"kernels for sm_90a need H100, H200"),
        ("sm_100a", (12, 0), r"need B200.*compute capability 12.0"),
    ],
)
def test_the_wrong_gpu_is_refused(wanted, capability, message):
    with pytest.raises(CannotRun, match=message):
        check_arch(wanted, *capability, "X")


def test_gpus_without_the_instructions_have_no_kernels():
    assert arch_of_gpu(9, 0) == "sm_90a" and arch_of_gpu(10, 0) == "sm_100a"
    with pytest.raises(CannotRun, match=r"no kernel here runs on a GPU of compute capability 12.0"):
        arch_of_gpu(12, 0)
