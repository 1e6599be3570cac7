"""The forms of products of matrices, and of moves of their parts: mma.sync, wgmma, tcgen05. Registers: see `ptx_forms`."""

# ruff: noqa: E501

from __future__ import annotations

from itertools import product

from form_patterns import each, vector


def mma() -> list[str]:
    forms = []
    for shape, d, a, b, types in (
        ("m16n8k8", 2, 2, 1, "f16.f16.f16.f16"), ("m16n8k8", 4, 2, 1, "f32.f16.f16.f32"),
        ("m16n8k8", 4, 2, 1, "f32.bf16.bf16.f32"), ("m16n8k16", 2, 4, 2, "f16.f16.f16.f16"),
        ("m16n8k16", 4, 4, 2, "f32.f16.f16.f32"), ("m16n8k16", 4, 4, 2, "f32.bf16.bf16.f32"),
        ("m16n8k4", 4, 2, 1, "f32.tf32.tf32.f32"), ("m16n8k8", 4, 4, 2, "f32.tf32.tf32.f32"),
        ("m16n8k16", 4, 2, 1, "s32.s8.s8.s32"), ("m16n8k16", 4, 2, 1, "s32.u8.s8.s32"),
        ("m16n8k32", 4, 4, 2, "s32.s8.s8.s32"), ("m16n8k32", 4, 4, 2, "s32.s8.u8.s32"),
        ("m16n8k32", 4, 4, 2, "f32.e4m3.e4m3.f32"), ("m16n8k32", 4, 4, 2, "f32.e5m2.e4m3.f32"),
        ("m16n8k32", 2, 4, 2, "f16.e4m3.e4m3.f16"), ("m16n8k16", 4, 2, 1, "f32.e4m3.e5m2.f32"),
        ("m8n8k16", 2, 1, 1, "s32.s8.s8.s32"),
    ):  # fmt: skip
        r = "f" if types.startswith("f32") else "r"
        forms.append(
            f"mma.sync.aligned.{shape}.row.col.{types} {vector(r, d)}, {vector('r', a, 10)}, "
            f"{vector('r', b, 20)}, {vector(r, d, 30)};"
        )
    forms.append("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32 {%r0, %r1, %r2, %r3}, "
                 "{%r4, %r5, %r6, %r7}, {%r8, %r9}, {%r10, %r11, %r12, %r13};")  # fmt: skip
    forms.append("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%e0, %e1}, {%e2}, {%e3}, {%e4, %e5};")
    for x, trans in product((1, 2, 4), ("", ".trans")):
        forms.append(f"ldmatrix.sync.aligned.m8n8.x{x}{trans}.shared.b16 {vector('r', x)}, [%r9];")
        forms.append(f"stmatrix.sync.aligned.m8n8.x{x}{trans}.shared.b16 [%r9], {vector('r', x)};")
    forms.append("ldmatrix.sync.aligned.m8n8.x4.b16 {%r0, %r1, %r2, %r3}, [%d1];")
    forms.append("stmatrix.sync.aligned.m8n8.x2.b16 [%d1], {%r0, %r1};")
    forms.append("movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;")
    return forms


