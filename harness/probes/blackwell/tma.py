"""TMA as Blackwell has it: barriers of a pair, rows gathered and scattered, packed types, swizzles of atoms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.probes.blackwell.ptx import TO_EVEN, TO_ODD, by_thread_0, kernel, pointer
from harness.probes.comparison import by_element
from harness.probes.probe import Case, Map, Outputs, Pointer, Probe
from harness.probes.ptx import CLUSTER_SYNC, CTA_SYNC, UNTOUCHED, dump, fill, poll

BOX_ROWS, BOX_COLUMNS = 8, 16
BOX_BYTES = 2 * BOX_ROWS * BOX_COLUMNS
REGION = 1024
"""Shared offset of boxes; the mbarrier is at 0."""
ROOM = 2048
"""Bytes there, for four rows, or for a box of packed types."""


def _map_address(register: str, name: str) -> str:
    return f"mov.b64 {register}, {name};\ncvta.param.u64 {register}, {register};\n"


def _load_and_dump(mode: str, coordinates: str, expected: str) -> str:
    """64 threads: a load through the map at %rd4 to %r10. To %rd1 goes whether as many bytes as a register expects were
    signalled, to %rd0 what the room of the boxes then holds.
    """
    return (
        by_thread_0("mbarrier.init.shared::cta.b64 [%base], 1;\nfence.mbarrier_init.release.cluster;\n")
        + "fence.proxy.async.shared::cta;\n"
        + CTA_SYNC
        + by_thread_0(
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], {expected};\n"
            f"cp.async.bulk.tensor.2d.shared::cta.global.{mode}.mbarrier::complete_tx::bytes"
            f" [%r10], [%rd4, {{{coordinates}}}], [%base];\n"
            + poll("%base", 0, "%p1")
            + "selp.u32 %r11, 1, 0, %p1;\nst.global.u32 [%rd1], %r11;\n"
        )
        + CTA_SYNC
        + dump(REGION, ROOM, 64, "%rd0")
        + CTA_SYNC
    )


# ---- whose data, whose barrier ----

CTAS = 4
GUESSES = (1, 2, 4)
"""Boxes that the barriers of each cluster of a launch wait for."""
OWN, CLEARED, SET = range(3)
ADDRESSED = {OWN: "own barrier", CLEARED: "barrier with bit 24 cleared", SET: "barrier with bit 24 set"}


def _load(group: int, multicast: bool) -> str:
    mask, last = (".multicast::cluster", ", %h0") if multicast else ("", "")
    return (
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f"{mask}.cta_group::{group} [%r5], [%rd2, {{%r6, %r6}}], [%r7]{last};\n"
    )


def _routes_text(group: int) -> str:
    """The CTA of one rank loads a box. Every CTA says whether as many bytes as guessed came to its barrier, and what
    lies where a box would.
    """
    issue = f"""setp.ne.u32 %p1, %r3, %r0;
@%p1 bra ISSUED;
setp.eq.u32 %p2, %r2, {CLEARED};
@%p2 and.b32 %r7, %r7, {TO_EVEN};
setp.eq.u32 %p2, %r2, {SET};
@%p2 or.b32 %r7, %r7, {TO_ODD};
cvt.u16.u32 %h0, %r1;
setp.eq.u32 %p2, %r1, 0;
@%p2 bra PLAIN;
{_load(group, True)}bra ISSUED;
PLAIN:
{_load(group, False)}ISSUED:
"""
    return kernel(
        ["map tensor", "u64 found", "u64 request"],
        fill(REGION, BOX_BYTES, 32)
        + pointer("%rd1", "request")
        + "mov.u32 %r10, %ctaid.x;\n"
        + pointer("%rd0", "found", "%r10", 8)
        + _map_address("%rd2", "tensor")
        + f"""ld.global.u32 %r0, [%rd1];
ld.global.u32 %r1, [%rd1+4];
ld.global.u32 %r2, [%rd1+8];
mov.u32 %r3, %cluster_ctarank;
shr.u32 %r4, %r10, {CTAS.bit_length() - 1};
mad.wide.u32 %rd3, %r4, 4, %rd1;
ld.global.u32 %r4, [%rd3+12];
add.u32 %r5, %base, {REGION};
mov.u32 %r6, 0;
mov.u32 %r7, %base;
"""
        + by_thread_0(
            "mbarrier.init.shared::cta.b64 [%base], 1;\nfence.mbarrier_init.release.cluster;\n"
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%base], %r4;\nfence.proxy.async.shared::cta;\n"
        )
        + CLUSTER_SYNC
        + by_thread_0(issue)
        + poll("%base", 0, "%p3")
        + by_thread_0(
            f"""selp.u32 %r8, 1, 0, %p3;
