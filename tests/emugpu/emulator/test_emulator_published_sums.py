"""Sums of tcgen05.mma in tensor_core accumulation: what is published of B200s, random sums of every kind against exact
integers.

PUBLISHED_SUMS random sums are drawn, 20,000 if the environment does not say; PUBLISHED_SUMS_SEED draws others.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from published_sums import FIELDS, Sum, published
from tensor_kinds import COPY_SCALES, SFA_AT, SFB_AT, N, descriptor, instruction_descriptor, run

from emugpu.emulator import Device
from emugpu.emulator.memory.descriptors import DEPTH, InstructionDescriptor, Major
from emugpu.emulator.units import tensor_kinds
from emugpu.emulator.units.formats import FORMATS, decode
from harness.paths import ROOT

COUNT = int(os.environ.get("PUBLISHED_SUMS", "20000"))
SEED = int(os.environ.get("PUBLISHED_SUMS_SEED", "1"))


@dataclass(frozen=True)
class Path:
    """A way through the tensor core. vectors: factors of a row. sparse: whether A is, and K twice as large."""

    kind: str
    a: str
    b: str
    d: str = "f32"
    scale: str = ""
    vectors: int = 0
    saturate: bool = False
    sparse: bool = False

    @property
    def depth(self) -> int:
        return DEPTH[self.kind] * (1 + self.sparse)

    @property
    def name(self) -> str:
        more = [self.scale, str(self.vectors or ""), "saturated" * self.saturate, "sparse" * self.sparse]
        return "-".join(part for part in (self.kind, self.a, self.b, self.d, *more) if part)


NARROW = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
DENSE = [
    Path("tf32", "tf32", "tf32"), Path("f16", "f16", "f16"), Path("f16", "bf16", "bf16"),
    Path("f16", "f16", "f16", "f16"),
    *(Path("f8f6f4", a, b, d) for a, b, d in product(NARROW, NARROW, ("f32", "f16"))),
    *(Path("i8", a, b, "s32", saturate=s) for a, b, s in product(("u8", "s8"), ("u8", "s8"), (False, True))),
]  # fmt: skip
FP4 = [
    Path("mxf4", "e2m1", "e2m1", scale="ue8m0", vectors=2),
    *(Path("mxf4nvf4", "e2m1", "e2m1", scale="ue8m0", vectors=v) for v in (2, 4)),
    Path("mxf4nvf4", "e2m1", "e2m1", scale="ue4m3", vectors=4),
]
SPARSE = [replace(path, sparse=True) for path in DENSE[:4] + DENSE[4:8] + DENSE[-2:]] + [replace(FP4[-1], sparse=True)]
PATHS = [
    *DENSE,
    *(Path("mxf8f6f4", a, b, scale="ue8m0", vectors=1) for a, b in product(NARROW, NARROW)),
    *FP4 * 12,  # of the most intricate rules more
    *SPARSE,
]
WAYS = ("raw", "finite", "subnormal", "cancelling", "C near", "C cancels", "zeros", "tiny")


SHIFT = {"tf32": 13}
"""The bits of tf32 are the upper ones of an f32."""


def bits_of(element: str) -> int:
    if element in ("u8", "s8"):
        return 8
    return sum(FIELDS[element]) + (element not in ("ue8m0", "ue4m3"))


def codes(rng: np.random.Generator, element: str, shape: tuple[int, int], way: str) -> np.ndarray:
    """Codes [sums, K] of a type."""
    found = rng.integers(0, 1 << bits_of(element), shape)
    if element in ("u8", "s8") or way == "raw":
        return found
    exponent, fraction = FIELDS[element]
    low = ((1 << exponent) - 1) << fraction
    if way in ("subnormal", "tiny"):
        found &= ~low | np.where(rng.random((len(found), 1)) < 0.3, 0, rng.choice([0, 1 << fraction, low], shape))
    finite = np.isfinite(decode(found << SHIFT.get(element, 0), FORMATS[element]))
    found = np.where(finite, found, found & ~low)
    return np.where(rng.random(shape) < 0.7, 0, found) if way == "zeros" else found


def factor_codes(rng: np.random.Generator, path: Path, count: int, way: str) -> dict[str, np.ndarray]:
    """Codes [sums, vectors] of the factors of A and of B: any, or close to each other but for blocks far below."""
    shape = (count, path.vectors)
    far = rng.random(shape) < 0.5
    any_code = rng.random((count, 1)) < (1 if way == "raw" else 0.3 if way == "zeros" else 0.05)
    found = {}
    for operand in ("scale_a", "scale_b"):
        if path.scale == "ue4m3":
            small = rng.random((count, 1)) < 0.2
            near = np.where(far | small, rng.integers(8, 16, shape), rng.integers(120, 127, shape))
            near = np.where(rng.random((count, 1)) < 0.3, rng.integers(0, 127, shape), near >> small)
        else:
            # The larger ones of tiny sums make subnormal numbers, the others what is left out of those.
            top, step = (rng.integers(52, 66, shape), 20) if way == "tiny" else (rng.integers(118, 136, shape), 16)
            near = top - np.where(far, step + rng.integers(-4, 5, shape), 0)
        found[operand] = np.where(any_code, rng.integers(0, 128 if path.scale == "ue4m3" else 256, shape), near)
    return found


def drawn(rng: np.random.Generator, path: Path, count: int, way: str) -> dict[str, np.ndarray]:
    """Codes of so many sums; ``absent`` says what a sparse A masks."""
    shape = (count, path.depth)
    # Products of two subnormal numbers of a wide type are no part of an f32.
    wide = path.b in ("tf32", "bf16") and way == "subnormal"
    found = {"a": codes(rng, path.a, shape, way), "b": codes(rng, path.b, shape, "finite" if wide else way)}
    if path.scale:
        found |= factor_codes(rng, path, count, way)
    if way == "cancelling":
        # Neighbours take each other away but for a bit here and there, or for the blocks with small factors.
        changed = rng.random((count, path.depth // 2)) < rng.choice([0, 0.1], (count, 1))
        kept = np.zeros(changed.shape, bool)
        if path.scale:
            small = found["scale_a"] < np.median(found["scale_a"], axis=1, keepdims=True)
            kept = np.repeat(small, path.depth // 2 // path.vectors, axis=1)
        found["b"][:, 1::2] = np.where(kept, found["b"][:, 1::2], found["b"][:, ::2])
        opposite = found["a"][:, ::2] ^ (1 << (bits_of(path.a) - 1)) ^ changed
        found["a"][:, 1::2] = np.where(kept, found["a"][:, 1::2], opposite)
    if way == "zeros":
        found["a"] *= np.repeat(rng.random((count, path.depth // 4)) < 0.3, 4, axis=1)
        found["a"][: count // 4] = 0
    found["absent"] = masks(rng, path, count)
    found["c"] = old_codes(rng, path, found, way)
    return found


def old_codes(rng: np.random.Generator, path: Path, found: dict[str, np.ndarray], way: str) -> np.ndarray:
    """Codes [sums] of C."""
    count, bits = len(found["a"]), 16 if path.d == "f16" else 32
    c = rng.integers(0, 1 << bits, count)
    if path.d == "s32" or way == "raw":
        return c
    form, dtype = FORMATS[path.d], np.float32 if path.d == "f32" else np.float16
    terms = values(path, found, "a") * values(path, found, "b")
    for operand in ("scale_a", "scale_b") if path.scale else ():
        terms = terms * np.repeat(decode(found[operand], FORMATS[path.scale]), path.depth // path.vectors, axis=1)
    near = -np.where(np.isfinite(terms) & ~found["absent"], terms, 0).sum(axis=1)
    if way == "C near":
        near = np.ldexp(near, rng.integers(-45, 46, count))
    with np.errstate(all="ignore"):
        near = near.astype(dtype).view(f"u{bits // 8}").astype(np.int64)
    zero = rng.choice([0, 1 << (bits - 1)], count)
    share = {"C near": 0.9, "C cancels": 0.9, "cancelling": 0.3}.get(way, 0)
    chosen = np.where(rng.random(count) < share, near, zero)
    # The rest is zero, a small number or any that is finite.
    c = np.where(np.isfinite(decode(c, form)) | (way == "zeros"), c, 0)
    return np.where(rng.random(count) < 0.1, rng.choice([0xFF, (1 << bits) - 1], count) & c, chosen)


def masks(rng: np.random.Generator, path: Path, count: int) -> np.ndarray:
    """Whether each element along K is masked: half of every two (tf32), four, or four pairs (e2m1 of fp4 kinds)."""
    if not path.sparse:
        return np.zeros((count, path.depth), bool)
    run = 2 if path.kind == "mxf4nvf4" else 1
    of = 2 if path.kind == "tf32" else 4
    order = rng.random((count, path.depth // run // of, of)).argsort(axis=-1)
    return np.repeat((order >= of // 2).reshape(count, -1), run, axis=-1)


def values(path: Path, found: dict[str, np.ndarray], operand: str) -> np.ndarray:
    element = path.a if operand == "a" else path.b
    if element in ("u8", "s8"):
        return found[operand].astype(np.uint8).view(np.int8 if element == "s8" else np.uint8).astype(np.int64)
    return decode(found[operand] << SHIFT.get(element, 0), FORMATS[element])


def emulated(path: Path, found: dict[str, np.ndarray]) -> np.ndarray:
    """Words of D by the unit: each sum is a row of A, which meets a B of its own."""
    a, b, absent = values(path, found, "a"), values(path, found, "b"), found["absent"]
    count = len(a)
    if path.sparse and path.scale:
        a = np.where(absent, 0, a)
    elif path.sparse:
        a, b = (x[~absent].reshape(count, -1) for x in (a, b))
    scales = None
    if path.scale:
        of_a, of_b = (decode(found[f"scale_{o}"], FORMATS[path.scale]) for o in "ab")
        scales = of_a, of_b[:, None]
    shape = InstructionDescriptor(
        path.kind, count, 1, path.a, path.b, path.d, Major.K, Major.K, False, path.saturate, path.scale
    )
    c = found["c"].astype(np.uint32)[:, None]
    return tensor_kinds.compute(shape, a, b[:, None], c, scales, "tensor_core")[:, 0]


def expected(path: Path, found: dict[str, np.ndarray]) -> list[int]:
    lists = {name: array.tolist() for name, array in found.items()}
    none = [()] * len(lists["a"])
    return [
        published(
            Sum(path.kind, path.a, path.b, path.d, a, b, c, path.scale, sa, sb, path.saturate,
                frozenset(k for k, masked in enumerate(absent) if masked) if path.sparse else frozenset())
        )
        for a, b, c, sa, sb, absent in zip(
            lists["a"], lists["b"], lists["c"], lists.get("scale_a", none), lists.get("scale_b", none), lists["absent"],
            strict=True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_random_sums_have_the_published_bits(way):
    rng = np.random.default_rng([SEED, WAYS.index(way)])
    count = -(-COUNT // (len(WAYS) * len(PATHS)))
    different = []
    for path in PATHS:
        found = drawn(rng, path, count, way)
        for i, (ours, theirs) in enumerate(zip(emulated(path, found).tolist(), expected(path, found), strict=True)):
            if ours != theirs:
                different.append((path.name, i, hex(ours), hex(theirs), {k: v[i].tolist() for k, v in found.items()}))
    assert not different, f"{len(different)} of {count * len(PATHS)}, the first: {different[0]}"


def e2m1(*first: int, depth: int = 64) -> list[int]:
    return [*first, *[0] * (depth - len(first))]


CORNERS = [
    # -2^-32 of subnormal e5m2, and -2^-140 * 2^-20 of bf16: what is cut or rounded to zero has no sign.
    (Sum("f8f6f4", "e5m2", "e5m2", "f16", [0x81], [0x01], 0x8000), 0),
    (Sum("f16", "bf16", "bf16", "f32", [0x8001], [0x3580], 0x80000000), 0),
    # 2^-149 - 2^-160: both count, as small as they are; a window that ended at 2^-158 would lose the second.
    (Sum("f16", "bf16", "bf16", "f32", [0x1A80, 0x9780], [0x1A00, 0x1780], 0), 0),
    # 2^-148 - 2^-180 is cut to 2^-149, and is 2^-148 after that; 2^-149 - 2^-180 is and stays zero.
    (Sum("mxf4", "e2m1", "e2m1", "f32", e2m1(2, *[0] * 31, 10), [2] * 64, 0, "ue8m0", [53, 37], [53, 37]), 2),
    (Sum("mxf4", "e2m1", "e2m1", "f32", e2m1(2, *[0] * 31, 10), [2] * 64, 0, "ue8m0", [53, 37], [52, 37]), 0),
    # Without a product other than zero C comes back; with block scaling only, with its sign.
    (Sum("mxf4", "e2m1", "e2m1", "f32", [8] * 64, [0] * 64, 0x80000000, "ue8m0", [127] * 2, [127] * 2), 0x80000000),
    (Sum("f8f6f4", "e2m1", "e2m1", "f32", [8] * 32, [0] * 32, 0x80000000), 0),
    (Sum("mxf4", "e2m1", "e2m1", "f32", [0] * 64, [0] * 64, 0, "ue8m0", [127, 255], [127] * 2), 0x7FFFFFFF),
    (Sum("mxf4", "e2m1", "e2m1", "f32", [0] * 64, [0] * 64, 0xFF800001, "ue8m0", [127] * 2, [127] * 2), 0x7FFFFFFF),
]  # fmt: skip


@pytest.mark.parametrize(("case", "word"), CORNERS)
def test_corners_that_chance_hardly_meets(case, word):
    path = Path(case.kind, case.a_type, case.b_type, case.d_type, case.scale_type, len(case.scale_a))
    names = ("a", "b", "c", "scale_a", "scale_b")
    found = {name: np.array([getattr(case, name)]) for name in names} | {"absent": np.zeros((1, len(case.a)), bool)}
    assert (hex(emulated(path, found)[0]), hex(published(case))) == (hex(word), hex(word))


SEEN = json.loads((ROOT / "harness" / "model" / "silicon" / "b200" / "sums.json").read_text())
"""Raw codes of sums, and the words that others saw on a B200; `harness.model.silicon.sums` has the form."""
ROW, COLUMN = 37, 5
"""Where such a sum stands in D."""


def rows_of_codes(codes: list[int], element: str, kind: str, count: int, at: int) -> np.ndarray:
    """[rows, 32 bytes] with the codes in one row, as the kind wants them in shared memory."""
    bits = bits_of(element) if element != "tf32" else 32
    if element == "bf16":
        codes = [code >> 16 for code in codes]
    # Narrow types are padded to 16 bytes for 16 elements, but for those of the fp4 kinds.
    some = 16 if bits < 8 and kind not in ("mxf4", "mxf4nvf4") else len(codes)
    parts = [codes[first : first + some] for first in range(0, len(codes), some)]
    words = [
        sum(code << bits * i for i, code in enumerate(part)).to_bytes(32 // len(parts), "little") for part in parts
    ]
    rows = np.zeros((count, 32), np.uint8)
    rows[at] = list(b"".join(words))
    return rows


def factor_rows(codes: list[int], at: int) -> np.ndarray:
    """32 rows of 16 bytes, as tcgen05.cp puts them: row r's factors are in row r % 32, word r / 32."""
    rows = np.full((32, 4, 4), 0x38, np.uint8)
    rows[at % 32, at // 32, : len(codes)] = codes
    return rows.reshape(32, 16)


@pytest.mark.parametrize("case", SEEN, ids=lambda case: case["name"])
def test_one_instruction_gives_the_word_of_a_b200(case):
    kind, a_type, b_type = case["kind"], case["a_type"], case["b_type"]
    a, b = rows_of_codes(case["a"], a_type, kind, 128, ROW), rows_of_codes(case["b"], b_type, kind, N, COLUMN)
    what = instruction_descriptor(
        kind, 128, a_type, b_type, case["d_type"], case.get("scale_type", ""), saturate=case.get("saturate", 0)
    )
    form, factors, before, scales = f"tcgen05.mma.cta_group::1.kind::{kind}", "", "", None
    if "scale_vec" in case:
        form, factors = f"{form}.block_scale.scale_vec::{case['scale_vec']}X", " [%r20], [%r21],"
        before = COPY_SCALES.format(sfa=descriptor(SFA_AT, 16), sfb=descriptor(SFB_AT, 16))
        scales = factor_rows(case["scale_a"], ROW), factor_rows(case["scale_b"], COLUMN)
    old = np.zeros((128, N), np.uint32)
    old[ROW, COLUMN] = case["c"]
    mma = f"{form} [%r10], %rd4, %rd5, {what},{factors} %p4;"
    words = run(kind, mma, a, b, scales, before, old, Device("tensor_core"))
    assert hex(words[ROW, COLUMN]) == hex(case["d"])
