"""What ``harness exec`` says at the end, for people and for scripts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from harness.cli.render import show_line
from harness.driver.gpu_model import gpu_model
from harness.driver.log import LaunchRecord, Log
from harness.run import records


def as_json(log: Log, gpu: str, code: int) -> str:
    """``{"launches": [...], "unhandled": [...], ...}``"""
    record = {
        **records.new_record(),
        "gpu": gpu,
        "exit_code": code,
        "failure": log.failure or None,
        "processes": log.processes,
        "launches": [launch.as_dict() for launch in log.launches],
        "unhandled": sorted(log.unhandled),
        "timing": {"seconds": None, "reason": "not measured: emulated"},
    }
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def show_summary(log: Log, gpu: str) -> None:
    """On standard error, as standard output is the program's."""
    console = Console(stderr=True)
    if not log.processes:
        show_line(console, "emulated GPU: the program has not used it")
        return
    if log.launches:
        console.print(_table(log.launches, gpu))
    for line in _remarks(log):
        show_line(console, line)


def _table(launches: Sequence[LaunchRecord], gpu: str) -> Table:
    table = Table(title=f"launches on the emulated {gpu_model(gpu).name}", title_justify="left")
    for name in ("kernel", "grid", "cluster", "block"):
        table.add_column(name, overflow="fold")
    for name in ("launches", "failed", "warp instructions", "emulation"):
        table.add_column(name, justify="right")
    groups: dict[tuple[str, ...], list[LaunchRecord]] = {}
    for launch in launches:
        key = (launch.kernel, *(_dims(sizes) for sizes in (launch.grid, launch.cluster, launch.block)))
        groups.setdefault(key, []).append(launch)
    for key, group in groups.items():
        failed = sum(1 for launch in group if launch.error)
        instructions = sum(launch.counters.total_instructions() for launch in group)
        seconds = sum(launch.seconds for launch in group)
        table.add_row(*key, str(len(group)), str(failed or ""), f"{instructions:,}", f"{seconds:.3f} s")
    return table


def _dims(sizes: tuple[int, int, int]) -> str:
    return " x ".join(map(str, sizes))


def _remarks(log: Log) -> list[str]:
    lines = []
    warnings = Counter(f"{w.rule}: {w.message}" for launch in log.launches for w in launch.warnings)
    lines += [f"warning, in {_times(count)}: {text}" for text, count in warnings.items()]
    findings = Counter(f.text() for launch in log.launches for f in launch.findings if f.severity != "note")
    lines += [f"{_times(count)}: {text}" for text, count in findings.items()]
    if log.unhandled:
        calls = ", ".join(f"{name} ({count})" for name, count in sorted(log.unhandled.items()))
        lines.append(f"not supported, with the number of calls: {calls}")
    if log.elapsed_asked:
        lines.append("times between events are those of the emulation: nothing here is measured")
    if log.failure:
        lines.append(f"the emulated GPU could not do what the program asked for: {log.failure}")
    return lines


def _times(count: int) -> str:
    return f"{count} launch{'es' if count > 1 else ''}"
