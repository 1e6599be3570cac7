"""The entry point of all kernels: launch bounds, cluster shape, and the life of a CTA around a kernel's own work."""
from ..common.config import GemmConfig
from ..common.ptx import tensor_map_address
from .cta import Cta
from .kernel5 import kernel5
from .kernel6 import kernel6
from .kernel7 import kernel7
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA
from max.gpu.host.nvidia.tma import TMADescriptor
from std.utils.static_tuple import StaticTuple

comptime ARCH = "sm_100a"


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(config.threads())),
    `nvvm.minctasm`=SIMDLength(1),
    `nvvm.cluster_dim`=StaticTuple[Int32, 3](Int32(config.cluster_m), Int32(config.cluster_n), 1),
)
@__llvm_arg_metadata(a_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(b_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(c_map, `nvvm.grid_constant`)
@__name(t"{config.label()}")
def gemm[config: GemmConfig](a_map: TMADescriptor, b_map: TMADescriptor, c_map: TMADescriptor, k_iterations: UInt32):
    """C = A . B^T. Grid: x along M, y along N, in whole clusters; LaunchPlan has the sizes and the tensor maps."""
    comptime wrong = config.error()
    comptime assert wrong.byte_length() == 0, wrong
    var a = tensor_map_address(Pointer(to=a_map))
    var b = tensor_map_address(Pointer(to=b_map))
    var c = tensor_map_address(Pointer(to=c_map))
    var cta = Cta[config]()
    cta.start(a, b, c)
    comptime if config.kernel == "kernel5":
        kernel5(cta, a, b, c, k_iterations)
    elif config.kernel == "kernel6":
        kernel6(cta, a, b, c, k_iterations)
    else:
        comptime assert config.kernel == "kernel7"
        kernel7(cta, a, b, c, k_iterations)
    cta.finish()
