"""Generates the main loop of one CTA in PTX, and predicts the cycles of one of its K steps with the timing model.

A TMA warp fills a ring of stages, an MMA warp multiplies them into tensor memory; full and empty mbarriers hand the
stages over. There is no epilogue: published main loops are so deep (K = 131072) that theirs does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emugpu.emulator import Swizzle
from emugpu.emulator.machine.grid import DATA_CENTRE
from emugpu.emulator.memory.address_space import RESERVED_SHARED
from emugpu.launch.launching import EmulationOptions, run
from emugpu.launch.spec import DATA_TYPES, AddressArgument, Buffer, Fill, Launch, Launchable, Map, Scalar
from harness.model.constants import GpuConstants
from harness.model.first_use import FirstUse
from harness.model.machine import TimedDevice, TimedTrace
from harness.model.tcgen05 import K_BYTES
from harness.model.units import MemorySystem

STEPS = 96
"""Simulated K steps; the steady rate is that of the second half."""
LINE = 128
"""Bytes of the widest swizzle; a longer row is several boxes."""
FETCHED = 128
"""Bytes of a row that L2 reads from DRAM at once: the data that follows along K is there when the next step requests
it.
"""
ATOM = 1024
"""Alignment of an operand in shared memory: an atom of the 128-byte swizzle."""
SWIZZLES = {32: (Swizzle.B32, 6), 64: (Swizzle.B64, 4), 128: (Swizzle.B128, 2)}
"""The swizzle and its code in a matrix descriptor (PTX ISA 9.7.16.4.1), by the bytes of a row."""
KINDS = {"bf16": ("f16", 2, 1), "f16": ("f16", 2, 0), "e4m3": ("f8f6f4", 1, 0), "e5m2": ("f8f6f4", 1, 1)}
"""The kind of the instruction, the bytes of an element, and its code in an instruction descriptor, by the type."""
FIRST_ADDRESS = 1 << 40
"""The address of A; nothing is read there."""
COPY = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
MMA = "tcgen05.mma.cta_group::1.kind::"
THREADS = 64
"""The TMA warp and the MMA warp."""


@dataclass(frozen=True)
class Mainloop:
    """One CTA that multiplies A [m, K] and B [n, K], both with K innermost, ``tile_k`` elements of K per step."""

    dtype: str
    m: int
    n: int
    tile_k: int
    stages: int

    @property
    def row(self) -> int:
        """Returns the bytes of a row of a stage."""
        return self.tile_k * KINDS[self.dtype][1]

    @property
    def width(self) -> int:
        """Returns the bytes of a row of a box."""
        return min(self.row, LINE)

    @property
    def boxes(self) -> int:
        """Returns the boxes of an operand in a stage."""
        return self.row // self.width

    @property
    def places(self) -> tuple[int, int, int]:
        """Returns where B begins in a stage, and the bytes from a box of A to the next, and of B."""
        a, b = (-(-rows * self.width // ATOM) * ATOM for rows in (self.m, self.n))
        return a * self.boxes, a, b

    @property
    def stage_bytes(self) -> int:
        b_at, _, b = self.places
        return b_at + b * self.boxes

    @property
    def shared_bytes(self) -> int:
        """Returns the bytes of shared memory: the stages, their mbarriers, the address of tensor memory."""
        return self.stages * self.stage_bytes + 16 * self.stages + 16

    def why_not(self) -> str:
        """Returns why such a main loop is impossible, or nothing."""
        if self.dtype not in KINDS:
            return f"format {self.dtype}: must be one of {', '.join(KINDS)}"
        least = 8 if self.m == 64 else 16
        if self.m not in (64, 128) or not least <= self.n <= 256 or self.n % least:
            return f"tile {self.m}x{self.n}: no shape of tcgen05.mma for one CTA"
        if self.width not in SWIZZLES or self.row % self.width:
            return f"tile_k {self.tile_k}: its rows of {self.row} bytes are no multiple of a swizzle"
        if self.stages < 1 or self.shared_bytes + RESERVED_SHARED > DATA_CENTRE.shared:
            return f"{self.stages} stages of {self.stage_bytes} bytes: do not fit into shared memory"
        return ""


# ---- the kernel, piece by piece ----

PROLOGUE = """    .reg .pred %p, %more, %wraps, %adds, %first;
    .reg .b32 %base, %at, %stage, %phase, %step, %steps, %k, %d, %zero, %warp, %thread, %r<8>;
    .reg .b64 %a_map, %b_map, %a_operand, %b_operand;
    mov.u32 %thread, %tid.x;
    shr.u32 %warp, %thread, 5;
    mov.u32 %base, stages;
    mov.u32 %zero, 0;
    mov.b64 %a_map, a;
    cvta.param.u64 %a_map, %a_map;
    mov.b64 %b_map, b;
    cvta.param.u64 %b_map, %b_map;
    ld.param.u32 %steps, [steps];
