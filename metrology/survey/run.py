"""Runs a survey: every part in a process of its own, under a limit of its own, within a limit for all of them.

    python -m metrology.survey.run FILE.tar.gz PACKED [SECONDS [PART...]]

needs no more than the parts themselves; `harness survey` is the same with a table.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import harness
from harness.errors import EXIT_OK, HarnessError, UsageProblem
from harness.processes import program
from harness.timing.survey_archive import StepResult
from metrology.survey import archive
from metrology.survey.parts import PARTS, Part

USAGE = "usage: python -m metrology.survey.run FILE.tar.gz PACKED [SECONDS [PART...]]"
SECONDS = 600
LEAST_SECONDS = 5
"""With less left no part is started."""
LOGS = "logs"
RUNS = "runs.json"
"""What was packed, kept in the archive as it is."""


def survey(
    path: Path,
    packed: Path | None,
    seconds: float = SECONDS,
    parts: Sequence[Part] = PARTS,
    report: Callable[[StepResult], None] = lambda ended: None,
) -> list[StepResult]:
    """Runs the parts and writes the archive after each of them. packed: the folder of `metrology.survey.pack`."""
    end = time.monotonic() + seconds
    ended: list[StepResult] = []
    with tempfile.TemporaryDirectory(prefix="survey-") as temporary:
        folder = Path(temporary)
        (folder / LOGS).mkdir()
        if packed is not None and (packed / RUNS).exists():
            shutil.copy(packed / RUNS, folder / RUNS)
        about: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "harness": harness.__version__,
            "host": {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()},
            "gpu": _gpu(),
        }
        for part in parts:
            ended.append(_run(part, folder, packed, end, about["gpu"]))
            report(ended[-1])
            archive.write(path, folder, about, ended)
    return ended


def _gpu() -> dict[str, Any] | None:
    """What the driver says, asked in another process: this one never touches the GPU, so no part can hang it."""
    code = "import json; from harness.run.driver import Driver; print(json.dumps(Driver().describe()))"
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout) if done.returncode == 0 else None


def _run(part: Part, folder: Path, packed: Path | None, end: float, gpu: dict[str, Any] | None) -> StepResult:
    why = (
        part.missing()
        or part.missing_of(gpu)
        or ("no compiled kernels: see `harness survey --help`" if part.packed and not packed else None)
    )
    left = end - time.monotonic()
    if why is None and left < LEAST_SECONDS:
        why = "no time was left for it"
    if why is not None:
        return StepResult(part.name, part.what, archive.SKIPPED, 0.0, why)
    start = time.monotonic()
    places = {"{out}": str(folder), "{packed}": str(packed)}
    command = [_with_places(word, places) for word in part.command]
    log = folder / LOGS / f"{part.name}.txt"
    kept = folder / part.keeps if part.keeps else None
    with open(log, "wb") as errors, open(kept, "wb") if kept else contextlib.nullcontext(errors) as output:
        try:
            limit = min(part.limit, left)
            code: int | None = program.run(command, limit, stdout=output, stderr=errors, env=_environment()).returncode
        except subprocess.TimeoutExpired:
            code = None
    seconds = round(time.monotonic() - start, 1)
    status = archive.TIMED_OUT if code is None else archive.FAILED if code else archive.DONE
    return StepResult(part.name, part.what, status, seconds, _last_line(log))


def _with_places(word: str, places: dict[str, str]) -> str:
    for name, place in places.items():
        word = word.replace(name, place)
    return word


def _environment() -> dict[str, str]:
    """That of this process; the harness that runs is the one that the parts import."""
    paths = [str(Path(harness.__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "PYTHONUNBUFFERED": "1"}


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "")


def line(ended: StepResult) -> str:
    """Returns the line that a terminal shows of a part."""
    return f"{ended.part:22} {ended.status:10} {ended.seconds:6.1f} s  {ended.message[:90]}"


def main(words: Sequence[str]) -> int:
    """What the command line asks for; returns its exit code. It also runs where there is no click."""
    try:
        path, packed, seconds, parts = _read(words)
        survey(path, packed, seconds, parts, lambda ended: print(line(ended), flush=True))
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return EXIT_OK


def _read(words: Sequence[str]) -> tuple[Path, Path, float, list[Part]]:
    if len(words) < 2:
        raise UsageProblem(USAGE)
    path, packed, text, *names = words if len(words) > 2 else (*words, str(SECONDS))
    known = [part.name for part in PARTS]
    for name in names:
        if name not in known:
            raise UsageProblem(f"there is no part {name!r}; there are {', '.join(known)}")
    return Path(path), Path(packed), _seconds(text), [part for part in PARTS if not names or part.name in names]


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise UsageProblem(f"SECONDS {text!r} is not a number above 0; write for example {SECONDS}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
