"""What is known about each GPU before anything is measured, and which kernels it can run.

The figures are in one TOML file per GPU, and nowhere else.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from emugpu.errors import CannotRun

FOLDER = Path(__file__).parent
USUAL = {"sm_90": "h200", "sm_100": "b200", "sm_103": "b300", "sm_120": "rtx5090", "sm_121": "spark"}
"""The GPU that represents an architecture if none is named. A target is looked up by its beginning."""


@dataclass(frozen=True)
class GpuFacts:
    """The figures of one GPU.

    Attributes:
        name: the name by which it is chosen, ``h200``.
        title: the name that its driver reports.
        arch: the target for which its PTX is compiled.
        gpcs: the number of SMs in each graphics processing cluster. A thread-block cluster must fit into one.
        tflops: peak of dense bf16.
        terabytes: peak bandwidth of its memory, TB/s.
        multiplications: dense bf16 or fp16 multiplications of an SM in a cycle.
        l2_bytes: the most bytes that an SM gets from L2 in a cycle.
        source: the source of the peaks.
    """

    name: str
    title: str
    arch: str
    gpcs: tuple[int, ...]
    tflops: float
    terabytes: float
    multiplications: int
    l2_bytes: int
    source: str

    @property
    def sms(self) -> int:
        return sum(self.gpcs)

    def roof(self, intensity: float) -> float:
        """Returns the TFLOPS that it can reach at best with this many operations per byte of its memory."""
        return min(intensity * self.terabytes, self.tflops)

    def resident_clusters(self, size: int) -> int:
        """Returns how many clusters of so many CTAs run at the same time, with one CTA on each SM."""
        return max(1, sum(sms // size for sms in self.gpcs))


def names() -> list[str]:
    """Returns the names of the GPUs for which there is a file."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@cache
def facts(name: str) -> GpuFacts:
    """Returns the figures of a GPU of `names`."""
    data = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return GpuFacts(name, **{**data, "gpcs": tuple(data["gpcs"])})


def usual_gpu(target: str) -> GpuFacts:
    """Returns the GPU that represents a target such as sm_90a; for an unknown target, the largest one."""
    return facts(next((name for arch, name in USUAL.items() if target.startswith(arch)), "b200"))


ARCH_BY_CAPABILITY = {(9, 0): "sm_90a", (10, 0): "sm_100a"}
"""Instructions marked "a" exist on exactly one compute capability (PTX ISA 11.1.2, .target)."""
GPUS_BY_ARCH = {
    "sm_90a": "H100, H200 or GH200 (compute capability 9.0)",
    "sm_100a": "B200 or GB200 (compute capability 10.0)",
}


def arch_of_gpu(major: int, minor: int) -> str:
    """Returns the target of the kernels that a GPU runs.

    Raises CannotRun for a GPU with neither wgmma nor tcgen05, such as consumer Blackwell (12.0).
    """
    arch = ARCH_BY_CAPABILITY.get((major, minor))
    if arch is None:
        needed = "; ".join(f"{name}: {gpus}" for name, gpus in GPUS_BY_ARCH.items())
        raise CannotRun(f"no kernel here runs on a GPU of compute capability {major}.{minor} ({needed})")
    return arch


def check_arch(wanted: str, major: int, minor: int, gpu: str) -> None:
    """Raises CannotRun unless the GPU runs kernels for ``wanted``."""
    if ARCH_BY_CAPABILITY.get((major, minor)) != wanted:
        raise CannotRun(
            f"kernels for {wanted} need {GPUS_BY_ARCH[wanted]}; this GPU is {gpu}, compute capability {major}.{minor}"
        )


def check_target(target: str, capability: str, gpu: str) -> None:
    """Raises CannotRun unless PTX for this target runs on a GPU of this compute capability.

    ``sm_90`` runs on 9.0 and all later ones, ``sm_90a`` only on 9.0, and ``sm_100f`` on 10.0 and later ones of its
    family (PTX ISA 9.7, ``.target``).
    """
    major, minor = (int(part) for part in capability.split("."))
    number = int("".join(filter(str.isdigit, target)))
    wanted = divmod(number, 10)
    if target.endswith("a"):
        runs = (major, minor) == wanted
    else:
        runs = (major, minor) >= wanted and not (target.endswith("f") and major != wanted[0])
    if not runs:
        raise CannotRun(f"the PTX is for {target}, and {gpu} has compute capability {capability}; emulate it")


def kind_of(name: str) -> str:
    """Returns a kind from the name that the driver reports: ``nvidia-h200`` for an NVIDIA H200."""
    return "-".join(name.lower().split())
