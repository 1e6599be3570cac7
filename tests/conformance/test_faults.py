"""The small wrong programs and their right twins: the data, the checker's verdicts, and the tables of measurements."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner
from driver_programs import run

from conformance.faults import sanitizer
from conformance.faults.__main__ import main
from conformance.faults.checker import verdict
from conformance.faults.measure import GpuRun, run_all
from conformance.faults.programs import Fault, Program, by_id, of_one_launch, programs, write
from conformance.faults.results import read
from conformance.faults.table import by_kind
from conformance.gpu import ROOT
from emugpu.check import RULES

WRONG = {id: one for id, one in by_id().items() if isinstance(one, Fault)}
ONLY_WARNED = ("product-no-wgmma-fence",)
"""ptxas inserts the fence, and says so."""


# ---- the data ----


def test_there_are_enough_of_every_kind():
    assert len(WRONG) >= 120
    kinds = {fault.twin.kind for fault in WRONG.values()}
    assert {"mbarriers", "bulk loads", "bulk stores", "wgmma", "CTAs of a grid", "CTAs of a cluster"} < kinds


def test_each_fault_changes_its_twin_and_cites_the_isa():
    for fault in WRONG.values():
        assert fault.twin.ptx(fault.wrong) != fault.twin.ptx({}) or fault.twin.streams(
            fault.wrong
        ) != fault.twin.streams({})
        assert fault.isa and fault.finding, fault.id


def test_a_place_that_the_right_program_lacks_is_refused():
    with pytest.raises(ValueError, match="no place of the right program is called elsewhere"):
        programs()[0].ptx({"elsewhere": ""})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
def test_ptxas_accepts_all_programs(tmp_path):
    assert write(tmp_path) == len(of_one_launch())
    for file in sorted(tmp_path.glob("*.ptx")):
        done = subprocess.run(["ptxas", "-arch=sm_90a", file, "-o", "/dev/null"], capture_output=True, text=True)
        assert not done.returncode, f"{file.name}: {done.stderr}"


def test_a_written_launch_file_runs(tmp_path):
    write(tmp_path)
    command = [sys.executable, "-m", "emugpu", "verify", "--schedules", "1"]
    right = subprocess.run([*command, tmp_path / "neighbour.toml"], capture_output=True, text=True)
    wrong = subprocess.run([*command, tmp_path / "neighbour-no-barrier.toml"], capture_output=True, text=True)
    assert (right.returncode, wrong.returncode) == (0, 4), right.stdout + wrong.stdout
    assert "race-shared" in wrong.stdout


# ---- the checker ----


@pytest.mark.parametrize("id", [one.id for one in programs() if one.id in of_one_launch()])
def test_a_right_program_is_clean_and_without_warnings(id):
    assert verdict(id, 1) == {"verdict": "clean", "errors": [], "warnings": []}


@pytest.mark.slow
def test_right_programs_are_clean_under_random_schedules():
    for one in programs():
        if one.id in of_one_launch():
            assert verdict(one.id, 6) == {"verdict": "clean", "errors": [], "warnings": []}, one.id


@pytest.mark.parametrize("id", [id for id in WRONG if id in of_one_launch()])
def test_a_wrong_program_is_reported_for_what_is_wrong(id):
    found = verdict(id, 1)
    says = {*found["errors"], "hangs" if found["verdict"] == "hung" else found["verdict"]}
    if id in ONLY_WARNED:
        assert found["verdict"] == "clean"
        says = {*found["warnings"]}
    assert says & set(WRONG[id].finding), found
    assert {RULES[rule].severity for rule in found["errors"]} <= {"error"}


@pytest.mark.slow
@pytest.mark.parametrize("id", [id for id in by_id() if id not in of_one_launch()])
def test_programs_of_several_launches(id):
    found = verdict(id, 1)
    assert found["errors"] == ([] if isinstance(by_id()[id], Program) else ["race-launches"])


# ---- on a GPU ----


def test_a_program_is_launched_on_a_gpu(capfd):
    done = run(capfd, "h100", sys.executable, "-m", "conformance.faults.worker", "neighbour-no-barrier", "3", "60")
    found = json.loads(done.out)
    assert (done.code, found["launches"], found["wrong"]) == (0, 3, 3)
    assert found["first"]["launch"] == 0 and found["first"]["elements"] == 32


def test_a_launch_that_does_not_end_is_a_hang():
    code = (
        "import time; from conformance.faults.worker import _Watch\n"
        "watch = _Watch(0.5, {'launches': 7, 'wrong': 2})\n"
        "with watch: time.sleep(0.1)\n"
        "time.sleep(1)\n"
        "print('the first one ended', flush=True)\n"
        "with watch: time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    first, found = done.stdout.splitlines()
    assert first == "the first one ended"
    assert json.loads(found) == {"launches": 7, "wrong": 2, "hung": True}


SANITIZER = """#!/bin/sh
for word in "$@"; do
    case $word in
        --version) echo 'Version 2025.3.1.0'; exit;;
        --tool=*) tool=$word; shift;;
        --*) shift;;
    esac
