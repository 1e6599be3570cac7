"""Which kernels a survey measures on which problems: the timing model is fitted to some of them and judged by the rest.

What a run is for is settled before it is measured: every third of a kernel's is there to fit, so that neither side
lacks a kernel, a tile or a size; the others are held out. More are not timed, only checked: every kernel in every
cluster, and every preset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.build.catalog import kernels_of
from harness.build.config import PRESETS, KernelConfig, chosen_options, make_config
from harness.errors import UsageProblem
from harness.problem import Shape, parse_shape
from metrology.survey import CHECK, FIT, HOLD_OUT

SQUARES = ("512", "1024", "2048", "4096", "8192")
RAGGED = ("1000,3000,520", "4000,4104,4096", "2056,4104,1032")
OBLONG = ("128,8192,4096", "1024,1024,16384", "8192,8192,1024", "4096,4096,192")


@dataclass(frozen=True)
class Run:
    """One kernel on one problem. options: of `harness.build.config.make_config`."""

    kernel: str
    options: tuple[tuple[str, Any], ...]
    shape: Shape
    use: str

    @property
    def name(self) -> str:
        words = [self.kernel, *(f"{name}={_shown(value)}" for name, value in self.options)]
        return f"{' '.join(words)} at {self.shape.m}x{self.shape.n}x{self.shape.k}"

    def config(self, arch: str) -> KernelConfig:
        return make_config(self.kernel, arch=arch, shape=self.shape, **dict(self.options))


def _shown(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


# What is changed from a kernel's defaults, and the problems it is measured on.
Change = tuple[dict[str, Any], tuple[str, ...]]

HOPPER: dict[str, tuple[Change, ...]] = {
    "kernel5": (
        ({}, ("1024", "4096", "2056,4104,1032")),
        ({"cluster": (1, 1)}, ("4096",)),
        ({"cluster": (2, 2)}, ("4096",)),
        ({"mma_shape": (128, 128)}, ("4096",)),
        ({"mma_shape": (64, 256), "cluster": (1, 1)}, ("2048",)),
    ),
    "kernel6": (
        ({}, ("512", "2048", "4096", "8192", "4000,4104,4096")),
        ({"stages": 1}, ("4096",)),
        ({"stages": 2}, ("2048", "4096")),
        ({"cluster": (1, 1)}, ("4096",)),
        ({"cluster": (1, 2)}, ("4096",)),
        ({"cluster": (2, 2)}, ("4096",)),
        ({"multicast": False}, ("4096",)),
        ({"mma_shape": (128, 128)}, ("4096",)),
        ({"mma_shape": (64, 256)}, ("2048",)),
    ),
    "kernel7": (
        ({}, (*SQUARES, *RAGGED, *OBLONG)),
        ({"stages": 1}, ("4096",)),
        ({"stages": 2}, ("4096", "1024,1024,16384")),
        ({"stages": 3}, ("4096",)),
        ({"cluster": (1, 1)}, ("2048", "4096", "8192")),
        ({"cluster": (1, 2)}, ("4096",)),
        ({"cluster": (2, 2)}, ("4096",)),
        ({"cluster": (4, 1)}, ("4096",)),
        ({"multicast": False}, ("4096",)),
        ({"epilogue_width": 64, "stages": 4}, ("4096", "4096,4096,192")),
        ({"epilogue_width": 16}, ("4096", "4096,4096,192")),
        ({"mma_shape": (128, 128)}, ("2048", "4096")),
        ({"mma_shape": (128, 128), "stages": 2}, ("4096",)),
        ({"mma_shape": (128, 128), "stages": 3, "cluster": (1, 1)}, ("4096",)),
        ({"mma_shape": (128, 192)}, ("4096",)),
        ({"mma_shape": (256, 128), "cluster": (1, 2)}, ("4096",)),
        ({"mma_shape": (64, 128), "cluster": (1, 1)}, ("1024",)),
    ),
    "kernel8": (
        ({}, (*SQUARES, *RAGGED, *OBLONG)),
        ({"mma_shape": (256, 128), "cluster": (1, 2), "scheduler": "static"}, ("2048", "4096", "8192")),
        ({"mma_shape": (256, 128), "cluster": (1, 2), "raster_group": 1}, ("4096", "8192")),
        ({"mma_shape": (128, 256), "cluster": (2, 1)}, ("4096", "8192")),
        ({"mma_shape": (128, 256), "cluster": (2, 1), "scheduler": "dynamic"}, ("4096", "8192")),
        ({"mma_shape": (128, 256), "cluster": (2, 1), "scheduler": "none"}, ("4096",)),
        ({"mma_shape": (128, 256), "cluster": (1, 1)}, ("4096",)),
        ({"mma_shape": (128, 256), "cluster": (2, 1), "stages": 2}, ("4096",)),
        ({"mma_shape": (128, 256), "cluster": (2, 1), "stages": 3}, ("4096",)),
        ({"mma_shape": (128, 256), "cluster": (2, 1), "sms": 64}, ("4096",)),
        ({"mma_shape": (128, 256), "cluster": (2, 1), "multicast": False}, ("4096",)),
        ({"mma_shape": (128, 128), "cluster": (2, 1), "ping_pong": True}, ("2048", "4096", "8192")),
        ({"mma_shape": (64, 256), "cluster": (2, 1), "ping_pong": True}, ("4096",)),
        ({"mma_shape": (128, 128), "cluster": (2, 1), "ping_pong": True, "stages": 3}, ("4096",)),
    ),
}
PAIR = {"cta_group": 2, "mma_shape": (256, 256)}
ALONE = {"cta_group": 1, "mma_shape": (128, 256)}
BLACKWELL: dict[str, tuple[Change, ...]] = {
    "kernel5": (
        ({}, ("1024", "4096", "2056,4104,1032")),
        ({"cluster": (2, 1)}, ("4096",)),
        ({**ALONE, "cluster": (1, 1)}, ("4096",)),
    ),
    "kernel6": (
        ({}, ("2048", "4096", "8192", "4000,4104,4096")),
        ({"cluster": (2, 1)}, ("4096",)),
        ({"cluster": (2, 1), "stages": 2}, ("4096",)),
        ({**ALONE, "cluster": (1, 1)}, ("4096",)),
    ),
    "kernel7": (
        ({}, (*SQUARES, *RAGGED, *OBLONG)),
        *(({"cluster": cluster}, ("4096", "8192")) for cluster in ((2, 1), (2, 2), (4, 1), (4, 2))),
        *(({"cluster": (2, 1), "stages": stages}, ("4096",)) for stages in (1, 2, 4)),
        ({"cluster": (2, 1), "multicast": False}, ("4096",)),
        ({"cluster": (2, 1), "epilogue_width": 64}, ("4096", "4096,4096,192")),
        *(({**ALONE, "cluster": cluster}, ("4096",)) for cluster in ((1, 1), (2, 1), (4, 4))),
        ({**PAIR, "mma_shape": (256, 128), "cluster": (2, 1)}, ("4096",)),
    ),
    "kernel8": (
        ({}, (*SQUARES, *RAGGED, *OBLONG)),
        *(({"cluster": cluster}, ("4096", "8192")) for cluster in ((2, 1), (4, 2))),
        *(({"cluster": (2, 1), "scheduler": scheduler}, ("4096", "8192")) for scheduler in ("static", "none")),
        ({"cluster": (2, 1), "accumulators": 1}, ("4096",)),
        *(({"cluster": (2, 1), "clc_depth": depth}, ("4096",)) for depth in (1, 3)),
        ({"cluster": (2, 1), "raster_group": 1}, ("8192",)),
        ({**ALONE, "cluster": (1, 1)}, ("4096",)),
    ),
}
CHANGES = {"sm_90a": HOPPER, "sm_100a": BLACKWELL}
"""By architecture; what is not changed from a kernel's defaults is left out."""


