"""Every place of an archive where something was not as it should be, or as the emulator or the model has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.timing.constants import Constant, Gpu
from harness.timing.measured import parse_run
from harness.timing.predict import largest_error
from harness.timing.survey_archive import Survey
from metrology.survey import archive
from metrology.survey.parts import OTHER_GPU
from metrology.survey.reading.probes import asked_probes
from metrology.validation import compare, measured_runs, verdicts

SHOWN_DIFFERENCES = 3
CONSTANT_TOLERANCE = 0.1
"""A constant that is this much off is worth a line."""


@dataclass(frozen=True)
class Finding:
    """about: the part of the project it concerns: survey, kernel, emulator, model, trace."""

    about: str
    where: str
    what: str


def findings(survey: Survey, measured: dict[str, Constant], model: Gpu | None) -> list[Finding]:
    """measured: constants that the archive gives; model: the GPU they are compared with."""
    return [
        *_parts(survey),
        *_kernels(survey),
        *_probes(survey),
        *_traces(survey),
        *(_constants(measured, model) if model else ()),
    ]


def predictions(kept: dict[str, Any] | None, model: Gpu) -> tuple[list[Finding], list[str]]:
    """Runs whose cycles the model misses by more than it says it does, and a verdict for each use that runs have. kept:
    the recording. Takes minutes: each run is simulated.
    """
    rows = list(compare(measured_runs(kept or {"runs": []}), model))
    found = [
        Finding(
            "model",
            row.measured.name,
            f"measured {row.measured.cycles:,.0f} cycles, predicted {row.cycles:,.0f} ({100 * row.error:+.1f} %)",
        )
        for row in rows
        if abs(row.error) > largest_error(model, *parse_run(row.measured.name, model.arch))
    ]
    return found, verdicts(rows)


def _parts(survey: Survey) -> Iterator[Finding]:
    for part in survey.parts:
        if part.status != archive.DONE and not _says_more(survey, part):
            yield Finding("survey", part.part, f"{part.status}: {part.message}")


def _says_more(survey: Survey, part: archive.StepResult) -> bool:
    """Parts that ask probes fail where they differ, which is found by itself. A GPU that lacks what a part asks about
    is no finding.
    """
    asks = part.part in ("probes", "blackwell-probes")
    if part.status == archive.SKIPPED:
        return asks and part.message.startswith(OTHER_GPU)
    return asks and part.status == archive.FAILED and bool(survey.json("probes.json"))


def _kernels(survey: Survey) -> Iterator[Finding]:
    for name in ("kernels.json", "clusters.json"):
        for run in (survey.json(name) or {"runs": []})["runs"]:
            if run["wrong"]:
                yield Finding("kernel", run["name"], run["wrong"])


def _probes(survey: Survey) -> Iterator[Finding]:
    for asked in asked_probes(survey):
        if asked.probe is None:
            yield Finding("survey", asked.name, "this probe is another one today; its answer cannot be compared")
        elif asked.error and asked.probe.modelled:
            yield Finding("survey", asked.name, f"the GPU gave no answer: {asked.error}")
        elif asked.probe.modelled and asked.probe.exact:
            for case, said in asked.failed.items():
                yield Finding("emulator", asked.name, f"{case}: the emulator answers, the GPU does not: {said}")
            for line in asked.differences[:SHOWN_DIFFERENCES]:
                yield Finding("emulator", asked.name, line)


def _traces(survey: Survey) -> Iterator[Finding]:
    for name in survey.names(".json"):
        if name.startswith("trace-") and (about := survey.json(name)) and not about["same_result"]:
            yield Finding("trace", about["name"], "the kernel that writes its events has another result")


def _constants(measured: dict[str, Constant], model: Gpu) -> Iterator[Finding]:
    for name, constant in measured.items():
        ours = model.constants.get(name)
        if ours is None:
            yield Finding("model", name, f"the model of {model.title} has no such constant")
        elif ours.unit != constant.unit:
            yield Finding("model", name, f"measured in {constant.unit}, the model has it in {ours.unit}")
        elif abs(constant.value - ours.value) > CONSTANT_TOLERANCE * abs(constant.value):
            yield Finding(
                "model",
                name,
                f"measured {constant.value:.4g} {constant.unit}, the model has {ours.value:.4g} ({ours.status})",
            )
