"""The wheel: an installed harness works from any folder, and keeps what it writes out of the package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness import __version__
from harness.paths import ROOT

pytest.importorskip("hatchling", reason="hatchling builds the wheel (pip install -e '.[test]')")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder of packages: the wheel of this checkout, and emugpu, whose own wheel has a test of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=120)
    [wheel] = folder.glob("*.whl")
    assert __version__ in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    shutil.copytree(ROOT / "emugpu", folder / "site" / "emugpu", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "site"


@pytest.fixture
def installed(site, tmp_path, monkeypatch):
    """Runs ``harness`` of the wheel from a folder of its own, inside someone else's repository."""
    subprocess.run(["git", "init", "--quiet", site.parent], check=True)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.delenv("HARNESS_RESULTS_DIR")
    data = tmp_path / "data"
    environment = {**os.environ, "PYTHONPATH": str(site), "XDG_DATA_HOME": str(data), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*words: str) -> str:
        command = [sys.executable, "-c", "from harness.__main__ import entry; entry()", *words]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_wheel_carries_what_the_checkout_has(site):
    carried = {
        path.relative_to(site / "harness" / "data").as_posix() for path in (site / "harness" / "data").rglob("*.*")
    }
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kernels").rglob("*.mojo")}
    suites = {f"suites/{path.name}" for path in (ROOT / "results" / "suites").glob("*.toml")}
    assert carried == sources | suites
    code = {path.relative_to(ROOT) for path in (ROOT / "harness").rglob("*") if path.suffix not in (".pyc", "")}
    assert code <= {path.relative_to(site) for path in site.rglob("*")}
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {"emugpu", "harness"}


def test_the_wheel_has_its_licence(site):
    [folder] = site.glob("*.dist-info")
    assert "License-Expression: Apache-2.0\n" in (folder / "METADATA").read_text()
    assert (folder / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.slow
def test_an_installed_harness_runs_from_any_folder(installed, artifacts, site, tmp_path):
    before = sorted(site.rglob("*"))
    assert "harness/data/kernels" in installed("doctor")
    text = installed("run", "kernel6", "-c", "cluster=2x1", "--shape", "8", "--json", "-")
    record = json.loads(text)
    assert record["validation"]["passed"] and record["git"] is None
    assert json.loads((tmp_path / "data/blackwell-matmul-lab/results/emulated-sm_100a.jsonl").read_text()) == record
    assert "kernel6 bf16 4x4 1024x1024x512 index" in installed("bench", "--list")
    assert "kernel6 for sm_100a" in installed("explain", "kernel6")
    assert sorted(site.rglob("*")) == before
