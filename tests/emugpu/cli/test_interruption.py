"""SIGTERM ends a command, its workers and its programs within about two seconds, with one line and exit code 130."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ptx_programs import source

from emugpu.errors import EXIT_INTERRUPTED

TESTS = Path(__file__).parents[2]
MARK = "TEST_OF_INTERRUPTION"
SECONDS = 3.0
"""Two, and one more for a machine that does much else."""
ENDLESS = "mov.u32 %r2, 0; LOOP: bar.sync 0; add.u32 %r2, %r2, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra LOOP; ret;"
FILE = """ptx = "kernel.ptx"
launch = { kernel = "kernel", grid = 4, block = 64, arguments = ["out"] }
buffers.out = { dtype = "u32", shape = 1, init = "zeros" }
"""
PROGRAM = f"from driver_client import *\nstart()\nlaunch(*load({source(ENDLESS)!r}, 'kernel'), 1, 32, c_uint64(0))\n"
STUBBORN = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{PROGRAM}"
LONG_CALL = """
import hashlib
import emugpu.launch.launching
from emugpu.__main__ import entry

emugpu.launch.launching.run = lambda *_, **__: hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)
entry()
"""
"""The emulation is one call of C, during which Python handles no signal."""
COMMANDS = {
    "run": ["run", "launch.toml"],
    "run in Python": ["run", "launch.toml", "--emulate", "engine=python"],
    "run, profiled": ["run", "launch.toml", "--profile"],
    "forked workers": ["run", "launch.toml", "--jobs", "2"],
    "one long call": ["run", "launch.toml"],
    "verify": ["verify", "launch.toml"],
    "workers": ["verify", "launch.toml", "--jobs", "2"],
    "exec": ["exec", "--", sys.executable, "program.py"],
    "a program below a shell": ["verify", "--", "bash", "-c", f"{sys.executable} program.py & wait; true"],
    "a program that does not mind": ["exec", "--", sys.executable, "stubborn.py"],
}


def seconds_used(pid: int) -> float:
    """The CPU time of a process and those that it has started."""
    used = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(folder.name) == pid or int(fields[1]) == pid:
            used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def left(mark: str) -> list[str]:
    """The commands of the processes that have a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_sigterm_ends_everything(tmp_path, name):
    (tmp_path / "kernel.ptx").write_text(source(ENDLESS))
    (tmp_path / "launch.toml").write_text(FILE)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    mark = secrets.token_hex(16)
    path = os.pathsep.join([str(TESTS.parent), str(TESTS / "support")])
    process = subprocess.Popen(
        [sys.executable, *(["-c", LONG_CALL] if name == "one long call" else ["-m", "emugpu"]), *COMMANDS[name]],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path, MARK: mark},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while seconds_used(process.pid) < 2 and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    assert left(mark)
    process.send_signal(signal.SIGTERM)
    begin = time.monotonic()
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - begin < SECONDS
    assert process.returncode == EXIT_INTERRUPTED and out == "" and "Traceback" not in err
    said = err.strip().splitlines()
    assert said[-1] == "emugpu: error: interrupted" and (len(said) == 1 or name == "run, profiled"), err
    while left(mark) and time.monotonic() < begin + SECONDS:
        time.sleep(0.05)
    assert not left(mark)


@pytest.mark.parametrize("program", ["emugpu", "harness"])
def test_ctrl_c_during_the_first_imports_ends_a_program_silently(tmp_path, program):
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = os.pathsep.join([str(tmp_path), str(TESTS.parent), str(TESTS.parent / "emugpu")])
    done = subprocess.run(
        [sys.executable, "-m", program, "--version"], env={**os.environ, "PYTHONPATH": path}, capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.slow
def test_a_command_that_was_started_without_sigterm_goes_on(tmp_path):
    """As some supervisors start it."""
    (tmp_path / "kernel.ptx").write_text(source(ENDLESS))
    (tmp_path / "launch.toml").write_text(FILE)
    process = subprocess.Popen(
        [sys.executable, "-m", "emugpu", "run", "launch.toml"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while seconds_used(process.pid) < 2 and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        assert seconds_used(process.pid) >= 2
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        process.communicate()
