"""Triton kernels and their launches: ``python triton_kernels.py FOLDER``, with Triton 3.6 or later, without a GPU."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "data" / "triton"))
tma_matmul = import_module("kernels").tma_matmul


@triton.jit
def add(x, y, z, count, W: tl.constexpr):
    """z = x + y."""
    at = tl.program_id(0) * W + tl.arange(0, W)
    tl.store(z + at, tl.load(x + at, mask=at < count) + tl.load(y + at, mask=at < count), mask=at < count)


@triton.jit
def row_sums(x, z, columns, W: tl.constexpr):
    """z = the sum of each row."""
    at = tl.arange(0, W)
    row = tl.program_id(0)
    tl.store(z + row, tl.sum(tl.load(x + row * columns + at, mask=at < columns, other=0), axis=0))


@triton.jit
def row_scans(x, z, columns, W: tl.constexpr):
    """z = the prefix sums of each row."""
    at = tl.arange(0, W)
    row = tl.program_id(0)
    sums = tl.cumsum(tl.load(x + row * columns + at, mask=at < columns, other=0), axis=0)
    tl.store(z + row * columns + at, sums, mask=at < columns)


@triton.jit
def transpose(x, z, rows, columns, W: tl.constexpr):
    """z = x.T, by tiles."""
    down = tl.program_id(0) * W + tl.arange(0, W)
    across = tl.program_id(1) * W + tl.arange(0, W)
    tile = tl.load(x + down[:, None] * columns + across[None, :])
    tl.store(z + across[:, None] * rows + down[None, :], tl.trans(tile))


@triton.jit
def row_sorts(x, z, columns, W: tl.constexpr):
    """z = each row, sorted."""
    at = tl.arange(0, W)
    row = tl.program_id(0)
    tl.store(z + row * columns + at, tl.sort(tl.load(x + row * columns + at)))


@triton.jit
def matmul(a, b, z, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """z = a @ b, by pointers."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    depth = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, k, K):
        left = tl.load(a + rows[:, None] * k + (first + depth)[None, :])
        right = tl.load(b + (first + depth)[:, None] * n + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(z + rows[:, None] * n + columns[None, :], total)


def vectors(kernel: Any, expect: str, width: int, rows: int, columns: int, out: str, warps: int) -> tuple[Any, ...]:
    """A kernel of one program per row of s32."""
    text = f"""launch.grid = {rows}
launch.arguments = ["x", "z", {columns}, "null", "null"]
expect.z = "{expect}"
buffers.x = {{ dtype = "s32", shape = [{rows}, {columns}], init = "integer" }}
buffers.z = {{ dtype = "s32", shape = [{out}], init = "uninitialised" }}
"""
    return kernel, {"x": "*i32", "z": "*i32", "columns": "i32"}, {"W": width}, warps, 2, text


def products(dtype: str, tile: tuple[int, int, int], warps: int, stages: int) -> tuple[Any, ...]:
    """A matmul by pointers over two tiles along M and two along N."""
    m, n, k = tile
    text = f"""launch.grid = [2, 2]
launch.arguments = ["a", "b", "z", {2 * n}, {5 * k}, "null", "null"]
expect.z = "a @ b"
buffers.a = {{ dtype = "{dtype}", shape = [{2 * m}, {5 * k}], init = "integer" }}
buffers.b = {{ dtype = "{dtype}", shape = [{5 * k}, {2 * n}], init = "integer", seed = 1 }}
buffers.z = {{ dtype = "f32", shape = [{2 * m}, {2 * n}], init = "nan" }}
"""
    name = {"f16": "fp16", "bf16": "bf16"}[dtype]
    signature = {"a": f"*{name}", "b": f"*{name}", "z": "*fp32", "n": "i32", "k": "i32"}
    return matmul, signature, {"M": m, "N": n, "K": k}, warps, stages, text


def descriptors(tile: tuple[int, int, int], warps: int, stages: int) -> tuple[Any, ...]:
    """A matmul by tensor descriptors over two tiles along M."""
    m, n, k = tile
    text = f"""launch.grid = 2
launch.arguments = ["ma", {2 * m}, {7 * k}, {7 * k}, 1, "mb", {n}, {7 * k}, {7 * k}, 1, "mc", {2 * m}, {n}, {n}, 1,
    {7 * k}, "null", "null"]
expect.c = "a @ b.T"
buffers.a = {{ dtype = "bf16", shape = [{2 * m}, {7 * k}], init = "index" }}
buffers.b = {{ dtype = "bf16", shape = [{n}, {7 * k}], init = "index" }}
buffers.c = {{ dtype = "bf16", shape = [{2 * m}, {n}], init = "nan" }}
maps.ma = {{ buffer = "a", tile = [{m}, {k}], swizzle = "128B" }}
maps.mb = {{ buffer = "b", tile = [{n}, {k}], swizzle = "128B" }}
maps.mc = {{ buffer = "c", tile = [{m}, {n}], swizzle = "128B" }}
"""
    of = {"a": f"tensordesc<bf16[{m},{k}]>", "b": f"tensordesc<bf16[{n},{k}]>", "c": f"tensordesc<bf16[{m},{n}]>"}
    return tma_matmul, {**of, "k": "i32"}, {"M": m, "N": n, "K": k}, warps, stages, text


ADD = """launch.grid = 3
launch.arguments = ["x", "y", "z", 600, "null", "null"]
expect.z = "x + y"
buffers.x = { dtype = "f32", shape = 600, init = "integer" }
buffers.y = { dtype = "f32", shape = 600, init = "integer", seed = 1 }
buffers.z = { dtype = "f32", shape = 600, init = "nan" }
"""
TRANSPOSE = """launch.grid = [2, 3]
launch.arguments = ["x", "z", 64, 96, "null", "null"]
expect.z = "x.T"
buffers.x = { dtype = "f32", shape = [64, 96], init = "integer" }
buffers.z = { dtype = "f32", shape = [96, 64], init = "nan" }
"""
KERNELS: dict[str, tuple[Any, ...]] = {
    "add": (add, {"x": "*fp32", "y": "*fp32", "z": "*fp32", "count": "i32"}, {"W": 256}, 4, 2, ADD),
    "row_sums": vectors(row_sums, "sum(x, axis=1)", 512, 3, 500, "3", 4),
    "row_sums_8": vectors(row_sums, "sum(x, axis=1)", 1024, 3, 700, "3", 8),
    "row_scans": vectors(row_scans, "cumsum(x, axis=1)", 256, 2, 200, "2, 200", 4),
    "row_sorts": vectors(row_sorts, "sort(x, axis=1)", 256, 2, 256, "2, 256", 4),
    "transpose": (transpose, {"x": "*fp32", "z": "*fp32", "rows": "i32", "columns": "i32"}, {"W": 32}, 4, 2, TRANSPOSE),
    "matmul_two_stages": products("f16", (64, 32, 32), 4, 2),
    "matmul_four_stages": products("bf16", (32, 32, 32), 4, 4),
    "matmul_eight_warps": products("f16", (128, 64, 32), 8, 3),
    "tma_two_stages": descriptors((128, 64, 64), 4, 2),
    "tma_four_stages": descriptors((64, 64, 64), 4, 4),
}


def main(folder: Path) -> None:
    """Writes PTX and a launch file for each kernel, for sm_90a and sm_100a."""
    for name, (kernel, signature, constants, warps, stages, text) in KERNELS.items():
        for arch in (90, 100):
            source = ASTSource(kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, constants)
            options = {"num_warps": warps, "num_stages": stages}
            compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
            path = folder / f"triton-{name}-sm_{arch}a"
            path.with_suffix(".ptx").write_text(compiled.asm["ptx"], encoding="utf-8")
            launch = f"launch.block = {32 * compiled.metadata.num_warps}\n"
            launch += f"launch.dynamic_shared = {compiled.metadata.shared}\n"
            path.with_suffix(".toml").write_text(f'ptx = "{path.name}.ptx"\n{launch}{text}', encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
