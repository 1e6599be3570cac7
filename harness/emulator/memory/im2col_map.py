"""Tensor maps in im2col mode: what cuTensorMapEncodeIm2col takes (CUDA Driver API; PTX ISA 5.5.4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from harness.emulator.memory.tensor_map import TensorMap

MAX_PIXELS = 256
"""A column may have 1024 pixels; more than 256 are not implemented."""


@dataclass(frozen=True)
class Im2colMap(TensorMap):
    """A map of rank 3 to 5, dimensions (channels, width, [height, [depth,]] images); box: (channels, 1, 1, ..).

    Attributes:
        lower, upper: corners of the box that pixels are taken from, width first: `lower` from the start of each spatial
            dimension, `upper` from its end.
        pixels: of one column, which is what an instruction fetches: 1..256.
        element_strides: the step from pixel to pixel in each spatial dimension.
    """

    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    pixels: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        spatial = self.rank - 2
        if not 3 <= self.rank <= 5 or len(self.lower) != spatial or len(self.upper) != spatial:
            raise ValueError(
                f"im2col map: rank {self.rank} with corners {self.lower}, {self.upper}: rank 3..5, two fewer"
            )
        if any(extent != 1 for extent in self.box[1:]):
            raise ValueError(f"im2col map: box = {self.box}: all but the channels must be 1")
        if not 1 <= self.pixels <= MAX_PIXELS:
            raise ValueError(f"im2col map: pixels = {self.pixels}: must be 1..{MAX_PIXELS}")

    @cached_property
    def placed(self) -> TensorMap:
        """How a column lies in shared memory: a row of channels for each pixel."""
        size = (self.box[0], self.pixels)
        pitch = -(-self.box[0] * self.element.bytes // 16) * 16
        return TensorMap(self.address, self.element, size, (pitch,), size, (), self.swizzle, self.fill_nan)

    def column(self, start: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Coordinates (width, .., image) of the pixels from a start on: width first, then the other dimensions."""
        *spatial, image = start[1:]
        for _ in range(self.pixels):
            yield (*spatial, image)
            for axis in range(len(spatial)):
                spatial[axis] += self.steps[axis + 1]
                if spatial[axis] <= self.dims[axis + 1] - 1 + self.upper[axis]:
                    break
                spatial[axis] = self.lower[axis]
            else:
                image += 1
