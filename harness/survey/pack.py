"""Compiles what a survey launches, so that the machine with the GPU needs neither Mojo nor MAX.

    python -m harness.survey.pack FOLDER

The folder gets `runs.json`, with the launch plan of each run, and the PTX of every kernel, by the name of its entry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from harness.compiler.build import Artifact, build
from harness.compiler.ptxas import assemble
from harness.errors import CannotRun
from harness.survey.runs import Run, runs

AT_ONCE = 6
"""Configurations compiled into one program: more in one take more memory, fewer more time."""


def pack(chosen: Sequence[Run], arch: str, folder: Path, trace: bool = False) -> None:
    """Writes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for run, artifact in zip(chosen, _artifacts(chosen, arch), strict=True):
        plan = json.loads(artifact.plan_json(run.shape))
        plan.pop("tiles")  # long, and no launch needs it
        ptx = folder / f"{plan['entry']}.ptx"
        if not ptx.exists():
            ptx.write_text(artifact.ptx, encoding="utf-8")
            found = assemble(ptx, arch)
            if "error" in found:
                raise CannotRun(found["error"])
        entries.append({"name": run.name, "use": run.use, "plan": plan, **_code(ptx)})
    (folder / "runs.json").write_text(json.dumps(entries), encoding="utf-8")


def _code(ptx: Path) -> dict[str, Any]:
    return {"code": ptx.with_suffix(".cubin").name}


def _artifacts(chosen: Sequence[Run], arch: str) -> Iterator[Artifact]:
    configs = [run.config(arch) for run in chosen]
    distinct = list(dict.fromkeys(configs))
    for first in range(0, len(distinct), AT_ONCE):
        build(distinct[first : first + AT_ONCE])
    yield from build(configs)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--arch", default="sm_90a", show_default=True)
def main(folder: Path, arch: str) -> None:
    """Compile all runs of a survey."""
    pack(runs(arch), arch, folder)


if __name__ == "__main__":
    main()
