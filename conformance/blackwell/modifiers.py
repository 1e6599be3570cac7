"""Probes of the other bits and operands of tcgen05.mma: signs, disabled lanes, a scaled D, zero columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from conformance.blackwell.layouts import describe_elements, numbered, numbered_operands, read_layout
from conformance.blackwell.multiply import (
    MmaLaunch,
    MmaRequest,
    b_at,
    beside_commits,
    f32,
    instruction_descriptor,
    mma,
    operands,
    plain,
    program,
)
from conformance.blackwell.ptx import BLANK, LANES
from conformance.comparison import Difference, by_element
from conformance.probe import Outputs, Probe, ProbeCase

M, N = 128, 16
NEGATE_A, NEGATE_B = 1 << 13, 1 << 14


def integers(rows: int, dtype: DTypeLike, seed: int) -> np.ndarray:
    """Returns [rows, 32 bytes of K] of small integers; every fourth row is zero."""
    depth = 32 // np.dtype(dtype).itemsize
    values = np.random.default_rng(seed).integers(-6, 7, (rows, depth))
    values[::4] = 0
    return values.astype(dtype)


def request_of(idesc: int, adds: bool = False) -> MmaRequest:
    """Returns the request of an MMA of M x N with consecutive operands."""
    return MmaRequest(idesc, a=plain(M), b=plain(N), b_start=b_at(M), adds=adds)


@beside_commits
def describe_numbers(d: Difference) -> str:
    """Describes a difference in an f32 D in lane r, column n."""
    request, lane, column = d.place
    return f"request {request}: D({lane}, {column}) is {f32(d.theirs):.9g}; the emulator: {f32(d.ours):.9g}"


def read_sums(outputs: Outputs) -> dict[str, Any]:
    """Returns, by case and request, one column of some rows. Row 0 of A, and of B, is zero."""
    return {
        f"{case}, {request}": np.ascontiguousarray(image[1:6, 1]).view(np.float32).tolist()
        for case, arrays in outputs.items()
        for request, image in enumerate(arrays["after"])
    }


def old_d(seed: int) -> np.ndarray:
    """Returns an image of D [128, N] of small integers."""
    return np.random.default_rng(seed).integers(-50, 51, (LANES, N)).astype(np.float32)


# ---- signs ----

SIGNS = (0, NEGATE_A, NEGATE_B, NEGATE_A | NEGATE_B)


def _negate(kind: str, code: int, dtype: DTypeLike) -> Probe:
    a, b = integers(M, dtype, 1), integers(N, dtype, 2)
    requests = [
        request_of(instruction_descriptor(M, N, code, code, more=s), adds=x) for x in (False, True) for s in SIGNS
    ]
    data = np.stack([operands(a, b)] * len(requests))
    before = np.stack([old_d(3).view(np.uint32)] * len(requests))
    return Probe(
        name=f"mma_negate_{kind}",
        question=f"What do the bits that negate A and B do in kind::{kind}, alone, together, and where D is added?",
        ptx=program(mma(kind), N, data.shape[1]),
        cases=(MmaLaunch(requests, data, N, before=before).case("none, A, B, both; then with D added"),),
        read=read_sums,
        explain=by_element(describe_numbers),
        accumulation="tensor_core",
    )


# ---- lanes that are left alone ----

MASKS = (
    (1, 0, 0, 0, 0, 0, 0, 0),
    (0, 0x80000000, 0, 2, 0, 0, 0, 0),
    (0xFFFF0000, 0x0000FFFF, 0xFFFFFFFF, 0, 0, 0, 0, 0),
    (0, 0, 0, 0, 1, 0, 0, 0x80000000),
    (0, 0, 4, 0, 0x00FF00FF, 0, 0xFFFFFFFF, 0),
)
MASKED_N = 32
MASKED_BYTES = b_at(128) + b_at(MASKED_N)
"""Bytes of operands that are enough for each CTA of every case."""


def _mask_case(m: int, group: int, masks: Sequence[tuple[int, ...]]) -> ProbeCase:
    rows, some = m // group, MASKED_N // group
    data = np.concatenate([numbered_operands(m, MASKED_N, group, MASKED_BYTES)] * len(masks))
    requests = [
        MmaRequest(instruction_descriptor(m, MASKED_N), a=plain(rows), b=plain(some), b_start=b_at(rows), mask=mask)
        for mask in masks
    ]
    return MmaLaunch(requests, data, MASKED_N, group).case(f"M {m}")


def _masks(name: str, shapes: Sequence[int], group: int, masks: Sequence[tuple[int, ...]], assumption: str) -> Probe:
    return Probe(
        name=name,
        question="Which lanes of D does the operand disable-output-lane leave alone"
        f"{', and in which CTA of a pair' if group == 2 else ''}?",
        ptx=program(mma("f16", group, masked=True), MASKED_N, MASKED_BYTES, group),
        cases=tuple(_mask_case(m, group, masks) for m in shapes),
        read=read_layout,
        explain=by_element(describe_elements(group)),
        assumption=assumption,
    )


# ---- D divided by a power of two ----

SHIFTS = (0, 1, 4, 15)


def _scaled_d(kind: str, code: int, dtype: DTypeLike) -> Probe:
    """Returns a probe with one instruction for each shift, each with its own columns."""
    a, b = integers(M, dtype, 4), integers(N, dtype, 5)
    columns = N * len(SHIFTS)
    issue = "add.u32 %d, %d, 16;\n".join(mma(kind, tail=f", {shift}") for shift in SHIFTS)
    old = np.random.default_rng(6).integers(-(1 << 20), 1 << 20, (LANES, columns)).astype(np.float32)
    old[:, 1::4] *= np.float32(2.0**-20)
    old[:, 2::4] *= np.float32(2.0**-140)
    requests = [request_of(instruction_descriptor(M, N, code, code), adds=adds) for adds in (True, False)]
    data = np.stack([operands(a, b)] * 2)
    return Probe(
        name=f"mma_scaled_d_{kind}",
        question=f"What does scale-input-d do to the old D in kind::{kind}: of usual size, small, and subnormal?",
        ptx=program(issue, columns, data.shape[1]),
        cases=(
            MmaLaunch(requests, data, columns, before=np.stack([old.view(np.uint32)] * 2)).case(
                "D divided by 2^0, 2^1, 2^4, 2^15 and added; then not added"
            ),
        ),
        read=read_sums,
        explain=by_element(describe_numbers),
        accumulation="tensor_core",
        assumption="D is divided exactly before it is added; a result that f32 does not hold is rounded to even.",
    )


# ---- columns of B that count as zero ----

ZERO_N = 64


def _zero_mask(zeros: int, used: int, start: tuple[int, ...] = (), first: int = 0, shift: int = 0) -> int:
    """Returns a zero-column mask descriptor (PTX ISA 9.7.16.4.3): spans, start counts of the sub-masks, and the bits of
    those that begin with the first kind of span. The ISA's table and its examples disagree on which span is which.
    """
    counts = sum(count << 8 * n for n, count in enumerate(start))
    return counts | first << 32 | 1 << 39 | zeros - 1 << 40 | used - 1 << 48 | shift << 56


ZERO_MASKS = {
    "none": 0,
    "spans 3 and 4": _zero_mask(3, 4),
    "spans 3 and 4, first span 1": _zero_mask(3, 4, first=15),
    "spans 3 and 4, start 0, 1, 2, 1": _zero_mask(3, 4, (0, 1, 2, 1)),
    "spans 8 and 8, column shift 4": _zero_mask(8, 8, shift=4),
}


def _zero_columns() -> Probe:
    """Returns a probe whose descriptors are two words of the request."""
    cases, room = [], b_at(128) + b_at(ZERO_N + 32)
    for m in (32, 64, 128):
        a, b = numbered(m, ZERO_N + 32)
        data = operands(a, b)
        data = np.pad(data, (0, room - data.size))
        # Bits 30 and 31 allow a column shift, by 8 at most.
        idesc = instruction_descriptor(m, ZERO_N, more=1 << 30)
        requests = [
            MmaRequest(
                idesc,
                a=plain(m),
                b=plain(ZERO_N + 32),
                b_start=b_at(m),
                other=mask & 0xFFFFFFFF,
                mask=(mask >> 32, *[0] * 7),
            )
            for mask in ZERO_MASKS.values()
        ]
        cases.append(MmaLaunch(requests, np.stack([data] * len(requests)), ZERO_N).case(f"M {m}"))

    def read(outputs: Outputs) -> dict[str, Any]:
        """Returns, by case and mask, the columns of row 5, as D's elements, from each 32 lanes; 0 if they are zero."""
        answer = {}
        for case, arrays in outputs.items():
            for name, image in zip(ZERO_MASKS, arrays["after"], strict=True):
                rows = [image[lane].view(np.float32) for lane in (5, 37, 69, 101)]
                answer[f"{case}, {name}"] = ["".join(".x"[int(v != 0)] for v in row) for row in rows]
        return answer

    issue = "mov.b64 %rd6, {%other, %m0};\ntcgen05.mma.ws.cta_group::1.kind::f16 [%d], %a, %b, %idesc, %adds, %rd6;\n"
    return Probe(
        name="mma_ws_zero_columns",
        question="Which columns of B does a zero-column mask descriptor make zero, and what does a column shift do?",
        ptx=program(issue, ZERO_N, room),
        cases=tuple(cases),
        read=read,
        modelled=False,
    )


