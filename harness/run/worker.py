"""The process that uses the GPU. It serves one request, reports events, and may be killed at any time.

The events are, in order: ``started`` (device), ``loaded`` (seconds), ``launched``, ``checked`` (validation),
``searched`` (several times), ``sampled`` (samples so far, several times), ``finished`` (the complete timing), and a
``note`` between any of them.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from emugpu.errors import CannotRun, ReportedError
from emugpu.processes.program import end_with_parent
from emugpu.processes.worker import send_event
from harness.compile.artifacts import Artifact
from harness.launch.launcher import KernelLoader, Launch
from harness.problem import OUT_TYPES, Inputs, Shape, make_inputs
from harness.run import statistics, telemetry, vendors
from harness.run.gpu_timing import Batch, each_alone
from harness.run.operands import Operands, make_sets
from harness.validation import Matmul, compute_reference

R = TypeVar("R")
MOST_WORDS = 2000
"""Characters of an unexpected error that are kept."""
REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class MeasurementRequest:
    """One kernel on one problem.

    ``folder`` is shared by the processes of a series. ``vendors``: see `harness.run.measure`. ``alone``: whether to
    time each contestant alone, too, and the host.
    """

    artifact: Artifact
    shape: Shape
    inputs: str
    seed: int
    folder: Path
    cap_seconds: float
    vendors: Sequence[str]
    time: bool
    alone: bool


def emit(event: str, **fields: Any) -> None:
    """Sends an event to the parent as plain data, because the parent never loads torch."""
    send_event((event, json.loads(json.dumps(fields))))


def note(message: str) -> None:
    emit("note", message=message)


def serve(request: MeasurementRequest) -> None:
    """Serves a request of `harness.run.measure`."""
    serve_by(_serve, request)


def serve_by(work: Callable[[R], None], request: R) -> None:
    """Serves a request in a worker process that ends with its parent in every case, because nothing else may use a GPU
    that times a kernel.
    """
    end_with_parent()
    try:
        work(request)
    except ReportedError:
        raise
    except Exception as error:  # the error may come from a library that the parent does not load
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise CannotRun(text[:MOST_WORDS]) from error


def start_gpu() -> str:
    """Starts PyTorch on the GPU and reports the device. Returns its UUID."""
    import torch

    torch.cuda.init()
    properties = torch.cuda.get_device_properties(0)
    emit(
        "started",
        name=properties.name,
        uuid=str(properties.uuid),
        compute_capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        torch=torch.__version__,
    )
    return str(properties.uuid)


@dataclass
class Launched:
    """A kernel that has run once on each set of operands. ``workspace`` is kept because the launches use it."""

    sets: list[Operands]
    launches: list[Callable[[], None]]
    workspace: Any
    validation: dict[str, Any]


def launch_once(request: MeasurementRequest, inputs: Inputs) -> Launched:
    """Loads the kernel, launches it once on each set of operands, and validates the outputs."""
    import torch

    start = time.perf_counter()
    plan = request.artifact.plan(request.shape)
    launch = KernelLoader(0).prepare(request.artifact, plan)
    emit("loaded", seconds=time.perf_counter() - start)
    sets = make_sets(request.artifact.config, plan, request.shape, inputs)
    launches, workspace = _launches(launch, sets)
    for each in launches:
        each()
    torch.cuda.synchronize()
    emit("launched")
    return Launched(sets, launches, workspace, validate_all(request, inputs, [one.c for one in sets]))


def _serve(request: MeasurementRequest) -> None:
    uuid = start_gpu()
    inputs = draw_inputs(request)
    launched = launch_once(request, inputs)
    emit("checked", validation=launched.validation)
    if not launched.validation["passed"] or not request.time:
        emit("finished", timing=None)
        return
    sets, launches = launched.sets, launched.launches
    outputs = [one.c for one in sets]
    right = outputs[0].clone()
    for c in outputs:
        c.fill_(float("nan"))
    contestants = {"kernel": launches}
    alive = _reporter("searched")
    contestants |= {name: made for name in request.vendors if (made := vendors.launches_of(name, sets, note, alive))}
    batches = {name: Batch(each) for name, each in contestants.items()}
    timing = _time(request, sets[0], batches, uuid)
    _check_again(request, inputs, outputs, right)
    emit("finished", timing=timing | {"input_sets": len(sets)})


def _launches(launch: Launch, sets: Sequence[Operands]) -> tuple[list[Callable[[], None]], Any]:
    """Returns a launch for each set, on PyTorch's current stream, and the workspace that they share: each leaves its
    counters at 0.
    """
    import torch

    size = launch.workspace.bytes if launch.workspace else 0
    workspace = torch.zeros(size, dtype=torch.uint8, device="cuda")

    def made(one: Operands) -> Callable[[], None]:
        given = one.named() | {"workspace": workspace.data_ptr()}
        return lambda: launch.run(torch.cuda.current_stream().cuda_stream, given)

    return [made(one) for one in sets], workspace


def _time(request: MeasurementRequest, first: Operands, batches: dict[str, Batch], uuid: str) -> dict[str, Any]:
    """Returns the samples in turns, and if asked for each contestant alone, and the host's time."""
    try:
        sensors = telemetry.Sensors(uuid)
    except CannotRun as error:
        sensors = None
        note(f"no clock or power{', and nothing is timed alone' if request.alone else ''}: {error}")
    timing: dict[str, Any] = {"before": sensors.read() if sensors else {}}
    runs, report = {name: batch.seconds for name, batch in batches.items()}, _reporter("sampled")
    samples = statistics.sample_pairs(runs, time.perf_counter, request.cap_seconds, lambda now: report(samples=now))
    timing |= {"samples": samples, "after": sensors.read() if sensors else {}}
    if not request.alone:
        return timing
    if sensors:
        timing["alone"] = each_alone(batches, sensors, lambda: report(samples=samples))
    if host := _host_time(request, first, batches, lambda: report(samples=samples)):
        timing["host_us"] = host
    return timing


