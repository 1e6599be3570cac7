"""What became of a piece of work that another process was given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from harness.errors import CannotRun

T = TypeVar("T")
MOST_DEATHS = 3
"""Processes that a piece of work may kill before it is given up."""


@dataclass(frozen=True)
class Reply:
    """How one attempt ended: a value, an exception, the death of the process, or its limit of time. log: what the
    process said on standard error, its end."""

    kind: Literal["value", "error", "died", "late"]
    value: Any = None
    log: str = ""


@dataclass(frozen=True)
class Done(Generic[T]):
    """A piece of work that is done. error: why there is no value. log: what was said while it failed. deaths: processes
    that died of it, or with it."""

    item: T
    value: Any = None
    error: Exception | None = None
    log: str = ""
    deaths: int = 0

    def result(self) -> Any:
        """The value; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass
class Attempt(Generic[T]):
    """A piece of work that is to be done, with the logs of the processes that died of it."""

    item: T
    logs: list[str] = field(default_factory=list)

    def after(self, reply: Reply, limit: float | None) -> Done[T] | None:
        """What came of it; None: it is to be run again, elsewhere."""
        deaths = len(self.logs)
        if reply.kind == "value":
            return Done(self.item, reply.value, deaths=deaths)
        if reply.kind == "error":
            return Done(self.item, error=reply.value, log=reply.log, deaths=deaths)
        if reply.kind == "late":
            return Done(self.item, error=TookTooLong(f"it took more than {limit:g} s"), log=reply.log, deaths=deaths)
        self.logs.append(reply.log)
        if len(self.logs) < MOST_DEATHS:
            return None
        return Done(self.item, error=KillsWorkers(self.logs), log="\n".join(self.logs), deaths=len(self.logs))


class TookTooLong(CannotRun):
    """A piece of work was ended by its limit of time."""


class KillsWorkers(CannotRun):
    """So many processes died of a piece of work that it is not tried again."""

    def __init__(self, logs: list[str]) -> None:
        super().__init__(f"{len(logs)} processes died of it; of the last one: {logs[-1].strip().partition(chr(10))[0]}")


class Engine(Protocol):
    """Has work done. Used as a context: at its end, all processes that it started are gone."""

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
