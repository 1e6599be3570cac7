"""Compiles the kernels of `kernels.cu` with nvcc and writes launch files for them."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.cu")
ARCHS = ("90a", "100a")
VARIANTS = (0, 1)


def write(folder: Path) -> None:
    """Writes PTX and a launch file for each kernel, architecture and variant. Raises CalledProcessError."""
    for arch in ARCHS:
        for variant in VARIANTS:
            ptx = folder / f"nvcc_{arch}_{variant}.ptx"
            code = f"-gencode=arch=compute_{arch},code=compute_{arch}"
            command = ["nvcc", "-O3", "-std=c++17", f"-DVARIANT={variant}", code, "-ptx", str(SOURCE), "-o", str(ptx)]
            subprocess.run(command, check=True, capture_output=True)
            for name, text in launches(arch, variant).items():
                path = folder / f"nvcc-{name}-sm_{arch}-{variant}.toml"
                path.write_text(f'ptx = "{ptx.name}"\nlaunch.kernel = "{name}"\n{text}', encoding="utf-8")


def launches(arch: str, variant: int) -> dict[str, str]:
    """Returns the rest of each launch file, by kernel."""
    threads, chunk = (256, 512) if variant else (128, 128)
    three, rounds = 3 * threads, 9
    words, half = 2 * rounds * chunk, threads // 2
    each = f"launch.grid = 3\nlaunch.block = {threads}\n"
    found = {
        "block_sum": f'{each}launch.arguments = ["x", "y"]\nexpect.y = "sum(reshape(x, (3, {threads})), axis=1)"\n'
        + buffers(x=f"s32 {three}", y="s32 3"),
        "transpose": f'launch.grid = [2, 3]\nlaunch.block = {threads}\nlaunch.arguments = ["x", "y", 96, 64]\n'
        + 'expect.y = "x.T"\n' + buffers(x="f32 96,64", y="f32 64,96"),
        "scan": f'{each}launch.arguments = ["x", "y"]\n'
        + f'expect.y = "reshape(cumsum(reshape(x, (3, {threads})), axis=1), {three})"\n'
        + buffers(x=f"s32 {three}", y=f"s32 {three}"),
        "stencil": f'{each}launch.arguments = ["x", "y", {three}]\n'
        + f'expect.y = "x + concatenate((zeros(1), x[:{three - 1}])) + concatenate((x[1:], zeros(1)))"\n'
        + buffers(x=f"s32 {three}", y=f"s32 {three}"),
        "histogram": f'launch.grid = 2\nlaunch.block = {threads}\nlaunch.arguments = ["x", "y", 1000]\n'
        + 'expect.y = "bincount(x % 64, minlength=64)"\n' + buffers(x="u32 1000 index", y="s32 64 zeros"),
        "below_max": f'{each}launch.arguments = ["x", "y", 300]\nexpect.y.value = "x - max(x, axis=1, keepdims=True)"\n'
        + 'expect.y.tolerance = 1e-6\n'
        + buffers(x="f32 3,300 uniform", y="f32 3,300"),
        "gemm_async": 'launch.grid = [2, 2]\nlaunch.block = 256\nlaunch.arguments = ["a", "b", "y", 32, 112]\n'
        + 'expect.y = "a @ b"\n' + buffers(a="f32 32,112", b="f32 112,32", y="f32 32,32"),
        "bulk_ring": f'launch.grid = 2\nlaunch.block = {threads}\nlaunch.arguments = ["x", "y", {rounds}]\n'
        + 'expect.y = "2 * x + 1"\n' + buffers(x=f"s32 {words}", y=f"s32 {words}"),
        "bulk_store": f'launch.grid = 2\nlaunch.block = {threads}\nlaunch.arguments = ["x", "y", {rounds}]\n'
        + 'expect.y = "x + 3"\n' + buffers(x=f"s32 {words}", y=f"s32 {words}"),
        "cluster_sum": f'launch.grid = 4\nlaunch.block = {threads}\nlaunch.arguments = ["x", "y"]\n'
        + f'expect.y = "reshape(repeat(reshape(sum(reshape(x, (2, 2, {threads})), axis=1), (2, 1, {threads})), 2, '
        + f'axis=1), {4 * threads})"\n' + buffers(x=f"s32 {4 * threads}", y=f"s32 {4 * threads}"),
        "last_adds": f'{each}launch.arguments = ["x", "parts", "ticket", "y"]\n'
        + f'expect.y = "5 * sum(reshape(x, (3, {threads})), axis=0)"\n'
        + buffers(x=f"s32 {three}", parts=f"s32 {three}", ticket="u32 1 zeros", y=f"s32 {threads}"),
        "warp_reverse": f'{each}launch.arguments = ["x", "y"]\nexpect.y = "x + 31 - arange({three}) % 32"\n'
        + buffers(x=f"s32 {three}", y=f"s32 {three}"),
        "named_barriers": f'launch.grid = 2\nlaunch.block = {threads}\nlaunch.arguments = ["x", "y", {rounds}]\n'
        + f'expect.y = "reshape(flip(reshape(x, ({2 * rounds}, {half})), 1), {2 * rounds * half}) - 1"\n'
        + buffers(x=f"s32 {2 * rounds * half}", y=f"s32 {2 * rounds * half}"),
    }  # fmt: skip
    rows = 64 if arch == "90a" else 128
    columns, ring = ((32, 2), (64, 3))[variant]
    found["wgmma_ring" if arch == "90a" else "tcgen05_ring"] = (
        f"launch.grid = [2, 1]\nlaunch.block = {160 if arch == '90a' else 128}\n"
        f"launch.dynamic_shared = {ring * (rows + columns) * 128}\n"
        f'launch.arguments = ["ma", "mb", "y", {2 * columns}, 7]\nexpect.y = "a @ b.T"\n'
        f'maps.ma = {{ buffer = "a", tile = [{rows}, 64], swizzle = "128B" }}\n'
        f'maps.mb = {{ buffer = "b", tile = [{columns}, 64], swizzle = "128B" }}\n'
        + buffers(a=f"bf16 {rows},448", b=f"bf16 {2 * columns},448", y=f"f32 {rows},{2 * columns}")
    )
    return found


def buffers(**each: str) -> str:
    """Returns the lines of buffers, each named as "type sizes" and, other than whole numbers in and NaN or nothing out,
    "fill".
    """
    lines = []
    for seed, (name, what) in enumerate(each.items()):
        dtype, sizes, *fill = what.split()
        first = "integer" if name in ("x", "a", "b") else "uninitialised" if dtype[0] in "su" else "nan"
        init = fill[0] if fill else first
        seeded = f", seed = {seed}" if init == "integer" else ""
        lines.append(f'buffers.{name} = {{ dtype = "{dtype}", shape = [{sizes}], init = "{init}"{seeded} }}\n')
    return "".join(lines)
