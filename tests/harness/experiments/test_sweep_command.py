"""``harness sweep``: plans, runs, records, and goes on where it was ended."""

from __future__ import annotations

import csv
import errno
import json
import os
import time
from io import StringIO
from itertools import islice

import pytest
from click.testing import CliRunner
from rich.console import Console

import harness.cli.main
import harness.cli.sweep
from emugpu.errors import CannotRun
from emugpu.processes.engine import Done, Processes
from emugpu.record import new_record
from harness.compile.config import make_config
from harness.experiments import journal
from harness.experiments import sweep as sweeping
from harness.experiments import sweep_table as table
from harness.experiments.job import perform
from harness.experiments.sweep import Tally, _keep, plan, sweep
from harness.experiments.sweep_spec import make_sweep
from harness.run import records

SMALL = (
    "kernel6",
    "--shape",
    "128:256:128,256,64",
    "-c",
    "cluster=2x1",
    "-c",
    "stages=5:6",
    "--jobs",
    1,
    "--json",
    "-",
)


def run(*words: object):
    return CliRunner().invoke(harness.cli.main.main, ["sweep", *map(str, words)])


def counts(result) -> dict[str, int]:
    return json.loads(result.stdout.splitlines()[-1])


def files(results_dir):
    return sorted(path for path in (results_dir / "sweeps").glob("*.jsonl"))


@pytest.fixture(scope="module")
def built(common):
    return common[make_config("kernel6", cluster=(2, 1))]


