"""Probes of the places from which tcgen05.mma reads A and B: shared memory by matrix descriptors, and A in tensor
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from conformance.blackwell.multiply import (
    MmaLaunch,
    MmaRequest,
    beside_commits,
    core_matrices,
    f32,
    instruction_descriptor,
    matrix_descriptor,
    mma,
    plain,
    program,
)
from conformance.blackwell.ptx import BLANK, LANES
from conformance.comparison import Difference, by_element
from conformance.probe import Outputs, Probe

SPANS = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_32B": 128}
"""Bytes of a row of each swizzle."""
UNIT = 2048
"""f16 represents integers up to this exactly, so element number e is tested by e % UNIT and e // UNIT."""
M, K, SOME = 64, 16, 16
"""Rows of A; depth of an instruction; rows of an identity matrix, which shows the other operand."""
F16 = 0
A_TRANSPOSED, B_TRANSPOSED = 1 << 15, 1 << 16
ASKED = ((0, 0), (0, 8), (1, 0), (8, 0), (32, 0))
"""Rows and places along K of the elements in the result."""


@dataclass(frozen=True)
class OperandLayout:
    """An operand in shared memory. ``major`` is "K" or "MN". ``start`` is the distance from a 1024-byte boundary.
    Offsets are in bytes.
    """

    swizzle: str
    major: str
    start: int
    base: int
    leading: int
    stride: int

    @property
    def name(self) -> str:
        return (
            f"swizzle {self.swizzle}, {self.major}-major, start {self.start}, base offset {self.base}, "
            f"LBO {self.leading}, SBO {self.stride}"
        )

    @property
    def descriptor(self) -> int:
        return matrix_descriptor(self.leading, self.stride, self.swizzle, self.base)


def _usual(swizzle: str, major: str, start: int, base: int) -> OperandLayout:
    """Returns the offsets of dense tiles; MN-major ones have 16 along K."""
    span = SPANS[swizzle]
    if swizzle == "none":
        leading, stride = 1024, 128
    elif major == "K":
        leading, stride = 16, 8 * span
    else:
        leading, stride = 16 * span, 8 * span
    return OperandLayout(swizzle, major, start, base, leading, stride)


STARTS = [
    _usual(swizzle, major, start, base)
    for swizzle in ("none", "32B", "64B", "128B")
    for major in ("K", "MN")
    for start in ((0, 256) if swizzle == "none" else (0, 32, 128, 512))
    for base in ((0,) if swizzle == "none" else (0, 1, 6))
]
OFFSETS = [
    *(OperandLayout("none", major, 0, 0, leading, stride)
      for major in ("K", "MN") for leading, stride in ((1024, 128), (128, 256), (144, 1040), (4096, 272))),
    *(OperandLayout(swizzle, "K", 0, 0, leading, stride)
      for swizzle in ("32B", "64B", "128B") for leading in (0, 16, 4096) for stride in (1024, 2048)),
    *(OperandLayout(swizzle, "MN", 0, 0, leading, stride)
      for swizzle in ("32B", "64B", "128B") for leading, stride in ((1024, 2048), (4096, 1024), (2048, 8192))),
]  # fmt: skip
ATOMS = [OperandLayout("128B_32B", major, 0, 0, leading, 1024) for major in ("K", "MN") for leading in (16, 2048)]
"""The 128-byte swizzle of 32-byte atoms."""


def _elements(words: np.ndarray) -> np.ndarray:
    """Combines the low and the high part of element numbers, as f32 [.., two parts, rows, k]; -1 marks a
    non-integer.
    """
    values = words.view(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):
        numbers = values[..., 0, :, :] + UNIT * values[..., 1, :, :]
        right = (numbers >= 0) & (numbers < 1 << 24) & (numbers == np.floor(numbers))
    return np.where(right, numbers, -1).astype(np.int64)


def _from_d_of_a(image: np.ndarray) -> np.ndarray:
    """Returns A [64, 16] as bytes: D of M = 64 is in the lower 16 lanes of each warp, and its columns are A's
    along K.
    """
    rows = image.reshape(4, 32, -1)[:, :16, : 2 * SOME].reshape(M, 2, SOME)
    return 2 * _elements(np.ascontiguousarray(rows.transpose(1, 0, 2)))


def _from_d_of_b(image: np.ndarray) -> np.ndarray:
    """Returns B [64, 16] as bytes: rows 0 to 15 of D are B's columns along K."""
    rows = image[:K, : 2 * M].reshape(K, 2, M)
    return 2 * _elements(np.ascontiguousarray(rows.transpose(1, 2, 0)))


