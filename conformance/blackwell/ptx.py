"""Pieces of PTX for sm_100a that several probes use. Nothing waits for ever: who waits for an mbarrier gives up."""

from __future__ import annotations

from conformance.ptx import kernel as any_kernel

TARGET, VERSION = "sm_100a", "8.7"
"""The version of PTX is the first that has all of tcgen05."""
LANES = 128
THREADS = 128
"""Four warps, each with its own 32 lanes of tensor memory."""
BLANK = 0xEEEEEEEE
"""What tensor memory holds before, where a probe says nothing else."""
TMEM_ADDRESS = 64
"""Shared offset where tcgen05.alloc puts the address; mbarriers lie below."""
DATA = 1024
"""Shared offset of operands."""
TO_EVEN, TO_ODD = 0xFEFFFFFF, 0x1000000
"""With ``and``, or with ``or``, a shared address of one CTA of a pair becomes that of the even, or of the odd one: bit
24 is the lowest of the rank."""
AT_ONCE = 16
"""Columns that a warp loads or stores with one instruction; images of tensor memory are multiples of it wide."""


def kernel(parameters: list[str], body: str) -> str:
    """A module for sm_100a with one kernel, ``probe``; ``%tmem`` is for the address of tensor memory."""
    return any_kernel(parameters, ".reg .b32 %tmem;\n" + body, TARGET, VERSION)


def sync(ctas: int = 1) -> str:
    """All threads of a CTA, or of a cluster, and what they have asked of tensor memory."""
    barrier = "bar.sync 0;\n" if ctas == 1 else "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
    fences = ("tcgen05.fence::before_thread_sync;\n", "tcgen05.fence::after_thread_sync;\n")
    return f"bar.warp.sync -1;\n{fences[0]}{barrier}{fences[1]}"


def by_warp_0(body: str) -> str:
    """The whole first warp does it."""
    return _by_first(32, body)


def by_thread_0(body: str) -> str:
    """One thread does it."""
    return _by_first(1, body)


def _by_first(threads: int, body: str) -> str:
    return f"""{{
.reg .pred other;
setp.ge.u32 other, %thread, {threads};
@other bra OTHERS;
{body}
OTHERS:
bar.warp.sync -1;
}}
"""


def _allocated(columns: int) -> int:
    """What an allocation of at least so many columns takes."""
    return next(size for size in (32, 64, 128, 256, 512) if size >= columns)


def allocate(columns: int, group: int = 1) -> str:
    """All threads: columns of tensor memory for this CTA, or for both of a pair; their address is in ``%tmem``."""
    size = _allocated(columns)
    return (
        by_warp_0(
            f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%base+{TMEM_ADDRESS}], {size};\n"
            f"tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;\n"
        )
        + sync(group)
        + f"ld.shared.b32 %tmem, [%base+{TMEM_ADDRESS}];\n"
    )


def release(columns: int, group: int = 1) -> str:
    """All threads: the inverse of `allocate`; nothing uses tensor memory any more."""
    size = _allocated(columns)
    return sync(group) + by_warp_0(f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %tmem, {size};\n")


def _by_columns(columns: int, buffer: str, body: str) -> str:
    """All threads: ``body`` for each `AT_ONCE` columns of its lane: ``at`` names them, ``far`` their words in an image
    [lanes, columns] at the global address in the 64-bit register ``buffer``.
    """
    return f"""{{
.reg .b32 at, left;
.reg .b32 w<{AT_ONCE}>;
.reg .b64 far;
.reg .pred more;
mad.wide.u32 far, %thread, {4 * columns}, {buffer};
and.b32 at, %thread, 96;
shl.b32 at, at, 16;
add.u32 at, at, %tmem;
mov.u32 left, {columns};
NEXT:
{body}
add.u32 at, at, {AT_ONCE};
add.u64 far, far, {4 * AT_ONCE};
sub.u32 left, left, {AT_ONCE};
setp.ne.u32 more, left, 0;
@more bra NEXT;
}}
"""


_WORDS = "{" + ", ".join(f"w{n}" for n in range(AT_ONCE)) + "}"


def fill_tmem(columns: int, source: str) -> str:
    """All threads: an image [128 lanes, columns] of tensor memory from global memory. Asks no more than 32x32b."""
    loads = "".join(f"ld.global.b32 w{n}, [far+{4 * n}];\n" for n in range(AT_ONCE))
    store = f"tcgen05.st.sync.aligned.32x32b.x{AT_ONCE}.b32 [at], {_WORDS};\ntcgen05.wait::st.sync.aligned;"
    return _by_columns(columns, source, loads + store)


def dump_tmem(columns: int, to: str) -> str:
    """All threads: the inverse of `fill_tmem`."""
    load = f"tcgen05.ld.sync.aligned.32x32b.x{AT_ONCE}.b32 {_WORDS}, [at];\ntcgen05.wait::ld.sync.aligned;\n"
    return _by_columns(columns, to, load + "".join(f"st.global.b32 [far+{4 * n}], w{n};\n" for n in range(AT_ONCE)))


def pointer(register: str, parameter: str, index: str = "", nbytes: int = 0) -> str:
    """The address in a kernel parameter, plus ``index`` times ``nbytes``."""
    text = f"ld.param.u64 {register}, [{parameter}];\n"
    return text + (f"mad.wide.u32 {register}, {index}, {nbytes}, {register};\n" if index else "")


def map_address(register: str, parameter: str) -> str:
    """The address of a tensor map that is a kernel parameter."""
    return f"mov.b64 {register}, {parameter};\ncvta.param.u64 {register}, {register};\n"


def commit(group: int, barrier: str = "%base", mask: str = "") -> str:
    """One thread. mask: a 16-bit register."""
    multicast, last = (".multicast::cluster", f", {mask}") if mask else ("", "")
    return (
        f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{multicast}.b64 [{barrier}]{last};\n"
    )
