"""What a fused epilogue is, what it is given, fragments of the accumulator and operands beside it, and what it may call."""
from .ptx import exp2, load_pair, reciprocal

comptime Values = SIMD[DType.float32, 8]


@fieldwise_init
struct EpilogueOperands(TrivialRegisterPassable):
    """What an epilogue can read beside the accumulator; elements are of the type of A and B. An address is 0 where it has
    no use.
    """

    var bias: UInt64  # [columns]
    var residual: UInt64  # [rows, columns], row-major
    var alpha: Float32
    var beta: Float32
    var rows: UInt32  # of the product
    var columns: UInt32


@fieldwise_init
struct Fragment[dtype: DType](TrivialRegisterPassable):
    """What a thread holds of 16 rows x 16 columns of the product: value 4j + 2i + c, each 0 or 1, is in row `row` + 8i and
    column `column` + 8j + c (PTX ISA 9.7.15.5.1.1, 9.7.16.2.3.1). Operands come in the same order, 0 beyond the edge of
    the product, where nothing is read."""

    var values: Values
    var row: UInt32
    var column: UInt32
    var operands: EpilogueOperands

    @inline(.always)
    def bias(self) -> Values:
        """That of each value's column."""
        var found = Values()
        comptime for j in range(2):
            var column = self.column + UInt32(8 * j)
            var pair = load_pair[Self.dtype](self.operands.bias, UInt64(column), column < self.operands.columns)
            comptime for i in range(2):
                found = found.insert[offset=4 * j + 2 * i](pair)
        return found

    @inline(.always)
    def residual(self) -> Values:
        """The element at each value's place."""
        var found = Values()
        comptime for i in range(2):
            var row = self.row + UInt32(8 * i)
            comptime for j in range(2):
                var column = self.column + UInt32(8 * j)
                var place = UInt64(row) * UInt64(self.operands.columns) + UInt64(column)
                var inside = row < self.operands.rows and column < self.operands.columns
                found = found.insert[offset=4 * j + 2 * i](load_pair[Self.dtype](self.operands.residual, place, inside))
        return found


trait FusedEpilogue:
    comptime name: StaticString
    comptime takes_bias: Bool = False
    comptime takes_residual: Bool = False
    comptime results: Int = 8
    """Of a fragment: 8, or 4 where columns 8 apart make one, and C has half as many columns as the product."""
    comptime formula: StaticString = ""
    """Of an epilogue of your own: what the harness expects (docs/epilogues.md)."""

    @staticmethod
    def apply(fragment: Fragment) -> SIMD[DType.float32, Self.results]:
        ...


# ---- functions -----------------------------------------------------------------------------------------------------
@inline(.always)
def sigmoid[width: SIMDLength, //](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """1 / (1 + e^-x), by two approximations of the hardware: relative error 2^-16 where |x| < 88, else no more than 2^-110
    from it."""
    comptime log2_e = Float32(1.4426950408889634)
    var found = SIMD[DType.float32, width]()
    comptime for i in range(Int(width)):
        found[i] = reciprocal(1 + exp2(-log2_e * x[i]))
    return found


@inline(.always)
def silu[width: SIMDLength, //](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    return x * sigmoid(x)


@inline(.always)
def gelu(x: Values) -> Values:
    """The tanh form, x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3): as x * sigmoid(2u), which keeps its
    relative precision where 1 + tanh(u) cancels."""
    comptime scale = Float32(2 * 0.7978845608028654)
    return x * sigmoid(scale * (x + 0.044715 * x * x * x))
