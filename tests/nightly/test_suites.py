"""The table of suites that import PyTorch, and the row of each line of it."""

from __future__ import annotations

import json
import re
import sys

import pytest
from click.testing import CliRunner
from processes import is_gone_soon

from emugpu.paths import ROOT
from tests.nightly.corpus.table import Program, Project, projects
from tests.nightly.suites.__main__ import main
from tests.nightly.suites.rows import HERE, row, run_suite

PROJECT = Project("project", "1", (), variables=(("OF_PROJECT", "1"),))
TESTS = """
import os
import pytest

def test_passes(pytestconfig):
    assert pytestconfig.getoption("--emulated-gpu") == "b200" and pytestconfig.getoption("--check")
    assert os.environ["OF_PROJECT"] == "1"

@pytest.mark.emulated_gpu(verdict="incomplete")
def test_has_a_verdict():
    pass

@pytest.fixture
def broken():
    raise OSError

def test_has_a_broken_fixture(broken):
    pass

def test_skips():
    pytest.skip("no")

def test_fails():
    assert not os.environ["SUITE_RECORD"]
"""


def line(name, outcome, verdict=None, why=""):
    return {"test": name, "outcome": outcome, "verdict": verdict, "why": why}


def end(ended=""):
    return {"seconds": 7.4, "ended": ended}


def row_of(*lines):
    return row(PROJECT, Program("h100", ("tests/test_it.py", "-k", "x")), lines)


def test_a_row_counts_tests_by_what_became_of_them():
    found = row_of(
        {"versions": {"torch": "2.13.0"}},
        line("a", "passed", "clean"),
        line("b", "passed"),
        line("c", "skipped"),
        line("d", "skipped", "incomplete", "the limit"),
        line("e", "failed", "racy", "race-global"),
        line("f", "failed"),
        end(),
    )
    assert found.counts == {"clean": 1, "launches nothing": 1, "skips": 1, "incomplete": 2, "racy": 1}
    assert found.reasons == ("incomplete d: the limit", "racy e: race-global", "incomplete f: ")
    assert found.versions == {"torch": "2.13.0"} and sorted(found.words) == ["clean", "incomplete", "racy"]
    suite, *cells = found.cells()
    assert suite == "project 1, h100: tests/test_it.py -k x"
    assert cells == ["6", "1", "2", "1", "", "", "1", "1", "7"]


def test_the_worst_line_of_a_test_counts():
    assert row_of(line("a", "passed", "clean"), line("a", "failed", "wrong", "why"), end()).counts == {"wrong": 1}
    assert row_of(line("a", "failed", "wrong", "why"), line("a", "failed", "incomplete"), end()).counts == {"wrong": 1}


@pytest.mark.parametrize(
    ("lines", "ended"),
    [
        ([line("a", "passed", "clean"), end("as far as 9 s went")], "as far as 9 s went"),
        ([end()], "no test was run"),
        ([end("pytest ended with code 4")], "pytest ended with code 4"),
    ],
)
def test_tests_that_did_not_run_make_a_row_incomplete(lines, ended):
    found = row_of(*lines)
    assert found.ended == ended and "incomplete" in found.words and f"({ended})" in found.cells()[0]


def test_tests_without_a_verdict_make_a_row_incomplete():
    found = row_of(line("a", "passed"), line("b", "skipped"), end())
    assert found.words == ["incomplete"] and not found.ended
    assert row_of(line("a", "passed"), line("b", "passed", "clean"), end()).words == ["clean"]


def run_in(tmp_path, *command, python=sys.executable, limit=60):
    work = (PROJECT, Program("b200", command))
    return run_suite(work, python=python, sources=tmp_path, answers=tmp_path, limit=limit)


@pytest.mark.slow
def test_a_suite_is_run_by_pytest_and_its_record_stays(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "test_skipped.py").write_text("import pytest; pytest.importorskip('nosuch')", encoding="utf-8")
    found = run_in(tmp_path, "-p", "no:cacheprovider", "test_it.py", "test_skipped.py")
    assert found.counts == {"launches nothing": 1, "skips": 2, "incomplete": 3} and not found.ended
    for reason, says in zip(
        found.reasons,
        [
            "has_a_verdict: the program has launched nothing",
            "has_a_broken_fixture: the test failed: OSError",
            "fails: the test failed: AssertionError",
        ],
        strict=True,
    ):
        assert reason.startswith(f"incomplete test_it.py::test_{says}")
    (tmp_path / "test_it.py").unlink()
    assert run_in(tmp_path, "-p", "no:cacheprovider", "test_it.py", "test_skipped.py") == found


