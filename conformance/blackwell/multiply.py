"""A kernel around tcgen05.mma: its inputs are operands and tensor memory as bytes, and its output is tensor memory.

Everything except the text of the instruction is data, so one module tests many descriptors. Each request belongs to a
CTA, or to a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from conformance.blackwell.ptx import (
    BLANK,
    DATA,
    LANES,
    THREADS,
    allocate,
    by_thread_0,
    commit,
    dump_tmem,
    fill_tmem,
    kernel,
    pointer,
    release,
    sync,
)
from conformance.comparison import Describe, Difference
from conformance.probe import Pointer, ProbeCase
from conformance.ptx import copy_in, poll

WORDS = 32
"""Words of a request."""
SLICE = 32
"""Bytes along K of every row in one instruction."""


@dataclass(frozen=True)
class MmaRequest:
    """The operands of one or several instructions. Addresses of tensor memory are relative to the first allocated
    column.

    ``idesc``: instruction descriptor. ``a``, ``b``: matrix descriptors without their start addresses, which are
    ``a_start`` and ``b_start`` bytes behind the operands' first. ``d``: lane << 16 | column. ``adds``: whether the old
    D is added. ``a_tmem``, ``a_scales``, ``b_scales``: columns. ``mask``: lanes of D that are not changed, 8 words.
    ``other``: a word for the probe's own use.
    """

    idesc: int
    a: int = 0
    b: int = 0
    a_start: int = 0
    b_start: int = 0
    d: int = 0
    adds: bool = False
    a_tmem: int = 0
    a_scales: int = 0
    b_scales: int = 0
    mask: tuple[int, ...] = (0,) * 8
    other: int = 0

    def words(self) -> np.ndarray:
        """Returns the words in the format of `program`."""
        halves = (self.a & 0xFFFFFFFF, self.a >> 32, self.b & 0xFFFFFFFF, self.b >> 32)
        rest = (self.a_start, self.b_start, self.idesc, self.d, int(self.adds), self.a_tmem, self.a_scales)
        words = np.zeros(WORDS, np.uint32)
        words[:12] = (*halves, *rest, self.b_scales)
        words[12] = self.other
        words[16:24] = self.mask
        return words


MASK_OF = {1: "{%m0, %m1, %m2, %m3}", 2: "{%m0, %m1, %m2, %m3, %m4, %m5, %m6, %m7}"}
"""The operand that disables lanes, by cta_group."""

_REQUEST = (
    """.reg .b32 %d, %at, %sfa, %sfb, %idesc, %other;
.reg .b32 %m<8>;
.reg .b64 %a, %b;
.reg .pred %adds, %never, %always;
ld.global.u64 %a, [%rd4];
ld.global.u64 %b, [%rd4+8];
"""
    + "".join(f"ld.global.u32 %r{n}, [%rd4+{16 + 4 * n}];\n" for n in range(9))
    + """add.u32 %r0, %r0, %base;
add.u32 %r1, %r1, %base;
"""
    + "".join(
        f"add.u32 {start}, {start}, {DATA};\nshr.u32 {start}, {start}, 4;\nand.b32 {start}, {start}, 16383;\n"
        f"cvt.u64.u32 %rd5, {start};\nor.b64 {descriptor}, {descriptor}, %rd5;\n"
        for start, descriptor in (("%r0", "%a"), ("%r1", "%b"))
    )
    + """mov.b32 %idesc, %r2;
