"""Benchmarks of Triton (`triton.testing`) on the emulated GPU: they run a function once, and say that it took forever.

Nothing is measured here, so more runs would add no more than time. The autotuner measures by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def install(testing: Any) -> None:
    """Replaces the functions of the module ``triton.testing`` that measure another one."""
    testing.do_bench = testing.do_bench_cudagraph = _run_once


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
