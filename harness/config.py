"""Which configurations of a kernel can be asked for.

The rules are those of ``kernels/common/rules.mojo`` in the words of the command line, checked before
anything is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil

from harness.catalog import (
    ARCHITECTURES,
    BLOCK_K,
    CLC_DEPTHS,
    ELEMENT_BYTES,
    EPILOGUE_WIDTHS,
    KERNELS,
    RASTER_GROUPS,
    STAYING,
    Architecture,
    Kernel,
    Tiling,
    find_kernel,
)
from harness.dtypes import element_type
from harness.errors import UsageProblem
from harness.problem import Shape


@dataclass(frozen=True)
class KernelConfig:
    """One configuration of a kernel: everything the compiler needs to know. Checked when it is made.

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

    def __post_init__(self) -> None:
        kernel = find_kernel(self.kernel)
        _check_arch(self.arch, kernel)
        element_type(self.dtype)
        arch = ARCHITECTURES[self.arch]
        _check_mma(self.cta_group, self.mma_shape, arch)
        _check_cluster(self.cluster, self.cta_group, arch)
        _check_walk(self, kernel, arch)
        _check_ping_pong(self, arch)
        budget = Budget(
            kernel,
            arch,
            self.cta_group,
            self.mma_shape,
            self.epilogue_width,
            self.accumulators,
            _answers(self.scheduler, self.clc_depth),
            self.ping_pong,
        )
        _check_epilogue(self.epilogue_width, budget.warp_columns)
        if self.multicast:
            _check_slices(self.cluster, self.cta_group, budget)
        _check_stages(self.stages, budget)

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

    def as_dict(self) -> dict:
        """Plain data for JSON."""
        return {**asdict(self), "mma_shape": list(self.mma_shape), "cluster": list(self.cluster)}

    def to_json(self) -> str:
        """One line; `from_json` reads it."""
        return json.dumps(self.as_dict())

    @classmethod
    def from_json(cls, text: str) -> KernelConfig:
        """The configuration that `to_json` wrote, checked again."""
        values = json.loads(text)
        pairs = {name: tuple(values[name]) for name in ("mma_shape", "cluster")}
        return cls(**{**values, **pairs})


