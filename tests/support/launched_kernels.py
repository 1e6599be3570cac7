"""A program that launches kernels by `harness.launch.launcher` on its driver's GPU, and checks the results.

Its argument is one of `CASES`. It prints what it saw as JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from typing import Any

import ml_dtypes
import numpy as np

from emugpu.cuda.driver import LaunchConfig
from harness.compile.artifacts import build
from harness.compile.config import KernelConfig, make_config
from harness.launch.launcher import HEADER, MISALIGNED, PACK, KernelLoader, launcher
from harness.problem import Shape

CASES: dict[str, tuple[KernelConfig, Shape]] = {
    "dynamic": (make_config("kernel8", arch="sm_90a", cluster=(2, 1), scheduler="dynamic"), Shape(264, 264, 72)),
    "no overlap": (make_config("kernel7", arch="sm_90a", stages=2), Shape(136, 264, 72)),
    "residual": (
        make_config("kernel8", cta_group=1, cluster=(1, 1), mma_shape=(64, 32), stages=2, epilogue="residual"),
        Shape(72, 40, 72),
    ),
}
"""Checked-in kernels: one with a workspace, one that does not overlap, one that reads an address and two numbers."""
ALPHA, BETA = 0.5, 2.0
BF16 = np.dtype(ml_dtypes.bfloat16)


class Memory:
    """Arrays of small integers on the GPU."""

    def __init__(self, loader: KernelLoader, shape: Shape) -> None:
        self.driver, self.shape = loader.driver, shape
        self.random = np.random.default_rng(1)

    def draw(self, rows: int, columns: int) -> tuple[int, np.ndarray]:
        values = self.random.integers(-3, 4, (rows, columns)).astype(BF16)
        address = self.driver.allocate(values.nbytes)
        self.driver.upload(address, values.view(np.uint16))
        return address, values.astype(np.float64)


def main(name: str) -> dict[str, Any]:
    config, shape = CASES[name]
    loader = KernelLoader(0)
    [artifact] = build([config])
    plan = artifact.plan(shape)
    launch = loader.prepare(artifact, plan)
    memory, driver = Memory(loader, shape), loader.driver
    workspace = 0
    if launch.workspace is not None:
        workspace = driver.allocate(launch.workspace.bytes)
        driver.fill(workspace, launch.workspace.bytes)
    c = driver.allocate(shape.m * shape.n * BF16.itemsize)
    config_words = bytes(launch.kept[0])[8 * 4 : 8 * HEADER]
    found: dict[str, Any] = {"wrong": [], "attributes": LaunchConfig.from_buffer_copy(config_words).count}

    def run(a: int, b: int, residual: int) -> int:
        driver.fill(c, shape.m * shape.n * BF16.itemsize, 0xFF)
        code = launcher()(PACK(launch.table, 0, c, a, b, 0, residual, 0, 0, workspace, ALPHA, BETA, 1.0))
        driver.synchronize()
        return int(code)

    for _ in range(3):  # each time other addresses, and the workspace as the last launch left it
        (a, left), (b, right), (residual, added) = (
            memory.draw(*size) for size in ((shape.m, shape.k), (shape.n, shape.k), (shape.m, shape.n))
        )
        expected = left @ right.T
        if name == "residual":
            expected = ALPHA * expected + BETA * added
        assert run(a, b, residual) == 0
        got = driver.download(c, np.empty((shape.m, shape.n), np.uint16)).view(BF16)
        found["wrong"].append(int((got != expected.astype(BF16)).sum()))
    if workspace:
        counters = driver.download(workspace, np.empty(1, np.uint32))
        found["counters"] = counters.tolist()
    found["misaligned"] = run(a + 2, b, residual) - MISALIGNED
    found["misaligned residual"] = run(a, b, residual + 2) - MISALIGNED
    values = PACK(launch.table, 0, c, a, b, 0, residual, 0, 0, workspace, ALPHA, BETA, 1.0)
    found["without context"] = _in_a_thread(lambda: _without_context(driver, lambda: int(launcher()(values))))
    driver.synchronize()
    found["prepared in a thread"] = _in_a_thread(lambda: loader.prepare(*_other(name)).label)
    return found


def _without_context(driver: Any, work: Any) -> list[int | None]:
    """What the work returns in a thread without a context, and the context afterwards."""
    now = ctypes.c_void_p(1)
    code = work()
    driver.call("cuCtxGetCurrent", ctypes.byref(now))
    return [code, now.value]


def _other(name: str) -> tuple[Any, Any]:
    """Another kernel for the same GPU."""
    config, shape = CASES["no overlap" if name == "dynamic" else name]
    [artifact] = build([config])
    return artifact, artifact.plan(shape)


def _in_a_thread(work: Any) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0] if found else "nothing"


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
