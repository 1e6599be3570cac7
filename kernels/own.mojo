"""Stands for your own kernel: `harness run FILE.mojo` compiles your file instead of this one (docs/own-kernel.md)."""
from .common.config import GemmConfig
from .common.cta import Cta, Problem
from .common.kernel import Kernel
from .common.scheduler import TileScheduler

comptime KERNEL = Kernel("", pipelined=False, double_buffers_epilogue=False, is_persistent=False, is_block_scaled=False)


@inline(.always)
def kernel[config: GemmConfig](cta: Cta[config], problem: Problem, tiles: TileScheduler[config]):
    comptime assert False, "there is no kernel of your own"
