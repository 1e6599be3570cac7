"""An engine has many jobs done by several processes: here those of this machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Generic, Protocol, TypeVar

from emugpu.processes.worker_process import JobTimeout, Reply, WorkerCrashed, WorkerProcess, request

T = TypeVar("T")
R = TypeVar("R")
MOST_DEATHS = 3
"""Processes that a job may kill before it is given up."""


@dataclass(frozen=True)
class Done(Generic[T]):
    """A job that is done. error: why there is no value. log: what was said while it failed. deaths: processes that died
    of it, or with it."""

    item: T
    value: Any = None
    error: Exception | None = None
    log: str = ""
    deaths: int = 0

    def result(self) -> Any:
        """Returns the value; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass
class Attempt(Generic[T]):
    """A job that is to be done, with the logs of the processes that died of it."""

    item: T
    logs: list[str] = field(default_factory=list)

    def after(self, reply: Reply, limit: float | None) -> Done[T] | None:
        """Returns what came of it; None: it is to be run again, elsewhere."""
        deaths = len(self.logs)
        if reply.kind == "value":
            return Done(self.item, reply.value, deaths=deaths)
        if reply.kind == "error":
            return Done(self.item, error=reply.value, log=reply.log, deaths=deaths)
        if reply.kind == "late":
            return Done(self.item, error=JobTimeout(f"it took more than {limit:g} s"), log=reply.log, deaths=deaths)
        self.logs.append(f"{reply.ending}\n{reply.log}")
        if len(self.logs) < MOST_DEATHS:
            return None
        return Done(self.item, error=WorkerCrashed(self.logs), log="\n".join(self.logs), deaths=len(self.logs))


class Engine(Protocol):
    """Has jobs done. Used as a context: at its end, all processes that it started are gone."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *exception: object) -> None: ...

    def map(
        self, function: Callable[[T], Any], items: Iterable[T], limit: float | None = None, needs: str = "CPU"
    ) -> Iterator[Done[T]]:
        """Does function of each item, in the order in which they end.

        Items are taken from their source as they can be worked on, never all at once. limit: seconds that one may take.
        needs: what a worker must have, ``CPU`` or ``GPU``. function and items are pickled.
        """
        ...


class Processes:
    """An `Engine` of so many worker processes, and one more for each of these GPUs, as ``CUDA_VISIBLE_DEVICES`` names
    them; without a name it is the one that this process would use.
    """

    def __init__(self, count: int, gpus: Sequence[str] = ()) -> None:
        self._places = {"CPU": [""] * count, "GPU": list(gpus) or [""]}
        self._idle: list[tuple[str, WorkerProcess]] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: object) -> None:
        while self._idle:
            self._idle.pop()[1].close()

    def map(
        self, function: Callable[[T], Any], items: Iterable[T], limit: float | None = None, needs: str = "CPU"
    ) -> Iterator[Done[T]]:
        """See `Engine.map`. Where a GPU is needed each has one worker: what is timed never shares it."""
        free = list(self._places[needs])
        source, again = iter(items), deque[Attempt[T]]()
        busy: dict[WorkerProcess, tuple[str, Attempt[T]]] = {}
        try:
            while True:
                while free and (attempt := next_attempt(again, source)):
                    gpu = free.pop()
                    worker = self._worker(gpu)
                    busy[worker] = (gpu, attempt)
                    worker.submit(request(function, attempt.item, limit), limit)
                if not busy:
                    return
                for worker in _ready(list(busy)):
                    gpu, attempt = busy.pop(worker)
                    free.append(gpu)
                    reply = worker.result()
                    if worker.is_alive:
                        self._idle.append((gpu, worker))
                    else:
                        worker.close()
                    done = attempt.after(reply, limit)
                    if done:
                        yield done
                    else:
                        again.append(attempt)
        finally:
            for worker in busy:
                worker.close()

    def _worker(self, gpu: str) -> WorkerProcess:
        """Returns one that waits and sees this GPU alone, or a new one."""
        for idle in [(name, worker) for name, worker in self._idle if name == gpu]:
            self._idle.remove(idle)
            if idle[1].is_alive:
                return idle[1]
            idle[1].close()
        return WorkerProcess({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu} if gpu else {})


def next_attempt(again: deque[Attempt[T]], source: Iterator[T]) -> Attempt[T] | None:
    """Returns what is to be done next, first what is to be done again; None: there is nothing left."""
    if again:
        return again.popleft()
    for item in source:
        return Attempt(item)
    return None


def _ready(workers: list[WorkerProcess]) -> list[WorkerProcess]:
    """Waits until some have answered, died, or used up their time."""
    left = [seconds for worker in workers if (seconds := worker.seconds_left) is not None]
    answered = wait([worker.answers for worker in workers], max(0.0, min(left)) if left else None)
    return [w for w in workers if w.answers in answered or (w.seconds_left is not None and w.seconds_left <= 0)]


def in_order(function: Callable[[T], R], items: Iterable[T], jobs: int = 1) -> Iterator[R]:
    """Does what ``map`` does, by so many processes side by side. Raises what function raises."""
    if jobs == 1:
        yield from map(function, items)
        return
    results: dict[int, Done[tuple[int, T]]] = {}
    wanted = 0
    with Processes(jobs) as engine:
        for done in engine.map(partial(_of_numbered, function), enumerate(items)):
            results[done.item[0]] = done
            while wanted in results:
                yield results.pop(wanted).result()
                wanted += 1


def _of_numbered(function: Callable[[T], R], pair: tuple[int, T]) -> R:
    return function(pair[1])
