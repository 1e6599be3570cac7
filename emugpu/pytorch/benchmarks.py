"""Benchmarks of Triton and TorchInductor on the emulated GPU: they run a function once.

Nothing is measured here, so all times are the same, and more runs would say nothing more. The autotuners measure by the
same functions. Triton's tries configurations until one of them runs, and takes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

NOT_MEASURED = 1e30
"""What the autotuners get as milliseconds: finite, because they drop a kernel whose time is infinite."""
INFINITY = float("inf")


class _OfThread(threading.local):
    completed = 0
    """How many functions have run to their end."""


_here = _OfThread()


def install(testing: Any) -> None:
    """Replaces the functions of the module ``triton.testing`` that measure another one."""
    testing.do_bench = testing.do_bench_cudagraph = _run_once


def install_in_autotuner(autotuner: Any) -> None:
    """Makes ``Autotuner`` of the module ``triton.runtime.autotuner`` take the first configuration that runs."""
    usual, usual_run = autotuner.Autotuner._bench, autotuner.Autotuner.run

    def until_one_runs(self: Any, *arguments: Any, config: Any, **named: Any) -> Any:
        # A call of the kernel has a dictionary of its arguments, a new one each time.
        if self.nargs is not None and getattr(self, "has_run_with", None) is self.nargs:
            return [INFINITY] * 3
        before = _here.completed
        times = usual(self, *arguments, config=config, **named)
        if _here.completed == before:
            return times
        self.has_run_with = self.nargs
        return [NOT_MEASURED] * 3

    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return usual_run(self, *arguments, **named)
        finally:
            self.has_run_with = None  # it would keep the tensors of the call

    autotuner.Autotuner._bench, autotuner.Autotuner.run = until_one_runs, run


def install_in_inductor(benchmarking: Any) -> None:
    """Replaces the methods that measure in the module ``torch._inductor.runtime.benchmarking``."""

    def benchmark_gpu(_: Any, fn: Callable[[], object], return_mode: str = "min", **__: Any) -> float | list[float]:
        _run_once(fn)
        return [NOT_MEASURED] if return_mode == "all" else NOT_MEASURED

    for kind in (benchmarking.TritonBenchmarker, benchmarking.InductorBenchmarker):
        kind.benchmark_gpu = kind.benchmark_gpu_with_cuda_graph = benchmark_gpu


def _run_once(
    fn: Callable[[], object], *_: Any, quantiles: Any = None, return_mode: str = "mean", **__: Any
) -> float | list[float]:
    """Returns infinity in the form in which Triton returns milliseconds."""
    from emugpu.pytorch import streams

    start, end = streams.Event(), streams.Event()
    start.record()
    fn()
    end.record()
    end.synchronize()
    _here.completed += 1
    time = start.elapsed_time(end)
    if quantiles is not None and len(quantiles) > 1:
        return [time] * len(quantiles)
    return [time] if quantiles is None and return_mode == "all" else time
