"""``harness bench`` from end to end: verdicts, exit codes, files, and going on after an interruption."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from bench_support import timing
from click.testing import CliRunner

import harness.cli.main
import harness.compile.artifacts
import harness.experiments.bench as runs
from emugpu.errors import CannotRun
from harness.cli.bench_output import MARKDOWN_LIMIT, BaselineComparison, to_markdown
from harness.compile.compiler import Gpu
from harness.experiments.facts import FigureChange
from harness.experiments.suite import load_suite
from harness.experiments.verdict import Judgement
from harness.paths import ROOT

pytestmark = pytest.mark.slow

SUITE = """
schema = 1
kernels = "kernel6"
clusters = ["2x1", "2x2"]
shapes = "256,512,64"
dtypes = "bf16"
inputs = "index"
[[cases]]
"""
CASES = ["kernel6 bf16 2x1 256x512x64 index", "kernel6 bf16 2x2 256x512x64 index"]
H200 = Gpu("NVIDIA H200", "9.0", "143771 MiB", "570.1")


@pytest.fixture
def suite(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SUITE)
    return path


@pytest.fixture
def bench(suite, artifacts):
    """Runs the command on the small suite; (exit code, output, errors)."""

    def run(*arguments: object):
        done = CliRunner().invoke(harness.cli.main.main, ["bench", "--suite", str(suite), *map(str, arguments)])
        return done.exit_code, done.stdout, done.stderr

    return run


def results(bench, *arguments) -> tuple[int, dict[str, dict]]:
    """Exit code, and the cases of the JSON output by name."""
    code, text, errors = bench("--json", "-", *arguments)
    assert text, errors
    return code, {case["case"]: case for case in json.loads(text)["cases"]}


@pytest.fixture
def one_more_instruction(monkeypatch, tmp_path):
    """From now on kernels are built with an instruction more before the output's bulk group is committed."""

    commit = "\tcp.async.bulk.commit_group;"
    return lambda: alter_ptx(monkeypatch, tmp_path, commit, f"\tfence.proxy.async.shared::cta;\n{commit}")


def alter_ptx(monkeypatch, folder, old: str, new: str) -> None:
    """From now on kernels are built with another text in the place of one that they have once."""
    build = runs.build_each

    def build_altered(configs):
        made = {}
        for number, (config, artifact) in enumerate(build(configs).items()):
            altered = folder / f"altered{number}"
            shutil.copytree(artifact.folder, altered, dirs_exist_ok=True)
            assert artifact.ptx.count(old) == 1
            (altered / "kernel.ptx").write_text(artifact.ptx.replace(old, new))
            made[config] = replace(artifact, folder=altered)
        return made

    monkeypatch.setattr(runs, "build_each", build_altered)


