"""Lists the kernels, the GPU architectures they are written for, and the values offered for each option.

The kernels decide whether a configuration is legal, and what its defaults are (`harness.compile.planner`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from typing import Any

from emugpu.gpus import GpuFacts, usual_gpu
from harness.block_scaling import FORMATS

ELEMENT_BYTES = 2
EPILOGUE_WIDTHS = (64, 32, 16)
RASTER_GROUPS = (1, 4, 8, 16)  # columns of cluster tiles that are walked along M together
CLC_DEPTHS = (3, 2, 1)  # CLC response slots
SCALES = ("tensor", "block", "none")
SCHEDULERS = ("clc", "static", "dynamic", "none")
STAYING = ("static", "dynamic")  # schedulers that launch no more clusters than run at the same time
LARGEST_CLUSTER = 16
USUAL_SHAPE = "1024"
LAYOUTS = ("nt", "nn", "tn", "tt")


@dataclass(frozen=True)
class Tiling:
    """Describes a tile of a CTA, with the cluster that suits it.

    ``slower`` is a factor of the seconds for the same multiplications: the smaller the tile, the more often its
    operands are read. With ``ping_pong`` the warpgroups take tiles in turn. With ``swapped`` rows of B lie along the
    rows of the tile. ``splits`` lists the numbers of parts into which K may be split. The tile is offered for
    ``least_m`` to ``most_m`` rows of A; None is no limit. ``cta_group`` is the number of CTAs that work on one MMA.
    """

    mma_shape: tuple[int, int]
    cluster: tuple[int, int]
    slower: float
    ping_pong: bool = False
    swapped: bool = False
    splits: tuple[int, ...] = (1,)
    most_m: int | None = None
    least_m: int = 1
    cta_group: int = 1


@dataclass(frozen=True)
class Architecture:
    """Describes a GPU architecture.

    ``shared_memory`` is the most bytes that a CTA can have (CUDA C++ Programming Guide, compute capabilities).
    """

    name: str
    gpus: str
    shared_memory: int

    @property
    def usual(self) -> GpuFacts:
        """Returns the GPU that a command uses if the user names none."""
        return usual_gpu(self.name)


SM_100A = Architecture(
    name="sm_100a",
    gpus="Blackwell data-centre GPUs, compute capability 10.0 (B200)",
    shared_memory=227 * 1024,
)
SM_90A = Architecture(
    name="sm_90a",
    gpus="Hopper GPUs, compute capability 9.0 (H100, H200)",
    shared_memory=227 * 1024,
)
ARCHITECTURES = {arch.name: arch for arch in (SM_100A, SM_90A)}


Space = Mapping[str, tuple[Any, ...]]
"""Values by the names of `harness.compile.config.make_config`."""


@dataclass(frozen=True)
class Kernel:
    """Describes one kernel of the series.

    ``archs`` and ``dtypes`` list its architectures and the types of A and B, the default first. If it
    ``is_persistent``, its CTAs compute tiles in an order of their own; otherwise each computes the tile at its place in
    the grid. ``tilings`` lists, by architecture (for scale factors of blocks: "sm_90a block"), the tilings among which
    it chooses for a problem, its default first; it is empty if the kernel has one for every problem. ``space`` has, by
    architecture, the values of each option that tuning tries. ``of_series`` is False for a kernel that the word ``all``
    does not include. ``usual_shape`` is the problem of a command that names none, in the form of
    `harness.problem.parse_shape`. ``file`` is the source of the user's own kernel.
    """

    name: str
    summary: str
    archs: tuple[str, ...]
    dtypes: tuple[str, ...] = ("bf16", "fp16")
    is_persistent: bool = False
    tilings: Mapping[str, tuple[Tiling, ...]] = field(default_factory=dict, hash=False)
    space: Mapping[str, Space] = field(default_factory=dict, hash=False)
    of_series: bool = True
    usual_shape: str = USUAL_SHAPE
    file: str | None = None

    @property
    def word(self) -> str:
        """Returns the word for it on a command line: its file, or the name."""
        return self.file or self.name


DEPTHS = (None, 2, 3, 4, 5, 6)
"""The depths that tuning tries. None is the largest that fits."""
_TILE_BLACKWELL: Space = {
    "cta_group": (1, 2),
    "mma_shape": ((128, 128), (128, 256), (256, 128), (256, 192), (256, 256)),
    "cluster": ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (2, 4), (4, 2), (4, 4)),
    "epilogue_width": EPILOGUE_WIDTHS,
}
_TILE_HOPPER: Space = {
    "mma_shape": ((128, 128), (128, 160), (128, 192), (128, 256), (256, 96), (256, 128)),
    "cluster": ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1)),
    "epilogue_width": EPILOGUE_WIDTHS,
}
SPACE_5: dict[str, Space] = {"sm_100a": _TILE_BLACKWELL, "sm_90a": _TILE_HOPPER}
SPACE_6: dict[str, Space] = {arch: {**tile, "stages": DEPTHS} for arch, tile in SPACE_5.items()}
SPACE_8: dict[str, Space] = {
    "sm_100a": {
        **SPACE_6["sm_100a"],
        "scheduler": ("clc", "static"),
        "raster_group": RASTER_GROUPS,
        "accumulators": (1, 2),
    },
    "sm_90a": {
        **SPACE_6["sm_90a"],
        "scheduler": ("static", "dynamic"),
        "raster_group": RASTER_GROUPS,
        "ping_pong": (False, True),
    },
}

SPACE_9: dict[str, Space] = {
    "sm_100a": {
        **SPACE_8["sm_100a"],
        "mma_shape": ((128, 128), (128, 256), (256, 128), (256, 256)),
    },
}
SPACE_ROWS: dict[str, Space] = {
    arch: {
        "mma_shape": tuple((rows, columns) for rows in (8, 16) for columns in (8, 16, 24, 32, 40, 48, 64)),
        "split_k": (4, 8, 16),
        "stages": (1, 2, 3, 4),
    }
    for arch in ("sm_90a", "sm_100a")
}
"""Rows of A and of B of a CTA, its warps, and the loads before a multiplication (kernels/common/few_rows.mojo)."""


def _hopper(rows: int, columns: int, cluster: tuple[int, int], **more: Any) -> Tiling:
    """Returns a tiling whose factor follows from how often operands are read, from shared memory and, less those that a
    cluster shares, from L2: fitted to 24 problems, each kernel alone on an H200, where the power limit makes joules of
    them (`harness.compile.tilings.WAVES`).
    """
    read, shared = 1 / rows + 1 / columns, 1 / (rows * cluster[1]) + 1 / (columns * cluster[0])
    alone = 0.044 if cluster == (1, 1) else 0
    return Tiling((rows, columns), cluster, exp(18.1 * read - 7.64 * shared + alone - 0.1375), **more)


SPLITS = (1, 2, 3, 4, 6, 8)
WIDTHS = (256, 240, 224, 208, 192, 176, 160, 144, 128)
WIDEST_SPLIT = 176
"""Columns of the widest swapped tile whose parts were measured (results/nvidia-h200-split-k.json)."""
HOPPER_TILINGS = (
    Tiling((256, 128), (1, 2), 1.006),  # on average of 16 problems slower than 128x256, which reads as much
    _hopper(128, 128, (2, 1), ping_pong=True),
    *(_hopper(128, width, cluster) for width in WIDTHS for cluster in ((2, 1), (1, 2))),
    _hopper(256, 96, (1, 2)),
    *(
        _hopper(128, width, cluster, swapped=True, splits=(1, 2, 3) if width <= WIDEST_SPLIT else (1,), least_m=129)
        for width in WIDTHS
        for cluster in ((2, 1), (1, 2))
    ),
    # Of few rows of A: those of 24 that were fastest somewhere (results/nvidia-h200-small-m.json).
    Tiling((64, 16), (1, 1), 1.1, swapped=True, splits=SPLITS, most_m=16),
    Tiling((128, 16), (1, 1), 1.1, swapped=True, splits=SPLITS, most_m=16),
    Tiling((128, 32), (1, 1), 1.1, swapped=True, splits=SPLITS, most_m=32),
    Tiling((128, 48), (1, 1), 1.1, swapped=True, splits=SPLITS, most_m=48),
    Tiling((128, 32), (1, 2), 1.1, swapped=True, splits=SPLITS, most_m=64),
    Tiling((64, 64), (1, 1), 1.1, splits=SPLITS, most_m=64),
    Tiling((64, 128), (1, 1), 1.1, splits=SPLITS, most_m=64),
    Tiling((64, 64), (2, 1), 1.1, splits=SPLITS, most_m=128),
    Tiling((128, 64), (1, 1), 1.1, splits=SPLITS, most_m=128),
    Tiling((128, 64), (1, 2), 1.1, splits=SPLITS, most_m=128),
    Tiling((128, 128), (1, 1), 1.1, splits=SPLITS, most_m=128),
)

# As measured in turns (results/nvidia-h200-fp8.json).
HOPPER_BLOCK_TILINGS = (
    Tiling((256, 128), (1, 2), 1.0),
    Tiling((128, 256), (2, 1), 1.03),
    Tiling((128, 128), (2, 1), 1.07),
    Tiling((128, 128), (2, 1), 1.3, ping_pong=True),  # as predicted
)

# Nobody has measured them. Of few rows of A: the smallest that hold them, as on Hopper.
BLACKWELL_TILINGS = (
    Tiling((256, 256), (4, 4), 1.0, cta_group=2),
    Tiling((64, 128), (1, 1), 1.1, splits=SPLITS, most_m=64),
    Tiling((128, 128), (1, 1), 1.1, splits=SPLITS, most_m=128),
    *(Tiling((128, rows), (1, 1), 1.1, swapped=True, splits=SPLITS, most_m=rows) for rows in (16, 32, 48, 96)),
)

KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel(
            name="kernel5",
            summary="TMA multicast and MMA by a pair of CTAs; one stage, no overlap",
            archs=("sm_100a", "sm_90a"),
            space=SPACE_5,
        ),
        Kernel(
            name="kernel6",
            summary="+ a multi-stage pipeline between specialised warps: producer, MMA, epilogue",
            archs=("sm_100a", "sm_90a"),
            space=SPACE_6,
        ),
        Kernel(
            name="kernel7",
            summary="+ a double-buffered epilogue store, which makes room for a sixth stage",
            archs=("sm_100a", "sm_90a"),
            space=SPACE_6,
        ),
        Kernel(
            name="kernel8",
            summary="+ persistent CTAs: one tile is written while the next is multiplied",
            archs=("sm_100a", "sm_90a"),
            dtypes=("bf16", "fp16", "e4m3"),
            is_persistent=True,
            tilings={
                "sm_90a": HOPPER_TILINGS,
                "sm_90a block": HOPPER_BLOCK_TILINGS,
                "sm_100a": BLACKWELL_TILINGS,
            },
            space=SPACE_8,
        ),
        Kernel(
            name="kernel9",
            summary="+ block scaling: A and B of 4 or 8 bits, with a scale factor for each block",
            archs=("sm_100a",),
            dtypes=tuple(FORMATS),
            is_persistent=True,
            space=SPACE_9,
        ),
        Kernel(
            name="rows",
            summary="for 1 to 16 rows of A: warps read B from global memory to registers, without TMA",
            archs=("sm_90a", "sm_100a"),
            dtypes=("bf16", "fp16", "e4m3"),
            space=SPACE_ROWS,
            of_series=False,
            usual_shape="8,1024,1024",
        ),
    )
}


def kernels_of(dtype: str | None) -> list[str]:
    """Returns the steps of the series that multiply a type, or bf16 if none is given. A command line names them
    ``all``.
    """
    return [name for name, kernel in KERNELS.items() if kernel.of_series and (dtype or "bf16") in kernel.dtypes]
