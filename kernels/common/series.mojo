"""The kernels of the series, and the capabilities of each."""

from ..own import KERNEL as OWN
from .word import Word


@fieldwise_init
struct Kernel(TrivialRegisterPassable):
    """A kernel of the series and its capabilities. Shared code tests the capabilities, never the name."""

    var name: Word
    var pipelined: Bool  # a ring of stages between warps of different roles; otherwise one stage
    var double_buffers_epilogue: Bool  # the epilogue writes C through two buffers: TMA stores one, warps fill the other
    var is_persistent: Bool  # a CTA computes tile after tile; otherwise one, at its place in the grid
    var is_block_scaled: Bool  # A and B have scale factors

    def fuses(self) -> Bool:
        """The kernel can apply a fused epilogue."""
        return self.is_persistent and not self.is_block_scaled


comptime SERIES = [
    Kernel("kernel5", pipelined=False, double_buffers_epilogue=False, is_persistent=False, is_block_scaled=False),
    Kernel("kernel6", pipelined=True, double_buffers_epilogue=False, is_persistent=False, is_block_scaled=False),
    Kernel("kernel7", pipelined=True, double_buffers_epilogue=True, is_persistent=False, is_block_scaled=False),
    Kernel("kernel8", pipelined=True, double_buffers_epilogue=True, is_persistent=True, is_block_scaled=False),
    Kernel("kernel9", pipelined=True, double_buffers_epilogue=True, is_persistent=True, is_block_scaled=True),
    OWN,
]


def kernel_names() -> List[Word]:
    """Returns the names of all kernels. Your own kernel is absent if no file is given for it."""
    return [kernel.name for kernel in materialize[SERIES]() if kernel.name != ""]


def find_kernel(name: Word) -> Kernel:
    """Returns the kernel of this name. For an unknown name, returns a kernel without capabilities, which `find_error`
    refuses."""
    comptime for kernel in SERIES:
        if name == kernel.name:
            return kernel
    return Kernel(name, pipelined=False, double_buffers_epilogue=False, is_persistent=False, is_block_scaled=False)