def test_the_first_run_and_the_same_again(bench, results_dir):
    code, found = results(bench)
    assert code == 0
    assert {name: case["verdict"] for name, case in found.items()} == dict.fromkeys(CASES, "NEW")
    code, found = results(bench)
    assert code == 0
    assert {name: case["verdict"] for name, case in found.items()} == dict.fromkeys(CASES, "SAME")
    assert len((results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()) == 4


def on_a_terminal(*arguments: object) -> str:
    """What a person sees of a command."""
    reader, writer = os.openpty()
    words = [sys.executable, "-m", "harness", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "120", "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(words, cwd=ROOT, stdin=writer, stdout=writer, stderr=writer, env=environment) as process:
        os.close(writer)
        seen = b""
        with contextlib.suppress(OSError):  # what Linux says when the other side has ended
            while more := os.read(reader, 1 << 16):
                seen += more
    os.close(reader)
    assert process.returncode == 0, seen.decode()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())


def test_on_a_terminal_there_is_one_bar_and_what_is_not_the_same(bench, suite):
    bench("--filter", "2x1")
    options = ("--suite", suite, "--schedules", 1)
    text = on_a_terminal("bench", *options)
    assert "2/2" in text and "1 of 2" not in text
    table = text[text.index("suite small") :]
    assert CASES[0] not in table and CASES[1] in table
    assert "1 case is SAME and not shown; -o FILE.md has all" in table
    assert table.strip().endswith("2 cases against last: 1 SAME, 1 NEW")


def test_one_more_instruction_is_a_regression_with_a_name(bench, one_more_instruction):
    bench()
    one_more_instruction()
    code, text, _ = bench()
    assert code == 1
    assert "2 cases against last: 2 WORSE" in text
    [line] = [line for line in text.splitlines() if line.startswith("changed  PTX")]
    assert line.split() == [
        *("changed", "PTX", "fence.proxy.async.shared::cta", "+1", "1", "->", "2"),
        *("all", "2", "cases", "of", "kernel6"),
    ]


def test_a_wrong_result_beats_everything(bench, monkeypatch):
    bench()
    run = runs.run_in_turns

    def one_is_wrong(request, artifacts):
        [outcome] = run(request, artifacts)
        if request.config.cluster == (2, 2):
            return [CannotRun("Deadlock: for the test")]
        outcome.record["validation"].update(passed=False, mismatches=3)
        return [outcome]

    monkeypatch.setattr(runs, "run_in_turns", one_is_wrong)
    code, found = results(bench)
    assert code == 4
    assert found[CASES[0]]["verdict"] == "WRONG" and found[CASES[0]]["reason"].startswith("3 of ")
    assert found[CASES[1]]["verdict"] == "NOT MEASURED" and "Deadlock" in found[CASES[1]]["reason"]
    monkeypatch.setattr(runs, "run_in_turns", run)
    code, found = results(bench)
    assert code == 0 and found[CASES[0]]["verdict"] == "SAME"  # as the wrong one is no baseline


def test_what_does_not_compile_does_not_cost_the_rest(bench, monkeypatch):
    build = harness.compile.artifacts.build

    def fails_for_one(configs):
        if any(config.cluster == (2, 2) for config in configs):
            raise CannotRun("the Mojo compiler reports:\nno")
        return build(configs)

    monkeypatch.setattr(harness.compile.artifacts, "build", fails_for_one)
    code, found = results(bench)
    assert code == 3
    assert found[CASES[0]]["verdict"] == "NEW"
    assert found[CASES[1]]["reason"] == "the Mojo compiler reports:\nno"


def test_an_interrupted_run_goes_on(bench, monkeypatch, results_dir):
    run = runs.run_in_turns
    calls = []

    def interrupted(request, artifacts):
        calls.append(request.config.cluster)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run(request, artifacts)

    monkeypatch.setattr(runs, "run_in_turns", interrupted)
    code, _, errors = bench()
    assert code == 130 and "--resume continues from here" in errors
    code, _, errors = bench("--resume")
    assert code == 0 and "resuming run" in errors
    assert f"measuring: 0 of 2\n{CASES[0]}: kept: 1 of 2\n" in errors, "the rate leaves out what was kept"
    assert re.search(rf"{CASES[1]}: done: 2 of 2, [0-9.]+ a second, 0 s left\n", errors)
    assert calls == [(2, 1), (2, 2), (2, 2)]
    lines = [json.loads(line) for line in (results_dir / "emulated-sm_100a.jsonl").read_text().splitlines()]
    assert [line["bench"]["case"] for line in lines] == CASES
    assert len({line["bench"]["run"] for line in lines}) == 1
    monkeypatch.setattr(runs, "fingerprint", lambda *_: "other sources")
    _, _, errors = bench("--resume")
    assert "cannot be resumed: kernels, harness or compiler changed since; starting anew" in errors
    assert len(calls) == 5


def test_nothing_to_resume(bench):
    _, _, errors = bench("--resume")
    assert "there is no earlier run of this suite to resume; starting one" in errors


def test_a_list_runs_nothing(bench, monkeypatch, results_dir):
    monkeypatch.setattr(runs, "run_in_turns", lambda *_: pytest.fail("nothing may be run"))
    monkeypatch.setattr(runs, "build_each", lambda *_: pytest.fail("nothing may be built"))
    assert bench("--list")[1].splitlines() == CASES
    assert bench("--list", "--filter", "2x2")[1].splitlines() == CASES[1:]
    assert not list(results_dir.glob("*.jsonl"))


def test_a_saved_baseline_stays(bench, one_more_instruction):
    _, text, _ = bench("--save-baseline", "good")
    assert "baseline good saved: 2 cases" in text
    one_more_instruction()
    assert bench("--baseline", "good")[0] == 1
    assert bench()[0] == 0  # as the last run had the instruction, too
    assert bench("--baseline", "good")[0] == 1


def test_a_baseline_without_the_cases_compares_nothing(bench):
    bench("--filter", "2x1", "--save-baseline", "part")
    code, _, errors = bench("--filter", "2x2", "--baseline", "part")
    assert code == 3 and "nothing could be compared: baseline part has no such case" in errors


WRONG = [
    (["--filter", "("], "is not a regular expression"),
    (["--filter", "kernel99"], "matches no case of suite small; --list shows them"),
    (["--baseline", "nothing"], "is not last, a saved name or a commit"),
    (["--save-baseline", "last"], "baseline name 'last'"),
    (["-o", "x.txt"], "-o x.txt: this command writes .json, .md or .xml"),
    (["--schedules", "random:3"], "--schedules random: bench takes a number of schedules"),
    (["--schedules", "0"], "--schedules 0: write fifo"),
    (["--schedules", "1@7"], "--schedules 1@7: the only schedule is fifo, which uses no seed; write 1, or 4@7"),
    (["--schedules", "declining", "--list"], "--schedules declining: bench takes a number of schedules"),
    (["-o", "/nowhere/x.xml"], "is not a file in an existing folder"),
    (["--threshold", "-1"], "--threshold"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_usage(bench, monkeypatch, arguments, message):
    monkeypatch.setattr(runs, "run_in_turns", lambda *_: pytest.fail("nothing may be run"))
    code, _, errors = bench(*arguments)
    assert code == 2 and message in errors
    assert len(errors.strip().splitlines()) == 1


def test_files(bench, one_more_instruction, tmp_path):
    bench()
    one_more_instruction()
    files = {name: tmp_path / f"x.{name}" for name in ("json", "md", "xml")}
    code, text, _ = bench(*(word for path in files.values() for word in ("-o", path)))
    assert code == 1 and "2 WORSE" in text
    data = json.loads(files["json"].read_text())
    assert data["exit_code"] == 1
    named = {"name": "PTX fence.proxy.async.shared::cta", "old": 1, "new": 2, "direction": "changed"}
    assert all(named in case["changes"] for case in data["cases"])
    markdown = files["md"].read_text()
    assert markdown.startswith("### Benchmark `small`") and f"| {CASES[0]} | WORSE |" in markdown
    junit = ET.parse(files["xml"]).getroot()
    assert junit.attrib["tests"] == junit.attrib["failures"] == "2"
    assert junit.find("testcase/failure").attrib["message"].startswith("WORSE: PTX fence.proxy")


def test_a_kernel_that_is_right_by_luck_is_unsound(bench, suite, monkeypatch, tmp_path, results_dir):
    """Sound first, and the same again; then without the fence between the epilogue's writes and the store."""
    suite.write_text(SUITE + "check = true\n")
    one = ("--filter", "2x1", "--schedules", 1)
    assert verdicts(bench, *one) == (0, {"NEW"})
    code, text, _ = bench(*one)
    assert code == 0 and "1 case against last: 1 SAME" in text
    assert "synchronisation of 1 case checked: 1 sound" in text
    [_, record] = map(json.loads, (results_dir / "emulated-sm_100a.jsonl").read_text().splitlines())
    found = record["soundness"]
    assert (found["schedules"], found["errors"], found["failure"], found["correct"]) == (2, 0, None, True)

    alter_ptx(monkeypatch, tmp_path, "\tfence.proxy.async.shared::cta;", "")
    files = {name: tmp_path / f"x.{name}" for name in ("json", "md", "xml")}
    code, text, errors = bench(*one, *(word for path in files.values() for word in ("-o", path)))
    assert code == 1 and "1 UNSOUND" in text and "of 1 case checked: 0 sound" in text
    assert f"{CASES[0]}: unsound" in errors
    [case] = json.loads(files["json"].read_text())["cases"]
    assert case["verdict"] == "UNSOUND" and "of synchronisation: proxy-write-read: C tile" in case["reason"]
    assert {"name": "PTX fence.proxy.async.shared::cta", "old": 1, "new": None, "direction": "changed"} in case[
        "changes"
    ]
    found = case["soundness"]
    assert found["errors"] >= len(found["findings"]) > 0 and found["correct"] is True
    assert {finding["rule"] for finding in found["findings"]} == {"proxy-write-read"}
    [note] = case["notes"]
    words = shlex.split(note.removeprefix("to repeat: "))
    assert words[:3] == ["harness", "verify", "kernel6"]
    again = CliRunner().invoke(harness.cli.main.main, words[1:])  # of the kernel as it is, without the fault
    assert again.exit_code == 0 and "1 launch, 2 schedules; compared: C" in again.stdout, again.output
    assert f"| {CASES[0]} | UNSOUND |" in files["md"].read_text()
    assert "UNSOUND: " in ET.parse(files["xml"]).getroot().find("testcase/failure").attrib["message"]
    assert verdicts(bench, *one) == (1, {"UNSOUND"}), "also where the last run was no better"


def test_a_run_that_goes_on_checks_what_was_not_checked(bench, suite, results_dir):
    one = ("--filter", "2x1", "--schedules", 1)
    bench(*one)
    suite.write_text(SUITE + "check = true\n")
    for words in ("done", "kept"):
        assert f"{CASES[0]}: {words}" in bench(*one, "--resume")[2]
    plain, checked = map(json.loads, (results_dir / "emulated-sm_100a.jsonl").read_text().splitlines())
    assert "soundness" not in plain and checked["soundness"]["errors"] == 0
    assert plain["bench"] == checked["bench"]


def test_a_comment_is_bounded(bench, monkeypatch, tmp_path):
    """GitHub takes 65,536 characters; the report of a hang alone can be longer."""

    def hangs(*_):
        raise CannotRun("Deadlock: " + "warp 5 waits | at line 99\n" * 20_000)

    bench()
    monkeypatch.setattr(runs, "run_in_turns", hangs)
    bench("-o", tmp_path / "x.md", "-o", tmp_path / "x.json")
    text = (tmp_path / "x.md").read_text()
    assert len(text) < 10_000 and text.count("| NOT MEASURED | Deadlock: warp 5 waits \\| at line 99") == 4
    assert len((tmp_path / "x.json").read_text()) > 500_000


@pytest.mark.parametrize("cases", [1, 100, 1000])
def test_a_comment_with_many_cases_is_bounded(cases):
    case = load_suite("emulator").cases[0]
    judgements = tuple(
        Judgement(
            "WRONG",
            reason="many words " * 20,
            changes=(FigureChange(f"figure {number}", 1, 2),),
            case=replace(case, seed=number),
        )
        for number in range(cases)
    )
    text = to_markdown(BaselineComparison("emulator", "run", "last", 0.02, judgements))
    assert len(text) <= MARKDOWN_LIMIT
    assert text.count("<details>") == text.count("</details>") == 2
    rows = [sum(line.startswith("| ") for line in part.splitlines()) - 1 for part in text.split("<summary>")]
    more = [int(number) for number in re.findall(r"\.\.\. and (\d+) more", text)]
    assert sum(rows) + sum(more) == 3 * cases
    assert not more if cases == 1 else more


class FakeGpu:
    """Stands for a GPU: emulates for the figures, and makes up times."""

    def __init__(self, monkeypatch):
        self.seconds, self.seed, self.run = 1e-3, 0, runs.run_in_turns
        monkeypatch.setattr(runs, "choose_device", lambda wanted, kernel, arch: (self.gpu, "sm_100a"))
        monkeypatch.setattr(runs, "run_in_turns", self)
        self.gpu, self.failure = H200, None

    def __call__(self, request, artifacts):
        outcomes = self.run(replace(request, gpu=None), artifacts)
        return [self.timed(outcome, request) for outcome in outcomes]

    def timed(self, outcome, request):
        self.seed += 1
        times = {"seconds": None, "reason": "no sign of life for 60 s"}
        if self.seconds:
            times = timing(self.seconds, self.seed, processes=request.processes) | {"reason": self.failure}
        outcome.record.update(
            device={"kind": request.device_kind, "name": self.gpu.name, "driver": self.gpu.driver},
            counters={},
            timing=times,
        )
        return outcome


@pytest.fixture
def gpu(monkeypatch):
    return FakeGpu(monkeypatch)


def verdicts(bench, *arguments) -> tuple[int, set[str]]:
    code, found = results(bench, *arguments)
    return code, {case["verdict"] for case in found.values()}


def test_times_of_the_same_kernel_are_the_same(bench, gpu, results_dir):
    assert verdicts(bench) == (0, {"NEW"})
    assert verdicts(bench) == (0, {"SAME"})
    lines = (results_dir / "nvidia-h200.jsonl").read_text().splitlines()
    timings = [json.loads(line)["timing"] for line in lines]
    assert all(len(timing["processes"]) == 5 for timing in timings)
    raw = [json.loads(line) for line in (results_dir / "samples" / "nvidia-h200.jsonl").read_text().splitlines()]
    assert [line["key"] for line in raw] == [timing["samples"] for timing in timings]
    assert all(len(line["seconds"]["kernel"]) == 5 * 30 for line in raw)
    assert all("samples" not in vendor for timing in timings for vendor in timing["vendor"].values())


def test_one_process_is_no_ground_for_a_verdict(bench, gpu):
    bench()
    gpu.seconds *= 2
    code, found = results(bench, "--processes", "1")
    assert code == 0
    assert {(case["verdict"], case["reason"]) for case in found.values()} == {
        ("UNSURE", "times of only 1 process; 3 are needed")
    }


def test_three_per_cent_more_time_is_a_regression(bench, gpu):
    bench()
    gpu.seconds *= 1.03
    code, text, _ = bench()
    assert code == 1 and "2 SLOWER" in text
    [row] = [line.split() for line in text.splitlines() if line.startswith(CASES[0])]
    assert float(row[9]) == pytest.approx(1.03, abs=0.01)
    gpu.seconds /= 1.03
    assert verdicts(bench) == (0, {"FASTER"})
    gpu.seconds *= 1.03
    assert verdicts(bench, "--threshold", "10") == (0, {"SAME"})


def test_a_crash_while_timing_is_not_measured_unless_it_was_slower_before(bench, gpu):
    bench()
    gpu.failure = "process 4 of 5: the GPU process ended with code 9 while being timed"
    code, found = results(bench)
    assert code == 3
    assert {(case["verdict"], case["reason"]) for case in found.values()} == {("NOT MEASURED", gpu.failure)}
    gpu.seconds *= 1.5
    code, found = results(bench)
    assert code == 1
    assert {(case["verdict"], case["reason"]) for case in found.values()} == {("SLOWER", gpu.failure)}


def test_a_crash_without_anything_to_compare_with_is_not_measured(bench, gpu):
    gpu.failure = "the GPU process ended with code 9 while being timed"
    assert verdicts(bench) == (3, {"NOT MEASURED"})
    gpu.failure = None
    assert verdicts(bench) == (0, {"SAME"})


def test_what_could_not_be_measured_is_not_slower(bench, gpu):
    bench()
    gpu.seconds = None
    code, found = results(bench)
    assert code == 3
    assert {(case["verdict"], case["reason"]) for case in found.values()} == {
        ("NOT MEASURED", "no sign of life for 60 s")
    }
    gpu.seconds = 1e-3
    assert verdicts(bench)[0] == 0


def test_another_driver_is_other_hardware(bench, gpu):
    bench("--save-baseline", "good")
    gpu.gpu = replace(H200, driver="580.2")
    gpu.seconds *= 2
    code, found = results(bench)
    assert code == 0
    assert {case["reason"] for case in found.values()} == {
        "baseline last is of other hardware: NVIDIA H200, driver 570.1"
    }
    assert bench("--baseline", "good")[0] == 3


def test_no_gpu(bench, suite):
    suite.write_text('device = "gpu"\n' + SUITE)
    code, found = results(bench)
    assert code == 3
    assert {case["verdict"] for case in found.values()} == {"NOT MEASURED"}
    assert all("no NVIDIA GPU was found" in case["reason"] for case in found.values())
    assert all("use suite emulator" in case["reason"] for case in found.values())


def test_the_json_has_each_way_of_timing(bench, gpu, monkeypatch):
    """The ratios are those of the vendors; what was not asked for is null."""
    code, found = results(bench)
    assert code == 0
    for case in found.values():
        assert case["in_turns"].keys() == {"kernel"} and case["in_turns"]["kernel"]["seconds"] == case["seconds"]
        assert case["alone"] is case["host_us"] is case["best_of_cublaslt"] is None
    alone = {"kernel": {"seconds": 1e-3}, "best_of_cublaslt": {"seconds": 9e-4, "ratio": 0.9}}
    timed = FakeGpu.timed

    def with_alone(self, outcome, request):
        timed(self, outcome, request).record["timing"] |= {"alone": alone, "host_us": {"kernel": 8.0}}
        return outcome

    monkeypatch.setattr(FakeGpu, "timed", with_alone)
    for case in results(bench)[1].values():
        assert case["alone"] == alone and case["host_us"] == {"kernel": 8.0}
        assert case["best_of_cublaslt"] == {"in_turns": None, "alone": 0.9}
