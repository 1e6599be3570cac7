"""The wheel of emugpu: an environment with nothing but it and what it needs has the native engine and the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ptx_programs import STORE_R1, source

from emugpu import __version__, cache
from emugpu.driver import library as driver
from emugpu.emulator.native import library as native
from emugpu.emulator.native.source import mojo_source
from emugpu.errors import CannotRun

ROOT = Path(__file__).parents[2]
LAUNCH_FILE = ROOT / "tests" / "data" / "launches" / "nvcc_sgemm.toml"
VERDICT = """
import json, shutil, sys
from pathlib import Path
from emugpu.launch.check import CheckOptions, check, judge
from emugpu.launch.launch_file import read_launch_file
from emugpu.launch.launching import EmulationOptions, run

what = read_launch_file(Path(sys.argv[1]))
outcome = run(what, EmulationOptions())
[checked] = check([what], CheckOptions())
tools = [tool for tool in ("mojo", "cc", "gcc", "clang") if shutil.which(tool)]
print(json.dumps([outcome.device["engine"], outcome.passed, judge(what, checked).word, tools]))
"""
PROGRAM = """
import sys
from emugpu import emulated_gpu

with emulated_gpu("b200") as gpu:
    sys.path.append(sys.argv[1])
    from driver_client import *

    start()
    out = upload((c_uint * 32)())
    launch(load(sys.argv[2], "kernel")[0], 1, 32, out)
    print(download(out, c_uint, 32) == [*range(32)], gpu.verdict.word)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Runs Python of a fresh environment with the wheel and what it needs, and no compiler; returns its output. The
    second value is the folder of its cache."""
    folder = tmp_path_factory.mktemp("wheel")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EMUGPU", "HARNESS"))}

    def call(*command: object) -> str:
        done = subprocess.run([str(c) for c in command], env=clean, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT / "emugpu")
    call(sys.executable, "-m", "venv", folder / "venv")
    wheel = folder / f"emugpu-{__version__}-py3-none-linux_x86_64.whl"
    call(folder / "venv/bin/python", "-m", "pip", "install", "--quiet", wheel)
    clean |= {"PATH": str(folder / "venv/bin"), "EMUGPU_CACHE_DIR": str(folder / "cache")}
    return lambda *words: call(folder / "venv/bin/python", *words), folder / "cache"


@pytest.mark.nightly
def test_a_verdict_comes_from_the_native_engine_of_the_wheel(environment):
    python, kept = environment
    assert json.loads(python("-c", VERDICT, LAUNCH_FILE)) == ["native", True, "clean", []]
    assert "clean" in python("-m", "emugpu", "verify", LAUNCH_FILE)
    assert not (kept / "builds" / "native").exists()


@pytest.mark.nightly
def test_a_program_runs_on_the_driver_of_the_wheel(environment):
    python, kept = environment
    assert (
        python("-c", PROGRAM, ROOT / "tests" / "support", source("mov.b32 %r1, %r0;" + STORE_R1 + "ret;"))
        == "True clean\n"
    )
    assert not list((kept / "builds").glob("drivers/*/libcuda.so.1"))


@pytest.mark.nightly
def test_the_wheel_has_its_licence(environment):
    python, _ = environment
    about = "from importlib.metadata import files; print(*[p.name for p in files('emugpu') if 'licenses' in str(p)])"
    assert python("-c", about) == "LICENSE\n"


@pytest.mark.nightly
def test_the_wheel_needs_seven_packages(environment):
    python, _ = environment
    listed = {line.partition("==")[0].lower() for line in python("-m", "pip", "freeze").splitlines()}
    needed = {"click", "emugpu", "ml_dtypes", "numpy", "platformdirs", "rich", "threadpoolctl", "zstandard"}
    assert {name.partition(" ")[0] for name in listed} - {"markdown-it-py", "mdurl", "pygments"} == needed  # rich's own


# ---- which library is used ----


@pytest.fixture
def carried(tmp_path, monkeypatch):
    """A package with a file in place of its library, a cache of its own, and no Mojo compiler."""
    monkeypatch.setattr(native, "COMPILED", tmp_path)
    monkeypatch.setenv("EMUGPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EMUGPU_MOJO", "/nowhere/mojo")
    path = tmp_path / native.carried_name(mojo_source())
    path.touch()
    return path


def test_the_library_of_the_package_is_used_if_it_is_of_this_source(carried, monkeypatch):
    monkeypatch.setattr(native, "_processor_flags", lambda: "flags: " + " ".join(native.BASELINE_FLAGS))
    assert native._library_path() == carried
    carried.rename(carried.with_name("native-0123.so"))
    with pytest.raises(CannotRun, match="the Mojo compiler was not found at /nowhere/mojo"):
        native._library_path()


@pytest.mark.parametrize("flags", ["", "flags: " + " ".join(sorted(native.BASELINE_FLAGS - {"avx2", "fma"}))])
def test_an_older_processor_does_not_load_it(carried, monkeypatch, flags):
    monkeypatch.setattr(native, "_processor_flags", lambda: flags)
    with pytest.raises(CannotRun, match=r"needs a processor with .*avx2.*fma.* .x86-64-v3., and none can be compiled"):
        native._library_path()


@pytest.mark.slow
def test_the_driver_of_the_package_is_used_if_it_is_of_these_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "COMPILED", tmp_path)
    carried = tmp_path / driver.carried_name(driver.sources_key())
    carried.mkdir()
    assert driver.libraries() == carried
    carried.rename(tmp_path / "drivers-0123")
    compiled = driver.libraries()
    assert cache.is_whole(compiled / driver.DRIVER)
    monkeypatch.setattr(driver, "stubs", lambda: pytest.fail("the C is written only where it is compiled"))
    assert driver.libraries() == compiled
