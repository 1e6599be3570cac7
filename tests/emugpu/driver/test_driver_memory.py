"""Memory that a program and the emulated GPU share: poison, addresses that are used again, limits."""

from __future__ import annotations

import gc
import mmap
import os
from itertools import pairwise

import numpy as np
import pytest

from emugpu.driver.memory import DEVICE, GUARD, PINNED, SPARE, WINDOWS, MappedFile, Window, WindowMemory, halves
from emugpu.driver.results import DriverError
from emugpu.emulator import Fault


@pytest.fixture
def file():
    made = MappedFile()
    yield made
    made.close()


def test_ended_sessions_do_not_use_up_the_addresses_of_the_process():
    gc.disable()
    try:
        for _ in range(30):
            made = MappedFile()
            made.itself = made  # as the objects of a session, which refer to each other
            made.close()
    finally:
        gc.enable()


def test_windows_do_not_overlap_in_the_file_or_in_addresses():
    for key in (lambda w: w.offset, lambda w: w.base + w.generic):
        ordered = sorted(WINDOWS, key=key)
        for low, high in pairwise(ordered):
            assert key(low) + low.size <= key(high)


def test_what_another_mapping_writes_is_seen_and_poison_is_the_emulators(file):
    memory = WindowMemory(file, DEVICE, PINNED)
    address = memory.alloc_in(DEVICE, 4000, "a")
    with mmap.mmap(file.descriptor, 4096, offset=address - DEVICE.base + DEVICE.offset) as program:
        program[:4] = b"abcd"
    block, _ = memory.find(address, 4)
    assert block.data[:4].tobytes() == b"abcd"
    with pytest.raises(Fault, match="never written"):
        memory.read(address, 4)
    block.mark_valid(0, 4)
    assert memory.read(address, 4).tobytes() == b"abcd"
    assert memory.read(memory.alloc_in(PINNED, 100, "p"), 100).sum() == 0  # counts as written


def test_neither_side_can_change_the_size(file):
    for size in (0, 1 << 50):
        with pytest.raises(PermissionError):
            os.ftruncate(file.descriptor, size)


def test_freed_memory_is_poisoned_when_it_is_used_again(file):
    small = Window("device", DEVICE.base, 4 * GUARD, 0)
    memory = WindowMemory(file, small)
    first, second = (memory.alloc_in(small, 100, name) for name in ("first", "second"))
    memory.fill(first, 7, 100)
    with pytest.raises(DriverError, match="addresses left"):
        memory.alloc_in(small, 3 * GUARD, "too large")
    memory.drop(memory.find(first, 1)[0])
    with pytest.raises(Fault, match="outside every allocation"):
        memory.read(first, 1)
    memory.reserved[first] = 4096
    with pytest.raises(DriverError, match="addresses left"):
        memory.alloc_in(small, 100, "set apart")
    memory.reserved.clear()
    assert memory.alloc_in(small, 100, "third") == first  # there are no others left
    with pytest.raises(DriverError, match="addresses left"):
        memory.alloc_in(small, 100, "fourth")
    with pytest.raises(Fault, match="never written"):
        memory.read(first, 1)
    assert memory.find(first, 1)[0].data.sum() == 0
    assert memory.holding(second) is memory.starting_at(second)
    assert memory.starting_at(second + 1) is None
    assert not np.shares_memory(memory.find(second, 1)[0].data, memory.find(first, 1)[0].data)


def test_there_are_addresses_for_many_tensors(file):
    """Each takes addresses for itself and for those behind it that belong to no allocation."""
    tensors = halves(PINNED)[1]
    memory = WindowMemory(file, DEVICE, tensors)
    first, second = (memory.alloc_in(tensors, 16) for _ in range(2))
    assert tensors.size // (second - first) >= 250_000


def test_what_the_host_can_back_may_be_touched_without_asking(file, monkeypatch):
    """Bytes that are backed already need nothing more."""
    memory = WindowMemory(file, DEVICE, PINNED)
    backed, small, large = (memory.alloc_in(DEVICE, size) for size in (1 << 22, 1 << 20, 1 << 30))
    memory.fill(backed, 1, 1 << 22)
    monkeypatch.setattr("emugpu.driver.memory.free_bytes", lambda: SPARE + (2 << 20))
    assert [block.base for block in memory.direct()] == [backed, small]
    monkeypatch.setattr("emugpu.driver.memory.free_bytes", lambda: SPARE + (3 << 30))
    assert [block.base for block in memory.direct()] == [backed, small, large]
