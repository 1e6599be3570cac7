"""ld and st (PTX ISA 9.7.9.8, 9.7.9.11). What they do is in `emugpu.emulator.instructions.accesses`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from emugpu.emulator.instructions.accesses import (
    AS_IS,
    LOAD_FUNCTIONS,
    STORE_FUNCTIONS,
    WIDEN,
    Result,
    load_128,
    load_some,
    store_128,
)
from emugpu.emulator.instructions.table import (
    Effect,
    Micro,
    Translator,
    Unsupported,
    address_parts,
    bits_of,
    elements,
    instruction,
    kind_of,
    memory,
    micro,
    only,
    tuple_of,
)
from emugpu.emulator.ptx.ast import TYPE_BYTES, Instruction, Operand, Register, Sink

SPACES = {
    "shared": "shared",
    "shared::cta": "shared",
    "shared::cluster": "cluster",
    "global": "global",
    "param": "param",
    "param::entry": "param",
    "param::func": "local",
    "local": "local",
    "const": "const",
}
_STRONG = ("relaxed", "acquire", "release", "acq_rel", "volatile")
HINTS = (
    *_STRONG, "weak", "mmio", "cta", "cluster", "gpu", "sys", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt",
    "L1::no_allocate", "L1::evict_last", "L1::evict_first", "L1::evict_normal", "L1::evict_unchanged",
    "L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::64B", "L2::128B", "L2::256B", "L2::cache_hint",
)  # fmt: skip
VECTORS = {"v2": 2, "v4": 4, "v8": 8}


def state_space(i: Instruction, w: Translator, operand: Operand) -> str:
    """Returns the instruction's state space as a key of the functions; "generic" if it names none."""
    named = next((m for m in i.modifiers if m in SPACES), None)
    held_in = w.space_of(operand)
    if named is None or (named == "param" and held_in == "local"):
        # Function parameters are variables in local memory.
        named = held_in
    if named is None:
        return "generic"
    if named not in SPACES:
        raise Unsupported
    return SPACES[named]


def _items(i: Instruction, operand: Operand) -> tuple[str, tuple[Operand, ...]]:
    """Returns the type of an access, and its registers."""
    kind = kind_of(i)
    if kind not in TYPE_BYTES or TYPE_BYTES[kind] > 8:
        raise Unsupported
    count = next((n for name, n in VECTORS.items() if i.has(name)), 1)
    if len(elements(operand)) != count:
        raise Unsupported
    return kind, elements(operand)


def load_function(i: Instruction, w: Translator, operand: Operand) -> Callable[..., Result]:
    """Returns the function that loads from the state space of an instruction's address."""
    return LOAD_FUNCTIONS[state_space(i, w, operand)]


def store_function(i: Instruction, w: Translator, operand: Operand) -> Callable[..., None]:
    space = state_space(i, w, operand)
    if space not in STORE_FUNCTIONS:
        raise Unsupported
    return STORE_FUNCTIONS[space]


@instruction("ld", "ldu", operands=range(2, 4), family="memory")
def _ld(i: Instruction, w: Translator) -> Effect:
    only(i, SPACES, HINTS, VECTORS)
    if kind_of(i) == "b128" and not any(i.has(v) for v in VECTORS):
        load = load_function(i, w, i.operands[1])
        return Effect(load_128, [w.use(load), w.pointer(i.operands[1])], i.operands[:1])
    kind, destinations = _items(i, i.operands[0])
    function = load_function(i, w, i.operands[1])
    size = TYPE_BYTES[kind]
    widths = {bits_of(d.type) for d in destinations if isinstance(d, Register)} or {bits_of(kind)}
    if len(widths) != 1:
        raise Unsupported
    bits = widths.pop()
    extend = -bits if kind[0] == "s" else WIDEN if bits == 64 else AS_IS
    where = memory(i.operands[1])
    arguments = [w.pointer(where), str(size), str(len(destinations)), str(extend)]
    native = _native_loads(i, state_space(i, w, i.operands[1]), kind, destinations, bits)
    used = [n for n, d in enumerate(destinations) if not isinstance(d, Sink)]
    if len(used) < len(destinations):
        addresses = tuple_of(w.pointer(replace(where, offset=where.offset + n * size)) for n in used)
        arguments[:1] = [w.use(function), arguments[0], addresses if used else "()"]
        return Effect(load_some, arguments, [destinations[n] for n in used], micro=native)
    return Effect(function, arguments, destinations, micro=native)


@instruction("st", operands=range(2, 4), writes=0, family="memory")
def _st(i: Instruction, w: Translator) -> Effect:
    only(i, SPACES, HINTS, VECTORS)
    if kind_of(i) == "b128" and not any(i.has(v) for v in VECTORS):
        arguments = [
            w.use(store_function(i, w, i.operands[0])),
            w.pointer(i.operands[0]),
            w.read(i.operands[1], "b128"),
        ]
        return Effect(store_128, arguments)
    kind, sources = _items(i, i.operands[1])
    function, space = store_function(i, w, i.operands[0]), state_space(i, w, i.operands[0])
    values = tuple_of(w.read(source, kind) for source in sources)
    arguments = [w.pointer(i.operands[0]), str(TYPE_BYTES[kind]), values]
    return Effect(function, arguments, micro=_native_stores(i, space, kind, sources))


# ---- micro-operations ----


def _is_strong(i: Instruction) -> bool:
    return not {*_STRONG}.isdisjoint(i.modifiers)


def _native_loads(
    i: Instruction, space: str, kind: str, destinations: Sequence[Operand], bits: int
) -> tuple[Micro, ...]:
    """Returns a load, item by item. If sinks take some items, the others are separate accesses."""
    base, width, offset = address_parts(i.operands[1])
    size = TYPE_BYTES[kind]
    used = [(n, d) for n, d in enumerate(destinations) if not isinstance(d, Sink)]
    is_whole = len(used) == len(destinations)
    if space == "cluster" or i.opcode != "ld":
        return ()
    if (len(destinations) > 1 and base in destinations) or not all(isinstance(d, Register) for _, d in used):
        return ()
    if not used or used[0][0] != 0:
        return ()
    found = []
    for n, destination in used:
        alignment = size * len(destinations) if n == 0 else size
        is_first = n == 0 or not is_whole
        found.append(Micro("ld", destination, ((base, width),), space, size, offset + n * size, alignment, is_first,
                           strong=_is_strong(i)))  # fmt: skip
        if kind[0] == "s" and 8 * size < bits:
            if bits != 32:
                return ()
            found.append(micro(f"sext{8 * size}.{bits}", destination, "b32", destination))
    return tuple(found)


def _native_stores(i: Instruction, space: str, kind: str, sources: Sequence[Operand]) -> tuple[Micro, ...]:
    """Returns a store, item by item."""
    base, width, offset = address_parts(i.operands[0])
    size = TYPE_BYTES[kind]
    if space == "cluster":
        return ()
    return tuple(
        Micro(
            "st", None, ((base, width), (source, kind)), space, size, offset + n * size,
            size * len(sources) if n == 0 else size, n == 0, strong=_is_strong(i),
        )
        for n, source in enumerate(sources)
    )  # fmt: skip
