"""Locks that are files, and go away with who has them."""

from __future__ import annotations

import os
import threading
import time

import pytest

from emugpu.files import FileLock


def test_who_waited_for_a_lock_that_was_taken_away_has_one_of_its_own(tmp_path):
    """The file it opened is no longer there when it gets the lock: a third one would make another, and have it, too."""
    path, held = tmp_path / "lock", []
    first = FileLock(path)
    waiting = threading.Thread(target=lambda: held.append(FileLock(path)))
    waiting.start()
    while not any(os.path.samefile(f"/proc/self/fd/{n}", path) for n in others(first)):
        time.sleep(0.01)
    first.release()
    waiting.join(10)
    with pytest.raises(BlockingIOError):
        FileLock(path, wait=False)
    held[0].release()
    assert not path.exists()


def others(lock: FileLock) -> list[str]:
    """The other open files of this process."""
    return [
        n for n in os.listdir("/proc/self/fd") if n != str(lock._descriptor) and os.path.exists(f"/proc/self/fd/{n}")
    ]
