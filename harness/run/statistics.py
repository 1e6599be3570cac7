"""Decides when to stop sampling, and summarises samples. All inputs and outputs are plain numbers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIN_SAMPLES = 10
MIN_SECONDS = 1.0
"""Sampling lasts at least this long, because clocks and temperature need about a second to settle."""
TARGET_ERROR = 0.005
"""Relative standard error of the median at which sampling stops."""
SETTLED = 0.02
"""Warm-up ends when two consecutive medians of three batches differ by less than this."""


@dataclass(frozen=True)
class Summary:
    """Seconds per launch: median, quartiles, extremes, relative error of the median."""

    median: float
    lower_quartile: float
    upper_quartile: float
    fastest: float
    slowest: float
    relative_error: float
    samples: int


def summarize(samples: Sequence[float]) -> Summary:
    """Summarises samples. Raises ValueError for fewer than two."""
    if len(samples) < 2:
        raise ValueError(f"{len(samples)} samples: at least 2 are needed for a summary")
    ordered = sorted(samples)
    median = statistics.median(ordered)
    low, _, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return Summary(median, low, high, ordered[0], ordered[-1], median_error(ordered) / median, len(ordered))


def median_error(samples: Sequence[float]) -> float:
    """Returns the standard error of the median, from the median absolute deviation.

    1.4826 converts the deviation to a standard deviation of a normal distribution, whose median scatters sqrt(pi/2)
    times as much as its mean (both are textbook constants).
    """
    median = statistics.median(samples)
    deviation = statistics.median(abs(s - median) for s in samples)
    return 1.4826 * deviation * 1.2533 / len(samples) ** 0.5


def enough(samples: Sequence[float]) -> bool:
    """Returns whether the median is known precisely enough."""
    if len(samples) < MIN_SAMPLES:
        return False
    return median_error(samples) < TARGET_ERROR * statistics.median(samples)


def settled(samples: Sequence[float]) -> bool:
    """Returns whether the times are steady after the warm-up."""
    if len(samples) < 6:
        return False
    before, now = statistics.median(samples[-6:-3]), statistics.median(samples[-3:])
    return abs(now - before) <= SETTLED * now


def sample_pairs(
    contestants: dict[str, Callable[[], float]],
    clock: Callable[[], float],
    cap_seconds: float,
    report: Callable[[dict[str, list[float]]], None] = lambda samples: None,
) -> dict[str, list[float]]:
    """Times the contestants in turn (A B A B ...), so that drifts of clock and temperature affect all alike.

    Each contestant returns the seconds per launch of one batch. Warm-up batches are dropped. Sampling stops when every
    median is known to TARGET_ERROR, or when ``cap_seconds`` have passed and MIN_SAMPLES exist. ``report`` gets the
    samples so far.
    """
    start = clock()
    warm: dict[str, list[float]] = {name: [] for name in contestants}
    while not all(settled(times) for times in warm.values()) and clock() - start < cap_seconds / 4:
        for name, run in contestants.items():
            warm[name].append(run())
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    sampling = clock()
    while True:
        for name, run in contestants.items():
            samples[name].append(run())
        report(samples)
        done = min(len(times) for times in samples.values())
        known = all(enough(times) for times in samples.values()) and clock() - sampling >= MIN_SECONDS
        if done >= MIN_SAMPLES and (known or clock() - start > cap_seconds):
            return samples


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """Returns, pair by pair, the seconds of one over the seconds of the other in the same turn."""
    return [a / b for a, b in zip(numerator, denominator, strict=True)]
