"""Shows results as tables in Markdown: the sums, and a line for each fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from conformance.faults.programs import Fault, Program, programs
from conformance.faults.results import Results
from conformance.faults.sanitizer import TOOLS
from emugpu.markdown import table

NOTHING = "-"
NOT_RUN = "not run"


def lines(results: Results) -> Iterator[str]:
    """Yields the lines of both tables, and what they were measured with."""
    yield from _about(results)
    yield ""
    yield from _sums(results)
    yield ""
    yield from _faults(results)
    false = list(_false(results))
    if false:
        yield ""
        yield from table(("right program", "by", "what"), false)


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


def _shows(entry: dict[str, Any]) -> str | None:
    """Returns what the GPU showed of a program, "" for nothing, or None if it was not run."""
    found = entry.get("gpu")
    if found is None:
        return None
    parts = []
    if found["wrong"]:
        parts.append(f"{found['wrong']:,} of {found['launches']:,} wrong")
    if found.get("hung"):
        parts.append("does not end" if not found["launches"] else f"launch {found['launches'] + 1:,} does not end")
    elif "error" in found:
        name = re.search(r"CUDA_ERROR_\w+", found["error"])
        parts.append(name[0] if name else found["error"])
    return "; ".join(parts)


def _reports(entry: dict[str, Any], tool: str) -> int | None:
    """Returns how much a tool reported, or None if it was not run or said nothing before it was stopped."""
    found = entry.get(tool)
    if found is None or (not found["reports"] and not found.get("ended", True)):
        return None
    return int(found["reports"])


def _checked(entry: dict[str, Any]) -> str | None:
    """Returns what the checker said: rules, or the verdict's word; "" for nothing; None if it was not run."""
    found = entry.get("checker")
    if found is None:
        return None
    if found["verdict"] == "clean":
        return ", ".join(f"warning: {rule}" for rule in found["warnings"])
    return ", ".join(found["errors"]) or found["verdict"]


def _entry(results: Results, one: Program | Fault) -> dict[str, Any]:
    return results.programs.get(one.id, {})


def _tells(results: Results, fault: Fault, tool: str) -> bool:
    """Returns whether a tool reports the wrong program, and nothing of the right one."""
    return bool(_reports(_entry(results, fault), tool)) and _reports(_entry(results, fault.twin), tool) == 0


# ---- the sums ----


def _sums(results: Results) -> Iterator[str]:
    right = list(programs())
    wrong = [fault for program in right for fault in program.faults]
    yield from table(
        (f"{len(wrong)} wrong programs, {len(right)} right ones", "wrong", "right"),
        _rows(results, wrong, right),
        ("wrong", "right"),
    )


def _rows(results: Results, wrong: list[Fault], right: list[Program]) -> Iterator[tuple[str, str, str]]:
    def count(one: Program | Fault, says: Any) -> bool:
        return bool(says(_entry(results, one)))

    def row(name: str, says: Any) -> tuple[str, str, str]:
        return name, str(sum(count(one, says) for one in wrong)), str(sum(count(one, says) for one in right))

    def error(entry: dict[str, Any]) -> bool:
        return entry.get("checker", {}).get("verdict", "clean") != "clean"

    def warning(entry: dict[str, Any]) -> bool:
        return not error(entry) and bool(_checked(entry))

    if "gpu" in results.about:
        yield row("the GPU shows a wrong result, an error or a hang", _shows)
        silent = [fault for fault in wrong if _shows(_entry(results, fault)) == ""]
        for tool in TOOLS if results.about["sanitizer"]["version"] else ():
            yield row(f"{tool} reports", lambda entry, tool=tool: _reports(entry, tool))
            yield f"{tool} tells wrong from right", str(sum(_tells(results, fault, tool) for fault in wrong)), ""
        if results.about["sanitizer"]["version"]:
            told = [fault for fault in wrong if any(_tells(results, fault, tool) for tool in TOOLS)]
            yield "one of the four tells wrong from right", str(len(told)), ""
            yield (
                f"of the {len(silent)} that the GPU does not show: one of the four tells",
                str(sum(fault in silent for fault in told)), "",
            )  # fmt: skip
    if "checker" in results.about:
        yield row("the checker reports an error", error)
        yield row("the checker only warns", warning)
        if "gpu" in results.about:
            found = sum(error(_entry(results, fault)) for fault in silent)
            yield f"of the {len(silent)} that the GPU does not show: the checker reports an error", str(found), ""


# ---- a line for each fault ----


def _faults(results: Results) -> Iterator[str]:
    columns = ("kind", "program", "fault", "PTX ISA", "GPU", *TOOLS, "checker")
    rows, kind = [], ""
    for program in programs():
        for fault in program.faults:
            entry = _entry(results, fault)
            cells = [_cell(_shows(entry)), *(_told(results, fault, tool) for tool in TOOLS), _cell(_checked(entry))]
            first = program.kind if program.kind != kind else ""
            name = program.name if fault is program.faults[0] or fault.name == program.faults[0].name else ""
            rows.append((first, name, fault.name, fault.isa, *cells))
            kind = program.kind
    yield from table(columns, rows)


def _cell(says: str | None) -> str:
    return NOT_RUN if says is None else says or NOTHING


def _told(results: Results, fault: Fault, tool: str) -> str:
    found, twins = (_reports(_entry(results, one), tool) for one in (fault, fault.twin))
    if found is None:
        return NOT_RUN if tool not in _entry(results, fault) else "does not end"
    return f"{found}{f', right: {twins}' if found and twins else ''}" if found else NOTHING


def _false(results: Results) -> Iterator[tuple[str, str, str]]:
    """Yields what was reported of right programs."""
    for program in programs():
        entry = _entry(results, program)
        says = [("GPU", _shows(entry)), ("checker", _checked(entry))]
        says += [(tool, f"{_reports(entry, tool)} reports" if _reports(entry, tool) else "") for tool in TOOLS]
        yield from ((program.name, who, what) for who, what in says if what)
