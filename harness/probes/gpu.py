"""Runs a probe on a GPU through the CUDA driver API: PTX text in, buffers out.

Run as a program it is the child process of `run_in_child`: a probe that hangs the GPU only takes the child with
it. Needs the package cuda-bindings and a GPU of compute capability 9.0.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from harness.emulator import TensorMap
from harness.probes.catalogue import PROBES
from harness.probes.probe import Argument, Case, Map, Outputs, Pointer, Probe, decode, encode

TIME_LIMIT = 30.0
"""Seconds a child may take, the start of Python and of the driver included."""
TENSOR_MAP_BYTES = 128


class GpuError(Exception):
    """The driver refused something, or there is no GPU to ask."""


def run_in_child(probe: Probe, seconds: float = TIME_LIMIT) -> Outputs:
    """The probe's outputs from a process of its own. Raises GpuError with what the child said, or on a time-out."""
    command = [sys.executable, "-m", "harness.probes.gpu", probe.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise GpuError(f"no answer after {seconds:.0f} s; the probe hangs on this GPU") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise GpuError(lines[-1])
    return decode(json.loads(done.stdout))


def describe() -> dict[str, Any]:
    """Name, driver version and date, from nvidia-smi. Raises GpuError if there is no GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuError(f"nvidia-smi does not answer ({error}); probes on a GPU need one with its driver") from None
    if done.returncode or not done.stdout.strip():
        raise GpuError(f"nvidia-smi finds no GPU: {(done.stderr or done.stdout).strip()[:200]}")
    name, driver, capability = (part.strip() for part in done.stdout.strip().splitlines()[0].split(","))
    if capability != "9.0":
        raise GpuError(f"{name} has compute capability {capability}; the probes are written for 9.0 (sm_90a)")
    return {"gpu": name, "driver": driver, "compute_capability": capability, "date": time.strftime("%Y-%m-%d")}


# ---- in the child ----


def run(probe: Probe) -> Outputs:
    """The outputs of all cases, on the first GPU of this process."""
    driver = Driver()
    function = driver.load(probe.ptx)
    return {case.name: driver.launch(function, case) for case in probe.cases}


class Driver:
    """The few calls of the CUDA driver API that a probe takes."""

    def __init__(self) -> None:
        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise GpuError(f"cannot import cuda.bindings ({error}); install cuda-bindings") from None
        self.api = driver
        self.call("cuInit", 0)
        device = self.call("cuDeviceGet", 0)
        self.call("cuCtxSetCurrent", self.call("cuDevicePrimaryCtxRetain", device))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the API and return its one result (or None). Raises GpuError naming the call and the error."""
        status, *results = getattr(self.api, name)(*arguments)
        if int(status) != 0:
            raise GpuError(f"{name} failed: {status!r}")
        return results[0] if results else None

    def load(self, ptx: str) -> Any:
        """The function ``probe`` of a PTX module, compiled by the driver."""
        module = self.call("cuModuleLoadData", ptx.encode() + b"\0")
        return self.call("cuModuleGetFunction", module, b"probe")

    def launch(self, function: Any, case: Case) -> dict[str, np.ndarray]:
        """Run a case and return its output buffers."""
        addresses = {name: self._upload(content) for name, content in case.buffers.items()}
        pieces = [self._encode(argument, addresses) for argument in case.arguments]
        pointers = (ctypes.c_void_p * len(pieces))(*(ctypes.addressof(piece) for piece in pieces))
        attribute = self.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call("cuFuncSetAttribute", function, attribute, case.shared)
        self.call("cuLaunchKernelEx", self._config(case), function, ctypes.addressof(pointers), 0)
        self.call("cuCtxSynchronize")
        outputs = {name: self._download(addresses[name], case.buffers[name]) for name in case.outputs}
        for address in addresses.values():
            self.call("cuMemFree", self.api.CUdeviceptr(address))
        return outputs

    def _config(self, case: Case) -> Any:
        config = self.api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = *case.grid, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = case.block, 1, 1
        config.sharedMemBytes = case.shared
        config.hStream = self.api.CUstream(0)
        attribute = self.api.CUlaunchAttribute()
        attribute.id = self.api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dimension = attribute.value.clusterDim
        dimension.x, dimension.y, dimension.z = *case.cluster, 1
        config.attrs = [attribute]
        config.numAttrs = 1
        return config

    def _upload(self, content: np.ndarray) -> int:
        data = np.ascontiguousarray(content)
        address = int(self.call("cuMemAlloc", data.nbytes))
        self.call("cuMemcpyHtoD", self.api.CUdeviceptr(address), data.ctypes.data, data.nbytes)
        return address

    def _download(self, address: int, like: np.ndarray) -> np.ndarray:
        data = np.empty_like(like, order="C")
        self.call("cuMemcpyDtoH", data.ctypes.data, self.api.CUdeviceptr(address), data.nbytes)
        return data

    def _encode(self, argument: Argument, addresses: dict[str, int]) -> Any:
        """A kernel argument as a ctypes object."""
        if isinstance(argument, Pointer):
            return ctypes.c_uint64(addresses[argument.buffer])
        if isinstance(argument, Map):
            encoded = self._tensor_map(argument.at(addresses[argument.buffer]))
            return (ctypes.c_uint8 * TENSOR_MAP_BYTES).from_buffer_copy(
                ctypes.string_at(int(encoded.getPtr()), TENSOR_MAP_BYTES)
            )
        data = argument.tobytes()
        return (ctypes.c_uint8 * len(data)).from_buffer_copy(data)

    def _tensor_map(self, tensor_map: TensorMap) -> Any:
        api = self.api
        types = api.CUtensorMapDataType
        element = {
            "bf16": types.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            "f16": types.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            "f32": types.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            "u16": types.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        }[tensor_map.element.name]
        fill = api.CUtensorMapFloatOOBfill
        swizzle = "NONE" if tensor_map.swizzle.name == "NONE" else f"{tensor_map.swizzle.span_bytes}B"
        return self.call(
            "cuTensorMapEncodeTiled",
            element,
            tensor_map.rank,
            api.CUdeviceptr(tensor_map.address),
            [api.cuuint64_t(d) for d in tensor_map.dims],
            [api.cuuint64_t(s) for s in tensor_map.strides],
            [api.cuuint32_t(b) for b in tensor_map.box],
            [api.cuuint32_t(s) for s in tensor_map.steps],
            api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
            api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
            fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
            if tensor_map.fill_nan
            else fill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )


if __name__ == "__main__":
    try:
        print(json.dumps(encode(run(PROBES[sys.argv[1]]))))
    except GpuError as error:
        sys.exit(str(error))
