"""Programs of tcgen05.mma for every kind: operands in core matrices, descriptors, scale factors, and their runs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from ptx_programs import launch

from emugpu.emulator import Device

DTYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "e2m3": ml_dtypes.float6_e2m3fn, "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn, "s8": np.int8, "u8": np.uint8, "ue8m0": ml_dtypes.float8_e8m0fnu,
    "ue4m3": ml_dtypes.float8_e4m3fn,
}  # fmt: skip
CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5, "u8": 0, "s8": 1}
DEPTH = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
SCALED = ("mxf8f6f4", "mxf4", "mxf4nvf4")
N = 64
A_AT, B_AT, SFA_AT, SFB_AT, SHARED = 0, 4096, 8192, 8704, 9216
"""Offsets of the operands and the scale factors in shared memory, and its bytes in all."""
ROOM = ".shared .align 1024 .b8 words[9216]; .shared .align 8 .b64 done; .shared .align 8 .b32 place;"


def rows_of_bytes(values: np.ndarray, element: str, kind: str) -> np.ndarray:
    """32 bytes for each row, as the kind wants them in shared memory."""
    codes = values.astype(DTYPES[element])
    rows = len(values)
    if element == "e2m1":
        nibbles = codes.view(np.uint8) & 15
        packed = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
        if kind in ("mxf4", "mxf4nvf4"):
            return packed
        out = np.zeros((rows, 2, 16), np.uint8)
        out[:, :, :8] = packed.reshape(rows, 2, 8)
        return out.reshape(rows, 32)
    if element in ("e2m3", "e3m2"):
        out = np.zeros((rows, 32), np.uint8)
        for row in range(rows):
            for half in range(2):
                number = sum(
                    int(c) << 6 * n for n, c in enumerate(codes.view(np.uint8)[row, 16 * half : 16 * half + 16])
                )
                out[row, 16 * half : 16 * half + 12] = list(number.to_bytes(12, "little"))
        return out
    return np.ascontiguousarray(codes).view(np.uint8).reshape(rows, 32)


def core_matrices(rows: np.ndarray) -> np.ndarray:
    """K-major without swizzle: blocks of 8 rows x 16 bytes, those along K first."""
    count, width = rows.shape
    return rows.reshape(count // 8, 8, width // 16, 16).transpose(0, 2, 1, 3).ravel()


def descriptor(offset: int, width: int = 32) -> str:
    """Of core matrices; the kernel adds the address of `words`."""
    leading, stride = 128, 8 * width
    return str(1 << 46 | leading >> 4 << 16 | stride >> 4 << 32 | offset >> 4)


def instruction_descriptor(kind: str, m: int, a: str, b: str, d: str = "f32", scale: str = "", n: int = N,
                           **bits: int) -> int:  # fmt: skip
    value = n >> 3 << 17 | m >> 4 << 24
    code = {**CODES, **({"e2m1": 1} if kind in ("mxf4", "mxf4nvf4") else {})}
    value |= code[a] << 7 | code[b] << 10
    if kind in SCALED:
        value |= (scale == "ue8m0") << 23 | bits.get("a_id", 0) << 29 | bits.get("b_id", 0) << 4
    else:
        value |= {"f16": 0, "f32": 1, "s32": 2}[d] << 4
    return value | bits.get("saturate", 0) << 3 | bits.get("negate", 0) << 13


PROGRAM = """
mov.b32 %r1, words; mad.wide.u32 %rd2, %r0, 16, %rd0; mad.lo.u32 %r2, %r0, 16, %r1; mov.b32 %r3, 0;
COPY: ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd2]; st.shared.v4.b32 [%r2], {{%r4, %r5, %r6, %r7}};
add.s64 %rd2, %rd2, 2048; add.u32 %r2, %r2, 2048; add.u32 %r3, %r3, 2048;
mad.lo.u32 %r4, %r0, 16, %r3; setp.lt.u32 %p1, %r4, 9216; @%p1 bra COPY;
setp.lt.u32 %p2, %r0, 32; @!%p2 bra ALLOCATED;
mov.b32 %r8, place; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r8], 256;
ALLOCATED:
setp.eq.u32 %p3, %r0, 0; mov.b32 %r9, done; @%p3 mbarrier.init.shared.b64 [%r9], 1;
fence.proxy.async; bar.sync 0;
ld.shared.b32 %r10, [place];
shr.u32 %r12, %r1, 4; cvt.u64.u32 %rd3, %r12; add.s64 %rd4, %rd3, {a}; add.s64 %rd5, %rd3, {b};
add.u32 %r20, %r10, 128; add.u32 %r21, %r10, 136; add.u32 %r22, %r10, 144;
{before}
setp.ne.u32 %p4, 0, {accumulate};
@!%p3 bra ISSUED;
{mma}
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];
ISSUED:
WAIT: mbarrier.try_wait.parity.shared.b64 %p5, [%r9], 0; @!%p5 bra WAIT;
tcgen05.ld.sync.aligned.32x32b.x64.b32 {{{registers}}}, [%r10]; tcgen05.wait::ld.sync.aligned;
mad.wide.u32 %rd6, %r0, 256, %rd0;
{stores}
bar.sync 0;
@!%p2 bra END;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 256;
END: ret;
"""


RESULTS = [f"%x{n}" for n in range(64)]


def run(kind: str, mma: str, a: np.ndarray, b: np.ndarray, scales=None, before: str = "", old: np.ndarray | None = None,
        device: Device | None = None, **options) -> np.ndarray:  # fmt: skip
    """The words [128 lanes, 64 columns] that are in tensor memory behind the MMA; a and b as rows of 32 bytes."""
    shared = np.zeros(SHARED, np.uint8)
    shared[A_AT : A_AT + a.size], shared[B_AT : B_AT + b.size] = core_matrices(a), core_matrices(b)
    for at, factors in zip((SFA_AT, SFB_AT), scales or (), strict=False):
        shared[at : at + 512] = core_matrices(factors)
    initial = np.zeros((128, 64), np.uint32) if old is None else old
    words = np.concatenate([shared.view(np.uint32), np.zeros(128 * 64, np.uint32)])
    load = "".join(f"ld.global.b32 %x{n}, [%rd6+{4 * n + SHARED}];\n" for n in range(64))
    stores = "".join(f"st.global.b32 [%rd6+{4 * n + SHARED}], %x{n};\n" for n in range(64))
    store_old = f"mad.wide.u32 %rd6, %r0, 256, %rd0;\n{load}" + (
        f"tcgen05.st.sync.aligned.32x32b.x64.b32 [%r10], {{{', '.join(RESULTS)}}};"
        "tcgen05.wait::st.sync.aligned; bar.sync 0;"
    )
    words[SHARED // 4 :] = initial.ravel()
    body = ".reg .b32 %x<64>;\n" + PROGRAM.format(
        a=descriptor(A_AT), b=descriptor(B_AT), before=store_old + before, mma=mma, stores=stores,
        registers=", ".join(RESULTS), accumulate=int(old is not None),
    )  # fmt: skip
    done = launch(body, threads=128, module_scope=ROOM, initial=words, device=device, **options)
    return done.words(len(words))[SHARED // 4 :].reshape(128, 64)


def values(rng, element: str, shape: tuple[int, int]) -> np.ndarray:
    """Small integers that the type has."""
    return rng.integers(0 if element == "u8" else -3, 4, shape).astype(np.float64)


COPY_SCALES = """
add.s64 %rd8, %rd3, {sfa}; add.s64 %rd9, %rd3, {sfb};
@%p3 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r20], %rd8;
@%p3 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r21], %rd9;
"""
