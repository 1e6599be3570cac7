"""Tensor maps as plain data: the arguments of cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col (CUDA Driver API).

The 128-byte hardware encoding is undocumented. PTX only passes its address, so the emulator keeps the arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, ClassVar, NamedTuple

import ml_dtypes
import numpy as np

from emugpu.emulator.memory.swizzle import Swizzle

MAX_RANK = 5
MAX_DIM = 1 << 32
MAX_STRIDE = 1 << 40
MAX_BOX_DIM = 256
MAX_ELEMENT_STRIDE = 8
ALIGNMENT = 16
MAX_BOX_BYTES = 227 * 1024
"""A box must fit into the largest shared memory of a CTA. The driver refuses larger ones."""


@dataclass(frozen=True)
class TensorMapElement:
    """An element type of a tensor map: its name, its size in bytes, and the NumPy type that holds its bits."""

    name: str
    bytes: int
    dtype: np.dtype
    nan_bits: int | None = None
    """Bits of the NaN that a NaN-filling map stores for out-of-bounds elements (seen on an H200); None for integers."""
    unit: int = 1
    """Elements that are copied together: several for types smaller than a byte. `bytes` is the size of this unit."""
    global_bytes: int = 0
    """Bytes of a unit in global memory, if fewer: shared memory then has padding after each unit."""

    @classmethod
    def from_name(cls, name: str) -> TensorMapElement:
        """Returns a type of `ELEMENT_TYPES` by name."""
        try:
            return ELEMENT_TYPES[name.lower()]
        except KeyError:
            raise ValueError(f"element type '{name}': must be one of {', '.join(ELEMENT_TYPES)}") from None


def _element_types() -> dict[str, TensorMapElement]:
    integers = [("u8", np.uint8), ("u16", np.uint16), ("u32", np.uint32), ("s32", np.int32)]
    integers += [("u64", np.uint64), ("s64", np.int64)]
    floats = [
        ("f16", np.float16, 0x7FF7),
        ("bf16", ml_dtypes.bfloat16, 0x7FF7),
        ("f32", np.float32, 0x7FF77FF7),
        ("tf32", np.float32, 0x7FF77FF7),
        ("f64", np.float64, 0x7FF77FF77FF77FF7),
    ]
    small = [("e4m3", ml_dtypes.float8_e4m3fn), ("e5m2", ml_dtypes.float8_e5m2), ("ue8m0", ml_dtypes.float8_e8m0fnu)]
    types = [TensorMapElement(name, np.dtype(t).itemsize, np.dtype(t)) for name, t in (*integers, *small)]
    types += [TensorMapElement(name, np.dtype(t).itemsize, np.dtype(t), nan) for name, t, nan in floats]
    # PTX ISA 5.5.1.1; in the driver API 16U4_ALIGN8B, 16U4_ALIGN16B and 16U6_ALIGN16B.
    types += [
        TensorMapElement("b4x16", 1, np.dtype(np.uint8), unit=2),
        TensorMapElement("b4x16_p64", 16, np.dtype("V16"), unit=16, global_bytes=8),
        TensorMapElement("b6x16_p32", 16, np.dtype("V16"), unit=16, global_bytes=12),
    ]
    return {t.name: t for t in types}


ELEMENT_TYPES = _element_types()


def _require(ok: bool, argument: str, value: object, rule: str) -> None:
    if not ok:
        raise ValueError(f"tensor map: {argument} = {value}: {rule}")


class ByteLayout(NamedTuple):
    """The bytes of a part of a tensor as an array [.., dim 1, bytes of dim 0].

    span: bytes from the first to the last.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    span: int
    nbytes: int


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map. Dimension 0 is the innermost (contiguous) one, as in the driver API.

    Attributes:
        address: device address of element (0, .., 0), 16-byte aligned.
        element: element type, or its name ("bf16").
        dims: extent of each of the 1..5 dimensions, in elements.
        strides: distance in bytes between neighbours along dimensions 1 and up (one entry fewer than `dims`).
        box: extent of the box that one TMA instruction moves, in elements, each 1..256.
        element_strides: step between the elements fetched along each dimension (all 1 if empty). The step of dimension
            0 is ignored, as the driver documents for maps without interleave.
        swizzle: how 16-byte chunks are permuted in shared memory, or its name ("none", "32B", "64B", "128B").
        fill_nan: out-of-bounds elements load as a quiet NaN instead of zero (float types only).
        coordinate_unit: the first coordinate is divided by this number of elements; see `in_units`.

    Raises:
        ValueError: names the argument, its value and the rule that it breaks.
    """

    address: int
    element: TensorMapElement
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    swizzle: Swizzle = Swizzle.NONE
    fill_nan: bool = False
    coordinate_unit: int = 1
    largest_box: ClassVar[int] = MAX_BOX_DIM

    def __post_init__(self) -> None:
        if isinstance(self.element, str):
            object.__setattr__(self, "element", TensorMapElement.from_name(self.element))
        if isinstance(self.swizzle, str):
            object.__setattr__(self, "swizzle", Swizzle.from_name(self.swizzle))
        for name in ("dims", "strides", "box"):
            object.__setattr__(self, name, tuple(int(v) for v in getattr(self, name)))
        steps = self.element_strides or (1,) * len(self.dims)
        object.__setattr__(self, "element_strides", tuple(int(v) for v in steps))
        self._validate()

    def _validate(self) -> None:
        rank = len(self.dims)
        _require(1 <= rank <= MAX_RANK, "rank", rank, f"must be 1..{MAX_RANK}")
        _require(len(self.strides) == rank - 1, "strides", self.strides, f"rank {rank} needs {rank - 1} of them")
        _require(len(self.box) == rank, "box", self.box, f"must have {rank} entries like dims")
        steps = self.element_strides
        _require(len(steps) == rank, "element_strides", steps, f"must have {rank} entries like dims")
        _require(self.address > 0, "address", f"{self.address:#x}", "must not be null")
        _require(self.address % ALIGNMENT == 0, "address", f"{self.address:#x}", f"must be a multiple of {ALIGNMENT}")
        for i in range(rank):
            _require(1 <= self.dims[i] <= MAX_DIM, f"dims[{i}]", self.dims[i], "must be 1..2^32")
            _require(
                1 <= self.box[i] <= self.largest_box,
                f"box[{i}]",
                self.box[i],
                f"must be 1..{self.largest_box} elements",
            )
            limit = MAX_ELEMENT_STRIDE
            _require(1 <= steps[i] <= limit, f"element_strides[{i}]", steps[i], f"must be 1..{limit}")
        for i, stride in enumerate(self.strides):
            name = f"strides[{i}]"
            _require(stride % ALIGNMENT == 0, name, stride, f"must be a multiple of {ALIGNMENT} bytes")
            _require(0 <= stride < MAX_STRIDE, name, stride, "must be below 2^40 bytes and not negative")
        if self.element.unit > 1:
            self._validate_units()
            return
        inner = self.box[0] * self.element.bytes
        what = f"{self.box[0]} x {self.element.bytes} bytes = {inner} bytes"
        _require(inner % ALIGNMENT == 0, "box[0]", what, f"must be a multiple of {ALIGNMENT} bytes")
        if self.swizzle is not Swizzle.NONE:
            span = self.swizzle.span_bytes
            _require(inner <= span, "box[0]", what, f"must fit the {span}-byte span of swizzle {span}B")
        limit = MAX_BOX_BYTES
        _require(self.dense_bytes <= limit, "box", self.box, f"is {self.dense_bytes} bytes, at most {limit} fit")
        if self.fill_nan:
            _require(self.element.nan_bits is not None, "fill_nan", True, f"{self.element.name} is no float type")

    def _validate_units(self) -> None:
        """Checks the additional rules of types smaller than a byte (cuTensorMapEncodeTiled), then the map of units."""
        unit, name = self.element.unit, self.element.name
        if self.element.global_bytes:
            _require(self.dims[0] % 128 == 0, "dims[0]", self.dims[0], f"must be a multiple of 128 for {name}")
            _require(self.box[0] == 128, "box[0]", self.box[0], f"must be 128 for {name}")
            _require(self.address % 32 == 0, "address", f"{self.address:#x}", f"must be a multiple of 32 for {name}")
            good = all(stride % 32 == 0 for stride in self.strides)
            _require(good, "strides", self.strides, f"must be multiples of 32 bytes for {name}")
            _require(self.swizzle in (Swizzle.NONE, Swizzle.B128), "swizzle", self.swizzle.name, "must be none or 128B")
        for what, size in (("dims[0]", self.dims[0]), ("box[0]", self.box[0])):
            _require(size % unit == 0, what, size, f"must be a multiple of {unit} for {name}")
        _require(not self.fill_nan, "fill_nan", True, f"{name} is no float type")
        assert self.in_units

    @cached_property
    def in_units(self) -> TensorMap:
        """The same map with dimension 0 counted in units that are copied together; for types of whole bytes, itself.

        Copies work with this map. Its `coordinate_unit` says by what the first coordinate is divided.
        """
        element = self.element
        if element.unit == 1:
            return self
        return replace(
            self,
            element=replace(element, unit=1),
            dims=(self.dims[0] // element.unit, *self.dims[1:]),
            box=(self.box[0] // element.unit, *self.box[1:]),
            coordinate_unit=element.unit,
        )

    @property
    def global_bytes(self) -> int:
        """Bytes of an element in global memory."""
        return self.element.global_bytes or self.element.bytes

    @classmethod
    def tiled(
        cls,
        address: int,
        element: TensorMapElement | str,
        shape: Sequence[int],
        box: Sequence[int],
        swizzle: Swizzle | str = Swizzle.NONE,
        fill_nan: bool = False,
    ) -> TensorMap:
        """Returns a map over a packed row-major array. `shape` and `box` have the outermost dimension first."""
        if isinstance(element, str):
            element = TensorMapElement.from_name(element)
        mode = Swizzle.from_name(swizzle) if isinstance(swizzle, str) else swizzle
        dims = tuple(reversed(shape))
        size = element.global_bytes or element.bytes
        strides = tuple(prod(dims[:i]) // element.unit * size for i in range(1, len(dims)))
        return cls(address, element, dims, strides, tuple(reversed(box)), swizzle=mode, fill_nan=fill_nan)

    @property
    def rank(self) -> int:
        """The number of dimensions, 1..5."""
        return len(self.dims)

    @cached_property
    def box_shape(self) -> tuple[int, ...]:
        """The elements of one box along each dimension (innermost first), after the element strides."""
        return tuple(-(-extent // step) for extent, step in zip(self.box, self.steps, strict=True))

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The element strides that take effect: dimension 0 always steps by 1."""
        return (1, *self.element_strides[1:])

    @cached_property
    def box_bytes(self) -> int:
        """Bytes of one box without holes and padding: the transaction count that its load completes."""
        return prod(self.box_shape) * self.global_bytes

    @cached_property
    def dense_bytes(self) -> int:
        """Bytes of one box in shared memory, without holes."""
        return prod(self.box_shape) * self.element.bytes

    @cached_property
    def last_whole(self) -> tuple[int, ...]:
        """The largest coordinates at which a box still lies inside the tensor."""
        extents = zip(self.dims, self.box_shape, self.steps, strict=True)
        return tuple(dim - 1 - (extent - 1) * step for dim, extent, step in extents)

    @cached_property
    def whole_box(self) -> ByteLayout:
        """The layout in global memory of a box that lies inside the tensor."""
        return self.byte_layout(self.box_shape)

    def byte_layout(self, counts: Sequence[int]) -> ByteLayout:
        """Returns the layout in global memory of so many elements along each dimension."""
        inner = counts[0] * self.global_bytes
        outer = tuple(step * pitch for step, pitch in zip(self.steps[1:], self.strides, strict=True))
        span = inner + sum((count - 1) * stride for count, stride in zip(counts[1:], outer, strict=True))
        return ByteLayout((*counts[:0:-1], inner), (*outer[::-1], 1), span, prod(counts[1:]) * inner)

    @cached_property
    def row_pitch(self) -> int:
        """Bytes from one inner row of the box to the next in shared memory: the swizzle span, if there is one.

        A row shorter than the span leaves the rest of the span untouched (seen on an H200).
        """
        inner = self.box[0] * self.element.bytes
        return inner if self.swizzle is Swizzle.NONE else self.swizzle.span_bytes

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory over which the box spreads, with holes."""
        return self.dense_bytes // (self.box[0] * self.element.bytes) * self.row_pitch

    @cached_property
    def places(self) -> dict[int, Any]:
        """A cache of the TMA unit: the places of boxes of this map, by their offset in shared memory."""
        return {}

    @cached_property
    def pitches(self) -> tuple[int, ...]:
        """Bytes between neighbours along every dimension, the innermost included."""
        return (self.global_bytes, *self.strides)

    def first_inside(self, coordinates: Sequence[int]) -> int:
        """Returns the address of the box's first byte inside the tensor. The box itself may start before the tensor."""
        return self.address + sum(max(0, at) * pitch for at, pitch in zip(coordinates, self.pitches, strict=True))

    @cached_property
    def span_bytes(self) -> int:
        """Bytes from the first byte of the tensor to just behind its last one."""
        return sum((d - 1) * p for d, p in zip(self.dims, self.pitches, strict=True)) + self.global_bytes


MAX_PIXELS = 1024
"""The most pixels of a column (CUDA Driver API, cuTensorMapEncodeIm2col)."""


class _Column(TensorMap):
    """The layout of a column in shared memory."""

    largest_box = MAX_PIXELS


@dataclass(frozen=True)
class Im2colMap(TensorMap):
    """A map of rank 3 to 5 with dimensions (channels, width, [height, [depth,]] images) and box (channels, 1, 1, ..).

    Attributes: lower, upper: corners of the box from which pixels are taken, width first: `lower` from the start of
        each spatial dimension, `upper` from its end. pixels: pixels of one column, which is what one instruction
        fetches: 1..1024. element_strides: the step from pixel to pixel in each spatial dimension.
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
        """The layout of a column in shared memory: a row of channels for each pixel."""
        size = (self.box[0], self.pixels)
        pitch = -(-self.box[0] * self.element.bytes // 16) * 16
        return _Column(self.address, self.element, size, (pitch,), size, (), self.swizzle, self.fill_nan)

    def column(self, start: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Yields the coordinates (width, .., image) of a column's pixels from `start` on, with the width fastest."""
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
