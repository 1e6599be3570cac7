"""Launches a kernel from the host, with the tensor maps and launch attributes of its launch plan."""
from ..common.tile import element_bytes
from ..common.schedule import *
from ..common.layer_config import LayerConfig
from .launch_plan import LaunchPlan, TensorMap, l2_promotion
from ..common.layer import EpilogueOperands, Groups
from ..entry import direct_gemm, gemm, scaled_gemm
from max.gpu.host import DeviceBuffer, DeviceContext, Dim, FuncAttribute
from max.gpu.primitives.grid_controls import PDLLevel, pdl_launch_attributes
from max.gpu.host.nvidia.tma import TensorMapL2Promotion, TensorMapSwizzle, TMADescriptor, create_tma_descriptor
from std.sys import size_of
from std.utils.index import Index


def swizzle_mode(bytes: Int) -> TensorMapSwizzle:
    """Returns the swizzle mode of rows of 0 (none), 32, 64 or 128 bytes."""
    if bytes == 0:
        return TensorMapSwizzle.SWIZZLE_NONE
    if bytes == 128:
        return TensorMapSwizzle.SWIZZLE_128B
    return TensorMapSwizzle.SWIZZLE_64B if bytes == 64 else TensorMapSwizzle.SWIZZLE_32B


def promotion(bytes: Int) -> TensorMapL2Promotion:
    """Returns the L2 promotion of 128 or 256 bytes."""
    return TensorMapL2Promotion.L2_256B if bytes == 256 else TensorMapL2Promotion.L2_128B


def tensor_map[
    dtype: DType, //, config: LayerConfig, swizzle_bytes: Int
](buffer: DeviceBuffer[dtype], map: TensorMap) raises -> TMADescriptor:
    """Creates a tensor map. The library takes dimensions outermost first, and the swizzle at compile time."""
    if map.swizzle_bytes() != swizzle_bytes:
        raise Error(
            "tensor map of ", map.tensor, ": a box of ", map.swizzle_bytes(), "-byte rows, a swizzle of ", swizzle_bytes
        )
    if map.windows > 0:
        return window_map[config, swizzle_bytes](buffer, map)
    return create_tma_descriptor[dtype, 2, swizzle_mode(swizzle_bytes), l2_promotion=promotion(l2_promotion(config))](
        buffer, Index(map.rows, map.columns), Index(map.pitch, 1), Index(map.box_rows, map.box_columns)
    )


def window_map[
    dtype: DType, //, config: LayerConfig, swizzle_bytes: Int
](buffer: DeviceBuffer[dtype], map: TensorMap) raises -> TMADescriptor:
    """Creates a tensor map of overlapping windows. It begins before C, but no store goes there (groups.mojo)."""
    var first = DeviceBuffer[dtype](
        buffer.context(), buffer.unsafe_ptr() - map.box_rows * map.columns, map.windows * map.columns, owning=False
    )
    return create_tma_descriptor[dtype, 3, swizzle_mode(swizzle_bytes), l2_promotion=promotion(l2_promotion(config))](
        first,
        Index(map.windows, map.box_rows, map.columns),
        Index(map.columns, map.columns, 1),
        Index(1, map.box_rows, map.box_columns),
    )


