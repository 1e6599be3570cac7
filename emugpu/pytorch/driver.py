"""Calls of the emulated driver, which this process has loaded."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any, check: bool = True) -> None:
    """Calls a function of the driver. Raises RuntimeError with the text of its error, as PyTorch does."""
    code = getattr(_driver(), name)(*arguments)
    if code and check:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        raise RuntimeError(f"CUDA error: {(text.value or b'unknown error').decode()} ({name})")


def attribute(number: int) -> int:
    """Returns a CUdevice_attribute of the GPU."""
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), number, 0)
    return value.value
