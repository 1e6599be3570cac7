"""``emugpu verify``: one verdict for each way in which a kernel or a program can end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from ptx_programs import STORE_R1, WORDS, source
from smaller_cases import errors_of, verify_again

from emugpu.check.verdict import EXIT_CODES, fidelity
from emugpu.cli import verify as verify_module
from emugpu.cli.main import main
from emugpu.emulator import Module
from emugpu.launch import check as check_module
from emugpu.launch.check import CheckOptions
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions

LAUNCH = """ptx = "kernel.ptx"
launch = {{ kernel = "kernel", grid = 1, block = 64, arguments = ["out"] }}
{expect}
[buffers]
out = {{ dtype = "u32", shape = 64, init = "zeros" }}
"""
SHARED = "mov.b32 %r4, words; shl.b32 %r3, %r0, 2; add.u32 %r3, %r3, %r4; st.shared.b32 [%r3], %r0; {} "
NEIGHBOUR = SHARED + "xor.b32 %r5, %r3, 128; ld.shared.b32 %r1, [%r5];" + STORE_R1
"""Each thread takes what a thread of the other warp has put into shared memory; `{}`: what stands between."""
BODIES = {
    "clean": NEIGHBOUR.format("bar.sync 0;"),
    "wrong": NEIGHBOUR.format("bar.sync 0;").replace("xor.b32 %r5, %r3, 128", "mov.b32 %r5, %r3"),
    "fault": "ld.global.b32 %r1, [%rd0+4096];" + STORE_R1,
    "racy": NEIGHBOUR.format(
        "bar.sync 0; st.shared.b32 [%r3], %r0; xor.b32 %r6, %r3, 128; ld.shared.b32 %r7, [%r6]; bar.sync 0;"
    ),
    "hung": "setp.eq.u32 %p0, %r0, 0; @%p0 mbarrier.init.shared.b64 [words], 1; bar.sync 0;"
    "W: mbarrier.try_wait.parity.shared.b64 %p1, [words], 0; @!%p1 bra W;" + STORE_R1,
    "unsupported": "tcgen05.shift.cta_group::1.down [%r0];" + STORE_R1,
}
EXPECTED = {"fault": "wrong", "unsupported": "incomplete"}


def verify(*words: object):
    return CliRunner().invoke(main, ["verify", *map(str, words)])


def launch_file(folder: Path, body: str, expect: str = 'expect.out = "roll(arange(64), 32)"') -> Path:
    (folder / "kernel.ptx").write_text(source(body + "ret;", WORDS))
    (folder / "launch.toml").write_text(LAUNCH.format(expect=expect))
    return folder / "launch.toml"


@pytest.mark.parametrize(
    ("ends", "word"), [(("incomplete", "wrong"), "wrong"), (("incomplete", "hung", "wrong"), "hung")]
)
def test_the_most_severe_of_the_schedules_is_the_verdict(tmp_path, monkeypatch, ends, word):
    """A limit that one schedule meets hides neither the wrong result nor the deadlock of another one."""
    left, check_once = [*ends], check_module.check_once

    def end(work):
        found = check_once(work)
        how = left.pop(0) if left else "clean"
        if how == "wrong":
            return replace(found, correct=False)
        return found if how == "clean" else replace(found, failure=f"made {how}", ended=how, correct=None)

    monkeypatch.setattr(check_module, "check_once", end)
    done = verify(launch_file(tmp_path, BODIES["clean"]), "--json", "-")
    found = json.loads(done.stdout)
    assert (found["verdict"], done.exit_code) == (word, EXIT_CODES[word])
    assert {"verdict": "wrong", "reason": "a result is wrong"} in found["reasons"]


def test_a_launch_of_which_no_cluster_ends_for_long_has_no_verdict(tmp_path):
    """The rounds are counted, so that nothing proves that the loop never ends."""
    body = "mov.u32 %r2, 0; LOOP: bar.sync 0; add.u32 %r2, %r2, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra LOOP;" + STORE_R1
    done = verify(launch_file(tmp_path, body), "--timeout", 0.2, "--schedules", 2, "--json", "-")
    found = json.loads(done.stdout)
    assert (done.exit_code, found["verdict"]) == (EXIT_CODES["incomplete"], "incomplete")
    reason = found["reasons"][0]["reason"]
    assert "no cluster of it has ended for 0.2 seconds, its limit (timeout)" in reason
    assert "a persistent kernel, whose clusters all end late, may need a higher one" in reason
    assert "CTA (0, 0, 0), rank 0, warp" in reason and "PTX line" in reason
    assert found["fidelity"]["schedules"] == 1
    assert reason.endswith("1 more schedule was not run, because a run has reached its limit")


def test_the_progress_reaches_its_total_after_a_limit(tmp_path, monkeypatch):
    check_once, seen = check_module.check_once, []
    monkeypatch.setattr(
        check_module,
        "check_once",
        lambda work: replace(check_once(work), failure="a limit", ended="incomplete", is_limited=True),
    )
    what = read_launch_file(launch_file(tmp_path, BODIES["clean"]))
    options = CheckOptions(2, EmulationOptions())
    check_module.check([what, what], options, lambda done, total: seen.append((done, total)))
    assert seen == [(0, 4), (1, 3), (2, 2)]


def test_a_verdict_has_a_limit_by_default():
    assert "[default: 120]" in " ".join(verify("--help").stdout.split())


@pytest.mark.parametrize("name", BODIES)
def test_each_end_has_its_verdict_and_exit_code(tmp_path, name):
    done = verify(launch_file(tmp_path, BODIES[name]), "--json", "-")
    found = json.loads(done.stdout)
    word = EXPECTED.get(name, name)
    assert (found["verdict"], done.exit_code) == (word, EXIT_CODES[word]), done.output
    assert found["launches"] == 1 and found["fidelity"]["schedules"] == 4
    assert found["fidelity"]["compared"] == ["out"]
    assert bool(found["reasons"]) == (word != "clean")
    assert bool([f for f in found["findings"] if f["severity"] == "error"]) == (name in ("racy", "hung"))


def test_what_is_not_compared_is_not_clean(tmp_path):
    done = verify(launch_file(tmp_path, BODIES["clean"], expect=""), "--json", "-")
    [reason] = json.loads(done.stdout)["reasons"]
    assert done.exit_code == 5 and reason == {
        "verdict": "incomplete",
        "reason": "no result is expected, so none was compared",
    }


def test_files_for_other_programs(tmp_path):
    path = launch_file(tmp_path, BODIES["racy"])
    done = verify(path, "-o", tmp_path / "found.sarif", "-o", tmp_path / "found.xml")
    written = f"written to {tmp_path / 'found.sarif'}\nwritten to {tmp_path / 'found.xml'}\n"
    assert done.exit_code == 1 and done.stdout.endswith(f": racy\n{written}")
    [run] = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    assert {result["ruleId"] for result in run["results"]} == {"race-shared"}
    suite = ElementTree.parse(tmp_path / "found.xml").getroot()
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "0")
    failure = suite.find("testcase/failure")
    assert failure.get("message") == "racy" and "race-shared" in failure.text


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("racy", "racy"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("clean", "clean"), ("hung", "hung"), ("fault", "wrong"))
        ),
    ],
)
def test_a_program(tmp_path, name, word):
    (tmp_path / "kernel.ptx").write_text(source(BODIES[name] + "ret;", WORDS))
    (tmp_path / "program.py").write_text(
        "import os, sys\nfrom driver_client import *\nstart()\n"
        f'kernel, = load(open({str(tmp_path / "kernel.ptx")!r}).read(), "kernel")\n'
        "out = upload((c_uint * 64)())\nlaunch(kernel, 1, 64, out)\n"
        "os._exit(0 if cu.cuCtxSynchronize() == 0 else 9)\n"
    )
    command = [sys.executable, "-m", "emugpu", "verify", "--json", str(tmp_path / "verdict.json"), "--"]
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[2] / 'support'}:{Path(__file__).parents[2]}"}
    done = subprocess.run([*command, sys.executable, tmp_path / "program.py"], env=environment, capture_output=True)
    found = json.loads((tmp_path / "verdict.json").read_text())
    assert (found["verdict"], done.returncode) == (word, EXIT_CODES[word]), done.stderr.decode()
    assert found["launches"] == 1


def test_a_program_that_launches_nothing_is_incomplete():
    done = subprocess.run(
        [sys.executable, "-m", "emugpu", "verify", "--", "true"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5 and "has launched nothing" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["launch.toml", "--gpu", "h200"], "--gpu: launch.toml is not a program; leave it out"),
        (["--schedules", "2", "--", "true"], "--schedules 2: true is a program, and runs once"),
        (["--redundant", "--", "true"], "--redundant: true is a program"),
        (["--emulate", "resident-clusters=1", "--", "true"], "--emulate resident-clusters: true is a program"),
        ([".", "--notes"], "--notes: . is a folder"),
        ([".", "launch.toml"], ". is a folder, but 2 paths are named"),
        (["--ptx", "x.ptx", "a.toml", "b.toml"], "--ptx x.ptx is launched by one launch file, and 2 are named"),
        (["kernel.ptx"], "make a launch file for it: emugpu ptx init kernel.ptx -o kernel.toml"),
        (["-o", "x.bmp", "--", "true"], "-o x.bmp: this command writes .json, .sarif, .xml or .md"),
    ],
)
def test_options_that_mean_nothing_are_not_ignored(words, said):
    done = verify(*words)
    assert done.exit_code == 2 and said in done.stderr and done.stderr.count("\n") == 1


def test_how_far_instructions_can_be_trusted():
    body = "mov.u32 %r1, %clock; ex2.approx.f32 %r2, %r1; tcgen05.wait::ld.sync.aligned; add.u32 %r1, %r1, 1; ret;"
    assert fidelity([(Module.from_text(source(body)).find("kernel"), "sm_100a")]) == {
        "exact": {"all": 4},
        "not modelled": {"mov.u32": 1},
        "bounded": {"ex2.approx.f32": 1},
        "by the ISA alone": {"tcgen05.wait::ld.sync.aligned": 1},
    }


SUMS = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("sm_90a", {"exact": {"all": 5}}),
        ("sm_120a", {"exact": {"all": 4}, "by the ISA alone": {SUMS: 1}}),
    ],
)
def test_sums_of_floats_that_nobody_has_observed_are_by_the_isa_alone(gpu, expected):
    body = f"""{SUMS} {{%r1, %r2, %r3, %r4}}, {{%r5, %r6, %r7, %r8}}, {{%r9, %r10}}, {{%r1, %r2, %r3, %r4}};
    mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {{%r1, %r2}}, {{%r5}}, {{%r9}}, {{%r1, %r2}}; ret;"""
    assert fidelity([(Module.from_text(source(body, target=gpu)).find("kernel"), gpu)]) == expected


# ---- smaller cases ----

COUNTED = "ld.param.u32 %r9, [p0]; {} L: sub.u32 %r9, %r9, 1; setp.ne.u32 %p0, %r9, 0; @%p0 bra L;"
"""A loop of as many rounds as the argument says, behind a program."""


def shrunk(folder: Path, body: str, *options: str) -> tuple[dict, dict, str]:
    """The verdict with the smaller case that it names, that case's own verdict, and its launch file."""
    path = launch_file(folder, "")
    (folder / "kernel.ptx").write_text(source(COUNTED.format(body) + "ret;", WORDS, parameters=["u32 p0"]))
    path.write_text(path.read_text().replace("grid = 1,", "grid = [6, 1],").replace('["out"]', '["out", 300]'))
    done = verify(path, "--json", "-", "--shrink", *options)
    assert done.exit_code in (1, 3, 4), done.output
    found = json.loads(done.stdout)
    again, command = verify_again(main, "emugpu", found["smaller"])
    return found, again, Path(command[2]).read_text()


