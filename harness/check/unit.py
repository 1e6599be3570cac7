"""What the checker does about asynchronous operations of one sort."""

from __future__ import annotations

from abc import ABC, abstractmethod

from harness.check.flights import Flight, Flights
from harness.emulator.machine.events import Agent, Finished


class Unit(ABC):
    """Takes operations of some ``kinds`` (of `events.Operation`) through their lives."""

    kinds: tuple[str, ...] = ()

    def __init__(self, flights: Flights) -> None:
        self._flights = flights
        self._model = flights.model

    @abstractmethod
    def issue(self, flight: Flight, agent: Agent) -> None:
        """A thread has executed the instruction."""

    def start(self, flight: Flight) -> None:
        """It begins."""
        if not flight.read:
            flight.read = True
            self._read(flight)

    def _read(self, flight: Flight) -> None:  # noqa: B027  # not all read
        """Its operands are read."""

    def finish(self, flight: Flight, event: Finished) -> None:
        """Its results are there."""
        self._flights.end(flight)

    def flush(self, flight: Flight) -> None:  # noqa: B027  # most have no more to say
        """The run has ended while it was under way."""

    def forget(self, cluster: int) -> None:  # noqa: B027  # most keep nothing of a cluster
        """A cluster has ended."""
