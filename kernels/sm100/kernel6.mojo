"""Kernel 6: a ring of stages and specialised warps. Loads, MMAs and waiting overlap.

    warps 0-3  epilogue   wait for the finished accumulator, write the whole tile of C
    warp 4     producer   one thread fills the ring by TMA: waits on empty barriers
    warp 5     MMA        one thread of the even CTA of a pair empties it: waits on full barriers

A stage goes round like this. The producers of all CTAs that share a tile each load a slice of it and multicast it; the bytes are
counted on the full barrier of the pair's even CTA. The MMA thread waits for them, issues the MMAs, and commits: when they
have read the stage, one arrival goes to the empty barrier of every CTA that wrote into it. A producer writes a
stage again only after every MMA that reads its slices has arrived.
"""
from ..common.config import GemmConfig
from ..common.ptx import mbarrier_wait, tensor_map_address
from .cta import Cta
from .epilogue import write_tile
from .mainloop import Loader, Multiplier, Ring
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA
from max.gpu.host.nvidia.tma import TMADescriptor
from max.gpu.primitives.cluster import elect_one_sync
from std.utils.static_tuple import StaticTuple

comptime PRODUCER_WARP = 4
comptime MMA_WARP = 5


@inline(.always)
def produce[config: GemmConfig](cta: Cta[config], a_map: UInt64, b_map: UInt64, k_iterations: UInt32):
    """Fills the ring, one stage for each K step, then waits until every reader has released every stage."""
    var loader = Loader[config](cta, a_map, b_map)
    var ring = Ring[config.stages](parity=1)
    var k: Int32 = 0
    for _ in range(k_iterations):
        mbarrier_wait(cta.empty(ring.stage), ring.parity)
        loader.load(cta, ring.stage, k)
        k += Int32(config.block_k)
        ring.advance()
    # Drain: the last commits of other CTAs must not find this one gone.
    comptime for _ in range(config.stages):
        mbarrier_wait(cta.empty(ring.stage), ring.parity)
        ring.advance()


@inline(.always)
def consume[config: GemmConfig](cta: Cta[config], k_iterations: UInt32):
    """Multiplies stage after stage as they become full, then hands the accumulator to the epilogues."""
    var multiplier = Multiplier[config](cta)
    var ring = Ring[config.stages](parity=0)
    for k in range(k_iterations):
        mbarrier_wait(cta.full(ring.stage), ring.parity)
        multiplier.multiply(cta, ring.stage, k > 0)
        ring.advance()
    multiplier.publish(cta)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(config.threads())),
    `nvvm.minctasm`=SIMDLength(1),
    `nvvm.cluster_dim`=StaticTuple[Int32, 3](Int32(config.cluster_m), Int32(config.cluster_n), 1),
)
@__llvm_arg_metadata(a_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(b_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(c_map, `nvvm.grid_constant`)
@__name(t"{config.label()}")
def kernel6[config: GemmConfig](a_map: TMADescriptor, b_map: TMADescriptor, c_map: TMADescriptor, k_iterations: UInt32):
    """C = A . B^T. Grid: x along M, y along N, in whole clusters; see LaunchPlan for the rest of the launch."""
    comptime wrong = config.error()
    comptime assert wrong.byte_length() == 0, wrong
    var a = tensor_map_address(Pointer(to=a_map))
    var b = tensor_map_address(Pointer(to=b_map))
    var c = tensor_map_address(Pointer(to=c_map))
    var cta = Cta[config]()
    cta.start(a, b, c)
    if cta.warp < PRODUCER_WARP:
        write_tile(cta, c)
    elif cta.warp == PRODUCER_WARP:
        if elect_one_sync():
            produce(cta, a, b, k_iterations)
    elif cta.in_pair() == 0:
        if elect_one_sync():
            consume(cta, k_iterations)
    cta.finish()