"""


def ptx(loop: Mainloop) -> str:
    """Returns the kernel. Its parameters are the tensor maps of A and B and the number of K steps."""
    return f""".version 8.7
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 stages[];
.visible .entry mainloop(.param .align 64 .b8 a[128], .param .align 64 .b8 b[128], .param .u32 steps)
.reqntid {THREADS}
{{
{PROLOGUE}{_start(loop)}{_load(loop)}{_multiply(loop)}{_end(loop)}}}
"""


def _barriers(loop: Mainloop) -> tuple[int, int, int]:
    """Returns the places of the full barriers, the empty barriers, and the address of tensor memory in shared
    memory.
    """
    full = loop.stages * loop.stage_bytes
    return full, full + 8 * loop.stages, full + 16 * loop.stages


def _columns(loop: Mainloop) -> int:
    """Returns the columns of tensor memory."""
    return max(32, 1 << (loop.n - 1).bit_length())


def _start(loop: Mainloop) -> str:
    """Returns the code of all threads: barriers, tensor memory; then one thread of each warp continues, that of warp 1
    at MULTIPLY.
    """
    full, _, taddr = _barriers(loop)
    init = "".join(f"    mbarrier.init.shared::cta.b64 [%base+{full + 8 * n}], 1;\n" for n in range(2 * loop.stages))
    return f"""    setp.ne.u32 %p, %thread, 0;
    @%p bra ALLOCATE;
{init}    fence.mbarrier_init.release.cluster;
ALLOCATE:
    setp.ne.u32 %p, %warp, 1;
    @%p bra READY;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%base+{taddr}], {_columns(loop)};
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
READY:
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
    ld.shared.u32 %d, [%base+{taddr}];
    mov.u32 %at, %base;
    mov.u32 %stage, 0;
    mov.u32 %step, 0;
    mov.u32 %k, 0;
    and.b32 %r0, %thread, 31;
    setp.ne.u32 %p, %r0, 0;
    @%p bra END;
    setp.eq.u32 %p, %warp, 1;
    @%p bra MULTIPLY;
"""


def _place(loop: Mainloop) -> str:
    """Returns the code for %r3 and %r4: the empty and the full barrier of the stage."""
    full, empty, _ = _barriers(loop)
    return f"""    shl.b32 %r1, %stage, 3;
    add.u32 %r1, %base, %r1;
    add.u32 %r3, %r1, {empty};
    add.u32 %r4, %r1, {full};
"""


def _turn(loop: Mainloop) -> str:
    """Returns the code for the next stage; %more says whether there is another K step."""
    return f"""    add.u32 %stage, %stage, 1;
    add.u32 %at, %at, {loop.stage_bytes};
    add.u32 %step, %step, 1;
    setp.eq.u32 %wraps, %stage, {loop.stages};
    selp.u32 %stage, 0, %stage, %wraps;
    selp.u32 %at, %base, %at, %wraps;
    selp.u32 %r7, 1, 0, %wraps;
    xor.b32 %phase, %phase, %r7;
    setp.lt.u32 %more, %step, %steps;
"""


def _load(loop: Mainloop) -> str:
    """Returns the code of the TMA warp: it waits for an empty stage and loads its boxes of A and B."""
    b_at, a_box, b_box = loop.places
    across = loop.width // KINDS[loop.dtype][1]
    loads = ""
    for name, rows_at, box in (("a", 0, a_box), ("b", b_at, b_box)):
        for number in range(loop.boxes):
            loads += f"""    add.u32 %r5, %at, {rows_at + number * box};
    add.u32 %r6, %k, {number * across};
    {COPY} [%r5], [%{name}_map, {{%r6, %zero}}], [%r4];
"""
    return f"""    mov.u32 %phase, 1;
LOAD:
{_place(loop)}WAIT_EMPTY:
    mbarrier.try_wait.parity.shared::cta.b64 %p, [%r3], %phase;
    @!%p bra WAIT_EMPTY;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], {(loop.m + loop.n) * loop.row};
{loads}    add.u32 %k, %k, {loop.tile_k};
{_turn(loop)}    @%more bra LOAD;
    bra END;
