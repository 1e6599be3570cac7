"""Configurations of a kernel: what can be asked for, and all that follows from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness.build import planner
from harness.build.catalog import find_kernel
from harness.build.mojo_source import PAIRS
from harness.build.refusal import Refusal, advise
from harness.build.tiling import tilings
from harness.errors import UsageProblem
from harness.problem.dtypes import element_type
from harness.problem.shape import Shape

SWITCH = {"yes": True, "true": True, "no": False, "false": False}
"""What an option that is on or off can be written as."""


@dataclass(frozen=True)
class KernelConfig:
    """One configuration of a kernel: everything the compiler needs to know, as `make_config`
    makes it.

    cta_group: CTAs that work on one MMA, 1 or 2 (a pair). mma_shape: (M, N) of one MMA, for a pair that of
    both CTAs together; on sm_90a the tile of a CTA. stages: depth of the ring in shared memory. cluster:
    (CTAs along M, CTAs along N). epilogue_width: columns of C in one TMA store. multicast: False: each CTA
    loads all that it needs. scheduler: where a CTA's next tile comes from, none for one tile a CTA. raster_group:
    columns of cluster tiles that are walked along M together. accumulators: in tensor memory, filled in turn.
    clc_depth: answers about the next tile that are kept, 0 unless the scheduler is clc. sms: multiprocessors that
    clusters which stay fill, 0 unless the scheduler is static or dynamic. ping_pong: on sm_90a, the warpgroups of a CTA
    take its tiles in turn, in place of halves of each.
    """

    kernel: str
    arch: str
    dtype: str
    cta_group: int
    mma_shape: tuple[int, int]
    stages: int
    cluster: tuple[int, int]
    epilogue_width: int
    multicast: bool
    scheduler: str = "none"
    raster_group: int = 1
    accumulators: int = 1
    clc_depth: int = 0
    sms: int = 0
    ping_pong: bool = False

    @property
    def label(self) -> str:
        """Short name for tables."""
        unit = "pair" if self.cta_group == 2 else "1 CTA"
        return (
            f"{self.kernel} {self.arch} {self.dtype} {self.mma_shape[0]}x{self.mma_shape[1]} {unit} "
            f"cluster {self.cluster[0]}x{self.cluster[1]} stages {self.stages} epilogue {self.epilogue_width}"
            f"{'' if self.multicast else ' no multicast'}{self._walk}"
        )

    @property
    def _walk(self) -> str:
        """The order of tiles and who gets them, for a kernel that has one."""
        if not find_kernel(self.kernel).walks_tiles:
            return ""
        details = f" on {self.sms} SMs" if self.sms else f" depth {self.clc_depth}" if self.clc_depth else ""
        return (
            f" {self.scheduler}{details} group {self.raster_group}"
            f" accumulators {self.accumulators}{' ping-pong' if self.ping_pong else ''}"
        )

    def options(self) -> dict[str, Any]:
        """As for `make_config`, with nothing left to be chosen."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def as_dict(self) -> dict:
        """Plain data for JSON."""
        return {**asdict(self), "mma_shape": list(self.mma_shape), "cluster": list(self.cluster)}

    def to_json(self) -> str:
        """One line; `from_json` reads it."""
        return json.dumps(self.as_dict())

    @classmethod
    def from_json(cls, text: str) -> KernelConfig:
        """The configuration that `to_json` wrote."""
        values = json.loads(text)
        pairs = {name: tuple(values[name]) for name in PAIRS}
        return cls(**{**values, **pairs})


