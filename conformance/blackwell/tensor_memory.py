"""Probes of tensor memory: the words that loads and stores of each shape access, and the meaning of a lane field."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.blackwell.ptx import (
    BLANK,
    LANES,
    THREADS,
    allocate,
    dump_tmem,
    fill_tmem,
    kernel,
    pointer,
    release,
    sync,
)
from conformance.comparison import Difference, by_element
from conformance.probe import Outputs, Pointer, Probe, ProbeCase

REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
"""The registers of .x1."""
WIDTH = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}
"""The columns of .x1."""


@dataclass(frozen=True)
class TensorMemoryAccess:
    """A load or a store of every warp. ``lane``: 0 or 16 behind the warp's first. ``split``: immHalfSplitoff of
    16x32bx2. ``packed``: .pack::16b or .unpack::16b. ``column``: the first.
    """

    shape: str
    num: int
    lane: int = 0
    split: int = 0
    packed: bool = False
    column: int = 4

    @property
    def registers(self) -> int:
        return REGISTERS[self.shape] * self.num

    @property
    def columns(self) -> int:
        """Returns the number of columns from the first to the last that it accesses."""
        return WIDTH[self.shape] * self.num * (1 + self.packed) + self.split

    @property
    def name(self) -> str:
        return (
            f"{self.shape}.x{self.num}{' of 16-bit pairs' if self.packed else ''}"
            f"{f', split {self.split}' if self.split else ''}{f', lane + {self.lane}' if self.lane else ''}"
            f"{f', column {self.column}' if self.column % 4 else ''}"
        )

    @property
    def vector(self) -> str:
        return "{" + ", ".join(f"%w{n}" for n in range(self.registers)) + "}"

    @property
    def address(self) -> str:
        """Returns code that sets ``%r8`` to the address; ``%r9`` is that of the warp's first lane."""
        return f"add.u32 %r8, %r9, {(self.lane << 16) + self.column};\n"

    @property
    def offset(self) -> str:
        return f", {self.split}" if self.shape == "16x32bx2" else ""

    def load(self) -> str:
        pack = ".pack::16b" if self.packed else ""
        form = f"tcgen05.ld.sync.aligned.{self.shape}.x{self.num}{pack}.b32"
        return f"{self.address}{form} {self.vector}, [%r8]{self.offset};\ntcgen05.wait::ld.sync.aligned;\n"

    def store(self) -> str:
        unpack = ".unpack::16b" if self.packed else ""
        form = f"tcgen05.st.sync.aligned.{self.shape}.x{self.num}{unpack}.b32"
        return f"{self.address}{form} [%r8]{self.offset}, {self.vector};\ntcgen05.wait::st.sync.aligned;\n"


WARPS_LANES = "and.b32 %r9, %thread, 96;\nshl.b32 %r9, %r9, 16;\nadd.u32 %r9, %r9, %tmem;\n"


def _accesses(column: int) -> tuple[TensorMemoryAccess, ...]:
    """Returns every shape with several .num, for both halves of a warp's lanes, packed and not."""
    whole = [TensorMemoryAccess("32x32b", num, packed=packed, column=column) for num, packed in
             ((1, False), (4, False), (32, False), (128, False), (1, True), (8, True))]  # fmt: skip
    halves = [
        TensorMemoryAccess(shape, num, lane, 0, packed, column)
        for lane in (0, 16)
        for shape, nums in (("16x64b", (1, 4)), ("16x128b", (1, 4)), ("16x256b", (1, 4)))
        for num in nums
        for packed in (False, True)
    ]
    split = [
        TensorMemoryAccess("16x32bx2", num, lane, offset, packed, column)
        for lane in (0, 16)
        for num, offset, packed in ((1, 32, False), (4, 8, False), (8, 3, False), (4, 16, True))
    ]
    return (*whole, *halves, *split)


LOADS = _accesses(4)
ODD = (
    TensorMemoryAccess("32x32b", 4, column=3),
    TensorMemoryAccess("16x64b", 2, column=5),
    TensorMemoryAccess("16x128b", 2, column=1),
    TensorMemoryAccess("16x256b", 2, column=7),
    TensorMemoryAccess("16x32bx2", 2, split=9, column=3),
)
LOADED_COLUMNS = 160


def _load_body(accesses: tuple[TensorMemoryAccess, ...]) -> str:
    text, first = "", 0
    for access in accesses:
        text += access.load()
        text += "".join(f"st.global.b32 [%rd1+{4 * THREADS * (first + n)}], %w{n};\n" for n in range(access.registers))
        first += access.registers
    return (
        ".reg .b32 %w<128>;\n"
        + pointer("%rd0", "image")
        + pointer("%rd1", "found", "%thread", 4)
        + allocate(LOADED_COLUMNS)
        + WARPS_LANES
        + fill_tmem(LOADED_COLUMNS, "%rd0")
        + sync()
        + text
        + release(LOADED_COLUMNS)
    )


