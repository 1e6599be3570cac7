"""Chooses what a kernel runs on."""

from __future__ import annotations

from harness.config import KernelConfig
from harness.errors import CannotRun
from harness.toolchain import find_gpus

CHOICES = ("auto", "gpu", "emulator")


def choose_device(wanted: str, config: KernelConfig) -> str:
    """Returns ``emulator``, or says why what is wanted cannot be had; ``auto`` takes the best there is."""
    if wanted != "gpu":
        return "emulator"
    gpus = find_gpus()
    if not gpus:
        raise CannotRun("no NVIDIA GPU was found (nvidia-smi lists none); use --device emulator")
    raise CannotRun(
        f"{config.kernel} cannot be run on a GPU yet, {gpus[0].name} was found; use --device emulator"
    )
