"""Answers of the probes of how tcgen05.mma adds: what is assumed, and that other machines would be told apart."""

from __future__ import annotations

import numpy as np
import pytest
from blackwell_answers import ONE_WORKER, answer, given, image
from blackwell_operands import floats, numbers, rows

from conformance.blackwell import rules, sums
from conformance.catalogue import BLACKWELL
from conformance.kinds import KINDS

pytestmark = ONE_WORKER

RULES = {
    rules.ALIGNED: "25",
    rules.WITH_OLD: "25",
    rules.OLD_KEPT: "25",
    rules.UNNORMALISED: "25",
    rules.CUT: [1.0, -1.0],
    rules.ENDS: {
        "(1 + 0.75 units)": 0.0, "-(1 + 0.75 units)": 0.0, "(1 + 0.5 units)": 0.0, "-(1 + 0.5 units)": 0.0,
    },
    rules.TOGETHER: [],
}  # fmt: skip
"""What is assumed: 25 bits below the largest term, cut toward zero, all terms at once."""


@pytest.mark.parametrize("element", rules.TYPES)
def test_rules_of_sums(element):
    name = f"mma_rules_{element}"
    found = BLACKWELL[name].read(answer(name))
    special = found.pop(rules.SPECIAL)
    assert found == RULES
    assert special["old NaN"] == special["inf * 0"] == "0x7fffffff"
    assert special["inf * 1"] == ("0x7fffffff" if element == "e4m3" else "0x7f800000")
    assert special["old 2^-140 alone"] == "0x200" and special["largest f32 + itself"] == "0x7f7fffff"


def one_by_one(experiment: rules.Experiment) -> np.float32:
    """Another machine: products are added to D in f32, one after the other."""
    total = np.float32(experiment.old)
    for place in sorted(experiment.products):
        a, b = experiment.products[place]
        total = np.float32(total + np.float32(a * b))
    return total


def exactly(experiment: rules.Experiment) -> np.float32:
    """Another machine: the exact sum, rounded once."""
    return np.float32(experiment.old + sum(a * b for a, b in experiment.products.values()))


def test_rules_tell_other_machines_apart():
    kind = rules.TYPES["bf16"]
    asked = list(rules.experiments(kind))
    answers = [rules.read_rules(np.array([f(e) for e in asked]), asked, kind) for f in (one_by_one, exactly)]
    assert answers[0][rules.TOGETHER] and answers[0][rules.ENDS]["(1 + 0.75 units)"] == 0.0
    assert answers[0][rules.ALIGNED] == "36 or more" and answers[0][rules.OLD_KEPT] == "23"
    assert answers[1][rules.ENDS]["(1 + 0.75 units)"] == 1.0
    assert answers[1][rules.WITH_OLD] == "36 or more"
    assert all(a != RULES for a in answers)


SUMS = {p.name: p for p in sums.PROBES}

ANY_BITS = KINDS.index("bits")
"""Any bits: infinities and NaN among them."""


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_random_numbers_are_right(name):
    """Within what cutting to 25 bits allows; integers exactly."""
    d, a, b, *more = name.removeprefix("mma_sums_").split("_")
    group = 2 if more == ["pair"] else 1
    images, buffers = image(name, "all"), given(name, "all")
    found, before = (i.reshape(-1, 128 * group, 16 * group) for i in (images, buffers["before"]))
    for request, words in enumerate(found):
        halves = buffers["operands"][group * request : group * request + group]
        x = np.concatenate([numbers(rows(half, 0, 128), a) for half in halves])
        y = np.concatenate([numbers(rows(half, 128 * 32, 16), b) for half in halves])
        if d == "s32":
            exact = (x @ y.T).astype(np.int64) + before[request].view(np.int32)
            low, high = -(1 << 31), (1 << 31) - 1
            wrapped = np.clip(exact, low, high) if more == ["saturated"] else exact.astype(np.int32)
            assert (words.view(np.int32) == wrapped).all()
            continue
        if d == "f16":
            values, old = (
                (w & 0xFFFF).astype(np.uint16).view(np.float16).astype(float) for w in (words, before[request])
            )
        else:
            values, old = floats(words), floats(before[request])
        with np.errstate(all="ignore"):
            exact = x @ y.T + old
            terms = np.abs(x) @ np.abs(y).T + np.abs(old)
            allowed = 64 * 2.0**-25 * terms + (2.0**-11 * np.abs(exact) + 2.0**-25 if d == "f16" else 2.0**-23 * terms)
            largest = 65504 if d == "f16" else np.finfo(np.float32).max
            plain = np.isfinite(exact) & np.isfinite(values) & (terms < largest / 4)
            assert (np.abs(values - exact) <= allowed)[plain].all()
            assert plain.mean() > 0.9 or request == ANY_BITS or len(found) == 1
            assert np.isnan(values[np.isnan(exact)]).all()
