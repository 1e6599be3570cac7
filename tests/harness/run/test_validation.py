"""The verdict: what is accepted, what is not, and where it says the mistakes are."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from harness.problem import BF16, ELEMENT_TYPES, F32, FP16, Inputs, Shape, make_inputs
from harness.validation import compute_reference, validate

TILE = (128, 256)
SHAPE = Shape(300, 520, 264)


def kernel_output(inputs: Inputs) -> np.ndarray:
    """What a correct kernel writes: f32 sums over steps of 16, one rounding at the end."""
    a, b = inputs.a.astype(np.float32), inputs.b.astype(np.float32)
    total = np.zeros((a.shape[0], b.shape[0]), dtype=np.float32)
    for k in range(0, a.shape[1], 16):
        total += a[:, k : k + 16] @ b[:, k : k + 16].T
    return total.astype(inputs.a.dtype)


def check(inputs: Inputs, output: np.ndarray):
    [dtype] = (dtype for dtype in ELEMENT_TYPES.values() if dtype.numpy == inputs.a.dtype)
    return validate(output, compute_reference(inputs), dtype, TILE)


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
@pytest.mark.parametrize("kind", ["normal", "uniform", "integer", "index"])
@pytest.mark.parametrize("shape", [Shape(8, 8, 8), Shape(1, 8, 8), SHAPE, Shape(64, 64, 4096)], ids=str)
def test_a_correct_output_passes(kind, shape, dtype):
    inputs = make_inputs(shape, dtype, kind, seed=5)
    verdict = check(inputs, kernel_output(inputs))
    assert verdict.passed and verdict.mismatches == 0 and verdict.non_finite == 0
    assert verdict.elements == shape.m * shape.n
    assert verdict.wrong_tiles == [] and verdict.first_mismatches == []
    assert verdict.relative_frobenius_error < 2**-8
    if verdict.exact:
        assert verdict.max_abs_error == 0 and verdict.tolerance == "equal"


def test_metrics_of_a_known_mistake():
    ones = np.ones((16, 64), dtype=BF16.numpy)
    inputs = Inputs(ones, ones, "integer", 0)
    output = np.full((16, 16), 64, dtype=BF16.numpy)
    output[3, 5] = 68
    verdict = check(inputs, output)
    assert not verdict.passed and verdict.mismatches == 1
    assert verdict.max_abs_error == 4
    assert verdict.relative_frobenius_error == pytest.approx(4 / (16 * 64))
    [wrong] = verdict.first_mismatches
    assert (wrong.row, wrong.column, wrong.got, wrong.expected, wrong.allowed) == (3, 5, 68, 64, 0)


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_two_units_in_the_last_place_do_not_pass(kind, dtype):
    inputs = make_inputs(SHAPE, dtype, kind, seed=1)
    output = kernel_output(inputs)
    # The largest element, where the rounding of the output dominates the tolerance.
    row, column = np.unravel_index(np.abs(output.astype(np.float32)).argmax(), output.shape)
    output.view(np.uint16)[row, column] += 2
    verdict = check(inputs, output)
    assert verdict.mismatches == 1
    assert (verdict.first_mismatches[0].row, verdict.first_mismatches[0].column) == (row, column)


def test_truncation_in_place_of_rounding_does_not_pass():
    inputs = make_inputs(SHAPE, "bf16", "normal", seed=1)
    sums = inputs.a.astype(np.float32) @ inputs.b.astype(np.float32).T
    truncated = (sums.view(np.uint32) >> 16).astype(np.uint16).view(BF16.numpy)
    assert check(inputs, truncated).mismatches > 0.1 * truncated.size


def test_tiny_results_may_be_rounded_to_the_nearest_tiny_number():
    """Below the smallest normal number of fp16 the spacing is 2^-24, so half of it is a correct rounding."""
    a, b = np.full((8, 8), 2.0**-11, np.float16), np.full((8, 8), 1.5 * 2.0**-17, np.float16)
    inputs = Inputs(a, b, "normal", 0)  # each sum is 1.5 * 2^-25
    assert check(inputs, np.full((8, 8), 2.0**-24, np.float16)).passed
    assert not check(inputs, np.full((8, 8), 2.0**-23, np.float16)).passed


def test_the_types_are_what_numpy_says():
    for dtype in (BF16, FP16):
        info = ml_dtypes.finfo(dtype.numpy)
        assert dtype.unit_roundoff == float(info.eps) / 2 and dtype.smallest_normal == float(info.tiny)


@pytest.mark.parametrize("kind", ["normal", "uniform", "integer", "index"])
def test_a_missing_step_of_k_does_not_pass(kind):
    inputs = make_inputs(Shape(128, 256, 4096), "bf16", kind, seed=2)
    short = Inputs(inputs.a[:, :-16], inputs.b[:, :-16], kind, 2)
    assert check(inputs, kernel_output(short)).mismatches > 0.2 * 128 * 256


@pytest.mark.parametrize("kind", ["normal", "integer"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_do_not_pass(kind, value):
    inputs = make_inputs(Shape(16, 16, 16), "bf16", kind, seed=0)
    output = kernel_output(inputs)
    output[2, 3] = value
    verdict = check(inputs, output)
    assert not verdict.passed and verdict.mismatches == 1 and verdict.non_finite == 1
    assert np.isfinite(verdict.max_abs_error) and np.isfinite(verdict.relative_frobenius_error)
    json.dumps(verdict.as_dict(), allow_nan=False)


def test_what_c_cannot_hold_is_infinite_and_nothing_else():
    sixties = np.full((16, 64), 64, dtype=FP16.numpy)
    reference = compute_reference(Inputs(sixties, sixties, "integer", 0))  # 262144 each
    right = np.full((16, 16), np.inf, FP16.numpy)
    assert validate(right, reference, FP16, TILE).passed
    for wrong in (-np.inf, np.nan, 65504):
        output = right.copy()
        output[3, 5] = wrong
        assert validate(output, reference, FP16, TILE).mismatches == 1
    assert validate(reference.values, reference, F32, TILE).passed


def test_wrong_tiles_are_named():
    inputs = make_inputs(SHAPE, "bf16", "index", seed=0)
    output = kernel_output(inputs)
    output[128:256, 256:512] = 3e38  # tile (1, 1) as a whole
    output[299, 519] = -3e38  # the corner: tile (2, 2) has 44 x 8 elements
    verdict = check(inputs, output)
    assert verdict.tiles == 9
    assert [(tile.row, tile.column) for tile in verdict.wrong_tiles] == [(1, 1), (2, 2)]
    whole, corner = verdict.wrong_tiles
    assert (whole.mismatches, whole.elements) == (128 * 256, 128 * 256)
    assert (corner.mismatches, corner.elements) == (1, 44 * 8)
    assert (verdict.first_mismatches[0].row, verdict.first_mismatches[0].column) == (128, 256)
    plain = verdict.as_dict()
    json.dumps(plain, allow_nan=False)
    assert plain["wrong_tiles"] == 2 and plain["first_wrong_tiles"] == [[1, 1], [2, 2]]


def test_random_inputs_are_compared_with_f64():
    assert compute_reference(make_inputs(Shape(8, 8, 8), "bf16", "normal", 0)).values.dtype == np.float64
    assert compute_reference(make_inputs(Shape(8, 8, 8), "bf16", "index", 0)).values.dtype == np.float32


def test_the_reference_is_the_product_by_hand():
    inputs = make_inputs(Shape(5, 8, 16), "bf16", "integer", seed=9)
    values = compute_reference(inputs).values
    for row in range(5):
        for column in range(8):
            by_hand = sum(int(inputs.a[row, k]) * int(inputs.b[column, k]) for k in range(16))
            assert values[row, column] == by_hand
