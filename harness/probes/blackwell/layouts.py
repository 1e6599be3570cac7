"""Which lane and column of tensor memory holds which element of D."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from harness.probes.blackwell.multiply import (
    Launch,
    Request,
    b_at,
    beside_commits,
    f32,
    instruction_descriptor,
    mma,
    operands,
    plain,
    program,
)
from harness.probes.blackwell.ptx import BLANK
from harness.probes.comparison import Tell, by_element
from harness.probes.probe import Case, Outputs, Probe

UNIT = 256
"""D(r, n) = 256 r + n: a number that names its element, and that bf16 factors make exactly."""
DEPTH = 16
SHIFT_OF_LANE = 16
READING = "The ISA shows it in figures; they were read, and compared with CuTe DSL's layouts, not with a GPU."


def numbered(m: int, n: int, dtype: Any = ml_dtypes.bfloat16) -> tuple[np.ndarray, np.ndarray]:
    """A [m, 16] and B [n, 16], whose product is 256 r + n."""
    a, b = np.zeros((m, DEPTH), dtype), np.zeros((n, DEPTH), dtype)
    a[:, 0], a[:, 1] = np.arange(m), 1
    b[:, 0], b[:, 1] = UNIT, np.arange(n)
    return a, b


def element(word: int) -> str:
    """What a word of D says it is."""
    if word == BLANK:
        return "nothing new"
    value = f32(word)
    if not value.is_integer() or not 0 <= value < UNIT * UNIT:
        return f"{word:#010x}"
    return f"D({int(value) // UNIT}, {int(value) % UNIT})"


def tell_elements(group: int) -> Tell:
    """For images of tensor memory with such elements."""

    def tell(case: str, buffer: str, place: tuple[int, ...], ours: int, theirs: int) -> str:
        cta, lane, column = place
        rank = f"CTA rank {cta % group}, " if group > 1 else ""
        return f"{rank}lane {lane}, column {column} holds {element(theirs)}; the emulator has {element(ours)} there"

    return beside_commits(tell)


def read_layout(outputs: Outputs) -> dict[str, Any]:
    """Per case and CTA: lane and column of D's corners, and how many lanes and columns hold something."""
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


def _operands(m: int, n: int, group: int, room: int) -> np.ndarray:
    """Of each CTA of a pair, or of one CTA: its rows of A, its columns of B; zeros fill the room."""
    a, b = numbered(m, n)
    halves = [operands(x, y) for x, y in zip(np.split(a, group), np.split(b, group), strict=True)]
    return np.stack([np.pad(half, (0, room - half.size)) for half in halves])


def layout_case(m: int, n: int, columns: int, room: int, group: int = 1, lane: int = 0, first: int = 0) -> Case:
    """D of m x n at a lane and a column."""
    rows, some = m // group, n // group
    request = Request(
        instruction_descriptor(m, n),
        a=plain(rows),
        b=plain(some),
        b_start=b_at(rows),
        d=lane << SHIFT_OF_LANE | first,
    )
    where = (f", lane {lane}" if lane else "") + (f", column {first}" if first else "")
    launch = Launch([request], _operands(m, n, group, room), columns, group)
    return launch.case(f"M {m}, N {n}{where}")


def _layout(
    name: str,
    question: str,
    shapes: Sequence[tuple[int, int] | tuple[int, int, int] | tuple[int, int, int, int]],
    columns: int,
    group: int = 1,
    form: str = "",
    assumption: str = READING,
) -> Probe:
    """shapes: M, N and, where they are not 0, lane and column of D."""
    room = max(b_at(shape[0] // group) + b_at(shape[1] // group) for shape in shapes)
    cases = []
    for m, n, *where in shapes:
        lane, first = (*where, 0, 0)[:2]
        cases.append(layout_case(m, n, columns, room, group, lane, first))
    issue = form or mma("f16", group)
    return Probe(
        name=name,
        question=question,
        ptx=program(issue, columns, room, group),
        cases=tuple(cases),
        read=read_layout,
        explain=by_element(tell_elements(group)),
        assumption=assumption,
    )


WS = "tcgen05.mma.ws.cta_group::1.kind::f16 [%d], %a, %b, %idesc, %adds;\n"

PROBES = (
    _layout(
        "mma_layout_128",
        "Which lane and column holds D(r, n) of an MMA with M = 128 of one CTA?",
        [(128, 16), (128, 64), (128, 256), (128, 32, 0, 40)],
        256,
        assumption="",
    ),
    _layout(
        "mma_layout_64",
        "Which lane and column holds D(r, n) of an MMA with M = 64 of one CTA, at lane 0 and at lane 16?",
        [(64, 16), (64, 64), (64, 256), (64, 32, 16), (64, 32, 16, 40)],
        256,
    ),
    _layout(
        "mma_layout_pair_256",
        "Which CTA, lane and column holds D(r, n) of a pair's MMA with M = 256?",
        [(256, 32), (256, 128), (256, 256), (256, 64, 0, 32)],
        256,
        group=2,
    ),
    _layout(
        "mma_layout_pair_128",
        "Which CTA, lane and column holds D(r, n) of a pair's MMA with M = 128?",
        [(128, 32), (128, 128), (128, 256), (128, 64, 0, 32)],
        128,
        group=2,
    ),
    _layout(
        "mma_small_n",
        "Does an MMA of one CTA take an N that is a multiple of 8 and not of 16, and N = 8?",
        [(64, 8), (64, 24), (64, 40), (128, 8), (128, 24), (128, 248)],
        256,
        assumption="The ISA (9.7.16.2.1) has steps of 8; older texts, and libraries, steps of 16 for M = 128.",
    ),
    _layout(
        "mma_small_n_pair",
        "Does a pair's MMA take an N that is a multiple of 16 and not of 32?",
        [(128, 16), (128, 48), (256, 16), (256, 48), (256, 240)],
        256,
        group=2,
        assumption="The ISA (9.7.16.2.1) has steps of 16; older texts, and libraries, steps of 32.",
    ),
    _layout(
        "mma_ws_layouts",
        "Which lane and column holds D(r, n) of a weight-stationary MMA with M of 32, 64 and 128?",
        [(m, n) for m in (32, 64, 128) for n in (64, 128, 256)],
        256,
        form=WS,
        assumption="Layouts E and G are read off figures of the ISA; no compiler's kernel was at hand that uses them.",
    ),
)
