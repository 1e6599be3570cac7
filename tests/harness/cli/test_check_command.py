"""``harness check``: what it says, in which forms, and how it exits."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

import harness.cli.check
import harness.cli.main
from emugpu.check import RULES
from emugpu.check.checker import Checked, together
from emugpu.check.findings import Report
from emugpu.cli.findings_output import Shown, tell
from emugpu.launch.check import CheckOptions
from emugpu.launch.check import check as check_launchables
from emugpu.launch.launching import EmulationOptions
from harness.compile.artifacts import Artifact, make_launchable
from harness.problem import parse_shape

SMALL = ["--shape", "256,256,128", "--cluster", "2x1", "--schedules", "2"]


@pytest.fixture
def check():
    return lambda *arguments: CliRunner().invoke(harness.cli.main.main, ["check", *map(str, arguments)])


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


def test_a_sound_kernel(check, series):
    done = check("kernel7", *SMALL)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip().endswith("2 schedules: sound")


def test_the_findings_name_both_places_the_bytes_and_the_fix(check, altered):
    done = check("kernel7", *SMALL, "--ptx", without_fences(altered))
    assert done.exit_code == 1
    head, first, second, missing, fix, *_ = done.stdout.splitlines()
    assert re.match(r"error proxy-write-read: C tile \d( \+ \d+)? of CTA [01] \(\d+ bytes\): ", head)
    assert re.match(r"  first +PTX line \d+: stmatrix.*by CTA [01] warp [0-3] \(epilogue\)", first)
    assert re.match(r"  then +PTX line \d+: cp.async.bulk.tensor.2d.global.*by CTA [01] warp 0 \(epilogue\)", second)
    assert "no proxy fence" in missing and "fence.proxy.async.shared::cta after line" in fix
    assert re.search(r"2 schedules: 1 error at 32 places, no warnings$", done.stdout.strip())
    assert done.stdout.count("error proxy-write-read") == 1  # one fence is missing, in a loop that is unrolled
    also = next(line for line in done.stdout.splitlines() if line.startswith("  also "))
    assert also.count(" -> ") == 8 and "23 more" in also


@pytest.mark.slow
def test_json_is_what_scripts_rely_on(check, altered, tmp_path):
    file = tmp_path / "report.json"
    ptx = without_fences(altered)
    printed = check("kernel7", *SMALL, "--ptx", ptx, "--json", "-", "--jobs", 2)
    assert printed.exit_code == 1
    assert check("kernel7", *SMALL, "--ptx", ptx, "--json", file).exit_code == 1
    assert json.loads(printed.stdout) == json.loads(file.read_text())
    (report,) = json.loads(printed.stdout)["reports"]
    assert (report["kernel"], report["config"]["cluster"], report["correct"]) == ("kernel7", [2, 1], True)
    finding = report["findings"][0]
    assert (finding["rule"], finding["severity"]) == ("proxy-write-read", "error")
    assert finding["message"] and finding["count"] >= 1
    assert {"line", "text", "source", "cta", "warp", "lanes", "role"} <= set(finding["first"]) == set(finding["second"])


def test_sarif_has_a_result_for_each_finding(check, altered, tmp_path):
    file, ptx = tmp_path / "check.sarif", without_fences(altered)
    done = check("kernel7", *SMALL, "--ptx", ptx, "--sarif", file, "--json", "-")
    findings = json.loads(done.stdout)["reports"][0]["findings"]
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


def test_a_rule_may_be_allowed(check, altered):
    done = check("kernel7", *SMALL, "--ptx", without_fences(altered), "--allow", "proxy-write-read")
    assert done.exit_code == 0, done.output


def test_warnings_are_errors_if_asked_for(check, altered):
    ptx = altered(r"fence\.mbarrier_init\.release\.cluster;", "")
    lenient, strict = (check("kernel7", *SMALL, "--ptx", ptx, *more) for more in ([], ["--strict"]))
    assert (lenient.exit_code, strict.exit_code) == (0, 1)
    # Copies into two stages and two commits signal barriers of the other CTA.
    assert lenient.stdout.startswith("warning init: ") and "no errors, 2 warnings at 8 places" in lenient.stdout
    assert strict.stdout.startswith("error init: ")


def test_a_wrong_result(check, altered):
    swapped = altered(r"(bulk_group \[%rd\d+, )\{(%r\d+), (%r\d+)\}", r"\1{\3, \2}")
    done = check("kernel7", "--shape", "512,256,128", *SMALL[2:], "--ptx", swapped)
    assert done.exit_code == 4, done.output
    assert "the result is wrong" in done.stdout


def test_a_run_that_does_not_end_shows_what_was_found(check, altered):
    doubled = altered(r"(mbarrier\.arrive\.expect_tx[^;]*, )(%r\d+);", r"{ .reg .b32 n; add.u32 n, \2, \2; \1n; }")
    done = check("kernel7", *SMALL, "--ptx", doubled, "--json", "-")
    assert done.exit_code == 3, done.output
    (report,) = json.loads(done.stdout)["reports"]
    assert "Deadlock" in report["failure"] and report["correct"] is None
    assert {"bytes", "phase-unobserved"} <= {finding["rule"] for finding in report["findings"]}
    shown = check("kernel7", *SMALL, "--ptx", doubled)
    assert shown.exit_code == 3
    assert re.search(r"^error bytes: full\[0\] of CTA 0 expects \d+ bytes more than arrive", shown.stdout, re.MULTILINE)
    assert "a run did not come to its end: Deadlock" in shown.stdout
    assert re.search(r"2 schedules: no verdict, as a run did not end; until then \d+ errors, ", shown.stdout)


def test_a_run_that_ends_at_once_is_not_called_free_of_errors(check, altered):
    done = check("kernel7", *SMALL, "--no-ptxas", "--ptx", altered(r"mad\.lo\.s32", "mad.lo.s32.unheard"))
    assert done.exit_code == 3
    assert done.stdout.endswith("2 schedules: no verdict, as a run did not end\n")


def test_a_wrong_result_outweighs_a_run_that_does_not_end(capsys):
    def checked(failure: str, correct: bool | None) -> Checked:
        return Checked("kernel7", {}, "kernel.ptx", Report(()), failure, correct)

    both = together([checked("", False), checked("Deadlock", None)])
    assert tell([both], Shown(strict=False, notes=False, allow=(), json_path=None, sarif_path=None)) == 4
    assert "no verdict" in capsys.readouterr().out


BAD_REQUESTS = [
    ([], "Missing argument"),
    (["kernel99"], "there is no kernel 'kernel99'"),
    (["kernel7", "--ptx", "nowhere.ptx"], "cannot read nowhere.ptx: No such file or directory; name a .ptx file"),
    (["kernel7", "kernel6", "--ptx", "nowhere.ptx"], "2 kernels are named; name one"),
    (["kernel7", "--allow", "nothing"], "'nothing' is not one of 'race-shared'"),
    (["kernel7", "--schedules", "0"], "0 is not in the range 1<=x<=10000"),
    (["kernel7", "--json", "no/folder/x"], "--json 'no/folder/x' is not a file in an existing folder"),
    (["kernel7", "--sarif", "no/folder/x"], "--sarif 'no/folder/x' is not a file in an existing folder"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_REQUESTS)
def test_a_wrong_request_is_refused_in_one_line_before_anything_is_built(check, monkeypatch, arguments, message):
    def fail(*_):
        raise AssertionError("nothing may be built")

    monkeypatch.setattr(harness.cli.check, "build_with_notice", fail)
    done = check(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr and done.stderr.count("\n") == 1


def test_ptx_that_cannot_be_used_is_said(check, altered, tmp_path, series):
    path = tmp_path / "bad.ptx"
    path.write_text("this is not PTX")
    done = check("kernel7", *SMALL, "--ptx", path)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"{path} is not PTX" in done.stderr
    done = check("kernel6", *SMALL, "--ptx", altered(r"\tret;", "\tret;"))
    assert done.exit_code == 2 and "it has kernel7_bf16" in done.stderr and "the plan launches kernel6" in done.stderr
    done = check("kernel7", *SMALL, "--no-ptxas", "--ptx", altered(r"\tret;", "\tadd.u32 %r1;"))
    assert done.exit_code == 3 and "PtxSyntaxError" in done.stdout


def test_the_rules_are_listed(check):
    done = check("--rules")
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
