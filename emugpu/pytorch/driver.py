"""Calls of the emulated driver, which this process has loaded."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from emugpu.errors import CannotRun


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CannotRun(
            "PyTorch does not find the emulated driver (libcuda.so.1); leave LD_LIBRARY_PATH as emugpu sets it"
        ) from error


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
