"""Probes of how tcgen05.mma adds: sums whose results distinguish orders, widths and roundings.

Each experiment is a sum of products and an old D. Its factors are row i of A and column i of B, its result D(i, i).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from conformance.blackwell.multiply import (
    MmaLaunch,
    MmaRequest,
    b_at,
    instruction_descriptor,
    mma,
    operands,
    plain,
    program,
)
from conformance.blackwell.ptx import LANES
from conformance.comparison import by_answer
from conformance.probe import Outputs, Probe

Products = dict[int, tuple[float, float]]
"""Factors by place along K."""


@dataclass(frozen=True)
class Type:
    """A type of A and B. ``top``: exponent of the largest tested product, half of it in each factor. ``bottom``:
    exponent of the smallest factor.
    """

    kind: str
    code: int
    dtype: DTypeLike
    top: int
    bottom: int

    @property
    def depth(self) -> int:
        return 32 // np.dtype(self.dtype).itemsize

    @property
    def reach(self) -> int:
        """Returns by how many powers of two a product can be smaller than the largest one, 36 at most."""
        return min(36, self.top - 2 * self.bottom)

    def product(self, below: int, sign: int = 1, odd: float = 1.0) -> tuple[float, float]:
        """Returns factors of sign * odd * 2^(top - below)."""
        exponent = self.top - below
        a = max(self.bottom, exponent // 2)
        return sign * odd * 2.0**a, 2.0 ** (exponent - a)


TYPES = {
    "bf16": Type("f16", 1, ml_dtypes.bfloat16, 0, -60),
    "f16": Type("f16", 0, np.float16, 20, -14),
    "tf32": Type("tf32", 2, np.float32, 0, -60),
    "e4m3": Type("f8f6f4", 0, ml_dtypes.float8_e4m3fn, 16, -8),
    "e5m2": Type("f8f6f4", 1, ml_dtypes.float8_e5m2, 24, -14),
}


@dataclass(frozen=True)
class Experiment:
    """An experiment. ``rule`` is determined by several results together; ``at`` is the place of this one. ``old`` is D
    before.
    """

    rule: str
    at: int
    products: Products
    old: float = 0.0


ALIGNED = "bits below the largest term that a product keeps"
WITH_OLD = "bits below an old D that a product keeps"
OLD_KEPT = "bits below the largest term that an old D keeps"
UNNORMALISED = "bits that a product keeps below products of 1.5 and 1.5"
CUT = "1.5 units of the last kept bit, and -1.5"
ENDS = "a sum between two numbers of f32"
TOGETHER = "places along K whose sum is taken before that of place 0"
SPECIAL = "special numbers"
KEPT = (ALIGNED, WITH_OLD, OLD_KEPT, UNNORMALISED)
CUT_AT = range(20, 28)
BETWEEN = {0: (1, 1), 1: (-1, -1), 2: (1, 0), 3: (-1, 0)}
"""Numbers of units of 2^-24 and of 2^-25 beside one."""


def experiments(kind: Type) -> Iterator[Experiment]:
    """Yields all experiments for a type."""
    one, minus = kind.product(0), kind.product(0, -1)
    scale = 2.0**kind.top
    last = kind.depth - 1
    for below in range(1, kind.reach + 1):
        small = kind.product(below)
        yield Experiment(ALIGNED, below, {0: one, 1: minus, 2: small})
        yield Experiment(WITH_OLD, below, {0: minus, 1: small}, scale)
        yield Experiment(OLD_KEPT, below, {0: one, 1: minus}, scale * 2.0**-below)
    half = (1.5 * one[0] / 2, 1.5 * one[1]), (-1.5 * one[0] / 2, 1.5 * one[1])
    for below in CUT_AT:
        yield Experiment(UNNORMALISED, below, {0: half[0], 1: half[1], 2: kind.product(below + 1)})
    for below in CUT_AT:
        for sign in (1, -1):
            yield Experiment(CUT, sign * below, {0: one, 1: minus, 2: kind.product(below, sign, 1.5)})
    for number, (first, second) in BETWEEN.items():
        products = {0: kind.product(0, 1 if first > 0 else -1)}
        products[1] = kind.product(24, first)
        if second:
            products[2] = kind.product(25, second)
        yield Experiment(ENDS, number, products)
    far = kind.product(kind.reach)
    for place in range(1, last + 1):
        yield Experiment(TOGETHER, place, {0: one, place: minus, (last if place < last else 1): far})


def special_values(kind: Type) -> dict[str, tuple[Products, float]]:
    """Returns infinities, NaN, zeros, and numbers below the normal ones. e4m3 has no infinity."""
    infinity = float("nan") if kind.dtype is ml_dtypes.float8_e4m3fn else float("inf")
    tiny = float(ml_dtypes.finfo(kind.dtype).smallest_subnormal)
    return {
        "inf * 1": ({0: (infinity, 1.0)}, 0.0),
        "inf * 1 - inf * 1": ({0: (infinity, 1.0), 1: (-infinity, 1.0)}, 0.0),
        "inf * 0": ({0: (infinity, 0.0)}, 0.0),
        "NaN * 1": ({0: (float("nan"), 1.0)}, 0.0),
        "old NaN": ({0: (1.0, 1.0)}, float("nan")),
        "old -inf + inf": ({0: (infinity, 1.0)}, float("-inf")),
        "-0 * 1, old -0": ({0: (-0.0, 1.0)}, -0.0),
        "1 - 1, old -0": ({0: (1.0, 1.0), 1: (-1.0, 1.0)}, -0.0),
        "old 2^-140 alone": ({}, 2.0**-140),
        "old 1.5 * 2^-140 + 0 * 1": ({0: (0.0, 1.0)}, 1.5 * 2.0**-140),
        "largest f32 + itself": ({0: (0.0, 1.0)}, float(np.finfo(np.float32).max)),
        "smallest number * 1": ({0: (tiny, 1.0)}, 0.0),
        "2^-100 * 2^-35, if there are such": ({0: (2.0**-100, 2.0**-35)}, 0.0),
    }


def _operand(kind: Type, number: int, which: int, products: list[Products]) -> np.ndarray:
    rows = np.zeros((LANES, kind.depth))
    for row, some in enumerate(products[number * LANES : (number + 1) * LANES]):
        for place, factors in some.items():
            rows[row, place] = factors[which]
    with np.errstate(over="ignore"):
        return rows.astype(kind.dtype)


def words_of(outputs: Outputs) -> np.ndarray:
    """Returns the results of the experiments, in their order."""
    return np.concatenate([np.diagonal(image) for image in outputs["all"]["after"]])


def bits_kept(found: dict[int, float], shift: int = 0) -> str:
    """Returns the largest ``below`` with the exact sum 2^-(below + shift), and other such values."""
    whole = [below for below, value in found.items() if value == 2.0 ** -(below + shift)]
    others = {below: value for below, value in found.items() if below not in whole and value}
    last = max(whole, default=0)
    gaps = [below for below in found if below < last and below not in whole]
    kept = f"{last}" if last < max(found) else f"{last} or more"
    return f"{kept}, and at others {others}" if others or gaps else kept


def read_rules(results: np.ndarray, asked: list[Experiment], kind: Type) -> dict[str, Any]:
    """Interprets the results (f32) of each rule together."""
    by_rule: dict[str, dict[int, float]] = {}
    for experiment, result in zip(asked, results.astype(np.float64) / 2.0**kind.top, strict=False):
        by_rule.setdefault(experiment.rule, {})[experiment.at] = float(result)
    answer: dict[str, Any] = {}
    for rule in KEPT:
        answer[rule] = bits_kept(by_rule[rule], shift=int(rule == UNNORMALISED))
    kept = max((b for b in CUT_AT if by_rule[ALIGNED].get(b)), default=0)
    answer[CUT] = [by_rule[CUT].get(sign * kept, 0.0) * 2.0**kept for sign in (1, -1)]
    units = {n: (abs(v) - 1) * 2.0**23 for n, v in by_rule[ENDS].items()}
    answer[ENDS] = {
        f"{'-' if a < 0 else ''}(1 + {0.5 + 0.25 * abs(b)} units)": units[n] for n, (a, b) in BETWEEN.items()
    }
    answer[TOGETHER] = [place for place, v in by_rule[TOGETHER].items() if v]
    return answer


def _rules(element: str) -> Probe:
    kind = TYPES[element]
    asked = list(experiments(kind))
    special = special_values(kind)
    products = [e.products for e in asked] + [p for p, _ in special.values()]
    old = np.array([e.old for e in asked] + [c for _, c in special.values()])
    count = -(-len(products) // LANES)
    before = np.zeros((count, LANES, LANES), np.float32)
    for number, value in enumerate(old):
        before[number // LANES, number % LANES, number % LANES] = value
    data = np.stack([operands(*(_operand(kind, n, which, products) for which in (0, 1))) for n in range(count)])
    request = MmaRequest(
        instruction_descriptor(LANES, LANES, kind.code, kind.code),
        a=plain(LANES),
        b=plain(LANES),
        b_start=b_at(LANES),
        adds=True,
    )

    def read(outputs: Outputs) -> dict[str, Any]:
        words = words_of(outputs)
        answer = read_rules(words.view(np.float32), asked, kind)
        answer[SPECIAL] = {name: hex(words[len(asked) + n]) for n, name in enumerate(special)}
        return answer

    launch = MmaLaunch([request] * count, data, LANES, before=before.view(np.uint32))
    return Probe(
        name=f"mma_rules_{element}",
        question=f"How does tcgen05.mma add products of {element}: what is cut off, where, and how is the sum rounded?",
        ptx=program(mma(kind.kind), LANES, data.shape[1]),
        cases=(launch.case("all"),),
        read=read,
        explain=by_answer(read),
        accumulation="tensor_core",
        assumption="All products and the old D are aligned to the largest, cut to 25 bits below it, added exactly, and "
        "the sum is cut to f32 (MMA-Sim, arXiv 2511.10909).",
    )


PROBES = tuple(_rules(element) for element in TYPES)
