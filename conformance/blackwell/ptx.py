"""Pieces of PTX for sm_100a that several probes use. Nothing waits for ever: every wait for an mbarrier gives up."""

from __future__ import annotations

from conformance.ptx import kernel as any_kernel

TARGET, VERSION = "sm_100a", "8.7"
"""The first version of PTX with all of tcgen05."""
LANES = 128
THREADS = 128
"""Four warps, each with its own 32 lanes of tensor memory."""
BLANK = 0xEEEEEEEE
"""The content of tensor memory before the test, unless a probe sets another."""
TMEM_ADDRESS = 64
"""The offset in shared memory for the address from tcgen05.alloc; mbarriers lie below."""
DATA = 1024
"""The offset of operands in shared memory."""
TO_EVEN, TO_ODD = 0xFEFFFFFF, 0x1000000
"""Masks for ``and`` and ``or`` that turn a shared address of one CTA of a pair into that of the even or the odd one:
bit 24 is the lowest of the rank.
"""
AT_ONCE = 16
"""Columns that a warp loads or stores with one instruction. The width of images of tensor memory is a multiple
of it.
"""


def kernel(parameters: list[str], body: str) -> str:
    """Returns a module for sm_100a with one kernel, ``probe``; ``%tmem`` is for the address of tensor memory."""
    return any_kernel(parameters, ".reg .b32 %tmem;\n" + body, TARGET, VERSION)


def sync(ctas: int = 1) -> str:
    """Returns code that synchronises all threads of a CTA, or of a cluster, and their accesses to tensor memory."""
    barrier = "bar.sync 0;\n" if ctas == 1 else "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
    fences = ("tcgen05.fence::before_thread_sync;\n", "tcgen05.fence::after_thread_sync;\n")
    return f"bar.warp.sync -1;\n{fences[0]}{barrier}{fences[1]}"


def by_warp_0(body: str) -> str:
    """Returns code that the whole first warp executes."""
    return _by_first(32, body)


def by_thread_0(body: str) -> str:
    """Returns code that one thread executes."""
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
    """Returns the size of an allocation of at least this many columns."""
    return next(size for size in (32, 64, 128, 256, 512) if size >= columns)


def allocate(columns: int, group: int = 1) -> str:
    """Returns code for all threads: allocates columns for this CTA, or for both of a pair; their address is in
    ``%tmem``.
    """
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
    """Returns code for all threads: the inverse of `allocate`, when tensor memory is no longer used."""
    size = _allocated(columns)
    return sync(group) + by_warp_0(f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %tmem, {size};\n")


def _by_columns(columns: int, buffer: str, body: str) -> str:
    """Returns code for all threads: ``body`` for each `AT_ONCE` columns of its lane. ``at`` names them, ``far`` their
    words in an image [lanes, columns] at the global address in the 64-bit register ``buffer``.
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
    """Returns code for all threads: fills tensor memory from an image [128 lanes, columns] in global memory. It uses
    only 32x32b.
    """
    loads = "".join(f"ld.global.b32 w{n}, [far+{4 * n}];\n" for n in range(AT_ONCE))
    store = f"tcgen05.st.sync.aligned.32x32b.x{AT_ONCE}.b32 [at], {_WORDS};\ntcgen05.wait::st.sync.aligned;"
    return _by_columns(columns, source, loads + store)


def dump_tmem(columns: int, to: str) -> str:
    """Returns code for all threads: the inverse of `fill_tmem`."""
    load = f"tcgen05.ld.sync.aligned.32x32b.x{AT_ONCE}.b32 {_WORDS}, [at];\ntcgen05.wait::ld.sync.aligned;\n"
    return _by_columns(columns, to, load + "".join(f"st.global.b32 [far+{4 * n}], w{n};\n" for n in range(AT_ONCE)))


def pointer(register: str, parameter: str, index: str = "", nbytes: int = 0) -> str:
    """Returns code for the address in a kernel parameter, plus ``index`` times ``nbytes``."""
    text = f"ld.param.u64 {register}, [{parameter}];\n"
    return text + (f"mad.wide.u32 {register}, {index}, {nbytes}, {register};\n" if index else "")


def map_address(register: str, parameter: str) -> str:
    """Returns code for the address of a tensor map that is a kernel parameter."""
    return f"mov.b64 {register}, {parameter};\ncvta.param.u64 {register}, {register};\n"


def commit(group: int, barrier: str = "%base", mask: str = "") -> str:
    """Returns a commit for one thread. ``mask`` is a 16-bit register."""
    multicast, last = (".multicast::cluster", f", {mask}") if mask else ("", "")
    return (
        f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{multicast}.b64 [{barrier}]{last};\n"
    )
