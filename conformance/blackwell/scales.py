"""Probes of the scale factors of block-scaled kinds: their place in tensor memory, and the meaning of their codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from conformance.blackwell.multiply import (
    SLICE,
    MmaLaunch,
    MmaRequest,
    b_at,
    beside_commits,
    core_matrices,
    f32,
    mma,
    plain,
    program,
    scaled_descriptor,
)
from conformance.blackwell.ptx import BLANK, LANES
from conformance.comparison import Difference, by_element
from conformance.probe import Outputs, Probe, ProbeCase

M, N = 128, 64
COLUMNS = 96
A_SCALES, B_SCALES = 64, 80
"""Columns of the factors, behind those of D."""
WIDTH = 8
"""Columns of factors that are written: more than any operand uses."""
ONE = {"e4m3": 0x38, "e2m1": 2}
"""Code of the number one."""
UE8M0_ONE, UE4M3_ONE = 127, 0x38


@dataclass(frozen=True)
class ScaledKind:
    """A kind with the factors of a row. ``code``: of the element type. ``packed``: two elements in a byte."""

    kind: str
    vectors: int
    element: str
    code: int
    ue8m0: bool
    packed: bool

    @property
    def name(self) -> str:
        return self.kind.replace(".block_scale.scale_vec::", "_").lower()

    @property
    def depth(self) -> int:
        return SLICE * (1 + self.packed)

    @property
    def per(self) -> int:
        """Returns the number of elements that share a factor."""
        return self.depth // self.vectors

    @property
    def one(self) -> int:
        return UE8M0_ONE if self.ue8m0 else UE4M3_ONE

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(range(0, 4, self.vectors))

    def rows(self, rows: int, block: int | None) -> np.ndarray:
        """Returns [rows, 32 bytes] of ones. If a block is named, everything else is zero."""
        codes = np.full((rows, self.depth), ONE[self.element], np.uint8)
        if block is not None:
            codes[:, : block * self.per] = 0
            codes[:, (block + 1) * self.per :] = 0
        return codes[:, ::2] | codes[:, 1::2] << 4 if self.packed else codes

    def value(self, codes: np.ndarray) -> np.ndarray:
        """Returns the values of factors, by the formats' definitions."""
        raw = codes.astype(np.uint8)
        if self.ue8m0:
            return np.ldexp(1.0, raw.astype(int) - UE8M0_ONE)
        return raw.view(ml_dtypes.float8_e4m3fn).astype(np.float64)


KINDS = (
    ScaledKind("mxf8f6f4.block_scale.scale_vec::1X", 1, "e4m3", 0, True, False),
    ScaledKind("mxf4.block_scale.scale_vec::2X", 2, "e2m1", 1, True, True),
    ScaledKind("mxf4nvf4.block_scale.scale_vec::2X", 2, "e2m1", 1, True, True),
    ScaledKind("mxf4nvf4.block_scale.scale_vec::4X", 4, "e2m1", 1, False, True),
)

# ---- where they lie ----

FIRST = {True: 110, False: 8}
"""Code of the place with number 0, by whether factors are ue8m0. The numbers are 0 to 31."""
OTHER = 4
"""The odd CTA's numbers are larger by this, if it has its own."""


@dataclass(frozen=True)
class Question:
    """A question. ``operand``: whose factors identify places. ``by``: "lane" (of a quadrant), "place" (column and byte)
    or "quadrant". ``block``: the only block along K that counts.
    """

    operand: str
    by: str
    identifier: int
    block: int

    @property
    def name(self) -> str:
        return f"{self.operand}'s by {self.by}, id {self.identifier}, block {self.block}"


def ones_image(kind: ScaledKind) -> np.ndarray:
    """Returns an image of a CTA's tensor memory in which every factor is one and D is blank."""
    image = np.full((LANES, COLUMNS), BLANK, np.uint32)
    for first in (A_SCALES, B_SCALES):
        image[:, first : first + WIDTH] = kind.one * 0x01010101
    return image


