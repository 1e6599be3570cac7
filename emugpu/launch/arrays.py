"""Launches a kernel in a string on NumPy arrays, for scripts and tests that have neither a launch file nor CUDA."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
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
    if not isinstance(ptx, str):
        raise UsageProblem(f"ptx = {reprlib.repr(ptx)}: must be the text of the PTX")
    if not isinstance(schedules, int) or schedules < 1:
        raise UsageProblem(f"schedules = {schedules!r}: must be a number of schedules, 1 or more")
    if not 0 <= tolerance <= MOST_TOLERANCE:
        raise UsageProblem(f"tolerance = {tolerance}: must be a number from 0 to {MOST_TOLERANCE:g}; 0: equal")
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
    launch = Launch(kernel, _sizes(grid), _optional(cluster), _optional(block), dynamic_shared, tuple(given))
    what = Launchable(
        Path("kernel.ptx"), buffers, {}, (launch,), tuple(expectations), text_given=ptx, label=kernel or "the kernel"
    )  # fmt: skip
    emulation = EmulationOptions(seed=1, timeout=timeout, strict=False)
    [checked] = check([what], CheckOptions(schedules, emulation))
    verdict = judge(what, checked)
    if not checked.failure:
        for name, content in run(what, emulation).contents.items():
            array = arguments[int(name.removeprefix("argument_"))]
            if array.flags.writeable:
                np.copyto(array, content)
            elif array.tobytes() != content.tobytes():
                raise UsageProblem(f"{name}: the kernel writes to it, and the array is read-only; give a copy")
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


def _sizes(given: Sizes) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


def _optional(given: Sizes | None) -> tuple[int, ...] | None:
    return None if given is None else _sizes(given)
