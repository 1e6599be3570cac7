"""The judgement on the K steps of an element, on steps that are written down here."""

from __future__ import annotations

import numpy as np
import pytest

from emugpu.debug.chain import Chain, KStep, judge
from emugpu.debug.recording import RecordedBuffer
from emugpu.launch.spec import DATA_TYPES

SIZE, K, STEP = 128, 12, 4
RIGHT = f"each of the {K} places along K is multiplied once, with the right partner"


def placed(name: str, shape: tuple[int, ...]) -> RecordedBuffer:
    return RecordedBuffer(name, 0, DATA_TYPES["f32"], shape, np.ones(shape, np.float32))


A, B, C = placed("A", (SIZE, K)), placed("B", (SIZE, K)), placed("C", (SIZE, SIZE))


def judged(element: tuple[int, int], rows_a: list[int], rows_b: list[int], first=A, second=B, of=C) -> str:
    """The verdict on an element of which each step multiplies so many places of a row of each operand."""
    chain = Chain("C")
    for number, (a, b) in enumerate(zip(rows_a, rows_b, strict=True)):
        along = range(number * STEP, (number + 1) * STEP)
        step = KStep(
            number + 1, number + 1, number + 1, a=[(first, (a, k)) for k in along], b=[(second, (b, k)) for k in along]
        )
        chain.steps.append(step)
    judge(chain, of, element, None, is_right=False)
    return chain.verdict


@pytest.mark.parametrize(
    ("element", "rows_a", "rows_b", "wrong"),
    [
        ((0, 64), [0, 0, 0], [64, 64, 64], None),
        ((3, 3), [3, 3, 3], [3, 3, 3], None),
        ((0, 64), [0, 0, 0], [0, 0, 0], (1, "row 0 of B", 64)),
        ((0, 64), [0, 0, 0], [64, 64, 0], (3, "row 0 of B", 64)),
        ((0, 64), [64, 64, 64], [64, 64, 64], (1, "row 64 of A", 0)),
        ((64, 0), [64, 64, 64], [64, 64, 64], (1, "row 64 of B", 0)),
    ],
)
def test_the_rows_of_an_element(element, rows_a, rows_b, wrong):
    """One operand does not have the other's rows: C[0,64] with row 0 of B in place of row 64."""
    found = judged(element, rows_a, rows_b)
    if wrong is None:
        assert found == RIGHT
    else:
        step, row, wanted = wrong
        first = f"step {step} is the first that is wrong"
        assert found == f"{first}: {row} is multiplied in place of row {wanted}"


def test_a_transposed_product_has_its_operands_the_other_way_round():
    """The transpose of C is that of B times that of A: both operands have changed places, or neither."""
    assert judged((0, 64), [64, 64, 64], [0, 0, 0], first=B, second=A) == RIGHT
    assert "row 3 of A is multiplied in place of row 0" in judged((0, 64), [64, 64, 64], [0, 0, 3], first=B, second=A)


def test_a_part_of_a_larger_matrix_has_the_rows_of_most_steps():
    stacked = placed("B", (4 * SIZE, K))
    verdict = judged((5, 7), [5, 5, 5], [307, 307, 308], second=stacked)
    assert verdict == "step 3 is the first that is wrong: row 308 of B is multiplied in place of row 307"
