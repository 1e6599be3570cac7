"""Runs bundled probes on a GPU, with nothing but Python, NumPy and the CUDA driver. It imports nothing of `harness`.

    python bare.py FOLDER OUT [--timeout SECONDS] [--jobs N]

FOLDER holds one folder for each probe (see `metrology.probes.bundle`), OUT receives NAME.npz with the output buffers,
NAME.error with one line if there are none, NAME.cases with what was said of single cases without, and machine.json.
Each probe runs in a process of its own, so that one that hangs or faults loses none of the others. A case that does is
left out, and the rest of its probe asked again without it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

TIME_LIMIT = 30.0
"""Seconds a process of a probe may take, the start of Python and of the driver included."""
MOST_PROCESSES = 4
"""That a probe takes: one more for each case that fails; then the cases that are left are not asked."""
MOST_HANGS = 2
"""Of those."""
PATIENCE = 5.0
"""Seconds that a process may take to die: one that the GPU holds may not, and nobody waits for it."""
TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT = 128, 64
TARGETS = {"9.0": "sm_90a", "10.0": "sm_100a", "10.3": "sm_103a"}
"""What PTX names the GPUs that there are probes for, by compute capability."""
FIRST_VERSIONS = {"sm_103a": "8.8"}
"""The first version of PTX that has a target, where it is later than that of the probes."""

# Numbers of the driver API's enumerations (cuda.h).
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
CLUSTER_DIMENSION = 4
COMPUTE_CAPABILITY = 75, 76
ERROR_LOG_BUFFER, ERROR_LOG_BUFFER_SIZE_BYTES = 5, 6
ELEMENTS = {"u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9,
            "b4x16": 13, "b4x16_p64": 14, "b6x16_p32": 15}  # fmt: skip
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3, "128B_ATOM_32B": 4, "128B_ATOM_32B_FLIP_8B": 5,
            "128B_ATOM_64B": 6}  # fmt: skip
CASE = "case"
"""Begins the message of a case that fails."""


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


def run_cases(
    folder: Path, api: Any, target: str | None = None, chosen: list[int] | None = None
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Case by case. target: of the GPU, where the text has another one. chosen: numbers of cases, all if None.

    Raises GpuError, whose message names the case if it is a case's fault.
    """
    description = read_description(folder)
    with np.load(folder / "inputs.npz") as inputs:
        driver = Driver(api)
        function = driver.load(for_target((folder / "probe.ptx").read_text(), target), description["entry"])
        for number, case in enumerate(description["cases"]):
            if chosen is not None and number not in chosen:
                continue
            buffers = {name: inputs[f"{number}/{name}"] for name in case["buffers"]}
            try:
                found = driver.launch(function, case, buffers)
            except GpuError as error:
                raise GpuError(f"{CASE} {number}: {error}") from None
            yield number, {f"{number}/{name}": content for name, content in found.items()}


def for_target(ptx: str, target: str | None) -> str:
    """The text for another GPU, which must have the instructions."""
    if not target or f".target {target}" in ptx:
        return ptx
    if target in FIRST_VERSIONS:
        ptx = re.sub(r"(?m)^\.version \S+", f".version {FIRST_VERSIONS[target]}", ptx)
    return re.sub(r"(?m)^\.target \w+", f".target {target}", ptx)


def read_description(folder: Path) -> dict[str, Any]:
    """What a bundled probe launches."""
    found: dict[str, Any] = json.loads((folder / "launches.json").read_text())
    return found


def describe() -> dict[str, str]:
    """Name, driver version, compute capability, date. Raises GpuError if there is no GPU that there are probes for."""
    name, driver, capability = _from_nvidia_smi() or _from_driver(load_driver())
    if capability not in TARGETS:
        known = ", ".join(f"{c} ({t})" for c, t in TARGETS.items())
        raise GpuError(f"{name} has compute capability {capability}; there are probes for {known}")
    return {"gpu": name, "driver": driver, "compute_capability": capability, "date": time.strftime("%Y-%m-%d")}


