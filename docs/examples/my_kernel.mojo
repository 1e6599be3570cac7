"""A kernel of one's own, to begin with: kernel 7. `harness run docs/examples/my_kernel.mojo` compiles and runs it."""
from kernels.common.config import GemmConfig
from kernels.common.cta import Cta, Problem
from kernels.common.epilogue_store import finish_stores, write_double_buffered
from kernels.common.kernel import Kernel
from kernels.common.producer import produce_tile
from kernels.common.scheduler import TileScheduler
from kernels.sm100.epilogue import EPILOGUE_WARPS, wait_for_accumulator
from kernels.sm100.mainloop import multiply_tile
from max.gpu.primitives.cluster import elect_one_sync

comptime KERNEL = Kernel(
    "my_kernel", pipelined=True, double_buffers_epilogue=True, is_persistent=False, is_block_scaled=False
)
comptime PRODUCER_WARP = EPILOGUE_WARPS


@inline(.always)
def kernel[config: GemmConfig](cta: Cta[config], problem: Problem, tiles: TileScheduler[config]):
    """What the threads of a CTA do between its start and its end."""
    comptime assert config.has_tmem(), "my_kernel is written for sm_100a; give -c arch=sm_100a"
    if cta.warp < EPILOGUE_WARPS:
        var epilogue = wait_for_accumulator(cta, tiles.tile)
        write_double_buffered[config](epilogue, problem.c)
        finish_stores(epilogue.leads())
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce_tile(cta, problem, tiles.tile)
    else:
        multiply_tile(cta, problem)
