"""Probes of how block-scaled kinds add their blocks: truncation, and sums of random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.blackwell.multiply import SLICE, MmaLaunch, b_at, core_matrices, mma, program
from conformance.blackwell.ptx import BLANK, LANES
from conformance.blackwell.rules import bits_kept
from conformance.blackwell.scales import (
    A_SCALES,
    B_SCALES,
    COLUMNS,
    KINDS,
    ONE,
    WIDTH,
    M,
    N,
    ScaledKind,
    ones_image,
    put_factors,
    request_of,
)
from conformance.blackwell.sums import units
from conformance.comparison import by_answer
from conformance.probe import Outputs, Probe

WITH_OLD = "bits below an old D that a block keeps"
OLD_KEPT = "bits below the largest block that an old D keeps"
ENDS = "a sum between two numbers of f32: one and 0.75 units"
REACH = 44
"""Tested powers of two."""


def _experiments() -> Iterator[tuple[str, int, dict[int, tuple[int, int]], float]]:
    """Yields rule, number, sign and exponent of each block's sum, and old D. Two blocks are 2^e and 2^-e by their
    factors.
    """
    for below in range(1, REACH):
        yield WITH_OLD, below, {0: (-1, 0), 1: (1, -below)}, 1.0
        yield OLD_KEPT, below, {0: (1, 0), 1: (-1, 0)}, 2.0**-below
    yield ENDS, 0, {0: (1, -24), 1: (1, -25)}, 1.0


def _rules(name: str, kind: ScaledKind) -> Probe:
    """Returns a probe in which row r is an experiment: block v is one element of A, times the block's factor in A; B is
    ones.
    """
    asked = list(_experiments())
    codes = np.zeros((2 * M, kind.depth), np.uint8)
    factors = np.full((2 * M, 4), kind.one, np.uint8)
    old = np.zeros((2 * M, COLUMNS), np.float32)
    for row, (_, _, blocks, c) in enumerate(asked):
        old[row, 0] = c
        for block, (sign, exponent) in blocks.items():
            codes[row, block * kind.per] = ONE[kind.element] | (8 if sign < 0 else 0)
            factors[row, block] = kind.one + exponent
    launches = []
    for half in range(2):
        rows = slice(M * half, M * half + M)
        packed = codes[rows, ::2] | codes[rows, 1::2] << 4
        image = ones_image(kind)
        image[:, :N] = old[rows, :N].view(np.uint32)
        words = np.ascontiguousarray(factors[rows]).view(np.uint32)[:, 0]
        put_factors(image, words)
        launches.append((np.concatenate([core_matrices(packed), core_matrices(kind.rows(N, None))]), image))
    request = replace(request_of(kind, M, N, 1), adds=True)
    launch = MmaLaunch(
        [request] * 2, np.stack([d for d, _ in launches]), COLUMNS, before=np.stack([i for _, i in launches])
    )

    def read(outputs: Outputs) -> dict[str, Any]:
        results = outputs["all"]["after"][:, :, 0].reshape(-1).view(np.float32).astype(np.float64)
        found: dict[str, dict[int, float]] = {}
        for (rule, number, *_), result in zip(asked, results, strict=False):
            found.setdefault(rule, {})[number] = float(result)
        answer: dict[str, Any] = {}
        for rule, by in found.items():
            answer[rule] = (by[0] - 1) * 2.0**23 if rule == ENDS else bits_kept(by)
        return answer

    return Probe(
        name=name,
        question=f"How does tcgen05.mma.kind::{kind.kind.split('.')[0]} add the sums of its blocks: what is cut off, "
        "and how is the sum rounded?",
        ptx=program(mma(kind.kind, scales=True), COLUMNS, b_at(M) + b_at(N)),
        cases=(launch.case("all"),),
        read=read,
        explain=by_answer(read),
        accumulation="tensor_core",
        assumption="Groups of 16 are summed exactly, and cut to 35 bits below the old D or below the largest pair of "
        "factors: published for B200, sf-tensor/tcgen05, MODEL.md.",
    )


def _random(name: str, kind: ScaledKind) -> Probe:
    """Returns a probe with random elements, and factors within 2^-8 to 2^8 of one."""
    rng = np.random.default_rng(80)
    data, images = [], []
    for _ in range(2):
        data.append(np.concatenate([core_matrices(rng.integers(0, 256, (rows, SLICE), np.uint8)) for rows in (M, N)]))
        image = np.full((LANES, COLUMNS), BLANK, np.uint32)
        image[:, :N] = rng.standard_normal((LANES, N)).astype(np.float32).view(np.uint32)
        low, high = (119, 136) if kind.ue8m0 else (1, 0x7F)
        for first in (A_SCALES, B_SCALES):
            codes = rng.integers(low, high, (32, WIDTH, 4), np.uint8).view(np.uint32)[..., 0]
            image[:, first : first + WIDTH] = np.tile(codes, (4, 1))
        images.append(image)
    request = replace(request_of(kind, M, N, 1), adds=True)
    launch = MmaLaunch([request] * 2, np.stack(data), COLUMNS, before=np.stack(images))

    def explain(expected: Outputs, found: Outputs) -> list[str]:
        ours, theirs = (o["random"]["after"][:, :, :N] for o in (expected, found))
        different = ours != theirs
        if not different.any():
            return []
        place = tuple(np.argwhere(different)[0].tolist())
        return [
            f"{int(different.sum())} of {ours.size} sums have other bits, at most "
            f"{int(units(ours, theirs, 'f32').max())} units in the last place off; D{place[1:]} is "
            f"{int(theirs[place]):#x}, on the emulator {int(ours[place]):#x}"
        ]

    def read(outputs: Outputs) -> dict[str, Any]:
        return {"first row": [hex(v) for v in outputs["random"]["after"][0, 0, :6].tolist()]}

    return Probe(
        name=name,
        question=f"What does tcgen05.mma.kind::{kind.kind} give for random elements and factors?",
        ptx=program(mma(kind.kind, scales=True), COLUMNS, b_at(M) + b_at(N)),
        cases=(launch.case("random"),),
        read=read,
        explain=explain,
        accumulation="tensor_core",
        assumption="Products of mxf8 are cut to 25 bits; those of mxf4 and nvf4 are summed exactly in groups, "
        "which are cut to 35: published for B200, sf-tensor/tcgen05, MODEL.md.",
    )


PROBES = (
    _rules("mma_rules_mxf4", KINDS[1]),
    *(_random(f"mma_sums_{kind.name}", kind) for kind in KINDS),
)
