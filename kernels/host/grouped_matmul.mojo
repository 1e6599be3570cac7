"""The MAX custom op of groups: C = A . B^T, row by row of A with the B of the row's group, in a buffer of the caller's.

A is [M, K], B [groups, N, K], C [M, N], row-major; `sizes` int32 [groups] on the device, rows of A that each group has, one
after the other, M in all. The host does not read them. Behind a fused epilogue: `bias` [groups, N], `residual` [M, N]; an
operand that it does not take is ignored.

Raises as `matmul` does. Rows that sizes do not reach are not written, and nothing is beyond C.
"""
import extensibility
from extensibility import InputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from ..common.fragment import EpilogueOperands
from ..common.groups import Groups
from .launch import launch
from .matmul import ARCH
from .options import op_configuration
from .scaled_matmul import list_text
from max.gpu.host import DeviceContext
from std.sys.info import _has_sm_9x, _has_sm_100x


def check_shape(name: StaticString, shape: List[Int], expected: List[Int]) raises:
    if shape != expected:
        raise Error("grouped_matmul: ", name, " is ", list_text(shape), ", not ", list_text(expected))


def check_place(name: StaticString, address: Int) raises:
    if address % 4 != 0:
        raise Error("grouped_matmul: ", name, " begins at an odd element; it is read two at a time, from 4 bytes on")


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
        comptime fusion = config.fusion()
        var m = a.dim_size(0)
        var k = a.dim_size(1)
        var groups = sizes.dim_size(0)
        var n = b.dim_size(1)
        check_shape("B", [b.dim_size(0), n, b.dim_size(2)], [groups, n, k])
        check_shape("C", [c.dim_size(0), c.dim_size(1)], [m, fusion.columns(n)])
        comptime if fusion.takes_bias:
            check_shape("bias", [bias.dim_size(0), bias.dim_size(1)], [groups, n])
            check_place("bias", Int(bias.unsafe_ptr()))
        comptime if fusion.takes_residual:
            check_shape("residual", [residual.dim_size(0), residual.dim_size(1)], [m, n])
            check_place("residual", Int(residual.unsafe_ptr()))
        var places = (UInt64(Int(bias.unsafe_ptr())), UInt64(Int(residual.unsafe_ptr())))
        comptime if target == "gpu" and (_has_sm_9x() or _has_sm_100x()):
            launch[config](
                ctx,
                a.to_device_buffer(ctx),
                b.to_device_buffer(ctx),
                c.to_device_buffer(ctx),
                m,
                n,
                k,
                EpilogueOperands(places[0], places[1], alpha, beta, UInt32(m), UInt32(n), 0),
                Groups(UInt64(Int(sizes.unsafe_ptr())), UInt32(groups)),
            )
        else:
            raise Error("grouped_matmul: this device is not of compute capability 9.0 or 10.0")
