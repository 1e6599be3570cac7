"""Looks at what is installed, and says what will be used."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from harness import paths
from harness.compiler.toolchain import Gpu, find_gpus, find_mojo, mojo_version, package_version, ptxas_version
from harness.config.catalog import KERNELS
from harness.errors import CannotRun
from harness.run.device import choose_device


@dataclass(frozen=True)
class Finding:
    """One thing looked at. needed: without it nothing runs."""

    name: str
    found: str | None
    use: str
    needed: bool = False


def examine() -> list[Finding]:
    """Everything a run may use, in the order it is used."""
    gpus = find_gpus()
    torch = package_version("torch")
    return [
        Finding("Python", platform.python_version(), "runs the harness"),
        Finding("Mojo", _with_place(mojo_version(), find_mojo()), "compiles the kernels", needed=True),
        Finding(
            "MAX",
            package_version("max"),
            "brings the Mojo compiler and the GPU library of the kernels",
            needed=True,
        ),
        Finding(
            "sources",
            str(paths.ROOT / "kernels") if (paths.ROOT / "kernels").is_dir() else None,
            "the kernels",
            True,
        ),
        Finding(
            "ptxas",
            ptxas_version(),
            "register and spill figures" if ptxas_version() else "optional: no register figures",
        ),
        Finding("GPU", ", ".join(f"{gpu.name} (driver {gpu.driver})" for gpu in gpus) or None, _use_of_gpu(gpus)),
        Finding("torch", torch, "inputs, reference and the vendor's GEMM on a GPU"),
        Finding("emulator", ", ".join(emulated_archs()), "runs the kernels where no GPU does"),
        Finding("results", str(paths.results_dir()), "records are added here"),
        Finding("build cache", str(paths.cache_dir()), "compiled kernels are kept here"),
    ]


def _use_of_gpu(gpus: list[Gpu]) -> str:
    """Whether ``--device auto`` takes the GPU, or why not."""
    if not gpus:
        return "none: kernels run on the emulator"
    kernel = next(iter(KERNELS.values()))
    try:
        return f"runs the kernels for {choose_device('gpu', kernel, 'auto')[1]}"
    except CannotRun as error:
        return f"not used: {error}"


def emulated_archs() -> list[str]:
    """The architectures that some kernel is written for."""
    return sorted({arch for kernel in KERNELS.values() for arch in kernel.archs})


def is_able(findings: list[Finding]) -> bool:
    """True if kernels can be run."""
    return all(finding.found for finding in findings if finding.needed)


def _with_place(version: str | None, place: object) -> str | None:
    return f"{version} at {place}" if version else None
