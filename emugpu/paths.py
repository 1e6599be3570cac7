"""The places of the package, the cache of compiled files, and the Mojo compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
"""The folder that holds the package: the root of a checkout, or the folder of all installed packages."""
COMPILED = PACKAGE / "compiled"
"""The compiled files of a wheel. A checkout has no such folder, and compiles into the cache."""
APPLICATION = "emugpu"


def setting(name: str) -> str | None:
    """Returns the environment variable EMUGPU_<name>, or HARNESS_<name>, its name before 0.2."""
    return os.environ.get(f"EMUGPU_{name}") or os.environ.get(f"HARNESS_{name}")


def find_mojo() -> Path | None:
    """Returns the Mojo compiler: EMUGPU_MOJO, or the one installed next to this Python, or the one on PATH."""
    override = setting("MOJO")
    if override:
        return Path(override)
    neighbour = Path(sys.executable).with_name("mojo")
    if neighbour.exists():
        return neighbour
    found = shutil.which("mojo")
    return Path(found) if found else None


def cache_dir() -> Path:
    """Returns the folder of compiled files. EMUGPU_CACHE_DIR overrides it."""
    override = setting("CACHE_DIR")
    if override:
        return Path(override)
    import platformdirs  # imported here because nothing needs it if the variable is set

    return platformdirs.user_cache_path(APPLICATION)


def git(*arguments: str) -> bytes | None:
    """Returns the output of git in the checkout.

    Returns None if git fails or is missing, or if the package is installed, because its folder may belong to another
    repository. git only reads: it takes no lock, which would disturb other processes and remain on a full disk.
    """
    if not (ROOT / ".git").exists():
        return None
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
