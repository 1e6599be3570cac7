"""The places of Mojo sources, suites and records, in a checkout and when installed.

A wheel carries the sources and suites inside the package, in ``data/``, a folder that a checkout does not have.
"""

from __future__ import annotations

import os
from pathlib import Path

from emugpu.errors import CannotRun
from emugpu.files import FileLock
from emugpu.paths import git

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
"""The checkout, or for an installed harness the folder of all packages."""
DATA = PACKAGE / "data"
APPLICATION = "blackwell-matmul-lab"


def is_installed() -> bool:
    """Returns whether this is an installed package, not a checkout."""
    return DATA.is_dir()


def mojo_root() -> Path:
    """Returns the folder that holds ``kernels``, as the compiler needs it."""
    return DATA if is_installed() else ROOT


def kernels_dir() -> Path:
    """Returns the folder of the Mojo sources."""
    path = mojo_root() / "kernels"
    if not path.is_dir():
        raise CannotRun(f"no Mojo sources at {path}: install the harness again, with `pip install .` in a checkout")
    return path


def suites_dir() -> Path:
    """Returns the benchmark suites that come with the project."""
    return DATA / "suites" if is_installed() else ROOT / "results" / "suites"


def results_dir() -> Path:
    """Returns the folder of the result records: results/ of the checkout, or the user's data folder.
    HARNESS_RESULTS_DIR overrides both.
    """
    override = os.environ.get("HARNESS_RESULTS_DIR")
    if override:
        return Path(override)
    if not is_installed():
        return ROOT / "results"
    import platformdirs

    return platformdirs.user_data_path(APPLICATION) / "results"


def lock_of(path: Path, wait: bool = True) -> FileLock:
    """Returns the lock of a file that is rewritten rather than appended to.

    With ``wait`` it waits for another process that has the lock; otherwise it raises `BlockingIOError`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path.with_suffix(".lock"), wait)
    except BlockingIOError:
        raise
    except OSError as error:
        raise CannotRun(
            f"cannot write to {path.parent}: {error.strerror}; set HARNESS_RESULTS_DIR to another folder"
        ) from None


def find_commit(text: str) -> str | None:
    """Returns the full hash of a commit that git finds by a branch, a tag or part of a hash."""
    if text.startswith("-"):
        return None
    found = git("rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
    return found.decode().strip() if found else None
