"""Which loads wait for DRAM: by the panel, and by the round of tiles that a cluster is at."""

from __future__ import annotations

import pytest

from harness.compiler.build import build
from harness.config.presets import make_config
from harness.problem.shape import Shape
from harness.timing.constants import find_gpu
from harness.timing.first_use import FirstUse
from harness.timing.gemm import Gemm
from harness.timing.simulate import simulate

A, B = 1 << 40, 2 << 40
TOGETHER = 0.6
ROUNDS = [
    {("A", 0): 1.0, ("A", 1): 1.0, ("B", 0): 1.0},
    {("A", 0): 0.0, ("A", 1): 0.5, ("B", 1): 1.0},
    {("A", 0): 0.0, ("A", 2): 1.0, ("B", 1): 0.0},
]
ROUND_OF = (0, 0, 1, 1, 2, 2)


def first_use() -> FirstUse:
    return FirstUse(ROUNDS, {A: ("A", 128), B: ("B", 256)}, ROUND_OF, TOGETHER)


@pytest.mark.parametrize(
    ("address", "row", "cluster", "new"),
    [
        (A, 0, 0, 1.0),
        (A, 127, 2, 0.0),
        (A, 128, 1, 1.0),
        (A, 128 + 64, 3, 0.5),
        (B, 255, 0, 1.0),
        (B, 256, 2, 1.0),
        (B, 256, 4, 0.0),
    ],
)
def test_a_panel_waits_as_far_as_it_is_new_in_the_round_of_the_cluster(address, row, cluster, new):
    assert first_use().waits(address, 0, row, cluster, 0) == pytest.approx(TOGETHER * new)


def test_a_panel_of_no_simulated_tile_waits_as_the_others_of_its_round():
    assert first_use().waits(A, 0, 5 * 128, 2, 0) == pytest.approx(TOGETHER * (0.0 + 0.5) / 2)


def test_a_cluster_that_walks_on_comes_to_the_next_round_when_k_begins_anew():
    found = first_use()
    parts = [found.waits(A, k, 0, 0, 0) for k in (0, 0, 64, 128, 0, 64, 64)]
    assert parts == pytest.approx([TOGETHER] * 4 + [0.0] * 3)
    assert found.waits(A, 0, 0, 0, 1) == TOGETHER, "the other CTA of the cluster is still at its first tile"
    assert found.waits(B, 0, 0, 0, 0) == TOGETHER, "and of B nothing has been loaded yet"


def test_there_is_no_round_after_the_last():
    found = first_use()
    for k in (0, 64, 0, 64, 0):
        part = found.waits(A, k, 256, 4, 0)
    assert part == TOGETHER


@pytest.fixture(scope="module")
def artifact():
    """A cluster of two computes 256 x 256; a ring of two stages shows each wait."""
    [found] = build([make_config("kernel7", arch="sm_90a", stages=2)])
    return found


def test_tiles_below_c_belong_to_no_round_of_their_own(artifact):
    """Two bands of two rows of clusters, of which the last row lies below C."""
    gpu = find_gpu("h200")
    gemm = Gemm(artifact.plan(Shape(3 * 256, 256 * 60, 64)), gpu)
    rounds = gemm.rounds(66)
    inside = [round_ for number, round_ in enumerate(rounds) if gemm.place(number)[0] < 3]
    assert len(rounds) == gemm.tiles and inside == [n // 66 for n in range(180)]


def test_rounds_that_find_their_rows_in_l2_are_shorter(artifact):
    """C of 14 x 15 tiles in bands of 7 rows, 66 at a time: the third round needs nothing that was not loaded before."""
    gpu = find_gpu("h200")
    found = simulate(artifact, artifact.plan(Shape(3584, 3840, 576)), gpu, 1.8e9)
    lives = sorted((life.cluster // 66, life.end - life.start) for sm in found.machine.sms for life in sm.lives)
    longest = [max(cycles for turn, cycles in lives if turn == number) for number in range(4)]
    latency = gpu["dram.latency"] * 1.8e9 * gpu["l2.together"]
    assert longest[0] > longest[1] > longest[2] + 5 * latency, "9 K steps, of which some wait"
    assert longest[3] <= longest[2] * 1.02
