"""Times several builds of one kernel on one problem in one process on a GPU, each alone, for `harness tune`.

A process needs seconds to start, and a build one second to be timed. All builds of a round see the same board, memory
and temperature; the next round is another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emugpu.errors import CannotRun
from emugpu.gpus import check_arch
from harness.compile.artifacts import Artifact
from harness.compile.compiler import Gpu
from harness.problem import Inputs, Shape
from harness.run import worker
from harness.run.gpu_timing import Batch, seconds_alone
from harness.run.measure import ProcessReport, another_gpu, supervise

SILENT_SECONDS = 60.0
"""The process is ended if it sends no event for so long."""

Result = float | str
"""The seconds of a launch, or why there are none."""


def time_each(
    artifacts: Sequence[Artifact], shape: Shape, inputs: str, seed: int, gpu: Gpu, folder: Path
) -> list[Result]:
    """Returns a result for each build, in their order. A build whose launch fails ends the process; another one times
    the rest. Raises `CannotRun` if a process does not get as far as a build. In ``folder`` the rounds of one problem
    leave its inputs and a right output to each other.
    """
    major, minor = (int(part) for part in gpu.compute_capability.split("."))
    for artifact in artifacts:
        check_arch(artifact.config.arch, major, minor, gpu.name)
    requests = [
        worker.MeasurementRequest(artifact, shape, inputs, seed, folder, 0.0, vendors=(), time=True, alone=True)
        for artifact in artifacts
    ]
    results: list[Result] = []
    while len(results) < len(artifacts):
        report = supervise(requests[len(results) :], SILENT_SECONDS, serve)
        results += _results(report, gpu)
    return results[: len(artifacts)]  # a process that fails after its last result has a reason too many


def _results(report: ProcessReport, gpu: Gpu) -> list[Result]:
    """Returns the results of a process. If it failed, the last one is the reason."""
    failure = report.failure or another_gpu(report, gpu)
    found: list[Result] = list(report.events.get("timed", {}).get("results", []))
    if failure is None:
        return found
    if "next" not in report.events or report.failure is None:
        raise CannotRun(failure)
    return [*found, failure]


def serve(requests: Sequence[worker.MeasurementRequest]) -> None:
    """Serves `time_each` in a process that uses the GPU. ``timed`` has the results so far."""
    worker.serve_by(_serve, requests)


def _serve(requests: Sequence[worker.MeasurementRequest]) -> None:
    worker.start_gpu()
    inputs = worker.draw_inputs(requests[0])
    results: list[Result] = []
    for number, request in enumerate(requests):
        worker.emit("next", number=number)
        results.append(_time(request, inputs))
        worker.emit("timed", results=results)


def _time(request: worker.MeasurementRequest, inputs: Inputs) -> Result:
    launched, seconds = worker.launch_once(request, inputs), 0.0
    outputs = [one.c for one in launched.sets]
    worker.emit("checked", validation=launched.validation)
    if launched.validation["passed"]:
        for c in outputs:
            c.fill_(float("nan"))
        seconds = seconds_alone(Batch(launched.launches))
        launched.validation = worker.validate_all(request, inputs, outputs)  # of the timed launches
    return seconds if launched.validation["passed"] else "the result is wrong"