@pytest.mark.slow
def test_a_sweep_and_its_table(built, results_dir, tmp_path):
    result = run(*SMALL, "-o", tmp_path / "all.csv")
    assert result.exit_code == 0, result.output
    assert counts(result) == {
        "planned": 2, "refused": 2, "ran": 2, "failed": 0, "reused": 0, "wrong": 0, "unsound": 0,
    }  # fmt: skip
    assert "more than the 232448 bytes of shared memory" in result.stderr
    assert "2 ran (all are right), 0 failed" in result.stderr
    (path,) = files(results_dir)
    found = table.load(path)
    assert [(row["m"], row["passed"]) for row in found] == [(128, True), (256, True)]
    with open(tmp_path / "all.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert written == [{name: "" if value is None else str(value) for name, value in row.items()} for row in found]
    assert [line.split() for line in result.stderr.splitlines() if line.startswith("kernel6 ")] == [
        ["kernel6", "128", "right"],
        ["kernel6", "256", "right"],
    ]
    again = run(*SMALL, "--resume")
    assert "0 ran, 0 failed, 2 were done already (2 right)" in again.stderr
    assert counts(again)["reused"] == 2 and counts(again)["ran"] == 0
    assert len(list(journal.read(path))) == 2
    assert counts(run(*SMALL))["ran"] == 2 and len(files(results_dir)) == 2, "without --resume it begins anew"


def test_schedules_are_jobs(results_dir):
    words = ("kernel6", "--shape", "512", "--dry-run", "--json", "-", "-c", "cluster=2x1")
    for asked, jobs in (("fifo", 1), ("random:7", 1), ("random:0:4", 5), ("10@7", 10)):
        assert counts(run(*words, "--schedules", asked))["planned"] == jobs
    several = harness.cli.sweep._sweep(["kernel6"], ["512"], {}, {"schedules": "3@7"})
    assert several.schedule_seeds == (None, 7, 8), "fifo, and two random ones"


def test_the_schedules_of_a_file_can_be_overridden(tmp_path):
    (tmp_path / "x.toml").write_text(
        'schema = 1\nkernels = ["kernel6"]\nshapes = ["512"]\nschedule_seeds = "1:3"\n[options]\ncluster = "2x1"\n'
    )
    for asked, jobs in (((), 3), (("--schedules", "fifo"), 1), (("--schedules", "random:7"), 1)):
        assert counts(run(tmp_path / "x.toml", "--dry-run", "--json", "-", *asked))["planned"] == jobs


def test_a_dry_run_does_nothing(results_dir):
    assert counts(run(*SMALL, "--dry-run"))["planned"] == 2
    assert not (results_dir / "sweeps").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("kernel6",), "no shape is named"),
        (
            ("kernel6", "--shape", "512", "-c", "scheduler=dynamc"),
            "there is no scheduler 'dynamc'; use one of: clc",
        ),
        (("kernel8", "--shape", "512", "-c", "scheduler=tcp://h:1"), "--cluster-address for a Dask cluster"),
        (("kernel6", "-c", "stages=x"), "stages 'x' is not a whole number"),
        (("kernel6", "--shape", "512", "-o", "x.txt"), "this command writes .json or .csv"),
        (("kernel6", "--shape", "512", "--resume=all"), "'all' is not one of 'missing', 'failed'"),
        (("kernel6", "--shape", "512", "--schedules", "declining"), "a sweep takes fifo, random:SEED, a range of them"),
        (("kernel6", "--shape", "512", "--problem", "groups=4"), "this command takes NAME=VALUE, of: inputs, seed"),
        (("missing.toml",), "missing.toml: cannot be read (No such file or directory); name another file"),
        (("kernel6", "--shape", "512", "-o", "FOLDER.csv"), "-o 'FOLDER.csv' is not a file in an existing folder"),
        (("kernel6", "--shape", "512", "--problem", "inputs="), "there is no kind of inputs ''"),
        (("kernel6", "--shape", "512", "--problem", "seed="), "seed '' is not a number or a range"),
        (("kernel6", "--shape", "512", "--timeout", "nan"), "nan is not a finite number"),
        (("kernel6", "--shape", "512", "--cluster-address", "here:now"), "'here:now' is not the address"),
        (
            ("kernel6", "--shape", "512", "--cluster-address", "tls://127.0.0.1:1"),
            "names no certificates",
        ),
    ],
)
def test_what_cannot_be_asked_for(words, says, results_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER.csv").mkdir()
    result = run(*words)
    assert result.exit_code == 2 and says in result.stderr
    assert not list(results_dir.rglob("*.jsonl"))


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--json", "-"), ("--resume", "-o", "t.csv")])
def test_a_sweep_of_which_all_is_refused(words, results_dir, tmp_path, monkeypatch):
    """It is no sweep that went well; where only some are refused (see above) it is."""
    monkeypatch.chdir(tmp_path)
    result = run(
        "kernel6", "--shape", "512", "-c", "stages=6:7", "-c", "cluster=2x1,3x1", "--schedules", "random:0:4", *words
    )
    assert (result.exit_code, result.stdout) == (2, "") and result.stderr.count("\n") == 1
    assert result.stderr.startswith(
        "harness: error: every combination is refused (20 jobs, 2 reasons); the first: stages 6: "
    )
    assert "more than the 232448 bytes of shared memory" in result.stderr
    assert "(kernel6 stages 6, cluster 2x1, arch sm_100a, 512x512x512)" in result.stderr
    assert not list(tmp_path.iterdir()) and not list(results_dir.rglob("*.jsonl"))


def test_without_a_compiler_nothing_is_planned(results_dir, monkeypatch):
    """A configuration that nobody can be asked about is not one that a rule refuses."""

    def fail(*_):
        raise CannotRun("the Mojo compiler was not found")

    monkeypatch.setattr("harness.experiments.sweep._configured", fail)
    result = run("kernel6", "--shape", "512", "--dry-run")
    assert (result.exit_code, result.stderr) == (3, "harness: error: the Mojo compiler was not found\n")
    monkeypatch.undo()
    result = run("kernel6", "--shape", "1000000", "--json", "-", "--dry-run")
    assert result.exit_code == 2 and "every combination is refused (1 job, 1 reason); the first: " in result.stderr
    assert "this machine has" in result.stderr


def test_gpus_that_are_not_there_are_missed_before_anything_is_compiled(results_dir, monkeypatch):
    monkeypatch.setattr("harness.cli.sweep.find_gpus", lambda: [])
    result = run("kernel8", "--shape", "512", "-c", "arch=sm_90a", "--device", "gpu")
    assert result.exit_code == 3 and "no NVIDIA GPU was found" in result.stderr
    assert "compiling" not in result.stderr
    assert "--resume" not in result.stderr, "nothing was done"


# What follows does trivial things in place of the jobs: `do` is imported by workers.


def trivial(job) -> dict:
    return {**new_record(**job.fields(), git=None), "validation": {"passed": True}}


def trivial_but_seven(job) -> dict:
    if job.schedule_seed == 7:
        os._exit(3)
    return trivial(job)


@pytest.fixture
def planned(built):
    return plan(
        make_sweep("x", kernels=["kernel6"], shapes=["512"], options={"cluster": "2x1"}, schedule_seeds="1:100")
    )


def do(planned, path, resume=True, do=trivial, **options):
    kept = journal.Journal(path, **options)
    try:
        with Processes(1) as engine:
            return sweep(planned, engine, kept, resume=resume, do=do)
    finally:
        kept.close()


def test_what_was_ended_goes_on_and_runs_nothing_twice(planned, tmp_path):
    path = tmp_path / "x.jsonl"
    for job in islice(planned.jobs(), 40):
        records.append(path, trivial(job))
    with path.open("a") as file:
        file.write('{"schema": 1, "job": {"key": "unfinis')  # ended while it was written
    tally = do(planned, path)
    assert (tally.reused, tally.ran, tally.failed) == (40, 60, 0)
    keys = [record["job"]["key"] for record in journal.read(path)]
    assert len(keys) == len(set(keys)) == 100


@pytest.mark.slow
def test_a_job_that_kills_its_workers_is_recorded_with_its_log(planned, tmp_path):
    path = tmp_path / "x.jsonl"
    tally = do(planned, path, do=trivial_but_seven)
    assert (tally.ran, tally.failed) == (99, 1)
    (failed,) = [record for record in journal.read(path) if "failure" in record]
    assert failed["job"]["schedule_seed"] == 7 and failed["failure"]["deaths"] == 3
    assert "ended with code 3" in failed["failure"]["log"]
    assert do(planned, path).reused == 100, "it is not tried again"
    with Processes(1) as engine:
        kept = journal.Journal(path)
        tally = sweep(planned, engine, kept, resume=True, retry_failed=True, do=trivial)
        kept.close()
    assert (tally.ran, tally.reused) == (1, 99)
    assert {row["failure"] for row in table.load(path)} == {None}, "the last record of a job counts"


def timed(kernel="kernel6", measured=None, predicted=None, passed=None, **config):
    return {
        "time": "2026-11-21T21:39:26+00:00",
        "kernel": kernel,
        "problem": {"m": 256, "n": 512, "k": 64},
        "inputs": {"kind": "integer", "seed": 0},
        "device": {"kind": "model-sm_100a"},
        "config": {"dtype": "bf16", "stages": 4, "cluster": [2, 1], **config},
        "job": {"key": str((kernel, measured, predicted, config)), "kind": "run"},
        "validation": {"passed": passed},
        "timing": {"seconds": measured},
        "predicted": {"seconds": predicted},
        "schema": 1,
    }


def test_a_column_that_a_row_does_not_have_is_empty(tmp_path):
    records.append(tmp_path / "x.jsonl", timed(predicted=1e-6, own=7), timed(measured=2e-6, passed=True, words="a,b"))
    (tmp_path / "x.csv").write_text(table.as_csv(table.load(tmp_path / "x.jsonl")))
    with open(tmp_path / "x.csv", newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["config_own"], first["config_words"], first["predicted_seconds"]) == ("7", "", "1e-06")
    assert (second["config_own"], second["config_words"], second["passed"]) == ("", "a,b", "True")


def test_requests_with_other_options_are_ranked_together(tmp_path):
    """As from a kernel with options of its own. A request without the option has an empty cell."""
    path = tmp_path / "x.jsonl"
    records.append(path, timed(predicted=2e-6, own=7), timed(predicted=1e-6), timed(predicted=3e-6, other=8))
    [ranking] = table.ranked(table.load(path))
    assert ranking.choices == ["config_own", "config_other"]
    console = Console(file=StringIO())
    harness.cli.sweep.show_results(console, table.load(path))
    assert [line.split() for line in console.file.getvalue().splitlines()[-3:]] == [
        ["1.00", "17", "1.000"],
        ["7", "2.00", "8", "2.000"],
        ["8", "3.00", "6", "3.000"],
    ]


def test_what_is_fastest(tmp_path):
    path = tmp_path / "x.jsonl"
    slow, wrong = timed(predicted=3e-6, stages=5), timed(predicted=1e-6, stages=3, passed=False)
    best, other = timed(predicted=2e-6, stages=6), timed(measured=9.0)
    records.append(path, slow, wrong, best, other, timed(predicted=None, stages=7))
    measured, predicted = table.ranked(table.load(path))
    assert [row["measured_seconds"] for row in measured.rows] == [9.0] and measured.figure == "measured_seconds"
    assert [row["config_stages"] for row in predicted.rows] == [6, 5] and predicted.choices == ["config_stages"]
    console = Console(file=StringIO())
    harness.cli.sweep.show_results(console, table.load(path))
    *_, title, columns, row, other = console.file.getvalue().splitlines()
    assert title == "C[256,512], K=64, bf16 on model-sm_100a: 2 with a time"
    assert columns.split() == ["stages", "predicted", "us", "TFLOPS", "over", "the", "best"]
    assert row.split() == ["6", "2.00", "8", "1.000"], "2 x 256 x 512 x 64 in 2 us are 8.4 TFLOPS"
    assert other.split()[0] == "5"


def test_what_older_sources_have_left_is_not_in_the_table(planned, tmp_path, monkeypatch):
    """Only what is planned now; the file of the sweep has both."""
    path = tmp_path / "x.jsonl"
    for name in ("older", "newer"):
        monkeypatch.setattr(sweeping, "made_by", lambda _, name=name: name)
        records.append(path, *map(trivial, planned.jobs()))
    assert len(table.load(path)) == 200
    found = table.load(path, keys={job.key for job in planned.jobs()})
    assert len(found) == 100 and {row["key"] for row in found} == {job.key for job in planned.jobs()}


def test_a_worker_with_another_harness_ends_the_sweep(planned, tmp_path, monkeypatch):
    """It would fail all jobs, one after the other, and faster than others do them."""
    path = tmp_path / "x.jsonl"
    monkeypatch.setattr(sweeping, "made_by", lambda _: "another")
    with pytest.raises(CannotRun, match="has other kernels or another harness"):
        do(planned, path, do=perform)
    assert not list(journal.read(path))


@pytest.mark.parametrize(("seconds", "waits"), [(1000, 2), (-1, 21)])
def test_records_are_in_the_file_at_once_and_on_the_disk_now_and_then(seconds, waits, planned, tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr(journal, "TO_DISK", seconds)
    monkeypatch.setattr(records.os, "fsync", waited.append)
    kept = journal.Journal(tmp_path / "x.jsonl")
    for number, job in enumerate(islice(planned.jobs(), 20), start=1):
        kept.add(trivial(job))
        assert len(list(journal.read(kept.path))) == number
    kept.close()
    assert len(waited) == waits


def test_a_disk_that_is_full_for_a_while_costs_nothing(planned, tmp_path, monkeypatch):
    path, said, fails = tmp_path / "x.jsonl", [], 2
    real = os.write

    def full(descriptor, data):
        nonlocal fails
        if fails and b'"schedule_seed"' in data:
            fails -= 1
            real(descriptor, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(records.os, "write", full)
    assert do(planned, path, say=said.append).ran == 100
    assert not fails and "No space left on device" in said[0]
    assert len(list(journal.read(path))) == 100


def test_a_disk_that_stays_full_is_an_error(planned, tmp_path, monkeypatch):
    monkeypatch.setattr(journal.records, "append", lambda *_, **__: (_ for _ in ()).throw(CannotRun("full")))
    with pytest.raises(CannotRun, match="full"):
        do(planned, tmp_path / "x.jsonl", patience=0.1)


def test_one_sweep_at_a_time(tmp_path):
    first = journal.Journal(tmp_path / "x.jsonl")
    with pytest.raises(CannotRun, match="under way in another process"):
        journal.Journal(tmp_path / "x.jsonl")
    first.close()
    journal.Journal(tmp_path / "x.jsonl").close()
    assert not list(tmp_path.iterdir()), "no lock is left"


def test_planning_many_jobs_takes_no_time_and_no_memory():
    start = time.process_time()
    found = plan(
        make_sweep(
            "x",
            kernels=["kernel6", "kernel7"],
            shapes=["64:3200:64,64:3200:64,256"],
            options={"stages": "2:3", "epilogue_width": "32,64"},
            schedule_seeds="1:5",
        )
    )
    assert found.count == 2 * 50 * 50 * 4 * 5
    assert sum(1 for _ in islice(found.jobs(), 1000)) == 1000
    assert time.process_time() - start < 10


RIGHT, WRONG, PREDICTED = {"validation": {"passed": True}}, {"validation": {"passed": False}}, {"predicted": {}}
UNSOUND = {"soundness": {"errors": 2, "correct": True}}


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([RIGHT, RIGHT], "all are right"),
        ([RIGHT, WRONG], "1 WRONG"),
        ([UNSOUND, WRONG], "1 WRONG, 1 unsound"),
        ([{"soundness": {"correct": False}}], "1 WRONG"),
        ([PREDICTED], "none was validated"),
        ([], ""),
    ],
)
def test_a_sweep_says_whether_its_results_are_right(records, says, tmp_path):
    tally = Tally()
    with journal.Journal(tmp_path / "sweep.jsonl") as kept:
        for record in records:
            _keep(kept, tally, Done(None, {**record, "job": {"key": "k"}}))
    assert tally.verdict == says