@pytest.mark.parametrize("name", ["racy", "hung", "fault"])
def test_a_smaller_case_goes_wrong_in_the_same_way(tmp_path, name):
    found, again, text = shrunk(tmp_path, BODIES[name])
    assert (again["verdict"], again["fidelity"]["schedules"]) == (found["verdict"], 1)
    launch = tomllib.loads(text)["launch"]
    assert (launch["grid"], launch["arguments"]) == ([1, 1], ["out", 1]) and "expect" not in text
    assert errors_of(again) <= errors_of(found) and bool(errors_of(again)) == (name != "fault")


def test_a_number_that_the_fault_needs_stays(tmp_path):
    """Only from 20 rounds on: the next power of two is 32. And only in the third CTA. Few rounds are another fault."""
    few = "setp.lt.u32 %p3, %r9, 4;\n@%p3 trap;\n"
    needs = few + "mov.u32 %r8, %ctaid.x; setp.eq.u32 %p2, %r8, 2; setp.ge.and.u32 %p2, %r9, 20, %p2; @%p2 trap;"
    _, again, text = shrunk(tmp_path, needs)
    launch = tomllib.loads(text)["launch"]
    assert (launch["grid"], launch["arguments"], again["verdict"]) == ([4, 1], ["out", 32], "wrong")


