"""An epilogue of one's own, to begin with: a bias, then the square of ReLU. `harness run kernel8 -c
epilogue=docs/examples/my_epilogue.mojo` compiles it into kernel 8 and runs that."""
from kernels.common.fragment import Fragment, FusedEpilogue, Values


struct OwnEpilogue(FusedEpilogue):
    comptime name = "bias-relu2"
    comptime takes_bias = True
    comptime formula = "maximum(product + bias, 0) ** 2"

    @staticmethod
    @inline(.always)
    def apply(fragment: Fragment) -> Values:
        var positive = max(fragment.values + fragment.bias(), 0)
        return positive * positive
