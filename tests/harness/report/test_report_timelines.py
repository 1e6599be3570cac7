"""The timelines of the report: the same rows for predictions and measurements, and words where there is none."""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from harness.compile.config import make_config
from harness.model.constants import find_gpu
from harness.model.measured import Trace, find_traces, read_trace
from harness.model.survey_archive import Survey
from harness.model.timeline import Span, Timeline
from harness.paths import ROOT
from harness.problem import Shape
from harness.report import timeline_section
from harness.report.timeline_picture import PLOT, picture
from harness.report.timeline_section import CTA, plan_timelines, predicted_timeline
from harness.report.timelines import WINDOW, compare

ARCHIVE = "nvidia-h200-timelines.tar.gz"


def span(row: str, name: str, kind: str, start: float, end: float) -> Span:
    return Span(CTA, row, name, kind, start, end)


def model() -> Timeline:
    """Launched at cycle 2000: a load, two multiplications, a store."""
    return Timeline(
        "x",
        "cycles",
        1e9,
        [
            span("warp 8", "issue load", "issue", 2000, 2020),
            span("TMA load A stage 0", "load A stage 0", "load", 2010, 3000),
            span("TMA load B stage 0 + 4096", "load B stage 0 + 4096", "load", 2050, 3100),
            span("warp 0", "issue MMA", "issue", 3100, 3120),
            span("tensor core", "MMA A stage 0", "mma", 3110, 4000),
            span("warp 0", "issue MMA", "issue", 4100, 4120),
            span("warp 1", "work", "work", 3100, 3120),
            span("warp 0", "issue store", "store", 22_000, 22_010),
        ],
    )


def gpu() -> Timeline:
    """Of warps 0 and 4, from its first instruction on; nobody saw the unit that stores."""
    return Timeline(
        "x",
        "cycles",
        1e9,
        [
            span("TMA load A stage 0", "load A stage 0", "load", 500, 1500),
            span("warp 0", "issue MMA", "issue", 1500, 1510),
            span("warp 0", "wait for MMA", "wait", 1510, 2500),
            span("tensor core, warp 0", "MMA", "mma", 1500, 2500),
            span("tensor core, warp 4", "MMA", "mma", 1700, 2700),
            span("warp 4", "issue store", "store", 21_000, 21_020),
        ],
        status="measured",
    )


def test_both_have_the_same_rows_and_start_with_the_first_instruction():
    found = compare(model(), gpu())
    assert found.sources == ("predicted", "measured")
    assert [row.name for row in found.rows] == ["loads, stage 0", "tensor core", "warp 0: MMA, writes C", "warp 4"]
    loads, tensor, _, other = found.rows
    assert [s.start for s in loads.predicted] == [10, 50] and [s.start for s in loads.measured] == [500]
    assert [s.start for s in tensor.predicted] == [1110] and [s.start for s in tensor.measured] == [1500, 1700]
    assert other.predicted is None, "the model has no such warp"
    figures = {row[0]: row[1:] for row in found.figures}
    assert figures["first load begins, cycle"] == ("10", "500")
    assert figures["a K step, cycles (median)"] == ("1,000", "")
    first, second = found.windows
    assert first == (0, WINDOW) and second[0] < 20_000 and second[1] > 21_000


def test_without_a_measurement_one_warp_of_each_role_is_shown():
    found = compare(model())
    assert found.sources == ("predicted",) and {row[1:] for row in found.figures} > {("10",)}
    assert [row.name for row in found.rows][-2:] == ["warp 0: MMA, writes C", "warp 8: loads"]


def test_the_picture_says_which_is_which():
    text = picture(compare(model(), gpu()), "n", "a < b", "what & why")
    root = ElementTree.fromstring(text)
    paths = [element for element in root.iter() if element.tag.endswith("path")]
    classes = {path.get("class") for path in paths}
    assert {"predicted load", "measured load", "predicted mma", "measured mma"} <= classes
    assert "not measured" not in text and text.count("not predicted") == 2, "warp 4, in both parts"
    assert not re.search(r"#[0-9a-f]{3,6}", text), "colours are the page's"
    for path in paths:
        if path.get("class") == "predicted load":
            [(x, width)] = re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", path.get("d"))
            assert float(x) == pytest.approx(10 / WINDOW * PLOT, abs=0.1), "A and B are one"
            assert float(width) == pytest.approx(1090 / WINDOW * PLOT, abs=0.1)


