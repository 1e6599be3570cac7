"""PyTorch's functions on a real GPU. `make test-gpu` runs these; elsewhere they are skipped."""

from __future__ import annotations

import pytest
from max_models import op_operands
from real_gpu import ARCH, GPUS, needs_gpu

torch = pytest.importorskip("torch")
from emugpu.launch.launching import EmulationOptions  # noqa: E402
from emugpu.launch.launching import run as launch  # noqa: E402
from harness.compile.artifacts import OUTPUT, build, judged, to_launchable  # noqa: E402
from harness.compile.config import make_config  # noqa: E402
from harness.problem import Shape, make_inputs  # noqa: E402
from harness.pytorch import grouped_matmul, matmul, scaled_matmul  # noqa: E402
from harness.pytorch.checks import TORCH_TYPES  # noqa: E402
from harness.run.operands import on_gpu  # noqa: E402
from harness.run.worker import _bits  # noqa: E402

pytestmark = pytest.mark.gpu


def swiglu(x):
    gate, up = (x.view(len(x), -1, 2, 8)[:, :, n].flatten(1) for n in range(2))
    return torch.nn.functional.silu(gate) * up


ACTIVATIONS = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "swiglu": swiglu,
}


@needs_gpu
def test_a_launch_reads_what_the_one_before_it_wrote():
    """Launches of kernel8 overlap: the next prepares itself while this one ends, and must wait before it reads."""
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
    shape = Shape(136, 264, 656)
    config = make_config("kernel8", arch=ARCH, shape=shape, **options)
    artifact = build([config])[0]
    plan, inputs = artifact.plan(shape), make_inputs(shape, config.dtype, kind, 5, scales=config.scales)
    emulation = EmulationOptions(accumulation="tensor_core")
    emulated = judged(launch(to_launchable(artifact, plan, inputs), emulation, keep=(OUTPUT,)), plan).output
    arrays, numbers = op_operands(config, inputs)
    a, b, *factors = map(on_gpu, arrays)
    c = torch.full(plan.output, float("nan"), dtype=TORCH_TYPES[config.out_dtype], device="cuda")
    if config.dtype == "e4m3":
        a, b = (each.view(torch.float8_e4m3fn) for each in (a, b))
        scaled_matmul(a, b, *(factors if config.scales == "block" else ()), alpha=numbers[0], out=c)
    else:
        matmul(a, b, out=c, tuned=False)
    differ = _bits(c).cpu().numpy() != emulated.view(f"i{emulated.itemsize}")
    assert not differ.any(), f"{differ.sum()} of {differ.size}"


@needs_gpu
def test_pytorch_functions_with_more_operands():
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


@needs_gpu
def test_split_k_on_streams_and_in_graphs():
    """A launch leaves its counters at 0: on each stream, and in graphs that were captured on one stream and run at the
    same time. Small integers: every sum is exact."""
    m, n, k = 64, 512, 4096
    options = {"split_k": 4, "mma_shape": (64, 128)} if ARCH == "sm_90a" else {"split_k": 4}
    inputs = [(draw_integers(m, k), draw_integers(n, k)) for _ in range(3)]
    expected = [(a.double() @ b.double().t()).bfloat16() for a, b in inputs]
    for _ in range(3):
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                got = [matmul(a, b, **options) for a, b in inputs]
            torch.cuda.synchronize()
            assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))
    graphs, outputs = [], []
    for a, b in inputs:
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            outputs.append(matmul(a, b, **options))
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(20):
        for output in outputs:
            output.fill_(float("nan"))
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(one, other) for one, other in zip(outputs, expected, strict=True))


@needs_gpu
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu", "swiglu"])
@pytest.mark.parametrize("rows", [1, 200])
def test_gradients(activation, rows):
    with_bias = activation in (None, "relu", "gelu")
    ours = [torch.randn(size, device="cuda").bfloat16() for size in [(rows, 512), (256, 512), (256,)][: 2 + with_bias]]
    exact = [each.double().requires_grad_() for each in ours]
    for each in ours:
        each.requires_grad_()
    c = matmul(ours[0], ours[1], bias=ours[2] if with_bias else None, activation=activation)
    expected = exact[0] @ exact[1].t()
    expected = ACTIVATIONS[activation](expected + exact[2] if with_bias else expected)
    of_c = torch.randn_like(c)
    c.backward(of_c)
    expected.backward(of_c.double())
    assert (c.double() - expected).abs().max() <= 2.0**-7 * expected.abs().max()
    for one, other in zip(ours, exact, strict=True):
        assert (one.grad.double() - other.grad).abs().max() <= 2.0**-6 * other.grad.abs().max()


@needs_gpu
def test_the_operator_is_what_its_schema_says():
    a, b = draw_integers(64, 128), draw_integers(256, 128)
    out = torch.empty((64, 256), device="cuda", dtype=torch.bfloat16)
    asked = '["", null, null, "kernel8", true, {}]'
    arguments = (out, None, a, b, None, None, None, 1.0, 1.0, 1.0, asked)
    torch.library.opcheck(torch.ops.blackwell_lab.gemm.default, arguments)


@needs_gpu
def test_compiled_by_inductor_and_in_its_graphs():
    a, b = draw_integers(64, 128), draw_integers(256, 128)
    expected = (a.double() @ b.double().t()).bfloat16() + 1
    for mode in ("default", "reduce-overhead"):
        compiled = torch.compile(lambda x, y: matmul(x, y) + 1, fullgraph=True, mode=mode)
        for _ in range(4):
            assert torch.equal(compiled(a, b), expected)


@needs_gpu
@pytest.mark.skipif(len(GPUS) < 2, reason="needs two GPUs")
def test_each_gpu_computes_on_its_own_tensors():
    expected = []
    for _ in range(2):
        for index in (1, 0, 1):
            a, b = draw_integers(64, 128, index), draw_integers(256, 128, index)
            got = matmul(a, b)
            assert torch.cuda.current_device() == 0 and got.device.index == index
            expected.append((got, (a.double() @ b.double().t()).bfloat16()))
    assert all(torch.equal(got, right) for got, right in expected)
    with pytest.raises(ValueError, match="b is on cuda:1 and a on cuda:0"):
        matmul(draw_integers(64, 128, 0), draw_integers(256, 128, 1))


def draw_integers(rows: int, columns: int, index: int = 0):
    return torch.randint(-3, 4, (rows, columns), device=f"cuda:{index}").bfloat16()
