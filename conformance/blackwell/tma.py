"""Probes of Blackwell's TMA: gathered and scattered rows, packed types, swizzles of atoms."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.blackwell.ptx import by_thread_0, kernel, map_address, pointer
from conformance.comparison import Difference, by_element
from conformance.probe import MapArgument, Outputs, Pointer, Probe, ProbeCase
from conformance.ptx import CTA_SYNC, UNTOUCHED, dump, fill, poll

REGION = 1024
"""The offset of boxes in shared memory; the mbarrier is at 0."""
ROOM = 2048
"""Bytes for four rows, or for a box of packed types."""


def _load_and_dump(mode: str, coordinates: str, expected: str) -> str:
    """Returns code for 64 threads: a load through the map at %rd4 to %r10. %rd1 receives whether as many bytes as a
    register expects were signalled, %rd0 the content of the boxes' room.
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


# ---- four rows ----

ROWS, COLUMNS = 20, 72
"""The tensor, of 16-bit elements. Neither is a multiple of four boxes."""
UNSTORED = 0xA5A5
"""The content of the destination tensor before the store."""

FOUR = kernel(
    ["map loaded", "map stored", "u64 memory", "u64 flags", "u64 corner"],
    fill(REGION, ROOM, 64)
    + pointer("%rd0", "memory")
    + pointer("%rd1", "flags")
    + pointer("%rd3", "corner")
    + map_address("%rd4", "loaded")
    + map_address("%rd5", "stored")
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
) -> ProbeCase:
    """Returns a case. Rows that are all inside are scattered, too."""
    inside = column >= 0 and min(rows) >= 0
    box = (1, width)
    return ProbeCase(
        name=name,
        buffers={
            "tensor": np.arange(ROWS * COLUMNS, dtype=np.uint16) + 0x1000,
            "copy": np.full(ROWS * COLUMNS, UNSTORED, np.uint16),
            "memory": np.zeros(ROOM // 4, np.uint32),
            "flags": np.full(1, 9, np.uint32),
            "corner": np.array([column, *rows, inside, 4 * 2 * width], np.int32),
        },
        arguments=(
            MapArgument("tensor", "bf16", (ROWS, COLUMNS), box, swizzle, nan),
            MapArgument("copy", "bf16", (ROWS, COLUMNS), box, swizzle),
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


def _tell_four(d: Difference) -> str:
    if d.buffer == "flags":
        return f"the bytes of four rows were signalled: {d.theirs == 1}; on the emulator: {d.ours == 1}"
    if d.buffer == "copy":
        row, column = divmod(d.place[0], COLUMNS)
        values = [_element(v, UNSTORED) for v in (d.theirs, d.ours)]
        return f"scatter4 puts {values[0]} in row {row}, column {column}; the emulator {values[1]}"
    shift = 0 if (d.ours ^ d.theirs) & 0xFFFF else 16
    values = [_element(v >> shift & 0xFFFF, UNTOUCHED & 0xFFFF) for v in (d.theirs, d.ours)]
    return f"gather4 puts {values[0]} at byte {4 * d.place[0] + shift // 8}; the emulator {values[1]}"


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
"""Bytes of such a row in global memory. In shared memory all have 128."""
ATOMS = ("128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B")

BYTES = kernel(
    ["map tensor", "u64 memory", "u64 flags", "u64 expected"],
    fill(REGION, ROOM, 64)
    + pointer("%rd0", "memory")
    + pointer("%rd1", "flags")
    + pointer("%rd3", "expected")
    + map_address("%rd4", "tensor")
    + f"""ld.global.u32 %r0, [%rd3];
add.u32 %r10, %base, {REGION};
mov.u32 %r1, 0;
"""
    + _load_and_dump("tile", "%r1, %r1", expected="%r0")
    + by_thread_0("mbarrier.inval.shared::cta.b64 [%base];\n"),
)
"""Loads the box at the tensor's first element, and reports whether the expected number of bytes was signalled."""


def _bytes_case(name: str, element: str, shape: tuple[int, int], nbytes: int, expected: int, swizzle: str) -> ProbeCase:
    """Returns a case whose tensor is one box of this many bytes, which are numbered."""
    return ProbeCase(
        name=name,
        buffers={
            "tensor": np.arange(nbytes // 2, dtype=np.uint16),
            "memory": np.zeros(ROOM // 4, np.uint32),
            "flags": np.full(1, 9, np.uint32),
            "expected": np.array([expected], np.uint32),
        },
        arguments=(
            MapArgument("tensor", element, shape, shape, swizzle),
            Pointer("memory"),
            Pointer("flags"),
            Pointer("expected"),
        ),
        outputs=("memory", "flags"),
        block=64,
        shared=REGION + ROOM,
    )


def _packed_cases() -> list[ProbeCase]:
    cases = []
    for element, row in PACKED.items():
        payload, footprint = PACKED_ROWS * row, PACKED_ROWS * PACKED_BOX
        for what, expected in (("payload", payload), ("room", footprint)):
            for swizzle in ("none", "128B"):
                name = f"{element}, swizzle {swizzle}, the bytes of its {what} expected"
                cases.append(_bytes_case(name, element, (PACKED_ROWS, PACKED_BOX), payload, expected, swizzle))
    return cases


def _tell_bytes(d: Difference) -> str:
    if d.buffer == "flags":
        return f"as many bytes were signalled: {d.theirs == 1}; on the emulator: {d.ours == 1}"
    values = ["nothing" if v == UNTOUCHED else f"{v:#010x}" for v in (d.theirs, d.ours)]
    return f"byte {4 * d.place[0]} of the box begins with {values[0]}; on the emulator {values[1]}"


def _read_bytes(outputs: Outputs) -> dict[str, Any]:
    """Returns where the tensor's 16-byte chunks went: for each 16 bytes of the box the number of the first pair of
    bytes.
    """
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


PROBES = (
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
