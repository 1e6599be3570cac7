"""An engine over a Dask cluster: one inside this process, or any that runs already.

Dask says which worker gets what, and notices workers and machines that go away. The jobs of each of its workers are
done by a `WorkerProcess`, which can be ended when it hangs and may crash without taking the worker along. The scheduler
and the workers of our own cluster talk inside this process: nothing of it listens anywhere. Who can reach the scheduler
of another cluster can have any code run by its workers: see docs/sweeps.md.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import islice, zip_longest
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from harness import cache
from harness.errors import CannotRun, UsageProblem, needs
from harness.processes.engine import Attempt, Done
from harness.processes.worker_process import Reply, WorkerCrashed, WorkerProcess, request

T = TypeVar("T")
OWN_GPU = "gpu of this machine: "
"""How the name of a worker of our own cluster begins that has a GPU; the GPU follows."""
AHEAD = 2
"""Batches of work that a worker is given at a time: one to do, one to go on with."""
BATCH_SECONDS, MOST_AT_ONCE = 0.5, 256
"""Work that takes milliseconds is given in batches that take about so long: what Dask does for each takes longer.
At the end some wait for the last batches of others, so they are short."""
MOST_LOST_WORKERS = 10
"""Dask workers that may go away, for whatever reason, while they have a piece of work, before it is given up. The
deaths of the process that does it are counted apart."""
QUIET = {
    "distributed.admin.low-level-log-length": 0,
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.http.routes": [],
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.http.routes": [],
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.tick.interval": "1s",
}
"""Settings of our own cluster and of every client: Dask's looks at itself would cost a tenth of two cores, and its logs
keep the last thousand messages to each worker, work and all; nobody sees them."""
PATIENCE = 300.0
"""Seconds to wait for a scheduler that went away, and for a worker that has what is needed."""


def _has_certificates() -> bool:
    """Tells whether Dask's own configuration names some."""
    from distributed.security import Security

    return Security().get_connection_args("client").get("ssl_context") is not None