def owners(accesses: tuple[TensorMemoryAccess, ...]) -> list[tuple[TensorMemoryAccess, int]]:
    """Returns, for each row of a load probe's output, the access and its register."""
    return [(access, n) for access in accesses for n in range(access.registers)]


def _place(word: int) -> str:
    return "nothing" if word == BLANK else f"lane {word >> 16}, column {word & 0xFFFF}"


def place_of(access: TensorMemoryAccess, word: int) -> str:
    """Returns the origin of a word: words of `_image` are lane << 16 | column; packed ones have low halves of two."""
    if access.packed:
        low, high = word & 0xFFFF, word >> 16
        return f"lane {low >> 8}, column {low & 255} and lane {high >> 8}, column {high & 255}"
    return _place(word)


def _image(packed: bool) -> np.ndarray:
    """Returns words that identify their place. If halves are packed, their low half does so."""
    lane, column = np.mgrid[:LANES, :LOADED_COLUMNS].astype(np.uint32)
    return lane << 8 | column | 0xAA000000 if packed else lane << 16 | column


def _loads(name: str, question: str, accesses: tuple[TensorMemoryAccess, ...], packed: bool) -> Probe:
    rows = owners(accesses)

    def describe(d: Difference) -> str:
        access, register = rows[d.place[0]]
        warp, thread = divmod(d.place[1], 32)
        return (
            f"tcgen05.ld.{access.name}: register {register} of thread {thread} of warp {warp} has "
            f"{place_of(access, d.theirs)}; the emulator: {place_of(access, d.ours)}"
        )

    def read(outputs: Outputs) -> dict[str, Any]:
        found = outputs["all"]["found"]
        return {
            access.name: [place_of(access, int(found[row, thread])) for thread in (0, 1, 2, 4, 31)]
            for row, (access, register) in enumerate(rows)
            if not register
        }

    return Probe(
        name=name,
        question=question,
        ptx=kernel(["u64 image", "u64 found"], _load_body(accesses)),
        cases=(
            ProbeCase(
                name="all",
                buffers={"image": _image(packed), "found": np.zeros((len(rows), THREADS), np.uint32)},
                arguments=(Pointer("image"), Pointer("found")),
                outputs=("found",),
                block=THREADS,
                shared=1024,
            ),
        ),
        read=read,
        explain=by_element(describe),
    )


# ---- stores: every access has columns of its own ----


