"""The MAX custom op of groups: C = A . B^T, row by row of A with the B of the row's group, in a buffer of the caller's.

A is [M, K], B [groups, N, K], C [M, N], row-major; `sizes` int32 [groups] on the device, rows of A that each group has, one
after the other, M in all. The host does not read them. Behind a fused epilogue: `bias` [groups, N], `residual` [M, N]; an
operand that it does not take is ignored. With masked=true among the options A is [groups * rows, K] and C likewise, and of
each group's rows the first `sizes` say are multiplied and stored.

Raises as `matmul` does. Rows that sizes do not reach are not written, and nothing is beyond C.
"""
import extensibility
from extensibility import InputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from .launch_plan import LaunchPlan
from .matmul import ARCH, enqueue
from .operands import check_shape, fused_operands
from .options import op_configuration
from max.gpu.host import DeviceContext


@extensibility.register("grouped_matmul_into")
struct GroupedMatmulInto:
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
        var k = a.dim_size(1)
        var groups = sizes.dim_size(0)
        var plan = LaunchPlan(config, a.dim_size(0), b.dim_size(1), k, groups)
        check_shape("B", b, [groups, plan.n, k])
        check_shape("C", c, [plan.m, plan.c.columns])
        var operands = fused_operands[config](plan, bias, residual, alpha, beta)
        enqueue[target, config](
            c, a, b, a, b, ctx, plan, operands, {UInt64(Int(sizes.unsafe_ptr())), UInt32(groups), 0}
        )
