"""The launch plan: everything that a launch needs. The host launch code and the JSON for other programs read it.

Tensors are row-major: A is [M, K] or [K, M], B is [N, K] or [K, N], C is [M, N]. Leading dimensions may exceed the
length of a row."""
from ..common.block_scaling import ATOM_BLOCKS, ATOM_BYTES, ATOM_ROWS, ATOM_WORDS, F32_BLOCK, BlockScaling
from ..common.tile import element_bytes
from ..common.schedule import *
from ..common.layer_config import TEAM_THREADS, LayerConfig, partials_offset
from ..common.groups import MOST_GROUPS
from ..common.multicast import Slices
from ..common.word import Word
from std.math import align_up, ceildiv

comptime LARGEST_DIMENSION = (1 << 31) - 4096
"""The largest M, N and K. Coordinates of a tensor copy are signed 32-bit numbers (PTX ISA 9.7.9.27.1.2), also in CTAs
outside of the problem: a grid is rounded up to whole clusters, by less than 16 tiles of 256."""

comptime LARGEST_GRID = (1 << 31) - 1
"""The most CTAs along x (CUDA Programming Guide, technical specifications)."""

comptime LONGEST_ROW = 1 << 30
"""The most bytes from one row to the next where kernels count them in 32 bits, beyond the end too (few_rows.mojo)."""

comptime LARGEST_WORKSPACE = 1 << 32
"""The most bytes of a workspace. More partial sums are taken for a mistake."""


@fieldwise_init
struct LeadingDimensions(TrivialRegisterPassable):
    """The leading dimensions of A, B and C, in elements; 0 stands for the length of a row."""

    var a: Int
    var b: Int
    var c: Int


comptime DENSE = LeadingDimensions(0, 0, 0)


@fieldwise_init
struct TensorMap(Copyable):
    """A [rows, columns] tensor and the box that one copy moves, in elements of the map. The elements of a block-scaled
    A, B or C are bytes, those of scale-factor atoms words of 8 bytes. f32 scale factors are [blocks of K, M] for A, and
    [blocks of N, blocks of K] for B."""

    var tensor: StaticString
    var dtype: Word
    var element_bytes: Int
    var rows: Int
    var columns: Int
    var pitch: Int  # elements from one row to the next
    var box_rows: Int
    var box_columns: Int
    var windows: Int  # number of windows of box_rows rows each (groups.mojo); 0 for a map without windows

    def row_bytes(self) -> Int:
        """Returns the stride of the map: bytes from one row to the next."""
        return self.pitch * self.element_bytes

    def swizzle_bytes(self) -> Int:
        """Returns the bytes of the swizzle: the width of a box, or 0 for scale factors and boxes of 16 bytes."""
        var bytes = self.box_columns * self.element_bytes
        return 0 if self.tensor.endswith("scales") or bytes == 16 else bytes


