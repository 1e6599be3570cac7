"""The order of tiles, and CTAs that compute many of them: each tile exactly once, whatever the sizes."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from kernel_runs import run

from harness.compile.catalog import RASTER_GROUPS
from harness.compile.config import make_config

# Small tiles, so that there are many: four for each CTA of three, and a hundred.
SMALL = {
    "sm_90a": {"mma_shape": (64, 16), "cluster": (1, 1), "epilogue_width": 16, "stages": 2},
    "sm_100a": {"mma_shape": (64, 32), "cluster": (1, 1), "cta_group": 1, "stages": 2},
}
CONFIGS = [
    make_config("kernel8", arch=arch, scheduler="static", sms=3, raster_group=group, **options)
    for arch, options in SMALL.items()
    for group in RASTER_GROUPS
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label.replace(" ", "_"))
@pytest.mark.parametrize("size", [(700, 536, 72), (64, 1000, 8), (1000, 8, 136), (8, 8, 8), (256, 72, 200)], ids=str)
def test_every_tile_exactly_once(built, config, size):
    m, n, k = size
    for kind, schedule in (("integer", "fifo"), ("index", "random")):
        counters, validation = run(built[config], size, kind, schedule=schedule, seed=m)
        assert validation.mismatches == 0
        assert counters["tma_global_bytes_written"] == 2 * m * n
        rows, columns = config.mma_shape
        tiles = -(-m // rows) * -(-n // columns)
        assert counters["ctas"] == min(3, tiles)
        assert counters["mma_flops"] == 2 * tiles * rows * columns * -(-k // 64) * 64


@pytest.mark.parametrize("group", RASTER_GROUPS)
@pytest.mark.parametrize(("m", "n"), [(512, 512), (4096, 4096), (256, 8192), (8192, 256), (2560, 4864), (3000, 5000)])
def test_the_order_visits_every_place_once_and_moves_by_neighbours(planner, group, m, n):
    done = planner(m, n, 64, kernel="kernel8", raster_group=group, cluster_m=2, cluster_n=1)
    tiles = json.loads(done.stdout)["tiles"]
    rows, columns = tiles["rows"], tiles["columns"]
    assert (rows, columns) == (-(-m // 256), -(-n // 256))
    order = [tuple(place) for place in tiles["order"]]
    assert len(order) == min(512, rows * columns) == len(set(order))
    assert all(0 <= row < rows and 0 <= column < columns for row, column in order)
    # One row at most from a tile to the next, and never out of the group before all of it is done.
    assert all(abs(a[0] - b[0]) <= 1 for a, b in pairwise(order))
    groups = [column // group for _, column in order]
    assert groups == sorted(groups)


def test_a_kernel_without_an_order_has_none(planner):
    assert json.loads(planner(kernel="kernel7").stdout)["tiles"] is None


def test_more_tiles_than_a_launch_can_have(planner):
    done = planner(2**30, 2**30, 64, kernel="kernel8", scheduler="none")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cluster tiles, too many for one launch: use smaller ones" in done.stderr
