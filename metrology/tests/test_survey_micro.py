"""Micro-benchmarks: the emulator runs their texts, which shows that they end and write their clocks, not how fast."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from fake_cuda import FakeCuda

from harness.launch import launching
from harness.launch.spec import Fill
from harness.run.driver import Driver
from metrology.survey.micro import (
    edges,
    measured,
    mixed,
    resident,
    shared_loads,
    starts,
    tma,
    wgmma_issue,
)
from metrology.survey.micro.benchmark import OUT, Tensor
from metrology.survey.micro.catalogue import BENCHMARKS
from metrology.survey.micro.ptx import HEAD
from metrology.survey.micro.questions import QUESTIONS

MOST_CTAS = 4
ROWS = 512
"""Of the tensor."""
MOST_SHARED = 227 * 1024
FEW = {"wgmma": {"n": (64, 256)}, "wgmma_issue": {"n": (128,), "count": (1, 4)}}
"""Of what differs only in a number, those that are run here."""


def first_of_each_text():
    """A launch of each text and cluster size, on few CTAs; where texts differ in a number, a few."""
    for name, benchmark in BENCHMARKS.items():
        seen = set()
        for case in benchmark.cases:
            kind = (case.ptx, case.cluster)
            if kind in seen or any(case.about[what] not in some for what, some in FEW.get(name, {}).items()):
                continue
            seen.add(kind)
            grid = min(case.grid, max(case.cluster, MOST_CTAS))
            yield pytest.param(benchmark, replace(case, grid=grid), id=f"{name}, {case.ptx}, {case.cluster}")


def emulate(benchmark, case):
    """The clocks of a case in the emulator's steps, on a tensor of few rows that are zeros."""
    rows = {tensor.rows for tensor in case.tensors}
    fewer = [replace(a, rows=ROWS) if isinstance(a, Tensor) else ROWS if a in rows else a for a in case.arguments]
    what = replace(benchmark, cases=(replace(case, arguments=tuple(fewer)),)).launchable(case.ptx)
    zeros = {name: replace(buffer, fill=Fill("zeros")) for name, buffer in what.buffers.items()}
    outcome = launching.run(replace(what, buffers=zeros), keep=[OUT.name])
    return outcome.contents[OUT.name].reshape(case.grid, case.words)


@pytest.mark.parametrize(("benchmark", "case"), list(first_of_each_text()))
def test_it_ends_and_every_cta_writes_its_clocks(benchmark, case):
    clocks = emulate(benchmark, case)
    assert clocks.shape == (case.grid, case.words)
    written = clocks[:, 1] != 0
    # Of a cluster that passes messages only the first CTA tells.
    assert written.all() or (case.ptx.startswith("message") and written[0])
    assert (clocks[written, 1] > clocks[written, 0]).all() and (clocks[written, 3] > clocks[written, 2]).all()
    json.dumps(benchmark.read(case, clocks), allow_nan=False)


def test_every_question_has_its_benchmark():
    assert {name: benchmark.question for name, benchmark in BENCHMARKS.items()} == QUESTIONS


def test_launches_are_within_what_a_gpu_allows():
    for benchmark in BENCHMARKS.values():
        for case in benchmark.cases:
            assert case.shared <= MOST_SHARED and case.threads <= 1024 and case.grid % case.cluster == 0
            for tensor in case.tensors:
                assert tensor.box_rows <= 256 and tensor.rows & (tensor.rows - 1) == 0
        abouts = [json.dumps(case.about) for case in benchmark.cases]
        assert len(set(abouts)) == len(abouts), f"{benchmark.name} has two launches that cannot be told apart"


def load_clocks(latency: int, loads: int, ctas: int = 2):
    """As a CTA writes them whose loads each take so long, at 2 GHz, the first 100 cycles longer."""
    clocks = np.zeros((ctas, HEAD + 64), np.uint64)
    seen = 1000 + 100 + latency * np.arange(1, loads + 1)
    clocks[:, 0], clocks[:, 1] = 1000, seen[-1]
    clocks[:, 2], clocks[:, 3] = 5000, 5000 + (seen[-1] - 1000) // 2
    clocks[:, HEAD : HEAD + min(loads, 64)] = seen[:64]
    return clocks