st.global.u32 [%rd0], %r8;
ld.shared.u32 %r9, [%base+{REGION}];
st.global.u32 [%rd0+4], %r9;
"""
        )
        + CLUSTER_SYNC
        + by_thread_0("mbarrier.inval.shared::cta.b64 [%base];\n"),
    )


def _route_case(issuer: int, mask: int, addressed: int) -> Case:
    what = f"mask {mask:#06b}" if mask else "no multicast"
    request = np.array([issuer, mask, addressed, *(BOX_BYTES * guess for guess in GUESSES)], np.uint32)
    return Case(
        name=f"rank {issuer} loads, {what}, {ADDRESSED[addressed]}",
        buffers={
            "tensor": np.arange(BOX_ROWS * BOX_COLUMNS, dtype=np.uint16) + 0x1000,
            "found": np.full((len(GUESSES), CTAS, 2), 9, np.uint32),
            "request": request,
        },
        arguments=(
            Map("tensor", "bf16", (BOX_ROWS, BOX_COLUMNS), (BOX_ROWS, BOX_COLUMNS)),
            Pointer("found"),
            Pointer("request"),
        ),
        outputs=("found",),
        block=32,
        grid=(CTAS * len(GUESSES), 1),
        cluster=(CTAS, 1),
        shared=REGION + BOX_BYTES,
    )


def _read_routes(outputs: Outputs) -> dict[str, Any]:
    """Per case: the ranks that got data, and how many boxes' bytes came to each rank's barrier."""
    answer = {}
    for case, arrays in outputs.items():
        found = arrays["found"]
        came = [
            [guess for guess, done in zip(GUESSES, found[:, rank, 0], strict=True) if done == 1] for rank in range(CTAS)
        ]
        answer[case] = {
            "data in ranks": np.flatnonzero((found[:, :, 1] != UNTOUCHED).all(axis=0)).tolist(),
            "boxes signalled by rank": [max(some, default=0) for some in came],
        }
    return answer


def _tell_routes(case: str, buffer: str, place: tuple[int, ...], ours: int, theirs: int) -> str:
    number, rank, what = place
    if what:
        return f"data came to rank {rank}: {theirs != UNTOUCHED}; on the emulator: {ours != UNTOUCHED}"
    return (
        f"the bytes of {GUESSES[number]} boxes came to the barrier of rank {rank}: {theirs == 1}; on the emulator: "
        f"{ours == 1}"
    )


def _routes(name: str, question: str, group: int, cases: Sequence[Case], assumption: str = "") -> Probe:
    return Probe(
        name=name,
        question=question,
        ptx=_routes_text(group),
        cases=tuple(cases),
        read=_read_routes,
        explain=by_element(_tell_routes),
        assumption=assumption,
    )


# ---- four rows ----

ROWS, COLUMNS = 20, 72
"""The tensor, of 16-bit elements. Neither is a multiple of four boxes."""
UNSTORED = 0xA5A5
"""What the tensor that is stored to holds before."""

FOUR = kernel(
    ["map loaded", "map stored", "u64 memory", "u64 flags", "u64 corner"],
    fill(REGION, ROOM, 64)
    + pointer("%rd0", "memory")
    + pointer("%rd1", "flags")
    + pointer("%rd3", "corner")
    + _map_address("%rd4", "loaded")
    + _map_address("%rd5", "stored")
    + "".join(f"ld.global.u32 %r{n}, [%rd3+{4 * n}];\n" for n in range(7))
    + f"add.u32 %r10, %base, {REGION};\n"
    + _load_and_dump("tile::gather4", "%r0, %r1, %r2, %r3, %r4", expected="%r6")
    + by_thread_0(
        """setp.eq.u32 %p2, %r5, 0;
