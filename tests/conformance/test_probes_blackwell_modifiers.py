"""Answers of the probes of signs, disabled lanes, a scaled D, collectors and a D of 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
from blackwell_answers import BLANK, ONE_WORKER, given, image
from blackwell_layouts import where
from blackwell_operands import floats, numbers, rows

from conformance.blackwell import modifiers
from conformance.catalogue import BLACKWELL

pytestmark = ONE_WORKER


def product(name: str, case: str, element: str, request: int, b_start: int = 128 * 32, n: int = 16) -> np.ndarray:
    """A . B of a request with M = 128."""
    data = given(name, case)["operands"][request]
    a, b = numbers(rows(data, 0, 128), element), numbers(rows(data, b_start, n), element)
    return a @ b.T


@pytest.mark.parametrize(("kind", "element"), [("f16", "bf16"), ("tf32", "tf32"), ("f8f6f4", "e4m3")])
def test_signs(kind, element):
    name, case = f"mma_negate_{kind}", "none, A, B, both; then with D added"
    found, old = floats(image(name, case)), floats(given(name, case)["before"])
    for request in range(8):
        sign = (1, -1, -1, 1)[request % 4]
        assert (found[request] == sign * product(name, case, element, request) + (request >= 4) * old[request]).all()


@pytest.mark.parametrize("name", ["mma_disabled_lanes", "mma_disabled_lanes_pair"])
def test_disabled_lanes(name):
    group = 2 if name.endswith("pair") else 1
    for case in BLACKWELL[name].cases:
        m = int(case.name.removeprefix("M "))
        found = image(name, case.name).reshape(-1, group, 128, 32)
        cta, lane, column = where(m, 32, group, False, 0)
        r, c = np.mgrid[:m, :32]
        for mask, images in zip(modifiers.MASKS, found, strict=False):
            wanted = np.full_like(images, BLANK)
            kept = np.array([[mask[4 * rank + at // 32] >> at % 32 & 1 for at in range(128)] for rank in range(group)])
            values = (256 * r + c).astype(np.float32).view(np.uint32)
            wanted[cta, lane, column] = np.where(kept[cta, lane], BLANK, values)
            assert (images == wanted).all()


@pytest.mark.parametrize(("kind", "element"), [("f16", "bf16"), ("tf32", "tf32")])
def test_a_scaled_d(kind, element):
    name, case = f"mma_scaled_d_{kind}", "D divided by 2^0, 2^1, 2^4, 2^15 and added; then not added"
    found, old = floats(image(name, case)), floats(given(name, case)["before"])
    for number, shift in enumerate((0, 1, 4, 15)):
        columns = slice(16 * number, 16 * number + 16)
        exact = product(name, case, element, 0) + old[0, :, columns] / 2.0**shift
        assert (np.abs(found[0, :, columns] - exact) <= 2.0**-23 * np.abs(exact) + 2.0**-20).all()
        assert (found[1, :, columns] == product(name, case, element, 1)).all()


def test_collectors_and_issuers():
    case = "one behind the other"
    found = floats(image("mma_collectors", case))
    for n in range(4):
        exact = product("mma_collectors", case, "bf16", 0, 128 * 32 + 16 * 32 * n)
        assert (found[0, :, 16 * n : 16 * n + 16] == exact).all()
    case = "b0 fill, b0 use, b3 fill, b0 lastuse"
    exact = product("mma_ws_collectors", case, "bf16", 0, n=64)
    assert (floats(image("mma_ws_collectors", case)) == np.tile(exact, 4)).all()
    old = floats(given("mma_issue_per_thread", "a whole warp")["before"])
    exact = product("mma_issue_per_thread", "a whole warp", "bf16", 0)
    assert (floats(image("mma_issue_per_thread", "a whole warp")) == old + 32 * exact).all()


def test_a_d_of_16_bits_is_in_the_lower_halves():
    name, case = "mma_d_of_16_bits", "D of f16, not added and added"
    old = (given(name, case)["before"] & 0xFFFF).astype(np.uint16).view(np.float16)
    found = (image(name, case) & 0xFFFF).astype(np.uint16).view(np.float16)
    for request in range(2):
        assert (found[request] == product(name, case, "f16", request) + request * old[request]).all()
