"""The candidates: what a kernel's space has and its rules allow, ordered by what their geometry says of them.

The estimate by which a kernel chooses for a problem (`harness.compile.tilings`) decides which forms, tiles with
cluster, split of K and order of operands, get a closer look first; the other options are varied around the best of
these. How two launches differ is told by counts that are exact and need neither compiler nor GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from math import ceil
from typing import Any

from emugpu.errors import UsageProblem
from harness.compile.catalog import ARCHITECTURES, ELEMENT_BYTES, Space, Tiling
from harness.compile.config import KernelConfig, find_kernel, try_config
from harness.compile.tilings import OF_TILING, Estimate, estimate, estimates, offered
from harness.problem import Shape

FORM = ("cta_group", "mma_shape", "cluster", "ping_pong", "split_k", "swapped")
"""The options that decide the geometry, and who computes what of a tile."""
FOLLOWING = {"scheduler": ("clc_depth", "sms", "stages")}
"""Options that are left to the kernel again where another one changes."""
UNKNOWN_SLOWER = 1.1
"""`Tiling.slower` of tiles that nobody has measured."""
SLACK = 1.3
"""How much worse a form may look than the best one, to be among those that are tried."""


@dataclass(frozen=True)
class Geometry:
    """What one launch does, known without running it. busiest: multiplications of the SM that has most to do. waves:
    tiles it computes one after the other. idle: part of all SMs' time in which there is nothing of C for them.
    bytes: of A and B that clusters ask L2 for, what is multicast once."""

    busiest: int
    waves: int
    idle: float
    bytes: int


def geometry(config: KernelConfig, shape: Shape) -> Geometry:
    """Counts what one launch does. Tiles that lie over the edge of C count whole."""
    sms = ARCHITECTURES[config.arch].usual.sms
    (cm, cn), group = config.cluster, config.cta_group
    rows, columns = config.mma_shape[0] // group, config.mma_shape[1]  # of C, in a CTA
    m, n = (shape.n, shape.m) if config.swapped else (shape.m, shape.n)
    clusters = ceil(m / (rows * cm)) * ceil(n / (columns * cn)) * config.split_k
    k = ceil(shape.k / config.split_k)
    waves = _waves(config, clusters)
    copies_a, copies_b = (1, 1) if config.multicast else (cn, cm // group)
    asked = (rows * cm * copies_a + columns * cn * copies_b) * k * ELEMENT_BYTES
    busiest = waves * rows * columns * k
    return Geometry(busiest, waves, 1 - shape.m * shape.n * shape.k / (busiest * sms), clusters * asked)


def _waves(config: KernelConfig, clusters: int) -> int:
    """Waves of tiles: how many a CTA computes one after the other, where that is most."""
    size = config.cluster[0] * config.cluster[1]
    resident = ARCHITECTURES[config.arch].usual.resident_clusters(size)
    launched = config.sms // size
    if config.scheduler == "static" and launched > resident:
        # The list is dealt out to all of them; those that have no place begin when others are through with theirs.
        return ceil(clusters / launched) * ceil(launched / resident)
    return ceil(clusters / (min(launched, resident) if launched else resident))


@dataclass(frozen=True)
class Choices:
    """What there is to choose from. combinations: of all values, and what the kernel chooses from for the problem;
    refused: of these, by the option whose rule they break; forms: with the kernel's own choice of the rest, the most
    promising first, each tile once before any comes with a second cluster or split. only: values that all must have.
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
        """Returns configurations that differ from base in one option that is no part of the form."""
        found: dict[KernelConfig, None] = {}
        own = {field.name: getattr(base, field.name) for field in fields(KernelConfig)}
        for name in [name for name in self.values if name not in FORM]:
            # Who else hands out the tiles has settings of their own, and what fits is found anew.
            following = dict.fromkeys(FOLLOWING.get(name, ()))
            for value in self.values[name]:
                made = _try({**own, **following, name: value})
                if made is not None and made != base and _is_among(made, self.only):
                    found[made] = None
        return list(found)


def space_of(
    kernel: str, arch: str, dtype: str, shape: Shape, wanted: Mapping[str, Sequence[Any]] | None = None
) -> Choices:
    """Returns the space of a kernel for a problem. wanted: values of options that the candidates must have. Raises
    `UsageProblem` where it has none.
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
    tried = [_try({**kind, **{name: one[name] for name in one if name in FORM or name in only}}) for one in allowed]
    forms = list(dict.fromkeys(form for form in tried if form not in (None, default)))
    forms = [form for form in forms if _is_among(form, only)]
    return Choices(kernel, arch, dtype, default, values, len(asked), refused, tuple(_ordered(forms, shape)), only)


def _is_among(config: KernelConfig, only: Space) -> bool:
    return all(getattr(config, name) in values for name, values in only.items())


def _ordered(forms: Sequence[KernelConfig], shape: Shape) -> list[KernelConfig]:
    """Orders forms by their estimates, tile by tile in turn; those that look much worse are last."""
    cycles = {form: estimate_of(form, shape).cycles for form in forms}
    best = min(cycles.values(), default=0.0)
    turns: Counter[tuple[object, ...]] = Counter()
    keys = {}
    for form in sorted(forms, key=lambda form: cycles[form]):
        tile = (form.cta_group, form.mma_shape, form.ping_pong, form.swapped)
        keys[form] = (cycles[form] > SLACK * best, turns[tile], cycles[form])
        turns[tile] += 1
    return sorted(forms, key=lambda form: keys[form])


def estimate_of(config: KernelConfig, shape: Shape) -> Estimate:
    """As the kernel would choose it, if it were offered."""
    kernel = find_kernel(config.kernel)
    alike = {name: getattr(config, name) for name in OF_TILING if name != "cluster"}
    known = offered(kernel, config.arch, alike)
    tiling = Tiling(**alike, cluster=config.cluster, slower=known[0].slower if known else UNKNOWN_SLOWER)
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
    """Returns what differs between two configurations, in words: first the geometry of their launches, which the order
    of the candidates followed, then the options."""
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
