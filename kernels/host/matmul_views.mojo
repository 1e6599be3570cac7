"""The MAX custom op of matrices in memory of the caller's whose rows may lie further apart than they are long: slices of
others, or transposed ones.

MAX hands on tensors without their strides. So each matrix is given as all of the memory from its first element to its
last, and M, N, K and the leading dimensions beside them, in elements. Raises as `matmul_fused_into` does.
"""
import extensibility
from extensibility import InputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from .launch_plan import LaunchPlan, TensorMap
from .matmul import ARCH, enqueue
from .operands import fused_operands
from .options import op_configuration
from max.gpu.host import DeviceContext


@extensibility.register("matmul_views_into")
struct MatmulViewsInto:
    """Behind a fused epilogue, if the options name one. An operand that it does not take is ignored."""

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
        comptime assert config.scales == "none", "matmul_views_into: A and B have 16 bits"
        var plan = LaunchPlan(config, Int(m), Int(n), Int(k), ld={Int(lda), Int(ldb), Int(ldc)})
        check_memory(plan.b if config.swapped else plan.a, a.dim_size(0), Int(a.unsafe_ptr()))
        check_memory(plan.a if config.swapped else plan.b, b.dim_size(0), Int(b.unsafe_ptr()))
        check_memory(plan.c, c.dim_size(0), Int(c.unsafe_ptr()))
        enqueue[target, config](c, a, b, a, b, ctx, plan, fused_operands[config](plan, bias, residual, alpha, beta))


def check_memory(map: TensorMap, elements: Int, address: Int) raises:
    """Raises if a matrix takes more memory than is given, or begins where TMA cannot begin."""
    var needed = (map.rows - 1) * map.pitch + map.columns
    if elements < needed:
        raise Error("matmul: ", map.tensor, " takes ", needed, " elements of memory, and there are ", elements)
    if address % 16 != 0:
        raise Error("matmul: ", map.tensor, " begins at byte ", address % 16, " of 16; TMA needs the first: copy it")
