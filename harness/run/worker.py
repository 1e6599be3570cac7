"""The process that uses the GPU. It serves one request, reports events, and may be killed at any time.

The events are, in order: ``started`` (device), ``loaded`` (seconds), ``launched`` (what MAX really enqueued),
``checked`` (validation), ``sampled`` (samples so far, several times), ``finished`` (the complete timing), and a
``note`` between any of them.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.errors import CannotRun, ReportedError
from emugpu.processes.program import end_with_parent
from emugpu.processes.worker import send_event
from harness import fp8
from harness.compile.config import KernelConfig
from harness.epilogues import NONE
from harness.problem import FP8, OUT_TYPES, Inputs, Shape, make_inputs
from harness.run import statistics, telemetry
from harness.run.model import op_operands, scalar
from harness.validation import Matmul, compute_reference

L2_BYTES = 64 << 20
"""The inputs rotate over more than twice this size, so that no launch finds its operands in L2 (H200: 60 MB)."""
MOST_SETS = 512
"""Most sets of inputs. Problems with operands below 256 KiB do find them in L2, because they would need hundreds of
thousands of sets.
"""
MOST_WORDS = 2000
"""Characters of an unexpected error that are kept."""
REPORT_SECONDS = 0.5
BATCH_SECONDS = 0.02
"""A sample times launches for about this long, so that the start of a batch and the resolution of events do not matter.
"""


@dataclass(frozen=True)
class MeasurementRequest:
    """One kernel on one problem.

    ``output`` and ``tile`` are the sizes of C in memory and of the part that a CTA writes. ``folder`` is shared by the
    processes of a series. ``vendors``: see `harness.run.measure`; ``vendor_model`` is MAX's own matmul.
    """

    config: KernelConfig
    artifact: str
    output: tuple[int, int]
    tile: tuple[int, int]
    shape: Shape
    inputs: str
    seed: int
    folder: Path
    cap_seconds: float
    vendors: Sequence[str]
    time: bool
    vendor_model: str | None


def emit(event: str, **fields: Any) -> None:
    """Sends an event to the parent as plain data, because the parent never loads torch or MAX."""
    send_event((event, json.loads(json.dumps(fields))))


def serve(request: MeasurementRequest) -> None:
    """Serves a request of `harness.run.measure`, in a worker process that ends with its parent in every case, because
    nothing else may use a GPU that times a kernel.
    """
    end_with_parent()
    try:
        _serve(request)
    except ReportedError:
        raise
    except Exception as error:  # the error may come from a library that the parent does not load
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise CannotRun(text[:MOST_WORDS]) from error


def _serve(request: MeasurementRequest) -> None:
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

    inputs = _inputs(request)
    arrays, numbers = op_operands(request.config, inputs, request.shape.ld)
    first = [_on_gpu(array) for array in arrays]
    dtype = getattr(torch, OUT_TYPES[request.config.out_dtype].numpy.name)
    # The sets differ in address, so that no launch finds its operands in L2, but not in content.
    sets = [first, *([tensor.clone() for tensor in first] for _ in range(_set_count(first, request.output) - 1))]
    outputs = [torch.empty(request.output, dtype=dtype, device="cuda") for _ in sets]
    scalars = [Buffer.from_numpy(scalar(number)) for number in numbers]
    buffers = [
        (*(Buffer.from_dlpack(tensor) for tensor in (c.view(-1) if request.shape.ld else c, *operands)), *scalars)
        for c, operands in zip(outputs, sets, strict=True)
    ]
    _poison(outputs)
    with launch_trace() as entries:
        model.execute(*buffers[0])
        device.synchronize()
    emit("launched", launches=[_launch(entry) for entry in entries if entry.grid_x])
    for others in buffers[1:]:
        model.execute(*others)
    device.synchronize()
    validation = _validate_all(request, inputs, outputs)
    emit("checked", validation=validation)
    if not validation["passed"] or not request.time:
        emit("finished", timing=None)
        return
    right = outputs[0].clone()
    _poison(outputs)

    def ours(index: int) -> None:
        model.execute(*buffers[index])

    cublas = _cublas(request, sets, numbers) if "cublas" in request.vendors else None
    contestants = {"kernel": _batch(ours, len(sets), _max_events(device))}
    if cublas:
        contestants["cublas"] = _batch(cublas, len(sets), _torch_events(torch))
    if request.vendor_model:
        max_matmul = session.load(request.vendor_model)
        batch = _batch(lambda i: max_matmul.execute(*buffers[i][1:]), len(sets), _max_events(device))
        contestants["max"] = batch
    before = telemetry.read()
    samples = statistics.sample_pairs(contestants, time.perf_counter, request.cap_seconds, _reporter())
    device.synchronize()
    _check_again(request, inputs, outputs, right)
    emit(
        "finished",
        timing={"samples": samples, "input_sets": len(sets), "before": before, "after": telemetry.read()},
    )


def _reporter() -> Callable[[dict[str, list[float]]], None]:
    """Returns a function that sends the samples so far to the parent now and then: a sign of life, and the result if
    the process dies.
    """
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


# ---- operands and results ----


def _inputs(request: MeasurementRequest) -> Inputs:
    """Returns the same inputs as on the emulator. The first process of a series draws them, which may take longer than
    all the rest, and leaves them to the others.
    """
    place = request.folder / "inputs"
    if place.exists():
        found: Inputs = pickle.loads(place.read_bytes())
        return found
    config = request.config
    epilogue = config.fused_epilogue
    inputs = make_inputs(request.shape, config.dtype, request.inputs, request.seed, epilogue, config.scales)
    place.write_bytes(pickle.dumps(inputs))
    return inputs


def _on_gpu(array: NDArray[Any]) -> Any:
    import torch

    dtype = getattr(torch, array.dtype.name)
    return torch.from_numpy(np.ascontiguousarray(array).view(f"i{array.itemsize}")).cuda().view(dtype)


def _set_count(operands: list[Any], output: tuple[int, int]) -> int:
    one = sum(tensor.nbytes for tensor in operands) + 2 * output[0] * output[1]
    return min(MOST_SETS, max(2, -(-2 * L2_BYTES // one) + 1))


def _poison(outputs: list[Any]) -> None:
    """Fills outputs with NaN, so that an element that the kernel does not write fails the validation."""
    import torch

    for c in outputs:
        c.fill_(float("nan"))
    torch.cuda.synchronize()


def _validate_all(request: MeasurementRequest, inputs: Inputs, outputs: list[Any]) -> dict[str, Any]:
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
        emit("note", message="the output of a timed launch is right, but not bit for bit that of the first launch")


def _same_bits(one: Any, other: Any) -> bool:
    return bool((_bits(one) == _bits(other)).all())


def _bits(c: Any) -> Any:
    import torch

    return c.view({2: torch.int16, 4: torch.int32}[c.element_size()])


def _validate(request: MeasurementRequest, inputs: Inputs, c: Any) -> dict[str, Any]:
    """Validates an output by the harness's own rules. The GPU computes the product in float64."""
    dtype = OUT_TYPES[request.config.out_dtype]
    output = _bits(c).cpu().numpy().view(dtype.numpy)
    found = Matmul("C", dtype, request.tile, compute_reference(inputs, _product), inputs.rows).judge(output, {})
    return asdict(found)


