"""Kernel 8 with groups of rows that each have their own B: every row by its own, none stored by another group, sizes
that the kernel reads; and faults in all that, which are seen."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from kernel_faults import parameter, substitute
from kernel_runs import plan_of, problem, run

from emugpu.errors import UsageProblem
from emugpu.launch.check import CheckOptions, check
from harness.compile.compiler import Refused
from harness.compile.config import make_config
from harness.problem import Shape, parse_groups

HOPPER, BLACKWELL = {"arch": "sm_90a", "stages": 3}, {"arch": "sm_100a", "stages": 3}
CONFIGS = [
    make_config("kernel8", grouped=True, **options)
    for options in (
        # Two warpgroups, which write a tile during the next; one; in turn. Fewer CTAs than tiles, and more.
        {**HOPPER, "mma_shape": (128, 64), "cluster": (2, 1), "sms": 8},
        {**HOPPER, "mma_shape": (64, 32), "cluster": (1, 2), "sms": 132, "epilogue": "swiglu"},
        {**HOPPER, "mma_shape": (64, 64), "cluster": (1, 1), "sms": 3, "ping_pong": True, "epilogue": "residual",
         "dtype": "fp16", "out_dtype": "f32"},
        # Rows in half of the lanes of tensor memory, or split by columns.
        {**BLACKWELL, "cta_group": 1, "mma_shape": (64, 64), "cluster": (2, 2), "sms": 8, "epilogue": "bias"},
        {**BLACKWELL, "mma_shape": (128, 64), "cluster": (2, 1), "sms": 6},
        {**HOPPER, "mma_shape": (128, 64), "cluster": (2, 1), "sms": 8, "masked": True, "epilogue": "residual"},
        {**BLACKWELL, "cta_group": 1, "mma_shape": (64, 64), "cluster": (2, 2), "sms": 8, "masked": True},
    )
]  # fmt: skip
CONTIGUOUS, MASKED = CONFIGS[:5], CONFIGS[5:]
RAGGED = (40, 0, 0, 130, 1, 77, 0, 16)
ONE_TILE_AND_MORE = (0, 0, 300)
BATCH = (96, 96, 96)


def sized(groups, n: int, k: int):
    return sum(groups), n, k, tuple(groups)


SIZES = (sized(RAGGED, 80, 200), sized(ONE_TILE_AND_MORE, 48, 64), sized(BATCH, 64, 136))


@pytest.mark.parametrize("config", CONTIGUOUS, ids=lambda config: config.label.replace(" ", "_"))
def test_each_row_meets_the_b_of_its_group(built, config):
    kind = "normal" if config.epilogue == "swiglu" else "index" if config.epilogue == "none" else "integer"
    for size, schedule in zip(SIZES, ("random", "fifo", "random"), strict=True):
        counters, validation = run(built[config], size, kind, schedule=schedule, seed=size[0])
        assert validation.mismatches == 0, (size, schedule, validation.first_mismatches[:2])
        bytes_of_c = (4 if config.out_dtype == "f32" else 2) * validation.elements
        assert counters["tma_global_bytes_written"] == bytes_of_c  # each element once


@pytest.mark.parametrize("config", MASKED, ids=lambda config: config.arch)
def test_of_masked_groups_the_first_rows_are_stored_and_no_others(built, config):
    """A row that does not count stays NaN in C: `harness.validation.Matmul`."""
    artifact = built[config]
    for groups, masked, schedule in (
        ((40, 0, 0, 130, 1, 77), 130, "random"),
        ((96, 96), 96, "fifo"),
        ((0, 5), 9, "random"),
    ):
        size = (*sized(groups, 80, 200), (), masked)
        counters, validation = run(artifact, size, "integer", schedule=schedule, seed=masked)
        assert validation.mismatches == 0, (size, validation.first_mismatches[:2])
        assert counters["tma_global_bytes_written"] == 2 * validation.elements == 2 * sum(groups) * 80
    assert findings(artifact, MASKED_FEW, artifact.ptx, schedules=2) == set()


@pytest.mark.parametrize("number", [0, 2, 3], ids=["sm_90a-2x1", "sm_90a-ping-pong", "sm_100a-2x2"])
def test_it_is_sound(built, number):
    artifact = built[CONFIGS[number]]
    assert findings(artifact, SIZES[0], artifact.ptx, schedules=2) == set()


def test_the_sizes_are_read_behind_the_launch_before(built):
    """Which may compute them."""
    ptx = built[CONFIGS[0]].ptx
    assert 0 < ptx.index("griddepcontrol.wait") < ptx.index("ld.global")


def findings(artifact, size, ptx: str, schedules: int = 1) -> set[str]:
    """Rules that are broken; how the run ends, if not with the right result."""
    _, what = problem(artifact, size, "integer")
    [checked] = check([replace(what, text_given=ptx)], CheckOptions(schedules))
    ends = {str(checked.failure)} if checked.failure else {"wrong"} if checked.correct is False else set()
    return {finding.rule for finding in checked.report.errors} | ends


LOAD = r"ld\.global\.u32 (%r\d+), (\[%rd\d+)\];"
STORE = r"(cp\.async\.bulk\.tensor\.3d\.global[^;]*\{%r\d+, )(%r\d+), (%r\d+)(\}[^;]*;)"
INSIDE = r"min\.s32\s+(%r\d+), (%r\d+), 64;"


def load(put: str):
    return substitute(LOAD, rf"ld.global.u32 \1, \2]; {put}", count=0)


def store(put: str):
    return substitute(STORE, put, count=0)


def inside(put: str):
    return substitute(INSIDE, put, count=0)


def first_row_of_b(put: str):
    """put: what is computed in place of the number of the group times N."""

    def alter(ptx: str) -> str:
        n = re.search(rf"ld\.param\S*\s+(%r\d+), \[\S+{parameter('n')}\];", ptx)
        assert n
        return substitute(rf"mul\.lo\.s32\s+(%r\d+), (%r\d+), {n[1]};", put.replace("N", n[1]), count=0)(ptx)

    return alter


def count_of_groups(change: int):
    return substitute(rf"(ld\.param\S*\s+(%r\d+), \[\S+{parameter('groups')}\];)", rf"\1 add.s32 \2, \2, {change};")


def one_role(ptx: str) -> str:
    """The last of the roles has a row more in each group."""
    last = list(re.finditer(LOAD, ptx))[-1]
    return ptx[: last.end()] + f" add.s32 {last[1]}, {last[1]}, 1;" + ptx[last.end() :]


FAULTS = {
    "the size of the next group": substitute(LOAD, r"ld.global.u32 \1, \2+4];", count=0),
    "a group has a row more": load(r"add.s32 \1, \1, 1;"),
    "a group has a row less": load(r"sub.s32 \1, \1, 1; max.s32 \1, \1, 0;"),
    "an empty group has a row": load(r"max.s32 \1, \1, 1;"),
    "one role counts otherwise": one_role,
    "tiles that are not full do not count": substitute(
        r"(ld\.global\.u32[\s\S]{0,240}?selp\.b32\s+%r\d+, )1, 0,", r"\g<1>0, 0,", count=0
    ),
    "the last group is left out": count_of_groups(-1),
    "there is a group more": count_of_groups(1),
    "the B of the group before": first_row_of_b(r"mul.lo.s32 \1, \2, N; sub.s32 \1, \1, N;"),
    "the B of the first group": first_row_of_b(r"mov.b32 \1, 0;"),
    "an empty group has no B": first_row_of_b(r"max.s32 \1, \2, 1; sub.s32 \1, \1, 1; mul.lo.s32 \1, \1, N;"),
    "all rows of a box are stored": inside(r"mov.b32 \1, 64;"),
    "a row too many is stored": inside(r"add.s32 \1, \2, 1; min.s32 \1, \1, 64;"),
    "a row too few is stored": inside(r"sub.s32 \1, \2, 1; min.s32 \1, \1, 64;"),
    "the window begins a row further": store(r"{ .reg .b32 w; add.s32 w, \3, 1; \1\2, w\4 }"),
    "a box begins where its window does": store(r"\g<1>0, \3\4"),
}
SEEN_AS = {
    "the size of the next group": "outside every allocation",
    "there is a group more": "outside every allocation",
    "one role counts otherwise": "Deadlock",
    "all rows of a box are stored": "race-global",
    "a row too many is stored": "race-global",
    "a box begins where its window does": "outside every allocation",  # before C
}
"""A rule, or how the run ends: of the others with a wrong result."""
FEW = sized((40, 0, 0, 70, 1, 0, 16), 72, 64)
MASKED_FEW = (*FEW, (), 72)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("number", [0, 4], ids=["sm_90a", "sm_100a"])
def test_a_fault_is_seen(built, number, name):
    artifact = built[CONFIGS[number]]
    found = findings(artifact, FEW, FAULTS[name](artifact.ptx))
    assert any(SEEN_AS.get(name, "wrong") in each for each in found), found


def rows_apart(put: str):
    """put: what is computed in place of the rows from a group to the next."""
    return substitute(r"div\.u32\s+(%r\d+), (%r\d+), (%r\d+);", rf"div.u32 \1, \2, \3; {put}")


OF_MASKED = {
    "groups are a row closer": rows_apart(r"sub.s32 \1, \1, 1;"),
    "groups are a row further apart": rows_apart(r"add.s32 \1, \1, 1;"),
    "groups lie one after the other": rows_apart(r"mov.b32 \1, 0;"),
    "all rows of a group are stored": load(r"mov.b32 \1, 72;"),
    "a group has a row more": FAULTS["a group has a row more"],
    "all rows of a box are stored": FAULTS["all rows of a box are stored"],
    "the window begins a row further": FAULTS["the window begins a row further"],
}


@pytest.mark.parametrize("name", OF_MASKED)
@pytest.mark.parametrize("config", MASKED, ids=lambda config: config.arch)
def test_a_fault_of_masked_groups_is_seen(built, config, name):
    artifact = built[config]
    assert findings(artifact, MASKED_FEW, OF_MASKED[name](artifact.ptx))


WRONG = [
    ({"kernel": "kernel7"}, "groups: kernel7 multiplies one A and one B; use kernel8"),
    (
        {"arch": "sm_100a", "scheduler": "clc"},
        "scheduler clc: with groups a cluster has a fixed list of tiles; use static",
    ),
    ({"dtype": "e4m3"}, "dtype e4m3: with groups A and B have 16 bits; use bf16"),
    ({"layout": "nn"}, "layout nn: with groups A is [M, K] and each B [N, K]; use nt"),
    ({"split_k": 2}, "split k 2: with groups a CTA adds up all of K; use 1"),
    ({"masked": True, "out_dtype": "e4m3"}, "out dtype e4m3: not with masked groups"),
    ({"swapped": True, "mma_shape": (128, 64)}, "swapped: with groups rows of A lie along the MMA's M"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_has_no_groups(options, message):
    with pytest.raises(UsageProblem, match=re.escape(message)):
        make_config(**{"kernel": "kernel8", "arch": "sm_90a", "grouped": True, **options})


def test_a_problem_is_grouped_as_its_kernel_is(built):
    with pytest.raises(Refused, match="the problem has 0 groups, and the kernel is compiled for 1 to 1024"):
        plan_of(built[CONFIGS[0]], (64, 64, 64))


def test_groups_that_do_not_fit():
    assert parse_groups(" 40, 0,1") == (40, 0, 1)
    with pytest.raises(UsageProblem, match="'4,-1' are not rows of A"):
        parse_groups("4,-1")
    with pytest.raises(UsageProblem, match="groups 40,2: their rows add up to 42, not to M=40; use --shape 42,64,64"):
        Shape(40, 64, 64, (40, 2))
    with pytest.raises(UsageProblem, match="masked 39: a group has 40 rows; use 40"):
        Shape(42, 64, 64, (40, 2), (), 39)
    with pytest.raises(UsageProblem, match="masked 39: only groups are masked; name the rows of each, with groups"):
        Shape(42, 64, 64, masked=39)
    with pytest.raises(UsageProblem, match="there are 1025 groups, and a launch has at most 1024"):
        Shape(1025, 64, 64, (1,) * 1025)
