"""Answers of the probes of tensor memory: loads, stores, lanes, allocation, copies."""

from __future__ import annotations

import numpy as np
import pytest
from blackwell_answers import BLANK, ONE_WORKER, answer, image
from blackwell_layouts import place

from conformance.blackwell import tensor_memory
from conformance.blackwell.copies import SHAPES, SOURCES
from conformance.catalogue import BLACKWELL

pytestmark = ONE_WORKER


@pytest.mark.parametrize("name", ["tmem_load_shapes", "tmem_odd_columns"])
def test_loads_of_every_shape(name):
    found = answer(name)["all"]["found"]
    accesses = {
        "tmem_load_shapes": [a for a in tensor_memory.LOADS if not a.packed],
        "tmem_odd_columns": tensor_memory.ODD,
    }
    row = 0
    for access in accesses[name]:
        for i in range(access.registers):
            for thread in range(128):
                lane, column = place(access.shape, thread % 32, i, access.split)
                lane += thread // 32 * 32 + access.lane
                assert found[row, thread] == lane << 16 | column + access.column, access
            row += 1
    assert row == len(found)


def test_packed_loads_take_the_low_halves_of_two_columns():
    found = answer("tmem_load_packed")["all"]["found"]
    row = 0
    for access in [a for a in tensor_memory.LOADS if a.packed]:
        for i in range(access.registers):
            for thread in range(0, 128, 3):
                lane, column = place(access.shape, thread % 32, i, 0)
                lane += thread // 32 * 32 + access.lane
                column = 2 * column + access.column + (access.split if thread % 32 >= 16 else 0)
                assert found[row, thread] == lane << 8 | column | (lane << 8 | column + 1) << 16, access
            row += 1
    assert row == len(found)


def test_stores_of_every_shape():
    found = answer("tmem_store_shapes")["all"]["after"]
    wanted = np.full_like(found, BLANK)
    for number, access in enumerate(tensor_memory.STORES):
        for i in range(access.registers):
            for thread in range(128):
                lane, column = place(access.shape, thread % 32, i, 0 if access.packed else access.split)
                lane += thread // 32 * 32 + access.lane
                own = i * 128 + thread
                if access.packed:
                    column = 2 * column + access.column + (access.split if thread % 32 >= 16 else 0)
                    wanted[lane, column : column + 2] = own, own | 0x8000
                else:
                    wanted[lane, column + access.column] = number << 16 | own
    assert (found == wanted).all()


def test_a_lane_field_counts_modulo_32():
    for case, outputs in answer("tmem_lane_field").items():
        field = int(case.split()[-1])
        for thread in range(128):
            base = thread // 32 * 32 + field % 32
            one = BLANK if field % 32 else thread << 16
            assert outputs["found"][0, thread] == one
            for row, (shape, register) in enumerate([("16x64b", 0), *(("16x256b", i) for i in range(4))], start=1):
                lane, column = place(shape, thread % 32, register, 0)
                assert outputs["found"][row, thread] == base + lane << 16 | column
        assert len(outputs["found"]) == 6


ALLOCATED = {
    "128, 64, 32, 32": [0, 128, 192, 224],
    "two of 32 where one of 64 was": [0, 64, 0, 32],
    "64 behind two holes": [0, 64, 128, 0, 64, 0],
    "all 512, twice": [0, 0],
}


def test_allocation_takes_the_first_hole():
    alone = BLACKWELL["tmem_alloc_addresses"].read(answer("tmem_alloc_addresses"))
    assert alone == {case: [columns] for case, columns in ALLOCATED.items()}
    pair = BLACKWELL["tmem_alloc_pair"].read(answer("tmem_alloc_pair"))
    assert pair == {case: [columns, columns] for case, columns in ALLOCATED.items()}
    assert answer("tmem_alloc_waits")["512 and 512"]["found"].tolist() == [1, 0]


def copied(source, row: int, byte: int) -> int:
    """Word of shared memory at 16 x 8 core matrices with a swizzle."""
    span = {"none": 16, "32B": 32, "64B": 64, "128B": 128}[source.swizzle]
    across = byte // 16 * source.leading + byte % 16 if span == 16 else byte
    at = source.start + row % 8 * span + row // 8 * source.stride + across
    return (at ^ ((at >> 7) % (span // 16)) << 4) // 4


QUADRANTS = {"64x128b.warpx2::02_13": [(0, 2), (1, 3)], "64x128b.warpx2::01_23": [(0, 1), (2, 3)],
             "32x128b.warpx4": [(0, 1, 2, 3)]}  # fmt: skip


@pytest.mark.parametrize("name", ["tmem_copy_shapes", "tmem_copy_pair"])
def test_copies_of_every_shape(name):
    found = image(name, "all")
    group = 2 if name.endswith("pair") else 1
    for number, source in enumerate(SOURCES):
        wanted, first = np.full((128, 32), BLANK, np.uint32), 0
        for shape, columns in SHAPES.items():
            for row in range(int(shape.partition("x")[0])):
                if shape.startswith("128"):
                    lanes = [row]
                elif shape == "4x256b":
                    lanes = [32 * row]
                else:
                    lanes = [32 * q + row % 32 for q in QUADRANTS[shape][row // 32]]
                for word in range(columns):
                    wanted[lanes, first + word] = copied(source, row, 4 * word)
            first += columns
        for rank in range(group):
            assert (found[group * number + rank] == np.where(wanted == BLANK, BLANK, wanted | rank << 24)).all()
