"""Triton kernels for the emulator's tests, and how their PTX is made: ``python kernels.py`` with Triton, no GPU;
``python kernels.py NAME ...`` makes only those, ``NAME_sm120`` only for that architecture.
"""

from __future__ import annotations

import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """C = A @ B, row-major, by pointers; masked at every edge."""
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    depth = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, k, K):
        left = tl.load(
            a + rows[:, None] * k + (first + depth)[None, :],
            mask=(rows[:, None] < m) & ((first + depth)[None, :] < k),
            other=0.0,
        )
        right = tl.load(
            b + (first + depth)[:, None] * n + columns[None, :],
            mask=((first + depth)[:, None] < k) & (columns[None, :] < n),
            other=0.0,
        )
        total = tl.dot(left, right, total)
    where = c + rows[:, None] * n + columns[None, :]
    tl.store(where, total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def tma_matmul(a, b, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """C = A @ B.T by tensor descriptors."""
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, k, K):
        total = tl.dot(a.load([row, first]), b.load([column, first]).T, total)
    c.store([row, column], total.to(tl.bfloat16))


@triton.jit
def scaled_matmul(
    a,
    a_scale,
    b,
    b_scale,
    c,
    k,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PACK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """C = A @ B.T of block-scaled numbers, PACK to a byte; a row has a scale factor for every BLOCK numbers."""
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    depth, blocks = tl.arange(0, K // PACK), tl.arange(0, K // BLOCK)
    total = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, k, K):
        at, block = first // PACK + depth, first // BLOCK + blocks
        left = tl.load(a + rows[:, None] * (k // PACK) + at[None, :])
        right = tl.load(b + columns[:, None] * (k // PACK) + at[None, :])
        left_scale = tl.load(a_scale + rows[:, None] * (k // BLOCK) + block[None, :])
        right_scale = tl.load(b_scale + columns[:, None] * (k // BLOCK) + block[None, :])
        total = tl.dot_scaled(left, left_scale, FORMAT, right.T, right_scale, FORMAT, total)
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.jit
def factors(atoms, row, block, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """The scale factors [ROWS, BLOCKS] from `row` and `block` on, of atoms of 128 rows x 4 blocks."""
    parts = atoms.load([row // 128, block // 4, 0, 0]).reshape(ROWS // 128, BLOCKS // 4, 32, 4, 4)
    return parts.trans(0, 3, 2, 1, 4).reshape(ROWS, BLOCKS)


@triton.jit
def scaled_tma_matmul(
    a,
    b,
    a_scales,
    b_scales,
    c,
    k,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    PACK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """C = A @ B.T by tensor descriptors, of block-scaled numbers whose scale factors lie in atoms."""
    row, column = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), dtype=tl.float32)
    for first in range(0, k, K):
        left, right = a.load([row, first // PACK]), b.load([column, first // PACK])
        left_scale = factors(a_scales, row, first // BLOCK, M, K // BLOCK)
        right_scale = factors(b_scales, column, first // BLOCK, N, K // BLOCK)
        total = tl.dot_scaled(left, left_scale, FORMAT, right.T, right_scale, FORMAT, total)
    c.store([row, column], total)


@triton.jit
def softmax(x, y, columns, W: tl.constexpr):
    """Of each row of f32."""
    row = tl.program_id(0)
    at = tl.arange(0, W)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * columns + at, powers / tl.sum(powers, axis=0), mask=at < columns)


@triton.jit
def log_softmax(x, columns, W: tl.constexpr):
    """Of each row of f32, in place. Rows of 8 elements have fewer elements than a CTA has threads."""
    at = tl.program_id(0) * columns + tl.arange(0, W)
    values = tl.load(x + at)
    centred = values - tl.max(values, axis=0)
    tl.store(x + at, centred - tl.log(tl.sum(tl.exp(centred), axis=0)))


@triton.jit
def layer_norm(x, weight, bias, y, columns, epsilon, W: tl.constexpr):
    """Of each row of f16, computed in f32."""
    row = tl.program_id(0)
    at = tl.arange(0, W)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(values, axis=0) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / columns + epsilon)
    result = centred * scale * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
    tl.store(y + row * columns + at, result.to(tl.float16), mask=inside)


@triton.jit
def split_sum(x, total, count, W: tl.constexpr):
    """A sum over the grid by one atomic a program."""
    at = tl.program_id(0) * W + tl.arange(0, W)
    tl.atomic_add(total, tl.sum(tl.load(x + at, mask=at < count, other=0.0), axis=0))


def scaled_tma(element: str, scale: str, form: str, pack: int, block: int) -> tuple:
    """A tile of 128 x 128, and 128 bytes of each row a step."""
    k = 128 * pack
    operand, atoms = f"tensordesc<{element}[128,128]>", f"tensordesc<{scale}[1,{k // block // 4},2,256]>"
    signature = {"a": operand, "b": operand, "a_scales": atoms, "b_scales": atoms, "c": "tensordesc<fp32[128,128]>"}
    sizes = {"M": 128, "N": 128, "K": k, "FORMAT": form, "PACK": pack, "BLOCK": block}
    return scaled_tma_matmul, {**signature, "k": "i32"}, sizes


ATOMS = {
    "nvfp4": ("u8", "fp8e4nv", "e2m1", 2, 16),
    "mxfp4": ("u8", "u8", "e2m1", 2, 32),
    "mxfp8": ("fp8e4nv", "u8", "e4m3", 1, 32),
    "mxfp8-e5m2": ("fp8e5", "u8", "e5m2", 1, 32),
}
TILES = {"M": 64, "N": 64, "K": 32}
KERNELS = {
    "matmul_f16": (matmul, {"a": "*fp16", "b": "*fp16", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"}, TILES),
    "matmul_bf16": (matmul, {"a": "*bf16", "b": "*bf16", "c": "*bf16", "m": "i32", "n": "i32", "k": "i32"}, TILES),
    "matmul_fp8": (matmul, {"a": "*fp8e4nv", "b": "*fp8e4nv", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"},
                   {"M": 64, "N": 64, "K": 64}),
    "matmul_f32": (matmul, {"a": "*fp32", "b": "*fp32", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"}, TILES),
    "tma_matmul": (tma_matmul, {"a": "tensordesc<bf16[128,64]>", "b": "tensordesc<bf16[64,64]>",
                                "c": "tensordesc<bf16[128,64]>", "k": "i32"}, {"M": 128, "N": 64, "K": 64}),
    "scaled_fp8": (scaled_matmul, {"a": "*fp8e4nv", "a_scale": "*u8", "b": "*fp8e4nv", "b_scale": "*u8", "c": "*fp32",
                                   "k": "i32"},
                   {"M": 128, "N": 64, "K": 128, "FORMAT": "e4m3", "PACK": 1, "BLOCK": 32}),
    "scaled_mxfp4": (scaled_matmul, {"a": "*u8", "a_scale": "*u8", "b": "*u8", "b_scale": "*u8", "c": "*fp32",
                                     "k": "i32"},
                     {"M": 128, "N": 64, "K": 128, "FORMAT": "e2m1", "PACK": 2, "BLOCK": 32}),
    "scaled_nvfp4": (scaled_matmul, {"a": "*u8", "a_scale": "*fp8e4nv", "b": "*u8", "b_scale": "*fp8e4nv",
                                     "c": "*fp32", "k": "i32"},
                     {"M": 128, "N": 64, "K": 128, "FORMAT": "e2m1", "PACK": 2, "BLOCK": 16}),
    **{f"scaled_tma_{name}": scaled_tma(*how) for name, how in ATOMS.items()},
    "softmax": (softmax, {"x": "*fp32", "y": "*fp32", "columns": "i32"}, {"W": 256}),
    "log_softmax": (log_softmax, {"x": "*fp32", "columns": "i32"}, {"W": 8}),
    "layer_norm": (layer_norm, {"x": "*fp16", "weight": "*fp32", "bias": "*fp32", "y": "*fp16", "columns": "i32",
                                "epsilon": "fp32"}, {"W": 512}),
    "split_sum": (split_sum, {"x": "*fp32", "total": "*fp32", "count": "i32"}, {"W": 512}),
}  # fmt: skip


def main() -> None:
    folder = Path(__file__).parent
    for asked in sys.argv[1:] or KERNELS:
        name, _, only = asked.partition("_sm")
        kernel, signature, constants = KERNELS[name]
        # Hopper has no block scaling.
        for arch in (int(only),) if only else (100,) if name.startswith("scaled") else (90, 100):
            full = {**signature, **dict.fromkeys(constants, "constexpr")}
            source = ASTSource(kernel, full, constants)
            compiled = triton.compile(
                source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4, "num_stages": 3}
            )
            lines = compiled.asm["ptx"].splitlines()
            # Debug sections name files of this machine; the launch's sizes are kept.
            text = "\n".join(line for line in lines if not line.lstrip().startswith((".loc", ".file", "//")))
            text = text[: text.find("\t.section\t.debug")] if "\t.section\t.debug" in text else text
            shared, warps = compiled.metadata.shared, compiled.metadata.num_warps
            head = (
                f"// Triton {triton.__version__}, {name}, sm_{arch}: {shared} bytes of shared memory, {warps} warps\n"
            )
            (folder / f"{name}_sm{arch}.ptx").write_text(head + text.rstrip() + "\n")
            print(name, arch, shared, warps)


if __name__ == "__main__":
    main()
