"""Shared and global memory: what can be read back, and every rule whose breach is a Fault."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_engine import Kept, library
from ptx_programs import STORE_R1, module_of, source

from emugpu.emulator.errors import Fault
from emugpu.emulator.memory.bytes import CHUNK_DTYPE, aligned_bytes
from emugpu.emulator.memory.global_memory import GlobalMemory
from emugpu.emulator.memory.shared import SharedMemory

SIZE = 1024 + 4096
FIRST = 1024


def filled(size: int = SIZE) -> SharedMemory:
    shared = SharedMemory(size)
    shared.write(FIRST, (np.arange(size - FIRST) * 7 % 251).astype(np.uint8))
    return shared


class TestShared:
    def test_bytes_come_back_and_views_agree(self):
        shared = filled()
        assert shared.read(FIRST + 5, 3).tolist() == [35, 42, 49]
        assert shared.load_int(FIRST + 4, 4) == int.from_bytes(bytes([28, 35, 42, 49]), "little")
        words = shared.gather(np.array([FIRST, FIRST + 8]), 8)
        assert words[1] == shared.load_int(FIRST + 8, 8)

    @pytest.mark.parametrize("nbytes", [1, 2, 4, 8])
    def test_integers_are_cut_to_their_size(self, nbytes):
        shared = SharedMemory(SIZE)
        shared.store_int(FIRST + 16, nbytes, -2)
        assert shared.load_int(FIRST + 16, nbytes) == 2 ** (8 * nbytes) - 2
        assert shared.valid.sum() == nbytes

    @settings(max_examples=60, deadline=None)
    @given(st.data(), st.sampled_from([1, 2, 4, 8]))
    def test_scatter_then_gather(self, data, nbytes):
        slots = data.draw(st.lists(st.integers(0, 4096 // nbytes - 1), min_size=1, max_size=32, unique=True))
        offsets = FIRST + nbytes * np.array(slots)
        values = np.arange(1, len(slots) + 1, dtype=f"u{nbytes}")
        shared = SharedMemory(SIZE)
        shared.scatter(offsets, nbytes, values)
        assert (shared.gather(offsets, nbytes) == values).all()
        for offset, value in zip(offsets.tolist(), values.tolist(), strict=True):
            assert shared.load_int(offset, nbytes) == value
        assert shared.valid.sum() == nbytes * len(slots)

    def test_chunks_move_all_bits(self):
        shared = SharedMemory(SIZE)
        rows = np.random.default_rng(0).integers(0, 256, (32, 16), dtype=np.uint8)
        rows[0] = [1, 0, 0, 0, 0, 0, 0xF0, 0x7F] * 2  # signalling NaNs if taken for numbers
        chunks = FIRST // 16 + np.random.default_rng(1).permutation(200)[:32]
        shared.write_chunks(chunks, rows.reshape(-1).view(CHUNK_DTYPE))
        assert (shared.read_chunks(chunks).view(np.uint8).reshape(32, 16) == rows).all()
        assert (shared.read(int(chunks[3]) * 16, 16) == rows[3]).all()

    @pytest.mark.parametrize(
        ("access", "message"),
        [
            (lambda s: s.read(FIRST - 16, 16), "reserve"),
            (lambda s: s.read(FIRST + 4, 8, 8), "not aligned to the 8 bytes"),
            (lambda s: s.read(SIZE - 8, 16), "beyond the CTA's 0x1400 bytes"),
            (lambda s: s.write(SIZE - 1, np.zeros(2, np.uint8)), "beyond"),
            (lambda s: s.write(0, np.zeros(2, np.uint8)), "reserve"),
            (lambda s: s.load_int(FIRST + 2, 4), "not aligned"),
            (lambda s: s.load_int(SIZE, 4), "beyond"),
            (lambda s: s.store_int(64, 4, 0), "reserve"),
            (lambda s: s.store_int(FIRST + 1, 2, 0), "not aligned"),
            (lambda s: s.gather(np.array([FIRST, FIRST + 2]), 4), "0x402 is not aligned"),
            (lambda s: s.gather(np.array([FIRST, SIZE]), 4), "0x1400"),
            (lambda s: s.gather(np.array([FIRST, 512]), 4), "0x200"),
            (lambda s: s.gather(np.array([FIRST, -4]), 4), "-0x4"),
            (lambda s: s.scatter(np.array([FIRST, 512]), 4, np.zeros(2, np.uint32)), "0x200"),
            (lambda s: s.scatter(np.array([FIRST, SIZE]), 4, np.zeros(2, np.uint32)), "0x1400"),
            (lambda s: s.scatter(np.array([FIRST, -4]), 4, np.zeros(2, np.uint32)), "-0x4"),
            (lambda s: s.read_chunks(np.array([63, 64])), "0x3f0"),
            (lambda s: s.read_chunks(np.array([64, SIZE // 16])), "0x1400"),
            (lambda s: s.write_chunks(np.array([63, 64]), np.zeros(2, CHUNK_DTYPE)), "0x3f0"),
            (lambda s: s.write_chunks(np.array([64, SIZE // 16]), np.zeros(2, CHUNK_DTYPE)), "0x1400"),
            (lambda s: s.poison(SIZE - 4, 8), "beyond"),
        ],
    )
    def test_bad_access_is_a_fault_with_the_address(self, access, message):
        with pytest.raises(Fault, match=message):
            access(filled())

    def test_nothing_changes_when_a_store_faults(self):
        shared = filled()
        before = shared.data.copy()
        with pytest.raises(Fault):
            shared.scatter(np.array([FIRST, FIRST + 3]), 4, np.full(2, 9, np.uint32))
        assert (shared.data == before).all()

    @pytest.mark.parametrize(
        "read",
        [
            lambda s: s.read(FIRST + 96, 16),
            lambda s: s.load_int(FIRST + 96, 8),
            lambda s: s.gather(FIRST + 96 + 4 * np.arange(4), 4),
            lambda s: s.gather(FIRST + 96 + np.arange(16), 1),
            lambda s: s.read_chunks(np.array([FIRST // 16 + 6])),
            lambda s: s.check_chunks(np.array([FIRST // 16, FIRST // 16 + 6])),
        ],
    )
    def test_one_unwritten_byte_stops_every_kind_of_read(self, read):
        shared = filled()
        read(shared)
        shared.poison(FIRST + 98, 1)
        with pytest.raises(Fault, match=r"byte 0x462 is read but was never written"):
            read(shared)

    def test_a_remembered_check_ends_with_poison_and_reset(self):
        index = np.arange(FIRST // 16, FIRST // 16 + 8)
        for forget in (lambda s: s.poison(FIRST + 16, 1), SharedMemory.reset):
            shared = filled()
            shared.check_chunks(index, "tile")
            forget(shared)
            with pytest.raises(Fault, match="never written"):
                shared.check_chunks(index, "tile")

    def test_size_must_hold_the_reserved_bytes(self):
        with pytest.raises(ValueError, match="1024"):
            SharedMemory(1000)

    def test_a_size_that_is_no_multiple_of_16_ends_where_it_says(self):
        shared = SharedMemory(FIRST + 20)
        shared.store_int(FIRST + 16, 4, 1)
        with pytest.raises(Fault, match="beyond"):
            shared.store_int(FIRST + 20, 4, 1)
        with pytest.raises(Fault, match="beyond"):
            shared.write_chunks(np.array([FIRST // 16 + 1]), np.zeros(1, CHUNK_DTYPE))


class TestGlobal:
    def test_upload_and_download(self):
        memory = GlobalMemory()
        matrix = np.arange(35, dtype=np.float32).reshape(5, 7)
        address = memory.upload(matrix.T, "A")
        assert address % GlobalMemory.ALIGNMENT == 0
        assert (memory.download(address, np.float32, (7, 5)) == matrix.T).all()

    def test_allocations_lie_far_apart(self):
        memory = GlobalMemory()
        first, second = memory.alloc(100, "x"), memory.alloc(100, "y")
        assert second - first >= GlobalMemory.GUARD
        with pytest.raises(Fault, match=r"outside every allocation; the nearest is 'x'"):
            memory.find(first + 99, 2)
        with pytest.raises(Fault, match="the nearest is 'y'"):
            memory.find(second - 1, 1)
        with pytest.raises(Fault, match="nothing is allocated"):
            GlobalMemory().find(16, 1)

    def test_download_of_unwritten_bytes_is_refused(self):
        memory = GlobalMemory()
        address = memory.alloc(64, "C")
        memory.write(address, np.zeros(60, np.uint8))
        with pytest.raises(Fault, match=r"byte 60 of 'C'.*never written"):
            memory.download(address, np.uint8, 64)
        assert memory.download(address, np.uint8, 60).sum() == 0

    @settings(max_examples=40, deadline=None)
    @given(st.data(), st.sampled_from([1, 2, 4, 8]))
    def test_scatter_then_gather_over_several_allocations(self, data, nbytes):
        memory = GlobalMemory()
        bases = [memory.alloc(64, name) for name in "ab"]
        slots = data.draw(
            st.lists(st.tuples(st.integers(0, 1), st.integers(0, 64 // nbytes - 1)), min_size=1, unique=True)
        )
        addresses = np.array([bases[b] + nbytes * s for b, s in slots], np.uint64)
        values = np.arange(5, 5 + len(slots), dtype=f"u{nbytes}")
        memory.scatter(addresses, nbytes, values)
        assert (memory.gather(addresses, nbytes) == values).all()
        assert memory.load_int(int(addresses[-1]), nbytes) == values[-1]

    @pytest.mark.parametrize(
        ("access", "message"),
        [
            (lambda m, a: m.gather(np.array([a, a + 2]), 4), "not aligned"),
            (lambda m, a: m.gather(np.array([a, a + 64]), 4), "outside every allocation"),
            (lambda m, a: m.gather(np.array([a, a + 32]), 4), "byte 32 of 'buffer'"),
            (lambda m, a: m.scatter(np.array([a, a + 64]), 4, np.zeros(2, np.uint32)), "outside every"),
            (lambda m, a: m.scatter(np.array([a, a - 4]), 4, np.zeros(2, np.uint32)), "outside every"),
            (lambda m, a: m.load_int(a + 1, 2), "not aligned to the 2 bytes"),
            (lambda m, a: m.load_int(a + 32, 4), "never written"),
            (lambda m, a: m.store_int(a + 64, 4, 1), "outside every allocation"),
            (lambda m, a: m.read(a + 8, 16, 16), "not aligned to the 16 bytes"),
        ],
    )
    def test_bad_access_is_a_fault(self, access, message):
        memory = GlobalMemory()
        address = memory.alloc(64, "buffer")
        memory.write(address, np.arange(32, dtype=np.uint8))
        with pytest.raises(Fault, match=message):
            access(memory, address)

    def test_an_empty_allocation_is_refused(self):
        with pytest.raises(ValueError, match="at least one byte"):
            GlobalMemory().alloc(0, "nothing")


@pytest.mark.parametrize("lanes", [1, 2, 8])
@pytest.mark.parametrize("nbytes", [1, 2, 4, 8])
def test_lanes_that_all_read_what_was_never_written(lanes, nbytes):
    memory, shared = GlobalMemory(), SharedMemory(SIZE)
    address = memory.alloc(64, "buffer")
    where = nbytes * np.arange(lanes)
    for gather, first in ((memory.gather, address), (shared.gather, FIRST)):
        with pytest.raises(Fault, match="never written") as error:
            gather(first + where, nbytes)
        assert error.value.rule == "uninitialised" and error.value.position == 0


@pytest.fixture
def heap_of_large_blocks():
    """glibc's heap serves blocks of a size that was freed once, and clears them (mallopt(3), M_MMAP_THRESHOLD)."""
    freed = [np.ones(24 << 20, np.uint8)]
    freed.clear()
    freed = [np.ones(12 << 20, np.uint8) for _ in range(4)]
    above = np.ones(1 << 10, np.uint8)  # keeps the heap from shrinking
    freed.clear()
    yield
    assert above.all()