def test_small_gaps_are_closed():
    """Ten thousand spans of a cycle each are as good as one."""
    spans = [span("tensor core", "MMA", "mma", n, n + 0.9) for n in range(10_000)]
    text = picture(compare(Timeline("x", "cycles", 1e9, spans)), "n", "t", "d")
    assert len(text) < 4_000 and len(re.findall(r'class="predicted mma" d="M[^M]*"', text)) == 1


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of results with a survey, and a model that answers at once."""
    (tmp_path / ARCHIVE).write_bytes((ROOT / "results" / ARCHIVE).read_bytes())
    monkeypatch.setattr(timeline_section, "predicted_timeline", lambda *_: model())
    return tmp_path


def test_every_kernel_is_predicted_and_measured_on_the_gpu_that_was_surveyed(folder):
    calls = []
    planned = plan_timelines(folder, {"sm_100a"})
    surveyed, other = planned.draw(lambda: calls.append(1))
    assert len(calls) == planned.count == 8
    assert (surveyed.gpu, other.gpu) == ("NVIDIA H200", "NVIDIA B200")
    *as_surveyed, eighth = surveyed.kernels
    for one in as_surveyed:
        assert one.status == ("predicted", "measured") and not one.missing and "slower" in one.caption
        assert len(one.svg) < 60_000 and one.columns == ("", "predicted", "measured")
    assert (
        eighth.status == ("predicted",)
        and "kernel8 in a configuration that is its default no more" in eighth.missing[0]
    )
    for one in other.kernels:
        assert one.status == ("predicted",) and "measured " not in one.svg and "hollow: predicted" in one.caption
    [sentence] = other.missing
    assert sentence.startswith(
        "All of this is predicted; the cycles may be wrong by 15 %, by what others have published of the NVIDIA B200"
    )


def test_what_is_missing_is_said(folder, monkeypatch):
    """A survey that is broken, and kernels that nobody has compiled: sentences, one each."""
    (folder / ARCHIVE).write_bytes(b"no archive")
    monkeypatch.setattr(timeline_section, "predicted_timeline", predicted_timeline)
    monkeypatch.setattr(timeline_section, "is_built", lambda _: False)
    [found] = plan_timelines(folder, {"sm_90a"}).draw(lambda: None)
    assert found.kernels == () and len(found.missing) == 6
    assert found.missing[0].startswith(f"{ARCHIVE} is not shown: ")
    assert "has not been compiled here; `harness predict kernel5 --gpu h200" in found.missing[2]


def test_a_survey_that_lost_its_events_leaves_the_prediction(folder):
    path = folder / ARCHIVE
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar.getmembers() if member.isfile()}
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            if not name.endswith(".npz"):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    [found] = plan_timelines(folder, {"sm_90a"}).draw(lambda: None)
    assert all(one.status == ("predicted",) for one in found.kernels)
    assert all("the events of" in sentence for one in found.kernels for sentence in one.missing)


def test_a_trace_with_another_result_is_not_shown(folder, monkeypatch):
    def wrong(survey, name) -> Trace:
        return replace(read_trace(survey, name), same_result=False)

    monkeypatch.setattr(timeline_section, "read_trace", wrong)
    [found] = plan_timelines(folder, {"sm_90a"}).draw(lambda: None)
    assert all(one.status == ("predicted",) and "another result" in one.missing[0] for one in found.kernels)


def test_a_survey_of_another_default_is_not_laid_over(folder, monkeypatch):
    def older(survey, name) -> Trace:
        found = read_trace(survey, name)
        return replace(found, plan=replace(found.plan, config={**found.plan.config, "stages": 7}))

    monkeypatch.setattr(timeline_section, "read_trace", older)
    [found] = plan_timelines(folder, {"sm_90a"}).draw(lambda: None)
    assert all(one.status == ("predicted",) and "default no more" in one.missing[0] for one in found.kernels)


def test_what_is_compiled_is_predicted(artifacts):
    config, shape = make_config("kernel5", arch="sm_90a"), Shape(256, 256, 128)
    found = predicted_timeline(config, shape, find_gpu("h200"), 1.5e9)
    assert found.hertz == 1.5e9 and {span.cta for span in found.spans} == {CTA}


def test_the_committed_survey_has_a_trace_of_each_kernel():
    names = find_traces(Survey(ROOT / "results" / ARCHIVE))
    assert {name.split()[0] for name in names if name.split()[1] == "at"} == {f"kernel{n}" for n in (5, 6, 7, 8)}
