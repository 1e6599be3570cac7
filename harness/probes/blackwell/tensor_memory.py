"""Tensor memory: which words loads and stores of each shape name, what a lane field means, what alloc gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from harness.probes.blackwell.ptx import (
    BLANK,
    LANES,
    THREADS,
    allocate,
    by_thread_0,
    by_warp_0,
    dump_tmem,
    fill_tmem,
    kernel,
    pointer,
    release,
    sync,
)
from harness.probes.comparison import by_element
from harness.probes.probe import Case, Outputs, Pointer, Probe

REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
"""Of .x1."""
WIDTH = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}
"""Columns of .x1."""


@dataclass(frozen=True)
class Access:
    """A load or a store of every warp. lane: 0 or 16 behind the warp's first; split: immHalfSplitoff of 16x32bx2;
    packed: .pack::16b or .unpack::16b; column: the first.
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
        """From the first that it touches to the last, and one more."""
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
        """``%r8`` becomes the address; ``%r9`` is that of the warp's first lane."""
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


def _accesses(column: int) -> tuple[Access, ...]:
    """Every shape with several .num, for both halves of a warp's lanes, packed and not."""
    whole = [Access("32x32b", num, packed=packed, column=column) for num, packed in
             ((1, False), (4, False), (32, False), (128, False), (1, True), (8, True))]  # fmt: skip
    halves = [
        Access(shape, num, lane, 0, packed, column)
        for lane in (0, 16)
        for shape, nums in (("16x64b", (1, 4)), ("16x128b", (1, 4)), ("16x256b", (1, 4)))
        for num in nums
        for packed in (False, True)
    ]
    split = [
        Access("16x32bx2", num, lane, offset, packed, column)
        for lane in (0, 16)
        for num, offset, packed in ((1, 32, False), (4, 8, False), (8, 3, False), (4, 16, True))
    ]
    return (*whole, *halves, *split)


LOADS = _accesses(4)
ODD = (
    Access("32x32b", 4, column=3), Access("16x64b", 2, column=5), Access("16x128b", 2, column=1),
    Access("16x256b", 2, column=7), Access("16x32bx2", 2, split=9, column=3),
)  # fmt: skip
LOADED_COLUMNS = 160


def _load_body(accesses: tuple[Access, ...]) -> str:
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


def owners(accesses: tuple[Access, ...]) -> list[tuple[Access, int]]:
    """Of each row of a load probe's output: the access, and its register."""
    return [(access, n) for access in accesses for n in range(access.registers)]


def _place(word: int) -> str:
    return "nothing" if word == BLANK else f"lane {word >> 16}, column {word & 0xFFFF}"


def place_of(access: Access, word: int) -> str:
    """Where a word comes from: words of `_image` are lane << 16 | column; packed ones have low halves of two."""
    if access.packed:
        low, high = word & 0xFFFF, word >> 16
        return f"lane {low >> 8}, column {low & 255} and lane {high >> 8}, column {high & 255}"
    return _place(word)


def _image(packed: bool) -> np.ndarray:
    """Words that say where they are. Their low half does where halves are packed."""
    lane, column = np.mgrid[:LANES, :LOADED_COLUMNS].astype(np.uint32)
    return lane << 8 | column | 0xAA000000 if packed else lane << 16 | column


def _loads(name: str, question: str, accesses: tuple[Access, ...], packed: bool) -> Probe:
    rows = owners(accesses)

    def tell(case: str, buffer: str, place: tuple[int, ...], ours: int, theirs: int) -> str:
        access, register = rows[place[0]]
        warp, thread = divmod(place[1], 32)
        where = (place_of(access, word) for word in (theirs, ours))
        return (
            f"tcgen05.ld.{access.name}: register {register} of thread {thread} of warp {warp} has "
            f"{next(where)}; the emulator: {next(where)}"
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
            Case(
                name="all",
                buffers={"image": _image(packed), "found": np.zeros((len(rows), THREADS), np.uint32)},
                arguments=(Pointer("image"), Pointer("found")),
                outputs=("found",),
                block=THREADS,
                shared=1024,
            ),
        ),
        read=read,
        explain=by_element(tell),
    )


# ---- stores: every access has columns of its own ----


def _placed(accesses: tuple[Access, ...]) -> tuple[tuple[Access, ...], int]:
    """The accesses one behind the other, each at a multiple of 8 columns, and the columns they take together."""
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


def _stored_by(column: int) -> Access:
    return next(a for a in STORES if a.column <= column < a.column + a.columns)


