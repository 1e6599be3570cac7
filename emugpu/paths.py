"""Where things are: the package, the cache of what was compiled, the Mojo compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
"""The folder that holds the package: of a checkout its root, else that of all installed packages."""
COMPILED = PACKAGE / "compiled"
"""What a wheel carries compiled; a checkout has no such folder, and compiles into the cache."""
APPLICATION = "emugpu"


def setting(name: str) -> str | None:
    """The value of the environment variable EMUGPU_<name>, else of HARNESS_<name>, its name before 0.2."""
    return os.environ.get(f"EMUGPU_{name}") or os.environ.get(f"HARNESS_{name}")


def find_mojo() -> Path | None:
    """The Mojo compiler: EMUGPU_MOJO, else the one installed next to this Python, else the one on PATH."""
    override = setting("MOJO")
    if override:
        return Path(override)
    neighbour = Path(sys.executable).with_name("mojo")
    if neighbour.exists():
        return neighbour
    found = shutil.which("mojo")
    return Path(found) if found else None


def cache_dir() -> Path:
    """The folder of what was compiled; EMUGPU_CACHE_DIR overrides it."""
    override = setting("CACHE_DIR")
    if override:
        return Path(override)
    import platformdirs  # only here: where the variable is set, the emulated GPU does without

    return platformdirs.user_cache_path(APPLICATION)


def git(*arguments: str) -> bytes | None:
    """The output of git in the checkout; None if git fails or is missing, or if this is an installed package, which may
    lie in someone else's repository. git only reads here: it takes no lock, which would disturb other processes and
    stay behind on a full disk.
    """
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
