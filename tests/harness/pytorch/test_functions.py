"""What the PyTorch functions refuse, and launch, with tensors on the CPU in place of a GPU's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
functions = pytest.importorskip("harness.pytorch")
on_cpu = pytest.importorskip("pytorch_on_cpu")
M, N, K = 40, 48, 256


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    return on_cpu.FakeGpu(monkeypatch)


def bf16(*size: int):
    return torch.zeros(size, dtype=torch.bfloat16)


def e4m3(*size: int):
    return torch.zeros(size).to(torch.float8_e4m3fn)


A, B = bf16(M, K), bf16(N, K)
BIAS, RESIDUAL = bf16(N), bf16(M, N)
A8, B8 = e4m3(M, K), e4m3(N, K)
OF_A, OF_B = torch.zeros(2, M), torch.zeros(1, 4)


@pytest.mark.parametrize(
    ("options", "epilogue", "columns", "numbers"),
    [
        ({}, "none", N, (1.0, 1.0)),
        ({"bias": BIAS}, "bias", N, (1.0, 1.0)),
        ({"bias": BIAS, "activation": "gelu", "out_dtype": torch.float32}, "bias-gelu", N, (1.0, 1.0)),
        ({"residual": RESIDUAL, "alpha": 0.5, "beta": 2.0}, "residual", N, (0.5, 2.0)),
        ({"activation": "swiglu"}, "swiglu", N // 2, (1.0, 1.0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_matmul_launches(gpu, options, epilogue, columns, numbers):
    out = functions.matmul(A, B, **options)
    (launch,) = gpu.launched
    assert tuple(out.shape) == (M, columns) and launch.config.epilogue == epilogue
    assert out.dtype == options.get("out_dtype", torch.bfloat16)
    assert (launch.c, launch.a, launch.b) == (out.data_ptr(), A.data_ptr(), B.data_ptr())
    assert launch.first == (BIAS.data_ptr() if "bias" in options else 0)
    assert launch.second == (RESIDUAL.data_ptr() if "residual" in options else 0)
    assert launch.numbers == (*numbers, 1.0) and not launch.shape.ld and not launch.factors


GROUPS = 3
OF_GROUPS, SIZES = bf16(GROUPS, N, K), torch.zeros(GROUPS, dtype=torch.int32)
BIASES = bf16(GROUPS, N)


@pytest.mark.parametrize("options", [{}, {"bias": BIASES, "activation": "gelu"}], ids=["plain", "bias-gelu"])
def test_what_grouped_matmul_launches(gpu, options):
    out = functions.grouped_matmul(A, OF_GROUPS, SIZES, **options)
    (launch,) = gpu.launched
    assert tuple(out.shape) == (M, N) and launch.c == out.data_ptr() and launch.a == A.data_ptr()
    assert launch.b == OF_GROUPS.data_ptr() and launch.sizes == SIZES.data_ptr()
    assert launch.first == (BIASES.data_ptr() if options else 0) and not launch.shape.ld
    assert launch.shape.groups == (14, 13, 13), "as many rows and groups as there are"
    assert launch.config.grouped and launch.config.scheduler == "static" and launch.config.kernel == "kernel8"


def test_masked_groups_are_launched_as_they_lie(gpu):
    a, out, residual = bf16(GROUPS, 8, K), bf16(GROUPS, 8, N), bf16(GROUPS, 8, N)
    found = functions.grouped_matmul(a, OF_GROUPS, SIZES, residual=residual, beta=2.0, out=out)
    (launch,) = gpu.launched
    assert found.shape == out.shape and found.data_ptr() == launch.c == out.data_ptr()
    assert launch.numbers == (1.0, 2.0, 1.0) and launch.shape.m == GROUPS * 8
    assert launch.a == a.data_ptr() and launch.b == OF_GROUPS.data_ptr() and launch.second == residual.data_ptr()
    assert launch.sizes == SIZES.data_ptr() and launch.config.masked


def test_a_batch_is_the_case_of_equal_groups(gpu):
    batch = bf16(GROUPS, M, K)
    functions.grouped_matmul(batch.flatten(0, 1), OF_GROUPS, torch.full((GROUPS,), M, dtype=torch.int32))
    assert gpu.launched[0].shape.groups == (M,) * GROUPS


def test_no_rows_are_no_launch(gpu):
    assert tuple(functions.grouped_matmul(A[:0], OF_GROUPS, SIZES).shape) == (0, N) and not gpu.launched


@pytest.mark.parametrize(
    ("a", "b", "out", "layout", "ld"),
    [
        (bf16(K, M).t(), B, None, "tt", (M, K, N)),
        (A, bf16(K, N).t(), None, "nn", (K, N, N)),
        (bf16(K, 64)[:, 8 : 8 + M].t(), bf16(K, N).t(), bf16(M, 72)[:, 16 : 16 + N], "tn", (64, N, 72)),
        (bf16(2 * M, K)[::2, :100], bf16(N, 104)[:, :100], None, "nt", (2 * K, 104, N)),
        (A[:1], bf16(N, 2, K)[:, 1], None, "nt", (K, 2 * K, N)),
        (bf16(1, M).t(), bf16(1, N).t(), None, "tn", (M, N, N)),
    ],
)
def test_views_are_launched_as_they_lie(gpu, a, b, out, layout, ld):
    found = functions.matmul(a, b, out=out)
    (launch,) = gpu.launched
    assert out is None or found is out
    assert (launch.c, launch.a, launch.b) == (found.data_ptr(), a.data_ptr(), b.data_ptr())
    assert launch.config.layout == layout and launch.shape.ld == ld
    assert (launch.shape.m, launch.shape.n, launch.shape.k) == (len(a), len(b), a.shape[1])


def test_swiglu_of_views_has_half_as_many_columns(gpu):
    functions.matmul(bf16(K, M).t(), B, activation="swiglu")
    assert gpu.launched[0].shape.ld == (M, K, N // 2)


@pytest.mark.parametrize(("factors", "scales"), [((), "tensor"), ((OF_A, OF_B), "block")])
def test_what_scaled_matmul_launches(gpu, factors, scales):
    c = functions.scaled_matmul(A8, B8, *factors, alpha=0.25, out_dtype=torch.float16)
    (launch,) = gpu.launched
    assert c.dtype == torch.float16 and launch.numbers == (0.25, 0.0, 1.0)
    assert (launch.config.dtype, launch.config.scales) == ("e4m3", scales)
    assert (launch.a, launch.b) == (A8.data_ptr(), B8.data_ptr())
    assert (launch.first, launch.second) == (tuple(each.data_ptr() for each in factors) or (0, 0))


def test_c_of_e4m3_comes_with_its_scale_factors_which_the_next_product_reads(gpu):
    wide = bf16(16 * N, K)
    h, of_h = functions.matmul(A, wide, activation="swiglu", out_dtype=torch.float8_e4m3fn)
    into = e4m3(M, N)
    c, of_c = functions.scaled_matmul(h, e4m3(N, 8 * N), of_h, torch.zeros(1, 4), out=into)
    assert (h.dtype, tuple(h.shape), of_h.dtype, tuple(of_h.shape)) == (c.dtype, (M, 8 * N), torch.float32, (3, M))
    first, second = gpu.launched
    assert tuple(of_c.shape) == (1, M) and (first.c, first.factors) == (h.data_ptr(), of_h.data_ptr())
    assert c is into and (second.c, second.factors) == (c.data_ptr(), of_c.data_ptr())
    assert second.first == of_h.data_ptr()
    assert [each.config.out_dtype for each in gpu.launched] == ["e4m3", "e4m3"]


def test_block_scaled_c_comes_with_its_atoms_which_the_next_product_reads(monkeypatch):
    gpu = on_cpu.FakeGpu(monkeypatch, (10, 0), "NVIDIA B200")
    h, of_h = functions.matmul(A, bf16(160, K), bias=bf16(160), out_dtype="nvfp4", c_scale=4.0)
    b, of_b = torch.zeros((96, 80), dtype=torch.uint8), torch.zeros((1, 3, 512), dtype=torch.uint8)
    c, of_c = functions.scaled_matmul(h, b, of_h, of_b, dtype="nvfp4", alpha=0.25, out_dtype="mxfp8")
    shapes = [(tuple(each.shape), each.dtype) for each in (h, of_h, c, of_c)]
    assert shapes == [(size, torch.uint8) for size in ((M, 80), (1, 3, 512), (M, 96), (1, 1, 512))]
    assert [launch.numbers for launch in gpu.launched] == [(1.0, 1.0, 4.0), (0.25, 0.0, 1.0)]
    assert [(launch.c, launch.factors) for launch in gpu.launched] == [
        (h.data_ptr(), of_h.data_ptr()),
        (c.data_ptr(), of_c.data_ptr()),
    ]
    assert [launch.config.out_dtype for launch in gpu.launched] == ["nvfp4", "mxfp8"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: functions.matmul(A, B, c_scale=2.0), "c_scale 2.0 applies only with out_dtype='nvfp4': leave it out"),
        (
            lambda: functions.matmul(A, B, out_dtype="nvfp4"),
            "out has 48 columns; of nvfp4 they must be a multiple of 32",
        ),
        (
            lambda: functions.matmul(A, bf16(64, K), out_dtype="nvfp4"),
            "out dtype nvfp4: kernel8 of sm_90a has no such C",
        ),
        (
            lambda: functions.matmul(A, B, out_dtype="mxfp6"),
            "out is to be mxfp6; it must be bfloat16, .*, nvfp4, mxfp8",
        ),
        (
            lambda: functions.grouped_matmul(A, OF_GROUPS, SIZES, out_dtype=torch.float8_e4m3fn),
            "needs one contiguous a",
        ),
        (lambda: functions.matmul(A, B, out_dtype=torch.float8_e4m3fn, mma_shape=(128, 192)), "192 columns of C"),
        (lambda: functions.matmul(A.float(), B), "a is torch.float32"),
        (lambda: functions.matmul(A, B.half()), "b is torch.float16; it must be torch.bfloat16"),
        (lambda: functions.matmul(A, B[:, :128].contiguous()), "differ in K"),
        (
            lambda: functions.matmul(A[::, ::2], B[:, :128]),
            r"a has strides \(256, 2\): one of them must be 1; call a.con",
        ),
        (lambda: functions.matmul(bf16(M, 260)[:, :K], B), r"a has strides \(260, 1\): .* by a multiple of 16 bytes"),
        (
            lambda: functions.matmul(bf16(1, K).expand(M, K), B),
            r"a has strides \(0, 1\): .* 256 elements or more apart",
        ),
        (lambda: functions.matmul(A, B, out=bf16(N, M).t()), r"out has strides \(1, 40\): the last must be 1"),
        (lambda: functions.matmul(A, B, residual=bf16(N, M).t()), "residual has strides"),
        (lambda: functions.matmul(A, B, layout="nn"), "layout is no option here"),
        (lambda: functions.matmul(A, B, bias=bf16(N + 8)), r"bias is \(56,\); it must be \(48,\)"),
        (lambda: functions.matmul(A, B, bias=BIAS, activation="silu"), "there is no fused epilogue bias-silu"),
        (lambda: functions.matmul(A, B, alpha=2.0), "alpha 2.0 and beta 1.0 apply only with a residual"),
        (lambda: functions.matmul(A, B, epilogue="bias"), "epilogue is no option here"),
        (lambda: functions.matmul(A, B, dtype="fp16"), "dtype is no option here"),
        (lambda: functions.matmul(A, B, out=bf16(M, N), out_dtype=torch.float32), "out is torch.bfloat16; it must be"),
        (lambda: functions.matmul(A, B, out_dtype=torch.float64), "out is to be torch.float64"),
        (lambda: functions.matmul(A, B, stages=99), "stages 99"),
        (lambda: functions.scaled_matmul(A8, B8, OF_A), "needs both a_scales and b_scales, or neither"),
        (
            lambda: functions.scaled_matmul(A8, B8, torch.zeros(M, 2), OF_B),
            r"a_scales is \(40, 2\); .* \(2, 40\)",
        ),
        (
            lambda: functions.scaled_matmul(A8, B8, OF_A, torch.zeros(1, 2)),
            r"b_scales is \(1, 2\); .* \(1, 4\)",
        ),
        (lambda: functions.scaled_matmul(A8, B8, dtype="e5m2"), "dtype 'e5m2': it must be one of e4m3, nvfp4"),
        (lambda: functions.grouped_matmul(A, B, SIZES), r"b has 2 dimensions; it must be \[groups, N, K\]"),
        (
            lambda: functions.grouped_matmul(bf16(2, 8, K), OF_GROUPS, SIZES),
            r"a is \(2, 8, 256\) .* must be \[3, 8, columns\]",
        ),
        (
            lambda: functions.grouped_matmul(bf16(3, 8, K), OF_GROUPS, SIZES, out=bf16(3, 8, 2 * N)[..., :N]),
            r"out is \(3, 8, 48\) with strides \(768, 96, 1\)",
        ),
        (lambda: functions.grouped_matmul(A, OF_GROUPS, SIZES.long()), "group_sizes is torch.int64"),
        (lambda: functions.grouped_matmul(A, OF_GROUPS, SIZES[:2]), r"group_sizes is \(2,\); it must be \(3,\)"),
        (lambda: functions.grouped_matmul(A, OF_GROUPS, SIZES, bias=BIAS), r"bias is \(48,\); it must be \(3, 48\)"),
        (lambda: functions.grouped_matmul(A, OF_GROUPS, SIZES, split_k=2), "split k 2: with groups"),
        (lambda: functions.scaled_matmul(A, B), "a is torch.bfloat16; it must be torch.float8_e4m3fn"),
    ],
)
def test_what_does_not_fit_is_refused(gpu, call, message):
    with pytest.raises(ValueError, match=message):
        call()
    assert not gpu.launched