def _from_nvidia_smi() -> list[str] | None:
    """Name, driver version and compute capability of the first GPU; None if there is no such program."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    except subprocess.TimeoutExpired as error:
        raise GpuError(f"nvidia-smi does not answer ({error}); probes on a GPU need its driver") from None
    if done.returncode or not done.stdout.strip():
        raise GpuError(f"nvidia-smi finds no GPU: {(done.stderr or done.stdout).strip()[:200]}")
    return [part.strip() for part in done.stdout.strip().splitlines()[0].split(",")]


def _from_driver(api: Any) -> list[str]:
    """The same, as the driver says it; of its version only which CUDA it is for."""
    driver, name, value = Driver(api), ctypes.create_string_buffer(256), ctypes.c_int()
    driver.call("cuDeviceGetName", name, len(name), 0)
    driver.call("cuDriverGetVersion", ctypes.byref(value))
    cuda, capability = value.value, []
    for attribute in COMPUTE_CAPABILITY:
        driver.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, 0)
        capability.append(str(value.value))
    return [name.value.decode(), f"CUDA {cuda // 1000}.{cuda % 1000 // 10}", ".".join(capability)]


def run_in_child(folder: Path, out: Path, seconds: float, target: str | None = None) -> dict[int, str]:
    """Run a bundled probe in processes of its own, of so many seconds each, and write ``out``.

    Returns what the cases said that failed, by number. Raises GpuError if all of them did, or the probe itself.
    """
    left = list(range(len(read_description(folder)["cases"])))
    found: dict[str, np.ndarray] = {}
    failed: dict[int, str] = {}
    hung = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        for _ in range(MOST_PROCESSES):
            message, hangs = _child(folder, Path(temporary), seconds, target, left)
            for number in list(left):
                part = Path(temporary) / f"{number}.npz"
                if part.exists():
                    left.remove(number)
                    with np.load(part) as outputs:
                        found.update({name: outputs[name] for name in outputs.files})
            if message is None or not left:
                break
            if not hangs and not message.startswith(f"{CASE} "):
                failed.update(dict.fromkeys(left, message))
                left.clear()
                break
            # Cases go in order: it is the first that is left.
            failed[left.pop(0)] = message if hangs else message.partition(": ")[2]
            hung += hangs
            if not left or hung == MOST_HANGS:
                break
    if not found:
        raise GpuError(next(iter(failed.values()), "the process left nothing"))
    failed.update(dict.fromkeys(left, "not asked: too many cases failed"))
    np.savez_compressed(out, **found)  # type: ignore[arg-type]
    return failed


def _child(folder: Path, parts: Path, seconds: float, target: str | None, cases: list[int]) -> tuple[str | None, bool]:
    """Run some cases in a process, which leaves NUMBER.npz of each that it has done. What went wrong, if anything, and
    whether that was time.
    """
    words = ["--one", str(folder), str(parts), "--cases", ",".join(map(str, cases)), "--target", target or ""]
    command = [sys.executable, str(Path(__file__).resolve()), *words]
    with open(parts / "said", "w+", encoding="utf-8", errors="replace") as said:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            code = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=PATIENCE)
            return f"no answer after {seconds:.0f} s; the probe hangs on this GPU", True
        said.seek(0)
        lines = said.read().strip().splitlines()
    return ((lines or [f"exit code {code}"])[-1] if code else None), False


def _one(folder: Path, parts: Path, cases: str, target: str) -> None:
    chosen = [int(number) for number in cases.split(",")] if cases else None
    for number, found in run_cases(folder, load_driver(), target or None, chosen):
        part = parts / f"{number}.part.npz"
        np.savez(part, **found)  # type: ignore[arg-type]
        part.rename(parts / f"{number}.npz")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run bundled probes on a GPU.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--timeout", type=float, default=TIME_LIMIT)
    parser.add_argument("--jobs", type=int, default=1, help="how many probes run at the same time")
    parser.add_argument("--one", action="store_true", help="FOLDER is one probe, OUT the folder for its cases")
    parser.add_argument("--cases", default="", help="with --one: numbers of cases; all if there are none")
    parser.add_argument("--target", default="", help="with --one: what PTX names the GPU")
    options = parser.parse_args()
    if options.one:
        _one(options.folder, options.out, options.cases, options.target)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    machine = describe()
    (options.out / "machine.json").write_text(json.dumps(machine))
    target = TARGETS[machine["compute_capability"]]

    def one(folder: Path) -> None:
        start = time.perf_counter()
        targets = read_description(folder)["targets"]
        if target not in targets:
            print(f"{folder.name:40}           skipped: it asks what only {targets[0]} has", flush=True)
            return
        try:
            failed = run_in_child(folder, options.out / f"{folder.name}.npz", options.timeout, target)
            verdict = f"{len(failed)} cases failed" if failed else "done"
            if failed:
                (options.out / f"{folder.name}.cases").write_text(json.dumps(failed))
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
