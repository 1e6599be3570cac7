"""Runs micro-benchmarks on the GPU of this process.

    python -m metrology.survey.micro.measured FOLDER [BENCHMARK]...

Each writes NAME.json, its answers, and NAME.npz, the clocks they come from, when it is done.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness.run.capability import arch_of_gpu
from harness.run.driver import CLUSTER_DIMENSION, Attribute, Driver, LaunchConfig, Parameter
from metrology.probes.ptx import for_target
from metrology.survey.micro.benchmark import (
    COLUMNS,
    FOREIGN_BYTES,
    Argument,
    Benchmark,
    Clocks,
    Counter,
    Launch,
    Tensor,
)
from metrology.survey.micro.catalogue import BENCHMARKS

WARM_UP_SECONDS = 0.3
OUT_BYTES = 1 << 21
L2_PROMOTION = 128
"""As the kernels have it."""


class Bench:
    """A GPU with the memory that all launches share."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        sizes = [
            argument.rows * (2 * COLUMNS + argument.over)
            for benchmark in BENCHMARKS.values()
            for launch in benchmark.launches
            for argument in launch.arguments
            if isinstance(argument, Tensor)
        ]
        largest = max(sizes, default=1)
        self.tensor = driver.allocate(largest)
        self.foreign = driver.allocate(FOREIGN_BYTES)
        self.out = driver.allocate(OUT_BYTES)
        self.counter = driver.allocate(8)
        driver.fill(self.tensor, largest)
        self.functions: dict[str, ctypes.c_void_p] = {}
        self.arch = arch_of_gpu(*(int(part) for part in driver.describe()["compute_capability"].split(".")))

    def warm_up(self) -> None:
        """An idle GPU has a low clock: something to do until it has risen."""
        end = time.perf_counter() + WARM_UP_SECONDS
        while time.perf_counter() < end:
            self.driver.fill(self.foreign, FOREIGN_BYTES)
            self.driver.synchronize()

    def run(self, benchmark: Benchmark, launch: Launch) -> tuple[Clocks, float | None]:
        """Its clocks, and where a row of launches is timed, the seconds of each."""
        start = self._launcher(benchmark, launch)
        self.driver.fill(self.out, 8 * launch.words * launch.grid)
        self.driver.fill(self.counter, 8)
        if launch.warm:
            start()
        else:
            self.driver.fill(self.foreign, FOREIGN_BYTES, 1)
        self.driver.synchronize()
        self.driver.fill(self.counter, 8)
        start()
        self.driver.synchronize()
        clocks = self.driver.download(self.out, np.empty((launch.grid, launch.words), np.uint64))
        if not launch.in_graph:
            return clocks, None
        graph = self.driver.graph([start] * launch.in_graph)
        seconds = sorted(graph() for _ in range(5))[2] / launch.in_graph
        if launch.last_in_graph:
            clocks = self.driver.download(self.out, clocks)
        return clocks, seconds

    def _launcher(self, benchmark: Benchmark, launch: Launch) -> Any:
        text = for_target(benchmark.texts[launch.ptx], self.arch)
        if text not in self.functions:
            self.functions[text] = self.driver.load(text.encode(), "bench")
        function = self.functions[text]
        self.driver.allow_shared(function, launch.shared)
        return self.driver.launcher(
            function,
            [self._parameter(argument) for argument in launch.arguments],
            (launch.grid, 1, 1),
            (launch.threads, 1, 1),
            launch.shared,
            (launch.cluster, 1, 1),
            launch.overlap,
        )

    def _parameter(self, argument: Argument) -> Parameter:
        if isinstance(argument, Tensor):
            dims = (COLUMNS, argument.rows)
            box = (argument.box_columns, argument.box_rows)
            strides = (2 * COLUMNS + argument.over,)
            return self.driver.tensor_map(self.tensor, "bf16", dims, strides, box, argument.swizzle, L2_PROMOTION)
        if isinstance(argument, int):
            return ctypes.c_uint32(argument)
        return ctypes.c_uint64(self.counter if isinstance(argument, Counter) else self.out)

    def clusters_at_once(self, shared: int, threads: int) -> dict[str, int]:
        """How many clusters of a size run at the same time, one CTA to an SM, as the driver says."""
        found = {}
        launch = next(launch for launch in BENCHMARKS["launches"].launches if launch.cluster == 1)
        text = for_target(BENCHMARKS["launches"].texts[launch.ptx], self.arch)
        function = self.driver.load(text.encode(), "bench")
        self.driver.allow_shared(function, shared)
        for size in (1, 2, 4, 8, 16):
            keep: list[Any] = []
            config = _config(size, shared, threads, keep)
            count = ctypes.c_int()
            self.driver.call("cuOccupancyMaxActiveClusters", ctypes.byref(count), function, ctypes.byref(config))
            found[str(size)] = count.value
        return found


def _config(size: int, shared: int, threads: int, keep: list[Any]) -> LaunchConfig:
    attributes = (Attribute * 1)()
    attributes[0].id = CLUSTER_DIMENSION
    attributes[0].value[0:3] = (size, 1, 1)
    keep.append(attributes)
    grid = (ctypes.c_uint * 3)(size * 16, 1, 1)
    return LaunchConfig(grid, (ctypes.c_uint * 3)(threads, 1, 1), shared, None, attributes, 1)


def measure(bench: Bench, benchmark: Benchmark) -> tuple[dict[str, Any], dict[str, Clocks]]:
    """What each launch of a benchmark answers, beside what distinguishes it; and the clocks it wrote, by its number."""
    entries, kept = [], {}
    for number, launch in enumerate(benchmark.launches):
        clocks, seconds = bench.run(benchmark, launch)
        entry = {**launch.about, **benchmark.read(launch, clocks)}
        if seconds is not None:
            entry["seconds_per_launch"] = seconds
        entries.append(entry)
        kept[str(number)] = clocks
    return {"question": benchmark.question, "launches": entries}, kept


def main(folder: str, *names: str) -> None:
    driver = Driver()
    bench = Bench(driver)
    gpu = driver.describe() | {"clusters_at_once": bench.clusters_at_once(200 * 1024, 384)}
    for name in names or BENCHMARKS:
        if bench.arch not in BENCHMARKS[name].archs:
            print(f"{name}: a GPU of {bench.arch} has no such instructions", flush=True)
            continue
        bench.warm_up()
        start = time.perf_counter()
        found, clocks = measure(bench, BENCHMARKS[name])
        seconds = round(time.perf_counter() - start, 2)
        Path(folder, f"{name}.json").write_text(json.dumps({"gpu": gpu, "seconds": seconds, **found}), encoding="utf-8")
        np.savez_compressed(Path(folder, f"{name}.npz"), **clocks)  # type: ignore[arg-type]
        print(f"{name}: {len(clocks)} launches, {seconds} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
