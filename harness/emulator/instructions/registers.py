"""setmaxnreg (PTX ISA 9.7.19.5)."""

from __future__ import annotations

from harness.emulator.errors import Fault
from harness.emulator.instructions.table import (
    CONSUMER,
    TENSOR_MEMORY,
    Effect,
    Translator,
    Unsupported,
    immediate,
    instruction,
    only_form,
)
from harness.emulator.machine.events import RegistersSet, Site
from harness.emulator.machine.state import Fragment
from harness.emulator.ptx.ast import Instruction

SMALLEST, LARGEST, GRANULE = 24, 256, 8


def set_max_registers(f: Fragment, site: Site, count: int, increase: bool) -> object:
    """The warp gives registers back to the CTA's pool, or waits until the pool has them.

    The pool is only known if the kernel fixes the registers at entry; otherwise nothing is counted.
    """
    f.require_whole_warp()
    warp = f.warp.index
    pool = f.cta.register_pool
    pool.check_request(warp, count)
    held = pool.held.get(warp, pool.at_entry)
    if held is not None:
        if count < held if increase else count > held:
            verb, rule = ("inc", "at least") if increase else ("dec", "at most")
            raise Fault(
                f"setmaxnreg.{verb} to {count} registers; the warp has {held}, it must be {rule} that", "registers"
            )
        if count - held > pool.free:
            pool.waiters.append(f)
            on = f"the register pool of CTA rank {f.cta.rank}, which has {pool.free} per thread of a warp left"
            return f.grid.wakeups.suspend(f, on, f"waits for {count - held} more registers per thread", site)
        pool.free -= count - held
    pool.note(warp, count)
    if f.grid.sink is not None:
        f.grid.sink(RegistersSet(f.agent, site, count))
    waiters, pool.waiters = pool.waiters, []
    f.grid.wakeups.resume_all(waiters)
    return None


@instruction(
    "setmaxnreg",
    operands=1,
    writes=0,
    blocks=True,
    family="other",
    targets=("sm_90a", *TENSOR_MEMORY, *CONSUMER),
)
def _setmaxnreg(i: Instruction, w: Translator) -> Effect:
    only_form(i, "inc.sync.aligned.u32", "dec.sync.aligned.u32")
    count = immediate(i.operands[0])
    if count % GRANULE or not SMALLEST <= count <= LARGEST:
        raise Unsupported
    return Effect(set_max_registers, [str(count), str(i.has("inc"))])
