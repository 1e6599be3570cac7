"""The kernels of the series."""

from ..own import KERNEL as OWN
from .block_scaling import SCALES_EMPTY
from .kernel import Kernel
from .word import Word

comptime SERIES = [
    Kernel("kernel5", pipelined=False, double_buffers_epilogue=False, is_persistent=False, is_block_scaled=False),
    Kernel("kernel6", pipelined=True, double_buffers_epilogue=False, is_persistent=False, is_block_scaled=False),
    Kernel("kernel7", pipelined=True, double_buffers_epilogue=True, is_persistent=False, is_block_scaled=False),
    Kernel(
        "kernel8",
        pipelined=True,
        double_buffers_epilogue=True,
        is_persistent=True,
        is_block_scaled=False,
        fuses=True,
    ),
    Kernel(
        "kernel9",
        pipelined=True,
        double_buffers_epilogue=True,
        is_persistent=True,
        is_block_scaled=True,
        barriers=[SCALES_EMPTY],
    ),
    Kernel(
        "rows",
        pipelined=False,
        double_buffers_epilogue=False,
        is_persistent=False,
        is_block_scaled=False,
        fuses=True,
        reads_directly=True,
    ),
    OWN,
]


def kernel_names() -> List[Word]:
    """Returns the names of all kernels. Your own kernel is absent if no file is given for it."""
    var found = List[Word]()
    comptime for kernel in SERIES:
        comptime if kernel.capabilities.name != "":
            found.append(kernel.capabilities.name)
    return found^


def find_kernel(name: Word) -> Kernel:
    """Returns the kernel of this name. For an unknown name, returns a kernel without capabilities, which the rules
    refuse."""
    comptime for kernel in SERIES:
        if name == kernel.capabilities.name:
            return kernel
    return Kernel(name, pipelined=False, double_buffers_epilogue=False, is_persistent=False, is_block_scaled=False)
