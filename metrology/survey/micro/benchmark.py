"""What a micro-benchmark consists of: PTX, the launches to make of it, and how to read the clocks they wrote.

Any device runs it: `Benchmark.launchable` is its PTX with memory and launches (`harness.launch.spec`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.emulator import Swizzle
from harness.launch import spec
from harness.launch.spec import DATA_TYPES
from metrology.probes.ptx import for_target

COLUMNS = 4096
"""Elements of 2 bytes in a row of the tensor that copies go through: 64 boxes of 64 columns lie side by side."""
FOREIGN_BYTES = 256 << 20
"""Written over between launches so that nothing of the tensor is left in L2."""
L2_PROMOTION = 128
"""As the kernels have it."""


@dataclass(frozen=True)
class Tensor:
    """A kernel argument: a tensor map over a bf16 tensor of this many rows. A row of a box is swizzled as a whole.

    over: bytes by which its rows are further apart than they are long, so that not all begin with a cache line.
    """

    rows: int
    box_rows: int
    box_columns: int = 64
    over: int = 0

    @property
    def row_bytes(self) -> int:
        """From a row to the next."""
        return 2 * COLUMNS + self.over

    @property
    def map(self) -> spec.Map:
        """The tensor map, which every tensor of this form shares."""
        return spec.Map(
            f"{self.rows} rows, {self.row_bytes} bytes apart, in boxes of {self.box_rows}x{self.box_columns}",
            TENSOR,
            box=(self.box_columns, self.box_rows),
            dims=(COLUMNS, self.rows),
            strides=(self.row_bytes,),
            swizzle=next(each for each in Swizzle if each.span_bytes == 2 * self.box_columns),
            l2_promotion=L2_PROMOTION,
        )


TENSOR = "tensor"
"""The buffer that all tensor maps are of."""
OUT = spec.Reference("out")
"""A kernel argument: the address of the clocks that the kernel writes."""
COUNTER = spec.Reference("counter")
"""A kernel argument: the address of 8 bytes that are 0 before each launch."""
Argument = Tensor | spec.Reference | int
"""A number is a u32."""


@dataclass(frozen=True)
class Case:
    """One launch. about: what distinguishes it, kept beside its answer. words: u64 that each CTA writes.

    warm: launched once before, so that code and tensor are in the caches; otherwise L2 is overwritten first.
    ptx: the name of its text. overlap: it may begin while the launch before it ends. in_graph: so many launches, one
    after the other in a CUDA graph, are timed, too; last_in_graph: the clocks are those of the last of them.
    """

    about: dict[str, Any]
    arguments: tuple[Argument, ...]
    words: int
    ptx: str
    threads: int = 32
    grid: int = 1
    cluster: int = 1
    shared: int = 0
    warm: bool = True
    overlap: bool = False
    in_graph: int = 0
    last_in_graph: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(argument for argument in self.arguments if isinstance(argument, Tensor))

    def launch(self) -> spec.Launch:
        return spec.Launch(
            None,
            (self.grid,),
            (self.cluster,),
            (self.threads,),
            self.shared,
            tuple((f"argument {n}", _argument(each)) for n, each in enumerate(self.arguments)),
            overlap=self.overlap,
        )


def _argument(argument: Argument) -> spec.Argument:
    if isinstance(argument, Tensor):
        return spec.Reference(argument.map.name)
    return spec.Scalar(argument) if isinstance(argument, int) else argument


Clocks = np.ndarray
"""u64 [CTAs, words]."""


@dataclass(frozen=True)
class Benchmark:
    """A question about times. read: turns one launch and its clocks into numbers, whose names end in their unit. archs:
    that have its instructions.
    """

    name: str
    question: str
    texts: dict[str, str] = field(repr=False)
    cases: tuple[Case, ...]
    read: Callable[[Case, Clocks], dict[str, Any]] = field(repr=False)
    archs: tuple[str, ...] = ("sm_90a", "sm_100a")

    def launchable(self, name: str, target: str | None = None) -> spec.Launchable:
        """One of the texts, for a GPU, with the launches of all its cases in order.

        The tensor has no values: who runs it fills it on the device, as it may have 2 GiB.
        """
        cases = [case for case in self.cases if case.ptx == name]
        tensors = [tensor for case in cases for tensor in case.tensors]
        words = max(case.grid * case.words for case in cases)
        buffers = {
            OUT.name: spec.Buffer(OUT.name, DATA_TYPES["u64"], (words,), spec.Fill("zeros")),
            COUNTER.name: spec.Buffer(COUNTER.name, DATA_TYPES["u64"], (1,), spec.Fill("zeros")),
        }
        if tensors:
            size = max(tensor.rows * tensor.row_bytes for tensor in tensors)
            buffers[TENSOR] = spec.Buffer(TENSOR, DATA_TYPES["u8"], (size,), spec.Fill("uninitialised"))
        return spec.Launchable(
            Path(f"{self.name}.ptx"),
            buffers,
            {tensor.map.name: tensor.map for tensor in tensors},
            tuple(case.launch() for case in cases),
            text_given=for_target(self.texts[name], target),
        )


def statistics(values: np.ndarray, unit: str) -> dict[str, float]:
    """Least, median, 90th percentile and largest."""
    points = np.percentile(values, [0, 50, 90, 100])
    names = ("least", "median", "most_of_90_percent", "largest")
    return {f"{name}_{unit}": round(float(point), 2) for name, point in zip(names, points, strict=True)}
