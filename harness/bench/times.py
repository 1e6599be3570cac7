"""Compares two sets of times: is the difference real, and does it matter?

Both are needed. Real: the bootstrap interval of the ratio of medians does not hold 1, at a confidence that
leaves one false alarm in twenty for all cases of a suite together (Bonferroni). Matters: the ratio is beyond
the threshold. SAME is said only if the whole interval lies within the threshold; all else is UNSURE.

The vendor's GEMM, timed in turn with the kernel, is the control: where its time moved as well, clocks or
temperature did, so a difference must also be there in the ratio to the vendor's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

THRESHOLD = 0.02
FALSE_ALARMS = 0.05
RESAMPLES = 10_000
MIN_SAMPLES = 5
"""Fewer say nothing: the interval of a median of four samples is at best as wide as the samples are."""


@dataclass(frozen=True)
class Interval:
    """new over old, above 1 if slower: the ratio of medians and its confidence interval."""

    ratio: float
    low: float
    high: float

    def verdict(self, threshold: float) -> str:
        if self.low > 1 and self.ratio > 1 + threshold:
            return "SLOWER"
        if self.high < 1 and self.ratio < 1 / (1 + threshold):
            return "FASTER"
        if 1 / (1 + threshold) <= self.low and self.high <= 1 + threshold:
            return "SAME"
        return "UNSURE"


@dataclass(frozen=True)
class TimeVerdict:
    """verdict: SAME, FASTER, SLOWER or UNSURE; controlled: the same after taking out the vendor's drift."""

    verdict: str
    interval: Interval | None
    controlled: Interval | None = None
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare_times(
    old: Mapping[str, Any], new: Mapping[str, Any], *, cases: int = 1, threshold: float = THRESHOLD
) -> TimeVerdict:
    """The verdict on the ``timing`` of two records. cases: how many are compared at the same time."""
    fewest = min(len(old["samples"]), len(new["samples"]))
    if fewest < MIN_SAMPLES:
        return TimeVerdict("UNSURE", None, reason=f"only {fewest} samples; {MIN_SAMPLES} are needed")
    raw = ratio_interval(old["samples"], new["samples"], cases)
    verdict = raw.verdict(threshold)
    control = _control(old, new)
    if control is None:
        return TimeVerdict(verdict, raw)
    name, before, after = control
    adjusted = ratio_interval(before, after, cases)
    if adjusted.verdict(threshold) == verdict:
        return TimeVerdict(verdict, raw, adjusted)
    reason = f"{verdict} by time, {adjusted.verdict(threshold)} beside {name}"
    return TimeVerdict("UNSURE", raw, adjusted, reason)


def ratio_interval(old: Sequence[float], new: Sequence[float], cases: int = 1) -> Interval:
    """Percentile bootstrap of median(new) / median(old); repeatable, as the resampling is seeded."""
    before, after = np.asarray(old, float), np.asarray(new, float)
    generator = np.random.default_rng(0)
    ratios = _medians(after, generator) / _medians(before, generator)
    tail = FALSE_ALARMS / max(cases, 1) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return Interval(float(np.median(after) / np.median(before)), float(low), float(high))


def _medians(samples: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    picks = generator.integers(0, len(samples), (RESAMPLES, len(samples)))
    return np.median(samples[picks], axis=1)


def _control(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, list[float], list[float]] | None:
    """(vendor, old, new): times over the vendor's of the same turn, for the first vendor both have."""
    for name, before in (old.get("vendor") or {}).items():
        after = (new.get("vendor") or {}).get(name)
        if after and min(len(before["samples"]), len(after["samples"])) >= MIN_SAMPLES:
            return name, _ratios(old["samples"], before["samples"]), _ratios(new["samples"], after["samples"])
    return None


def _ratios(kernel: Sequence[float], vendor: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(kernel, vendor, strict=False)]
