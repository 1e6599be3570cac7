"""Answers of the probes of scale factors and of sums of scaled blocks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from blackwell_answers import ONE_WORKER, answer, given, image
from blackwell_layouts import where
from blackwell_operands import floats, numbers, rows

from conformance.blackwell import scaled_sums, scales
from conformance.catalogue import BLACKWELL

pytestmark = ONE_WORKER

PLACES = {p.name: kind for p, kind in zip(scales.PROBES, [*scales.KINDS, scales.KINDS[0]], strict=False)}


@pytest.mark.parametrize("name", PLACES)
def test_where_scale_factors_lie(name):
    """Row r's: lane r % 32 of a quadrant, column r / 32, and byte id + block. In a pair with M = 128, the columns of B
    are counted in each half of the lanes.
    """
    kind = PLACES[name]
    group = 2 if name.endswith("pair") else 1
    asked = scales._asked(kind, ("lane", "place"))
    codes = np.arange(256, dtype=np.uint8)
    values = 2.0 ** (codes.astype(float) - 127) if kind.ue8m0 else codes.view(ml_dtypes.float8_e4m3fn).astype(float)
    for case in BLACKWELL[name].cases:
        m, n = (int(word) for word in case.name.replace(",", "").split()[1::2])
        found = floats(image(name, case.name)).reshape(len(asked), group, 128, -1)
        cta, lane, column = where(m, n, group, False, 0)
        r, c = np.mgrid[:m, :n]
        for question, images in zip(asked, found, strict=True):
            number = r % (m // group) if question.operand == "A" else c % (n // 2 if m // group == 64 else n)
            number = number % 32 if question.by == "lane" else 4 * (number // 32) + question.identifier + question.block
            per = {"mxf8f6f4": 32, "mxf4_2x": 32, "mxf4nvf4_2x": 32, "mxf4nvf4_4x": 16}
            size = next(count for start, count in per.items() if kind.name.startswith(start))
            assert (images[cta, lane, column] == size * values[number + (110 if kind.ue8m0 else 8)]).all(), question


def test_codes_of_scale_factors():
    powers = floats(image("mma_scale_codes_ue8m0", "all codes"))[:, :, 0].reshape(-1) / 32
    assert (powers[:250] == 2.0 ** (np.arange(250.0) - 127)).all() and np.isnan(powers[255])
    small = floats(image("mma_scale_codes_ue4m3", "all codes"))[0, :, 0] / 16
    assert (small[:127] == np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(float)).all()
    assert np.isnan(small[127])


def test_sums_of_scaled_blocks():
    assert BLACKWELL["mma_rules_mxf4"].read(answer("mma_rules_mxf4")) == {
        scaled_sums.WITH_OLD: "35",
        scaled_sums.OLD_KEPT: "35",
        scaled_sums.ENDS: 0.0,
    }


@pytest.mark.parametrize("kind", scales.KINDS, ids=lambda kind: kind.name)
def test_scaled_sums_of_random_numbers_are_right(kind):
    name = f"mma_sums_{kind.name}"
    found, buffers = floats(image(name, "random"))[:, :, :64], given(name, "random")
    for request in range(2):
        data, before = buffers["operands"][request], buffers["before"][request]
        x, y = (numbers(rows(data, at, n), kind.element, kind.packed) for at, n in ((0, 128), (128 * 32, 64)))
        factors = []
        for first, count in ((scales.A_SCALES, 128), (scales.B_SCALES, 64)):
            codes = before[:32, first : first + 8].copy().view(np.uint8).reshape(32, 8, 4)
            some = np.array([codes[r % 32, r // 32, : kind.vectors] for r in range(count)])
            dtype = ml_dtypes.float8_e8m0fnu if kind.ue8m0 else ml_dtypes.float8_e4m3fn
            factors.append(np.repeat(some.view(dtype).astype(float), x.shape[1] // kind.vectors, axis=1))
        with np.errstate(invalid="ignore"):
            exact = (x * factors[0]) @ (y * factors[1]).T + floats(before[:, :64])
            terms = np.abs(x * factors[0]) @ np.abs(y * factors[1]).T + np.abs(floats(before[:, :64]))
            good = np.isfinite(exact)
            assert (np.abs(found[request] - exact) <= 2.0**-19 * terms)[good].all() and good.mean() > 0.5
            assert np.isnan(found[request][~good]).all()
