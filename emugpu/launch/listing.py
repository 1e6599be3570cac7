"""Lists the content of a PTX file: its kernels, their parameters and shared memory, and what the emulator lacks."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from emugpu.emulator import PtxSyntaxError
from emugpu.emulator.isa import why_not
from emugpu.emulator.memory.tensor_map_bytes import ALIGNMENT, NBYTES
from emugpu.emulator.names import readable_name
from emugpu.emulator.ptx.ast import (
    Immediate,
    Instruction,
    MemoryOperand,
    Parameter,
    ParsedModule,
    PtxKernel,
    Register,
    Symbol,
)
from emugpu.emulator.ptx.parser import parse_module
from emugpu.emulator.ptx.sections import Section, blank_kernels, kernel_sections, without_body
from emugpu.emulator.translate.layout import VariableLayout
from emugpu.emulator.translate.refusals import problem_of, unimplemented
from emugpu.errors import CannotRun
from emugpu.launch.spec import target_of

_LINE = re.compile(r"PTX line (\d+):\s*(.*)", re.S)
_UNNAMED = ("$", "__unnamed")
"""Prefixes of the names of strings and other constants, which no host sets."""
_OTHER = -1
"""Stands for a summand that is no parameter and may be a pointer: a variable's address, or a value from memory."""


@dataclass(frozen=True)
class ListedParameter:
    """A kernel parameter. ``bytes`` and ``align`` are its size and alignment. ``seems`` says how the kernel uses it."""

    index: int
    name: str
    bytes: int
    align: int
    seems: str


@dataclass(frozen=True)
class Refusal:
    """An instruction or line that the emulator does not support, and whether its kernel cannot be launched at all."""

    line: int
    text: str
    why: str
    at_launch: bool


@dataclass(frozen=True)
class ListedKernel:
    """A kernel of a PTX file. ``problem`` says why it cannot be launched at all, or is "".

    ``directives`` are those of the PTX, with their numbers. ``static_shared`` is a number of bytes;
    ``dynamic_shared``: it declares dynamic shared memory.
    """

    name: str
    readable: str
    line: int
    parameters: tuple[ListedParameter, ...]
    directives: dict[str, tuple[int, ...]]
    static_shared: int | None
    dynamic_shared: bool
    instructions: int
    unimplemented: tuple[Refusal, ...]
    problem: str = ""


@dataclass(frozen=True)
class Listing:
    """A PTX file. ``compiler`` is the one that wrote it, or "" if it is unknown."""

    target: str
    version: str
    compiler: str
    kernels: tuple[ListedKernel, ...]
    symbols: tuple[tuple[str, str, int], ...] = field(default=())
    """(state space, name, bytes) of the variables that a host may set."""

    def as_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "target": self.target,
            "version": self.version,
            "compiler": self.compiler,
            "symbols": [{"space": space, "name": name, "bytes": size} for space, name, size in self.symbols],
            "kernels": [{**asdict(kernel), "problem": kernel.problem or None} for kernel in self.kernels],
        }


def list_kernels(text: str) -> Listing:
    """Returns the content of a PTX text. Each kernel is parsed on its own, so an error in one does not hide the
    others.

    Raises CannotRun if the text outside of kernels cannot be parsed.
    """
    sections = kernel_sections(text)
    try:
        outside = parse_module(blank_kernels(text, lambda _: True))
    except PtxSyntaxError as error:
        raise CannotRun(f"the text outside of kernels cannot be parsed: {error}") from error
    symbols = [
        (v.space, v.name, v.size)
        for v in outside.variables.values()
        if v.space in ("global", "const") and v.size and not v.name.startswith(_UNNAMED)
    ]
    return Listing(
        target_of(outside.target),
        outside.version,
        compiler_of(text),
        tuple(_list_kernel(text, section) for section in sections),
        tuple(symbols),
    )


def _list_kernel(text: str, section: Section) -> ListedKernel:
    line = text.count("\n", 0, section.start) + 1
    alone = blank_kernels(text, lambda name: name != section.name)
    try:
        module = parse_module(alone)
        if section.name not in module.kernels:
            raise PtxSyntaxError(f"PTX line {line}: cannot read the name of the kernel after '{section.name}'")
        kernel = module.kernels[section.name]
        refused = _refusals(kernel, module)
        layout = VariableLayout(kernel, module)
    except PtxSyntaxError as error:
        return _unreadable(alone, section, line, error)
    dynamic = any(v.external and v.space == "shared" for v in [*module.variables.values(), *kernel.variables.values()])
    return ListedKernel(
        section.name,
        readable_name(section.name),
        line,
        _parameters(kernel),
        kernel.directives,
        layout.static_shared,
        dynamic,
        len(kernel.instructions),
        tuple(refused),
        next((f"PTX line {r.line}: {r.why}" for r in refused if r.at_launch), ""),
    )


def _refusals(kernel: PtxKernel, module: ParsedModule) -> list[Refusal]:
    target = target_of(module.target)
    lacking = {i.index for i in unimplemented(kernel, module)}
    found = []
    for i in kernel.instructions:
        problem = problem_of(i, target)
        if problem or i.index in lacking:
            found.append(Refusal(i.line, i.text, problem or why_not(i), bool(problem)))
    return found


def _unreadable(text: str, section: Section, line: int, error: PtxSyntaxError) -> ListedKernel:
    """Returns a kernel that cannot be parsed, with its head if that can be read, and the line where it ends."""
    message = str(error)
    place = _LINE.match(message)
    lines = text.splitlines()
    where = int(place[1]) if place else line
    shown = lines[where - 1].strip() if 0 < where <= len(lines) else ""
    why = (place[2] if place else message).splitlines()[0]
    try:
        head = parse_module(without_body(text, section)).kernels.get(section.name)
        if head is None:
            raise PtxSyntaxError("no such kernel")
        parameters, directives = _parameters(head), head.directives
    except PtxSyntaxError:
        parameters, directives = (), {}
    refusal = Refusal(where, shown, why, True)
    return ListedKernel(
        section.name, readable_name(section.name), line, parameters, directives, None, False, 0, (refusal,), message
    )


