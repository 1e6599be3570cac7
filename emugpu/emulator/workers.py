"""Runs a launch in several processes, each with a share of the clusters.

The processes are forked, so that they share the device's memory and the parsed kernel. A worker process of
`emugpu.processes` could get neither, because it is a new Python process. Counters are added and findings collected. If
several processes fail, the error of the first cluster is raised, as in one process.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from emugpu.emulator.errors import EmulatorError, LaunchError
from emugpu.emulator.machine.counters import Counters, merge
from emugpu.emulator.machine.findings import Findings
from emugpu.emulator.machine.machine import Machine
from emugpu.emulator.machine.state import Grid
from emugpu.processes.program import end_with_parent

Progress = Callable[[int, int], None]


def run_in_processes(
    make_grid: Callable[[], tuple[Grid, Machine]], workers: int, clusters: int, progress: Progress | None
) -> tuple[Counters, Findings]:
    """Returns counters and findings of the whole launch.

    make_grid: returns a new machine, which runs its `Clusters`.
    """
    if not hasattr(os, "fork"):
        raise LaunchError("several workers need a system that can fork processes; use workers=1")
    count = min(workers, clusters)
    children = [_start(make_grid, share, count) for share in range(count)]
    try:
        results = _collect([pipe for _, pipe in children], clusters, progress)
    finally:
        for pid, _ in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # a process that has sent its result has ended, or is about to
            os.waitpid(pid, 0)
    return _combine(results)


def _collect(pipes: list[Connection], clusters: int, progress: Progress | None) -> list[Any]:
    """Returns the last message of each process, or None for a process that has died before."""
    done = [0] * len(pipes)
    results: list[Any] = [None] * len(pipes)
    open_pipes = {pipe: share for share, pipe in enumerate(pipes)}
    while open_pipes:
        for ready in wait(list(open_pipes)):
            assert isinstance(ready, Connection)
            share = open_pipes[ready]
            try:
                message = ready.recv()
            except EOFError:
                del open_pipes[ready]
                continue
            if isinstance(message, int):
                done[share] = message
                if progress:
                    progress(sum(done), clusters)
            else:
                results[share] = message
    return results


def _combine(results: list[Any]) -> tuple[Counters, Findings]:
    if any(result is None for result in results):
        raise LaunchError("a worker process has died; run with workers=1 to see more")
    failures = [result for result in results if isinstance(result[0], Exception)]
    if failures:
        error, _ = min(failures, key=lambda failure: failure[1])
        raise error
    counters = Counters()
    findings = Findings(False, ())
    for counted, found in results:
        merge(counters, counted)
        findings.merge(found)
    return counters, findings


def _start(make_grid: Callable[[], tuple[Grid, Machine]], share: int, count: int) -> tuple[int, Connection]:
    receiver, sender = Pipe(duplex=False)
    pid = os.fork()
    if pid:
        sender.close()
        return pid, receiver
    code = 1
    try:
        end_with_parent()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        receiver.close()
        sender.send(_run_share(make_grid, share, count, sender))
        code = 0
    finally:
        os._exit(code)


def _run_share(
    make_grid: Callable[[], tuple[Grid, Machine]], share: int, count: int, sender: Connection
) -> tuple[Any, Any]:
    """Returns counters and findings of one process's clusters, or the exception and the cluster at which it stopped."""
    grid, machine = make_grid()
    mine = machine.clusters
    everything = mine.total
    mine.take(range(share, everything, count))
    try:
        counters = machine.run(lambda done, total: sender.send(done))
        return counters, grid.findings.found
    except EmulatorError as error:
        first = min((cluster.number for cluster in mine.running), default=everything)
        return error, first
