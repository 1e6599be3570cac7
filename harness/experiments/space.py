"""Finds the candidates of a tuning: a kernel's space without forbidden configurations, ordered by an estimate.

The estimate by which a kernel chooses for a problem (`harness.compile.tilings`) decides which forms (tiles with
cluster, split of K and order of operands) are tried first; the other options are varied around the best of these. Exact
counts describe how two launches differ; they need neither compiler nor GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import ceil
from typing import Any

from emugpu.errors import UsageProblem
from harness.compile import few_rows
from harness.compile.catalog import ARCHITECTURES, ELEMENT_BYTES, Space, Tiling
from harness.compile.config import KernelConfig, find_kernel, try_config
from harness.compile.options import OPTIONS
from harness.compile.tilings import OF_TILING, Estimate, estimate, estimates, offered
from harness.problem import Shape

GEOMETRY_OPTIONS = ("cta_group", "mma_shape", "cluster", "ping_pong", "split_k", "swapped")
"""The options that decide the geometry, and which warps compute which part of a tile."""
DEPENDENT_OPTIONS = {"scheduler": ("clc_depth", "sms", "stages")}
"""Options that the kernel chooses again if another one changes."""
UNKNOWN_SLOWER = 1.1
"""`Tiling.slower` of tiles without measurements."""
SLACK = 1.3
"""Forms whose estimate exceeds the best one by more than this factor come last."""


@dataclass(frozen=True)
class Geometry:
    """The work of one launch, known without running it.

    ``busiest``: multiplications of the SM with most work. ``waves``: tiles that it computes one after the other.
    ``idle``: part of all SMs' time without work on C. ``bytes``: bytes of A and B that clusters request from L2;
    multicast data counts once.
    """

    busiest: int
    waves: int
    idle: float
    bytes: int


def geometry(config: KernelConfig, shape: Shape) -> Geometry:
    """Counts the work of one launch. Tiles across the edge of C count whole."""
    sms = ARCHITECTURES[config.arch].usual.sms
    (cm, cn), group = config.cluster, config.cta_group
    rows, columns = config.mma_shape[0] // group, config.mma_shape[1]  # of C, per CTA
    m, n = (shape.n, shape.m) if config.swapped else (shape.m, shape.n)
    split_k = 1 if config.kernel == few_rows.NAME else config.split_k  # warps of a CTA split it there
    clusters = ceil(m / (rows * cm)) * ceil(n / (columns * cn)) * split_k
    k = ceil(shape.k / split_k)
    waves = _waves(config, clusters)
    copies_a, copies_b = (1, 1) if config.multicast else (cn, cm // group)
    asked = (rows * cm * copies_a + columns * cn * copies_b) * k * ELEMENT_BYTES
    busiest = waves * rows * columns * k
    return Geometry(busiest, waves, 1 - shape.m * shape.n * shape.k / (busiest * sms), clusters * asked)


def _waves(config: KernelConfig, clusters: int) -> int:
    """Returns the number of waves: the largest number of tiles that a CTA computes one after the other."""
    size = config.cluster[0] * config.cluster[1]
    resident = ARCHITECTURES[config.arch].usual.resident_clusters(size)
    launched = config.sms // size
    if config.scheduler == "static" and launched > resident:
        # The static scheduler divides the list among all launched clusters; those that are not resident start when
        # others end.
        return ceil(clusters / launched) * ceil(launched / resident)
    return ceil(clusters / (min(launched, resident) if launched else resident))


@dataclass(frozen=True)
class Candidates:
    """The candidates of a kernel for a problem.

    ``combinations``: their number, including those that the kernel itself chooses from for the problem. ``refused``:
    the refused ones, by the option whose rule they break. ``forms``: most promising first, with the kernel's own choice
    of the other options; each tile comes once, the default's too, before any comes with a second cluster, split of K or
    order of operands. ``only``: values that all must have.
    """

    kernel: str
    arch: str
    dtype: str
    default: KernelConfig
    values: Space
    combinations: int
    refused: Counter[str]
    forms: tuple[KernelConfig, ...]
    only: Space = field(default_factory=dict)

    def variants(self, base: KernelConfig) -> list[KernelConfig]:
        """Returns configurations that differ from base in one option outside the form."""
        found: dict[KernelConfig, None] = {}
        own = base.arguments()
        for name in [name for name in self.values if name not in GEOMETRY_OPTIONS]:
            # Another scheduler has its own settings, and the options that must fit are chosen again.
            following = dict.fromkeys(DEPENDENT_OPTIONS.get(name, ()))
            for value in self.values[name]:
                made = _try({**own, **following, name: value})
                if made is not None and made != base and _is_among(made, self.only):
                    found[made] = None
        return list(found)


def space_of(
    kernel: str, arch: str, dtype: str, shape: Shape, wanted: Mapping[str, Sequence[Any]] | None = None
) -> Candidates:
    """Returns the space of a kernel for a problem. ``wanted`` holds required values of options. Raises `UsageProblem`
    if the kernel has no space, or no configuration with these values.
    """
    only: Space = {name: tuple(values) for name, values in (wanted or {}).items()}
    values = {**find_kernel(kernel).space.get(arch, {}), **only}
    if values.keys() <= only.keys():
        raise UsageProblem(
            f"{kernel} has no space to be tuned in on {arch}; it is declared in harness/compile/catalog.py"
        )
    default = try_config(kernel, arch=arch, dtype=dtype, shape=shape)
    kind = {"kernel": kernel, "arch": arch, "dtype": dtype}
    refused: Counter[str] = Counter()
    chosen_only = [dict(zip(only, chosen, strict=True)) for chosen in product(*only.values())]
    estimated = estimates(find_kernel(kernel), arch, kind, shape)
    asked = [{**one.options, **chosen} for one in estimated for chosen in chosen_only]
    asked += [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    allowed = [one for one in asked if _try({**kind, **one}, refused) is not None]
    tried = [
        _try({**kind, **{name: one[name] for name in one if name in GEOMETRY_OPTIONS or name in only}})
        for one in allowed
    ]
    forms = list(dict.fromkeys(form for form in tried if form not in (None, default)))
    forms = [form for form in forms if _is_among(form, only)]
    if not forms and not _is_among(default, only):
        asked_for = " and ".join(f"{name}={','.join(map(OPTIONS[name].show, only[name]))}" for name in only)
        rules = ", ".join(option for option, _ in refused.most_common())
        rules = f" (rules for {rules} refuse some)" if refused else ""
        raise UsageProblem(f"no configuration of {kernel} on {arch} has {asked_for}{rules}; use other values")
    ordered = tuple(form for form in _ordered([default, *forms], shape) if form != default)
    return Candidates(default.kernel, arch, dtype, default, values, len(asked), refused, ordered, only)


def _is_among(config: KernelConfig, only: Space) -> bool:
    arguments = config.arguments()
    return all(arguments[name] in values for name, values in only.items())


def _ordered(forms: Sequence[KernelConfig], shape: Shape) -> list[KernelConfig]:
    """Orders forms by their estimates, tile by tile in turn. Those with a much worse estimate are last."""
    cycles = {form: _cost(form, shape) for form in forms}
    best = min(cycles.values(), default=0.0)
    turns: Counter[tuple[object, ...]] = Counter()
    keys = {}
    for form in sorted(forms, key=lambda form: cycles[form]):
        tile = (form.cta_group, form.mma_shape, form.ping_pong)
        keys[form] = (cycles[form] > SLACK * best, turns[tile], cycles[form])
        turns[tile] += 1
    return sorted(forms, key=lambda form: keys[form])


def _cost(config: KernelConfig, shape: Shape) -> float:
    """Returns what orders forms: estimated cycles, or rows where these bound the time."""
    if config.kernel == few_rows.NAME:
        return few_rows.rows_of_busiest(config.mma_shape, shape, config.arch)
    return estimate_of(config, shape).cycles


def estimate_of(config: KernelConfig, shape: Shape) -> Estimate:
    """Returns the estimate for a configuration, also if the kernel itself does not offer it."""
    kernel = config.described_kernel
    own = {name: getattr(config, name) for name in OF_TILING}
    known = offered(kernel, config.arch, own) or offered(kernel, config.arch, own | {"cluster": None})
    tiling = Tiling(**own, slower=known[0].slower if known else UNKNOWN_SLOWER)
    asked = {"dtype": config.dtype, "sms": config.sms or None}
    return estimate(tiling, config.split_k, shape, config.arch, asked)


def _try(asked: Mapping[str, Any], refused: Counter[str] | None = None) -> KernelConfig | None:
    try:
        return try_config(**{name: value for name, value in asked.items() if value is not None})
    except UsageProblem as error:
        if refused is not None:
            refused[str(getattr(error, "subject", "kernel")).replace("_", " ")] += 1
        return None


def differences(default: KernelConfig, best: KernelConfig, shape: Shape) -> list[tuple[str, ...]]:
    """Returns the differences between two configurations, in words: first the geometry of their launches, which decided
    the order of the candidates, then the options.
    """
    sides = [geometry(config, shape) for config in (default, best)]
    words = {
        "busiest": "multiplications of the busiest SM",
        "waves": "tiles it computes one after the other",
        "idle": "part of the time in which SMs have no tile",
        "bytes": "bytes of A and B asked of L2",
    }
    old, new = (config.as_dict() for config in (default, best))
    rows = [(word, *(_number(getattr(side, name)) for side in sides)) for name, word in words.items()]
    return rows + [(name.replace("_", " "), str(old[name]), str(new[name])) for name in old if old[name] != new[name]]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{100 * value:.1f} %"
