"""Compiles kernels into a folder from which a machine with a GPU launches them without Mojo or MAX.

The folder has `runs.json` with the launch plan of each run, the machine code of every kernel, and the Python code that
launches and times them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emugpu.errors import CannotRun, UsageProblem
from harness.compile.artifacts import Artifact, build
from harness.compile.compiler import assemble, ptxas_version
from harness.compile.config import make_config
from harness.compile.options import parse_settings
from harness.gpu_bench.kernels import RUNS
from harness.problem import Shape, parse_groups, parse_shape

ROOT = Path(__file__).resolve().parents[2]
CODE = (
    *("emugpu/__init__.py", "emugpu/errors.py"),
    *("emugpu/cuda/__init__.py", "emugpu/cuda/driver.py", "emugpu/launch/__init__.py", "emugpu/launch/expression.py"),
    *("harness/__init__.py", "harness/epilogues.py"),
    *(f"harness/gpu_bench/{name}.py" for name in ("__init__", "__main__", "kernels")),
)
"""The files that run on the machine with the GPU."""
AT_ONCE = 6
"""Configurations compiled into one program: more take more memory, fewer more time."""


@dataclass(frozen=True)
class PackedRun:
    """One kernel on one problem. ``options`` are those of `harness.compile.config.make_config`."""

    kernel: str
    options: tuple[tuple[str, Any], ...]
    shape: Shape

    @property
    def name(self) -> str:
        words = [self.kernel, *(f"{name}={_shown(value)}" for name, value in self.options)]
        return f"{' '.join(words)} at {self.shape.m}x{self.shape.n}x{self.shape.k}"


def _shown(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def parse_runs(kernels: Sequence[str], shapes: Sequence[str], groups: str | None) -> list[PackedRun]:
    """Returns every kernel on every shape. A kernel is its name and options: ``kernel8 scheduler=dynamic``."""
    rows = parse_groups(groups) if groups else ()
    problems = [replace(parse_shape(shape), groups=rows) for shape in shapes]
    parsed = [_parse_kernel(text) for text in kernels]
    return [PackedRun(*kernel, problem) for problem in problems for kernel in parsed]


def _parse_kernel(text: str) -> tuple[str, tuple[tuple[str, Any], ...]]:
    kernel, *words = text.split() or [""]
    try:
        return kernel, tuple(parse_settings(words).items())
    except UsageProblem as error:
        raise UsageProblem(f"--kernel {text!r}: {error}") from None


def pack_runs(runs: Sequence[PackedRun], arch: str, folder: Path) -> None:
    """Compiles the runs and writes the folder, which must be new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageProblem(f"{folder}: is not an empty folder; name a new one")
    entries = []
    artifacts = _artifacts(runs, arch)
    folder.mkdir(parents=True, exist_ok=True)
    for run, artifact in zip(runs, artifacts, strict=True):
        plan = json.loads(artifact.plan_json(run.shape))
        plan.pop("tiles")  # it is long, and no launch needs it
        entries.append({"name": run.name, "plan": plan, "code": _code(folder, plan["entry"], artifact.ptx, arch)})
    (folder / RUNS).write_text(json.dumps(entries), encoding="utf-8")
    copy_code(folder)


def copy_code(folder: Path) -> None:
    """Copies `CODE` into the folder, under the same paths."""
    for name in CODE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)


def _artifacts(runs: Sequence[PackedRun], arch: str) -> list[Artifact]:
    configs = [make_config(run.kernel, arch=arch, shape=run.shape, **dict(run.options)) for run in runs]
    distinct = list(dict.fromkeys(configs))
    for first in range(0, len(distinct), AT_ONCE):
        build(distinct[first : first + AT_ONCE])
    return build(configs)


def _code(folder: Path, name: str, text: str, arch: str) -> str:
    """Writes a file with a kernel's machine code, or with its PTX if there is no ptxas (the driver accepts both).
    Returns its name.
    """
    ptx = folder / f"{name}.ptx"
    if not ptx.exists():
        ptx.write_text(text, encoding="utf-8")
        found = assemble(ptx, arch) if ptxas_version() else {}
        if "error" in found:
            raise CannotRun(f"{name}: {found['error']}")
    machine = ptx.with_suffix(".cubin")
    return machine.name if machine.exists() else ptx.name