def test_any_name_is_written_and_a_place_that_is_taken_leaves_the_verdict(tmp_path):
    path = launch_file(tmp_path, BODIES["racy"])
    (tmp_path / "kernel.ptx").rename(tmp_path / "\U0001f600.ptx")
    path.write_text(path.read_text().replace("kernel.ptx", "\U0001f600.ptx").replace("grid = 1,", "grid = 6,"))
    again, _ = verify_again(main, "emugpu", json.loads(verify(path, "--shrink", "--json", "-").stdout)["smaller"])
    assert again["verdict"] == "racy"
    (tmp_path / "launch-smaller.toml").unlink()
    (tmp_path / "launch-smaller.toml").mkdir()
    done = verify(path, "--shrink")
    assert done.exit_code == 1 and "smaller: found (launch.grid 6 to 1), but cannot write " in done.stdout
    assert "launch-smaller.toml: Is a directory" in done.stdout


def test_a_smaller_case_replaces_only_what_shrink_wrote(tmp_path, monkeypatch):
    path, smaller = launch_file(tmp_path, BODIES["racy"]), tmp_path / "launch-smaller.toml"
    path.write_text(path.read_text().replace("grid = 1,", "grid = 6,"))
    assert [verify(path, "--shrink").exit_code for _ in range(2)] == [1, 1] and tomllib.loads(smaller.read_text())
    mine = path.read_text()
    smaller.write_text(mine)
    assert verify(path).exit_code == 1
    monkeypatch.setattr(verify_module, "give_verdicts", lambda *_: pytest.fail("nothing may be run"))
    done = verify(path, "--shrink")
    assert done.exit_code == 2 and smaller.read_text() == mine
    assert done.stderr == (
        f"emugpu: error: --shrink writes {smaller}, which exists and is not from --shrink; rename it\n"
    )


def test_a_wrong_result_keeps_its_numbers(tmp_path):
    """With fewer CTAs another result would be right; the command names the schedule alone, if even that is known."""
    path = launch_file(tmp_path, BODIES["wrong"])
    found = json.loads(verify(path, "--shrink", "--json", "-").stdout)
    assert found["smaller"].startswith("not found") and not list(tmp_path.glob("*-smaller.toml"))
    assert "smaller" not in json.loads(verify(launch_file(tmp_path, BODIES["clean"]), "--shrink", "--json", "-").stdout)


def test_a_program_has_no_smaller_case():
    done = verify("--shrink", "--", "true")
    assert done.exit_code == 2 and "--shrink" in done.stderr