@pytest.mark.slow
def test_the_record_of_a_line_that_ran_no_test_does_not_stay(tmp_path):
    assert run_in(tmp_path, "test_it.py").ended == "pytest ended with code 4"
    (tmp_path / "test_it.py").write_text("def test_passes(): pass", encoding="utf-8")
    assert run_in(tmp_path, "test_it.py").counts == {"launches nothing": 1}


def test_a_suite_beyond_its_limit_is_incomplete(tmp_path):
    """No process that it has started outlives it, and what has ended before counts."""
    python, started = tmp_path / "python", tmp_path / "started"
    ended = json.dumps(line("a", "passed", "clean"))
    python.write_text(f"#!/bin/sh\necho '{ended}' >> $SUITE_RECORD\nsleep 60 & echo $! > {started}\nwait\n")
    python.chmod(0o755)
    found = run_in(tmp_path, "test_it.py", python=str(python), limit=1)
    assert (found.counts, found.ended) == ({"clean": 1}, "as far as 1 s went")
    assert is_gone_soon(int(started.read_text()))


@pytest.mark.parametrize(("verdict", "code"), [("clean", 0), ("racy", 1), ("wrong", 4), ("incomplete", 5)])
def test_the_command_takes_the_answers_that_are_there(tmp_path, verdict, code):
    lines = (line("a", "passed", verdict, "why"), end())
    file = tmp_path / "Liger-Kernel_test_transformers_test_sparsemax.py.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")
    folders = ["--sources", str(tmp_path), "--answers", str(tmp_path), "--json", str(tmp_path / "rows.json")]
    done = CliRunner().invoke(main, ["--project", "liger", "--match", "test_sparsemax.py", *folders])
    assert done.exit_code == code, done.stderr
    suite = "Liger-Kernel ead96b61, h100: test/transformers/test_sparsemax.py"
    assert done.stdout.splitlines()[2].startswith(f"| {suite} | 1 |")
    assert (f"{verdict} a: why" in done.stderr.splitlines()) == (verdict != "clean")
    [found] = json.loads((tmp_path / "rows.json").read_text())
    assert found["counts"] == {verdict: 1}


def test_a_line_that_runs_no_test_is_an_error_after_the_table(tmp_path):
    file = tmp_path / "Liger-Kernel_test_transformers_test_sparsemax.py.jsonl"
    file.write_text(json.dumps(end("pytest ended with code 2")), encoding="utf-8")
    folders = ["--sources", str(tmp_path), "--answers", str(tmp_path)]
    done = CliRunner().invoke(main, ["--match", "test_sparsemax.py", "--project", "liger", *folders])
    assert done.exit_code == 3 and "test_sparsemax.py (pytest ended with code 2) | 0 |" in done.stdout
    said = "Liger-Kernel, test/transformers/test_sparsemax.py: pytest ended with code 2; "
    assert said in done.stderr.splitlines()[-1] and not file.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--project", "nosuch"], "--project 'nosuch': no project has that in its name; they are Liger-Kernel, "),
        (["--match", "nosuch"], "--match 'nosuch': no program's command has that in it"),
        (["--limit", "inf"], "'--limit': inf is not a finite number"),
        (["--python", "nosuch"], "--python nosuch: there is no such program"),
        (["--match", "test_softmax.py"], "Liger-Kernel; fetch the code with --get"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["--sources", "code", "--answers", "answers", *words])
    assert done.exit_code == 2 and says in done.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("answers/*.jsonl"))


def test_the_nightly_workflow_runs_each_project_once():
    jobs = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    (parts,) = re.findall(r"project: \[(.*)\]", jobs.partition("\n  suites:\n")[2])
    for project in projects(HERE / "suites.toml"):
        assert [part.lower() in project.name.lower() for part in parts.split(", ")].count(True) == 1, project.name


def test_every_line_of_the_table_is_named_once_and_says_where_it_comes_from():
    table = projects(HERE / "suites.toml")
    lines = [(project.name, program.name) for project in table for program in project.programs]
    assert len(lines) == len(set(lines)) >= 15
    for project in table:
        assert project.version and project.programs and project.folder and len(project.commit) == 40
        assert "pytest" in project.packages and project.commit.startswith(project.version.partition(",")[0])