def _host_time(
    request: MeasurementRequest, first: Operands, batches: dict[str, Batch], alive: Callable[[], None]
) -> dict[str, float]:
    """Returns the host's time for a call, or nothing with a note if no function launches this kernel."""
    import torch

    from harness.run import host_time  # which imports torch

    try:
        # C of its own: the kernel's must hold the result of the timed launches.
        call = host_time.function_call(first.with_c(torch.empty_like(first.c)))
        if call is None or request.artifact.planner:  # a function launches this checkout's kernel, not a baseline's
            raise CannotRun("no function of harness.pytorch launches this kernel")
        beside = {"cublas": batches["cublas"].launches[0]} if "cublas" in batches else {}
        return host_time.microseconds({"kernel": call, **beside}, alive)
    except (ReportedError, ValueError) as error:
        note(f"host not timed: {error}")
        return {}


def _reporter(event: str) -> Callable[..., None]:
    """Returns a function that sends an event to the parent now and then: a sign of life, and with the samples so far
    the result if the process dies.
    """
    last = time.perf_counter() - REPORT_SECONDS

    def report(**fields: Any) -> None:
        nonlocal last
        if time.perf_counter() - last >= REPORT_SECONDS:
            emit(event, **fields)
            last = time.perf_counter()

    return report


# ---- operands and results ----


def draw_inputs(request: MeasurementRequest) -> Inputs:
    """Returns the same inputs as on the emulator. The first process of a series draws them, which may take longer than
    all the rest, and leaves them to the others.
    """
    place = request.folder / "inputs"
    if place.exists():
        found: Inputs = pickle.loads(place.read_bytes())
        return found
    config = request.artifact.config
    epilogue = config.fused_epilogue
    inputs = make_inputs(request.shape, config.dtype, request.inputs, request.seed, epilogue, config.scales)
    place.write_bytes(pickle.dumps(inputs))
    return inputs


def validate_all(request: MeasurementRequest, inputs: Inputs, outputs: list[Any]) -> dict[str, Any]:
    """Returns the verdict on the first wrong output, or on the first.

    An output whose bits equal those of a right one, of this process or an earlier one, is right.
    """
    import torch

    place = request.folder / "right"
    known = torch.load(place).cuda() if place.exists() else None
    verdict = {"passed": True}
    for c in outputs:
        if known is not None and _same_bits(c, known):
            continue
        found = _validate(request, inputs, c)
        if not found["passed"]:
            return found
        if known is None:
            known, verdict = c, found
            torch.save(c.cpu(), place)
    return verdict


def _check_again(request: MeasurementRequest, inputs: Inputs, outputs: list[Any], right: Any) -> None:
    """Checks that the timed launches give the bits of the validated ones, and validates those that differ."""
    for c in outputs:
        if _same_bits(c, right):
            continue
        found = _validate(request, inputs, c)
        if not found["passed"]:
            emit("checked", validation=found)
            return
        note("the output of a timed launch is right, but not bit for bit that of the first launch")


def _same_bits(one: Any, other: Any) -> bool:
    return bool((_bits(one) == _bits(other)).all())


def _bits(c: Any) -> Any:
    import torch

    return c.view({2: torch.int16, 4: torch.int32}[c.element_size()])


def _validate(request: MeasurementRequest, inputs: Inputs, c: Any) -> dict[str, Any]:
    """Validates an output by the harness's own rules. The GPU computes the product in float64."""
    dtype, tile = OUT_TYPES[request.artifact.config.out_dtype], request.artifact.plan(request.shape).output_tile
    output = _bits(c).cpu().numpy().view(dtype.numpy)
    found = Matmul("C", dtype, tile, compute_reference(inputs, _product), inputs.rows).judge(output, {})
    return asdict(found)


def _product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    import torch

    a64, b64 = (torch.from_numpy(each).cuda().double() for each in (a, b))
    found: NDArray[np.float64] = (a64 @ b64.t()).cpu().numpy()
    return found
