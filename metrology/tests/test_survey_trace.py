"""Kernels that write down their events: the same kernel otherwise, and a timeline with a predicted one's rows."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from fake_cuda import FakeCuda

from harness.build.artifacts import build
from harness.build.planner import parse_plan
from harness.errors import CannotRun
from harness.problem import Shape
from harness.run.driver import Driver
from harness.timing.measured import Trace, timeline
from harness.timing.survey_archive import Site
from metrology.survey import pack as packing
from metrology.survey.kernels import Packed
from metrology.survey.runs import Run
from metrology.survey.trace import record
from metrology.survey.trace.instrument import PARAMETER, Room, instrument

SHAPE = Shape(256, 512, 192)
K_STEPS = 3
ROOM = Room(ctas=4, warps=12, warp_step=4, events=256)
KERNELS = ("kernel5", "kernel7", "kernel8")


def run_of(kernel: str) -> Run:
    return Run(kernel, (), SHAPE, "fit")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """What each kernel wrote down: by name, what is to be known and the events."""
    return {kernel: record_on_emulator(run_of(kernel), "sm_90a", tmp_path_factory.mktemp(kernel)) for kernel in KERNELS}


def record_on_emulator(run: Run, arch: str, folder: Path):
    """Packs a run and records it, on a driver that the emulator plays."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "TRACED", (run.name,))
        patch.setattr(packing, "TRACED_CTAS", ROOM.ctas)
        patch.setattr(packing, "TRACED_EVENTS", ROOM.events)
        patch.setattr(packing, "ptxas_version", lambda: None)
        patch.setattr(record, "WARM_LAUNCHES", 1)
        patch.setattr(record, "TIMED_LAUNCHES", 1)
        packing.pack([run], arch, folder)
        packed = Packed(folder, Driver(FakeCuda()))
        return record.Recorder(packed).record(packed.runs[0])


def test_a_kernel_of_blackwell_tells_too(tmp_path):
    """Its warps have roles of their own, so all of them write; each K step is committed to the empty barrier."""
    run = Run("kernel5", (("cluster", (2, 1)),), Shape(256, 256, 192), "fit")
    about, events = record_on_emulator(run, "sm_100a", tmp_path)
    sites = [Site(**site) for site in about["sites"]]
    of_leader = events["site"][events["cta"] == 0].tolist()
    assert about["same_result"] and set(events["warp"].tolist()) == {0, 1, 2, 3}
    assert sum(sites[number].what == "commit" for number in of_leader) == K_STEPS + 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_the_added_lines_it_is_the_compilers_text(kernel):
    """What a survey times is that text itself; the events are in another."""
    [artifact] = build([run_of(kernel).config("sm_90a")])
    traced = instrument(artifact.ptx, ROOM).ptx
    left = [line for line in traced.splitlines() if "trace_" not in line]
    original = artifact.ptx.splitlines()
    assert [line.rstrip(",") for line in left] == [line.rstrip(",") for line in original]
    assert traced.count(f".param .b64 {PARAMETER}") == 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_result_is_the_same(recorded, kernel):
    about, events = recorded[kernel]
    assert about["same_result"]
    assert set(events["cta"].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_warp_starts_stops_and_ends_what_it_begins(recorded, kernel):
    about, events = recorded[kernel]
    sites = [Site(**site) for site in about["sites"]]
    for cta in range(ROOM.ctas):
        for warp in set(events["warp"].tolist()):
            mine = (events["cta"] == cta) & (events["warp"] == warp)
            order = [sites[number] for number in events["site"][mine].tolist()]
            assert [site.what for site in order[:3]] == ["start", "global timer", "SM"]
            assert order[-1].what == "stop"
            clocks = events["clock"][mine][[site.what != "global timer" for site in order]]
            assert (clocks[1:] >= clocks[:-1]).all()
            open_now: list[str] = []
            for site in order:
                if site.edge == "begin":
                    open_now.append(site.what)
                elif site.edge == "end":
                    assert open_now.pop() == site.what
            assert not open_now


def measured(recorded, kernel: str):
    about, events = recorded[kernel]
    plan = parse_plan(json.dumps({"tiles": None, **about["plan"]}))
    return timeline(Trace(about["name"], plan, [Site(**site) for site in about["sites"]], events, 1e9)), plan


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_timeline_has_the_rows_and_names_of_a_predicted_one(recorded, kernel):
    """Every CTA of the first cluster: each K step loads A and B, is waited for, and multiplied."""
    found, plan = measured(recorded, kernel)
    assert found.status == "measured" and found.ctas == [(0, 0), (0, 1)]
    for cta in found.ctas:
        mine = [span for span in found.spans if span.cta == cta]
        names = [span.name for span in mine]
        for operand in "AB":
            [boxes] = {len(each.a_rows if operand == "A" else each.b_rows) for each in plan.multicast}
            assert sum(name.startswith(f"issue load {operand} stage") for name in names) == K_STEPS * boxes
        consumers = [row for row in found.rows(cta) if row.startswith("tensor core")]
        for row in consumers:
            multiplied = sorted((span for span in mine if span.row == row), key=lambda span: span.start)
            assert len(multiplied) == K_STEPS
            assert all(a.end <= b.start for a, b in itertools.pairwise(multiplied))
        stages = plan.config["stages"]
        full = ["full"] if stages == 1 else [f"full[{stage}]" for stage in range(min(stages, K_STEPS))]
        assert {name for name in names if name.startswith("wait full")} == {f"wait {name}" for name in full}
        loads = [span for span in mine if span.row.startswith("TMA load A stage")]
        assert len(loads) == K_STEPS and all(span.end > span.start >= 0 for span in loads)


def test_a_wait_that_may_leave_a_group_does_not_end_it(recorded):
    """Kernel 7 waits for all multiplications but the newest, from the second on: the first ends with the first wait."""
    found, _ = measured(recorded, "kernel7")
    warp = [span for span in found.spans if span.cta == (0, 0) and span.row == "warp 0"]
    waits = sorted(span.end for span in warp if span.name == "wait for MMA")
    ends = sorted(span.end for span in found.spans if span.cta == (0, 0) and span.row == "tensor core, warp 0")
    assert len(waits) == K_STEPS and ends == waits


def test_more_events_than_there_is_room_for_are_left_out(tmp_path, monkeypatch):
    run = run_of("kernel5")
    small = Room(ctas=1, warps=8, warp_step=4, events=16)
    [artifact] = build([run.config("sm_90a")])
    cuda = FakeCuda()
    driver = Driver(cuda)
    plan = json.loads(artifact.plan_json(SHAPE))
    (tmp_path / "k.ptx").write_text(instrument(artifact.ptx, small).ptx)
    traced = {"code": "k.ptx", "room": small.__dict__, "sites": []}
    (tmp_path / "p.ptx").write_text(artifact.ptx)
    (tmp_path / "runs.json").write_text(json.dumps([{"name": "x", "plan": plan, "code": "p.ptx", "trace": traced}]))
    monkeypatch.setattr(record, "TIMED_LAUNCHES", 1)
    packed = Packed(tmp_path, driver)
    about, events = record.Recorder(packed).record(packed.runs[0])
    assert about["same_result"] and len(events["clock"]) == small.traced * small.events


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (".version 8.5\n", "this has 0"),
        (".visible .entry a(\n)\n{\n\tret;\n}\n", "whose parameters are each on a line"),
    ],
)
def test_other_ptx_is_refused_in_a_line(text, said):
    with pytest.raises(CannotRun, match=said):
        instrument(text, ROOM)
