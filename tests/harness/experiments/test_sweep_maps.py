"""Maps of sweeps: the best configuration by shape, and what the default loses."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner

from harness.cli.main import main
from harness.compile.config import make_config
from harness.experiments import sweep_table as table
from harness.experiments.job import Job
from harness.problem import Shape
from harness.report.maps import draw, load_maps, maps

SHAPES = [Shape(m, 4096, k) for m in (512, 1024) for k in (512, 1024)]
CONFIGS = [make_config("kernel7", arch="sm_90a", stages=stages) for stages in (4, 3)]  # four is the default


def record(config, shape, seconds):
    job = Job(config, shape, "normal", kind="run", device="gpu", made_by="")
    fields = job.fields()
    fields["config"]["mma_shape"] += [64]  # as a launch plan has it
    timing = {"seconds": seconds, "tflops": shape.flops / seconds / 1e12}
    return {
        "schema": 1, "time": "2026-11-21T00:00:00+00:00", **fields, "device": {"kind": "nvidia-h200"},
        "validation": {"passed": True}, "timing": timing,
    }  # fmt: skip


@pytest.fixture
def records():
    """Three stages are a tenth faster where K is 512, else a tenth slower."""
    return [
        record(config, shape, 1e-4 * (1 if config.stages == 4 else 0.9 if shape.k == 512 else 1.1))
        for shape in SHAPES
        for config in CONFIGS
    ]


def test_the_best_by_shape_and_what_the_default_loses(records):
    assert CONFIGS[0] == make_config("kernel7", arch="sm_90a")
    (found,) = maps(records)
    assert (found.kernel, found.device, found.figures) == ("kernel7", "nvidia-h200", "measured")
    by_shape = {cell.shape: cell for cell in found.cells}
    assert len(by_shape) == 4 and all(cell.tried == 2 for cell in found.cells)
    for shape, cell in by_shape.items():
        assert cell.best["stages"] == (3 if shape.k == 512 else 4)
        assert cell.loss == pytest.approx(1 / 0.9 - 1 if shape.k == 512 else 0)


def test_wrong_results_and_failures_are_no_best(records):
    for one in records:
        if one["config"]["stages"] == 3:
            one["validation"]["passed"] = False
    assert maps(records) == []


def test_what_was_not_tried_is_not_known(records):
    others = [one for one in records if one["config"]["stages"] == 3]
    for one in [json.loads(json.dumps(one)) for one in others]:
        one["config"]["stages"] = 2
        others.append(one)
    assert all(cell.loss is None for cell in maps(others)[0].cells)


def test_the_default_is_the_best_if_nothing_is_better(records):
    """Counters are often the same; which of these is read first says nothing."""
    for one in records:
        one["timing"]["seconds"] = 1e-4
    for order in (records, records[::-1]):
        cells = maps(order)[0].cells
        assert all(cell.best["stages"] == 4 and cell.loss == 0 and cell.as_good == 2 for cell in cells)


@pytest.mark.slow
@pytest.mark.xdist_group("reports")
def test_a_report_of_sweeps_alone(records, tmp_path, monkeypatch):
    """Nobody has run `harness bench`."""
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "x.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    monkeypatch.setenv("HARNESS_RESULTS_DIR", str(tmp_path))
    done = CliRunner().invoke(main, ["report", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "out" / "index.html").read_text()
    assert "The best configuration of kernel7 by shape, bf16 on nvidia-h200" in text
    assert 'id="kernels"' not in text


def test_a_large_map_has_numbers_for_its_configurations():
    """Words would not fit; what the numbers mean is in its description."""
    shapes = [Shape(256 * m, 4096, 512 * k) for m in range(1, 19) for k in (1, 2)]
    seconds = {4: 1.0, 3: 0.9}
    found = [record(c, s, seconds[c.stages] if s.k == 512 else 1 / seconds[c.stages]) for s in shapes for c in CONFIGS]
    figure = draw(maps(found)[0])
    assert "1 is 128x256 2x1 s3, 2 is 128x256 2x1 s4" in figure.description
    text = figure.svg
    assert text.count(">1</text>") == text.count(">2</text>") == 18 and "s3</text>" not in text


def test_the_figure_and_the_table(records, tmp_path):
    (tmp_path / "sweeps").mkdir()
    path = tmp_path / "sweeps" / "x.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    for one in records:  # what older kernels have left, in a file that comes later
        older = {**one, "time": "2026-11-20T00:00:00+00:00", "job": {**one["job"], "key": "older" + one["job"]["key"]}}
        older["timing"] = {"seconds": 1e-9}
        with (tmp_path / "sweeps" / "y.jsonl").open("a") as file:
            file.write(json.dumps(older) + "\n")
    figure = draw(load_maps(tmp_path)[0])
    assert len(figure.rows) == 4 and "+11.1 %" in figure.svg and "the default" in figure.svg
    rows = table.load(path)
    assert len(rows) == 8 and math.isclose(min(row["measured_seconds"] for row in rows), 0.9e-4)
    assert {row["config_mma_shape"] for row in rows} == {"x".join(map(str, CONFIGS[0].mma_shape))}
    assert {row["predicted_seconds"] for row in rows} == {None}
