"""How pip builds emugpu: hatchling builds it, and this adds to a wheel the libraries that a user would have to compile.

A wheel has the native engine, compiled by Mojo for a common x86-64 processor, and the emulated driver, compiled by the
C compiler. An editable install has neither: a checkout compiles them on its machine when they are first needed.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import hatchling.build
from hatchling.build import build_editable as build_editable
from hatchling.build import build_sdist as build_sdist
from hatchling.build import build_wheel as build_wheel
from hatchling.build import get_requires_for_build_editable as get_requires_for_build_editable
from hatchling.build import get_requires_for_build_sdist as get_requires_for_build_sdist
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
COMPILER = "mojo-compiler>=1.2,<1.3"


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """The compiler, unless EMUGPU_MOJO names one, and what emugpu imports to write the source that is compiled."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    compiler = [] if os.environ.get("EMUGPU_MOJO") else [COMPILER]
    return [*hatchling.build.get_requires_for_build_wheel(config_settings), *project["dependencies"], *compiler]


class CompiledLibraries(BuildHookInterface[Any]):
    """Compiles the libraries into a folder that is removed at the end, and has them put into `emugpu/compiled`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            sys.exit("emugpu: a wheel is built on Linux on x86-64 only; elsewhere, `pip install --editable` a checkout")
        _import_emugpu()
        from emugpu.errors import CannotRun

        self._folder = tempfile.TemporaryDirectory()
        try:
            build_data["force_include"] |= compile_into(Path(self._folder.name))
        except CannotRun as error:
            sys.exit(f"emugpu: the wheel cannot be built, as its libraries cannot be compiled: {error}")
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-linux_x86_64"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


def compile_into(folder: Path) -> dict[str, str]:
    """Compiles both libraries; returns where each file and folder belongs in the wheel."""
    from emugpu.driver import library as driver
    from emugpu.emulator.native import library as native
    from emugpu.emulator.native.source import mojo_source

    source = mojo_source()
    interpreter, drivers = folder / "native" / "library.so", folder / "driver" / "made"
    interpreter.parent.mkdir()
    native.compile_library(source, interpreter, native.BASELINE)
    driver.compile_libraries(drivers)
    found = {str(interpreter): native.carried_name(source), str(drivers): driver.carried_name(driver.sources_key())}
    return {path: f"compiled/{name}" for path, name in found.items()}


def _import_emugpu() -> None:
    """Imports the package from the folder that is built, whatever its name is and whatever else is installed."""
    spec = importlib.util.spec_from_file_location(
        "emugpu", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec and spec.loader
    sys.modules["emugpu"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
