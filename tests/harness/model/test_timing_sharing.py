"""CTAs that share something in the timing model: an SM, the tensor core's queue, a way to L2, the rows they ask for."""

from __future__ import annotations

from functools import cache

import pytest

from harness.compile.artifacts import Artifact, build
from harness.compile.config import make_config
from harness.model.constants import ENDLESS, find_gpu
from harness.model.gemm import Gemm, Spread
from harness.model.limits import limits
from harness.model.sharing import SharedOperand, coalesced
from harness.model.simulate import simulate
from harness.model.units import Contended, MemorySystem, Tensor, Unit, Units
from harness.problem import Shape

CLOCK = 1.8e9
GPU = find_gpu("h200")


Asked = tuple[str, tuple[int, int], tuple[int, int], tuple[tuple[str, object], ...]]
"""Kernel, tile, cluster and other options."""
ALONE = ("kernel7", (128, 256), (1, 1), ())
ALONG_N = ("kernel7", (128, 256), (1, 2), (("multicast", False),))
SHARED_BY_MULTICAST = ("kernel7", (128, 256), (2, 1), ())
SHARED_BY_MANY = ("kernel6", (64, 256), (1, 2), ())
STAYS = ("kernel8", (64, 256), (1, 2), (("raster_group", 1),))
TWO_BLOCKS = ("kernel7", (256, 128), (1, 1), (("stages", 2),))
ONE_BLOCK = ("kernel7", (128, 128), (1, 1), (("stages", 2), ("epilogue_width", 32)))
TWO_ON_AN_SM = ("kernel5", (128, 192), (2, 2), ())
MANY_ON_AN_SM = ("kernel5", (64, 128), (2, 1), ())
DYNAMIC = ("kernel8", (128, 256), (2, 1), (("scheduler", "dynamic"),))
ALL: tuple[Asked, ...] = (
    *(ALONE, ALONG_N, SHARED_BY_MULTICAST, SHARED_BY_MANY),
    *(STAYS, TWO_BLOCKS, ONE_BLOCK, TWO_ON_AN_SM, MANY_ON_AN_SM, DYNAMIC),
)


@cache
def artifacts() -> dict[Asked, Artifact]:
    """All at once, which takes little more than one."""
    configs = [
        make_config(kernel, arch="sm_90a", mma_shape=tile, cluster=cluster, **dict(options))
        for kernel, tile, cluster, options in ALL
    ]
    return dict(zip(ALL, build(configs), strict=True))


# ---- the tensor core's queue ----


def test_a_tensor_core_takes_a_few_at_once():
    core = Tensor()
    for _ in range(3):
        core.serve(10.0, 100.0)
    assert core.room(4) == 0.0
    assert core.room(3) == 110.0, "when the first of three has ended"
    assert core.room(2) == 210.0 and core.room(1) == 310.0


@pytest.mark.parametrize(("asked", "slower"), [(TWO_BLOCKS, True), (ONE_BLOCK, False)])
def test_a_ring_of_two_waits_for_the_issue_of_more_wgmma_than_are_taken(asked, slower):
    """Two warpgroups issue 2 x 4 each for 256 rows: a stage is released behind the last of them, so its load comes
    later. 2 x 4 for both together are taken at once, nearly."""
    artifact = artifacts()[asked]
    rows = asked[1][0]
    plan = artifact.plan(Shape(rows, 128, 2048))
    taken = [simulate(artifact, plan, GPU.with_values({"tensor.queue": n}), CLOCK).cycles for n in (7, 60)]
    if slower:
        assert taken[0] > 1.1 * taken[1]
    else:
        assert taken[0] == pytest.approx(taken[1], rel=0.05)


def test_all_warps_of_a_warpgroup_are_held_while_one_cannot_issue():
    """A queue of one: each multiplication waits for the one before, and with it whatever the warps do next."""
    artifact = artifacts()[ONE_BLOCK]
    plan = artifact.plan(Shape(128, 128, 1024))
    one, many = (simulate(artifact, plan, GPU.with_values({"tensor.queue": n}), CLOCK) for n in (1, 7))
    assert one.cycles > many.cycles
    assert [sm.tensor.busy for sm in one.machine.sms] == [sm.tensor.busy for sm in many.machine.sms]


# ---- an SM ----


