"""The kernels on a real GPU. `make test-gpu` runs these; elsewhere they are skipped."""

from __future__ import annotations

import pytest

from conftest import BF16_KERNELS
from emugpu.errors import CannotRun
from emugpu.gpus import arch_of_gpu, check_arch
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.launching import run as launch
from harness.compile.artifacts import OUTPUT, build, judged, to_launchable
from harness.compile.compiler import find_gpus
from harness.compile.config import make_config
from harness.problem import Shape, make_inputs
from harness.run.case import Request
from harness.run.measure import measure
from harness.run.model import op_operands

GPUS = find_gpus()
pytestmark = pytest.mark.gpu


def gpu_arch() -> str | None:
    if not GPUS:
        return None
    try:
        return arch_of_gpu(*(int(part) for part in GPUS[0].compute_capability.split(".")))
    except CannotRun:
        return None


ARCH = gpu_arch()
needs_gpu = pytest.mark.skipif(ARCH is None, reason="no GPU here that runs sm_90a or sm_100a kernels")


@needs_gpu
@pytest.mark.parametrize(
    ("size", "inputs"),
    [((1024, 1024, 512), "index"), ((500, 296, 584), "normal"), ((8, 8, 8), "integer")],
    ids=lambda value: value if isinstance(value, str) else "x".join(map(str, value)),
)
@pytest.mark.parametrize("kernel", BF16_KERNELS)
def test_right_and_launched_as_planned(kernel, size, inputs):
    artifact = build([make_config(kernel, arch=ARCH)])[0]
    shape = Shape(*size)
    [result] = measure([artifact], Request(artifact.config, shape, inputs, seed=1, gpu=GPUS[0]), time=False)
    assert result.failure is None and result.validation["passed"], result
    plan = artifact.plan(shape)
    launch = next(launch for launch in result.launches if kernel in launch["name"])
    assert tuple(launch["grid"]) == plan.grid
    assert tuple(launch["block"]) == plan.block
    assert launch["dynamic_smem"] == plan.dynamic_smem


@needs_gpu
def test_timing_comes_with_the_vendors():
    artifact = build([make_config("kernel7", arch=ARCH)])[0]
    [result] = measure([artifact], Request(artifact.config, Shape(2048, 2048, 2048), "normal", seed=1, gpu=GPUS[0]))
    timing = result.timing
    assert timing["tflops"] > 50 and timing["vendor"]["cublas"]["tflops"] > 50
    assert 0.1 < timing["vendor"]["cublas"]["ratio"] < 3


@needs_gpu
@pytest.mark.parametrize("size", [(4100, 4104, 520), (300, 6000, 64), (1024, 1032, 2048)], ids=str)
def test_many_tiles_a_cta(size):
    """Three tiles and more for each CTA, and fewer than CTAs."""
    artifact = build([make_config("kernel8", arch=ARCH, mma_shape=(128, 128))])[0]
    [result] = measure([artifact], Request(artifact.config, Shape(*size), seed=1, gpu=GPUS[0]), time=False)
    assert result.failure is None and result.validation["passed"], result


@needs_gpu
def test_a_launch_reads_what_the_one_before_it_wrote():
    """Launches of kernel8 overlap: the next prepares itself while this one ends, and must wait before it reads."""
    torch = pytest.importorskip("torch")
    from harness.pytorch import matmul

    size = 2048
    start = torch.randint(-100, 100, (size, size), device="cuda").bfloat16()
    order = torch.randperm(size, device="cuda")
    shuffle = torch.eye(size, device="cuda")[order].bfloat16()
    got, expected = start, start
    for _ in range(40):
        got, expected = matmul(got, shuffle), expected[:, order]
    assert torch.equal(got, expected)
    into = [torch.empty_like(start) for _ in range(2)]
    matmul(start, shuffle, out=into[0])
    for turn in range(40):  # each overwrites what the one before it read
        matmul(into[turn % 2], shuffle, out=into[1 - turn % 2])
    for _ in range(41):
        start = start[:, order]
    assert torch.equal(into[0], start)