def _image(kind: ScaledKind, question: Question, same: bool, cta: int) -> np.ndarray:
    """Returns an image in which the factors of one operand identify places. ``same`` says whether the odd CTA of a pair
    has those of the even one.
    """
    image = ones_image(kind)
    lane, column, byte = np.mgrid[:LANES, :WIDTH, :4]
    number = {"lane": lane % 32, "place": 4 * column + byte, "quadrant": lane // 32}[question.by]
    first = A_SCALES if question.operand == "A" else B_SCALES
    codes = FIRST[kind.ue8m0] + number + (0 if same or not cta else OTHER)
    image[:, first : first + WIDTH] = codes.astype(np.uint8).view(np.uint32)[..., 0]
    return image


def request_of(kind: ScaledKind, m: int, n: int, group: int, a_id: int = 0, b_id: int = 0) -> MmaRequest:
    """Returns an MMA with consecutive operands. ``a_id``, ``b_id`` are those of the factors."""
    rows, some = m // group, n // group
    return MmaRequest(
        scaled_descriptor(m, n, kind.code, kind.code, kind.ue8m0, a_id, b_id),
        a=plain(rows),
        b=plain(some),
        b_start=b_at(rows),
        a_scales=A_SCALES,
        b_scales=B_SCALES,
    )


def _asked(kind: ScaledKind, bys: Sequence[str]) -> list[Question]:
    return [
        Question(operand, by, identifier, block)
        for operand in "AB"
        for by in bys
        for identifier in kind.ids
        for block in range(kind.vectors)
    ]


def _room(group: int) -> int:
    """Returns bytes of operands that are enough for each CTA of every case."""
    return b_at(M) + b_at(N // group)


def _place_case(kind: ScaledKind, asked: list[Question], m: int, n: int, group: int, same: bool) -> ProbeCase:
    requests, data, before = [], [], []
    for q in asked:
        ids = (q.identifier, 0) if q.operand == "A" else (0, q.identifier)
        requests.append(request_of(kind, m, n, group, *ids))
        for cta in range(group):
            a, b = kind.rows(m // group, q.block), kind.rows(n // group, None)
            rows = np.concatenate([core_matrices(a), core_matrices(b)])
            data.append(np.pad(rows, (0, _room(group) - rows.size)))
            before.append(_image(kind, q, same, cta))
    return MmaLaunch(requests, np.stack(data), COLUMNS, group, np.stack(before)).case(f"M {m}, N {n}")


def _number(kind: ScaledKind, word: int) -> int | None:
    """Returns the number of the place whose factor scaled a D, or None."""
    value = f32(word) / kind.per
    table = kind.value(FIRST[kind.ue8m0] + np.arange(32 + OTHER))
    found = np.flatnonzero(table == value)
    return int(found[0]) if len(found) else None


def _describe(kind: ScaledKind, by: str, word: int) -> str:
    number = _number(kind, word)
    if number is None:
        return f"nowhere (D is {word:#010x})"
    if by != "place":
        return f"{by} {number}"
    return f"column {number // 4}, byte {number % 4}"


def _places(
    name: str,
    question: str,
    kind: ScaledKind,
    bys: Sequence[str],
    group: int = 1,
    same: bool = True,
    modelled: bool = True,
    assumption: str = "",
) -> Probe:
    """Returns a probe. ``same`` is that of `_image`."""
    asked = _asked(kind, bys)
    shapes = [(M, N)] if group == 1 else [(2 * M, N), (M, N)]

    def describe(d: Difference) -> str:
        cta, lane, column = d.place
        q = asked[cta // group]
        what = f"row of lane {lane}" if q.operand == "A" else f"column {column}"
        rank = f" in CTA rank {cta % group}" if group > 1 else ""
        return (
            f"id {q.identifier}, block {q.block}: the factor of {q.operand}'s {what}{rank} comes from "
            f"{_describe(kind, q.by, d.theirs)}; on the emulator from {_describe(kind, q.by, d.ours)}"
        )

    def read(outputs: Outputs) -> dict[str, Any]:
        answer = {}
        for case, arrays in outputs.items():
            for cta, image in enumerate(arrays["after"]):
                q = asked[cta // group]
                words = image[[0, 1, 33, 127], 0] if q.operand == "A" else image[0, [0, 1, 33, 63]]
                rank = f", CTA rank {cta % group}" if group > 1 else ""
                answer[f"{case}, {q.name}{rank}"] = [_describe(kind, q.by, int(w)) for w in words]
        return answer

    return Probe(
        name=name,
        question=question,
        ptx=program(mma(kind.kind, group, scales=True), COLUMNS, _room(group), group),
        cases=tuple(_place_case(kind, asked, m, n, group, same) for m, n in shapes),
        read=read,
        explain=by_element(beside_commits(describe)),
        accumulation="tensor_core",
        modelled=modelled,
        assumption=assumption,
    )


# ---- what their codes mean ----

ASKED_CODES = (0, 1, 7, 8, 0x38, 0x7E, 0x7F, 0x80, 0xFE, 0xFF)
"""The codes in the result."""


def put_factors(image: np.ndarray, words: np.ndarray) -> None:
    """Writes the factors of each row of A, in every quadrant."""
    row = np.arange(M)
    for quadrant in range(4):
        image[32 * quadrant + row % 32, A_SCALES + row // 32] = words


def _codes(name: str, kind: ScaledKind) -> Probe:
    """Returns a probe in which row r of the first request has code r, and of the second 128 + r; the other factors are
    one. ue4m3 has 7 bits.
    """
    firsts = (0, 128) if kind.ue8m0 else (0,)
    data = np.concatenate([core_matrices(kind.rows(M, 0)), core_matrices(kind.rows(N, None))])
    images = []
    for first in firsts:
        image = ones_image(kind)
        put_factors(image, (first + np.arange(M)) * 0x01010101)
        images.append(image)
    count = len(firsts)
    launch = MmaLaunch([request_of(kind, M, N, 1)] * count, np.stack([data] * count), COLUMNS, before=np.stack(images))

    def describe(d: Difference) -> str:
        code = 128 * d.place[0] + d.place[1]
        return f"code {code:#04x} is {f32(d.theirs) / kind.per:g}; on the emulator {f32(d.ours) / kind.per:g}"

    def read(outputs: Outputs) -> dict[str, Any]:
        values = outputs["all codes"]["after"][:, :, 0].reshape(-1).view(np.float32) / kind.per
        return {f"{code:#04x}": float(values[code]) for code in ASKED_CODES if code < len(values)}

    return Probe(
        name=name,
        question=f"What number is each code of a factor of type {'ue8m0' if kind.ue8m0 else 'ue4m3'}?",
        ptx=program(mma(kind.kind, scales=True), COLUMNS, data.size),
        cases=(launch.case("all codes"),),
        read=read,
        explain=by_element(beside_commits(describe)),
        accumulation="tensor_core",
    )


WHERE = "Which lane, column and byte of tensor memory hold the factor of a row of A, and of a column of B"
COPIES = "In all four quadrants of lanes they are the same, as tcgen05.cp.warpx4 puts them; only that is modelled."
PROBES = (
    *(
        _places(f"mma_scales_{kind.name}", f"{WHERE}, in {kind.kind}?", kind, ("lane", "place"), assumption=COPIES)
        for kind in KINDS
    ),
    _places(
        "mma_scales_pair",
        f"{WHERE}, in a pair?",
        KINDS[0],
        ("lane", "place"),
        group=2,
        assumption="Each CTA has those of its rows of A, and of all columns of B.",
    ),
    _places(
        "mma_scales_quadrants",
        "Which quadrant of lanes gives the factors if they differ?",
        KINDS[0],
        ("quadrant",),
        modelled=False,
    ),
    _places(
        "mma_scales_pair_different",
        "Whose factors of B count if those of the CTAs of a pair differ?",
        KINDS[0],
        ("place",),
        group=2,
        same=False,
        modelled=False,
    ),
    _codes("mma_scale_codes_ue8m0", KINDS[0]),
    _codes("mma_scale_codes_ue4m3", KINDS[3]),
)
