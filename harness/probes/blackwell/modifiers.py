"""What bits and operands beside A, B and D do to tcgen05.mma: signs, disabled lanes, a scaled D, collectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from harness.probes.blackwell.layouts import numbered, numbered_operands, read_layout, tell_elements
from harness.probes.blackwell.multiply import (
    Launch,
    Request,
    b_at,
    beside_commits,
    core_matrices,
    f32,
    instruction_descriptor,
    mma,
    operands,
    plain,
    program,
)
from harness.probes.blackwell.ptx import BLANK, LANES, by_warp_0
from harness.probes.comparison import by_element
from harness.probes.probe import Case, Outputs, Probe

M, N = 128, 16
NEGATE_A, NEGATE_B = 1 << 13, 1 << 14


def _integers(rows: int, dtype: Any, seed: int) -> np.ndarray:
    """[rows, 32 bytes of K] of small integers; a row in four is zero."""
    depth = 32 // np.dtype(dtype).itemsize
    values = np.random.default_rng(seed).integers(-6, 7, (rows, depth))
    values[::4] = 0
    return values.astype(dtype)


def _request(idesc: int, adds: bool = False) -> Request:
    return Request(idesc, a=plain(M), b=plain(N), b_start=b_at(M), adds=adds)


@beside_commits
def _tell_numbers(case: str, buffer: str, place: tuple[int, ...], ours: int, theirs: int) -> str:
    """For D of f32 in lane r, column n."""
    request, lane, column = place
    return f"request {request}: D({lane}, {column}) is {f32(theirs):.9g}; the emulator: {f32(ours):.9g}"


def _read_sums(outputs: Outputs) -> dict[str, Any]:
    """Per case and request one column of some rows; row 0 of A, and of B, is zero."""
    return {
        f"{case}, {request}": np.ascontiguousarray(image[1:6, 1]).view(np.float32).tolist()
        for case, arrays in outputs.items()
        for request, image in enumerate(arrays["after"])
    }


# ---- signs ----

SIGNS = (0, NEGATE_A, NEGATE_B, NEGATE_A | NEGATE_B)


def _old(seed: int, columns: int = N) -> np.ndarray:
    """An image of D of small integers."""
    return np.random.default_rng(seed).integers(-50, 51, (LANES, columns)).astype(np.float32)


def _negate(kind: str, code: int, dtype: Any) -> Probe:
    a, b = _integers(M, dtype, 1), _integers(N, dtype, 2)
    requests = [
        _request(instruction_descriptor(M, N, code, code, more=s), adds=x) for x in (False, True) for s in SIGNS
    ]
    data = np.stack([operands(a, b)] * len(requests))
    before = np.stack([_old(3).view(np.uint32)] * len(requests))
    return Probe(
        name=f"mma_negate_{kind}",
        question=f"What do the bits that negate A and B do in kind::{kind}, alone, together, and where D is added?",
        ptx=program(mma(kind), N, data.shape[1]),
        cases=(Launch(requests, data, N, before=before).case("none, A, B, both; then with D added"),),
        read=_read_sums,
        explain=by_element(_tell_numbers),
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
"""Of operands, that suffice for each CTA of every case."""


def _mask_case(m: int, group: int, masks: Sequence[tuple[int, ...]]) -> Case:
    rows, some = m // group, MASKED_N // group
    data = np.concatenate([numbered_operands(m, MASKED_N, group, MASKED_BYTES)] * len(masks))
    requests = [
        Request(instruction_descriptor(m, MASKED_N), a=plain(rows), b=plain(some), b_start=b_at(rows), mask=mask)
        for mask in masks
    ]
    return Launch(requests, data, MASKED_N, group).case(f"M {m}")


def _masks(name: str, shapes: Sequence[int], group: int, masks: Sequence[tuple[int, ...]], assumption: str) -> Probe:
    return Probe(
        name=name,
        question="Which lanes of D does the operand disable-output-lane leave alone"
        f"{', and in which CTA of a pair' if group == 2 else ''}?",
        ptx=program(mma("f16", group, masked=True), MASKED_N, MASKED_BYTES, group),
        cases=tuple(_mask_case(m, group, masks) for m in shapes),
        read=read_layout,
        explain=by_element(tell_elements(group)),
        assumption=assumption,
    )


# ---- D divided by a power of two ----

SHIFTS = (0, 1, 4, 15)


def _scaled_d(kind: str, code: int, dtype: Any) -> Probe:
    """One instruction for each shift, each with columns of its own."""
    a, b = _integers(M, dtype, 4), _integers(N, dtype, 5)
    columns = N * len(SHIFTS)
    issue = "add.u32 %d, %d, 16;\n".join(mma(kind, tail=f", {shift}") for shift in SHIFTS)
    old = np.random.default_rng(6).integers(-(1 << 20), 1 << 20, (LANES, columns)).astype(np.float32)
    old[:, 1::4] *= np.float32(2.0**-20)
    old[:, 2::4] *= np.float32(2.0**-140)
    requests = [_request(instruction_descriptor(M, N, code, code), adds=adds) for adds in (True, False)]
    data = np.stack([operands(a, b)] * 2)
    return Probe(
        name=f"mma_scaled_d_{kind}",
        question=f"What does scale-input-d do to the old D in kind::{kind}: of usual size, small, and subnormal?",
        ptx=program(issue, columns, data.shape[1]),
        cases=(
            Launch(requests, data, columns, before=np.stack([old.view(np.uint32)] * 2)).case(
                "D divided by 2^0, 2^1, 2^4, 2^15 and added; then not added"
            ),
        ),
        read=_read_sums,
        explain=by_element(_tell_numbers),
        accumulation="tensor_core",
        assumption="D is divided exactly before it is added; a result that f32 does not hold is rounded to even.",
    )


# ---- collectors, and who issues ----

USES = ("fill", "use", "lastuse", "discard")
STEP = f"add.u32 %d, %d, {N};\nadd.u64 %b, %b, {b_at(N) >> 4};\n"


def _collectors() -> Probe:
    """Instructions one behind the other, each with a B and a D of its own."""
    bf16 = ml_dtypes.bfloat16
    data = np.concatenate(
        [core_matrices(_integers(M, bf16, 7)), *(core_matrices(_integers(N, bf16, 8 + n)) for n in range(4))]
    )
    forms = [mma(f"f16.collector::a::{use}") for use in USES]
    launch = Launch([_request(instruction_descriptor(M, N))], data[None], N * len(forms))
    return Probe(
        name="mma_collectors",
        question="Are products the same whether the collector of A is filled, used, used once more, or discarded?",
        ptx=program(STEP.join(forms), N * len(forms), data.size),
        cases=(launch.case("one behind the other"),),
        read=_read_sums,
        explain=by_element(_tell_numbers),
    )


def _another_a() -> Probe:
    """The second instruction names another A, and says that the collector has it."""
    first, b, other = (_integers(rows, ml_dtypes.bfloat16, seed) for rows, seed in ((M, 7), (N, 8), (M, 20)))
    data = np.concatenate([core_matrices(x) for x in (first, b, other)])
    step = f"add.u32 %d, %d, {N};\nadd.u64 %a, %a, {(b_at(M) + b_at(N)) >> 4};\n"
    launch = Launch([_request(instruction_descriptor(M, N))], data[None], 2 * N)
    products = {
        name: a.astype(np.float32) @ b.astype(np.float32).T
        for name, a in (("A that the collector was filled with", first), ("A that the descriptor names", other))
    }

    def read(outputs: Outputs) -> dict[str, Any]:
        found = outputs["fill, then use"]["after"][0, :, N:].view(np.float32)
        of = [name for name, product in products.items() if (found == product).all()]
        return {"the second product is that of the": of or "neither"}

    return Probe(
        name="mma_collector_of_another_a",
        question="Does an MMA that uses the collector read another A that it names itself, which the ISA rules out?",
        ptx=program(step.join(mma(f"f16.collector::a::{use}") for use in ("fill", "use")), 2 * N, data.size),
        cases=(launch.case("fill, then use"),),
        read=read,
        modelled=False,
    )


def _ws(collector: str) -> str:
    return f"tcgen05.mma.ws.cta_group::1.kind::f16.collector::{collector} [%d], %a, %b, %idesc, %adds;\n"


def _weights() -> Probe:
    """Collectors of B. ``.ws`` wants N of 64 at least."""
    n = 64
    a, b = _integers(M, ml_dtypes.bfloat16, 9), _integers(n, ml_dtypes.bfloat16, 10)
    forms = [_ws(f"b{number}::{use}") for number, use in ((0, "fill"), (0, "use"), (3, "fill"), (0, "lastuse"))]
    columns = n * len(forms)
    request = Request(instruction_descriptor(M, n), a=plain(M), b=plain(n), b_start=b_at(M))
    data = operands(a, b)
    return Probe(
        name="mma_ws_collectors",
        question="Are products of weight-stationary MMAs the same whichever collector keeps B?",
        ptx=program(f"add.u32 %d, %d, {n};\n".join(forms), columns, data.size),
        cases=(Launch([request], data[None], columns).case("b0 fill, b0 use, b3 fill, b0 lastuse"),),
        read=_read_sums,
        explain=by_element(_tell_numbers),
    )


def _issuers() -> Probe:
    a, b = _integers(M, ml_dtypes.bfloat16, 11), _integers(N, ml_dtypes.bfloat16, 12)
    data = operands(a, b)
    before = _old(13).view(np.uint32)[None]
    request = _request(instruction_descriptor(M, N), adds=True)
    return Probe(
        name="mma_issue_per_thread",
        question="Do 32 active threads issue 32 MMAs, and 32 commits?",
        ptx=program(mma("f16"), N, data.size, by=by_warp_0, arrivals=32),
        cases=(Launch([request], data[None], N, before=before).case("a whole warp"),),
        read=_read_sums,
        explain=by_element(_tell_numbers),
    )


# ---- columns of B that count as zero ----

ZERO_N = 64


def _zero_mask(zeros: int, used: int, start: tuple[int, ...] = (), first: int = 0, shift: int = 0) -> int:
    """Zero-column mask descriptor (PTX ISA 9.7.16.4.3): spans, start counts of the sub-masks, and bits of those that
    begin with the first kind of span. The ISA's table and its examples disagree on which span is which.
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
    """The descriptor goes through two words of the request."""
    cases, room = [], b_at(128) + b_at(ZERO_N + 32)
    for m in (32, 64, 128):
        a, b = numbered(m, ZERO_N + 32)
        data = operands(a, b)
        data = np.pad(data, (0, room - data.size))
        # Bits 30 and 31 allow a column shift, by 8 at most.
        idesc = instruction_descriptor(m, ZERO_N, more=1 << 30)
        requests = [
            Request(
                idesc,
                a=plain(m),
                b=plain(ZERO_N + 32),
                b_start=b_at(m),
                other=mask & 0xFFFFFFFF,
                mask=(mask >> 32, *[0] * 7),
            )
            for mask in ZERO_MASKS.values()
        ]
        cases.append(Launch(requests, np.stack([data] * len(requests)), ZERO_N).case(f"M {m}"))

    def read(outputs: Outputs) -> dict[str, Any]:
        """Per case and mask the columns of row 5, as D's elements, from each 32 lanes; 0 where they are zero."""
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
    a, b = _integers(M, np.float16, 14), _integers(N, np.float16, 15)
    data = np.stack([operands(a, b)] * 2)
    old = _old(16).astype(np.float16).view(np.uint16).astype(np.uint32) | BLANK & 0xFFFF0000
    requests = [_request(instruction_descriptor(M, N, F16, F16, 0), adds=adds) for adds in (False, True)]

    def read(outputs: Outputs) -> dict[str, Any]:
        images = outputs["D of f16, not added and added"]["after"]
        uppers = [hex(v) for v in np.unique(images >> 16).tolist()]
        lower = (images & 0xFFFF).astype(np.uint16).view(np.float16)
        return {"upper halves": uppers[:8], "first rows": lower[:, :4, 0].astype(float).tolist()}

    def lower_halves(outputs: Outputs) -> Outputs:
        """The ISA does not say what is in the upper ones."""
        return {case: {**arrays, "after": arrays["after"] & 0xFFFF} for case, arrays in outputs.items()}

    def tell(case: str, buffer: str, place: tuple[int, ...], ours: int, theirs: int) -> str:
        values = [float(np.uint16(word).view(np.float16)) for word in (theirs, ours)]
        return f"request {place[0]}: the lower half of D{place[1:]} is {values[0]:g}; the emulator: {values[1]:g}"

    def explain(expected: Outputs, found: Outputs) -> list[str]:
        return by_element(beside_commits(tell))(lower_halves(expected), lower_halves(found))

    return Probe(
        name="mma_d_of_16_bits",
        question="Is a D of f16 in the lower half of each column, and what is in the upper one?",
        ptx=program(mma("f16"), N, data.shape[1]),
        cases=(Launch(requests, data, N, before=np.stack([old] * 2)).case("D of f16, not added and added"),),
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
    _collectors(),
    _another_a(),
    _weights(),
    _zero_columns(),
    _issuers(),
    _halves(),
)
