"""The timing model against published tables of a B200: the forms, and the rules that follow from them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from emugpu.emulator import Device
from emugpu.launch.launching import run
from emugpu.launch.spec import DATA_TYPES, AddressArgument, Buffer, Fill, Launch, Launchable, Map, Scalar
from harness.model.constants import find_gpu
from harness.model.silicon.copies import Copies, cycles_of_box, latency_of_first
from harness.model.silicon.mainloop import KINDS, SWIZZLES, Mainloop, cycles_of_step, ptx
from harness.model.silicon.tables import SHIPPED, read_table
from harness.model.silicon.times import LATENCY, Compared, Confrontation, confront, seen
from harness.model.tcgen05 import MmaForm, MmaTimes

GPU = find_gpu("b200")
CLOCK = 1.965e9
K = 131072

PUBLISHED = [
    (MmaForm(64, 64, 1), 32.02, 152),
    (MmaForm(128, 112, 1), 60.01, 192),  # its operands take longer than its columns
    (MmaForm(128, 256, 1), 128.0, 264),
    (MmaForm(128, 256, 1, a_in_tmem=True), 128.03, 232),
    (MmaForm(128, 64, 2), 25.02, 173),  # a pair of 128 rows: half of the columns at a time
    (MmaForm(256, 80, 2), 45.36, 210),  # narrow
    (MmaForm(128, 64, 2, a_in_tmem=True), 18.02, 162),  # no pair takes less
    (MmaForm(256, 256, 2), 128.03, 298),
    (MmaForm(128, 256, 1, a_in_tmem=True, scaled=True), 128.02, 237),
]
"""Rows of mma_intervals.csv: cycles from one instruction to the next, and from issue to seen."""


@pytest.mark.parametrize(("form", "interval", "latency"), PUBLISHED)
def test_an_instruction_takes_what_was_published(form: MmaForm, interval: float, latency: float) -> None:
    times = MmaTimes(GPU)
    assert times.interval(form) == pytest.approx(interval, rel=0.03)
    assert times.latency(form) + seen(GPU) == pytest.approx(latency, rel=0.04)


def test_what_has_just_been_loaded_is_read_slower_by_one_cta_and_not_by_a_wide_pair() -> None:
    times = MmaTimes(GPU)
    one, pair = MmaForm(128, 256, 1), MmaForm(256, 256, 2)
    assert times.interval(one, loaded=True) == pytest.approx(256 * 32 / GPU["tcgen05.loaded_b"])
    assert times.interval(pair, loaded=True) == times.interval(pair) == 128
    alone = MmaForm(128, 256, 1, a_in_tmem=True)
    assert times.interval(replace(alone, n=16), loaded=True) < times.interval(replace(one, n=16), loaded=True)


def step(tile: tuple[int, int, int], stages: int, dtype: str = "bf16", k: int = K, **changes: float) -> float:
    return cycles_of_step(Mainloop(dtype, *tile, stages), GPU.with_values(changes), CLOCK, k)


def test_a_main_loop_is_as_fast_as_its_ring_allows() -> None:
    """With few stages a load over the stages (Little's law), with many what its slowest unit does."""
    small = (64, 16, 64)
    two, three = step(small, 2), step(small, 3)
    assert 2 * two == pytest.approx(3 * three, rel=0.02), "a stage goes round once a trip"
    assert step((64, 16, 256), 5) == pytest.approx(8 * GPU["tma.box"], rel=0.01), "four boxes of A and of B"
    lines = 64 + 128
    assert step((64, 128, 32), 12) == pytest.approx(lines * GPU["tma.line"], rel=0.01), "a line for each row"
    wide = 4 * 256 * 32 / GPU["tcgen05.loaded_b"]
    assert step((64, 256, 64), 5) == pytest.approx(wide, rel=0.02), "B of four instructions"


def test_what_fits_into_l2_is_there_and_the_rest_waits_for_dram() -> None:
    tile = (128, 128, 64)
    fits, not_there = step(tile, 2, k=K // 2), step(tile, 2, k=K)
    assert 2 * (not_there - fits) == pytest.approx(GPU["dram.latency"] * CLOCK, rel=0.05)
    assert step(tile, 2, "e4m3", K) < step(tile, 2, "e4m3", 4 * K), "half as many bytes"


@pytest.mark.parametrize("stages", [2, 4])
def test_more_steps_change_nothing(stages: int) -> None:
    loop = Mainloop("bf16", 128, 256, 64, stages)
    assert cycles_of_step(loop, GPU, CLOCK, K, 400) == pytest.approx(cycles_of_step(loop, GPU, CLOCK, K), rel=0.01)


@pytest.mark.parametrize(
    ("loop", "microseconds"),
    [
        (Mainloop("bf16", 128, 256, 64, 4), 821.251),
        (Mainloop("bf16", 128, 256, 64, 3), 1038.29),
        (Mainloop("bf16", 64, 16, 16, 2), 1936.69),
        (Mainloop("e4m3", 128, 256, 32, 8), 1219.09),
        (Mainloop("e4m3", 64, 192, 32, 3), 935.949),
    ],
)
def test_main_loops_take_what_was_published(loop: Mainloop, microseconds: float) -> None:
    cycles = microseconds * 1e-6 * CLOCK * loop.tile_k / K
    assert cycles_of_step(loop, GPU, CLOCK, K) == pytest.approx(cycles, rel=0.12)


@pytest.mark.parametrize("loop", [Mainloop("bf16", 128, 64, 128, 2), Mainloop("e4m3", 64, 32, 32, 3)])
def test_the_kernel_is_sound(loop: Mainloop) -> None:
    """On the emulated GPU with data, and with its rules: it ends, and multiplies all of K."""
    steps, (_, element, _) = 7, KINDS[loop.dtype]
    rows = {"a": loop.m, "b": loop.n}
    buffers = {
        name: Buffer(name, DATA_TYPES[loop.dtype], (count, steps * loop.tile_k), Fill("integer"))
        for name, count in rows.items()
    }
    maps = {
        name: Map(
            name,
            name,
            box=(loop.width // element, count),
            element="bf16" if element == 2 else "u8",
            swizzle=SWIZZLES[loop.width][0],
        )
        for name, count in rows.items()
    }
    arguments = (("a", AddressArgument("a")), ("b", AddressArgument("b")), ("steps", Scalar(steps)))
    launch = Launch("mainloop", (1,), dynamic_shared=loop.shared_bytes, arguments=arguments, by_name=True)
    what = Launchable(Path("mainloop.ptx"), buffers, maps, (launch,), text_given=ptx(loop))
    (launched,) = run(what, device=Device()).launched
    assert launched.result.counters.mma_flops == 2 * loop.m * loop.n * loop.tile_k * steps


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (Mainloop("e4m3", 128, 256, 256, 4), "do not fit into shared memory"),
        (Mainloop("bf16", 96, 64, 64, 2), "no shape of tcgen05.mma"),
        (Mainloop("bf16", 128, 64, 96, 2), "no multiple of a swizzle"),
        (Mainloop("s8", 128, 64, 64, 2), "must be one of"),
    ],
)
def test_a_main_loop_that_cannot_be_says_why(loop: Mainloop, why: str) -> None:
    assert why in loop.why_not()


def test_boxes_in_flight_hide_the_latency_until_dram_is_the_limit() -> None:
    one, two = (cycles_of_box(Copies(128, 2, count), GPU, CLOCK) for count in (1, 2))
    assert one == pytest.approx(2 * two, rel=0.01)
    full = 256 * 128 * 4 / (GPU["dram.bandwidth"] / CLOCK / GPU.sms)
    assert cycles_of_box(Copies(128, 256, 4), GPU, CLOCK) == pytest.approx(full, rel=0.01)
    shared = cycles_of_box(Copies(128, 256, 4, sharing=4), GPU, CLOCK)
    assert shared == pytest.approx(full * GPU["dram.bandwidth"] / GPU["l2.bandwidth"], rel=1) and shared < full / 2


def test_the_first_box_fetches_its_tensor_map_too() -> None:
    first, later = latency_of_first(Copies(128, 4), GPU, CLOCK), cycles_of_box(Copies(128, 4), GPU, CLOCK)
    assert first - later > GPU["tma.descriptor"] + GPU["dram.cold"] - 1


@pytest.mark.parametrize(
    ("name", "mean", "largest"),
    [
        ("mma_intervals", 0.01, 0.03),
        ("mma_depth", 0.01, 0.1),
        ("multicast", 0.06, 0.15),
        ("tma_latency_all_sms", 0.15, 0.4),
        ("tma_throughput_dram", 0.1, 0.35),
    ],
)
def test_the_shipped_tables_are_met(name: str, mean: float, largest: float) -> None:
    found = confront(read_table(SHIPPED / "b200" / f"{name}.csv"), GPU)
    assert found[0].worst is not None and found[0].mean_error is not None
    assert found[0].mean_error < mean and abs(found[0].worst.error) < largest
    assert [each.name for each in found] == [name, LATENCY][: len(found)]


def test_an_error_is_the_difference_over_what_was_published() -> None:
    rows = (Compared("a", 10, 12), Compared("b", 10, 9), Compared("c", 10, None, "no such shape"))
    found = Confrontation("table", "cycles", rows).as_dict()
    assert found == {
        "name": "table", "rows": 3, "mean_error_percent": 15, "largest_error_percent": 20, "refused": 1,
    }  # fmt: skip


def test_every_shipped_table_has_a_source() -> None:
    from harness.model.silicon.tables import read_sources

    sources = read_sources("b200")
    assert {path.stem for path in (SHIPPED / "b200").glob("*.*")} == {*sources, "sources"}
    assert all(each.licence and each.date and each.link for each in sources.values())
    with (SHIPPED / "b200" / "mma_intervals.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 130
