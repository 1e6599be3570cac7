"""Compiles what a survey launches, so that the machine with the GPU needs neither Mojo nor MAX.

The folder gets `runs.json`, with the launch plan of each run, and the PTX of every kernel, by the name of its entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.build.artifacts import Artifact, build
from harness.build.compiler import assemble, ptxas_version
from harness.errors import CannotRun
from metrology.survey.runs import TRACED, Run
from metrology.survey.trace.instrument import Room, instrument

RUNS = "runs.json"
TRACED_CTAS, TRACED_EVENTS = 16, 4096
AT_ONCE = 6
"""Configurations compiled into one program: more in one take more memory, fewer more time."""


def pack(chosen: Sequence[Run], arch: str, folder: Path) -> None:
    """Writes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for run, artifact in zip(chosen, _artifacts(chosen, arch), strict=True):
        plan = json.loads(artifact.plan_json(run.shape))
        plan.pop("tiles")  # long, and no launch needs it
        code = _code(folder, plan["entry"], artifact.ptx, arch)
        entry = {"name": run.name, "use": run.use, "plan": plan, "code": code}
        if run.name in TRACED:
            entry["trace"] = _traced(folder, plan, artifact.ptx, arch)
        entries.append(entry)
    (folder / RUNS).write_text(json.dumps(entries), encoding="utf-8")


def _code(folder: Path, name: str, text: str, arch: str) -> str:
    """The file with a kernel's machine code, or with its PTX where there is no ptxas: the driver takes both."""
    ptx = folder / f"{name}.ptx"
    if not ptx.exists():
        ptx.write_text(text, encoding="utf-8")
        found = assemble(ptx, arch) if ptxas_version() else {}
        if "error" in found:
            raise CannotRun(f"{name}: {found['error']}")
    machine = ptx.with_suffix(".cubin")
    return machine.name if machine.exists() else ptx.name


def _traced(folder: Path, plan: dict[str, Any], ptx: str, arch: str) -> dict[str, Any]:
    """The kernel with events. Of a warpgroup, whose warps do the same, one warp writes."""
    warps = plan["block"][0] // 32
    room = Room(TRACED_CTAS, warps, 4 if arch == "sm_90a" else 1, TRACED_EVENTS)
    traced = instrument(ptx, room)
    code = _code(folder, f"{plan['entry']}-traced", traced.ptx, arch)
    return {"code": code, "room": asdict(room), "sites": [asdict(site) for site in traced.sites]}


def _artifacts(chosen: Sequence[Run], arch: str) -> Iterator[Artifact]:
    configs = [run.config(arch) for run in chosen]
    distinct = list(dict.fromkeys(configs))
    for first in range(0, len(distinct), AT_ONCE):
        build(distinct[first : first + AT_ONCE])
    yield from build(configs)
