"""The kernels as a MAX custom op: `matmul` computes C = A . B^T from A [M, K] and B [N, K], bf16 or fp16, row-major."""
import extensibility
from extensibility import InputTensor, OutputTensor
from ..common.config import GemmConfig
from .launch import launch
from max.gpu.host import DeviceContext
from std.sys.info import _has_sm_100x


@extensibility.register("matmul")
struct Matmul:
    """Parameters are those of GemmConfig. Raises on shapes that do not match, or that TMA cannot address."""

    @staticmethod
    def execute[
        target: StaticString,
        dtype: DType,
        //,
        kernel: StaticString,
        cta_group: Int,
        mma_m: Int,
        mma_n: Int,
        stages: Int,
        cluster_m: Int,
        cluster_n: Int,
        epilogue_width: Int,
        multicast: Bool,
    ](
        c: OutputTensor[dtype=dtype, rank=2, ...],
        a: InputTensor[dtype=dtype, rank=2, ...],
        b: InputTensor[dtype=dtype, rank=2, ...],
        ctx: DeviceContext,
    ) raises:
        comptime config = GemmConfig(
            kernel,
            dtype=dtype,
            cta_group=cta_group,
            mma_m=mma_m,
            mma_n=mma_n,
            stages=stages,
            cluster_m=cluster_m,
            cluster_n=cluster_n,
            epilogue_width=epilogue_width,
            multicast=multicast,
        )
        var m = a.dim_size(0)
        var n = b.dim_size(0)
        var k = a.dim_size(1)
        if b.dim_size(1) != k:
            raise Error(
                "matmul: A [", m, ", ", k, "] and B [", n, ", ", b.dim_size(1), "] differ in K, their last dimension"
            )
        if c.dim_size(0) != m or c.dim_size(1) != n:
            raise Error("matmul: C is [", c.dim_size(0), ", ", c.dim_size(1), "], not [", m, ", ", n, "]")
        comptime if target == "gpu" and _has_sm_100x():
            launch[config](ctx, a.to_device_buffer(ctx), b.to_device_buffer(ctx), c.to_device_buffer(ctx), m, n, k)
        else:
            raise Error(
                "matmul: ", kernel, " runs on GPUs of compute capability 10.0 (sm_100a); this device is not one"
            )
