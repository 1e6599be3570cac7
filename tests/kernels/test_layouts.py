"""Kernels 5 to 8 with A and B as they lie in other programs: [K, M] and [K, N], MN-major in shared memory."""

from __future__ import annotations

import re
from pathlib import Path

import kernel_runs
import numpy as np
import pytest
from kernel_faults import outcome, substitute
from max_on_emulated_gpu import run_on_emulated_gpu

from emugpu.errors import UsageProblem
from emugpu.launch.check import CheckOptions, check, judge
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.launching import run as launch
from harness.compile.artifacts import OUTPUT, Artifact, plan_json, to_launchable
from harness.compile.compiler import Refused
from harness.compile.config import make_config
from harness.compile.planner import parse_plan
from harness.model.simulate import simulate
from harness.problem import Shape, make_inputs
from harness.report.text import as_text

HOPPER = {"arch": "sm_90a", "stages": 2}
BLACKWELL = {"arch": "sm_100a", "stages": 2}
ONE_CTA = {**BLACKWELL, "cta_group": 1}
BASES = (
    # Slices: 32 lines; one half of 192 rows, which is not whole boxes of 64 lines; a third of 64, in boxes of 8.
    ("tn", "kernel8", {**HOPPER, "mma_shape": (128, 128), "cluster": (2, 4), "sms": 8}),
    ("nn", "kernel8", {**HOPPER, "mma_shape": (128, 192), "cluster": (2, 1), "sms": 4, "epilogue": "bias-relu"}),
    ("tt", "kernel8", {**HOPPER, "mma_shape": (64, 64), "cluster": (1, 3), "sms": 6, "split_k": 3}),
    ("nn", "kernel8", {**HOPPER, "mma_shape": (128, 48), "cluster": (1, 2), "swapped": True}),
    ("tn", "kernel8", {**BLACKWELL, "mma_shape": (256, 256), "cluster": (4, 4)}),
    ("tt", "kernel8", {**BLACKWELL, "mma_shape": (128, 128), "cluster": (2, 2), "split_k": 2, "epilogue": "residual"}),
    ("nn", "kernel8", {**ONE_CTA, "mma_shape": (64, 64), "cluster": (3, 1), "dtype": "fp16", "out_dtype": "f32"}),
    ("tn", "kernel5", {"arch": "sm_90a", "mma_shape": (64, 64), "cluster": (2, 1)}),
    ("tn", "kernel6", {**BLACKWELL, "mma_shape": (256, 128), "cluster": (2, 1), "multicast": False}),
    ("tt", "kernel7", {**HOPPER, "mma_shape": (256, 64), "cluster": (1, 1)}),
)  # fmt: skip
DAILY = [make_config(kernel, layout=layout, **options) for layout, kernel, options in BASES]
NIGHTLY = [
    make_config(kernel, layout=other, **options)
    for layout, kernel, options in BASES
    for other in ("nt", "nn", "tn", "tt")
    if other != layout and not (options.get("swapped") and other[0] == "t")
]
CONFIGS = DAILY
SIZES = ((264, 328, 3 * 64 - 24), (8, 72, 264))


def c_of(what) -> np.ndarray:
    """The product in float64 of what lies in memory."""
    layout = what.about["config"]["layout"]
    a, b = (what.buffers[name].fill.array.astype(np.float64) for name in "AB")
    return (a if layout[0] == "n" else a.T) @ (b if layout[1] == "n" else b.T)


def check_all_elements(artifact):
    for size, schedule in zip(SIZES, ("random", "fifo"), strict=True):
        _, what = kernel_runs.problem(artifact, size, "index")
        if artifact.config.epilogue == "none":
            assert np.array_equal(what.expectations[0].reference.values, c_of(what))
        found = launch(what, EmulationOptions(schedule=schedule, seed=size[0]), keep=(OUTPUT,))
        assert all(verdict.passed for verdict in found.verdicts), (size, found.verdicts[0])


@pytest.mark.parametrize("config", DAILY, ids=lambda config: config.label.replace(" ", "_"))
def test_every_element_is_where_it_belongs(built, config):
    check_all_elements(built[config])


@pytest.mark.nightly
def test_the_other_layouts_likewise(builder):
    for artifact in builder("layouts", NIGHTLY):
        check_all_elements(artifact)