def test_what_loads_are_read_as():
    """64 loads of 8 KiB, one at a time, 500 cycles each, on two CTAs."""
    [case] = [
        case
        for case in tma.TMA.cases
        if case.about["how"] == "loads"
        and (case.about["box_bytes"], case.about["ctas"], case.about["where"]) == (8192, 1, "L2")
        and case.about["in_flight"] == 1
    ]
    found = tma.TMA.read(case, load_clocks(500, 64))
    assert found["median_latency_cycles"] == 500 and found["first_load_cycles"] == 600
    assert found["bytes_per_cycle_per_sm"] == round(64 * 8192 / 32100, 2)
    assert found["bytes_per_cycle"] == round(2 * 64 * 8192 / 32100, 1)
    assert found["gigabytes_per_second"] == round(2 * 64 * 8192 / 16050, 1)
    assert found["sm_clock_mhz"] == 2000.0


def test_multicast_reads_from_l2_only_what_it_does_not_share():
    [case] = [
        case
        for case in tma.TMA.cases
        if case.about["how"] == "multicast"
        and (case.about["cluster"], case.about["ctas"], case.about["box_bytes"]) == (4, 4, 16384)
        and case.about["in_flight"] == 2
    ]
    found = tma.TMA.read(case, load_clocks(500, case.about["loads"], ctas=4))
    assert found["bytes_per_cycle"] == pytest.approx(4 * found["bytes_read_from_l2_per_cycle"], abs=0.3)


def test_one_after_the_other_on_one_sm_is_a_gap():
    """Two CTAs of SM 3, the second 70 cycles after the first has ended; one of SM 5."""
    read = BENCHMARKS["launches"].read
    [case] = [
        case
        for case in BENCHMARKS["launches"].cases
        if case.about == {"what": "bare", "ctas": 132, "cluster": 1, "overlap": False, "spin_cycles": 0}
    ]
    clocks = np.array(
        [[100, 200, 10, 40, 3, 0, 0, 0], [270, 300, 50, 60, 3, 0, 0, 0], [9, 19, 12, 20, 5, 0, 0, 0]], np.uint64
    )
    found = read(case, clocks)
    assert found["median_follow_cycles"] == found["largest_follow_cycles"] == 70
    assert found["multiprocessors"] == 2 and found["whole_grid_ns"] == 50


def test_what_loads_and_stores_together_are_read_as():
    """256 turns of two loads of 16 KiB and a store of 8 KiB in 100,000 cycles at 2 GHz, on two CTAs, one slower."""
    [case] = [
        case
        for case in mixed.MIXED.cases
        if (case.about["loads"], case.about["stores"], case.about["store_columns"]) == (2, 1, 32)
        and case.about["store_mib"] == 32
    ]
    clocks = np.array([[0, 100_000, 0, 50_000, 0, 0, 0, 0], [0, 125_000, 0, 62_500, 1, 0, 0, 0]], np.uint64)
    found = mixed.MIXED.read(case, clocks)
    loaded, stored = 256 * 2 * 16384, 256 * 8192
    assert found["loaded_bytes_per_cycle_per_sm"] == round(loaded / 112_500, 2)
    assert found["loaded_bytes_per_cycle"] == round(2 * loaded / 125_000, 1)
    assert found["stored_gigabytes_per_second"] == round(2 * stored / 62_500, 1)


