"""The kernels as MAX custom ops: C = A . B^T from A [M, K] and B [N, K], row-major. With the option `layout` nn, B is
[K, N]; with tt, A is [K, M]; with tn, both. All ops but `matmul` write into a buffer of the caller.

    matmul, matmul_into           C is the product
    matmul_fused_into             C is a fused epilogue applied to the product
    matmul_views_into             A, B and C may have leading dimensions beyond the length of a row
    grouped_matmul_into           the rows of A belong to groups, each with its own B
    scaled_matmul_into            A and B have scale factors; C is alpha times the product
    matmul_quantised_into         C has scale factors, so that the next product can take it as A
    scaled_matmul_quantised_into  A, B and C have scale factors

A and B are bf16 or fp16; C may also be f32. A, B or C with scale factors are bytes, [rows, columns / elements in a
byte], the first element in the lower half of a byte; the option `dtype` or `out_dtype` names their type. Scale factors:

    block-scaled            bytes in atoms (common/block_scaling.mojo), [rows / 128, blocks of K / 4, 512], rounded up
    e4m3, scales=block      f32, [K / 128, M] of A, [N / 128, K / 128] of B, rounded up, rows padded to 16 bytes
    e4m3, scales=tensor     none: alpha is the product of both factors; the op ignores the tensors in their place

The parameter `options` is a configuration as text (common/options.mojo), for example "kernel=kernel8 cluster_m=2
cluster_n=1". An op does not compile if this is no configuration of the device's architecture. An op ignores operands
that its epilogue does not take. Numbers are rank-0 tensors on the CPU. All ops raise if shapes do not match, if TMA
cannot address a size, if a bias or residual does not begin at a multiple of 4 bytes, and on other devices."""
import extensibility
from extensibility import InputTensor, ManagedTensorSlice, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from ..common.layer_config import LayerConfig
from ..common.layer import NO_GROUPS, NO_OPERANDS, EpilogueOperands, Groups
from .launch import launch, launch_direct
from .launch_plan import LaunchPlan
from .operands import check_memory, check_scales, check_shape, checked_factors_address, fused_operands
from .options import op_configuration
from max.gpu.host import DeviceContext
from std.sys.info import _has_sm_9x, _has_sm_100x

comptime ARCH = "sm_90a" if _has_sm_9x() else "sm_100a"
"""The architecture of the device that MAX compiles the op for."""


