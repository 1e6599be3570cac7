"""Presets: values of several options together, by a name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from emugpu.errors import UsageProblem
from harness.compile.config import KernelConfig, find_kernel, make_config


@dataclass(frozen=True)
class Preset:
    """Describes a preset. ``options`` has its values by the names of `make_config`, ``stages`` the depth by kernel, if
    it sets one, and ``walk`` the values for kernels that compute tile after tile.
    """

    name: str
    summary: str
    options: dict[str, Any]
    stages: dict[str, int] = field(default_factory=dict)
    walk: dict[str, Any] = field(default_factory=dict)


ONE_CTA = {"arch": "sm_100a", "cta_group": 1, "mma_shape": (128, 256)}
HOPPER = {"arch": "sm_90a", "mma_shape": (128, 256)}
PAIR = {"arch": "sm_100a", "cta_group": 2, "mma_shape": (256, 256)}

DEFAULT = Preset("default", "what the kernel chooses, also on a GPU for which harness tune has found another", {})
"""Requests the kernel's own choice. Without it, a GPU may run the configuration that tuning has found."""

PRESETS = {
    preset.name: preset
    for preset in (
        Preset("cute-03", "MMA by one CTA, multicast in a 4x4 cluster", {**ONE_CTA, "cluster": (4, 4)}),
        Preset("cute-04", "MMA by a pair, multicast in a 4x4 cluster", {**PAIR, "cluster": (4, 4)}),
        Preset(
            "1cta",
            "MMA by one CTA, no cluster, 4 stages (3 next to the whole tile of C that kernel6 keeps)",
            {**ONE_CTA, "cluster": (1, 1)},
            stages={"kernel6": 3, "kernel7": 4, "kernel8": 4},
        ),
        Preset(
            "2cta",
            "MMA by a pair, a cluster of that pair alone, 4 stages",
            {**PAIR, "cluster": (2, 1), "multicast": False},
            stages={"kernel6": 4, "kernel7": 4, "kernel8": 4},
        ),
        Preset(
            "2cta-multicast",
            "MMA by a pair, A and B each shared by two CTAs, 4 stages",
            {**PAIR, "cluster": (4, 2)},
            stages={"kernel6": 4, "kernel7": 4, "kernel8": 4},
        ),
        Preset(
            "tilus-tile",
            "fp16, a 256x256 tile by a pair, 5 stages (from kernel7 on 6), C leaves 32 columns at a time",
            {**PAIR, "dtype": "fp16", "cluster": (2, 1), "epilogue_width": 32},
            stages={"kernel6": 5, "kernel7": 6, "kernel8": 6},
        ),
        Preset(
            "tilus-v6",
            "fp16, a 256x256 tile by a pair; persistent CTAs, cluster launch control, two accumulators",
            {**PAIR, "dtype": "fp16", "cluster": (2, 1), "epilogue_width": 32},
            stages={"kernel6": 5, "kernel7": 6, "kernel8": 6},
            walk={"scheduler": "clc", "raster_group": 8, "accumulators": 2},
        ),
        Preset("hopper-2x1", "a 128x256 tile, B multicast to two CTAs along M", {**HOPPER, "cluster": (2, 1)}),
    )
}


def chosen_options(kernel: str, preset: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Returns options for `make_config`: those requested, and else those of the preset.

    None and ``auto`` request nothing.
    """
    asked = {name: value for name, value in options.items() if value not in (None, "auto")}
    if preset is None:
        return asked
    found = find_preset(preset)
    walk = found.walk if find_kernel(kernel).is_persistent else {}
    return {**found.options, **walk, "stages": found.stages.get(kernel), **asked}


def configure(kernel: str, preset: str | None = None, **options: Any) -> KernelConfig:
    """Makes a configuration of the kernel. Each option has the requested value, else that of the preset, else the one
    that suits the shape if there is one, else the default.
    """
    return make_config(kernel, **chosen_options(kernel, preset, options))


def find_preset(name: str) -> Preset:
    """Looks up a preset by name."""
    if name == DEFAULT.name:
        return DEFAULT
    if name not in PRESETS:
        raise UsageProblem(f"there is no preset {name!r}; use one of: {', '.join((*PRESETS, DEFAULT.name))}")
    return PRESETS[name]
