"""The board of MAX's ops without MAX: what counts as wrong, what is run again, and what a table says."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from tests.nightly.max_board.__main__ import cover, main, still_left
from tests.nightly.max_board.ops import OPS
from tests.nightly.max_board.worker import compare


def answer(op: str, rows: int, verdict: str, gpu: str = "b200") -> str:
    reasons = [] if verdict == "clean" else [[verdict, "why"]]
    return (
        json.dumps({"gpu": gpu, "op": op, "rows": rows, "verdict": verdict, "kernels": [], "reasons": reasons}) + "\n"
    )


@pytest.mark.parametrize(
    ("got", "said"),
    [([1.0, 2.0], ""), ([1.0, 2.04], "1 of 2 elements are wrong"), ([np.nan, 2.0], "1 of 2"), ([1.0], "shape")],
)
def test_what_is_wrong(got, said):
    failure, _ = compare(np.array(got, np.float32), np.array([1.0, 2.0]), within=0.01)
    assert said in failure and bool(failure) == bool(said)


def test_the_references_keep_the_rows():
    """Each op's own inputs and reference, for two numbers of rows; sums and products of columns have none."""
    for name, op in OPS.items():
        for rows in op.rows[:2]:
            dice = np.random.default_rng(rows)
            values = [given.values(rows, dice) for given in op.inputs]
            wanted = op.wanted(*(v if v.dtype.kind in "iu" else v.astype(np.float64) for v in values))
            assert np.isfinite(wanted.astype(np.float64)).all(), name
            assert wanted.size and (rows in wanted.shape or {rows - 1, 50, 1} & set(wanted.shape)), name


def test_what_has_an_answer_is_not_run_again(tmp_path):
    path = tmp_path / "answers"
    path.write_text("".join(answer("softmax", rows, "clean") for rows in OPS["softmax"].rows[1:]))
    assert still_left(["softmax", "sum"], "b200", path) == {
        "softmax": [OPS["softmax"].rows[0]],
        "sum": list(OPS["sum"].rows),
    }
    assert still_left(["softmax"], "h100", path)["softmax"] == list(OPS["softmax"].rows)
    path.write_text("".join(answer("softmax", rows, "clean") for rows in OPS["softmax"].rows))
    cover(["softmax"], "b200", path)  # starts nothing


def test_the_table_and_the_exit_code(tmp_path):
    path = tmp_path / "answers"
    path.write_text(answer("softmax", 1, "clean") + answer("softmax", 7, "clean") + answer("sum", 7, "clean", "h100"))
    done = CliRunner().invoke(main, [str(path), "--table"])
    assert done.exit_code == 0 and "| softmax | 1, 7 | clean |  |" in done.output, done.output
    path.write_text(path.read_text() + answer("softmax", 129, "racy"))
    done = CliRunner().invoke(main, [str(path), "--table"])
    assert done.exit_code == 1 and "| softmax | 1, 7, 129 | 2 clean, 1 racy |  |" in done.output
    assert "b200 softmax, 129 rows: racy: why" in done.output
    assert CliRunner().invoke(main, [str(path), "--part", "8/7"]).exit_code == 2
