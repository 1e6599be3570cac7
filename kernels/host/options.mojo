"""A configuration as text, `kernel=kernel8 cluster_m=2 cluster_n=1 multicast=false`: as the planner reads it at run time, and
the MAX ops at compile time.

Names and defaults are those of GemmConfig's parameters; what is not given the kernel chooses.
"""
from ..common.block_scaling import find_scaling
from ..common.config import OUT_DTYPES, GemmConfig, dtype_names, float_name, float_type, kernel_names
from ..common.epilogues import epilogue_names
from .rules import config_error


def whole_number(name: String, text: String) raises -> Int:
    try:
        return Int(text)
    except:
        raise Error(name, " '", text, "' is not a whole number")


def word[choices: List[StaticString]](name: String, text: String) raises -> StaticString:
    """The choice that a text is."""
    comptime for choice in choices:
        if text == choice:
            return choice
    raise Error(name, " '", text, "' is not one of ", String(", ").join(materialize[choices]()))


def configuration(options: List[String]) raises -> GemmConfig:
    """Options are `name=value`, in any order. What is not given the kernel chooses."""
    var values: Dict[String, String] = {}
    for option in options:
        var parts = option.split("=")
        if len(parts) != 2:
            raise Error("'", option, "' is not of the form name=value")
        var name = String(parts[0])
        if name in values:
            raise Error("'", name, "' is given twice")
        values[name] = String(parts[1])

    def number(name: String) raises {mut values} -> Optional[Int]:
        return whole_number(name, values.pop(name)) if name in values else Optional[Int]()

    def switch(name: String, default: Bool) raises {mut values} -> Bool:
        return word[["true", "false"]](name, values.pop(name, "true" if default else "false")) == "true"

    var scheduler: Optional[StaticString] = None
    if "scheduler" in values:
        scheduler = word[["clc", "static", "dynamic", "none"]]("scheduler", values.pop("scheduler"))
    var scales: Optional[StaticString] = None
    if "scales" in values:
        scales = word[["none", "tensor", "block"]]("scales", values.pop("scales"))
    var dtype = word[dtype_names()]("dtype", values.pop("dtype", "bf16"))
    var out_dtype: Optional[StaticString] = None
    if "out_dtype" in values:
        out_dtype = word[OUT_DTYPES]("out_dtype", values.pop("out_dtype"))
    var config = GemmConfig(
        word[kernel_names()]("kernel", values.pop("kernel", "kernel6")),
        arch=word[["sm_100a", "sm_90a"]]("arch", values.pop("arch", "sm_100a")),
        dtype=float_type(dtype) if find_scaling(dtype).bits == 16 else DType.bfloat16,
        scaling=find_scaling(dtype),
        scales=scales,
        out_dtype=out_dtype,
        cta_group=number("cta_group"),
        mma_m=number("mma_m"),
        mma_n=number("mma_n").or_else(256),
        block_k=number("block_k"),
        stages=number("stages"),
        cluster_m=number("cluster_m"),
        cluster_n=number("cluster_n"),
        epilogue_width=number("epilogue_width"),
        multicast=switch("multicast", True),
        band_m=number("band_m"),
        scheduler=scheduler,
        raster_group=number("raster_group"),
        accumulators=number("accumulators"),
        clc_depth=number("clc_depth"),
        sms=number("sms"),
        ping_pong=switch("ping_pong", False),
        epilogue=word[epilogue_names()]("epilogue", values.pop("epilogue", "none")),
        split_k=number("split_k").or_else(1),
        layout=word[["nt", "nn", "tn", "tt"]]("layout", values.pop("layout", "nt")),
        swapped=switch("swapped", False),
        grouped=switch("grouped", False),
        masked=switch("masked", False),
    )
    for name in values:
        raise Error("'", name, "' is not a parameter of a configuration")
    return config


def split_options(text: StringSlice) -> List[String]:
    return [String(word) for word in text.split()]


def op_configuration[options: StaticString, arch: StaticString, dtype: DType, out_dtype: DType]() -> GemmConfig:
    """Of a MAX op, which takes the architecture from its device and the types from its tensors; but for bytes, of whose
    type `dtype` and `out_dtype` among the options tell. What is no configuration does not compile."""
    comptime error = op_error(options, arch, dtype, out_dtype)
    comptime assert error.byte_length() == 0, error
    try:
        return configuration(op_options(options, arch, dtype, out_dtype))
    except:
        return GemmConfig("")


def op_error(options: StaticString, arch: StaticString, dtype: DType, out_dtype: DType) -> String:
    """What is wrong with the configuration of an op; empty if nothing is."""
    if dtype != DType.uint8 and float_type(float_name(dtype)) != dtype:
        return String(t"A and B are {dtype}, not bfloat16 or float16")
    if out_dtype != DType.uint8 and float_type(float_name(out_dtype)) != out_dtype:
        return String(t"C is {out_dtype}, not bfloat16, float16 or float32")
    try:
        return config_error(configuration(op_options(options, arch, dtype, out_dtype)))
    except error:
        return String(error)


def op_options(options: StaticString, arch: StaticString, dtype: DType, out_dtype: DType) -> List[String]:
    var found = split_options(options)
    found.append("arch=" + String(arch))
    if out_dtype != DType.uint8:
        found.append("out_dtype=" + String(float_name(out_dtype)))
    if dtype != DType.uint8:
        found.append("dtype=" + String(float_name(dtype)))
    return found^