@dataclass(frozen=True)
class Budget:
    """The bytes of shared memory that a CTA needs."""

    kernel: Kernel
    arch: Architecture
    cta_group: int
    mma_shape: tuple[int, int]
    epilogue_width: int
    accumulators: int = 1
    answers: int = 0
    ping_pong: bool = False

    @property
    def a_rows(self) -> int:
        """Rows of A, and of C, in one CTA."""
        return self.mma_shape[0] // self.cta_group

    @property
    def b_rows(self) -> int:
        """Rows of B in one CTA."""
        return self.mma_shape[1] // self.cta_group

    @property
    def splits_columns(self) -> bool:
        """A pair with M = 128: two warps hold the left half of the columns and two the right half."""
        return self.cta_group == 2 and self.mma_shape[0] == 128

    @property
    def warp_columns(self) -> int:
        """Columns of the accumulator that one epilogue warp writes out."""
        return self.mma_shape[1] // 2 if self.splits_columns else self.mma_shape[1]

    @property
    def stage_bytes(self) -> int:
        return (self.a_rows + self.b_rows) * BLOCK_K * ELEMENT_BYTES

    @property
    def output_bytes(self) -> int:
        """The tile of C, or as many steps of it as the kernel keeps."""
        steps = self.kernel.output_steps or self.warp_columns // self.epilogue_width
        boxes = 2 if self.splits_columns or self.ping_pong else 1
        return steps * boxes * self.a_rows * self.epilogue_width * ELEMENT_BYTES

    def barrier_bytes(self, stages: int) -> int:
        """Full and empty barrier of each stage; with tensor memory the full barrier of each accumulator, the empty one
        where it is used again, and the word for the address; each answer about the next tile with its two barriers."""
        words = self.accumulators * (2 if self.kernel.walks_tiles else 1) + 1 if self.arch.tensor_memory else 0
        return 8 * (2 * stages + words) + 32 * self.answers

    def total(self, stages: int) -> int:
        return stages * self.stage_bytes + self.output_bytes + self.barrier_bytes(stages)

    def most_stages(self) -> int:
        """As many as fit."""
        return (self.arch.shared_memory - self.total(0)) // (self.total(1) - self.total(0))


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
    found = find_kernel(kernel)
    name = found.archs[0] if arch == "auto" else arch
    _check_arch(name, found)
    architecture = ARCHITECTURES[name]
    defaults = architecture.defaults
    tilings = [
        tiling
        for tiling in found.tilings.get(name, ())
        if mma_shape in (None, tiling.mma_shape)
        and cluster in (None, tiling.cluster)
        and (ping_pong in (None, tiling.ping_pong))
        and not (tiling.ping_pong and scheduler not in (None, "static"))
    ]
    if tilings:
        tiling = _fastest(tilings, shape, architecture.sms if sms is None else sms) if shape else tilings[0]
        mma_shape, cluster, ping_pong = tiling.mma_shape, tiling.cluster, tiling.ping_pong
    group = defaults.cta_group if cta_group is None else cta_group
    if mma_shape is None:
        _check_group(group, architecture)
    tile = mma_shape or defaults.mma_shape[group]
    # Checked before anything is derived from it.
    _check_mma(group, tile, architecture)
    width = epilogue_width
    if width is None:
        width = _default_width(Budget(found, architecture, group, tile, found.epilogue_width))
    if scheduler is None:
        scheduler = architecture.schedulers[0] if found.walks_tiles else "none"
    if ping_pong is None:
        ping_pong = False
    if accumulators is None:
        accumulators = 2 if found.walks_tiles and architecture.tensor_memory else 1
    if clc_depth is None:
        clc_depth = 2 if scheduler == "clc" else 0
    if raster_group is None:
        raster_group = (16 if ping_pong else 8) if found.walks_tiles else 1
    if sms is None:
        sms = architecture.sms if scheduler in STAYING else 0
    if stages is None:
        budget = Budget(
            found, architecture, group, tile, width, accumulators, _answers(scheduler, clc_depth), ping_pong
        )
        _check_epilogue(width, budget.warp_columns)
        stages = found.stages or budget.most_stages()
    return KernelConfig(
        kernel=kernel,
        arch=name,
        dtype=dtype,
        cta_group=group,
        mma_shape=tile,
        stages=stages,
        cluster=cluster or defaults.cluster,
        epilogue_width=width,
        multicast=multicast,
        scheduler=scheduler,
        raster_group=raster_group,
        accumulators=accumulators,
        clc_depth=clc_depth,
        sms=sms,
        ping_pong=ping_pong,
    )


FEW_CLUSTERS, OUTSIDE_SLOWER = 8, 1.5
"""Where a CTA of the last clusters along M lies outside of C altogether, and clusters along M are few, the tiles of an
H200 took 1.2 to 1.6 times as long as their rounds say (777x8192x8192: one cluster of 4); with 24 along M it did not
show."""


def _answers(scheduler: str, clc_depth: int) -> int:
    """Places for answers about the next tile; a counter needs one."""
    return 1 if scheduler == "dynamic" else clc_depth


