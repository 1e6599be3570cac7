"""Probes of the lane and column of tensor memory that hold each element of D."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

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
from conformance.blackwell.ptx import BLANK
from conformance.comparison import Describe, Difference, by_element
from conformance.probe import Outputs, Probe, ProbeCase

UNIT = 256
"""D(r, n) = 256 r + n: the number identifies its element, and bf16 factors produce it exactly."""
DEPTH = 16
SHIFT_OF_LANE = 16
READING = "The ISA shows it in figures; they were read, and compared with CuTe DSL's layouts, not with a GPU."


def numbered(m: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns A [m, 16] and B [n, 16], whose product is 256 r + n."""
    a, b = (np.zeros((rows, DEPTH), ml_dtypes.bfloat16) for rows in (m, n))
    a[:, 0], a[:, 1] = np.arange(m), 1
    b[:, 0], b[:, 1] = UNIT, np.arange(n)
    return a, b


def element(word: int) -> str:
    """Returns the element that a word of D identifies."""
    if word == BLANK:
        return "nothing new"
    value = f32(word)
    if not value.is_integer() or not 0 <= value < UNIT * UNIT:
        return f"{word:#010x}"
    return f"D({int(value) // UNIT}, {int(value) % UNIT})"


def describe_elements(group: int) -> Describe:
    """Returns a description of differences for images of tensor memory with such elements."""

    def describe(d: Difference) -> str:
        cta, lane, column = d.place
        rank = f"CTA rank {cta % group}, " if group > 1 else ""
        return f"{rank}lane {lane}, column {column} holds {element(d.theirs)}; the emulator has {element(d.ours)} there"

    return beside_commits(describe)


def read_layout(outputs: Outputs) -> dict[str, Any]:
    """Returns, by case and CTA, lane and column of D's corners, and how many lanes and columns hold something."""
    answer: dict[str, Any] = {}
    for name, arrays in outputs.items():
        for cta, image in enumerate(arrays["after"]):
            lanes, columns = np.nonzero(image != BLANK)
            if not len(lanes):
                answer[f"{name}, CTA {cta}"] = "nothing was written"
                continue
            values = image[lanes, columns].view(np.float32)
            first, last = int(np.argmin(values)), int(np.argmax(values))
            answer[f"{name}, CTA {cta}"] = {
                "lanes": len(set(lanes.tolist())),
                "columns": len(set(columns.tolist())),
                **{
                    element(int(image[lanes[i], columns[i]])): f"lane {lanes[i]}, column {columns[i]}"
                    for i in (first, last)
                },
            }
    return answer


def numbered_operands(m: int, n: int, group: int, room: int) -> np.ndarray:
    """Returns the bytes of `numbered` [group, room]: each CTA's rows of A, then its columns of B, then zeros."""
    a, b = numbered(m, n)
    halves = [operands(x, y) for x, y in zip(np.split(a, group), np.split(b, group), strict=True)]
    return np.stack([np.pad(half, (0, room - half.size)) for half in halves])


class D(NamedTuple):
    """The shape of D, and the lane and column that an instruction names for it."""

    m: int
    n: int
    lane: int = 0
    column: int = 0

    @property
    def name(self) -> str:
        lane = f", lane {self.lane}" if self.lane else ""
        column = f", column {self.column}" if self.column else ""
        return f"M {self.m}, N {self.n}{lane}{column}"


def _case(d: D, columns: int, room: int, group: int) -> ProbeCase:
    rows, some = d.m // group, d.n // group
    request = MmaRequest(
        instruction_descriptor(d.m, d.n),
        a=plain(rows),
        b=plain(some),
        b_start=b_at(rows),
        d=d.lane << SHIFT_OF_LANE | d.column,
    )
    return MmaLaunch([request], numbered_operands(d.m, d.n, group, room), columns, group).case(d.name)


def _layout(
    name: str,
    question: str,
    asked: Sequence[D],
    columns: int,
    group: int = 1,
    form: str = "",
    assumption: str = READING,
) -> Probe:
    room = max(b_at(d.m // group) + b_at(d.n // group) for d in asked)
    return Probe(
        name=name,
        question=question,
        ptx=program(form or mma("f16", group), columns, room, group),
        cases=tuple(_case(d, columns, room, group) for d in asked),
        read=read_layout,
        explain=by_element(describe_elements(group)),
        assumption=assumption,
    )


WS = "tcgen05.mma.ws.cta_group::1.kind::f16 [%d], %a, %b, %idesc, %adds;\n"

PROBES = (
    _layout(
        "mma_layout_128",
        "Which lane and column holds D(r, n) of an MMA with M = 128 of one CTA?",
        [D(128, 16), D(128, 64), D(128, 256), D(128, 32, column=40)],
        256,
        assumption="",
    ),
    _layout(
        "mma_layout_64",
        "Which lane and column holds D(r, n) of an MMA with M = 64 of one CTA, at lane 0 and at lane 16?",
        [D(64, 16), D(64, 64), D(64, 256), D(64, 32, lane=16), D(64, 32, lane=16, column=40)],
        256,
    ),
    _layout(
        "mma_layout_pair_256",
        "Which CTA, lane and column holds D(r, n) of a pair's MMA with M = 256?",
        [D(256, 32), D(256, 128), D(256, 256), D(256, 64, column=32)],
        256,
        group=2,
    ),
    _layout(
        "mma_layout_pair_128",
        "Which CTA, lane and column holds D(r, n) of a pair's MMA with M = 128?",
        [D(128, 32), D(128, 128), D(128, 256), D(128, 64, column=32)],
        128,
        group=2,
    ),
    _layout(
        "mma_small_n",
        "Does an MMA of one CTA take an N that is a multiple of 8 and not of 16, and N = 8?",
        [D(64, 8), D(64, 24), D(64, 40), D(128, 8), D(128, 24), D(128, 248)],
        256,
        assumption="The ISA (9.7.16.2.1) has steps of 8; older texts, and libraries, steps of 16 for M = 128.",
    ),
    _layout(
        "mma_small_n_pair",
        "Does a pair's MMA take an N that is a multiple of 16 and not of 32?",
        [D(128, 16), D(128, 48), D(256, 16), D(256, 48), D(256, 240)],
        256,
        group=2,
        assumption="The ISA (9.7.16.2.1) has steps of 16; older texts, and libraries, steps of 32.",
    ),
    _layout(
        "mma_ws_layouts",
        "Which lane and column holds D(r, n) of a weight-stationary MMA with M of 32, 64 and 128?",
        [D(m, n) for m in (32, 64, 128) for n in (64, 128, 256)],
        256,
        form=WS,
        assumption="Layouts E and G are read off figures of the ISA; no compiler's kernel was at hand that uses them.",
    ),
)
