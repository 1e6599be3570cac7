"""The MAX custom ops whose C has scale factors: what the next product takes as A.

C is bytes of the type that `out_dtype` among the options names, [M, its columns / elements in a byte]; `factors` lie as those of
A (scaled_matmul.mojo). C of nvfp4 is multiplied by `c_scale` before it is quantised. A and B, what else is read and what is
refused: those of the ops without `quantised` in their names.
"""
import extensibility
from extensibility import InputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from .matmul import ARCH, multiply, plan_of
from .operands import factors_place, fused_operands
from .options import op_configuration
from .scaled_matmul import multiply_scaled
from max.gpu.host import DeviceContext


@extensibility.register("matmul_quantised_into")
struct MatmulQuantisedInto:
    """Of 16-bit A and B, behind a fused epilogue, if the options name one."""

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
        var plan = plan_of[config](a, b)
        var operands = fused_operands[config](plan, bias, residual, alpha, beta)
        operands.factors = factors_place[config](plan, factors)
        operands.c_scale = c_scale
        multiply[target, config](c, a, b, ctx, plan, operands)


@extensibility.register("scaled_matmul_quantised_into")
struct ScaledMatmulQuantisedInto:
    """Of A and B with scale factors."""

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
        var plan = plan_of[config](a, b)
        var place = factors_place[config](plan, factors)
        multiply_scaled[target, config](c, a, b, a_scales, b_scales, alpha, place, c_scale, plan, ctx)
