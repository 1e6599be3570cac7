"""The emulated GPU stands by itself: what it needs is small, and it knows nothing of the lab."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import emugpu.paths

_IMPORTED = """
import importlib, sys
for name in sys.argv[1:]:
    before = set(sys.modules)
    importlib.import_module(name)
    new = {name: sys.modules[name] for name in set(sys.modules) - before}
    places = {name: getattr(module, "__file__", None) or "" for name, module in new.items()}
    print(name)
    print(*sorted({name.split(".")[0] for name, place in places.items() if "site-packages" in place}))
    print(*sorted(name.split(".")[1] for name in new if name.count(".") == 1 and name.startswith("harness.")))
"""
"""What each of these modules imports that those before it did not."""

BASE = {"cache", "errors", "files", "git", "gpus", "locks", "markdown", "paths", "processes"}
EMULATED_GPU = {"emulator", "check", "launch", "driver"}


MODULES = (
    "emugpu.emulator",
    "emugpu.check",
    *("emugpu.launch.launching", "emugpu.launch.launch_file", "emugpu.launch.check", "emugpu.launch.listing"),
    *("emugpu.driver.server", "emugpu.driver.session", "emugpu.driver.recording"),
)


def import_in_one_process(*modules: str) -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTED, *modules], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    lines = done.stdout.split("\n")
    assert lines[:-1:3] == [*modules]
    for name, packages, ours in zip(modules, lines[1::3], lines[2::3], strict=True):
        assert {*packages.split()} <= {"numpy", "ml_dtypes", "click"}, name
        assert {*ours.split()} <= BASE | EMULATED_GPU, name


def test_the_emulated_gpu_needs_numpy_ml_dtypes_and_click_alone():
    """One process imports all modules, which takes less time than a process for each."""
    import_in_one_process(*MODULES)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_each_module_of_the_emulated_gpu_may_be_imported_first(name):
    """A cycle of imports may fail only if one of its modules comes first."""
    import_in_one_process(name)


def test_emugpu_reads_variables_of_the_lab_in_one_place():
    """Under their names before 0.2, and after its own."""
    folder = Path(emugpu.paths.__file__).parent
    files = [path for kind in ("py", "c", "h", "mojo") for path in folder.rglob(f"*.{kind}")]
    assert len(files) > 200
    assert [path.name for path in files if "HARNESS_" in path.read_text(encoding="utf-8")] == ["paths.py"]
