"""The CUDA driver library, as much of it as `emugpu.cuda.driver` calls, played by the emulated GPU.

What it is called with is checked: numbers of attributes and options are those of cuda.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from emugpu.cuda.driver import SWIZZLES, TENSOR_MAP_TYPES
from emugpu.emulator import Device, Module, TensorMap
from emugpu.emulator.memory.tensor_map_bytes import encode

ATTRIBUTES = {16: 4, 75: 9, 76: 0}
"""Four multiprocessors, compute capability 9.0."""
INVALID_IMAGE = 200
ERRORS = {
    INVALID_IMAGE: b"CUDA_ERROR_INVALID_IMAGE",
    218: b"CUDA_ERROR_INVALID_PTX",
    700: b"CUDA_ERROR_ILLEGAL_ADDRESS",
    999: b"CUDA_ERROR_UNKNOWN",
}
ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES = 5, 6
MAX_DYNAMIC_SHARED_SIZE_BYTES, NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 8, 14
CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6


class FakeCuda:
    """Addresses are those of the device; handles are numbers. alive: what is allocated; promotions: those of all tensor
    maps.
    """

    def __init__(self, device: Device | None = None) -> None:
        self.device = device or Device()
        self.alive: set[int] = set()
        self.modules: list[Module] = []
        self.functions: list[tuple[Module, str]] = []
        self.shared: dict[int, int] = {}
        self.promotions: set[int] = set()
        self.captured: list[Callable[[], None]] | None = None
        self.graphs: list[list[Callable[[], None]]] = []

    def __getattr__(self, name: str) -> Any:
        """What only has to succeed."""
        if name in (
            "cuInit",
            "cuCtxSetCurrent",
            "cuCtxSynchronize",
            "cuEventRecord",
            "cuEventSynchronize",
        ):
            return lambda *arguments: 0
        if name in ("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuEventCreate"):
            return lambda result, *rest: _give(result, 1)
        raise AttributeError(name)

    def cuGetErrorName(self, code, result):
        return _give(result, ERRORS[code])

    def cuDeviceGetAttribute(self, result, number, device):
        return _give(result, ATTRIBUTES[number])

    def cuDeviceGetName(self, buffer, size, device):
        buffer.value = b"emulated GPU"
        return 0

    def cuDriverGetVersion(self, result):
        return _give(result, 13000)

    def cuMemAlloc_v2(self, result, size):
        address = self.device.alloc(size.value)
        self.alive.add(address)
        return _give(result, address)

    def cuMemFree_v2(self, address):
        self.alive.remove(address.value)
        return 0

    def cuMemsetD8_v2(self, address, byte, size):
        self.device._memory.write(address.value, np.full(size.value, byte.value, np.uint8))
        return 0

    def cuMemcpyHtoD_v2(self, address, host, size):
        self.device._memory.write(address.value, np.frombuffer(ctypes.string_at(host, size.value), np.uint8))
        return 0

    def cuMemcpyDtoH_v2(self, host, address, size):
        data = self.device.download(address.value, np.uint8, size.value)
        ctypes.memmove(host, data.ctypes.data, size.value)
        return 0

    def cuModuleLoadDataEx(self, result, image, count, options, values):
        assert count == 2 and list(options) == [ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES]
        assert values[0] and values[1]
        if not image.endswith(b"\0") or b".version" not in image:
            return INVALID_IMAGE
        self.modules.append(Module.from_text(image[:-1].decode()))
        return _give(result, len(self.modules))

    def cuModuleGetFunction(self, result, module, name):
        loaded, entry = self.modules[module.value - 1], name.decode()
        assert entry in loaded.entries
        self.functions.append((loaded, entry))
        return _give(result, len(self.functions))

    def cuFuncSetAttribute(self, function, attribute, value):
        if attribute == MAX_DYNAMIC_SHARED_SIZE_BYTES:
            self.shared[function.value] = value
        else:
            assert (attribute, value) == (NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
        return 0

    def cuTensorMapEncodeTiled(
        self, place, element, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill
    ):
        names = {number: name for name, number in reversed(TENSOR_MAP_TYPES.items())}
        swizzles = {number: name.upper() for name, number in SWIZZLES.items()}
        tensor_map = TensorMap(
            address.value,
            names[element],
            tuple(dims),
            tuple(strides)[: rank - 1],
            tuple(box),
            tuple(steps),
            swizzles[swizzle],
            fill_nan=bool(fill),
        )
        assert place.value % 64 == 0 and interleave == 0 and promotion in (0, 1, 2, 3)
        assert rank == tensor_map.rank == len(dims) == len(box) == len(steps) and len(strides) == max(1, rank - 1)
        self.promotions.add(promotion)
        ctypes.memmove(place, encode(tensor_map), 128)
        return 0

    def cuLaunchKernelEx(self, config, function, pointers, extra):
        config = config._obj
        module, entry = self.functions[function.value - 1]
        sizes = [parameter.size for parameter in module.code(entry).kernel.parameters]
        images = [ctypes.string_at(pointers[i], size) for i, size in enumerate(sizes)]
        given = {attribute.id: tuple(attribute.value[:3]) for attribute in config.attributes[: config.count]}
        assert len(given) == config.count and extra is None
        cluster = given.pop(CLUSTER_DIMENSION, None)
        assert given in ({}, {PROGRAMMATIC_STREAM_SERIALIZATION: (1, 0, 0)})
        assert config.shared == self.shared[function.value]

        def launch() -> None:
            self.device.launch(
                module,
                entry,
                grid=tuple(config.grid),
                cluster=cluster,
                block=tuple(config.block),
                dynamic_smem=config.shared,
                arguments=images,
            )

        if self.captured is None:
            launch()
        else:
            self.captured.append(launch)
        return 0

    def cuStreamBeginCapture_v2(self, stream, mode):
        self.captured = []
        return 0

    def cuStreamEndCapture(self, stream, result):
        self.graphs.append(self.captured or [])
        self.captured = None
        return _give(result, len(self.graphs))

    def cuGraphInstantiateWithFlags(self, result, graph, flags):
        return _give(result, graph.value)

    def cuGraphLaunch(self, graph, stream):
        for launch in self.graphs[graph.value - 1]:
            launch()
        return 0

    def cuEventElapsedTime(self, result, start, end):
        return _give(result, 1.0)

    def cuOccupancyMaxActiveClusters(self, result, function, config):
        return _give(result, ATTRIBUTES[16] // config._obj.attributes[0].value[0])


def _give(result: Any, value: Any) -> int:
    result._obj.value = value
    return 0