# ---- the use of parameters ----


def _parameters(kernel: PtxKernel) -> tuple[ListedParameter, ...]:
    pointers = _pointers(kernel)
    maps = _tensor_maps(kernel)
    return tuple(
        ListedParameter(n, p.name, p.size, p.align, _seems(p, p.offset in pointers, maps))
        for n, p in enumerate(kernel.parameters)
    )


def _seems(parameter: Parameter, pointer: bool, maps: set[int]) -> str:
    inside = sorted(m - parameter.offset for m in maps if 0 <= m - parameter.offset < parameter.size)
    if parameter.size == NBYTES and parameter.align >= ALIGNMENT and inside in ([], [0]):
        return "tensor map"
    if inside:
        places = ", ".join(map(str, inside))
        return f"struct with {'a tensor map' if len(inside) == 1 else 'tensor maps'} at {places}"
    if parameter.is_array:
        return "struct"
    if pointer:
        return "pointer"
    return {"u64": "pointer or integer", "b64": "pointer or integer"}.get(parameter.type, parameter.type)


def _pointers(kernel: PtxKernel) -> set[int]:
    """Returns the offsets of 64-bit parameters that are loaded and then used as an address, alone or in a sum that has
    no other parameter, no variable and nothing from memory, any of which could be the pointer.
    """
    offsets = {p.name: p.offset for p in kernel.parameters}
    summands: dict[str, frozenset[int]] = {}
    found: set[frozenset[int]] = set()
    for i in kernel.instructions:
        source = i.operands[1] if len(i.operands) > 1 else None
        if i.opcode == "ld" and "param" in i.modifiers and isinstance(source, MemoryOperand):
            if isinstance(source.base, Symbol) and source.base.name in offsets and len(i.operands) == 2:
                for n, register in enumerate(i.operands[0].registers()):
                    offset = offsets[source.base.name] + source.base.offset + source.offset + 8 * n
                    summands[register.name] = frozenset([offset])
            continue
        used = [source] if i.opcode == "cvta" and i.has("to") else []
        used += [o.base for o in i.operands if isinstance(o, MemoryOperand)]
        found |= {summands[u.name] for u in used if isinstance(u, Register) and u.name in summands}
        if i.opcode in ("mov", "cvta", "add", "mad", "ld"):
            added = i.operands[3 if i.opcode == "mad" else 1 :]
            known = {n for o in added for r in o.registers() for n in summands.get(r.name, ())}
            if any(isinstance(o, Symbol | MemoryOperand) for o in added):
                known.add(_OTHER)
            for register in i.operands[0].registers() if known else ():
                summands.setdefault(register.name, frozenset(known))
    return {p.offset for p in kernel.parameters if p.size == 8 and frozenset([p.offset]) in found}


def _tensor_maps(kernel: PtxKernel) -> set[int]:
    """Returns the offsets in the parameter block from which tensor copies take their map, through moves and adds."""
    offsets = {p.name: p.offset for p in kernel.parameters}
    known: dict[str, int] = {}
    found: set[int] = set()
    for i in kernel.instructions:
        if _copies_tensor(i):
            maps = [o for o in i.operands if isinstance(o, MemoryOperand) and (o.coordinates or i.opcode == "prefetch")]
            for operand in maps:
                place = _place(operand.base, offsets, known)
                if place is not None:
                    found.add(place + operand.offset)
        elif i.opcode in ("mov", "cvta") and len(i.operands) == 2:
            _follow(i, _place(i.operands[1], offsets, known), known)
        elif i.opcode == "add" and len(i.operands) == 3 and isinstance(i.operands[2], Immediate):
            place = _place(i.operands[1], offsets, known)
            _follow(i, None if place is None else place + i.operands[2].value, known)
    return found


def _copies_tensor(i: Instruction) -> bool:
    return (i.opcode == "cp" and i.has("tensor")) or (i.opcode == "prefetch" and i.has("tensormap"))


def _follow(i: Instruction, place: int | None, known: dict[str, int]) -> None:
    target = i.operands[0]
    if place is not None and isinstance(target, Register):
        known[target.name] = place


def _place(operand: object, offsets: dict[str, int], known: dict[str, int]) -> int | None:
    if isinstance(operand, Register):
        return known.get(operand.name)
    name = getattr(operand, "name", None)
    if name in offsets:
        return offsets[name] + getattr(operand, "offset", 0)
    return None


# ---- the compiler ----

_COMPILERS = (
    ("Mojo", re.compile(r"mojo|modular", re.I)),
    ("Triton", re.compile(r"triton|_ttgir|\.py\"", re.I)),
    ("CuTe DSL", re.compile(r"cutlass.*kernel_cutlass|kernel_cutlass|cute\.(?:py|dsl)", re.I)),
    ("Tilus", re.compile(r"tilus|hidet", re.I)),
)
_NVCC = re.compile(r"Cuda compilation tools, release ([\d.]+)")


def compiler_of(text: str) -> str:
    """Returns the compiler that wrote a PTX text, from its comments, source files and names; "" if it is unknown."""
    nvcc = _NVCC.search(text)
    for name, pattern in _COMPILERS:
        if pattern.search(text):
            return name
    if nvcc:
        return f"nvcc {nvcc[1]}" if "NVVM" in text else "NVIDIA"
    return "LLVM" if "Generated by LLVM NVPTX" in text else ""
