"""Kernel 8 of sm_90a with C of e4m3 and a scale factor for each 128 columns of a row: A of the next product."""

from __future__ import annotations

from dataclasses import replace

import kernel_runs
import numpy as np
import pytest
from kernel_faults import outcome, substitute

from emugpu.errors import UsageProblem
from emugpu.launch.check import CheckOptions, check, judge
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.launching import run as launch
from emugpu.launch.spec import Fill
from harness import fp8
from harness.compile.artifacts import FACTORS_OF_C, OUTPUT, judged, to_launchable
from harness.compile.config import make_config
from harness.epilogues import find_epilogue
from harness.problem import Inputs, Shape, make_inputs

QUANTISED = {"arch": "sm_90a", "out_dtype": "e4m3", "stages": 2}
LAYERS = [
    make_config("kernel8", **QUANTISED, **options)
    for options in (
        {"mma_shape": (64, 128), "cluster": (1, 1), "epilogue": "bias"},
        {"mma_shape": (128, 256), "cluster": (2, 1), "epilogue": "swiglu"},
        {"mma_shape": (128, 128), "cluster": (1, 1), "ping_pong": True, "epilogue_width": 16},
        {"mma_shape": (256, 128), "cluster": (1, 2), "epilogue": "residual", "dtype": "fp16"},
        {"mma_shape": (64, 256), "cluster": (1, 1), "epilogue": "bias-relu", "split_k": 3, "sms": 5},
        {"mma_shape": (128, 128), "cluster": (2, 1), "dtype": "e4m3", "scales": "block"},
    )
]
NEXT = make_config(
    "kernel8", arch="sm_90a", dtype="e4m3", scales="block", mma_shape=(64, 128), cluster=(1, 1), stages=2
)
CONFIGS = [*LAYERS, NEXT]
SIZES = ((200, 416, 7 * 64), (3, 32, 256), (129, 288, 384))


@pytest.mark.parametrize("config", LAYERS, ids=lambda config: config.label.replace(" ", "_"))
def test_elements_and_factors_are_those_of_the_quantiser(built, config):
    for size, kind, schedule in zip(SIZES, ("index", "uniform", "normal"), ("random", "fifo", "random"), strict=True):
        counters, validation = kernel_runs.run(built[config], size, kind, schedule=schedule, seed=size[0])
        assert validation.mismatches == 0, (size, validation.buffer, validation.first_mismatches[:2])
        assert validation.exact == (kind == "index" and find_epilogue(config.epilogue).is_exact)
        assert counters["tma_global_bytes_written"] == size[0] * size[1] // (2 if config.epilogue == "swiglu" else 1)


def test_c_of_one_layer_is_a_of_the_next(built):
    """As it lies in memory, padded rows of factors too: bit for bit as if the harness had quantised it."""
    m, k, n = 77, 272, 136
    first = built[CONFIGS[0]]
    plan, what = kernel_runs.problem(first, (m, k, 200), "integer")
    made = launch(what, EmulationOptions(), keep=(OUTPUT, FACTORS_OF_C)).contents
    product = what.buffers["A"].fill.array.astype(np.float64) @ what.buffers["B"].fill.array.astype(np.float64).T
    elements, factors, _ = fp8.quantise(product + what.buffers["bias"].fill.array.astype(np.float64), "A", "block")
    assert made[OUTPUT].tobytes() == elements.tobytes()
    assert np.array_equal(made[FACTORS_OF_C], fp8.in_memory(factors, "A"), equal_nan=True)
    b = make_inputs(Shape(m, n, k), "e4m3", "normal", 1, scales="block")
    inputs = Inputs(elements, b.b, "normal", 1, (factors, b.factors[1]))
    plan = built[NEXT].plan(Shape(m, n, k))
    what = to_launchable(built[NEXT], plan, inputs)
    given = {
        name: replace(what.buffers[name], fill=Fill("array", array=array))
        for name, array in {"A": made[OUTPUT], "A scales": made[FACTORS_OF_C]}.items()
    }
    chained = judged(launch(replace(what, buffers={**what.buffers, **given}), EmulationOptions(), keep=(OUTPUT,)), plan)
    assert chained.validation.passed


@pytest.mark.parametrize("number", [1, 2, 4])
def test_its_synchronisation_is_sound(built, number):
    _, what = kernel_runs.problem(built[CONFIGS[number]], SIZES[0], "index")
    [checked] = check([what], CheckOptions(schedules=2))
    assert not judge(what, checked).reasons


FAULTS = {
    "the largest of one lane": substitute(
        r"shfl\.sync\.bfly\.b32 *\t*(%r\d+)(?:\|%p\d+)?, (%r\d+), [^;]*;", r"mov.b32 \1, \2;", count=0
    ),
    "neighbours exchanged": substitute(r"(e4m3x2\.f32 low), (%r\d+), (%r\d+)", r"\1, \3, \2", count=0),
    "rows 8 apart exchanged": substitute(r"\{low, high\};", "{high, low};", count=0),
    "another chunk": substitute(r"(st\.shared\.b16 \[%r\d+\+)0(\], low)", r"\g<1>16\2", count=0),
    "a factor of another row": substitute(r"(st\.global\.[bf]32 \[%rd\d+)\]", r"\1+4]", count=0),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen(built, name):
    assert outcome(built[CONFIGS[0]], FAULTS[name], (72, 144, 128), "fifo") != "right"


WRONG = [
    ({"arch": "sm_100a"}, "out dtype e4m3: kernel8 of sm_100a has no such C"),
    ({"mma_shape": (128, 192)}, "mma shape 128x192: 192 columns of C, of which 128 share a scale factor"),
    ({"mma_shape": (128, 128), "epilogue": "swiglu"}, "mma shape 128x128: 64 columns of C"),
    ({"mma_shape": (64, 128), "swapped": True}, "out dtype e4m3: not with swapped"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_cannot_be_quantised(options, message):
    with pytest.raises(UsageProblem, match=message):
        make_config("kernel8", **{"arch": "sm_90a", "out_dtype": "e4m3", **options})


def test_rows_of_c_are_of_whole_16_bytes(built):
    with pytest.raises(Exception, match="N 24 is not a multiple of 16"):
        built[CONFIGS[0]].plan(Shape(64, 24, 64))