def test_clusters_at_once_as_an_h200_holds_them():
    """The micro-benchmark `resident_clusters`, by CTAs of a cluster, for 1 to 4 of them an SM."""
    seen = {2: [66, 132, 198, 264], 4: [30, 62, 92, 124], 8: [15, 30, 45, 62], 16: [7, 14, 21, 28]}
    for size, clusters in seen.items():
        assert [GPU.resident_clusters(size, per_sm) for per_sm in (1, 2, 3, 4)] == clusters


@pytest.mark.parametrize(("clusters", "sms"), [(8, 32), (62, 132)])
def test_ctas_share_sms_only_if_there_are_more_of_them(clusters, sms):
    """Two CTAs of this kernel 5 fit on an SM."""
    artifact = artifacts()[TWO_ON_AN_SM]
    gemm = Gemm(artifact.plan(Shape(256 * clusters, 384, 64)), GPU, artifact.statistics()["registers"])
    assert gemm.ctas_per_sm == 2
    spread = gemm.spread(detail=10**9)
    assert spread.slots == clusters and gemm.simulated_sms(spread) == sms and gemm.simulated_gpcs(spread) == 8


def test_ctas_that_share_an_sm_are_of_as_many_clusters_however_few_are_simulated():
    artifact = artifacts()[TWO_ON_AN_SM]
    gemm = Gemm(artifact.plan(Shape(8192, 8192, 16384)), GPU, artifact.statistics()["registers"])
    assert gemm.spread().slots == gemm.ctas_per_sm == 2


@pytest.mark.parametrize(("barriers", "per_sm"), [(None, 5), (1, 5), (12, 5), (13, 4), (16, 4)])
def test_named_barriers_decide_how_many_ctas_an_sm_holds(barriers, per_sm):
    """By shared memory and registers five of this kernel 5 fit; it names barriers in a register, and so has all 16."""
    artifact = artifacts()[MANY_ON_AN_SM]
    registers = artifact.statistics()["registers"]
    plan = artifact.plan(Shape(64, 128, 64))
    assert Gemm(plan, GPU, registers, barriers).ctas_per_sm == per_sm
    assert simulate(artifact, plan, GPU, CLOCK).spread.ctas_per_sm == 4, "which NVIDIA's assembler says"


@pytest.mark.parametrize(
    ("tiles", "simulated"),
    [(66, {1: 1, 3: 3}), (2 * 66, {1: 2, 3: 6}), (2 * 66 + 1, {1: 3, 3: 7}), (3 * 66 - 1, {1: 3, 3: 9})],
)
def test_few_simulated_clusters_have_as_many_rounds_of_a_dynamic_schedule_as_all(tiles, simulated):
    """Of 66 clusters one or three are: their counter stands where it leaves them a tile in each wave."""
    gemm = Gemm(artifacts()[DYNAMIC].plan(Shape(256 * tiles, 256, 64)), GPU)
    for slots, count in simulated.items():
        spread = Spread(66, slots, tuple(range(slots)), 1)
        assert len(gemm.simulated_tiles(spread)) == count
        assert gemm.first_counts(spread) == {0: (tiles - 66) - (count - slots)}


@pytest.mark.slow
def test_the_parts_add_up_where_sms_are_shared():
    artifact = artifacts()[TWO_ON_AN_SM]
    run = simulate(artifact, artifact.plan(Shape(256 * 62, 384, 512)), GPU, CLOCK)
    parts = limits(run.machine, run.used)
    assert sum(part.share for part in parts) == pytest.approx(1.0, abs=0.05)


# ---- L2 ----


LINES = 128


