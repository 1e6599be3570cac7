"""tcgen05 and wgmma, as calls of ``operations`` (see ``effects``)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..machine.warpgroup import AccumulatorRegisters
from ..matrix_descriptor import Major
from ..ptx.ast import Immediate, Instruction, Memory, Operand, Register, Vector
from ..wgmma import Form
from .alu import Unsupported
from .effects import Effect, allow, emits

if TYPE_CHECKING:
    from .writer import Writer

# ---- tcgen05 ----


def _cta_group(i: Instruction) -> int:
    return 2 if i.has("cta_group::2") else 1


@emits("tcgen05")
def _tcgen05(i: Instruction, w: Writer) -> Effect | None:
    verb = i.modifiers[0]
    groups = {"cta_group::1", "cta_group::2"}
    if verb.startswith("fence"):
        return Effect(f"fence(FRAGMENT, {i.index})")
    if verb.startswith("wait"):
        allow(i, "wait::ld", "wait::st", "sync", "aligned")
        return Effect("FRAGMENT.require_whole_warp()")
    o = i.operands
    if verb == "alloc":
        allow(i, "alloc", groups, "sync", "aligned", "shared::cta", "b32")
        arguments = f"{w.pointer(o[0])}, {w.read(o[1], 'u32')}, {_cta_group(i)}"
        return Effect(f"tmem_alloc(FRAGMENT, {i.index}, {arguments})", blocking=True)
    if verb == "dealloc":
        allow(i, "dealloc", groups, "sync", "aligned", "b32")
        return Effect(f"tmem_dealloc(FRAGMENT, {i.index}, {w.read(o[0], 'u32')}, {w.read(o[1], 'u32')})")
    if verb == "relinquish_alloc_permit":
        return Effect(f"tmem_relinquish(FRAGMENT, {i.index})")
    if verb == "mma":
        return _mma(i, w, groups)
    if verb == "commit":
        allow(i, "commit", groups, "mbarrier::arrive::one", "shared::cluster", "multicast::cluster", "b64")
        mask = w.read(o[1], "b16") if i.has("multicast::cluster") else "None"
        pointer = w.pointer(o[0])
        if not i.has("shared::cluster"):
            pointer = f"{pointer} - SHARED_WINDOW"
        return Effect(f"commit(FRAGMENT, {i.index}, {pointer}, {mask})")
    if verb in ("ld", "st"):
        return _tmem_access(i, w)
    raise Unsupported


def _mma(i: Instruction, w: Writer, groups: set[str]) -> Effect:
    allow(i, "mma", groups, "kind::f16", "collector::a::fill", "collector::a::use", "collector::a::lastuse",
           "collector::a::discard")  # fmt: skip
    destination, a, b, descriptor, *rest = i.operands
    if isinstance(a, Memory) or not isinstance(destination, Memory):
        raise Unsupported
    masks = "None"
    if isinstance(rest[0], Vector):
        words = rest.pop(0)
        assert isinstance(words, Vector)
        if len(words.elements) != 4 * _cta_group(i):
            raise Unsupported
        masks = f"({', '.join(w.read(e, 'b32') for e in words.elements)})"
    if len(rest) != 1:
        raise Unsupported
    operands = f"{w.pointer(destination)}, {w.read(a, 'b64')}, {w.read(b, 'b64')}, {w.read(descriptor, 'b32')}"
    return Effect(f"mma(FRAGMENT, {i.index}, {operands}, {masks}, {w.read(rest[0], 'pred')}, {_cta_group(i)})")


def _tmem_access(i: Instruction, w: Writer) -> Effect:
    verb, shape = i.modifiers[0], next(m for m in i.modifiers if m[0].isdigit())
    num = next(int(m[1:]) for m in i.modifiers if m[0] == "x")
    allow(i, verb, "sync", "aligned", shape, f"x{num}", "b32", "pack::16b", "unpack::16b")
    memory, vector = (i.operands[1], i.operands[0]) if verb == "ld" else (i.operands[0], i.operands[1])
    elements = vector.elements if isinstance(vector, Vector) else (vector,)
    split = next((o.value for o in i.operands[1:] if isinstance(o, Immediate)), 0)
    place = f"{shape!r}, {num}, {w.pointer(memory)}"
    if verb == "ld":
        slots = tuple(e.slot for e in elements if isinstance(e, Register))
        if len(slots) != len(elements):
            raise Unsupported
        call = f"tmem_load(FRAGMENT, {i.index}, {slots}, {place}, {i.has('pack::16b')}, {split})"
        return Effect(call, poisons=slots)
    values = ", ".join(w.read(e, "b32") for e in elements)
    return Effect(f"tmem_store(FRAGMENT, {i.index}, ({values},), {place}, {i.has('unpack::16b')}, {split})")


# ---- wgmma ----

_SHAPE = re.compile(r"m64n(\d+)k16$")
_MAJOR = {0: Major.K, 1: Major.MN}


@emits("wgmma")
def _wgmma(i: Instruction, w: Writer) -> Effect:
    verb = i.modifiers[0]
    if verb == "mma_async":
        return _mma_async(i, w)
    allow(i, verb, "sync", "aligned")
    if verb == "fence":
        return Effect(f"wgmma_fence(FRAGMENT, {i.index})")
    if verb == "commit_group":
        return Effect(f"wgmma_commit(FRAGMENT, {i.index})")
    pending = i.operands[0]
    if verb != "wait_group" or not isinstance(pending, Immediate) or not 0 <= pending.value <= 7:
        raise Unsupported
    return Effect(f"wgmma_wait(FRAGMENT, {i.index}, {pending.value})", blocking=True)


def _mma_async(i: Instruction, w: Writer) -> Effect:
    """16-bit inputs and f32 results; A from shared memory or from registers."""
    _, sync, aligned, shape, result, a_type, b_type = i.modifiers
    size = _SHAPE.match(shape)
    if (sync, aligned, result) != ("sync", "aligned", "f32") or a_type != b_type or size is None:
        raise Unsupported
    n = int(size.group(1))
    if a_type not in ("bf16", "f16") or n % 8 or not 8 <= n <= 256 or i.guard is not None:
        raise Unsupported
    d, a, b, keep, *flags = i.operands
    if not isinstance(d, Vector) or len(d.elements) != n // 2:
        raise Unsupported
    registers = [e for e in d.elements if isinstance(e, Register)]
    slots = tuple(r.slot for r in registers)
    if len(set(slots)) != n // 2:
        raise Unsupported
    in_registers = isinstance(a, Vector)
    scale_a, scale_b, *majors = (_immediate(flag) for flag in flags)
    if not {scale_a, scale_b} <= {1, -1} or len(majors) != (1 if in_registers else 2):
        raise Unsupported
    a_major = Major.K if in_registers else _MAJOR[majors[0]]
    form = Form(n, a_type, a_major, _MAJOR[majors[-1]], scale_a != scale_b, in_registers)
    if isinstance(a, Vector):
        if len(a.elements) != 4:
            raise Unsupported
        a_value = f"({', '.join(w.read(e, 'b32') for e in a.elements)})"
    else:
        a_value = w.read(a, "b64")
    names = tuple(r.name for r in registers)
    where = w.constant(AccumulatorRegisters, slots, names)
    fresh = not w.pending >= set(slots)
    operands = f"{a_value}, {w.read(b, 'b64')}, {w.read(keep, 'pred')}"
    call = f"wgmma_multiply(FRAGMENT, {i.index}, {where}, {w.constant(Form, *form)}, {operands}, {fresh})"
    return Effect(call, poisons=slots, stores=slots)


def _immediate(operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise Unsupported
    return operand.value
