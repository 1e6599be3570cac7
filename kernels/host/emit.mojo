"""Compiles kernels to PTX inside a host program. No GPU is needed; their launch plans are `plan.mojo`'s.

A driver program names the configurations; all of them are compiled when it is built:

    from kernels.common.config import GemmConfig
    from kernels.host.emit import emit_main

    def main() raises:
        emit_main[
            GemmConfig("kernel6", cluster_m=4, cluster_n=4),
            GemmConfig("kernel6", dtype=DType.float16, mma_n=128, stages=4, multicast=False),
        ]()

    mojo build -I REPOSITORY driver.mojo -o driver

    driver ptx INDEX          PTX on standard output, of a configuration by its number

Parameters and defaults are GemmConfig's. A configuration that breaks a rule fails the build with `config_error` in the
compiler's message. Bad arguments of the program: one line on standard error, exit code 2.
"""
from ..common.config import GemmConfig
from ..entry import gemm, scaled_gemm
from max.gpu.host import get_gpu_target
from max.gpu.host.compile import compile_info
from std.sys import argv, exit, stderr


def run[*configs: GemmConfig]() raises:
    var arguments = argv()
    if len(arguments) != 3 or arguments[1] != "ptx":
        raise Error("usage: ptx INDEX")
    comptime for i in range(configs.size):
        if arguments[2] == String(i):
            comptime target = get_gpu_target[configs[i].arch]()
            comptime if configs[i].has_scale_factors():
                return print(compile_info[scaled_gemm[configs[i]], target=target]().asm)
            else:
                return print(compile_info[gemm[configs[i]], target=target]().asm)
    raise Error("configuration ", arguments[2], " does not exist: there are ", configs.size, ", counted from 0")


def emit_main[*configs: GemmConfig]():
    try:
        run[*configs]()
    except error:
        print(error, file=stderr)
        exit(2)