def stored(access: Access, word: int) -> str:
    """Whose word this is: register * 128 + thread, in bit 15 whether it is the upper half."""
    if word == BLANK:
        return "nothing new"
    half = (" upper half" if word & 0x8000 else " lower half") if access.packed else ""
    register, thread = divmod(word & 0x7FFF, THREADS)
    return f"register {register}{half} of thread {thread % 32} of warp {thread // 32}"


def _tell_stores(case: str, buffer: str, place: tuple[int, ...], ours: int, theirs: int) -> str:
    lane, column = place
    access = _stored_by(column)
    return (
        f"tcgen05.st.{access.name}: lane {lane}, column {column - access.column} of it holds {stored(access, theirs)}; "
        f"the emulator has {stored(access, ours)} there"
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
        Case(
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


def _field_case(field: int) -> Case:
    return Case(
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
    """Per case and shape: the lane that thread 0 of each warp gets."""
    answer: dict[str, Any] = {}
    for name, arrays in outputs.items():
        row = 0
        for form, count in zip(FIELD_FORMS, FIELD_REGISTERS, strict=True):
            words = arrays["found"][row, ::32].tolist()
            answer[f"{name}, {form}"] = "not asked" if words[0] == BLANK else [word >> 16 for word in words]
            row += count
    return answer


def _tell_field(case: str, buffer: str, place: tuple[int, ...], ours: int, theirs: int) -> str:
    warp, thread = divmod(place[1], 32)
    return f"thread {thread} of warp {warp} gets {_place(theirs)}; the emulator: {_place(ours)}"


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

# ---- allocation ----

STEPS = 12
ALLOC, FREE = 0, 1


def _sequence_body(group: int) -> str:
    step = f"""setp.ne.u32 %p0, %r1, {ALLOC};
@%p0 bra FREE;
tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r4], %r2;
bar.warp.sync -1;
ld.shared.b32 %r5, [%r4];
bra DONE;
FREE:
ld.shared.b32 %r5, [%r4];
tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r5, %r2;
DONE:
st.global.b32 [%rd1], %r5;
"""
    # Both CTAs of a pair have done a step before either does the next one.
    return (
        "mov.u32 %r20, %ctaid.x;\n"
        + pointer("%rd0", "steps")
        + pointer("%rd1", "found", "%r20", 4 * STEPS)
        + """mov.u32 %r0, 0;
NEXT:
ld.global.u32 %r1, [%rd0];
ld.global.u32 %r2, [%rd0+4];
ld.global.u32 %r3, [%rd0+8];
setp.eq.u32 %p1, %r2, 0;
@%p1 bra ALL;
mad.lo.u32 %r4, %r3, 4, %base;
add.u32 %r4, %r4, 128;
"""
        + by_warp_0(step)
        + sync(group)
        + f"""add.u64 %rd0, %rd0, 12;
add.u64 %rd1, %rd1, 4;
add.u32 %r0, %r0, 1;
setp.lt.u32 %p1, %r0, {STEPS};
@%p1 bra NEXT;
ALL:
"""
        + sync(group)
    )


def _sequence(*steps: tuple[int, int, int]) -> np.ndarray:
    words = np.zeros((STEPS, 3), np.uint32)
    words[: len(steps)] = steps
    return words


SEQUENCES = {
    "128, 64, 32, 32": _sequence((ALLOC, 128, 0), (ALLOC, 64, 1), (ALLOC, 32, 2), (ALLOC, 32, 3), (FREE, 128, 0),
                                 (FREE, 64, 1), (FREE, 32, 2), (FREE, 32, 3)),
    "two of 32 where one of 64 was": _sequence((ALLOC, 64, 0), (ALLOC, 64, 1), (FREE, 64, 0), (ALLOC, 32, 2),
                                               (ALLOC, 32, 3), (FREE, 64, 1), (FREE, 32, 2), (FREE, 32, 3)),
    "64 behind two holes": _sequence((ALLOC, 64, 0), (ALLOC, 64, 1), (ALLOC, 64, 2), (FREE, 64, 1), (FREE, 64, 0),
                                     (ALLOC, 64, 3), (FREE, 64, 2), (ALLOC, 32, 0), (FREE, 64, 3), (ALLOC, 32, 1),
                                     (FREE, 32, 0), (FREE, 32, 1)),
    "all 512, twice": _sequence((ALLOC, 512, 0), (FREE, 512, 0), (ALLOC, 512, 1), (FREE, 512, 1)),
}  # fmt: skip


def _allocations(
    name: str, question: str, sequences: dict[str, np.ndarray], group: int, modelled: bool = True
) -> Probe:
    def read(outputs: Outputs) -> dict[str, Any]:
        answer = {}
        for case, arrays in outputs.items():
            steps = sequences[case]
            taken = (steps[:, 1] > 0) & (steps[:, 0] == ALLOC)
            answer[case] = [row[taken].tolist() for row in arrays["found"]]
        return answer

    def tell(case: str, buffer: str, place: tuple[int, ...], ours: int, theirs: int) -> str:
        cta, step = place
        kind, size, _ = sequences[case][step].tolist()
        what = "tcgen05.alloc" if kind == ALLOC else "tcgen05.dealloc"
        return f"step {step}, {what} of {size} columns in CTA {cta}: column {theirs}; the emulator: column {ours}"

    return Probe(
        name=name,
        question=question,
        ptx=kernel(["u64 steps", "u64 found"], _sequence_body(group)),
        cases=tuple(
            Case(
                name=case,
                buffers={"steps": steps, "found": np.full((group, STEPS), BLANK, np.uint32)},
                arguments=(Pointer("steps"), Pointer("found")),
                outputs=("found",),
                block=THREADS,
                grid=(group, 1),
                cluster=(group, 1),
                shared=1024,
            )
            for case, steps in sequences.items()
        ),
        read=read,
        explain=by_element(tell),
        modelled=modelled,
        assumption="The first hole that is large enough, at a multiple of the size: the name of a machine instruction.",
    )


GROWING = {
    "64 behind 32": _sequence((ALLOC, 32, 0), (ALLOC, 64, 1), (FREE, 32, 0), (FREE, 64, 1)),
    "128 behind 32 and 64": _sequence((ALLOC, 32, 0), (ALLOC, 64, 1), (ALLOC, 128, 2), (FREE, 32, 0), (FREE, 64, 1),
                                      (FREE, 128, 2)),
}  # fmt: skip

WAITING = kernel(
    ["u64 found"],
    pointer("%rd0", "found")
    + by_thread_0("st.shared.b32 [%base+16], 0;\n")
    + by_warp_0(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%base], 512;\nbar.warp.sync -1;\n"
        "ld.shared.b32 %r0, [%base];\n"
    )
    + sync()
    + """shr.u32 %r1, %thread, 5;
setp.eq.u32 %p0, %r1, 1;
@%p0 bra SECOND;
setp.gt.u32 %p1, %r1, 1;
@%p1 bra DONE;
mov.u32 %r2, 0;
SLEEP:
nanosleep.u32 5000;
add.u32 %r2, %r2, 1;
setp.lt.u32 %p1, %r2, 40;
@%p1 bra SLEEP;
st.volatile.shared.b32 [%base+16], 1;
bar.warp.sync -1;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r0, 512;
bra DONE;
SECOND:
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%base+8], 512;
bar.warp.sync -1;
ld.volatile.shared.b32 %r3, [%base+16];
ld.shared.b32 %r4, [%base+8];
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 512;
st.global.b32 [%rd0], %r3;
st.global.b32 [%rd0+4], %r4;
DONE:
bar.warp.sync -1;
"""
    + sync(),
)


def _read_waiting(outputs: Outputs) -> dict[str, Any]:
    freed, column = outputs["512 and 512"]["found"].tolist()
    return {"the second alloc waited for the first to be freed": bool(freed == 1), "it got column": column}


def _tell_waiting(case: str, buffer: str, place: tuple[int, ...], ours: int, theirs: int) -> str:
    what = ("the first block had been freed when the second alloc returned", "column of the second block")[place[0]]
    return f"{what}: {theirs}; the emulator: {ours}"


WAIT = Probe(
    name="tmem_alloc_waits",
    question="Does tcgen05.alloc wait until another warp has freed enough columns?",
    ptx=WAITING,
    cases=(
        Case(
            name="512 and 512",
            buffers={"found": np.full(2, BLANK, np.uint32)},
            arguments=(Pointer("found"),),
            outputs=("found",),
            block=THREADS,
            shared=1024,
        ),
    ),
    read=_read_waiting,
    explain=by_element(_tell_waiting),
)

# ---- two CTAs of an SM ----

SMS, SM_NUMBERS = 160, 512
"""At least as many SMs as a GPU has; its numbers of SMs may have holes."""
HALF_AN_SM = 100 * 1024
"""Shared memory of which an SM has room for two CTAs'."""
RELINQUISHED, FREED = 1, 2


def _spin(until: str) -> str:
    """Do it until it says so in ``%p3``, for some hundred microseconds at most."""
    return f"""{{
.reg .b32 tries;
.reg .pred more;
mov.u32 tries, 0;
AGAIN:
nanosleep.u32 1000;
{until}
@%p3 bra SEEN;
add.u32 tries, tries, 1;
setp.lt.u32 more, tries, 300;
@more bra AGAIN;
SEEN:
}}
"""


_SLEEP = """{
.reg .b32 tries;
.reg .pred more;
mov.u32 tries, 0;
SLEEP:
nanosleep.u32 5000;
add.u32 tries, tries, 1;
setp.lt.u32 more, tries, 40;
@more bra SLEEP;
}
"""


def _neighbours(columns: int) -> str:
    """The first CTA of an SM takes columns, gives up the right to more a while later, and the columns still later. The
    second wants as many, and says how far the first one was when it got them.

    Words of an SM: how many CTAs have come, whether the first one has its columns, what it has given up, what the
    second one saw, and its column.
    """
    alloc = f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%base], {columns};\nbar.warp.sync -1;\n"
    free = f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, {columns};\n"
    give_up = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
    return kernel(
        ["u64 found"],
        "mov.u32 %r0, %smid;\n"
        + pointer("%rd0", "found", "%r0", 20)
        + "setp.eq.u32 %p0, %thread, 0;\nmov.u32 %r1, 0;\n@%p0 atom.global.add.u32 %r1, [%rd0], 1;\n"
        + "shfl.sync.idx.b32 %r1, %r1, 0, 31, -1;\nsetp.eq.u32 %p1, %r1, 1;\n@%p1 bra SECOND;\n"
        + "setp.gt.u32 %p1, %r1, 1;\n@%p1 bra DONE;\n"
        + alloc
        + "ld.shared.b32 %r6, [%base];\n@%p0 st.volatile.global.u32 [%rd0+4], 1;\n"
        + _spin("ld.volatile.global.u32 %r4, [%rd0];\nsetp.gt.u32 %p3, %r4, 1;")
        + _SLEEP
        + f"@%p0 st.volatile.global.u32 [%rd0+8], {RELINQUISHED};\nbar.warp.sync -1;\n"
        + give_up
        + _SLEEP
        + f"@%p0 st.volatile.global.u32 [%rd0+8], {FREED};\nbar.warp.sync -1;\n"
        + free
        + "bra DONE;\nSECOND:\n"
        + _spin("ld.volatile.global.u32 %r4, [%rd0+4];\nsetp.eq.u32 %p3, %r4, 1;")
        + alloc
        + "ld.volatile.global.u32 %r5, [%rd0+8];\nld.shared.b32 %r6, [%base];\n"
        + give_up
        + free
        + "@%p0 st.global.u32 [%rd0+12], %r5;\n@%p0 st.global.u32 [%rd0+16], %r6;\nDONE:\nbar.warp.sync -1;\n",
    )


def _read_neighbours(outputs: Outputs) -> dict[str, Any]:
    seen = outputs["two CTAs on every SM"]["found"]
    second = seen[seen[:, 3] != BLANK]
    names = ("before the first gave up anything", "after it had relinquished", "after it had freed its columns")
    return {
        **{f"SMs whose second CTA got columns {name}": int((second[:, 3] == n).sum()) for n, name in enumerate(names)},
        "columns it got": sorted(set(second[:, 4].tolist())),
    }


def _neighbour_probe(columns: int, what: str) -> Probe:
    blank = np.full((SM_NUMBERS, 5), BLANK, np.uint32)
    blank[:, :3] = 0
    return Probe(
        name=f"tmem_neighbours_{columns}",
        question=f"When does a second CTA of an SM get {columns} columns, which {what}?",
        ptx=_neighbours(columns),
        cases=(
            Case(
                name="two CTAs on every SM",
                buffers={"found": blank},
                arguments=(Pointer("found"),),
                outputs=("found",),
                block=32,
                grid=(2 * SMS, 1),
                shared=HALF_AN_SM,
            ),
        ),
        read=_read_neighbours,
        modelled=False,
    )


PROBES = (
    _neighbour_probe(128, "are free"),
    _neighbour_probe(512, "the first one has"),
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
    _allocations(
        "tmem_alloc_addresses",
        "Which columns does tcgen05.alloc give, and which once some have been freed?",
        SEQUENCES,
        group=1,
    ),
    _allocations(
        "tmem_alloc_pair",
        "Which columns does tcgen05.alloc give to the CTAs of a pair?",
        SEQUENCES,
        group=2,
    ),
    _allocations(
        "tmem_alloc_growing",
        "Which columns does tcgen05.alloc give if it asks for more than before, which the ISA rules out?",
        GROWING,
        group=1,
        modelled=False,
    ),
    WAIT,
)
