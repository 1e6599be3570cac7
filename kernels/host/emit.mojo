"""Compiles kernels to PTX inside a host program. No GPU is needed; their launch plans are `plan.mojo`'s.

A driver program names the configurations; all of them are compiled when it is built:

    from kernels.host.emit import emit_main

    def main():
        emit_main[
            "kernel=kernel6 cluster_m=4 cluster_n=4",
            "kernel=kernel6 dtype=fp16 mma_n=128 stages=4 multicast=false",
        ]()

    mojo build -I REPOSITORY driver.mojo -o driver

    driver ptx INDEX          PTX on standard output, of a configuration by its number

Options and defaults are GemmConfig's. A configuration that breaks a rule fails the build with the rule in the compiler's
message. Bad arguments of the program: one line on standard error, exit code 2.
"""
from ..entry import gemm, scaled_gemm
from .options import configured
from max.gpu.host import get_gpu_target
from max.gpu.host.compile import compile_info
from std.sys import argv, exit, stderr


def run[*configurations: StaticString]() raises:
    var arguments = argv()
    if len(arguments) != 3 or arguments[1] != "ptx":
        raise Error("usage: ptx INDEX")
    comptime for i in range(configurations.size):
        if arguments[2] == String(i):
            comptime config = configured[configurations[i]]()
            comptime target = get_gpu_target[config.arch]()
            comptime if config.has_scale_factors():
                return print(compile_info[scaled_gemm[config], target=target]().asm)
            else:
                return print(compile_info[gemm[config], target=target]().asm)
    raise Error("configuration ", arguments[2], " does not exist: there are ", configurations.size, ", counted from 0")


def emit_main[*configurations: StaticString]():
    try:
        run[*configurations]()
    except error:
        print(error, file=stderr)
        exit(2)