def pages_of(array: np.ndarray) -> int:
    """The pages of an array that are in memory."""
    pages = np.empty((array.nbytes >> 12) + 2, np.uint8)
    start, found = ctypes.c_void_p(array.ctypes.data & -4096), ctypes.c_void_p(pages.ctypes.data)
    assert ctypes.CDLL(None).mincore(start, ctypes.c_size_t(array.nbytes), found) == 0
    return int(np.count_nonzero(pages[: array.nbytes >> 12] & 1))


@pytest.mark.usefixtures("heap_of_large_blocks")
def test_large_zeroed_bytes_take_no_memory_until_they_are_touched():
    found = [aligned_bytes(10 << 20) for _ in range(4)]
    assert all(pages_of(array) < 4 for array in found)
    assert not any(array.any() for array in found)


@pytest.mark.usefixtures("heap_of_large_blocks")
def test_nor_does_the_table_of_ctas_of_a_kernel():
    device = Kept(library=library())
    device.launch(module_of(source(STORE_R1.replace("%r1;", "%r0;"))), grid=1, block=32, arguments=[device.alloc(128)])
    (workspace,) = device.machine.engine._plan.workspaces
    table = np.frombuffer(workspace.ctas, np.int64)
    assert pages_of(table) < 4
    assert table.nbytes > 1 << 20 and table.any()


@pytest.mark.parametrize("nbytes", [1, 64, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_zeroed_bytes_are_aligned_and_stay_while_a_view_does(nbytes):
    view = aligned_bytes(nbytes)[nbytes // 2 :]
    gc.collect()
    view[:] = 7
    assert view.size == nbytes - nbytes // 2 and (view == 7).all()
    assert aligned_bytes(nbytes).ctypes.data % 64 == 0


def test_a_block_that_the_system_has_not_is_a_lack_of_memory():
    with pytest.raises(MemoryError):
        aligned_bytes(1 << 60)
