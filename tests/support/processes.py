"""Whether a process has ended, for tests of what must not outlive a limit or its parent."""

from __future__ import annotations

import time

import psutil

PATIENCE = 10.0
"""Seconds to wait for the end of a process."""


def is_there(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def is_gone_soon(pid: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while is_there(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not is_there(pid)
