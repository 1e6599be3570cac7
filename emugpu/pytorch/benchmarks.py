"""Benchmarks of Triton and TorchInductor on the emulated GPU: they run a function once.

Nothing is measured here, so all times are the same, and more runs would say nothing more. The autotuners measure by the
same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOT_MEASURED = 1e30
"""What TorchInductor gets as milliseconds."""


def install(testing: Any) -> None:
    """Replaces the functions of the module ``triton.testing`` that measure another one."""
    testing.do_bench = testing.do_bench_cudagraph = _run_once


def install_in_inductor(benchmarking: Any) -> None:
    """Replaces the methods that measure in the module ``torch._inductor.runtime.benchmarking``.

    They return a time that is finite, because TorchInductor drops a kernel whose time is infinite.
    """

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
    time = start.elapsed_time(end)
    if quantiles is not None and len(quantiles) > 1:
        return [time] * len(quantiles)
    return [time] if quantiles is None and return_mode == "all" else time
