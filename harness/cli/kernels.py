"""Turns our kernels into launchables for ``verify`` and ``debug``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emugpu.errors import UsageProblem
from emugpu.launch.spec import Launchable, read_ptx
from harness.cli.options import ConfigOptions, Problem
from harness.compile.artifacts import Artifact, build_with_notice, make_launchable
from harness.run.edited import put_in_place
from harness.run.runner import check_memory


def compiled(names: Sequence[str], problem: Problem, config: ConfigOptions, ptx: Path | None) -> list[Artifact]:
    """Returns the kernels, compiled. ``ptx`` replaces the compiled PTX if only one kernel is named."""
    if ptx is not None and len(names) != 1:
        raise UsageProblem(
            f"--ptx {ptx} takes the place of one kernel's PTX, and {len(names)} kernels are named; name one"
        )
    edited = None if ptx is None else read_ptx(ptx)
    configs = [config.configure(name, problem.shape) for name in names]
    for each in configs:
        check_memory(problem.shape, each.dtype)
    artifacts = build_with_notice(configs)
    if ptx is not None and edited is not None:
        artifacts = [put_in_place(ptx, edited, artifacts, problem.shape)[0]]
    return artifacts


def launchable(artifact: Artifact, problem: Problem, inputs: str) -> Launchable:
    """Returns a kernel on its problem. ``inputs`` applies if the problem names none."""
    return make_launchable(artifact, problem.shape, problem.inputs or inputs, problem.seed)
