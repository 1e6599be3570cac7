"""What is known of each GPU before anything is measured, and which kernels it can run.

The figures are in one TOML file for each GPU, the only place for them.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from emugpu.errors import CannotRun

FOLDER = Path(__file__).parent
USUAL = {"sm_90": "h200", "sm_100": "b200"}
"""The GPU that an architecture stands for where none is named; targets are looked up by how they begin."""


@dataclass(frozen=True)
class GpuFacts:
    """The figures of one GPU.

    Attributes:
        name: by which it is chosen, ``h200``.
        title: as its driver calls it.
        arch: what its PTX is compiled for.
        gpcs: SMs of each graphics processing cluster, in one of which a thread-block cluster has to fit.
        tflops: peak of dense bf16.
        terabytes: peak of its memory, TB/s.
        multiplications: of dense bf16 or fp16 that an SM does in a cycle.
        l2_bytes: that an SM gets from L2 in a cycle, at most.
        source: where the peaks are from.
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
        """TFLOPS that it can do at best at so many operations per byte of its memory."""
        return min(intensity * self.terabytes, self.tflops)

    def resident_clusters(self, size: int) -> int:
        """Clusters of so many CTAs that run at the same time, one CTA on an SM."""
        return max(1, sum(sms // size for sms in self.gpcs))


def names() -> list[str]:
    """The GPUs there is a file for."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@cache
def facts(name: str) -> GpuFacts:
    """The figures of a GPU of `names`."""
    data = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return GpuFacts(name, **{**data, "gpcs": tuple(data["gpcs"])})


def usual_gpu(target: str) -> GpuFacts:
    """The GPU that a target such as sm_90a stands for; of one that nobody knows the largest."""
    return facts(next((name for arch, name in USUAL.items() if target.startswith(arch)), "b200"))


ARCH_BY_CAPABILITY = {(9, 0): "sm_90a", (10, 0): "sm_100a"}
"""Instructions marked "a" exist on exactly one compute capability (PTX ISA 11.1.2, .target)."""
GPUS_BY_ARCH = {
    "sm_90a": "H100, H200 or GH200 (compute capability 9.0)",
    "sm_100a": "B200 or GB200 (compute capability 10.0)",
}


def arch_of_gpu(major: int, minor: int) -> str:
    """The target of the kernels a GPU runs.

    Raises CannotRun for a GPU that has neither wgmma nor tcgen05, consumer Blackwell (12.0) among them.
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
    """Raises CannotRun unless PTX for this target runs on a GPU of this compute capability: ``sm_90`` on 9.0 and all
    later ones, ``sm_90a`` on 9.0 alone, ``sm_100f`` on 10.0 and later ones of its family (PTX ISA 9.7, ``.target``).
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
    """By the name that the driver gives it: ``nvidia-h200`` of an NVIDIA H200."""
    return "-".join(name.lower().split())
