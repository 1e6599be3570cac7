"""Completes and checks any configuration and prints its launch plan, without compiling the kernel.

    from kernels.plan import plan_main

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
from .common.config import SERIES, GemmConfig
from .common.json import object, pair, text
from .common.launch_plan import LaunchPlan
from .common.plan_json import config_json, plan_json
from .common.rules import ConfigError, find_error
from std.sys import argv, exit, stderr, stdin


def whole_number(name: String, text: String) raises -> Int:
    try:
        return Int(text)
    except:
        raise Error(name, " '", text, "' is not a whole number")


def kernel_name(text: String) raises -> StaticString:
    comptime for name in SERIES:
        if text == name:
            return name
    raise Error("kernel '", text, "' is not one of ", String(", ").join(materialize[SERIES]()))


def scheduler_name(text: String) raises -> StaticString:
    comptime for name in [StaticString(""), "clc", "static", "dynamic", "none"]:
        if text == name:
            return name
    raise Error("scheduler '", text, "' is not one of clc, static, dynamic, none")


def arch_name(text: String) raises -> StaticString:
    comptime for name in [StaticString("sm_100a"), "sm_90a"]:
        if text == name:
            return name
    raise Error("arch '", text, "' is not sm_100a or sm_90a")


def configuration(options: List[String]) raises -> GemmConfig:
    """Options are `name=value`, in any order. One that is given as 0 is 0, and no choice of the kernel's."""
    var values: Dict[String, String] = {}
    for option in options:
        var parts = option.split("=")
        if len(parts) != 2:
            raise Error("'", option, "' is not of the form name=value")
        values[String(parts[0])] = String(parts[1])

    var zeros: Dict[String, Bool] = {}

    def number(name: String, default: Int) raises {mut values, mut zeros} -> Int:
        var given = name in values
        var value = whole_number(name, values.pop(name, String(default)))
        zeros[name] = given and value == 0
        return value

    var dtype = values.pop("dtype", "bf16")
    if dtype != "bf16" and dtype != "fp16":
        raise Error("dtype '", dtype, "' is not bf16 or fp16")
    var multicast = values.pop("multicast", "true")
    if multicast != "true" and multicast != "false":
        raise Error("multicast '", multicast, "' is not true or false")
    var config = GemmConfig(
        kernel_name(values.pop("kernel", "kernel6")),
        arch=arch_name(values.pop("arch", "sm_100a")),
        dtype=DType.bfloat16 if dtype == "bf16" else DType.float16,
        cta_group=number("cta_group", 0),
        mma_m=number("mma_m", 0),
        mma_n=number("mma_n", 256),
        block_k=number("block_k", 64),
        stages=number("stages", 0),
        cluster_m=number("cluster_m", 0),
        cluster_n=number("cluster_n", 0),
        epilogue_width=number("epilogue_width", 0),
        multicast=multicast == "true",
        band_m=number("band_m", 0),
        scheduler=scheduler_name(values.pop("scheduler", "")),
        raster_group=number("raster_group", 0),
        accumulators=number("accumulators", 0),
        clc_depth=number("clc_depth", 0),
        sms=number("sms", 0),
        ping_pong=values.pop("ping_pong", "false") == "true",
    )
    for name in values:
        raise Error("'", name, "' is not a parameter of a configuration")
    if zeros["cta_group"]:
        config.cta_group = 0
    if zeros["mma_m"]:
        config.mma_m = 0
    if zeros["stages"]:
        config.stages = 0
    if zeros["cluster_m"]:
        config.cluster_m = 0
    if zeros["cluster_n"]:
        config.cluster_n = 0
    if zeros["epilogue_width"]:
        config.epilogue_width = 0
    if zeros["raster_group"]:
        config.raster_group = 0
    if zeros["accumulators"]:
        config.accumulators = 0
    if zeros["clc_depth"]:
        config.clc_depth = 0
    if zeros["sms"]:
        config.sms = 0
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
