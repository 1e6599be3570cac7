"""Probes of wgmma and mma of every type of sm_90a: the rounding of sums, on random numbers and on random bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from conformance.probe import Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import CTA_SYNC, copy_in, descriptor, kernel, with_start
from emugpu.emulator import Swizzle

DTYPES: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8, "f32": np.float32, "s32": np.int32,
    "f64": np.float64,
}  # fmt: skip
KINDS = ("normal", "spread", "cancelling", "bits", "integers")


def draw(rng: np.random.Generator, element: str, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Returns values of a type: normal ones; over many powers of two; in pairs along the last axis that almost cancel;
    random bits including NaN; small integers. Old s32 sums that are "spread" are close to the largest and the smallest.
    """
    dtype = np.dtype(DTYPES[element])
    if element == "s32" and kind == "spread":
        return (
            rng.choice([-(1 << 31) + 40_000, (1 << 31) - 40_000], shape) + rng.integers(-40_000, 40_000, shape)
        ).astype(dtype)
    if kind == "bits" or (element in ("s8", "u8", "s32") and kind != "integers"):
        raw = rng.integers(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), np.uint8)
        return raw.view(dtype)
    if kind == "integers":
        return rng.integers(0 if element == "u8" else -4, 5, shape).astype(dtype)
    x = rng.standard_normal(shape)
    if kind == "spread":
        x = x * np.exp2(rng.integers(-5, 6, shape))
    if kind == "cancelling":
        x[..., 1::2] = x[..., ::2] * np.where(rng.random(x[..., 1::2].shape) < 0.5, 1, 1 + 2.0**-4)
    with np.errstate(over="ignore"):
        return x.astype(dtype)


