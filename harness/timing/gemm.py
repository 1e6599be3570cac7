"""A launch plan for the timing model: how its clusters are spread over a GPU, and in which order its tiles come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import log2

from harness.compiler.plan import CounterArgument, Plan, TensorMapArgument
from harness.config.catalog import ELEMENT_BYTES
from harness.emulator.machine.grid import SM_CTAS, SM_REGISTERS, SM_SHARED, SM_THREADS
from harness.emulator.memory.address_space import RESERVED_SHARED
from harness.timing.cache import Place, Tiles
from harness.timing.constants import Gpu

TMEM_COLUMNS = 512
REGISTER_STEP = 8
"""Registers of a thread are given out in such steps (CUDA occupancy calculator)."""
DETAIL = 1500
"""CTA K-steps that are simulated one by one, at most if one cluster of each round needs no more."""

IN_STEP = 2
"""Tiles that a cluster computes one after the other before it is out of step with its neighbours."""

FEW, MANY = 8, 32
"""Clusters that ask for the same rows at the same time: of the first number each is answered by itself, of the second
every two are together (H200: micro-benchmark of shared loads, and L2 counters of kernels)."""

RAGGED = 8
"""How many times as many where tiles differ, as some lie partly outside of C."""


@dataclass(frozen=True)
class Spread:
    """Clusters on a GPU. ``resident``: at once; ``slots``: of these are simulated; ``numbers``: which clusters."""

    resident: int
    slots: int
    numbers: tuple[int, ...]
    ctas_per_sm: int

    @property
    def share(self) -> float:
        """The part of the GPU that is simulated."""
        return self.slots / self.resident


class Gemm:
    """A plan's problem on one GPU."""

    def __init__(self, plan: Plan, gpu: Gpu, registers: int | None = None) -> None:
        """registers: of a thread, as NVIDIA's assembler says; None: nobody knows."""
        self.plan = plan
        self.gpu = gpu
        self.registers = registers

    @property
    def cluster_size(self) -> int:
        x, y, z = self.plan.cluster
        return x * y * z

    @property
    def clusters(self) -> int:
        """Launched, or given away by cluster launch control."""
        x, y, z = self.plan.grid
        return x * y * z // self.cluster_size

    @property
    def ctas_per_sm(self) -> int:
        shared = self.plan.dynamic_smem + RESERVED_SHARED
        threads = self.plan.block[0] * self.plan.block[1] * self.plan.block[2]
        registers = -(-(self.registers or 0) // REGISTER_STEP) * REGISTER_STEP * threads
        by_registers = SM_REGISTERS // registers if registers else SM_CTAS
        by_columns = TMEM_COLUMNS // self.plan.tmem_columns if self.plan.tmem_columns else SM_CTAS
        return max(1, min(SM_SHARED // shared, SM_THREADS // threads, SM_CTAS, by_registers, by_columns))

    @property
    def flops(self) -> int:
        p = self.plan.problem
        return 2 * p.m * p.n * p.k

    @property
    def k_steps(self) -> int:
        return -(-self.plan.problem.k // self.plan.config["block_k"])

    @cached_property
    def extent(self) -> tuple[int, int]:
        """Cluster tiles along M and along N."""
        rows, columns = self.tile
        return -(-self.plan.problem.m // rows), -(-self.plan.problem.n // columns)

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of C that a cluster computes at once."""
        rows, columns = self.plan.tile
        along_m, along_n = self.plan.config["cluster"]
        return rows * along_m, columns * along_n

    @property
    def even(self) -> bool:
        """Whether all tiles have the same work to do."""
        rows, columns = self.tile
        return self.plan.problem.m % rows == 0 and self.plan.problem.n % columns == 0

    @property
    def whole(self) -> bool:
        """Whether no box that is loaded lies partly outside of A or B."""
        return self.even and self.plan.problem.k % self.plan.config["block_k"] == 0

    @property
    def tiles(self) -> int:
        """Of clusters. Where each computes the tile at its place in the grid, some may lie outside of C."""
        down, across = self.extent
        return down * across if self.walks else self.clusters

    @property
    def walks(self) -> bool:
        return self.plan.tiles is not None

    @property
    def stays(self) -> bool:
        """Whether clusters walk on by themselves: there are no more of them than run at once."""
        return self.plan.config["scheduler"] in ("static", "dynamic")

    @property
    def beside(self) -> bool:
        """Whether all CTAs of two launches find room together."""
        return 2 * self.clusters <= self.gpu.resident_clusters(self.cluster_size, 1)

    def spread(self, detail: int = DETAIL) -> Spread:
        """Clusters with the same few numbers modulo the resident ones: they take part in every round of clusters."""
        per_sm = self.ctas_per_sm
        resident = self.gpu.resident_clusters(self.cluster_size, per_sm)
        at_once = min(resident, self.clusters)
        rounds = -(-self.tiles // at_once)
        steps = rounds * self.k_steps * self.cluster_size
        slots = max(1, min(at_once, (detail if self.even else RAGGED * detail) // steps))
        slots = max(1, slots // per_sm) * per_sm if slots >= per_sm else slots
        chosen = {n * at_once // slots for n in range(slots)}
        numbers = tuple(n for n in range(self.clusters) if n % resident in chosen)
        return Spread(at_once, slots, numbers, per_sm)

    def simulated_sms(self, spread: Spread) -> int:
        """SMs that the simulated clusters share, as densely as all resident ones share the GPU's."""
        ctas = spread.resident * self.cluster_size
        return max(1, round(spread.slots * self.cluster_size * min(1.0, self.gpu.sms / ctas)))

    def counter_start(self, counter: CounterArgument, spread: Spread) -> int:
        """Where the counter of a dynamic schedule stands, so that the simulated clusters get only their share."""
        share = round(self.tiles * spread.share)
        return max(0, (self.tiles - self.clusters) - max(0, share - len(spread.numbers)))

    def simulated_tiles(self, spread: Spread) -> int:
        """How many tiles the simulated clusters compute."""
        match self.plan.config["scheduler"]:
            case "static":
                return sum(-(-(self.tiles - number) // self.clusters) for number in spread.numbers)
            case "dynamic":
                share = round(self.tiles * spread.share)
                return len(spread.numbers) + min(self.tiles - self.clusters, max(0, share - len(spread.numbers)))
            case _:
                return len(spread.numbers)

    def order(self) -> list[Place]:
        """The cluster tiles in the order in which they start."""
        down, _ = self.extent
        return [place for place in map(self.place, range(self.tiles)) if place[0] < down]

    def place(self, number: int) -> Place:
        """Where a tile lies; below C there are some where clusters compute the tile at their place in the grid."""
        down, across = self.extent
        if self.walks:
            return _place(self.plan.config["raster_group"], number, down, across)
        x = self.plan.grid[0] // self.plan.cluster[0]
        y = self.plan.grid[1] // self.plan.cluster[1]
        return number // (x * y) * x + number % x, number // x % y

    def part(self, spread: Spread, of: Callable[[int], float]) -> float:
        """Of what tiles have, as ``of`` says by their number, the part that the simulated clusters get."""
        everything = sum(map(of, range(self.tiles)))
        if self.plan.config["scheduler"] in ("dynamic", "clc") or not everything:
            return self.simulated_tiles(spread) / self.tiles
        step = self.clusters if self.stays else self.tiles
        simulated = (number for first in spread.numbers for number in range(first, self.tiles, step))
        return sum(map(of, simulated)) / everything or spread.share

    def rows_filled(self, number: int) -> float:
        """Rows of boxes of A and B that lie outside although the box does not: filled with zeros for the tile's
        clusters. A box that would lie wholly outside begins elsewhere (kernels/common/loader.mojo)."""
        places, problem = self.place(number), self.plan.problem
        extents = zip(places, self.tile, (problem.m, problem.n), "AB", strict=True)
        return sum(_filled(place * size, size, extent, self._box_rows(name)) for place, size, extent, name in extents)

    def parts_multiplied(self, number: int) -> float:
        """Of a tile: on Hopper those of a warpgroup of which a row lies in C; elsewhere it is multiplied as a whole."""
        if self.plan.tmem_columns:
            return 1.0
        (row, column), (rows, columns), problem = self.place(number), self.tile, self.plan.problem
        down = max(0, min(rows, problem.m - row * rows))
        across = max(0, min(columns, problem.n - column * columns))
        return -(-down // self._box_rows("C")) * -(-across // self.plan.tile[1])

    def _box_rows(self, tensor: str) -> int:
        return next(a.box[1] for a in self.plan.arguments if isinstance(a, TensorMapArgument) and a.tensor == tensor)

    @property
    def merged(self) -> float:
        """Bytes that L2 gives out for each byte that is asked for. Two CTAs on a pair of SMs, which share a way to L2,
        are answered once where both ask for the same rows; and many clusters that ask for the same rows at the same
        time are answered less often. What is multicast is never answered for two.
        """
        config = self.plan.config
        rows, columns = self.plan.tile
        along_m, along_n = config["cluster"]
        multicast = config["multicast"]
        if config["cta_group"] == 2:
            return 1.0
        # Neighbours lie along M, but single CTAs in a group of several columns along N.
        across = along_m == 1 if self.cluster_size > 1 else self.walks and config["raster_group"] > 1
        down, wide = self._sharing
        asked = answered = 0.0
        for extent, along, pair, sharing in ((rows, along_n, across, wide), (columns, along_m, not across, down)):
            cast = multicast and along > 1
            share = extent / along if cast else extent
            asked += share
            answered += share if cast else share * (0.5 if pair else 1.0) * _crowd(sharing)
        return answered / asked

    @property
    def _sharing(self) -> tuple[float, float]:
        """Clusters at once that ask for the same columns of B, and for the same rows of A, on average. Those that stay
        for more than a few tiles lose step."""
        at_once = min(self.gpu.resident_clusters(self.cluster_size, self.ctas_per_sm), self.clusters)
        if self.stays and self.tiles > IN_STEP * at_once:
            return 1.0, 1.0
        places = [self.place(number) for number in range(at_once)]
        return at_once / len({column for _, column in places}), at_once / len({row for row, _ in places})

    @property
    def fetching(self) -> float:
        """Of the loads for bytes that come from DRAM, those that make L2 fetch them: with a promotion of two rows of a
        box, what the next K step needs comes along; unless for every other row it lies before."""
        maps = [a for a in self.plan.arguments if isinstance(a, TensorMapArgument) and a.tensor == "A"]
        whole = [a for a in maps if self.plan.problem.k * ELEMENT_BYTES % a.l2_promotion == 0]
        rows = [a.l2_promotion / (a.box[0] * ELEMENT_BYTES) for a in whole]
        return 1 / max(1.0, *rows) if rows else 1.0

    def traffic(self) -> Tiles:
        """For the model of L2."""
        config, problem = self.plan.config, self.plan.problem
        rows, columns = self.tile
        along_m, along_n = config["cluster"]
        asked = rows + columns
        if not config["multicast"]:
            asked = rows * along_n + columns * along_m // config["cta_group"]
        requested = asked * problem.k * ELEMENT_BYTES
        return Tiles(self.order(), rows, columns, problem.m, problem.n, problem.k, ELEMENT_BYTES, requested)


def _filled(first: int, size: int, extent: int, box: int) -> int:
    """Of rows from ``first`` on, in boxes of so many, those filled with zeros."""
    if extent < box:
        return size // box * (box - extent)
    return -extent % box if first < extent < first + size else 0


def _crowd(sharing: float) -> float:
    """Answers for each of so many clusters that ask for the same at the same time."""
    doublings = log2(max(1.0, sharing / FEW)) / log2(MANY / FEW)
    return 1 - 0.5 * min(1.0, doublings)


def _place(group: int, number: int, rows: int, columns: int) -> Place:
    """Where tile `number` lies, as `kernels/common/raster.mojo` has it."""
    turn = number // (group * rows)
    inside = number - turn * group * rows
    first = turn * group
    width = min(group, columns - first)
    row = inside // width
    return (row if turn % 2 == 0 else rows - 1 - row), first + inside - row * width
