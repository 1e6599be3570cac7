"""The MAX custom op of A and B with scale factors: C = alpha * A . B^T, in a buffer of the caller's.

A and B are bytes of the type that `dtype` among the options names: [M, K / elements in a byte] and [N, likewise],
row-major, the first element in the lower half of a byte. `alpha` is a rank-0 tensor on the CPU. Scale factors:

    block-scaled            bytes in atoms (common/block_scaling.mojo), [rows / 128, blocks of K / 4, 512], rounded up
    e4m3, scales=block      f32, of A [K / 128, M], of B [N / 128, K / 128], rounded up and rows to 16 bytes
    e4m3, scales=tensor     none: alpha is the product of both; what is given in their place is ignored

Raises as `matmul` does, and for scale factors of another shape or type.
"""
import extensibility
from extensibility import InputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from ..common.block_scaling import ATOM_BLOCKS, ATOM_BYTES, ATOM_ROWS
from ..common.config import GemmConfig
from ..common.fragment import EpilogueOperands
from .launch import launch
from .launch_plan import LaunchPlan
from .matmul import ARCH
from .options import op_configuration
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.sys.info import _has_sm_9x, _has_sm_100x


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
        comptime assert config.scales != "none", "scaled_matmul: 16-bit A and B are matmul_into's"
        comptime in_a_byte = 8 // min(config.scaling.bits, 8)
        var m = a.dim_size(0)
        var n = b.dim_size(0)
        var k = a.dim_size(1) * in_a_byte
        var k_of_b = b.dim_size(1) * in_a_byte
        if k != k_of_b:
            raise Error(
                "scaled_matmul: A [", m, ", ", k, "] and B [", n, ", ", k_of_b, "] differ in K, their last dimension"
            )
        if c.dim_size(0) != m or c.dim_size(1) != n:
            raise Error("scaled_matmul: C is [", c.dim_size(0), ", ", c.dim_size(1), "], not [", m, ", ", n, "]")
        comptime if config.has_scale_factors():
            var of_a = List[Int]()
            var of_b = List[Int]()
            comptime for i in range(scale_rank):
                of_a.append(a_scales.dim_size(i))
                of_b.append(b_scales.dim_size(i))
            comptime kind = DType.float32 if config.promotes() else DType.uint8
            var plan = LaunchPlan(config, m, n, k)
            check_scales("A", of_a, scale_dtype, scale_shape(config, plan, 0, m, k), kind)
            check_scales("B", of_b, scale_dtype, scale_shape(config, plan, 1, n, k), kind)
        comptime if target == "gpu" and (_has_sm_9x() or _has_sm_100x()):
            launch[config](
                ctx,
                a.to_device_buffer(ctx),
                b.to_device_buffer(ctx),
                c.to_device_buffer(ctx),
                a_scales.to_device_buffer(ctx),
                b_scales.to_device_buffer(ctx),
                m,
                n,
                k,
                EpilogueOperands(0, 0, alpha, 0, UInt32(m), UInt32(n), 0),
            )
        else:
            raise Error(
                "scaled_matmul: ",
                config.kernel.name,
                " runs on GPUs of compute capability 9.0 (e4m3) and 10.0 (block-scaled); this device is not one",
            )


def scale_shape(config: GemmConfig, plan: LaunchPlan, operand: Int, rows: Int, k: Int) -> List[Int]:
    """That of the scale factors of A (0) or B (1)."""
    if config.promotes():
        return [plan.scales[operand].rows, plan.scales[operand].columns]
    return [ceildiv(rows, ATOM_ROWS), ceildiv(k, config.scaling.block() * ATOM_BLOCKS), ATOM_BYTES]


def check_scales(name: StaticString, shape: List[Int], dtype: DType, expected: List[Int], kind: DType) raises:
    """Raises for scale factors of another type or shape."""
    if dtype != kind:
        raise Error("scaled_matmul: the scale factors of ", name, " are ", dtype, ", not ", kind)
    if shape != expected:
        raise Error(
            "scaled_matmul: the scale factors of ", name, " are ", list_text(shape), ", not ", list_text(expected)
        )


def list_text(sizes: List[Int]) -> String:
    return String("[", String(", ").join([String(size) for size in sizes]), "]")
