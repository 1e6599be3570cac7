"""The interface of fused epilogues: fragments of the accumulator, operands, and functions that an epilogue may call."""
from .layer import EpilogueOperands
from .global_memory import load_one_if_inside, load_pair_if_inside
from std.sys._assembly import inlined_assembly

comptime Values = SIMD[DType.float32, 8]


@fieldwise_init
struct Fragment[dtype: DType, swapped: Bool = False](TrivialRegisterPassable):
    """The 8 values that a thread holds of 16 x 16 elements of an accumulator (PTX ISA 9.7.15.5.1.1, 9.7.16.2.3.1).
    Value 4j + 2i + c (j, i, c each 0 or 1) lies 8i rows and 8j + c columns after value 0; if `swapped`, 8j + c rows and
    8i columns. Operands come in the same order; they are 0 outside of the product, where no thread reads memory."""

    var values: Values
    var row: UInt32  # of the product, of value 0
    var column: UInt32
    var operands: EpilogueOperands

    @inline(.always)
    def row_of[value: Int](self) -> UInt32:
        """Returns the row of the product that this value belongs to."""
        return self.row + UInt32(8 * (value // 4) + value % 2 if Self.swapped else 8 * (value // 2 % 2))

    @inline(.always)
    def column_of[value: Int](self) -> UInt32:
        """Returns the column of the product that this value belongs to."""
        return self.column + UInt32(8 * (value // 2 % 2) if Self.swapped else 8 * (value // 4) + value % 2)

    @inline(.always)
    def bias(self) -> Values:
        """Returns the bias of each value's column."""
        var found = Values()
        comptime for n in range(2):
            comptime if Self.swapped:
                comptime first = 2 * n
                var column = self.column_of[first]()
                var inside = column < self.operands.columns
                var one = load_one_if_inside[Self.dtype](self.operands.bias, UInt64(column), inside)
                comptime for other in [0, 1, 4, 5]:
                    found[first + other] = one
            else:
                comptime first = 4 * n
                var column = self.column_of[first]()
                var inside = column < self.operands.columns
                var pair = load_pair_if_inside[Self.dtype](self.operands.bias, UInt64(column), inside)
                found = found.insert[offset=first](pair.join(pair))
        return found

    @inline(.always)
    def residual(self) -> Values:
        """Returns the element of the residual at each value's row and column."""
        var found = Values()
        comptime for value in range(0, 8, 1 if Self.swapped else 2):
            var row = self.row_of[value]()
            var column = self.column_of[value]()
            var place = UInt64(row) * UInt64(self.operands.columns) + UInt64(column)
            var inside = row < self.operands.rows and column < self.operands.columns
            comptime if Self.swapped:
                found[value] = load_one_if_inside[Self.dtype](self.operands.residual, place, inside)
            else:
                found = found.insert[offset=value](
                    load_pair_if_inside[Self.dtype](self.operands.residual, place, inside)
                )
        return found

    @inline(.always)
    def gate(self) -> SIMD[DType.float32, 4]:
        """Returns the values of the first 8 of 16 columns of the product. `up` returns those 8 columns further."""
        comptime if Self.swapped:
            return self.values.slice[2]().join(self.values.slice[2, offset=4]())
        else:
            return self.values.slice[4]()

    @inline(.always)
    def up(self) -> SIMD[DType.float32, 4]:
        """Returns the values of the last 8 of 16 columns of the product, in the order of `gate`."""
        comptime if Self.swapped:
            return self.values.slice[2, offset=2]().join(self.values.slice[2, offset=6]())
        else:
            return self.values.slice[4, offset=4]()


trait FusedEpilogue:
    """An epilogue: its name, the operands that it reads, and the function that it applies to each fragment."""

    comptime name: StaticString
    comptime takes_bias: Bool = False
    comptime takes_residual: Bool = False
    comptime results: Int = 8
    """Results of a fragment: 8, or 4 if `gate` and `up` make one and C has half the columns of the product."""
    comptime formula: StaticString = ""
    """The formula of your own epilogue, from which the harness computes the expected result (docs/epilogues.md)."""

    @staticmethod
    def apply(fragment: Fragment) -> SIMD[DType.float32, Self.results]:
        """Returns the elements of C for a fragment, in f32."""
        ...


# ---- functions -----------------------------------------------------------------------------------------------------
@inline(.always)
def exp2(x: Float32) -> Float32:
    """Returns 2^x with a relative error of 2^-22.5. Subnormal results become 0 (PTX ISA 9.7.3.21)."""
    return inlined_assembly["ex2.approx.ftz.f32 $0, $1;", Float32, constraints="=f,f", has_side_effect=False](x)


@inline(.always)
def reciprocal(x: Float32) -> Float32:
    """Returns 1 / x with a relative error of 2^-23. Subnormal results become 0 (PTX ISA 9.7.3.13)."""
    return inlined_assembly["rcp.approx.ftz.f32 $0, $1;", Float32, constraints="=f,f", has_side_effect=False](x)


@inline(.always)
def sigmoid[width: SIMDLength, //](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns 1 / (1 + e^-x), from two hardware approximations. The relative error is 2^-16 where |x| < 88; elsewhere
    the absolute error is at most 2^-110."""
    comptime log2_e = Float32(1.4426950408889634)
    var found = SIMD[DType.float32, width]()
    comptime for i in range(Int(width)):
        found[i] = reciprocal(1 + exp2(-log2_e * x[i]))
    return found


@inline(.always)
def silu[width: SIMDLength, //](x: SIMD[DType.float32, width]) -> SIMD[DType.float32, width]:
    """Returns x * sigmoid(x)."""
    return x * sigmoid(x)


@inline(.always)
def gelu(x: Values) -> Values:
    """Returns gelu in its tanh form, x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3). It is computed
    as x * sigmoid(2u), which is precise also where 1 + tanh(u) cancels."""
    comptime scale = Float32(2 * 0.7978845608028654)
    return x * sigmoid(scale * (x + 0.044715 * x * x * x))