def test_what_is_stored_to_is_as_much_as_it_says_and_apart_from_what_is_loaded():
    for case in mixed.MIXED.cases:
        about, numbers = case.about, case.arguments[3:]
        rows = -(-case.grid * numbers[6] * about["store_bytes"] // (2 * 4096) // 128) * 128
        assert mixed.STORES_FROM + rows <= mixed.IN_DRAM
        if about["ctas"] == mixed.SMS and about["store_mib"] < 512:
            assert 0.75 < case.grid * numbers[6] * about["store_bytes"] / about["store_mib"] / (1 << 20) <= 1.0
        if about["data"] == "each its own":
            assert case.grid * numbers[4] * about["load_bytes"] <= mixed.STORES_FROM * 2 * 4096


def test_boxes_lie_as_far_outside_as_they_say():
    for case in edges.EDGES.cases:
        tensor, column, row = case.arguments[0], *case.arguments[4:]
        assert max(0, min(tensor.box_rows, tensor.rows - row)) == case.about["rows_inside"]
        assert max(0, min(64, 4096 - column)) == case.about["columns_inside"]


def test_the_course_of_a_cta_is_told_apart_from_that_of_the_one_after_it():
    """Two CTAs of one SM: steps 10 cycles apart in the first, 5 in the second."""
    case = starts.CTA_STARTS.cases[0]
    clocks = np.zeros((2, starts.WORDS), np.uint64)
    for cta, (first, apart) in enumerate(((1000, 10), (3000, 5))):
        clocks[cta, 0] = first
        clocks[cta, HEAD : HEAD + 8] = first + apart * np.arange(1, 9)
    found = starts.CTA_STARTS.read(case, clocks)
    assert [found[f"{name}_cycles"] for name in starts.STEPS] == [10, 20, 30, 40]
    assert found["load_0_cycles"] == found["load_3_cycles"] == 10
    assert found["following_first_load_issued_cycles"] == 20 and found["following_load_1_cycles"] == 5


def test_the_slower_warpgroup_says_how_long_wgmma_took_to_issue():
    [case] = [
        case
        for case in wgmma_issue.WGMMA_ISSUE.cases
        if case.about == {"n": 256, "count": 8, "descriptors": "the same", "warpgroups": 2}
    ]
    clocks = np.zeros((1, 2 * HEAD), np.uint64)
    for first, (start, issued, end) in ((0, (1000, 1090, 1900)), (HEAD, (1010, 1200, 1800))):
        clocks[0, first], clocks[0, first + wgmma_issue.ISSUED], clocks[0, first + 1] = start, issued, end
    assert wgmma_issue.WGMMA_ISSUE.read(case, clocks) == {"issue_cycles": 190.0, "cycles": 900.0}


def test_what_shared_loads_are_read_as():
    """512 loads of 16 KiB in 100,000 cycles at 2 GHz on each of two SMs, one of which is slower and starts later."""
    clocks = np.array([[0, 100_000, 0, 50_000, 0, 0, 0, 0], [90, 125_090, 32, 62_500, 1, 0, 0, 0]], np.uint64)
    found = shared_loads.SHARED_LOADS.read(shared_loads.SHARED_LOADS.cases[0], clocks)
    assert found["bytes_per_cycle_per_sm"] == round(512 * 16384 / 112_500, 2)
    assert found["bytes_per_cycle"] == round(2 * 512 * 16384 / 125_000, 1)
    assert found["gigabytes_per_second"] == round(2 * 512 * 16384 / 62_500, 1) and found["started_within_ns"] == 32


def test_groups_of_sms_divide_them_and_their_boxes_lie_in_the_tensor():
    for case in shared_loads.SHARED_LOADS.cases:
        group, apart = case.about["group"], case.arguments[4]
        assert apart == (group if case.about["on"] == "neighbours" else 132 // group) and 132 % group == 0
        boxes = 132 // group * shared_loads.BOXES
        assert -(-boxes // 64) * shared_loads.BOX_ROWS <= case.arguments[0].rows


def test_clusters_at_once_are_those_that_began_before_one_ended():
    """Three clusters of two, of which the last begins as the first ends; SM 0 has two CTAs at the same time."""
    [case] = [case for case in resident.RESIDENT.cases if (case.cluster, case.about["room_for_ctas"]) == (2, 2)]
    clocks = np.zeros((6, HEAD), np.uint64)
    clocks[:, 2] = 100, 101, 110, 112, 900, 905
    clocks[:, 3] = clocks[:, 2] + np.uint64(800)
    clocks[:, 4] = 0, 1, 0, 2, 0, 1
    assert resident.RESIDENT.read(case, clocks) == {
        "clusters_at_once": 2.0,
        "multiprocessors": 3,
        "most_ctas_of_a_multiprocessor": 2,
        "began_within_ns": 12,
    }


def test_a_gpu_is_measured_through_the_driver(tmp_path, monkeypatch):
    """On a driver that the emulator plays: what is launched, how often, and what is left in the folder."""
    benchmark = replace(BENCHMARKS["launches"], cases=BENCHMARKS["launches"].cases[:1])
    benchmark = replace(benchmark, cases=(replace(benchmark.cases[0], in_graph=3),))
    monkeypatch.setattr(measured, "BENCHMARKS", {"launches": benchmark})
    monkeypatch.setattr(measured, "FOREIGN_BYTES", 1 << 16)
    monkeypatch.setattr(measured, "WARM_UP_SECONDS", 0.0)
    cuda = FakeCuda()
    monkeypatch.setattr(measured, "Driver", lambda: Driver(cuda))
    measured.main(str(tmp_path))
    found = json.loads((tmp_path / "launches.json").read_text())
    assert found["gpu"]["clusters_at_once"] == {"1": 4, "2": 2, "4": 1, "8": 0, "16": 0}
    [entry] = found["launches"]
    assert entry["what"] == "bare" and entry["seconds_per_launch"] == pytest.approx(1e-3 / 3)
    with np.load(tmp_path / "launches.npz") as clocks:
        assert clocks["0"].shape == (1, HEAD)
    assert len(cuda.graphs) == 1 and len(cuda.graphs[0]) == 3
