"""One job: a kernel in one configuration, on one problem, under one schedule, on one kind of device."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from harness.build.config import KernelConfig
from harness.problem.shape import Shape

Kind = Literal["run", "check", "predict"]
KINDS: tuple[Kind, ...] = ("run", "check", "predict")
Device = Literal["emulator", "gpu", "model"]


@dataclass(frozen=True)
class Job:
    """kind: run it and validate its output (on a GPU it is timed, too), check its synchronisation, or predict its time.

    seed: of the inputs. schedule_seed: of the emulator's random schedule; None: the order of issue. made_by: a hash of
    all that can change the result beside what the job says, see `harness.processes.sources`.
    """

    kind: Kind
    config: KernelConfig
    shape: Shape
    inputs: str
    seed: int
    schedule_seed: int | None
    device: Device
    made_by: str

    @property
    def key(self) -> str:
        """Names the job by its content: the same for the same job, wherever and whenever it is planned."""
        rest = (self.kind, self.shape.m, self.shape.n, self.shape.k, self.inputs, self.seed, self.schedule_seed)
        text = "\0".join((_text(self.config), *map(str, rest), self.device, self.made_by))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def needs(self) -> str:
        """What a worker must have, see `harness.processes.engine.Engine`."""
        return "GPU" if self.device == "gpu" else "CPU"

    @property
    def label(self) -> str:
        schedule = "" if self.schedule_seed is None else f", schedule of seed {self.schedule_seed}"
        return f"{self.kind} {self.config.label}, {self.shape}{schedule}"

    def fields(self) -> dict[str, Any]:
        """The fields of a record that say what the job is."""
        config, shape = self.config.as_dict(), self.shape
        return {
            "kernel": config.pop("kernel"),
            "config": config,
            "problem": {"m": shape.m, "n": shape.n, "k": shape.k},
            "inputs": {"kind": self.inputs, "seed": self.seed},
            "job": {"key": self.key, "kind": self.kind, "device": self.device, "schedule_seed": self.schedule_seed},
        }


@lru_cache(maxsize=4096)
def _text(config: KernelConfig) -> str:
    return config.to_json()
