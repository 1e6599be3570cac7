"""What a launch of kernels 8 and 9 has besides A, B and C: scale factors, operands of the epilogue, and groups. The
kernel reads what its configuration needs."""
from .cta import Tile


@fieldwise_init
struct EpilogueOperands(TrivialRegisterPassable):
    """The operands of an epilogue besides the accumulator, with elements of the type of A and B, and the address for
    the scale factors of C. Addresses are in global memory, 0 where the epilogue does not use them."""

    var bias: UInt64  # [columns]
    var residual: UInt64  # [rows, columns], row-major
    var alpha: Float32
    var beta: Float32
    var rows: UInt32  # of the product
    var columns: UInt32
    var factors: UInt64  # of C: f32 [blocks of columns, rows], rows padded to 16 bytes; or atoms (block_scaling.mojo)
    var c_scale: Float32  # multiplies C of nvfp4 before it is quantised


comptime NO_OPERANDS = EpilogueOperands(0, 0, 1, 0, 0, 0, 0, 1)


@fieldwise_init
struct Groups(TrivialRegisterPassable):
    """The groups of a launch."""

    var sizes: UInt64  # global memory address of their sizes in rows, 4 bytes each
    var count: UInt32  # 0: the problem has no groups
    var row_stride: UInt32  # masked: rows in memory from the start of one group to the next


comptime NO_GROUPS = Groups(0, 0, 0)


@fieldwise_init
struct Layer(TrivialRegisterPassable):
    """All of these. Addresses are 0 where the kernel does not use them."""

    var a_scales: UInt64  # tensor map
    var b_scales: UInt64
    var operands: EpilogueOperands
    var groups: Groups

    @inline(.always)
    def operands_of(self, tile: Tile) -> EpilogueOperands:
        """Returns the operands of the epilogue for a tile. Each group has its own bias, as it has its own B."""
        var found = self.operands
        found.bias += 2 * UInt64(tile.which_b * self.operands.columns)
        return found
