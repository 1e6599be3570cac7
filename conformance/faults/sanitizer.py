"""Runs a program under the tools of NVIDIA's compute-sanitizer, and counts what they report."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from emugpu.errors import UsageProblem
from emugpu.processes import program

TOOLS = ("racecheck", "memcheck", "synccheck", "initcheck")
FIRST_PORT, PORTS, PORTS_EACH = 20_000, 2_000, 16
"""Each run has ports of its own, so that many can run at once."""
MARK = "========="
"""Every line of a tool begins with it."""
REPORT = re.compile(
    r"Race reported|Potential \w+ hazard|Invalid |Uninitialized |Barrier error|[Uu]naligned |isaligned "
)
"""What the first line of a report says."""
KEPT = 3
"""So many lines of each report are kept."""


def find(given: str | None) -> Path | None:
    """Returns the path of compute-sanitizer, or None if there is none on the PATH. Raises UsageProblem if the given
    path is no program.
    """
    found = shutil.which(given or "compute-sanitizer")
    if given and found is None:
        raise UsageProblem(f"--sanitizer {given}: there is no such program; leave it out to look for it on the PATH")
    return Path(found) if found else None


@cache
def version(tool: Path) -> str:
    """Returns the version, such as 2025.3.1."""
    found = re.search(r"[Vv]ersion (\S+)", program.run([tool, "--version"], program.QUERY_SECONDS).stdout)
    return found[1] if found else "unknown"


def command(tool: Path, name: str, number: int, words: list[str]) -> list[str]:
    """Returns the words that run a command under a tool. ``number`` tells this run from others."""
    port = FIRST_PORT + number % PORTS * PORTS_EACH
    options = {"tool": name, "port": port, "max-connections": PORTS_EACH, "show-backtrace": "no"}
    return [str(tool), *(f"--{option}={value}" for option, value in options.items()), *words]


def run(words: list[str], limit: float, environment: dict[str, str]) -> dict[str, Any]:
    """Runs a command of `command`. Returns "reports", the number of errors and hazards, with the first lines of them.

    Without a summary, for example of a program that was stopped, "ended" is false and the reports are those that were
    printed.
    """
    try:
        done = program.run(words, limit, env=environment)
        text, how = f"{done.stdout}\n{done.stderr}", f"it ended with code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        text, how = _text(error.stdout) + _text(error.stderr), f"stopped after {limit:.0f} s"
    if _summary(text) is not None:
        return read(text)
    last = next((line.strip(" =") for line in reversed(text.splitlines()) if line.startswith(MARK)), "no output")
    return {**read(text), "ended": False, "why": f"{how}: {last}"}


def _text(part: str | bytes | None) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else part or ""


def read(text: str) -> dict[str, Any]:
    """Returns the number of reports in a tool's output, and the first lines of them."""
    lines = [line.removeprefix(MARK).strip() for line in text.splitlines() if line.startswith(MARK)]
    found = [line for line in lines if REPORT.search(line)]
    summary = _summary(text)
    number = len(found) if summary is None else summary
    return {"reports": number, **({"lines": (found or lines[1:])[:KEPT]} if number else {})}


def _summary(text: str) -> int | None:
    """Returns the number in a tool's last line, or None if there is none."""
    found = re.findall(r"RACECHECK SUMMARY: (\d+) hazards? displayed|ERROR SUMMARY: (\d+) errors?", text)
    return sum(int(number) for numbers in found for number in numbers if number) if found else None


def worker(id: str, launches: int, seconds: float) -> list[str]:
    """Returns the words that launch a program on a GPU."""
    return [sys.executable, "-m", "conformance.faults.worker", id, str(launches), f"{seconds:g}"]