@extensibility.register("matmul")
struct Matmul:
    @staticmethod
    def execute[
        target: StaticString, out_dtype: DType, dtype: DType, //, options: StaticString
    ](
        c: OutputTensor[dtype=out_dtype, rank=2, ...],
        a: InputTensor[dtype=dtype, rank=2, ...],
        b: InputTensor[dtype=dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        enqueue_product[target, op_configuration[options, ARCH, dtype, out_dtype]()](c, a, b, ctx)


@extensibility.register("matmul_into")
struct MatmulInto:
    @staticmethod
    def execute[
        target: StaticString, out_dtype: DType, dtype: DType, //, options: StaticString
    ](
        c: MutableInputTensor[dtype=out_dtype, rank=2, ...],
        a: InputTensor[dtype=dtype, rank=2, ...],
        b: InputTensor[dtype=dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        enqueue_product[target, op_configuration[options, ARCH, dtype, out_dtype]()](c, a, b, ctx)


@extensibility.register("matmul_fused_into")
struct MatmulFusedInto:
    @staticmethod
    def execute[
        target: StaticString, out_dtype: DType, dtype: DType, //, options: StaticString
    ](
        c: MutableInputTensor[dtype=out_dtype, rank=2, ...],
        a: InputTensor[dtype=dtype, rank=2, ...],
        b: InputTensor[dtype=dtype, rank=2, ...],
        bias: InputTensor[dtype=dtype, rank=1, ...],
        residual: InputTensor[dtype=dtype, rank=2, ...],
        alpha: Float32,
        beta: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime config = op_configuration[options, ARCH, dtype, out_dtype]()
        comptime assert config.is_fused(), "matmul_fused_into needs the name of an epilogue"
        var plan = plan_of[config](c, a, b)
        enqueue[target, config](c, a, b, ctx, plan, fused_operands[config](plan, bias, residual, alpha, beta))


@extensibility.register("matmul_views_into")
struct MatmulViewsInto:
    """Takes each matrix as the memory from its first to its last element, with M, N, K and the leading dimensions in
    elements, because MAX passes tensors without strides. The options may name an epilogue."""

    @staticmethod
    def execute[
        target: StaticString, out_dtype: DType, dtype: DType, //, options: StaticString
    ](
        c: MutableInputTensor[dtype=out_dtype, rank=1, ...],
        a: InputTensor[dtype=dtype, rank=1, ...],
        b: InputTensor[dtype=dtype, rank=1, ...],
        bias: InputTensor[dtype=dtype, rank=1, ...],
        residual: InputTensor[dtype=dtype, rank=2, ...],
        m: Int64,
        n: Int64,
        k: Int64,
        lda: Int64,
        ldb: Int64,
        ldc: Int64,
        alpha: Float32,
        beta: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime config = op_configuration[options, ARCH, dtype, out_dtype]()
        var plan = LaunchPlan(config, Int(m), Int(n), Int(k), ld={Int(lda), Int(ldb), Int(ldc)})
        check_memory(plan.b if config.swapped else plan.a, a)
        check_memory(plan.a if config.swapped else plan.b, b)
        check_memory(plan.c, c)
        enqueue[target, config](c, a, b, ctx, plan, fused_operands[config](plan, bias, residual, alpha, beta))


@extensibility.register("grouped_matmul_into")
struct GroupedMatmulInto:
    """A is [M, K], B [groups, N, K], C [M, N], `bias` [groups, N]. `sizes` are the rows of each group, one group after
    the other, M in all; they lie on the device, and the host does not read them. With the option masked=true, A is
    [groups * rows, K] and C likewise; the size of a group says how many of its rows, from the first on, the kernel
    multiplies and stores. The kernel does not write any other rows."""

    @staticmethod
    def execute[
        target: StaticString, out_dtype: DType, dtype: DType, //, options: StaticString
    ](
        c: MutableInputTensor[dtype=out_dtype, rank=2, ...],
        a: InputTensor[dtype=dtype, rank=2, ...],
        b: InputTensor[dtype=dtype, rank=3, ...],
        sizes: InputTensor[dtype=DType.int32, rank=1, ...],
        bias: InputTensor[dtype=dtype, rank=2, ...],
        residual: InputTensor[dtype=dtype, rank=2, ...],
        alpha: Float32,
        beta: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime config = op_configuration[options, ARCH, dtype, out_dtype]()
        comptime assert config.grouped, "grouped_matmul_into needs grouped=true among its options"
        var groups = sizes.dim_size(0)
        var plan = LaunchPlan(config, a.dim_size(0), b.dim_size(1), a.dim_size(1), groups)
        check_shape("B", b, [groups, plan.n, plan.k])
        check_shape("C", c, [plan.m, plan.c.columns])
        var operands = fused_operands[config](plan, bias, residual, alpha, beta)
        enqueue[target, config](c, a, b, ctx, plan, operands, {UInt64(Int(sizes.unsafe_ptr())), UInt32(groups), 0})


@extensibility.register("matmul_quantised_into")
struct MatmulQuantisedInto:
    """`factors` have the layout of those of A. The kernel multiplies C of nvfp4 by `c_scale` before it quantises it.
    The options may name an epilogue."""

    @staticmethod
    def execute[
        target: StaticString, dtype: DType, factor_dtype: DType, factor_rank: Int, //, options: StaticString
    ](
        c: MutableInputTensor[dtype=DType.uint8, rank=2, ...],
        factors: MutableInputTensor[dtype=factor_dtype, rank=factor_rank, ...],
        a: InputTensor[dtype=dtype, rank=2, ...],
        b: InputTensor[dtype=dtype, rank=2, ...],
        bias: InputTensor[dtype=dtype, rank=1, ...],
        residual: InputTensor[dtype=dtype, rank=2, ...],
        alpha: Float32,
        beta: Float32,
        c_scale: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime config = op_configuration[options, ARCH, dtype, DType.uint8]()
        var plan = plan_of[config](c, a, b)
        var operands = fused_operands[config](plan, bias, residual, alpha, beta)
        operands.factors = checked_factors_address[config](plan, factors)
        operands.c_scale = c_scale
        enqueue[target, config](c, a, b, ctx, plan, operands)


@extensibility.register("scaled_matmul_into")
struct ScaledMatmulInto:
    @staticmethod
    def execute[
        target: StaticString, out_dtype: DType, scale_dtype: DType, scale_rank: Int, //, options: StaticString
    ](
        c: MutableInputTensor[dtype=out_dtype, rank=2, ...],
        a: InputTensor[dtype=DType.uint8, rank=2, ...],
        b: InputTensor[dtype=DType.uint8, rank=2, ...],
        a_scales: InputTensor[dtype=scale_dtype, rank=scale_rank, ...],
        b_scales: InputTensor[dtype=scale_dtype, rank=scale_rank, ...],
        alpha: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime config = op_configuration[options, ARCH, DType.uint8, out_dtype]()
        var plan = plan_of[config](c, a, b)
        enqueue_scaled[target, config](c, a, b, a_scales, b_scales, alpha, 0, 1, plan, ctx)


@extensibility.register("scaled_matmul_quantised_into")
struct ScaledMatmulQuantisedInto:
    @staticmethod
    def execute[
        target: StaticString,
        scale_dtype: DType,
        scale_rank: Int,
        factor_dtype: DType,
        factor_rank: Int,
        //,
        options: StaticString,
    ](
        c: MutableInputTensor[dtype=DType.uint8, rank=2, ...],
        factors: MutableInputTensor[dtype=factor_dtype, rank=factor_rank, ...],
        a: InputTensor[dtype=DType.uint8, rank=2, ...],
        b: InputTensor[dtype=DType.uint8, rank=2, ...],
        a_scales: InputTensor[dtype=scale_dtype, rank=scale_rank, ...],
        b_scales: InputTensor[dtype=scale_dtype, rank=scale_rank, ...],
        alpha: Float32,
        c_scale: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime config = op_configuration[options, ARCH, DType.uint8, DType.uint8]()
        var plan = plan_of[config](c, a, b)
        var place = checked_factors_address[config](plan, factors)
        enqueue_scaled[target, config](c, a, b, a_scales, b_scales, alpha, place, c_scale, plan, ctx)


def plan_of[
    config: LayerConfig
](
    c: ManagedTensorSlice[rank=2, ...], a: ManagedTensorSlice[rank=2, ...], b: ManagedTensorSlice[rank=2, ...]
) raises -> LaunchPlan:
    """Returns the launch plan. Raises if A and B differ in K, or if C does not have the shape of the result."""
    comptime in_a_byte = 8 // min(config.scaling.bits, 8)
    comptime k_of_a = 0 if config.a_is_k_by_m() else 1
    comptime k_of_b = 0 if config.b_is_k_by_n() else 1
    var k = a.dim_size(k_of_a)
    if b.dim_size(k_of_b) != k:
        var both = String(t"A [{a.dim_size(0)}, {a.dim_size(1)}] and B [{b.dim_size(0)}, {b.dim_size(1)}]")
        raise Error("matmul: ", both, " differ in K, with layout ", config.layout)
    var plan = LaunchPlan(config, a.dim_size(1 - k_of_a), b.dim_size(1 - k_of_b), k * in_a_byte)
    check_shape("C", c, [plan.m, plan.c.columns])
    return plan^


def enqueue_product[
    target: StaticString, config: LayerConfig
](
    c: ManagedTensorSlice[rank=2, ...],
    a: ManagedTensorSlice[rank=2, ...],
    b: ManagedTensorSlice[dtype=a.dtype, rank=2, ...],
    ctx: DeviceContext,
) raises:
    """Launches the kernel for 16-bit A and B whose product is C."""
    comptime assert not config.is_fused(), "matmul: an epilogue is matmul_fused_into's"
    var plan = plan_of[config](c, a, b)
    enqueue[target, config](c, a, b, ctx, plan)


def enqueue[
    target: StaticString, config: LayerConfig
](
    c: ManagedTensorSlice,
    a: ManagedTensorSlice,
    b: ManagedTensorSlice[dtype=a.dtype, ...],
    ctx: DeviceContext,
    plan: LaunchPlan,
    operands: EpilogueOperands = NO_OPERANDS,
    groups: Groups = NO_GROUPS,
) raises:
    """Launches the kernel for 16-bit A and B, which also fill the unread place of scale factors."""
    comptime assert config.scales == "none", "matmul: A and B with scale factors are scaled_matmul_into's"
    launch_on[target, config](c, a, b, a, b, ctx, plan, operands, groups)


def enqueue_scaled[
    target: StaticString, config: LayerConfig
](
    c: ManagedTensorSlice[rank=2, ...],
    a: ManagedTensorSlice,
    b: ManagedTensorSlice[dtype=a.dtype, ...],
    a_scales: ManagedTensorSlice,
    b_scales: ManagedTensorSlice[dtype=a_scales.dtype, ...],
    alpha: Float32,
    factors: UInt64,
    c_scale: Float32,
    plan: LaunchPlan,
    ctx: DeviceContext,
) raises:
    """Launches the kernel for A and B with scale factors. `factors` is the address of those of C, or 0."""
    comptime assert config.scales != "none", "scaled_matmul: 16-bit A and B are matmul_into's"
    check_scales[config](plan, a_scales, b_scales)
    var operands = EpilogueOperands(0, 0, alpha, 0, UInt32(plan.m), UInt32(plan.n), factors, c_scale)
    launch_on[target, config](c, a, b, a_scales, b_scales, ctx, plan, operands, NO_GROUPS)


def launch_on[
    target: StaticString, config: LayerConfig
](
    c: ManagedTensorSlice,
    a: ManagedTensorSlice,
    b: ManagedTensorSlice[dtype=a.dtype, ...],
    a_scales: ManagedTensorSlice,
    b_scales: ManagedTensorSlice[dtype=a_scales.dtype, ...],
    ctx: DeviceContext,
    plan: LaunchPlan,
    operands: EpilogueOperands,
    groups: Groups,
) raises:
    """Launches the kernel if the device supports it. Raises otherwise."""
    comptime on_gpu = target == "gpu" and (_has_sm_9x() or _has_sm_100x())
    comptime if on_gpu and config.gemm.kernel.reads_directly:
        launch_direct[config](
            ctx, plan, a.to_device_buffer(ctx), b.to_device_buffer(ctx), c.to_device_buffer(ctx), operands
        )
    elif on_gpu:
        launch[config](
            ctx,
            plan,
            a.to_device_buffer(ctx),
            b.to_device_buffer(ctx),
            c.to_device_buffer(ctx),
            a_scales.to_device_buffer(ctx),
            b_scales.to_device_buffer(ctx),
            operands,
            groups,
        )
    else:
        raise Error(
            "matmul: ",
            config.gemm.kernel.name,
            (
                " runs on GPUs of compute capability 9.0 (sm_90a: H100, H200) and 10.0"
                " (sm_100a: B200); this device is not one"
            ),
        )
