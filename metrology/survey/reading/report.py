"""A survey in words, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.markdown import table
from harness.timing.constants import Constant
from harness.timing.survey_archive import Survey
from metrology.survey import archive
from metrology.survey.reading.findings import Finding
from metrology.survey.reading.probes import asked_probes
from metrology.survey.reading.recording import driver, recording


def report(
    survey: Survey, measured: dict[str, Constant], found: Sequence[Finding], verdicts: Sequence[str] = ()
) -> str:
    """What was done, what is wrong, what was measured. verdicts: on the predictions, where there are any."""
    parts = (
        _head(survey),
        _findings(found),
        _questions(survey),
        _predictions(verdicts),
        _constants(measured),
        _kernels(survey),
    )
    return "\n".join(line for part in parts for line in part) + "\n"


def _head(survey: Survey) -> Iterator[str]:
    gpu = survey.gpu
    name, capability = gpu.get("name", "no GPU answered"), gpu.get("compute_capability", "?")
    yield f"# Survey of {name}"
    yield ""
    yield (
        f"{survey.manifest['time']}, compute capability {capability}, {gpu.get('multiprocessors', '?')} "
        f"multiprocessors, driver {driver(survey) or '?'}."
    )
    yield ""
    yield from _table(
        ("part", "", "s", ""),
        [
            (part.part, part.status, f"{part.seconds:.1f}", "" if part.status == archive.DONE else part.message)
            for part in survey.parts
        ],
    )


def _findings(found: Sequence[Finding]) -> Iterator[str]:
    count = "1 finding" if len(found) == 1 else f"{len(found)} findings"
    yield f"## {count}" if found else "## Nothing was found wrong"
    yield ""
    if found:
        yield from _table(("about", "where", "what"), [(f.about, f.where, f.what) for f in found])


def _questions(survey: Survey) -> Iterator[str]:
    """Those that only Blackwell can answer."""
    rows = [
        (a.probe.question, a.name, a.verdict, a.probe.assumption)
        for a in asked_probes(survey)
        if a.probe is not None and a.blackwell
    ]
    if rows:
        yield "## What only Blackwell can answer"
        yield ""
        yield from _table(("question", "probe", "answer", "the emulator assumes"), rows)


def _predictions(verdicts: Sequence[str]) -> Iterator[str]:
    if verdicts:
        yield "## Cycles, predicted against measured"
        yield ""
        yield from (f"- {verdict}" for verdict in verdicts)
        yield ""


def _constants(measured: dict[str, Constant]) -> Iterator[str]:
    if not measured:
        return
    yield "## Constants, measured"
    yield ""
    rows = [(name, f"{c.value:.4g}", c.unit, c.source.partition(": ")[2]) for name, c in measured.items()]
    yield from _table(("constant", "value", "unit", "what"), rows)


def _kernels(survey: Survey) -> Iterator[str]:
    runs = (recording(survey) or {"runs": []})["runs"]
    if not runs:
        return
    yield "## Kernels, measured"
    yield ""
    yield "Cycles of a launch in a row of launches; counters of one launch with cold caches."
    yield ""
    rows = []
    for run in runs:
        normal, counted = run.get("normal", {}), run.get("ncu", {})
        rows.append(
            (
                run["name"],
                run["use"],
                f"{run['cycles']:,.0f}",
                f"{run['mhz']:.0f}",
                f"{normal['cycles']:,.0f}" if normal else "",
                f"{normal['mhz']:.0f}" if normal else "",
                f"{counted['tensor_percent']:.1f}" if "tensor_percent" in counted else "",
                f"{counted['l2_bytes'] / 1e6:,.0f}" if "l2_bytes" in counted else "",
                f"{counted['dram_bytes_read'] / 1e6:,.0f}" if "dram_bytes_read" in counted else "",
            )
        )
    names = ("run", "use", "cycles (zeros)", "MHz", "cycles (normal)", "MHz", "tensor %", "L2 MB", "DRAM read MB")
    yield from _table(names, rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from table(names, rows)
    yield ""