struct LaunchPlan(Copyable):
    """Sizes, grid, tensor maps and workspace of a launch."""

    var m: Int
    var n: Int
    var k: Int
    var ld: LeadingDimensions
    var rows: Int  # of the product: M, or N if swapped
    var columns: Int
    var groups: Int  # 0: the problem has no groups
    var clusters_m: Int  # cluster tiles along M; with groups, the most that they can have
    var clusters_n: Int
    var grid_x: Int  # CTAs along M in a band; in a persistent launch, cluster_m for each cluster
    var grid_y: Int  # CTAs along N
    var grid_z: Int  # bands along M
    var block: Int
    var dynamic_shared_memory: Int
    var a: TensorMap  # of the MMA's A, which is the tensor B if swapped
    var b: TensorMap
    var c: TensorMap
    var scales: List[TensorMap]  # of the scale factors of A and of B; empty without them
    var factors: List[Int]  # shape of the scale factors of C, if it has any: f32, rows padded to 16 bytes; or atoms
    var k_iterations: Int
    var counters: Int  # words of 4 bytes at the start of the workspace; 0 before and after a launch
    var workspace: Int  # bytes of global memory; 0 where none is needed

    def __init__(
        out self, config: LayerConfig, m: Int, n: Int, k: Int, groups: Int = 0, ld: LeadingDimensions = DENSE
    ) raises:
        """Plans a launch. Raises if TMA cannot address the sizes, or if the groups do not fit the configuration."""
        if config.grouped != (groups > 0) or groups > MOST_GROUPS:
            var of = String("1 to ", MOST_GROUPS) if config.grouped else String("no")
            raise Error("the problem has ", groups, " groups, and the kernel is compiled for ", of)
        var bytes = config.scaling.bits < 16 or config.out_scaling.factors > 0
        if (bytes or config.grouped) and (ld.a > 0 or ld.b > 0 or ld.c > 0):
            var scaled = config.dtype_name() if config.scaling.bits < 16 else config.c_dtype_name()
            var what = String("what has groups" if config.grouped else scaled)
            raise Error("leading dimensions: ", what, " lies without gaps, leave them out")
        var k_multiple = 128 // config.scaling.bits  # 16 bytes of a row
        var also: StaticString = ""
        if config.gemm.kernel.is_block_scaled:
            k_multiple = max(k_multiple, config.scaling.block())
            also = ", and of whole blocks with scale factors"
        var rows_of_k = (ld.a == 0 and not config.a_is_k_by_m()) or (ld.b == 0 and not config.b_is_k_by_n())
        rows_of_k = rows_of_k or config.gemm.kernel.reads_directly  # without TMA nothing ends rows within 16 bytes
        check_size("M", m, 8 if ld.a == 0 and config.a_is_k_by_m() else 1)
        var in_c: StaticString = ", also in C"
        if config.fusion().results == 4:
            in_c = ", also in C, which has half as many columns"
        elif config.out_scaling.factors > 0:
            in_c = ", also in C, and of whole blocks with scale factors"
        var of_n = (128 if config.quantises() else 64) // config.results
        if config.out_scaling.factors > 0:
            of_n = max(of_n, config.out_scaling.block() * 8 // config.fusion().results)
        check_size("N", n, of_n, in_c)
        check_size("K", k, k_multiple if rows_of_k else 1, also)
        self.m = m
        self.n = n
        self.k = k
        self.groups = groups
        self.ld = ld
        self.rows = n if config.swapped else m
        self.columns = m if config.swapped else n
        self.clusters_m = ceildiv(self.rows, config.gemm.cluster_rows())
        if config.grouped:
            check_size("N times the groups", n * groups, 1)
            if config.masked and m % groups != 0:
                raise Error("masked: M ", m, " must be as many rows for each of ", groups, " groups")
            # Each group has at most one tile that is not full, and each tile has at least one row.
            self.clusters_m = min(m, (m + groups * (config.gemm.cluster_rows() - 1)) // config.gemm.cluster_rows())
        self.clusters_n = ceildiv(self.columns, config.gemm.cluster_columns())
        if config.gemm.kernel.is_persistent:
            var clusters = self.clusters_m * self.clusters_n * config.split_k
            if clusters * config.gemm.cluster_size() > LARGEST_GRID:
                var many = String(t"{clusters} cluster tiles, too many for one launch: use smaller ones")
                raise Error("M ", m, " and N ", n, " make ", many)
            if config.gemm.fills_sms():
                clusters = min(clusters, config.sms // config.gemm.cluster_size())
            self.grid_x, self.grid_y, self.grid_z = clusters * config.gemm.cluster_m, config.gemm.cluster_n, 1
        else:
            self.grid_x, self.grid_z = band_grid(self.clusters_m, config)
            self.grid_y = self.clusters_n * config.gemm.cluster_n
        if self.grid_y > 65535:
            var rule = "CTAs along y, more than 65535: use a wider MMA shape or a smaller N"
            raise Error("N ", n, " makes a grid of ", self.grid_y, " ", rule)
        self.block = config.threads()
        self.dynamic_shared_memory = config.shared_memory_bytes()
        var a: StaticString = "B" if config.swapped else "A"
        var b: StaticString = "A" if config.swapped else "B"
        self.a = operand_map(config, a, self.rows, k, config.gemm.a_slices(), ld.b if config.swapped else ld.a)
        var b_rows_of_all = self.columns * max(1, groups)
        self.b = operand_map(config, b, b_rows_of_all, k, config.gemm.b_slices(), ld.a if config.swapped else ld.b)
        var c_columns = n * config.results // 8
        self.c = TensorMap(
            "C",
            "u8" if config.out_scaling.factors > 0 else config.c_dtype_name(),
            element_bytes(config.gemm.out_dtype),
            m,
            c_columns,
            checked_pitch("C", c_columns, ld.c, element_bytes(config.gemm.out_dtype)),
            config.c_box()[0],
            config.c_box()[1],
            m + 1 if config.grouped else 0,
        )
        var longest = max(self.a.row_bytes(), self.b.row_bytes(), self.c.row_bytes())
        if config.gemm.kernel.reads_directly and longest > LONGEST_ROW:
            raise Error(
                "a row of A, B or C takes ", longest, " bytes, and ", config.gemm.kernel.name, " reads 1 GB at most"
            )
        self.scales = []
        if config.promotes():
            var blocks = ceildiv(k, F32_BLOCK)
            # Rows are padded to 16 bytes.
            var a_row = align_up(m, 4)
            var b_row = align_up(blocks, 4)
            self.scales.append(TensorMap("A scales", "f32", 4, blocks, a_row, a_row, 1, config.gemm.cta_m(), 0))
            var b_rows = ceildiv(config.gemm.mma_n, F32_BLOCK)
            self.scales.append(
                TensorMap("B scales", "f32", 4, ceildiv(n, F32_BLOCK), b_row, b_row, b_rows, 128 // 4, 0)
            )
        elif config.has_scale_factors():
            self.scales.append(scale_map(config, "A scales", m, k, config.a_scale_slices()))
            self.scales.append(scale_map(config, "B scales", n, k, config.b_scale_slices()))
        var c_elements = n * config.fusion().results // 8
        self.factors = [ceildiv(c_elements, F32_BLOCK), align_up(m, 4)]
        if config.out_scaling.factors > 0:
            self.factors = atoms_shape(config.out_scaling, m, c_elements)
        self.k_iterations = ceildiv(k, config.block_k())
        self.counters = 1 if config.gemm.counts_tiles() else 0
        self.workspace = 4 * self.counters
        if config.splits_k():
            var steps = self.k_iterations
            if steps < config.split_k:
                var rule = String(t"split k {config.split_k}: K {k} has only {steps} K steps of {config.block_k()}")
                raise Error(rule, ", use at most ", steps)
            var teams = self.clusters_m * self.clusters_n * config.gemm.cluster_size() * config.teams()
            self.counters = 1 + teams
            self.workspace = partials_offset(teams) + 4 * TEAM_THREADS * teams * config.split_k * config.partial_words()
            if self.workspace > LARGEST_WORKSPACE:
                raise Error("split k ", config.split_k, ": the parts of C take ", self.workspace, " bytes, use fewer")


def l2_promotion(config: LayerConfig) -> Int:
    """Returns the bytes that L2 fetches at once, at least, for a TMA load: 128 for one row of a box, 256 for the row of
    the next K step too. On an H200, 256 is 6 to 15 % faster with one stage, when nothing else loads ahead, and up to
    6 % slower with more stages, because L2 moves 10 % more bytes."""
    return 256 if config.gemm.has_tmem() or config.gemm.stages == 1 else 128


def atoms_shape(format: BlockScaling, rows: Int, columns: Int) -> List[Int]:
    """Returns the shape of the scale factors of a matrix, in atoms."""
    return [ceildiv(rows, ATOM_ROWS), ceildiv(columns, format.block() * ATOM_BLOCKS), ATOM_BYTES]


def operand_map(
    config: LayerConfig, name: StaticString, rows: Int, k: Int, slices: Slices, ld: Int
) raises -> TensorMap:
    """Returns the tensor map of A or B. A box covers K of a stage: its columns if K-major, its rows if MN-major."""
    if config.scaling.bits < 16:
        var per_byte = 8 // config.scaling.bits
        var bytes = k // per_byte
        return TensorMap(name, "u8", 1, rows, bytes, bytes, slices.box_rows(), config.block_k() // per_byte, 0)
    var down, across = k if slices.mn_major else rows, rows if slices.mn_major else k
    var box_columns = slices.box_rows() if slices.mn_major else config.block_k()
    var apart = checked_pitch(name, across, ld, 2)
    return TensorMap(name, config.dtype_name(), 2, down, across, apart, slices.box_lines(), box_columns, 0)


def checked_pitch(name: StaticString, row: Int, ld: Int, element_bytes: Int) raises -> Int:
    """Returns the leading dimension, by default the length of a row. Raises if TMA cannot use it."""
    if ld == 0:
        return row
    if ld < row:
        raise Error("ld of ", name, " ", ld, " is less than the ", row, " elements of a row, use ", row, " or more")
    check_size(String("ld of ", name), ld, 16 // element_bytes)
    return ld


def scale_map(config: LayerConfig, name: StaticString, rows: Int, k: Int, slices: Slices) -> TensorMap:
    """Returns the tensor map of scale factors in atoms. Its rows are rows of atoms, so TMA loads zeros beyond the last
    atom of a row, not the next row."""
    var shape = atoms_shape(config.scaling, rows, k)
    var box = ATOM_WORDS * config.scaling.atoms_per_stage()
    var row = ATOM_WORDS * shape[1]
    return TensorMap(name, "u64", 8, shape[0], row, row, slices.box_rows(), box, 0)


def band_grid(clusters: Int, config: LayerConfig) -> Tuple[Int, Int]:
    """Returns the CTAs along M in a band and the number of bands, for this many clusters along M.

    CTAs start in the order x, y, z: band after band, and column after column of tiles in a band. CTAs that run at the
    same time share rows of A and of B in the L2 cache, most when their tiles cover a square. Of the widths from half of
    `band_m` up to `band_m`, the function takes the one that covers the fewest rows outside of the problem."""
    var gemm = config.gemm
    if gemm.band_m == 0:
        return clusters * gemm.cluster_m, 1
    var most = min(clusters, max(1, gemm.band_m // gemm.cluster_m))
    var best = most
    for width in range(most, most // 2, -1):
        if align_up(clusters, width) < align_up(clusters, best):
            best = width
    return best * gemm.cluster_m, ceildiv(clusters, best)


def check_size(name: String, size: Int, multiple: Int, also: StaticString = "") raises:
    """Raises if a size is below 1, too large, or no multiple. `also` gives the reason for a multiple above 8."""
    if size < 1:
        raise Error(name, " ", size, " is not at least 1")
    if size > LARGEST_DIMENSION:
        raise Error(name, " ", size, " is too large for the 32-bit coordinates of TMA: at most ", LARGEST_DIMENSION)
    if size % multiple != 0:
        var rule = String(t"{name} {size} is not a multiple of {multiple}: rows must be a multiple of 16 bytes for TMA")
        raise Error(rule, also if multiple > 8 else "", ", pad to ", align_up(size, multiple))
