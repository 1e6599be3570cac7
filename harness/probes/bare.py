"""Runs bundled probes on a GPU, with nothing but Python, NumPy and the CUDA driver. It imports nothing of `harness`.

    python bare.py FOLDER OUT [--timeout SECONDS] [--jobs N]

FOLDER holds one folder for each probe (see `harness.probes.bundle`), OUT receives NAME.npz with the output buffers,
NAME.error with one line if there are none, and machine.json. Each probe runs in a process of its own, so that one
that hangs or faults loses none of the others.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

TIME_LIMIT = 30.0
"""Seconds a probe may take, the start of Python and of the driver included."""
TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT = 128, 64

# Numbers of the driver API's enumerations (cuda.h).
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
CLUSTER_DIMENSION = 4
ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES = 5, 6
ELEMENTS = {"u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}


class GpuError(Exception):
    """The driver refused something, or there is no GPU to ask."""


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute with clusterDim as its value."""

    _fields_ = [
        ("id", ctypes.c_uint),
        ("pad", ctypes.c_uint),
        ("cluster", ctypes.c_uint * 3),
        ("rest", ctypes.c_uint8 * 52),
    ]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


def load_driver() -> Any:
    """The driver's library. Raises GpuError if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise GpuError(f"cannot load libcuda.so.1 ({error}); probes on a GPU need its driver") from None


class Driver:
    """The few calls of the CUDA driver API that a probe takes. api: the library, or what plays it."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """Call the API. Raises GpuError naming the call and the error."""
        status = getattr(self.api, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self.api.cuGetErrorName(status, ctypes.byref(text))
            raise GpuError(f"{name} failed: {(text.value or str(status).encode()).decode()}")

    def load(self, ptx: str, entry: str) -> ctypes.c_void_p:
        """A function of a PTX module, compiled by the driver. Raises GpuError with the compiler's first line."""
        log = ctypes.create_string_buffer(4096)
        options = (ctypes.c_int * 2)(ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(module), ptx.encode() + b"\0", 2, options, values)
        except GpuError as error:
            lines = [line.strip() for line in log.value.decode(errors="replace").splitlines() if line.strip()]
            raise GpuError(f"{error} {'; '.join(lines[:3])}".strip()) from None
        self.call("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return function

    def launch(
        self, function: ctypes.c_void_p, case: dict[str, Any], buffers: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Run a case and return its output buffers."""
        addresses = {name: self._upload(content) for name, content in buffers.items()}
        pieces = [self._argument(argument, addresses) for argument in case["arguments"]]
        pointers = (ctypes.c_void_p * len(pieces))(*(ctypes.addressof(piece) for piece in pieces))
        cluster = (ctypes.c_uint * 3)(*case["cluster"])
        attribute = LaunchAttribute(id=CLUSTER_DIMENSION, cluster=cluster)
        grid, block = (ctypes.c_uint * 3)(*case["grid"]), (ctypes.c_uint * 3)(*case["block"])
        config = LaunchConfig(grid, block, case["shared"], None, ctypes.pointer(attribute), 1)
        self.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE_BYTES, case["shared"])
        self.call("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
        self.call("cuCtxSynchronize")
        outputs = {name: self._download(addresses[name], buffers[name]) for name in case["outputs"]}
        for address in addresses.values():
            self.call("cuMemFree_v2", ctypes.c_uint64(address))
        return outputs

    def _upload(self, content: np.ndarray) -> int:
        data = np.ascontiguousarray(content)
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(data.nbytes))
        self.call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes))
        return address.value

    def _download(self, address: int, like: np.ndarray) -> np.ndarray:
        data = np.empty_like(like, order="C")
        self.call(
            "cuMemcpyDtoH_v2", ctypes.c_void_p(data.ctypes.data), ctypes.c_uint64(address), ctypes.c_size_t(data.nbytes)
        )
        return data

    def _argument(self, argument: list[dict[str, Any]], addresses: dict[str, int]) -> Any:
        """A kernel argument as a ctypes object, from its pieces at their places."""
        pieces = []
        for piece in argument:
            if "pointer" in piece:
                data = addresses[piece["pointer"]].to_bytes(8, "little")
            elif "map" in piece:
                data = self._tensor_map(piece["map"], addresses[piece["buffer"]])
            else:
                data = bytes.fromhex(piece["bytes"])
            pieces.append((piece["at"], data))
        size = max(at + len(data) for at, data in pieces)
        block = bytearray(-(-size // TENSOR_MAP_ALIGNMENT) * TENSOR_MAP_ALIGNMENT)
        for at, data in pieces:
            block[at : at + len(data)] = data
        return (ctypes.c_uint8 * len(block)).from_buffer_copy(block)

    def _tensor_map(self, fields: dict[str, Any], address: int) -> bytes:
        room = (ctypes.c_uint8 * (TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT))()
        start = ctypes.addressof(room)
        start += -start % TENSOR_MAP_ALIGNMENT
        rank = len(fields["dims"])

        def numbers(kind: Any, values: list[int]) -> Any:
            return (kind * max(len(values), 1))(*values)

        self.call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(start),
            ELEMENTS[fields["element"]],
            ctypes.c_uint(rank),
            ctypes.c_void_p(address),
            numbers(ctypes.c_uint64, fields["dims"]),
            numbers(ctypes.c_uint64, fields["strides"]),
            numbers(ctypes.c_uint32, fields["box"]),
            numbers(ctypes.c_uint32, fields["steps"]),
            0,
            SWIZZLES[fields["swizzle"]],
            0,
            int(fields["fill_nan"]),
        )
        return ctypes.string_at(start, TENSOR_MAP_BYTES)


def run(folder: Path, api: Any) -> dict[str, np.ndarray]:
    """The outputs of all cases of a bundled probe, named "CASE/BUFFER"."""
    description = json.loads((folder / "launches.json").read_text())
    with np.load(folder / "inputs.npz") as inputs:
        driver = Driver(api)
        function = driver.load((folder / "probe.ptx").read_text(), description["entry"])
        found = {}
        for number, case in enumerate(description["cases"]):
            buffers = {name: inputs[f"{number}/{name}"] for name in case["buffers"]}
            for name, content in driver.launch(function, case, buffers).items():
                found[f"{number}/{name}"] = content
    return found


def describe() -> dict[str, str]:
    """Name, driver version, compute capability and date, from nvidia-smi. Raises GpuError if there is no GPU."""
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


def run_in_child(folder: Path, out: Path, seconds: float) -> None:
    """Run a bundled probe in a process of its own, which writes ``out``. Raises GpuError with what it said."""
    command = [sys.executable, str(Path(__file__).resolve()), "--one", str(folder), str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise GpuError(f"no answer after {seconds:.0f} s; the probe hangs on this GPU") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise GpuError(lines[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Run bundled probes on a GPU.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--timeout", type=float, default=TIME_LIMIT)
    parser.add_argument("--jobs", type=int, default=1, help="how many probes run at the same time")
    parser.add_argument("--one", action="store_true", help="FOLDER is one probe, OUT the file to write")
    options = parser.parse_args()
    if options.one:
        np.savez_compressed(options.out, **run(options.folder, load_driver()))  # type: ignore[arg-type]
        return
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "machine.json").write_text(json.dumps(describe()))

    def one(folder: Path) -> None:
        start = time.perf_counter()
        try:
            run_in_child(folder, options.out / f"{folder.name}.npz", options.timeout)
            verdict = "done"
        except GpuError as error:
            (options.out / f"{folder.name}.error").write_text(f"{error}\n")
            verdict = f"failed: {error}"
        print(f"{folder.name:40} {time.perf_counter() - start:6.2f} s  {verdict}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, sorted(path.parent for path in options.folder.glob("*/launches.json"))))


if __name__ == "__main__":
    try:
        main()
    except GpuError as error:
        sys.exit(str(error))
