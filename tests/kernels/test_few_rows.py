"""The kernel for few rows of A: every element for 1 to 16 rows, all types and epilogues, and what a fault becomes."""

from __future__ import annotations

from dataclasses import replace

import kernel_runs
import pytest
from kernel_faults import outcome, substitute

from emugpu.errors import CannotRun, UsageProblem
from emugpu.launch.check import CheckOptions, check, judge
from harness.compile.config import make_config
from harness.launch.configure import AUTO, configuration
from harness.problem import Shape

CONFIGS = [
    make_config("rows", **options)
    for options in (
        {"arch": "sm_90a", "mma_shape": (8, 32), "stages": 2, "split_k": 8},
        {"arch": "sm_90a", "mma_shape": (16, 40), "stages": 1, "split_k": 3, "dtype": "fp16"},
        {"arch": "sm_100a", "mma_shape": (16, 16), "stages": 4, "split_k": 2},
        {"arch": "sm_90a", "mma_shape": (16, 64), "stages": 2, "split_k": 16, "out_dtype": "f32"},
        {"arch": "sm_90a", "mma_shape": (8, 64), "stages": 1, "split_k": 1, "dtype": "e4m3"},
        {"arch": "sm_90a", "mma_shape": (16, 24), "stages": 1, "split_k": 2, "epilogue": "residual"},
        {"arch": "sm_100a", "mma_shape": (8, 32), "stages": 1, "split_k": 2, "epilogue": "bias", "dtype": "fp16"},
        {"arch": "sm_90a", "mma_shape": (16, 48), "stages": 2, "split_k": 16, "epilogue": "swiglu", "out_dtype": "f32"},
    )
]
USUAL = CONFIGS[0]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label.replace(" ", "_"))
@pytest.mark.parametrize("kind", ["index", "integer"])
def test_every_element_is_where_it_belongs(built, config, kind):
    """N and K that are multiples of 8 or 16 only, where rows of B and steps of K are left over; and whole ones."""
    pairs, bytes_of_k = config.epilogue == "swiglu", 2 if config.dtype == "e4m3" else 1
    for m in range(1, 17) if config in CONFIGS[:2] else (1, 7, 8, 11, 16, 21):
        size = (m, 8 * (m + 12) * (2 if pairs else 1), bytes_of_k * 8 * (37 * m % 65 + 1))
        schedule = "fifo" if m % 2 else "random"
        _, validation = kernel_runs.run(built[config], size, kind, schedule=schedule, seed=m)
        assert validation.mismatches == 0, (size, validation.first_mismatches[:2])
        assert validation.exact != pairs


@pytest.mark.parametrize("config", CONFIGS[:3], ids=lambda config: config.label.replace(" ", "_"))
def test_rows_may_lie_further_apart(built, config):
    size = (11, 72, 200, (), (216, 208, 80))
    assert kernel_runs.plan_of(built[config], size).problem.ld == (216, 208, 80)
    _, validation = kernel_runs.run(built[config], size, "integer")
    assert validation.passed and validation.exact
    with pytest.raises(CannotRun, match="K 204 is not a multiple of 8: rows must be a multiple of 16 bytes"):
        kernel_runs.plan_of(built[config], (11, 72, 204, (), (216, 208, 80)))
    with pytest.raises(CannotRun, match="a row of A, B or C takes 1073741840 bytes, and rows reads 1 GB at most"):
        kernel_runs.plan_of(built[config], (11, 72, (1 << 29) + 8))


@pytest.mark.parametrize("config", CONFIGS[:4], ids=lambda config: config.label.replace(" ", "_"))
def test_its_synchronisation_is_sound(built, config):
    _, what = kernel_runs.problem(built[config], (13, 136, 712), "integer")
    [checked] = check([what], CheckOptions(schedules=4))
    assert not judge(what, checked).reasons


def test_it_reads_nothing_before_the_launch_in_front_of_it_ends(built):
    """Which may have written A or B. It only prefetches B into L2."""
    ptx = built[USUAL].ptx
    assert ptx.index("prefetch.global.L2") < ptx.rindex("griddepcontrol.wait") < ptx.index("ld.global")


def test_without_its_barrier_it_races(built):
    _, what = kernel_runs.problem(built[USUAL], (8, 64, 520), "integer")
    racing = substitute(r"bar\.sync\s+0;", "")(built[USUAL].ptx)
    for text, sound in ((built[USUAL].ptx, True), (racing, False)):
        [checked] = check([replace(what, text_given=text)], CheckOptions(schedules=1))
        assert bool(checked.report.errors) != sound


