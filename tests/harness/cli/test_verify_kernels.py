"""``harness verify``: what it says of kernels of ours, in which forms, and how it exits."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner
from smaller_cases import errors_of, verify_again

import harness.cli.kernels
from emugpu.check import RULES
from emugpu.launch.check import CheckOptions
from emugpu.launch.check import check as check_launchables
from emugpu.launch.launching import EmulationOptions
from harness.cli.main import main
from harness.compile.artifacts import Artifact, make_launchable
from harness.problem import parse_shape

SMALL = ["--shape", "256,256,128", "-c", "cluster=2x1", "--schedules", "2"]


def verify(*words: object):
    return CliRunner().invoke(main, ["verify", *map(str, words)])


@pytest.fixture
def altered(series, tmp_path):
    """A file with kernel 7's PTX, in which a pattern is replaced; each time, or as often as asked."""

    def write(pattern: str, replacement: str, count: int = 0) -> str:
        artifact: Artifact = series["kernel7"]
        text, done = re.subn(pattern, replacement, artifact.ptx, count=count)
        assert done
        path = tmp_path / "altered.ptx"
        path.write_text(text)
        return str(path)

    return write


def without_fences(altered) -> str:
    return altered(r"fence\.proxy\.async\.shared::cta;", "")


def test_a_sound_kernel(series):
    done = verify("kernel7", *SMALL)
    assert done.exit_code == 0, done.output
    assert "1 launch, 2 schedules; compared: C" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(", 256x256x128: clean")


def test_the_findings_name_both_places_the_bytes_and_the_fix(altered):
    done = verify("kernel7", *SMALL, "--ptx", without_fences(altered))
    assert done.exit_code == 1
    head, first, second, missing, fix, *_ = done.stdout.splitlines()
    assert re.match(r"error proxy-write-read: C tile \d( \+ \d+)? of CTA [01] \(\d+ bytes\): ", head)
    assert re.match(r"  first +PTX line \d+: stmatrix.*by CTA [01] warp [0-3] \(epilogue\)", first)
    assert re.match(r"  then +PTX line \d+: cp.async.bulk.tensor.2d.global.*by CTA [01] warp 0 \(epilogue\)", second)
    assert "no proxy fence" in missing and "fence.proxy.async.shared::cta after line" in fix
    assert "(32 places" in head and done.stdout.splitlines()[-1].endswith(": racy")
    assert done.stdout.count("error proxy-write-read") == 1  # one fence is missing, in a loop that is unrolled
    also = next(line for line in done.stdout.splitlines() if line.startswith("  also "))
    assert also.count(" -> ") == 8 and "23 more" in also


@pytest.mark.slow
def test_json_is_what_scripts_rely_on(altered, tmp_path):
    file = tmp_path / "report.json"
    ptx = without_fences(altered)
    printed = verify("kernel7", *SMALL, "--ptx", ptx, "--json", "-", "--jobs", 2)
    assert printed.exit_code == 1
    assert verify("kernel7", *SMALL, "--ptx", ptx, "-o", file).exit_code == 1
    assert json.loads(printed.stdout) == json.loads(file.read_text())
    report = json.loads(printed.stdout)
    assert (report["verdict"], report["launches"], report["fidelity"]["schedules"]) == ("racy", 1, 2)
    finding = report["findings"][0]
    assert (finding["rule"], finding["severity"]) == ("proxy-write-read", "error")
    assert finding["message"] and finding["count"] >= 1
    assert {"line", "text", "source", "cta", "warp", "lanes", "role"} <= set(finding["first"]) == set(finding["second"])


