"""Makes configurations from options: at run time for the planner, at compile time for builds and MAX ops."""
from ..common.choices import *
from ..common.layer_config import LayerConfig
from ..common.options import Options
from ..common.types import element_type, float_name
from .rules import config_error
from std.os import abort


def parse_configuration(words: List[String]) raises -> LayerConfig:
    """Returns the configuration of a list of `name=value`."""
    return LayerConfig(Options(words))


def split_options(text: StringSlice) -> List[String]:
    """Returns the `name=value` words of a text."""
    return [String(word) for word in text.split()]


def unchecked_configuration[options: StaticString]() -> LayerConfig:
    """Returns the configuration of a text. It does not check the rules; the entry point of a kernel does."""
    try:
        return parse_configuration(split_options(options))
    except:
        abort()


def checked_configuration[words: List[String]]() -> LayerConfig:
    """Returns the configuration of a list of options. Compilation fails with the rule that it breaks."""
    comptime error = options_error(materialize[words]())
    comptime assert error.byte_length() == 0, error
    try:
        return parse_configuration(materialize[words]())
    except:
        abort()


def options_error(words: List[String]) -> String:
    """Returns the rule that options break; empty for a legal configuration."""
    try:
        return config_error(parse_configuration(words))
    except error:
        return String(error)


def op_configuration[options: StaticString, arch: StaticString, dtype: DType, out_dtype: DType]() -> LayerConfig:
    """Returns the configuration of a MAX op. The device gives its architecture, the tensors give its types; if tensors
    are bytes, the options `dtype` and `out_dtype` name the types."""
    comptime assert is_bytes_or_float(dtype), String(t"A and B are {dtype}, not bfloat16 or float16")
    comptime assert is_bytes_or_float(out_dtype), String(t"C is {out_dtype}, not bfloat16, float16 or float32")
    return checked_configuration[op_options(options, arch, dtype, out_dtype)]()


def is_bytes_or_float(dtype: DType) -> Bool:
    """The type is that of bytes, or one that the kernels compute with."""
    return dtype == DType.uint8 or element_type(float_name(dtype)) == dtype


def op_options(options: StaticString, arch: StaticString, dtype: DType, out_dtype: DType) -> List[String]:
    """Adds the architecture and the types of the tensors to the options of a MAX op."""
    var found = split_options(options)
    found.append("arch=" + String(arch))
    if out_dtype != DType.uint8:
        found.append("out_dtype=" + String(float_name(out_dtype)))
    if dtype != DType.uint8:
        found.append("dtype=" + String(float_name(dtype)))
    return found^
