"""Changes to try on a prediction, one at a time: NAME=VALUE of a constant of the GPU, or of an option of the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from emugpu.errors import UsageProblem
from harness.compile.config import TUNABLE
from harness.model.constants import Gpu

STANDARD = (
    "l2.bandwidth=2x", "l2.bandwidth=0.5x", "l2.latency=0.5x", "l2.latency=2x", "l2.port=2x", "dram.bandwidth=2x",
    "dram.bandwidth=0.5x", "dram.latency=0.5x", "launch.kernel=0.5x", "launch.cta=0.5x", "launch.cluster_control=0.5x",
    "barrier.wake=0.5x", "barrier.remote=0.5x", "barrier.cluster=0.5x", "tma.store_rate=2x", "tmem.rate=0.5x",
)  # fmt: skip
"""What ``all`` stands for: units and latencies twice as good, and some of them twice as bad."""


@dataclass(frozen=True)
class Change:
    """``text``: as asked for. Either constants or options are changed."""

    text: str
    constants: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_changes(texts: tuple[str, ...], gpu: Gpu) -> list[Change]:
    """Raises UsageProblem for a constant or an option that there is not, and for a value it cannot have."""
    expanded = [each for text in texts for each in (STANDARD if text == "all" else (text,))]
    return [_parse(text, gpu) for text in dict.fromkeys(expanded)]


def _parse(text: str, gpu: Gpu) -> Change:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise UsageProblem(f"--what-if '{text}': write NAME=VALUE, for example l2.bandwidth=0.5x or stages=3")
    if "." not in name:
        option = name.replace("-", "_")
        if option not in TUNABLE:
            raise UsageProblem(f"--what-if '{text}': there is no option '{name}'; there are {', '.join(TUNABLE)}")
        try:
            return Change(text, options={option: TUNABLE[option].parse(value)})
        except UsageProblem as problem:
            raise UsageProblem(f"--what-if '{text}': {problem}") from None
    constant = gpu.require(name)
    try:
        number = float(value.removesuffix("x"))
    except ValueError:
        raise UsageProblem(
            f"--what-if '{text}': '{value}' is neither a number ({constant.unit}) nor a factor such as 0.5x"
        ) from None
    changed = number * constant.value if value.endswith("x") else number
    gpu.with_values({name: changed})
    return Change(text, constants={name: changed})
