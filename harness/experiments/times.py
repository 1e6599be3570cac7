"""Compares the times of two measurements: is the difference real, and is it relevant?

The unit is the process, not the sample: samples of one process are alike, so many of them only give a precise value for
that process. Each process counts once, with its median. If both measurements timed the same vendor's GEMM in turn with
the kernel, the value is the kernel's time over the vendor's, process by process: clocks, temperature and the particular
GPU affect both and cancel.

Welch's t interval of the mean logarithms (B. L. Welch, Biometrika 34, 1947) gives the ratio, new over old. FASTER,
SLOWER: the interval leaves out 1, at a confidence that leaves one false alarm in twenty for all cases of a suite
together (Bonferroni), and the ratio is beyond the threshold. SAME: two one-sided tests at 5 % put the ratio within the
threshold (D. J. Schuirmann, J. Pharmacokinet. Biopharm. 15, 1987). Everything else is UNSURE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

THRESHOLD = 0.02
FALSE_ALARMS = 0.05
MIN_PROCESSES = 3
"""Fewer processes do not show how much processes differ."""


@dataclass(frozen=True)
class RatioInterval:
    """The ratio new over old (above 1 if slower) and its confidence interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class TimeVerdict:
    """The verdict: SAME, FASTER, SLOWER or UNSURE.

    ``interval`` decides FASTER and SLOWER, for the time alone or relative to the vendor named by ``beside``. ``equal``
    is the narrower one that decides SAME. ``time`` is the ratio of the times alone.
    """

    verdict: str
    interval: RatioInterval | None
    equal: RatioInterval | None = None
    beside: str | None = None
    time: float | None = None
    reason: str = ""


def compare_times(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    cases: int = 1,
    threshold: float = THRESHOLD,
    same_vendor: bool = True,
) -> TimeVerdict:
    """Returns the verdict on the ``timing`` of two records. ``cases`` is the number of simultaneous comparisons.
    ``same_vendor`` says that the vendor's GEMM is the same program in both.
    """
    before, after = _processes(old), _processes(new)
    fewest = min(len(before), len(after))
    if fewest < MIN_PROCESSES:
        many = "1 process" if fewest == 1 else f"{fewest} processes"
        return TimeVerdict("UNSURE", None, reason=f"times of only {many}; {MIN_PROCESSES} are needed")
    beside = _common_vendor([*before, *after]) if same_vendor else None
    values = [_value(process, beside) for process in before], [_value(process, beside) for process in after]
    alarm = ratio_interval(*values, 1 - FALSE_ALARMS / max(cases, 1))
    equal = ratio_interval(*values, 0.9)
    time = float(np.median([p["seconds"] for p in after]) / np.median([p["seconds"] for p in before]))
    return TimeVerdict(_verdict(alarm, equal, threshold), alarm, equal, beside, time)


def ratio_interval(old: Sequence[float], new: Sequence[float], confidence: float) -> RatioInterval:
    """Returns exp of Welch's interval for mean(log(new)) - mean(log(old)). Each needs at least two values."""
    from scipy.stats import ttest_ind  # a package of the extra `bench`

    before, after = np.log(np.asarray(old, float)), np.log(np.asarray(new, float))
    ratio = float(np.exp(after.mean() - before.mean()))
    if before.var() + after.var() == 0:
        return RatioInterval(ratio, ratio, ratio)
    found = ttest_ind(after, before, equal_var=False).confidence_interval(confidence)
    return RatioInterval(ratio, float(np.exp(found.low)), float(np.exp(found.high)))


def _verdict(alarm: RatioInterval, equal: RatioInterval, threshold: float) -> str:
    if alarm.low > 1 and alarm.ratio > 1 + threshold:
        return "SLOWER"
    if alarm.high < 1 and alarm.ratio < 1 / (1 + threshold):
        return "FASTER"
    if 1 / (1 + threshold) <= equal.low and equal.high <= 1 + threshold:
        return "SAME"
    return "UNSURE"


def _processes(timing: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the measurements of each process. A record without this field belongs to one process."""
    return timing.get("processes") or [timing]


def _common_vendor(processes: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns the first vendor that every process has timed."""
    names = [list(process.get("vendor") or {}) for process in processes]
    return next((name for name in names[0] if all(name in others for others in names)), None)


def _value(process: Mapping[str, Any], beside: str | None) -> float:
    """Returns the time, or the time over the vendor's. A record holds the inverse ratio."""
    return process["seconds"] if beside is None else 1 / process["vendor"][beside]["ratio"]
