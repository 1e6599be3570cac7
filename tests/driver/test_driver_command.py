"""The options of ``harness exec``: what is refused before anything is started."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from harness.cli.main import main


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "Missing argument"),
        (["--gpu", "h300", "--", "true"], "h300"),
        (["--", "no-such-program-anywhere"], "no-such-program-anywhere"),
        (["--json", "no/such/folder/out.json", "--", "true"], "no/such/folder/out.json"),
        (["--record", "{full}", "--", "true"], "is not empty"),
        (["--record", "{full}/kept/deeper", "--", "true"], "is not a folder; name another folder"),
        (["--seed", "-1", "--", "true"], "-1"),
    ],
)
def test_wrong_requests_are_one_line(words, said, tmp_path):
    (tmp_path / "kept").write_text("")
    done = CliRunner().invoke(main, ["exec", *(word.format(full=tmp_path) for word in words)])
    assert done.exit_code == 2
    assert said in done.output and "Traceback" not in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_program_that_needs_no_gpu_runs_and_its_exit_code_comes_back():
    assert CliRunner().invoke(main, ["exec", "--quiet", "--", "sh", "-c", "exit 9"]).exit_code == 9
