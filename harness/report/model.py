"""How far the timing model's predictions are from what a GPU took, as a figure and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import CannotRun
from harness.report.figure import Figure
from harness.report.style import SETTINGS, color
from harness.timing.constants import find_gpu
from metrology.survey.uses import FIT, JUDGE, JUDGE_FAR, SEEN
from metrology.validation.validation import GPU, Row
from metrology.validation.validation_kept import read_predictions
from metrology.validation.validation_report import AXES, LINES, RUNS, TARGET, USES, VERDICTS, counters, runs, verdicts

MARKS = {
    FIT: ("s", "kernel5"),
    SEEN: ("^", "kernel7"),
    JUDGE_FAR: ("D", "kernel8"),
    JUDGE: ("o", "kernel6"),
}
"""Shape and colour of a run by its use; the later ones lie above."""


@dataclass(frozen=True)
class ModelCheck:
    """The validation of the model. sentences: in words; without figure they say why there is none."""

    sentences: tuple[str, ...]
    figure: Figure | None = None
    columns: tuple[str, ...] = VERDICTS
    rows: tuple[tuple[str, ...], ...] = ()


def model_check() -> ModelCheck:
    """From the predictions that are kept, beside the recording."""
    gpu = find_gpu(GPU)
    try:
        rows, current = read_predictions(gpu)
    except CannotRun as error:
        return ModelCheck((f"How wrong the model is cannot be shown: {error}.",))
    sentences = [counters(rows)]
    if not current:
        sentences.append(
            "These predictions were made with other constants than the model has now; "
            "`python -m metrology.validation.validate --write` makes them anew."
        )
    return ModelCheck(tuple(sentences), _scatter(rows, gpu.title), rows=tuple(verdicts(rows)))


def _scatter(rows: Sequence[Row], gpu: str) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(SETTINGS):
        canvas = Canvas(figsize=(9.0, 6.0), layout="constrained")
        axis = canvas.subplots()
        cycles = [value for row in rows for value in (row.measured.cycles, row.cycles)]
        ends = (min(cycles) / 1.3, max(cycles) * 1.3)
        labels = ("no error", f"{100 * TARGET:.0f} % off", None)
        for factor, label, dash in zip(LINES, labels, ("-", ":", ":"), strict=True):
            line = [factor * end for end in ends]
            axis.plot(ends, line, color=color("muted"), linewidth=1, linestyle=dash, label=label)
        for use, (marker, shade) in MARKS.items():
            some = [row for row in rows if row.measured.use == use]
            places = [row.measured.cycles for row in some], [row.cycles for row in some]
            style: dict[str, Any] = {
                "facecolor": "none",
                "edgecolor": color(shade),
                "linewidth": 1.3,
                "marker": marker,
                "s": 34,
            }
            axis.scatter(*places, label=USES[use], zorder=3, **style)
        axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel=AXES[0], ylabel=AXES[1])
        axis.legend(loc="upper left")
    return Figure(
        "predicted-over-measured",
        f"Predicted over measured: cycles on an {gpu}",
        f"{len(rows)} configurations and problems, each a hollow mark: across what an {gpu} took, measured; upwards "
        "what the model says, predicted. Circles were only judged, triangles were seen while the model got its form, "
        "squares were there to fit constants; above the line the model is too slow.",
        canvas,
        RUNS,
        runs(rows),
        "predicted and measured",
    )
