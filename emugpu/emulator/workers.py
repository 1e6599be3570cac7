"""Runs a launch in several processes, each with a share of the clusters.

The processes are forked, so that they share the device's memory and the parsed kernel: a worker process of
`emugpu.processes`, a Python of its own, could be handed neither. What they count and find is added up; of several
failures the one of the first cluster is raised, as it would be in one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from emugpu.emulator.errors import EmulatorError, LaunchError
from emugpu.emulator.machine.counters import Counters, merge
from emugpu.emulator.machine.findings import Findings
from emugpu.emulator.machine.machine import Machine
from emugpu.emulator.machine.state import Grid

Progress = Callable[[int, int], None]


def run_in_processes(
    make_grid: Callable[[], tuple[Grid, Machine]], workers: int, clusters: int, progress: Progress | None
) -> tuple[Counters, Findings]:
    """Counters and findings of the whole launch. make_grid: a fresh machine, which runs what its `Clusters` hold."""
    if not hasattr(os, "fork"):
        raise LaunchError("several workers need a system that can fork processes; use workers=1")
    count = min(workers, clusters)
    children = [_start(make_grid, share, count) for share in range(count)]
    done = [0] * count
    answers: list[Any] = [None] * count
    open_pipes = {pipe: share for share, (_, pipe) in enumerate(children)}
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
                answers[share] = message
    for pid, _ in children:
        os.waitpid(pid, 0)
    return _combine(answers)


def _combine(answers: list[Any]) -> tuple[Counters, Findings]:
    if any(answer is None for answer in answers):
        raise LaunchError("a worker process has died; run with workers=1 to see more")
    failures = [answer for answer in answers if isinstance(answer[0], Exception)]
    if failures:
        error, _ = min(failures, key=lambda failure: failure[1])
        raise error
    counters = Counters()
    findings = Findings(False, ())
    for counted, found in answers:
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
        receiver.close()
        sender.send(_run_share(make_grid, share, count, sender))
        code = 0
    finally:
        os._exit(code)


def _run_share(
    make_grid: Callable[[], tuple[Grid, Machine]], share: int, count: int, sender: Connection
) -> tuple[Any, Any]:
    """Counters and findings of one process's clusters, or the exception and the cluster it stopped at."""
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
