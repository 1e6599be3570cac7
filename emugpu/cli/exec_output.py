"""Writes the summary of ``emugpu exec`` for people and for scripts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console

from emugpu.check.findings import Finding, by_cause
from emugpu.cli.render import show_line
from emugpu.driver.gpu_model import gpu_model
from emugpu.driver.log import LaunchRecord, Log
from emugpu.emulator import rules
from emugpu.emulator.names import short_name
from emugpu.record import new_record


def as_json(log: Log, gpu: str, code: int, accumulation: str) -> str:
    """Returns ``{"launches": [...], "unhandled": [...], ...}``."""
    record = {
        **new_record(),
        "gpu": gpu,
        "accumulation": accumulation,
        "exit_code": code,
        "failure": log.failure or None,
        "processes": log.processes,
        "launches": [launch.as_dict() for launch in log.launches],
        "unhandled": sorted(log.unhandled),
        "computed": dict(sorted(log.computed.items())),
        "timing": {"seconds": None, "reason": "not measured: emulated"},
    }
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def show_summary(log: Log, gpu: str) -> None:
    """Shows the summary on standard error, because standard output belongs to the program."""
    console = Console(stderr=True)
    name = gpu_model(gpu).name
    if not log.processes:
        show_line(console, f"emulated {name}: the program did not use it")
        return
    seconds = sum(launch.seconds for launch in log.launches)
    count = _times(len(log.launches))
    show_line(console, f"emulated {name}: {count}, {seconds:.2f} s of emulation; this is not the time on a GPU")
    for line in (*_kernels(log.launches), *_remarks(log)):
        show_line(console, line)


def _kernels(launches: Sequence[LaunchRecord]) -> Iterator[str]:
    """Yields a line for all launches of the same kernel in the same shape."""
    groups: dict[tuple[str, str], list[LaunchRecord]] = {}
    for launch in launches:
        groups.setdefault((launch.kernel, _shape(launch)), []).append(launch)
    for (kernel, shape), group in groups.items():
        instructions = sum(launch.counters.total_instructions() for launch in group)
        failed = sum(1 for launch in group if launch.error)
        yield f"  {short_name(kernel)}"
        yield f"    {shape}: {_times(len(group))}, {instructions:,} warp instructions" + (
            f", {failed} failed" if failed else ""
        )


def _shape(launch: LaunchRecord) -> str:
    cluster = f", cluster {_dims(launch.cluster)}" if launch.cluster != (1, 1, 1) else ""
    return f"grid {_dims(launch.grid)}{cluster}, block {_dims(launch.block)}"


def _dims(sizes: tuple[int, int, int]) -> str:
    """Returns sizes without trailing ones: 4x2, 256."""
    shown = list(sizes)
    while len(shown) > 1 and shown[-1] == 1:
        shown.pop()
    return "x".join(map(str, shown))


def _remarks(log: Log) -> list[str]:
    lines = []
    warnings: dict[tuple[str, str, int], list[rules.RuleWarning]] = {}
    for launch in log.launches:
        for warning in launch.warnings:
            warnings.setdefault((launch.kernel, rules.cause(warning), warning.line), []).append(warning)
    for same in warnings.values():
        often = sum(warning.count for warning in same)
        lines.append(f"warning, in {_times(len(same))}, {often:,} times: {same[0].rule}: {same[0].message}")
    causes = [cause for launch in log.launches for cause in by_cause(launch.findings) if cause[0].severity != "note"]
    findings = Counter(map(_finding, causes))
    lines += [f"{_times(count)}: {text}" for text, count in findings.items()]
    if log.unhandled:
        calls = ", ".join(f"{name} ({count})" for name, count in sorted(log.unhandled.items()))
        lines.append(f"not supported, with the number of calls: {calls}")
    if log.computed:
        calls = ", ".join(f"{name} ({count})" for name, count in sorted(log.computed.items()))
        lines.append(f"computed by NumPy instead of NVIDIA's kernels: {calls}")
    if log.elapsed_asked:
        lines.append("times between events are those of the emulation, not of a GPU")
    if log.failure:
        lines.append(f"the emulated GPU could not do what the program asked for: {log.failure}")
    return lines


def _finding(cause: Sequence[Finding]) -> str:
    finding, *others = cause
    places = "; ".join(str(place) for place in (finding.first, finding.second) if place)
    more = f", and at {len(others)} other places" if others else ""
    return f"{finding.severity} {finding.rule}: {finding.message} ({places}){more}"


def _times(count: int) -> str:
    return f"{count} launch{'es' if count != 1 else ''}"
