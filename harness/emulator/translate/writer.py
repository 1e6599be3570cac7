"""Writes the Python source of basic blocks: operands to expressions, instructions to lines.

A block becomes ``def b7(f, R)``: ``f`` is the fragment that runs, ``R`` its registers. Registers are loaded into locals
``v12`` at the start and stored back at the end. The function returns the next block, or EXIT, BLOCKED or SPLIT.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from ..machine.grid import RESERVED_SHARED
from ..ptx.ast import (
    TYPE_BYTES,
    Immediate,
    Instruction,
    Label,
    Memory,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
)
from ..ptx.cfg import EXIT, Block, accumulators, destinations, sources
from . import tensor_core as _tensor_core  # noqa: F401  (registers its emitters)
from .alu import EMITTERS, Unsupported
from .effects import EFFECTS, Effect
from .layout import Layout


class Writer:
    """Source lines of one kernel, and which instruction each line belongs to."""

    def __init__(self, instructions: list[Instruction], layout: Layout):
        self.instructions = instructions
        self.layout = layout
        self.lines: list[str] = []
        self.line_instruction: list[int | None] = []
        self.current: int | None = None
        self.pending: set[int] = set()
        """Slots that a tcgen05.ld or wgmma of this block has poisoned until the wait."""
        self.assigned: set[int] = set()
        """Slots whose value the block has assigned, but not stored to the register file yet."""
        self.batched: set[int] = set()
        """Instructions already written as part of a batch."""
        self.constants: dict[str, Any] = {}
        """Objects the translated code refers to by name."""
        self._constant_names: dict[Hashable, str] = {}
        self.accumulators = {r.slot for i in instructions for r in accumulators(i)}
        """Slots that some wgmma accumulates in."""

    # ---- lines ----

    def line(self, text: str, indent: int = 1) -> None:
        self.lines.append("    " * indent + text)
        self.line_instruction.append(self.current)

    def constant(self, make: Callable[..., Any], *arguments: Hashable) -> str:
        """Name of the object ``make(*arguments)``; the same arguments give the same object."""
        key = (make, arguments)
        if key not in self._constant_names:
            name = self._constant_names[key] = f"C{len(self._constant_names)}"
            self.constants[name] = make(*arguments)
        return self._constant_names[key]

    # ---- operands ----

    def mask(self, kind: str) -> str:
        return str((1 << 8 * TYPE_BYTES[kind]) - 1)

    def read(self, operand: Operand, kind: str) -> str:
        """Expression of an operand's value as a ``kind`` (predicates: "pred")."""
        if isinstance(operand, Register):
            if operand.slot in self.pending:
                return f"pending({operand.name!r})"
            if kind != "pred" and operand.type in TYPE_BYTES and TYPE_BYTES[operand.type] > TYPE_BYTES[kind]:
                return f"narrow(v{operand.slot}, {8 * TYPE_BYTES[kind]})"
            return f"v{operand.slot}"
        if isinstance(operand, Negated):
            return f"(v{operand.register.slot} ^ True)"
        if isinstance(operand, Immediate):
            if kind == "pred":
                return str(bool(operand.value))
            if operand.float_bits == 64 and kind == "f32":
                raise Unsupported
            return str(operand.value & ((1 << 8 * TYPE_BYTES[kind]) - 1))
        if isinstance(operand, Special):
            return self.special(operand.name)
        if isinstance(operand, Symbol | Label):
            return self.address(operand)
        raise Unsupported

    def address(self, operand: Symbol | Label) -> str:
        """Address of a variable in its own state space."""
        offset = operand.offset if isinstance(operand, Symbol) else 0
        space, base = self.layout.find(operand.name)
        if space == "shared":
            return f"f.cta.window + {RESERVED_SHARED + base + offset}"
        if space == "param":
            return str(base + offset)
        raise Unsupported

    def space_of(self, operand: Memory) -> str | None:
        """State space of the symbol an address is based on, if it is one."""
        return self.layout.find(operand.base.name)[0] if isinstance(operand.base, Symbol) else None

    def pointer(self, operand: Operand, kind: str = "u64") -> str:
        """Expression of an address operand ``[base + offset]``; it binds tighter than any operator."""
        assert isinstance(operand, Memory)
        if isinstance(operand.base, Symbol):
            return self.address(Symbol(operand.base.name, operand.base.offset + operand.offset))
        base = self.read(operand.base, operand.base.type if isinstance(operand.base, Register) else kind)
        if not operand.offset:
            return base
        width = operand.base.type if isinstance(operand.base, Register) else kind
        return f"(({base} + {operand.offset & int(self.mask(width))}) & {self.mask(width)})"

    def special(self, name: str) -> str:
        base, _, axis = name.removeprefix("%").partition(".")
        index = "xyz".find(axis) if axis else 0
        if base == "tid":
            return f"thread_index(f, {index})"
        if base == "laneid":
            return "lane_index(f)"
        if base.startswith("lanemask_"):
            return f"lane_mask(f, '{base[9:]}')"
        known = {
            "ntid": f"f.cta.machine.launch.block[{index}]",
            "ctaid": f"f.cta.index[{index}]",
            "nctaid": f"f.cta.machine.launch.grid[{index}]",
            "clusterid": f"f.cta.cluster.index[{index}]",
            "nclusterid": f"(f.cta.machine.launch.grid[{index}] // f.cta.machine.launch.cluster[{index}])",
            "cluster_ctaid": f"(f.cta.index[{index}] % f.cta.machine.launch.cluster[{index}])",
            "cluster_nctaid": f"f.cta.machine.launch.cluster[{index}]",
            "cluster_ctarank": "f.cta.rank",
            "cluster_nctarank": "len(f.cta.cluster.ctas)",
            "warpid": "f.warp.index",
            "nwarpid": "len(f.cta.warps)",
            "is_explicit_cluster": "(len(f.cta.cluster.ctas) > 1)",
            "dynamic_smem_size": "f.cta.machine.launch.dynamic_shared",
            "total_smem_size": "f.cta.machine.shared_bytes",
            "smid": "f.cta.rank",
        }
        if base not in known:
            raise Unsupported
        return known[base]

    # ---- blocks ----

    def block(self, block: Block, starting_at: dict[int, int]) -> None:
        """Write one block function."""
        self.current = None
        self.pending.clear()
        self.assigned.clear()
        self.line(f"def b{block.index}(f, R):", 0)
        if block.loads & self.accumulators:
            self.line("f.read_accumulators()")
        for slot in sorted(block.loads):
            self.line(f"v{slot} = R[{slot}]")
        ended = False
        for index in range(block.first, block.last):
            instruction = self.instructions[index]
            self.current = index
            if instruction.opcode in ("bra", "brx", "ret", "exit"):
                self._store_back(block)
                self._terminator(instruction, block, starting_at)
                ended = True
            elif index not in self.batched:
                self._instruction(instruction, block)
        if not ended:
            self._store_back(block)
            last = self.instructions[block.last - 1]
            if last.opcode == "tcgen05" and last.modifiers[0].startswith("wait"):
                self.line("f.finish_loads()")
            self.line(f"return {block.successors[0]}")

    def _store_back(self, block: Block) -> None:
        for slot in sorted(block.writes & block.live_out - self.pending):
            self.line(f"R[{slot}] = v{slot}")

    def _terminator(self, i: Instruction, block: Block, starting_at: dict[int, int]) -> None:
        target = EXIT if i.opcode in ("ret", "exit") else None
        if i.opcode == "brx":
            table = [starting_at.get(t, EXIT) for t in i.targets]
            self.line(f"return f.diverge_many({self.read(i.operands[0], 'u32')}, {tuple(table)}, {block.join})")
            return
        if target is None:
            target = starting_at.get(i.targets[0], EXIT)
        if i.guard is None:
            self.line(f"return {target}")
            return
        following = block.index + 1
        guard = f"v{i.guard.slot}"
        yes, no = (following, target) if i.guard_negated else (target, following)
        self.line(f"if {guard} is True: return {yes}")
        self.line(f"if {guard} is False: return {no}")
        self.line(f"return f.diverge({guard}, {yes}, {no}, {block.join})")

    # ---- instructions ----

    def _instruction(self, i: Instruction, block: Block) -> None:
        try:
            if self._batch(i, block):
                return
            if i.opcode in EMITTERS:
                self._assign(i)
            elif i.opcode in EFFECTS:
                self._effect(i, EFFECTS[i.opcode](i, self))
            else:
                raise Unsupported
        except (Unsupported, IndexError, ValueError, KeyError, AttributeError, AssertionError):
            self.line(f"unsupported({i.text!r})")
            self._note_assigned(destinations(i))
            for register in destinations(i):
                self.line(f"v{register.slot} = None")

    def _assign(self, i: Instruction) -> None:
        pairs = EMITTERS[i.opcode](i, self)
        names = [self._name(destination) for destination, _ in pairs]
        values = [value for _, value in pairs]
        self._note_assigned(destinations(i))
        if i.guard is None:
            self.line(f"{', '.join(names)} = {', '.join(values)}")
            return
        guard = f"v{i.guard.slot}" + (" ^ True" if i.guard_negated else "")
        self.line(f"g = {guard}")
        self.line("if g is not False:")
        for name, value in zip(names, values, strict=True):
            self.line(f"{name} = select(g, {value}, {name}, {self._bits_of(i)})", 2)

    def _note_assigned(self, registers: Iterable[Operand]) -> None:
        slots = {r.slot for r in registers if isinstance(r, Register)}
        self.pending -= slots
        self.assigned |= slots

    def _bits_of(self, i: Instruction) -> int:
        return 64 if any(r.type in TYPE_BYTES and TYPE_BYTES[r.type] == 8 for r in destinations(i)) else 32

    def _name(self, destination: Operand) -> str:
        if isinstance(destination, Register):
            return f"v{destination.slot}"
        if isinstance(destination, Sink):
            return "_"
        raise Unsupported

    def _effect(self, i: Instruction, effect: Effect | None) -> None:
        if effect is None:
            return
        for slot in sorted(self.assigned.intersection(effect.stores)):
            self.line(f"R[{slot}] = v{slot}")
        names = [self._name(d) for d in effect.results]
        fragment = "f"
        indent = 1
        if i.guard is not None:
            guard = f"v{i.guard.slot}" + (" ^ True" if i.guard_negated else "")
            self.line(f"g = {guard}")
            self.line("t = f.restrict(g)")
            self.line("if t is not None:")
            fragment, indent = "t", 2
        call = effect.call.replace("FRAGMENT", fragment)
        if effect.blocking:
            self.line(f"r = {call}", indent)
            self.line("if r is SUSPENDED: return BLOCKED", indent)
            call = "r"
        if effect.poisons:
            self.line(call, indent)
            self.pending.update(effect.poisons)
            self.assigned.difference_update(effect.poisons)
            return
        if not names:
            if call != "r":
                self.line(call, indent)
            return
        self._note_assigned(effect.results)
        if i.guard is None:
            self.line(f"{', '.join(names)} = {call}", indent)
            return
        temporaries = [f"n{k}" for k in range(len(names))]
        self.line(f"{', '.join(temporaries)} = {call}", indent)
        for name, new in zip(names, temporaries, strict=True):
            self.line(f"{name} = select(g, {new}, {name}, {self._bits_of(i)})", indent)

    def _batch(self, i: Instruction, block: Block) -> bool:
        """Write all packing conversions of the block that can run now as one NumPy call."""
        if not _is_pack(i):
            return False
        written: set[int] = set()
        read: set[int] = set()
        batch: list[Instruction] = []
        for index in range(i.index, block.last):
            other = self.instructions[index]
            uses = {r.slot for r in sources(other)}
            sets = {r.slot for r in destinations(other)}
            alike = _is_pack(other) and other.modifiers == i.modifiers and index not in self.batched
            # It may run here if nothing before it in the block, members of the batch included, touches its registers.
            if alike and not uses & (written | self.pending) and not sets & (written | read):
                batch.append(other)
            read |= uses
            written |= sets
        if len(batch) < 2:
            return False
        kind = batch[0].modifiers[-2]
        highs = ", ".join(self.read(b.operands[1], "f32") for b in batch)
        lows = ", ".join(self.read(b.operands[2], "f32") for b in batch)
        names = ", ".join(self._name(b.operands[0]) for b in batch)
        self.line(f"{names} = pack_{kind}_many(({highs}), ({lows}))")
        self.batched.update(b.index for b in batch)
        self._note_assigned(b.operands[0] for b in batch)
        return True


def _is_pack(i: Instruction) -> bool:
    return (
        i.opcode == "cvt"
        and i.guard is None
        and i.modifiers in (("rn", "bf16x2", "f32"), ("rn", "f16x2", "f32"))
        and all(isinstance(o, Register) for o in i.operands)
    )
