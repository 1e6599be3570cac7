"""What the process that touches the GPU does: it serves one request, tells of it in events, and may be killed any time.

Events, in order: ``started`` (device), ``loaded`` (seconds), ``launched`` (what MAX really enqueued), ``checked``
(validation), ``sampled`` (samples so far, several times), ``finished`` (everything about the timing), and a ``note``
between any of them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from harness.build.config import KernelConfig
from harness.errors import CannotRun, HarnessError
from harness.problem import EXACT_KINDS, OUT_TYPES, Reference, Shape, allowed_error, make_inputs, validate
from harness.processes.program import end_with_parent
from harness.processes.worker import tell
from harness.run import statistics, telemetry

L2_BYTES = 64 << 20
"""Inputs are rotated over more than twice this, so that no launch finds its operands in L2 (H200: 60 MB)."""
MOST_SETS = 512
"""Problems whose operands take less than 256 KiB do find them there: their sets would number hundreds of thousands."""
MOST_WORDS = 2000
"""Characters of an unexpected error that are kept."""
REPORT_SECONDS = 0.5
BATCH_SECONDS = 0.02
"""A sample times launches for about this long, so that the start of a batch and event resolution vanish."""


@dataclass
class Request:
    """One kernel on one problem. details: whether the first output is validated on the CPU, with its errors, on the
    inputs that the emulator gets, too; otherwise, and all others, on the GPU. vendor_model: MAX's own matmul.
    """

    config: KernelConfig
    artifact: str
    tile: tuple[int, int]
    shape: Shape
    inputs: str
    seed: int
    cap_seconds: float
    vendors: list[str]
    time: bool
    details: bool
    vendor_model: str | None


def emit(event: str, **fields: Any) -> None:
    """Tells the parent of an event in plain data: it never loads torch or MAX."""
    tell((event, json.loads(json.dumps(fields))))


def serve(raw: dict[str, Any]) -> None:
    """Serves a request of `harness.run.measure`, in a worker process that ends with its parent, however that ends:
    nothing else may be on a GPU that times."""
    end_with_parent()
    converted = {
        "config": KernelConfig.from_json(raw["config"]),
        "shape": Shape(*raw["shape"]),
        "tile": tuple(raw["tile"]),
    }
    try:
        _serve(Request(**{**raw, **converted}))
    except HarnessError:
        raise
    except Exception as error:  # of a library that the parent does not load
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise CannotRun(text[:MOST_WORDS]) from error


def _serve(request: Request) -> None:
    import torch
    from max.driver import Accelerator, Buffer, launch_trace
    from max.engine import InferenceSession

    start = time.perf_counter()
    device = Accelerator()
    properties = torch.cuda.get_device_properties(0)
    emit(
        "started",
        name=properties.name,
        uuid=str(properties.uuid),
        compute_capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        torch=torch.__version__,
    )
    session = InferenceSession(devices=[device])
    model = session.load(request.artifact)
    emit("loaded", seconds=time.perf_counter() - start)

    shape = request.shape
    sets = [_operands(request, index) for index in range(_set_count(shape))]
    buffers = [tuple(Buffer.from_dlpack(t) for t in tensors) for tensors in sets]
    _poison(sets)
    with launch_trace() as entries:
        model.execute(*buffers[0])
        device.synchronize()
    emit("launched", launches=[_launch(entry) for entry in entries if entry.grid_x])
    for others in buffers[1:]:
        model.execute(*others)
    device.synchronize()
    validation = _validate_all(request, sets)
    emit("checked", validation=validation)
    if not validation["passed"] or not request.time:
        emit("finished", timing=None)
        return
    right = [c.clone() for c, _, _ in sets]
    _poison(sets)

    def ours(index: int) -> None:
        model.execute(*buffers[index])

    # Outputs of its own: what is in C after the timing has to be the kernel's.
    vendor_outputs = [torch.empty_like(c) for c in right] if "cublas" in request.vendors else []

    def cublas(index: int) -> None:
        _, a, b = sets[index]
        torch.matmul(a, b.t(), out=vendor_outputs[index])

    contestants = {"kernel": _batch(ours, len(sets), _max_events(device))}
    if "cublas" in request.vendors:
        contestants["cublas"] = _batch(cublas, len(sets), _torch_events(torch))
    if request.vendor_model:
        max_matmul = session.load(request.vendor_model)
        batch = _batch(lambda i: max_matmul.execute(*buffers[i][1:]), len(sets), _max_events(device))
        contestants["max"] = batch
    before = telemetry.read()
    samples = statistics.sample_pairs(contestants, time.perf_counter, request.cap_seconds, _reporter())
    device.synchronize()
    _check_again(request, sets, right)
    emit(
        "finished",
        timing={"samples": samples, "input_sets": len(sets), "before": before, "after": telemetry.read()},
    )


def _reporter() -> Callable[[dict[str, list[float]]], None]:
    """Tells the parent the samples so far, now and then: a sign of life, and what is left if the process dies."""
    last = time.perf_counter() - REPORT_SECONDS

    def report(samples: dict[str, list[float]]) -> None:
        nonlocal last
        if time.perf_counter() - last >= REPORT_SECONDS:
            emit("sampled", samples=samples)
            last = time.perf_counter()

    return report


def _launch(entry: Any) -> dict[str, Any]:
    return {
        "name": entry.name,
        "grid": [entry.grid_x, entry.grid_y, entry.grid_z],
        "block": [entry.block_x, entry.block_y, entry.block_z],
        "dynamic_smem": entry.shared_mem_bytes,
    }


def _set_count(shape: Shape) -> int:
    one = 2 * (shape.m * shape.k + shape.n * shape.k + shape.m * shape.n)
    return min(MOST_SETS, max(2, -(-2 * L2_BYTES // one) + 1))


def _operands(request: Request, index: int) -> tuple[Any, Any, Any]:
    """(C, A, B) on the GPU. The first set is the harness's own inputs if there are to be details, the rest are drawn on
    the GPU alike.
    """
    import torch

    shape = request.shape
    dtype, out = (
        getattr(torch, OUT_TYPES[name].numpy.name) for name in (request.config.dtype, request.config.out_dtype)
    )
    if index == 0 and request.details:
        inputs = make_inputs(shape, request.config.dtype, request.inputs, request.seed)
        a, b = (torch.from_numpy(x.view("int16")).cuda().view(dtype) for x in (inputs.a, inputs.b))
    else:
        generator = torch.Generator("cuda").manual_seed(request.seed + index)
        draw = _DRAW[request.inputs]
        a, b = (draw(size, generator).to(dtype) for size in ((shape.m, shape.k), (shape.n, shape.k)))
    return torch.empty((shape.m, shape.n), dtype=out, device="cuda"), a, b


def _normal(size: tuple[int, int], generator: Any) -> Any:
    import torch

    return torch.randn(size, device="cuda", generator=generator)


def _uniform(size: tuple[int, int], generator: Any) -> Any:
    import torch

    return torch.rand(size, device="cuda", generator=generator) * 2 - 1


def _integer(size: tuple[int, int], generator: Any) -> Any:
    import torch

    return torch.randint(-4, 5, size, device="cuda", generator=generator)


_DRAW = {"normal": _normal, "uniform": _uniform, "integer": _integer, "index": _integer}


def _poison(sets: list[tuple[Any, Any, Any]]) -> None:
    """An element that the kernel does not write stays NaN and fails the validation."""
    import torch

    for c, _, _ in sets:
        c.fill_(float("nan"))
    torch.cuda.synchronize()


def _validate_all(request: Request, sets: list[tuple[Any, Any, Any]]) -> dict[str, Any]:
    """The verdict on the first wrong output, with its details; or on the first, with details if wanted."""
    for c, a, b in sets:
        if not _is_right(request, a, b, c):
            return _validate(request, a, b, c)
    c, a, b = sets[0]
    return _validate(request, a, b, c) if request.details else {"passed": True}


def _check_again(request: Request, sets: list[tuple[Any, Any, Any]], right: list[Any]) -> None:
    """The timed launches have to give the bits of the validated ones; what differs is validated anew."""
    import torch

    for (c, a, b), before in zip(sets, right, strict=True):
        if torch.equal(c.view(torch.int16), before.view(torch.int16)):
            continue
        if _is_right(request, a, b, c):
            emit("note", message="the output of a timed launch is right, but not bit for bit that of the first launch")
            continue
        emit("checked", validation=_validate(request, a, b, c))
        return


def _reference(request: Request, a: Any, b: Any) -> Any:
    """A `Reference` of tensors on the same GPU: the product in float64."""
    import torch

    a64, b64 = a.double(), b.double()
    a_norms, b_norms = (torch.linalg.norm(x, dim=1) for x in (a64, b64))
    return Reference(a64 @ b64.t(), a_norms, b_norms, request.shape.k, request.inputs in EXACT_KINDS)


def _is_right(request: Request, a: Any, b: Any, c: Any) -> bool:
    """Whether `_validate` would pass it, found out on the GPU."""
    reference = _reference(request, a, b)
    expected = reference.values.to(c.dtype).double() if reference.exact else reference.values
    error = (c.double() - expected).abs()
    return bool((error <= allowed_error(reference, OUT_TYPES[request.config.out_dtype])).all())


def _validate(request: Request, a: Any, b: Any, c: Any) -> dict[str, Any]:
    """By the harness's own rules, with all that it says of errors; slow."""
    import numpy as np
    import torch

    found = _reference(request, a, b)
    values, a_norms, b_norms = (x.cpu().numpy() for x in (found.values, found.a_norms, found.b_norms))
    reference = Reference(values, a_norms, b_norms, found.k, found.exact)
    dtype = OUT_TYPES[request.config.out_dtype]
    output = c.cpu().view(torch.int16).numpy().view(dtype.numpy)
    assert isinstance(output, np.ndarray)
    return asdict(validate(output, reference, dtype, request.tile))


