"""The table of the corpus, and the verdict on each kernel of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner
from processes import is_gone_soon

from emugpu.errors import CannotRun
from harness.paths import ROOT
from tests.nightly.corpus.__main__ import main
from tests.nightly.corpus.fetching import get
from tests.nightly.corpus.kernels import kernels_of
from tests.nightly.corpus.table import HERE, Program, Project, projects
from tests.nightly.corpus.verification import verify

LAUNCHES = [{"kernel": name, "findings": []} for name in ("first", "second")]
FINDING = {"rule": "tmem-fence", "severity": "warning"}
DOUBLE = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
context, module, function, memory = (ctypes.c_void_p() for _ in range(4))
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
driver.cuMemAlloc_v2(ctypes.byref(memory), 128)
driver.cuMemsetD32_v2(memory, 1, 32)
assert driver.cuModuleLoadData(ctypes.byref(module), PTX) == 0
assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"kernel") == 0
arguments = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
driver.cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, None, arguments, None)
assert driver.cuCtxSynchronize() == 0
"""
PTX = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 x)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [x];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, STEP;
    add.s64 %rd3, %rd1, %rd2;
    st.global.b16 [%rd3], %r1;
    ret;
}
"""


def answer(*reasons, launches=LAUNCHES):
    return {"schedule": "fifo", "reasons": list(reasons), "launches": launches}


def words(*answers):
    return {kernel.name: kernel.word for kernel in kernels_of("project", "program.py 3", answers)}


def test_a_kernel_has_its_most_severe_verdict_of_all_schedules():
    racy = answer(("racy", "launch 1, kernel 'second': race-global: ..."))
    assert words(answer(), racy, answer()) == {"first": "clean", "second": "racy"}
    warned = answer(launches=[{"kernel": "first", "findings": [FINDING]}])
    assert words(answer(), warned) == {"first": "warned", "second": "clean"}


def test_a_failure_of_the_program_holds_for_every_kernel_that_may_have_caused_it():
    failed = ("wrong", "the program ended with code 1")
    assert words(answer(failed)) == {"first": "wrong", "second": "wrong"}
    assert words(answer(("hung", "launch 0: a deadlock"), failed)) == {"first": "hung", "second": "clean"}


def test_what_was_not_looked_at_is_incomplete():
    assert words(answer(), {"incomplete": "the limit of 300 s"}) == {"first": "incomplete", "second": "incomplete"}
    nothing = answer(("incomplete", "the program has launched nothing on the emulated GPU"), launches=[])
    assert words(nothing) == words() == {"program.py 3": "incomplete"}


@pytest.mark.parametrize(
    ("command", "cause"),
    [("exit 3", "it has ended with code 3 before the last schedule"), ("sleep 60", "the limit of 1 s")],
)
def test_a_program_that_ends_before_its_last_schedule_is_incomplete(tmp_path, command, cause):
    """No process that it has started outlives it."""
    python, started = tmp_path / "python", tmp_path / "started"
    lines = ("#!/bin/sh", f"echo '{json.dumps(answer())}' > $3", f"sleep 60 & echo $! > {started}", command, "")
    python.write_text("\n".join(lines), encoding="utf-8")
    python.chmod(0o755)
    work = (Project("project", "1", ()), Program("b200", ("program",)))
    found = verify(work, python=str(python), sources=tmp_path, answers=tmp_path, limit=1)
    assert [(kernel.word, kernel.why) for kernel in found] == [("incomplete", cause)] * 2
    assert is_gone_soon(int(started.read_text()))


@pytest.mark.parametrize(
    ("jobs", "last", "word", "code"),
    [
        (1, answer(), "clean", 0),
        (2, answer(), "clean", 0),
        (2, {"incomplete": "the limit of 300 s"}, "incomplete", 5),
        (1, answer(("wrong", "the program ended with code 1")), "wrong", 4),
    ],
)
def test_the_command_takes_the_answers_that_are_there(tmp_path, jobs, last, word, code):
    file = tmp_path / "CUTLASS_primitives_of_CuTe_DSL_bar_warp_sync.py.jsonl"
    file.write_text("".join(f"{json.dumps(each)}\n" for each in (answer(), answer(), last)), encoding="utf-8")
    options = ["--sources", tmp_path, "--answers", tmp_path, "--match", "bar_warp_sync", "--jobs", str(jobs)]
    done = subprocess.run(
        [sys.executable, "-m", "nightly.corpus", *options], capture_output=True, text=True, timeout=120, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "tests"},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert [line.split()[:3] for line in done.stdout.splitlines()[:2]] == [
        [word, "bar_warp_sync.py", name] for name in ("first", "second")
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--project", "nosuch"], "--project 'nosuch': no project has that in its name; they are CUTLASS, "),
        (["--match", "nosuch"], "--match 'nosuch': no program's command has that in it"),
        (["--limit", "0"], "'--limit': 0.0 is not in the range x>0"),
        (["--limit", "nan"], "'--limit': nan is not a finite number"),
        (["--jobs", "0"], "'--jobs': 0 is not in the range x>=1"),
        (["--python", "nosuch"], "--python nosuch: there is no such program"),
        (["--sources", ""], "'--sources': it is empty"),
        (["--answers", "file"], "'--answers': Directory 'file' is a file"),
        (["--json", "nosuch/all.json"], "--json 'nosuch/all.json' is not a file in an existing folder"),
        (["--match", "bar_warp_sync"], "CuTeDSL/experimental/primitives; fetch the code with --get"),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    done = CliRunner().invoke(main, ["--sources", "code", "--answers", "answers", *words])
    assert done.exit_code == 2 and says in done.stderr.splitlines()[-1]
    assert not list(tmp_path.glob("answers/*.jsonl"))


def test_every_program_of_the_table_is_named_once_and_says_where_it_comes_from():
    names = [(project.name, program.gpu, program.name) for project in projects() for program in project.programs]
    assert len(names) == len(set(names)) > 100
    made = {project.folder.split("/")[0] for project in projects() if project.repository or project.build}
    for project in projects():
        assert project.version and project.programs
        assert not project.folder or project.folder.split("/")[0] in made
        assert len(project.commit) == (40 if project.repository else 0)


@pytest.mark.parametrize(("step", "word"), [(2, "clean"), (0, "racy")])
def test_the_worker_verifies_a_script_under_three_schedules(tmp_path, step, word):
    script, answers = tmp_path / "double.py", tmp_path / "answers"
    script.write_text(f"PTX = {PTX.replace('STEP', str(step)).encode()!r}{DOUBLE}", encoding="utf-8")
    command = [sys.executable, HERE / "worker.py", "h200", answers, script]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
    found = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    assert [one["schedule"] for one in found] == ["fifo", "random", "reversed"]
    assert [(one["verdict"], len(one["launches"])) for one in found] == [(word, 1)] * 3


def test_code_that_could_not_be_fetched_is_fetched_the_next_time(tmp_path):
    origin, sources = tmp_path / "origin", tmp_path / "sources"
    project = Project("project", "1", (), folder="code", repository=str(origin), commit="HEAD", parts=("tests",))
    with pytest.raises(CannotRun, match="git fetch "):
        get(project, sys.executable, sources)
    for name in ("tests", "src"):
        (origin / name).mkdir(parents=True)
        (origin / name / "file").touch()
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "a"],
    ):
        subprocess.run(["git", *words], cwd=origin, check=True)
    for _ in range(2):  # the second time it is there
        get(project, sys.executable, sources)
        assert [file.name for file in (sources / "code").iterdir() if file.name != ".git"] == ["tests"]
        shutil.rmtree(origin, ignore_errors=True)
