"""How threads, CTAs and clusters end, and what they must not leave behind."""

from __future__ import annotations

from emugpu.emulator.errors import Fault
from emugpu.emulator.machine import events
from emugpu.emulator.machine.barriers import MBarrier
from emugpu.emulator.machine.code import Code
from emugpu.emulator.machine.divergence import leave
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.state import Cluster, Cta, Fragment
from emugpu.emulator.names import short_name
from emugpu.emulator.rules import RULES, RuleWarning


def exit(f: Fragment, site: Site) -> None:
    """Lets lanes exit the kernel. Barriers for all threads no longer wait for them."""
    cta, grid = f.cta, f.grid
    if grid.sink is not None:
        grid.sink(events.Exited(f.agent))
    depart(f)
    grid.wakeups.changes += 1
    if cta.exited:
        _check_exit(f, cta, site)
    for barrier in cta.named.in_use():
        barrier.leave(cta.alive, 0)
        barrier.excuse(f.warp.index, f.warp.alive)
    f.warp.forget_counted()
    cluster = cta.cluster
    arrived = f.count if f.tokens.get(cluster.barrier) == cluster.barrier.generation else 0
    cluster.barrier.leave(cluster.living_threads, arrived)
    if cta.exited and grid.sink is not None:
        grid.sink(events.CtaEnded(cluster.number, cta.rank))


def depart(f: Fragment) -> None:
    """Removes lanes without updating the barriers."""
    f.cta.alive -= f.count
    leave(f)
    if not f.warp.alive:
        f.grid.counters.warps_finished += 1


def _check_exit(f: Fragment, cta: Cta, site: Site) -> None:
    """Checks a CTA whose last thread exits: nothing may be allocated or in flight."""
    for warpgroup in cta.warpgroups.values():
        warpgroup.finish()
    for missed in cta.register_pool.missed(len(cta.warps)):
        f.grid.findings.warn("registers-differ", site, missed)
    leaks = cta.tmem.leaks()
    if leaks:
        raise Fault(f"exits with tensor memory still allocated: {leaks}; tcgen05.dealloc is missing", "exit")
    if cta.launch_requests:
        raise Fault(
            f"exits with {cta.launch_requests} cluster launch request(s) in flight; wait for the response",
            "clc-exit-pending",
        )
    for (warp, lane), queue in cta.bulk.items():
        if queue.reading:
            f.grid.findings.warn(
                "exit-pending",
                site,
                f"exits while a bulk store of warp {warp} lane {lane} still reads its shared memory; "
                "cp.async.bulk.wait_group.read 0 is missing",
            )


def check_ended(code: Code, cluster: Cluster) -> None:
    """Checks the bytes that the mbarriers of a cluster that has ended still expect.

    More than came are a warning: the last expect_tx of a producer is often followed by no copy. If more came than were
    expected, a phase may have ended before its copies had.
    """
    findings = cluster.grid.findings
    for cta in cluster.ctas:
        for barrier in cta.mbarriers.values():
            if not barrier.bytes:
                continue
            rule = "bytes-left" if barrier.bytes > 0 else "mbarrier-bytes"
            message = (
                f"the cluster ended with {barrier.bytes} bytes pending on {barrier}: expect_tx and the copies' "
                "bytes differ"
            )
            if barrier.bytes > 0 and findings.tolerates(rule):
                findings.add(RuleWarning(rule, message), -1)
                continue
            name = short_name(code.kernel.name)
            said = f"kernel '{name}', cluster {cluster.index}: {message}\n  {RULES[rule].advice}"
            raise Fault(said, rule, barrier.offset)


def release_if_lapped(f: Fragment) -> bool:
    """Resumes a wait for a phase that ended two phases ago, if the fragment's own history shows that.

    A warp that sleeps through two phases of a barrier finds the parity that it waits for again. On hardware it would
    have to sleep for very long, so this is a warning, and the wait ends.
    """
    waiting = f.waiting
    if waiting is None or not isinstance(waiting.on, MBarrier):
        return False
    barrier = waiting.on
    seen = f.observed.get(barrier)
    if seen is None or barrier.phase - seen <= 2:
        return False
    f.grid.findings.warn(
        "phase-lapped",
        waiting.site,
        f"waits at {barrier} for the end of phase {seen + 1}, but the barrier is in phase {barrier.phase} already: "
        "two phases ended before it looked",
    )
    f.awaited = (barrier, -1)
    barrier.waiters.remove(f)
    f.grid.wakeups.resume(f)
    return True