@pytest.mark.parametrize(
    ("asked", "shape", "answered"),
    [
        # Two clusters on each of eight GPCs, which need the same columns of B, and rows of A that nobody else needs.
        (ALONE, (16 * 128, 256, 64), (128 + 256 / (1 + 0.82)) / 384),
        # The same two need the same rows of A, and columns of B that nobody else needs.
        (ALONE, (128, 16 * 256, 64), (128 / (1 + 0.1) + 256) / 384),
        # Seven rows of tiles: clusters of a GPC, eight numbers apart in the model, have neither in common.
        (ALONE, (7 * 128, 2 * 256, 64), 1.0),
        # One on each GPC.
        (ALONE, (8 * 128, 256, 64), 1.0),
        # Both CTAs of a cluster along N need the same rows of A, and ask by themselves.
        (ALONG_N, (128, 512, 64), (128 / 2 + 256) / 384),
        # What is multicast is asked for once, and answered once: half of B's 256 columns by each; A's rows by one GPC.
        (SHARED_BY_MULTICAST, (256, 16 * 256, 64), (128 / (1 + 0.1) + 128) / 256),
        # 66 clusters, eight or nine on a GPC, need the same columns of B: most are answered together, but not all.
        (SHARED_BY_MANY, (66 * 64, 512, 64), (32 + 256 * 0.36) / 288),
        # The same in four waves, by persistent clusters: in the first 0.144 of them, in the others 0.696.
        (STAYS, (132 * 64, 1024, 64), (32 + 256 * (0.1436 + 3 * 0.6962) / 4) / 288),
        # All 132 need the same rows of A: 16 or 17 on a GPC, in the first wave, and in three, in which they lose step.
        (ALONE, (128, 132 * 256, 64), (128 * 0.3919 + 256) / 384),
        (ALONE, (128, 132 * 3 * 256, 64), (128 * (0.3919 + 2 * 0.6826) / 3 + 256) / 384),
    ],
)
def test_what_clusters_of_a_gpc_ask_for_is_answered_together(asked, shape, answered):
    gemm = Gemm(artifacts()[asked].plan(Shape(*shape)), GPU)
    assert gemm.coalesced[LINES] == pytest.approx(answered, rel=1e-3)


