"""Launches a kernel in a string on NumPy arrays, for scripts and tests that have neither a launch file nor CUDA."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.check.verdict import Verdict
from emugpu.errors import UsageProblem
from emugpu.launch.check import CheckOptions, check, judge
from emugpu.launch.expectation import MOST_TOLERANCE, Holds
from emugpu.launch.launching import EmulationOptions, run
from emugpu.launch.spec import (
    DATA_TYPES,
    AddressArgument,
    Argument,
    Buffer,
    Fill,
    Launch,
    Launchable,
    Null,
    Scalar,
)

Sizes = int | tuple[int, ...]


def run_ptx(
    ptx: str,
    arguments: Sequence[Any],
    *,
    kernel: str | None = None,
    grid: Sizes = 1,
    block: Sizes | None = None,
    cluster: Sizes | None = None,
    dynamic_shared: int = 0,
    expect: Mapping[int, NDArray[Any]] | None = None,
    tolerance: float = 0.0,
    schedules: int = 4,
    timeout: float | None = None,
) -> Verdict:
    """Runs a kernel of a PTX text on the emulated GPU, with the checker on, and returns the verdict.

        out = np.zeros(64, np.float32)
        verdict = run_ptx(text, [a, b, out, 64], grid=2, block=32, expect={2: a + b})

    Arrays are copied to the GPU, and the parameter is their address. When this returns, the arrays hold the kernel's
    results under the fifo schedule; if the kernel did not run to its end, they are unchanged. A read-only array is an
    input.

    Args:
        arguments: one for each parameter: a contiguous array, a number, or None for a null pointer.
        kernel: its name, or a part of it; None: the only kernel.
        grid: CTAs. block: threads. cluster: CTAs. Each has up to three sizes, x first; None: as the PTX says.
        dynamic_shared: bytes.
        expect: the expected final values of arguments, by their position. Without it the verdict is incomplete.
        tolerance: the largest absolute and relative error of an element, at most 1; 0: equal.
        schedules: the number of schedules. timeout: the seconds without a cluster ending after which a run is ended.

    Raises:
        UsageProblem: the kernel cannot be launched with these arguments, or writes to a read-only array.
    """
    is_tolerance = isinstance(tolerance, Real) and 0 <= tolerance <= MOST_TOLERANCE
    is_timeout = timeout is None or (isinstance(timeout, Real) and 0 < timeout < inf)
    for name, value, is_right, rule in (
        ("ptx", ptx, isinstance(ptx, str), "the text of the PTX"),
        ("arguments", arguments, isinstance(arguments, Sequence), "a list with one for each parameter"),
        ("kernel", kernel, kernel is None or isinstance(kernel, str), "the name of a kernel, or a part of it"),
        ("dynamic_shared", dynamic_shared, isinstance(dynamic_shared, Integral), "a whole number of bytes"),
        ("expect", expect, expect is None or isinstance(expect, Mapping), "arrays by position, such as {2: a + b}"),
        ("tolerance", tolerance, is_tolerance, f"a number from 0 to {MOST_TOLERANCE:g}; 0: equal"),
        ("schedules", schedules, isinstance(schedules, int) and schedules >= 1, "a number of schedules, 1 or more"),
        ("timeout", timeout, is_timeout, "a finite number of seconds above 0"),
    ):
        if not is_right:
            raise UsageProblem(f"{name} = {reprlib.repr(value)}: must be {rule}")
    buffers: dict[str, Buffer] = {}
    given: list[tuple[str, Argument]] = []
    for place, value in enumerate(arguments):
        name = f"argument_{place}"
        given.append((str(place), _argument(name, value, buffers)))
    expectations = []
    for place, wanted in (expect or {}).items():
        buffer = buffers.get(f"argument_{place}")
        if buffer is None or np.shape(wanted) != buffer.shape:
            has = f"has shape {list(buffer.shape or ())}" if buffer else "is not an array"
            raise UsageProblem(f"expect[{place}] of shape {list(np.shape(wanted))}: argument {place} {has}")
        values = np.asarray(wanted)
        if values.dtype.kind not in "fiubV":
            raise UsageProblem(f"expect[{place}] holds {values.dtype}; give numbers")
        expectations.append(
            Holds(
                buffer.name,
                buffer.dtype,
                "the array given",
                values=values,
                exact=not tolerance,
                absolute=tolerance,
                relative=tolerance,
            )
        )
    cluster_sizes = None if cluster is None else _sizes("cluster", cluster)
    block_sizes = None if block is None else _sizes("block", block)
    launch = Launch(kernel, _sizes("grid", grid), cluster_sizes, block_sizes, dynamic_shared, tuple(given))
    what = Launchable(
        Path("kernel.ptx"), buffers, {}, (launch,), tuple(expectations), text_given=ptx, label=kernel or "the kernel"
    )  # fmt: skip
    emulation = EmulationOptions(seed=1, timeout=timeout, strict=False)
    [checked] = check([what], CheckOptions(schedules, emulation))
    verdict = judge(what, checked)
    if not checked.failure:
        contents = run(what, emulation).contents
        results = {name: arguments[int(name.removeprefix("argument_"))] for name in contents}
        for name, array in results.items():
            if not array.flags.writeable and array.tobytes() != contents[name].tobytes():
                raise UsageProblem(f"{name}: the kernel writes to it, and the array is read-only; give a copy")
        for name, array in results.items():
            if array.flags.writeable:
                np.copyto(array, contents[name])
    return verdict


def _argument(name: str, value: Any, buffers: dict[str, Buffer]) -> Argument:
    """Returns an argument of the launch; an array becomes a buffer."""
    if value is None:
        return Null()
    if isinstance(value, np.ndarray) and value.ndim:
        dtype = next((one for one in DATA_TYPES.values() if one.numpy == value.dtype and not one.packed), None)
        if dtype is None or not value.size or not value.flags.c_contiguous:
            raise UsageProblem(
                f"{name}: an array of {value.dtype} and shape {list(value.shape)}; it must be contiguous, of "
                "numbers, and not empty"
            )
        buffers[name] = Buffer(name, dtype, value.shape, Fill("array", array=value.copy()))
        return AddressArgument(name)
    if isinstance(value, np.generic):
        dtype = next((one for one in DATA_TYPES.values() if one.numpy == value.dtype and not one.packed), None)
        return Scalar(value.item(), dtype)
    if isinstance(value, bool | int | float):
        return Scalar(value)
    raise UsageProblem(
        f"{name} = {reprlib.repr(value)}: must be an array, a number or None; for a tensor map write a launch file"
    )


def _sizes(name: str, given: Sizes) -> tuple[int, ...]:
    sizes = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(size, Integral) for size in sizes):
        raise UsageProblem(f"{name} = {reprlib.repr(given)}: must be a whole number, or up to three, x first")
    return tuple(int(size) for size in sizes)
