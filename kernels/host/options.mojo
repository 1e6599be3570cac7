"""Configurations at run time, for the planner, and at compile time, for builds and for MAX ops."""
from ..common.config import GemmConfig, float_name, float_type
from ..common.options import Options
from .rules import config_error
from std.os import abort


def configuration(words: List[String]) raises -> GemmConfig:
    """What a list of `name=value` asks for."""
    return GemmConfig(Options(words))


def split_options(text: StringSlice) -> List[String]:
    return [String(word) for word in text.split()]


def configured[options: StaticString]() -> GemmConfig:
    """The configuration that a text asks for, without a look at the rules: the entry of a kernel looks at them."""
    try:
        return configuration(split_options(options))
    except:
        abort()


def checked[words: List[String]]() -> GemmConfig:
    """What breaks a rule, or is no configuration, does not compile, with the reason in the compiler's message."""
    comptime error = what_is_wrong(materialize[words]())
    comptime assert error.byte_length() == 0, error
    try:
        return configuration(materialize[words]())
    except:
        abort()


def what_is_wrong(words: List[String]) -> String:
    """Empty for a legal configuration."""
    try:
        return config_error(configuration(words))
    except error:
        return String(error)


def op_configuration[options: StaticString, arch: StaticString, dtype: DType, out_dtype: DType]() -> GemmConfig:
    """The configuration of a MAX op. It takes the architecture from its device and the types from its tensors; where those
    are bytes, `dtype` and `out_dtype` among the options name the types."""
    comptime assert is_bytes_or_float(dtype), String(t"A and B are {dtype}, not bfloat16 or float16")
    comptime assert is_bytes_or_float(out_dtype), String(t"C is {out_dtype}, not bfloat16, float16 or float32")
    return checked[op_options(options, arch, dtype, out_dtype)]()


def is_bytes_or_float(dtype: DType) -> Bool:
    return dtype == DType.uint8 or float_type(float_name(dtype)) == dtype


def op_options(options: StaticString, arch: StaticString, dtype: DType, out_dtype: DType) -> List[String]:
    var found = split_options(options)
    found.append("arch=" + String(arch))
    if out_dtype != DType.uint8:
        found.append("out_dtype=" + String(float_name(out_dtype)))
    if dtype != DType.uint8:
        found.append("dtype=" + String(float_name(dtype)))
    return found^
