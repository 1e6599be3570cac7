"""A program's side of the driver API, for the tests that run one: the functions by ctypes, with errors as exceptions.

A test gives a script to `run_script`, which finds this module and runs on the emulated GPU.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

cu = ctypes.CDLL("libcuda.so.1")


class CudaError(Exception):
    def __init__(self, function: str, code: int) -> None:
        name = c_char_p()
        cu.cuGetErrorName(code, byref(name))
        super().__init__(f"{function}: {(name.value or b'?').decode()}")
        self.code = code


def call(function: str, *arguments) -> None:
    """Calls a function; Python ints are 64 bits. Raises CudaError."""
    given = [c_uint64(a) if isinstance(a, int) else a for a in arguments]
    code = getattr(cu, function)(*given)
    if code:
        raise CudaError(function, code)


def result_of(function: str, *arguments) -> str:
    """What a call returns, by its name."""
    try:
        call(function, *arguments)
    except CudaError as error:
        return str(error).partition(": ")[2]
    return "CUDA_SUCCESS"


def asked(function: str, *arguments, kind=c_uint64) -> int:
    """What a function writes to its first parameter."""
    value = kind()
    call(function, byref(value), *arguments)
    return value.value


def start() -> None:
    call("cuInit", 0)
    call("cuCtxSetCurrent", asked("cuDevicePrimaryCtxRetain", 0))


def load(ptx: str, *names: str) -> list[int]:
    """Functions of a module."""
    module = asked("cuModuleLoadData", c_char_p(ptx.encode()))
    return [asked("cuModuleGetFunction", module, c_char_p(name.encode())) for name in names]


def upload(values) -> int:
    """Device memory with these ctypes values."""
    address = asked("cuMemAlloc_v2", ctypes.sizeof(values))
    call("cuMemcpyHtoD_v2", address, byref(values), ctypes.sizeof(values))
    return address


def download(address: int, kind, count: int) -> list:
    values = (kind * count)()
    call("cuMemcpyDtoH_v2", byref(values), address, ctypes.sizeof(values))
    return list(values)


def launch(
    function: int, grid: int, block: int, *arguments, shared: int = 0, stream: int = 0, cooperative: bool = False
) -> None:
    """Arguments are ctypes values, or ints for addresses."""
    values = [c_uint64(a) if isinstance(a, int) else a for a in arguments]
    pointers = (c_void_p * max(len(values), 1))(*(ctypes.cast(byref(v), c_void_p) for v in values))
    sizes = (c_uint(grid), c_uint(1), c_uint(1), c_uint(block), c_uint(1), c_uint(1), c_uint(shared))
    if cooperative:
        call("cuLaunchCooperativeKernel", function, *sizes, c_void_p(stream), pointers)
    else:
        call("cuLaunchKernel", function, *sizes, c_void_p(stream), pointers, None)


__all__ = [
    "CudaError", "asked", "byref", "c_char_p", "c_float", "c_int", "c_size_t", "c_uint", "c_uint64", "call", "ctypes",
    "cu", "download", "launch", "load", "result_of", "start", "upload",
]  # fmt: skip