def _metadata(rng: np.random.Generator, element: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns random metadata: the two kept elements of each four in order, or for tf32 the kept one of two."""
    codes = np.array([0b1110, 0b0100] if element == "tf32" else [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110])
    nibbles = rng.choice(codes, (*shape, 8)).astype(np.uint64)
    return (nibbles << (4 * np.arange(8, dtype=np.uint64))).sum(axis=-1).astype(np.uint32)


# ---- wgmma ----

THREADS, M, N, STEPS, SLICE = 128, 64, 8, 2, 32
"""An instruction takes 32 bytes of K of every row; of a sparse A, 32 bytes that are kept."""


def _wgmma_body(types: str, suffix: str, selector: int | None) -> str:
    """Returns the code. ``selector`` belongs to a sparse A, whose metadata is the buffer ``e``."""
    d_type, a_type, _ = types.split(".")
    sparse = selector is not None
    b_slice = SLICE * (1 + sparse)
    depth = b_slice // np.dtype(DTYPES[a_type]).itemsize
    form, metadata = (".sp", f" %r2, {selector},") if sparse else ("", "")
    d = [f"%r{10 + j}" for j in range(2 if d_type == "f16" else 4)]
    scales = "" if d_type == "s32" else ", 1, 1, 0, 0" if a_type in ("f16", "bf16") else ", 1, 1"
    a_bytes, b_bytes = STEPS * M * SLICE, STEPS * N * b_slice
    steps = "".join(
        f"add.u32 %r1, %base, {M * SLICE * step};\n"
        + with_start(descriptor(16 * M, 128, Swizzle.NONE), "%r1", "%rd4")
        + f"add.u32 %r1, %base, {a_bytes + N * b_slice * step};\n"
        + with_start(descriptor(16 * N, 128, Swizzle.NONE), "%r1", "%rd5")
        + f"wgmma.mma_async{form}.sync.aligned.m64n{N}k{depth}.{types}{suffix} "
        f"{{{', '.join(d)}}}, %rd4, %rd5,{metadata} %p1{scales};\n"
        for step in range(STEPS)
    )
    registers = [(r, 4 * THREADS * j) for j, r in enumerate(d)]
    return (
        f"""
ld.param.u64 %rd0, [a];
ld.param.u64 %rd1, [b];
ld.param.u64 %rd2, [d];
mov.u32 %r0, %ctaid.x;
setp.eq.u32 %p1, %r0, %r0;
mad.wide.u32 %rd0, %r0, {a_bytes}, %rd0;
mad.wide.u32 %rd1, %r0, {b_bytes}, %rd1;
mad.wide.u32 %rd2, %r0, {4 * THREADS * len(d)}, %rd2;
mad.wide.u32 %rd2, %thread, 4, %rd2;
"""
        + (
            """ld.param.u64 %rd6, [e];
mad.wide.u32 %rd6, %r0, 512, %rd6;
mad.wide.u32 %rd6, %thread, 4, %rd6;
ld.global.b32 %r2, [%rd6];
"""
            if sparse
            else ""
        )
        + copy_in("%rd0", 0, a_bytes, THREADS)
        + copy_in("%rd1", a_bytes, b_bytes, THREADS)
        + "".join(f"ld.global.b32 {r}, [%rd2+{o}];\n" for r, o in registers)
        + f"fence.proxy.async.shared::cta;\n{CTA_SYNC}wgmma.fence.sync.aligned;\n"
        + steps
        + "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
        + "".join(f"st.global.b32 [%rd2+{o}], {r};\n" for r, o in registers)
    )


def _core_matrices(rows: np.ndarray) -> np.ndarray:
    """Returns [cases, rows, elements] as 16-byte chunks, so that those at one place along K are consecutive."""
    raw = rows.view(np.uint8).reshape(*rows.shape[:2], -1, 16)
    return raw.transpose(0, 2, 1, 3).copy().view(np.uint32)


def _wgmma(types: str, suffix: str = "", selector: int | None = None) -> Probe:
    d_type, a_type, b_type = types.split(".")
    rng = np.random.default_rng(60)
    a: list[np.ndarray] = []
    b: list[np.ndarray] = []
    d: list[np.ndarray] = []
    for kind in KINDS:
        for element, rows, arrays in ((a_type, M, a), (b_type, N, b)):
            doubled = 2 if selector is not None and arrays is b else 1
            depth = doubled * STEPS * SLICE // np.dtype(DTYPES[element]).itemsize
            arrays.append(draw(rng, element, (rows, depth), kind))
        d.append(draw(rng, d_type, (2 * THREADS if d_type == "f16" else THREADS, 4 if d_type != "f16" else 2), kind))
    old = np.stack(d)
    registers = old.view(np.uint32).reshape(len(KINDS), -1, THREADS)
    buffers = {"a": _core_matrices(np.stack(a)), "b": _core_matrices(np.stack(b)), "d": registers.copy()}
    sparse = ""
    if selector is not None:
        buffers["e"] = _metadata(rng, a_type, (len(KINDS), THREADS))
        sparse = f"_sp{selector}"

    def read(outputs: Outputs) -> dict[str, Any]:
        words = outputs["all kinds"]["d"]
        return {kind: [hex(v) for v in words[i, 0, :4].tolist()] for i, kind in enumerate(KINDS)}

    return Probe(
        name=f"wgmma{sparse}_{types.replace('.', '_')}{suffix.replace('.', '_')}",
        question=f"What does wgmma{sparse.replace('_', '.')}.{types}{suffix} give for numbers of every kind?",
        ptx=kernel([f"u64 {name}" for name in buffers], _wgmma_body(types, suffix, selector)),
        cases=(
            ProbeCase(
                name="all kinds",
                buffers=buffers,
                arguments=tuple(Pointer(name) for name in buffers),
                outputs=("d",),
                block=THREADS,
                grid=(len(KINDS), 1),
                shared=STEPS * SLICE * (M + 2 * N),
            ),
        ),
        read=read,
        accumulation="tensor_core",
    )


# ---- mma ----

ROUNDS = 8
"""CTAs of one warp for each kind of numbers."""

MMAS = {
    "m16n8k16.row.col.f32.f16.f16.f32": (4, 2, 4), "m16n8k16.row.col.f16.f16.f16.f16": (4, 2, 2),
    "m16n8k8.row.col.f32.f16.f16.f32": (2, 1, 4), "m16n8k16.row.col.f32.bf16.bf16.f32": (4, 2, 4),
    "m16n8k8.row.col.f32.bf16.bf16.f32": (2, 1, 4), "m16n8k8.row.col.f32.tf32.tf32.f32": (4, 2, 4),
    "m16n8k4.row.col.f32.tf32.tf32.f32": (2, 1, 4), "m16n8k32.row.col.f32.e4m3.e4m3.f32": (4, 2, 4),
    "m16n8k32.row.col.f32.e5m2.e4m3.f32": (4, 2, 4), "m16n8k32.row.col.s32.s8.s8.s32": (4, 2, 4),
    "m16n8k32.row.col.satfinite.s32.u8.s8.s32": (4, 2, 4), "m16n8k16.row.col.s32.s8.u8.s32": (2, 1, 4),
    "m8n8k4.row.col.f64.f64.f64.f64": (2, 2, 4),
}  # fmt: skip
"""The 32-bit registers of A, B and D."""

SPARSE_MMAS = {
    "m16n8k32.row.col.f32.f16.f16.f32": (4, 4, 4), "m16n8k16.row.col.f32.bf16.bf16.f32": (2, 2, 4),
    "m16n8k16.row.col.f32.tf32.tf32.f32": (4, 4, 4), "m16n8k64.row.col.s32.s8.s8.s32": (4, 4, 4),
    "m16n8k64.row.col.f32.e4m3.e4m3.f32": (4, 4, 4), "m16n8k16.row.col.f16.f16.f16.f16": (2, 2, 2),
    "m16n8k32.row.col.s32.u8.u8.s32": (2, 2, 4), "m16n8k8.row.col.f32.tf32.tf32.f32": (2, 2, 4),
}  # fmt: skip
SELECTORS = {"m16n8k16.row.col.f32.bf16.bf16.f32": 4, "m16n8k16.row.col.f16.f16.f16.f16": 4,
             "m16n8k8.row.col.f32.tf32.tf32.f32": 4}  # fmt: skip
"""The number of sparsity selectors of a form; others have two or one, which is 0."""


def _selectors(form: str) -> int:
    depth = int(form.split(".")[0].partition("k")[2])
    if form in SELECTORS:
        return SELECTORS[form]
    return 2 if depth == 32 or form == "m16n8k16.row.col.f32.tf32.tf32.f32" else 1


def _types(form: str) -> tuple[str, str, str]:
    d, a, b, _ = form.split(".")[-4:]
    return d, a, b


def _mma_body(form: str, counts: tuple[int, int, int], sparse: bool) -> str:
    """Returns the code. Buffers are [CTA, register, lane]; a sparse form takes its metadata from a separate
    register.
    """
    wide = 2 if "f64" in form else 1
    groups, lines, first = [], [], 10
    for which, count in zip("abd", counts, strict=True):
        registers = [f"%r{first + n}" for n in range(count)]
        first += count
        lines.append(f"ld.param.u64 %rd0, [{which}];\nmov.u32 %r0, %ctaid.x;\n")
        lines.append(f"mad.wide.u32 %rd0, %r0, {128 * count}, %rd0;\nmad.wide.u32 %rd0, %thread, {4 * wide}, %rd0;\n")
        if wide == 2:
            registers = [f"%rd{first + n}" for n in range(count // 2)]
        lines += [f"ld.global.b{32 * wide} {r}, [%rd0+{128 * wide * n}];\n" for n, r in enumerate(registers)]
        groups.append(registers)
    a, b, d = (f"{{{', '.join(group)}}}" for group in groups)
    if not sparse:
        lines.append(f"mma.sync.aligned.{form} {d}, {a}, {b}, {d};\n")
        lines += [f"st.global.b{32 * wide} [%rd0+{128 * wide * n}], {r};\n" for n, r in enumerate(groups[2])]
        return "".join(lines)
    lines.append("ld.param.u64 %rd1, [e];\nmad.wide.u32 %rd1, %r0, 128, %rd1;\nmad.wide.u32 %rd1, %thread, 4, %rd1;\n")
    lines.append("ld.global.b32 %r1, [%rd1];\nld.param.u64 %rd2, [found];\n")
    lines.append(f"mad.wide.u32 %rd2, %r0, {128 * counts[2] * _selectors(form)}, %rd2;\n")
    lines.append("mad.wide.u32 %rd2, %thread, 4, %rd2;\n")
    result = [f"%r{40 + n}" for n in range(counts[2])]
    for selector in range(_selectors(form)):
        lines.append(
            f"mma.sp::ordered_metadata.sync.aligned.{form} {{{', '.join(result)}}}, {a}, {b}, {d}, %r1, {selector};\n"
        )
        first_byte = 128 * counts[2] * selector
        lines += [f"st.global.b32 [%rd2+{first_byte + 128 * n}], {r};\n" for n, r in enumerate(result)]
    return "".join(lines)


def _fragments(rng: np.random.Generator, element: str, count: int, kind: str) -> np.ndarray:
    """Returns the registers of one warp, [ROUNDS, count, 32]."""
    size = np.dtype(DTYPES[element]).itemsize
    per_lane = 4 * count // size
    values = draw(rng, element, (ROUNDS, 32 * per_lane), kind)
    return values.view(np.uint32).reshape(ROUNDS, count, 32)


def _mma(form: str, counts: tuple[int, int, int], sparse: bool = False) -> Probe:
    d_type, a_type, b_type = _types(form)
    rng = np.random.default_rng(61)
    buffers = {}
    for name, element, count in zip("abd", (a_type, b_type, d_type), counts, strict=True):
        buffers[name] = np.concatenate([_fragments(rng, element, count, kind) for kind in KINDS])
    outputs = "d"
    if sparse:
        ctas = len(KINDS) * ROUNDS
        buffers["e"] = _metadata(rng, a_type, (ctas, 32))
        buffers["found"] = np.zeros((ctas, _selectors(form), counts[2], 32), np.uint32)
        outputs = "found"

    def read(found: Outputs) -> dict[str, Any]:
        words = found["all kinds"][outputs].reshape(len(KINDS), -1)
        return {kind: [hex(v) for v in words[i, :4].tolist()] for i, kind in enumerate(KINDS)}

    name = f"mma{'_sp' if sparse else ''}_{form.replace('.row.col', '').replace('.', '_')}"
    return Probe(
        name=name,
        question=f"What does mma{'.sp' if sparse else ''}.{form} give for numbers, bits and old sums of every kind?",
        ptx=kernel([f"u64 {name}" for name in buffers], _mma_body(form, counts, sparse)),
        cases=(
            ProbeCase(
                name="all kinds",
                buffers=buffers,
                arguments=tuple(Pointer(name) for name in buffers),
                outputs=(outputs,),
                block=32,
                grid=(len(KINDS) * ROUNDS, 1),
            ),
        ),
        read=read,
        accumulation="tensor_core",
    )


WGMMAS = (
    "f16.f16.f16", "f32.e4m3.e4m3", "f32.e5m2.e4m3", "f16.e4m3.e4m3", "f16.e5m2.e5m2", "f32.tf32.tf32", "s32.s8.s8",
    "s32.u8.s8",
)  # fmt: skip
PROBES = (
    *(_wgmma(types) for types in WGMMAS),
    _wgmma("s32.s8.u8", ".satfinite"),
    *(_mma(form, counts) for form, counts in MMAS.items()),
    *(_mma(form, counts, sparse=True) for form, counts in SPARSE_MMAS.items()),
    *(_wgmma(types, selector=selector) for types in ("f32.f16.f16", "f32.tf32.tf32") for selector in (0, 1)),
    *(_wgmma(types, selector=0) for types in ("f32.e4m3.e4m3", "s32.s8.s8", "f16.f16.f16")),
)
