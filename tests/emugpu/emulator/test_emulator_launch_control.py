"""Cluster launch control: running clusters take over the work of clusters that have not started yet.

The kernels are persistent: a CTA processes its own tile and then those of the clusters it could cancel. Every warp
counts the tiles it has done. However many clusters a GPU holds, in whatever order things happen and whatever requests
are refused, each warp's share of each tile must be done exactly once.
"""

from __future__ import annotations

import itertools
import re
from functools import cache

import numpy as np
import pytest
from launch_control import (
    ARM,
    CLUSTER_BARRIER,
    COORDINATES,
    COORDINATES_X,
    FENCE,
    GRANTED_TILE,
    HEADER,
    IS_CANCELED,
    MULTICAST_REQUEST,
    OWN_TILE,
    PROCESS,
    REQUEST,
    persistent,
)
from ptx_programs import WORDS, launch

from emugpu.emulator import Deadlock, Device, EmulatorError, Fault, Module, PtxSyntaxError


@cache
def module(text: str) -> Module:
    return Module.from_text(text)


class Run:
    """What a launch left behind. ``counts`` by tile and warp; ``launched``: tiles that their own CTA has done."""

    def __init__(self, text, grid=9, cluster=1, warps=2, schedule="fifo", seed=0, **options):
        tiles = int(np.prod(grid))
        device = Device(schedule=schedule, seed=seed)
        counts = device.upload(np.zeros((tiles, warps), np.uint32), "counts")
        origin = device.upload(np.zeros(tiles, np.uint32), "origin")
        self.counters = device.launch(
            module(text), grid=grid, cluster=cluster, block=32 * warps, arguments=[counts, origin], **options
        ).counters
        self.counts = device.download(counts, np.uint32, (tiles, warps))
        self.launched = np.flatnonzero(device.download(origin, np.uint32, tiles) == 1).tolist()

    @property
    def exact(self) -> bool:
        return bool((self.counts == 1).all())


def random_runs(text, seeds, **options):
    for seed in range(seeds):
        yield Run(text, schedule="random", seed=seed, resident_clusters=1 + seed % 5, **options)


def errors(text, seeds=20, **options) -> list[EmulatorError | None]:
    """How a program ends under fifo and under random schedules."""
    ends: list[EmulatorError | None] = []
    for schedule, seed in [("fifo", 0), *(("random", seed) for seed in range(seeds))]:
        try:
            Run(text, schedule=schedule, seed=seed, **{"resident_clusters": 2} | options)
            ends.append(None)
        except EmulatorError as error:
            ends.append(error)
    return ends


# ---- work is done exactly once ----

# The other ways to say the same: 128 bits from two halves, coordinates one by one, under a guard instead of a branch,
# and the pair of one-sided fences of the PTX ISA instead of the whole one.
OTHER_WORDS = {
    "read": """
    { .reg .b64 low, high;
    ld.shared.v2.b64 {low, high}, [response];
    mov.b128 %handle, {low, high};
    fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster; }""",
    "query": f"""
    {IS_CANCELED}
    @%p5 {COORDINATES_X}
    @%p5 {COORDINATES_X.replace("::x", "::y").replace("%r8", "%r9")}
    @%p5 {COORDINATES_X.replace("::x", "::z").replace("%r8", "%r10")}
    fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;
    @!%p5 bra REFUSED;""",
}