def make_config(
    kernel: str,
    *,
    arch: str = "auto",
    dtype: str = "bf16",
    cta_group: int | None = None,
    mma_shape: tuple[int, int] | None = None,
    stages: int | None = None,
    cluster: tuple[int, int] | None = None,
    epilogue_width: int | None = None,
    multicast: bool = True,
    scheduler: str | None = None,
    raster_group: int | None = None,
    accumulators: int | None = None,
    clc_depth: int | None = None,
    sms: int | None = None,
    ping_pong: bool | None = None,
    shape: Shape | None = None,
) -> KernelConfig:
    """A configuration of the named kernel, with defaults where nothing is asked for.

    shape: the problem, for kernels that choose their tile and cluster for it, among those that are asked for.
    """
    asked: dict[str, Any] = {
        "kernel": kernel,
        "arch": None if arch == "auto" else arch,
        "dtype": dtype,
        "cta_group": cta_group,
        "mma_shape": mma_shape,
        "stages": stages,
        "cluster": cluster,
        "epilogue_width": epilogue_width,
        "multicast": multicast,
        "scheduler": scheduler,
        "raster_group": raster_group,
        "accumulators": accumulators,
        "clc_depth": clc_depth,
        "sms": sms,
        "ping_pong": ping_pong,
    }
    try:
        return _complete(asked, shape)
    except Refusal as refusal:
        raise advise(refusal, asked, lambda changed: _works(changed, shape)) from None


def try_config(kernel: str, *, shape: Shape | None = None, **asked: Any) -> KernelConfig:
    """As `make_config`, for those who try many: raises `Refusal` as it is, without looking for ways out."""
    options: dict[str, Any] = {field.name: None for field in fields(KernelConfig)} | {"kernel": kernel, **asked}
    if options["arch"] == "auto":
        options["arch"] = None
    return _complete(options, shape)


def _works(asked: Mapping[str, Any], shape: Shape | None) -> bool:
    try:
        _complete(asked, shape)
    except UsageProblem:
        return False
    return True


def _complete(asked: Mapping[str, Any], shape: Shape | None) -> KernelConfig:
    kernel = find_kernel(asked["kernel"])
    arch = asked["arch"] or kernel.archs[0]
    if arch not in kernel.archs:
        raise Refusal(f"{kernel.name} is written for {' and '.join(kernel.archs)}, not for {arch!r}", "arch")
    dtype = asked["dtype"] or "bf16"
    element_type(dtype)
    given = {**asked, "arch": arch, "dtype": dtype}
    found = _first_allowed({**given, **tiling} for tiling in tilings(kernel, arch, asked, shape))
    return KernelConfig(
        kernel=kernel.name,
        arch=arch,
        dtype=dtype,
        cta_group=found["cta_group"],
        mma_shape=(found["mma_shape"][0], found["mma_shape"][1]),
        stages=found["stages"],
        cluster=(found["cluster"][0], found["cluster"][1]),
        epilogue_width=found["epilogue_width"],
        multicast=found["multicast"],
        scheduler=found["scheduler"],
        raster_group=found["raster_group"],
        accumulators=found["accumulators"],
        clc_depth=found["clc_depth"],
        sms=found["sms"],
        ping_pong=found["ping_pong"],
    )


def _first_allowed(choices: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The first that the rules allow, completed; raises `Refusal` for the first rule that the first of all breaks."""
    first: Refusal | None = None
    for choice in choices:
        try:
            return planner.complete(choice)
        except Refusal as refusal:
            first = first or refusal
    assert first is not None, "there is a choice at least"
    raise first


def parse_cluster(text: str) -> tuple[int, int]:
    """Reads ``CMxCN``: CTAs along M, CTAs along N."""
    return _parse_pair(text, "cluster", "CMxCN; write for example 4x4 (4 CTAs along M, 4 along N)")


def parse_mma_shape(text: str) -> tuple[int, int]:
    """Reads ``MxN``."""
    return _parse_pair(text, "mma shape", "MxN; write for example 256x256")


def parse_switch(text: str) -> bool:
    """Reads ``yes`` and ``true``, ``no`` and ``false``, in capitals or not."""
    word = text.lower()
    if word not in SWITCH:
        raise UsageProblem(f"{text!r} is neither yes nor no; write yes or true, no or false")
    return SWITCH[word]


def _parse_pair(text: str, what: str, form: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise UsageProblem(f"{what} {text!r} is not {form}")
    return int(parts[0]), int(parts[1])
