"""st.bulk: zeros in shared memory (PTX ISA 9.7.9.14)."""

from __future__ import annotations

import numpy as np

from harness.emulator.errors import Fault
from harness.emulator.instructions.bulk_bytes import own_offset
from harness.emulator.instructions.table import (
    CONSUMER,
    TENSOR_MEMORY,
    Effect,
    Translator,
    Unsupported,
    immediate,
    instruction,
    memory,
    only,
)
from harness.emulator.machine import events
from harness.emulator.machine.events import Site
from harness.emulator.machine.lanes import Value, lane_value
from harness.emulator.machine.state import Fragment
from harness.emulator.ptx.ast import Instruction

_ST_BULK = ("sm_100", *TENSOR_MEMORY, "sm_120", *CONSUMER)


def clear(f: Fragment, site: Site, address: Value, size: Value) -> None:
    """``st.bulk``: zeros."""
    for lane in f.lanes:
        where, nbytes = lane_value(address, lane), lane_value(size, lane)
        offset = own_offset(f, where, "the destination of st.bulk")
        if offset % 8 or nbytes % 8:
            raise Fault(f"st.bulk of {nbytes} bytes at 0x{offset:x}; both must be multiples of 8", "alignment", offset)
        if nbytes:
            f.cta.shared.write(offset, np.zeros(nbytes, np.uint8))
        if f.grid.sink is not None and nbytes:
            words = (0,) * (nbytes // 8)
            agent = f.agent._replace(lanes=1 << lane)
            f.grid.sink(events.Access(agent, site, "write", "shared", f.cta.rank, offset, 8, len(words), words))
    f.grid.wakeups.changes += 1


@instruction("st.bulk", operands=3, writes=0, family="memory", targets=_ST_BULK)
def _st_bulk(i: Instruction, w: Translator) -> Effect:
    only(i, "weak", "shared::cta")
    if not i.has("shared::cta") or immediate(i.operands[2]) != 0:
        raise Unsupported
    return Effect(clear, [w.pointer(memory(i.operands[0])), w.read(i.operands[1], "u64")])
