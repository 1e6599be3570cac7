"""The table of what the emulator knows about each instruction.

An instruction is registered by its *emitter*. An emitter is a function that says what the instruction does: an `Assign`
of micro-operations on registers, or a call of an `Effect` on the machine. The decorator `instruction` gives the rest:
how many operands there are, which of them are written, whether the instruction may suspend the warp, and which
family it is counted in. `isa` says which targets have it. A name is the opcode with as many modifiers as needed to
distinguish instructions: "add", "mbarrier.try_wait", "tcgen05.ld".
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, TypeVar

from emugpu.emulator.memory.address_space import shared_from_generic
from emugpu.emulator.ptx.ast import (
    TYPE_BYTES,
    Immediate,
    Instruction,
    Label,
    MemoryOperand,
    Negated,
    Operand,
    Register,
    Symbol,
    Vector,
    WithoutRegisters,
)


class Unsupported(Exception):
    """The instruction, or one of its modifiers or operands, is not implemented."""


UNEXPECTED = (Unsupported, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The exceptions that an emitter raises on operands that it does not expect."""


class Translator(Protocol):
    """The part of the translation that emitters use: names and expressions for operands."""

    def read(self, operand: Operand, kind: str) -> str:
        """Returns an expression of an operand's value as a ``kind`` (a PTX type without its dot, or "pred")."""

    def pointer(self, operand: Operand) -> str:
        """Returns an expression of an address operand ``[base + offset]``. Raises Unsupported for any other operand."""

    def address(self, operand: Symbol | Label) -> str:
        """Returns an expression of a variable's address in its own state space."""

    def space_of(self, operand: Operand) -> str | None:
        """Returns the state space of the symbol on which an address is based, or None if the base is no symbol."""

    def use(self, thing: Callable[..., Any]) -> str:
        """Returns the name by which generated code calls a function. ``np`` is NumPy there."""

    def constant(self, make: Callable[..., Any], *arguments: Hashable) -> str:
        """Returns the name of the object ``make(*arguments)``. The same arguments give the same object."""


@dataclass(frozen=True)
class Temporary(WithoutRegisters):
    """A place for a value between two micro-operations of an instruction, which may have several."""

    is_wide: bool = False
    number: int = 0


@dataclass(frozen=True)
class OfWarp:
    """A value for each lane that never changes during a warp's life: an expression with the fragment f."""

    text: str


@dataclass(frozen=True)
class Function:
    """A Python function of register values, with constant arguments before and after them."""

    function: Callable[..., Any]
    before: tuple[object, ...] = ()
    after: tuple[object, ...] = ()


@dataclass(frozen=True)
class Micro:
    """A micro-operation of an instruction. name: its name in `operations`, or `native.operations`.

    function: what it computes, if no table declares it; the native engine calls it. imm: a number that its text names.
    sources: operands, each with the type as which it is read. access: the state space of a load ("ld") or a store
    ("st"); its first source is the address, and the second the value to store. nbytes: size of one item. offset: is
    added to the address. alignment: of the whole access. is_first: whether it is the first item of its access. part:
    for a load of tensor memory, what is added to lane * 512 + column; for a store of matrices, which of them it is.
    strong: see PTX ISA 8.4; sinks get it as an event of its own. quiet: the native engine runs it only if no sink is
    attached. early: it does so only under a schedule whose loads of tensor memory take their values at once.
    """

    name: str
    destination: Operand | Temporary | None
    sources: tuple[tuple[Operand | Temporary | OfWarp, str], ...]
    access: str = ""
    nbytes: int = 0
    offset: int = 0
    alignment: int = 1
    is_first: bool = False
    part: int = 0
    strong: bool = False
    quiet: bool = False
    early: bool = False
    imm: int = 0
    function: Function | None = None


NOTHING = Micro("nothing", None, (), quiet=True)
"""A micro-operation that does nothing if no sink is attached."""


class Assign:
    """What a plain instruction does: micro-operations on register values, one after the other."""

    def __init__(self, *micro: Micro) -> None:
        self.micro = micro


