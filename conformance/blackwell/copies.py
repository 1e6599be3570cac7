"""Probes of tcgen05.cp and tcgen05.shift: which words of shared memory reach which lanes and columns of tensor
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance.blackwell.multiply import MmaLaunch, MmaRequest, beside_commits, matrix_descriptor, program
from conformance.blackwell.ptx import BLANK, LANES
from conformance.comparison import Difference, by_element
from conformance.probe import Outputs, Probe, ProbeCase

SHAPES = {
    "128x256b": 8,
    "128x128b": 4,
    "64x128b.warpx2::02_13": 4,
    "64x128b.warpx2::01_23": 4,
    "32x128b.warpx4": 4,
    "4x256b": 8,
}
"""The columns that each shape fills. They are consecutive in tensor memory."""
COLUMNS = 32
NBYTES = 16384


@dataclass(frozen=True)
class CopySource:
    """A descriptor. Offsets are in bytes."""

    swizzle: str
    leading: int
    stride: int
    start: int = 0

    @property
    def name(self) -> str:
        return f"swizzle {self.swizzle}, LBO {self.leading}, SBO {self.stride}, start {self.start}"

    @property
    def descriptor(self) -> int:
        return matrix_descriptor(self.leading, self.stride, self.swizzle)


SOURCES = (
    CopySource("none", 16 * LANES, 128),
    CopySource("none", 128, 256),
    CopySource("none", 16 * LANES, 128, 512),
    CopySource("32B", 16, 256),
    CopySource("64B", 16, 512),
    CopySource("128B", 16, 1024, 32),
)


def _issue(group: int, after: str = "") -> str:
    text = ""
    for shape, columns in SHAPES.items():
        text += f"tcgen05.cp.cta_group::{group}.{shape}{after} [%d], %a;\nadd.u32 %d, %d, {columns};\n"
    return text


def _where(column: int) -> tuple[str, int]:
    for shape, columns in SHAPES.items():
        if column < columns:
            return shape, column
        column -= columns
    raise AssertionError(column)


def _word(word: int, group: int) -> str:
    if word == BLANK:
        return "nothing new"
    rank = f" of CTA rank {word >> 24}" if group > 1 else ""
    return f"word {word & 0xFFFFFF}{rank}"


def _case(group: int) -> ProbeCase:
    words = np.arange(NBYTES // 4, dtype=np.uint32)
    data = np.stack([words | cta << 24 for _ in SOURCES for cta in range(group)])
    requests = [MmaRequest(0, a=source.descriptor, a_start=source.start) for source in SOURCES]
    return MmaLaunch(requests, data, COLUMNS, group).case("all")


def _copies(name: str, question: str, group: int, assumption: str = "") -> Probe:
    def describe(d: Difference) -> str:
        cta, lane, column = d.place
        shape, at = _where(column)
        rank = f"CTA rank {cta % group}, " if group > 1 else ""
        return (
            f"tcgen05.cp.{shape}, {SOURCES[cta // group].name}: {rank}lane {lane}, column {at} gets "
            f"{_word(d.theirs, group)} of shared memory; on the emulator {_word(d.ours, group)}"
        )

    def read(outputs: Outputs) -> dict[str, Any]:
        """Returns, for the first descriptor, the contents of some lanes in each shape's first column."""
        image, first, answer = outputs["all"]["after"][0], 0, {}
        for shape, columns in SHAPES.items():
            answer[shape] = {f"lane {lane}": _word(int(image[lane, first]), 1) for lane in (0, 1, 32, 64, 96, 127)}
            first += columns
        return answer

    return Probe(
        name=name,
        question=question,
        ptx=program(_issue(group), COLUMNS, NBYTES, group),
        cases=(_case(group),),
        read=read,
        explain=by_element(beside_commits(describe)),
        assumption=assumption,
    )


# ---- recorded only ----

UNPACKED = {"b6x16_p32": 6, "b4x16_p64": 4}
"""Bits of the elements of each source format."""


def _decompression() -> Probe:
    """Returns a probe with rows of 32 bytes: each holds two of 16 bytes, with 16 elements whose value is their
    number.
    """
    issue = "".join(
        f"tcgen05.cp.cta_group::1.128x256b.b8x16.{form} [%d], %a;\nadd.u32 %d, %d, 8;\nadd.u64 %a, %a, {4096 >> 4};\n"
        for form in UNPACKED
    )
    parts = []
    for bits in UNPACKED.values():
        numbers = np.arange(LANES * 2 * 16) % (1 << bits)
        stream = (numbers[:, None] >> np.arange(bits) & 1).astype(np.uint8).reshape(LANES * 2, -1)
        packed = np.packbits(stream, axis=-1, bitorder="little")
        chunks = np.zeros((2 * LANES, 16), np.uint8)
        chunks[:, : packed.shape[1]] = packed
        parts.append(chunks.reshape(-1))
    source = CopySource("none", 16 * LANES, 128)
    launch = MmaLaunch([MmaRequest(0, a=source.descriptor)], np.concatenate(parts)[None], 16)

    def read(outputs: Outputs) -> dict[str, Any]:
        image = outputs["all"]["after"][0]
        return {
            form: {f"lane {lane}": image[lane, 8 * n : 8 * n + 8].copy().view(np.uint8).tolist() for lane in (0, 1, 33)}
            for n, form in enumerate(UNPACKED)
        }

    return Probe(
        name="tmem_copy_decompressed",
        question="Which byte does each element of 6 or 4 bits become in tcgen05.cp.b8x16?",
        ptx=program(issue, 16, 8192),
        cases=(launch.case("all"),),
        read=read,
        modelled=False,
    )


def _shift() -> Probe:
    lane, column = np.mgrid[:LANES, :16].astype(np.uint32)
    launch = MmaLaunch(
        [MmaRequest(0, d=lanes << 16) for lanes in (0, 32)], np.zeros((2, 64), np.uint8), 16,
        before=np.stack([lane << 16 | column] * 2),
    )  # fmt: skip

    def read(outputs: Outputs) -> dict[str, Any]:
        answer = {}
        for request, image in zip(("lane 0", "lane 32"), outputs["all"]["after"], strict=True):
            moved = np.argwhere(image != (lane << 16 | column))
            answer[request] = {
                "lanes that changed": sorted(set(moved[:, 0].tolist())),
                "columns that changed": sorted(set(moved[:, 1].tolist())),
                "what they have now": [hex(int(image[tuple(p)])) for p in moved[:4]],
            }
        return answer

    return Probe(
        name="tmem_shift",
        question="Which lanes and columns does tcgen05.shift.down move, and where to?",
        ptx=program("tcgen05.shift.cta_group::1.down [%d];\n", 16, 64),
        cases=(launch.case("all"),),
        read=read,
        modelled=False,
    )


PROBES = (
    _copies(
        "tmem_copy_shapes",
        "Which lanes and columns does tcgen05.cp of every shape fill, and from which bytes that a descriptor names?",
        1,
        "4x256b puts one row in each quadrant of lanes, as CuTe has it: the ISA shows it in a figure only.",
    ),
    _copies("tmem_copy_pair", "What does tcgen05.cp do in both CTAs of a pair?", 2),
    _decompression(),
    _shift(),
)
