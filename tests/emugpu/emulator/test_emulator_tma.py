"""Swizzle modes, tensor maps and the TMA unit against per-element formulas."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from emulator_reference import SPAN_BYTES, swizzled
from hypothesis import given, settings
from hypothesis import strategies as st

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.global_memory import GlobalMemory
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.memory.swizzle import Swizzle
from emugpu.emulator.memory.tensor_map import ELEMENT_TYPES, TensorMap, TensorMapElement
from emugpu.emulator.units import tma

NAMES = list(SPAN_BYTES)


class TestSwizzle:
    @pytest.mark.parametrize("name", NAMES)
    def test_against_the_formula_and_bijective(self, name):
        mode = Swizzle.from_name(name)
        addresses = np.arange(4096)
        moved = mode.apply(addresses)
        assert moved.tolist() == [swizzled(a, name) for a in range(4096)]
        assert sorted(moved.tolist()) == addresses.tolist()
        assert (mode.apply(moved) == addresses).all()
        assert mode.apply(0x1234) == swizzled(0x1234, name)

    @pytest.mark.parametrize(
        ("name", "rows"),
        [("32B", [0, 2, 4, 6, 1, 3, 5, 7]), ("64B", [0, 4, 1, 5, 2, 6, 3, 7]), ("128B", [0, 1, 2, 3, 4, 5, 6, 7])],
    )
    def test_where_the_first_chunk_of_each_row_goes(self, name, rows):
        mode = Swizzle.from_name(name)
        assert [mode.apply(row * mode.span_bytes) // 16 % 8 for row in range(8)] == rows

    def test_unknown_name(self):
        with pytest.raises(ValueError, match=r"'96B'.*none, 32B, 64B, 128B"):
            Swizzle.from_name("96B")


def tensor(element: TensorMapElement, dims: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random bits [.., dim 1, dim 0], no two neighbours alike."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (*reversed(dims), element.bytes), dtype=np.uint8)


def strides_of(element: TensorMapElement, dims: tuple[int, ...], gap: int = 0) -> tuple[int, ...]:
    """Strides of dims 1.. rounded up to 16 bytes, with `gap` unused bytes behind every row."""
    strides, pitch = [], dims[0] * element.bytes
    for dim in dims[1:]:
        pitch = -(-pitch // 16) * 16 + gap
        strides.append(pitch)
        pitch *= dim
    return tuple(strides)


def place(
    memory: GlobalMemory, element: TensorMapElement, data: np.ndarray, gap: int = 0
) -> tuple[int, tuple[int, ...]]:
    """Put a tensor into global memory element by element; bytes between the rows stay unwritten."""
    dims = tuple(reversed(data.shape[:-1]))
    strides = strides_of(element, dims, gap)
    pitches = (element.bytes, *strides)
    address = memory.alloc(sum((d - 1) * p for d, p in zip(dims, pitches, strict=True)) + element.bytes, "tensor")
    rows = data.reshape(-1, dims[0] * element.bytes)
    for number, index in enumerate(np.ndindex(*data.shape[:-2])):
        offset = sum(i * p for i, p in zip(reversed(index), strides, strict=True))
        memory.write(address + offset, rows[number])
    return address, strides


def expected_box(tmap: TensorMap, data: np.ndarray, coords: tuple[int, ...]) -> tuple[bytes, int]:
    """The dense box and the bytes inside the tensor, one element at a time."""
    steps = (1, *tmap.element_strides[1:])
    extents = [-(-b // s) for b, s in zip(tmap.box, steps, strict=True)]
    size = tmap.element.bytes
    outside = bytes(size)
    if tmap.fill_nan:
        outside = tmap.element.nan_bits.to_bytes(size, "little")
    dense, inside = b"", 0
    for index in itertools.product(*(range(e) for e in reversed(extents))):
        at = [c + i * s for c, i, s in zip(coords, reversed(index), steps, strict=True)]
        if all(0 <= a < d for a, d in zip(at, tmap.dims, strict=True)):
            dense += data[tuple(reversed(at))].tobytes()
            inside += size
        else:
            dense += outside
    return dense, inside


BOXES = {1: (16,), 2: (16, 5), 3: (16, 3, 4), 4: (16, 2, 3, 2), 5: (16, 2, 2, 3, 2)}
DIMS = {1: (40,), 2: (24, 9), 3: (20, 5, 7), 4: (20, 3, 4, 3), 5: (20, 3, 3, 4, 3)}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_load_matches_the_per_element_formula(data):
    rank = data.draw(st.integers(1, 5))
    element = ELEMENT_TYPES[data.draw(st.sampled_from(["u8", "bf16", "f32", "f64"]))]
    dims = tuple(data.draw(st.integers(1, d)) for d in DIMS[rank])
    steps = (1, *(data.draw(st.integers(1, 3)) for _ in range(rank - 1)))
    values = tensor(element, dims, data.draw(st.integers(0, 99)))
    memory = GlobalMemory()
    address, strides = place(memory, element, values, gap=data.draw(st.sampled_from([0, 16, 48])))
    fill_nan = element.nan_bits is not None and data.draw(st.booleans())
    tmap = TensorMap(address, element, dims, strides, BOXES[rank], steps, fill_nan=fill_nan)
    grid = 16 // element.bytes
    first = grid * data.draw(st.integers(-(BOXES[rank][0] // grid) - 1, dims[0] // grid + 1))
    others = zip(BOXES[rank][1:], dims[1:], strict=True)
    coords = (first, *(data.draw(st.integers(-b - 2, d + 2)) for b, d in others))
    dense, nbytes = tma.load_box(memory, tmap, coords)
    assert dense.size == tmap.box_bytes
    assert (dense.tobytes(), nbytes) == expected_box(tmap, values, coords)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_store_writes_the_inside_and_nothing_else(data):
    rank = data.draw(st.integers(1, 5))
    element = ELEMENT_TYPES[data.draw(st.sampled_from(["u8", "bf16", "f32"]))]
    dims = tuple(data.draw(st.integers(1, d)) for d in DIMS[rank])
    old = tensor(element, dims, 1)
    memory = GlobalMemory()
    address, strides = place(memory, element, old, gap=16)
    tmap = TensorMap(address, element, dims, strides, BOXES[rank])
    grid = 16 // element.bytes
    first = grid * data.draw(st.integers(0, dims[0] // grid + 1))
    coords = (first, *(data.draw(st.integers(0, d + 1)) for d in dims[1:]))
    dense = np.random.default_rng(2).integers(0, 256, tmap.box_bytes, dtype=np.uint8)
    written = tma.store_box(memory, tmap, coords, dense)

    new, count = old.copy(), 0
    elements = dense.reshape(*reversed(tmap.box), element.bytes)
    for index in itertools.product(*(range(b) for b in reversed(tmap.box))):
        at = tuple(c + i for c, i in zip(reversed(coords), index, strict=True))
        if all(a < d for a, d in zip(at, reversed(dims), strict=True)):
            new[at] = elements[index]
            count += element.bytes
    assert written == count
    places = tma.box_addresses(tmap, coords)
    inside = places != tma.NOWHERE
    assert [int(memory.read(at, 1)[0]) for at in places[inside].tolist()] == dense[inside].tolist()
    assert np.count_nonzero(inside) == count
    whole = TensorMap(address, element, dims, strides, (16 // element.bytes,) + (1,) * (rank - 1))
    for row in np.ndindex(*new.shape[:-2]):
        got = b""
        for start in range(0, dims[0], whole.box[0]):
            got += tma.load_box(memory, whole, (start, *reversed(row)))[0].tobytes()
        assert got[: dims[0] * element.bytes] == new[row].tobytes()
    for gap in range(1, dims[1] if rank > 1 else 0):
        with pytest.raises(Fault, match="never written"):
            memory.read(address + gap * strides[0] - 1, 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("element", ["u8", "bf16", "f32", "f64"])
@pytest.mark.parametrize("offset", [1024, 1024 + 128, 4096 + 384])
def test_box_in_shared_memory_is_swizzled_by_address(name, element, offset):
    kind = ELEMENT_TYPES[element]
    span = 128 if name == "none" else SPAN_BYTES[name]
    tmap = TensorMap.tiled(256, kind, (64, 1024), (32, span // kind.bytes), name)
    dense = np.random.default_rng(3).integers(0, 256, tmap.box_bytes, dtype=np.uint8)
    shared = SharedMemory(16384)
    tma.write_boxes([shared], tmap, offset, dense)
    for byte in range(0, dense.size, 7):
        assert shared.load_int(swizzled(offset + byte, name), 1) == dense[byte]
    assert shared.valid.sum() == dense.size
    assert (tma.read_box(shared, tmap, offset) == dense).all()


@pytest.mark.parametrize(("name", "inner"), [("128B", 16), ("128B", 48), ("128B", 96), ("64B", 32), ("32B", 16)])
def test_rows_of_a_box_narrower_than_the_span_lie_a_span_apart(name, inner):
    """As seen on an H200; the bytes that complete on the barrier are those of the box alone."""
    tmap = TensorMap.tiled(256, "bf16", (64, 64), (5, inner // 2), name)
    assert (tmap.box_bytes, tmap.shared_bytes) == (5 * inner, 5 * SPAN_BYTES[name])
    dense = np.random.default_rng(4).integers(0, 256, 5 * inner, dtype=np.uint8)
    shared = SharedMemory(4096)
    tma.write_boxes([shared], tmap, 2048 + 128, dense)
    for row, byte in itertools.product(range(5), range(inner)):
        address = swizzled(2048 + 128 + row * SPAN_BYTES[name] + byte, name)
        assert shared.load_int(address, 1) == dense[row * inner + byte]
    assert shared.valid.sum() == dense.size
    assert (tma.read_box(shared, tmap, 2048 + 128) == dense).all()


@pytest.mark.parametrize(
    ("name", "bits"), [("bf16", 0x7FF7), ("f16", 0x7FF7), ("f32", 0x7FF77FF7), ("tf32", 0x7FF77FF7)]
)
def test_the_nan_put_out_of_bounds_is_the_one_an_h200_writes(name, bits):
    memory = GlobalMemory()
    element = ELEMENT_TYPES[name]
    address = memory.upload(np.zeros((4, 32), element.dtype))
    tmap = TensorMap.tiled(address, name, (4, 32), (2, 8), fill_nan=True)
    dense, nbytes = tma.load_box(memory, tmap, (0, 3))
    assert nbytes == 8 * element.bytes
    words = dense.view(f"u{element.bytes}").reshape(2, 8)
    assert (words[0] == 0).all() and (words[1] == bits).all()


def test_a_tf32_map_rounds_what_it_loads():
    memory = GlobalMemory()
    values = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, -0.1, 7.0], np.float32)
    tmap = TensorMap.tiled(memory.upload(values), "tf32", (4,), (4,))
    dense, _ = tma.load_box(memory, tmap, (0,))
    assert dense.view(np.float32).tolist() == [1.0, 1 + 2.0**-9, -0.0999755859375, 7.0]


def test_loading_does_not_alias_global_memory():
    memory = GlobalMemory()
    tmap = TensorMap.tiled(memory.upload(np.arange(64, dtype=np.float32)), "f32", (64,), (64,))
    dense, _ = tma.load_box(memory, tmap, (0,))
    dense[:] = 0
    assert memory.download(tmap.address, np.float32, 64)[5] == 5


def test_only_what_a_store_wrote_can_be_read():
    memory = GlobalMemory()
    address = memory.alloc(40 * 32 * 4, "C")
    tmap = TensorMap.tiled(address, "f32", (40, 32), (16, 32))
    for row in (16, 32):
        box = np.full((16, 32), row, np.float32)
        tma.store_box(memory, tmap, (0, row), box.reshape(-1).view(np.uint8))
    rows = memory.download(address + 16 * 128, np.float32, (24, 32))
    assert (rows[:16] == 16).all() and (rows[16:] == 32).all()
    with pytest.raises(Fault, match="never written"):
        memory.download(address + 15 * 128, np.float32, 32)


class TestTmaFaults:
    @pytest.fixture
    def memory(self):
        return GlobalMemory()

    def test_unwritten_global_bytes(self, memory):
        address = memory.alloc(64 * 32, "A")
        memory.write(address, np.zeros(5 * 64 + 6, np.uint8))
        tmap = TensorMap.tiled(address, "bf16", (32, 32), (8, 32))
        with pytest.raises(Fault, match=r"byte 326 of 'A'.*never written.*element \(3, 5\) of the box"):
            tma.load_box(memory, tmap, (0, 0))

    def test_a_map_larger_than_its_allocation(self, memory):
        address = memory.upload(np.zeros((32, 32), np.float32), "A")
        tmap = TensorMap.tiled(address, "f32", (64, 32), (16, 32))
        tma.load_box(memory, tmap, (0, 16))
        with pytest.raises(Fault, match="outside every allocation"):
            tma.load_box(memory, tmap, (0, 17))

    def test_negative_store_coordinate(self, memory):
        tmap = TensorMap.tiled(memory.alloc(4096), "f32", (32, 32), (16, 32))
        with pytest.raises(Fault, match=r"\(0, -1\).*negative"):
            tma.store_box(memory, tmap, (0, -1), np.zeros(tmap.box_bytes, np.uint8))

    @pytest.mark.parametrize("coordinate", [-1, 2, 6])
    def test_start_off_the_16_byte_grid(self, memory, coordinate):
        tmap = TensorMap.tiled(memory.upload(np.zeros((32, 32), np.float32)), "f32", (32, 32), (16, 32))
        message = f"inner coordinate {coordinate} of f32: byte {4 * coordinate} .*multiple of 16"
        with pytest.raises(Fault, match=message):
            tma.load_box(memory, tmap, (coordinate, 0))

    def test_wrong_number_of_coordinates(self, memory):
        tmap = TensorMap.tiled(memory.alloc(4096), "f32", (32, 32), (16, 32))
        with pytest.raises(Fault, match="3 coordinates to a tensor map of rank 2"):
            tma.load_box(memory, tmap, (0, 0, 0))

    @pytest.mark.parametrize(
        ("offset", "message"), [(1024 + 64, "128-byte aligned"), (896, "reserves"), (3072, "beyond")]
    )
    def test_bad_shared_address(self, offset, message):
        tmap = TensorMap.tiled(256, "f32", (32, 32), (16, 32), "128B")
        for access in (
            lambda shared: tma.write_boxes([shared], tmap, offset, np.zeros(tmap.box_bytes, np.uint8)),
            lambda shared: tma.read_box(shared, tmap, offset),
        ):
            with pytest.raises(Fault, match=message):
                access(SharedMemory(4096))

    def test_unwritten_shared_bytes(self):
        tmap = TensorMap.tiled(256, "f32", (32, 32), (16, 32), "128B")
        shared = SharedMemory(4096)
        tma.write_boxes([shared], tmap, 2048, np.zeros(tmap.box_bytes, np.uint8))
        shared.poison(3000, 1)
        with pytest.raises(Fault, match=r"0xbb8 is read but was never written"):
            tma.read_box(shared, tmap, 2048)


def make(**changes) -> TensorMap:
    arguments = {
        "address": 4096,
        "element": ELEMENT_TYPES["bf16"],
        "dims": (64, 32),
        "strides": (128,),
        "box": (64, 16),
        "swizzle": Swizzle.B128,
    }
    return TensorMap(**(arguments | changes))


class TestTensorMap:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"dims": (), "strides": (), "box": ()}, r"rank = 0: must be 1\.\.5"),
            ({"dims": (8,) * 6, "strides": (16,) * 5, "box": (8,) * 6}, r"rank = 6: must be 1\.\.5"),
            ({"strides": (128, 128)}, r"strides = \(128, 128\): rank 2 needs 1"),
            ({"box": (64,)}, r"box = \(64,\): must have 2 entries"),
            ({"element_strides": (1,)}, r"element_strides = \(1,\): must have 2"),
            ({"address": 0}, "address = 0x0: must not be null"),
            ({"address": 4104}, "address = 0x1008: must be a multiple of 16"),
            ({"dims": (64, 0)}, r"dims\[1\] = 0: must be 1\.\.2\^32"),
            ({"dims": (2**32 + 1, 1)}, r"dims\[0\] = 4294967297"),
            ({"box": (64, 257)}, r"box\[1\] = 257: must be 1\.\.256"),
            ({"box": (64, 0)}, r"box\[1\] = 0"),
            ({"element_strides": (1, 9)}, r"element_strides\[1\] = 9: must be 1\.\.8"),
            ({"strides": (120,)}, r"strides\[0\] = 120: must be a multiple of 16"),
            ({"strides": (2**40,)}, r"strides\[0\] = 1099511627776: must be below 2\^40"),
            ({"box": (4, 16)}, r"box\[0\] = 4 x 2 bytes = 8 bytes: must be a multiple of 16"),
            ({"box": (72, 16)}, r"box\[0\] = 72 x 2 bytes = 144 bytes: must fit the 128-byte span"),
            ({"swizzle": Swizzle.B64}, r"must fit the 64-byte span of swizzle 64B"),
            (
                {"dims": (64, 32, 9), "strides": (128, 4096), "box": (64, 256, 8)},
                r"box = \(64, 256, 8\): is 262144 bytes, at most 232448",
            ),
            ({"element": ELEMENT_TYPES["u16"], "fill_nan": True}, "fill_nan = True: u16 is no float type"),
        ],
    )
    def test_refused(self, changes, message):
        with pytest.raises(ValueError, match=message):
            make(**changes)

    def test_the_limits_themselves_are_accepted(self):
        make(dims=(2**32, 2**32), strides=(2**40 - 16,), box=(64, 256), element_strides=(8, 8))
        make(box=(256, 256), swizzle=Swizzle.NONE)

    def test_sizes_after_element_strides(self):
        tmap = make(box=(64, 15), element_strides=(2, 4))
        assert tmap.box_shape == (64, 4)
        assert tmap.box_bytes == 64 * 4 * 2

    def test_tiled_takes_numpy_order(self):
        tmap = TensorMap.tiled(4096, "bf16", (3, 40, 64), (1, 16, 32), "64B")
        assert (tmap.dims, tmap.strides, tmap.box) == ((64, 40, 3), (128, 5120), (32, 16, 1))
        assert tmap.element.dtype == ml_dtypes.bfloat16
        assert tmap.span_bytes == 3 * 40 * 64 * 2

    def test_unknown_element_type(self):
        with pytest.raises(ValueError, match=r"'bf17': must be one of u8"):
            TensorMapElement.from_name("bf17")