def _identity() -> np.ndarray:
    return np.eye(SOME, K, dtype=np.float16)


def _addresses(
    name: str,
    question: str,
    operand: str,
    layouts: Sequence[OperandLayout],
    area: int,
    modelled: bool = True,
    assumption: str = "",
) -> Probe:
    """Returns a probe. ``operand`` is "A" or "B". ``area`` is the number of bytes in which it may lie. The memory holds
    the low parts of the elements' numbers, then the high ones, then an identity matrix for the other operand.
    """
    n = SOME if operand == "A" else M
    columns = 2 * n
    bytes_of = _from_d_of_a if operand == "A" else _from_d_of_b
    other = np.zeros((M, K), np.float16) if operand == "B" else _identity()
    other[:SOME] = _identity()
    number = np.arange(area // 2)
    parts = [(part.astype(np.float16)).view(np.uint8) for part in (number % UNIT, number // UNIT)]
    data = np.concatenate([*parts, core_matrices(other)])
    register = "%a" if operand == "A" else "%b"
    again = f"add.u64 {register}, {register}, {area >> 4};\nadd.u32 %d, %d, {n};\n"
    requests = []
    for layout in layouts:
        flags = 0 if layout.major == "K" else A_TRANSPOSED if operand == "A" else B_TRANSPOSED
        mine, others = (layout.descriptor, layout.start), (plain(len(other)), 2 * area)
        a, b = (mine, others) if operand == "A" else (others, mine)
        requests.append(
            MmaRequest(
                instruction_descriptor(M, n, F16, F16, more=flags), a=a[0], a_start=a[1], b=b[0], b_start=b[1]
            )
        )  # fmt: skip

    def read(outputs: Outputs) -> dict[str, Any]:
        """Returns, by layout, the byte offsets of some elements from the 1024-byte boundary."""
        images = outputs["all"]["after"]
        return {
            layout.name: {f"{operand}{place}": int(bytes_of(image)[place]) for place in ASKED}
            for layout, image in zip(layouts, images, strict=True)
        }

    def explain(expected: Outputs, found: Outputs) -> list[str]:
        lines = []
        for layout, *images in zip(layouts, *(o["all"]["after"] for o in (expected, found)), strict=True):
            ours, theirs = (bytes_of(image) for image in images)
            places = np.argwhere(ours != theirs)
            if len(places):
                place = tuple(places[0].tolist())
                lines.append(
                    f"{layout.name}: {operand}{place} is read at byte {theirs[place]}; on the emulator at byte "
                    f"{ours[place]} ({len(places)} of {ours.size} elements)"
                )
        return lines

    launch = MmaLaunch(requests, np.stack([data] * len(requests)), columns)
    return Probe(
        name=name,
        question=question,
        ptx=program(mma("f16") + again + mma("f16"), columns, data.size),
        cases=(launch.case("all"),),
        read=read,
        explain=explain,
        modelled=modelled,
        assumption=assumption,
    )


# ---- A in tensor memory ----

TF32 = 2
A_COLUMN = 32
A_WORDS = 8
"""32-bit columns of a row of A."""


@dataclass(frozen=True)
class Kept:
    """A in tensor memory. ``kind`` includes its types' code; ``per`` is the number of elements in a word.

    ``what``: with "both", the number of a lane's element is lane * 8 * per + element; with "lane" or "element" it is
    only that part, for types that represent no more.
    """

    kind: str
    code: int
    d_code: int
    dtype: DTypeLike
    what: str = "both"

    @property
    def per(self) -> int:
        return 4 // np.dtype(self.dtype).itemsize

    @property
    def depth(self) -> int:
        return A_WORDS * self.per

    def numbers(self) -> np.ndarray:
        lane, element = np.mgrid[:LANES, : self.depth]
        return {"both": lane * self.depth + element, "lane": lane, "element": element}[self.what]

    def image(self, columns: int, cta: int) -> np.ndarray:
        """Returns the image of a CTA. The second one's numbers are negative."""
        image = np.full((LANES, columns), BLANK, np.uint32)
        numbers = self.numbers().astype(self.dtype)
        image[:, A_COLUMN : A_COLUMN + A_WORDS] = (-numbers if cta else numbers).view(np.uint32)
        return image


def _a_probe(name: str, kept: Kept, shapes: Sequence[tuple[int, int]], group: int, assumption: str = "") -> Probe:
    """Returns a probe. ``shapes`` are M and N. B is the identity, repeated, so column n of D is A's column n %
    depth.
    """
    columns = 2 * A_COLUMN
    room = 32 * 32
    cases = []
    for m, n in shapes:
        b = np.tile(np.eye(kept.depth), (-(-n // group // kept.depth), 1))[: n // group].astype(kept.dtype)
        data = core_matrices(b)
        data = np.pad(data, (0, room - data.size))
        request = MmaRequest(
            instruction_descriptor(m, n, kept.code, kept.code, kept.d_code), b=plain(n // group), a_tmem=A_COLUMN
        )
        before = np.stack([kept.image(columns, cta) for cta in range(group)])
        cases.append(MmaLaunch([request], np.stack([data] * group), columns, group, before).case(f"M {m}, N {n}"))

    def number(word: int) -> str:
        if word == BLANK:
            return "nothing new"
        value = float(np.uint32(word).view(np.int32)) if kept.kind == "i8" else f32(word)
        if not value.is_integer() or abs(value) >= LANES * kept.depth:
            return f"{word:#010x}"
        rank = " of the odd CTA" if value < 0 else ""
        if kept.what != "both":
            return f"the one of {kept.what} {abs(value):.0f}{rank}"
        lane, at = divmod(int(abs(value)), kept.depth)
        return f"element {at} of lane {lane}{rank}"

    def describe(d: Difference) -> str:
        cta, lane, column = d.place
        return f"D at CTA {cta}, lane {lane}, column {column} takes {number(d.theirs)}; the emulator: {number(d.ours)}"

    def read(outputs: Outputs) -> dict[str, Any]:
        answer = {}
        for case, arrays in outputs.items():
            for cta, image in enumerate(arrays["after"]):
                answer[f"{case}, CTA {cta}"] = {
                    f"D at lane {lane}": [number(int(word)) for word in image[lane, :3]] for lane in (0, 1, 17, 32, 64)
                }
        return answer

    return Probe(
        name=name,
        question=f"Which lane and column does {kept.kind} take A(r, k) from, if A is in tensor memory"
        f"{', of a pair' if group == 2 else ''}?",
        ptx=program(mma(kept.kind, group, a="[%at]"), columns, room, group),
        cases=tuple(cases),
        read=read,
        explain=by_element(beside_commits(describe)),
        assumption=assumption,
    )


_F16 = Kept("f16", F16, 1, np.float16)
PAIRED = "For M = 128 of a pair each half of the columns takes the A in its own 64 lanes, as FlashMLA has it."
AS_HOPPER = "The same rules as on Hopper, whose answers are recorded; here they were never compared."

PROBES = (
    _addresses(
        "mma_a_addresses",
        "Which bytes of shared memory does a descriptor of A name, in every swizzle and major-ness, with starts "
        "inside the pattern and base offsets other than 0?",
        "A",
        STARTS,
        9216,
        assumption=AS_HOPPER,
    ),
    _addresses(
        "mma_b_addresses",
        "Which bytes of shared memory does a descriptor of B name, in every swizzle and major-ness?",
        "B",
        [layout for layout in STARTS if layout.base != 6 and layout.start in (0, 32, 256)],
        9216,
        assumption=AS_HOPPER,
    ),
    _addresses(
        "mma_a_offsets",
        "What do the leading and the stride byte offset of a descriptor step over, in every swizzle and major-ness?",
        "A",
        OFFSETS,
        20480,
        assumption=AS_HOPPER,
    ),
    _addresses(
        "mma_a_atoms_of_32_bytes",
        "Which bytes does a descriptor of A name with the 128-byte swizzle of 32-byte atoms?",
        "A",
        ATOMS,
        9216,
        modelled=False,
    ),
    _a_probe("mma_a_in_tmem_f16", _F16, [(128, 16), (64, 16)], 1, assumption="Lanes of A are those of D."),
    _a_probe("mma_a_in_tmem_tf32", Kept("tf32", TF32, 1, np.float32), [(128, 16), (64, 16)], 1),
    _a_probe("mma_a_in_tmem_i8_lanes", Kept("i8", 0, 2, np.uint8, "lane"), [(128, 32), (64, 32)], 1),
    _a_probe("mma_a_in_tmem_i8_bytes", Kept("i8", 0, 2, np.uint8, "element"), [(128, 32), (64, 32)], 1),
    _a_probe("mma_a_in_tmem_pair", _F16, [(256, 32), (128, 32)], 2, assumption=PAIRED),
)
