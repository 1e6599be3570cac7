"""What is computed: the case that a run, a job of a sweep and a measurement of the benchmark have in common."""

from __future__ import annotations

from dataclasses import dataclass

from harness.compile.config import KernelConfig
from harness.problem import Shape


@dataclass(frozen=True)
class Case:
    """A kernel in one configuration on one problem. inputs: the kind of values of A and B; seed: of these values."""

    config: KernelConfig
    shape: Shape
    inputs: str = "integer"
    seed: int = 0
