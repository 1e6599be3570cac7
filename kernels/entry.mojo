"""The entry points of all kernels: launch bounds, cluster shape, and the kernel of the architecture. Tensor maps are
parameters, so there are two: only `scaled_gemm` has those of scale factors. Both have all other operands, and a kernel
reads those that its configuration needs. `direct_gemm` has addresses in place of tensor maps."""
from .common.cta import Cta, Problem
from .common.few_rows import Matrix, few_rows
from .common.layer import EpilogueOperands, Groups, Layer
from .common.layer_config import LayerConfig
from .host.label import label
from .common.tma import tensor_map_address
from .host.rules import config_error
from .sm100.run import run as run_sm100
from .sm90.run import run as run_sm90
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA
from max.gpu.host.nvidia.tma import TMADescriptor
from std.math import ceildiv
from std.utils.static_tuple import StaticTuple


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(config.gemm.threads())),
    `nvvm.minctasm`=SIMDLength(1),
    `nvvm.cluster_dim`=StaticTuple[Int32, 3](Int32(config.gemm.cluster_m), Int32(config.gemm.cluster_n), 1),
)
@__llvm_arg_metadata(a_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(b_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(c_map, `nvvm.grid_constant`)
@__name(t"{label(config)}")
def gemm[
    config: LayerConfig
](
    a_map: TMADescriptor,
    b_map: TMADescriptor,
    c_map: TMADescriptor,
    k_iterations: UInt32,
    m: UInt32,
    n: UInt32,
    workspace: UInt64,
    bias: UInt64,
    residual: UInt64,
    alpha: Float32,
    beta: Float32,
    factors: UInt64,
    c_scale: Float32,
    sizes: UInt64,
    groups: UInt32,
):
    """Computes C = A . B^T, or a fused epilogue applied to it. LaunchPlan has the grid, sizes and tensor maps."""
    comptime assert not config.has_scale_factors(), "scaled_gemm has the tensor maps of scale factors"
    var a = tensor_map_address(Pointer(to=a_map))
    var b = tensor_map_address(Pointer(to=b_map))
    var c = tensor_map_address(Pointer(to=c_map))
    comptime swapped = config.swapped  # the rows of the kernel are then columns of the product
    var rows, columns = n if swapped else m, m if swapped else n
    var operands = EpilogueOperands(bias, residual, alpha, beta, rows, columns, factors, c_scale)
    run_kernel[config](a, b, c, 0, 0, k_iterations, m, n, workspace, operands, {sizes, groups, 0})


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(config.gemm.threads())),
    `nvvm.minctasm`=SIMDLength(1),
    `nvvm.cluster_dim`=StaticTuple[Int32, 3](Int32(config.gemm.cluster_m), Int32(config.gemm.cluster_n), 1),
)
@__llvm_arg_metadata(a_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(b_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(c_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(a_scales_map, `nvvm.grid_constant`)
@__llvm_arg_metadata(b_scales_map, `nvvm.grid_constant`)
@__name(t"{label(config)}")
def scaled_gemm[
    config: LayerConfig
](
    a_map: TMADescriptor,
    b_map: TMADescriptor,
    c_map: TMADescriptor,
    a_scales_map: TMADescriptor,
    b_scales_map: TMADescriptor,
    k_iterations: UInt32,
    m: UInt32,
    n: UInt32,
    workspace: UInt64,
    bias: UInt64,
    residual: UInt64,
    alpha: Float32,
    beta: Float32,
    factors: UInt64,
    c_scale: Float32,
    sizes: UInt64,
    groups: UInt32,
):
    """Computes C = alpha * A . B^T, where A and B have scale factors."""
    var a = tensor_map_address(Pointer(to=a_map))
    var b = tensor_map_address(Pointer(to=b_map))
    var c = tensor_map_address(Pointer(to=c_map))
    var a_scales = tensor_map_address(Pointer(to=a_scales_map))
    var b_scales = tensor_map_address(Pointer(to=b_scales_map))
    var operands = EpilogueOperands(bias, residual, alpha, beta, m, n, factors, c_scale)
    run_kernel[config](a, b, c, a_scales, b_scales, k_iterations, m, n, workspace, operands, {sizes, groups, 0})


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(config.threads())), `nvvm.minctasm`=SIMDLength(1)
)
@__name(t"{label(config)}")
def direct_gemm[
    config: LayerConfig
](
    a: UInt64,
    b: UInt64,
    c: UInt64,
    m: UInt32,
    n: UInt32,
    row_bytes: UInt32,
    a_pitch: UInt32,
    b_pitch: UInt32,
    c_pitch: UInt32,
    bias: UInt64,
    residual: UInt64,
    alpha: Float32,
    beta: Float32,
):
    """Computes C like `gemm`. Has the addresses of A, B and C, and the bytes from one of their rows to the next; rows
    of A and B have `row_bytes` bytes."""
    comptime wrong = config_error(config)
    comptime assert wrong.byte_length() == 0, wrong
    var operands = EpilogueOperands(bias, residual, alpha, beta, m, n, 0, 1)
    few_rows[config](Matrix(a, m, a_pitch), Matrix(b, n, b_pitch), c, c_pitch, row_bytes, operands)


@inline(.always)
def run_kernel[
    config: LayerConfig
](
    a: UInt64,
    b: UInt64,
    c: UInt64,
    a_scales: UInt64,
    b_scales: UInt64,
    k_iterations: UInt32,
    m: UInt32,
    n: UInt32,
    workspace: UInt64,
    operands: EpilogueOperands,
    var groups: Groups,
):
    """Checks the configuration and runs the kernel of its architecture."""
    comptime wrong = config_error(config)
    comptime assert wrong.byte_length() == 0, wrong
    comptime if config.masked:
        groups.row_stride = m // groups.count
    var clusters_m = ceildiv(m, UInt32(config.gemm.cluster_rows()))
    var clusters_n = ceildiv(n, UInt32(config.gemm.cluster_columns()))
    var problem = Problem(a, b, c, k_iterations, m, n, clusters_m, clusters_n, workspace)
    var layer = Layer(a_scales, b_scales, operands, groups)
    comptime if config.gemm.arch == "sm_100a":
        run_sm100[config](Cta[config.gemm](), problem, layer)
    else:
        comptime assert config.gemm.arch == "sm_90a"
        run_sm90[config](Cta[config.gemm](), problem, layer)
