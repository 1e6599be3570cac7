"""Which bulk groups a cp.async.bulk.wait_group waits for (PTX ISA 9.7.9.25.4): all but the youngest N."""

from __future__ import annotations

import itertools

import pytest

from emugpu.emulator.machine.copies import BulkQueue

DONE, WRITING, READING = (0, 0), (0, 1), (1, 1)
"""(copies that still read their source, copies that are not yet written)."""


def queue_of(groups: tuple[tuple[int, int], ...]) -> BulkQueue:
    queue = BulkQueue()
    for reading, writing in groups:
        queue.open.reading, queue.open.writing = reading, writing
        queue.commit()
    return queue


@pytest.mark.parametrize("allowed", range(5))
@pytest.mark.parametrize("reads_only", [False, True])
def test_a_wait_is_satisfied_when_all_older_groups_are_done(allowed, reads_only):
    for groups in itertools.product((DONE, WRITING, READING), repeat=4):
        older = groups[: max(0, len(groups) - allowed)]
        pending = [group for group in older if group[0] or (group[1] and not reads_only)]
        queue = queue_of(groups)
        assert queue.satisfied(allowed, reads_only) == (not pending), groups
        assert queue.satisfied(0, False) == (set(groups) == {DONE}), "looking changes nothing"
        assert queue.number == 4


def test_copies_of_the_open_group_count_as_reading_but_not_as_in_flight():
    queue = queue_of((DONE, READING, (3, 4), WRITING))
    queue.open.reading = 2
    assert (queue.reading, queue.reads_in_flight) == (6, 2)
    assert BulkQueue().satisfied(0, False) and BulkQueue().reading == 0