@pytest.mark.parametrize("words", [{}, OTHER_WORDS], ids=["words", "other words"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("cluster", [1, 2])
def test_in_order_the_resident_clusters_take_everything_over(cluster, depth, words):
    run = Run(persistent(depth, cluster, **words), grid=12 * cluster, cluster=cluster, resident_clusters=3)
    assert run.exact
    assert (run.counters.clusters, run.counters.clusters_launched, run.counters.clusters_granted) == (12, 3, 9)
    assert run.launched == list(range(3 * cluster)), "those that started are the first of the grid"


def test_a_request_may_name_its_places_by_generic_addresses():
    text, found = re.subn(
        r"((?:@!?%p\d+ )?)clusterlaunchcontrol\.try_cancel\.async\.shared::cta(\S*) \[(\S+)\], \[(\S+)\];",
        r"cvt.u64.u32 %rd14, \3; cvt.u64.u32 %rd15, \4; cvta.shared.u64 %rd14, %rd14; cvta.shared.u64 %rd15, %rd15;"
        r"\1clusterlaunchcontrol.try_cancel.async\2 [%rd14], [%rd15];",
        persistent(),
    )
    assert found
    run = Run(text, grid=12, resident_clusters=3)
    assert run.exact and run.counters.clusters_granted == 9


@pytest.mark.thorough
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("cluster", [1, 2])
def test_every_tile_is_done_once_in_any_order_with_delays_and_refusals(cluster, depth):
    text = persistent(depth, cluster)
    launched = set()
    for seed, run in enumerate(random_runs(text, 200, grid=9 * cluster, cluster=cluster)):
        counters = run.counters
        assert run.exact, seed
        assert counters.clusters == 9 == counters.clusters_launched + counters.clusters_granted
        assert len(run.launched) == cluster * counters.clusters_launched
        launched.add((1 + seed % 5, counters.clusters_launched))
    assert any(clusters == resident for resident, clusters in launched), "all of the rest is granted"
    assert any(resident < clusters for resident, clusters in launched), "some requests are refused"
    assert any(clusters < 9 for _, clusters in launched)


@pytest.mark.parametrize("cluster", [1, 2])
def test_where_every_other_request_is_declined_other_clusters_start(cluster):
    run = Run(persistent(1, cluster), grid=12 * cluster, cluster=cluster, resident_clusters=1, schedule="declining")
    assert run.exact
    # The first cluster is declined at once, each later one after one grant; the last finds nothing left.
    assert (run.counters.clusters_launched, run.counters.clusters_granted) == (7, 5)
    assert run.launched[:cluster] == list(range(cluster)) and len(run.launched) == 7 * cluster
    two = Run(persistent(2, cluster), grid=12 * cluster, cluster=cluster, resident_clusters=1, schedule="declining")
    assert two.exact


@pytest.mark.parametrize("cluster", [1, 2])
def test_a_grid_that_fits_has_nothing_to_give_away(cluster):
    for options in ({}, {"resident_clusters": 6}, {"schedule": "random", "seed": 3}):
        run = Run(persistent(2, cluster), grid=6 * cluster, cluster=cluster, **options)
        assert run.exact
        assert (run.counters.clusters_launched, run.counters.clusters_granted) == (6, 0)


@pytest.mark.parametrize(
    ("grid", "cluster"), [((3, 2, 2), 1), ((4, 3), (2, 1)), ((3, 4), (1, 2)), ((2, 2, 4), (1, 1, 2))]
)
def test_a_grant_names_the_first_cta_of_a_cluster_in_three_dimensions(grid, cluster):
    size = int(np.prod(cluster))
    for schedule, seed in [("fifo", 0), ("random", 1), ("random", 2)]:
        run = Run(persistent(1, size), grid=grid, cluster=cluster, resident_clusters=2, schedule=schedule, seed=seed)
        assert run.exact


def test_what_is_not_asked_for_is_launched():
    """CTAs that ask once and leave: the launcher starts the ones in between, and grants have gaps."""
    once = persistent(refused="bra.uni DONE;").replace("@%p6 bra PROCESS;", "mov.b32 %r4, 1; bra.uni PROCESS;", 1)
    run = Run(once, grid=12, resident_clusters=2)
    assert run.exact
    assert run.counters.clusters_launched + run.counters.clusters_granted == 12
    assert run.counters.clusters_launched >= 6


# ---- a scheduler warp and worker warps ----

SCHEDULER = """
shl.b32 SLOT, INDEX, 3;
mov.b32 %r30, full;
add.s32 %r30, %r30, SLOT;
mov.b32 %r31, empty;
add.s32 %r31, %r31, SLOT;
shl.b32 SLOT, INDEX, 4;
mov.b32 %r32, responses;
add.s32 %r32, %r32, SLOT;
""".replace("SLOT", "%r33").replace("INDEX", "%r34")
"""%r30 full, %r31 empty, %r32 response of slot %r34."""

ADVANCE = """
add.s32 %r34, %r34, 1; setp.eq.u32 %p9, %r34, 2;
@%p9 mov.b32 %r34, 0;
@%p9 xor.b32 %r35, %r35, 1;
"""

SPECIALISED = (
    HEADER.format(target="sm_100a")
    + f"""
@!%p0 bra READY;
mbarrier.init.shared.b64 [full], 1;
mbarrier.init.shared.b64 [full+8], 1;
mbarrier.init.shared.b64 [empty], 3;
mbarrier.init.shared.b64 [empty+8], 3;
fence.mbarrier_init.release.cluster;
READY:
{CLUSTER_BARRIER}
mov.b32 %r34, 0;
mov.b32 %r35, 0;
setp.ne.u32 %p4, %r1, 0; @%p4 bra WORKER;
setp.ne.u32 %p4, %r20, 0; @%p4 bra DONE;
setp.gt.u32 %p4, %r2, 1; @%p4 bra DONE;

ASK:
{SCHEDULER}
xor.b32 %r36, %r35, 1;
W0: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p5, [%r31], %r36; @!%p5 bra W0;
mapa.shared::cluster.u32 %r37, %r30, %r2;
mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%r37], 16;
bar.warp.sync 3;
@%p0 {MULTICAST_REQUEST.replace("[response], [bar]", "[%r32], [%r30]")}
W1: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r30], %r35; @!%p5 bra W1;
ld.shared.b128 %handle, [%r32];
{FENCE}
bar.warp.sync 3;
@%p0 mbarrier.arrive.shared.b64 _, [%r31];
{IS_CANCELED}
{ADVANCE}
@%p5 bra ASK;
bra.uni DONE;

WORKER:
{OWN_TILE}
WORK:
{PROCESS.replace("@%p0 st", "@%p1 st").replace("%r1;", "0;")}
{SCHEDULER}
W2: mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r30], %r35; @!%p5 bra W2;
ld.shared.b128 %handle, [%r32];
{FENCE}
bar.warp.sync -1;
mapa.shared::cluster.u32 %r37, %r31, 0;
@%p1 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r37];
{IS_CANCELED}
{ADVANCE}
@!%p5 bra DONE;
{COORDINATES}
{GRANTED_TILE}
bra.uni WORK;

DONE: barrier.cluster.arrive; barrier.cluster.wait;
ret;
}}"""
)
"""Warp 0 of rank 0 asks, two lanes of it arm the barriers of both CTAs; warp 1 of each CTA works. Two slots, which the
readers (two workers and the scheduler) give back to rank 0. Only counts[:, 0] is used."""


def test_a_scheduler_warp_feeds_the_workers_of_a_cluster():
    runs = random_runs(SPECIALISED, 30, grid=12, cluster=2)
    for run in itertools.chain([Run(SPECIALISED, grid=12, cluster=2, resident_clusters=2)], runs):
        assert (run.counts[:, 0] == 1).all() and not run.counts[:, 1].any()
        assert run.counters.clusters_launched + run.counters.clusters_granted == 6


FOUR_LANES = (
    HEADER.format(target="sm_100a")
    + f"""
@%p0 mbarrier.init.shared.b64 [full], 1;
bar.sync 0;
{OWN_TILE}
{PROCESS}
@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [full], 64;
bar.sync 0;
setp.ge.u32 %p4, %r0, 4;
@%p4 ret;
shl.b32 %r30, %r0, 4;
mov.b32 %r31, responses;
add.s32 %r30, %r30, %r31;
{REQUEST.replace("[response], [bar]", "[%r30], [full]")}
W: mbarrier.try_wait.parity.shared::cta.b64 %p5, [full], 0; @!%p5 bra W;
ld.shared.b128 %handle, [%r30];
{IS_CANCELED}
@!%p5 ret;
{COORDINATES}
{GRANTED_TILE}
setp.eq.u32 %p1, %r0, %r0;
mov.pred %p0, %p1;
{PROCESS}
ret;
}}"""
)


def test_every_lane_that_asks_makes_a_request_of_its_own():
    run = Run(FOUR_LANES, grid=8, warps=1, resident_clusters=1)
    assert run.exact
    assert run.launched == [0, 5] and run.counters.clusters_granted == 6
    for run in random_runs(FOUR_LANES, 10, grid=8, warps=1):
        assert run.exact


# ---- broken twins ----


@pytest.mark.parametrize("cluster", [1, 2])
def test_a_request_after_a_refusal_has_been_seen_is_reported(cluster):
    text = persistent(1, cluster, refused="{issue} {wait} bra.uni DONE;")
    for error in errors(text, 10, grid=6 * cluster, cluster=cluster):
        assert isinstance(error, Fault) and error.rule == "clc-after-failure"
        assert "clusterlaunchcontrol.try_cancel" in str(error) and re.search(r"PTX line \d+", str(error))


def test_two_requests_that_are_both_refused_are_in_order():
    """The second was made before anybody saw the first refusal."""
    assert Run(persistent(2), grid=3).exact


@pytest.mark.parametrize("cluster", [1, 2])
def test_leaving_with_a_request_under_way_is_reported(cluster):
    text = persistent(2, cluster, refused="bra.uni DONE;")
    rules = {error.rule for error in errors(text, 30, grid=5 * cluster, cluster=cluster) if isinstance(error, Fault)}
    assert rules == {"clc-exit-pending"}


def test_leaving_right_after_the_request_is_reported():
    text = persistent().replace("NEXT:", "NEXT: bra.uni DONE;", 1)
    ends = errors(text, grid=4)
    assert isinstance(ends[0], Fault) and ends[0].rule == "clc-exit-pending"
    assert {error.rule for error in ends if error is not None} == {"clc-exit-pending"}


def test_a_grant_behind_a_refusal_is_lost_if_nobody_looks_at_it():
    """The rest is awaited, so nothing is against the rules; but a refusal does not mean that no work is left."""
    ignore = """
    REST: setp.eq.u32 %p4, %r4, %r5; @%p4 bra DONE;
    {wait}
    bra.uni REST;
    """
    counts = [run.counts for run in random_runs(persistent(2, refused=ignore), 60)]
    assert all((each <= 1).all() for each in counts)
    assert any((each == 0).any() for each in counts)


@pytest.mark.parametrize("coordinates", [COORDINATES, COORDINATES_X])
def test_coordinates_of_a_refusal_may_be_taken_but_not_used(coordinates):
    """Compilers take them first, and look afterwards whether there are any."""
    text = persistent(query=f"{coordinates} {IS_CANCELED} @!%p5 bra REFUSED; {COORDINATES}")
    assert not any(errors(text, 10, grid=6))
    used = f"{coordinates} setp.eq.u32 %p9, %r8, 77; @%p9 bra HERE; HERE:"
    text = persistent(query=f"{used} {IS_CANCELED} @!%p5 bra REFUSED; {COORDINATES}")
    for error in errors(text, 10, grid=6):
        assert isinstance(error, Fault) and error.rule == "clc-failed-coordinates"
        assert "get_first_ctaid" in str(error)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_barrier_that_expects_no_bytes_ends_in_a_report(depth):
    """It completes before the response is there, or never: the 16 bytes come unexpected in one phase or the next."""
    text = persistent(depth, arm="mbarrier.arrive.shared.b64 _, [bar];")
    for error in errors(text, 20, grid=6):
        assert isinstance(error, Fault | Deadlock)


@pytest.mark.parametrize(("bytes_expected", "pending"), [(32, 16), (8, -8)])
@pytest.mark.parametrize("cluster", [1, 2])
def test_a_wrong_number_of_bytes_is_a_deadlock_that_says_what_is_left(cluster, bytes_expected, pending):
    text = persistent(1, cluster, arm=ARM.replace("16;", f"{bytes_expected};"))
    for error in errors(text, 3, grid=6 * cluster, cluster=cluster):
        assert isinstance(error, Deadlock)
        assert re.search(rf"pending: {pending} bytes", str(error))
        assert "mbarrier.try_wait.parity" in str(error)


def test_a_response_to_all_ctas_needs_the_barrier_of_each():
    text = persistent(1, 2).replace(ARM, "@%p2 " + ARM)
    for error in errors(text, 3, grid=8, cluster=2):
        assert isinstance(error, Deadlock)
        assert re.search(r"rank 1.*: phase 0 \(parity 0\), pending: 1 of 1 arrivals, -16 bytes", str(error))


def test_a_response_to_a_cta_that_has_left_is_reported():
    leave = "setp.ne.u32 %p4, %r20, 0; @%p4 ret; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    text = persistent(1, 2).replace("READY:\n", f"READY: {CLUSTER_BARRIER} {leave} bar.sync 0;\n", 1)
    for error in errors(text, 3, grid=8, cluster=2):
        assert isinstance(error, Fault)
        assert re.search(r"exited|ended|left|finished|gone", str(error))


def test_a_slot_that_is_not_free_yet_is_overwritten():
    """Without a barrier between reading and asking again, a slow warp reads the response after its own."""
    text = persistent(release="")
    wrong = [error for error in errors(text, 5, grid=6, warps=3) if error is not None]
    for seed in range(40):
        try:
            run = Run(text, grid=9, warps=3, schedule="random", seed=seed, resident_clusters=2)
        except EmulatorError as error:
            wrong.append(error)
        else:
            if not run.exact:
                wrong.append(None)
    assert wrong


def test_a_response_goes_to_an_address_aligned_to_16_bytes():
    text = persistent().replace("[response], [bar]", "[response+8], [bar]")
    with pytest.raises(Fault, match=r"16|align"):
        Run(text, grid=2)


@pytest.mark.parametrize(
    ("target", "cluster", "words"), [("sm_90a", 1, r"sm_90a"), ("sm_100", 2, r"sm_100"), ("sm_90", 1, r"sm_90")]
)
def test_a_target_that_lacks_launch_control_is_refused(target, cluster, words):
    with pytest.raises(PtxSyntaxError, match=words) as error:
        Module.from_text(persistent(1, cluster, target=target))
    assert "clusterlaunchcontrol" in str(error.value)


def test_plain_sm_100_has_launch_control_without_multicast():
    assert Run(persistent(target="sm_100"), grid=6, resident_clusters=2).exact


def test_a_failed_response_holds_no_coordinates_by_chance():
    """What it holds beside the flag is undefined: it must not look like a CTA of some grid."""
    body = """
    mov.b32 %r3, words;
    setp.ne.u32 %p1, %r0, 0; @%p1 exit;
    mbarrier.init.shared.b64 [%r3+16], 1;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r3+16], 16;
    add.u32 %r4, %r3, 16;
    clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r3], [%r4];
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0; @!%p2 bra WAIT;
    ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r3];
    st.global.v4.b32 [%rd0], {%r5, %r6, %r7, %r8};
    ret;
    """
    x, yz, given, _ = launch(body, module_scope=WORDS).words(4).tolist()
    assert x >= 1 << 31 and yz == 0xFFFFFFFF and given & 1 == 0
