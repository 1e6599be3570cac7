"""Where things are, in a checkout and when installed: Mojo sources, suites, records, the build cache.

A wheel carries the sources and suites inside the package, in ``data/``, a folder that a checkout does not have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness.errors import CannotRun

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
"""The checkout; of an installed harness, the folder of all packages."""
DATA = PACKAGE / "data"
APPLICATION = "blackwell-matmul-lab"
OWN_KERNEL = "HARNESS_OWN_KERNEL"
"""The environment variable that names the folder of sources with a kernel of one's own (`harness.build.own_kernel`)."""


def is_installed() -> bool:
    """Whether this is an installed package, not a checkout."""
    return DATA.is_dir()


def mojo_root(own: bool = True) -> Path:
    """The folder that holds ``kernels``, as the compiler needs it. own: with a kernel of one's own, if there is one."""
    override = os.environ.get(OWN_KERNEL) if own else None
    return Path(override) if override else DATA if is_installed() else ROOT


def kernels_dir(own: bool = True) -> Path:
    """The folder of the Mojo sources."""
    path = mojo_root(own) / "kernels"
    if not path.is_dir():
        raise CannotRun(f"no Mojo sources at {path}: install the harness again, with `pip install .` in a checkout")
    return path


def file_of_own(place: str) -> Path | None:
    """The file that was put in this place, by this process or by one that started it."""
    root = os.environ.get(OWN_KERNEL)
    file = Path(root, "kernels", place).readlink() if root else None
    return None if file is None or file == kernels_dir(own=False) / place else file


def find_mojo() -> Path | None:
    """The Mojo compiler: HARNESS_MOJO, else the one installed next to this Python, else the one on PATH."""
    override = os.environ.get("HARNESS_MOJO")
    if override:
        return Path(override)
    neighbour = Path(sys.executable).with_name("mojo")
    if neighbour.exists():
        return neighbour
    found = shutil.which("mojo")
    return Path(found) if found else None


def suites_dir() -> Path:
    """The suites of the benchmark that come with the project."""
    return DATA / "suites" if is_installed() else ROOT / "results" / "suites"


def results_dir() -> Path:
    """The folder of the result records: results/ of the checkout, or the user's data folder; HARNESS_RESULTS_DIR
    overrides both.
    """
    override = os.environ.get("HARNESS_RESULTS_DIR")
    if override:
        return Path(override)
    if not is_installed():
        return ROOT / "results"
    import platformdirs  # only here: the emulated GPU does without

    return platformdirs.user_data_path(APPLICATION) / "results"


def cache_dir() -> Path:
    """The folder of the build cache; HARNESS_CACHE_DIR overrides it."""
    override = os.environ.get("HARNESS_CACHE_DIR")
    if override:
        return Path(override)
    import platformdirs  # only here: the emulated GPU does without

    return platformdirs.user_cache_path(APPLICATION)


def git(*arguments: str) -> bytes | None:
    """The output, or None if git fails, is not there, or the harness is installed: then it may lie in someone else's
    repository. It only looks: without its lock, which would disturb others and stay behind on a full disk.
    """
    if is_installed():
        return None
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
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