def of_views(artifact, shape):
    config = artifact.config
    inputs = make_inputs(shape, config.dtype, "index", 3, config.fused_epilogue)
    return artifact.plan(shape), inputs


@pytest.mark.parametrize(
    ("number", "shape"),
    [
        (0, Shape(263, 328, 167, ld=(280, 336, 344))),  # [K, M] and [K, N]: the rows are M and N
        (3, Shape(9, 72, 165, ld=(168, 80, 0))),  # [M, K] and [K, N], swapped
        (5, Shape(267, 328, 165, ld=(272, 176, 336))),  # [K, M] and [N, K], with a residual
    ],
    ids=["sm_90a", "swapped", "sm_100a"],
)
def test_rows_may_lie_further_apart_than_they_are_long(built, number, shape):
    """What lies between them is NaN: read, it would make C wrong; in C it stays."""
    plan, inputs = of_views(built[DAILY[number]], shape)
    what = to_launchable(built[DAILY[number]], plan, inputs)
    found = launch(what, EmulationOptions(schedule="random", seed=number), keep=(OUTPUT,))
    assert all(verdict.passed for verdict in found.verdicts), found.verdicts[0]
    memory = found.contents[OUTPUT].copy()
    assert memory.shape == (shape.m, shape.ld[2] or shape.n)
    if shape.ld[2]:
        memory[7, shape.n] = 0
        verdict = what.expectations[0].judge(memory, {})
        assert (verdict.passed, verdict.mismatches) == (False, 1)
        _, wrong = what.expectations[0].differences(memory, {})
        assert np.argwhere(wrong).tolist() == [[7, shape.n]]


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "shape"), [(1, Shape(*SIZES[0])), (5, Shape(267, 328, 165, ld=(272, 176, 336)))])
def test_max_launches_the_same(built, number, shape):
    artifact = built[DAILY[number]]
    plan, inputs = of_views(artifact, shape)
    found = run_on_emulated_gpu(artifact, plan, to_launchable(artifact, plan, inputs), inputs, EmulationOptions())
    assert all(verdict.passed for verdict in found.verdicts), found.verdicts[0]


@pytest.mark.parametrize("number", [2, 4], ids=["sm_90a", "sm_100a"])
def test_its_synchronisation_is_sound(built, number):
    _, what = kernel_runs.problem(built[DAILY[number]], SIZES[0], "index")
    [checked] = check([what], CheckOptions(schedules=2))
    assert not judge(what, checked).reasons


# Descriptors as PTX ISA 9.7.15.5.1.2.2 and 9.7.16.4 have them: 64 rows take 8192 bytes, 8 lines 1024; both in 16 bytes.
LEADING, STRIDE = 512 << 16, 64 << 32
MATRIX = {"sm_90a": 1 << 62 | STRIDE | LEADING, "sm_100a": 2 << 61 | 1 << 46 | STRIDE | LEADING}
TRANSPOSED = (1 << 15, 1 << 16)  # of A, of B
INSTRUCTION = 1 << 4 | 1 << 7 | 1 << 10 | sum(TRANSPOSED) | 256 // 8 << 17 | 256 // 16 << 24
BOX = r"(cp\.async\.bulk\.tensor\.2d\S*shared::cluster\.global[^;]*\{)(%r\d+), (%r\d+)(\}[^;]*;)"
K_OF_SLICE = r"add\.s32 \t(%r\d+), (%r\d+), %r\d+;(?=(?:\n.*){0,4}tensor\.2d\S*shared::cluster.*\{%r\d+, \1\})"
ADVANCE = r"(add\.s64 \t%rd\d+, %rd\d+, )128;"


