"""Kernel 8 with its operands exchanged: C is the transpose of what it multiplies."""

from __future__ import annotations

import kernel_runs
import pytest
from kernel_faults import outcome, substitute

from emugpu.errors import UsageProblem
from emugpu.launch.check import CheckOptions, check, judge
from harness.compile.config import make_config
from harness.problem import OUT_TYPES

BLACKWELL = {"arch": "sm_100a", "cta_group": 1, "cluster": (1, 1)}
CONFIGS = [
    make_config("kernel8", swapped=True, stages=2, **{"arch": "sm_90a", **options})
    for options in (
        {"mma_shape": (128, 16), "cluster": (1, 1), "sms": 5, "split_k": 3},
        {"mma_shape": (64, 64), "cluster": (2, 1), "sms": 8, "split_k": 2, "scheduler": "dynamic"},
        {"mma_shape": (128, 48), "cluster": (1, 2), "epilogue_width": 16},
        {"mma_shape": (64, 64), "cluster": (2, 1), "ping_pong": True, "dtype": "fp16", "epilogue_width": 64},
        {"mma_shape": (64, 32), "cluster": (1, 1), "dtype": "e4m3"},
        {"mma_shape": (128, 16), "cluster": (1, 1), "epilogue": "residual", "split_k": 3, "sms": 5},
        {"mma_shape": (128, 48), "cluster": (1, 2), "epilogue": "bias", "out_dtype": "f32"},
        {"mma_shape": (64, 16), "cluster": (1, 1), "epilogue": "swiglu"},
        {"mma_shape": (64, 64), "cluster": (2, 1), "epilogue": "swiglu", "out_dtype": "f32", "ping_pong": True},
        {**BLACKWELL, "mma_shape": (128, 16), "split_k": 3, "epilogue": "residual"},
        {**BLACKWELL, "mma_shape": (64, 32), "epilogue": "swiglu", "dtype": "fp16"},
        {**BLACKWELL, "mma_shape": (128, 48), "cluster": (1, 2), "epilogue": "bias", "out_dtype": "f32"},
        {**BLACKWELL, "mma_shape": (128, 64), "cluster": (2, 1), "epilogue": "swiglu", "out_dtype": "f32"},
        {"arch": "sm_100a", "mma_shape": (128, 64), "cluster": (2, 1)},
        {"arch": "sm_100a", "mma_shape": (256, 32), "cluster": (2, 2), "scheduler": "static", "sms": 8, "layout": "nn"},
    )
]
SIZES = ((200, 136, 7 * 64), (17, 72, 256), (1, 264, 384))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label.replace(" ", "_"))
def test_every_element_is_where_it_belongs(built, config):
    for size, schedule in zip(SIZES, ("random", "fifo", "random"), strict=True):
        pairs = config.epilogue == "swiglu"
        size = (size[0], size[1] + 8 * pairs, size[2] * (2 if config.dtype == "e4m3" else 1))
        counters, validation = kernel_runs.run(built[config], size, "index", schedule=schedule, seed=size[0])
        assert validation.mismatches == 0, (size, validation.first_mismatches[:2])
        assert validation.exact != pairs
        columns = size[1] // (2 if pairs else 1)
        assert counters["tma_global_bytes_written"] == OUT_TYPES[config.out_dtype].bytes * size[0] * columns


@pytest.mark.parametrize("number", [0, 1, 3, 5, 9, 13])
def test_its_synchronisation_is_sound(built, number):
    _, what = kernel_runs.problem(built[CONFIGS[number]], SIZES[0], "index")
    [checked] = check([what], CheckOptions(schedules=2))
    assert not judge(what, checked).reasons


STORE = r"(cp\.async\.bulk\.tensor\.2d\.global[^;]*\{)(%r\d+), (%r\d+)(\}[^;]*;)"
FAULTS = {
    "a matrix is not transposed": (2, substitute(r"stmatrix([.\w]*)\.trans", r"stmatrix\1", count=0)),
    "rows and columns are exchanged once more": (2, substitute(STORE, r"\1\3, \2\4", count=0)),
    "the swizzle is another": (2, substitute(r"(stmatrix[^\[]*\[%r\d+\+)0(\])", r"\g<1>16\2", count=0)),
    "a residual of the next column": (5, substitute(r"(ld\.global\.b16 %rs\d+, \[%rd\d+)\]", r"\1+2]")),
    "a bias of the next column": (6, substitute(r"(ld\.global\.b16 %rs\d+, \[%rd\d+)\]", r"\1+2]")),
    "a matrix is not transposed, sm_100a": (9, substitute(r"stmatrix([.\w]*)\.trans", r"stmatrix\1", count=0)),
    "the swizzle is another, sm_100a": (13, substitute(r"(stmatrix[^\[]*\[%r\d+\+)0(\])", r"\g<1>16\2", count=0)),
    "columns 16 further lie elsewhere": (9, substitute(r"(xor\.b32 *\t%r\d+, %r\d+, )32;", r"\g<1>64;")),
    "an f32 a row further": (6, substitute(r"(st\.shared\.b32 \[%r\d+\+)0\]", r"\g<1>128]", count=0)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen(built, name):
    number, alter = FAULTS[name]
    assert outcome(built[CONFIGS[number]], alter, SIZES[0], "fifo") != "right"


WRONG = [
    ({"arch": "sm_100a", "out_dtype": "mxfp8"}, "out dtype mxfp8: not with swapped; use bf16, or leave out swapped"),
    ({"mma_shape": (256, 128)}, "mma shape 256x128, swapped: a warpgroup stores 64 columns of C"),
    ({"mma_shape": (128, 64), "ping_pong": True}, "mma shape 128x64, swapped: a warpgroup stores 64 columns of C"),
    ({"dtype": "e4m3", "scales": "block"}, "scales block: not with swapped"),
]


def test_kernel9_does_not_swap():
    with pytest.raises(UsageProblem, match=r"swapped: kernel9 multiplies A \. B"):
        make_config("kernel9", swapped=True)


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_cannot_be_swapped(options, message):
    with pytest.raises(UsageProblem, match=message):
        make_config("kernel8", **{"arch": "sm_90a", "swapped": True, **options})
