"""What copies of bytes without a tensor map have in common: where they may be, and how they are reduced."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.emulator.errors import Fault
from harness.emulator.instructions.reductions import combine
from harness.emulator.machine.state import Fragment
from harness.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT
from harness.emulator.ptx.ast import TYPE_BYTES

ALIGNMENT = 16
COMPLETE = "mbarrier::complete_tx::bytes"
"""The modifier of copies that end on an mbarrier."""
Bytes = NDArray[np.uint8]
Reduction = tuple[str, str] | None
"""An operation and a type, or None for a plain copy."""


def reduced(how: Reduction, old: Bytes, new: Bytes) -> Bytes:
    """What is in memory after new bytes have come to where old ones were.

    Sums of f32, which are only in global memory, flush subnormal numbers (PTX ISA 9.7.9.25.4.3).
    """
    if how is None:
        return new
    operation, kind = how
    dtype = f"u{TYPE_BYTES[kind]}"
    with np.errstate(all="ignore"):
        result = combine(
            operation, kind, np.ascontiguousarray(old).view(dtype), np.ascontiguousarray(new).view(dtype), kind == "f32"
        )
    return np.ascontiguousarray(result).view(np.uint8)


def own_offset(f: Fragment, address: int, what: str) -> int:
    if address >> RANK_SHIFT != f.cta.rank:
        raise Fault(f"{what} 0x{address:08x} is not in the CTA's own shared memory (rank {f.cta.rank})", "address")
    return address & OFFSET_MASK


def check(nbytes: int, *addresses: int) -> None:
    if nbytes % ALIGNMENT or nbytes == 0:
        raise Fault(f"a bulk copy of {nbytes} bytes; the size must be a multiple of {ALIGNMENT}", "operand")
    for address in addresses:
        if address % ALIGNMENT:
            raise Fault(f"a bulk copy at 0x{address:x}; addresses must be multiples of {ALIGNMENT}", "alignment")
