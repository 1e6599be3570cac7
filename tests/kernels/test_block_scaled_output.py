"""C of a block-scaled format: kernels 8 and 9 of sm_100a quantise it, and kernel 9 reads it as its next A."""

from __future__ import annotations

from dataclasses import replace

import kernel_runs
import numpy as np
import pytest
from kernel_faults import outcome, parameter, substitute

from emugpu.errors import UsageProblem
from emugpu.launch.check import CheckOptions, check, judge
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.launching import run as launch
from emugpu.launch.spec import Fill, Launchable, Scalar
from harness.block_scaling import FORMATS, to_atoms
from harness.compile.artifacts import FACTORS_OF_C, OUTPUT, judged, to_launchable
from harness.compile.config import make_config
from harness.epilogues import find_epilogue
from harness.problem import C_TYPES, Inputs, Shape, make_inputs
from harness.quantised import quantised
from harness.validation import Reference, validate

ONE = {"cta_group": 1, "cluster": (1, 1)}
CONFIGS = {
    "nvfp4 of nvfp4 2x2": make_config("kernel9", out_dtype="nvfp4", cluster=(2, 2), mma_shape=(256, 128), stages=3),
    "nvfp4 of mxfp8 2x1": make_config("kernel9", dtype="mxfp8", out_dtype="nvfp4", cluster=(2, 1), stages=2),
    "mxfp8 of mxfp8": make_config(
        "kernel9", dtype="mxfp8", out_dtype="mxfp8", **ONE, mma_shape=(128, 128), stages=2, epilogue_width=32
    ),
    "mxfp4 of mxfp4 2x1": make_config("kernel9", dtype="mxfp4", out_dtype="mxfp4", cluster=(2, 1), stages=2),
    "nvfp4 behind bias": make_config(
        "kernel8", out_dtype="nvfp4", epilogue="bias", **ONE, mma_shape=(128, 128), stages=2, epilogue_width=64
    ),
    "mxfp8 behind bias": make_config(
        "kernel8", out_dtype="mxfp8", epilogue="bias", **ONE, mma_shape=(128, 128), stages=2
    ),
    "nvfp4 behind SwiGLU, 64 rows": make_config(
        "kernel8", out_dtype="nvfp4", epilogue="swiglu", **ONE, mma_shape=(64, 128), stages=2
    ),
    "mxfp8 behind SwiGLU 2x2": make_config(
        "kernel8", out_dtype="mxfp8", epilogue="swiglu", cluster=(2, 2), mma_shape=(256, 256), stages=2
    ),
    "mxfp8, halves of columns, parts of K": make_config(
        "kernel8", out_dtype="mxfp8", dtype="fp16", cluster=(2, 1), mma_shape=(128, 128), stages=2, split_k=3,
        epilogue_width=32,
    ),
    "nvfp4 of groups": make_config(
        "kernel8", out_dtype="nvfp4", **ONE, mma_shape=(128, 64), stages=2, grouped=True
    ),
    "next nvfp4": make_config("kernel9", **ONE, mma_shape=(128, 128), stages=2),
    "next mxfp8": make_config("kernel9", dtype="mxfp8", **ONE, mma_shape=(128, 128), stages=2),
}  # fmt: skip
QUANTISED = [name for name in CONFIGS if "next" not in name]
GROUPS = (40, 0, 131, 1)
SIZES = ((200, 416, 7 * 64), (3, 32, 256), (161, 192, 384))
"""Of C with as many columns as the product."""


