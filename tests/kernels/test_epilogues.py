"""Fused epilogues of kernel 8: each against its formula, on ragged sizes; what they read, and faults in how they do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernel_faults import substitute
from kernel_runs import problem, run

from emugpu.errors import CannotRun
from emugpu.launch.check import CheckOptions, check, judge
from harness.compile.config import make_config
from harness.epilogues import EPILOGUES, NONE, Epilogue, find_epilogue
from harness.problem import Shape, epilogue_operands, make_inputs

# Small tiles, so that there are many. Each way of an epilogue through a kernel: two warpgroups or one, in turn or
# together; rows in all lanes of tensor memory, in half of them, or split by columns.
HOPPER = {"arch": "sm_90a", "cluster": (1, 1), "stages": 2, "epilogue_width": 32}
BLACKWELL = {"arch": "sm_100a", "cluster": (1, 1), "stages": 2, "cta_group": 1, "epilogue_width": 32}
ALONE, SHARED = {**HOPPER, "mma_shape": (64, 64)}, {**HOPPER, "mma_shape": (256, 64), "dtype": "fp16"}
IN_TURN = {**HOPPER, "mma_shape": (128, 64), "ping_pong": True}
WHOLE, HALF = {**BLACKWELL, "mma_shape": (128, 64)}, {**BLACKWELL, "mma_shape": (64, 64), "dtype": "fp16"}
SPLIT = {**BLACKWELL, "mma_shape": (128, 128), "cta_group": 2, "cluster": (2, 1), "epilogue_width": 64}
WAYS = (
    ("bias", ALONE),
    ("residual", SHARED),
    ("swiglu", IN_TURN),
    ("gelu", IN_TURN),
    ("swiglu", SHARED),
    ("bias-relu", WHOLE),
    ("residual", HALF),
    ("swiglu", SPLIT),
    ("silu", SPLIT),
    ("bias-gelu", HALF),
    ("relu", SPLIT),
    ("residual", SPLIT),
)
CONFIGS = [make_config("kernel8", epilogue=epilogue, **options) for epilogue, options in WAYS]
SIZES = ((300, 208, 136), (77, 528, 64), (1, 16, 8))


def test_each_one_is_run():
    assert {config.epilogue for config in CONFIGS} == set(EPILOGUES) - {NONE}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label.replace(" ", "_"))
def test_it_computes_its_formula(built, config):
    """Exactly where it rounds nothing; random inputs are small enough to meet the bends of activations."""
    for size, kind in zip(SIZES, ("integer", "uniform", "normal"), strict=True):
        _, validation = run(built[config], size, kind, schedule="random", seed=size[0])
        assert validation.mismatches == 0, (size, kind, validation.first_mismatches[:2])
        assert validation.exact == (kind == "integer" and find_epilogue(config.epilogue).is_exact)
        assert validation.elements == size[0] * size[1] // (2 if config.epilogue == "swiglu" else 1)


@pytest.mark.parametrize("number", [1, 6], ids=lambda number: CONFIGS[number].arch)
def test_its_synchronisation_is_sound(built, number):
    _, what = problem(built[CONFIGS[number]], (300, 104, 136), "integer")
    [checked] = check([what], CheckOptions(schedules=2))
    assert not judge(what, checked).reasons


LOADS = r"(mov\.b32 %r\d+, 0; @%p\d+ ld\.global\.b32 %r\d+, \[%rd\d+)(\];)"
OUTSIDE = "outside every allocation"
FAULTS = {  # what may become of it, as at the edge of C what is meant to be beside an element is beyond the end
    "of the next pair of columns": (substitute(LOADS, r"\1+4\2", count=0), (OUTSIDE,)),
    "of the other half of the fragment": (substitute(LOADS, r"\1+16\2", count=0), (OUTSIDE,)),
    "a single one, of the column before": (substitute(LOADS, r"\1+-4\2", count=0), (OUTSIDE, "wrong")),
    "a single one, of another column": (substitute(LOADS, r"\1+4\2"), ("wrong",)),
    "of another row": (substitute(LOADS, r"\1+416\2", count=0), (OUTSIDE,)),
    "beyond the edge": (substitute(r"@%p\d+ (ld\.global\.b32)", r"\1", count=0), (OUTSIDE,)),
    "of nothing": (substitute(r"@%p\d+ ld\.global\.b32 %r\d+, \[%rd\d+\];", "", count=0), ("wrong",)),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("number", [0, 1, 6], ids=lambda number: f"{CONFIGS[number].epilogue}-{CONFIGS[number].arch}")
def test_a_wrong_load_is_seen(built, name, number):
    alter, reports = FAULTS[name]
    artifact = built[CONFIGS[number]]
    if (CONFIGS[number].epilogue, name) == ("bias", "of another row"):
        pytest.skip("a bias has none")
    try:
        _, validation = run(artifact, SIZES[0], "integer", ptx=alter(artifact.ptx))
    except CannotRun as error:
        found = str(error)
    else:
        found = "right" if validation.passed else "wrong"
    assert any(report in found for report in reports), found


# ---- formulas ----
DEFINITIONS = {
    "gelu": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu": lambda x: max(x, 0.0),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_an_activation_is_what_it_is_called(name):
    x = np.linspace(-8, 8, 64).reshape(4, 16)
    expected = np.vectorize(DEFINITIONS[name])(x)
    assert np.allclose(find_epilogue(name).of(x, {}), expected, rtol=1e-9, atol=1e-15)


def test_of_each_16_columns_8_are_gates():
    product = np.arange(64.0).reshape(2, 32)
    expected = [
        [DEFINITIONS["silu"](row[16 * (c // 8) + c % 8]) * row[16 * (c // 8) + 8 + c % 8] for c in range(16)]
        for row in product.tolist()
    ]
    assert np.allclose(find_epilogue("swiglu").of(product, {}), expected, rtol=1e-12)


CANCELS = Epilogue("cancels", "", "product / (1 + exp(-product)) + residual")


def in_f32(epilogue, product, given):
    """What NumPy makes of the formula in f32."""
    gate, up = product.reshape(len(product), -1, 2, 8).transpose(2, 0, 1, 3).reshape(2, len(product), -1)
    values = {"product": product, "gate": gate, "up": up, **given}
    return epilogue.expression.evaluate({name: np.float32(value) for name, value in values.items()})


@pytest.mark.parametrize("size", [1e-3, 0])
@pytest.mark.parametrize("name", [*sorted(set(EPILOGUES) - {NONE}), CANCELS.name])
def test_the_bound_holds_for_products_within_it(name, size):
    """Every product within the error of an accumulation gives a C within the bound, also where f32 computes it."""
    rng = np.random.default_rng(3)
    product, error = np.float32(3 * rng.standard_normal((16, 64))).astype(np.float64), np.full((16, 64), size)
    if name == CANCELS.name:
        epilogue = CANCELS
        given = {"residual": np.float32(-product / (1 + np.exp(-product)))}
    else:
        epilogue = find_epilogue(name)
        given = epilogue_operands(Shape(16, 64, 16), "bf16", "normal", 1, epilogue)
    middle, bound = epilogue.of(product, given), epilogue.bound(product, error, given)
    for _ in range(20):
        moved = product + rng.uniform(-1, 1, product.shape) * error
        assert (np.abs(epilogue.of(moved, given) - middle) <= bound).all()
    assert (np.abs(in_f32(epilogue, product, given) - middle) <= bound).all()
    assert (bound < 0.1).all()


FORMULAS = {
    True: ("product + bias", "0.5 * product", "maximum(product, 0)", "alpha * product + beta * residual", "-product",
           "where(product > 0, product, 0.25 * abs(product))"),
    False: ("0.3 * product", "product * (1 + product)", "product / 2", "gate * up", "exp(product)", "product ** 2"),
}  # fmt: skip


@pytest.mark.parametrize(("formula", "exact"), [(f, exact) for exact, several in FORMULAS.items() for f in several])
def test_a_formula_is_exact_where_f32_rounds_nothing(formula, exact):
    assert Epilogue("one", "", formula).is_exact is exact


def test_what_is_read_tells_rows_and_columns_apart():
    inputs = make_inputs(Shape(256, 256, 8), "bf16", "integer", 0, EPILOGUES["residual"])
    residual = inputs.given["residual"].astype(np.float64)
    bias = epilogue_operands(Shape(8, 256, 8), "bf16", "index", 0, EPILOGUES["bias"])["bias"].astype(np.float64)
    for apart in (1, 2, 8, 16, 32, 64, 128):
        assert (residual[apart:] != residual[:-apart]).all()
        assert (residual[:, apart:] != residual[:, :-apart]).all()
        assert (bias[apart:] != bias[:-apart]).all()
