"""atom and red (PTX ISA 9.7.13.5, 9.7.13.6), and the operations that they and reducing copies do on memory.

The lanes of an atomic instruction execute one after another.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import AS_IS, finish
from emugpu.emulator.instructions.load_store import HINTS, SPACES, VECTORS, state_space
from emugpu.emulator.instructions.table import (
    Effect,
    Micro,
    Translator,
    Unsupported,
    address_parts,
    elements,
    instruction,
    kind_of,
    only,
    tuple_of,
)
from emugpu.emulator.instructions.values import M64, maximum, minimum
from emugpu.emulator.machine.events import Access, Site
from emugpu.emulator.machine.lanes import WARP_SIZE, Value, lane_value
from emugpu.emulator.machine.state import Cta, Fragment
from emugpu.emulator.memory.address_space import WINDOWS, space_of
from emugpu.emulator.ptx.ast import TYPE_BYTES, Instruction, Sink
from emugpu.emulator.units import float_math
from emugpu.emulator.units.formats import BF16, F16, F32, F64, Format

# ---- one operation on bit patterns of any type ----

FLOATS: dict[str, Format] = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64, "f16x2": F16, "bf16x2": BF16}
F64_INFINITY = 0x7FF0000000000000
Bits = NDArray[Any]


def _decremented(old: Any, limit: Any) -> Any:
    wraps = (old == 0) | (old > limit)
    return wraps * limit + (wraps ^ True) * (old - 1)


_INTEGERS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "exch": lambda old, new: new,
    "inc": lambda old, limit: (old < limit) * (old + 1),
    "dec": _decremented,
}


def of_integers(operation: str, kind: str, old: Any, new: Any) -> Any:
    """Returns the result of an integer operation on two Python ints, or elementwise on unsigned arrays of bits."""
    if operation in ("min", "max"):
        high = 1 << 8 * TYPE_BYTES[kind] - 1 if kind[0] == "s" else 0
        return (minimum if operation == "min" else maximum)(old, new, high)
    return _INTEGERS[operation](old, new)


def combine(operation: str, kind: str, old: Bits, new: Bits, flush: bool = False) -> Bits:
    """Returns the result of an elementwise operation on unsigned arrays that hold bits of a type.

    Floats are rounded to nearest even. flush: subnormal f32 operands and results become zero, as in sums in global
    memory.
    """
    if kind in FLOATS and operation in ("add", "min", "max"):
        form = FLOATS[kind]
        if kind.endswith("x2"):
            halves = [combine(operation, kind[:-2], old >> s & 0xFFFF, new >> s & 0xFFFF) for s in (0, 16)]
            both: Bits = (halves[0] | halves[1].astype(np.uint32) << 16).astype(old.dtype)
            return both
        a, b = (float_math.inputs(x, form, flush) for x in (old, new))
        if operation == "add":
            result = float_math.of_format(form, "add", "rn", a, b)
        else:
            result = float_math.extremum(operation, [a, b], False, False, False)
        return float_math.finish(result, form, "rn", ftz=flush).astype(old.dtype)
    bits: Bits = of_integers(operation, kind, old, new)
    return bits


# ---- lanes one after another ----


def _target(f: Fragment, space: str, address: int, nbytes: int) -> tuple[Any, int, Cta | None]:
    """Returns the memory of an address, the place there, and the CTA whose shared memory it is, or None."""
    held_in = space_of(address) if space == "generic" else space
    if held_in == "global":
        return f.grid.memory, address, None
    if held_in not in ("shared", "cluster"):
        raise Fault(f"atomics act on global and shared memory, and this address is in {held_in}", "address")
    local = address - WINDOWS["shared"] if space == "generic" else address
    cta, where = f.cta.cluster.cta_at(local, "an atomic")
    if space == "shared" and cta is not f.cta:
        raise Fault(f"shared::cta address 0x{local:08x} names CTA rank {cta.rank}, not its own", "address")
    cta.check_alive("an atomic reaches")
    cta.shared.check_no_mbarrier(where, where + nbytes)
    return cta.shared, where, cta


def _report(
    f: Fragment, site: Site, lane: int, cta: Cta | None, where: int, nbytes: int, items: int, held: Any
) -> None:
    if f.grid.sink is not None:
        rank = cta.rank if cta is not None else -1
        agent = f.agent._replace(lanes=1 << lane)
        f.grid.sink(Access(agent, site, "atomic", "shared" if cta else "global", rank, where, nbytes, items, held))


def _combined(operation: str, kind: str, old: int, new: int, in_global: bool) -> int:
    """Returns the new content of memory after one lane's operation on one item.

    In global memory f32 flushes subnormal numbers to zeros of their sign (PTX ISA 9.7.13.5), and an f64 NaN is not made
    quiet, as seen on an H200.
    """
    if kind not in FLOATS:
        return int(of_integers(operation, kind, old, new)) & (1 << 8 * TYPE_BYTES[kind]) - 1
    if kind == "f64" and in_global:
        for bits in (old, new):
            if bits & ((1 << 63) - 1) > F64_INFINITY:
                return bits
    a, b = (np.array([bits], f"u{TYPE_BYTES[kind]}") for bits in (old, new))
    with np.errstate(all="ignore"):
        return int(combine(operation, kind, a, b, kind == "f32" and in_global)[0])


def atomic(
    f: Fragment, site: Site, space: str, operation: str, kind: str, address: Value, values: Sequence[Value], c: Value
) -> Any:
    """Executes an operation on a number, or item by item on a vector. Returns the old values, a tuple if several.

    cas stores c if the memory holds the expected value.
    """
    nbytes, count = TYPE_BYTES[kind], len(values)
    mask = (1 << 8 * nbytes) - 1
    old_values: list[list[int]] = [[] for _ in values]
    for lane in f.lanes:
        store, where, cta = _target(f, space, lane_value(address, lane), nbytes * count)
        if count > 1 and where % (nbytes * count):
            raise Fault(f"address 0x{where:x} is not aligned to the {nbytes * count} bytes of the atomic", "alignment")
        held = []
        for n, value in enumerate(values):
            old = store.load_int(where + n * nbytes, nbytes)
            new = lane_value(value, lane) & mask
            if operation == "cas":
                new = lane_value(c, lane) & mask if old == new else old
            else:
                new = _combined(operation, kind, old, new, cta is None)
            store.store_int(where + n * nbytes, nbytes, new)
            f.grid.wakeups.changes += new != old
            old_values[n].append(old)
            held.append(new)
        _report(f, site, lane, cta, where, nbytes, count, held[0] if count == 1 else tuple(held))
    if f.single >= 0:
        found: list[Value] = [o[0] for o in old_values]
    else:
        found = [finish(f, np.array(o, np.dtype(f"u{nbytes}")), nbytes, AS_IS) for o in old_values]
    return found[0] if count == 1 else tuple(found)


def atomic_128(f: Fragment, site: Site, space: str, operation: str, address: Value, b: Value, c: Value) -> Value:
    """Executes exch or cas of 128 bits."""
    old_values: list[int] = []
    for lane in f.lanes:
        store, where, cta = _target(f, space, lane_value(address, lane), 16)
        if where % 16:
            raise Fault(f"address 0x{where:x} is not aligned to the 16 bytes of the atomic", "alignment")
        old = store.load_int(where, 8) | store.load_int(where + 8, 8) << 64
        argument = lane_value(b, lane)
        new = argument if operation == "exch" else lane_value(c, lane) if old == argument else old
        halves = (new & M64, new >> 64)
        for n, half in enumerate(halves):
            store.store_int(where + 8 * n, 8, half)
        f.grid.wakeups.changes += 1
        _report(f, site, lane, cta, where, 8, 2, halves)
        old_values.append(old)
    if f.single >= 0:
        return old_values[0]
    out = np.zeros(WARP_SIZE, object)
    for lane, old in zip(f.lanes, old_values, strict=True):
        out[lane] = old
    return out


# ---- the table ----

_NAMES = ("add", "and", "or", "xor", "exch", "cas", "inc", "dec", "min", "max")
_VECTOR_ITEMS = {
    "f32": (1, 2, 4), "f16": (1, 2, 4, 8), "bf16": (1, 2, 4, 8), "f16x2": (1, 2, 4), "bf16x2": (1, 2, 4),
}  # fmt: skip


def _space(i: Instruction, w: Translator, first: int) -> str:
    space = state_space(i, w, i.operands[first])
    if space not in ("shared", "cluster", "global", "generic"):
        raise Unsupported
    return space


@instruction("red", operands=range(2, 4), writes=0, family="memory")
@instruction("atom", operands=range(3, 6), family="memory")
def _atomic(i: Instruction, w: Translator) -> Effect:
    first = int(i.opcode == "atom")  # the position of the address among the operands
    operation = next((m for m in i.modifiers if m in _NAMES), "")
    if not operation or len(i.operands) < first + (3 if operation == "cas" else 2):
        raise Unsupported
    if any(i.has(v) for v in VECTORS) or i.has("noftz"):
        return _floats(i, w, first, operation)
    kind = kind_of(i)
    only(i, _NAMES, HINTS, SPACES)
    space, address = _space(i, w, first), w.pointer(i.operands[first])
    b, *more = (w.read(o, kind) for o in i.operands[first + 1 :])
    c = more[0] if operation == "cas" else "0"
    if kind == "b128" and operation in ("exch", "cas") and first:
        return Effect(atomic_128, [repr(space), repr(operation), address, b, c], i.operands[:first])
    plain = kind[0] in "bus" and not kind.startswith("bf") and TYPE_BYTES[kind] <= 8 and not kind.endswith("x2")
    if not plain and not (kind in ("f32", "f64") and operation == "add"):
        raise Unsupported
    native = _native(i, space, operation, kind, first)
    arguments = [repr(space), repr(operation), repr(kind), address, f"({b},)", c]
    return Effect(atomic, arguments, i.operands[:first], micro=native)


def _native(i: Instruction, space: str, operation: str, kind: str, first: int) -> tuple[Micro, ...]:
    """Returns the operation as a micro-operation."""
    size = TYPE_BYTES[kind]
    if space == "cluster" or size < 4:
        return ()
    base, width, offset = address_parts(i.operands[first])
    name = f"{operation}.{'s' if kind[0] == 's' else 'u'}" if operation in ("min", "max") else operation
    name = "add.f" if kind in ("f32", "f64") else name
    destination = i.operands[0] if first and not isinstance(i.operands[0], Sink) else None
    sources = ((base, width), *((o, kind) for o in i.operands[first + 1 :][: 2 if operation == "cas" else 1]))
    return (Micro(name, destination, sources, space, size, offset, is_first=True),)


def _floats(i: Instruction, w: Translator, first: int, operation: str) -> Effect:
    """Emits add of 16-bit floats, or add, min or max of vectors, whose type comes before the operation."""
    only(i, _NAMES, HINTS, SPACES, VECTORS, "noftz")
    kind = next((m for m in i.modifiers if m in FLOATS), "")
    count = next((n for v, n in VECTORS.items() if i.has(v)), 1)
    halves = kind not in ("f32", "f64", "")
    if count not in _VECTOR_ITEMS.get(kind, ()) or i.has("noftz") != halves:
        raise Unsupported
    if operation not in ("add", "min", "max") or (operation != "add" and (count == 1 or not halves)):
        raise Unsupported
    sources = elements(i.operands[first + 1])
    if len(sources) != count:
        raise Unsupported
    space = _space(i, w, first)
    if count > 1 and space not in ("global", "generic"):
        raise Unsupported
    values = tuple_of(w.read(o, kind) for o in sources)
    results = elements(i.operands[0]) if first else ()
    if first and (len(results) != count or any(isinstance(r, Sink) for r in results)):
        raise Unsupported
    arguments = [repr(space), repr(operation), repr(kind), w.pointer(i.operands[first]), values, "0"]
    return Effect(atomic, arguments, results)