def runs(arch: str = "sm_90a") -> list[Run]:
    """All timed runs of an architecture, in a fixed order, each with what it is for."""
    found = []
    for kernel, changes in CHANGES[arch].items():
        each = [(tuple(options.items()), shape) for options, shapes in changes for shape in shapes]
        for i, (options, shape) in enumerate(each):
            found.append(Run(kernel, options, parse_shape(shape), FIT if i % 3 == 1 else HOLD_OUT))
    return found


CHECKED = parse_shape("1032,1544,520")
"""No multiple of any tile."""
SIZES = (1, 2, 4, 8, 16)
MOST_CTAS = 16


def checks(arch: str) -> list[Run]:
    """Every kernel in every cluster that it can have, and with every preset of the architecture."""
    clusters = [(m, n) for m in SIZES for n in SIZES if m * n <= MOST_CTAS]
    asked: list[dict[str, Any]] = [{"cluster": cluster} for cluster in clusters]
    presets = [preset for preset in PRESETS.values() if preset.options["arch"] == arch]
    found = []
    for kernel in kernels_of("bf16"):
        for options in [*asked, *(chosen_options(kernel, preset.name, {}) for preset in presets)]:
            chosen = {name: value for name, value in options.items() if name != "arch" and value is not None}
            run = Run(kernel, tuple(chosen.items()), CHECKED, CHECK)
            if run not in found and _is_possible(run, arch):
                found.append(run)
    return found


def _is_possible(run: Run, arch: str) -> bool:
    try:
        run.config(arch)
    except UsageProblem:
        return False
    return True


TRACED = (
    "kernel5 at 4096x4096x4096",
    "kernel6 at 4096x4096x4096",
    "kernel7 at 4096x4096x4096",
    "kernel8 at 4096x4096x4096",
    "kernel8 mma_shape=256x128 cluster=1x2 scheduler=static at 4096x4096x4096",
    "kernel8 mma_shape=128x256 cluster=2x1 scheduler=dynamic at 4096x4096x4096",
)
"""Runs whose events are recorded, too; of an architecture, those that it has."""
