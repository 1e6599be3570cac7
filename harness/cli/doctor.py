"""The command ``harness doctor`` examines what is installed and says what will be used."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console

import harness
from emugpu import cache
from emugpu.cli.options import as_json
from emugpu.cli.outputs import Outputs, output_option
from emugpu.cli.render import show_table
from emugpu.errors import EXIT_CANNOT_RUN, CannotRun
from emugpu.processes.program import ask_version
from harness import paths
from harness.compile.catalog import KERNELS
from harness.compile.compiler import Gpu, find_gpus, find_mojo, find_nvdisasm, package_version
from harness.run.runner import choose_device


@dataclass(frozen=True)
class Component:
    """A component that was examined. ``found`` is its version and place, or None if it is missing. ``problem`` says why
    it cannot be used.

    Nothing runs without a component that is ``needed``.
    """

    name: str
    found: str | None
    use: str
    needed: bool = False
    problem: str | None = None

    @property
    def shown(self) -> str:
        if self.problem:
            return f"{self.found}: {self.problem}" if self.found else self.problem
        return self.found or ("MISSING" if self.needed else "none")


@click.command("doctor")
@output_option("json")
def doctor_command(outputs: Outputs) -> int:
    """Show what is available and what will be used."""
    components = examine()
    written = outputs.write(json=lambda: as_json(as_dict(components)))
    if outputs.shows_report:
        rows = [(one.name, one.shown, one.use) for one in components]
        show_table(Console(), "what is available, and what it is used for", ("", "found", "use"), rows)
        written.show(Console())
    return written.exit_code if is_able(components) else EXIT_CANNOT_RUN


def examine() -> list[Component]:
    """Examines everything that a run may use, in the order of use."""
    gpus = find_gpus()
    sources = paths.mojo_root() / "kernels"
    return [
        Component("harness", f"{harness.__version__} at {Path(harness.__file__).parent}", "this program"),
        Component("Python", f"{platform.python_version()} at {sys.executable}", "runs the harness"),
        _program("Mojo", find_mojo(), "compiles the kernels", needed=True),
        Component(
            "MAX",
            package_version("max"),
            "brings the Mojo compiler and the GPU library of the kernels",
            needed=True,
        ),
        Component("sources", str(sources) if sources.is_dir() else None, "the kernels", needed=True),
        _program("ptxas", shutil.which("ptxas"), "optional: register and spill figures"),
        _program("nvdisasm", find_nvdisasm(), "optional: machine code"),
        Component("GPU", ", ".join(f"{gpu.name} (driver {gpu.driver})" for gpu in gpus) or None, _use_of_gpu(gpus)),
        Component("torch", package_version("torch"), "inputs, reference and the vendor's GEMM on a GPU"),
        Component("emulator", ", ".join(emulated_archs()), "runs the kernels where no GPU does"),
        _folder("results", paths.results_dir(), "records are added here"),
        _folder("build cache", cache.root(), "compiled kernels are kept here"),
    ]


def as_dict(components: list[Component]) -> dict[str, object]:
    """Returns plain data for JSON. ``able`` says whether kernels can run."""
    return {"schema": 1, "able": is_able(components), "findings": [asdict(one) for one in components]}


def is_able(components: list[Component]) -> bool:
    """Returns whether kernels can run."""
    return all(one.found and not one.problem for one in components if one.needed)


def emulated_archs() -> list[str]:
    """Returns the architectures for which there is a kernel."""
    return sorted({arch for kernel in KERNELS.values() for arch in kernel.archs})


def _program(name: str, place: str | Path | None, use: str, needed: bool = False) -> Component:
    if place is None:
        return Component(name, None, use, needed)
    version, problem = ask_version(Path(place))
    return Component(name, f"{version} at {place}" if version else str(place), use, needed, problem)


def _folder(name: str, folder: Path, use: str) -> Component:
    """Examines whether a folder, or its nearest existing parent, can be written."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x" * 4096)
            file.flush()
    except OSError as error:
        return Component(name, str(folder), use, True, f"cannot be written: {error.strerror}")
    free = shutil.disk_usage(there).free
    return Component(name, f"{folder} ({free / 2**30:,.1f} GiB free)", use, True)


def _use_of_gpu(gpus: list[Gpu]) -> str:
    """Returns whether ``--device auto`` takes the GPU, or why not."""
    if not gpus:
        return "none: kernels run on the emulator"
    kernel = next(iter(KERNELS.values()))
    try:
        return f"runs the kernels for {choose_device('gpu', kernel, 'auto')[1]}"
    except CannotRun as error:
        return f"not used: {error}"
