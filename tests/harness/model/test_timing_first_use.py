"""Which loads wait for DRAM: by the panel, and by the wave that a cluster is at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from emugpu.emulator.memory.tensor_map import TensorMap
from harness.compile.artifacts import build
from harness.compile.config import make_config
from harness.model.cache import hits
from harness.model.constants import find_gpu
from harness.model.first_use import FirstUse
from harness.model.gemm import Gemm, _spread_out
from harness.model.simulate import simulate
from harness.model.units import MemorySystem, Sm, Units
from harness.problem import Shape

A, B = 1 << 40, 2 << 40
ROUNDS = [
    {("A", 0): 1.0, ("A", 1): 1.0, ("B", 0): 1.0},
    {("A", 0): 0.0, ("A", 1): 0.5, ("B", 1): 1.0},
    {("A", 0): 0.0, ("A", 2): 1.0, ("B", 1): 0.0},
]
ROUND_OF = {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 2}
FIRST_USE = FirstUse(ROUNDS, {A: ("A", 128), B: ("B", 256)}, ROUND_OF)
GPU = find_gpu("h200")
CLOCK = 1.8e9


@pytest.mark.parametrize(
    ("address", "row", "cluster", "turn", "new"),
    [
        (A, 0, 0, 0, 1.0),
        (A, 127, 2, 0, 0.0),
        (A, 128, 1, 0, 1.0),
        (A, 128 + 64, 3, 0, 0.5),
        (B, 255, 0, 0, 1.0),
        (B, 256, 2, 0, 1.0),
        (B, 256, 4, 0, 0.0),
        (A, 128, 1, 1, 0.5),
        (B, 256, 1, 2, 0.0),
    ],
)
def test_a_panel_is_new_or_not_in_the_round_that_its_cluster_is_at(address, row, cluster, turn, new):
    assert FIRST_USE.new(address, row, FIRST_USE.wave(cluster, turn)) == new


def test_a_panel_of_no_tile_of_the_round_is_as_new_as_the_others():
    assert FIRST_USE.new(A, 5 * 128, 1) == (0.0 + 0.5) / 2


def test_there_is_no_round_after_the_last():
    assert FIRST_USE.wave(4, 7) == 2


def load(made: Units, k: int, cluster: int = 0, rank: int = 0, address: int = A) -> float:
    """Cycles until a box is there; nothing else is asked for."""
    sm = Sm()
    sm.maps.add(id(MAPS[address]))
    cta: Any = SimpleNamespace(cluster=SimpleNamespace(number=cluster), rank=rank)
    box = SimpleNamespace(tmap=MAPS[address], coordinates=(k, 0), routes=range(1))
    made.descriptors.add((cluster, rank, id(MAPS[address])))
    at = made.memory.l2.free + 1e5
    return made.take(made.tma_load(at, box, 0, cta, sm), box, sm) - at


MAPS = {address: TensorMap.tiled(address, "bf16", (512, 512), (64, 64), "128B") for address in (A, B)}


def units() -> Units:
    gpu = GPU.with_values({"l2.spread": 0, "l2.wait": 0})
    return Units(gpu, MemorySystem(1.0, CLOCK, miss=0.0, waits=0.6, first_use=FIRST_USE))


def test_a_cluster_that_walks_on_comes_to_the_next_round_when_k_begins_anew():
    made = units()
    waited = [load(made, k) for k in (0, 0, 64, 128, 0, 64, 64)]
    there, wait = waited[-1], 0.6 * GPU["dram.latency"] * CLOCK
    assert waited == pytest.approx([there + wait] * 4 + [there] * 3)
    assert load(made, 0, rank=1) == pytest.approx(there + wait), "the other CTA of the cluster is at its first tile"
    assert load(made, 0, address=B) == pytest.approx(there + wait), "and of B nothing has been loaded yet"
    again = Units(made.gpu, made.memory.fresh())
    assert load(again, 0) == pytest.approx(there + wait), "the next launch begins in the first wave"


@pytest.mark.parametrize(
    ("columns", "fetched", "came"),
    [
        (512, 256, [False, True, False, True]),  # rows begin with every 256 bytes: two K steps at once
        (512 + 64, 256, [False] * 4),  # every other row begins in the middle of them
        (512 + 8, 256, [False] * 4),
        (512, 128, [False] * 4),
    ],
)
def test_what_l2_fetches_at_once_may_bring_the_next_k_step(columns, fetched, came):
    first_use = FirstUse(ROUNDS, {A: ("A", 128)}, ROUND_OF, {A: fetched})
    gpu = GPU.with_values({"l2.spread": 0, "l2.wait": 0})
    made = Units(gpu, MemorySystem(1.0, CLOCK, miss=0.0, waits=0.6, first_use=first_use))
    cta: Any = SimpleNamespace(cluster=SimpleNamespace(number=0), rank=0)
    tmap = TensorMap.tiled(A, "bf16", (512, columns), (64, 64), "128B")
    boxes = [SimpleNamespace(tmap=tmap, coordinates=(64 * n, 0), routes=range(1)) for n in range(4)]
    made.descriptors.add((0, 0, id(tmap)))
    arrives = [made.tma_load(1e5 * n, box, 0, cta, Sm()) - 1e5 * n for n, box in enumerate(boxes)]
    wait = 0.6 * GPU["dram.latency"] * CLOCK * (1 if columns % 64 == 0 else GPU["l2.together_split"])
    assert [first_use.came_before(tmap, 64 * n) for n in range(4)] == came
    assert [arrives[0] - each > wait / 2 for each in arrives] == came
    assert arrives[0] - min(arrives) == pytest.approx(wait if any(came) else 0.0, abs=1e-6)


def test_what_lies_outside_is_filled_at_the_rate_of_the_round():
    """Of what all boxes of the first wave have outside the simulated ones have all, of those of the second a tenth."""
    gpu = GPU.with_values({"l2.spread": 0, "l2.wait": 0})
    made = Units(gpu, MemorySystem(1.0, CLOCK, miss=0.0, outside=(1.0, 0.1, 1.0), first_use=FIRST_USE))
    tmap = TensorMap.tiled(A, "bf16", (512 - 16, 512), (64, 64), "128B")
    filled = 16 * 64 * 2 / (GPU["l2.fill_bandwidth"] / CLOCK)
    for cluster, cycles in ((0, filled), (2, 10 * filled), (4, filled)):
        before = made.memory.fill.busy
        cta: Any = SimpleNamespace(cluster=SimpleNamespace(number=cluster), rank=0)
        made.tma_load(0.0, SimpleNamespace(tmap=tmap, coordinates=(0, 512 - 64), routes=range(1)), 0, cta, Sm())
        assert made.memory.fill.busy - before == pytest.approx(cycles)


@pytest.fixture(scope="module")
def artifact():
    """A cluster of two computes 256 x 256; a ring of two stages shows each wait."""
    [found] = build([make_config("kernel7", arch="sm_90a", stages=2)])
    return found


def test_clusters_below_c_are_not_simulated(artifact):
    """11 rows of clusters in two bands of six: the last row of the second band lies below C."""
    plan = artifact.plan(Shape(11 * 256, 4096, 64))
    assert plan.grid == (6 * 2, 16, 2)
    gemm = Gemm(plan, GPU)
    assert (gemm.tiles, gemm.clusters) == (11 * 16, 12 * 16)
    below = [(16 + column) * 6 + 5 for column in range(16)]
    assert sorted({*range(gemm.clusters)} - {*gemm.numbers}) == below
    waves = gemm.waves(66)
    assert list(waves) == gemm.numbers
    assert list(waves.values()) == [n // 66 for n in range(gemm.tiles)]
    assert len(hits(gemm.traffic(), 66, 1e9).waves) == 3
    assert not {*gemm.spread().numbers} & {*below}


def test_the_simulated_part_of_what_tiles_have_is_that_of_their_round(artifact):
    """140 tiles, 132 at a time: of the 8 in the last wave rather too many are simulated than too few."""
    gemm = Gemm(artifact.plan(Shape(14 * 256, 10 * 256, 4096)), GPU)
    spread = gemm.spread()
    assert [sum(number // 132 == turn for number in spread.numbers) for turn in range(2)] == [spread.slots, 1]
    assert 1 < spread.slots < 132 / 8
    assert gemm.parts(spread, lambda number: 1.0) == pytest.approx([spread.share, 1 / 8])
    only_last = gemm.parts(spread, lambda number: float(number >= 132))
    assert only_last == pytest.approx([spread.share, 1 / 8]), "where no tile has any, the part of all"


@pytest.mark.parametrize(("count", "total", "last"), [(5, 30, 2), (8, 264, 48), (62, 66, 3), (20, 66, 0), (1, 66, 65)])
def test_simulated_clusters_are_spread_over_a_round(count, total, last):
    places = _spread_out(count, total, last)
    assert len(places) == count and places[0] == 0
    assert all(n * total // count <= place < (n + 1) * total // count for n, place in enumerate(places))
    assert sum(place < last for place in places) >= last * count / total
    assert count < 5 or count > total / 2 or {place % 2 for place in places} == {0, 1}


@pytest.mark.slow
def test_a_round_more_takes_longer_beside_clusters_below_c(artifact):
    """13 rows of clusters in bands of seven, 16 columns: 208 tiles, 66 at a time, in four waves as those of 14."""
    shapes = [Shape(rows * 256, 4096, 512) for rows in (13, 14)]
    ragged, whole = (simulate(artifact, artifact.plan(shape), GPU, CLOCK).cycles for shape in shapes)
    assert ragged == pytest.approx(whole, rel=0.03)


@pytest.mark.slow
def test_rounds_that_find_their_rows_in_l2_are_shorter(artifact):
    """C of 14 x 15 tiles in bands of 7 rows, 66 at a time: the third wave needs nothing that was not loaded before."""
    found = simulate(artifact, artifact.plan(Shape(3584, 3840, 576)), GPU, CLOCK)
    lives = [(life.cluster // 66, life.end - life.start) for sm in found.machine.sms for life in sm.lives]
    longest = [max(cycles for turn, cycles in lives if turn == number) for number in range(4)]
    latency = GPU["dram.latency"] * CLOCK * GPU["l2.together"]
    assert longest[0] > longest[1] > longest[2] + 5 * latency, "9 K steps, of which some wait"
    assert longest[3] <= longest[2] * 1.02


WALKS = [("sm_90a", "static"), ("sm_90a", "dynamic"), ("sm_100a", "clc")]


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "scheduler"), WALKS)
def test_kernels_that_walk_tell_their_tiles_by_k(monkeypatch, arch, scheduler):
    """Their loaders load each tile along K in order: the last turn of a CTA is its tiles less one."""
    [artifact] = build([make_config("kernel8", arch=arch, scheduler=scheduler)])
    plan = artifact.plan(Shape(4096, 4096, 256))
    seen: dict[int, set[int]] = {}
    there = set()
    new, wave_of = FirstUse.new, FirstUse.wave

    def wave_seen(self: FirstUse, cluster: int, turn: int) -> int:
        seen.setdefault(cluster, set()).add(turn)
        return wave_of(self, cluster, turn)

    def new_seen(self: FirstUse, address: int, row: int, wave: int) -> float:
        name, rows = self.panels[address]
        there.add((name, row // rows) in self.waves[wave])
        return new(self, address, row, wave)

    monkeypatch.setattr(FirstUse, "wave", wave_seen)
    monkeypatch.setattr(FirstUse, "new", new_seen)
    gpu = find_gpu("h200" if arch == "sm_90a" else "b200")
    found = simulate(artifact, plan, gpu, CLOCK, detail=200)
    assert all(turns == set(range(len(turns))) for turns in seen.values())
    if scheduler != "clc":  # where some clusters are never launched
        assert sum(map(len, seen.values())) == len(found.gemm.simulated_tiles(found.spread))
    if scheduler == "static":
        assert there == {True}
