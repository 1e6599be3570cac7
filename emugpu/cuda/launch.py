"""Runs a launchable on a real GPU through the CUDA driver. `emugpu.launch.launching` does so on the emulated GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.cuda.driver import AlignedBytes, Driver
from emugpu.emulator import LaunchError, Module, TensorMap
from emugpu.emulator.arguments import pack
from emugpu.emulator.memory.address_space import PARAM_WINDOW
from emugpu.emulator.names import find_name
from emugpu.errors import CannotRun, UsageProblem
from emugpu.gpus import check_target, kind_of
from emugpu.launch.launching import Launched, LaunchOutcome, load_module
from emugpu.launch.listing import list_kernels
from emugpu.launch.memory import LaunchMemory
from emugpu.launch.spec import Launch, Launchable, target_of


class LoadedLaunchable:
    """A launchable on a GPU: its module is loaded, its memory allocated, and its launches can be repeated.

    launchers: one function for each launch, called with a stream. Close the object, or use it in a ``with`` block, to
    free its memory on the GPU.
    """

    def __init__(self, what: Launchable, driver: Driver | None = None) -> None:
        """Raises UsageProblem for errors of the launch file, and CannotRun for what the GPU refuses."""
        self.what = what
        self.driver = driver or Driver()
        self.module = load_module(what)
        gpu = self.driver.describe()
        check_target(target_of(self.module.target), gpu["compute_capability"], gpu["name"])
        self._allocated: list[int] = []
        self._image = self.driver.load_module(what.text.encode())
        try:
            self.memory = LaunchMemory(what, self, self.module)
            self._wanted = {self.memory.maps[name]: wanted for name, wanted in what.maps.items()}
            self.launchers = [self._launcher(launch) for launch in what.launches]
        except BaseException:
            self._give_up()
            raise

    def __enter__(self) -> LoadedLaunchable:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None:
            self.close()
        else:
            self._give_up()

    def close(self) -> None:
        while self._allocated:
            self.driver.free(self._allocated.pop())

    def _give_up(self) -> None:
        """Closes the object after an error.

        Errors of closing are ignored, because a GPU that has faulted frees nothing.
        """
        with suppress(CannotRun):
            self.close()

    def run(self) -> None:
        """Makes all launches, in order, and waits for them."""
        for launch in self.launchers:
            launch()
        self.driver.synchronize()

    # ---- memory, with the interface of `emugpu.launch.memory.DeviceMemory` ----

    def upload(self, array: NDArray[Any], name: str = "", at: int | None = None) -> int:
        data = np.ascontiguousarray(array)
        address = self.alloc(data.nbytes, name, at)
        self.write(address, data)
        return address

    def alloc(self, nbytes: int, name: str = "", at: int | None = None) -> int:
        if at is not None:
            raise ValueError(f"address = {at:#x}: a GPU places buffers itself; leave address out, or emulate it")
        self._allocated.append(self.driver.allocate(nbytes))
        return self._allocated[-1]

    def write(self, address: int, array: NDArray[Any]) -> None:
        self.driver.upload(address, array)

    def download(self, address: int, dtype: Any, shape: int | tuple[int, ...]) -> NDArray[Any]:
        return self.driver.download(address, np.empty(shape, dtype))

    def symbol(self, name: str, module: Module | None = None) -> int:
        return self._variable(name)[0]

    def symbol_bytes(self, name: str, module: Module | None = None) -> int:
        return self._variable(name)[1]

    def _variable(self, name: str) -> tuple[int, int]:
        names = [found for _, found, _ in list_kernels(self.what.text).symbols]
        return self.driver.variable(self._image, find_name(name, names, "variable"))

    def upload_tensor_map(self, tensor_map: TensorMap, name: str = "") -> int:
        return self.upload(np.frombuffer(self._encode(tensor_map), np.uint8), name)

    def _encode(self, tensor_map: TensorMap) -> bytes:
        wanted = self._wanted[tensor_map]
        own = "none" if tensor_map.swizzle.span_bytes == 16 else f"{tensor_map.swizzle.span_bytes}B"
        encoded = self.driver.tensor_map(
            tensor_map.address,
            tensor_map.element.name,
            tensor_map.dims,
            tensor_map.strides,
            tensor_map.box,
            wanted.gpu_swizzle or own,
            wanted.l2_promotion,
            tensor_map.fill_nan,
            tensor_map.element_strides,
        )
        return encoded.read()

    # ---- launches ----

    def _launcher(self, launch: Launch) -> Callable[..., None]:
        try:
            kernel = self.module.find(launch.kernel)
            block = pack(kernel, self.memory.arguments(launch, kernel))
        except (LaunchError, OverflowError) as error:
            raise UsageProblem(f"{self.what.place(launch.where)}: {error}") from error
        data = bytearray(block.data)
        for place, (_, tensor_map) in block.maps.items():
            at = place - PARAM_WINDOW
            encoded = self._encode(tensor_map)
            data[at : at + len(encoded)] = encoded
        threads = launch.block or kernel.directives.get("reqntid")
        if threads is None:
            raise UsageProblem(f"{self.what.place(launch.where)}.block is missing, and the kernel has no .reqntid")
        function = self.driver.function(self._image, kernel.name)
        self.driver.allow_shared(function, launch.dynamic_shared)
        parameters = [AlignedBytes(bytes(data[p.offset : p.offset + p.size])) for p in kernel.parameters]
        if launch.cooperative:
            raise CannotRun(
                "a cooperative grid is launched on the emulated GPU only; leave cooperative out, or --device"
            )
        own_cluster = "reqnctapercluster" in kernel.directives
        cluster = None if own_cluster or launch.cluster is None else _three(launch.cluster)
        return self.driver.launcher(
            function,
            parameters,
            _three(launch.grid),
            _three(threads),
            launch.dynamic_shared,
            cluster,
            bool(launch.overlap),
        )


def run_on_gpu(what: Launchable, driver: Driver | None = None, keep: Collection[str] | None = None) -> LaunchOutcome:
    """Runs a launchable once, on the GPU of this process. keep: as for `emugpu.launch.launching.run`.

    A hang on the GPU hangs this process. To be safe, run it in another process (`emugpu.processes`).
    """
    driver = driver or Driver()
    with LoadedLaunchable(what, driver) as loaded:
        start = time.perf_counter()
        try:
            loaded.run()
        except CannotRun as error:
            raise CannotRun(f"{what.place('launch')}: {error}") from error
        seconds = time.perf_counter() - start
        launched = tuple(
            Launched(launch.where, loaded.module.find(launch.kernel).name, launch.grid, None)
            for launch in what.launches
        )
        contents = loaded.memory.contents(what.buffers if keep is None else keep)
        verdicts = loaded.memory.judge()
    gpu = driver.describe()
    about = {"kind": kind_of(gpu["name"]), **gpu}
    return LaunchOutcome(what, about, target_of(loaded.module.target), launched, verdicts, seconds, contents)


def _three(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (*sizes, 1, 1)[:3]
