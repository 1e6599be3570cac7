"""Validates a kernel on this machine's GPU, then times it against the vendor's GEMM.

The samples of one process are more alike than those of two: the location of its memory and the temperature of the GPU
stay with a process. So a time for a comparison comes from several processes, and the process is the unit.
"""

from __future__ import annotations

import os
import statistics as standard
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from emugpu.errors import CannotRun, UsageProblem
from emugpu.gpus import check_arch
from emugpu.processes.worker_process import WorkerProcess
from emugpu.processes.worker_process import request as pickled
from harness.compile.artifacts import Artifact
from harness.compile.compiler import Gpu
from harness.compile.config import KernelConfig
from harness.problem import Shape
from harness.quantised import QUANTISED
from harness.run import statistics, worker
from harness.run.case import Request
from harness.run.vendors import why_none
from harness.validation import Validation

BESIDE_SAMPLES = ("input_sets", "before", "after", "alone", "host_us")
"""What a process says of its timing beside the samples."""
CAP_SECONDS = 10.0
"""Longest time to sample one kernel if the medians stay uncertain."""


@dataclass(frozen=True)
class Measurement:
    """The report of the GPU processes.

    ``validation``: a `Validation` as plain data, that of the first wrong process if there is one; None if the kernel
    did not get that far. ``timing``: for records; None without samples. ``failure``: why the processes ended early, or
    None. ``device``: name, compute capability, multiprocessors.
    """

    validation: dict[str, Any] | None
    timing: dict[str, Any] | None
    failure: str | None
    notes: list[str] = field(default_factory=list)
    device: dict[str, Any] = field(default_factory=dict)


def measure(artifacts: Sequence[Artifact], asked: Request, *, time: bool = True) -> list[Measurement]:
    """Measures builds of one kernel on the requested GPU, each in child processes until one fails or gives a wrong
    result. Several builds take turns, process by process, so that all run under the same conditions.

    ``asked`` names the vendors whose GEMMs are timed alternately with the kernel. Its timeout is the number of silent
    seconds after which a child is ended.
    """
    gpu, shape = asked.gpu, asked.shape
    assert gpu is not None
    notes: list[str] = []
    require_timed(artifacts[0].config)
    vendors = asked.vendors if time else ()
    if vendors and (why := why_none(artifacts[0].config)):
        notes.append(f"{' and '.join(vendors)} not timed: {why}")
        vendors = ()
    with tempfile.TemporaryDirectory(prefix="gpu-run-") as folder:
        series = []
        for number, artifact in enumerate(artifacts):
            major, minor = (int(part) for part in gpu.compute_capability.split("."))
            check_arch(artifact.config.arch, major, minor, gpu.name)
            shared = Path(folder, str(number))
            shared.mkdir()
            request = worker.MeasurementRequest(
                artifact=artifact,
                shape=shape,
                inputs=asked.inputs,
                seed=asked.seed,
                folder=shared,
                cap_seconds=CAP_SECONDS,
                vendors=vendors,
                time=time,
                alone=asked.alone,
            )
            series.append(_Series(request, gpu, asked.timeout, asked.processes, notes))
        for _ in range(asked.processes):
            for one in series:
                one.run_next()
    return [one.combine(shape) for one in series]


def require_timed(config: KernelConfig) -> None:
    """Refuses a configuration whose output is not timed."""
    if config.out_dtype in QUANTISED:
        raise UsageProblem(f"out dtype {config.out_dtype} is not timed; use bf16, fp16 or f32, or --device emulator")


@dataclass
class _Series:
    """The processes of one build. A failure (that of the last process) or a wrong result ends the series."""

    request: worker.MeasurementRequest
    gpu: Gpu
    timeout: float
    processes: int
    notes: list[str]
    outcomes: list[ProcessReport] = field(default_factory=list)
    failure: str | None = None

    def run_next(self) -> None:
        """Runs one more process, unless the series has ended."""
        if (self.outcomes and not _is_right(self.outcomes[-1])) or self.failure:
            return
        outcome = supervise(self.request, self.timeout)
        self.outcomes.append(outcome)
        self.failure = outcome.failure or another_gpu(outcome, self.gpu)
        if self.failure and self.processes > 1:
            self.failure = f"process {len(self.outcomes)} of {self.processes}: {self.failure}"

    def combine(self, shape: Shape) -> Measurement:
        first, last = self.outcomes[0].events, self.outcomes[-1].events
        wrong = [outcome for outcome in self.outcomes if not _is_right(outcome)]
        decides = next((one.events for one in wrong if "checked" in one.events), first)
        return Measurement(
            decides.get("checked", {}).get("validation"),
            _combine([found for found in map(_times, self.outcomes) if found], shape),
            self.failure,
            list(dict.fromkeys([*self.notes, *(note for outcome in self.outcomes for note in outcome.notes)])),
            last.get("started", {}),
        )


