"""Tensor memory: allocation rules, and every access shape of tcgen05.ld and tcgen05.st."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from emulator_reference import register_place

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.tmem import TensorMemory, place

REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
LARGEST = {"32x32b": 128, "16x64b": 128, "16x128b": 64, "16x256b": 32, "16x32bx2": 128}


def address(lane: int, column: int) -> int:
    return lane << 16 | column


def numbered() -> TensorMemory:
    """Everything allocated and written: lane * 1000 + column."""
    tmem = TensorMemory()
    tmem.allocate(512)
    for warp in range(4):
        for column in range(0, 512, 128):
            lanes = 32 * warp + np.arange(32)
            values = lanes[None, :] * 1000 + (column + np.arange(128))[:, None]
            tmem.store(place("32x32b", 128, address(0, column), warp), values.astype(np.uint32))
    return tmem


EVERY_ACCESS = [(s, 2**i) for s, largest in LARGEST.items() for i in range(largest.bit_length())]


class TestShapes:
    @pytest.mark.parametrize(("shape", "num"), EVERY_ACCESS)
    @pytest.mark.parametrize(("lane", "column", "warp"), [(0, 0, 0), (16, 0, 3), (0, 37, 2)])
    def test_load_takes_each_register_from_its_place(self, shape, num, lane, column, warp):
        if shape == "32x32b":
            lane = 0
        split = 8 if shape == "16x32bx2" else 0
        columns = num * {"16x64b": 2, "16x128b": 4, "16x256b": 8}.get(shape, 1) + split
        column = min(column, 512 - columns)
        got = numbered().load(place(shape, num, address(lane, column), warp, half_split=split))
        assert got.shape == (num * REGISTERS[shape], 32)
        for register, thread in itertools.product(range(got.shape[0]), range(32)):
            at_lane, at_column = register_place(shape, thread, register)
            if thread >= 16:
                at_column += split
            expected = (32 * warp + lane + at_lane) * 1000 + column + at_column
            assert got[register, thread] == expected, (register, thread)

    @pytest.mark.parametrize(("shape", "num"), EVERY_ACCESS)
    def test_store_and_load_are_inverse_and_touch_each_cell_once(self, shape, num):
        tmem = TensorMemory()
        tmem.allocate(512)
        split = num if shape == "16x32bx2" else 0
        registers = np.random.default_rng(num).integers(0, 2**32, (num * REGISTERS[shape], 32), dtype=np.uint32)
        tmem.store(place(shape, num, 0, 1, half_split=split), registers)
        assert tmem.valid.sum() == registers.size
        assert not tmem.valid[:32].any() and not tmem.valid[64:].any()
        assert (tmem.load(place(shape, num, 0, 1, half_split=split)) == registers).all()

    def test_known_places(self):
        """Cells read off the figures of PTX ISA 9.7.16.2.3."""
        tmem = numbered()
        assert tmem.load(place("16x64b", 1, 0, 0))[0, :5].tolist() == [0, 8000, 1, 8001, 1000]
        assert tmem.load(place("16x128b", 1, 0, 0))[:, :5].tolist() == [
            [0, 1, 2, 3, 1000],
            [8000, 8001, 8002, 8003, 9000],
        ]
        assert tmem.load(place("16x256b", 1, 0, 0))[:, 0].tolist() == [0, 1, 8000, 8001]
        assert tmem.load(place("16x256b", 1, 0, 0))[:, 5].tolist() == [1002, 1003, 9002, 9003]

    @pytest.mark.parametrize("shape", list(REGISTERS))
    def test_pack_takes_the_low_halves_of_two_columns(self, shape):
        tmem = numbered()
        split = 8 if shape == "16x32bx2" else 0
        packed = tmem.load(place(shape, 2, 64, 1, pack16=True, half_split=split))
        for register, thread in itertools.product(range(packed.shape[0]), range(32)):
            lane, column = register_place(shape, thread, register)
            column = 64 + 2 * column + (split if thread >= 16 else 0)
            low, high = ((32 + lane) * 1000 + column + half for half in (0, 1))
            assert packed[register, thread] == (low & 0xFFFF) | (high & 0xFFFF) << 16

        fresh = TensorMemory()
        fresh.allocate(512)
        fresh.store(place(shape, 2, 64, 1, pack16=True, half_split=split), packed)
        assert fresh.valid.sum() == 2 * packed.size
        assert (fresh.data[fresh.valid] >> 16 == 0).all()
        assert (fresh.load(place(shape, 2, 64, 1, pack16=True, half_split=split)) == packed).all()

    @pytest.mark.parametrize("named", [0, 32, 96, 128, 224])
    def test_the_warp_decides_the_quadrant_whatever_lane_is_named(self, named):
        got = numbered().load(place("32x32b", 1, address(named, 5), 2))
        assert got[0].tolist() == [(64 + t) * 1000 + 5 for t in range(32)]

    @pytest.mark.parametrize(
        ("shape", "num", "lane", "column", "message"),
        [
            ("32x32b", 1, 16, 0, "lane 16 must be a multiple of 32"),
            ("16x256b", 1, 8, 0, "lane 8 must be a multiple of 16"),
            ("16x256b", 4, 0, 481, "reaches column 512; the last is 511"),
            ("32x32b", 1, 0, 512, "reaches column 512"),
            ("32x32b", 3, 0, 0, r"x3: \.xN must be a power of two up to 128"),
            ("16x256b", 64, 0, 0, r"x64: \.xN must be a power of two up to 32"),
            ("8x8b", 1, 0, 0, "shape 8x8b: must be one of 32x32b"),
        ],
    )
    def test_bad_access(self, shape, num, lane, column, message):
        with pytest.raises(Fault, match=message):
            numbered().load(place(shape, num, address(lane, column), 0))

    def test_wrong_number_of_registers(self):
        with pytest.raises(Fault, match=r"takes 4 registers of 32 threads, got an array of shape \(2, 32\)"):
            numbered().store(place("16x256b", 1, 0, 0), np.zeros((2, 32), np.uint32))

    def test_unwritten_cell(self):
        tmem = TensorMemory()
        column = tmem.allocate(64)
        tmem.store(place("32x32b", 8, column, 1), np.zeros((8, 32), np.uint32))
        tmem.load(place("32x32b", 8, column, 1))
        with pytest.raises(Fault, match="lane 32, column 8, which was never written"):
            tmem.load(place("32x32b", 16, column, 1))
        with pytest.raises(Fault, match="lane 64, column 0, which was never written"):
            tmem.load(place("32x32b", 8, column, 2))


class TestAllocation:
    def test_blocks_do_not_overlap_and_are_reused(self):
        tmem = TensorMemory()
        blocks = [tmem.allocate(128) for _ in range(4)]
        assert sorted(blocks) == [0, 128, 256, 384]
        assert tmem.allocate(32) is None
        tmem.deallocate(256, 128)
        assert [tmem.allocate(64), tmem.allocate(32)] == [256, 320]
        assert tmem.leaks() == [(0, 128), (128, 128), (256, 64), (320, 32), (384, 128)]

    def test_a_new_block_is_poisoned(self):
        tmem = TensorMemory()
        tmem.allocate(32)
        tmem.store(place("32x32b", 1, 3, 0), np.zeros((1, 32), np.uint32))
        tmem.deallocate(0, 32)
        assert tmem.allocate(32) == 0
        with pytest.raises(Fault, match="never written"):
            tmem.load(place("32x32b", 1, 3, 0))

    @pytest.mark.parametrize("size", [0, 16, 48, 33, 1024, -32])
    def test_bad_size(self, size):
        with pytest.raises(Fault, match=r"power of two in 32\.\.512"):
            TensorMemory().allocate(size)

    def test_sizes_must_not_grow(self):
        tmem = TensorMemory()
        tmem.allocate(64)
        with pytest.raises(Fault, match="of 128 columns after one of 64"):
            tmem.allocate(128)

    def test_deallocate_needs_what_allocate_gave(self):
        tmem = TensorMemory()
        tmem.allocate(128)
        with pytest.raises(Fault, match=r"column 32: no allocation starts there; allocated columns: 0\.\.127"):
            tmem.deallocate(32, 32)
        with pytest.raises(Fault, match="of 64 columns at column 0: the allocation has 128"):
            tmem.deallocate(0, 64)
        tmem.deallocate(0, 128)
        with pytest.raises(Fault, match="nothing is allocated"):
            tmem.deallocate(0, 128)
        assert tmem.leaks() == []

    def test_no_allocation_after_relinquish(self):
        tmem = TensorMemory()
        tmem.allocate(32)
        tmem.relinquish()
        with pytest.raises(Fault, match="relinquish_alloc_permit"):
            tmem.allocate(32)
        tmem.deallocate(0, 32)

    @pytest.mark.parametrize("column", [30, 60])
    def test_access_outside_the_allocation(self, column):
        tmem = TensorMemory()
        there = place("32x32b", 4, column, 0)
        with pytest.raises(Fault, match="not allocated; nothing is allocated"):
            tmem.store(there, np.zeros((4, 32), np.uint32))
        tmem.allocate(32)
        assert tmem.not_allocated(there) == f"columns {column}..{column + 3}: not allocated; allocated columns: 0..31"
        tmem.store(there, np.full((4, 32), 7, np.uint32))
        assert (tmem.load(there) == 7).all()


def test_an_undefined_product_names_its_own_origin():
    tmem = numbered()
    for column, origin in ((4, "what one load has found"), (5, "what another has found")):
        tmem.undefine(slice(0, 32), slice(column, column + 1), np.ones((32, 1), bool), origin)
    for column, message in ((4, "a product with what one load"), (5, "a product with what another")):
        with pytest.raises(Fault, match=f"lane 0, column {column}, {message}"):
            tmem.load(place("32x32b", 1, column, 0))
    tmem.store(place("32x32b", 1, 4, 0), np.zeros((1, 32), np.uint32))
    assert not tmem.load(place("32x32b", 1, 4, 0)).any()
