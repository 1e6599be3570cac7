"""Shows results as tables in Markdown: a line for each kind of fault, and one for each fault."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from conformance.faults.programs import Fault, Program, programs
from conformance.faults.results import Results
from conformance.faults.sanitizer import TOOLS
from emugpu.markdown import table

COLUMNS = ("gpu", *TOOLS, "checker")
NOT_RUN = "not run"


def lines(results: Results) -> Iterator[str]:
    """Yields the lines of all tables, and what they were measured with."""
    yield from _about(results)
    yield ""
    yield from by_kind(results)
    yield ""
    yield from _faults(results)
    reported = list(_reported(results))
    if reported:
        yield ""
        yield from table(("right program", "by", "what"), reported)


def _about(results: Results) -> Iterator[str]:
    gpu, tool, checker = (results.about.get(name) for name in ("gpu", "sanitizer", "checker"))
    if gpu:
        launches = f"{gpu['launches']:,} launches of each program"
        yield f"GPU: {gpu['gpu']}, driver {gpu['driver']}, {gpu['date']}; {launches}, each with inputs of its own."
    if tool:
        had = f"{tool['version']}, {tool['launches']} launches of each program" if tool["version"] else "not installed"
        yield f"compute-sanitizer: {had}."
    if checker:
        yield f"Checker: `emugpu verify` with {checker['schedules']} schedules, {checker['date']}."


# ---- what a column says of one program ----


def _entry(results: Results, one: Program | Fault, column: str) -> dict[str, Any] | None:
    """Returns what was measured, or None if nothing was, also if a tool was stopped before it had reported anything."""
    found = results.programs.get(one.id, {}).get(column)
    return None if found is None or (found.get("ended") is False and not found["reports"]) else found


def _amount(results: Results, one: Program | Fault, column: str) -> int:
    """Returns how much a column says against a program: 0 for nothing."""
    found = _entry(results, one, column)
    if found is None:
        return 0
    if column == "gpu":
        return int(found["wrong"]) + ("hung" in found or "error" in found)
    if column == "checker":
        return len(found["errors"]) + len(found["warnings"]) + (found["verdict"] != "clean")
    return int(found["reports"])


def _told(results: Results, one: Program | Fault, column: str) -> bool:
    """Returns whether a column says something against a right program, or more against a wrong one than its twin."""
    if isinstance(one, Program):
        return _amount(results, one, column) > 0
    compared = _entry(results, one.twin, column) is not None
    return compared and _amount(results, one, column) > _amount(results, one.twin, column)


def _text(results: Results, one: Program | Fault, column: str) -> str:
    found = _entry(results, one, column)
    if found is None:
        return NOT_RUN
    if not _amount(results, one, column):
        return "-"
    if column == "gpu":
        return _shown(found)
    if column == "checker":
        warnings = [f"warning: {rule}" for rule in found["warnings"]] if found["verdict"] == "clean" else []
        return ", ".join(found["errors"] + warnings) or str(found["verdict"])
    return f"{found['reports']}"


def _shown(found: dict[str, Any]) -> str:
    """Returns what the GPU showed."""
    parts = [f"{found['wrong']:,} of {found['launches']:,} wrong"] if found["wrong"] else []
    if found.get("hung"):
        parts.append("does not end" if not found["launches"] else f"launch {found['launches'] + 1:,} does not end")
    elif "error" in found:
        name = re.search(r"CUDA_ERROR_\w+", found["error"])
        parts.append(name[0] if name else found["error"])
    return "; ".join(parts)


# ---- a line for each kind ----


def by_kind(results: Results) -> Iterator[str]:
    """Yields a table with a line for each kind of fault, one for all, and one for the right programs."""
    faults = [fault for program in programs() for fault in program.faults]
    silent = [fault for fault in faults if _entry(results, fault, "gpu") and not _amount(results, fault, "gpu")]
    rows = [
        (kind, *_counts(results, [fault for fault in faults if fault.twin.kind == kind]))
        for kind in dict.fromkeys(fault.twin.kind for fault in faults)
    ]
    rows.append(("**all**", *_counts(results, faults)))
    rows.append(("of these, what the GPU does not show", *_counts(results, silent)))
    rows.append(("right programs that are reported", *_counts(results, programs())))
    heads = ("kind of fault", "wrong programs", "GPU", *TOOLS, "one of these four", "checker")
    yield from table(heads, rows, heads[1:])


def _counts(results: Results, several: Sequence[Program | Fault]) -> Iterator[str]:
    """Yields the number of programs, and how many of them each column tells."""
    told = {column: [one.id for one in several if _told(results, one, column)] for column in COLUMNS}
    yield f"{len(several)}"
    for column in COLUMNS:
        if column == "checker":
            yield f"{len(set().union(*(told[tool] for tool in TOOLS)))}"
        missed = sum(_entry(results, one, column) is None for one in several)
        yield f"{len(told[column])}{f' ({missed} {NOT_RUN})' if missed else ''}"


# ---- a line for each fault ----


def _faults(results: Results) -> Iterator[str]:
    rows, kind = [], ""
    for program in programs():
        for fault in program.faults:
            cells = [_beside_twin(results, fault, column) for column in COLUMNS]
            source = fault.isa.partition(": ")[0]
            name = program.name if fault == program.faults[0] else ""
            rows.append((program.kind if program.kind != kind else "", name, fault.name, source, *cells))
            kind = program.kind
    yield from table(("kind", "program", "fault", "source", "GPU", *TOOLS, "checker"), rows)


def _beside_twin(results: Results, fault: Fault, column: str) -> str:
    says, right = (_text(results, one, column) for one in (fault, fault.twin))
    return f"{says}, right: {right}" if _amount(results, fault.twin, column) else says


def _reported(results: Results) -> Iterator[tuple[str, str, str]]:
    """Yields what was reported of right programs."""
    for program in programs():
        for column in COLUMNS:
            if _amount(results, program, column):
                what = _text(results, program, column)
                yield program.name, column, f"{what} reports" if column in TOOLS else what
