"""What a fused epilogue is, what it is given, fragments of the accumulator and operands beside it, and what it may call."""
from .ptx import exp2, load_one, load_pair, reciprocal

comptime Values = SIMD[DType.float32, 8]


@fieldwise_init
struct EpilogueOperands(TrivialRegisterPassable):
    """What an epilogue can read beside the accumulator, elements of the type of A and B, and where it stores scale factors of
    C. An address is 0 where it has no use.
    """

    var bias: UInt64  # [columns]
    var residual: UInt64  # [rows, columns], row-major
    var alpha: Float32
    var beta: Float32
    var rows: UInt32  # of the product
    var columns: UInt32
    var factors: UInt64  # f32, [blocks of C's columns, rows], rows padded to 16 bytes; or in atoms (block_scaling.mojo)
    var c_scale: Float32  # what C of nvfp4 is multiplied by before it is quantised


comptime NO_OPERANDS = EpilogueOperands(0, 0, 1, 0, 0, 0, 0, 1)


@fieldwise_init
struct Fragment[dtype: DType, swapped: Bool = False](TrivialRegisterPassable):
    """What a thread holds of 16 rows x 16 columns of an accumulator (PTX ISA 9.7.15.5.1.1, 9.7.16.2.3.1), of the product or,
    `swapped`, of its transpose. With value 4j + 2i + c, each 0 or 1, begin rows or columns 8j + c and columns or rows 8i
    further than with value 0. Operands come in the same order, 0 beyond the edge of the product, where nothing is read.
    """

    var values: Values
    var row: UInt32  # of the product, of value 0
    var column: UInt32
    var operands: EpilogueOperands

    @inline(.always)
    def row_of[value: Int](self) -> UInt32:
        """Of the product."""
        return self.row + UInt32(8 * (value // 4) + value % 2 if Self.swapped else 8 * (value // 2 % 2))

    @inline(.always)
    def column_of[value: Int](self) -> UInt32:
        return self.column + UInt32(8 * (value // 2 % 2) if Self.swapped else 8 * (value // 4) + value % 2)

    @inline(.always)
    def bias(self) -> Values:
        """That of each value's column."""
        var found = Values()
        comptime for n in range(2):
            comptime if Self.swapped:
                comptime first = 2 * n
                var column = self.column_of[first]()
                var inside = column < self.operands.columns
                var one = load_one[Self.dtype](self.operands.bias, UInt64(column), inside)
                comptime for other in [0, 1, 4, 5]:
                    found[first + other] = one
            else:
                comptime first = 4 * n
                var column = self.column_of[first]()
                var inside = column < self.operands.columns
                var pair = load_pair[Self.dtype](self.operands.bias, UInt64(column), inside)
                found = found.insert[offset=first](pair.join(pair))
        return found

    @inline(.always)
    def residual(self) -> Values:
        """The element at each value's place."""
        var found = Values()
        comptime for value in range(0, 8, 1 if Self.swapped else 2):
            var row = self.row_of[value]()
            var column = self.column_of[value]()
            var place = UInt64(row) * UInt64(self.operands.columns) + UInt64(column)
            var inside = row < self.operands.rows and column < self.operands.columns
            comptime if Self.swapped:
                found[value] = load_one[Self.dtype](self.operands.residual, place, inside)
            else:
                found = found.insert[offset=value](load_pair[Self.dtype](self.operands.residual, place, inside))
        return found

    @inline(.always)
    def gate(self) -> SIMD[DType.float32, 4]:
        """The values of the first 8 of the product's 16 columns, for each of which `up` has the one 8 columns further.
        """
        comptime if Self.swapped:
            return self.values.slice[2]().join(self.values.slice[2, offset=4]())
        else:
            return self.values.slice[4]()

    @inline(.always)
    def up(self) -> SIMD[DType.float32, 4]:
        comptime if Self.swapped:
            return self.values.slice[2, offset=2]().join(self.values.slice[2, offset=6]())
        else:
            return self.values.slice[4, offset=4]()


trait FusedEpilogue:
    comptime name: StaticString
    comptime takes_bias: Bool = False
    comptime takes_residual: Bool = False
    comptime results: Int = 8
    """Of a fragment: 8, or 4 where `gate` and `up` make one, and C has half as many columns as the product."""
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
