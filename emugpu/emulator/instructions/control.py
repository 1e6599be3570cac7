"""Control flow and trap, calls of functions that CUDA provides, and setmaxnreg (PTX ISA 9.7.12, 9.7.19).

The translation handles control flow, and the parser replaces calls by the function's body. The remaining calls are
those of vprintf, __assertfail, malloc and free (CUDA Programming Guide, "Formatted Output", "Dynamic Global Memory
Allocation"). Their arguments are in the caller's .param variables, at offsets in the thread's local memory.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.table import Effect, Translator, Unsupported, immediate, instruction, only, only_form
from emugpu.emulator.instructions.values import signed
from emugpu.emulator.machine.events import PrintedText, RegistersSet, Site
from emugpu.emulator.machine.kernel_launch import Printed
from emugpu.emulator.machine.register_pool import GRANULE, LARGEST
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.memory.address_space import OFFSET_MASK, RANK_SHIFT, WINDOWS, space_of
from emugpu.emulator.ptx.ast import Instruction, Label, Operand, Symbol, Vector


@instruction("bra", "brx.idx", "ret", "exit", operands=range(3), writes=0, family="branch")
def _branch(i: Instruction, w: Translator) -> None:
    """Emits nothing. The instruction is the end of a basic block."""
    only(i, "uni")


def trap(f: Fragment, site: Site) -> None:
    raise Fault("the program executes trap: it has found something wrong itself", "trap")


@instruction("trap", "brkpt", operands=0, writes=0, family="other")
def _trap(i: Instruction, w: Translator) -> Effect:
    only_form(i, "")
    return Effect(trap)


@instruction("pmevent", operands=1, writes=0, family="other")
def _pmevent(i: Instruction, w: Translator) -> None:
    """Emits nothing. The instruction is a mark for performance tools."""
    only(i, "mask")


# ---- vprintf and __assertfail ----

MOST_CHARACTERS = 4096
_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\d+))?(hh|h|ll|l|j|z|t|L)?([diouxXeEfFgGaAcsp%])")
"""Text that is no conversion is printed unchanged. A conversion with precision * is none (seen on an H200)."""


def _local(f: Fragment, lane: int, offset: int, nbytes: int) -> int:
    lanes = np.array([lane], np.intp)
    return int(f.warp.local.load(lanes, np.array([offset], np.int64), nbytes)[0])


def _bytes(f: Fragment, lane: int, address: int, nbytes: int) -> int:
    """Returns an integer at a generic address, as one thread reads it."""
    space = space_of(address)
    where = address - WINDOWS[space]
    if space == "local":
        return _local(f, lane, where, nbytes)
    if space in ("global", "const"):
        return (f.grid.memory if space == "global" else f.grid.constants).load_int(where, nbytes)
    if space == "shared":
        return f.cta.cluster.ctas[where >> RANK_SHIFT].shared.load_int(where & OFFSET_MASK, nbytes)
    raise Fault(f"a pointer 0x{address:x} that is passed to the system is in {space} memory", "address")


def _string(f: Fragment, lane: int, address: int) -> str:
    found = bytearray()
    while len(found) < MOST_CHARACTERS:
        byte = _bytes(f, lane, address + len(found), 1)
        if not byte:
            break
        found.append(byte)
    return found.decode("utf-8", "replace")


class _Arguments:
    """The arguments of printf, one after another at their natural alignment."""

    def __init__(self, f: Fragment, lane: int, address: int) -> None:
        self._fragment, self._lane, self._address = f, lane, address

    def take(self, nbytes: int) -> int:
        at = -(-self._address // nbytes) * nbytes
        self._address = at + nbytes
        return _bytes(self._fragment, self._lane, at, nbytes)


def formatted(f: Fragment, lane: int, text: str, arguments: int) -> str:
    """Returns the text of one thread's ``printf``. C's conversions become Python's, which differ only in the sizes."""
    source = _Arguments(f, lane, arguments)

    def convert(match: re.Match[str]) -> str:
        flags, width, precision, size, conversion = match.groups()
        if conversion == "%":
            return "%"
        given = signed(source.take(4), 32) if width == "*" else width
        form = "%" + flags + str(given if given is not None else "")
        form += f".{precision}" if precision is not None else ""
        nbytes = 8 if size in ("l", "ll", "j", "z", "t") else 4
        value: Any
        if conversion in "di":
            value, conversion = signed(source.take(nbytes), 8 * nbytes), "d"
        elif conversion in "ouxX":
            value, conversion = source.take(nbytes), "d" if conversion == "u" else conversion
        elif conversion == "c":
            value, conversion = chr(source.take(4) & 0xFF), "s"
        elif conversion == "p":
            value, conversion = hex(source.take(8)), "s"
        elif conversion == "s":
            value = _string(f, lane, source.take(8))
        else:
            value = float(np.uint64(source.take(8)).view(np.float64))
            if conversion in "aA":
                value, conversion = value.hex(), "s"
        return str((form + conversion) % value)

    return _CONVERSION.sub(convert, text)