def test_later_clusters_start_on_any_gpc():
    """Of 32 clusters every two neighbours need the same columns of B. They are dealt to two GPCs; later ones, four to a
    GPC, meet there with three chances in 31."""
    places = [(0, number // 2) for number in range(32)]
    for persistent, waves, answered in ((False, 1, 1.0), (False, 2, (1 + 1 / (1 + 0.82 * 3 / 31)) / 2), (True, 2, 1.0)):
        assert coalesced([SharedOperand("B", 128, 1, False)], places, waves, persistent, 8)[LINES] == pytest.approx(
            answered
        )


def test_less_is_answered_together_where_rows_are_no_lines():
    """Two clusters on each GPC need the same columns of B: of lines L2 gives out 0.700."""
    gemm = Gemm(artifacts()[ALONE].plan(Shape(16 * 128, 256, 64)), GPU)
    assert gemm.coalesced == pytest.approx({128: 0.6996, 64: 0.7597, 32: 0.7747, 16: 1.0}, abs=1e-4)


@pytest.mark.parametrize(
    ("aligned", "coalesced", "saved", "name"),
    [
        (128, 0.6, 1.0, "l2.rows_of_128"),
        (64, 0.6, GPU["l2.saved_of_64"], "l2.rows_of_64"),
        (32, 0.6, GPU["l2.saved_of_32"], "l2.rows_of_32"),
        (16, 0.6, 0.0, "l2.rows_of_16"),
        (128, 0.1, 1.0, "l2.rows_of_128"),
    ],
)
def test_l2_gives_out_less_than_is_asked_for_and_the_way_to_it_passes_all(aligned, coalesced, saved, name):
    nbytes = 1e6
    gpu = GPU.with_values({"l2.wait": 0, "l2.spread": 0})
    units = Units(gpu, MemorySystem(1.0, CLOCK, miss=0.0, waits=0.0, coalesced={aligned: coalesced}))
    taken = units.read_memory(0.0, nbytes, aligned=aligned) - units.hit_latency
    given = nbytes * (1 - saved * (1 - coalesced)) / GPU["l2.bandwidth"]
    assert taken == pytest.approx(max(given, nbytes / GPU[name]) * CLOCK)


@pytest.mark.parametrize(("aligned", "given"), [(128, 0.383), (64, 0.381), (32, 0.458)])
def test_rows_that_all_sms_load_take_l2_as_long_as_on_an_h200(aligned, given):
    """``given``: bytes that it gave out for each that was asked for, by its counters."""
    saved = {128: 1.0, 64: GPU["l2.saved_of_64"], 32: GPU["l2.saved_of_32"]}[aligned]
    assert (1 - saved * (1 - given)) / GPU["l2.bandwidth"] == pytest.approx(1 / GPU[f"l2.rows_of_{aligned}"], rel=0.03)


@pytest.mark.parametrize(("aligned", "uneven"), [(128, 0.0), (32, GPU["l2.uneven"])])
def test_some_sms_wait_longer_for_l2_than_others_where_rows_lie_in_two_lines(aligned, uneven):
    def waits(behind: float) -> float:
        units = Units(GPU.with_values({"l2.wait": 0, "l2.spread": 0}), MemorySystem(1.0, CLOCK, miss=0.0, waits=0.0))
        units.read_memory(0.0, 1e6, aligned=aligned)
        return units.read_memory(0.0, 1e6, aligned=aligned, behind=behind) - units.hit_latency

    assert waits(1.0) / waits(0.0) == pytest.approx(1 + uneven)
    assert waits(-1.0) / waits(0.0) == pytest.approx(1 - uneven)
    idle = Units(GPU.with_values({"l2.spread": 0}), MemorySystem(1.0, CLOCK, miss=0.0, waits=0.0, clusters=1))
    assert idle.read_memory(1e6, 128, ready=1e6 + 500, aligned=32, behind=1.0) == 1e6 + 500 + idle.hit_latency


# ---- a unit that the others use, too ----


@pytest.mark.parametrize(("clusters", "slack"), [(1, 1.0), (4, 0.25), (ENDLESS, 0.0)])
def test_what_a_simulated_cluster_asks_for_at_once_others_ask_for_at_other_times(clusters, slack):
    """Each of several has its part of the pause."""
    gpu = GPU.with_values({"l2.wait": 0, "l2.spread": 0})
    units = Units(gpu, MemorySystem(1.0, CLOCK, miss=0.0, waits=0.0, clusters=clusters))
    cycles = 2 * GPU["l2.slack"]
    taken = units.read_memory(1e6, cycles * GPU["l2.bandwidth"] / CLOCK) - 1e6 - units.hit_latency
    assert taken == pytest.approx(cycles - slack * GPU["l2.slack"])


def test_what_comes_after_a_pause_is_served_at_once_but_no_more_than_the_share():
    unit = Unit()
    assert unit.serve_soon(1000.0, 60, slack=100) == 1000.0, "in the pause before there was time for it"
    assert unit.serve_soon(1000.0, 60, slack=100) == 1020.0, "for 100 cycles of it, not for 120"
    assert unit.serve_soon(1000.0, 60, slack=100) == 1080.0
    assert Unit().serve_soon(1000.0, 60, slack=0) == 1060.0


def test_the_longer_a_unit_is_busy_the_longer_what_comes_waits():
    waits = []
    for part in (0.1, 0.5, 0.8, 2.0):
        unit = Contended()
        unit.wait = 100
        for n in range(400):
            unit.free = 0.0
            served = unit.serve(100.0 * n, 100.0 * part)
        waits.append(served - 100.0 * n - 100.0 * part)
    assert waits[:3] == pytest.approx([100 * 0.01 / 0.9, 100 * 0.25 / 0.5, 100 * 0.64 / 0.2], rel=0.2)
    assert waits[3] == pytest.approx(100 * 0.85**2 / 0.15), "it stays finite"


# ---- what a warp does by itself ----


@pytest.mark.parametrize(
    ("name", "times"), [("issue.proxy_fence_stored", 4), ("tma.commit_group", 4), ("tma.wait_group", 4)]
)
def test_each_step_of_the_write_out_takes_its_instructions(name, times):
    """One tile of 128 columns in steps of 32, nothing else."""
    artifact = artifacts()[ONE_BLOCK]
    plan = artifact.plan(Shape(128, 128, 64))
    quick, slow = (simulate(artifact, plan, GPU.with_values({name: cycles}), CLOCK).cycles for cycles in (0, 2000))
    assert slow - quick == pytest.approx(2000 * times, rel=0.3)


# ---- two launches at once ----


@pytest.mark.parametrize(("asked", "prepared"), [(STAYS, True), (ALONE, False)])
def test_a_launch_beside_the_one_before_has_prepared_itself(monkeypatch, asked, prepared):
    """Kernel 8 waits for the end of the launch before it: by then its start is over, if it has room next to it."""
    artifact = artifacts()[asked]
    shape = Shape(256, 512, 512)
    assert Gemm(artifact.plan(shape), GPU).two_fit and not Gemm(artifact.plan(Shape(4096, 4096, 512)), GPU).two_fit
    together = simulate(artifact, artifact.plan(shape), GPU, CLOCK).cycles
    monkeypatch.setattr(Gemm, "two_fit", False)
    alone = simulate(artifact, artifact.plan(shape), GPU, CLOCK).cycles
    saved = alone - together
    assert (0.5 * GPU["launch.kernel"] < saved <= GPU["launch.kernel"]) if prepared else saved == 0
