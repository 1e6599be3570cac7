"""Fused epilogues: what becomes of the product between the accumulator and C. `-c epilogue=NAME` names one of
`EPILOGUES`, `-c epilogue=FILE.mojo` one of your own (docs/epilogues.md).

Each says what it is called, what it reads and what it computes. A thread calls `apply` for each `Fragment` of the
accumulator that it holds; what comes back is rounded to the type of C and stored.
"""
from ..own_epilogue import OwnEpilogue
from .fragment import Fragment, FusedEpilogue, Values, gelu, silu
from .word import LENGTH, Word


struct Bias(FusedEpilogue):
    """A bias for each column."""

    comptime name = "bias"
    comptime takes_bias = True

    @staticmethod
    @inline(.always)
    def apply(fragment: Fragment) -> Values:
        return fragment.values + fragment.bias()


struct BiasGelu(FusedEpilogue):
    comptime name = "bias-gelu"
    comptime takes_bias = True

    @staticmethod
    @inline(.always)
    def apply(fragment: Fragment) -> Values:
        return gelu(fragment.values + fragment.bias())


struct BiasRelu(FusedEpilogue):
    comptime name = "bias-relu"
    comptime takes_bias = True

    @staticmethod
    @inline(.always)
    def apply(fragment: Fragment) -> Values:
        return max(fragment.values + fragment.bias(), 0)


struct Gelu(FusedEpilogue):
    comptime name = "gelu"

    @staticmethod
    @inline(.always)
    def apply(fragment: Fragment) -> Values:
        return gelu(fragment.values)


struct Relu(FusedEpilogue):
    comptime name = "relu"

    @staticmethod
    @inline(.always)
    def apply(fragment: Fragment) -> Values:
        return max(fragment.values, 0)


struct Residual(FusedEpilogue):
    """A residual: alpha * product + beta * residual."""

    comptime name = "residual"
    comptime takes_residual = True

    @staticmethod
    @inline(.always)
    def apply(fragment: Fragment) -> Values:
        return fragment.operands.alpha * fragment.values + fragment.operands.beta * fragment.residual()


struct Silu(FusedEpilogue):
    comptime name = "silu"

    @staticmethod
    @inline(.always)
    def apply(fragment: Fragment) -> Values:
        return silu(fragment.values)


struct Swiglu(FusedEpilogue):
    """SwiGLU, silu(gate) * up: of each 16 columns the first 8 are gates, the last 8 what they gate. So a thread has both, and C
    the order that its own columns have."""

    comptime name = "swiglu"
    comptime results = 4

    @staticmethod
    @inline(.always)
    def apply(fragment: Fragment) -> SIMD[DType.float32, 4]:
        return silu(fragment.gate()) * fragment.up()


comptime EPILOGUES = TypeList.of[
    Trait=FusedEpilogue, Bias, BiasGelu, BiasRelu, Gelu, Relu, Residual, Silu, Swiglu, OwnEpilogue
]()


# ---- what configurations and kernels need --------------------------------------------------------------------------
comptime NONE = 0
"""The number of no epilogue: C is the product as it is. Those of `EPILOGUES` count from 1."""

comptime UNKNOWN = -1
"""The number of a name that is no epilogue's."""


def epilogue_names() -> List[Word]:
    """Names that can be asked for. One's own has none where nobody has named a file."""
    var names: List[Word] = ["none"]
    comptime for i in range(EPILOGUES.length):
        if EPILOGUES[i].name != "":
            names.append(EPILOGUES[i].name)
    return names^


def epilogue_number(name: Word) -> Int:
    """The number of an epilogue; `NONE` for none, `UNKNOWN` for a name that is not among `epilogue_names`."""
    if name == "none":
        return NONE
    comptime for i in range(EPILOGUES.length):
        if name != "" and name == EPILOGUES[i].name:
            return i + 1
    return UNKNOWN


@fieldwise_init
struct Fusion(TrivialRegisterPassable):
    """What layouts and launches need to know of an epilogue."""

    var name: Word
    var takes_bias: Bool
    var takes_residual: Bool
    var results: Int  # of 8 values; so many columns has C of 8 of the product

    def __init__(out self, number: Int):
        self = {"none", False, False, 8}
        comptime for i in range(EPILOGUES.length):
            comptime E = EPILOGUES[i]
            comptime name: Word = E.name
            comptime assert name.bytes[LENGTH - 1] == 0, "the name of an epilogue has at most 31 bytes"
            if number == i + 1:
                self = {name, E.takes_bias, E.takes_residual, E.results}