def _is_right(outcome: ProcessReport) -> bool:
    """Returns whether the process reached a validation and passed it."""
    validation = outcome.events.get("checked", {}).get("validation")
    return bool(validation and validation["passed"])


def another_gpu(outcome: ProcessReport, gpu: Gpu) -> str | None:
    """Returns a message if the process did not use the GPU of the record."""
    used = outcome.events.get("started", {}).get("name", gpu.name)
    if used == gpu.name:
        return None
    return f"it ran on {used}, but the driver lists {gpu.name} first; name one GPU in CUDA_VISIBLE_DEVICES"


def _times(outcome: ProcessReport) -> dict[str, Any] | None:
    """Returns the measurements of one process if its output was right."""
    if not _is_right(outcome):
        return None
    finished = outcome.events.get("finished", {}).get("timing") or {}
    samples = finished.get("samples") or outcome.events.get("sampled", {}).get("samples")
    if not samples or len(samples["kernel"]) < 2:
        return None
    return {"samples": samples, **{k: finished[k] for k in BESIDE_SAMPLES if k in finished}}


def _combine(found: Sequence[dict[str, Any]], shape: Shape) -> dict[str, Any] | None:
    """Returns the timing of all processes: `describe` of their samples, and of each process by itself."""
    if not found:
        return None
    timing = describe([one["samples"] for one in found], shape)
    for process, one in zip(timing["processes"], found, strict=True):
        process |= {k: one[k] for k in BESIDE_SAMPLES if k in one and k != "input_sets"}
    timing |= {k: found[-1][k] for k in ("input_sets", "before", "after") if k in found[-1]}
    if alone := [one["alone"] for one in found if "alone" in one]:
        timing["alone"] = _describe_alone(alone, shape)
    if host := [one["host_us"] for one in found if "host_us" in one]:
        names = [name for name in host[0] if all(name in one for one in host)]
        timing["host_us"] = {name: standard.median(one[name] for one in host) for name in names}
    return timing


def _describe_alone(found: Sequence[dict[str, dict[str, float]]], shape: Shape) -> dict[str, dict[str, float]]:
    """Returns, for each contestant that every process has, the medians over the processes, its TFLOPS, and for the
    vendors the ratio, above 1 if the kernel is faster.
    """
    described = {}
    for name in (name for name in found[0] if all(name in one for one in found)):
        figures = {key for one in found for key in one[name]}
        middle = {key: standard.median(one[name][key] for one in found if key in one[name]) for key in sorted(figures)}
        middle["tflops"] = shape.flops / middle["seconds"] / 1e12
        if name != "kernel":
            middle["ratio"] = standard.median(one[name]["seconds"] / one["kernel"]["seconds"] for one in found)
        described[name] = middle
    return described


def describe(runs: Sequence[dict[str, list[float]]], shape: Shape) -> dict[str, Any]:
    """Returns the timing part of a record: medians, spread, TFLOPS, and ratios to the vendor's GEMM pair by pair.

    ``runs`` holds the samples of each process, by contestant. ``seconds`` and ``ratio`` are the medians of the
    processes' medians. A ratio above 1 means that the kernel is faster. FLOPs are 2 M N K. ``processes`` holds these
    figures for each process; the samples are those of all processes, one after the other.
    """
    flops = 2 * shape.m * shape.n * shape.k
    processes = [_describe_process(samples) for samples in runs]
    record = _summarize([one["seconds"] for one in processes], [s for run in runs for s in run["kernel"]], flops)
    record |= {"vendor": {}, "processes": processes}
    for name in dict.fromkeys(name for one in processes for name in one["vendor"]):
        those = [one["vendor"][name] for one in processes if name in one["vendor"]]
        samples = [s for run in runs for s in run.get(name, ())]
        record["vendor"][name] = {
            **_summarize([one["seconds"] for one in those], samples, flops),
            "ratio": standard.median(one["ratio"] for one in those),
        }
    return record