"""


def _mma(loop: Mainloop) -> str:
    """Returns the MMAs of a stage. The instruction descriptor and the matrix descriptors are those of PTX ISA
    9.7.16.4.
    """
    kind, _, code = KINDS[loop.dtype]
    b_at, a_box, b_box = loop.places
    instruction = 1 << 4 | code << 7 | code << 10 | loop.n >> 3 << 17 | loop.m >> 4 << 24
    descriptor = 1 << 16 | (8 * loop.width >> 4) << 32 | 1 << 46 | SWIZZLES[loop.width][1] << 61
    text = ""
    for number in range(loop.boxes):
        for slice_at in range(0, loop.width, K_BYTES):
            for name, first in (("a", number * a_box), ("b", b_at + number * b_box)):
                text += f"""    add.u32 %r5, %at, {first + slice_at};
    shr.u32 %r5, %r5, 4;
    cvt.u64.u32 %{name}_operand, %r5;
    or.b64 %{name}_operand, %{name}_operand, {descriptor};
"""
            text += f"""    {MMA}{kind} [%d], %a_operand, %b_operand, {instruction}, %adds;
    setp.eq.u32 %adds, %zero, 0;
"""
    return text


def _multiply(loop: Mainloop) -> str:
    """Returns the code of the MMA warp: it waits for a full stage, multiplies it, commits to its empty barrier, and at
    the end waits for all.
    """
    return f"""MULTIPLY:
    mov.u32 %phase, 0;
    setp.ne.u32 %adds, %zero, 0;
ROUND:
{_place(loop)}WAIT_FULL:
    mbarrier.try_wait.parity.shared::cta.b64 %p, [%r4], %phase;
    @!%p bra WAIT_FULL;
{_mma(loop)}    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];
{_turn(loop)}    @%more bra ROUND;
    // The last stage is free when all has been multiplied.
    xor.b32 %r7, %r7, %phase;
WAIT_LAST:
    mbarrier.try_wait.parity.shared::cta.b64 %p, [%r3], %r7;
    @!%p bra WAIT_LAST;
"""


def _end(loop: Mainloop) -> str:
    """Returns the code of all threads at the end: the MMA warp deallocates tensor memory."""
    return f"""END:
    bar.warp.sync -1;
    setp.ne.u32 %p, %warp, 1;
    @%p bra GONE;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %d, {_columns(loop)};
GONE:
    ret;
"""


# ---- its time ----


class StepTimes(TimedTrace):
    """Keeps when the MMAs of each K step were done."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def completed(self, operation: Any, at: float) -> None:
        if operation.kind == "commit":
            self.at.append(at)


def cycles_of_step(loop: Mainloop, gpu: GpuConstants, clock: float, k: int, steps: int = STEPS) -> float:
    """Returns the cycles of a K step, once the ring has filled. ``clock`` is the SMs' in hertz, ``k`` the depth of the
    operands.

    The CTA is alone on its GPU, and has run before, so operands that fit into L2 are there. Each byte of larger
    operands comes from DRAM once, and L2 reads `FETCHED` bytes of a row at a time.
    """
    there = (loop.m + loop.n) * k * KINDS[loop.dtype][1] <= gpu["l2.bytes"] * gpu["l2.effective"]
    depth = steps * loop.tile_k
    element = KINDS[loop.dtype][1]
    addresses = {"A": FIRST_ADDRESS, "B": 2 * FIRST_ADDRESS}
    rows = {"A": loop.m, "B": loop.n}
    buffers, maps = {}, {}
    for name, address in addresses.items():
        buffers[name] = Buffer(name, DATA_TYPES[loop.dtype], (rows[name], depth), Fill("absent"), address=address)
        box = (loop.width // element, rows[name])
        maps[name.lower()] = Map(
            name.lower(), name, box=box, element="bf16" if element == 2 else "u8", swizzle=SWIZZLES[loop.width][0]
        )
    panels = {addresses[name]: (name, rows[name]) for name in addresses}
    first_use = FirstUse([{("A", 0): 1.0, ("B", 0): 1.0}], panels, {0: 0}, dict.fromkeys(addresses.values(), FETCHED))
    done = StepTimes()
    come = 0.0 if there else 1.0
    memory = MemorySystem(1.0, clock, miss=come, waits=come, first_use=first_use)
    device = TimedDevice(gpu, memory, computes=False, sms=1, gpcs=1, trace=done)
    launch = Launch(
        "mainloop",
        (1,),
        dynamic_shared=loop.shared_bytes,
        arguments=(("a", AddressArgument("a")), ("b", AddressArgument("b")), ("steps", Scalar(steps))),
        by_name=True,
    )
    what = Launchable(Path("mainloop.ptx"), buffers, maps, (launch,), text_given=ptx(loop))
    run(what, EmulationOptions(strict=False), device=device, keep=())
    half = steps // 2
    return (done.at[-1] - done.at[half - 1]) / (steps - half)
