"""An engine on a running Dask cluster.

Dask assigns work to workers, and notices workers and machines that disappear. Each worker gives its jobs to a
`WorkerProcess`, which can be ended when it hangs and may crash without the worker. Everybody who can reach the
scheduler can make its workers run any code: see docs/sweeps.md.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from emugpu.errors import CannotRun, UsageProblem
from emugpu.processes.engine import Attempt, Done, next_attempt
from emugpu.processes.worker_process import Reply, WorkerCrashed, WorkerProcess, request
from harness.extras import needs

T = TypeVar("T")
AHEAD = 2
"""Pieces of work that a worker has at a time: a current one and a next one."""
QUIET = {"distributed.admin.low-level-log-length": 0}
"""Settings of the client. By default Dask's logs keep the last thousand messages with their work, which nobody
reads.
"""
PATIENCE = 300.0
"""Seconds to wait for a lost scheduler, and for a worker with the needed resources."""


def _has_certificates() -> bool:
    """Returns whether Dask's own configuration names certificates."""
    from distributed.security import Security

    return Security().get_connection_args("client").get("ssl_context") is not None


class DaskCluster:
    """An engine on a Dask cluster (`emugpu.processes.engine.Engine`).

    ``address`` is that of a running scheduler, for example ``tcp://10.0.0.1:8786``. ``patience`` is in seconds
    (`PATIENCE`). ``say`` gets a message about what the engine waits for.
    """

    def __init__(
        self, address: str, patience: float = PATIENCE, say: Callable[[str], None] = lambda message: None
    ) -> None:
        needs("sweep")
        self.address = address
        self.patience = patience
        self.say = say
        self._client: Any = None

    def __enter__(self) -> DaskCluster:
        import distributed  # the import sets the levels of its loggers

        # Dask reports every lost worker; this engine reports what happens to the work instead.
        for logger in (distributed.__name__, f"{distributed.__name__}.client"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        self._client = self._connect()
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(Exception):
            self._client.close(timeout=10)
        self._client = None

    def _connect(self) -> Any:
        import dask
        from distributed import Client

        if self.address.startswith("tls://") and not _has_certificates():
            raise UsageProblem(
                f"--cluster-address {self.address}: Dask's configuration names no certificates; set "
                "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ...__CLIENT__CERT and ...__CLIENT__KEY, see docs/sweeps.md"
            )
        try:
            with dask.config.set(QUIET):
                return Client(self.address, timeout=min(10.0, self.patience), set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise CannotRun(f"the scheduler {self.address} cannot be reached: {error}") from None

    def map(
        self, function: Callable[[T], Any], items: Iterable[T], limit: float | None = None, needs: str = "CPU"
    ) -> Iterator[Done[T]]:
        """Works as `Engine.map`. If the scheduler disappears, waits for it and submits the lost jobs again."""
        source, again = iter(items), deque[Attempt[T]]()
        ended: SimpleQueue[Any] = SimpleQueue()
        given: dict[Any, Attempt[T]] = {}
        room = _Room(self, needs)
        try:
            while True:
                while len(given) < room.size and (attempt := next_attempt(again, source)):
                    future = self._give(request(function, attempt.item, limit), limit, room.resources)
                    given[future] = attempt
                    future.add_done_callback(ended.put)
                if not given:
                    return
                for future in _all_of(ended):
                    attempt = given.pop(future)
                    done = self._outcome(future, attempt, limit)
                    if done:
                        yield done
                    else:
                        again.append(attempt)
        finally:
            for future in given:
                with contextlib.suppress(Exception):
                    future.cancel()

    def _give(self, message: bytes, limit: float | None, resources: dict[str, int]) -> Any:
        while True:
            try:
                return self._client.submit(_work, message, limit, pure=False, resources=resources or None)
            except Exception as error:  # Dask raises different errors for a lost connection
                if self._client.status == "running":
                    raise CannotRun(f"the scheduler {self.address} refuses work: {error}") from error
                self._reconnect()

    def _outcome(self, future: Any, attempt: Attempt[T], limit: float | None) -> Done[T] | None:
        """Returns the outcome of a job, or None if it must be submitted again."""
        from distributed import KilledWorker

        failure: CannotRun
        try:
            return attempt.after(future.result(timeout=60), limit)
        except KilledWorker as error:
            failure = WorkerCrashed([*attempt.logs, str(error)])
        except (CancelledError, TimeoutError, OSError):
            return None  # the scheduler lost it, or the worker that had the result
        except Exception as error:  # errors of Dask itself; those of the job are in the reply
            if self._client.status != "running":
                return None
            failure = CannotRun(f"{type(error).__name__}: {error}")
        finally:
            with contextlib.suppress(Exception):
                future.release()
        return Done(attempt.item, error=failure, log=str(failure))

    def _reconnect(self) -> None:
        """Waits until the scheduler is back."""
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
        """Returns the workers: their threads, and the resources with which they were started."""
        if self._client.status == "closed":  # Dask itself waits half a minute for a lost scheduler
            self._reconnect()
        try:
            found = self._client.scheduler_info(n_workers=-1)["workers"].values()
        except Exception:  # Dask raises different errors for a lost connection
            return []
        return [(one["nthreads"], one.get("resources") or {}) for one in found]


class _Room:
    """The amount of work for the suitable workers at a time, updated every few seconds."""

    SECONDS = 5.0

    def __init__(self, cluster: DaskCluster, needs: str) -> None:
        self.cluster, self.needs = cluster, needs
        self.resources: dict[str, int] = {}
        self._size, self._asked = 0, 0.0

    @property
    def size(self) -> int:
        if time.monotonic() - self._asked > self.SECONDS:
            self._size = self._wait()
            self._asked = time.monotonic()
        return self._size

    def _wait(self) -> int:
        """Waits until there is a worker. While jobs are in flight, lost workers get more time to return."""
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
            self.resources = {}  # workers without declared resources do work that needs no GPU
            return sum(threads for threads, _ in workers)
        return 0

    def _nobody(self) -> str:
        where = self.cluster.address
        if not self.cluster.offers():
            return f"{where} has no workers"
        start = f"dask worker ADDRESS --nthreads 1 --resources {self.needs}=1"
        return f"{where} has no worker with the resource {self.needs}; start one with: {start}"


def _all_of(ended: SimpleQueue[Any]) -> Iterator[Any]:
    """Waits for an ended job, and yields it with all others that have ended."""
    with contextlib.suppress(Empty):
        yield ended.get(timeout=_Room.SECONDS)
        while True:
            yield ended.get_nowait()


_mine = threading.local()


def _work(message: bytes, limit: float | None) -> Reply:
    """Runs on a thread of a Dask worker, and lets its process do the job."""
    process = _process()
    process.submit(message, limit)
    return process.result()


def _process() -> WorkerProcess:
    """Returns the process of this thread. Starts it if the last one died."""
    found: WorkerProcess | None = getattr(_mine, "process", None)
    if found is not None and found.is_alive:
        return found
    if found is not None:
        found.close()
    _mine.process = WorkerProcess()
    return _mine.process
