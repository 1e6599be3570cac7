"""Times launches on the GPU, by CUDA graphs: in turns with others (`harness.run.statistics`), or alone.

In turns, contestants share one clock, and at the power limit the speed of one depends on how much power the others
take. Alone, each has the GPU for seconds back to back, with the clock that its own power allows, and its energy can be
read. The two are never mixed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from harness.run.telemetry import Sensors

BATCH_SECONDS = 0.02
"""A graph runs for about this long, so that its start and the resolution of events do not matter."""
MOST_LAUNCHES = 2000
ALONE_SECONDS, SETTLING = 4.0, 1.0
"""Seconds for which a contestant runs alone. The first ones, in which clock and power settle, do not count."""
ROUND_SECONDS, ROUND_SETTLING = 1.0, 0.4
"""The same for one of many builds that are compared (`harness.run.round`)."""
COOLING_SECONDS = 3.0
"""Longest pause before the next contestant. It ends when the GPU is as cool as before the first."""
IN_FLIGHT = 4
"""Graphs that wait on the GPU while one runs, so that it is never idle."""

Launch = Callable[[], Any]
"""A launch on PyTorch's current stream."""


class Batch:
    """A CUDA graph of launches, one after the other, which go through the sets of inputs.

    ``count`` launches, or as many as take `BATCH_SECONDS`; at least one of each set, so that none finds its operands in
    L2.
    """

    def __init__(self, launches: Sequence[Launch], count: int = 0) -> None:
        import torch

        self.launches = list(launches)
        self.launches[0]()  # what a library prepares at its first call is no part of a graph
        torch.cuda.synchronize()
        if not count:
            self._capture(4)
            self.seconds()
            count = min(MOST_LAUNCHES, round(BATCH_SECONDS / self.seconds()))
        self._capture(max(count, len(self.launches)))

    def _capture(self, count: int) -> None:
        import torch

        self.count = count
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for number in range(count):
                self.launches[number % len(self.launches)]()

    def seconds(self) -> float:
        """Runs the graph. Returns the seconds of a launch."""
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000 / self.count


def seconds_alone(batch: Batch) -> float:
    """Runs a contestant back to back for `ROUND_SECONDS`. Returns the median of the seconds of a launch."""
    start, samples = time.monotonic(), []
    while time.monotonic() < start + ROUND_SECONDS:
        found = batch.seconds()
        if time.monotonic() > start + ROUND_SETTLING:
            samples.append(found)
    return statistics.median(samples or [batch.seconds()])


def each_alone(batches: dict[str, Batch], sensors: Sensors, report: Callable[[], None]) -> dict[str, dict[str, float]]:
    """Runs each contestant alone, one after the other. Returns what `_steady` measures. Calls ``report`` now and
    then.
    """
    cool, found = sensors.celsius(), {}
    for name, batch in batches.items():
        end = time.monotonic() + COOLING_SECONDS
        while time.monotonic() < end and sensors.celsius() > cool:
            time.sleep(0.1)
        found[name] = _steady(batch, sensors)
        report()
    return found


def _steady(batch: Batch, sensors: Sensors) -> dict[str, float]:
    """Replays a graph back to back. Returns, for the steady part, seconds and joules of a launch, the medians of the SM
    clock in MHz and of the power in W, and the temperature in degrees Celsius at its end.
    """
    import torch

    torch.cuda.synchronize()
    joules: list[tuple[int, float]] = []  # after the graph of this number
    start, events, clocks, watts = time.monotonic(), [], [], []
    while time.monotonic() < start + ALONE_SECONDS or len(joules) < 2:
        batch.graph.replay()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        ended = len(events) - 1 - IN_FLIGHT
        if ended < 0:
            continue
        events[ended].synchronize()
        if time.monotonic() > start + SETTLING:
            joules.append((ended, sensors.joules()))
            clocks.append(sensors.megahertz())
            watts.append(sensors.watts())
    celsius = sensors.celsius()
    torch.cuda.synchronize()
    first, last = joules[0][0], joules[-1][0]
    found = {
        "seconds": events[first].elapsed_time(events[last]) / 1000 / ((last - first) * batch.count),
        "sm_clock_mhz": statistics.median(clocks),
        "watts": round(statistics.median(watts), 1),
        "celsius": celsius,
    }
    # The energy counter advances some ten times a second; measuring from one step to another cuts nothing off.
    steps = [now for before, now in pairwise(joules) if now[1] != before[1]]
    if len(steps) > 1:
        (since, before), (until, after) = steps[0], steps[-1]
        found["joules"] = (after - before) / ((until - since) * batch.count)
    return found
