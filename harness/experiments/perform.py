"""Does one job: what an engine's workers are given."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from harness.build.artifacts import Artifact, build, build_each
from harness.build.config import KernelConfig
from harness.build.toolchain import find_gpus
from harness.errors import CannotRun
from harness.experiments.job import Job
from harness.experiments.soundness import as_field
from harness.launch.check import Work, check_once
from harness.launch.options import EmulationOptions
from harness.processes.sources import sources
from harness.run import records
from harness.run.kernel_launch import make_launchable
from harness.run.model import compile_artifact
from harness.run.runner import Request, run, surroundings

Record = dict[str, Any]


class SourceMismatch(CannotRun):
    """A worker is not the one that was planned for. It says nothing about the job: those who plan should stop."""


def perform(job: Job) -> Record:
    """The record of a job. Raises `CannotRun` if there is no result, `SourceMismatch` if it was not even tried."""
    if not job.made_by.startswith(sources()):
        raise SourceMismatch(
            f"a worker on {platform.node()} has other kernels or another harness than those of the plan; bring them "
            "together, or leave the files alone while they are used"
        )
    return {"run": _run, "check": _check, "predict": _predict}[job.kind](job)


def compile_together(work: tuple[Sequence[KernelConfig], bool]) -> list[tuple[KernelConfig, str]]:
    """Builds several configurations in one compilation; for a GPU (True) their MAX models, too.

    What could not be built, and why.
    """
    configs, for_gpu = work
    made = build_each(configs)
    failed = [(config, reason) for config, reason in made.items() if isinstance(reason, str)]
    for config, artifact in made.items():
        if for_gpu and isinstance(artifact, Artifact):
            try:
                compile_artifact(config)
            except CannotRun as error:
                failed.append((config, str(error)))
    return failed


def failure(job: Job, reason: str, log: str = "", deaths: int = 0) -> Record:
    """The record of a job that has no result. deaths: processes that died of it."""
    about: Record = {"reason": reason, "log": log[-LOG_CHARACTERS:], "deaths": deaths}
    return records.new_record(**job.fields(), failure=about, git=_surroundings()["git"])


LOG_CHARACTERS = 4000


def _run(job: Job) -> Record:
    emulation = _schedule(job)
    gpu = None
    if job.device == "gpu":
        gpu = next(iter(find_gpus()), None)
        if gpu is None:
            raise CannotRun("this worker sees no GPU (nvidia-smi lists none)")
    request = Request(job.config, job.shape, job.inputs, job.seed, emulation, gpu=gpu, vendors=("cublas",))
    outcome = run(request, _artifact(job.config), known=_surroundings())
    record = {**outcome.record, "job": job.fields()["job"]}
    if gpu:
        record["job"]["gpu"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return record


def _check(job: Job) -> Record:
    what = make_launchable(_artifact(job.config), job.shape, job.inputs, job.seed)
    found = check_once(Work(what, replace(_schedule(job), strict=False)))
    device = {"kind": f"emulated-{job.config.arch}", "name": f"emulated {job.config.arch}"}
    return records.new_record(**job.fields(), device=device, soundness=as_field(found), **_surroundings())


def _schedule(job: Job) -> EmulationOptions:
    seed = job.schedule_seed
    return EmulationOptions(schedule="fifo" if seed is None else "random", seed=seed or 0)


def _predict(job: Job) -> Record:
    from harness.experiments.tune_predict import predict_seconds

    seconds = predict_seconds(job.config, job.shape)
    predicted = {"seconds": seconds, "tflops": job.shape.flops / seconds / 1e12}
    timing = {"seconds": None, "reason": "not measured: predicted"}
    device = {"kind": f"model-{job.config.arch}", "name": f"model of {job.config.arch}"}
    return records.new_record(**job.fields(), device=device, timing=timing, predicted=predicted, **_surroundings())


@lru_cache(maxsize=64)
def _artifact(config: KernelConfig) -> Artifact:
    return build([config])[0]


@cache
def _surroundings() -> dict[str, Any]:
    """Asked for once: what a process runs is what it loaded when it started."""
    return surroundings()
