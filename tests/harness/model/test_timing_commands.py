"""``harness predict``, ``harness timeline``: what scripts rely on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from harness.cli.main import main
from harness.model.timeline import Sample, Span, Timeline
from harness.model.timeline_svg import round_numbers

LAUNCHES = Path(__file__).parents[2] / "data" / "launches"
FIELDS = {
    "kernel", "config", "gpu", "shape", "cycles", "seconds", "tflops", "error_percent", "tensor_busy", "limits",
}  # fmt: skip


def harness(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def predictions(*words: str | Path) -> list[dict[str, Any]]:
    result = harness(*words, "--json", "-")
    assert result.exit_code == 0, result.output
    data = json.loads(result.output)
    assert set(data) == {"predictions"}
    found: list[dict[str, Any]] = data["predictions"]
    assert all(set(each) >= FIELDS for each in found)
    return found


def test_predict_as_json() -> None:
    (found,) = predictions("predict", "kernel7", "--gpu", "h200", "--shape", "512", "--what-if", "l2.latency=4x")
    assert (found["kernel"], found["gpu"], found["shape"]) == ("kernel7", "h200", [512, 512, 512])
    assert found["status"] == "predicted"
    assert found["tflops"] == pytest.approx(2 * 512**3 / found["seconds"] / 1e12, rel=0.01)
    assert sum(limit["cycles"] for limit in found["limits"]) == pytest.approx(found["cycles"], abs=8)
    assert found["what_if"][0]["change"] == "l2.latency=4x"
    assert found["what_if"][0]["cycles"] > found["cycles"]


def test_predict_says_that_it_predicts_and_how_wrong_it_may_be() -> None:
    output = harness("predict", "kernel7", "--gpu", "h200", "--shape", "512").output
    assert "Predicted, not measured" in output
    figures = [line for line in output.splitlines() if line.startswith("predicted")]
    assert len(figures) == 5
    assert all("±" in line for line in figures if "cycles" in line or "TFLOPS" in line)


def test_predict_checks_the_result_too() -> None:
    (found,) = predictions("predict", LAUNCHES / "triton_tma_matmul_sm90.toml", "--gpu", "h200")
    assert found["cycles"] > 0 and found["tflops"] > 0
    assert sum(limit["cycles"] for limit in found["limits"]) == pytest.approx(found["cycles"], abs=8)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("predict", "kernel7", "--gpu", "h300"), "h300"),
        (("predict", "kernel7", "--gpu", "h200", "--what-if", "l2.speed=2x"), "l2.speed"),
        (("predict", "kernel7", "--gpu", "h200", "-c", "arch=sm_100a"), "sm_100a"),
        (("predict", "kernel7", "--gpu", "h200", "--shape", "256", "--what-if", "l2.bandwidth=0"), "no result (float"),
        (("predict", "kernel7", "--gpu", "h200", "--shape", "256", "--what-if", "l2.bandwidth=1e-300"), "no result"),
        (("predict", LAUNCHES / "triton_softmax_sm90.toml", "--gpu", "b200"), "b200"),
        (("timeline", "kernel7", "--gpu", "h200", "-o", "trace.txt"), "trace.txt"),
        (("timeline", "kernel99", "--gpu", "h200", "-o", "trace.json"), "kernel99"),
        (("timeline", "kernel7", "--gpu", "h200", "-o", "trace.json", "--ctas", "first"), "first"),
        (("timeline", "kernel7", "--gpu", "h200", "-o", "no/trace.json"), "is not a file in an existing folder"),
        (
            ("timeline", "kernel7", "--shape", "256", "-o", "trace.svg", "--ctas", "0,7:1"),
            "--ctas 7:1: the run has no events",
        ),
        (("timeline", "kernel7", "-o", "trace.svg", "--cycles", "nan"), "--cycles 'nan' is not FIRST:LAST"),
        (("timeline", "kernel7", "-o", "trace.svg", "--cycles", "5:5"), "the last must be above the first"),
        (("timeline", "kernel7"), "name a file for the timeline: -o FILE.json"),
        (("timeline", "kernel6", "kernel7", "-o", "trace.json"), "several kernels are one picture; name it .svg"),
        (("timeline", "x.toml", "y.toml", "-o", "x.svg"), "2 names are given, x.toml, y.toml; name one launch file"),
        (("timeline", "x.toml", "--shape", "8", "-c", "stages=2", "-o", "x.svg"), "leave --shape, --config out"),
    ],
)
def test_wrong_usage_is_one_clear_line(words: Sequence[str | Path], named: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = harness(*words)
    assert result.exit_code == 2, result.output
    assert named in result.output and "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("timeline") / "trace.json"
    result = harness("timeline", "kernel7", "--gpu", "h200", "--shape", "256,256,512", "-o", path)
    assert result.exit_code == 0, result.output
    data = json.loads(path.read_text())
    assert data["otherData"]["status"] == "predicted"
    events: list[dict[str, Any]] = data["traceEvents"]
    return events


def test_trace_events_keep_to_the_format(trace: list[dict[str, Any]]) -> None:
    assert {event["ph"] for event in trace} == {"M", "X", "C", "s", "f"}
    rows = {(e["pid"], e["tid"]) for e in trace if e["ph"] == "M" and e["name"] == "thread_name"}
    for event in trace:
        assert isinstance(event["pid"], int) and event["name"]
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0 and (event["pid"], event["tid"]) in rows
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())


def test_spans_of_one_unit_do_not_overlap(trace: list[dict[str, Any]]) -> None:
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    for row, name in names.items():
        if name != "tensor core" and not name.startswith("TMA load"):
            assert "(2)" not in name or name.startswith("TMA store"), "only stores overlap"
            continue
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in trace if e["ph"] == "X" and (e["pid"], e["tid"]) == row)
        assert spans and " + " not in name, "all boxes of a stage in one row"
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(spans)), name


def nanoseconds(event: dict[str, Any]) -> tuple[int, int]:
    """First and last, which Perfetto rounds each to a whole one."""
    return round(1000 * event["ts"]), round(1000 * event["ts"]) + round(1000 * event["dur"])


@pytest.fixture(scope="module")
def trace_of_pairs(artifacts, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of kernel 7 with pairs of CTAs, of which one has the barriers that say that a stage is full."""
    path = tmp_path_factory.mktemp("timeline") / "trace.json"
    result = harness("timeline", "kernel7", "--gpu", "b200", "-c", "cluster=2x1", "--shape", "256,256,512", "-o", path)
    assert result.exit_code == 0, result.output
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


