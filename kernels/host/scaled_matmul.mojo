"""Kernel 9 as a MAX custom op: C = alpha * A . B^T of block-scaled A and B, in a buffer of the caller's.

Elements and scale factors are bytes, of whatever type the format says (common/block_scaling.mojo): A [M, K / elements in a
byte] and B [N, likewise], row-major, the first element in the lower half of a byte; scale factors in atoms,
[rows / 128, blocks of K / 4, 512], both rounded up. `alpha` is a rank-0 tensor on the CPU. Parameters are those of `matmul`
and `scaling`, the format's name. Raises as `matmul` does, and for scale factors that are not whole atoms of A and B.
"""
import extensibility
from extensibility import InputTensor
from extensibility import _MutableInputTensor as MutableInputTensor
from ..common.block_scaling import ATOM_BLOCKS, ATOM_BYTES, ATOM_ROWS, block_scaled_names, find_scaling
from ..common.config import GemmConfig
from .launch import launch_scaled
from .matmul import ARCH, given
from .rules import config_error
from max.gpu.host import DeviceContext
from std.math import ceildiv
from std.sys.info import _has_sm_100x


@extensibility.register("scaled_matmul_into")
struct ScaledMatmulInto:
    @staticmethod
    def execute[
        target: StaticString,
        out_dtype: DType,
        //,
        kernel: StaticString,
        scaling: StaticString,
        cta_group: Int,
        mma_m: Int,
        mma_n: Int,
        stages: Int,
        cluster_m: Int,
        cluster_n: Int,
        epilogue_width: Int,
        multicast: Bool,
        scheduler: StaticString = "",
        raster_group: Int = 0,
        accumulators: Int = 0,
        clc_depth: Int = 0,
        sms: Int = 0,
        ping_pong: Bool = False,
    ](
        c: MutableInputTensor[dtype=out_dtype, rank=2, ...],
        a: InputTensor[dtype=DType.uint8, rank=2, ...],
        b: InputTensor[dtype=DType.uint8, rank=2, ...],
        a_scales: InputTensor[dtype=DType.uint8, rank=3, ...],
        b_scales: InputTensor[dtype=DType.uint8, rank=3, ...],
        alpha: Float32,
        ctx: DeviceContext,
    ) raises:
        comptime config = GemmConfig(
            kernel,
            arch=ARCH,
            scaling=find_scaling(scaling),
            out_dtype=out_dtype,
            cta_group=given(cta_group),
            mma_m=given(mma_m),
            mma_n=mma_n,
            stages=given(stages),
            cluster_m=given(cluster_m),
            cluster_n=given(cluster_n),
            epilogue_width=given(epilogue_width),
            multicast=multicast,
            scheduler=given(scheduler),
            raster_group=given(raster_group),
            accumulators=given(accumulators),
            clc_depth=given(clc_depth),
            sms=given(sms),
            ping_pong=ping_pong,
        )
        comptime if not config.kernel.is_block_scaled or not is_format(scaling):
            raise Error("scaled_matmul: ", kernel, " with scaling ", scaling, ": use kernel9 with ", format_names())
        comptime in_a_byte = 8 // config.scaling.bits
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
        check_atoms[config]("A", m, k, [a_scales.dim_size(0), a_scales.dim_size(1), a_scales.dim_size(2)])
        check_atoms[config]("B", n, k, [b_scales.dim_size(0), b_scales.dim_size(1), b_scales.dim_size(2)])
        comptime if target == "gpu" and _has_sm_100x():
            comptime if config_error(config).byte_length() == 0:
                launch_scaled[config](
                    ctx,
                    a.to_device_buffer(ctx),
                    b.to_device_buffer(ctx),
                    c.to_device_buffer(ctx),
                    a_scales.to_device_buffer(ctx),
                    b_scales.to_device_buffer(ctx),
                    alpha,
                    m,
                    n,
                    k,
                )
            else:
                raise Error("scaled_matmul: ", config_error(config))
        else:
            raise Error(
                "scaled_matmul: ",
                kernel,
                " runs on GPUs of compute capability 10.0 (sm_100a: B200); this device is not one",
            )


def is_format(scaling: StaticString) -> Bool:
    for name in block_scaled_names():
        if scaling == name:
            return True
    return False


def format_names() -> String:
    return String(", ").join(block_scaled_names())


def check_atoms[config: GemmConfig](name: StaticString, rows: Int, k: Int, shape: List[Int]) raises:
    """Raises if scale factors have not the shape that so many rows of K elements need."""
    var down = ceildiv(rows, ATOM_ROWS)
    var across = ceildiv(k, config.scaling.block() * ATOM_BLOCKS)
    if shape[0] != down or shape[1] != across or shape[2] != ATOM_BYTES:
        raise Error(
            String(
                t"scaled_matmul: the scale factors of {name} are [{shape[0]}, {shape[1]}, {shape[2]}], not in atoms"
                t" [{down}, {across}, {ATOM_BYTES}]"
            )
        )
