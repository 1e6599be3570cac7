"""Which kernels a GPU can run."""

from __future__ import annotations

from harness.errors import CannotRun

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