@needs_gpu
@pytest.mark.parametrize("kernel", ["kernel6", "kernel8"])
def test_pytorch_function_respects_the_current_stream(kernel):
    torch = pytest.importorskip("torch")
    from harness.pytorch import matmul

    a = torch.randint(-4, 5, (512, 256), device="cuda").bfloat16()
    b = torch.randint(-4, 5, (384, 256), device="cuda").bfloat16()
    expected = (a.float() @ b.float().t()).bfloat16()
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            late = torch.zeros_like(a)
            torch.cuda._sleep(50_000_000)
            late.copy_(a)
            got = matmul(late, b, kernel=kernel).clone()
        torch.cuda.synchronize()
        assert torch.equal(got, expected)
    compiled = torch.compile(lambda x, y: matmul(x, y, kernel=kernel) * 2, fullgraph=True)
    assert torch.equal(compiled(a, b), expected * 2)
    for bad, message in [
        ((a.cpu(), b), "a is on cpu"),
        ((a.float(), b), "a is torch.float32"),
        ((torch.zeros(512, 260, device="cuda").bfloat16()[:, :256], b), "strides"),
        ((a[:, :128].contiguous(), b), "differ in K"),
    ]:
        with pytest.raises(ValueError, match=message):
            matmul(*bad)


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


@needs_gpu
@pytest.mark.skipif(ARCH != "sm_90a", reason="how a B200 adds was published, and no other GPU's rule is emulated")
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "normal"),
        ({"dtype": "fp16", "out_dtype": "f32"}, "normal"),
        ({"dtype": "e4m3", "out_dtype": "f32"}, "codes"),
        ({"dtype": "e4m3", "scales": "block", "out_dtype": "f32"}, "codes"),
        ({"dtype": "e4m3", "scales": "block"}, "normal"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.values()) or "bf16",
)
def test_bit_for_bit_what_the_emulator_adds(options, kind):
    """All bits of C, with sums of 656 products that round and cancel."""
    import harness.pytorch as functions
    from harness.run.worker import _bits, _on_gpu

    torch = pytest.importorskip("torch")
    config, shape = make_config("kernel8", arch=ARCH, **options), Shape(136, 264, 656)
    artifact = build([config])[0]
    plan, inputs = artifact.plan(shape), make_inputs(shape, config.dtype, kind, 5, scales=config.scales)
    options = EmulationOptions(accumulation="tensor_core")
    emulated = judged(launch(to_launchable(artifact, plan, inputs), options, keep=(OUTPUT,)), plan).output
    arrays, numbers = op_operands(config, inputs)
    c = torch.full(plan.output, float("nan"), dtype=functions.TORCH_TYPES[config.out_dtype], device="cuda")
    torch.ops.blackwell_lab.gemm(c, None, [_on_gpu(array) for array in arrays], numbers, config.to_json(), [])
    differ = _bits(c).cpu().numpy() != emulated.view(f"i{emulated.itemsize}")
    assert not differ.any(), f"{differ.sum()} of {differ.size}"


