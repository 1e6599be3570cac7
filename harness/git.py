"""What git says of the checkout that this harness lies in."""

from __future__ import annotations

import subprocess

from harness import paths


def git(*arguments: str) -> bytes | None:
    """The output, or None if git fails, is not there, or the harness is installed: then it may lie in someone else's
    repository. It only looks: without its lock, which would disturb others and stay behind on a full disk.
    """
    if paths.is_installed():
        return None
    command = ["git", "--no-optional-locks", "-C", str(paths.ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def find_commit(text: str) -> str | None:
    """The whole hash of what git takes for a commit: a branch, a tag, part of a hash."""
    if text.startswith("-"):
        return None
    found = git("rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
    return found.decode().strip() if found else None
