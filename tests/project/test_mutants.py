"""The mutation tool, on a tiny program of its own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from mutation import Mutant, compiled, draw

COMMAND = Path(__file__).parents[1] / "mutation/mutants.py"

PROGRAM = '''"""A module 1."""
from functools import lru_cache


@lru_cache(maxsize=7)
def clamp(value: "int | None", low: int, high: int = 100) -> "int | None":
    """At most 9."""
    if value is None or not low <= high:
        raise ValueError(f"{value} is {high + 1} > {low}")
    if value < low:
        value = low
    return min(value, high)


class Total:
    def __init__(self):
        self.sum = 0

    def __repr__(self):
        return "Total " + str(self.sum + 5)

    def add(self, values):
        for value in values:
            if value == 13:
                continue
            self.sum += value
        values.clear()
        note = self.sum
        return f"{self.sum + 3}"


def never():
    return 6 * 7
'''

TESTS = """
from package.program import Total, clamp


def test_clamp():
    assert [clamp(value, 10, 20) for value in (5, 15, 25)] == [10, 15, 20]


def test_total():
    total = Total()
    total.add([1, 13, 2])
    assert total.sum == 3
"""


@pytest.fixture
def root(tmp_path) -> Path:
    for path, text in {"package/program.py": PROGRAM, "tests/test_program.py": TESTS}.items():
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(text)
    return tmp_path


def everything(root: Path, seed: int = 1) -> list[Mutant]:
    return draw(root, "package", 1000, seed)


def test_every_place_and_nothing_else(root):
    found = {(m.line, m.before, m.after) for seed in range(20) for m in everything(root, seed)}
    condition = "value is None or not low <= high"
    assert found == {
        (6, "100", "101"),
        (6, "100", "99"),
        (8, condition, "value is None and (not low <= high)"),
        (8, condition, f"not ({condition})"),
        (8, "value is None", "value is not None"),
        (8, "not low <= high", "low <= high"),
        (8, "low <= high", "low < high"),
        (10, "value < low", "value <= low"),
        (10, "value < low", "not value < low"),
        (11, "value = low", "pass"),
        (17, "self.sum = 0", "self.sum = 1"),
        (17, "self.sum = 0", "self.sum = -1"),
        (24, "value == 13", "value != 13"),
        (24, "value == 13", "value == 14"),
        (24, "value == 13", "value == 12"),
        (25, "continue", "pass"),
        (26, "self.sum += value", "self.sum -= value"),
        (26, "self.sum += value", "pass"),
        (27, "values.clear()", "pass"),
        (33, "6 * 7", "6 // 7"),
        (33, "6 * 7", "7 * 7"),
        (33, "6 * 7", "5 * 7"),
        (33, "6 * 7", "6 * 8"),
        (33, "6 * 7", "6 * 6"),
    }


def test_f_strings_are_code_where_programs_are_translated(root):
    (root / "package" / "translate").mkdir()
    (root / "package" / "translate" / "writer.py").write_text('def f(n):\n    return f"load({n * 4:08x})"\n')
    lines = [mutant for mutant in everything(root) if "translate" in mutant.path]
    assert {mutant.before for mutant in lines} == {"n * 4"} and {mutant.line for mutant in lines} == {2}


def test_what_is_said_is_text_among_code_too(root):
    (root / "package" / "instructions").mkdir()
    text = 'def f(n, findings):\n    findings.warn("rule", f"at {n + 1}")\n    return f"load({n * 4})"\n'
    (root / "package" / "instructions" / "load.py").write_text(text)
    lines = [mutant for mutant in everything(root) if "instructions" in mutant.path]
    assert {mutant.before for mutant in lines} == {"findings.warn('rule', f'at {n + 1}')", "n * 4"}


def test_functions_of_reports_that_return_text_are_left_out(root):
    text = "def f(n) -> list[str]:\n    return [str(n * 2)]\n\n\ndef g(n) -> int:\n    return n + 3\n"
    (root / "package" / "reports.py").write_text(text)
    assert {mutant.before for mutant in everything(root) if "reports" in mutant.path} == {"n + 3"}


def test_what_no_program_can_notice_is_left_out(root):
    text = """