def _fastest(tilings: Sequence[Tiling], shape: Shape, sms: int) -> Tiling:
    """All CTAs that fit compute a tile at the same time, so what counts is how often they do, times the tile's size."""

    def cost(tiling: Tiling) -> float:
        (rows, columns), (cm, cn) = tiling.mma_shape, tiling.cluster
        clusters = ceil(shape.m / (rows * cm)) * ceil(shape.n / (columns * cn))
        rounds = ceil(clusters / max(1, sms // (cm * cn)))
        ctas_m = ceil(shape.m / rows)
        outside = ctas_m % cm and ceil(ctas_m / cm) <= FEW_CLUSTERS
        return rounds * rows * columns * tiling.slower * (OUTSIDE_SLOWER if outside else 1)

    return min(tilings, key=cost)


def parse_cluster(text: str) -> tuple[int, int]:
    """Reads ``CMxCN``: CTAs along M, CTAs along N."""
    return _parse_pair(text, "cluster", "CMxCN; write for example 4x4 (4 CTAs along M, 4 along N)")


def parse_mma_shape(text: str) -> tuple[int, int]:
    """Reads ``MxN``."""
    return _parse_pair(text, "mma shape", "MxN; write for example 256x256")


def _parse_pair(text: str, what: str, form: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise UsageProblem(f"{what} {text!r} is not {form}")
    return int(parts[0]), int(parts[1])


def _default_width(budget: Budget) -> int:
    """The kernel's own, or the widest narrower one that divides the columns."""
    own = budget.epilogue_width
    return next(w for w in EPILOGUE_WIDTHS if w <= own and budget.warp_columns % w == 0)


def _check_arch(arch: str, kernel: Kernel) -> None:
    if arch not in kernel.archs:
        written = " and ".join(kernel.archs)
        raise UsageProblem(f"{kernel.name} is written for {written}, not for {arch!r}; use --arch {kernel.archs[0]}")


def _check_group(cta_group: int, arch: Architecture) -> None:
    if cta_group not in arch.rows:
        known = " or ".join(map(str, arch.rows))
        others = [name for name, other in ARCHITECTURES.items() if cta_group in other.rows]
        hint = f", or --arch {others[0]}" if others else ""
        raise UsageProblem(f"cta group {cta_group} is not possible on {arch.name}; use {known}{hint}")


def _check_mma(cta_group: int, mma_shape: tuple[int, int], arch: Architecture) -> None:
    _check_group(cta_group, arch)
    rows, columns = mma_shape
    shown = f"mma shape {rows}x{columns} with cta group {cta_group}"
    if rows not in arch.rows[cta_group]:
        known = " or ".join(map(str, arch.rows[cta_group]))
        others = [group for group, possible in arch.rows.items() if rows in possible]
        hint = f", or --cta-group {others[0]}" if others else ""
        raise UsageProblem(f"{shown}: M must be {known}; use {arch.rows[cta_group][-1]}x{columns}{hint}")
    step, most = arch.column_step[cta_group], arch.largest_columns[rows]
    if not step <= columns <= most or columns % step:
        near = min(max(columns // step * step, step), most)
        raise UsageProblem(f"{shown}: N must be a multiple of {step} up to {most}; use {rows}x{near}")


def _check_cluster(cluster: tuple[int, int], cta_group: int, arch: Architecture) -> None:
    cm, cn = cluster
    shown = f"cluster {cm}x{cn}"
    if cm < 1 or cn < 1:
        raise UsageProblem(
            f"{shown}: both sizes must be at least 1; the smallest with cta group {cta_group} is {cta_group}x1"
        )
    if cm * cn > arch.largest_cluster:
        raise UsageProblem(f"{shown} has {cm * cn} CTAs; a cluster has at most {arch.largest_cluster}, for example 4x4")
    if cm % cta_group:
        raise UsageProblem(
            f"{shown}: {cm} CTAs along M cannot be split into pairs, which cta group 2 multiplies with; "
            f"use an even number, for example {cm + 1}x1, or --cta-group 1"
        )


def _check_walk(config: KernelConfig, kernel: Kernel, arch: Architecture) -> None:
    """Where the next tile comes from, in which order, and where it is accumulated."""
    scheduler, depth, sms = config.scheduler, config.clc_depth, config.sms
    if not kernel.walks_tiles:
        fixed = {"scheduler": "none", "raster_group": 1, "accumulators": 1, "clc_depth": 0, "sms": 0}
        walking = " or ".join(other.name for other in KERNELS.values() if other.walks_tiles)
        for name, only in fixed.items():
            if getattr(config, name) != only:
                raise UsageProblem(
                    f"{name.replace('_', ' ')} {getattr(config, name)}: {kernel.name} computes one tile a CTA, at its "
                    f"place in the grid; use {walking}, or leave --{name.replace('_', '-')} out"
                )
        return
    if scheduler not in arch.schedulers:
        raise UsageProblem(f"scheduler {scheduler!r} is not one of {arch.name}'s; use {', '.join(arch.schedulers)}")
    if config.raster_group not in RASTER_GROUPS:
        raise UsageProblem(f"raster group {config.raster_group} is not one of {', '.join(map(str, RASTER_GROUPS))}")
    most = 2 if arch.tensor_memory else 1
    if not 1 <= config.accumulators <= most:
        place = "in tensor memory" if arch.tensor_memory else f"in registers, as {arch.name} has no tensor memory"
        raise UsageProblem(f"accumulators {config.accumulators}: they are {place}; use {'1 or 2' if most == 2 else 1}")
    if scheduler == "clc" and depth not in CLC_DEPTHS:
        raise UsageProblem(f"clc depth {depth} is not one of {', '.join(map(str, CLC_DEPTHS))}; use 2")
    if scheduler != "clc" and depth:
        raise UsageProblem(
            f"clc depth {depth}: the scheduler {scheduler} asks for nothing by clc; leave --clc-depth out"
        )
    size = config.cluster[0] * config.cluster[1]
    if scheduler in STAYING and sms < size:
        raise UsageProblem(
            f"sms {sms}: a cluster of {config.cluster[0]}x{config.cluster[1]} needs {size}; use {size} or more"
        )
    if scheduler not in STAYING and sms:
        use = " or ".join(name for name in arch.schedulers if name in STAYING)
        raise UsageProblem(f"sms {sms}: the scheduler {scheduler} launches all tiles; use --scheduler {use}")


def _check_ping_pong(config: KernelConfig, arch: Architecture) -> None:
    if not config.ping_pong:
        return
    if arch.tensor_memory or config.scheduler != "static":
        raise UsageProblem(
            f"ping-pong with {config.kernel} of {arch.name} and the scheduler {config.scheduler}: the warpgroups of "
            "sm_90a take turns on a list of tiles; use kernel8 with --arch sm_90a --scheduler static"
        )
    rows, columns = config.mma_shape
    if rows * columns > 128 * 128:
        raise UsageProblem(
            f"mma shape {rows}x{columns} with ping-pong: one warpgroup has all rows of a tile and holds 128x128 or "
            "64x256 accumulators; use 128x128"
        )


def _check_epilogue(width: int, warp_columns: int) -> None:
    possible = [w for w in EPILOGUE_WIDTHS if warp_columns % w == 0]
    if width not in EPILOGUE_WIDTHS:
        known = ", ".join(map(str, sorted(EPILOGUE_WIDTHS)))
        raise UsageProblem(f"epilogue width {width} is not one of {known}; use {possible[0]}")
    if width not in possible:
        raise UsageProblem(
            f"epilogue width {width} does not divide the {warp_columns} accumulator columns of a warp; "
            f"use {possible[0]}"
        )


def _check_slices(cluster: tuple[int, int], cta_group: int, budget: Budget) -> None:
    cm, cn = cluster
    for operand, rows, sharers in (("A", budget.a_rows, cn), ("B", budget.b_rows, cm // cta_group)):
        if rows < 8 * sharers:
            raise UsageProblem(
                f"cluster {cm}x{cn}: {sharers} CTAs share {rows} rows of {operand} and each needs at least "
                f"8; use a smaller cluster or --no-multicast"
            )


def _check_stages(stages: int, budget: Budget) -> None:
    kernel, most = budget.kernel, budget.most_stages()
    if kernel.stages is not None and stages != kernel.stages:
        others = " or ".join(other.name for other in KERNELS.values() if other.stages is None)
        raise UsageProblem(
            f"stages {stages}: {kernel.name} has no pipeline, its only depth is {kernel.stages}; use {others}"
        )
    if stages < 1:
        raise UsageProblem(f"stages {stages}: the ring needs at least 1; {kernel.name} takes 1 to {most} here")
    if stages > most:
        raise UsageProblem(
            f"stages {stages}: A and B {stages * budget.stage_bytes} + C {budget.output_bytes} + barriers "
            f"{budget.barrier_bytes(stages)} = {budget.total(stages)}, more than the {budget.arch.shared_memory} "
            f"bytes of shared memory; use {'at most ' + str(most) if most else 'a smaller mma shape'}"
        )
