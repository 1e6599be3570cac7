"""Runs a probe on a GPU through the CUDA driver API: PTX text in, buffers out.

Run as a program it is the child process of `run_in_child`: a probe that hangs the GPU only takes the child with
it. Needs a GPU of compute capability 9.0.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from harness.errors import CannotRun
from harness.gpu.driver import Driver, Parameter
from harness.probes.catalogue import PROBES
from harness.probes.probe import Argument, Case, Map, Outputs, Pointer, Probe, decode, encode

TIME_LIMIT = 30.0
"""Seconds a child may take, the start of Python and of the driver included."""


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


def run(probe: Probe, library: Any = None) -> Outputs:
    """The outputs of all cases, on the first GPU of this process. library: in place of the CUDA driver."""
    try:
        driver = Driver(library)
        function = driver.load(probe.ptx.encode(), "probe")
        return {case.name: _launch(driver, function, case) for case in probe.cases}
    except CannotRun as error:
        raise GpuError(str(error)) from None


def _launch(driver: Driver, function: ctypes.c_void_p, case: Case) -> dict[str, np.ndarray]:
    """Run a case and return its output buffers."""
    addresses = {}
    for name, content in case.buffers.items():
        addresses[name] = driver.allocate(content.nbytes)
        driver.upload(addresses[name], content)
    driver.allow_shared(function, case.shared)
    parameters = [_parameter(driver, argument, addresses) for argument in case.arguments]
    grid, cluster = (*case.grid, 1), (*case.cluster, 1)
    driver.launcher(function, parameters, grid, (case.block, 1, 1), case.shared, cluster)()
    driver.synchronize()
    outputs = {
        name: driver.download(addresses[name], np.empty_like(case.buffers[name], order="C")) for name in case.outputs
    }
    for address in addresses.values():
        driver.free(address)
    return outputs


def _parameter(driver: Driver, argument: Argument, addresses: dict[str, int]) -> Parameter:
    """A kernel argument as the driver takes it."""
    if isinstance(argument, Pointer):
        return ctypes.c_uint64(addresses[argument.buffer])
    if isinstance(argument, Map):
        found = argument.at(addresses[argument.buffer])
        swizzle = "none" if found.swizzle.name == "NONE" else f"{found.swizzle.span_bytes}B"
        return driver.tensor_map(
            found.address, found.element.name, found.dims, found.strides, found.box, swizzle, fill_nan=found.fill_nan
        )
    width = ctypes.c_uint64 if argument.nbytes == 8 else ctypes.c_uint32
    return width.from_buffer_copy(argument.tobytes().ljust(4, b"\0"))


if __name__ == "__main__":
    try:
        print(json.dumps(encode(run(PROBES[sys.argv[1]]))))
    except GpuError as error:
        sys.exit(str(error))
