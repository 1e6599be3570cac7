"""Edges and rows that are no lines, in the timing model: what a box asks for, and what that costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from emugpu.emulator import TensorMap
from harness.compile.artifacts import build
from harness.compile.config import make_config
from harness.model.boxes import Parts, alignment, parts
from harness.model.constants import find_gpu
from harness.model.gemm import Gemm, Spread
from harness.model.simulate import simulate
from harness.model.units import MemorySystem, Sm, Units
from harness.problem import Shape

CLOCK = 1.8e9
GPU = find_gpu("h200")


def tensor(rows: int, columns: int, box: tuple[int, int] = (128, 64)) -> TensorMap:
    return TensorMap.tiled(1 << 20, "bf16", (rows, columns), box, "128B")


@pytest.mark.parametrize(
    ("column", "row", "expected"),
    [
        (0, 0, Parts(16384, 0, False)),
        (0, 128, Parts(72 * 128, 56 * 128, False)),  # 72 rows are left
        (64, 0, Parts(128 * 16, 0, True)),  # 8 columns are left
        (64, 128, Parts(72 * 16, 56 * 128, True)),
        (0, 256, Parts(0, 16384, False)),
        (128, 0, Parts(0, 16384, False)),
    ],
)
def test_what_lies_inside(column, row, expected):
    assert parts(tensor(200, 72), (column, row)) == expected


@pytest.mark.parametrize(
    ("columns", "expected"), [(128, 128), (64 + 32, 64), (64 + 16, 32), (64 + 8, 16), (64 + 40, 16)]
)
def test_where_rows_begin(columns, expected):
    assert alignment(tensor(256, columns)) == expected


def test_a_row_within_a_line_is_not_split():
    """32 bytes at multiples of 32."""
    assert alignment(TensorMap.tiled(1 << 20, "bf16", (64, 80), (64, 16), "32B")) == 128


class Load:
    """ctas: that it goes to."""

    def __init__(self, tmap: TensorMap, coordinates: tuple[int, int], ctas: int = 1) -> None:
        self.tmap, self.coordinates, self.routes = tmap, coordinates, range(ctas)


def cta(cluster: int = 0, rank: int = 0) -> Any:
    return SimpleNamespace(cluster=SimpleNamespace(number=cluster), rank=rank)


CTA = cta()


def units() -> Units:
    return Units(GPU, MemorySystem(1.0, CLOCK, miss=0.0, waits=0.0))


def loaded(made: Units, at: float, load: Load, sm: Sm, who: Any = CTA) -> float:
    """When an SM that has nothing else to take has the box."""
    return made.take(made.tma_load(at, load, 0, who, sm), load, sm)


def cycles(made: Units, sms: list[Sm], tmap: TensorMap, row: int, loads: int = 16) -> float:
    """Until each of the SMs has its boxes, that all are asked for at once."""
    return max(loaded(made, 0.0, Load(tmap, (0, row)), sm) for _ in range(loads) for sm in sms)


def test_what_is_outside_costs_one_sm_nothing_and_many_much():
    tmap = tensor(256, 128)
    for sms, low, high in ((1, 0.95, 1.05), (132, 3, 7)):
        inside, outside = (cycles(units(), [Sm() for _ in range(sms)], tmap, row) for row in (0, 1024))
        assert low < outside / inside < high


def test_an_sm_loads_split_rows_at_the_measured_rate():
    whole = cycles(units(), [Sm()], tensor(256, 128), 0, loads=64)
    for columns, name in ((64 + 32, "64"), (64 + 16, "32"), (64 + 8, "16")):
        split = cycles(units(), [Sm()], tensor(256, columns), 0, loads=64)
        assert split / whole == pytest.approx(GPU[f"tma.rows_of_{name}"], rel=0.1)


@pytest.mark.parametrize(("columns", "name"), [(64 + 16, "32"), (64 + 8, "16")])
@pytest.mark.parametrize(("ctas", "what"), [(1, "sectors"), (2, "cast_sectors")])
def test_of_split_rows_whole_sectors_come(columns, name, ctas, what):
    """More where a box is multicast; there L2 gives out more, too."""
    sm, made, lines = Sm(), units(), units()
    tmap, whole = tensor(256, columns), tensor(256, 128)
    loaded(made, 0.0, Load(tmap, (0, 0), ctas), sm)
    loaded(lines, 0.0, Load(whole, (0, 0), ctas), Sm())
    times = GPU[f"tma.{what}_of_{name}"]
    assert sm.port.busy == pytest.approx(tmap.box_bytes * times / GPU["l2.port"])
    assert made.memory.l2.busy / lines.memory.l2.busy == pytest.approx(times if ctas > 1 else 1.0)


def test_the_first_load_by_a_tensor_map_takes_longer_in_each_cta_and_longest_on_an_sm():
    gpu = GPU.with_values({"l2.spread": 0, "l2.wait": 0})
    made, sm, tmap = Units(gpu, MemorySystem(1.0, CLOCK, miss=0.01, waits=0.0)), Sm(), tensor(256, 128)
    arrives = [
        loaded(made, 1e5 * n, Load(tmap, (0, 0)), sm, who) - 1e5 * n
        for n, who in enumerate((cta(0), cta(0), cta(1), cta(1, 1), cta(1)))
    ]
    again, descriptor, cold = arrives[1], GPU["tma.descriptor"], GPU["dram.cold"]
    assert arrives == pytest.approx([again + descriptor + cold, again, again + descriptor, again + descriptor, again])


def test_a_row_that_is_split_and_cut_takes_no_longer_than_one_that_is_split():
    tmap, taken = tensor(256, 64 + 8), []
    for column in (0, 64):
        made, sm = units(), Sm()
        loaded(made, 0.0, Load(tmap, (column, 0)), sm)
        taken.append(sm.tma.free)
    assert taken[0] == taken[1] > tmap.box_bytes * GPU["tma.cut_rows"] / GPU["tma.rate"]


def stored(made: Units, tmap: TensorMap, coordinates: tuple[int, int] = (0, 0), count: int = 64) -> float:
    """Cycles until one SM has stored so many boxes."""
    sm = Sm()
    return max(made.tma_store(0.0, tmap, coordinates, sm) for _ in range(count))


@pytest.mark.parametrize(("columns", "sectors"), [(64, 5 / 4), (32, 3 / 2), (16, 2)])
def test_a_stored_row_that_begins_within_a_sector_is_one_more_to_read(columns, sectors):
    """Of one SM, which the engine bounds; each sector takes a tenth longer, too."""
    split, whole = (stored(units(), tensor(256, 256 + over, (256, columns))) for over in (8, 64))
    assert split / whole == pytest.approx(GPU["tma.stored_sectors"] * sectors, rel=0.03)


@pytest.mark.parametrize(
    ("columns", "name"), [(64, "write_slack"), (32, "write_slack_parts"), (16, "write_slack_parts")]
)
def test_l2_takes_a_burst_of_stores_sooner_than_at_its_rate(columns, name):
    """Of all SMs, after a pause."""
    tmap, ends = tensor(256, 256, (64, columns)), []
    for slack in (0, GPU[f"l2.{name}"]):
        gpu = GPU.with_values({f"l2.{name}": slack, "tma.store_rate": 1e6})
        made, sms = Units(gpu, MemorySystem(1.0, CLOCK, miss=0.0, waits=0.0)), [Sm() for _ in range(132)]
        ends.append(max(made.tma_store(1e4, tmap, (0, 0), sm) for sm in sms for _ in range(16)))
    assert ends[0] - ends[1] == pytest.approx(GPU[f"l2.{name}"])


@pytest.mark.parametrize(("over", "columns", "requests"), [(64, 32, 1), (8, 32, 2), (64, 128, 2), (8, 128, 3)])
def test_each_line_of_a_row_that_is_stored_is_a_request_on_the_way_to_l2(over, columns, requests):
    """Loads of rows that begin with every 16 bytes are 2.56 of them for each 128 bytes."""
    made, load = units(), units()
    tmap = TensorMap.tiled(1 << 20, "bf16", (256, 256 + over), (64, columns), "none")
    stored(made, tmap, count=1)
    load.read_memory(0.0, 64 * 128, aligned=16)
    assert made.memory.rows.busy / load.memory.rows.busy == pytest.approx(requests / GPU["l2.requests_of_16"])


@pytest.mark.parametrize("columns", [64, 32, 16])
def test_l2_takes_split_rows_of_all_sms_at_the_measured_rate(columns):
    split, whole = (
        max(made.tma_store(0.0, tensor(256, 256 + over, (128, columns)), (0, 0), sm) for sm in sms for _ in range(16))
        for over in (8, 64)
        for made, sms in [(units(), [Sm() for _ in range(132)])]
    )
    assert split / whole == pytest.approx(GPU["tma.stored_rows_of_16"], rel=0.03)


def test_what_lies_outside_of_c_is_not_written():
    made = units()
    made.tma_store(0.0, tensor(100, 128), (0, 64), Sm())
    assert made.memory.traffic.l2_written == 36 * 128


def test_an_sm_stores_between_its_loads():
    """One engine does both, one after the other."""
    tmap, sm = tensor(256, 128), Sm()
    made = units()
    loaded(made, 0.0, Load(tmap, (0, 0)), sm)
    alone = sm.tma.free
    made.tma_store(0.0, tmap, (0, 0), sm)
    assert sm.tma.free - alone == pytest.approx(tmap.box_bytes / GPU["tma.store_rate"], rel=0.1)


def test_slices_of_l2_are_near_and_far_and_the_same_ones_each_time():
    def arrivals() -> list[float]:
        made = units()
        return [made.read_memory(10000.0 * n, 128) - 10000.0 * n for n in range(200)]

    first = arrivals()
    middle = GPU["tma.latency"] + GPU["l2.latency"]
    assert arrivals() == first
    assert all(abs(each - middle) < GPU["l2.spread"] + 1 for each in first)
    assert max(first) - min(first) > 1.8 * GPU["l2.spread"]


def test_requests_are_served_in_the_order_in_which_they_are_made():
    """A box that an SM asks for slowly does not keep L2 from one that another SM asks for at the same time."""
    made, slow, quick = units(), Sm(), Sm()
    late = loaded(made, 0.0, Load(tensor(256, 64 + 8, (256, 64)), (0, 0)), slow)
    assert loaded(made, 1.0, Load(tensor(256, 128, (8, 64)), (0, 0)), quick) < late - 300


@pytest.fixture(scope="module")
def artifact():
    """Tiles of 128 x 256, loaded in boxes of 64 rows, multiplied by two warpgroups of 64 rows."""
    [found] = build([make_config("kernel7", arch="sm_90a", cluster=(1, 1), mma_shape=(128, 256))])
    return found


def test_the_part_of_what_is_outside(artifact):
    """The second row of tiles has 28 rows, 36 less than a box; the last column 200, 56 less than four boxes."""
    gemm = Gemm(artifact.plan(Shape(156, 456, 64)), GPU)
    rows = [gemm.rows_filled(number) for number in range(4)]
    assert sorted(rows) == [0, 36, 56, 92]
    for number in range(4):
        part = gemm.part(Spread(4, 1, (number,), 1), gemm.rows_filled)
        assert part == pytest.approx(rows[number] / 184 or 1 / 4)


def test_boxes_outside_of_a_tensor_smaller_than_a_box_are_filled_as_much(artifact):
    """40 rows of A: both boxes begin at its first row."""
    gemm = Gemm(artifact.plan(Shape(40, 256, 64)), GPU)
    assert gemm.rows_filled(0) == 2 * 24


def test_warpgroups_without_rows_of_c_multiply_nothing(artifact):
    """One of two in the second row of tiles."""
    gemm = Gemm(artifact.plan(Shape(156, 456, 64)), GPU)
    assert sorted(gemm.parts_multiplied(number) for number in range(4)) == [1, 1, 2, 2]
    assert gemm.part(Spread(4, 1, (gemm.order().index((1, 0)),), 1), gemm.parts_multiplied) == pytest.approx(1 / 6)


@pytest.mark.slow
def test_k_that_is_no_multiple_of_a_line_takes_longer():
    """On the same work but for one element in a hundred."""
    [artifact] = build([make_config("kernel7", arch="sm_90a", cluster=(1, 1), mma_shape=(128, 128))])
    aligned, split = (
        simulate(artifact, artifact.plan(Shape(4096, 4096, k)), GPU, CLOCK).cycles for k in (1024, 1024 - 8)
    )
    assert split > 1.2 * aligned
