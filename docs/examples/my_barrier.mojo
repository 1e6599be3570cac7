"""A kernel of one's own with a barrier and a buffer: kernel 7, whose producer hands a factor to the epilogue warps."""
from kernels.common.config import GemmConfig
from kernels.common.cta import Cta, Problem
from kernels.common.epilogue_store import finish_stores, write_step
from kernels.common.kernel import Barrier, Buffer, Kernel
from kernels.common.producer import produce_tile
from kernels.common.ptx import load_shared_f32, store_shared
from kernels.common.scheduler import TileScheduler
from kernels.sm100.epilogue import EPILOGUE_WARPS, wait_for_accumulator
from kernels.sm100.mainloop import multiply_tile
from max.gpu.primitives.cluster import elect_one_sync
from std.memory import bitcast

comptime READY = Barrier(
    "factor ready",
    count=1,
    arrivals=1,
    bytes=0,
    arrives="the producer, after it has stored the factor",
    waits="the epilogue warps",
)
comptime FACTOR = Buffer("factor", bytes=4)
comptime KERNEL = Kernel(
    "my_barrier",
    pipelined=True,
    double_buffers_epilogue=True,
    is_persistent=False,
    is_block_scaled=False,
    barriers=[READY],
    buffers=[FACTOR],
)


@inline(.always)
def kernel[config: GemmConfig](cta: Cta[config], problem: Problem, tiles: TileScheduler[config]):
    """What the threads of a CTA do between its start and its end."""
    comptime assert config.has_tmem(), "my_barrier is written for sm_100a; give -c arch=sm_100a"
    if cta.warp < EPILOGUE_WARPS:
        cta.barrier[KERNEL, READY]().wait(0)
        var factor = load_shared_f32[0](cta.buffer[KERNEL, FACTOR]())
        var epilogue = wait_for_accumulator(cta, tiles.tile)
        comptime for step in range(config.epilogue_steps()):
            var values = epilogue.load[step]() * factor
            write_step[config, step](epilogue, epilogue.pack_words(values), problem.c)
        finish_stores(epilogue.leads())
    elif cta.warp == EPILOGUE_WARPS:
        if elect_one_sync():
            store_shared(cta.buffer[KERNEL, FACTOR](), bitcast[DType.uint32](Float32(1)))
            cta.barrier[KERNEL, READY]().arrive()
            produce_tile(cta, problem, tiles.tile)
    else:
        multiply_tile(cta, problem)
