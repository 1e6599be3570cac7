"""What tuning has kept, as the report shows it."""

import pytest

from harness.build.config import make_config
from harness.paths import ROOT
from harness.problem import Shape
from harness.report import tuned
from harness.report.data import Results
from harness.report.page import page
from harness.run.tuned import class_of, entry_of, keep

EVIDENCE = {"device": "NVIDIA X", "shape": [300, 512, 64], "gain": 1.25, "interval": [1.2, 1.3], "verdict": "FASTER"}


def test_a_gain_and_a_default(results_dir):
    config = make_config("kernel7", cluster=(4, 2))
    keep("nvidia-x", entry_of(config, class_of(Shape(300, 512, 64)), EVIDENCE))
    keep(
        "nvidia-x", entry_of(config, class_of(Shape(30, 512, 64)), {"device": "NVIDIA X", "gain": 1.0, "candidates": 6})
    )
    (table,) = tuned.tuned_tables(results_dir)
    assert table.gpu == "NVIDIA X" and not table.missing
    first, second = sorted(table.rows)
    assert first[:4] == (
        "kernel7 bf16 M 1 to 256, N 512, K 64",
        f"the default, {second[1]}",
        "1.000",
        "first in the race",
    )
    assert second[2:4] == ("1.250 (1.200 to 1.300)", "FASTER") and "4x2" in second[1]
    text = page(Results([], []), [], [], tuned=[table])
    assert 'href="#tuned"' in text and "1.250 (1.200 to 1.300)" in text


def test_a_file_that_cannot_be_read_is_a_sentence(results_dir):
    (results_dir / "tuned").mkdir(parents=True)
    (results_dir / "tuned/nvidia-x.toml").write_text("schema = 7\n")
    (table,) = tuned.tuned_tables(results_dir)
    assert "this harness reads 1" in table.missing and table.rows == ()
    assert "this harness reads 1" in page(Results([], []), [], [], tuned=[table])


@pytest.mark.parametrize("evidence", [{}, {"gain": "much"}, {"gain": 1.1, "interval": [1.0]}])
def test_evidence_that_tuning_does_not_write_is_a_sentence(results_dir, evidence):
    keep("nvidia-x", entry_of(make_config("kernel7"), class_of(Shape(300, 512, 64)), evidence))
    (table,) = tuned.tuned_tables(results_dir)
    assert "nvidia-x.toml has evidence that harness tune does not write" in table.missing and table.rows == ()


def test_what_is_kept_in_the_project_can_still_be():
    """A kernel that has changed its options would leave entries behind that nothing uses."""
    for table in tuned.tuned_tables(ROOT / "results"):
        assert not table.missing and table.rows
        assert not any("no longer possible" in cell for row in table.rows for cell in row)
