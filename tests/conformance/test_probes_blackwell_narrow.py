"""Answers of the probes of narrow types, pairs of f32 and redux."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from blackwell_answers import ONE_WORKER, answer
from blackwell_operands import E2M1, floats, small

from conformance.catalogue import BLACKWELL

pytestmark = ONE_WORKER


def nearest(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Codes of the nearest numbers of a type, ties to the even code; what is too large, and NaN, to the largest."""
    positive = table[: len(table) // 2]
    magnitude = np.where(np.isnan(values), positive[-1], np.minimum(np.abs(values), positive[-1]))
    distance = np.abs(magnitude[:, None] - positive)
    best = distance.min(axis=1, keepdims=True)
    code = np.where(distance == best, np.arange(len(positive)) % 2, 2).argmin(axis=1)
    return code | np.where(np.signbit(values) & ~np.isnan(values), len(positive), 0)


NARROW = {"e2m1x2": E2M1, "e2m3x2": small(np.arange(64), 2, 3, 1), "e3m2x2": small(np.arange(64), 3, 2, 3)}


def test_conversions_to_narrow_types():
    for case, outputs in answer("cvt_to_narrow_types").items():
        x = floats(next(c for c in BLACKWELL["cvt_to_narrow_types"].cases if c.name == case).buffers["x"])
        for kind, table in NARROW.items():
            width = 4 if kind == "e2m1x2" else 8
            for relu in ("", ".relu"):
                upper = outputs[f"{relu}.{kind}"] >> width
                wanted = nearest(x, table)
                if relu:
                    wanted = np.where(np.signbit(x) & ~np.isnan(x), 0, wanted)
                keep = ~np.isnan(x)
                assert (upper[keep] == wanted[keep]).all(), (kind, relu)
                assert (outputs[f"{relu}.{kind}"] & (1 << width) - 1 == nearest(np.array([1.5]), table)[0]).all()
        normal = np.isfinite(x) & (np.abs(x) >= 2.0**-126)
        exponent = np.floor(np.log2(np.abs(x[normal]))).astype(int) + 127
        exact = np.abs(x[normal]) == 2.0 ** (exponent - 127)
        assert (outputs["rz.ue8m0x2"][normal] >> 8 == exponent).all()
        assert (outputs["rp.ue8m0x2"][normal] >> 8 == np.minimum(exponent + ~exact, 254)).all()


def test_conversions_from_narrow_types():
    found = answer("cvt_from_narrow_types")["codes"]
    x = BLACKWELL["cvt_from_narrow_types"].cases[0].buffers["x"]
    for kind, table in NARROW.items():
        pair = [x & 15, x >> 4 & 15] if kind == "e2m1x2" else [x & 63, x >> 8 & 63]
        wanted = np.stack([table[p] for p in pair], axis=-1).astype(np.float16)
        assert (found[f"f16x2.{kind}"].view(np.float16).reshape(-1, 2) == wanted).all()
    powers = found["bf16x2.ue8m0x2"].view(ml_dtypes.bfloat16).reshape(-1, 2).astype(float)
    codes = np.stack([x & 255, x >> 8], axis=-1)
    assert (powers[codes < 255] == 2.0 ** (codes[codes < 255].astype(float) - 127)).all()
    assert np.isnan(powers[codes == 255]).all()


def test_pairs_of_f32():
    """Rounding to nearest is NumPy's; other directions are tested with the instructions."""
    found = answer("pairs_of_f32")["random bits"]
    x, y = (BLACKWELL["pairs_of_f32"].cases[0].buffers[name].view(np.float32) for name in "xy")
    with np.errstate(all="ignore"):
        for name, wanted in (("add.rn", x + y), ("mul.rn", x * y)):
            values = found[name].view(np.float32)
            assert (np.isnan(values) == np.isnan(wanted)).all()
            assert (values[~np.isnan(wanted)] == wanted[~np.isnan(wanted)]).all()


def test_minima_and_maxima():
    found = answer("redux_f32")
    [outputs] = found.values()
    data = BLACKWELL["redux_f32"].cases[0].buffers["data"].view(np.float32)
    forms = ["min", "min.NaN", "min.abs", "min.abs.NaN", "max", "max.NaN", "max.abs", "max.abs.NaN"]
    for row, values in enumerate(data):
        for n, form in enumerate(forms):
            some = np.abs(values) if "abs" in form else values
            keep = some[~np.isnan(some)]
            none = ("NaN" in form and len(keep) < 32) or not len(keep)
            wanted = np.nan if none else keep.min() if form.startswith("min") else keep.max()
            got = outputs["found"][row, n].view(np.float32)
            assert np.isnan(got).all() if none else (got == wanted).all(), (row, form)


def test_matrices_of_bytes():
    """As CuTe DSL lays them out."""
    for case, outputs in answer("ldmatrix_of_bytes").items():
        data = next(c for c in BLACKWELL["ldmatrix_of_bytes"].cases if c.name == case).buffers["data"].view(np.uint8)
        row = 0
        for form, registers in (
            ("square8", 2),
            ("square8", 4),
            ("square6", 4),
            ("square4", 2),
            ("flat6", 1),
            ("flat4", 4),
        ):
            bits = int(form[-1])
            for register in range(registers):
                for t in range(32):
                    for e in range(4):
                        if form.startswith("square"):
                            line, at = 16 * (register // 2) + 4 * (t % 4) + e, t // 4 + 8 * (register % 2)
                        else:
                            line, at = 8 * register + t // 4, 4 * (t % 4) + e
                        chunk = int.from_bytes(data[16 * line : 16 * line + 16].tobytes(), "little")
                        byte = int(outputs["found"][row, t]) >> 8 * e & 255
                        assert byte == chunk >> bits * at & (1 << bits) - 1
                row += 1
    found = answer("stmatrix_of_bytes")["all"]["found"]
    for number, matrices in enumerate((1, 2, 4)):
        for m in range(matrices):
            for t in range(32):
                for byte in range(4):
                    line, at = 8 * m + 2 * (t % 4) + byte % 2, t // 4 + 8 * (byte // 2)
                    assert found[512 * number + 16 * line + at] == (4 * (t % 16) + byte + 64 * m) % 256