def _product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    import torch

    a64, b64 = (torch.from_numpy(each).cuda().double() for each in (a, b))
    found: NDArray[np.float64] = (a64 @ b64.t()).cpu().numpy()
    return found


# ---- the vendor's ----


def _cublas(request: MeasurementRequest, sets: list[list[Any]], numbers: list[float]) -> Callable[[int], None] | None:
    """Returns PyTorch's launch of the same problem, by the number of a set, or None with a note if PyTorch has none.

    It includes a fused epilogue if cuBLASLt has it; otherwise it computes the product alone.
    """
    import torch

    # cuBLAS gets its own outputs, because C must hold the kernel's result after the timing.
    config, size = request.config, (request.shape.m, request.shape.n)
    dtype = getattr(torch, OUT_TYPES[config.out_dtype].numpy.name)
    outputs = [torch.empty(size, dtype=dtype, device="cuda") for _ in sets]

    launches = [_by_pytorch(request, operands, numbers, c) for operands, c in zip(sets, outputs, strict=True)]
    try:
        launches[0]()
        torch.cuda.synchronize()
    except RuntimeError as error:
        emit("note", message=f"cublas not timed: {' '.join(str(error).split())[:300]}")
        return None
    if config.epilogue not in (NONE, "bias", "bias-gelu", "bias-relu", "residual"):
        emit("note", message=f"cublas is the product alone, without {config.epilogue}")
    return lambda index: launches[index]()