def wgmma() -> list[str]:
    forms = []
    for n, k, types, flags in (
        (8, 16, "f16.f16.f16", ", 0, 0"), (16, 16, "f32.bf16.bf16", ", 0, 1"), (8, 8, "f32.tf32.tf32", ""),
        (8, 32, "f32.e4m3.e4m3", ""), (8, 32, "f16.e5m2.e4m3", ""),
    ):  # fmt: skip
        d = vector("r" if types.startswith("f16") else "f", n // (4 if types.startswith("f16") else 2))
        a = vector("r", 4, 100)
        forms.append(f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types} {d}, %d1, %d2, %p0, 1, 1{flags};")
        register_flags = ", 0" if flags else ""
        forms.append(f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types} {d}, {a}, %d2, %p0, 1, -1{register_flags};")
    for types in ("s8.s8", "u8.s8", "s8.u8", "u8.u8"):
        forms.append(f"wgmma.mma_async.sync.aligned.m64n8k32.s32.{types} {vector('r', 4)}, %d1, %d2, %p0;")
    forms.append("wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8.satfinite {%r0, %r1, %r2, %r3}, "
                 "{%r4, %r5, %r6, %r7}, %d2, %p0;")  # fmt: skip
    return forms


def tcgen05(g: int) -> list[str]:
    """A kernel may not have both cta_group::1 and ::2."""
    forms = []
    for kind in ("f16", "tf32", "f8f6f4", "i8"):
        mask = vector("r", 4 * g, 10)
        forms.append(f"tcgen05.mma.cta_group::{g}.kind::{kind} [%r1], %d1, %d2, %r2, %p0;")
        forms.append(f"tcgen05.mma.cta_group::{g}.kind::{kind} [%r1], [%r3], %d2, %r2, {mask}, %p0;")
        if kind in ("f16", "tf32"):
            forms.append(f"tcgen05.mma.cta_group::{g}.kind::{kind} [%r1], %d1, %d2, %r2, %p0, 3;")
    for kind in ("mxf8f6f4", "mxf4", "mxf4nvf4"):
        scale = {"mxf8f6f4": (".block_scale", ".block_scale.block32", ".block_scale.scale_vec::1X"),
                 "mxf4": (".block_scale", ".block_scale.block32", ".block_scale.scale_vec::2X"),
                 "mxf4nvf4": (".block_scale.block16", ".block_scale.scale_vec::4X", ".block_scale.block32",
                              ".block_scale.scale_vec::2X")}[kind]  # fmt: skip
        for s, a in product(scale, ("%d1", "[%r3]")):
            forms.append(f"tcgen05.mma.cta_group::{g}.kind::{kind}{s} [%r1], {a}, %d2, %r2, [%r4], [%r5], %p0;")
    shapes = ("128x256b", "4x256b", "128x128b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "32x128b.warpx4")
    for shape in shapes:
        forms.append(f"tcgen05.cp.cta_group::{g}.{shape} [%r1], %d1;")
    if g == 2:
        return forms
    forms.append("tcgen05.mma.cta_group::1.kind::f16.collector::a::lastuse [%r1], %d1, %d2, %r2, %p0;")
    forms += each("tcgen05.mma.ws.cta_group::1.kind::{k} [%r1], {a}, %d2, %r2, %p0;", k="f16 tf32 f8f6f4 i8",
                   a="%d1 [%r3]")  # fmt: skip
    forms.append("tcgen05.mma.ws.cta_group::1.kind::f16.collector::b1::fill [%r1], %d1, %d2, %r2, %p0, 0;")
    for shape, per in (("32x32b", 1), ("16x64b", 1), ("16x128b", 2), ("16x256b", 4)):
        for n, pack in product((1, 2, 4), ("", "16b")):
            registers = vector("r", per * n)
            pack_ld, pack_st = (f".pack::{pack}", f".unpack::{pack}") if pack else ("", "")
            forms.append(f"tcgen05.ld.sync.aligned.{shape}.x{n}{pack_ld}.b32 {registers}, [%r99];")
            forms.append(f"tcgen05.st.sync.aligned.{shape}.x{n}{pack_st}.b32 [%r99], {registers};")
    forms.append("tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {%r0, %r1}, [%r99], 8;")
    forms.append("tcgen05.st.sync.aligned.16x32bx2.x2.b32 [%r99], 8, {%r0, %r1};")
    forms += each("tcgen05.commit.cta_group::1.mbarrier::arrive::one{s}.b64 {a};", s=".shared::cluster", a="[%r1]")
    forms.append("tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%d1];")
    forms.append("tcgen05.commit.cta_group::1.mbarrier::arrive::one.multicast::cluster.b64 [%d1], %h1;")
    forms.append("tcgen05.alloc.cta_group::1.sync.aligned.b32 [%d1], 32;")
    return forms


REDUCED_LOADS = [
    *each("tcgen05.ld.red.sync.aligned.32x32b.x2.{op}{m}.f32 {{%f0, %f1}}, %f2, [%r99];", op="min max",
           m="- .abs .NaN .abs.NaN"),
    *each("tcgen05.ld.red.sync.aligned.16x32bx2.x2.{op}.{t} {{%r0, %r1}}, %r2, [%r99], 16;", t="u32 s32", op="min max"),
    "tcgen05.ld.red.sync.aligned.32x32b.x4.max.s32 {%r0, %r1, %r2, %r3}, %r4, [%r99];",
]  # fmt: skip


def mma_of_kinds() -> list[str]:
    """mma.sync of consumer Blackwell: plain and block-scaled, with a dense and with a sparse A."""
    small = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
    plain = [(f"kind::f8f6f4.{d}.{a}.{b}.{d}", 32) for d, a, b in product(("f32", "f16"), small, small)]
    scaled = [(f"kind::mxf8f6f4.block_scale{size}.f32.{a}.{b}.f32.ue8m0", 32)
              for size, a, b in product(("", ".scale_vec::1X"), small, small)]  # fmt: skip
    for kind in ("mxf4.block_scale", "mxf4.block_scale.scale_vec::2X", "mxf4nvf4.block_scale.scale_vec::2X"):
        scaled.append((f"kind::{kind}.f32.e2m1.e2m1.f32.ue8m0", 64))
    scaled.append(("kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3", 64))
    forms = [
        f"mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f16.{a}.e5m2.f16 {{%r40, %r41}}, {{%r0, %r1, %r2, %r3}}, {{%r4, %r5, %r6, %r7}}, {{%r40, %r41}}, %r8, 0;"
        for a in ("e4m3", "e5m2")
    ]
    for (types, k), sparse in product([*plain, *scaled], (False, True)):
        d = "{%r40, %r41}" if ".f16" in types else "{%f0, %f1, %f2, %f3}"
        words = "mma.sp::ordered_metadata.sync.aligned" if sparse else "mma.sync.aligned"
        b, more = ("{%r4, %r5, %r6, %r7}", ", %r8, 0") if sparse else ("{%r4, %r5}", "")
        if "block_scale" in types:
            more += (
                ", {%r9}, {2, 1}, {%r10}, {%h1, 3}"
                if "2X" in types or "mxf4." in types
                else ", %r9, {0, %h1}, %r10, {0, 0}"
            )
        forms.append(
            f"{words}.m16n8k{2 * k if sparse else k}.row.col.{types} {d}, {{%r0, %r1, %r2, %r3}}, {b}, {d}{more};"
        )
    return forms