done
"$@" >/dev/null
echo '========= COMPUTE-SANITIZER'
case "$tool $*" in
    *racecheck*no-barrier*)
        echo '========= Error: Race reported between Write access at program+0x10 and Read access at program+0x20'
        echo '========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)';;
    *racecheck*) echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)';;
    *memcheck*) echo '========= Error: Target application terminated before first instrumented API call'; exit 255;;
    *) echo '========= ERROR SUMMARY: 0 errors';;
esac
"""


@pytest.mark.slow
def test_all_columns_of_a_gpu(capfd, tmp_path):
    tool, file = tmp_path / "compute-sanitizer", tmp_path / "found.json"
    tool.write_text(SANITIZER)
    tool.chmod(0o755)
    names = ("neighbour", "neighbour-no-barrier")
    command = [sys.executable, "-m", "conformance.faults", "gpu", file, *names, "--launches", "2", "--sanitizer", tool]
    done = run(capfd, "h100", *command, "--hang", "60")
    assert done.code == 0 and "10 runs" in done.out, done.out + done.err
    found = read(file)
    assert found.about["sanitizer"]["version"] == "2025.3.1.0"
    assert found.programs["neighbour"]["racecheck"] == {"reports": 0}
    assert found.programs["neighbour-no-barrier"]["racecheck"]["reports"] == 1
    assert found.programs["neighbour-no-barrier"]["gpu"]["wrong"] == 2
    assert found.programs["neighbour"]["memcheck"]["ended"] is False
    assert "terminated before first" in found.programs["neighbour"]["memcheck"]["why"]


def test_no_time_is_no_run():
    saved = []
    how = GpuRun(("neighbour",), 1, 1, 0, 1, None)
    assert run_all(how, lambda job, found: pytest.fail("it was run"), lambda: saved.append(1)) == 1
    assert saved


@pytest.mark.parametrize(
    ("text", "reports"),
    [
        ("========= RACECHECK SUMMARY: 100 hazards displayed (80 errors, 20 warnings)", 100),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0),
        ("========= Invalid __global__ write of size 4\n========= ERROR SUMMARY: 1 error", 1),
        ("========= Error: Race reported between Write access and Read access\nstopped", 1),
        ("========= Error: Target application terminated before first instrumented API call", 0),
    ],
)  # fmt: skip
def test_reports_of_a_tool_are_counted(text, reports):
    assert sanitizer.read(text)["reports"] == reports


# ---- the tables ----


def measured(path, entries):
    """A file with these entries by program, and descriptions of all parts."""
    about = {
        "gpu": {"gpu": "H100", "driver": "580.1", "date": "2026-11-27", "launches": 1000},
        "sanitizer": {"version": "2025.3.1", "launches": 3},
        "checker": {"schedules": 3, "date": "2026-11-27"},
    }
    path.write_text(json.dumps({**about, "programs": entries}))
    return path


def entry(gpu, race, verdict="clean", errors=()):
    tools = {tool: {"reports": 0} for tool in sanitizer.TOOLS}
    checker = {"verdict": verdict, "errors": list(errors), "warnings": []}
    return {"gpu": gpu, **tools, "racecheck": {"reports": race}, "checker": checker}


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_tables_add_up(tmp_path):
    """Of two right programs racecheck reports one. Of four wrong ones the GPU shows two; racecheck reports three, but
    one as often as its right twin, and nobody ran one under synccheck.
    """
    fine, shown = {"launches": 1000, "wrong": 0}, {"launches": 1000, "wrong": 12}
    hung = {"launches": 3, "wrong": 0, "hung": True}
    entries = {
        "neighbour": entry(fine, 0),
        "neighbour-no-barrier": entry(shown, 5, "racy", ["race-shared"]),
        "neighbour-a-barrier-for-each-warp": entry(hung, 0),
        "rewrite": entry(fine, 2),
        "rewrite-only-one-warp-waits": entry(fine, 2, "racy", ["race-shared"]),
        "rewrite-no-barrier-between-read-and-write": entry(fine, 3, "racy", ["race-shared"]),
    }
    del entries["rewrite-only-one-warp-waits"]["synccheck"]
    done = CliRunner().invoke(main, ["table", str(measured(tmp_path / "found.json", entries))])
    assert done.exit_code == 0
    rows = {cells(line)[0]: cells(line)[1:] for line in done.output.splitlines() if line.startswith("| ")}
    wrong, right = len(WRONG), len(programs())
    silent = ["2", "0", "1", "0", "0 (1 not run)", "0", "1", "2"]
    assert rows["of these, what the GPU does not show"] == silent
    of_all = [f"2 ({wrong - 4} not run)", f"2 ({wrong - 4} not run)", "2"]
    assert [rows["**all**"][column] for column in (1, 2, 6)] == of_all
    of_right = [f"0 ({right - 2} not run)", f"1 ({right - 2} not run)", "1"]
    assert [rows["right programs that are reported"][column] for column in (1, 2, 6)] == of_right
    assert "12 of 1,000 wrong | 5 | - | - | - | race-shared |" in done.output
    assert "launch 4 does not end" in done.output
    assert "| 2, right: 2 | - | not run | - | race-shared |" in done.output
    assert "| rewrite | racecheck | 2 reports |" in done.output


def test_a_warning_is_shown_as_one(tmp_path):
    warned = {"checker": {"verdict": "clean", "errors": [], "warnings": ["wgmma-fence"]}}
    done = CliRunner().invoke(
        main, ["table", str(measured(tmp_path / "found.json", {"product-no-wgmma-fence": warned}))]
    )
    assert "| not run | warning: wgmma-fence |" in done.output


def test_the_page_shows_what_was_measured():
    page = (ROOT / "docs" / "found.md").read_text()
    assert "\n".join(by_kind(read(ROOT / "results" / "faults-h100.json"))) in page


# ---- wrong arguments ----


@pytest.mark.parametrize(
    "text", ["[]", '{"programs": []}', '{"programs": {"neighbour": 3}}', '{"gpu": 3, "programs": {}}']
)
def test_what_is_no_file_of_results_is_refused(tmp_path, text):
    file = tmp_path / "other.json"
    file.write_text(text)
    done = CliRunner().invoke(main, ["table", str(file)])
    assert done.exit_code == 2 and "holds no results of these programs" in done.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "new.json", "neighbor"], "there is no program 'neighbor'; the nearest names are neighbour, "),
        (["gpu", "new.json", "nosuch"], "there is no program 'nosuch'; the nearest names are "),
        (["check", "nosuch/new.json", "neighbour"], "FILE.json 'nosuch/new.json' is not a file in an existing folder"),
        (["gpu", "new.json", "--sanitizer", "nosuch"], "--sanitizer nosuch: there is no such program"),
        (["check", "neighbour"], "neighbour is no FILE.json, which comes before the programs; name one that ends in"),
        (["write", "/proc/faults"], "FOLDER /proc/faults: /proc cannot be written"),
    ],
)
def test_a_wrong_argument_is_one_short_line(tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2 and says in done.output
    assert done.output.count("\n") == 1 and len(done.output) < 200
    assert not list(tmp_path.iterdir())


def test_check_says_where_the_verdicts_are(tmp_path):
    file = tmp_path / "found.json"
    done = CliRunner().invoke(main, ["check", str(file), "neighbour", "--schedules", "1"])
    assert done.exit_code == 0 and f"1 verdict in {file}; see them with" in done.output
    assert read(file).programs["neighbour"]["checker"]["verdict"] == "clean"
