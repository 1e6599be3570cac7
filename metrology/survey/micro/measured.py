"""Runs micro-benchmarks on the GPU of this process.

    python -m metrology.survey.micro.measured FOLDER [BENCHMARK]...

Each writes NAME.json, its answers, and NAME.npz, the clocks they come from, when it is done.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from harness.gpus import arch_of_gpu
from harness.run.cuda import LoadedLaunchable
from harness.run.driver import CLUSTER_DIMENSION, Attribute, Driver, LaunchConfig
from metrology.probes.ptx import for_target
from metrology.survey.micro.benchmark import COUNTER, FOREIGN_BYTES, OUT, TENSOR, Benchmark, Case, Clocks
from metrology.survey.micro.catalogue import BENCHMARKS

WARM_UP_SECONDS = 0.3


class Bench:
    """A GPU, and memory to write over what it has in L2."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.foreign = driver.allocate(FOREIGN_BYTES)
        self.arch = arch_of_gpu(*(int(part) for part in driver.describe()["compute_capability"].split(".")))

    def warm_up(self) -> None:
        """An idle GPU has a low clock: something to do until it has risen."""
        end = time.perf_counter() + WARM_UP_SECONDS
        while time.perf_counter() < end:
            self.driver.fill(self.foreign, FOREIGN_BYTES)
            self.driver.synchronize()

    def load(self, benchmark: Benchmark, text: str) -> LoadedLaunchable:
        """A text of a benchmark with all its launches; the tensor is zeros."""
        loaded = LoadedLaunchable(benchmark.launchable(text, self.arch), self.driver)
        if TENSOR in loaded.memory.buffers:
            tensor = loaded.memory.buffers[TENSOR]
            self.driver.fill(tensor.address, *tensor.shape)
        return loaded

    def run(self, case: Case, loaded: LoadedLaunchable, start: Callable[..., None]) -> tuple[Clocks, float | None]:
        """Its clocks, and where a row of launches is timed, the seconds of each."""
        out, counter = (loaded.memory.buffers[each.name].address for each in (OUT, COUNTER))
        self.driver.fill(out, 8 * case.words * case.grid)
        self.driver.fill(counter, 8)
        if case.warm:
            start()
        else:
            self.driver.fill(self.foreign, FOREIGN_BYTES, 1)
        self.driver.synchronize()
        self.driver.fill(counter, 8)
        start()
        self.driver.synchronize()
        clocks = self.driver.download(out, np.empty((case.grid, case.words), np.uint64))
        if not case.in_graph:
            return clocks, None
        graph = self.driver.graph([start] * case.in_graph)
        seconds = sorted(graph() for _ in range(5))[2] / case.in_graph
        if case.last_in_graph:
            clocks = self.driver.download(out, clocks)
        return clocks, seconds

    def clusters_at_once(self, shared: int, threads: int) -> dict[str, int]:
        """How many clusters of a size run at the same time, one CTA to an SM, as the driver says."""
        found = {}
        text = for_target(BENCHMARKS["launches"].texts["bare"], self.arch)
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
    with contextlib.ExitStack() as stack:
        texts = dict.fromkeys(case.ptx for case in benchmark.cases)
        loaded = {text: stack.enter_context(bench.load(benchmark, text)) for text in texts}
        launchers = {text: iter(each.launchers) for text, each in loaded.items()}
        for number, case in enumerate(benchmark.cases):
            clocks, seconds = bench.run(case, loaded[case.ptx], next(launchers[case.ptx]))
            entry = {**case.about, **benchmark.read(case, clocks)}
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
