"""Runs a probe on a GPU, in processes of its own: one that hangs or faults costs no other probe, and a case no case.

    python -m conformance.gpu CASES.pickle FOLDER NUMBER,...

is such a process: it runs some cases of a probe and leaves NUMBER.npz of each that it has done.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.probe import Outputs, Probe, outputs_of
from conformance.ptx import TARGETS
from emugpu.cuda.driver import Driver
from emugpu.cuda.launch import run_on_gpu
from emugpu.errors import CannotRun, ReportedError
from emugpu.processes import program

TIME_LIMIT = 30.0
"""Time limit of a probe's process in seconds, including the start of Python and of the driver."""
MOST_PROCESSES = 4
"""Most processes of a probe: one more for each case that fails. The remaining cases are not run then."""
MOST_HANGS = 2
"""Most of these processes that may hang."""
CASE = "case"
"""The beginning of the message of a case that fails."""
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Answered:
    """The results of a GPU. ``failed`` holds the messages of cases without outputs, by name."""

    outputs: Outputs
    failed: dict[str, str]


def describe() -> dict[str, str]:
    """Returns name, driver version, compute capability, date. Raises CannotRun if there is no GPU for which there are
    probes.
    """
    name, driver, capability = _from_nvidia_smi() or _from_driver()
    if capability not in TARGETS:
        known = ", ".join(f"{c} ({t})" for c, t in TARGETS.items())
        raise CannotRun(f"{name} has compute capability {capability}; there are probes for {known}")
    return {"gpu": name, "driver": driver, "compute_capability": capability, "date": time.strftime("%Y-%m-%d")}


def _from_nvidia_smi() -> list[str] | None:
    """Returns name, driver version and compute capability of the first GPU, or None if there is no such program."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        done = program.run(query, 60)
    except OSError:
        return None
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"nvidia-smi does not answer ({error}); probes on a GPU need its driver") from None
    if done.returncode or not done.stdout.strip():
        raise CannotRun(f"nvidia-smi finds no GPU: {(done.stderr or done.stdout).strip()[:200]}")
    return [part.strip() for part in done.stdout.strip().splitlines()[0].split(",")]


def _from_driver() -> list[str]:
    """Returns the same from the driver. Its version is only the supported version of CUDA."""
    found = Driver().describe()
    return [found["name"], f"CUDA {found['cuda']}", found["compute_capability"]]


def run_in_child(probe: Probe, seconds: float = TIME_LIMIT) -> Answered:
    """Returns the probe's outputs, from processes with this time limit.

    If no case has outputs, raises CannotRun with the child's message, or with the exceeded time.
    """
    left = list(range(len(probe.cases)))
    found: Outputs = {}
    failed: dict[int, str] = {}
    hung = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        asked, parts = Path(temporary) / "cases.pickle", Path(temporary)
        asked.write_bytes(pickle.dumps([(probe.launchable(case), case.outputs) for case in probe.cases]))
        for _ in range(MOST_PROCESSES):
            message, hangs = _child(asked, parts, seconds, left)
            for number in list(left):
                part = parts / f"{number}.npz"
                if part.exists():
                    left.remove(number)
                    with np.load(part) as contents:
                        found[probe.cases[number].name] = outputs_of(probe.cases[number], contents)
            if message is None or not left:
                break
            if not hangs and not message.startswith(f"{CASE} "):
                failed.update(dict.fromkeys(left, message))
                left.clear()
                break
            # Cases run in order, so it is the first of those left.
            failed[left.pop(0)] = message if hangs else message.partition(": ")[2]
            hung += hangs
            if not left or hung == MOST_HANGS:
                break
    if not found:
        raise CannotRun(next(iter(failed.values()), "the process left nothing"))
    failed.update(dict.fromkeys(left, "not asked: too many cases failed"))
    return Answered(found, {probe.cases[number].name: message for number, message in sorted(failed.items())})


def _child(asked: Path, parts: Path, seconds: float, cases: Sequence[int]) -> tuple[str | None, bool]:
    """Runs some cases in a process. Returns the error, if any, and whether it was the time limit."""
    numbers = ",".join(map(str, cases))
    command = [sys.executable, "-m", "conformance.gpu", str(asked), str(parts), numbers]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    try:
        done = program.run(command, seconds, env={**os.environ, "PYTHONPATH": path})
    except subprocess.TimeoutExpired:
        return f"no answer after {seconds:.0f} s; the probe hangs on this GPU", True
    lines = f"{done.stdout}\n{done.stderr}".strip().splitlines()
    return ((lines or [f"exit code {done.returncode}"])[-1] if done.returncode else None), False


def answer(asked: Path, parts: Path, cases: Sequence[int], driver: Driver) -> None:
    """Runs some cases in this process. Raises CannotRun, whose message names the case if the case is at fault."""
    everything = pickle.loads(asked.read_bytes())
    driver.load_module(everything[0][0].text.encode())
    for number in cases:
        what, outputs = everything[number]
        try:
            contents = run_on_gpu(what, driver, keep=outputs).contents
        except ReportedError as error:
            raise CannotRun(f"{CASE} {number}: {error}") from None
        part = parts / f"{number}.part.npz"
        np.savez(part, **contents)  # type: ignore[arg-type]
        part.rename(parts / f"{number}.npz")


if __name__ == "__main__":
    try:
        answer(Path(sys.argv[1]), Path(sys.argv[2]), [int(number) for number in sys.argv[3].split(",")], Driver())
    except ReportedError as error:
        sys.exit(str(error))