Shape = int | Sequence[int]


def f(n: int | Sequence[int], rng, x, *more: str | Iterable[str]) -> int | None:
    self._turns += 1
    if rng.random() < 0.25:
        x.reshape(-1, n)
    return max(-1, n)
"""
    (root / "package" / "types.py").write_text(text)
    found = {(m.before, m.after) for seed in range(9) for m in everything(root, seed) if "types" in m.path}
    assert found == {
        ("rng.random() < 0.25", "not rng.random() < 0.25"),
        ("x.reshape(-1, n)", "pass"),
        ("-1", "-2"),
        ("-1", "-0"),
    }


def test_the_draw_is_reproducible(root):
    few = draw(root, "package", 5, seed=3)
    assert len(few) == 5 and few == draw(root, "package", 5, seed=3) != draw(root, "package", 5, seed=4)
    assert [mutant.line for mutant in draw(root, "package", 99, 1, ["package/program.py:11"])] == [11]
    assert draw(root, "package", 99, 1, ["package/other.py"]) == []


def test_every_fault_compiles_to_other_code(root):
    path = root / "package/program.py"
    original = compile(ast.parse(path.read_text()), str(path), "exec", dont_inherit=True)
    for mutant in everything(root):
        assert compiled(root, mutant) != original, mutant


def mutants(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, COMMAND, "--under", "package", "--tests", "tests/test_*.py", *options]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_faults_are_seen_or_survive(root):
    lines = (10, 11, 24, 26, 33)
    only = [f"--only=package/program.py:{line}" for line in lines]
    done = mutants(root, *only, "--json", "result.json")
    assert done.returncode == 0, done.stderr
    result = {(row["before"], row["after"]): row for row in json.loads((root / "result.json").read_text())}
    assert result["self.sum += value", "pass"]["how"] == "tests/test_program.py::test_total"
    assert result["value = low", "pass"]["how"] == "tests/test_program.py::test_clamp"
    assert result["value < low", "value <= low"]["how"] == "survived"
    assert result["6 * 7", "6 // 7"]["how"] == "no test gets to this line"
    survivors = [row for row in result.values() if not row["seen"]]
    assert all(row["line"] in (10, 33) for row in survivors) and len(survivors) == 4
    assert f"│ all                │ {len(result)}" in done.stdout
    assert "package/program.py:10: value < low -> value <= low  [survived]" in done.stdout.splitlines()
    assert (root / "package/program.py").read_text() == PROGRAM


@pytest.mark.slow
def test_an_endless_loop_and_a_crash_are_seen(root):
    (root / "package/program.py").write_text(
        "import os\n\ndef f(n):\n    while True:\n        break\n    if n:\n        os.abort()\n"
    )
    (root / "tests/test_program.py").write_text("from package.program import f\n\ndef test():\n    f(0)\n")
    done = mutants(root, *(f"--only=package/program.py:{line}" for line in (5, 6)), "--json", "result.json")
    result = {row["before"]: row["how"] for row in json.loads((root / "result.json").read_text())}
    assert result == {"break": "takes too long", "n": "SIGABRT"}, done.stdout


@pytest.mark.parametrize(("percent", "code"), [(33, 0), (34, 1)])
def test_a_score_can_be_asked_for(root, percent, code):
    """Of these three faults one is seen."""
    (root / "package/program.py").write_text("def f(n):\n    n < 9\n    return 2\n")
    (root / "tests/test_program.py").write_text("from package.program import f\n\ndef test():\n    assert f(0) == 2\n")
    done = mutants(root, "--only=package/program.py:2", "--only=package/program.py:3", f"--at-least={percent}")
    assert done.returncode == code, done.stdout
    assert ("Fewer than 34 % of the faults are seen" in done.stderr) == bool(code)


def test_the_tests_must_pass_first(root):
    (root / "tests/test_program.py").write_text("def test():\n    assert 1 == 2\n")
    done = mutants(root)
    assert done.returncode == 2
    assert "The tests must pass without a fault: tests/test_program.py::test" in done.stderr
