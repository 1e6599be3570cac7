"""How much memory this machine can still commit: what would not fit is refused before it is touched."""

from __future__ import annotations

import re
from pathlib import Path

SPARE = 1 << 28
"""Bytes of the host that are left to others."""
UNKNOWN = 1 << 60
"""Bytes that are taken to be free where the system does not say."""
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int:
    """Returns what the host can still commit: MemAvailable, or less where a control group has less."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return UNKNOWN
    found = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), UNKNOWN)
    try:
        most, now = (int(_CONTROL_GROUP.joinpath(name).read_text()) for name in ("memory.max", "memory.current"))
        kept = int(re.findall(r"^inactive_file (\d+)", (_CONTROL_GROUP / "memory.stat").read_text(), re.MULTILINE)[0])
    except (OSError, ValueError, IndexError):  # none, or one without a limit ("max")
        return found
    return min(found, most - now + kept)
