"""The host's time for a call in eager mode: of PyTorch's function for the kernel, beside PyTorch's own.

If the host takes longer to queue a kernel than the GPU to run it, the GPU waits.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from harness.compile import few_rows
from harness.compile.config import make_config
from harness.compile.own_kernel import CHECKOUT
from harness.problem import ELEMENT_TYPES, FP8
from harness.pytorch import matmul, scaled_matmul
from harness.pytorch.checks import NOT_OPTIONS
from harness.run.gpu_timing import Launch
from harness.run.operands import Operands

WARM, CALLS, LOOPS = 10, 100, 9


def function_call(given: Operands) -> Launch | None:
    """Returns a call of the PyTorch function that computes this problem by this kernel into C, or None if there is
    none.
    """
    config, tensors, numbers = given.config, given.tensors, given.numbers
    if config.grouped or config.sources != CHECKOUT:
        return None
    options = _options(given)
    c = given.c[:, : given.shape.n // (2 if config.epilogue == "swiglu" else 1)]  # without the gaps between its rows
    if config.dtype == FP8:
        asked = {"dtype": FP8, "scales": config.scales, **options}
        if few_rows.suits(given.shape, config.arch, asked) != (config.kernel == few_rows.NAME):
            return None  # the function takes another kernel
        import torch

        a, b = (each.view(torch.float8_e4m3fn) for each in (given.a, given.b))
        of_a, of_b = (tensors[f"{name} scales"] if config.scales == "block" else None for name in "AB")
        return lambda: scaled_matmul(a, b, of_a, of_b, alpha=numbers["alpha"], out=c, **options)
    if config.dtype not in ELEMENT_TYPES:
        return None
    a, b = given.a, given.b
    words = [word for word in config.epilogue.split("-") if word not in ("none", "bias", "residual")]
    others: dict[str, Any] = {name: tensors[name] for name in ("bias", "residual") if name in tensors}
    if "residual" in others:
        others |= {"alpha": numbers["alpha"], "beta": numbers["beta"]}
    others |= {"kernel": config.kernel, "activation": words[0] if words else None, "tuned": False, **options}
    return lambda: matmul(a, b, out=c, **others)


def _options(given: Operands) -> dict[str, Any]:
    """Returns the options that a caller names for this configuration: those that are not the kernel's own choice for
    the problem. The function finds the rest in its tensors.
    """
    config, shape = given.config, given.shape
    found = {name: getattr(config, name) for name in NOT_OPTIONS}
    chosen = make_config(config.kernel, shape=shape, **found)
    return {name: value for name, value in config.options().items() if value != getattr(chosen, name)}


def microseconds(calls: dict[str, Callable[[], Any]], report: Callable[[], None]) -> dict[str, float]:
    """Returns the median time of a call of each, in loops that take turns. The wait for the GPU does not count. Calls
    ``report`` after each loop.
    """
    import torch

    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(LOOPS):
        for name, call in calls.items():
            for _ in range(WARM):
                call()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            found[name].append((time.perf_counter() - start) / CALLS * 1e6)
            torch.cuda.synchronize()
            report()
    return {name: round(statistics.median(times), 2) for name, times in found.items()}
