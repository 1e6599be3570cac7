"""Reports how much memory this machine can still commit, so that requests that do not fit are refused before use."""

from __future__ import annotations

import re
from pathlib import Path

SPARE = 1 << 28
"""Bytes of the host that other programs keep."""
UNKNOWN = 1 << 60
"""Bytes that count as free if the system does not report them."""
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Returns the bytes that the host can still commit: MemAvailable, or less if a control group has less."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return UNKNOWN
    found = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), UNKNOWN)
    try:
        most, now = (int(_CONTROL_GROUP.joinpath(name).read_text()) for name in ("memory.max", "memory.current"))
        kept = int(re.findall(r"^inactive_file (\d+)", (_CONTROL_GROUP / "memory.stat").read_text(), re.MULTILINE)[0])
    except (OSError, ValueError, IndexError):  # there is no control group, or it has no limit ("max")
        return found
    return min(found, most - now + kept)
