"""Compiles the kernels that the selected tests need, in few builds in the background, from the start of the session.

More than half of what one build takes is spent on Mojo's standard library, so builds are large. A build takes up to
2.6 GB, so there is one at a time. The queue holds a lock while it works: see `wait_for`.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from emugpu.errors import CannotRun
from harness.compile.artifacts import build, is_built
from harness.compile.config import KernelConfig

BATCH = 40
seconds_compiled = 0.0
"""CPU time of a queue that this process started, once it has ended."""


def is_user(item: pytest.Item) -> bool:
    """Whether a test needs kernels that are not checked in: of those in tests/kernels, the CONFIGS of its module."""
    if item.path.parent.name != "kernels" or not hasattr(item.module, "CONFIGS"):
        return False
    return "built" in item.fixturenames or ("builder" in item.fixturenames and "common" not in item.fixturenames)


def needed_by(items: Iterable[pytest.Item]) -> list[KernelConfig]:
    """In the order of the tests. Of a test for one configuration that one, of another all CONFIGS of its module."""
    found: dict[KernelConfig, None] = {}
    for item in filter(is_user, items):
        configs = item.module.CONFIGS
        one = item.callspec.params.get("config") if hasattr(item, "callspec") else None
        every = list(configs.values()) if isinstance(configs, dict) else configs
        found |= dict.fromkeys([one] if isinstance(one, KernelConfig) else every)
    return list(found)


@contextmanager
def working(configs: Sequence[KernelConfig], lock: Path) -> Iterator[None]:
    """Compiles these configurations while the block runs."""
    with open(lock, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        child = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, text=True, env=environment, pass_fds=[file.fileno()]
        )
    assert child.stdin
    with suppress(BrokenPipeError), child.stdin as lines:
        lines.writelines(f"{config.to_json()}\n" for config in configs)
    try:
        yield
    finally:
        global seconds_compiled
        before = sum(os.times()[2:4])
        child.send_signal(signal.SIGINT)
        child.wait()
        seconds_compiled += sum(os.times()[2:4]) - before


def wait_for(configs: Iterable[KernelConfig], lock: Path) -> None:
    """Returns when the build cache has these configurations, or when the queue has ended."""
    with open(lock, "a", encoding="utf-8") as file:
        for config in configs:
            while not is_built(config):
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return
                time.sleep(0.5)


def main() -> None:
    configs = [KernelConfig.from_json(line) for line in sys.stdin]
    missing = [config for config in configs if not is_built(config)]
    for start in range(0, len(missing), BATCH):
        with suppress(CannotRun):  # the test that needs such a kernel compiles it again, and says why it cannot
            build(missing[start : start + BATCH])


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
