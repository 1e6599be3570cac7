"""The stack of a thread, in its local memory above the kernel's variables (PTX ISA 9.7.17): alloca, stacksave and
stackrestore.

The parser replaces calls by the function's body. So the memory that a function has allocated is freed at the end of the
kernel, not of the function, and a function that runs often enough exceeds the limit.
"""

from __future__ import annotations

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import AS_IS, finish, offsets
from emugpu.emulator.instructions.table import Effect, Translator, Unsupported, immediate, instruction, only_form
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.memory.local import MOST
from emugpu.emulator.ptx.ast import Instruction


def allocate(f: Fragment, site: Site, size: Value, alignment: int) -> Value:
    """Executes ``alloca``: returns the local address of each lane's new bytes, which are unwritten."""
    return finish(f, f.warp.own_local().allocate(f.lane_index, offsets(f, size), alignment), 8, AS_IS)


def save(f: Fragment, site: Site) -> Value:
    """Executes ``stacksave``: returns the address of the next byte."""
    return finish(f, f.warp.local.tops[f.lane_index], 8, AS_IS)


def restore(f: Fragment, site: Site, saved: Value) -> None:
    """Executes ``stackrestore``: frees everything allocated since the stacksave."""
    tops, where = f.warp.local.tops, offsets(f, saved)
    if (where > tops[f.lane_index]).any() or (where < f.grid.code.local_bytes).any():
        raise Fault(f"0x{int(where.max()):x} is not an address that stacksave returned", "address")
    f.warp.own_local().tops[f.lane_index] = where


@instruction("alloca", operands=range(2, 4), family="memory")
def _alloca(i: Instruction, w: Translator) -> Effect:
    only_form(i, "u64")
    alignment = immediate(i.operands[2]) if len(i.operands) == 3 else 8
    if alignment.bit_count() != 1 or alignment > MOST:
        raise Unsupported
    return Effect(allocate, [w.read(i.operands[1], "u64"), str(max(8, alignment))], [i.operands[0]])


@instruction("stacksave", operands=1, family="memory")
def _stacksave(i: Instruction, w: Translator) -> Effect:
    only_form(i, "u64")
    return Effect(save, results=[i.operands[0]])


@instruction("stackrestore", operands=1, writes=0, family="memory")
def _stackrestore(i: Instruction, w: Translator) -> Effect:
    only_form(i, "u64")
    return Effect(restore, [w.read(i.operands[0], "u64")])
