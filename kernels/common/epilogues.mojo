"""Fused epilogues: what the kernel computes from the product before it stores C. `-c epilogue=NAME` selects one of
`EPILOGUES`, `-c epilogue=FILE.mojo` your own (docs/epilogues.md).

Each epilogue defines its name, its operands and its function. A thread calls `apply` for each `Fragment` of the
accumulator that it holds; the kernel rounds the result to the type of C and stores it.
"""
from ..own_epilogue import OwnEpilogue
from .fragment import Fragment, FusedEpilogue, Values, gelu, silu
from .word import LENGTH, Word


struct Bias(FusedEpilogue):
    """C = product + bias, one bias for each column."""

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
    """C = alpha * product + beta * residual."""

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
    """C = silu(gate) * up. Of each 16 columns of the product the first 8 are gate, the last 8 up. One thread holds
    both, and the columns of C keep their order."""

    comptime name = "swiglu"
    comptime results = 4

    @staticmethod
    @inline(.always)
    def apply(fragment: Fragment) -> SIMD[DType.float32, 4]:
        return silu(fragment.gate()) * fragment.up()


comptime EPILOGUES = TypeList.of[
    Trait=FusedEpilogue, Bias, BiasGelu, BiasRelu, Gelu, Relu, Residual, Silu, Swiglu, OwnEpilogue
]()


# ---- numbers of epilogues --------------------------------------------------------------------------------------------
comptime NO_EPILOGUE = 0
"""The number that stands for no epilogue: C is the product. `EPILOGUES` are numbered from 1."""

comptime UNKNOWN_EPILOGUE = -1
"""The number that stands for an unknown name."""


def epilogue_names() -> List[Word]:
    """Returns the names of all epilogues, also `none`. Your own epilogue is absent if no file is given for it."""
    var names: List[Word] = ["none"]
    comptime for i in range(EPILOGUES.length):
        if EPILOGUES[i].name != "":
            names.append(EPILOGUES[i].name)
    return names^


def epilogue_number(name: Word) -> Int:
    """Returns the number of the epilogue with this name: `NO_EPILOGUE` for `none`, `UNKNOWN_EPILOGUE`
    if no epilogue has this name."""
    if name == "none":
        return NO_EPILOGUE
    comptime for i in range(EPILOGUES.length):
        if name != "" and name == EPILOGUES[i].name:
            return i + 1
    return UNKNOWN_EPILOGUE


@fieldwise_init
struct Fusion(TrivialRegisterPassable):
    """The properties of an epilogue that layouts and launches need."""

    var name: Word
    var takes_bias: Bool
    var takes_residual: Bool
    var results: Int  # columns of C made of 8 columns of the product

    def __init__(out self, number: Int):
        self = {"none", False, False, 8}
        comptime for i in range(EPILOGUES.length):
            comptime E = EPILOGUES[i]
            comptime name: Word = E.name
            comptime assert name.bytes[LENGTH - 1] == 0, "the name of an epilogue has at most 31 bytes"
            if number == i + 1:
                self = {name, E.takes_bias, E.takes_residual, E.results}
