"""The MAX custom op of A and B with scale factors: C = alpha * A . B^T, in a buffer of the caller's.

A and B are bytes of the type that `dtype` among the options names: [M, K / elements in a byte] and [N, likewise],
row-major, the first element in the lower half of a byte. `alpha` is a rank-0 tensor on the CPU. Scale factors:

    block-scaled            bytes in atoms (common/block_scaling.mojo), [rows / 128, blocks of K / 4, 512], rounded up
    e4m3, scales=block      f32, of A [K / 128, M], of B [N / 128, K / 128], rounded up and rows to 16 bytes
    e4m3, scales=tensor     none: alpha is the product of both; what is given in their place is ignored

Raises as `matmul` does, and for scale factors of another shape or type.
"""
import extensibility
from extensibility import InputTensor, ManagedTensorSlice
from extensibility import _MutableInputTensor as MutableInputTensor
from ..common.config import GemmConfig
from ..common.fragment import EpilogueOperands
from .launch_plan import LaunchPlan, atoms
from .matmul import ARCH, enqueue, plan_of
from .operands import check_shape
from .options import op_configuration
from max.gpu.host import DeviceContext


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
        var plan = plan_of[config](a, b)
        multiply_scaled[target, config](c, a, b, a_scales, b_scales, alpha, 0, 1, plan, ctx)


def multiply_scaled[
    out_dtype: DType, scale_dtype: DType, scale_rank: Int, //, target: StaticString, config: GemmConfig
](
    c: ManagedTensorSlice[dtype=out_dtype, rank=2, ...],
    a: ManagedTensorSlice[dtype=DType.uint8, rank=2, ...],
    b: ManagedTensorSlice[dtype=DType.uint8, rank=2, ...],
    a_scales: ManagedTensorSlice[dtype=scale_dtype, rank=scale_rank, ...],
    b_scales: ManagedTensorSlice[dtype=scale_dtype, rank=scale_rank, ...],
    alpha: Float32,
    factors: UInt64,
    c_scale: Float32,
    plan: LaunchPlan,
    ctx: DeviceContext,
) raises:
    """Checks the shapes and enqueues the kernel. factors: the place of those of C, where it has any."""
    comptime assert config.scales != "none", "scaled_matmul: 16-bit A and B are matmul_into's"
    check_shape("C", c, [plan.m, plan.c.columns])
    comptime if config.has_scale_factors():
        comptime kind = DType.float32 if config.promotes() else DType.uint8
        comptime if scale_dtype != kind:
            raise Error("matmul: the scale factors of A and B are ", scale_dtype, ", not ", kind)
        check_shape("the scale factors of A", a_scales, scale_shape(config, plan, 0, plan.m))
        check_shape("the scale factors of B", b_scales, scale_shape(config, plan, 1, plan.n))
    var operands = EpilogueOperands(0, 0, alpha, 0, UInt32(plan.m), UInt32(plan.n), factors, c_scale)
    enqueue[target, config](c, a, b, a_scales, b_scales, ctx, plan, operands)


def scale_shape(config: GemmConfig, plan: LaunchPlan, operand: Int, rows: Int) -> List[Int]:
    """That of the scale factors of A (0) or B (1)."""
    if config.promotes():
        return [plan.scales[operand].rows, plan.scales[operand].columns]
    return atoms(config.scaling, rows, plan.k)
