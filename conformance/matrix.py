"""Probes of wgmma: the bytes that a descriptor names, the rounding of sums, and whole tiles on integers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from conformance.probe import Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import CTA_SYNC, DESCRIPTOR_LAYOUT, copy_in, descriptor, kernel, wgmma, with_start
from conformance.tile import TileProduct
from emugpu.emulator import Swizzle

THREADS = 128
M, K = 64, 16

# ---- which elements a descriptor names ----

AREA = 9216
"""Shared memory in which A may lie; B, an identity matrix, lies behind it."""
UNIT = 2048
"""f16 represents integers up to this exactly, so element number e is tested by e % UNIT and e // UNIT."""
N = 16


def _operand_body() -> str:
    def multiply(a_major: int, registers: list[str]) -> str:
        return (
            "wgmma.fence.sync.aligned;\n"
            + wgmma(N, "f16", registers, "%rd4", "%rd5", "%p3", f"1, 1, {a_major}, 0")
            + "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
        )

    parts = "".join(
        copy_in(f"%rd{8 + part}", 0, AREA, THREADS)
        + f"fence.proxy.async.shared::cta;\n{CTA_SYNC}@%p2 bra MN{part};\n"
        + multiply(0, registers)
        + f"bra READ{part};\nMN{part}:\n"
        + multiply(1, registers)
        + f"READ{part}:\n{CTA_SYNC}"
        for part, registers in enumerate([f"%r{first + j}" for j in range(N // 2)] for first in (10, 20))
    )
    report = "".join(
        f"""cvt.rzi.u32.f32 %r1, %r{10 + j};
cvt.rzi.u32.f32 %r2, %r{20 + j};
mad.lo.u32 %r1, %r2, {UNIT}, %r1;
st.global.u16 [%rd6+{2 * THREADS * j}], %r1;
"""
        for j in range(N // 2)
    )
    return (
        """
ld.param.u64 %rd0, [requests];
ld.param.u64 %rd1, [identity];
ld.param.u64 %rd2, [report];
ld.param.u64 %rd8, [low];
ld.param.u64 %rd9, [high];
"""
        + copy_in("%rd1", AREA, 2 * N * K, THREADS)
        + f"""
mov.u32 %r0, %ctaid.x;
mul.wide.u32 %rd3, %r0, 16;
add.u64 %rd3, %rd3, %rd0;
ld.global.u64 %rd4, [%rd3];
ld.global.u32 %r1, [%rd3+8];
ld.global.u32 %r2, [%rd3+12];
setp.ne.u32 %p2, %r2, 0;
setp.ne.u32 %p3, %r0, %r0;
add.u32 %r1, %r1, %base;
shr.u32 %r1, %r1, 4;
and.b32 %r1, %r1, 16383;
cvt.u64.u32 %rd5, %r1;
or.b64 %rd4, %rd4, %rd5;
add.u32 %r1, %base, {AREA};
"""
        + with_start(descriptor(16 * N, 128, Swizzle.NONE), "%r1", "%rd5")
        + f"""
mul.wide.u32 %rd6, %r0, {2 * M * N};
add.u64 %rd6, %rd6, %rd2;
mul.wide.u32 %rd7, %thread, 2;
add.u64 %rd6, %rd6, %rd7;
"""
        + parts
        + report
    )


def _identity() -> np.ndarray:
    """Returns B [n, k] = 1 if n = k, K-major without swizzle: element (n, k) at chunk (k / 8, n), byte 2 (k % 8)."""
    return np.eye(N, K, dtype=np.float16).reshape(N, K // 8, 8).transpose(1, 0, 2).copy().view(np.uint16)


REQUESTS = [
    (mode, major, start, base)
    for mode in Swizzle
    if mode in DESCRIPTOR_LAYOUT
    for major in ("K", "MN")
    for start in ((0, 256) if mode is Swizzle.NONE else (0, 32, 128, 512))
    for base in ((0,) if mode is Swizzle.NONE else (0, 1, 3, 6))
]
"""(swizzle, major-ness, bytes from a 1024-byte boundary to the start address, base offset) of each CTA."""


def _request(mode: Swizzle, major: str, start: int, base: int) -> tuple[int, int]:
    span = mode.span_bytes
    if major == "K":
        leading, stride = (1024, 128) if mode is Swizzle.NONE else (16, 8 * span)
    elif mode is Swizzle.NONE:
        leading, stride = 1024, 128
    else:
        leading, stride = 16 * span, 8 * span
    return descriptor(leading, stride, mode, base), start | int(major == "MN") << 32


def _read_operands(outputs: Outputs) -> dict[str, Any]:
    """Returns, by request, the byte offsets of A(0, 0), A(0, 8), A(1, 0), A(8, 0), A(32, 0) from the boundary."""
    from emugpu.emulator.units.warp_mma import from_registers
    from emugpu.emulator.units.wgmma import d_fragment

    answer = {}
    for request, fragment in zip(REQUESTS, outputs["all"]["report"], strict=True):
        warps = fragment.reshape(N // 2, 4, 32).astype(np.uint32)
        a = np.concatenate([from_registers(warps[:, w], d_fragment(N)) for w in range(4)])
        mode, major, start, base = request
        name = f"{mode.name} {major}-major, start {start}, base offset {base}"
        answer[name] = [int(2 * a[place]) for place in ((0, 0), (0, 8), (1, 0), (8, 0), (32, 0))]
    return answer


OPERANDS = Probe(
    name="wgmma_operand_addresses",
    question="Which bytes of shared memory does a matrix descriptor name, in every swizzle mode and major-ness, with "
    "start addresses inside the pattern and base offsets other than 0?",
    ptx=kernel([f"u64 {name}" for name in ("requests", "identity", "report", "low", "high")], _operand_body()),
    cases=(
        ProbeCase(
            name="all",
            buffers={
                "requests": np.array([_request(*r) for r in REQUESTS], np.uint64),
                "identity": _identity(),
                "report": np.zeros((len(REQUESTS), N // 2 * THREADS), np.uint16),
                "low": (np.arange(AREA // 2) % UNIT).astype(np.float16).view(np.uint16),
                "high": (np.arange(AREA // 2) // UNIT).astype(np.float16).view(np.uint16),
            },
            arguments=tuple(Pointer(name) for name in ("requests", "identity", "report", "low", "high")),
            outputs=("report",),
            block=THREADS,
            grid=(len(REQUESTS), 1),
            shared=AREA + 2 * N * K,
        ),
    ),
    read=_read_operands,
)

# ---- how sums are rounded ----

SUM_N, STEPS = 8, 4
A_BYTES, B_BYTES = 2 * M * K * STEPS, 2 * SUM_N * K * STEPS


def _sum_body(element: str) -> str:
    d = [f"%r{10 + j}" for j in range(SUM_N // 2)]
    steps = "".join(
        f"add.u32 %r1, %base, {2 * M * K * step};\n"
        + with_start(descriptor(16 * M, 128, Swizzle.NONE), "%r1", "%rd4")
        + f"add.u32 %r1, %base, {A_BYTES + 2 * SUM_N * K * step};\n"
        + with_start(descriptor(16 * SUM_N, 128, Swizzle.NONE), "%r1", "%rd5")
        + wgmma(SUM_N, element, d, "%rd4", "%rd5", "%p1", "1, 1, 0, 0")
        for step in range(STEPS)
    )
    c_bytes = 4 * M * SUM_N
    offsets = [4 * THREADS * j for j in range(SUM_N // 2)]
    return (
        f"""
ld.param.u64 %rd0, [a];
ld.param.u64 %rd1, [b];
ld.param.u64 %rd2, [c];
mov.u32 %r0, %ctaid.x;
setp.eq.u32 %p1, %r0, %r0;
mul.wide.u32 %rd3, %r0, {A_BYTES};
add.u64 %rd0, %rd0, %rd3;
mul.wide.u32 %rd3, %r0, {B_BYTES};
add.u64 %rd1, %rd1, %rd3;
mul.wide.u32 %rd3, %r0, {c_bytes};
add.u64 %rd2, %rd2, %rd3;
mul.wide.u32 %rd3, %thread, 4;
add.u64 %rd2, %rd2, %rd3;
"""
        + copy_in("%rd0", 0, A_BYTES, THREADS)
        + copy_in("%rd1", A_BYTES, B_BYTES, THREADS)
        + "".join(f"ld.global.b32 {r}, [%rd2+{o}];\n" for r, o in zip(d, offsets, strict=True))
        + f"fence.proxy.async.shared::cta;\n{CTA_SYNC}wgmma.fence.sync.aligned;\n"
        + steps
        + "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
        + "".join(f"st.global.b32 [%rd2+{o}], {r};\n" for r, o in zip(d, offsets, strict=True))
    )


def _sum_inputs(dtype: Any) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Returns A [64, 64], B [8, 64] and the old D [64, 8], by kind of data."""
    rng = np.random.default_rng(20)
    k = K * STEPS
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    wide = 12 if dtype == np.float16 else 60

    def draw(scale: float = 1.0) -> list[np.ndarray]:
        return [scale * rng.standard_normal(shape) for shape in ((M, k), (SUM_N, k), (M, SUM_N))]

    def spread(power: int) -> list[np.ndarray]:
        return [x * np.exp2(rng.integers(-power, power + 1, x.shape).astype(float)) for x in draw()]

    kinds = {"normal": draw(), "uniform": [rng.random(x.shape) for x in draw()], "spread": spread(6)}
    kinds["wide spread"] = spread(wide)
    a, b, c = draw()
    a[:, 1::2], b[:, 1::2] = a[:, ::2], -b[:, ::2]
    a[:, 62] *= 1 + 2.0**-6
    kinds["cancellation"] = [a, b, c * 2.0**-20]
    a, b, c = draw()
    kinds["large sum, small products"] = [a, b, c * 2.0**26]
    a, b, c = draw(2.0**-4)
    kinds["sum cancels products"] = [a, b, -(a @ b.T)]
    a, b, c = draw()
    kinds["subnormal inputs"] = [np.rint(a * 20) * tiny, b, c * tiny]
    a, b, c = draw()
    scale = 2.0**-12 if dtype == np.float16 else 2.0**-70
    kinds["subnormal results"] = [a * scale, b * scale, c * 2.0**-140]
    a, b, c = draw()
    kinds["overflow"] = [a * 60, b * 60, c * 2.0**127]
    a, b, c = draw()
    a[::8, 3], b[::3, 17], c[5::9] = np.inf, -np.inf, np.inf
    kinds["infinities"] = [a, b, c]
    a, b, c = draw()
    a[::8, 3], b[5, 17], c[3::9] = np.nan, np.inf, np.nan
    a[1::8, 17] = 0
    kinds["nan"] = [a, b, c]
    a, b, c = draw()
    a[::2], b[::2], c[1::2] = -0.0, 0.0, -0.0
    kinds["zeros"] = [a, b, c]
    with np.errstate(over="ignore", invalid="ignore"):
        return {name: (a.astype(dtype), b.astype(dtype), c.astype(np.float32)) for name, (a, b, c) in kinds.items()}


def _sums(element: str, dtype: Any) -> Probe:
    inputs = _sum_inputs(dtype)
    a, b, c = (np.stack(arrays) for arrays in zip(*inputs.values(), strict=True))

    def chunks(x: np.ndarray) -> np.ndarray:
        """Returns core matrices of [cases, rows, 64]: K in chunks of 8, then rows."""
        return x.reshape(*x.shape[:2], -1, 8).transpose(0, 2, 1, 3).copy().view(np.uint16)

    fragments = c.reshape(-1, 4, 2, 8, 4, 2).transpose(0, 2, 5, 1, 3, 4)
    old = fragments.reshape(len(inputs), SUM_N // 2, THREADS).copy().view(np.uint32)

    def read(outputs: Outputs) -> dict[str, Any]:
        words = outputs["all kinds"]["c"]
        return {name: [hex(v) for v in words[i, 0, :4].tolist()] for i, name in enumerate(inputs)}

    return Probe(
        name=f"wgmma_sums_{element}",
        question=f"How does wgmma round sums of {element} products: random, cancelling, subnormal, infinite?",
        ptx=kernel(["u64 a", "u64 b", "u64 c"], _sum_body(element)),
        cases=(
            ProbeCase(
                name="all kinds",
                buffers={"a": chunks(a), "b": chunks(b), "c": old},
                arguments=(Pointer("a"), Pointer("b"), Pointer("c")),
                outputs=("c",),
                block=THREADS,
                grid=(len(inputs), 1),
                shared=A_BYTES + B_BYTES,
            ),
        ),
        read=read,
        accumulation="tensor_core",
    )


# ---- whole tiles ----


def _tile_probe(tile: TileProduct) -> Probe:
    rng = np.random.default_rng(21)
    a, b = (rng.integers(-8, 9, (rows, tile.k)).astype(tile.dtype) for rows in (M, tile.n))
    exact = a.astype(np.float32) @ b.astype(np.float32).T
    return Probe(
        name=f"wgmma_tile_{tile.name}",
        question=f"Is a 64 x {tile.n} x {tile.k} product of integers exact ({tile.description})?",
        ptx=tile.ptx(),
        cases=(tile.case("integers", a, b),),
        read=lambda outputs: {"exact": bool((tile.product(outputs["integers"]["d"]) == exact).all())},
    )


TILES = (
    TileProduct(n=64, element="bf16", swizzle="128B"),
    TileProduct(n=256, element="f16", swizzle="128B", a_major="MN", b_major="MN"),
    TileProduct(n=32, element="bf16", swizzle="64B", b_major="MN"),
    TileProduct(n=48, element="f16", swizzle="32B", a_major="MN"),
    TileProduct(n=24, element="bf16", swizzle="none", a_major="MN", b_major="MN"),
    TileProduct(n=128, element="bf16", swizzle="128B", a_in_registers=True),
)

PROBES = (
    OPERANDS,
    _sums("bf16", ml_dtypes.bfloat16),
    _sums("f16", np.float16),
    *(_tile_probe(tile) for tile in TILES),
)