FAULTS = {
    "another part of K of B": substitute(r"(ld\.global\.L1::no_allocate[^;]*\+)64\]", r"\g<1>48]", count=0),
    "another part of K of A": substitute(r"(ld\.global\.v4[^;]*\+)64\]", r"\g<1>48]", count=0),
    "the end of K is ignored": substitute(r"@%p\d+ (ld\.global)", r"\1", count=0),
    "warps do not pass on the sums of 8 columns": substitute(r"st\.shared\.v4\.f32 [^;]*;", ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen(built, name):
    assert outcome(built[USUAL], lambda ptx: ptx, (8, 64, 520), "fifo") == "right"
    assert outcome(built[USUAL], FAULTS[name], (8, 64, 520), "fifo") != "right"


def test_the_tile_follows_from_the_problem_unless_it_is_asked_for():
    chosen = [
        make_config("rows", arch="sm_90a", shape=shape, **options)
        for shape, options in (
            (Shape(1, 4096, 4096), {}),
            (Shape(8, 5120, 5120), {}),
            (Shape(8, 5120, 5120), {"epilogue": "swiglu"}),
            (Shape(9, 6144, 4096), {}),
            (Shape(9, 6144, 4096), {"split_k": 4}),
            (Shape(8, 28672, 4096), {}),
            (Shape(8, 28672, 4096), {"mma_shape": (8, 64)}),
        )
    ]
    assert [one.mma_shape for one in chosen] == [(8, 32), (8, 40), (8, 48), (16, 48), (16, 48), (8, 32), (8, 64)]
    assert [one.stages for one in chosen] == [2, 2, 2, 2, 2, 2, 1]
    assert [one.split_k for one in chosen] == [16, 16, 16, 16, 4, 8, 8]


BF16 = {"dtype": "bf16"}
CALLS = [
    (Shape(8, 264, 520), BF16, "rows"),
    (Shape(8, 264, 520), BF16 | {"epilogue": "swiglu", "out_dtype": "f32"}, "rows"),
    (Shape(8, 264, 528), {"dtype": "e4m3", "scales": "tensor"}, "rows"),
    (Shape(8, 264, 528), {"dtype": "e4m3", "scales": "block"}, "kernel8"),
    (Shape(8, 256, 520), BF16 | {"out_dtype": "e4m3"}, "kernel8"),
    (Shape(8, 264, 520), BF16 | {"layout": "nn"}, "kernel8"),
    (Shape(8, 264, 520), BF16 | {"cluster": (1, 1)}, "kernel8"),
    (Shape(8, 264, 516, ld=(520, 520, 264)), BF16, "kernel8"),
    (Shape(8, 264, 520, ld=(520, (1 << 28) + 8, 264)), BF16, "kernel8"),
    (Shape(8, 264, (1 << 28) + 8), BF16, "kernel8"),
    (Shape(8, 264, 1 << 28), BF16, "rows"),
    (Shape(8, 264, 520, groups=(5, 3)), BF16, "kernel8"),
    (Shape(8, 6336, 520), BF16, "rows"),
    (Shape(8, 6344, 520), BF16, "kernel8"),
    (Shape(9, 264, 520), BF16, "kernel8"),
]


@pytest.mark.parametrize(("shape", "asked", "kernel"), CALLS)
def test_which_calls_of_pytorch_it_serves(shape, asked, kernel):
    assert configuration(AUTO, "sm_90a", "nvidia-h200", shape, tuned=False, asked=asked).kernel == kernel


WRONG = [
    ({"mma_shape": (8, 72)}, "mma shape 8x72: a multiple of 8 rows of B a CTA, up to 64"),
    ({"mma_shape": (8, 24), "epilogue": "swiglu"}, "mma shape 8x24: a multiple of 16 rows of B a CTA, up to 64"),
    ({"mma_shape": (64, 16)}, "mma shape 64x16: rows has 8 or 16 rows of A a CTA"),
    ({"mma_shape": (8, 64), "stages": 3}, "stages 3: rows loads 1 to 2 times before it multiplies 64 rows of B; use"),
    ({"split_k": 17}, "split k 17: rows has 1 to 16 warps a CTA; use"),
    ({"cluster": (2, 1)}, "cluster 2x1: rows has no clusters and no TMA; use kernel5, or leave out cluster"),
    ({"swapped": True}, "swapped: rows has no clusters and no TMA; use kernel8, or leave out swapped"),
    ({"multicast": False}, "multicast=false: rows has no clusters and no TMA"),
    ({"layout": "nn"}, r"layout nn: rows reads A as \[M, K\] and B as \[N, K\]; use kernel5, or leave out layout"),
    ({"scheduler": "static"}, "scheduler static: rows computes one tile a CTA, at its place in the grid"),
    ({"out_dtype": "e4m3"}, "out dtype e4m3: not with rows; use kernel"),
    ({"dtype": "e4m3", "scales": "block"}, "scales block: rows has one factor for all of C; use tensor"),
    ({"dtype": "e4m3", "epilogue": "bias"}, "epilogue bias: not with e4m3, which is multiplied by alpha"),
    ({"dtype": "e4m3", "arch": "sm_100a"}, "dtype e4m3: rows multiplies it on sm_90a; use"),
    ({"grouped": True}, "groups: rows multiplies one A and one B"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_it_refuses(options, message):
    with pytest.raises(UsageProblem, match=message):
        make_config("rows", **{"arch": "sm_90a", **options})


def test_its_name_says_how_many_warps_and_which_epilogue():
    given = [{}, {"split_k": 4}, {"epilogue": "bias"}]
    labels = [make_config("rows", arch="sm_90a", mma_shape=(8, 32), **options).label for options in given]
    assert [label.partition("epilogue 16")[2] for label in labels] == [
        " split-K 8",
        " split-K 4",
        " split-K 8 with bias",
    ]