def _placed(accesses: tuple[TensorMemoryAccess, ...]) -> tuple[tuple[TensorMemoryAccess, ...], int]:
    """Returns the accesses one behind the other, each at a multiple of 8 columns, and the columns of all."""
    placed, column = [], 0
    for access in accesses:
        placed.append(replace(access, column=column))
        column += -(-access.columns // 8) * 8
    return tuple(placed), -(-column // 16) * 16


STORES, STORED_COLUMNS = _placed(
    tuple(a for a in LOADS if a.num == (1 if a.packed and not a.split else 4) or (a.shape == "32x32b" and a.num == 8))
)


def _store_body() -> str:
    text = ""
    for number, access in enumerate(STORES):
        for n in range(access.registers):
            high = f"or.b32 %w{n}, %w{n}, {0x8000 << 16 | n * THREADS << 16};\n" if access.packed else ""
            start = n * THREADS if access.packed else number << 16 | n * THREADS
            text += f"add.u32 %w{n}, %thread, {start};\n"
            text += f"shl.b32 %r10, %thread, 16;\nor.b32 %w{n}, %w{n}, %r10;\n{high}" if access.packed else ""
        text += access.store()
    return (
        ".reg .b32 %w<128>;\n"
        + pointer("%rd0", "before")
        + pointer("%rd1", "after")
        + allocate(STORED_COLUMNS)
        + WARPS_LANES
        + fill_tmem(STORED_COLUMNS, "%rd0")
        + sync()
        + text
        + sync()
        + dump_tmem(STORED_COLUMNS, "%rd1")
        + release(STORED_COLUMNS)
    )


def _stored_by(column: int) -> TensorMemoryAccess:
    """Returns the access that owns a column, or the access before it."""
    return [access for access in STORES if access.column <= column][-1]


def stored(access: TensorMemoryAccess, word: int) -> str:
    """Returns the origin of a stored word: register * 128 + thread, with bit 15 for the upper half."""
    if word == BLANK:
        return "nothing new"
    half = (" upper half" if word & 0x8000 else " lower half") if access.packed else ""
    register, thread = divmod(word & 0x7FFF, THREADS)
    return f"register {register}{half} of thread {thread % 32} of warp {thread // 32}"


def _tell_stores(d: Difference) -> str:
    lane, column = d.place
    access = _stored_by(column)
    return (
        f"tcgen05.st.{access.name}: lane {lane}, column {column - access.column} of it holds "
        f"{stored(access, d.theirs)}; the emulator has {stored(access, d.ours)} there"
    )


def _read_stores(outputs: Outputs) -> dict[str, Any]:
    image = outputs["all"]["after"]
    return {a.name: [stored(a, int(image[lane, a.column])) for lane in (0, 1, 8, 16, 40)] for a in STORES}


STORE = Probe(
    name="tmem_store_shapes",
    question="Which lane and column does each register of each thread go to in tcgen05.st of every shape, with and "
    "without .unpack::16b?",
    ptx=kernel(["u64 before", "u64 after"], _store_body()),
    cases=(
        ProbeCase(
            name="all",
            buffers={
                "before": np.full((LANES, STORED_COLUMNS), BLANK, np.uint32),
                "after": np.zeros((LANES, STORED_COLUMNS), np.uint32),
            },
            arguments=(Pointer("before"), Pointer("after")),
            outputs=("after",),
            block=THREADS,
            shared=1024,
        ),
    ),
    read=_read_stores,
    explain=by_element(_tell_stores),
)

# ---- the lane field of an address ----

FIELD_COLUMNS = 16
FIELD_FORMS = ("32x32b.x1", "16x64b.x1", "16x256b.x1")
FIELD_REGISTERS = (1, 1, 4)


def _field_body() -> str:
    text, row = "", 0
    for form, count in zip(FIELD_FORMS, FIELD_REGISTERS, strict=True):
        vector = "{" + ", ".join(f"%r{20 + n}" for n in range(count)) + "}"
        skip = "@%p2 bra NEXT{n};\n" if form.startswith("32") else ""
        text += skip.format(n=row)
        text += f"tcgen05.ld.sync.aligned.{form}.b32 {vector}, [%r8];\ntcgen05.wait::ld.sync.aligned;\n"
        text += "".join(f"st.global.b32 [%rd1+{4 * THREADS * (row + n)}], %r{20 + n};\n" for n in range(count))
        text += f"NEXT{row}:\n" if skip else ""
        row += count
    return (
        pointer("%rd0", "image")
        + pointer("%rd1", "found", "%thread", 4)
        + pointer("%rd2", "field")
        + allocate(FIELD_COLUMNS)
        + fill_tmem(FIELD_COLUMNS, "%rd0")
        + sync()
        + """ld.global.u32 %r7, [%rd2];
shl.b32 %r8, %r7, 16;
add.u32 %r8, %r8, %tmem;
and.b32 %r7, %r7, 31;
setp.ne.u32 %p2, %r7, 0;
"""
        + text
        + release(FIELD_COLUMNS)
    )


def _field_case(field: int) -> ProbeCase:
    return ProbeCase(
        name=f"lane field {field}",
        buffers={
            "image": _image(False)[:, :FIELD_COLUMNS].copy(),
            "found": np.full((sum(FIELD_REGISTERS), THREADS), BLANK, np.uint32),
            "field": np.array([field], np.uint32),
        },
        arguments=(Pointer("image"), Pointer("found"), Pointer("field")),
        outputs=("found",),
        block=THREADS,
        shared=1024,
    )


def _read_field(outputs: Outputs) -> dict[str, Any]:
    """Returns, by case and shape, the lane that thread 0 of each warp gets."""
    answer: dict[str, Any] = {}
    for name, arrays in outputs.items():
        row = 0
        for form, count in zip(FIELD_FORMS, FIELD_REGISTERS, strict=True):
            words = arrays["found"][row, ::32].tolist()
            answer[f"{name}, {form}"] = "not asked" if words[0] == BLANK else [word >> 16 for word in words]
            row += count
    return answer


def _tell_field(d: Difference) -> str:
    warp, thread = divmod(d.place[1], 32)
    return f"thread {thread} of warp {warp} gets {_place(d.theirs)}; the emulator: {_place(d.ours)}"


FIELD = Probe(
    name="tmem_lane_field",
    question="Which lanes does a warp reach if the address names those of another warp, or lanes beyond the last?",
    ptx=kernel(["u64 image", "u64 found", "u64 field"], _field_body()),
    cases=tuple(_field_case(field) for field in (0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 224)),
    read=_read_field,
    explain=by_element(_tell_field),
    assumption="A warp reaches its own 32 lanes, whatever quadrant the address names: compilers and libraries pass "
    "three different ones.",
)


PROBES = (
    _loads(
        "tmem_load_shapes",
        "Which lane and column does each register of each thread come from in tcgen05.ld of every shape?",
        tuple(a for a in LOADS if not a.packed),
        packed=False,
    ),
    _loads(
        "tmem_load_packed",
        "Which halves of which words does each register have after tcgen05.ld.pack::16b of every shape?",
        tuple(a for a in LOADS if a.packed),
        packed=True,
    ),
    _loads(
        "tmem_odd_columns",
        "May tcgen05.ld begin at any column, whatever its shape?",
        ODD,
        packed=False,
    ),
    STORE,
    FIELD,
)
