"""How much comes from DRAM: small cases that are counted by hand."""

from __future__ import annotations

import pytest

from harness.timing.cache import Tiles, hits

SIZE = 128
K = 64
PANEL = SIZE * K * 2


def tiles(order: list[tuple[int, int]], rows: int, columns: int) -> Tiles:
    return Tiles(order, SIZE, SIZE, rows * SIZE, columns * SIZE, K, 2, 2.0 * PANEL)


def test_tiles_at_the_same_time_read_a_panel_once() -> None:
    square = [(row, column) for column in range(2) for row in range(2)]
    found = hits(tiles(square, 2, 2), resident=4, capacity=0)
    assert found.dram == 4 * PANEL
    assert found.requested == 8 * PANEL
    assert found.miss == 0.5
    assert found.waits == 1.0


def test_panels_of_the_round_before_stay_if_they_fit() -> None:
    column_by_column = [(row, column) for column in range(2) for row in range(2)]
    problem = tiles(column_by_column, 2, 2)
    assert hits(problem, resident=2, capacity=0).dram == 6 * PANEL
    kept = hits(problem, resident=2, capacity=100 * PANEL)
    assert kept.dram == 4 * PANEL  # the rows of A are read once
    assert kept.waits == pytest.approx(4 / 6)


def test_what_lies_outside_is_not_read() -> None:
    problem = Tiles([(0, 0), (1, 0)], SIZE, SIZE, SIZE + 8, SIZE, K, 2, 2.0 * PANEL)
    found = hits(problem, resident=2, capacity=0)
    assert found.dram == 2 * PANEL + 8 * K * 2
    assert found.written == (SIZE + 8) * SIZE * 2
