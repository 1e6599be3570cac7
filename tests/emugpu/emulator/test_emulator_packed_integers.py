"""Packed bytes and halves of one register, sums of them that saturate, and carry-less products (PTX ISA 9.7.1).

What comes out follows from the definitions: each part is computed by itself, as an integer of its size.
"""

from __future__ import annotations

import numpy as np
import pytest
from ptx_values import evaluate

from emugpu.emulator import Fault, PtxSyntaxError

PARTS = {"u8x4": np.uint8, "s8x4": np.int8, "u16x2": np.uint16, "s16x2": np.int16, "u32": np.uint32}
EDGES = np.array([0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x80808080, 0x7F7F7F7F, 0xFFFFFFFF, 0x017F80FF])


def words(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Registers with parts at the edges, each beside each, and random ones."""
    a, b = (grid.ravel() for grid in np.meshgrid(EDGES, EDGES))
    rng = np.random.default_rng(seed)
    some = rng.integers(0, 1 << 32, (2, 160 - len(a)))
    return np.concatenate([a, some[0]]).astype(np.uint32), np.concatenate([b, some[1]]).astype(np.uint32)


def expected(name: str, kind: str, clamps: bool, relu: bool, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    part = PARTS[kind]
    x, y = (v.view(part).astype(np.int64) for v in (a, b))
    result = {"add": x + y, "sub": x - y, "min": np.minimum(x, y), "max": np.maximum(x, y), "neg": -x}[name]
    if clamps:
        result = np.clip(result, np.iinfo(part).min, np.iinfo(part).max)
    if relu:
        result = np.maximum(result, 0)
    return result.astype(part).view(np.uint32)


FORMS = [
    *((op, kind, sat) for op in ("add", "sub") for kind in ("u8x4", "s8x4") for sat in ("", "sat")),
    *(("add", kind, "sat") for kind in ("u16x2", "s16x2", "u32")),
    *((op, kind, "") for op in ("min", "max") for kind in ("u8x4", "s8x4")),
    *((op, "s8x4", "relu") for op in ("min", "max")),
    ("neg", "s8x4", ""),
]


@pytest.mark.parametrize(("name", "kind", "word"), FORMS)
def test_each_part_is_computed_by_itself(name, kind, word):
    a, b = words(3)
    sources = "%r1" if name == "neg" else "%r1, %r2"
    text = f"{name}{f'.{word}' if word else ''}.{kind} %r0, {sources};"
    found = evaluate(text, [("r1", a), ("r2", b)], "r0", target="sm_120a")
    assert (found == expected(name, kind, word == "sat", word == "relu", a, b)).all()


@pytest.mark.parametrize("form", ["sub.sat.u16x2", "min.relu.u8x4", "mul.u8x4"])
def test_other_packed_forms_are_refused(form):
    with pytest.raises((Fault, PtxSyntaxError), match=r"not implemented|does not have the type"):
        evaluate(f"{form} %r0, %r1, %r2;", [("r1", words(0)[0]), ("r2", words(0)[1])], "r0", target="sm_120a")


def polynomial(a: int, b: int) -> int:
    """The product of two polynomials over GF(2), term by term."""
    terms = [i + j for i in range(64) if a >> i & 1 for j in range(64) if b >> j & 1]
    return sum(1 << power for power in set(terms) if terms.count(power) % 2)


@pytest.mark.parametrize(("half", "shift"), [("lo", 0), ("hi", 64)])
def test_a_carry_less_product_is_one_of_polynomials(half, shift):
    rng = np.random.default_rng(1)
    a, b, c = rng.integers(0, 1 << 64, (3, 32), dtype=np.uint64)
    a[:3], b[:3] = (3, 1 << 63, (1 << 64) - 1), (3, 2, (1 << 64) - 1)
    found = evaluate(f"clmad.{half}.u64 %d0, %d1, %d2, %d3;", [("d1", a), ("d2", b), ("d3", c)], "d0")
    want = [(polynomial(int(x), int(y)) >> shift & (1 << 64) - 1) ^ int(z) for x, y, z in zip(a, b, c, strict=True)]
    assert found.tolist() == want
