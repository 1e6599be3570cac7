"""The measured side of the timing model's proof: each run's cycles, clock and counters, as a recording to be kept."""

from __future__ import annotations

import json
import statistics
from typing import Any

from harness.timing.survey_archive import Survey
from metrology.survey import CHECK
from metrology.survey.reading.counters import read_counters

WHAT = (
    "Kernels on one GPU: SM cycles of a launch in a steady row of launches (median of some rows; operands rotated over "
    "more than twice L2, launches overlap) on zeros, which no power limit slows, with the clock; the same on normal "
    "inputs; and hardware counters of one cold launch each on zeros (ncu, clocks not fixed). use: fit or hold-out, "
    "settled before it was measured."
)


def recording(survey: Survey) -> dict[str, Any] | None:
    """All runs that were right, None if the archive has none."""
    kernels = survey.json("kernels.json")
    if not kernels:
        return None
    counted = _counters(survey)
    return {
        "what": WHAT,
        "device": survey.gpu.get("name"),
        "driver": driver(survey),
        "time": survey.manifest["time"],
        "runs": [_run(run, counted.get(run["name"], {})) for run in kernels["runs"] if not run["wrong"]],
    }


def as_json(found: dict[str, Any]) -> str:
    """One run a line."""
    runs = ",\n".join(f"  {json.dumps(run)}" for run in found["runs"])
    rest = json.dumps({name: value for name, value in found.items() if name != "runs"}, indent=1)
    return f'{rest[:-2]},\n "runs": [\n{runs}\n ]\n}}\n'


def driver(survey: Survey) -> str | None:
    """The version of the GPU's driver, if the power part has seen it."""
    power = survey.json("power.json") or {}
    version: str | None = power.get("idle", {}).get("driver")
    return version


def _run(run: dict[str, Any], counted: dict[str, float]) -> dict[str, Any]:
    entry = {"name": run["name"], "use": run["use"], **_median(run["zeros"])}
    if "normal" in run:
        entry["normal"] = _median(run["normal"])
    if counted:
        entry["ncu"] = counted
    return entry


def _median(timed: dict[str, Any]) -> dict[str, float]:
    """mhz: the SM cycles that passed, over the time that passed."""
    return {
        "cycles": statistics.median(timed["cycles"]),
        "mhz": timed["mhz"],
        "nanoseconds": statistics.median(timed["nanoseconds"]),
    }


def _counters(survey: Survey) -> dict[str, dict[str, float]]:
    """By run. The profiled program launched the timed runs in the order of the archive's list of them."""
    found = read_counters(survey.text("counters.csv") or "")
    runs = [run for run in survey.json("runs.json") or [] if run.get("use") != CHECK]
    if len(found) != len(runs):
        return {}
    together = zip(runs, found, strict=True)
    return {run["name"]: values for run, (name, values) in together if name.startswith(run["plan"]["entry"])}
