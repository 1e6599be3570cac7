"""The parts of a survey, in the order of what is missed most if time runs out."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass

from harness.survey.micro.catalogue import BENCHMARKS

COUNTERS = (
    "sm__cycles_elapsed.max",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "lts__t_bytes.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
)
"""Hardware counters by their names in Nsight Compute, all of which an H100 and an H200 have."""


@dataclass(frozen=True)
class Part:
    """A process of its own. command: {out} and {packed} are folders. limit: seconds. modules, programs: that it needs;
    where one is missing it is skipped. packed: it needs compiled kernels. keeps: where its standard output goes, in the
    archive; None: into its log.
    """

    name: str
    what: str
    command: tuple[str, ...]
    limit: int
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    packed: bool = False
    keeps: str | None = None

    def missing(self) -> str | None:
        """Why this machine cannot do it."""
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                return f"the Python package {module} is not installed"
        for program in self.programs:
            if shutil.which(program) is None:
                return f"{program} is not on PATH"
        return None


def _python(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", *words)


PARTS = (
    *(
        Part(
            f"micro-{name}",
            benchmark.question,
            _python("harness.survey.micro.measured", "{out}", name),
            limit=45,
        )
        for name, benchmark in BENCHMARKS.items()
    ),
    Part(
        "kernels",
        "Is every packed kernel right, and how many cycles does it take?",
        _python("harness.survey.kernels", "time", "{packed}", "{out}/kernels.json"),
        limit=120,
        modules=("torch",),
        packed=True,
    ),
    Part(
        "probes",
        "Does the GPU answer as the emulator does?",
        _python("harness.probes", "--device", "gpu", "--json", "{out}/probes.json"),
        limit=150,
        modules=("click",),
    ),
    Part(
        "counters",
        "What do the hardware counters say about every packed kernel, launched once with cold caches?",
        (
            *("ncu", "--clock-control", "none", "--kernel-name", "regex:^kernel[5-8]", "--csv", "--page", "raw"),
            *("--metrics", ",".join(COUNTERS), *_python("harness.survey.kernels", "once", "{packed}")),
        ),
        limit=120,
        programs=("ncu",),
        packed=True,
        keeps="counters.csv",
    ),
    Part(
        "traces",
        "When did which warp of a CTA wait, load, multiply and store?",
        _python("harness.survey.traces", "{packed}", "{out}"),
        limit=60,
        packed=True,
    ),
    Part(
        "power",
        "At which power and clock do kernels run for long, by what is in their operands?",
        _python("harness.survey.kernels", "power", "{packed}", "{out}/power.json"),
        limit=60,
        modules=("torch",),
        packed=True,
    ),
    Part("doctor", "What is installed?", _python("harness", "doctor", "--json"), 30, ("rich", "max"), (), False, "doctor.json"),
    Part(
        "gpu-tests",
        "Do the project's tests pass on this GPU?",
        _python("pytest", "-m", "gpu", "--quiet", "-p", "no:cacheprovider"),
        limit=180,
        modules=("pytest", "max", "torch"),
    ),
)
