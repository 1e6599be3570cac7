"""Defines one job of a sweep or a tuning (a kernel in one configuration, on one problem, under one schedule, on one
kind of device), and how a worker of an engine executes it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import ceil
from pathlib import Path
from typing import Any, Literal

from emugpu.errors import CannotRun
from emugpu.gpus import usual_gpu
from emugpu.launch.check import CheckJob, check_once
from emugpu.launch.launching import EmulationOptions
from emugpu.processes.engine import Engine
from emugpu.record import new_record
from harness import paths
from harness.compile.artifacts import Artifact, build, build_each, make_launchable
from harness.compile.compiler import Gpu, find_gpus, mojo_version, package_version
from harness.compile.config import KernelConfig
from harness.experiments.soundness import as_field
from harness.problem import Shape
from harness.run.case import Case, Request
from harness.run.runner import run, surroundings

Record = dict[str, Any]
Kind = Literal["run", "check", "predict"]
KINDS: tuple[Kind, ...] = ("run", "check", "predict")
Device = Literal["emulator", "gpu", "model"]
LOG_CHARACTERS = 4000
MOST_TOGETHER = 16
"""Most configurations of one compilation. Their common code is compiled once, but only one worker does it."""
COMPILE_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True)
class Job(Case):
    """A case and the ``kind`` of work: run it and validate its output (on a GPU time it, too), check its
    synchronisation, or predict its time.

    ``schedule_seed`` is that of the emulator's random schedule, or None for the order of issue. ``made_by`` hashes
    everything else that can change the result (`made_by`).
    """

    kind: Kind
    device: Device
    made_by: str
    schedule_seed: int | None = None

    @property
    def key(self) -> str:
        """Returns a name computed from the content of the job, so equal jobs have equal names."""
        rest = (self.kind, self.shape.m, self.shape.n, self.shape.k, self.inputs, self.seed, self.schedule_seed)
        text = "\0".join((_text(self.config), *map(str, rest), self.device, self.made_by))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def fields(self) -> dict[str, Any]:
        """Returns the fields of a record that describe the job."""
        config, shape = self.config.as_dict(), self.shape
        return {
            "kernel": config.pop("kernel"),
            "config": config,
            "problem": shape.as_dict(),
            "inputs": {"kind": self.inputs, "seed": self.seed},
            "job": {"key": self.key, "kind": self.kind, "device": self.device, "schedule_seed": self.schedule_seed},
        }


@lru_cache(maxsize=4096)
def _text(config: KernelConfig) -> str:
    return config.to_json()


@cache
def hash_of_sources(root: Path) -> str:
    """Returns a hash of the texts of the kernels in ``root`` and the harness, as they were when this process asked
    first.
    """
    digest = hashlib.sha256()
    for folder, kind in ((root / "kernels", "*.mojo"), (paths.PACKAGE, "*.py")):
        for path in sorted(folder.rglob(kind)):
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


@cache
def made_by(root: Path) -> str:
    """Returns a name of everything that can change a result besides the job itself. ``root`` has the sources of its
    kernel.
    """
    return f"{hash_of_sources(root)} mojo {mojo_version()} max {package_version('max')}"


class SourceMismatch(CannotRun):
    """A worker has other sources than those that planned the job. This says nothing about the job, and the planner
    should stop.
    """


def perform(job: Job) -> Record:
    """Executes a job. Raises `CannotRun` if it has no result, `SourceMismatch` if it was not tried."""
    _require_same_sources(job.config, job.made_by)
    return {"run": _run, "check": _check, "predict": _predict}[job.kind](job)


def _require_same_sources(config: KernelConfig, planned: str) -> None:
    if not planned.startswith(hash_of_sources(config.sources.root)):
        raise SourceMismatch(
            f"a worker on {platform.node()} has other kernels or another harness than those of the plan; bring them "
            "together, or leave the files alone while they are used"
        )


@dataclass(frozen=True)
class Round:
    """Configurations to time on a GPU, in one process, each alone (`harness.run.round`). ``folder`` is of all rounds of
    a tuning, and the planner removes it: a worker is killed at its end.
    """

    configs: tuple[KernelConfig, ...]
    shape: Shape
    inputs: str
    made_by: str
    folder: Path


def time_round(asked: Round) -> list[Record | str]:
    """Returns a record of each configuration with its time and the device, or the reason why there is none."""
    from harness.run.round import time_each  # imported here because the emulator does not need it

    _require_same_sources(asked.configs[0], asked.made_by)
    gpu = _gpu()
    with tempfile.TemporaryDirectory() as own:
        folder = asked.folder if asked.folder.exists() else Path(own)  # the planner may be another machine
        results = time_each([_artifact(config) for config in asked.configs], asked.shape, asked.inputs, 0, gpu, folder)
    about = {"device": {"kind": gpu.kind, "name": gpu.name, "driver": gpu.driver}, "git": _surroundings()["git"]}
    return [one if isinstance(one, str) else {**about, "timing": {"seconds": one}} for one in results]


def compile_all(
    engine: Engine, configs: Sequence[KernelConfig], workers: int
) -> Iterator[tuple[Sequence[KernelConfig], dict[KernelConfig, str]]]:
    """Builds configurations, several in one compilation. Yields those that are done, and why some failed."""
    size = max(1, min(MOST_TOGETHER, ceil(len(configs) / workers)))
    batches = [tuple(configs[n : n + size]) for n in range(0, len(configs), size)]
    for done in engine.map(compile_together, batches, COMPILE_SECONDS):
        if done.error:
            yield done.item, dict.fromkeys(done.item, str(done.error))
        else:
            yield done.item, dict(done.value)


def compile_together(configs: Sequence[KernelConfig]) -> list[tuple[KernelConfig, str]]:
    """Builds several configurations in one compilation. Returns those that failed, and why."""
    return [(config, reason) for config, reason in build_each(configs).items() if isinstance(reason, str)]


def failure(job: Job, reason: str, log: str = "", deaths: int = 0) -> Record:
    """Returns the record of a job without a result. ``deaths`` is the number of processes that died of it."""
    about: Record = {"reason": reason, "log": log[-LOG_CHARACTERS:], "deaths": deaths}
    return new_record(**job.fields(), failure=about, git=_surroundings()["git"])


def _run(job: Job) -> Record:
    gpu = _gpu() if job.device == "gpu" else None
    request = Request(job.config, job.shape, job.inputs, job.seed, _schedule(job), gpu=gpu, vendors=("cublas",))
    outcome = run(request, _artifact(job.config), known=_surroundings())
    record = {**outcome.record, "job": job.fields()["job"]}
    if gpu:
        record["job"]["gpu"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return record


def _gpu() -> Gpu:
    found = find_gpus()
    if not found:
        raise CannotRun("this worker sees no GPU (nvidia-smi lists none)")
    return found[0]


def _check(job: Job) -> Record:
    what = make_launchable(_artifact(job.config), job.shape, job.inputs, job.seed)
    found = check_once(CheckJob(what, replace(_schedule(job), strict=False)))
    device = {"kind": f"emulated-{job.config.arch}", "name": f"emulated {job.config.arch}"}
    return new_record(**job.fields(), device=device, soundness=as_field(found), **_surroundings())


def _schedule(job: Job) -> EmulationOptions:
    seed = job.schedule_seed
    return EmulationOptions(schedule="fifo" if seed is None else "random", seed=seed or 0)


def _predict(job: Job) -> Record:
    seconds = predict_seconds(job.config, job.shape)
    predicted = {"seconds": seconds, "tflops": job.shape.flops / seconds / 1e12}
    timing = {"seconds": None, "reason": "not measured: predicted"}
    device = {"kind": f"model-{job.config.arch}", "name": f"model of {job.config.arch}"}
    return new_record(**job.fields(), device=device, timing=timing, predicted=predicted, **_surroundings())


def predict_seconds(config: KernelConfig, shape: Shape) -> float:
    """Predicts the time of a launch on the usual GPU of the architecture."""
    from harness.model.constants import find_gpu
    from harness.model.predict import predict

    return predict(_artifact(config), shape, find_gpu(usual_gpu(config.arch).name)).seconds


@lru_cache(maxsize=64)
def _artifact(config: KernelConfig) -> Artifact:
    return build([config])[0]


@cache
def _surroundings() -> dict[str, Any]:
    """Returns the record's fields about this process, determined once, because its programs do not change."""
    return surroundings()
