"""Has work done by processes of this machine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, TypeVar

from harness.processes.hand import Hand, request
from harness.processes.outcome import Attempt, Done

T = TypeVar("T")
R = TypeVar("R")


class Processes:
    """An engine of so many worker processes; see `harness.processes.outcome.Engine`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._idle: list[Hand] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: object) -> None:
        while self._idle:
            self._idle.pop().close()

    def map(
        self, function: Callable[[T], Any], items: Iterable[T], limit: float | None = None, needs: str = "CPU"
    ) -> Iterator[Done[T]]:
        """See `Engine.map`. Where a GPU is needed there is one worker: what is timed never shares it."""
        count = 1 if needs == "GPU" else self.count
        source, again = iter(items), deque[Attempt[T]]()
        busy: dict[Hand, Attempt[T]] = {}
        try:
            while True:
                while len(busy) < count and (attempt := _next(again, source)):
                    hand = self._hand()
                    busy[hand] = attempt
                    hand.give(request(function, attempt.item, limit), limit)
                if not busy:
                    return
                for hand in _ready(list(busy)):
                    attempt = busy.pop(hand)
                    reply = hand.answer()
                    if hand.is_alive:
                        self._idle.append(hand)
                    else:
                        hand.close()
                    done = attempt.after(reply, limit)
                    if done:
                        yield done
                    else:
                        again.append(attempt)
        finally:
            for hand in busy:
                hand.close()

    def _hand(self) -> Hand:
        while self._idle:
            hand = self._idle.pop()
            if hand.is_alive:
                return hand
            hand.close()
        return Hand()


def _next(again: deque[Attempt[T]], source: Iterator[T]) -> Attempt[T] | None:
    if again:
        return again.popleft()
    for item in source:
        return Attempt(item)
    return None


def _ready(hands: list[Hand]) -> list[Hand]:
    """Waits until some have answered, died, or used up their time."""
    left = [seconds for hand in hands if (seconds := hand.seconds_left) is not None]
    deadline = time.monotonic() + max(0.0, min(left)) if left else None
    answered = wait([hand.answers for hand in hands], None if deadline is None else deadline - time.monotonic())
    return [hand for hand in hands if hand.answers in answered or (hand.seconds_left or 1) <= 0]


def in_order(function: Callable[[T], R], items: Iterable[T], jobs: int = 1) -> Iterator[R]:
    """``map``, by so many processes side by side. Raises what function raises."""
    if jobs == 1:
        yield from map(function, items)
        return
    results: dict[int, Done[tuple[int, T]]] = {}
    wanted = 0
    with Processes(jobs) as engine:
        for done in engine.map(_Numbered(function), enumerate(items)):
            results[done.item[0]] = done
            while wanted in results:
                yield results.pop(wanted).result()
                wanted += 1


class _Numbered:
    """A function of the second part of a pair."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, pair: tuple[int, Any]) -> Any:
        return self.function(pair[1])
