"""The module ``cuda.bindings.runtime`` on the emulated GPU.

It contains NVIDIA's CUDA runtime, which accepts only NVIDIA's own driver. CuTe DSL counts the GPUs with it, and waits
for them; here the emulated CUDA runtime does both.
"""

from __future__ import annotations

import ctypes
from typing import Any


def install(runtime: Any) -> None:
    """Replaces the functions of the module ``cuda.bindings.runtime`` that CuTe DSL calls in every program."""

    def emulated(name: str, *arguments: Any) -> Any:
        return runtime.cudaError_t(getattr(ctypes.CDLL("libcudart.so.13"), name)(*arguments))

    def count() -> tuple[Any, int]:
        found = ctypes.c_int()
        return emulated("cudaGetDeviceCount", ctypes.byref(found)), found.value

    runtime.cudaGetDeviceCount = count
    runtime.cudaDeviceSynchronize = lambda: (emulated("cudaDeviceSynchronize"),)
