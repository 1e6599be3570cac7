"""What the PyTorch functions refuse, and hand to MAX, with tensors on the CPU in place of a GPU's."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
functions = pytest.importorskip("harness.pytorch")
M, N, K = 40, 48, 256


@pytest.fixture(autouse=True)
def launched(monkeypatch) -> list:
    """What the operator gets: C, its scale factors, the tensors, the numbers, the configuration, sizes of views."""
    seen: list = []
    monkeypatch.setattr(functions, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.ops.blackwell_lab, "gemm", lambda *given: seen.append(given))
    return seen


def bf16(*size: int):
    return torch.zeros(size, dtype=torch.bfloat16)


def e4m3(*size: int):
    return torch.zeros(size).to(torch.float8_e4m3fn)


A, B = bf16(M, K), bf16(N, K)
BIAS, RESIDUAL = bf16(N), bf16(M, N)
A8, B8 = e4m3(M, K), e4m3(N, K)
OF_A, OF_B = torch.zeros(2, M), torch.zeros(1, 4)


@pytest.mark.parametrize(
    ("options", "epilogue", "operands", "columns", "numbers"),
    [
        ({}, "none", 2, N, []),
        ({"bias": BIAS}, "bias", 4, N, [1.0, 1.0]),
        ({"bias": BIAS, "activation": "gelu", "out_dtype": torch.float32}, "bias-gelu", 4, N, [1.0, 1.0]),
        ({"residual": RESIDUAL, "alpha": 0.5, "beta": 2.0}, "residual", 4, N, [0.5, 2.0]),
        ({"activation": "swiglu"}, "swiglu", 4, N // 2, [1.0, 1.0]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_matmul_launches(launched, options, epilogue, operands, columns, numbers):
    out = functions.matmul(A, B, **options)
    c, factors, tensors, given, config, sizes = launched[0]
    assert not sizes and factors is None
    found = json.loads(config)
    assert c is out and tuple(out.shape) == (M, columns) and found["epilogue"] == epilogue
    assert out.dtype == options.get("out_dtype", torch.bfloat16)
    assert len(tensors) == operands and tensors[0] is A and tensors[1] is B and given == numbers
    if "bias" in options:
        assert tensors[2] is BIAS
    if "residual" in options:
        assert tensors[3] is RESIDUAL


GROUPS = 3
OF_GROUPS, SIZES = bf16(GROUPS, N, K), torch.zeros(GROUPS, dtype=torch.int32)
BIASES = bf16(GROUPS, N)


@pytest.mark.parametrize("options", [{}, {"bias": BIASES, "activation": "gelu"}], ids=["plain", "bias-gelu"])
def test_what_grouped_matmul_launches(launched, options):
    out = functions.grouped_matmul(A, OF_GROUPS, SIZES, **options)
    c, _, (a, b, sizes, bias, _), numbers, config, ld = launched[0]
    assert c is out and tuple(out.shape) == (M, N) and a is A and b is OF_GROUPS and sizes is SIZES
    assert ("bias" not in options or bias is BIASES) and numbers == [1.0, 1.0] and not ld
    found = json.loads(config)
    assert found["grouped"] and found["scheduler"] == "static" and found["kernel"] == "kernel8"


def test_masked_groups_are_launched_as_they_lie(launched):
    a, out, residual = bf16(GROUPS, 8, K), bf16(GROUPS, 8, N), bf16(GROUPS, 8, N)
    found = functions.grouped_matmul(a, OF_GROUPS, SIZES, residual=residual, beta=2.0, out=out)
    c, _, (flat, b, sizes, _, added), numbers, config, _ = launched[0]
    assert found.shape == out.shape and found.data_ptr() == c.data_ptr() == out.data_ptr() and numbers == [1.0, 2.0]
    assert tuple(flat.shape) == (GROUPS * 8, K) and flat.data_ptr() == a.data_ptr() and b is OF_GROUPS
    assert added.data_ptr() == residual.data_ptr() and sizes is SIZES and json.loads(config)["masked"]


def test_a_batch_is_the_case_of_equal_groups(launched):
    batch = bf16(GROUPS, M, K)
    functions.grouped_matmul(batch.flatten(0, 1), OF_GROUPS, torch.full((GROUPS,), M, dtype=torch.int32))
    assert tuple(launched[0][0].shape) == (GROUPS * M, N)


def test_no_rows_are_no_launch(launched):
    assert tuple(functions.grouped_matmul(A[:0], OF_GROUPS, SIZES).shape) == (0, N) and not launched


@pytest.mark.parametrize(
    ("a", "b", "out", "layout", "sizes"),
    [
        (bf16(K, M).t(), B, None, "tt", [M, N, K, M, K, N]),
        (A, bf16(K, N).t(), None, "nn", [M, N, K, K, N, N]),
        (bf16(K, 64)[:, 8 : 8 + M].t(), bf16(K, N).t(), bf16(M, 72)[:, 16 : 16 + N], "tn", [M, N, K, 64, N, 72]),
        (bf16(2 * M, K)[::2, :100], bf16(N, 104)[:, :100], None, "nt", [M, N, 100, 2 * K, 104, N]),
        (A[:1], bf16(N, 2, K)[:, 1], None, "nt", [1, N, K, K, 2 * K, N]),
    ],
)
def test_views_are_launched_as_they_lie(launched, a, b, out, layout, sizes):
    found = functions.matmul(a, b, out=out)
    c, _, tensors, numbers, config, given = launched[0]
    assert c is found and (out is None or found is out)
    assert tensors[0] is a and tensors[1] is b and len(tensors) == 4 and numbers == [1.0, 1.0]
    assert json.loads(config)["layout"] == layout and given == sizes
    memory = functions._memory(a)
    rows, ld = (a.shape[1] if layout[0] == "t" else a.shape[0]), sizes[3]
    assert memory.data_ptr() == a.data_ptr() and len(memory) == (rows - 1) * ld + a.numel() // rows


@pytest.mark.parametrize(("factors", "scales"), [((), "tensor"), ((OF_A, OF_B), "block")])
def test_what_scaled_matmul_launches(launched, factors, scales):
    functions.scaled_matmul(A8, B8, *factors, alpha=0.25, out_dtype=torch.float16)
    c, _, tensors, numbers, config, _ = launched[0]
    assert c.dtype == torch.float16 and len(tensors) == 4 and numbers == [0.25]
    assert {name: json.loads(config)[name] for name in ("dtype", "scales")} == {"dtype": "e4m3", "scales": scales}
    assert tensors[0].dtype == torch.uint8 and all(
        one is other for one, other in zip(tensors[2:], factors, strict=False)
    )


def test_c_of_e4m3_comes_with_its_scale_factors_which_the_next_product_reads(launched):
    wide = bf16(16 * N, K)
    h, of_h = functions.matmul(A, wide, activation="swiglu", out_dtype=torch.float8_e4m3fn)
    c, of_c = functions.scaled_matmul(h, e4m3(N, 8 * N), of_h, torch.zeros(1, 4), out=e4m3(M, N))
    assert (h.dtype, tuple(h.shape), of_h.dtype, tuple(of_h.shape)) == (c.dtype, (M, 8 * N), torch.float32, (3, M))
    assert tuple(of_c.shape) == (1, M) and launched[0][:2] == (h, of_h) and launched[1][:2] == (c, of_c)
    (_, _, first, numbers, config, _), (_, _, second, _, after, _) = launched
    assert len(first) == 4 and numbers == [1.0, 1.0, 1.0] and second[2] is of_h
    assert [json.loads(each)["out_dtype"] for each in (config, after)] == ["e4m3", "e4m3"]


def test_block_scaled_c_comes_with_its_atoms_which_the_next_product_reads(launched, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA B200")
    h, of_h = functions.matmul(A, bf16(160, K), bias=bf16(160), out_dtype="nvfp4", c_scale=4.0)
    b, of_b = torch.zeros((96, 80), dtype=torch.uint8), torch.zeros((1, 3, 512), dtype=torch.uint8)
    c, of_c = functions.scaled_matmul(h, b, of_h, of_b, dtype="nvfp4", alpha=0.25, out_dtype="mxfp8")
    shapes = [(tuple(each.shape), each.dtype) for each in (h, of_h, c, of_c)]
    assert shapes == [(size, torch.uint8) for size in ((M, 80), (1, 3, 512), (M, 96), (1, 1, 512))]
    assert [launch[3] for launch in launched] == [[1.0, 1.0, 4.0], [0.25, 1.0]]
    assert [launch[:2] for launch in launched] == [(h, of_h), (c, of_c)]
    assert [json.loads(launch[4])["out_dtype"] for launch in launched] == ["nvfp4", "mxfp8"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: functions.matmul(A, B, c_scale=2.0), "c_scale 2.0 is that of nvfp4; leave it out"),
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
        (lambda: functions.matmul(A, B, alpha=2.0), "alpha 2.0 and beta 1.0 are those of a residual"),
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
def test_what_does_not_fit_is_refused(launched, call, message):
    with pytest.raises(ValueError, match=message):
        call()
    assert not launched


@pytest.mark.parametrize(
    ("name", "multiple", "fused"), [("out", 16, False), ("b", 16, True), ("bias", 4, True), ("b_scales", 16, False)]
)
def test_tensors_that_begin_where_the_kernels_cannot_read_are_refused_when_they_are_launched(name, multiple, fused):
    names = ["out", "a", "b", *(["bias", "residual"] if fused else ["a_scales", "b_scales"])]
    memory = bf16(64)
    given = {each: memory[8:] for each in names}
    functions._check_places(given.pop("out"), list(given.values()), fused=fused)
    given = {each: memory for each in names} | {name: memory[multiple // 2 - 1 :]}
    with pytest.raises(ValueError, match=rf"{name} begins at the address 0x.*must be a multiple of {multiple} bytes"):
        functions._check_places(given.pop("out"), list(given.values()), fused=fused)


def test_torch_compile_traces_the_functions_whole(launched, monkeypatch):
    monkeypatch.setattr(torch.ops.blackwell_lab, "gemm", lambda out, *_: out.zero_())
    compiled = torch.compile(functions.matmul, fullgraph=True, backend="eager")
    for options in ({}, {"bias": BIAS, "activation": "relu"}, {"residual": RESIDUAL, "alpha": 0.5}):
        assert torch.equal(compiled(A, B, **options), torch.zeros(M, N).bfloat16())
