"""Kernel 8 with split-K: right and the same bit for bit in every order of events, from one launch to the next; and
faults in how the parts of a tile are handed over, which the checker sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_faults import substitute
from kernel_runs import plan_of, problem, run

from emugpu.errors import CannotRun, UsageProblem
from emugpu.launch.check import CheckOptions, check
from emugpu.launch.launching import EmulationOptions
from emugpu.launch.launching import run as launch
from harness.compile.artifacts import OUTPUT
from harness.compile.compiler import Refused
from harness.compile.config import make_config

HOPPER, BLACKWELL = {"arch": "sm_90a"}, {"arch": "sm_100a", "stages": 2}
F32 = {"dtype": "e4m3", "out_dtype": "f32"}
OPTIONS = (
    # Two warpgroups, one; a fixed list, a counter, a cluster for each part; fewer parts than CTAs and more.
    {**HOPPER, "mma_shape": (128, 64), "cluster": (1, 1), "sms": 4, "stages": 3, "split_k": 3},
    {**HOPPER, "mma_shape": (64, 64), "cluster": (2, 1), "sms": 8, "stages": 2, "scheduler": "dynamic", "split_k": 2},
    {**HOPPER, "mma_shape": (256, 32), "cluster": (1, 2), "scheduler": "none", "stages": 2, "split_k": 4},
    {**HOPPER, "mma_shape": (64, 64), "cluster": (1, 1), "stages": 2, "split_k": 5, "epilogue": "swiglu"},
    {**HOPPER, "mma_shape": (64, 32), "cluster": (1, 1), "stages": 2, "split_k": 2, **F32},
    # Rows in all lanes of tensor memory, in half of them, or split by columns.
    {**BLACKWELL, "cta_group": 1, "mma_shape": (128, 64), "cluster": (1, 2), "split_k": 2},
    {**BLACKWELL, "cta_group": 1, "mma_shape": (64, 64), "cluster": (1, 1), "split_k": 3, "epilogue": "bias"},
    {**BLACKWELL, "mma_shape": (128, 64), "cluster": (2, 1), "split_k": 3, "scheduler": "static", "sms": 6},
)  # fmt: skip
CONFIGS = [make_config("kernel8", **options) for options in OPTIONS]
SIZES = ((200, 144, 7 * 64 - 16), (17, 80, 9 * 64))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label.replace(" ", "_"))
def test_every_part_counts_once(built, config):
    """That all counters are left at 0 is part of every run."""
    kind = "index" if config.epilogue != "swiglu" else "normal"
    size = (SIZES[0][0], SIZES[0][1], SIZES[0][2] + (16 if config.dtype == "e4m3" else 0))
    k_step = 128 if config.dtype == "e4m3" else 64
    small = (SIZES[1][0], SIZES[1][1], k_step * config.split_k)
    for shape, schedule, seed in ((size, "random", 1), (small, "fifo", 0)):
        counters, validation = run(built[config], shape, kind, schedule=schedule, seed=seed)
        assert validation.mismatches == 0, (shape, schedule, validation.first_mismatches[:2])
        assert counters["ctas"] > 0


@pytest.mark.parametrize("number", [0, 7], ids=["sm_90a", "sm_100a"])
def test_the_bits_do_not_depend_on_the_order(built, number):
    """Of inputs whose sums are rounded: launched twice, with what the first launch left in the workspace."""
    artifact = built[CONFIGS[number]]
    _, what = problem(artifact, SIZES[0], "normal")
    what = replace(what, launches=what.launches * 2)
    found = [
        launch(what, EmulationOptions(schedule=schedule, seed=seed), keep=(OUTPUT,)).contents[OUTPUT]
        for schedule, seed in (("fifo", 0), ("random", 1), ("random", 2))
    ]
    assert np.isfinite(found[0].astype(np.float32)).all()
    assert all(other.tobytes() == found[0].tobytes() for other in found[1:])


ARRIVE = r"atom\.acq_rel\.gpu\.global\.inc\.u32 (%r\d+), (\[%rd\d+\]), (%r\d+);"
STORE = r"st\.global\.v4\.f32 \[%rd\d+\+\d+\], \{[^}]*\};"
BARRIER = r"bar\.sync\s+(?:%r\d+|1), 128;"


def arrival(put: str):
    return substitute(ARRIVE, put)


def stored_late(ptx: str) -> str:
    """The last partial sums are stored behind the second barrier."""
    return substitute(rf"({STORE})((?:(?!{STORE})[\s\S])*?atom\.acq_rel[\s\S]*?{BARRIER})", r"\2 \1")(ptx)


FAULTS = {
    "the arrival orders nothing": arrival(r"atom.relaxed.gpu.global.inc.u32 \1, \2, \3;"),
    "it does not release": arrival(r"atom.acquire.gpu.global.inc.u32 \1, \2, \3;"),
    "it does not acquire": arrival(r"atom.release.gpu.global.inc.u32 \1, \2, \3;"),
    "its scope is the CTA": arrival(r"atom.acq_rel.cta.global.inc.u32 \1, \2, \3;"),
    "its scope is the cluster": arrival(r"atom.acq_rel.cluster.global.inc.u32 \1, \2, \3;"),
    "a fence of the CTA in place of its order": arrival(
        r"fence.acq_rel.cta; atom.relaxed.gpu.global.inc.u32 \1, \2, \3; fence.acq_rel.cta;"
    ),
    "it comes before the team has met": substitute(rf"{BARRIER}([\s\S]{{0,700}}?atom\.acq_rel)", r"\1"),
    "nobody waits for it": substitute(rf"(atom\.acq_rel[\s\S]{{0,600}}?){BARRIER}", r"\1"),
    "a part is stored behind it": stored_late,
    "the last but one adds": arrival(r"{ .reg .b32 n; atom.acq_rel.gpu.global.inc.u32 n, \2, \3; add.u32 \1, n, 1; }"),
    "the first adds": arrival(r"{ .reg .b32 n; atom.acq_rel.gpu.global.inc.u32 n, \2, \3; sub.u32 \1, \3, n; }"),
    "everybody adds": arrival(r"atom.acq_rel.gpu.global.inc.u32 \1, \2, \3; mov.u32 \1, \3;"),
    "it wraps too early": arrival(
        r"{ .reg .b32 n; sub.u32 n, \3, 1; atom.acq_rel.gpu.global.inc.u32 \1, \2, n; add.u32 \1, \1, 1; }"
    ),
    "a fence of the GPU in front of it alone": arrival(
        r"fence.acq_rel.gpu; atom.relaxed.gpu.global.inc.u32 \1, \2, \3;"
    ),
    "a fence of the GPU behind it alone": arrival(r"atom.relaxed.gpu.global.inc.u32 \1, \2, \3; fence.acq_rel.gpu;"),
    "one CTA puts its number there": arrival(
        r"{ .reg .pred p; setp.eq.u32 p, %ctaid.x, 0; atom.acq_rel.gpu.global.inc.u32 \1, \2, \3;"
        r" @p atom.relaxed.gpu.global.exch.b32 \1, \2, \3; }"
    ),
    "the counter is not given back": arrival(r"atom.acq_rel.gpu.global.add.u32 \1, \2, 1;"),
}
SEEN_AS = {
    "a fence of the CTA in place of its order": "scope",
    "nobody waits for it": "memory",  # what the counter held is read before it is there
    "the counter is not given back": "wrong",  # of two launches
}
"""The rule that a fault breaks: of the others race-global."""
ONE_TILE = (100, 64, 3 * 64)


def findings(artifact, size, ptx: str, launches: int = 1) -> set[str]:
    """Rules that the checker finds broken in two schedules; how the run ends, if not with the right result."""
    _, what = problem(artifact, size, "index")
    what = replace(what, text_given=ptx, launches=what.launches * launches)
    [checked] = check([what], CheckOptions(schedules=2))
    ends = {str(checked.failure)} if checked.failure else {"wrong"} if checked.correct is False else set()
    return {finding.rule for finding in checked.report.errors} | ends


@pytest.mark.parametrize("number", [0, 1, 5], ids=["sm_90a", "sm_90a-dynamic", "sm_100a"])
def test_the_hand_over_is_sound(built, number):
    artifact = built[CONFIGS[number]]
    assert findings(artifact, SIZES[0], artifact.ptx) == set()
    assert findings(artifact, ONE_TILE, artifact.ptx, launches=2) == set()


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("number", [0, 5], ids=["sm_90a", "sm_100a"])
def test_the_checker_sees_a_fault(built, number, name):
    artifact = built[CONFIGS[number]]
    found = findings(artifact, ONE_TILE, FAULTS[name](artifact.ptx), launches=2)
    assert SEEN_AS.get(name, "race-global") in found, found


def test_fences_on_both_sides_order_as_much(built):
    artifact = built[CONFIGS[0]]
    both = arrival(r"fence.acq_rel.gpu; atom.relaxed.gpu.global.inc.u32 \1, \2, \3; fence.acq_rel.gpu;")
    assert findings(artifact, ONE_TILE, both(artifact.ptx), launches=2) == set()


def test_a_counter_that_is_not_given_back_is_reported(built):
    artifact = built[CONFIGS[0]]
    with pytest.raises(CannotRun, match="argument workspace: the kernel left 3 in counter 1, not 0"):
        run(artifact, ONE_TILE, "index", ptx=FAULTS["the counter is not given back"](artifact.ptx))


WRONG = [
    ({"split_k": 17}, "split k 17 is not one of 1 to 16; use 16 or 15"),
    ({"split_k": 2, "mma_shape": (128, 128), "ping_pong": True}, "with ping-pong a warpgroup adds up all of K"),
    ({"split_k": 2, "dtype": "e4m3", "scales": "block"}, "with scales block a CTA adds up all of K"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_does_not_split(options, message):
    with pytest.raises(UsageProblem, match=message):
        make_config("kernel8", arch="sm_90a", **options)


def test_only_kernel_8_splits():
    with pytest.raises(UsageProblem, match="split k 2: kernel7 multiplies all of K; use kernel8, or leave out split_k"):
        make_config("kernel7", split_k=2)


def test_more_parts_than_k_steps(built):
    with pytest.raises(Refused, match="split k 3: K 128 has only 2 K steps of 64, use at most 2"):
        plan_of(built[CONFIGS[0]], (64, 64, 128))
