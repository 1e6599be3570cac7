"""Where a predicted time comes from: the timing model, by the architecture's usual GPU."""

from __future__ import annotations

from harness.build.artifacts import build
from harness.build.config import KernelConfig
from harness.errors import CannotRun
from harness.problem.shape import Shape

USUAL = {"sm_100a": "b200", "sm_90a": "h200"}
"""GPUs by their names in the model."""


def predict_seconds(config: KernelConfig, shape: Shape, gpu: str | None = None) -> float:
    """What a launch takes, as the model says; nothing is measured. gpu: None: the usual one of the architecture."""
    try:
        from harness.timing.constants import find_gpu
        from harness.timing.predict import predict
    except ModuleNotFoundError as error:
        raise CannotRun(f"there is no timing model here ({error}); use --device gpu or emulator") from None
    return predict(build([config])[0], shape, find_gpu(gpu or USUAL[config.arch])).seconds
