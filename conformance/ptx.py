"""Builds PTX text: a module with one kernel, and pieces of a body that several probes use. It depends on no probe.

Instructions are of PTX ISA 8.6.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from emugpu.emulator import Swizzle

HOPPER = "sm_90a"
TARGETS = {"9.0": HOPPER, "10.0": "sm_100a", "10.3": "sm_103a"}
"""PTX's names of the GPUs for which there are probes, by compute capability."""
FIRST_VERSIONS = {"sm_103a": "8.8"}
"""The first version of PTX with a target, if it is later than that of the probes."""

UNTOUCHED = 0xEEEEEEEE
"""The content of shared memory before the test, which marks unwritten bytes."""

REGISTERS = """.reg .pred %p<16>;
.reg .b16 %h<16>;
.reg .b32 %r<64>;
.reg .b64 %rd<32>;
.reg .b32 %thread, %base;
mov.u32 %thread, %tid.x;
mov.u32 %base, smem;
"""
"""The registers of `kernel`: %thread is the index of the thread, %base the address of the dynamic shared memory."""


def module(
    entry: str,
    parameters: Sequence[str],
    body: str,
    *,
    target: str,
    version: str,
    scope: str = "",
    directives: str = "",
) -> str:
    """Returns a module with one kernel.

    A parameter is "map NAME" for a tensor map, or a type with a name, such as "u64 NAME". ``scope`` holds declarations
    before the kernel, ``directives`` those after its parameters, on a separate line.
    """
    declared = ", ".join(_parameter(*parameter.split()) for parameter in parameters)
    return f""".version {version}
.target {target}
.address_size 64
{scope}
.visible .entry {entry}({declared}){directives}
{{
{body}
}}
"""


def _parameter(kind: str, name: str) -> str:
    return f".param .align 64 .b8 {name}[128]" if kind == "map" else f".param .{kind} {name}"


def kernel(parameters: Sequence[str], body: str, target: str = HOPPER, version: str = "8.6") -> str:
    """Returns a module with the kernel ``probe``, with `REGISTERS` and dynamic shared memory."""
    scope = ".extern .shared .align 1024 .b8 smem[];"
    return module("probe", parameters, f"{REGISTERS}{body}\nret;", target=target, version=version, scope=scope)


def for_target(ptx: str, target: str | None) -> str:
    """Returns the text for another GPU. ptxas and the driver refuse instructions that it lacks."""
    if not target or f".target {target}" in ptx:
        return ptx
    if target in FIRST_VERSIONS:
        ptx = re.sub(r"(?m)^\.version \S+", f".version {FIRST_VERSIONS[target]}", ptx)
    return re.sub(r"(?m)^\.target \w+", f".target {target}", ptx)


def _by_words(nbytes: int, threads: int, body: str) -> str:
    """Returns code for all threads: ``body`` for each word, whose byte offset 0, 4, .. nbytes - 4 is in the register
    ``at``.
    """
    return f"""{{
.reg .b32 at, word, near;
.reg .b64 far;
.reg .pred done;
shl.b32 at, %thread, 2;
NEXT:
setp.ge.u32 done, at, {nbytes};
@done bra END;
{body}
add.u32 at, at, {4 * threads};
bra NEXT;
END:
}}
"""


def fill(first: int, nbytes: int, threads: int) -> str:
    """Returns code for all threads: sets the words of shared memory first .. first + nbytes - 1 to `UNTOUCHED`."""
    body = f"add.u32 near, at, %base;\nst.shared.b32 [near+{first}], {UNTOUCHED};"
    return _by_words(nbytes, threads, body)


def dump(first: int, nbytes: int, threads: int, to: str) -> str:
    """Returns code for all threads: copies words of shared memory to the global address in the 64-bit register
    ``to``.
    """
    body = f"""add.u32 near, at, %base;
ld.shared.b32 word, [near+{first}];
cvt.u64.u32 far, at;
add.u64 far, far, {to};
st.global.b32 [far], word;"""
    return _by_words(nbytes, threads, body)


def copy_in(source: str, first: int, nbytes: int, threads: int) -> str:
    """Returns code for all threads: copies words from the global address in the 64-bit register ``source`` to shared
    memory.
    """
    body = f"""cvt.u64.u32 far, at;
add.u64 far, far, {source};
ld.global.b32 word, [far];
add.u32 near, at, %base;
st.shared.b32 [near+{first}], word;"""
    return _by_words(nbytes, threads, body)


def spin(until: str, done: str, nanoseconds: int, tries: int) -> str:
    """Returns code that executes ``until``, with pauses of this many nanoseconds, until it sets the predicate ``done``,
    or ``tries`` times.
    """
    return f"""{{
.reg .b32 tries;
.reg .pred more;
mov.u32 tries, 0;
AGAIN:
{until}
@{done} bra POLLED;
nanosleep.u32 {nanoseconds};
add.u32 tries, tries, 1;
setp.lt.u32 more, tries, {tries};
@more bra AGAIN;
POLLED:
}}
"""


def poll(barrier: str, parity: int | str, done: str, nanoseconds: int = 2000, tries: int = 300) -> str:
    """Returns code that waits for a phase of an mbarrier, for about a millisecond; ``done`` says whether it
    completed.
    """
    return spin(f"mbarrier.test_wait.parity.shared::cta.b64 {done}, [{barrier}], {parity};", done, nanoseconds, tries)


ONLY_THREAD_0 = "setp.ne.u32 %p0, %thread, 0;\n"
"""%p0 says whether this is not thread 0."""

CTA_SYNC = "bar.warp.sync -1;\nbar.sync 0;\n"
CLUSTER_SYNC = "bar.warp.sync -1;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
"""The barriers are ``.aligned``: lanes that a branch has separated must meet first."""


DESCRIPTOR_LAYOUT = {Swizzle.NONE: 0, Swizzle.B128: 1, Swizzle.B64: 2, Swizzle.B32: 3}


def descriptor(leading: int, stride: int, swizzle: Swizzle, base_offset: int = 0) -> int:
    """Returns a wgmma matrix descriptor without its start address (PTX ISA 9.7.15.5.1.2.2). Offsets are in bytes."""
    layout = DESCRIPTOR_LAYOUT[swizzle] << 62
    return (leading >> 4) << 16 | (stride >> 4) << 32 | base_offset << 49 | layout


def with_start(descriptor_bits: int, address: str, result: str) -> str:
    """Returns code that adds the start address, in a 32-bit register, to a descriptor; the result is a 64-bit
    register.
    """
    return f"""{{
.reg .b32 start;
shr.u32 start, {address}, 4;
and.b32 start, start, 16383;
cvt.u64.u32 {result}, start;
or.b64 {result}, {result}, {descriptor_bits};
}}
"""


def tma_load(to: str, tensor_map: str, column: str, row: str, barrier: str, mask: str = "") -> str:
    """Returns a load. ``to`` and ``barrier`` are shared addresses; ``mask`` is a 16-bit register for multicast."""
    multicast, last = (".multicast::cluster", f", {mask}") if mask else ("", "")
    return (
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f"{multicast} [{to}], [{tensor_map}, {{{column}, {row}}}], [{barrier}]{last};\n"
    )


def wgmma(n: int, element: str, d: list[str], a: str, b: str, keep: str, flags: str) -> str:
    """Returns one wgmma.mma_async. ``a`` is a descriptor, or a vector of four registers; ``keep`` is the predicate of
    scale-d.
    """
    types = f"f32.{element}.{element}"
    return f"wgmma.mma_async.sync.aligned.m64n{n}k16.{types} {{{', '.join(d)}}}, {a}, {b}, {keep}, {flags};\n"