def print_formatted(f: Fragment, site: Site, text: int, arguments: int, result: int) -> None:
    """Executes ``vprintf`` with pointers to the format and to the arguments. Stores the result 0."""
    for lane in f.lanes:
        form = _string(f, lane, _local(f, lane, text, 8))
        written = formatted(f, lane, form, _local(f, lane, arguments, 8))
        f.grid.printed.append(Printed(f.cta.index, f.warp.thread(lane), written))
        if f.grid.sink is not None:
            f.grid.sink(PrintedText(f.agent, site, lane, written))
    if result >= 0:
        f.warp.local.store(f.lane_index, np.full(f.count, result, np.int64), 4, 0)
    f.grid.wakeups.changes += 1


def fail_assertion(f: Fragment, site: Site, message: int, file: int, line: int, function: int) -> None:
    """Executes ``__assertfail`` with the message of the CUDA driver."""
    lane = f.lanes[0]
    condition, path, name = (_string(f, lane, _local(f, lane, at, 8)) for at in (message, file, function))
    block, thread = (str(list(index)).replace(" ", "") for index in (f.cta.index, f.warp.thread(lane)))
    raise Fault(
        f"{path}:{_local(f, lane, line, 4)}: {name}: block: {block}, thread: {thread} Assertion `{condition}` failed.",
        "assert",
    )


# ---- malloc and free ----

HEAP_BYTES = 8 << 20
"""The heap of a device if the program has not asked for more (cudaLimitMallocHeapSize)."""


def allocate(f: Fragment, site: Site, size: int, result: int) -> None:
    """Executes ``malloc``: each thread gets memory of its own, or null if the heap has too little left."""
    memory = f.grid.memory
    for lane in f.lanes:
        nbytes = _local(f, lane, size, 8)
        used = sum(block.data.size for block in memory.allocations if block.name == HEAP)
        fits = 0 < nbytes <= HEAP_BYTES - used
        address = memory.alloc(nbytes, HEAP) if fits else 0
        f.warp.local.store(np.array([lane], np.intp), np.array([result], np.int64), 8, address)
    f.grid.wakeups.changes += 1


HEAP = "the device's heap"


def release(f: Fragment, site: Site, pointer: int) -> None:
    """Executes ``free`` of a pointer that malloc returned, or of null."""
    memory = f.grid.memory
    for lane in f.lanes:
        address = _local(f, lane, pointer, 8)
        if not address:
            continue
        block, offset = memory.find(address, 1)
        if block.name != HEAP or offset:
            raise Fault(f"frees 0x{address:x}, which malloc did not return", "address")
        memory.remove(block)
        f.grid.freed.append(block)
    f.grid.wakeups.changes += 1


def _places(operand: Operand, w: Translator) -> list[str]:
    """Returns the local offsets of a call's .param variables."""
    if not isinstance(operand, Vector):
        raise Unsupported
    named = []
    for element in operand.elements:
        if not isinstance(element, Symbol):
            raise Unsupported
        named.append(w.address(element))
    return named


@instruction("call", operands=3, writes=0, family="other")
def _call(i: Instruction, w: Translator) -> Effect:
    name, results, arguments = i.operands
    called = name.name if isinstance(name, Label) else ""
    given = _places(arguments, w)
    if called == "vprintf" and len(given) == 2:
        where = _places(results, w)
        return Effect(print_formatted, [*given, where[0] if where else "-1"])
    if called == "malloc" and len(given) == 1 and _places(results, w):
        return Effect(allocate, [*given, *_places(results, w)])
    if called == "free" and len(given) == 1:
        return Effect(release, given)
    if called == "__assertfail" and len(given) == 5:
        return Effect(fail_assertion, given[:4])
    raise Unsupported


# ---- setmaxnreg ----

SMALLEST = 24


def set_max_registers(f: Fragment, site: Site, count: int, increase: bool) -> object:
    """Executes setmaxnreg: the warp returns registers to the CTA's pool, or waits until the pool has enough.

    The pool is known only if the kernel fixes the registers at entry. Otherwise nothing is counted.
    """
    f.require_whole_warp()
    warp = f.warp.index
    pool = f.cta.register_pool
    other = pool.differs(warp, count)
    if other is not None:
        # Attention kernels that run well on Blackwell do this: their fourth warpgroup has warps of several roles.
        f.grid.findings.warn(
            "registers-differ", site, f"setmaxnreg to {count} registers, and another warp of the warpgroup to {other}"
        )
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
    f.grid.wakeups.release(pool.waiters)
    return None


@instruction("setmaxnreg", operands=1, writes=0, blocks=True, family="other")
def _setmaxnreg(i: Instruction, w: Translator) -> Effect:
    only_form(i, "inc.sync.aligned.u32", "dec.sync.aligned.u32")
    count = immediate(i.operands[0])
    if count % GRANULE or not SMALLEST <= count <= LARGEST:
        raise Unsupported
    return Effect(set_max_registers, [str(count), str(i.has("inc"))])
