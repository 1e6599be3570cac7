"""What a micro-benchmark consists of: PTX, the launches to make of it, and how to read the clocks they wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

COLUMNS = 4096
"""Elements of 2 bytes in a row of the tensor that copies go through: 64 boxes of 64 columns lie side by side."""
FOREIGN_BYTES = 256 << 20
"""Written over between launches so that nothing of the tensor is left in L2."""


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
    def swizzle(self) -> str:
        return f"{2 * self.box_columns}B"


@dataclass(frozen=True)
class Out:
    """A kernel argument: the address of the clocks that the kernel writes."""


@dataclass(frozen=True)
class Counter:
    """A kernel argument: the address of 8 bytes that are 0 before each launch."""


Argument = Tensor | Out | Counter | int
"""A number is a u32."""


@dataclass(frozen=True)
class Launch:
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
    launches: tuple[Launch, ...]
    read: Callable[[Launch, Clocks], dict[str, Any]] = field(repr=False)
    archs: tuple[str, ...] = ("sm_90a", "sm_100a")


def statistics(values: np.ndarray, unit: str) -> dict[str, float]:
    """Least, median, 90th percentile and largest."""
    points = np.percentile(values, [0, 50, 90, 100])
    names = ("least", "median", "most_of_90_percent", "largest")
    return {f"{name}_{unit}": round(float(point), 2) for name, point in zip(names, points, strict=True)}
