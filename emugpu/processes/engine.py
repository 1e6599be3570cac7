"""An engine distributes many jobs over several processes; here, over processes of this machine."""

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
"""The number of processes that a job may kill before the engine gives it up."""


@dataclass(frozen=True)
class Done(Generic[T]):
    """A finished job.

    error: why there is no value. log: standard error of the failed attempt. deaths: the number of processes that died
    during the job.
    """

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
    """A job to be done, with the logs of the processes that died during it."""

    item: T
    logs: list[str] = field(default_factory=list)

    def after(self, reply: Reply, limit: float | None) -> Done[T] | None:
        """Returns the finished job, or None if it is to be run again in another process."""
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
    """Runs jobs. Used as a context manager: at its end, all processes that it started are gone."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *exception: object) -> None: ...

    def map(
        self, function: Callable[[T], Any], items: Iterable[T], limit: float | None = None, needs: str = "CPU"
    ) -> Iterator[Done[T]]:
        """Calls function with each item, and yields the jobs in the order in which they end.

        Items are taken from their source only as fast as they can be processed. limit: the most seconds for one item.
        needs: what a worker must have, ``CPU`` or ``GPU``. function and items are pickled.
        """
        ...


class Processes:
    """An `Engine` with ``count`` worker processes, and one more for each of these GPUs.

    gpus: names as in ``CUDA_VISIBLE_DEVICES``. Without a name, the GPU is the one that this process would use.
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
        """See `Engine.map`. Each GPU has only one worker, so that a timed job never shares its GPU."""
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
        """Returns an idle worker that sees only this GPU, or a new one."""
        for idle in [(name, worker) for name, worker in self._idle if name == gpu]:
            self._idle.remove(idle)
            if idle[1].is_alive:
                return idle[1]
            idle[1].close()
        return WorkerProcess({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu} if gpu else {})


def next_attempt(again: deque[Attempt[T]], source: Iterator[T]) -> Attempt[T] | None:
    """Returns the next job, first one that is to be run again, or None if none is left."""
    if again:
        return again.popleft()
    for item in source:
        return Attempt(item)
    return None


def _ready(workers: list[WorkerProcess]) -> list[WorkerProcess]:
    """Waits until some workers have answered, died, or used up their time."""
    left = [seconds for worker in workers if (seconds := worker.seconds_left) is not None]
    answered = wait([worker.answers for worker in workers], max(0.0, min(left)) if left else None)
    return [w for w in workers if w.answers in answered or (w.seconds_left is not None and w.seconds_left <= 0)]


def in_order(function: Callable[[T], R], items: Iterable[T], jobs: int = 1) -> Iterator[R]:
    """Does the same as ``map``, with so many processes in parallel. Raises the exceptions of function."""
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
