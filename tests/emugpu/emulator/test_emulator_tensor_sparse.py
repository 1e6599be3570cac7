"""tcgen05.mma.sp in whole programs: metadata in tensor memory says which elements of A are kept, in every kind."""

from __future__ import annotations

import numpy as np
import pytest
from tensor_kinds import DEPTH, DTYPES, SCALED, N, instruction_descriptor, rows_of_bytes, run, values

from emugpu.emulator import Fault

CODES, TF32_CODES = (4, 8, 12, 9, 13, 6, 14), (4, 14)
"""What the ISA has: two of four elements, the first index in the lower bits. 6 is the third, then the second."""
BEFORE = f"""
add.s64 %rd5, %rd5, {256 >> 4 << 32};
tcgen05.st.sync.aligned.32x32b.x4.b32 [%r20], {{%x0, %x1, %x2, %x3}};
tcgen05.st.sync.aligned.32x32b.x4.b32 [%r21], {{%x4, %x5, %x6, %x7}};
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r22], {{%x8, %x9}};
tcgen05.wait::st.sync.aligned; bar.sync 0;
setp.ne.u32 %p6, 0, 0;
"""
"""B has 64 bytes a row; of what is in D first, ten words a lane become metadata and scale factors; D is not added."""
CASES = [
    ("f16", "bf16", "bf16", "f32", 64, ""), ("f16", "f16", "f16", "f16", 128, ""),
    ("f16", "bf16", "bf16", "f32", 128, ".ws"), ("f16", "f16", "f16", "f32", 64, ".ws"),
    ("tf32", "tf32", "tf32", "f32", 64, ""), ("tf32", "tf32", "tf32", "f32", 128, ""),
    ("f8f6f4", "e4m3", "e2m1", "f32", 64, ""), ("f8f6f4", "e3m2", "e5m2", "f32", 128, ""),
    ("f8f6f4", "e5m2", "e5m2", "f32", 32, ".ws"), ("i8", "s8", "u8", "s32", 64, ""), ("i8", "u8", "s8", "s32", 128, ""),
    ("mxf8f6f4", "e4m3", "e2m3", "ue8m0", 128, ""), ("mxf4", "e2m1", "e2m1", "ue8m0", 128, ""),
    ("mxf4nvf4", "e2m1", "e2m1", "ue4m3", 128, ""),
]  # fmt: skip


