"""Events of the barriers of a CTA and of a cluster."""

from __future__ import annotations

from event_streams import SCHEDULES, of, stream

from emugpu.emulator.machine.events import GroupArrived, GroupCompleted, GroupLeft


def test_the_barriers_of_a_cta_tell_generations():
    """Warps 0 and 1 meet at barrier 1, where warp 0 does not wait; then all three meet twice at barrier 0."""
    body = """
    setp.ge.u32 %p1, %r0, 32; @%p1 bra NEXT;
    bar.arrive 1, 64;
    bra.uni ALL;
    NEXT: setp.ge.u32 %p1, %r0, 64; @%p1 bra ALL;
    bar.sync 1, 64;
    ALL: bar.sync 0;
    bar.sync 0;
    ret;
    """
    for schedule, seed in SCHEDULES:
        seen = stream(body, threads=96, schedule=schedule, seed=seed)
        arrived = [(e.barrier, e.generation, e.agent.warp, e.waits) for e in of(seen, GroupArrived)]
        left = [(e.barrier, e.generation, e.agent.warp) for e in of(seen, GroupLeft)]
        everybody = [(0, generation, warp) for generation in range(2) for warp in range(3)]
        assert sorted(arrived) == [*((*who, True) for who in everybody), (1, 0, 0, False), (1, 0, 1, True)]
        assert sorted(left) == [*everybody, (1, 0, 1)]
        completed = [e[:] for e in of(seen, GroupCompleted)]
        assert sorted(completed) == [(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0)]
        for event in of(seen, GroupCompleted):
            same = [
                e
                for e in of(seen, GroupArrived, GroupLeft)
                if (e.barrier, e.generation) == (event.barrier, event.generation)
            ]
            for other in same:
                assert (seen.index(other) < seen.index(event)) == isinstance(other, GroupArrived)


def test_the_barrier_of_the_cluster_tells_generations():
    body = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" * 2 + "ret;"
    seen = stream(body, grid=4, cluster=2)
    for cluster in range(2):
        expected = [(-1, generation, cta) for generation in range(2) for cta in range(2)]
        for kind in (GroupArrived, GroupLeft):
            mine = [e for e in of(seen, kind) if e.agent.cluster == cluster]
            assert sorted((e.barrier, e.generation, e.agent.cta) for e in mine) == expected
        completed = [e for e in of(seen, GroupCompleted) if e.cluster == cluster]
        assert [e[1:] for e in completed] == [(-1, -1, 0), (-1, -1, 1)]
    assert not any(e.waits for e in of(seen, GroupArrived))
