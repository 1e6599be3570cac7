"""Chooses what a kernel runs on."""

from __future__ import annotations

from harness.build.catalog import Kernel
from harness.build.toolchain import Gpu, find_gpus, package_version
from harness.errors import CannotRun
from harness.run.capability import arch_of_gpu, check_arch


class NoDevice(CannotRun):
    """There is no GPU that could be used, and why. The emulator always could."""


EMULATED_GPU = "emulated-gpu"
CHOICES = ("auto", "gpu", "emulator", EMULATED_GPU)


def choose_device(wanted: str, kernel: Kernel, arch: str) -> tuple[Gpu | None, str]:
    """The GPU to use (None: the emulator) and the architecture to compile for.

    ``auto`` takes a GPU that runs the kernel, else the emulator. ``gpu`` insists, and says why it cannot be had.
    ``emulated-gpu`` is the emulator too, with MAX's host code before it. arch may be ``auto``: the GPU's own, or the
    kernel's first.
    """
    emulated = kernel.archs[0] if arch == "auto" else arch
    if wanted in ("emulator", EMULATED_GPU):
        return None, emulated
    try:
        return _usable_gpu(kernel, arch)
    except CannotRun as error:
        if wanted == "gpu":
            raise NoDevice(str(error)) from None
        return None, emulated


def _usable_gpu(kernel: Kernel, arch: str) -> tuple[Gpu, str]:
    gpus = find_gpus()
    if not gpus:
        raise CannotRun("no NVIDIA GPU was found (nvidia-smi lists none)")
    gpu = gpus[0]
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    if arch != "auto":
        check_arch(arch, major, minor, gpu.name)
    own = arch_of_gpu(major, minor)
    if own not in kernel.archs:
        raise CannotRun(f"{kernel.name} is written for {', '.join(kernel.archs)}; {gpu.name} runs {own}")
    if package_version("torch") is None:
        raise CannotRun(
            "a GPU run needs torch (pip install '.[torch]') for its inputs, reference and the vendor's GEMM"
        )
    return gpu, own
