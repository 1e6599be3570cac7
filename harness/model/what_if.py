"""Changes to try on a prediction, one at a time: NAME=VALUE for a constant of the GPU, or for an option of the
kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from emugpu.errors import UsageProblem
from harness.compile.options import TUNABLE, split_settings
from harness.model.constants import GpuConstants

STANDARD = (
    "l2.bandwidth=2x", "l2.bandwidth=0.5x", "l2.latency=0.5x", "l2.latency=2x", "l2.port=2x", "dram.bandwidth=2x",
    "dram.bandwidth=0.5x", "dram.latency=0.5x", "launch.kernel=0.5x", "launch.cta=0.5x", "launch.cluster_control=0.5x",
    "barrier.wake=0.5x", "barrier.remote=0.5x", "barrier.cluster=0.5x", "tma.store_rate=2x", "tmem.rate=0.5x",
)  # fmt: skip
"""The changes of ``all``: units and latencies twice as good, and some of them twice as bad."""


@dataclass(frozen=True)
class WhatIf:
    """A change. ``text`` is what the user wrote. It changes either constants or options."""

    text: str
    constants: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_changes(texts: tuple[str, ...], gpu: GpuConstants) -> list[WhatIf]:
    """Reads changes. Raises UsageProblem for an unknown constant or option, and for an impossible value."""
    expanded = [each for text in texts for each in (STANDARD if text == "all" else (text,))]
    return [_parse(text, gpu) for text in dict.fromkeys(expanded)]


def _parse(text: str, gpu: GpuConstants) -> WhatIf:
    name, _, value = text.partition("=")
    if not value:
        raise UsageProblem(f"--what-if '{text}': write NAME=VALUE, for example l2.bandwidth=0.5x or stages=3")
    if "." not in name:
        try:
            settings = split_settings([text], TUNABLE)
            return WhatIf(text, options={option: TUNABLE[option].parse(word) for option, word in settings.items()})
        except UsageProblem as problem:
            raise UsageProblem(f"--what-if {name}: {problem}") from None
    constant = gpu.require(name)
    try:
        number = float(value.removesuffix("x"))
    except ValueError:
        raise UsageProblem(
            f"--what-if {name}: '{value}' is neither a number ({constant.unit}) nor a factor such as 0.5x"
        ) from None
    changed = number * constant.value if value.endswith("x") else number
    gpu.with_values({name: changed})
    return WhatIf(text, constants={name: changed})
