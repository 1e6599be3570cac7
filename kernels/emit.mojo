"""Compiles kernels to PTX inside a host program, and prints their launch plans. No GPU is needed.

A driver program names the configurations; all of them are compiled when it is built:

    from kernels.common.config import GemmConfig
    from kernels.emit import emit_main

    def main() raises:
        emit_main[
            GemmConfig("kernel6", cluster_m=4, cluster_n=4),
            GemmConfig("kernel6", dtype=DType.float16, mma_n=128, stages=4, multicast=False),
        ]()

    mojo build -I REPOSITORY driver.mojo -o driver

    driver list               one line a configuration: index, kernel, entry name
    driver ptx INDEX          PTX on standard output
    driver plan INDEX M N K   launch plan, one line of JSON on standard output

GemmConfig's parameters and their defaults: arch "sm_100a", dtype bfloat16, mma_n 256, block_k 64, multicast True; the rest
is the kernel's own choice where it is 0 or empty. A configuration that breaks a rule fails the
build with `config_error` in the compiler's message. Bad arguments of the program: one line on standard error, exit
code 2.
"""
from .common.config import GemmConfig
from .common.launch_plan import LaunchPlan
from .common.plan_json import plan_json
from .entry import gemm
from max.gpu.host import get_gpu_target
from max.gpu.host.compile import compile_info
from std.sys import argv, exit, stderr


def compiled[config: GemmConfig]() -> Tuple[String, String]:
    """Entry name and PTX."""
    var info = compile_info[gemm[config], target=get_gpu_target[config.arch]()]()
    return String(info.function_name), String(info.asm)


def emit[config: GemmConfig](command: String, sizes: List[Int]) raises:
    var entry, ptx = compiled[config]()
    if command == "ptx":
        print(ptx)
    else:
        print(plan_json(config, LaunchPlan(config, sizes[0], sizes[1], sizes[2]), entry))


def run[*configs: GemmConfig]() raises:
    comptime usage = "usage: list | ptx INDEX | plan INDEX M N K"
    var arguments = List[String]()
    for argument in argv():
        arguments.append(String(argument))
    var command = arguments[1] if len(arguments) > 1 else String()
    if command == "list" and len(arguments) == 2:
        comptime for i in range(configs.size):
            print(i, configs[i].kernel, compiled[configs[i]]()[0])
        return
    if not (command == "ptx" and len(arguments) == 3 or command == "plan" and len(arguments) == 6):
        raise Error(usage)
    var values = List[Int]()
    for argument in arguments[2:]:
        try:
            values.append(Int(argument))
        except:
            raise Error("'", argument, "' is not a whole number; ", usage)
    var index = values.pop(0)
    comptime for i in range(configs.size):
        if index == i:
            return emit[configs[i]](command, values)
    raise Error("configuration ", index, " does not exist: there are ", configs.size, ", counted from 0")


def emit_main[*configs: GemmConfig]():
    try:
        run[*configs]()
    except error:
        print(error, file=stderr)
        exit(2)
