"""The MAX custom ops whose C is e4m3, with a scale factor for each 128 columns of a row: what the next product takes as A.

C is bytes [M, its columns]; `factors` f32 [its columns / 128, M], rounded up and rows to 16 bytes. A and B, what else is read
and what is refused: those of the ops without `quantised` in their names.
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
        target: StaticString, dtype: DType, //, options: StaticString
    ](
        c: MutableInputTensor[dtype=DType.uint8, rank=2, ...],
        factors: MutableInputTensor[dtype=DType.float32, rank=2, ...],
        a: InputTensor[dtype=dtype, rank=2, ...],
        b: InputTensor[dtype=dtype, rank=2, ...],
        bias: InputTensor[dtype=dtype, rank=1, ...],
        residual: InputTensor[dtype=dtype, rank=2, ...],
        alpha: Float32,
        beta: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime config = op_configuration[options, ARCH, dtype, DType.float8_e4m3fn]()
        var plan = plan_of[config](a, b)
        var operands = fused_operands[config](plan, bias, residual, alpha, beta)
        operands.factors = factors_place(plan, factors)
        multiply[target, config](c, a, b, ctx, plan, operands)


@extensibility.register("scaled_matmul_quantised_into")
struct ScaledMatmulQuantisedInto:
    """Of A and B with scale factors."""

    @staticmethod
    def execute[
        target: StaticString, scale_dtype: DType, //, options: StaticString
    ](
        c: MutableInputTensor[dtype=DType.uint8, rank=2, ...],
        factors: MutableInputTensor[dtype=DType.float32, rank=2, ...],
        a: InputTensor[dtype=DType.uint8, rank=2, ...],
        b: InputTensor[dtype=DType.uint8, rank=2, ...],
        a_scales: InputTensor[dtype=scale_dtype, rank=2, ...],
        b_scales: InputTensor[dtype=scale_dtype, rank=2, ...],
        alpha: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime config = op_configuration[options, ARCH, DType.uint8, DType.float8_e4m3fn]()
        var plan = plan_of[config](a, b)
        var place = factors_place(plan, factors)
        multiply_scaled[target, config](c, a, b, a_scales, b_scales, alpha, place, plan, ctx)