@needs_gpu
def test_pytorch_functions_with_more_operands():
    torch = pytest.importorskip("torch")
    from harness.pytorch import matmul, scaled_matmul

    generator = torch.Generator("cuda").manual_seed(1)

    def draw(*size):
        return torch.randn(size, device="cuda", generator=generator)

    m, n, k = 200, 256, 512
    a, b, bias, residual = draw(m, k).bfloat16(), draw(n, k).bfloat16(), draw(n).bfloat16(), draw(m, n).bfloat16()
    product = a.double() @ b.double().t()
    for got, expected in [
        (matmul(a, b, bias=bias), product + bias.double()),
        (matmul(a, b, activation="relu", out_dtype=torch.float32), product.relu()),
        (
            matmul(a, b, bias=bias, activation="gelu"),
            torch.nn.functional.gelu(product + bias.double(), approximate="tanh"),
        ),
        (matmul(a, b, residual=residual, alpha=0.5, beta=2.0), product / 2 + 2 * residual.double()),
    ]:
        assert (got.double() - expected).abs().max() <= 2.0**-7 * expected.abs().max()
    compiled = torch.compile(lambda x, y, z: matmul(x, y, bias=z, activation="relu") + 1, fullgraph=True)
    assert torch.equal(compiled(a, b, bias), matmul(a, b, bias=bias, activation="relu") + 1)
    with pytest.raises(ValueError, match="there is no fused epilogue bias-silu"):
        matmul(a, b, bias=bias, activation="silu")
    with pytest.raises(ValueError, match=r"bias is \(512,\); it must be \(256,\)"):
        matmul(a, b, bias=draw(512).bfloat16())
    if ARCH == "sm_90a":
        a8, b8 = ((draw(rows, k) * 16).to(torch.float8_e4m3fn) for rows in (m, n))
        of_a, of_b = draw(k // 128, m).abs(), draw(n // 128, k // 128).abs()
        with_factors = (a8.double() * of_a.t().double().repeat_interleave(128, 1)) @ (
            b8.double() * of_b.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
        ).t()
        for got, expected in [
            (scaled_matmul(a8, b8, alpha=0.25), 0.25 * a8.double() @ b8.double().t()),
            (scaled_matmul(a8, b8, of_a, of_b, out_dtype=torch.float32), with_factors),
        ]:
            assert (got.double() - expected).abs().max() <= 2.0**-7 * expected.abs().max()
        # C with its scale factors is A of the next product.
        h, of_h = scaled_matmul(a8, b8, of_a, of_b, out_dtype=torch.float8_e4m3fn)
        as_numbers = h.double() * of_h.t()[:m].double().repeat_interleave(128, 1)
        assert (as_numbers - with_factors).abs().max() <= 2.0**-4 * with_factors.abs().max()
        c = scaled_matmul(h, b8[:, :n].contiguous(), of_h, torch.ones(n // 128, 4, device="cuda"))
        expected = as_numbers @ b8[:, :n].double().t()
        assert (c.double() - expected).abs().max() <= 2.0**-7 * expected.abs().max()


@needs_gpu
def test_pytorch_functions_with_views_and_groups():
    """Small integers: every sum is exact. Sizes of groups are computed on the GPU, just before."""
    torch = pytest.importorskip("torch")
    from harness.pytorch import grouped_matmul, matmul

    def draw(*size):
        return torch.randint(-3, 4, size, device="cuda").bfloat16()

    m, n, k = 200, 264, 136
    bias, wide = draw(n), draw(m, 2 * k)
    for a, b in [
        (draw(k, m).t(), draw(n, k)),
        (wide[:, k:], draw(k, n).t()),
        (draw(k, m + 8)[:, 8:].t(), draw(k, n).t()),
    ]:
        assert torch.equal(matmul(a, b), (a.double() @ b.double().t()).bfloat16())
        assert torch.equal(matmul(a, b, bias=bias), (a.double() @ b.double().t() + bias.double()).bfloat16())
    groups = torch.tensor([40, 0, 248, 1, 77], device="cuda", dtype=torch.int32)
    a, b, biases = draw(366, k), draw(5, n, k), draw(5, n)
    each = [x.double() @ y.double().t() for x, y in zip(a.split(groups.tolist()), b, strict=True)]
    out = torch.full((366, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        grouped_matmul(a, b, groups * 2 // 2, out=out)
        assert torch.equal(out, torch.cat(each).bfloat16())
    with_bias = torch.cat([x + y.double() for x, y in zip(each, biases, strict=True)])
    assert torch.equal(grouped_matmul(a, b, groups, bias=biases), with_bias.bfloat16())
    masked, before = draw(5, 256, k), draw(5, 256, n)
    after = grouped_matmul(masked, b, groups, out=before.clone())
    for number, size in enumerate(groups.tolist()):
        product = (masked[number, :size].double() @ b[number].double().t()).bfloat16()
        assert torch.equal(after[number], torch.cat([product, before[number, size:]]))


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