class Cluster:
    """An engine; see `harness.processes.engine.Engine`.

    address: of a running scheduler, for example ``tcp://10.0.0.1:8786``; None: a cluster is started in this process,
    with so many workers for CPUs and one for each of these GPUs, as ``CUDA_VISIBLE_DEVICES`` names them. patience:
    seconds, see `PATIENCE`. say: is told of what is being waited for.
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int = 1,
        gpus: Iterable[str] = (),
        patience: float = PATIENCE,
        say: Callable[[str], None] = lambda message: None,
    ) -> None:
        needs("sweep")
        self.address = address
        self.workers = workers
        self.gpus = tuple(gpus)
        self.patience = patience
        self.say = say
        self._client: Any = None
        self._own: Any = None
        self._scratch = contextlib.ExitStack()

    def __enter__(self) -> Cluster:
        import distributed  # sets the levels of its loggers

        # Dask tells of every worker that goes away; here it is said what becomes of the work.
        for logger in (distributed.__name__, f"{distributed.__name__}.client"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        if self.address is None:
            self._own = _start(self.workers, self.gpus, self._scratch.enter_context(cache.temporary_folder()))
        self._client = self._connect()
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(Exception):
            self._client.close(timeout=10)
        if self._own is not None:
            workers = list(self._own.workers.values())
            _end_processes(workers)
            with contextlib.suppress(Exception):
                self._own.close(timeout=10)
            _end_processes(workers)  # one may have begun another job in between
            self._scratch.close()
        self._client = self._own = None

    def _connect(self) -> Any:
        import dask
        from distributed import Client

        if str(self.address).startswith("tls://") and not _has_certificates():
            raise UsageProblem(
                f"--cluster-address {self.address}: Dask's configuration names no certificates; set "
                "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__CLIENT__CERT and ...__CLIENT__KEY, see docs/sweeps.md"
            )
        try:
            with dask.config.set(QUIET):
                return Client(
                    self._own or self.address,
                    timeout=min(10.0, self.patience),
                    set_as_default=False,
                )
        except (OSError, ValueError, TypeError) as error:
            raise CannotRun(f"the scheduler {self.address} cannot be reached: {error}") from None

    def map(
        self, function: Callable[[T], Any], items: Iterable[T], limit: float | None = None, needs: str = "CPU"
    ) -> Iterator[Done[T]]:
        """See `Engine.map`. A scheduler that goes away is waited for, and given again what it had."""
        source, again = iter(items), deque[Attempt[T]]()
        ended: SimpleQueue[Any] = SimpleQueue()
        given: dict[Any, list[Attempt[T]]] = {}
        room = _Room(self, needs)
        try:
            while True:
                while len(given) < room.size and (batch := _next(again, source, room.batch)):
                    future = self._give([request(function, one.item, limit) for one in batch], limit, room.resources)
                    given[future] = batch
                    future.add_done_callback(ended.put)
                if not given:
                    return
                for future in _all_of(ended):
                    batch = given.pop(future)
                    answers = self._answers(future, batch)
                    for attempt, answer in zip_longest(batch, answers):
                        room.took(answer)
                        done = _outcome(attempt, answer, limit)
                        if done:
                            yield done
                        else:
                            again.append(attempt)
        finally:
            for future in given:
                with contextlib.suppress(Exception):
                    future.cancel()

    def _give(self, messages: list[bytes], limit: float | None, resources: dict[str, int]) -> Any:
        while True:
            try:
                return self._client.submit(_work, _packed(messages), limit, pure=False, resources=resources or None)
            except Exception as error:  # whatever Dask raises where the connection has gone
                if self._client.status == "running":
                    raise CannotRun(f"the scheduler {self.address} refuses work: {error}") from error
                self._reconnect()

    def _answers(self, future: Any, batch: list[Attempt[T]]) -> list[_Answer | Exception]:
        """Returns the answers of a batch, as far as it was done."""
        from distributed import KilledWorker

        try:
            return future.result(timeout=60)
        except KilledWorker as error:
            if len(batch) > 1:
                return []  # each is given again alone, to see which it was
            return [WorkerCrashed([*batch[0].logs, str(error)])]
        except (CancelledError, TimeoutError, OSError):
            return []  # the scheduler has lost it, or the worker that had the answers
        except Exception as error:  # of Dask itself: the work's own are part of the answers
            if self._client.status != "running":
                return []
            return [CannotRun(f"{type(error).__name__}: {error}") for _ in batch]
        finally:
            with contextlib.suppress(Exception):
                future.release()

    def _reconnect(self) -> None:
        """Waits for the scheduler to come back."""
        deadline = time.monotonic() + self.patience
        self.say(f"the scheduler {self.address} has gone away; waiting for it up to {self.patience:g} s")
        while time.monotonic() < deadline:
            if self._client.status == "running":
                return
            if self._client.status == "closed":
                with contextlib.suppress(CannotRun):
                    self._client = self._connect()
                    return
            time.sleep(0.5)
        raise CannotRun(f"the scheduler {self.address} did not come back in {self.patience:g} s")

    def offers(self) -> list[tuple[int, dict[str, float]]]:
        """Returns the workers there are: threads, and the resources they were started with."""
        if self._client.status == "closed":  # Dask itself waits half a minute for a scheduler that went away
            self._reconnect()
        try:
            found = self._client.scheduler_info(n_workers=-1)["workers"].values()
        except Exception:  # whatever Dask raises where the connection has gone
            return []
        return [(one["nthreads"], one.get("resources") or {}) for one in found]


class _Room:
    """How much work the workers that can do it should have at a time; asked for anew every few seconds."""

    SECONDS = 5.0

    def __init__(self, cluster: Cluster, needs: str) -> None:
        self.cluster, self.needs = cluster, needs
        self.resources: dict[str, int] = {}
        self._size, self._asked = 0, 0.0
        self._seconds: float | None = None

    @property
    def batch(self) -> int:
        """Pieces of work that are given together."""
        if self._seconds is None:
            return 1
        return max(1, min(MOST_AT_ONCE, int(BATCH_SECONDS / max(self._seconds, 1e-6))))

    def took(self, answer: _Answer | Exception | None) -> None:
        """Learns from an answer how long a piece of work takes."""
        if isinstance(answer, _Answer):
            before = answer.seconds if self._seconds is None else self._seconds
            self._seconds = 0.9 * before + 0.1 * answer.seconds

    @property
    def size(self) -> int:
        if time.monotonic() - self._asked > self.SECONDS:
            self._size = self._wait()
            self._asked = time.monotonic()
        return self._size

    def _wait(self) -> int:
        """Waits until there is a worker; while jobs are in flight, workers that come back have more time."""
        deadline = time.monotonic() + (self.cluster.patience if self._size else min(30.0, self.cluster.patience))
        while not (size := self._count()):
            if time.monotonic() > deadline:
                raise CannotRun(self._nobody())
            time.sleep(0.2)
        return AHEAD * size

    def _count(self) -> int:
        workers = self.cluster.offers()
        able = [int(resources[self.needs]) for _, resources in workers if resources.get(self.needs, 0) >= 1]
        if able:
            self.resources = {self.needs: 1}
            return sum(able)
        if self.needs == "CPU" and not any(resources for _, resources in workers):
            self.resources = {}  # workers that say nothing of themselves do what needs no GPU
            return sum(threads for threads, _ in workers)
        return 0

    def _nobody(self) -> str:
        where = self.cluster.address or "the cluster of this machine"
        if not self.cluster.offers():
            return f"{where} has no workers"
        start = f"dask worker ADDRESS --nthreads 1 --resources {self.needs}=1"
        return f"{where} has no worker with the resource {self.needs}; start one with: {start}"


@dataclass(frozen=True)
class _Answer:
    """What came of one job. seconds: the time that it took."""

    reply: Reply
    seconds: float


def _next(again: deque[Attempt[T]], source: Iterator[T], count: int) -> list[Attempt[T]]:
    """Returns the next batch. What is tried again is alone: it may take others along."""
    if again:
        return [again.popleft()]
    return [Attempt(item) for item in islice(source, count)]


def _outcome(attempt: Attempt[T], answer: _Answer | Exception | None, limit: float | None) -> Done[T] | None:
    """Returns what came of a job; None: it is to be given again."""
    if isinstance(answer, _Answer):
        return attempt.after(answer.reply, limit)
    return None if answer is None else Done(attempt.item, error=answer, log=str(answer))


def _all_of(ended: SimpleQueue[Any]) -> Iterator[Any]:
    """Waits a while for one, and takes those that are there with it."""
    with contextlib.suppress(Empty):
        yield ended.get(timeout=_Room.SECONDS)
        while True:
            yield ended.get_nowait()


def _packed(messages: list[bytes]) -> bytes:
    """Compresses a batch: its jobs resemble each other, and together are a fiftieth of their size. A scheduler with
    Dask's own settings keeps a thousand such messages for each worker."""
    return zlib.compress(pickle.dumps(messages), 1)


