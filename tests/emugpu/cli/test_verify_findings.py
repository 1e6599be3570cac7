"""``emugpu verify``: what it finds in the synchronisation of launch files, and how it shows it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from cuda_programs import SGEMM_LAUNCH
from launch_control import persistent
from ptx_programs import WORDS, source

from emugpu.check.findings import RULES
from emugpu.cli.main import main
from emugpu.launch import check as checking
from emugpu.launch.check import CheckOptions, judge
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.memory import make_values
from emugpu.launch.spec import DATA_TYPES, Fill

LAUNCH = """ptx = "{ptx}"
[buffers]
out = {{ dtype = "u32", shape = [64], init = "zeros" }}
{launches}
"""
ONE = """[[launch]]
kernel = "kernel"
grid = 1
block = 64
arguments = ["out"]
"""
SHARING = """
shl.b32 %r3, %r0, 2;
mov.b32 %r4, words;
add.u32 %r3, %r3, %r4;
xor.b32 %r5, %r3, 128;
mov.b32 %r9, 0;
st.shared.b32 [%r3], %r9;
bar.sync 0;
st.shared.b32 [%r3], %r0;
{}
ld.shared.b32 %r1, [%r5];
ret;
"""


def verify(*arguments):
    return CliRunner().invoke(main, ["verify", *map(str, arguments)])


@pytest.fixture
def launch_file(tmp_path):
    def write(body: str, launches: str = ONE):
        (tmp_path / "kernel.ptx").write_text(source(body, WORDS))
        path = tmp_path / "launch.toml"
        path.write_text(LAUNCH.format(ptx=tmp_path / "kernel.ptx", launches=launches))
        return path

    return write


def test_a_race_is_an_error_and_a_barrier_mends_it(launch_file):
    wrong = verify(launch_file(SHARING.format("")))
    assert wrong.exit_code == 1, wrong.output
    assert wrong.stdout.startswith("error race-shared: ")
    fixed = verify(launch_file(SHARING.format("bar.sync 0;")), "--jobs", 2)
    assert fixed.exit_code == 5, fixed.output  # no result is expected
    assert fixed.stdout.splitlines()[0] == "incomplete: no result is expected, so none was compared"


def test_the_launches_of_a_file_are_checked_one_by_one(launch_file):
    """Both write the same words, and the second comes after the first."""
    writes = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r0; ret;"
    done = verify(launch_file(writes, ONE + ONE), "--json", "-")
    assert done.exit_code == 5, done.output
    report = json.loads(done.stdout)
    assert (report["findings"], report["launches"], report["fidelity"]["schedules"]) == ([], 2, 4)


def test_programs_of_nvcc_are_sound(tmp_path):
    path = tmp_path / "launch.toml"
    path.write_text(SGEMM_LAUNCH)
    done = verify(path, "--schedules", 2, "--emulate", "strict=true")
    assert done.exit_code == 0, done.output


def test_what_the_file_asks_wrongly_is_a_usage_error(launch_file):
    done = verify(launch_file("ret;", ONE.replace('"out"', '"nothing"')))
    assert done.exit_code == 2 and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("value", "severity"), [("7", "note"), ("%r8", "error")])
def test_all_warps_may_write_the_same_value_to_one_place(launch_file, value, severity):
    body = "shr.u32 %r8, %r0, 5; mov.b32 %r4, words; mov.b32 %r5, {}; st.shared.b32 [%r4], %r5; bar.sync 0; ret;"
    done = verify(launch_file(body.format(value)), "--json", "-")
    found = json.loads(done.stdout)
    assert [(f["rule"], f["severity"]) for f in found["findings"]] == [("race-shared", severity)]
    assert done.exit_code == (1 if severity == "error" else 5)


LEAVES_OUT = """
setp.ge.u32 %p0, %r0, {last};
@%p0 bra END;
mul.wide.u32 %rd1, %r0, 4;
add.s64 %rd0, %rd0, %rd1;
ld.param.u64 %rd2, [x];
add.s64 %rd2, %rd2, %rd1;
ld.global.u32 %r1, [%rd2];
st.global.u32 [%rd0], %r1;
END: ret;
"""
COPIES = """ptx = "kernel.ptx"
[buffers]
out = {{ dtype = "{dtype}", shape = [64], init = "zeros" }}
x = {{ dtype = "{dtype}", shape = [64], init = "integer", seed = {seed} }}
[launch]
grid = 1
block = 64
arguments = ["out", "x"]
[expect]
out = "{expected}"
"""


@pytest.mark.parametrize("dtype", ["s32", "f32"])
def test_a_kernel_that_leaves_out_an_element_is_wrong_where_that_is_zero_too(tmp_path, dtype):
    def verdict(last, seed, expected="x", schedules=4):
        (tmp_path / "kernel.ptx").write_text(source(LEAVES_OUT.format(last=last), parameters=["u64 x"]))
        path = tmp_path / "launch.toml"
        path.write_text(COPIES.format(dtype=dtype, seed=seed, expected=expected))
        what = read_launch_file(path)
        [checked] = checking.check([what], CheckOptions(schedules))
        return judge(what, checked)

    # The last element of this x is zero: one schedule sees nothing wrong.
    unseen = next(seed for seed in range(100) if verdict(63, seed, schedules=1).word == "clean")
    found = verdict(63, unseen)
    assert found.word == "wrong"
    [(_, reason)] = found.reasons
    assert reason.startswith("a result is wrong, under the random schedule of seed ") and "to the seed of x" in reason
    assert verdict(64, unseen).word == "clean" == verdict(64, unseen + 1).word
    # Where the expectation does not follow the inputs, they stay as they are.
    values = [int(n) for n in make_values(Fill("integer", seed=unseen), DATA_TYPES[dtype], (64,), 1)]
    assert verdict(64, unseen, expected=values).word == "clean"


CLUSTERS = """ptx = "{ptx}"
launch = {{ kernel = "persistent", grid = 6, block = 64, arguments = ["counts", "origin"] }}
expect.counts = "ones([6, 2])"
[buffers]
counts = {{ dtype = "u32", shape = [6, 2], init = "zeros" }}
origin = {{ dtype = "u32", shape = 6, init = "zeros" }}
"""
NOTHING_LATER = "mov.u32 %r7, %ctaid.x; setp.ne.u32 %p7, %r7, 0; @%p7 bra DONE; mov.b32 %r4, 0;"
"""Clusters that start later leave: launch control would have handed their tiles out."""


@pytest.mark.parametrize("relies", [True, False])
def test_a_kernel_that_relies_on_launch_control_to_hand_out_everything(tmp_path, relies):
    text = persistent()
    (tmp_path / "kernel.ptx").write_text(text.replace("mov.b32 %r4, 0;", NOTHING_LATER) if relies else text)
    (tmp_path / "launch.toml").write_text(CLUSTERS.format(ptx=tmp_path / "kernel.ptx"))
    done = verify(tmp_path / "launch.toml", "--emulate", "resident-clusters=1", "--schedules", 2, "--json", "-")
    found = json.loads(done.stdout)
    assert found["fidelity"]["schedules"] == 3
    assert [f["rule"] for f in found["findings"] if f["severity"] == "error"] == ["clc-declined"] * relies
    assert done.exit_code == (4 if relies else 0), done.output
    once = CliRunner().invoke(
        main,
        ["run", str(tmp_path / "launch.toml"), "--emulate", "resident-clusters=1", "--schedules", "declining"],
    )
    assert once.exit_code == (4 if relies else 0), once.output


CHAIN = """
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %nctaid.x; setp.eq.u32 %p1, %r2, {first};
mul.wide.u32 %rd1, %r2, 4; add.s64 %rd1, %rd0, %rd1; mov.u32 %r6, 1; @%p1 bra GO;
WAIT: ld.acquire.gpu.global.u32 %r5, [%rd1{before}]; setp.eq.u32 %p2, %r5, 0; @%p2 bra WAIT;
add.u32 %r6, %r5, 1;
GO: st.release.gpu.global.u32 [%rd1], %r6; ret;
"""
"""Each CTA waits for the one with the next lower number, or the next higher one, and counts."""
CHAINED = """ptx = "kernel.ptx"
launch = {{ kernel = "kernel", grid = 4, block = 1, arguments = ["out"] }}
expect.out = "{expected}"
buffers.out = {{ dtype = "u32", shape = 4, init = "zeros" }}
"""
FORWARD = (CHAIN.format(first=0, before="+-4"), "arange(4) + 1")
BACKWARD = (CHAIN.format(first=3, before="+4"), "4 - arange(4)")


def verify_chain(folder, text, expected, *options):
    (folder / "kernel.ptx").write_text(source(text))
    (folder / "launch.toml").write_text(CHAINED.format(expected=expected))
    done = verify(folder / "launch.toml", "--schedules", 3, "--json", "-", *options)
    return done.exit_code, json.loads(done.stdout)


ROOM_FOR_TWO = ("--emulate", "resident-clusters=2")


def test_who_relies_on_ctas_to_start_in_order_is_warned(tmp_path):
    code, found = verify_chain(tmp_path, *FORWARD, *ROOM_FOR_TWO)
    [warning] = found["findings"]
    assert (code, found["verdict"], warning["rule"], warning["severity"]) == (0, "clean", "start-order", "warning")
    assert warning["message"].startswith("it hangs if CTAs start in the reverse order")
    assert found["fidelity"]["schedules"] == 4
    strict = ("--emulate", "strict=true")
    assert verify_chain(tmp_path, *FORWARD, *ROOM_FOR_TWO, *strict)[0] == 1
    assert verify_chain(tmp_path, *FORWARD, *ROOM_FOR_TWO, *strict, "--emulate", "allow=start-order")[0] == 0
    assert verify_chain(tmp_path, *FORWARD, "--schedules", "reversed", *ROOM_FOR_TWO)[0] == 3


def test_a_chain_in_the_other_direction_hangs_by_its_own_fault(tmp_path):
    code, found = verify_chain(tmp_path, *BACKWARD, *ROOM_FOR_TWO)
    assert (code, found["verdict"]) == (3, "hung")
    assert "start-order" not in [finding["rule"] for finding in found["findings"]]


@pytest.mark.parametrize("chain", [FORWARD, BACKWARD])
def test_with_room_for_all_the_order_of_starts_does_not_matter(tmp_path, chain):
    code, found = verify_chain(tmp_path, *chain)
    assert (code, found["findings"], found["fidelity"]["schedules"]) == (0, [], 3)


# ---- what is shown of a finding, and what counts ----

UNWRITTEN = "mov.b32 %r4, words; mad.lo.u32 %r4, %r0, 4, %r4; ld.shared.b32 %r1, [%r4];"
"""Shared memory is read before it is written: a warning where bytes of zero stand for it."""
ZERO = ("--emulate", "uninitialised=zero")
OWN_WORD = "mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1; st.global.u32 [%rd1], %r1; ret;"
EXPECTED = '[expect]\nout = "out + arange(64)"\n'


def test_a_finding_names_both_places_what_is_missing_and_the_fix_and_the_word_comes_last(launch_file):
    done = verify(launch_file(SHARING.format("")))
    head, first, then, missing, fix, *rest = done.stdout.splitlines()
    assert head.startswith("error race-shared: ")
    assert first.startswith("  first    PTX line ") and "ld.shared.b32 %r1, [%r5], by CTA 0 warp 1" in first
    assert then.startswith("  then     PTX line ") and "st.shared.b32 [%r3], %r0, by CTA 0 warp 0" in then
    assert missing.startswith("  missing  no path from ") and fix.startswith("  fix      a barrier (bar.sync")
    assert rest[-1].endswith("launch.toml: kernel: racy")
    assert not any("race-shared" in line for line in rest), "a reason that is shown above is not repeated"


def test_notes_are_shown_if_asked_for(launch_file):
    body = "mov.b32 %r4, words; mov.b32 %r5, 7; st.shared.b32 [%r4], %r5; bar.sync 0; ret;"
    file = launch_file(body)
    assert "note race-shared" not in verify(file).stdout
    assert "note race-shared" in verify(file, "--notes").stdout


def test_synchronisation_that_could_be_left_out_is_noted(launch_file):
    file = launch_file("mov.u32 %r1, %r0; bar.sync 0;" + OWN_WORD, ONE + EXPECTED)
    done = verify(file, "--redundant")
    assert done.exit_code == 0 and "bar.sync 0" in done.stdout, done.output
    assert any(line.startswith("note ") for line in done.stdout.splitlines())
    assert "note " not in verify(file).stdout


def test_warnings_count_as_errors_if_asked_for_and_rules_may_be_left_out(launch_file):
    file = launch_file(UNWRITTEN + OWN_WORD, ONE + '[expect]\nout = "out"\n')
    lenient, strict = verify(file, *ZERO), verify(file, *ZERO, "--emulate", "strict=true")
    assert (lenient.exit_code, strict.exit_code) == (0, 1), strict.output
    assert lenient.stdout.startswith("warning memory: ") and strict.stdout.startswith("error memory: ")
    allowed = verify(file, *ZERO, "--emulate", "strict=true", "--emulate", "allow=memory", "--json", "-")
    assert allowed.exit_code == 0 and json.loads(allowed.stdout)["findings"] == []


def test_several_launch_files_have_a_verdict_each_and_the_gravest_exit_code(launch_file, tmp_path):
    right, racy = tmp_path / "right.toml", launch_file(SHARING.format(""))
    (tmp_path / "right.ptx").write_text(source("mov.u32 %r1, %r0;" + OWN_WORD, WORDS))
    right.write_text(LAUNCH.format(ptx="right.ptx", launches=ONE + EXPECTED))
    done = verify(right, racy, "-o", tmp_path / "found.json", "-o", tmp_path / "found.md", "-o", tmp_path / "found.xml")
    assert done.exit_code == 1, done.output
    assert [one["verdict"] for one in json.loads((tmp_path / "found.json").read_text())] == ["clean", "racy"]
    rows = (tmp_path / "found.md").read_text().splitlines()
    assert rows[0] == "| target | verdict | reasons |" and "| clean |" in rows[2] and "| racy | race-shared" in rows[3]
    assert 'tests="2" failures="1" skipped="0"' in (tmp_path / "found.xml").read_text()
    assert verify(right, "-o", tmp_path / "one.json").exit_code == 0
    assert json.loads((tmp_path / "one.json").read_text())["verdict"] == "clean"


def test_ptx_that_was_edited_takes_the_place_of_the_files(launch_file, tmp_path):
    file, edited = launch_file(SHARING.format("bar.sync 0;")), tmp_path / "edited.ptx"
    edited.write_text(source(SHARING.format(""), WORDS))
    assert verify(file).exit_code == 5
    done = verify(file, "--ptx", edited, "--shrink", "-o", tmp_path / "found.sarif")
    assert done.exit_code == 1 and f"--ptx {edited}" in done.stdout
    [run] = json.loads((tmp_path / "found.sarif").read_text())["runs"]
    assert run["tool"]["driver"]["name"] == "emugpu verify"
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == str(edited)


def test_the_rules_are_listed():
    done = verify("--rules")
    assert done.exit_code == 0
    for rule in RULES.values():
        assert f"{rule.id} " in done.stdout and rule.summary in done.stdout