def launch[
    dtype: DType, out_dtype: DType, scale_dtype: DType, //, config: LayerConfig
](
    ctx: DeviceContext,
    plan: LaunchPlan,
    a: DeviceBuffer[dtype],
    b: DeviceBuffer[dtype],
    c: DeviceBuffer[out_dtype],
    a_scales: DeviceBuffer[scale_dtype],
    b_scales: DeviceBuffer[scale_dtype],
    operands: EpilogueOperands,
    groups: Groups,
) raises:
    """Enqueues the kernel: C = A . B^T, or a fused epilogue applied to it, or alpha * A . B^T if A and B have scale
    factors. A configuration without scale factors ignores `a_scales` and `b_scales`."""
    comptime assert (
        element_bytes(config.gemm.out_dtype) == size_of[out_dtype]()
    ), "the configuration and C differ in dtype"
    comptime if config.quantises():
        if operands.factors == 0:
            raise Error("C of ", config.c_dtype_name(), " has scale factors: use an op with quantised in its name")
    var workspace = List[DeviceBuffer[DType.uint32]]()
    var place: UInt64 = 0
    comptime if config.gemm.counts_tiles() or config.splits_k():
        # Each launch has its own workspace, because launches on several streams must not share one.
        workspace.append(ctx.enqueue_create_buffer[DType.uint32](plan.workspace // 4))
        ctx.enqueue_memset(workspace[0].create_sub_buffer[DType.uint32](0, plan.counters), 0)
        place = UInt64(Int(workspace[0].unsafe_ptr()))
    var a_map = tensor_map[config, 128](b if config.swapped else a, plan.a)
    var b_map = tensor_map[config, 128](a if config.swapped else b, plan.b)
    comptime c_row = element_bytes(config.gemm.out_dtype) * config.c_box()[1]
    var c_map = tensor_map[config, 0 if c_row == 16 else c_row](c, plan.c)
    var k_iterations = UInt32(plan.k_iterations)
    var rows = UInt32(plan.rows)
    var columns = UInt32(plan.columns)
    var grid = (plan.grid_x, plan.grid_y, plan.grid_z)
    var cluster = Dim(config.gemm.cluster_m, config.gemm.cluster_n, 1)
    var shared = plan.dynamic_shared_memory
    var limit = FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(shared))
    var overlap = pdl_launch_attributes(PDLLevel.ON if config.gemm.overlaps_launches() else PDLLevel.OFF)
    comptime if config.has_scale_factors():
        # The tensor map of atoms counts words of 8 bytes.
        comptime word = DType.float32 if config.promotes() else DType.uint64
        var words = size_of[word]() // size_of[scale_dtype]()
        ctx.enqueue_function[scaled_gemm[config]](
            a_map,
            b_map,
            c_map,
            tensor_map[config, 0](a_scales.create_sub_buffer[word](0, len(a_scales) // words), plan.scales[0]),
            tensor_map[config, 0](b_scales.create_sub_buffer[word](0, len(b_scales) // words), plan.scales[1]),
            k_iterations,
            rows,
            columns,
            place,
            operands.bias,
            operands.residual,
            operands.alpha,
            operands.beta,
            operands.factors,
            operands.c_scale,
            groups.sizes,
            groups.count,
            grid_dim=grid,
            block_dim=plan.block,
            cluster_dim=cluster,
            shared_mem_bytes=shared,
            func_attribute=limit,
            attributes=overlap^,
        )
    else:
        ctx.enqueue_function[gemm[config]](
            a_map,
            b_map,
            c_map,
            k_iterations,
            rows,
            columns,
            place,
            operands.bias,
            operands.residual,
            operands.alpha,
            operands.beta,
            operands.factors,
            operands.c_scale,
            groups.sizes,
            groups.count,
            grid_dim=grid,
            block_dim=plan.block,
            cluster_dim=cluster,
            shared_mem_bytes=shared,
            func_attribute=limit,
            attributes=overlap^,
        )
    _ = workspace^  # keeps the workspace until the kernel is in the queue


def launch_direct[
    dtype: DType, out_dtype: DType, //, config: LayerConfig
](
    ctx: DeviceContext,
    plan: LaunchPlan,
    a: DeviceBuffer[dtype],
    b: DeviceBuffer[dtype],
    c: DeviceBuffer[out_dtype],
    operands: EpilogueOperands,
) raises:
    """Enqueues a kernel that reads directly, and so takes addresses in place of tensor maps."""
    ctx.enqueue_function[direct_gemm[config]](
        UInt64(Int(a.unsafe_ptr())),
        UInt64(Int(b.unsafe_ptr())),
        UInt64(Int(c.unsafe_ptr())),
        UInt32(plan.m),
        UInt32(plan.n),
        UInt32(plan.a.columns * plan.a.element_bytes),
        UInt32(plan.a.row_bytes()),
        UInt32(plan.b.row_bytes()),
        UInt32(plan.c.row_bytes()),
        operands.bias,
        operands.residual,
        operands.alpha,
        operands.beta,
        grid_dim=(plan.grid_x, plan.grid_y, plan.grid_z),
        block_dim=plan.block,
        shared_mem_bytes=plan.dynamic_shared_memory,
        func_attribute=FuncAttribute.MAX_DYNAMIC_SHARED_SIZE_BYTES(UInt32(plan.dynamic_shared_memory)),
        attributes=pdl_launch_attributes(PDLLevel.ON),
    )
