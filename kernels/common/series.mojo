"""The kernels of the series, and what each can do."""

from ..own import KERNEL as OWN
from .word import Word


@fieldwise_init
struct Kernel(TrivialRegisterPassable):
    """One kernel of the series, by what it can do. Shared code asks for these capabilities, never for a name."""

    var name: Word
    var pipelined: Bool  # a ring of stages between warps of different roles; otherwise there is one stage
    var double_buffers_epilogue: Bool  # C leaves through two small buffers, one stored while the next is written
    var is_persistent: Bool  # CTAs compute tile after tile; or a CTA's place in the grid is its tile
    var is_block_scaled: Bool  # A and B have scale factors

    def fuses(self) -> Bool:
        """C leaves through a fused epilogue, if one is asked for."""
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
    return [kernel.name for kernel in materialize[SERIES]() if kernel.name != ""]


def find_kernel(name: Word) -> Kernel:
    """One without capabilities for a name that is not of the series: `find_error` refuses it."""
    comptime for kernel in SERIES:
        if name == kernel.name:
            return kernel
    return Kernel(name, pipelined=False, double_buffers_epilogue=False, is_persistent=False, is_block_scaled=False)
