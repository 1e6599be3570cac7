"""A launch plan for the timing model: the distribution of its clusters over a GPU, and the order of its tiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from emugpu.emulator.machine.grid import DATA_CENTRE
from emugpu.emulator.machine.register_pool import SM_REGISTERS
from emugpu.emulator.memory.address_space import RESERVED_SHARED
from harness.compile.planner import Plan, TensorMapArgument, WorkspaceArgument
from harness.model.cache import Panel, Place, Tiles
from harness.model.constants import GOLDEN, GpuConstants
from harness.model.sharing import SharedOperand, coalesced
from harness.model.units import K_BYTES, WGMMA_ROWS
from harness.problem import operand_bits

TMEM_COLUMNS = 512
SM_BARRIERS = 64
"""Named barriers (`bar.sync` and the like) of all CTAs of an SM together. On an H200, 32, 16, 12, 8, 7, 5, 4 and 4 CTAs
fit that use 2, 4, 5, 8, 9, 12, 13 and 16 each, according to its driver.
"""
REGISTER_STEP = 8
"""Allocation granularity of a thread's registers (CUDA occupancy calculator)."""
DETAIL = 1500
"""Most CTA K-steps that are simulated one by one, unless one cluster of each wave needs more."""

RAGGED = 8
"""The factor for this limit if tiles differ because some lie partly outside C."""


@dataclass(frozen=True)
class Spread:
    """The clusters on a GPU: ``resident`` at once, of which ``slots`` are simulated, with these ``numbers``."""

    resident: int
    slots: int
    numbers: tuple[int, ...]
    ctas_per_sm: int

    @property
    def share(self) -> float:
        """Returns the simulated part of the GPU."""
        return self.slots / self.resident


