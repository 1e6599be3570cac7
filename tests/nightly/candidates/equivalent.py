"""Planted faults that change nothing a program could rely on, each with the reason why."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.nightly.candidates.faults import Fault


class Equivalent(NamedTuple):
    """Patterns of the kernel's name, of the kind and of "line 12: the statement"."""

    reason: str
    kernel: str
    kind: str
    text: str = ""


EQUIVALENT = (
    Equivalent(
        "The kernel's end completes bulk stores: a warning (exit-pending), as kernels that run well leave them.",
        "bulk_store|ptx-adds",
        "commit or wait of copies",
        r"cp\.async\.bulk\.wait_group 0;|line (39|40): .*cp\.async\.bulk\.(commit|wait)_group",
    ),
    Equivalent(
        "Each CTA has waited for all that comes from outside before it ends.",
        "ptx-exchange",
        "barrier of threads",
        r"line 4\d: barrier\.cluster",
    ),
    Equivalent(
        "The commit in front of the loop: a later one of its thread covers it before anybody touches its operands.",
        "triton-matmul.*sm_?100",
        "wait of the tensor core",
        r"line (402|409|412|770): @%p\d+ tcgen05\.commit",
    ),
    Equivalent(
        "Softmax is the same whatever is subtracted from a row, be it the maximum or another number of its size.",
        "triton-softmax",
        "shared memory not written|another lane",
        r"st\.shared.*%r8;|shfl\.sync\.bfly\.b32 %r[23]\d,",
    ),
    Equivalent(
        "All lanes hold the same number of their warp, or of a register that is uniform in it.",
        "cute-|triton-tma|mojo-.*sm_90a",
        "another lane",
        r"shfl\.sync\.idx\.b32 %r\d+, %r\d+, 0, 31, -1",
    ),
    Equivalent(
        "Of the barriers behind the initialisations each stands for the others; without any of them it is an error.",
        "cute-",
        "barrier of threads",
        r"bar\.sync|barrier\.cluster\.arrive(\.relaxed)?; barrier\.cluster\.wait",
    ),
    Equivalent(
        "The loaded registers, which the hardware waits for, are used before others touch the columns: a warning.",
        "(cute|triton|nvcc|mojo)-",
        "wait of the tensor core",
        r"tcgen05\.wait::ld",
    ),
    Equivalent(
        "A CTA has one tile, so that the wait for a free accumulator is over at once.",
        "cute-gemm_f16_pairs_sm100",
        "stage released early|parity|count",
        r"line (347|530):|\[%r1\+(64|72|48|56)\]",
    ),
    Equivalent(
        "They store one piece and end: the kernel's end completes bulk stores (exit-pending, a warning).",
        "mojo-kernel[56]-sm_100a",
        "commit or wait of copies",
    ),
    Equivalent(
        "It waits for the peer before tcgen05.dealloc, which both CTAs of a pair execute together (PTX ISA 9.7.16.7).",
        "cute-gemm_(f16_)?pair",
        "stage released early|parity",
        r"line \d+: mbarrier\.try_wait\.parity\.shared\.b64 P1, \[%r\d+\], 0, ",
    ),
    Equivalent(
        "The lanes are together again where the branch ends, and hand one another nothing there but by barriers.",
        "mojo-",
        "warps not together",
        r"bar\.warp\.sync",
    ),
    Equivalent("Nothing reads what it gives.", "triton-row_scans", "another lane", r"line (140|166):"),
    Equivalent(
        "It separates lanes of one warp, which the shfl behind the load has wait for one another.",
        "triton-row_sorts-sm_90a",
        "barrier of threads",
        r"line 499:",
    ),
)


def why_equivalent(kernel: str, fault: Fault) -> str:
    """Returns why a fault is none; nothing if it is one."""
    place = f"line {fault.line}: {fault.text}"
    for one in EQUIVALENT:
        if all(re.search(p, t) for p, t in ((one.kernel, kernel), (one.kind, fault.kind), (one.text, place))):
            return one.reason
    return ""