# ---- timing ----


def _batch(launch: Callable[[int], None], sets: int, events: Callable[[], tuple[Any, Callable[[], float]]]):
    """A function that times one batch and returns the seconds per launch. The batch size is found on first use."""
    state = {"count": 0, "next": 0}

    def run(count: int) -> float:
        record_start, finish = events()
        # Ahead of the clock, so that the GPU is busy when it starts: how long a first launch takes to reach an idle GPU
        # depends on who launches, not on the kernel.
        launch(state["next"] % sets)
        record_start()
        for _ in range(count):
            launch(state["next"] % sets)
            state["next"] += 1
        return finish() / count

    def sample() -> float:
        if not state["count"]:
            run(2)
            state["count"] = max(2, min(200, round(BATCH_SECONDS / run(3))))
        return run(state["count"])

    return sample


def _max_events(device: Any):
    from max.driver import DeviceEvent

    def make() -> tuple[Callable[[], None], Callable[[], float]]:
        start, end = DeviceEvent(device, enable_timing=True), DeviceEvent(device, enable_timing=True)

        def finish() -> float:
            device.default_queue.record_event(end)
            end.synchronize()
            return start.elapsed_time(end) / 1000

        return lambda: device.default_queue.record_event(start), finish

    return make


def _torch_events(torch: Any):
    def make() -> tuple[Callable[[], None], Callable[[], float]]:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def finish() -> float:
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1000

        return start.record, finish

    return make
