"""Which configurations of a kernel can be asked for.

The rules are those of ``kernels/common/rules.mojo`` in words, checked before anything is compiled. A refusal names the
value, the rule, and ways out that work (`harness.config.refusal`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import ceil
from typing import Any

from harness.config.catalog import (
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
from harness.config.refusal import Change, Refusal, advise
from harness.errors import UsageProblem
from harness.problem.dtypes import element_type
from harness.problem.shape import Shape


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
        try:
            _check(self)
        except Refusal as refusal:
            own = {field.name: getattr(self, field.name) for field in fields(self)}
            raise advise(refusal, own, lambda changed: None not in changed.values() and _fits(changed)) from None

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


def _check(config: KernelConfig) -> None:
    """Raises `Refusal` for the first rule that is broken."""
    kernel = find_kernel(config.kernel)
    _check_arch(config.arch, kernel)
    element_type(config.dtype)
    arch = ARCHITECTURES[config.arch]
    _check_mma(config.cta_group, config.mma_shape, arch)
    _check_cluster(config.cluster, config.cta_group, arch)
    _check_walk(config, kernel, arch)
    _check_ping_pong(config, arch)
    budget = Budget(
        kernel,
        arch,
        config.cta_group,
        config.mma_shape,
        config.epilogue_width,
        config.accumulators,
        _answers(config.scheduler, config.clc_depth),
        config.ping_pong,
    )
    _check_epilogue(config.epilogue_width, budget.warp_columns)
    if config.multicast:
        _check_slices(config.cluster, config.cta_group, budget)
    _check_stages(config.stages, budget)


def _unchecked(values: Mapping[str, Any]) -> KernelConfig:
    """To be tried: making one the usual way would ask for advice about each attempt."""
    config = object.__new__(KernelConfig)
    for name, value in values.items():
        object.__setattr__(config, name, value)
    return config


def _fits(values: Mapping[str, Any]) -> bool:
    try:
        _check(_unchecked(values))
    except UsageProblem:
        return False
    return True


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
        values = _derive(**asked, shape=shape)
        _check(_unchecked(values))
    except Refusal as refusal:
        raise advise(refusal, asked, lambda changed: _works(**changed, shape=shape)) from None
    return KernelConfig(**values)


def try_config(kernel: str, *, shape: Shape | None = None, **asked: Any) -> KernelConfig:
    """As `make_config`, for those who try many: raises `Refusal` as it is, without looking for ways out."""
    options: dict[str, Any] = {field.name: None for field in fields(KernelConfig)} | {"kernel": kernel, **asked}
    if options["arch"] == "auto":
        options["arch"] = None
    values = _derive(**options, shape=shape)
    found = _unchecked(values)
    _check(found)
    return found


def _works(**asked: Any) -> bool:
    try:
        return _fits(_derive(**asked))
    except UsageProblem:
        return False


def _derive(
    kernel: str,
    arch: str | None,
    dtype: str | None,
    cta_group: int | None,
    mma_shape: tuple[int, int] | None,
    stages: int | None,
    cluster: tuple[int, int] | None,
    epilogue_width: int | None,
    multicast: bool | None,
    scheduler: str | None,
    raster_group: int | None,
    accumulators: int | None,
    clc_depth: int | None,
    sms: int | None,
    ping_pong: bool | None,
    shape: Shape | None,
) -> dict[str, Any]:
    """The fields of the configuration that is asked for, not all of them checked. Raises `Refusal`."""
    found = find_kernel(kernel)
    name = found.archs[0] if arch is None else arch
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
    return dict(
        kernel=kernel,
        arch=name,
        dtype="bf16" if dtype is None else dtype,
        cta_group=group,
        mma_shape=tile,
        stages=stages,
        cluster=cluster or defaults.cluster,
        epilogue_width=width,
        multicast=True if multicast is None else multicast,
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
        raise Refusal(f"{kernel.name} is written for {written}, not for {arch!r}", "arch", _each("arch", kernel.archs))


def _check_group(cta_group: int, arch: Architecture) -> None:
    if cta_group not in arch.rows:
        others = [name for name, other in ARCHITECTURES.items() if cta_group in other.rows]
        raise Refusal(
            f"cta group {cta_group} is not possible on {arch.name}",
            "cta_group",
            [*_each("cta_group", arch.rows), *_each("arch", others)],
        )


def _check_mma(cta_group: int, mma_shape: tuple[int, int], arch: Architecture) -> None:
    _check_group(cta_group, arch)
    rows, columns = mma_shape
    shown = f"mma shape {rows}x{columns} with cta group {cta_group}"
    if rows not in arch.rows[cta_group]:
        known = " or ".join(map(str, arch.rows[cta_group]))
        nearest = sorted(arch.rows[cta_group], key=lambda possible: abs(possible - rows))
        first, *more = [(possible, _near_columns(columns, possible, cta_group, arch)) for possible in nearest]
        others = [group for group, possible in arch.rows.items() if rows in possible]
        raise Refusal(
            f"{shown}: M must be {known}",
            "mma_shape",
            [*_each("mma_shape", [first]), *_each("cta_group", others), *_each("mma_shape", more)],
        )
    step, most = arch.column_step[cta_group], arch.largest_columns[rows]
    if not step <= columns <= most or columns % step:
        near = _near_columns(columns, rows, cta_group, arch)
        wider = _each("mma_shape", [(rows, n) for n in range(near, most + 1, step)])
        raise Refusal(f"{shown}: N must be a multiple of {step} up to {most}", "mma_shape", wider)


def _near_columns(columns: int, rows: int, cta_group: int, arch: Architecture) -> int:
    """The N next to this one that is possible with so many rows."""
    step = arch.column_step[cta_group]
    return min(max(columns // step * step, step), arch.largest_columns[rows])


def _check_cluster(cluster: tuple[int, int], cta_group: int, arch: Architecture) -> None:
    cm, cn = cluster
    shown = f"cluster {cm}x{cn}"
    if cm < 1 or cn < 1:
        near = _smaller_clusters(max(cm, cta_group), max(cn, 1))
        raise Refusal(f"{shown}: both sizes must be at least 1", "cluster", near)
    if cm * cn > arch.largest_cluster:
        raise Refusal(
            f"{shown} has {cm * cn} CTAs; a cluster has at most {arch.largest_cluster}",
            "cluster",
            _smaller_clusters(cm, cn),
        )
    if cm % cta_group:
        even = _each("cluster", [(cm + 1, cn), (cm - 1, cn)])
        raise Refusal(
            f"{shown}: {cm} CTAs along M cannot be split into pairs, which cta group 2 multiplies with",
            "cluster",
            [*even, {"cta_group": 1}],
        )


def _check_walk(config: KernelConfig, kernel: Kernel, arch: Architecture) -> None:
    """Where the next tile comes from, in which order, and where it is accumulated."""
    scheduler, depth, sms = config.scheduler, config.clc_depth, config.sms
    if not kernel.walks_tiles:
        fixed = {"scheduler": "none", "raster_group": 1, "accumulators": 1, "clc_depth": 0, "sms": 0}
        walking = [other.name for other in KERNELS.values() if other.walks_tiles]
        for name, only in fixed.items():
            if getattr(config, name) != only:
                raise Refusal(
                    f"{name.replace('_', ' ')} {getattr(config, name)}: {kernel.name} computes one tile a CTA, at its "
                    "place in the grid",
                    name,
                    [*_each("kernel", walking), {name: None}],
                )
        return
    if scheduler not in arch.schedulers:
        raise Refusal(
            f"scheduler {scheduler!r} is not one of {arch.name}'s",
            "scheduler",
            _each("scheduler", arch.schedulers),
        )
    if config.raster_group not in RASTER_GROUPS:
        nearest = sorted(RASTER_GROUPS, key=lambda known: abs(known - config.raster_group))
        known = ", ".join(map(str, RASTER_GROUPS))
        raise Refusal(
            f"raster group {config.raster_group} is not one of {known}", "raster_group", _each("raster_group", nearest)
        )
    most = 2 if arch.tensor_memory else 1
    if not 1 <= config.accumulators <= most:
        place = "in tensor memory" if arch.tensor_memory else f"in registers, as {arch.name} has no tensor memory"
        possible = range(1, most + 1)
        raise Refusal(
            f"accumulators {config.accumulators}: they are {place}", "accumulators", _each("accumulators", possible)
        )
    if scheduler == "clc" and depth not in CLC_DEPTHS:
        known = ", ".join(map(str, CLC_DEPTHS))
        raise Refusal(f"clc depth {depth} is not one of {known}", "clc_depth", _each("clc_depth", reversed(CLC_DEPTHS)))
    if scheduler != "clc" and depth:
        message = f"clc depth {depth}: the scheduler {scheduler} keeps no answers of cluster launch control"
        raise Refusal(message, "clc_depth", [{"clc_depth": None}])
    size = config.cluster[0] * config.cluster[1]
    if scheduler in STAYING and sms < size:
        shown = f"{config.cluster[0]}x{config.cluster[1]}"
        raise Refusal(f"sms {sms}: a cluster of {shown} needs {size}", "sms", [{"sms": size}])
    if scheduler not in STAYING and sms:
        message = f"sms {sms}: the scheduler {scheduler} launches all tiles"
        stays = [name for name in arch.schedulers if name in STAYING]
        raise Refusal(message, "sms", [*_each("scheduler", stays), {"sms": None}])


def _check_ping_pong(config: KernelConfig, arch: Architecture) -> None:
    if not config.ping_pong:
        return
    if arch.tensor_memory or config.scheduler != "static":
        raise Refusal(
            f"ping-pong with {config.kernel} of {arch.name} and the scheduler {config.scheduler}: the warpgroups of "
            "sm_90a take turns on a fixed list of tiles",
            "ping_pong",
            [{"scheduler": "static"}, {"ping_pong": None}],
        )
    rows, columns = config.mma_shape
    if rows * columns > 128 * 128:
        raise Refusal(
            f"mma shape {rows}x{columns} with ping-pong: one warpgroup has all rows of a tile and holds 128x128 or "
            "64x256 accumulators",
            "mma_shape",
            [{"mma_shape": (128, 128)}, {"ping_pong": None}],
        )


def _check_epilogue(width: int, warp_columns: int) -> None:
    possible = _each("epilogue_width", [w for w in EPILOGUE_WIDTHS if warp_columns % w == 0])
    if width not in EPILOGUE_WIDTHS:
        known = ", ".join(map(str, sorted(EPILOGUE_WIDTHS)))
        raise Refusal(f"epilogue width {width} is not one of {known}", "epilogue_width", possible)
    if warp_columns % width:
        message = f"epilogue width {width} does not divide the {warp_columns} accumulator columns of a warp"
        raise Refusal(message, "epilogue_width", possible)


def _check_slices(cluster: tuple[int, int], cta_group: int, budget: Budget) -> None:
    cm, cn = cluster
    for operand, rows, sharers in (("A", budget.a_rows, cn), ("B", budget.b_rows, cm // cta_group)):
        if rows < 8 * sharers:
            a_sharers, b_sharers = budget.a_rows // 8, budget.b_rows // 8
            smaller = _smaller_clusters(min(cm, b_sharers * cta_group), min(cn, a_sharers), itself=True)
            raise Refusal(
                f"cluster {cm}x{cn}: {sharers} CTAs share {rows} rows of {operand} and each needs at least 8",
                "cluster",
                [*smaller[:1], {"multicast": False}, *smaller[1:]],
            )


def _check_stages(stages: int, budget: Budget) -> None:
    kernel, most = budget.kernel, budget.most_stages()
    if kernel.stages is not None and stages != kernel.stages:
        others = [other.name for other in KERNELS.values() if other.stages is None]
        raise Refusal(
            f"stages {stages}: {kernel.name} has no pipeline, its only depth is {kernel.stages}",
            "stages",
            [*_each("kernel", others), {"stages": kernel.stages}],
        )
    if stages < 1 <= most:
        message = f"stages {stages}: the ring needs at least 1; {kernel.name} takes 1 to {most} here"
        raise Refusal(message, "stages", [{"stages": most}])
    if stages > most or most < 1:
        stages = max(stages, 1)
        rows, columns = budget.mma_shape
        narrower = [(rows, columns - step) for step in range(16, columns, 16)]
        raise Refusal(
            f"stages {stages}: A and B {stages * budget.stage_bytes} + C {budget.output_bytes} + barriers "
            f"{budget.barrier_bytes(stages)} = {budget.total(stages)}, more than the {budget.arch.shared_memory} "
            "bytes of shared memory",
            "stages",
            [{"stages": most}] if most > 0 else _each("mma_shape", narrower),
        )


def _each(option: str, values: Iterable[object]) -> list[Change]:
    return [{option: value} for value in values]


def _smaller_clusters(cm: int, cn: int, itself: bool = False) -> list[Change]:
    """Clusters that are no longer along M or N, the largest and then the squarest first."""
    smaller = [
        (m, n) for m in range(1, cm + 1) for n in range(1, cn + 1) if m * n <= 16 and (itself or (m, n) != (cm, cn))
    ]
    smaller.sort(key=lambda pair: (-pair[0] * pair[1], abs(pair[0] - pair[1])))
    return _each("cluster", smaller)
