"""Kernel 6 of sm_90a with one fault planted in its PTX: each must end in a report or a wrong result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kernel_faults import Alteration, outcome, substitute

from harness.compile.config import make_config

SIZE = (256, 256, 7 * 64)
SEEDS = 4
MORE_SEEDS = 30


@pytest.fixture
def told(common) -> Callable[..., str]:
    """What becomes of an altered kernel6 of sm_90a; arguments: alteration, schedule, seed."""
    artifact = common[make_config("kernel6", arch="sm_90a")]
    return lambda alter, *schedule: outcome(artifact, alter, SIZE, *schedule)


def descriptor_of_a(instruction: str) -> Alteration:
    """Every wgmma gets another descriptor of A, which ``instruction`` makes from the right one."""
    pattern = r"(wgmma\.mma_async[^;]*\}, )(%rd\d+), (%rd\d+)([^;]*;)"
    return substitute(pattern, rf"{{ .reg .b64 d; {instruction}; \1 d, \3\4 }}", count=0)


ALWAYS = {
    "no fence": (substitute(r"wgmma\.fence\.sync\.aligned;", ""), "no wgmma.fence.sync.aligned stands between"),
    "no commit": (substitute(r"wgmma\.commit_group\.sync\.aligned;", "", count=0), "a wgmma accumulates in it"),
    "no last wait": (substitute(r"wgmma\.wait_group\.sync\.aligned 0;", ""), "a wgmma accumulates in it"),
    "the last wait leaves one group": (
        substitute(r"(wgmma\.wait_group\.sync\.aligned) 0;", r"\1 1;"),
        "a wgmma accumulates in it",
    ),
    "A one step further": (descriptor_of_a(r"add.s64 d, \2, 2"), ""),
    "A without swizzle": (descriptor_of_a(r"and.b64 d, \2, 4611686018427387903"), ""),
    "A with another stride": (descriptor_of_a(r"xor.b64 d, \2, 412316860416"), ""),
    "registers not given back": (substitute(r"setmaxnreg\.dec[^;]*;", ""), "waits for 72 more registers per thread"),
    "more registers than there are": (
        substitute(r"(setmaxnreg\.inc\.sync\.aligned\.u32) \d+;", r"\1 248;"),
        "waits for 80 more registers per thread",
    ),
    "multicast to the issuer alone": (
        substitute(r"(multicast::cluster[^;]*, )(%rs\d+);", r"{ .reg .b16 m; mov.b16 m, 1; \1m; }", count=0),
        "",
    ),
    "stages never released": (substitute(r"mbarrier\.arrive\.shared::cluster\.b64[^;]*;", "", count=0), "deadlock"),
}
SOMETIMES = {
    "stages released while they are read": substitute(r"wgmma\.wait_group\.sync\.aligned 1;", "", count=0),
    "stages released one group too early": substitute(r"(wgmma\.wait_group\.sync\.aligned) 1;", r"\1 2;", count=0),
    "no commit of the first stage": substitute(r"wgmma\.commit_group\.sync\.aligned;", ""),
    "store before all warps have written": substitute(r"bar\.sync[^;]*;", "", count=0),
    "exit while a store reads": substitute(r"cp\.async\.bulk\.wait_group\.read 0;", ""),
}


def test_unaltered_it_is_right(told):
    assert {told(lambda ptx: ptx, "random", seed) for seed in range(SEEDS)} == {"right"}


@pytest.mark.parametrize("name", ALWAYS)
def test_seen_under_every_schedule(told, name):
    alter, report = ALWAYS[name]
    found = [told(alter, "fifo"), *(told(alter, "random", seed) for seed in range(SEEDS))]
    assert "right" not in found
    assert all(report in text for text in found), found


@pytest.mark.parametrize("name", SOMETIMES)
def test_seen_under_some_schedule(told, name):
    assert any(told(SOMETIMES[name], "random", seed) != "right" for seed in range(MORE_SEEDS))