@pytest.mark.parametrize("which", ["trace", "trace_of_pairs"])
def test_spans_of_a_thread_come_one_after_another(which: str, request: pytest.FixtureRequest) -> None:
    """To the nanosecond: Perfetto takes one that begins within another for its child, and cuts what sticks out."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in request.getfixturevalue(which):
        if event["ph"] == "X":
            assert event["ts"] * 1000 == pytest.approx(round(event["ts"] * 1000), abs=1e-6)
            threads.setdefault((event["pid"], event["tid"]), []).append(nanoseconds(event))
    for spans in threads.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))


@pytest.mark.parametrize("which", ["trace", "trace_of_pairs"])
def test_flows_are_tied_to_the_spans_they_mean(which: str, request: pytest.FixtureRequest) -> None:
    kinds = {"stage": ("load", "mma"), "accumulator": ("mma", "convert"), "tile of C": ("convert", "store")}
    events = request.getfixturevalue(which)
    seen = set()
    for event in events:
        if event["ph"] in "sf":
            at = round(1000 * event["ts"])
            row = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (event["pid"], event["tid"])]
            around = [e for e in row if nanoseconds(e)[0] <= at <= nanoseconds(e)[1] and e["dur"] > 0]
            kind = kinds[event["name"]][event["ph"] == "f"]
            assert kind in {e["cat"] for e in around}
            seen.add((event["name"], event["ph"]))
    assert len(seen) == 6


@pytest.mark.parametrize("which", ["trace", "trace_of_pairs"])
def test_counters_are_never_negative(which: str, request: pytest.FixtureRequest) -> None:
    counted = [e for e in request.getfixturevalue(which) if e["ph"] == "C"]
    assert all(e["args"]["value"] >= 0 for e in counted)
    assert {e["name"] for e in counted} == {"bytes in flight", "ring: full stages", "tensor core busy, %"}


def test_a_window_begins_with_the_counters_as_they_stand() -> None:
    cta = (0, 0)
    spans = [Span(cta, "tensor core", "MMA", "mma", 0, 100)]
    samples = [Sample(cta, "ring", 10, 1), Sample(cta, "ring", 20, 2), Sample(cta, "ring", 60, 3)]
    found = Timeline("x", "cycles", 1e9, spans, [], samples).within(50, 90)
    assert [(s.at, s.value) for s in found.samples] == [(50, 2), (60, 3)]


def test_no_warp_but_that_of_the_mma_issues_it(trace_of_pairs: list[dict[str, Any]]) -> None:
    """Allocating TMEM is no multiplication, though it is tcgen05, too."""
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace_of_pairs if e["name"] == "thread_name"}
    issuing = {rows[e["pid"], e["tid"]] for e in trace_of_pairs if e["name"] == "issue MMA"}
    assert len(issuing) == 1


def test_flows_lead_from_loads_over_mmas_to_stores(trace: list[dict[str, Any]]) -> None:
    begins = {event["id"]: event for event in trace if event["ph"] == "s"}
    ends = {event["id"]: event for event in trace if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert {event["name"] for event in begins.values()} == {"stage", "accumulator", "tile of C"}
    assert all(begins[n]["ts"] <= ends[n]["ts"] for n in begins)
    assert sum(event["name"] == "stage" for event in begins.values()) == 2 * 8  # CTAs, K steps


def test_the_ring_is_never_fuller_than_it_is_deep(trace: list[dict[str, Any]]) -> None:
    fill = [e["args"]["value"] for e in trace if e["ph"] == "C" and e["name"].startswith("ring")]
    in_flight = [e["args"]["value"] for e in trace if e["ph"] == "C" and e["name"] == "bytes in flight"]
    assert 2 <= max(fill) <= 4 and min(fill) >= 0
    assert max(in_flight) <= 4 * (128 + 256) * 64 * 2 and in_flight[-1] == 0


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_pictures_and_pages_stand_alone(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"timeline.{suffix}"
    result = harness("timeline", "kernel7", "--gpu", "h200", "--shape", "256,256,128", "-o", path)
    assert result.exit_code == 0, result.output
    text = path.read_text()
    assert "predicted" in text and "tensor core" in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    if suffix == "svg":
        assert ElementTree.fromstring(text).tag.endswith("svg")


def test_a_picture_of_a_part_ends_where_it_was_asked_to_and_has_round_ticks(tmp_path: Path) -> None:
    path = tmp_path / "timeline.svg"
    words = ("timeline", "kernel7", "--gpu", "h200", "--shape", "256,256,512", "--cycles", "1040:3519")
    result = harness(*words, "-o", path)
    assert result.exit_code == 0, result.output
    drawn = ElementTree.parse(path).getroot()
    svg = "{http://www.w3.org/2000/svg}"
    texts = [(float(e.get("x", 0)), e.text or "") for e in drawn.iter(f"{svg}text")]
    ticks = [(x, int(text.replace(",", ""))) for x, text in texts if text.replace(",", "").isdecimal()]
    assert [value for _, value in ticks] == [1500, 2000, 2500, 3000, 3500]
    scale = 1100 / (3519 - 1040)
    assert all(x == pytest.approx(150 + (value - 1040) * scale, abs=0.1) for x, value in ticks)
    bars = [e for e in drawn.iter(f"{svg}rect") if e.find(f"{svg}title") is not None]
    lefts = [float(bar.attrib["x"]) for bar in bars]
    rights = [float(bar.attrib["x"]) + float(bar.attrib["width"]) for bar in bars]
    assert min(lefts) >= 150 and max(rights) <= 1250.5


@pytest.mark.parametrize(
    ("begin", "end", "ticks"),
    [
        (0, 20_000, [0, 2000, 4000, 6000, 8000, 10_000, 12_000, 14_000, 16_000, 18_000, 20_000]),
        (1040, 3519, [1500, 2000, 2500, 3000, 3500]),
        (0, 1, [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]),
        (-5, 7, [-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_ticks_are_round_numbers(begin: float, end: float, ticks: list[float]) -> None:
    assert round_numbers(begin, end) == pytest.approx(ticks)


def test_a_guess_is_said_to_be_one() -> None:
    """Nobody has compared the model with an H100; with an H200 it was, by us, and with a B200, by others' figures."""
    guess = harness("predict", "kernel5", "--gpu", "h100", "--shape", "256").output
    assert "of the cycles is a guess, as no NVIDIA H100" in " ".join(guess.split())
    assert "% (a guess)" in guess and "may be wrong" not in guess
    published = " ".join(harness("predict", "kernel7", "--gpu", "b200", "--shape", "256").output.split())
    assert "may be wrong by 15 %, by what others have published of the NVIDIA B200" in published
    assert "guess" not in published
    one_stage = harness("predict", "kernel5", "--gpu", "b200", "--shape", "256").output
    assert "may be wrong by 65 %" in " ".join(one_stage.split())
    known = harness("predict", "kernel5", "--gpu", "h200", "--shape", "256").output
    assert "the cycles may be wrong by 22 %" in known and "guess" not in known


