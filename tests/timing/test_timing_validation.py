"""What report and docs say of the model's errors: one set of predictions, marked as such, beside the recording."""

from __future__ import annotations

import json

import pytest

from harness.errors import CannotRun
from harness.report import model
from harness.timing.constants import find_gpu
from metrology.survey.uses import JUDGE
from metrology.validation.validate import PAGE, PICTURE
from metrology.validation.validation import GPU, compare, judge, read_recording
from metrology.validation.validation_kept import PREDICTED, as_json, read_predictions
from metrology.validation.validation_report import BEGIN, END, USES, markdown, put_between, scatter


def test_the_docs_show_what_is_kept():
    rows, _ = read_predictions(find_gpu(GPU))
    page = PAGE.read_text(encoding="utf-8")
    assert put_between(page, markdown(rows)) == page and BEGIN in page and END in page
    assert PICTURE.read_text(encoding="utf-8") == scatter(rows)


def test_every_run_of_the_recording_is_predicted_with_the_constants_of_now():
    rows, current = read_predictions(find_gpu(GPU))
    assert [row.measured.name for row in rows] == [run.name for run in read_recording()]
    assert current, "the constants were changed: python -m metrology.validation.validate --write"
    assert json.loads(PREDICTED.read_text(encoding="utf-8"))["status"] == "predicted"


def test_a_kept_prediction_is_what_the_model_says(artifacts):
    """The quickest one; all of them take a minute."""
    name = "kernel7 at 512x512x512"
    [run] = [run for run in read_recording() if run.name == name]
    [found] = compare([run], find_gpu(GPU))
    kept = next(row for row in read_predictions(find_gpu(GPU))[0] if row.measured.name == name)
    assert kept.cycles == pytest.approx(found.cycles, rel=1e-6), "python -m metrology.validation.validate --write"
    assert (kept.dram, kept.l2) == (found.dram, found.l2)


def test_what_is_written_is_read_again(tmp_path):
    gpu = find_gpu(GPU)
    rows, _ = read_predictions(gpu)
    path = tmp_path / "kept.json"
    path.write_text(as_json(rows, gpu))
    assert read_predictions(gpu, path) == (rows, True)
    assert read_predictions(gpu.with_values({"l2.latency": 1.0}), path) == (rows, False)


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": [{}], "constants": ""}', '{"runs": [], "constants": ""}'])
def test_a_file_that_is_something_else_is_said_in_a_line(tmp_path, text):
    path = tmp_path / "kept.json"
    path.write_text(text)
    with pytest.raises(CannotRun, match=r"kept\.json .*--write"):
        read_predictions(find_gpu(GPU), path)
    with pytest.raises(CannotRun, match="is not there"):
        read_predictions(find_gpu(GPU), tmp_path / "none.json")


def test_the_report_has_the_judgement_and_every_run():
    pytest.importorskip("matplotlib", reason="matplotlib draws the figures")
    found = model.model_check()
    rows, _ = read_predictions(find_gpu(GPU))
    judged = judge([row for row in rows if row.measured.use == JUDGE])
    assert found.rows[0][:4] == (USES[JUDGE], "60", f"{100 * judged.mean:.1f} %", f"{100 * judged.largest:.1f} %")
    assert found.figure is not None and found.figure.status == "predicted and measured"
    assert len(found.figure.rows) == len(rows) and found.figure.columns[2:4] == ("measured cycles", "predicted cycles")


def test_predictions_of_other_constants_and_missing_ones_are_said(monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib draws the figures")
    rows, _ = read_predictions(find_gpu(GPU))
    monkeypatch.setattr(model, "read_predictions", lambda _: (rows, False))
    assert "other constants than the model has now" in model.model_check().sentences[-1]

    def none(_):
        raise CannotRun("kept.json is not there; it is part of a checkout")

    monkeypatch.setattr(model, "read_predictions", none)
    found = model.model_check()
    assert found.figure is None and found.sentences == (
        "How wrong the model is cannot be shown: kept.json is not there; it is part of a checkout.",
    )
