"""The kernels as MAX custom ops: C = A . B^T from A [M, K] and B [N, K], row-major, or as the option `layout` says: nn B
[K, N], tt A [K, M], tn both.

`matmul` returns a new C, `matmul_into` overwrites a buffer of the caller's, `matmul_fused_into` with what a fused epilogue
makes of the product; `matmul_quantised_into`, `scaled_matmul_into`, `grouped_matmul_into` and `matmul_views_into` have
files of their own. A and B are bf16 or fp16, C may be f32, too. The one parameter, `options`, is a configuration as text (options.mojo), such as
"kernel=kernel8 cluster_m=2 cluster_n=1". What is no configuration of the device's architecture does not compile. All raise
on shapes that do not match, on sizes that TMA cannot address, on a bias or residual that does not begin at 4 bytes, and on
devices the kernels are not written for.
"""
import extensibility
from extensibility import InputTensor, ManagedTensorSlice, OutputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from ..common.config import GemmConfig
from ..common.fragment import NO_OPERANDS, EpilogueOperands
from ..common.groups import NO_GROUPS, Groups
from .launch import launch
from .launch_plan import LaunchPlan
from .operands import check_shape, fused_operands
from .options import op_configuration
from max.gpu.host import DeviceContext
from std.sys.info import _has_sm_9x, _has_sm_100x

comptime ARCH = "sm_90a" if _has_sm_9x() else "sm_100a"
"""That of the device the op is compiled for."""


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
        comptime config = op_configuration[options, ARCH, dtype, out_dtype]()
        comptime assert not config.is_fused(), "matmul: an epilogue is matmul_fused_into's"
        multiply[target, config](c, a, b, ctx, plan_of[config](a, b))


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
        comptime config = op_configuration[options, ARCH, dtype, out_dtype]()
        comptime assert not config.is_fused(), "matmul: an epilogue is matmul_fused_into's"
        multiply[target, config](c, a, b, ctx, plan_of[config](a, b))


@extensibility.register("matmul_fused_into")
struct MatmulFusedInto:
    """Behind a fused epilogue. An operand that it does not take is ignored."""

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
        var plan = plan_of[config](a, b)
        multiply[target, config](c, a, b, ctx, plan, fused_operands[config](plan, bias, residual, alpha, beta))


def plan_of[
    config: GemmConfig
](a: ManagedTensorSlice[rank=2, ...], b: ManagedTensorSlice[rank=2, ...]) raises -> LaunchPlan:
    """Of A and B, which must agree in K."""
    comptime in_a_byte = 8 // min(config.scaling.bits, 8)
    comptime k_of_a = 0 if config.a_is_k_by_m() else 1
    comptime k_of_b = 0 if config.b_is_k_by_n() else 1
    var k = a.dim_size(k_of_a)
    if b.dim_size(k_of_b) != k:
        var both = String(t"A [{a.dim_size(0)}, {a.dim_size(1)}] and B [{b.dim_size(0)}, {b.dim_size(1)}]")
        raise Error("matmul: ", both, " differ in K, with layout ", config.layout)
    return LaunchPlan(config, a.dim_size(1 - k_of_a), b.dim_size(1 - k_of_b), k * in_a_byte)


def multiply[
    out_dtype: DType, dtype: DType, //, target: StaticString, config: GemmConfig
](
    c: ManagedTensorSlice[dtype=out_dtype, rank=2, ...],
    a: ManagedTensorSlice[dtype=dtype, rank=2, ...],
    b: ManagedTensorSlice[dtype=dtype, rank=2, ...],
    ctx: DeviceContext,
    plan: LaunchPlan,
    operands: EpilogueOperands = NO_OPERANDS,
) raises:
    """Checks the shape of C and enqueues the kernel."""
    comptime assert config.scales == "none", "matmul: A and B with scale factors are scaled_matmul_into's"
    check_shape("C", c, [plan.m, plan.c.columns])
    enqueue[target, config](c, a, b, a, b, ctx, plan, operands)


def enqueue[
    out_dtype: DType, dtype: DType, scale_dtype: DType, //, target: StaticString, config: GemmConfig
](
    c: ManagedTensorSlice[dtype=out_dtype, ...],
    a: ManagedTensorSlice[dtype=dtype, ...],
    b: ManagedTensorSlice[dtype=dtype, ...],
    a_scales: ManagedTensorSlice[dtype=scale_dtype, ...],
    b_scales: ManagedTensorSlice[dtype=scale_dtype, ...],
    ctx: DeviceContext,
    plan: LaunchPlan,
    operands: EpilogueOperands,
    groups: Groups = NO_GROUPS,
) raises:
    """Where A and B have no scale factors, they stand in the place of them."""
    comptime if target == "gpu" and (_has_sm_9x() or _has_sm_100x()):
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
            config.kernel.name,
            (
                " runs on GPUs of compute capability 9.0 (sm_90a: H100, H200) and 10.0"
                " (sm_100a: B200); this device is not one"
            ),
        )
