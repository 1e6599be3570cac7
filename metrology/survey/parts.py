"""The parts of a survey, in the order of what is missed most if time runs out."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from metrology.survey.micro.questions import QUESTIONS
from metrology.survey.reading.counters import NAMES

PACKAGE = Path(harness.__file__).resolve().parent
TESTS = PACKAGE.parent / "tests" / "test_gpu_kernels.py"
"""In a checkout."""
OTHER_GPU = "needs compute capability"
"""Begins the message of a part that is skipped because this GPU lacks what it asks about."""
PROBES = "{out}/probes.json"
"""Both parts that ask probes add to the same file."""
PROBE_SECONDS = "15"


@dataclass(frozen=True)
class Part:
    """A process of its own. command: {out} and {packed} are folders. limit: seconds. modules, programs, files: that it
    needs; where one is missing it is skipped. packed: it needs compiled kernels. keeps: the file of the archive for its
    standard output; None: its log. since: the major compute capability that a GPU needs for it.
    """

    name: str
    what: str
    command: tuple[str, ...]
    limit: int
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    packed: bool = False
    keeps: str | None = None
    since: int = 0

    def missing(self) -> str | None:
        """Why this machine cannot do it."""
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                return f"the Python package {module} is not installed"
        for program in self.programs:
            if shutil.which(program) is None:
                return f"{program} is not on PATH"
        for file in self.files:
            if not file.exists():
                return f"there is no {file}"
        return None

    def missing_of(self, gpu: dict[str, Any] | None) -> str | None:
        """Why this GPU, as the driver describes it, cannot do it. One that did not answer is asked all the same."""
        if gpu is None or int(gpu["compute_capability"].split(".")[0]) >= self.since:
            return None
        return f"{OTHER_GPU} {self.since}.0; this GPU has {gpu['compute_capability']}"


def _python(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *words)


PARTS = (
    *(
        Part(
            f"micro-{name}",
            question,
            _python("metrology.survey.micro.measured", "{out}", name),
            limit=45,
            modules=("ml_dtypes",),
        )
        for name, question in QUESTIONS.items()
    ),
    Part(
        "blackwell-probes",
        "Does what only Blackwell has do as the emulator does?",
        _python("metrology.probes.record", PROBES, "blackwell", PROBE_SECONDS),
        limit=200,
        modules=("ml_dtypes",),
        since=10,
    ),
    Part(
        "kernels",
        "Is every packed kernel right, and how many cycles does it take?",
        _python("metrology.survey.kernels", "time", "{packed}", "{out}/kernels.json"),
        limit=120,
        modules=("torch", "ml_dtypes"),
        packed=True,
    ),
    Part(
        "clusters",
        "Is every kernel right in every cluster, and with every preset?",
        _python("metrology.survey.kernels", "check", "{packed}", "{out}/clusters.json"),
        limit=90,
        modules=("torch", "ml_dtypes"),
        packed=True,
    ),
    Part(
        "probes",
        "Does the GPU answer as the emulator does?",
        _python("metrology.probes.record", PROBES, "hopper", PROBE_SECONDS),
        limit=150,
        modules=("ml_dtypes",),
    ),
    Part(
        "counters",
        "What do the hardware counters say about every packed kernel, launched once with cold caches?",
        (
            *("ncu", "--clock-control", "none", "--kernel-name", "regex:^kernel[5-8]", "--csv", "--page", "raw"),
            *("--metrics", ",".join(NAMES), *_python("metrology.survey.kernels", "once", "{packed}")),
        ),
        limit=120,
        modules=("ml_dtypes",),
        programs=("ncu",),
        packed=True,
        keeps="counters.csv",
    ),
    Part(
        "traces",
        "When did which warp of a CTA wait, load, multiply and store?",
        _python("metrology.survey.trace.record", "{packed}", "{out}"),
        limit=60,
        modules=("ml_dtypes",),
        packed=True,
    ),
    Part(
        "power",
        "At which power and clock do kernels run for long, by what is in their operands?",
        _python("metrology.survey.kernels", "power", "{packed}", "{out}/power.json"),
        limit=60,
        modules=("torch", "ml_dtypes"),
        packed=True,
    ),
    Part(
        "doctor",
        "What is installed?",
        _python("harness", "doctor", "--json", "-"),
        limit=30,
        modules=("rich", "max"),
        files=(PACKAGE / "__main__.py",),
        keeps="doctor.json",
    ),
    Part(
        "gpu-tests",
        "Do the project's tests pass on this GPU?",
        _python("pytest", "-m", "gpu", "--quiet", "-p", "no:cacheprovider", str(TESTS)),
        limit=180,
        files=(TESTS,),
        modules=("pytest", "max", "torch"),
    ),
)
