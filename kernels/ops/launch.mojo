"""Host launch code: tensor maps and launch attributes straight from the launch plan."""
from ..common.config import GemmConfig
from ..common.launch_plan import LaunchPlan, TensorMap
from ..sm100.kernels import kernel
from max.gpu.host import Attribute, DeviceBuffer, DeviceContext, Dim, FuncAttribute
from max.gpu.host.nvidia.tma import TensorMapL2Promotion, TensorMapSwizzle, TMADescriptor, create_tma_descriptor
from std.utils.index import Index


def swizzle_mode(bytes: Int) -> TensorMapSwizzle:
    if bytes == 128:
        return TensorMapSwizzle.SWIZZLE_128B
    return TensorMapSwizzle.SWIZZLE_64B if bytes == 64 else TensorMapSwizzle.SWIZZLE_32B


def tensor_map[dtype: DType, swizzle_bytes: Int](buffer: DeviceBuffer[dtype], map: TensorMap) raises -> TMADescriptor:
    """Shapes, strides and boxes are outermost first here, in elements. The swizzle is a compile-time value."""
    if map.swizzle_bytes() != swizzle_bytes:
        raise Error("tensor map of ", map.tensor, ": ", map.swizzle_bytes(), "-byte rows do not fit a swizzle of ", swizzle_bytes)
    return create_tma_descriptor[dtype, 2, swizzle_mode(swizzle_bytes), l2_promotion=TensorMapL2Promotion.L2_256B](
        buffer, Index(map.rows, map.columns), Index(map.columns, 1), Index(map.box_rows, map.box_columns)
    )


def launch[
    dtype: DType, //, config: GemmConfig
](
    ctx: DeviceContext,
    a: DeviceBuffer[dtype],
    b: DeviceBuffer[dtype],
    c: DeviceBuffer[dtype],
    m: Int,
    n: Int,
    k: Int,
) raises:
    """Enqueues C = A . B^T; raises if the sizes cannot be addressed."""
    comptime assert config.dtype == dtype, "the configuration and the buffers differ in dtype"
    # A launch takes one attribute. The size of dynamic shared memory also raises the limit by itself, a cluster of more than 8
    # CTAs is possible only with its own.
    var attribute = FuncAttribute(Attribute.NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)
    comptime if config.cluster_size() <= 8:
        attribute = FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(config.shared_memory_bytes()))
    var plan = LaunchPlan(config, m, n, k)
    ctx.enqueue_function[kernel[config]](
        tensor_map[swizzle_bytes=128](a, plan.a),
        tensor_map[swizzle_bytes=128](b, plan.b),
        tensor_map[swizzle_bytes=2 * config.epilogue_width](c, plan.c),
        UInt32(plan.k_iterations),
        grid_dim=(plan.grid_x, plan.grid_y),
        block_dim=plan.block,
        cluster_dim=Dim(config.cluster_m, config.cluster_n, 1),
        shared_mem_bytes=plan.dynamic_shared_memory,
        func_attribute=attribute,
    )
