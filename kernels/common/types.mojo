"""The names of the types that A, B and C may have, and the types themselves."""
from .block_scaling import E4M3, block_scaled_names, find_scaling
from .word import Word


def dtype_names() -> List[Word]:
    """Returns the names of the types that A and B may have."""
    var names: List[Word] = ["bf16", "fp16", E4M3.name]
    return names + block_scaled_names()


comptime OUT_DTYPES: List[Word] = ["bf16", "fp16", "f32", E4M3.name, "nvfp4", "mxfp8", "mxfp4"]
"""The names of the types that C may have."""


def element_type(name: Word) -> DType:
    """Returns the type of this name: bytes for elements of 4 bits, bf16 for a name not in `OUT_DTYPES`."""
    if name == "f32":
        return DType.float32
    if find_scaling(name).bits < 16:
        return DType.uint8 if find_scaling(name).bits == 4 else DType.float8_e4m3fn
    return DType.float16 if name == "fp16" else DType.bfloat16


def float_name(dtype: DType) -> Word:
    """Returns the name of a float type; bf16 for other types."""
    if dtype == DType.float32:
        return "f32"
    return "fp16" if dtype == DType.float16 else "bf16"
