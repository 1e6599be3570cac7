"""The newest ptxas at hand: that on PATH, or that of the package nvidia-cuda-nvcc. It judges forms of PTX; what the
tests run beside a kernel's build is the one on PATH.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from functools import cache
from pathlib import Path

from emugpu.processes.program import ask_version

PACKAGE = "nvidia-cuda-nvcc"


def ptxas_at_hand() -> list[str]:
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    packaged = [str(file.locate()) for file in files if file.name == "ptxas"]
    return [path for path in (shutil.which("ptxas"), *packaged) if path]


@cache
def version_of(ptxas: str) -> tuple[int, ...]:
    """Returns, for example, (13, 5, 37); () if it does not answer."""
    return tuple(map(int, re.findall(r"\d+", ask_version(Path(ptxas))[0] or "")))


def newest_ptxas() -> str | None:
    """Returns the path of the newest one that answers, if there is one."""
    return max(filter(version_of, ptxas_at_hand()), key=version_of, default=None)


def isa_of_ptxas() -> str:
    """Returns the version of the PTX ISA that the newest one knows: 13.0 has 9.0, and 12.8 has 8.7."""
    newest = newest_ptxas()
    major, minor = version_of(newest)[:2] if newest else (13, 0)
    return f"9.{minor}" if major >= 13 else f"8.{minor - 1}"