class Gemm:
    """A plan's problem on one GPU."""

    def __init__(
        self, plan: Plan, gpu: GpuConstants, registers: int | None = None, barriers: int | None = None
    ) -> None:
        """Prepares a plan. ``registers`` (per thread) and ``barriers`` (named ones per CTA) come from NVIDIA's
        assembler, or are None if unknown.
        """
        self.plan = plan.of_product()
        self.gpu = gpu
        self.registers = registers
        self.barriers = barriers

    @property
    def cluster_size(self) -> int:
        x, y, z = self.plan.cluster
        return x * y * z

    @property
    def clusters(self) -> int:
        """Returns the clusters that are launched, or cancelled by cluster launch control."""
        x, y, z = self.plan.grid
        return x * y * z // self.cluster_size

    @property
    def ctas_per_sm(self) -> int:
        shared = self.plan.dynamic_smem + RESERVED_SHARED
        threads = self.plan.block[0] * self.plan.block[1] * self.plan.block[2]
        registers = -(-(self.registers or 0) // REGISTER_STEP) * REGISTER_STEP * threads
        sm = DATA_CENTRE
        by_registers = SM_REGISTERS // registers if registers else sm.ctas
        by_barriers = SM_BARRIERS // self.barriers if self.barriers else sm.ctas
        by_columns = TMEM_COLUMNS // self.plan.tmem_columns if self.plan.tmem_columns else sm.ctas
        return max(1, min(sm.shared // shared, sm.threads // threads, sm.ctas, by_registers, by_barriers, by_columns))

    @property
    def flops(self) -> int:
        p = self.plan.problem
        return 2 * p.m * p.n * p.k

    @property
    def k_steps(self) -> int:
        """Returns the most K steps of a tile."""
        return -(-self.plan.problem.k // self.plan.config["block_k"] // self.plan.split_k)

    @cached_property
    def extent(self) -> tuple[int, int]:
        """Returns the number of cluster tiles along M and along N."""
        rows, columns = self.tile
        return -(-self.plan.product[0] // rows), -(-self.plan.product[1] // columns)

    @property
    def tile(self) -> tuple[int, int]:
        """Returns the rows and columns of C that a cluster computes at once."""
        rows, columns = self.plan.tile
        along_m, along_n = self.plan.config["cluster"]
        return rows * along_m, columns * along_n

    @property
    def even(self) -> bool:
        """Returns whether all tiles need the same work."""
        rows, columns = self.tile
        return self.plan.product[0] % rows == 0 and self.plan.product[1] % columns == 0

    @property
    def whole(self) -> bool:
        """Returns whether no loaded box lies partly outside A or B."""
        return self.even and self.plan.problem.k % self.plan.config["block_k"] == 0

    @property
    def tiles(self) -> int:
        """Returns the number of clusters' tiles, or with split-K of parts of tiles."""
        down, across = self.extent
        return down * across * self.plan.split_k

    @cached_property
    def numbers(self) -> list[int]:
        """Returns the numbers of the tiles in the order in which they start.

        A cluster's first tile has the cluster's number. If each cluster computes the tile at its place in the grid, the
        numbers left out lie below C and end at once.
        """
        if self.walks:
            return list(range(self.tiles))
        down, _ = self.extent
        return [number for number in range(self.clusters) if self.place(number)[0] < down]

    @property
    def walks(self) -> bool:
        return self.plan.tiles is not None

    @property
    def persistent(self) -> bool:
        """Returns whether clusters compute several tiles, by any scheduler."""
        return self.plan.config["scheduler"] in ("static", "dynamic", "clc")

    @property
    def two_fit(self) -> bool:
        """Returns whether all CTAs of two launches fit together."""
        return 2 * self.clusters <= self.gpu.resident_clusters(self.cluster_size, 1)

    def spread(self, detail: int = DETAIL) -> Spread:
        """Returns the clusters with a few fixed numbers modulo the resident ones, which take part in every wave."""
        per_sm = self.ctas_per_sm
        resident = self.gpu.resident_clusters(self.cluster_size, per_sm)
        first_tiles = self.numbers[: self.clusters]
        at_once = min(resident, len(first_tiles))
        waves = -(-self.tiles // at_once)
        steps = waves * self.k_steps * self.cluster_size
        slots = max(1, min(at_once, (detail if self.even else RAGGED * detail) // steps))
        # CTAs on one SM belong to different clusters, which do not advance together.
        slots = min(at_once, max(1, slots // per_sm) * per_sm)
        # The parts of a tile are consecutive, and all are simulated, because one of them adds up the others.
        split = self.plan.split_k
        groups = max(1, at_once // split)
        firsts = _spread_out(min(groups, max(1, slots // split)), groups, self.tiles % at_once // split)
        chosen = {split * first + part for first in firsts for part in range(split)} & set(range(at_once))
        slots = len(chosen)
        numbers = tuple(number for n, number in enumerate(first_tiles) if n % resident in chosen)
        return Spread(at_once, slots, numbers, per_sm)

    def simulated_sms(self, spread: Spread) -> int:
        """Returns the number of SMs for the simulated clusters, with the same density as all resident clusters on the
        GPU.
        """
        ctas = spread.resident * self.cluster_size
        return max(1, round(spread.slots * self.cluster_size * min(1.0, self.gpu.sms / ctas)))

    def simulated_gpcs(self, spread: Spread) -> int:
        """Returns the number of GPCs that hold as many clusters as those of the GPU."""
        return max(1, round(len(self.gpu.gpcs) * spread.share))

    def first_counts(self, spread: Spread) -> dict[int, int]:
        """Returns the start values of counters in the workspace, by their places.

        The counter of a dynamic schedule starts so that the simulated clusters get only their share; the counters of
        split-K start as if the other parts of their tiles had arrived.
        """
        found = {}
        if self.plan.config["scheduler"] == "dynamic":
            found[0] = self.tiles - self.clusters - self._taken(spread)
        if self.plan.split_k > 1:
            [workspace] = [a for a in self.plan.arguments if isinstance(a, WorkspaceArgument)]
            teams = (workspace.counters - 1) * self.plan.split_k // self.tiles
            simulated = Counter(number // self.plan.split_k for number in self.simulated_tiles(spread))
            for tile, parts in simulated.items():
                found |= dict.fromkeys(range(1 + tile * teams, 1 + (tile + 1) * teams), self.plan.split_k - parts)
        return found

    def simulated_tiles(self, spread: Spread) -> frozenset[int]:
        """Returns the numbers of the tiles that the simulated clusters compute."""
        match self.plan.config["scheduler"]:
            case "static":
                return frozenset(n for first in spread.numbers for n in range(first, self.tiles, self.clusters))
            case "dynamic":
                return frozenset([*spread.numbers, *range(self.tiles - self._taken(spread), self.tiles)])
            case _:
                return frozenset(spread.numbers)

    def _taken(self, spread: Spread) -> int:
        """Returns the number of tiles that the simulated clusters take from the counter of a dynamic schedule, which
        are the last ones. A part of a tile counts as one, so that few clusters have as many waves as all.
        """
        share = -(-self.tiles * spread.slots // spread.resident)
        return min(self.tiles - self.clusters, max(0, share - len(spread.numbers)))

    def order(self) -> list[Place]:
        """Returns the cluster tiles in the order in which they start."""
        return list(map(self.place, self.numbers))

    def waves(self, resident: int) -> dict[int, int]:
        """Returns the wave of each tile, by its number."""
        return {number: n // resident for n, number in enumerate(self.numbers)}

    def place(self, number: int) -> Place:
        """Returns the place of a tile, or a place below C for a cluster without one."""
        down, across = self.extent
        if self.walks:
            return _place(self.plan.config["raster_group"], number // self.plan.split_k, down, across)
        x = self.plan.grid[0] // self.plan.cluster[0]
        y = self.plan.grid[1] // self.plan.cluster[1]
        return number // (x * y) * x + number % x, number // x % y

    def part(self, spread: Spread, of: Callable[[int], float]) -> float:
        """Returns the part of a quantity, summed over tiles by ``of``, that the simulated clusters get, or their share
        of the GPU if no simulated one has any.
        """
        return self._part(self.numbers, spread, of)

    def parts(self, spread: Spread, of: Callable[[int], float]) -> list[float]:
        """Returns the same part for each wave. With a dynamic schedule the simulated tiles are not those of the wave,
        so it is the part of all.
        """
        waves: dict[int, list[int]] = {}
        for number, turn in self.waves(spread.resident).items():
            waves.setdefault(turn, []).append(number)
        if self.plan.config["scheduler"] == "dynamic":
            return [self.part(spread, of)] * len(waves)
        return [self._part(numbers, spread, of) for numbers in waves.values()]

    def _part(self, numbers: Collection[int], spread: Spread, of: Callable[[int], float]) -> float:
        simulated = self.simulated_tiles(spread)
        has = sum(of(number) for number in numbers if number in simulated)
        return has / sum(map(of, numbers)) if has else spread.share

    def rows_filled(self, number: int) -> float:
        """Returns the rows of boxes that lie outside of A and B although the box begins inside. They are filled with
        zeros for the tile's clusters. A box completely outside begins elsewhere (kernels/common/producer.mojo).
        """
        extents = zip(self.place(number), self.tile, self.plan.product, "AB", strict=True)
        return sum(_filled(place * size, size, extent, self._box_rows(name)) for place, size, extent, name in extents)

    def parts_multiplied(self, number: int) -> float:
        """Returns the parts of a tile that are multiplied: on Hopper those of warpgroups with a row in C, elsewhere
        all.
        """
        if self.plan.tmem_columns:
            return 1.0
        (row, column), (rows, columns), extent = self.place(number), self.tile, self.plan.product
        down = max(0, min(rows, extent[0] - row * rows))
        across = max(0, min(columns, extent[1] - column * columns))
        return -(-down // self._box_rows("C")) * -(-across // self.plan.tile[1])

    def parts_of_ctas(self, row: int) -> list[int]:
        """Returns how many warpgroups' parts each CTA along M multiplies, for a cluster in that row of tiles."""
        rows, along_m = self.plan.tile[0], self.plan.config["cluster"][0]
        if self.plan.tmem_columns:
            return [1] * along_m
        inside = [self.plan.product[0] - (row * along_m + rank) * rows for rank in range(along_m)]
        return [-(-max(0, min(rows, left)) // self._box_rows("C")) for left in inside]

    @property
    def part_cycles(self) -> float:
        """Returns the cycles of a tensor core for one part in a K step."""
        steps = self.plan.config["block_k"] * operand_bits(self.plan.config["dtype"]) / 8 / K_BYTES
        return steps * self._box_rows("C") / WGMMA_ROWS * self.plan.tile[1] / 2

    def _box_rows(self, tensor: str) -> int:
        return next(a.box[1] for a in self.plan.arguments if isinstance(a, TensorMapArgument) and a.tensor == tensor)

    @property
    def coalesced(self) -> Mapping[int, float]:
        """Returns the bytes that L2 delivers per requested byte, by the alignment of the rows. The two CTAs of a pair
        never request the same bytes.
        """
        config = self.plan.config
        rows, columns = self.plan.tile
        along_m, along_n = config["cluster"]
        alone = config["cta_group"] == 2
        operands = [
            SharedOperand("A", rows, along_n, alone or (config["multicast"] and along_n > 1)),
            SharedOperand("B", columns, along_m, alone or (config["multicast"] and along_m > 1)),
        ]
        at_once = min(self.gpu.resident_clusters(self.cluster_size, self.ctas_per_sm), self.clusters, self.tiles)
        # Parts of K have no data in common, so they count as separate places.
        extent = self.extent
        apart = [n % self.plan.split_k for n in self.numbers[:at_once]]
        places = [
            (row + part * extent[0], column + part * extent[1])
            for (row, column), part in zip(self.order(), apart, strict=False)
        ]
        return coalesced(operands, places, self.tiles / at_once, self.persistent, len(self.gpu.gpcs))

    def traffic(self) -> Tiles:
        """Returns A and B for the model of L2."""
        config, problem = self.plan.config, self.plan.problem
        rows, columns = self.tile
        along_m, along_n = config["cluster"]
        asked = rows + columns
        if not config["multicast"]:
            asked = rows * along_n + columns * along_m // config["cta_group"]
        element = self.plan.operand_bytes
        requested = asked * problem.k / self.plan.split_k * element
        # With split-K each part of a tile is written as f32, and one of them as C.
        output = self.plan.out_type.bits / 8
        if self.plan.split_k > 1:
            output = 4 + output / self.plan.split_k
        return Tiles(self.order(), rows, columns, *self.plan.product, problem.k, element, requested, output=output)


def _spread_out(count: int, total: int, last: int) -> list[int]:
    """Returns ``count`` places in a wave: one in each of as many equal parts, but not at equal distances, because those
    might all lie in the same columns or rows of C.

    ``last`` is the number of tiles in a partial last wave. Rather one too many of these are chosen than one too few,
    because the last tiles decide the total time.
    """
    places = []
    for n in range(count):
        first, end = n * total // count, (n + 1) * total // count
        width = (last if first < last < end else end) - first
        places.append(first + int(n * GOLDEN % 1 * width))
    return places


def _filled(first: int, size: int, extent: int, box: int) -> int:
    """Returns the number of rows from ``first`` on, in boxes of this size, that are filled with zeros."""
    if extent < box:
        return size // box * (box - extent)
    return -extent % box if first < extent < first + size else 0


def _place(group: int, number: int, rows: int, columns: int) -> Place:
    """Returns the place of tile `number`, computed as in `kernels/common/raster.mojo`."""
    turn = number // (group * rows)
    inside = number - turn * group * rows
    first = turn * group
    width = min(group, columns - first)
    row = inside // width
    return (row if turn % 2 == 0 else rows - 1 - row), first + inside - row * width


def gained(gemm: Gemm, resident: int) -> list[Mapping[Panel, float]]:
    """Returns, by wave and panel, the cycles per K step by which clusters that go ahead along K lead the others.
    ``resident`` is the number of simultaneous clusters.

    If the last rows of C fill only some of a CTA's warpgroups, the others multiply nothing, and a K step takes less
    time; it takes least for a CTA below C, which only loads data that it does not share. Such a CTA is the first to
    reach each slice of the columns of B that those above it need, too. It waits for DRAM; the others wait only if that
    takes longer than the leader's gain per step.

    On an H200, with events, leaders of kernel 5 wait 1700 cycles a K step for their loads and need 760 for the rest,
    the others 1230 and 1430. With more than one stage a CTA with half the multiplications gains nothing, and one with
    none leads: those of kernel 7 with two stages at 1392x696 wait 1770 cycles, the others 1090 to 1360.
    """
    down, _ = gemm.extent
    cycles = _parts_less(gemm) * gemm.part_cycles
    waves: list[dict[Panel, float]] = [{} for _ in set(gemm.waves(resident).values())]
    for number, turn in gemm.waves(resident).items():
        row, column = gemm.place(number)
        if cycles and row == down - 1:
            waves[turn]["B", column] = cycles
    return list(waves)


def _parts_less(gemm: Gemm) -> int:
    """Returns how many warpgroup parts fewer a CTA of the last clusters multiplies than others.

    Of CTAs that share their loads the one with most work counts, because they advance together; otherwise the one with
    least. The result is 0 if several CTAs share an SM, whose tensor core is busy then.
    """
    if gemm.ctas_per_sm > 1:
        return 0
    down, _ = gemm.extent
    config, full, parts = gemm.plan.config, max(gemm.parts_of_ctas(0)), gemm.parts_of_ctas(down - 1)
    left = max(parts) if config["multicast"] else min(parts)
    return full - left if config["stages"] == 1 or not left else 0