@%p2 bra STORED;
fence.proxy.async.shared::cta;
cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd5, {%r0, %r1, %r2, %r3, %r4}], [%r10];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
STORED:
mbarrier.inval.shared::cta.b64 [%base];
"""
    ),
)


def _four_case(
    name: str, column: int, rows: tuple[int, int, int, int], width: int, swizzle: str = "none", nan: bool = False
) -> Case:
    """Rows that are all inside are scattered, too."""
    inside = column >= 0 and min(rows) >= 0
    box = (1, width)
    return Case(
        name=name,
        buffers={
            "tensor": np.arange(ROWS * COLUMNS, dtype=np.uint16) + 0x1000,
            "copy": np.full(ROWS * COLUMNS, UNSTORED, np.uint16),
            "memory": np.zeros(ROOM // 4, np.uint32),
            "flags": np.full(1, 9, np.uint32),
            "corner": np.array([column, *rows, inside, 4 * 2 * width], np.int32),
        },
        arguments=(
            Map("tensor", "bf16", (ROWS, COLUMNS), box, swizzle, nan),
            Map("copy", "bf16", (ROWS, COLUMNS), box, swizzle),
            Pointer("memory"),
            Pointer("flags"),
            Pointer("corner"),
        ),
        outputs=("memory", "flags", "copy"),
        block=64,
        shared=REGION + ROOM,
    )


def _element(value: int, blank: int) -> str:
    if value == blank:
        return "nothing"
    if 0x1000 <= value < 0x1000 + ROWS * COLUMNS:
        return f"row {(value - 0x1000) // COLUMNS}, column {(value - 0x1000) % COLUMNS}"
    return f"{value:#06x}"


def _tell_four(case: str, buffer: str, place: tuple[int, ...], ours: int, theirs: int) -> str:
    if buffer == "flags":
        return f"the bytes of four rows were signalled: {theirs == 1}; on the emulator: {ours == 1}"
    if buffer == "copy":
        row, column = divmod(place[0], COLUMNS)
        values = [_element(v, UNSTORED) for v in (theirs, ours)]
        return f"scatter4 puts {values[0]} in row {row}, column {column}; the emulator {values[1]}"
    shift = 0 if (ours ^ theirs) & 0xFFFF else 16
    values = [_element(v >> shift & 0xFFFF, UNTOUCHED & 0xFFFF) for v in (theirs, ours)]
    return f"gather4 puts {values[0]} at byte {4 * place[0] + shift // 8}; the emulator {values[1]}"


def _read_four(outputs: Outputs) -> dict[str, Any]:
    answer = {}
    for case, arrays in outputs.items():
        halves = arrays["memory"].view(np.uint16)
        written = np.flatnonzero(arrays["copy"] != UNSTORED)
        answer[case] = {
            "the bytes of four rows were signalled": bool(arrays["flags"][0] == 1),
            "first element of each 128 bytes": [_element(int(v), UNTOUCHED & 0xFFFF) for v in halves[: 4 * 64 : 64]],
            "elements that came": int(((halves >= 0x1000) & (halves < 0x1000 + ROWS * COLUMNS)).sum()),
            "rows that were written": sorted({int(n) // COLUMNS for n in written}),
        }
    return answer


# ---- packed types, and swizzles that the emulator has not ----

PACKED_BOX, PACKED_ROWS = 128, 8
"""Elements of a row of a box of the padded types."""
PACKED = {"b4x16_p64": 64, "b6x16_p32": 96}
"""Bytes of such a row in global memory. In shared memory all are of 128."""
ATOMS = ("128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B")

BYTES = kernel(
    ["map tensor", "u64 memory", "u64 flags", "u64 expected"],
    fill(REGION, ROOM, 64)
    + pointer("%rd0", "memory")
    + pointer("%rd1", "flags")
    + pointer("%rd3", "expected")
    + _map_address("%rd4", "tensor")
    + f"""ld.global.u32 %r0, [%rd3];
add.u32 %r10, %base, {REGION};
mov.u32 %r1, 0;
"""
    + _load_and_dump("tile", "%r1, %r1", expected="%r0")
    + by_thread_0("mbarrier.inval.shared::cta.b64 [%base];\n"),
)
"""Load the box at the tensor's first element, and say whether as many bytes as expected were signalled."""


