"""The checker's memories: who has accessed which bytes, and what is found where accesses divide a chunk."""

from __future__ import annotations

import numpy as np
import pytest

from emugpu.check.clocks import ORDER, Clock, Components
from emugpu.check.history import Observer
from emugpu.check.record import Record
from emugpu.check.shadow import (
    DIVIDED,
    READ_ONLY,
    ShadowAllocation,
    ShadowMemory,
    chunks_of,
    inside,
    is_inside,
    rows_of,
)
from emugpu.check.threads import Thread
from emugpu.emulator import TensorMap
from emugpu.emulator.machine.events import Agent, Site

SITES = [Site(n, n, f"instruction {n}", "st", (), "weak", "", "") for n in range(8)]


class Scene:
    """Two threads that know nothing of each other, and what a memory says of their accesses."""

    def __init__(self) -> None:
        self.space = Components(0, 8)
        self.threads = [
            Thread(self.space.new(0), Clock(self.space), np.zeros(8, np.int32), 0, 1 << n) for n in range(2)
        ]
        self.found: list[tuple[int, int, int, bool]] = []
        self.memory = ShadowMemory(256, self._tell)

    def _tell(self, conflicts, ordered, place, nbytes, observer) -> None:
        self.found += [(c.old.site.line, c.new.site.line, place, c.late) for c in conflicts]

    def access(self, thread: int, where, nbytes: int, *, writes: bool, line: int) -> None:
        who = self.threads[thread]
        clock = who.peek()
        agent = Agent(0, 0, thread, 1)
        order = clock.rows[ORDER].copy()
        record = Record(self.space, who.own, who.time, "generic", writes, agent, SITES[line], order)
        self.memory.access(where, nbytes, record, Observer(clock))

    def hand_over(self, one: int, other: int) -> None:
        self.threads[other].acquire(self.threads[one].release())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_neighbours_in_a_chunk_do_not_conflict(scene):
    scene.access(0, 16, 4, writes=True, line=1)
    scene.access(1, 20, 4, writes=True, line=2)
    assert scene.found == []
    assert scene.memory.cells[1] == DIVIDED
    scene.access(1, 19, 1, writes=False, line=3)
    assert [(old, new, place) for old, new, place, _ in scene.found] == [(1, 3, 19)]


def test_a_divided_chunk_becomes_whole_again(scene):
    scene.access(0, 16, 4, writes=True, line=1)
    assert scene.memory.divided
    scene.access(0, 16, 16, writes=True, line=2)
    assert not scene.memory.divided
    scene.hand_over(0, 1)
    for address in range(16, 32):
        scene.access(1, address, 1, writes=False, line=5)
    assert scene.memory.divided
    scene.access(1, np.array([0, 16]), 16, writes=True, line=4)
    assert scene.found == [] and not scene.memory.divided


@pytest.mark.parametrize("first", ["the read", "the write"])
def test_a_read_before_the_write_it_has_not_waited_for_is_early_in_both_orders(scene, first):
    scene.access(0, 0, 16, writes=True, line=1)
    if first == "the write":
        scene.access(0, 0, 16, writes=True, line=2)
        scene.access(1, 0, 16, writes=False, line=3)
        assert {(old, new, late) for old, new, _, late in scene.found} == {(2, 3, False)}
    else:
        scene.access(1, 0, 16, writes=False, line=3)
        scene.found.clear()
        scene.access(0, 0, 16, writes=True, line=2)
        assert {(old, new, late) for old, new, _, late in scene.found} == {(3, 2, False)}


@pytest.mark.parametrize("first", ["the read", "the write"])
def test_a_write_before_the_last_read_is_over_is_late_in_both_orders(scene, first):
    scene.access(0, 0, 16, writes=True, line=1)
    scene.hand_over(0, 1)
    steps = [lambda: scene.access(1, 0, 16, writes=False, line=2), lambda: scene.access(0, 0, 16, writes=True, line=3)]
    for step in steps if first == "the read" else reversed(steps):
        step()
    assert [(late, {old, new}) for old, new, _, late in scene.found] == [(True, {2, 3})]


def test_forgetting_old_histories_changes_nothing(scene):
    """Every place is written twice, the second time by another instruction."""
    for n in range(32):
        scene.access(0, 16 * (n % 16), 16, writes=True, line=7 if n < 16 else n % 4)
    scene.access(0, 3, 2, writes=True, line=5)
    before = len(scene.memory.histories.all)
    scene.memory._tidy()
    assert len(scene.memory.histories.all) < before
    for n in range(16):
        scene.access(1, 16 * n, 16, writes=False, line=6)
    assert {(old, new) for old, new, *_ in scene.found} == {*((n, 6) for n in range(4)), (5, 6)}
    assert len({place // 16 for *_, place, _ in scene.found}) == 16


def test_what_all_load_incoherently_is_in_order_until_somebody_writes_it():
    allocation = ShadowAllocation("words", 0, 256, ShadowMemory(256, lambda *_: None))
    owner = 5
    assert allocation.add_pending(True, np.array([0]), owner, True, 1, ())
    assert allocation.add_pending(False, np.array([1, 1, 2]), READ_ONLY, True, 3, ())
    assert not allocation.add_pending(True, np.array([2]), owner, True, 1, ())


def test_bytes_are_divided_into_chunks():
    whole, parts = chunks_of(np.array([32, 0]), 16)
    assert (whole.tolist(), parts) == ([0, 2], ())
    whole, parts = chunks_of(np.arange(0, 40, 4), 4)
    assert (whole.tolist(), parts) == ([0, 1], ((2, 0xFF),))
    whole, parts = chunks_of(30, 4)
    assert (whole.tolist(), parts) == ([], ((1, 0xC000), (2, 0x0003)))


def test_a_box_covers_only_what_is_inside_its_tensor():
    """8 rows of 32 words; the box has 4 rows of 16 words."""
    tmap = TensorMap.tiled(0x1000, "u32", (8, 32), (4, 16))
    assert is_inside(tmap, (16, 4)) and not is_inside(tmap, (24, 4))
    rows, nbytes = rows_of(tmap, (24, 6))
    assert (rows.tolist(), nbytes) == ([0x1000 + 6 * 128 + 96, 0x1000 + 7 * 128 + 96], 32)
    found = inside(tmap, (24, 6)).reshape(4, 4)
    assert found.tolist() == [[True, True, False, False]] * 2 + [[False] * 4] * 2
    rows, nbytes = rows_of(tmap, (-8, -1))
    assert (rows.tolist(), nbytes) == ([0x1000, 0x1080, 0x1100], 32)
    assert rows_of(tmap, (32, 0))[1] == 0
