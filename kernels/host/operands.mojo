"""Checks the tensors of MAX ops, and turns them into operands of the kernels."""
from ..common.layer_config import LayerConfig
from ..common.layer import EpilogueOperands
from .launch_plan import LaunchPlan, TensorMap, atoms_shape
from extensibility import ManagedTensorSlice


def check_shape(name: StaticString, tensor: ManagedTensorSlice, expected: List[Int]) raises:
    """Raises if a tensor does not have the expected shape."""
    var shape = List[Int]()
    comptime for i in range(tensor.rank):
        shape.append(tensor.dim_size(i))
    if shape != expected:
        raise Error("matmul: the shape of ", name, " is ", list_text(shape), ", not ", list_text(expected))


def checked_address(name: StaticString, tensor: ManagedTensorSlice) raises -> UInt64:
    """Returns the address of a tensor. Raises if it is not a multiple of 4 bytes, which kernels access at once."""
    var address = Int(tensor.unsafe_ptr())
    if address % 4 != 0:
        raise Error("matmul: ", name, " begins at byte ", address % 4, " of 4; its place must be a multiple of 4 bytes")
    return UInt64(address)


def check_memory(map: TensorMap, matrix: ManagedTensorSlice) raises:
    """Raises if a matrix exceeds its tensor, or does not begin at a multiple of 16 bytes for TMA."""
    var needed = (map.rows - 1) * map.pitch + map.columns
    var elements, address = matrix.dim_size(0), Int(matrix.unsafe_ptr())
    if elements < needed:
        raise Error("matmul: ", map.tensor, " takes ", needed, " elements of memory, and there are ", elements)
    if address % 16 != 0:
        raise Error("matmul: ", map.tensor, " begins at byte ", address % 16, " of 16; TMA needs the first: copy it")


def check_scales[
    config: LayerConfig
](plan: LaunchPlan, a_scales: ManagedTensorSlice, b_scales: ManagedTensorSlice) raises:
    """Raises if scale factors of A and B do not have the expected shape and type. There may be none."""
    comptime if config.has_scale_factors():
        comptime kind = DType.float32 if config.promotes() else DType.uint8
        comptime if a_scales.dtype != kind:
            raise Error("matmul: the scale factors of A and B are ", a_scales.dtype, ", not ", kind)
        check_shape("the scale factors of A", a_scales, scale_shape(config, plan, 0, plan.m))
        check_shape("the scale factors of B", b_scales, scale_shape(config, plan, 1, plan.n))


def scale_shape(config: LayerConfig, plan: LaunchPlan, operand: Int, rows: Int) -> List[Int]:
    """Returns the shape of the scale factors of A (`operand` 0) or B (1)."""
    if config.promotes():
        return [plan.scales[operand].rows, plan.scales[operand].columns]
    return atoms_shape(config.scaling, rows, plan.k)


def checked_factors_address[config: LayerConfig](plan: LaunchPlan, factors: ManagedTensorSlice) raises -> UInt64:
    """Returns the address for the scale factors of C. Raises if their shape does not match."""
    comptime kind = DType.uint8 if config.out_scaling.factors > 0 else DType.float32
    comptime assert factors.dtype == kind, "the scale factors of C are f32 of e4m3, else bytes"
    check_shape("the scale factors of C", factors, plan.factors)
    return checked_address("the scale factors of C", factors)


def list_text(sizes: List[Int]) -> String:
    """Returns sizes as text, such as [4, 8]."""
    return String("[", String(", ").join([String(size) for size in sizes]), "]")


def fused_operands[
    config: LayerConfig
](
    plan: LaunchPlan, bias: ManagedTensorSlice, residual: ManagedTensorSlice, alpha: Float32, beta: Float32
) raises -> EpilogueOperands:
    """Checks the operands of the fused epilogue and returns their addresses. It ignores those that the epilogue does
    not take. With groups, each has its own bias."""
    comptime fusion = config.fusion()
    var found = EpilogueOperands(0, 0, alpha, beta, UInt32(plan.m), UInt32(plan.n), 0, 1)
    comptime if fusion.takes_bias:
        var shape: List[Int] = [plan.n]
        comptime if config.grouped:
            shape = [plan.groups, plan.n]
        check_shape("bias", bias, shape)
        found.bias = checked_address("bias", bias)
    comptime if fusion.takes_residual:
        check_shape("residual", residual, [plan.m, plan.n])
        found.residual = checked_address("residual", residual)
    return found
