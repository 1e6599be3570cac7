"""Verifies one program of the corpus: ``python worker.py GPU ANSWERS PROGRAM [ARGUMENTS...]``.

Each schedule gives one line of JSON in the file ANSWERS: the verdict of `emugpu verify`, its reasons, and the launches.
A Python script runs in this process, once for each schedule, so that what it imports and compiles is there already; its
PyTorch gets the emulated GPU (`emugpu.pytorch`). Other programs are started for each schedule.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import re
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from emugpu import emulated_gpu
from emugpu.check.verdict import Verdict
from emugpu.driver.gpu_model import gpu_model
from emugpu.driver.log import Log, judge
from emugpu.driver.server import run_program
from emugpu.driver.state import SharedGpu
from emugpu.launch.launching import EmulationOptions, Schedule

SCHEDULES: tuple[tuple[Schedule, int], ...] = (("fifo", 0), ("random", 1), ("reversed", 0))
USES_CUTE = re.compile("cutlass|quack|flash_attn|cudnn")
SILENCE = 120.0
"""A launch of which no cluster ends for so many seconds is incomplete, as under `emugpu verify`."""


def main(gpu: str, answers: str, *command: str) -> None:
    command = (str(Path(command[0]).resolve()), *command[1:])
    verify = _script if command[0].endswith(".py") else _program
    with open(answers, "w", encoding="utf-8") as file:
        for schedule, seed in SCHEDULES:
            begun = time.monotonic()
            verdict, launches = verify(gpu, schedule, seed, command)
            answer = {
                "schedule": schedule,
                "verdict": verdict.word,
                "reasons": verdict.reasons,
                "launches": [{key: launch[key] for key in ("kernel", "findings")} for launch in launches],
                "seconds": round(time.monotonic() - begun, 1),
            }
            print(json.dumps(answer), file=file, flush=True)


def _program(
    gpu: str, schedule: Schedule, seed: int, command: Sequence[str]
) -> tuple[Verdict, Sequence[dict[str, Any]]]:
    log = Log()
    options = EmulationOptions(schedule=schedule, seed=seed, timeout=SILENCE, uninitialised="report")
    code = run_program(command, SharedGpu(gpu_model(gpu), options, log, check=True), os.environ)
    verdict = judge(log, command[0], f"the program ended with code {code}" if code else "", checked=True)
    return verdict, [launch.as_dict() for launch in log.launches]


def _script(
    gpu: str, schedule: Schedule, seed: int, command: Sequence[str]
) -> tuple[Verdict, Sequence[dict[str, Any]]]:
    gpu_section = emulated_gpu(gpu, check=True, schedule=schedule, seed=seed, timeout=SILENCE)
    with contextlib.suppress(BaseException), gpu_section as section:
        try:
            _run(command)
        except BaseException:
            traceback.print_exc()
            raise
    return section.verdict, section.launches


def _run(command: Sequence[str]) -> None:
    script = Path(command[0])
    if "torch" not in sys.modules and importlib.util.find_spec("torch"):
        import torch  # noqa: F401  it gets the emulated GPU now

        _one_configuration()
        _no_capture()
        scripts = "".join(Path(word).read_text(encoding="utf-8") for word in command if word.endswith(".py"))
        if USES_CUTE.search(scripts):
            _cute_dsl()
        if "import tilelang" in scripts:
            _one_call()
    sys.argv = list(command)
    sys.path[:0] = [str(script.parent)]
    runpy.run_path(str(script), run_name="__main__")


def _one_configuration() -> None:
    """Triton's autotuner takes the first configuration: there is no time to measure."""
    if importlib.util.find_spec("triton"):
        from triton.runtime.autotuner import Autotuner

        Autotuner.prune_configs = lambda self, *_: self.configs[:1]


def _no_capture() -> None:
    """What a program captures in a graph is executed then, once, and not when the program launches the graph."""
    import torch

    torch.cuda.CUDAGraph = lambda: SimpleNamespace(replay=lambda: None)
    torch.cuda.graph = lambda graph, pool=None, stream=None, **_: torch.cuda.stream(stream)


def _one_call() -> None:
    """TileLang's examples measure nothing: do_bench calls its function once."""
    from tilelang import profiler

    def once(function: Callable[[], Any], *_: Any, **__: Any) -> float:
        function()
        return math.inf

    profiler.do_bench = profiler.bench.do_bench = once


def _cute_dsl() -> None:
    """Prepares CuTe DSL.

    For occupancy it loads a kernel of which it keeps the machine code in a folder of its own, where the emulated GPU
    does not find the PTX. Nobody uses the machine code, so ptxas need not optimise. Before it measures, it captures a
    launch to see whether this is in the stream that it was given; the emulated GPU captures nothing. One launch is
    enough to measure nothing.
    """
    from cutlass import cute, testing
    from cutlass.base_dsl.compiler import PtxasOptions
    from cutlass.utils import HardwareInfo

    def compiled(host: Any, options: str = "") -> Any:
        return compiles(host, options="--keep-cubin")

    def occupancy_kernel(self: Any) -> Any:
        cute.compile = compiled
        try:
            return kernel(self)
        finally:
            cute.compile = compiles

    kernel, compiles = HardwareInfo._get_device_function, cute.compile
    HardwareInfo._get_device_function = occupancy_kernel
    testing._does_kernel_use_stream = lambda *_: True
    once = {"use_cuda_graphs": False, "warmup_iterations": 0, "iterations": 1}
    benchmark = testing.benchmark
    testing.benchmark = lambda *args, **given: benchmark(*args, **{**given, **once})
    PtxasOptions._default = "-O0"


if __name__ == "__main__":
    main(*sys.argv[1:])
