"""How to emulate a launch, and under which schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from harness.emulator.machine.events import Sink

Accumulation = Literal["f32", "tensor_core"]
Schedule = Literal["fifo", "random"]
LARGEST_SEED = 2**32 - 1
"""Of inputs, and of random schedules."""


@dataclass(frozen=True)
class EmulationOptions:
    """Says how to emulate. jobs: processes. resident_clusters: at once, None: as many as the GPU holds. max_steps: warp
    instructions, timeout: seconds; None: no limit. strict: a breach of a rule that hardware is known to tolerate is an
    error, except for the rules in allow. sinks get every event.
    """

    accumulation: Accumulation = "f32"
    schedule: Schedule = "fifo"
    seed: int = 0
    jobs: int = 1
    resident_clusters: int | None = None
    max_steps: int | None = None
    timeout: float | None = None
    strict: bool = True
    allow: tuple[str, ...] = ()
    sinks: tuple[Sink, ...] = ()

    @property
    def schedule_name(self) -> str:
        return f"{self.schedule} schedule{f' of seed {self.seed}' if self.schedule == 'random' else ''}"


STRICT = EmulationOptions()
TOLERANT = EmulationOptions(strict=False)


def name_schedules(schedule: str, seed: int, count: int = 1) -> str:
    """Names the schedules of `under_schedules` for people, with their seeds."""
    if count == 1:
        return f"{schedule} schedule" + (f", seed {seed}" if schedule == "random" else "")
    random = f"a random one of seed {seed}" if count == 2 else f"random ones of seeds {seed} to {seed + count - 2}"
    return f"{count} schedules: fifo, and {random}"


def under_schedules(options: EmulationOptions, count: int) -> list[EmulationOptions]:
    """Returns the options under so many schedules: fifo, and random ones with seeds that follow one another. A single
    one is the schedule that the options name.
    """
    if count == 1:
        return [options]
    seeds = range(options.seed, options.seed + count - 1)
    return [replace(options, schedule="fifo"), *(replace(options, schedule="random", seed=seed) for seed in seeds)]