add.u32 %d, %r3, %tmem;
setp.ne.u32 %adds, %r4, 0;
setp.ne.u32 %never, %r4, %r4;
not.pred %always, %never;
add.u32 %at, %r5, %tmem;
add.u32 %sfa, %r6, %tmem;
add.u32 %sfb, %r7, %tmem;
mov.b32 %other, %r8;
"""
    + "".join(f"ld.global.u32 %m{n}, [%rd4+{64 + 4 * n}];\n" for n in range(8))
)


def program(
    issue: str, columns: int, nbytes: int, group: int = 1, by: Callable[[str], str] = by_thread_0, arrivals: int = 1
) -> str:
    """Returns the kernel.

    ``issue`` is the code of thread 0 (of the even CTA), or of the threads of ``by``, with ``%d``, ``%a`` or ``[%at]``,
    ``%b``, ``%idesc``, ``%adds``, ``%m0`` to ``%m7``, ``%sfa``, ``%sfb``, ``%other``. ``columns``: of tensor memory.
    ``nbytes``: of each CTA's operands. ``arrivals``: of commits, one per thread.
    """
    mine = "mov.u32 %r0, %cluster_ctarank;\nsetp.ne.u32 %p2, %r0, 0;\n@%p2 bra ISSUED;\n" if group == 2 else ""
    both = "mov.u16 %h0, 3;\n" if group == 2 else ""
    return kernel(
        ["u64 requests", "u64 operands", "u64 before", "u64 after", "u64 done"],
        "mov.u32 %r20, %ctaid.x;\n"
        + f"shr.u32 %r21, %r20, {group - 1};\n"
        + pointer("%rd0", "operands", "%r20", nbytes)
        + pointer("%rd1", "before", "%r20", 4 * LANES * columns)
        + pointer("%rd2", "after", "%r20", 4 * LANES * columns)
        + pointer("%rd3", "done", "%r20", 4)
        + pointer("%rd4", "requests", "%r21", 4 * WORDS)
        + copy_in("%rd0", DATA, nbytes, THREADS)
        + by_thread_0(f"mbarrier.init.shared::cta.b64 [%base], {arrivals};\nfence.mbarrier_init.release.cluster;\n")
        + "fence.proxy.async.shared::cta;\n"
        + allocate(columns, group)
        + fill_tmem(columns, "%rd1")
        + sync(group)
        + by(mine + _REQUEST + issue + both + commit(group, mask="%h0" if group == 2 else "") + "ISSUED:\n")
        + poll("%base", 0, "%p1")
        + "bar.warp.sync -1;\ntcgen05.fence::after_thread_sync;\n"
        + dump_tmem(columns, "%rd2")
        + by_thread_0("selp.u32 %r0, 1, 0, %p1;\nst.global.u32 [%rd3], %r0;\n")
        + release(columns, group),
    )


@dataclass(frozen=True)
class MmaLaunch:
    """Requests with their data. ``operands``: bytes of each CTA [requests * group, nbytes]. ``before``: images of
    tensor memory [requests * group, 128, columns], or `BLANK` if there are none.
    """

    requests: Sequence[MmaRequest]
    operands: np.ndarray
    columns: int
    group: int = 1
    before: np.ndarray | None = field(default=None)

    def case(self, name: str) -> ProbeCase:
        ctas = len(self.requests) * self.group
        shape = (ctas, LANES, self.columns)
        operands = np.ascontiguousarray(self.operands).reshape(ctas, -1).view(np.uint8)
        before = np.full(shape, BLANK, np.uint32) if self.before is None else self.before.reshape(shape)
        buffers = {
            "requests": np.stack([request.words() for request in self.requests]),
            "operands": operands.view(np.uint32),
            "before": before,
            "after": np.zeros(shape, np.uint32),
            "done": np.full(ctas, 9, np.uint32),
        }
        return ProbeCase(
            name=name,
            buffers=buffers,
            arguments=tuple(Pointer(name) for name in buffers),
            outputs=("after", "done"),
            block=THREADS,
            grid=(ctas, 1),
            cluster=(self.group, 1),
            shared=DATA + operands.shape[1],
        )


# ---- what differs ----


def beside_commits(describe: Describe) -> Describe:
    """Describes differences in outputs of `program`: a missing arrival of a commit, and for the other buffers what
    ``describe`` says.
    """

    def describe_all(d: Difference) -> str:
        if d.buffer == "done":
            return f"the commit of CTA {d.place[0]} arrived: {d.theirs == 1}; on the emulator: {d.ours == 1}"
        return describe(d)

    return describe_all


def f32(word: int) -> float:
    """Returns the number that a word of D represents."""
    return float(np.uint32(word).view(np.float32))


# ---- descriptors and operands ----

SWIZZLE_CODES = {"none": 0, "128B_32B": 1, "128B": 2, "64B": 4, "32B": 6}
"""Codes of a matrix descriptor; the second is the 128-byte swizzle of atoms of 32 bytes."""


def matrix_descriptor(leading: int, stride: int, swizzle: str = "none", base_offset: int = 0) -> int:
    """Returns a tcgen05 matrix descriptor without its start address (PTX ISA 9.7.16.4.1). Offsets are in bytes."""
    layout = SWIZZLE_CODES[swizzle] << 61 | base_offset << 49 | 1 << 46
    return (leading >> 4) << 16 | (stride >> 4) << 32 | layout


def instruction_descriptor(m: int, n: int, a: int = 1, b: int = 1, d: int = 1, more: int = 0) -> int:
    """Returns a tcgen05 instruction descriptor (PTX ISA 9.7.16.4.2). ``a``, ``b``, ``d`` are codes of the types; the
    defaults are bf16 and f32.
    """
    return d << 4 | a << 7 | b << 10 | n >> 3 << 17 | m >> 4 << 24 | more


def scaled_descriptor(m: int, n: int, a: int, b: int, ue8m0: bool, a_id: int = 0, b_id: int = 0) -> int:
    """Returns the instruction descriptor of the block-scaled kinds."""
    return b_id << 4 | a << 7 | b << 10 | n >> 3 << 17 | int(ue8m0) << 23 | m >> 4 << 24 | a_id << 29


def plain(rows: int) -> int:
    """Returns the descriptor of K-major rows of 32 bytes without swizzle, in the layout of `core_matrices`."""
    return matrix_descriptor(16 * rows, 128)


def core_matrices(rows: np.ndarray) -> np.ndarray:
    """Returns [..., rows, elements] as bytes: the rows' 16-byte chunks, so that those at one place along K are
    consecutive.
    """
    raw = np.ascontiguousarray(rows).view(np.uint8)
    chunks = raw.reshape(*raw.shape[:-1], -1, 16)
    return np.ascontiguousarray(np.moveaxis(chunks, -2, -3)).reshape(*raw.shape[:-2], -1)


def operands(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the bytes of A's rows [.., rows, K], then of B's; B starts at `b_at` of A's rows."""
    return np.concatenate([core_matrices(a), core_matrices(b)], axis=-1)


def b_at(rows: int) -> int:
    """Returns the bytes of this many rows of A."""
    return SLICE * rows


def mma(kind: str, group: int = 1, a: str = "%a", scales: bool = False, masked: bool = False, tail: str = "") -> str:
    """Returns one instruction. ``tail`` follows the predicate. ``kind`` includes its suffixes, as in
    "f16.collector::a::fill".
    """
    form = f"tcgen05.mma.cta_group::{group}.kind::{kind}"
    factors = " [%sfa], [%sfb]," if scales else ""
    mask = f" {MASK_OF[group]}," if masked else ""
    return f"{form} [%d], {a}, %b, %idesc,{factors}{mask} %adds{tail};\n"
