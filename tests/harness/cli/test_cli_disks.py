"""Disks that are full, files that cannot be written, locales that lack characters: nothing half, nothing obscure."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import harness.cli.doctor
import harness.cli.main
from emugpu.errors import CannotRun
from emugpu.files import write_text
from harness import paths
from harness.run import records

pytestmark = [pytest.mark.slow, pytest.mark.nightly_unless_changed("harness/cli/", "emugpu/files.py")]

SMALL = ["run", "kernel6", "--shape", "256,512,64", "-c", "cluster=2x1"]
# A disk that is full after so many bytes of a file: the write that reaches beyond is cut off, the next one fails.
# Python itself does not notice that its own .pyc files are cut off, and cannot read them later: none are written.
FULL_AFTER = """
import resource, sys
sys.dont_write_bytecode = True
resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes}, {bytes}))
{more}
from harness.__main__ import entry
sys.argv = ["harness", *sys.argv[1:]]
entry()
"""
WRONG = """
from emugpu.launch.memory import LaunchMemory
download = LaunchMemory.download
LaunchMemory.download = lambda memory, name: download(memory, name) * (name != "C")
"""


def full_after(size: int, *arguments: object, more: str = "", **options) -> subprocess.CompletedProcess[str]:
    code = FULL_AFTER.format(bytes=size, more=more)
    words = [sys.executable, "-c", code, *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(words, cwd=paths.ROOT, text=True, timeout=120, **options)


@pytest.mark.parametrize("before", ["", '{"schema":1}\n', '{"schema":1'])
def test_a_record_that_does_not_fit_leaves_nothing(results_dir, before):
    path = results_dir / "x.jsonl"
    path.parent.mkdir()
    path.write_text(before)
    code = (
        "import resource, sys, pathlib; sys.dont_write_bytecode = True;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
        "from harness.run import records; records.append(pathlib.Path(sys.argv[1]), {'schema': 1, 'pad': 'x' * 200})"
    )
    done = subprocess.run([sys.executable, "-c", code, path], cwd=paths.ROOT, capture_output=True, text=True)
    assert "CannotRun: cannot write the record" in done.stderr
    assert path.read_text() == before


def test_a_record_that_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    records.append(path, {"schema": 1})
    before = path.read_bytes()

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        records.append(path, {"schema": 1, "kernel": "kernel6"})
    assert path.read_bytes() == before


def test_a_full_disk_does_not_cost_the_result(artifacts, results_dir):
    done = full_after(1000, *SMALL)
    assert done.stdout.splitlines()[-1].endswith("PASSED")
    assert done.returncode == 0
    assert done.stderr.startswith("harness: warning: cannot write the record to") and done.stderr.count("\n") == 1
    assert (results_dir / "emulated-sm_100a.jsonl").read_text() == ""


def test_a_full_disk_does_not_cost_the_verdict(artifacts):
    done = full_after(1000, *SMALL, more=WRONG)
    assert done.returncode == 4 and "WRONG RESULT" in done.stdout
    assert done.stderr.count("\n") == 1
    with open("/dev/full", "w") as full:
        done = full_after(10**9, *SMALL, "--no-save", more=WRONG, stdout=full)
    assert done.returncode == 4
    assert done.stderr == "harness: error: cannot write the output, or read an input: No space left on device\n"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ([*SMALL, "--no-save"], "out.json"),
        (["explain", "kernel6"], "out.txt"),
        (["build", "kernel6", "-c", "cluster=2x1", "--emit", "ptx"], "out.ptx"),
        (["compare", *SMALL[1:], "--no-save"], "out.json"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_an_output_that_does_not_fit_leaves_nothing(artifacts, tmp_path, command, name):
    path = tmp_path / name
    assert full_after(10**9, *command).returncode == 0, "what has to be compiled is, while there is room"
    done = full_after(500, *command, "-o", path)
    assert done.returncode == 3
    assert done.stderr == f"harness: error: cannot write {path}: File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_a_bench_goes_on_without_its_history(artifacts, tmp_path):
    suite, table = tmp_path / "small.toml", tmp_path / "table.md"
    suite.write_text(
        'schema = 1\nkernels = "kernel6"\nclusters = ["2x1", "2x2"]\nshapes = "256,512,64"\ndtypes = "bf16"\n'
        'inputs = "index"\n[[cases]]\n'
    )
    done = full_after(1000, "bench", "--suite", suite, "--schedules", 1, "-o", table)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("NEW") == 3 and "cannot write the record" in done.stdout
    assert table.read_text().count("| NEW |") == 2
    done = full_after(1000, "bench", "--suite", suite, "--schedules", 1, "--json", tmp_path / "out")
    assert done.returncode == 3
    assert not (tmp_path / "out").exists() and "2 NEW" in done.stdout


def test_files_are_replaced_whole(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "new ü")
    assert path.read_bytes() == "new ü".encode()
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o640
    os.umask(mask := os.umask(0))
    write_text(tmp_path / "fresh", "")
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o666 & ~mask
    assert {item.name for item in tmp_path.iterdir()} == {"file", "link", "fresh"}


def test_devices_are_written_to(tmp_path):
    with pytest.raises(CannotRun, match="cannot write /dev/full: No space left on device"):
        write_text("/dev/full", "text")
    code = "from emugpu.files import write_text; write_text('/dev/stdout', 'text')"
    with open(tmp_path / "file", "w") as file:
        file.write("before ")
        file.flush()
        subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, stdout=file, check=True)
    assert (tmp_path / "file").read_text().endswith("text")


def test_a_file_without_permission_is_refused_before_the_work(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda *_: False)
    result = CliRunner().invoke(harness.cli.main.main, [*SMALL, "--json", str(tmp_path / "x.json")])
    assert result.exit_code == 2 and "permission denied" in result.stderr


def test_operating_system_errors_are_one_clear_line(monkeypatch):
    def fail():
        raise OSError(errno.EROFS, "Read-only file system", "/place")

    monkeypatch.setattr(harness.cli.doctor, "examine", fail)
    result = CliRunner().invoke(harness.cli.main.main, ["doctor"])
    assert (result.exit_code, result.stderr) == (3, "harness: error: cannot use /place: Read-only file system\n")


ASCII = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_nothing_can_be_written_anywhere(stream):
    with open("/dev/full", "w") as full:
        streams = {"stdout": full, "stderr": subprocess.PIPE} | ({"stderr": full} if stream == "stderr" else {})
        done = subprocess.run([sys.executable, "-m", "harness", "list"], cwd=paths.ROOT, timeout=60, **streams)
    assert done.returncode == 3


def test_a_locale_without_the_characters(artifacts, tmp_path):
    folder = tmp_path / "für"
    folder.mkdir()
    environment = {**os.environ, **ASCII, "HARNESS_RESULTS_DIR": str(folder)}
    words = [sys.executable, "-m", "harness", *SMALL, "--json", str(folder / "ü.json")]
    done = subprocess.run(words, cwd=paths.ROOT, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0 and done.stderr == b""
    assert b"f\\udcc3\\udcbcr" in done.stdout or b"f\\xfcr" in done.stdout
    assert json.loads(Path(folder, "ü.json").read_text(encoding="utf-8"))["kernel"] == "kernel6"