@dataclass(frozen=True)
class Effect:
    """A call of ``function(fragment, site, *arguments)``.

    results: destinations of the returned value, which is a tuple if there are several. poisons: registers that the call
    writes itself, and whose value it may leave open until a later wait. stores: registers that it reads from the
    register file; the block stores them first, and passes as the last argument whether one of them may have been
    written since the last such instruction. micro: as for `Assign`, without results that nothing reads.
    """

    function: Callable[..., Any]
    arguments: Sequence[str] = ()
    results: Sequence[Operand] = ()
    poisons: Sequence[Register] = ()
    stores: Sequence[Register] = ()
    micro: tuple[Micro, ...] = ()


Emitted = Assign | Effect | None
"""The result of an emitter. None: the instruction has no effect here."""
Emitter = Callable[[Instruction, Translator], Emitted]
OneEmitter = TypeVar("OneEmitter", bound=Emitter)


@dataclass(frozen=True)
class Spec:
    """The table's entry of an instruction. See `instruction`."""

    name: str
    emit: Emitter
    operands: range
    writes: int
    blocks: bool
    settles: bool
    family: str

    def destinations(self, i: Instruction) -> list[Register]:
        """Returns the registers that the instruction writes."""
        written = i.operands[: self.writes]
        return [r for o in written if not isinstance(o, MemoryOperand) for r in o.registers()]


TABLE: dict[str, Spec] = {}
_LONGEST = 5
"""The number of words in the longest name."""


def instruction(
    *names: str,
    operands: int | range,
    writes: int = 1,
    blocks: bool = False,
    settles: bool = False,
    family: str = "alu",
) -> Callable[[OneEmitter], OneEmitter]:
    """Registers an emitter.

    operands: how many there may be. writes: how many of them, from the first, are destinations (unless they are
    addresses). blocks: the instruction may suspend the warp, and is executed again when the warp is resumed. settles:
    the basic block ends with the instruction, because what it makes readable is readable only at the end of a block.
    family: the family in which it is counted.
    """
    counts = range(operands, operands + 1) if isinstance(operands, int) else operands

    def register(emitter: OneEmitter) -> OneEmitter:
        for name in names:
            assert name not in TABLE, name
            TABLE[name] = Spec(name, emitter, counts, writes, blocks, settles, family)
        return emitter

    return register


def _refuse(i: Instruction, w: Translator) -> None:
    raise Unsupported


UNKNOWN = Spec("", _refuse, range(1 << 16), writes=1, blocks=False, settles=False, family="alu")
"""The entry of all instructions without an emitter. Most of these write their first operand."""


def find(i: Instruction) -> Spec:
    """Returns the entry of an instruction: the one with the longest name that fits."""
    return _find((i.opcode, *i.modifiers))


@cache
def _find(words: tuple[str, ...]) -> Spec:
    names = (".".join(words[:length]) for length in range(min(_LONGEST, len(words)), 0, -1))
    return next((TABLE[name] for name in names if name in TABLE), UNKNOWN)


# ---- helpers of emitters ----


def only(i: Instruction, *allowed: str | Iterable[str]) -> None:
    """Refuses modifiers that are not allowed. Types and the words of the table's name are always allowed."""
    known: set[str] = set()
    for item in allowed:
        known |= {item} if isinstance(item, str) else set(item)
    named = set(find(i).name.split(".")[1:])
    for modifier in i.modifiers:
        if modifier not in known and modifier not in named and modifier not in TYPE_BYTES and modifier != "pred":
            raise Unsupported


def only_form(i: Instruction, *forms: str) -> None:
    """Refuses everything but the forms listed, each as its modifiers joined by dots."""
    if ".".join(i.modifiers) not in forms:
        raise Unsupported


def kind_of(i: Instruction) -> str:
    """Returns the type with which an instruction ends."""
    if not i.modifiers or (i.modifiers[-1] not in TYPE_BYTES and i.modifiers[-1] != "pred"):
        raise Unsupported
    return i.modifiers[-1]


def bits_of(kind: str) -> int:
    return 8 * TYPE_BYTES[kind]


def mask(kind: str) -> int:
    """Returns a mask of all bits of a type."""
    return (1 << bits_of(kind)) - 1


def is_integer(kind: str) -> bool:
    return kind[0] in "sub" and not kind.startswith("bf") and kind != "b128" and "x" not in kind


def memory(operand: Operand) -> MemoryOperand:
    """Returns the operand, which must be an address."""
    if not isinstance(operand, MemoryOperand):
        raise Unsupported
    return operand


def immediate(operand: Operand) -> int:
    """Returns the value of an operand that must be a literal."""
    if not isinstance(operand, Immediate):
        raise Unsupported
    return operand.value