def problem_size(name: str, size: tuple[int, int, int]) -> tuple:
    """Rows of groups; SwiGLU needs columns for whole blocks and 16 bytes of C."""
    m, n, k = size
    n = -(-n // 64) * 64 if "SwiGLU" in name else n
    return (sum(GROUPS), n, k, GROUPS) if "groups" in name else (m, n, k)


@pytest.mark.parametrize("name", QUANTISED)
def test_elements_and_factors_are_those_of_the_quantiser(built, name):
    config = CONFIGS[name]
    for size, kind, schedule in zip(SIZES, ("index", "integer", "normal"), ("random", "fifo", "random"), strict=True):
        counters, validation = kernel_runs.run(
            built[name], problem_size(name, size), kind, schedule=schedule, seed=size[0]
        )
        assert validation.mismatches == 0, (size, validation.buffer, validation.first_mismatches[:2])
        assert validation.exact == (kind != "normal" and find_epilogue(config.epilogue).is_exact)
        m, n, _ = problem_size(name, size)[:3]
        columns = n // 2 if config.epilogue == "swiglu" else n
        assert counters["tma_global_bytes_written"] == m * columns * FORMATS[config.out_dtype].bits // 8


# ---- by the definitions of the formats alone -------------------------------------------------------------------------
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E4M3 = np.array([(m / 8 + (e > 0)) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:-1])
"""Magnitudes by their codes."""


def nearest(values: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    """The code of the nearest magnitude, of two as near the even one; the largest for what is larger."""
    between = (magnitudes[1:] + magnitudes[:-1]) / 2
    code = np.searchsorted(between, values)
    tie = (code < len(between)) & (between[np.minimum(code, len(between) - 1)] == values)
    return code + (tie & (code % 2 == 1))


def defined(values: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Elements and factors."""
    block = {"nvfp4": 16, "mxfp8": 32}[name]
    largest = np.abs(values).reshape(len(values), -1, block).max(axis=2)
    if name == "nvfp4":
        codes = nearest(largest / 6, E4M3)
        units = np.where(codes > 0, E4M3[codes], 1)
    else:
        exponents = np.array([np.floor(np.log2(x)) - 8 if x > 0 else -127 for x in largest.ravel()])
        codes = (np.maximum(exponents, -127) + 127).astype(int).reshape(largest.shape)
        units = 2.0 ** (codes - 127)
    quotients = values / np.repeat(units, block, axis=1)
    found = nearest(np.abs(quotients), E2M1 if name == "nvfp4" else E4M3)
    found += np.where(np.signbit(values), 8 if name == "nvfp4" else 128, 0)
    elements, factors = (each.astype(np.uint8) for each in (found, codes))
    return elements.view(C_TYPES[name].numpy), factors.view(FORMATS[name].scale.numpy)


def scalar_of(what: Launchable, name: str) -> float:
    return next(argument.value for key, argument in what.launches[0].arguments if key == name)


LAYERS = {"nvfp4": "nvfp4 behind bias", "mxfp8": "mxfp8 of mxfp8"}


@pytest.mark.parametrize("name", LAYERS)
def test_c_of_one_layer_is_a_of_the_next(built, name):
    """As it lies in memory, rows and blocks that are not there, too."""
    m, k, n = 150, 160, 136
    layer = LAYERS[name]
    plan, what = kernel_runs.problem(built[layer], (m, k, 192), "integer")
    made = launch(what, EmulationOptions(), keep=(OUTPUT, FACTORS_OF_C)).contents
    inputs = make_inputs(Shape(m, k, 192), CONFIGS[layer].dtype, "integer", m + k + 192, CONFIGS[layer].fused_epilogue)
    a, b = (each.astype(np.float64) for each in (inputs.a, inputs.b))
    if inputs.factors:
        a, b = (x * np.repeat(f.astype(np.float64), 32, axis=1) for x, f in zip((a, b), inputs.factors, strict=True))
    scale = scalar_of(what, "c_scale")
    product = (inputs.alpha * (a @ b.T) + inputs.given.get("bias", np.zeros(1)).astype(np.float64)) * scale
    assert (scale == 1) == (name == "mxfp8") and np.frexp(scale)[0] == 0.5
    elements, factors = defined(product, name)
    assert np.array_equal(made[OUTPUT].astype(np.float32), elements.astype(np.float32))
    assert np.array_equal(made[FACTORS_OF_C].view(np.uint8), to_atoms(factors).reshape(-1, 512))

    b_of_next = make_inputs(Shape(m, n, k), name, "normal", 1)
    assert b_of_next.factors is not None
    inputs = Inputs(elements, b_of_next.b, "normal", 1, (factors, b_of_next.factors[1]), b_of_next.alpha / scale)
    plan = built[f"next {name}"].plan(Shape(m, n, k))
    what = to_launchable(built[f"next {name}"], plan, inputs)
    scales = what.buffers["A scales"]
    given = {
        "A": replace(what.buffers["A"], fill=Fill("array", array=made[OUTPUT])),
        "A scales": replace(scales, fill=Fill("array", array=made[FACTORS_OF_C].view(np.uint8).reshape(scales.shape))),
    }
    chained = judged(launch(replace(what, buffers={**what.buffers, **given}), EmulationOptions(), keep=(OUTPUT,)), plan)
    assert chained.validation.passed
    assert np.array_equal(scales.fill.array, given["A scales"].fill.array)


@pytest.mark.parametrize(("name", "powers"), [("nvfp4", (-24, 14)), ("mxfp8", (-133, 50))])
def test_small_large_and_no_values(built, name, powers):
    """Rows of C from what no factor can be small enough for to what none can be large enough for, and rows of 0."""
    m, n, k = 40, 64, 64
    layer = {"nvfp4": "nvfp4 behind bias", "mxfp8": "mxfp8 behind bias"}[name]
    plan = built[layer].plan(Shape(m, n, k))
    inputs = make_inputs(Shape(m, n, k), "bf16", "index", 5, find_epilogue("bias"))
    rows = np.linspace(*powers, m).round()
    a, b = (np.sign(each.astype(np.float64)) for each in (inputs.a, inputs.b))
    a *= 2.0 ** rows[:, None] * (np.arange(m) % 5 > 0)[:, None]
    bf16 = inputs.a.dtype
    inputs = replace(inputs, a=a.astype(bf16), b=b.astype(bf16), given={"bias": np.zeros(n, bf16)})
    what = to_launchable(built[layer], plan, inputs)
    arguments = tuple((key, Scalar(1.0) if key == "c_scale" else value) for key, value in what.launches[0].arguments)
    what = replace(what, launches=(replace(what.launches[0], arguments=arguments),))
    made = launch(what, EmulationOptions(), keep=(OUTPUT, FACTORS_OF_C)).contents
    elements, factors = defined(inputs.a.astype(np.float64) @ b.T, name)
    assert np.array_equal(made[OUTPUT].astype(np.float32), elements.astype(np.float32))
    assert np.array_equal(made[FACTORS_OF_C].view(np.uint8), to_atoms(factors).reshape(-1, 512))
    codes = set(factors.view(np.uint8).ravel())
    assert 0 in codes and len(codes) > 10 and (name == "mxfp8" or max(codes) == len(E4M3) - 1)


# ---- what is wrong is seen -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name", ["nvfp4 of nvfp4 2x2", "mxfp8 behind SwiGLU 2x2", "mxfp8, halves of columns, parts of K"]
)
def test_its_synchronisation_is_sound(built, name):
    _, what = kernel_runs.problem(built[name], problem_size(name, SIZES[0]), "index")
    [checked] = check([what], CheckOptions(schedules=2))
    assert not judge(what, checked).reasons


NVFP4, MXFP8 = "nvfp4 behind bias", "mxfp8, halves of columns, parts of K"
BYTES = r"mov\.b32 (%r\d+), \{a, b, c, d\}"
LARGEST = r"shfl\.sync\.bfly\.b32 *\t*(%r\d+)(?:\|%p\d+)?, (%r\d+), [^;]*;"
STORED = r"st\.global\.b32 (\[%rd\d+\], %r\d+);"
SCALE = rf"ld\.param::entry\.b32 *\t*(%r\d+), \[\w*{parameter('c_scale')}\];"
FAULTS = {
    "the largest of one lane": (NVFP4, substitute(LARGEST, r"mov.b32 \1, \2;", count=0)),
    "the largest becomes 4": (NVFP4, substitute("0f40C00000", "0f40800000", count=0)),
    "values by half of the factor": (NVFP4, substitute("0f7B800000", "0f7B000000", count=0)),
    "neighbours exchanged": (NVFP4, substitute(r"(e2m1x2\.f32 a), (%r\d+), (%r\d+)", r"\1, \3, \2", count=0)),
    "rows 8 apart exchanged": (NVFP4, substitute(BYTES, r"mov.b32 \1, {b, a, d, c}", count=0)),
    "columns 8 apart exchanged": (NVFP4, substitute(BYTES, r"mov.b32 \1, {c, d, a, b}", count=0)),
    "another chunk": (NVFP4, substitute(r"(xor\.b32 next, %r\d+, )4", r"\g<1>16", count=0)),
    "C is not multiplied": (NVFP4, substitute(SCALE, r"mov.b32 \1, 0f3F800000;")),
    "a factor of another row": (NVFP4, substitute(r"(st\.global\.b32 \[%rd\d+)\]", r"\1+16]", count=0)),
    "factors of blocks exchanged": (NVFP4, substitute(r"(shl\.b32 \t%r\d+, %r\d+, )8;", r"\g<1>16;", count=0)),
    "the factor of one block": (NVFP4, substitute(STORED, r"st.global.b8 \1;", count=0)),
    "an exponent less": (MXFP8, substitute(r"(max\.u32 \t%r\d+, %r\d+, )8;", r"\g<1>200;", count=0)),
    "a factor 2 larger": (MXFP8, substitute("-2097152000", "-2105540608", count=0)),
    "the next block's factor": (MXFP8, substitute(r"(st\.global\.b8 \[%rd\d+)\]", r"\1+1]", count=0)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(built, fault):
    name, alter = FAULTS[fault]
    assert outcome(built[name], alter, (136, 160, 192), "fifo") != "right"


@pytest.mark.parametrize("name", ["e4m3", "nvfp4", "mxfp8", "mxfp4"])
def test_the_bound_holds_for_products_within_it(name):
    """Every product within its error gives elements and factors within theirs; many times as much does not."""
    rng = np.random.default_rng(1)
    values, error = rng.standard_normal((40, 320)), np.full((40, 320), 2.0**-9)
    values[0, 0] = 5.5  # far from where nvfp4 is multiplied by another power of two
    about = {"a_norms": np.ones(40), "b_norms": np.ones(320), "k": 64}
    wanted = quantised(Reference(values, **about, exact=False, bound=error), name)
    for far, right in ((0.99, True), (40, False)):
        moved = (values + far * error * rng.choice((-1, 1), values.shape)).astype(np.float32)
        found = quantised(Reference(moved, **about, exact=True), name)
        assert found.c_scale == wanted.c_scale
        elements, factors = found.elements.rounded(C_TYPES[name]), found.factors.rounded(wanted.factor_type)
        verdicts = (
            validate(elements, wanted.elements, C_TYPES[name], (8, 32)),
            validate(factors, wanted.factors, wanted.factor_type, (1, 8)),
        )
        assert all(verdict.passed for verdict in verdicts) == right


WRONG = [
    ("kernel8", {"arch": "sm_90a"}, "out dtype nvfp4: kernel8 of sm_90a has no such C"),
    ("kernel7", {}, "out dtype nvfp4: kernel7 of sm_100a has no such C"),
    ("kernel8", {"mma_shape": (256, 96)}, "mma shape 256x96: 96 columns of C, of which 64 have an atom"),
    ("kernel8", {"out_dtype": "mxfp8", "epilogue_width": 16}, "epilogue width 16: less than the 32 columns of C"),
    ("kernel8", {"epilogue_width": 16}, "epilogue width 16: nvfp4 makes 8 bytes of C of it, not 16"),
]


@pytest.mark.parametrize(("kernel", "options", "message"), WRONG)
def test_what_cannot_be_quantised(kernel, options, message):
    with pytest.raises(UsageProblem, match=message):
        make_config(kernel, **{"arch": "sm_100a", "out_dtype": "nvfp4", **options})


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("nvfp4 behind bias", Shape(64, 48, 64), "N 48 is not a multiple of 32.* also in C, and of whole blocks"),
        ("mxfp8 behind SwiGLU 2x2", Shape(64, 96, 64), "N 96 is not a multiple of 64"),
        ("nvfp4 behind bias", Shape(64, 64, 64, ld=(0, 0, 128)), "nvfp4 lies without gaps"),
    ],
)
def test_rows_of_c_are_of_whole_blocks_and_16_bytes(built, name, size, message):
    with pytest.raises(Exception, match=message):
        built[name].plan(size)
