"""What a GPU's driver says of the GPU: every device attribute, memory sizes, limits of a context.

    python -m conformance.device_facts FILE.json

The device attributes of the emulated H200 come from such a file.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from emugpu.cuda.driver import Driver

ATTRIBUTES = range(1, 161)
LIMITS = range(0, 12)
FUNCTION_ATTRIBUTES = range(0, 24)
EMPTY_KERNEL = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry empty() { ret; }
"""


def facts() -> dict[str, Any]:
    """Returns all facts as plain data. The numbers are those of the enumerations in cuda.h."""
    api = Driver()
    total, free, seen = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
    api.call("cuDeviceTotalMem_v2", ctypes.byref(total), api.device)
    api.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(seen))
    low, high, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    api.call("cuDriverGetVersion", ctypes.byref(version))
    api.call("cuCtxGetStreamPriorityRange", ctypes.byref(low), ctypes.byref(high))
    return {
        "name": api.describe()["name"],
        "driver_version": version.value,
        "total_memory": total.value,
        "free_memory": free.value,
        "stream_priorities": [low.value, high.value],
        "attributes": _attributes(api),
        "limits": _limits(api),
        "empty_kernel": _empty_kernel(api),
        "granularity": _granularity(api),
        "first_addresses": _addresses(api),
    }


def _attributes(api: Driver) -> dict[str, int]:
    """Returns the device attributes (CUdevice_attribute) that this driver knows."""
    values = {}
    for number in ATTRIBUTES:
        value = ctypes.c_int()
        if api.result("cuDeviceGetAttribute", ctypes.byref(value), number, api.device) == 0:
            values[str(number)] = value.value
    return values


def _limits(api: Driver) -> dict[str, int]:
    """Returns stack size, printf buffer, heap and so on (CUlimit)."""
    values = {}
    for number in LIMITS:
        value = ctypes.c_size_t()
        if api.result("cuCtxGetLimit", ctypes.byref(value), number) == 0:
            values[str(number)] = value.value
    return values


def _empty_kernel(api: Driver) -> dict[str, int]:
    """Returns function attributes (CUfunction_attribute) of an empty kernel, and how many of its blocks fit on
    an SM.
    """
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    api.call("cuModuleLoadData", ctypes.byref(module), EMPTY_KERNEL)
    api.call("cuModuleGetFunction", ctypes.byref(function), module, b"empty")
    values = {}
    for number in FUNCTION_ATTRIBUTES:
        value = ctypes.c_int()
        if api.result("cuFuncGetAttribute", ctypes.byref(value), number, function) == 0:
            values[str(number)] = value.value
    blocks = ctypes.c_int()
    count = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    for threads, shared in ((128, 0), (1024, 0), (128, 49152), (192, 16384)):
        api.call(count, ctypes.byref(blocks), function, threads, ctypes.c_size_t(shared))
        values[f"blocks of {threads} threads and {shared} bytes"] = blocks.value
    return values


def _granularity(api: Driver) -> dict[str, int]:
    """Returns the minimum and the recommended granularity of physical memory (cuMemCreate) on the device."""

    class Properties(ctypes.Structure):
        """CUmemAllocationProp: pinned memory of device 0."""

        _fields_ = [
            ("type", ctypes.c_int),
            ("handle_types", ctypes.c_int),
            ("location_type", ctypes.c_int),
            ("location_id", ctypes.c_int),
            ("reserved", ctypes.c_uint64 * 4),
        ]

    properties = Properties(type=1, location_type=1)
    values = {}
    for number, name in enumerate(("minimum", "recommended")):
        value = ctypes.c_size_t()
        call = "cuMemGetAllocationGranularity"
        if api.result(call, ctypes.byref(value), ctypes.byref(properties), number) == 0:
            values[name] = value.value
    return values


def _addresses(api: Driver) -> list[list[int]]:
    """Returns the sizes of some allocations in order, and their addresses."""
    found = []
    for size in (1, 256, 257, 4096, 1 << 20, (1 << 21) + 1, 1 << 25):
        address = ctypes.c_uint64()
        api.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        found.append([size, address.value])
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(facts(), indent=1) + "\n", encoding="utf-8")