def faults(arch: str) -> dict:
    matrix = MATRIX[arch]
    if arch == "sm_90a":
        turn_a, turn_b = (substitute(r"(p, 1,  1, )1,  1;", rf"\g<1>{bits};", count=0) for bits in ("0,  1", "1,  0"))
    else:
        turn_a, turn_b = (substitute(f", {INSTRUCTION};", f", {INSTRUCTION - bit};") for bit in TRANSPOSED)
    return {
        "A is read K-major": turn_a,
        "B is read K-major": turn_b,
        "the next 64 rows are expected elsewhere": substitute(str(matrix), str(matrix + LEADING), count=0),
        "the leading dimension is that of K-major": substitute(str(matrix), str(matrix - LEADING + (1 << 16)), count=0),
        "the next 8 lines are expected elsewhere": substitute(str(matrix), str(matrix + STRIDE), count=0),
        "the next k lies 32 bytes further": substitute(ADVANCE, r"\g<1>2;", count=0),
        "rows and k of a box are exchanged": substitute(BOX, r"\1\3, \2\4", count=0),
        "every slice begins at the first k": substitute(K_OF_SLICE, r"mov.b32 \t\1, \2;"),
    }


def test_where_boxes_begin_is_known_when_a_kernel_is_compiled(built):
    """A greatest common divisor that is left to the producer's loop counts bits (popc)."""
    for config in DAILY:
        assert not re.findall(r"^\s*(?:popc|bfind|clz|(?:div|rem)\.[su]64)\b.*", built[config].ptx, re.M), config


@pytest.mark.parametrize(
    ("number", "name"), [(number, name) for number in (0, 4) for name in faults(DAILY[number].arch)]
)
def test_a_fault_is_seen(built, number, name):
    config = DAILY[number]
    assert outcome(built[config], faults(config.arch)[name], SIZES[0], "fifo") != "right"


WRONG = [
    ({"kernel": "kernel9"}, "layout nn: nvfp4 is multiplied as nt only; use nt"),
    ({"arch": "sm_90a", "dtype": "e4m3"}, "layout nn: e4m3 is multiplied as nt only; use nt, or dtype=bf16"),
    ({"arch": "sm_90a", "mma_shape": (128, 96)}, "the 96 columns of a CTA must be a multiple of 64; use 128x128"),
    ({"mma_shape": (256, 64)}, "the 32 columns of a CTA must be a multiple of 64; use 256x128"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_has_no_such_layout(options, message):
    with pytest.raises(UsageProblem, match=message):
        make_config(**{"kernel": "kernel8", "layout": "nn", **options})


def test_sizes_and_commands_that_do_not_take_it():
    config = DAILY[0]
    for number, shape, message in (
        (
            0,
            Shape(263, 328, 168, ld=(260, 0, 0)),
            "ld of A 260 is less than the 263 elements of a row, use 263",
        ),
        (0, Shape(263, 328, 168, ld=(268, 0, 0)), "ld of A 268 is not a multiple of 8: .* pad to 272"),
        (6, Shape(264, 328, 168, ld=(0, 0, 330)), "ld of C 330 is not a multiple of 4: .* pad to 332"),
        (3, Shape(263, 328, 165, ld=(0, 336, 0)), "K 165 is not a multiple of 8"),
    ):
        with pytest.raises(Refused, match=message):
            plan_json(DAILY[number], shape)
    with pytest.raises(Refused, match="leading dimensions: e4m3 lies without gaps, leave them out"):
        plan_json(make_config("kernel8", arch="sm_90a", dtype="e4m3"), Shape(256, 256, 256, ld=(0, 0, 512)))
    with pytest.raises(Refused, match=r"M 262 is not a multiple of 8: rows .* pad to 264"):
        parse_plan(plan_json(config, Shape(262, 328, 168)))
    with pytest.raises(UsageProblem, match="layout=tn: the timing model knows K-major A and B only; use layout=nt"):
        simulate(Artifact(config, Path(), False), parse_plan(plan_json(config, Shape(264, 328, 168))), None, 1.0)


def test_explain_says_what_is_dealt_out():
    """A tile of 128 rows of A for 4 CTAs: 32 lines each, the third from the next 64 rows on."""
    plan = parse_plan(plan_json(DAILY[0], Shape(264, 328, 168)))
    text = as_text(plan, 120)
    assert "lines of A" in text and "rows of A" not in text.split("lines of A")[1]
    assert [one.a_rows for one in plan.multicast[::2]] == [(0,), (32,), (64,), (96,)]
    boxes = {argument.name: argument.box for argument in plan.arguments if hasattr(argument, "box")}
    assert boxes["a_map"] == (64, 32) and boxes["b_map"] == (64, 64)
