"""Clusters that go ahead along K, as they have less to multiply: others find in L2 what these have waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from emugpu.emulator.memory.tensor_map import TensorMap
from harness.compile.artifacts import build
from harness.compile.presets import configure
from harness.model.constants import find_gpu
from harness.model.first_use import FirstUse
from harness.model.gemm import Gemm, gained
from harness.model.simulate import simulate
from harness.model.units import MemorySystem, Sm, Units
from harness.problem import Shape

GPU = find_gpu("h200")
CLOCK = 1.8e9
PART = 64 / 16 * 256 / 2
"""Cycles of a K step of 64 rows and 256 columns: four wgmma."""
WAIT = 0.5 * GPU["dram.latency"] * CLOCK
"""If half of what is new waits for DRAM."""


def gemm(kernel: str, m: int, arch: str = "sm_90a", **options: Any) -> Gemm:
    [artifact] = build([configure(kernel, arch=arch, **options)])
    return Gemm(artifact.plan(Shape(m, 512, 512)), find_gpu("h200" if arch == "sm_90a" else "b200"), registers=168)


@pytest.mark.parametrize(
    ("m", "options", "parts"),
    [
        (16 * 128 + 8, {}, 1),  # the last cluster: eight rows, and a CTA below C
        (16 * 128 + 64, {}, 1),
        (16 * 128 + 65, {}, 0),
        (17 * 128, {}, 0),
        (17 * 128 + 8, {}, 0),  # it keeps step with a CTA that has two parts
        (17 * 128 + 8, {"multicast": False}, 1),
        (16 * 128 + 8, {"multicast": False}, 2),  # the CTA below C loads for itself, and multiplies nothing
        (16 * 128, {"multicast": False}, 0),
        (16 * 128 + 8, {"cluster": (1, 1)}, 1),
        (8 * 256 + 8, {"mma_shape": (256, 128), "cluster": (1, 1)}, 1),  # of twice as many rows, half as many columns
        (16 * 64 + 8, {"mma_shape": (64, 256)}, 0),  # a CTA has one part
        (16 * 64 + 8, {"mma_shape": (64, 128), "multicast": False}, 0),  # CTAs share an SM
    ],
)
def test_a_cluster_leads_whose_ctas_have_less_to_multiply(m, options, parts):
    found = gained(gemm("kernel5", m, **options), resident=1000)
    columns = 512 // options.get("mma_shape", (128, 256))[1]
    assert found == [{("B", column): parts * PART for column in range(columns)} if parts else {}]


def test_it_leads_those_of_its_round():
    """Nine rows of clusters by two: the last of each column is the ninth that starts."""
    found = gained(gemm("kernel5", 16 * 128 + 8), resident=6)
    assert [sorted(panels) for panels in found] == [[], [("B", 0)], [("B", 1)]]


@pytest.mark.parametrize(
    ("kernel", "arch", "options", "leads"),
    [
        ("kernel6", "sm_90a", {}, False),
        ("kernel7", "sm_90a", {"stages": 2}, False),
        ("kernel7", "sm_90a", {"stages": 2, "multicast": False}, True),
        ("kernel7", "sm_90a", {"stages": 2, "multicast": False, "cluster": (1, 1)}, False),
        ("kernel5", "sm_100a", {}, False),
    ],
)
def test_in_a_ring_who_multiplies_nothing_leads_and_nobody_where_a_tile_is_multiplied_as_a_whole(
    kernel, arch, options, leads
):
    [found] = gained(gemm(kernel, 16 * 128 + 8, arch, **options), resident=1000)
    assert set(found.values()) == ({2 * PART} if leads else set())


@pytest.mark.parametrize(("ahead", "less"), [(0.0, 0.0), (100.0, 100.0), (1e4, 0.8 * WAIT)])
def test_others_wait_less_by_what_the_leader_is_ahead(ahead, less):
    """Of B, not of A, and never for less than a fifth."""
    waves = [{("A", 0): 1.0, ("B", 0): 1.0}]
    panels = {1 << 40: ("A", 128), 2 << 40: ("B", 256)}
    gpu = GPU.with_values({"l2.spread": 0, "l2.wait": 0})

    def arrives(address: int, cycles: float) -> float:
        first_use = FirstUse(waves, panels, {0: 0}, gained=[{("B", 0): cycles}])
        units = Units(gpu, MemorySystem(1.0, CLOCK, miss=0.0, waits=0.5, first_use=first_use))
        tmap = TensorMap.tiled(address, "bf16", (512, 512), (64, 64), "128B")
        cta: Any = SimpleNamespace(cluster=SimpleNamespace(number=0), rank=0)
        return units.tma_load(0.0, SimpleNamespace(tmap=tmap, coordinates=(0, 0), routes=range(1)), 0, cta, Sm())

    assert arrives(2 << 40, 0.0) - arrives(2 << 40, ahead) == pytest.approx(less)
    assert arrives(1 << 40, 0.0) == arrives(1 << 40, ahead)


@pytest.mark.slow
def test_a_launch_with_leaders_takes_less():
    """Eight rows more than 16 tiles: those above the last cluster wait less. One row of warpgroups more: they wait."""
    [artifact] = build([configure("kernel5", arch="sm_90a")])

    def cycles(m: int, latency: float) -> float:
        gpu = GPU.with_values({"dram.latency": latency})
        return simulate(artifact, artifact.plan(Shape(m, 512, 2048)), gpu, CLOCK).cycles

    slow, fast = GPU["dram.latency"], 0.0
    with_leaders, without = (cycles(m, slow) - cycles(m, fast) for m in (16 * 128 + 8, 17 * 128))
    assert with_leaders < 0.7 * without


@pytest.mark.slow
@pytest.mark.nightly_unless_changed("harness/model")
def test_sms_of_a_launch_wait_differently_where_rows_lie_in_two_lines():
    [artifact] = build([configure("kernel7", arch="sm_90a", multicast=False)])

    def ends(k: int, uneven: float) -> list[float]:
        gpu = GPU.with_values({"l2.uneven": uneven})
        machine = simulate(artifact, artifact.plan(Shape(2048, 2048, k)), gpu, CLOCK).machine
        return sorted(life.end for sm in machine.sms for life in sm.lives)

    assert ends(512, 0.0) == ends(512, 0.3)
    even, uneven = ends(512 + 16, 0.0), ends(512 + 16, 0.3)
    assert uneven[-1] > even[-1] and uneven[-1] - uneven[0] > 1.5 * (even[-1] - even[0])
