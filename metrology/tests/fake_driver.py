"""A CUDA driver that the emulator plays: as much of it as metrology/probes/bare.py calls, with ctypes arguments."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from harness.emulator import Device, Module, TensorMap
from harness.emulator.memory.tensor_map_bytes import encode
from metrology.probes import bare
from metrology.probes.bare import ELEMENTS, SWIZZLES, LaunchConfig

ELEMENT_NAMES = {number: name for name, number in ELEMENTS.items()}
SWIZZLE_NAMES = {number: name for name, number in SWIZZLES.items()}


class FakeDriver:
    """Calls return 0, the driver's success, and fill in what their pointers name."""

    def __init__(self, accumulation: Any) -> None:
        self.device = Device(accumulation=accumulation)
        self.objects: list[Any] = []
        self.alive: set[int] = set()
        self.shared = 0

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, device, ordinal):
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        return 0

    def cuCtxSetCurrent(self, context):
        return 0

    def cuCtxSynchronize(self):
        return 0

    def cuGetErrorName(self, status, text):
        text._obj.value = b"CUDA_ERROR_INVALID_PTX" if status == 218 else None
        return 0

    def _give(self, pointer, thing) -> None:
        self.objects.append(thing)
        pointer._obj.value = len(self.objects)

    def cuModuleLoadDataEx(self, module, image, count, options, values):
        assert image.endswith(b"\0") and list(options) == [bare.ERROR_LOG_BUFFER, bare.ERROR_LOG_BUFFER_SIZE_BYTES]
        self._give(module, Module.from_text(image[:-1].decode()))
        return 0

    def cuModuleGetFunction(self, function, module, name):
        self._give(function, (self.objects[module.value - 1], name.decode()))
        return 0

    def cuFuncSetAttribute(self, function, attribute, value):
        assert attribute == bare.MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.shared = value
        return 0

    def cuMemAlloc_v2(self, address, nbytes):
        address._obj.value = self.device.alloc(nbytes.value)
        self.alive.add(address._obj.value)
        return 0

    def cuMemFree_v2(self, address):
        self.alive.remove(address.value)
        return 0

    def cuMemcpyHtoD_v2(self, address, host, nbytes):
        data = np.frombuffer(ctypes.string_at(host.value, nbytes.value), np.uint8)
        self.device._memory.write(address.value, data)
        return 0

    def cuMemcpyDtoH_v2(self, host, address, nbytes):
        data = self.device.download(address.value, np.uint8, nbytes.value)
        ctypes.memmove(host.value, data.ctypes.data, nbytes.value)
        return 0

    def cuTensorMapEncodeTiled(
        self, result, element, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill
    ):
        assert result.value % 64 == 0 and interleave == promotion == 0
        tensor_map = TensorMap(
            address.value,
            ELEMENT_NAMES[element],
            tuple(dims),
            tuple(strides)[: rank.value - 1],
            tuple(box),
            tuple(steps),
            SWIZZLE_NAMES[swizzle],
            fill_nan=bool(fill),
        )
        assert tensor_map.rank == rank.value == len(steps)
        ctypes.memmove(result.value, encode(tensor_map), 128)
        return 0

    def cuLaunchKernelEx(self, config, function, pointers, extra):
        wanted: LaunchConfig = config._obj
        module, entry = self.objects[function.value - 1]
        sizes = [p.size for p in module.code(entry).kernel.parameters]
        attribute = wanted.attributes[0]
        assert attribute.id == bare.CLUSTER_DIMENSION and wanted.attribute_count == 1
        assert wanted.shared == self.shared
        self.device.launch(
            module,
            entry,
            grid=tuple(wanted.grid),
            cluster=tuple(attribute.cluster),
            block=tuple(wanted.block),
            dynamic_smem=wanted.shared,
            arguments=[ctypes.string_at(p, size) for p, size in zip(pointers, sizes, strict=True)],
        )
        return 0