def elements(operand: Operand) -> tuple[Operand, ...]:
    """Returns the members of a vector operand. Any other operand is its own only member."""
    return operand.elements if isinstance(operand, Vector) else (operand,)


def registers(operand: Operand) -> tuple[Register, ...]:
    """Returns the members of a vector operand, which must be registers."""
    found = tuple(e for e in elements(operand) if isinstance(e, Register))
    if len(found) != len(elements(operand)):
        raise Unsupported
    return found


def shared_pointer(i: Instruction, w: Translator, operand: Operand) -> str:
    """Returns the source of an address in shared memory. Without a state space the instruction takes a generic one."""
    pointer = w.pointer(operand)
    if any(m.partition("::")[0] == "shared" for m in i.modifiers):
        return pointer
    return f"{w.use(shared_from_generic)}({pointer})"


def row_bits(kind: str) -> int:
    """Returns the width of the row that holds a type: 32 or 64."""
    return 32 if kind == "pred" else max(32, bits_of(kind))


def address_parts(operand: Operand) -> tuple[Operand, str, int]:
    """Returns an address as a base, the base's type, and an offset."""
    where = memory(operand)
    if isinstance(where.base, Symbol):
        return Symbol(where.base.name, where.base.offset + where.offset), "u64", 0
    return where.base, where.base.type if isinstance(where.base, Register) else "u64", where.offset


def micro(name: str, destination: Operand | Temporary, kind: str, *sources: Operand | Temporary | int) -> Micro:
    """Returns a micro-operation whose sources are read as one type. Ints are literals."""
    operands = (Immediate(s) if isinstance(s, int) else s for s in sources)
    return Micro(name, destination, tuple((operand, kind) for operand in operands))


def micro_of(i: Instruction, name: str, *kinds: str) -> Micro:
    """Returns a micro-operation on an instruction's own operands, with sources of these types, or all of one type."""
    return Micro(name, i.operands[0], _typed(i, kinds))


def computed(
    i: Instruction,
    function: Callable[..., Any],
    kinds: str | tuple[str, ...],
    *after: object,
    before: Sequence[object] = (),
) -> Micro:
    """Returns a call of a function of an instruction's own operands, as in `micro_of`, and constants."""
    sources = _typed(i, (kinds,) if isinstance(kinds, str) else kinds)
    return calculated(function, i.operands[0], sources, *after, before=before)


def calculated(
    function: Callable[..., Any],
    destination: Operand | Temporary,
    sources: tuple[tuple[Operand | Temporary, str], ...],
    *after: object,
    before: Sequence[object] = (),
) -> Micro:
    """Returns a micro-operation that the native engine does not have: a function of the sources and constants."""
    return Micro(function.__name__, destination, sources, function=Function(function, tuple(before), after))


def _typed(i: Instruction, kinds: tuple[str, ...]) -> tuple[tuple[Operand, str], ...]:
    sources = i.operands[1:]
    return tuple(zip(sources, kinds * len(sources) if len(kinds) == 1 else kinds, strict=True))


def apart(operations: Sequence[Micro]) -> tuple[Micro, ...]:
    """Returns operations each of which reads registers as they were before the first one.

    If several write one register, it gets the result of the last.
    """
    found, last = [], []
    for n, m in enumerate(operations):
        to, later = m.destination, operations[n + 1 :]
        if to in [other.destination for other in later]:
            continue
        read = [o.register if isinstance(o, Negated) else o for other in later for o, _ in other.sources]
        if to in read:
            assert isinstance(to, Register)
            kind = "pred" if to.type == "pred" else f"b{row_bits(to.type)}"
            between = Temporary(kind == "b64", 8 + n)
            last.append(micro("mov.64" if kind == "b64" else "mov.32", to, kind, between))
            m = replace(m, destination=between)
        found.append(m)
    return (*found, *last)


def narrowed(operations: Sequence[Micro], kind: str) -> tuple[Micro, ...]:
    """Returns the operations, masked to the type if the last one may leave more bits."""
    last = operations[-1].destination
    if bits_of(kind) >= 32 or last is None:
        return tuple(operations)
    return (*operations, micro("and.32", last, "b32", last, mask(kind)))


def tuple_of(expressions: Iterable[str]) -> str:
    """Returns the source of a tuple."""
    return f"({', '.join(expressions)},)"
