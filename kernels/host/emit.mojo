"""Compiles kernels to PTX inside a host program, without a GPU. plan.mojo prints their launch plans.

A driver program names the configurations; its build compiles all of them:

    from kernels.host.emit import emit_main

    def main():
        emit_main[
            "kernel=kernel6 cluster_m=4 cluster_n=4",
            "kernel=kernel6 dtype=fp16 mma_n=128 stages=4 multicast=false",
        ]()

    mojo build -I REPOSITORY driver.mojo -o driver

    driver ptx INDEX          prints the PTX of the configuration of this number

Options and defaults are those of GemmConfig. A configuration that breaks a rule fails the build, and the compiler's
message names the rule. Bad arguments of the program give one line on standard error and exit code 2."""
from ..entry import direct_gemm, gemm, scaled_gemm
from .options import unchecked_configuration
from max.gpu.host import get_gpu_target
from max.gpu.host.compile import compile_info
from std.sys import argv, exit, stderr


def print_ptx[*configurations: StaticString]() raises:
    """Prints the PTX of the configuration that the program's arguments name."""
    var arguments = argv()
    if len(arguments) != 3 or arguments[1] != "ptx":
        raise Error("usage: ptx INDEX")
    comptime for i in range(configurations.size):
        if arguments[2] == String(i):
            comptime config = unchecked_configuration[configurations[i]]()
            comptime target = get_gpu_target[config.gemm.arch]()
            comptime if config.has_scale_factors():
                return print(compile_info[scaled_gemm[config], target=target]().asm)
            elif config.gemm.kernel.reads_directly:
                return print(compile_info[direct_gemm[config], target=target]().asm)
            else:
                return print(compile_info[gemm[config], target=target]().asm)
    raise Error("configuration ", arguments[2], " does not exist: there are ", configurations.size, ", counted from 0")


def emit_main[*configurations: StaticString]():
    """Runs a driver program for these configurations."""
    try:
        print_ptx[*configurations]()
    except error:
        print(error, file=stderr)
        exit(2)