_mine = threading.local()


def _work(packed: bytes, limit: float | None) -> list[_Answer]:
    """Runs on a thread of a Dask worker: has its process do the jobs, one after the other, until the process dies."""
    messages: list[bytes] = pickle.loads(zlib.decompress(packed))
    process = _process()
    answers = []
    for message in messages:
        start = time.monotonic()
        process.submit(message, limit)
        answers.append(_Answer(process.result(), time.monotonic() - start))
        if not process.is_alive:
            break
    return answers


def _process() -> WorkerProcess:
    """Returns the process of this thread, started now if the last one has died."""
    from distributed import get_worker

    found: WorkerProcess | None = getattr(_mine, "process", None)
    if found is not None and found.is_alive:
        return found
    if found is not None:
        found.close()
    worker: Any = get_worker()
    gpu = str(worker.name).removeprefix(OWN_GPU) if str(worker.name).startswith(OWN_GPU) else None
    seen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
    _mine.process = WorkerProcess(seen)
    worker.processes = {*getattr(worker, "processes", ()), _mine.process}
    return _mine.process


def _end_processes(workers: Iterable[Any]) -> None:
    for worker in workers:
        for process in getattr(worker, "processes", ()):
            process.end()


class _NoHttp:
    """A node of Dask that does not open the port of its HTTP server, which even one without a dashboard has."""

    def start_http_server(self, *arguments: Any, **settings: Any) -> None:
        pass


def _start(workers: int, gpus: tuple[str, ...], scratch: str) -> Any:
    """Starts a cluster in this process. scratch: a folder for what Dask wants to keep there."""
    import dask
    from distributed import Scheduler, SpecCluster, Worker

    class QuietScheduler(_NoHttp, Scheduler): ...

    class QuietWorker(_NoHttp, Worker): ...

    inside = {"protocol": "inproc://", "dashboard": False}
    common = {**inside, "nthreads": 1, "memory_limit": 0}

    def worker(resource: str) -> dict[str, Any]:
        return {"cls": QuietWorker, "options": {**common, "resources": {resource: 1}}}

    spec = {f"cpu-{n}": worker("CPU") for n in range(workers)} | {f"{OWN_GPU}{gpu}": worker("GPU") for gpu in gpus}
    scheduler = {"cls": QuietScheduler, "options": {**inside, "allowed_failures": MOST_LOST_WORKERS}}
    try:
        with dask.config.set({**QUIET, "temporary-directory": scratch}):
            return SpecCluster(workers=spec, scheduler=scheduler, silence_logs=logging.CRITICAL)
    except Exception as error:  # whatever Dask raises
        raise CannotRun(f"a cluster could not be started in this process: {error}") from error
