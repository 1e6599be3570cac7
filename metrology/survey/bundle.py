"""A folder that conducts a survey on a machine without the project: its code, compiled kernels, and a line to run.

That machine needs a driver, Python 3.11 or later and NumPy; ml_dtypes for all that is launched, PyTorch for times and
power, Nsight Compute for counters. What is missing costs the parts that need it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness import paths
from harness.errors import UsageProblem
from metrology.survey.pack import pack
from metrology.survey.runs import checks, runs

PACKED = "packed"
FILES = (
    *("__init__.py", "cache.py", "epilogues.py", "errors.py", "files.py", "paths.py"),
    *("timing/__init__.py", "timing/survey_archive.py"),
)
PACKAGES = ("harness/emulator", "harness/gpus", "harness/launch", "harness/processes", "harness/run", "metrology")
SCRIPT = """#!/bin/sh
# Conducts the survey; the archive is FILE (default: survey.tar.gz here), the time at most SECONDS (default: 600).
#   sh run.sh [FILE [SECONDS [PART...]]]
file=$(realpath "${1:-survey.tar.gz}")
seconds=${2:-600}
[ $# -gt 0 ] && shift; [ $# -gt 0 ] && shift
cd "$(dirname "$0")" && exec python3 -m metrology.survey.run "$file" packed "$seconds" "$@"
"""


def bundle(folder: Path, arch: str) -> None:
    """Writes the folder, which must not be there or be empty."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageProblem(f"{folder}: is not empty; name a new folder for the bundle")
    copy_code(folder)
    pack([*runs(arch), *checks(arch)], arch, folder / PACKED)
    for text in (folder / PACKED).glob("*.ptx"):
        if text.with_suffix(".cubin").exists():
            text.unlink()
    (folder / "run.sh").write_text(SCRIPT, encoding="utf-8")


def copy_code(folder: Path) -> None:
    """The part of this project that launches kernels and emulates probes, as a package of the folder."""
    for name in FILES:
        (folder / "harness" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(paths.PACKAGE / name, folder / "harness" / name)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in PACKAGES:
        shutil.copytree(paths.ROOT / name, folder / name, ignore=ignored, dirs_exist_ok=True)
