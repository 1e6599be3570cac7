"""How much comes from DRAM: small cases that are counted by hand. A tile's part of C is as large as two panels."""

from __future__ import annotations

import pytest

from harness.model.cache import Tiles, hits

SIZE = 128
K = 64
PANEL = SIZE * K * 2


def tiles(order: list[tuple[int, int]], rows: int, columns: int, deeper: int = 1) -> Tiles:
    return Tiles(order, SIZE, SIZE, rows * SIZE, columns * SIZE, K * deeper, 2, 2.0 * PANEL * deeper)


def test_tiles_at_the_same_time_read_a_panel_once() -> None:
    square = [(row, column) for column in range(2) for row in range(2)]
    found = hits(tiles(square, 2, 2), resident=4, capacity=0)
    assert found.dram == 4 * PANEL
    assert found.requested == 8 * PANEL
    assert found.miss == 0.5
    assert found.waves == [{("A", 0): 1.0, ("A", 1): 1.0, ("B", 0): 1.0, ("B", 1): 1.0}]


def test_panels_of_the_round_before_stay_if_they_fit() -> None:
    column_by_column = [(row, column) for column in range(2) for row in range(2)]
    problem = tiles(column_by_column, 2, 2)
    assert hits(problem, resident=2, capacity=0).dram == 6 * PANEL
    kept = hits(problem, resident=2, capacity=100 * PANEL)
    assert kept.dram == 4 * PANEL  # the rows of A are read once
    first, second = kept.waves
    assert first == {("A", 0): 1.0, ("A", 1): 1.0, ("B", 0): 1.0}
    assert second == {("A", 0): 0.0, ("A", 1): 0.0, ("B", 1): 1.0}


def test_what_lies_outside_is_not_read() -> None:
    problem = Tiles([(0, 0), (1, 0)], SIZE, SIZE, SIZE + 8, SIZE, K, 2, 2.0 * PANEL)
    found = hits(problem, resident=2, capacity=0)
    assert found.dram == 2 * PANEL + 8 * K * 2
    assert found.written == (SIZE + 8) * SIZE * 2


def test_a_panel_of_two_rounds_ago_is_still_there_if_what_came_since_fits() -> None:
    problem = tiles([(0, 0), (1, 1), (0, 2)], 2, 3)
    # Row 0 is used again after 8 panels: its own wave's two, two of the next wave, and C of both.
    assert hits(problem, resident=1, capacity=12 * PANEL).dram == 5 * PANEL
    assert hits(problem, resident=1, capacity=6 * PANEL).dram == 6 * PANEL


def test_what_is_written_pushes_a_panel_out() -> None:
    order = [(0, 0), (0, 1)]
    # Two panels were read since, and C is two more; with K 16 times as deep it is an eighth of one.
    assert hits(tiles(order, 1, 2), resident=1, capacity=3.06 * PANEL).dram == 4 * PANEL
    deep = 16 * PANEL
    assert hits(tiles(order, 1, 2, deeper=16), resident=1, capacity=3.06 * deep).dram == 3 * deep


def test_what_is_used_in_every_round_takes_its_place_once() -> None:
    problem = tiles([(0, 0), (1, 0), (2, 0), (3, 0), (0, 1)], 4, 2)
    # Row 0 is used again after 13 (its begin) to 14 panels (its end): eight of C, four of A, the first of B, and so
    # much of the second as comes before the slice.
    assert hits(problem, resident=1, capacity=20.2 * PANEL).dram == 6 * PANEL
    # Row 0 after 7 to 8: column 1, which its second tile needs, too, has been counted with the tile before.
    turn = tiles([(0, 0), (1, 1), (0, 1)], 2, 2)
    assert hits(turn, resident=1, capacity=8 * PANEL).dram == pytest.approx((4 + (7.5 - 5.6) / 4.8) * PANEL)


def test_what_nearly_fits_is_there_in_part() -> None:
    problem = tiles([(0, 0), (1, 0), (2, 0), (3, 0), (3, 1)], 4, 2)
    # Row 3 is used again after 10 (its end) to 13 panels (its begin): all of that lies around what L2 keeps.
    found = hits(problem, resident=4, capacity=11.5 * PANEL)
    assert found.dram == pytest.approx(6.5 * PANEL)
    assert found.waves[1] == {("A", 3): pytest.approx(0.5), ("B", 1): 1.0}


def test_the_end_of_a_panel_is_there_when_its_begin_is_lost() -> None:
    rows = 40
    deep = 128 * PANEL
    column = tiles([*((row, 0) for row in range(rows)), (rows - 1, 1)], rows, 2, deeper=128)
    # The last row is used again after 3 (its end) to 41 panels (its begin), of which L2 keeps 17 to 23.
    kept = 1 - (hits(column, resident=rows, capacity=20 * deep).dram / deep - rows - 2)
    assert 3 / 8 < kept < 4 / 8


def test_a_sum_of_parts_is_the_same_in_every_process() -> None:
    """Whatever the seed of the hashes of strings is: the panels of a wave are in order."""
    problem = tiles([(row, column) for column in range(3) for row in range(4)], 4, 3)
    for found in hits(problem, resident=5, capacity=7 * PANEL).waves:
        assert list(found) == sorted(found)
