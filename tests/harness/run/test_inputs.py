"""The inputs, and above all that ``index`` inputs leave no misplaced piece of data unseen."""

from __future__ import annotations

from itertools import product as product_of

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emugpu.errors import UsageProblem
from emugpu.launch.memory import CHUNK, index_operand, row_scales
from harness import fp8
from harness.block_scaling import FORMATS
from harness.problem import DTYPES, ELEMENT_TYPES, FP8, KINDS, Shape, check_kind, make_inputs

SHAPE = Shape(512, 768, 640)


def has_kind(kind: str, dtype: str) -> bool:
    try:
        check_kind(kind, dtype)
    except UsageProblem as problem:
        assert kind == "codes" and dtype in ELEMENT_TYPES and f"which {dtype} has not" in str(problem)
        return False
    return True


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C as the GPU writes it: exact sums, rounded to the type of A and B."""
    return (a.astype(np.float32) @ b.astype(np.float32).T).astype(a.dtype).astype(np.float32)


@pytest.fixture(scope="module", params=ELEMENT_TYPES)
def index(request):
    return make_inputs(SHAPE, request.param, "index", seed=0)


@pytest.fixture(scope="module")
def expected(index):
    return product(index.a, index.b)


@pytest.mark.parametrize(("kind", "dtype"), [pair for pair in product_of(KINDS, DTYPES) if has_kind(*pair)])
def test_same_seed_same_values_and_another_seed_others(kind, dtype):
    first, again, other = (make_inputs(Shape(16, 24, 32), dtype, kind, seed) for seed in (1, 1, 2))
    plain = {FP8: fp8.ELEMENT} | ELEMENT_TYPES
    held = FORMATS[dtype].element.numpy if dtype in FORMATS else plain[dtype].numpy
    assert first.a.dtype == first.b.dtype == held
    if dtype in FORMATS:
        assert [each.shape for each in first.factors] == [(rows, 32 // FORMATS[dtype].block) for rows in (16, 24)]
        assert all(map(np.array_equal, first.factors, again.factors))
    assert first.a.shape == (16, 32)
    assert first.b.shape == (24, 32)
    assert np.array_equal(first.a, again.a) and np.array_equal(first.b, again.b)
    assert not np.array_equal(first.a, other.a)
    assert not np.array_equal(first.a, first.b[:16])


def test_distributions():
    shape = Shape(300, 304, 304)
    normal = make_inputs(shape, "bf16", "normal", 0).a.astype(np.float32)
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    uniform = make_inputs(shape, "bf16", "uniform", 0).a.astype(np.float32)
    assert uniform.min() >= -1 and uniform.max() <= 1 and abs(uniform.std() - 3**-0.5) < 0.01
    integer = make_inputs(shape, "bf16", "integer", 0).a.astype(np.float32)
    assert set(np.unique(integer)) == set(range(-4, 5))


def test_unknown_kind():
    with pytest.raises(UsageProblem, match=r"'zeros'.*use one of: normal, integer, index, uniform"):
        make_inputs(SHAPE, "bf16", "zeros", 0)


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
@pytest.mark.parametrize("k", [8, 64, 4096, 16384])
def test_index_products_are_not_rounded(k, dtype):
    inputs = make_inputs(Shape(256, 264, k), dtype, "index", seed=3)
    a, b = inputs.a.astype(np.float64), inputs.b.astype(np.float64)
    assert np.array_equal(a @ b.T, product(inputs.a, inputs.b))
    assert np.all(a != 0) and np.all(b != 0)


@pytest.mark.parametrize("kind", ["integer", "index"])
def test_exact_sums_stay_in_the_range_of_fp16(kind):
    inputs = make_inputs(Shape(128, 128, 65536), "fp16", kind, seed=4)
    c = inputs.a.astype(np.float32) @ inputs.b.astype(np.float32).T
    assert np.abs(c).max() < 65504 / 2
    assert np.abs(c[c != 0]).min() >= 2.0**-9 > 2.0**-14
    assert np.array_equal(c, inputs.a.astype(np.float64) @ inputs.b.astype(np.float64).T)


def test_row_scales_differ_where_one_octal_digit_differs():
    scales = row_scales(4096)
    for digit in (1, 8, 64, 512):
        for distance in range(1, 8):
            rows = np.arange(4096 - 7 * digit)
            same_upper_digits = rows // (8 * digit) == (rows + distance * digit) // (8 * digit)
            moved = rows[same_upper_digits] + distance * digit
            assert np.all(scales[rows[same_upper_digits]] != scales[moved])


def moved_rows(values: np.ndarray, distance: int) -> np.ndarray:
    return np.roll(values, distance, axis=0)


@pytest.mark.parametrize("distance", [1, 2, 4, 7, 8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("operand", ["a", "b"])
def test_misplaced_rows_show_in_every_tile(index, expected, operand, distance):
    a, b = index.a, index.b
    got = product(moved_rows(a, distance), b) if operand == "a" else product(a, moved_rows(b, distance))
    # Every row of every 128 x 256 tile, so that a mistake in one CTA or one warp cannot hide.
    wrong_rows = (got != expected).reshape(SHAPE.m, SHAPE.n // 256, 256).any(axis=2)
    assert wrong_rows.all()


def test_swapped_tiles_of_c_show(expected):
    tiles = expected.reshape(SHAPE.m // 128, 128, SHAPE.n // 256, 256).swapaxes(1, 2).reshape(-1, 128, 256)
    for i, one in enumerate(tiles):
        for other in tiles[i + 1 :]:
            # Each row, too: a warp's 32 rows written to the wrong place cannot pass.
            assert (one != other).any(axis=1).all()


def test_rows_of_c_are_all_different(expected):
    for columns in expected.reshape(SHAPE.m, SHAPE.n // 64, 64).swapaxes(0, 1):
        assert len(np.unique(columns, axis=0)) == SHAPE.m
    for rows in expected.reshape(SHAPE.m // 64, 64, SHAPE.n):
        assert len(np.unique(rows, axis=1).T) == SHAPE.n


@pytest.mark.parametrize("size", [pytest.param(16, marks=pytest.mark.slow), 64])
def test_a_slice_of_k_in_place_of_another_shows(index, expected, size):
    """As when a stage is read too early or too late: in A alone, in B alone, and in both at once."""
    stale = np.roll(np.arange(SHAPE.k).reshape(-1, size), 1, axis=0)
    for one in range(SHAPE.k // size):
        order = np.arange(SHAPE.k).reshape(-1, size)
        order[one] = stale[one]
        order = order.ravel()
        for got in (
            product(index.a[:, order], index.b),
            product(index.a, index.b[:, order]),
            product(index.a[:, order], index.b[:, order]),
        ):
            wrong = (got != expected).reshape(SHAPE.m // 128, 128, SHAPE.n // 256, 256)
            assert wrong.any(axis=(1, 3)).all()


def test_a_missing_or_doubled_slice_of_k_shows(index, expected):
    for k in range(0, SHAPE.k, 16):
        part = index.a[:, k : k + 16].astype(np.float32) @ index.b[:, k : k + 16].astype(np.float32).T
        wrong = (part != 0).reshape(SHAPE.m // 128, 128, SHAPE.n // 256, 256)
        assert wrong.any(axis=3).all()


def swizzled(values: np.ndarray, pattern) -> np.ndarray:
    """Moves the 16-byte chunks of each 128-byte row as a swizzle that only one side knows of would."""
    rows = np.arange(values.shape[0])[:, None]
    chunk = np.arange(8)[None, :]
    chunks = values.reshape(values.shape[0], -1, 8, CHUNK)
    source = pattern(rows, chunk)[:, None, :, None]
    return np.take_along_axis(chunks, source, axis=2).reshape(values.shape)


PATTERNS = {
    "128B not undone": lambda row, chunk: chunk ^ (row % 8),
    "64B instead of none": lambda row, chunk: chunk ^ (row // 2 % 4),
    "32B instead of none": lambda row, chunk: chunk ^ (row // 4 % 2),
    "one row late": lambda row, chunk: chunk ^ (row % 8) ^ ((row + 1) % 8),
    "neighbours swapped": lambda row, chunk: chunk ^ 1 + 0 * row,
}


@pytest.mark.parametrize("name", PATTERNS)
def test_wrong_swizzles_show(index, expected, name):
    a, b = swizzled(index.a, PATTERNS[name]), swizzled(index.b, PATTERNS[name])
    wrong_a, wrong_b = product(a, index.b) != expected, product(index.a, b) != expected
    both = product(a, b) != expected
    moved = np.array([np.any(a[row] != index.a[row]) for row in range(SHAPE.m)])
    assert moved.any()
    assert wrong_a[moved].mean() > 0.5
    assert wrong_b[:, : SHAPE.m][:, moved].mean() > 0.5
    if name != "neighbours swapped":  # in both operands it is only another order of the same sum
        assert both.mean() > 0.4


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_one_chunk_out_of_place_shows(index, data):
    """The smallest mistake: 16 bytes of one row of one operand come from somewhere else."""
    operand, other = data.draw(st.sampled_from([(index.a, index.b), (index.b, index.a)]))
    chunks = operand.reshape(operand.shape[0], -1, CHUNK)
    place = [data.draw(st.integers(0, size - 1)) for size in chunks.shape[:2]]
    source = [data.draw(st.integers(0, size - 1)) for size in chunks.shape[:2]]
    right, wrong = (chunks[tuple(where)].astype(np.float32) for where in (place, source))
    if np.array_equal(right, wrong):
        return
    k = place[1] * CHUNK
    difference = other[:, k : k + CHUNK].astype(np.float32) @ (wrong - right)
    # In each tile along the other operand (256 columns of C, or 128 rows).
    assert (difference.reshape(-1, 128) != 0).any(axis=1).all()


def test_index_needs_the_scales_and_the_words():
    """What the separation rests on: without scales equal words would meet, without words equal scales."""
    values = index_operand(64, 8, np.random.default_rng(0))
    words = values / row_scales(64)[:, None]
    assert set(np.unique(words)) == {-1.0, 1.0}
    assert len(np.unique(words, axis=0)) <= 16 < len(np.unique(values, axis=0))
