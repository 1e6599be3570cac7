"""Configurations of a kernel: what can be asked for, and all that follows from it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness.build import planner
from harness.build.catalog import find_kernel
from harness.build.options import OPTIONS
from harness.build.refusal import Refusal, advise
from harness.build.tiling import tilings
from harness.errors import UsageProblem
from harness.problem.dtypes import element_type
from harness.problem.shape import Shape


@dataclass(frozen=True)
class KernelConfig:
    """One complete configuration of a kernel, as `make_config` makes it: everything the compiler needs to know.

    The fields after kernel are `harness.build.options.OPTIONS`, where each is explained. A kernel that has no use for
    an option has its default here: clc_depth is 0 unless the scheduler is clc, sms 0 unless the launch is persistent.
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
        values: dict[str, Any] = json.loads(text)
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**options)


def make_config(kernel: str, *, shape: Shape | None = None, **asked: Any) -> KernelConfig:
    """A configuration of the named kernel, with defaults where nothing is asked for: None, or ``auto`` as arch.

    asked: values by the names of `OPTIONS`. shape: the problem, for kernels that choose their tile and cluster for it,
    among those that are asked for.
    """
    unknown = asked.keys() - OPTIONS.keys()
    if unknown:
        raise TypeError(f"a configuration has no {', '.join(sorted(unknown))}; it has {', '.join(OPTIONS)}")
    given = {name: option.default if asked.get(name) is None else asked[name] for name, option in OPTIONS.items()}
    options = {"kernel": kernel, **given, "arch": None if given["arch"] == "auto" else given["arch"]}
    try:
        return _complete(options, shape)
    except Refusal as refusal:
        raise advise(refusal, options, lambda changed: _works(changed, shape)) from None


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
    fixed = {"arch": arch, "dtype": dtype}
    found = fixed | _first_allowed({**asked, **fixed, **tiling} for tiling in tilings(kernel, arch, asked, shape))
    options: dict[str, Any] = {name: found[name] for name in OPTIONS}
    options |= {name: tuple(value[:2]) for name, value in options.items() if OPTIONS[name].kind == "pair"}
    return KernelConfig(kernel=kernel.name, **options)


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