def thinned(rng, kind: str, element: str, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [M, 2 K] with zeros where nothing is kept, what is kept of it [M, K], and the codes of each row."""
    depth = DEPTH[kind]
    kept = values(rng, element, (m, depth))
    codes = rng.choice(TF32_CODES if kind == "tf32" else CODES, (m, 8 if kind in ("f16", "tf32") else 16))
    dense = np.zeros((m, 2 * depth))
    for row in range(m):
        taken = iter(kept[row])
        for n, code in enumerate(codes[row]):
            indices = (code & 3, code >> 2)
            if kind == "tf32":
                places = [2 * n + (code == 14)]
            elif kind in ("mxf4", "mxf4nvf4"):
                places = [8 * n + 2 * i + half for i in indices for half in (0, 1)]
            else:
                places = [4 * n + i for i in indices]
            for place in places:
                dense[row, place] = next(taken)
    return dense, kept, codes


def metadata(kind: str, codes: np.ndarray, parts: int) -> np.ndarray:
    """Words [128 lanes, 4 columns]; as many copies as D has parts, one above the other."""
    words, m = np.zeros((128, 4), np.uint32), len(codes)
    for row in range(m):
        for n, code in enumerate(codes[row]):
            first = 32 * (row // 16) if m == 64 and parts == 1 else row // 16 * 16
            for part in range(parts):
                if kind in ("f16", "tf32"):
                    at = (first + row % 8 + n // 4 * 8 + part * m, 0)
                    words[at] |= np.uint32(code << 4 * (n % 4) + row % 16 // 8 * 16)
                else:
                    words[first + row % 16 + part * m, n // 8] |= np.uint32(code << 4 * (n % 8))
    return words


def wide(b: np.ndarray, element: str, kind: str) -> np.ndarray:
    half = b.shape[1] // 2
    return np.concatenate(
        [rows_of_bytes(b[:, :half], element, kind), rows_of_bytes(b[:, half:], element, kind)], axis=1
    )


def multiply(kind: str, a: str, b: str, d: str, m: int, form: str = "", spoil: int = 0, bits: int = 4, at: int = 0,
             **options):  # fmt: skip
    """What tensor memory holds behind it, and what it should. d: the type of D, or of the scale factors.

    at: the column of the metadata in their four; an odd one is named by the selector.
    """
    rng = np.random.default_rng(21)
    parts = 128 // m if form else 1
    dense, kept, codes = thinned(rng, kind, a, m)
    of_b = values(rng, b, (N, dense.shape[1]))
    old = np.zeros((128, 64), np.uint32)
    old[:, at:4] = metadata(kind, codes | spoil, parts)[:, : 4 - at]
    scale = d if kind in SCALED else ""
    if scale:
        vectors = {"mxf8f6f4": 1, "mxf4": 2, "mxf4nvf4": 4}[kind]
        for column, of in ((4, dense), (8, of_b)):
            factors = 2.0 ** rng.integers(-2, 3, (len(of), 4))
            for number, bytes_ in enumerate(factors.astype(DTYPES[scale]).view(np.uint32)[:, 0]):
                old[number % 32 :: 32, column + number // 32] = bytes_
            of *= np.repeat(factors[:, :vectors], of.shape[1] // vectors, axis=1)
        of_b_bytes = of_b / np.repeat(factors[:, :vectors], of.shape[1] // vectors, axis=1)
    else:
        of_b_bytes = of_b
    what = instruction_descriptor(kind, m, a, b, "f32" if scale else d, scale=scale) | bits | at & 1
    size = f".block_scale{'.block16' if kind == 'mxf4nvf4' else ''}" if scale else ""
    factors_at = ", [%r21], [%r22]" if scale else ""
    operands = f"[%r10], %rd4, %rd5, [%r20+{at & ~1}], {what}{factors_at}, %p6"
    mma = f"tcgen05.mma{form}.sp.cta_group::1.kind::{kind}{size} {operands};"
    rows = np.zeros((128, 32), np.uint8)
    rows[:m] = rows_of_bytes(kept, a, kind)
    found = run(kind, mma, rows, wide(of_b_bytes, b, kind), before=BEFORE, old=old, **options)
    if form:
        found = np.concatenate([found[m * p : m * (p + 1), : N // parts] for p in range(parts)], axis=1)
    elif m == 64:
        found = found.reshape(4, 32, 64)[:, :16].reshape(64, 64)
    return found, dense @ of_b.T


@pytest.mark.parametrize(("kind", "a", "b", "d", "m", "form"), CASES)
def test_metadata_says_which_elements_are_kept(kind, a, b, d, m, form):
    found, expected = multiply(kind, a, b, d, m, form)
    numbers = (
        found.astype(np.uint16).view(np.float16) if d == "f16" else found.view(np.int32 if d == "s32" else np.float32)
    )
    np.testing.assert_array_equal(numbers, expected)


@pytest.mark.parametrize(
    ("case", "at"), [(CASES[0], 1), (CASES[5], 3), (CASES[7], 2), (CASES[11], 2), (CASES[13], 2)]
)  # fmt: skip
def test_metadata_of_several_multiplications_share_four_columns(case, at):
    found, expected = multiply(*case, at=at)
    np.testing.assert_array_equal(found.view(np.float32), expected)


def test_codes_that_the_isa_does_not_have_are_a_warning():
    """Each index names an element all the same; twice the same one, or in any order."""
    found, expected = multiply("f16", "bf16", "bf16", "f32", 64, spoil=3)
    assert not np.array_equal(found.view(np.float32), expected)
    with pytest.raises(Fault, match="is none of 0x4, 0x8, 0xc, 0x9, 0xd, 0x6, 0xe") as error:
        multiply("f16", "bf16", "bf16", "f32", 64, spoil=3, strict=True)
    assert error.value.rule == "sparse-metadata"


@pytest.mark.parametrize(
    ("bits", "message", "rule"),
    [
        (0, r"bit 2 \(sparse\) must be 1 with .sp", "descriptor"),
        (6, "sparsity selector 2 is not below 2", "unsupported"),
    ],
)
def test_descriptors_that_are_none_of_a_sparse_multiplication(bits, message, rule):
    with pytest.raises(Fault, match=message) as error:
        multiply("f16", "bf16", "bf16", "f32", 64, bits=bits)
    assert error.value.rule == rule


def test_metadata_that_nobody_has_written_is_found():
    codes = np.zeros((128, 32), np.uint8)
    what = instruction_descriptor("f8f6f4", 128, "e4m3", "e4m3") | 4
    mma = f"tcgen05.mma.sp.cta_group::1.kind::f8f6f4 [%r10], %rd4, %rd5, [%r20], {what}, %p4;"
    with pytest.raises(Fault, match=r"sparsity metadata of tcgen05.mma is read at tensor memory lane 0, column 128"):
        run("f8f6f4", mma, codes, np.zeros((N, 64), np.uint8), before=BEFORE[: BEFORE.index("tcgen05")])
