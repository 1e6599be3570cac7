"""Pieces of PTX that several micro-benchmarks use."""

from __future__ import annotations

from metrology.probes.ptx import HOPPER
from metrology.probes.ptx import kernel as module

CLOCKS = 64
"""Clocks that a kernel keeps in shared memory while it runs, and writes out at its end."""
CLOCKS_AT = 256
DATA_AT = 4096
"""Bytes in shared memory: barriers lie before CLOCKS_AT, the clocks there, copied boxes from DATA_AT on."""
HEAD = 8
"""Words before the kept clocks: `report` says which."""

BLACKWELL = "sm_100a"
CLOCK_REGISTERS = ".reg .b64 %c<2>, %g<2>;\n"
"""For the clocks and the global timer at `START` and `END`."""


def kernel(parameters: list[str], body: str, threads: int = 0, target: str = HOPPER) -> str:
    """A module with one kernel, ``bench``. Parameters: "map NAME", "u64 NAME" or "u32 NAME"."""
    return module(parameters, CLOCK_REGISTERS + body, target, entry="bench", threads=threads)


START = "mov.u64 %g0, %globaltimer;\nmov.u64 %c0, %clock64;\n"
END = "mov.u64 %c1, %clock64;\nmov.u64 %g1, %globaltimer;\n"


def report(words: int, kept: bool = False, part: int = 0) -> str:
    """One thread: writes to ``out``, whose words for this CTA are ``words`` (with ``part``, the ones further on):
    clock at start and end, global timer at start and end, SM, rank in the cluster; with ``kept`` also the kept
    clocks, from word HEAD on.
    """
    text = f"""ld.param.u64 %rd0, [out];
mov.u32 %r0, %ctaid.x;
mul.wide.u32 %rd1, %r0, {8 * words};
add.u64 %rd0, %rd0, %rd1;
add.u64 %rd0, %rd0, {8 * part};
st.global.u64 [%rd0], %c0;
st.global.u64 [%rd0+8], %c1;
st.global.u64 [%rd0+16], %g0;
st.global.u64 [%rd0+24], %g1;
mov.u32 %r1, %smid;
cvt.u64.u32 %rd1, %r1;
st.global.u64 [%rd0+32], %rd1;
mov.u32 %r1, %cluster_ctarank;
cvt.u64.u32 %rd1, %r1;
st.global.u64 [%rd0+40], %rd1;
"""
    if kept:
        text += f"""mov.u32 %r1, 0;
KEPT:
mad.lo.u32 %r2, %r1, 8, %base;
ld.shared.u64 %rd1, [%r2+{CLOCKS_AT}];
mul.wide.u32 %rd2, %r1, 8;
add.u64 %rd2, %rd2, %rd0;
st.global.u64 [%rd2+{8 * HEAD}], %rd1;
add.u32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, {CLOCKS};
@%p1 bra KEPT;
"""
    return text


def keep_clock(index: str) -> str:
    """Keeps the clock under this number, if it is one of the first `CLOCKS`."""
    return f"""{{
.reg .pred within;
.reg .b32 at;
.reg .b64 now;
mov.u64 now, %clock64;
setp.lt.u32 within, {index}, {CLOCKS};
mad.lo.u32 at, {index}, 8, %base;
@within st.shared.u64 [at+{CLOCKS_AT}], now;
}}
"""


def clear_clocks(first: int) -> str:
    """One thread: zeros for the clocks from this number on."""
    return f"""mov.u32 %r1, {first};
mov.u64 %rd1, 0;
CLEAR:
mad.lo.u32 %r2, %r1, 8, %base;
st.shared.u64 [%r2+{CLOCKS_AT}], %rd1;
add.u32 %r1, %r1, 1;
setp.lt.u32 %p1, %r1, {CLOCKS};
@%p1 bra CLEAR;
"""


CLEAR_CLOCKS = clear_clocks(0)
"""A kernel with fewer events than `CLOCKS` leaves zeros."""


def init_barriers(first: int, count: int, arrivals: str) -> str:
    """One thread: ``count`` mbarriers from byte ``first`` on. ``arrivals``: a number or a register."""
    each = "".join(f"mbarrier.init.shared::cta.b64 [%base+{first + 8 * i}], {arrivals};\n" for i in range(count))
    return each + "fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;\n"


def wait(barrier: str, parity: str) -> str:
    """Until the phase has completed. ``barrier``: an address, such as ``[%r3+8]``."""
    return f"""{{
.reg .pred done;
AGAIN:
mbarrier.try_wait.parity.shared::cta.b64 done, {barrier}, {parity};
@!done bra AGAIN;
}}
"""


FIRST_SLOT = "mov.u32 %i, 0;\nmov.u32 %slot, 0;\nmov.u32 %parity, 1;\n"
"""A ring of slots with a barrier each: %i counts turns, %slot is the turn's own, %parity the phase to wait for."""


def free_slot(depth: int) -> str:
    """%at: the slot's barrier. Waits until what the slot was last used for is done, from turn ``depth`` on."""
    return f"""mad.lo.u32 %at, %slot, 8, %base;
setp.lt.u32 %p0, %i, {depth};
@%p0 bra FREE;
{wait("[%at]", "%parity")}FREE:
"""


def next_slot(depth: int) -> str:
    """After the last of ``depth`` slots comes the first again, in the other phase."""
    return f"""add.u32 %slot, %slot, 1;
setp.eq.u32 %p2, %slot, {depth};
@%p2 mov.u32 %slot, 0;
@%p2 xor.b32 %parity, %parity, 1;
"""


def repeat(body: str, count: str = "%count", unrolled: int = 1) -> str:
    """The body so many times; in the text ``unrolled`` times, of which ``count`` is a multiple."""
    return f"""{{
.reg .b32 turn;
.reg .pred more;
mov.u32 turn, 0;
TURN:
{body * unrolled}add.u32 turn, turn, {unrolled};
setp.lt.u32 more, turn, {count};
@more bra TURN;
}}
"""


ROLLED = '.pragma "nounroll";\n'
"""First in the body of a loop that ptxas would otherwise repeat, keeping the clocks of its last turn alone."""
