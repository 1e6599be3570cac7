"""Completes and checks any configuration and prints its launch plan, without compiling the kernel.

    from kernels.host.plan import plan_main

    def main():
        plan_main()

    mojo build -I REPOSITORY driver.mojo -o plan
    plan M N K kernel=kernel6 cluster_m=4 cluster_n=4 dtype=fp16 multicast=false ...
    plan configs

Parameters and defaults are GemmConfig's. One line of JSON on standard output, as from a driver of `emit_main` but
with a null entry name; or one line on standard error and exit code 2 for a configuration or size that breaks a rule.

`plan configs` reads lines of options and writes a line for each: {"config": {...}}, complete; {"refused": {"subject",
"instead", "message"}}, as `ConfigError` in rules.mojo; or {"error": message} for what is no configuration at all.
"""
from ..common.block_scaling import find_scaling
from ..common.config import OUT_DTYPES, GemmConfig, dtype_names, float_type, kernel_names
from ..common.epilogues import epilogue_names
from .json import object, pair, text
from .launch_plan import LaunchPlan
from .plan_json import config_json, plan_json
from .rules import ConfigError, find_error
from std.sys import argv, exit, stderr, stdin


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
        values[String(parts[0])] = String(parts[1])

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
    var out_dtype: Optional[DType] = None
    if "out_dtype" in values:
        out_dtype = float_type(word[OUT_DTYPES]("out_dtype", values.pop("out_dtype")))
    var config = GemmConfig(
        word[kernel_names()]("kernel", values.pop("kernel", "kernel6")),
        arch=word[["sm_100a", "sm_90a"]]("arch", values.pop("arch", "sm_100a")),
        dtype=float_type(dtype),
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
        swapped=switch("swapped", False),
    )
    for name in values:
        raise Error("'", name, "' is not a parameter of a configuration")
    return config


def reply_to(line: String) -> String:
    """The line of JSON for a line of options."""
    try:
        var options = List[String]()
        for option in line.split():
            options.append(String(option))
        var config = configuration(options)
        var wrong = find_error(config)
        if wrong.is_none():
            return object([pair("config", config_json(config))])
        var subject = text("subject", wrong.subject)
        var refused = object([subject, text("instead", wrong.instead), text("message", wrong.message)])
        return object([pair("refused", refused)])
    except error:
        return object([text("error", String(error))])


def serve_lines() raises:
    """Each line of standard input as soon as it is there, to the end."""
    var input = stdin
    var buffer = List[UInt8](length=4096, fill=0)
    var text = String()
    while True:
        var count = input.read_bytes(buffer)
        if count == 0:
            return
        text += String(from_utf8=Span(buffer)[0 : Int(count)])
        var lines = text.split("\n")
        for line in range(len(lines) - 1):
            print(reply_to(String(lines[line])), flush=True)
        var begun = String(lines[len(lines) - 1])
        text = begun^


def run() raises:
    var arguments = List[String]()
    for argument in argv():
        arguments.append(String(argument))
    if len(arguments) == 2 and arguments[1] == "configs":
        return serve_lines()
    if len(arguments) < 4:
        raise Error("usage: plan M N K [name=value ...], or plan configs")
    var m = whole_number("M", arguments[1])
    var n = whole_number("N", arguments[2])
    var k = whole_number("K", arguments[3])
    var config = configuration(List[String](arguments[4:]))
    var wrong = find_error(config)
    if not wrong.is_none():
        raise Error(wrong.message)
    print(plan_json(config, LaunchPlan(config, m, n, k), String()))


def plan_main():
    try:
        run()
    except error:
        print(error, file=stderr)
        exit(2)
