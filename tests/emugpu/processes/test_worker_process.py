"""Worker processes and programs: what they answer, and that nothing of them outlives its limit or this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import work
from processes import is_gone_soon, is_there

from emugpu.processes import program
from emugpu.processes.worker_process import WorkerProcess, request
from harness.paths import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])}


def started_by(script: str, place: Path) -> int:
    """Kills a program once it has left the id of a process that it started in a file; returns that id."""
    parent = subprocess.Popen([sys.executable, "-c", script, str(place)], env=ENVIRONMENT)
    while not place.exists() or not place.read_text():
        assert parent.poll() is None
        time.sleep(0.05)
    started = int(place.read_text())
    assert is_there(started)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    return started


WORKER = """
import sys, work
from pathlib import Path
from emugpu.processes.worker_process import WorkerProcess, request
process = WorkerProcess()
process.submit(request(work.misbehave, 5, None), None)
Path(sys.argv[1]).write_text(str(process.pid))
process.result()
"""
COMPILER = """
import sys
from pathlib import Path
from harness.compile.compiler import _run_mojo
_run_mojo(["sh", "-c", f"echo $$ > {sys.argv[1]}; exec sleep 600"], Path("."), Path("."))
"""


@pytest.mark.parametrize("script", [WORKER, COMPILER], ids=["worker", "compiler"])
def test_what_was_started_ends_with_a_parent_that_is_killed(script, tmp_path):
    """The Mojo compiler would go on for a minute on all cores."""
    assert is_gone_soon(started_by(script, tmp_path / "pid"))


def test_what_a_program_started_ends_with_it(tmp_path):
    """Not the shell alone: its child, too."""
    place = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        program.run(["sh", "-c", f"sleep 600 & echo $! > {place}; wait"], 1)
    assert is_gone_soon(int(place.read_text()))


def test_what_a_program_prints():
    done = program.run(["sh", "-c", "cat; echo oops >&2; exit 3"], 10, input="given")
    assert (done.stdout, done.stderr, done.returncode) == ("given", "oops\n", 3)
    with pytest.raises(OSError):
        program.run(["/no/such/program"], 10)


def test_events_come_before_the_answer_and_renew_the_limit():
    heard = []
    with WorkerProcess() as process:
        process.submit(request(work.count_slowly, 4, 1.0), 1.0)
        reply = process.result(heard.append)
    assert (reply.kind, reply.value, heard) == ("value", 4, [0, 1, 2, 3])