# ---- D of 16 bits ----

F16 = 0


def _halves() -> Probe:
    a, b = integers(M, np.float16, 14), integers(N, np.float16, 15)
    data = np.stack([operands(a, b)] * 2)
    old = old_d(16).astype(np.float16).view(np.uint16).astype(np.uint32) | BLANK & 0xFFFF0000
    requests = [request_of(instruction_descriptor(M, N, F16, F16, 0), adds=adds) for adds in (False, True)]

    def read(outputs: Outputs) -> dict[str, Any]:
        images = outputs["D of f16, not added and added"]["after"]
        upper = [hex(v) for v in np.unique(images >> 16).tolist()]
        lower = (images & 0xFFFF).astype(np.uint16).view(np.float16)
        return {"upper halves": upper[:8], "first rows": lower[:, :4, 0].astype(float).tolist()}

    def lower_halves(outputs: Outputs) -> Outputs:
        """Returns the lower halves, because the ISA does not define the upper ones."""
        return {case: {**arrays, "after": arrays["after"] & 0xFFFF} for case, arrays in outputs.items()}

    def describe(d: Difference) -> str:
        values = [float(np.uint16(word).view(np.float16)) for word in (d.theirs, d.ours)]
        return f"request {d.place[0]}: the lower half of D{d.place[1:]} is {values[0]:g}; the emulator: {values[1]:g}"

    def explain(expected: Outputs, found: Outputs) -> list[str]:
        return by_element(beside_commits(describe))(lower_halves(expected), lower_halves(found))

    return Probe(
        name="mma_d_of_16_bits",
        question="Is a D of f16 in the lower half of each column, and what is in the upper one?",
        ptx=program(mma("f16"), N, data.shape[1]),
        cases=(MmaLaunch(requests, data, N, before=np.stack([old] * 2)).case("D of f16, not added and added"),),
        read=read,
        explain=explain,
        assumption="The upper half is not defined; the emulator puts zeros there.",
    )


PROBES = (
    _negate("f16", 1, ml_dtypes.bfloat16),
    _negate("tf32", 2, np.float32),
    _negate("f8f6f4", 0, ml_dtypes.float8_e4m3fn),
    _masks(
        "mma_disabled_lanes",
        (128, 64),
        1,
        MASKS[:3],
        "Bit b of word q is lane 32 q + b of tensor memory, for M = 64, too.",
    ),
    _masks(
        "mma_disabled_lanes_pair",
        (256, 128),
        2,
        MASKS,
        "Words 0 to 3 are lanes of the even CTA, 4 to 7 of the odd one: inferred.",
    ),
    _scaled_d("f16", 1, ml_dtypes.bfloat16),
    _scaled_d("tf32", 2, np.float32),
    _zero_columns(),
    _halves(),
)