def test_without_the_model_a_timeline_has_steps_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    result = harness("timeline", "kernel7", "--gpu", "h200", "--shape", "256,256,128", "--steps", "-o", path)
    assert result.exit_code == 0, result.output
    data = json.loads(path.read_text())
    assert data["otherData"]["status"] == "logical steps" and "no times" in data["otherData"]["title"]
    multiplications = [e for e in data["traceEvents"] if e["ph"] == "X" and e["cat"] == "mma"]
    # Two CTAs, two K steps, four instructions of each of two warpgroups: a step each. Those of the first stage are only
    # a step apart, and are drawn together with the steps between.
    assert sum(e["dur"] for e in multiplications) == pytest.approx(2 * (2 * (4 + 3) + 8))


@pytest.mark.parametrize("words", [("predict", "--gpu", "h200"), ("tune",)], ids=lambda words: words[0])
def test_groups_are_refused_with_what_is_taken(words: tuple[str, ...]) -> None:
    """Before anything is built, even where their rows do not add up to M."""
    command, *options = words
    result = harness(command, "kernel8", *options, "--shape", "288,512,256", "--problem", "groups=40,0,248")
    assert result.exit_code == 2
    assert "--problem groups=40,0,248: this command takes NAME=VALUE, of: inputs" in result.output
