"""Kernel 5: multicast and MMA without a pipeline. One stage, four warps.

One thread loads a stage, waits for it, multiplies it, and waits until it may load the next. A CTA never waits for the whole cluster:
the commit that follows an MMA arrives only at the CTAs that wrote into its operands, and a CTA loads again when
the MMAs that read its slices have all arrived. Afterwards all four warps write out the tile.
"""
from ..common.config import GemmConfig
from ..common.ptx import mbarrier_wait, tensor_map_address
from .cta import Cta
from .epilogue import write_tile
from .mainloop import Loader, Multiplier, Ring
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA
from max.gpu.host.nvidia.tma import TMADescriptor
from max.gpu.primitives.cluster import elect_one_sync
from max.gpu.sync import syncwarp
from std.utils.static_tuple import StaticTuple


@inline(.always)
def load_and_multiply[config: GemmConfig](cta: Cta[config], a_map: UInt64, b_map: UInt64, k_iterations: UInt32):
    """The K loop. Only the even CTA of a pair waits for full stages and multiplies; both load."""
    var loader = Loader[config](cta, a_map, b_map)
    var multiplier = Multiplier[config](cta)
    var ring = Ring[1](parity=0)
    for k in range(k_iterations):
        mbarrier_wait(cta.empty(0), ring.parity ^ 1)
        loader.load(cta, 0, Int32(k) * Int32(config.block_k))
        if cta.in_pair() == 0:
            mbarrier_wait(cta.full(0), ring.parity)
            multiplier.multiply(cta, 0, k > 0)
        ring.advance()
    if cta.in_pair() == 0:
        multiplier.publish(cta)
    # Drain: the last commits of other CTAs must not find this one gone.
    mbarrier_wait(cta.empty(0), ring.parity ^ 1)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(config.threads())),
    `nvvm.minctasm`=SIMDLength(1),
    `nvvm.cluster_dim`=StaticTuple[Int32, 3](Int32(config.cluster_m), Int32(config.cluster_n), 1),
)
@__llvm_arg_metadata(a_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(b_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(c_map, `nvvm.grid_constant`)
@__name(t"{config.label()}")
def kernel5[config: GemmConfig](a_map: TMADescriptor, b_map: TMADescriptor, c_map: TMADescriptor, k_iterations: UInt32):
    """C = A . B^T. Grid: x along M, y along N, in whole clusters; see LaunchPlan for the rest of the launch."""
    comptime wrong = config.error()
    comptime assert wrong.byte_length() == 0, wrong
    var a = tensor_map_address(Pointer(to=a_map))
    var b = tensor_map_address(Pointer(to=b_map))
    var c = tensor_map_address(Pointer(to=c_map))
    var cta = Cta[config]()
    cta.start(a, b, c)
    if cta.warp == 0:
        if elect_one_sync():
            load_and_multiply(cta, a, b, k_iterations)
        syncwarp()
    write_tile(cta, c)
    cta.finish()