def _describe_process(samples: dict[str, list[float]]) -> dict[str, Any]:
    kernel = samples["kernel"]
    vendor = {}
    for name, times in samples.items():
        if name == "kernel" or len(times) < 2:
            continue
        count = min(len(times), len(kernel))
        pairs = statistics.ratios(times[:count], kernel[:count])
        vendor[name] = {"seconds": standard.median(times), "ratio": standard.median(pairs)}
    return {"seconds": standard.median(kernel), "samples": len(kernel), "vendor": vendor}


def _summarize(medians: list[float], samples: list[float], flops: int) -> dict[str, Any]:
    seconds = standard.median(medians)
    summary = asdict(statistics.summarize(samples))
    return {"seconds": seconds, "tflops": flops / seconds / 1e12, "summary": summary, "samples": samples}


DOING = {
    "starting": "starting",
    "started": "loading the kernel",
    "loaded": "running the kernel for the first time",
    "launched": "being validated",
    "next": "loading the next kernel",
    "timed": "ending",
    "checked": "warming up",
    "searched": "trying the vendor's algorithms",
    "sampled": "being timed",
}
"""What the process does after each event."""


@dataclass
class ProcessReport:
    """The report of one process. ``failure`` is None if the process finished; ``phase`` is the last event before a
    failure.
    """

    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    failure: str | None = None
    phase: str = "starting"
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def doing(self) -> str:
        return DOING.get(self.phase, self.phase)

    def take(self, event: tuple[str, dict[str, Any]]) -> None:
        """Keeps an event of the process."""
        name, fields = event
        if name == "note":
            self.notes.append(fields["message"])
        else:
            self.events[name] = fields
            self.phase = name


def supervise(request: Any, timeout: float, serve: Callable[[Any], None] = worker.serve) -> ProcessReport:
    """Serves one request in its own process. Ends the process if it sends no event for ``timeout`` seconds.

    A crash, hang or exception of the process becomes a failure in the outcome; what it reported before is kept.
    """
    outcome = ProcessReport()
    start = time.monotonic()
    # Devices are numbered as in nvidia-smi, so that CUDA_VISIBLE_DEVICES means the same everywhere.
    order = {"CUDA_DEVICE_ORDER": os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")}
    with WorkerProcess(order, one_thread=False) as process:
        process.submit(pickled(serve, request, timeout), timeout)
        reply = process.result(outcome.take)
    if reply.kind == "late":
        outcome.failure = f"no sign of life for {timeout:g} s while {outcome.doing}; the GPU process was ended"
    elif reply.kind == "died":
        last = next((line.strip() for line in reversed(reply.log.splitlines()) if line.strip()), "no message")
        outcome.failure = f"{reply.ending.replace('the process', 'the GPU process')} while {outcome.doing}: {last}"
    elif reply.kind == "error":
        outcome.failure = str(reply.value)
    outcome.seconds = time.monotonic() - start
    return outcome


def run_on_gpu(artifacts: Sequence[Artifact], request: Request) -> list[tuple[Validation, dict[str, Any]] | CannotRun]:
    """Runs several builds in turns. Returns the verdict and the device-dependent fields of the record for each.

    Returns CannotRun for a build without an output to judge. If a later process fails, the record keeps the
    measurements and gives the failure as the reason.
    """
    measured = measure(artifacts, request)
    found: list[tuple[Validation, dict[str, Any]] | CannotRun] = []
    for artifact, one in zip(artifacts, measured, strict=True):
        try:
            found.append(_describe(artifact, request, one))
        except CannotRun as error:
            found.append(error)
    return found


def _describe(artifact: Artifact, request: Request, measured: Measurement) -> tuple[Validation, dict[str, Any]]:
    gpu = request.gpu
    assert gpu is not None
    if measured.validation is None:
        label = f"{artifact.config.label} on {gpu.name}, C[{request.shape.m},{request.shape.n}], K={request.shape.k}"
        raise CannotRun(f"{label}: {measured.failure or 'the GPU process reported nothing'}")
    timing: dict[str, Any] = {"seconds": None, "reason": measured.failure or "not measured: wrong result"}
    if measured.timing:
        timing = measured.timing | {"reason": measured.failure}
    fields = {
        "device": {
            "kind": gpu.kind,
            "name": gpu.name,
            "compute_capability": gpu.compute_capability,
            "driver": gpu.driver,
            **{str(k): measured.device[k] for k in ("multiprocessors", "torch", "uuid") if k in measured.device},
        },
        "counters": {},
        "timing": timing,
        "notes": measured.notes,
    }
    return Validation.from_plain(measured.validation), fields
