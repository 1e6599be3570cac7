"""When a cluster starts in the timing model: as soon as a GPC has room for it, whichever clusters' CTAs have ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from emugpu.emulator import Module
from emugpu.emulator.machine.grid import Clusters
from harness.model.constants import find_gpu
from harness.model.machine import TimedDevice, TimedMachine
from harness.model.units import MemorySystem

GPU = find_gpu("h200")
COUNTS_DOWN = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry counts(.param .u64 turns) .reqnctapercluster 4, 1, 1 .reqntid 32, 1, 1
{
.reg .pred %p<4>;
.reg .b32 %r<8>;
.reg .b64 %rd<4>;
mov.u32 %r0, %cluster_ctarank;
ld.param.u64 %rd0, [turns];
mul.wide.u32 %rd1, %r0, 4;
add.u64 %rd0, %rd0, %rd1;
ld.global.u32 %r1, [%rd0];
again:
sub.u32 %r1, %r1, 1;
setp.ne.u32 %p0, %r1, 0;
@%p0 bra again;
ret;
}
"""


def run(turns: tuple[int, int, int, int], clusters: int, gpcs: int = 1, sms: int | None = None) -> TimedMachine:
    """CTAs count down, each from the number of its rank; two clusters find room at once."""
    device = TimedDevice(GPU, MemorySystem(1.0, 1.8e9), computes=True, gpcs=gpcs, sms=sms)
    counts = device.upload(np.array(turns, np.uint32))
    device.launch(Module.from_text(COUNTS_DOWN), grid=4 * clusters, arguments=[counts], resident_clusters=2)
    return device.machines[-1]


def starts(machine: TimedMachine) -> list[float]:
    lives = [life for sm in machine.sms for life in sm.lives if life.cta == 0]
    return [life.start for life in sorted(lives, key=lambda life: life.cluster)]


def test_clusters_start_one_after_another_if_their_ctas_take_equally_long():
    first, second, third, fourth = starts(run((4000, 4000, 4000, 4000), 4))
    assert first == second and abs(third - fourth) < 100
    assert third - first > 4 * 4000, "a sum that waits for the one before takes four cycles"


def test_a_cluster_has_the_room_of_ctas_that_ended_before_their_clusters():
    """Two clusters of four; six of the eight CTAs end at once. So four others find room, then the next, and then the
    next: eight, less one for each long one, are fewer than four when five run."""
    machine = run((4000, 1, 1, 1), 6)
    first, *others = starts(machine)
    assert all(start - first < 4000 for start in others[:4]), "none of them has waited for a long CTA"
    assert others[4] - first > 4 * 4000, "and the sixth has"


def test_a_cluster_needs_the_room_of_one_gpc():
    """Three CTAs of each of two GPCs end at once, which are enough for a cluster but lie apart."""
    first, second, third = starts(run((4000, 1, 1, 1), 3, gpcs=2))
    assert first == second and third - first > 4 * 4000


@pytest.mark.parametrize("turns", [(40, 400, 4000, 9000), (9000, 40, 4000, 400), (4000, 4000, 40, 9000)])
def test_ctas_of_one_cluster_share_an_sm_only_where_no_other_has_room(turns):
    """Four SMs hold two CTAs each."""
    machine = run(turns, 9, sms=4)
    together = 0
    for cluster in range(9):
        begin = next(life.start for sm in machine.sms for life in sm.lives if life.cluster == cluster)
        own = [sum(life.cluster == cluster for life in sm.lives) for sm in machine.sms]
        others = [
            sum(life.start < begin < life.end for life in sm.lives if life.cluster != cluster) for sm in machine.sms
        ]
        assert all(mine + other <= 2 for mine, other in zip(own, others, strict=True))
        together += max(own) > 1
        assert max(own) == 1 or any(mine == 0 and other == 2 for mine, other in zip(own, others, strict=True))
    assert together, "some have no choice"


def test_a_cta_lives_until_its_own_end():
    machine = run((4000, 1, 1, 1), 2)
    spans = {(life.cluster, life.cta): life.end - life.start for sm in machine.sms for life in sm.lives}
    assert len(spans) == 8
    assert all((span > 4 * 4000) == (cta == 0) for (_, cta), span in spans.items())


def test_each_cluster_is_launched_or_granted_once_whoever_leaves_first():
    clusters = Clusters(9, capacity=2, size=2)
    clusters.take(range(9), gpcs=1)
    done: list[int | None] = []
    while clusters.can_start or clusters.running:
        while clusters.can_start:
            running: Any = SimpleNamespace(number=clusters.start())
            clusters.running.append(running)
            clusters.leave(running.number)
        done.append(clusters.grant())
        first = clusters.running[0]
        done.append(first.number)
        clusters.end(first)
    assert sorted(number for number in done if number is not None) == list(range(9))
    assert clusters.ended + clusters.granted == 9


def test_clusters_are_spread_over_gpcs_as_evenly_as_can_be():
    """Five clusters of four in two GPCs: two and three; what is left in each is no room for another."""
    clusters = Clusters(40, capacity=5, size=4)
    clusters.take(range(40), gpcs=2)
    assert list(clusters.launched) == [0, 1, 2, 3, 4]
    for number in range(3):
        clusters.running.append(SimpleNamespace(number=clusters.start()))  # type: ignore[arg-type]
        clusters.leave(number)
    assert list(clusters.launched) == [3, 4], "three CTAs have ended, and no GPC has room for four"
    clusters.leave(0)
    clusters.leave(2)
    assert list(clusters.launched) == [3, 4, 5], "0 and 2 share a GPC, and four of their CTAs have ended"