def _bytes_case(name: str, element: str, shape: tuple[int, int], nbytes: int, expected: int, swizzle: str) -> Case:
    """The tensor is one box of so many bytes, which are numbered."""
    return Case(
        name=name,
        buffers={
            "tensor": np.arange(nbytes // 2, dtype=np.uint16),
            "memory": np.zeros(ROOM // 4, np.uint32),
            "flags": np.full(1, 9, np.uint32),
            "expected": np.array([expected], np.uint32),
        },
        arguments=(
            Map("tensor", element, shape, shape, swizzle),
            Pointer("memory"),
            Pointer("flags"),
            Pointer("expected"),
        ),
        outputs=("memory", "flags"),
        block=64,
        shared=REGION + ROOM,
    )


def _packed_cases() -> list[Case]:
    cases = []
    for element, row in PACKED.items():
        payload, footprint = PACKED_ROWS * row, PACKED_ROWS * PACKED_BOX
        for what, expected in (("payload", payload), ("room", footprint)):
            for swizzle in ("none", "128B"):
                name = f"{element}, swizzle {swizzle}, the bytes of its {what} expected"
                cases.append(_bytes_case(name, element, (PACKED_ROWS, PACKED_BOX), payload, expected, swizzle))
    return cases


def _tell_bytes(case: str, buffer: str, place: tuple[int, ...], ours: int, theirs: int) -> str:
    if buffer == "flags":
        return f"as many bytes were signalled: {theirs == 1}; on the emulator: {ours == 1}"
    values = ["nothing" if v == UNTOUCHED else f"{v:#010x}" for v in (theirs, ours)]
    return f"byte {4 * place[0]} of the box begins with {values[0]}; on the emulator {values[1]}"


def _read_bytes(outputs: Outputs) -> dict[str, Any]:
    """Where the tensor's 16-byte chunks went: of each 16 bytes of the box the number of the first pair of bytes."""
    answer = {}
    for case, arrays in outputs.items():
        firsts = arrays["memory"].view(np.uint16)[::8]
        answer[case] = {
            "as many bytes were signalled": bool(arrays["flags"][0] == 1),
            "pairs that begin each 16 bytes": [
                "-" if v == UNTOUCHED & 0xFFFF else int(v) for v in firsts[:32].tolist()
            ],
        }
    return answer


PAIR_CASES = (
    *(_route_case(issuer, 0, addressed) for issuer in range(CTAS) for addressed in (OWN, CLEARED, SET)),
    *(
        _route_case(issuer, mask, addressed)
        for issuer in (0, 1, 3)
        for mask in (0b0001, 0b0010, 0b0011, 0b0110, 0b1111)
        for addressed in (OWN, CLEARED)
    ),
)
PROBES = (
    _routes(
        "tma_pair_barriers",
        "Whose barrier does a load with .cta_group::2 signal: with and without multicast, named with the bit of the "
        "even and of the odd CTA?",
        2,
        PAIR_CASES,
        "For each CTA that gets data the barrier of that CTA's pair whose rank has the parity of the named one.",
    ),
    _routes(
        "tma_group_1_barriers",
        "Whose barrier does a load with .cta_group::1 signal?",
        1,
        [_route_case(issuer, mask, OWN) for issuer in (0, 3) for mask in (0, 0b0001, 0b0110, 0b1111)],
    ),
    Probe(
        name="tma_four_rows",
        question="What do gather4 and scatter4 move: with rows in any order, twice, outside, and with swizzles?",
        ptx=FOUR,
        cases=(
            _four_case("rows 3, 9, 0, 17", 0, (3, 9, 0, 17), 64),
            _four_case("one row four times", 8, (5, 5, 5, 5), 32),
            _four_case("rows beyond the last", 16, (18, 19, 20, 300), 16),
            _four_case("rows before the first", 0, (-1, 2, -300, 4), 16),
            _four_case("columns beyond the last", 64, (1, 2, 3, 4), 16),
            _four_case("columns before the first", -8, (1, 2, 3, 4), 16),
            _four_case("NaN outside", 64, (1, 20, 3, -4), 16, nan=True),
            _four_case("swizzle 128B", 0, (3, 9, 0, 17), 64, "128B"),
            _four_case("swizzle 64B", 32, (3, 9, 0, 17), 32, "64B"),
            _four_case("swizzle 32B", 56, (7, 6, 5, 4), 16, "32B"),
        ),
        read=_read_four,
        explain=by_element(_tell_four),
    ),
    Probe(
        name="tma_packed_types",
        question="Where do packed elements of 4 and 6 bits go in shared memory, and which bytes are signalled: those "
        "of global or those of shared memory?",
        ptx=BYTES,
        cases=tuple(_packed_cases()),
        read=_read_bytes,
        explain=by_element(_tell_bytes),
        assumption="Those of global memory are signalled; a library's discussion says so.",
    ),
    Probe(
        name="tma_swizzles_of_atoms",
        question="Where do 16-byte chunks go in the 128-byte swizzles of atoms of 32 and 64 bytes?",
        ptx=BYTES,
        cases=tuple(_bytes_case(f"swizzle {atom}", "u16", (16, 64), 2048, 2048, atom) for atom in ATOMS),
        read=_read_bytes,
        modelled=False,
    ),
)
