"""Masks, arrivals, byte counts and launch plans, for every cluster shape, against first principles."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable

import pytest

ELEMENT_BYTES = 2

Planner = Callable[..., subprocess.CompletedProcess[str]]


def plan_of(planner: Planner, *sizes: int, **options: object) -> dict:
    done = planner(*sizes, **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def pair(cta_group: int, m: int = 128) -> dict:
    """MMA shape options where each CTA holds `m` rows of A."""
    return {"cta_group": cta_group, "mma_m": m * cta_group, "mma_n": 256}


def clusters(cta_group: int) -> list[tuple[int, int]]:
    sizes = itertools.product(range(1, 17), repeat=2)
    return [(cm, cn) for cm, cn in sizes if cm * cn <= 16 and cm % cta_group == 0]


def members(mask: int) -> set[int]:
    return {rank for rank in range(16) if mask >> rank & 1}


def hopper(consumers: int = 2) -> dict:
    """Options of sm_90a with so many consumer warpgroups."""
    return {"arch": "sm_90a", "mma_m": 64 * consumers, "mma_n": 256}


def named(items: list[dict], name: str) -> dict:
    return next(item for item in items if item["name"] == name)


def test_literal_masks_of_a_4x4_cluster_of_pairs(planner: Planner) -> None:
    plan = plan_of(planner, cluster_m=4, cluster_n=4, **pair(2))
    first = plan["multicast"][0]
    assert (first["a"], first["b"], first["commit"]) == (0x1111, 0x0005, 0x333F)
    assert named(plan["barriers"], "empty")["arrivals"] == 5
    assert named(plan["barriers"], "full") | {"arrivals": 1, "bytes": 65536, "count": 5} == named(
        plan["barriers"], "full"
    )


def test_literal_masks_of_a_4x4_cluster_of_single_ctas(planner: Planner) -> None:
    plan = plan_of(planner, cluster_m=4, cluster_n=4, **pair(1))
    first, eleventh = plan["multicast"][0], plan["multicast"][11]
    assert (first["a"], first["b"], first["commit"]) == (0x1111, 0x000F, 0x111F)
    assert (eleventh["a"], eleventh["b"]) == (0x8888, 0x0F00)
    assert named(plan["barriers"], "empty")["arrivals"] == 7


@pytest.mark.parametrize("multicast", [True, False])
@pytest.mark.parametrize("cta_group", [1, 2])
def test_every_cta_gets_every_row_once_and_hears_every_reader(
    planner: Planner, cta_group: int, multicast: bool
) -> None:
    """Rank r is at x = r % cm, y = r // cm. It needs the rows of A that belong to x, and the rows of B that
    belong to y and to its place in the pair. Whoever sends to a CTA is told when the CTA's MMA has read."""
    shapes = clusters(cta_group)
    assert len(shapes) == {1: 50, 2: 20}[cta_group]
    for cm, cn in shapes:
        shape = pair(cta_group)
        plan = plan_of(planner, cluster_m=cm, cluster_n=cn, multicast=str(multicast).lower(), **shape)
        ctas = plan["multicast"]
        assert [cta["rank"] for cta in ctas] == list(range(cm * cn))
        operands = {
            "a": (128, lambda rank, cm=cm: rank % cm),
            "b": (256 // cta_group, lambda rank, cm=cm: (rank // cm, rank % cm % cta_group)),
        }
        senders: list[set[int]] = [set() for _ in ctas]  # of each receiver
        for name, (rows, tile) in operands.items():
            box = plan["arguments"]["ab".index(name)]["box"]
            assert box[0] == 64 and box[1] % 8 == 0
            for receiver in range(cm * cn):
                got: list[int] = []
                for cta in ctas:
                    if receiver in members(cta[name]):
                        assert tile(cta["rank"]) == tile(receiver), (cm, cn, name, cta, receiver)
                        got += [row for first in cta[f"{name}_rows"] for row in range(first, first + box[1])]
                        senders[receiver].add(cta["rank"])
                assert sorted(got) == list(range(rows)), (cm, cn, name, receiver)
            if not multicast:
                assert all(members(cta[name]) == {cta["rank"]} for cta in ctas)
        arrivals = [0] * (cm * cn)
        for leader in range(0, cm * cn, cta_group):
            together = range(leader, leader + cta_group)
            told = set().union(*(senders[rank] for rank in together))
            assert {ctas[rank]["commit"] for rank in together} == {sum(1 << rank for rank in told)}
            for rank in told:
                arrivals[rank] += 1
        assert set(arrivals) == {named(plan["barriers"], "empty")["arrivals"]}, (cm, cn)


@pytest.mark.parametrize("consumers", [1, 2])
def test_hopper_empty_barriers_wait_for_every_consumer_of_every_reader(planner: Planner, consumers: int) -> None:
    """The consumers of a CTA arrive at the CTAs of its commit mask, which are those that sent it a slice."""
    for cm, cn in [(1, 1), (2, 1), (1, 2), (3, 2), (2, 4), (4, 4)]:
        plan = plan_of(planner, cluster_m=cm, cluster_n=cn, **hopper(consumers))
        ctas = plan["multicast"]
        told_by = [{cta["rank"] for cta in ctas if rank in members(cta["commit"])} for rank in range(cm * cn)]
        for cta in ctas:
            assert told_by[cta["rank"]] == members(cta["a"]) | members(cta["b"])
        empty = named(plan["barriers"], "empty")
        assert {len(readers) * consumers for readers in told_by} == {empty["arrivals"]}
        full = named(plan["barriers"], "full")
        assert (full["arrivals"], full["bytes"]) == (1, (64 * consumers + 256) * 64 * ELEMENT_BYTES)


def test_hopper_plan(planner: Planner) -> None:
    """Shared memory, roles and grid of the series on sm_90a; each consumer warpgroup stores its own rows."""
    seven = plan_of(planner, 8192, 8192, 8192, kernel="kernel7", arch="sm_90a")
    assert (seven["arch"], seven["config"]["stages"], seven["block"]) == ("sm_90a", 4, [384, 1, 1])
    assert seven["grid"] == [16, 32, 4]
    assert seven["arguments"][2]["box"] == [32, 64]
    assert {role["name"]: role["warps"] for role in seven["roles"]} == {
        "set-up": [0], "consumers": [*range(8)], "producer": [8, 9, 10, 11]
    }  # fmt: skip
    six = plan_of(planner, 8192, 8192, 8192, kernel="kernel6", arch="sm_90a")
    assert (six["config"]["stages"], six["grid"]) == (3, [64, 32, 1])
    assert plan_of(planner, kernel="kernel6", arch="sm_90a", mma_n=128)["config"]["stages"] == 6
    five = plan_of(planner, kernel="kernel5", arch="sm_90a", mma_m=64)
    assert (five["config"]["stages"], five["block"]) == (1, [128, 1, 1])
    for plan in (five, six, seven):
        lines = {line["name"]: line["bytes"] for line in plan["shared_memory"]}
        assert sum(lines.values()) == plan["dynamic_smem"]
        assert lines["barriers"] == 16 * plan["config"]["stages"]
        last = plan["barriers"][-1]
        assert last["offset"] + 8 * last["count"] == plan["dynamic_smem"]


@pytest.mark.parametrize(
    ("m", "cluster_m", "band_m", "grid"),
    [
        (128 * 64, 2, 16, [16, 1, 4]),
        (128 * 64, 2, 0, [64, 1, 1]),
        (128 * 66, 2, 16, [14, 1, 5]),  # 14 * 5 = 70 rather than 16 * 5 = 80
        (128 * 3, 2, 16, [4, 1, 1]),
        (128 * 9, 3, 2, [3, 1, 3]),  # a band is at least a cluster
        (128 * 10, 1, 4, [4, 1, 3]),
    ],
)
def test_bands_cover_all_rows_in_whole_clusters(
    planner: Planner, m: int, cluster_m: int, band_m: int, grid: list[int]
) -> None:
    plan = plan_of(planner, m, 256, 64, arch="sm_90a", cluster_m=cluster_m, band_m=band_m)
    assert plan["grid"] == grid
    assert grid[0] % cluster_m == 0 and grid[0] * grid[2] * 128 >= m


def test_bytes_on_a_full_barrier_are_the_stages_of_all_ctas_of_the_mma(planner: Planner) -> None:
    for cta_group, m, n in [(1, 64, 64), (1, 128, 256), (2, 128, 256), (2, 256, 128), (2, 256, 256)]:
        plan = plan_of(planner, cta_group=cta_group, mma_m=m, mma_n=n, cluster_m=2, cluster_n=3)
        rows = m + n  # of the pair, or of the CTA
        assert named(plan["barriers"], "full")["bytes"] == rows * 64 * ELEMENT_BYTES
        lines = {line["name"]: line["bytes"] for line in plan["shared_memory"]}
        stages = plan["config"]["stages"]
        assert lines["A stages"] + lines["B stages"] == stages * rows * 64 * ELEMENT_BYTES // cta_group
        assert sum(lines.values()) == plan["dynamic_smem"] <= 232448


def test_shared_memory_budget_of_the_series(planner: Planner) -> None:
    six = {line["name"]: line["bytes"] for line in plan_of(planner, kernel="kernel6")["shared_memory"]}
    assert (six["A stages"] + six["B stages"], six["C tile"]) == (160 * 1024, 64 * 1024)
    seven = plan_of(planner, kernel="kernel7")
    lines = {line["name"]: line["bytes"] for line in seven["shared_memory"]}
    assert (seven["config"]["stages"], lines["C tile"]) == (6, 16 * 1024)
    five = plan_of(planner, kernel="kernel5")
    assert (five["config"]["stages"], five["block"]) == (1, [128, 1, 1])


def test_barriers_and_tiles_do_not_overlap(planner: Planner) -> None:
    for kernel in ("kernel5", "kernel6", "kernel7"):
        plan = plan_of(planner, kernel=kernel)
        tiles = sum(line["bytes"] for line in plan["shared_memory"] if line["name"] != "barriers")
        offsets = [barrier["offset"] + 8 * index for barrier in plan["barriers"] for index in range(barrier["count"])]
        assert len(set(offsets)) == len(offsets) and min(offsets) == tiles
        assert max(offsets) + 8 + 8 == plan["dynamic_smem"]  # the word of the TMEM address is last


def test_grid_covers_the_problem_in_whole_clusters(planner: Planner) -> None:
    plan = plan_of(planner, 500, 296, 584, cluster_m=4, cluster_n=4)
    assert (plan["grid"], plan["cluster"], plan["block"]) == ([4, 4, 1], [4, 4, 1], [192, 1, 1])
    a, b, c, k, *extents, counter = plan["arguments"][:7]
    assert (a["dims"], a["strides"], a["box"]) == ([584, 500], [1168], [64, 32])
    assert (b["dims"], b["strides"], b["box"]) == ([584, 296], [1168], [64, 64])
    assert (c["dims"], c["strides"], c["box"]) == ([296, 500], [592], [64, 128])
    assert k["value"] == 10 and [extent["value"] for extent in extents] == [500, 296]
    assert counter["value"] == 0, "no counter: a null pointer"
    one = plan_of(planner, 513, 257 + 7, 8, cluster_m=2, cluster_n=1)
    assert (one["grid"], one["arguments"][3]["value"]) == ([6, 2, 1], 1)


@pytest.mark.parametrize(
    ("width", "swizzle", "kernel"), [(64, "128B", "kernel6"), (32, "64B", "kernel7"), (16, "32B", "kernel7")]
)
def test_boxes_of_c_are_as_wide_as_their_swizzle(planner: Planner, width: int, swizzle: str, kernel: str) -> None:
    c = plan_of(planner, kernel=kernel, epilogue_width=width)["arguments"][2]
    assert (c["box"], c["swizzle"]) == ([width, 128], swizzle)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster_m": 3, "cluster_n": 1}, "cluster 3x1: 3 CTAs along M cannot be split into pairs"),
        ({"cluster_m": 4, "cluster_n": 5}, "cluster 4x5 has 20 CTAs"),
        ({"stages": 6}, "A and B 196608 + C 65536 + barriers 112 = 262256, more than the 232448 bytes"),
        ({"stages": -1}, "stages -1: the ring needs at least 1; kernel6 takes 1 to 5 here"),
        ({"stages": 0}, "stages 0: the ring needs at least 1"),
        ({"kernel": "kernel5", "stages": 2}, "kernel5 has no pipeline, its only depth is 1"),
        ({"kernel": "kernel4"}, "kernel 'kernel4' is not one of"),
        ({"mma_m": 64}, "mma shape 64x256 with cta group 2: M must be 128 or 256"),
        ({"mma_m": 0}, "mma shape 0x256 with cta group 2: M must be 128 or 256"),
        ({"mma_n": 264}, "mma shape 256x264 with cta group 2: N must be a multiple of 32 up to 256"),
        ({"mma_n": 96, "epilogue_width": 64}, "epilogue width 64 does not divide the 96"),
        ({"epilogue_width": 8}, "epilogue width 8 is not one of 16, 32, 64"),
        ({"cta_group": 3}, "cta group 3 is not possible on sm_100a"),
        ({"block_k": 32}, "'block_k' is not a parameter"),
        ({"cta_group": 1, "mma_m": 64, "cluster_m": 1, "cluster_n": 16}, "16 CTAs share 64 rows of A and each needs"),
        ({"arch": "sm_120a"}, "arch 'sm_120a' is not one of sm_100a, sm_90a"),
        (hopper() | {"cta_group": 2}, "cta group 2 is not possible on sm_90a"),
        (hopper(3), "mma shape 192x256 with cta group 1: M must be 64 or 128 or 256"),
        (hopper(4), "mma shape 256x256 with cta group 1: N must be a multiple of 16 up to 128"),
        (hopper() | {"mma_n": 72}, "mma shape 128x72 with cta group 1: N must be a multiple of 16 up to 256"),
        (hopper() | {"stages": 4}, "+ barriers 64 = 262208, more than the 232448 bytes"),
        (
            {"kernel": "kernel8", "scheduler": "static", "ping_pong": "true"} | hopper() | {"mma_m": 256, "mma_n": 64},
            "mma shape 256x64 with ping-pong: one warpgroup has all rows of a tile",
        ),
        ({"band_m": -1}, "band of -1 CTAs along M"),
        ({"dtype": "fp8"}, "dtype 'fp8' is not one of bf16, fp16"),
        ({"clusterm": 2}, "'clusterm' is not a parameter"),
    ],
)
def test_illegal_configurations_are_one_line(planner: Planner, options: dict, message: str) -> None:
    done = planner(**options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 8, 8), "M 0 is not at least 1"),
        ((8, 12, 8), "N 12 is not a multiple of 8: rows must be a multiple of 16 bytes for TMA, pad to 16"),
        ((8, 8, 20), "K 20 is not a multiple of 8: rows must be a multiple of 16 bytes for TMA, pad to 24"),
        ((8, 8, -8), "K -8 is not at least 1"),
        ((1 << 31, 8, 8), "too large"),
        ((8, 65536 * 256, 8), "more than 65535"),
    ],
)
def test_illegal_sizes_are_one_line(planner: Planner, sizes: tuple[int, ...], message: str) -> None:
    done = planner(*sizes)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1