def _by_pytorch(request: MeasurementRequest, operands: list[Any], numbers: list[float], c: Any) -> Callable[[], Any]:
    """Returns a function for one launch into ``c``. Everything that can be prepared is done before."""
    import torch

    config, shape, ld = request.config, request.shape, request.shape.ld or (0, 0)
    a, b, *more = operands  # in the order of memory
    if config.dtype in OUT_TYPES:
        a = _matrix(a, shape.m, shape.k, ld[0], config.layout[0] == "t")
        b = _matrix(b, shape.k, shape.n, ld[1], config.layout[1] == "t")
    else:
        b = b.t()
    numbers = numbers[-2:]  # the sizes of views come first
    if config.dtype == FP8:
        return _scaled_mm(config, a, b, more[0], more[1], numbers[0], c)
    if config.epilogue == "bias":
        return lambda: torch.addmm(more[0], a, b, out=c)
    if config.epilogue in ("bias-gelu", "bias-relu"):
        use_gelu = config.epilogue == "bias-gelu"
        return lambda: torch._addmm_activation(more[0], a, b, use_gelu=use_gelu, out=c)
    if config.epilogue == "residual":
        return lambda: torch.addmm(more[1], a, b, alpha=numbers[0], beta=numbers[1], out=c)
    return lambda: torch.matmul(a, b, out=c)


def _matrix(memory: Any, rows: int, columns: int, ld: int, transposed: bool) -> Any:
    """Returns the matrix [rows, columns] in this memory, or the transpose of the one stored there."""
    if transposed:
        return _matrix(memory, columns, rows, ld, False).t()
    return memory.view(rows, ld or columns)[:, :columns]


def _scaled_mm(config: KernelConfig, a: Any, b: Any, of_a: Any, of_b: Any, alpha: float, c: Any) -> Callable[[], Any]:
    """Returns e4m3 by cuBLASLt, either with a factor for each matrix and the fast accumulation that the kernel uses,
    too, or with the same block factors, and then without alpha.
    """
    import torch

    fast = config.scales == "tensor"
    if fast:
        of_a, of_b = (torch.full((), value, device=c.device) for value in (alpha, 1.0))
    else:
        blocks = -(-a.shape[1] // fp8.BLOCK)
        of_a, of_b = of_a.t()[: a.shape[0]], of_b[:, :blocks].t()
    a, b = (each.view(torch.float8_e4m3fn) for each in (a, b))
    return lambda: torch._scaled_mm(a, b, of_a, of_b, out_dtype=c.dtype, use_fast_accum=fast, out=c)


# ---- timing ----


def _batch(launch: Callable[[int], None], sets: int, events: Callable[[], tuple[Any, Callable[[], float]]]):
    """Returns a function that times one batch and returns the seconds per launch. Its first call chooses the batch
    size.
    """
    state = {"count": 0, "next": 0}

    def run(count: int) -> float:
        record_start, finish = events()
        # Launch before the clock starts, so that the GPU is busy then: the time of a first launch to an idle GPU
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
