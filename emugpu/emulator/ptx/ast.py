"""The plain data of a parsed PTX module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

TYPE_BYTES = {
    "b8": 1, "u8": 1, "s8": 1,
    "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "b32": 4, "u32": 4, "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4,
    "u16x2": 4, "s16x2": 4, "u8x4": 4, "s8x4": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "f32x2": 8,
    "b128": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Register:
    """A virtual register: its slot in a thread's register file, its PTX name and its declared type."""

    slot: int
    name: str
    type: str

    def registers(self) -> list[Register]:
        return [self]


@dataclass(frozen=True)
class Negated:
    """A predicate operand written ``!%p``."""

    register: Register

    def registers(self) -> list[Register]:
        return [self.register]


class WithoutRegisters:
    """An operand that names no register."""

    def registers(self) -> list[Register]:
        return []


@dataclass(frozen=True)
class Special(WithoutRegisters):
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True)
class Immediate(WithoutRegisters):
    """A literal. A floating-point literal has its bit pattern as value, and its width in ``float_bits`` (32 or 64).

    One of 64 bits takes the type of the instruction.
    """

    value: int
    float_bits: int = 0


@dataclass(frozen=True)
class Symbol(WithoutRegisters):
    """The address of a variable, parameter or function, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Label(WithoutRegisters):
    """A branch target, unresolved until its scope is complete."""

    name: str


@dataclass(frozen=True)
class Vector:
    """A vector operand: ``{a, b, ...}``."""

    elements: tuple[Operand, ...]

    def registers(self) -> list[Register]:
        return [r for element in self.elements for r in element.registers()]


@dataclass(frozen=True)
class MemoryOperand:
    """``[base + offset]``, or ``[base, {c0, c1}]`` for tensor copies."""

    base: Register | Symbol | Immediate
    offset: int = 0
    coordinates: tuple[Operand, ...] | None = None

    def registers(self) -> list[Register]:
        return [*self.base.registers(), *(r for c in self.coordinates or () for r in c.registers())]


@dataclass(frozen=True)
class Dual:
    """Two destinations, written ``d|p``."""

    first: Operand
    second: Operand

    def registers(self) -> list[Register]:
        return [*self.first.registers(), *self.second.registers()]


@dataclass(frozen=True)
class Sink(WithoutRegisters):
    """The destination ``_``, which drops the result."""


# Each has ``registers()``, which returns every register that it names.
Operand = Register | Negated | Special | Immediate | Symbol | Label | Vector | MemoryOperand | Dual | Sink


@dataclass
class Instruction:
    """One PTX instruction.

    ``opcode``: the mnemonic up to the first dot. ``modifiers``: the rest, split at single dots.
    """

    index: int
    line: int
    text: str
    opcode: str
    modifiers: tuple[str, ...]
    operands: list[Operand]
    guard: Register | None = None
    guard_negated: bool = False
    targets: list[int] = field(default_factory=list)
    """Indices of the instructions to which it may branch (filled in when labels are resolved)."""
    source: str = ""
    """``file:line`` of its source, if the PTX says so (.loc)."""
    unused: tuple[Register, ...] = ()
    """Registers that a load has replaced by sinks because nothing uses them (.pragma "used_bytes_mask")."""

    def has(self, modifier: str) -> bool:
        return modifier in self.modifiers


@dataclass(frozen=True)
class Parameter:
    """A parameter: its byte offset in the kernel's parameter block, size, alignment and element type."""

    name: str
    offset: int
    size: int
    align: int
    type: str
    is_array: bool
    in_register: bool = False
    """Whether it is a register (``.reg``), which only functions have."""


@dataclass(frozen=True)
class Variable:
    """A module- or function-scope variable. ``size`` 0 with ``external`` means dynamic shared memory.

    ``addresses``: (byte offset, symbol, addend, whether it is a generic address) of each pointer in its initial value.
    ``element``: the size of an element. ``offset``: the place of a local variable in the thread's frame.
    """

    name: str
    space: str
    align: int
    size: int
    external: bool
    initializer: bytes | None = None
    addresses: tuple[tuple[int, str, int, bool], ...] = ()
    element: int = 1
    offset: int = 0


@dataclass(frozen=True)
class Function:
    """One ``.func`` with a body: its parameters, and where the text of the body begins."""

    name: str
    results: tuple[Parameter, ...]
    parameters: tuple[Parameter, ...]
    body: int


@dataclass
class PtxKernel:
    """One ``.entry``."""

    name: str
    line: int
    parameters: list[Parameter]
    directives: dict[str, tuple[int, ...]]
    instructions: list[Instruction]
    register_count: int
    variables: dict[str, Variable]
    text: Sequence[str] = ()
    """The lines of the file."""
    local_bytes: int = 0
    """Local memory of a thread: its variables, those of the functions that it calls, and their parameters."""

    @property
    def parameter_bytes(self) -> int:
        return max((p.offset + p.size for p in self.parameters), default=0)


@dataclass
class ParsedModule:
    """A whole PTX file."""

    version: str
    target: str
    kernels: dict[str, PtxKernel]
    variables: dict[str, Variable]