def test_sarif_has_a_result_for_each_finding(altered, tmp_path):
    file, ptx = tmp_path / "check.sarif", without_fences(altered)
    done = verify("kernel7", *SMALL, "--ptx", ptx, "-o", file, "-o", "-")
    findings = json.loads(done.stdout)["findings"]
    (run,) = json.loads(file.read_text())["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == list(RULES)
    for result, finding in zip(run["results"], findings, strict=True):
        assert (result["ruleId"], result["level"]) == (finding["rule"], finding["severity"])
        assert list(RULES)[result["ruleIndex"]] == result["ruleId"]
        (place,) = result["locations"]
        where = place["physicalLocation"]
        assert where["artifactLocation"]["uri"] == ptx
        assert where["region"]["startLine"] == finding["second"]["line"]
        assert len(result["relatedLocations"]) == 2


def test_a_rule_may_be_allowed(altered):
    done = verify("kernel7", *SMALL, "--ptx", without_fences(altered), "--emulate", "allow=proxy-write-read")
    assert done.exit_code == 0, done.output


def test_warnings_are_errors_if_asked_for(altered):
    ptx = altered(r"fence\.mbarrier_init\.release\.cluster;", "")
    options = (["--schedules", "10"], ["--emulate", "strict=true"])
    lenient, strict = (verify("kernel7", *SMALL, "--ptx", ptx, *more) for more in options)
    assert (lenient.exit_code, strict.exit_code) == (0, 1)
    # Copies into two stages and two commits signal barriers of the other CTA; ten schedules show all ten places.
    warnings = [line for line in lenient.stdout.splitlines() if line.startswith("warning init: ")]
    assert len(warnings) == 2 and sum(int(re.search(r"\((\d+) places", line)[1]) for line in warnings) == 10
    assert strict.stdout.startswith("error init: ")


def test_a_wrong_result(altered):
    swapped = altered(r"(bulk_group \[%rd\d+, )\{(%r\d+), (%r\d+)\}", r"\1{\3, \2}")
    done = verify("kernel7", "--shape", "512,256,128", *SMALL[2:], "--ptx", swapped)
    assert done.exit_code == 4, done.output
    assert "wrong: a result is wrong" in done.stdout and done.stdout.splitlines()[-1].endswith(": wrong")


def test_a_run_that_does_not_end_shows_what_was_found(altered):
    doubled = altered(r"(mbarrier\.arrive\.expect_tx[^;]*, )(%r\d+);", r"{ .reg .b32 n; add.u32 n, \2, \2; \1n; }")
    done = verify("kernel7", *SMALL, "--ptx", doubled, "-o", "-")
    assert done.exit_code == 3, done.output
    report = json.loads(done.stdout)
    assert report["verdict"] == "hung"
    assert any("did not come to its end: Deadlock" in reason["reason"] for reason in report["reasons"])
    assert {"bytes", "phase-unobserved"} <= {finding["rule"] for finding in report["findings"]}
    shown = verify("kernel7", *SMALL, "--ptx", doubled)
    assert shown.exit_code == 3
    assert re.search(r"^error bytes: full\[0\] of CTA 0 expects \d+ bytes more than arrive", shown.stdout, re.MULTILINE)
    assert "hung: a run did not come to its end: Deadlock" in shown.stdout


def test_a_run_that_ends_at_once_is_incomplete(altered):
    ptx = altered(r"mad\.lo\.s32", "mad.lo.s32.unheard")
    done = verify("kernel7", *SMALL, "--emulate", "ptxas=false", "--ptx", ptx)
    assert done.exit_code == 5 and done.stdout.endswith(": incomplete\n")


BAD_REQUESTS = [
    ([], "Missing argument"),
    (["kernel99"], "there is no kernel 'kernel99'"),
    (["kernel7", "--ptx", "nowhere.ptx"], "cannot read nowhere.ptx: No such file or directory; name a .ptx file"),
    (["kernel7", "kernel6", "--ptx", "nowhere.ptx"], "2 kernels are named; name one"),
    (["kernel7", "--emulate", "allow=nothing"], "--emulate allow=nothing: allow is a rule; the nearest are "),
    (["kernel7", "--schedules", "0"], "--schedules 0: write fifo, declining, reversed, random:SEED"),
    (["kernel7", "-o", "no/folder/x.json"], "-o 'no/folder/x.json' is not a file in an existing folder"),
    (["kernel7", "-o", "no/folder/x.sarif"], "-o 'no/folder/x.sarif' is not a file in an existing folder"),
    (["kernel7", "--device", "gpu"], "No such option '--device'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_REQUESTS)
def test_a_wrong_request_is_refused_in_one_line_before_anything_is_built(monkeypatch, arguments, message):
    def fail(*_):
        raise AssertionError("nothing may be built")

    monkeypatch.setattr(harness.cli.kernels, "build_with_notice", fail)
    done = verify(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_ptx_that_cannot_be_used_is_said(altered, tmp_path, series):
    path = tmp_path / "bad.ptx"
    path.write_text("this is not PTX")
    done = verify("kernel7", *SMALL, "--ptx", path)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"{path} is not PTX" in done.stderr
    done = verify("kernel6", *SMALL, "--ptx", altered(r"\tret;", "\tret;"))
    assert done.exit_code == 2 and "it has kernel7_bf16" in done.stderr and "the plan launches kernel6" in done.stderr
    done = verify("kernel7", *SMALL, "--emulate", "ptxas=false", "--ptx", altered(r"\tret;", "\tadd.u32 %r1;"))
    assert done.exit_code == 3 and "PtxSyntaxError" in done.output


def test_several_kernels_have_a_verdict_each(series):
    done = verify("kernel7", "kernel6", *SMALL)
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines() if line.endswith(": clean")] == ["kernel7", "kernel6"]


def test_the_rules_are_listed():
    done = verify("--rules")
    assert done.exit_code == 0
    for rule in RULES.values():
        assert f"{rule.id} " in done.stdout and rule.summary in done.stdout


@pytest.mark.slow
def test_progress_is_told_by_schedule(series):
    kernel = series["kernel7"]
    shape = parse_shape("256,256,64")
    told: list[tuple[int, int]] = []
    for jobs in (1, 2):
        options = CheckOptions(2, EmulationOptions(jobs=jobs))
        what = make_launchable(kernel, shape, "integer", seed=0)
        [found] = check_launchables([what], options, lambda *two: told.append(two))
        assert found.schedules == 2
    assert told == [(0, 2), (1, 2), (2, 2)] * 2


@pytest.mark.slow
def test_a_kernel_of_ours_with_a_fault_is_shown_by_a_smaller_product(monkeypatch, artifacts):
    def without_wait(*arguments):
        what = make_launchable(*arguments)
        return replace(what, text_given=what.text.replace("cp.async.bulk.wait_group.read 1;", ""))

    monkeypatch.setattr(harness.cli.kernels, "make_launchable", without_wait)
    done = verify("kernel7", "--shape", "300,520,200", "-c", "cluster=2x1", "--shrink", "--json", "-")
    found = json.loads(done.stdout)
    again, command = verify_again(main, "harness", found["smaller"])
    shape = [int(size) for size in command[command.index("--shape") + 1].split(",")]
    assert shape < [300, 520, 200] and shape[2] <= 8, command
    assert errors_of(found) & errors_of(again)
