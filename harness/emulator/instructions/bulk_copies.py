"""The table of asynchronous copies without a tensor map, and of tensor reductions (PTX ISA 9.7.9)."""

from __future__ import annotations

from collections.abc import Sequence

from harness.emulator.instructions.bulk_bytes import COMPLETE
from harness.emulator.instructions.copies_to_global import to_global
from harness.emulator.instructions.copies_to_shared import store_async, to_shared
from harness.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    elements,
    instruction,
    kind_of,
    memory,
    only,
    tuple_of,
)
from harness.emulator.instructions.tensor_maps import map_operand, start_operand
from harness.emulator.instructions.tensor_rows import reduce_box
from harness.emulator.ptx.ast import TYPE_BYTES, Instruction


def _size(i: Instruction, w: Translator, position: int) -> str:
    return w.read(i.operands[position], "u32")


@instruction("cp.async.bulk", operands=range(3, 7), writes=0, family="tma")
def _copy(i: Instruction, w: Translator) -> Effect:
    return _bulk(i, w, "None", ())


def _bulk(i: Instruction, w: Translator, how: str, more: Sequence[str]) -> Effect:
    hint = i.has("L2::cache_hint")
    if i.has("bulk_group"):
        only(i, "async", "bulk", "global", "shared::cta", "bulk_group", "L2::cache_hint", "cp_mask", more)
        spaces = [m for m in i.modifiers if m in ("global", "shared::cta")]
        if spaces != ["global", "shared::cta"] or len(i.operands) != 3 + hint + i.has("cp_mask"):
            raise Unsupported
        mask = w.read(i.operands[-1], "b16") if i.has("cp_mask") else "None"
        pointers = [w.pointer(memory(o)) for o in i.operands[:2]]
        return Effect(to_global, [how, *pointers, _size(i, w, 2), mask])
    only(i, "async", "bulk", "global", "shared::cta", "shared::cluster", COMPLETE, "L2::cache_hint",
         "multicast::cluster", more)  # fmt: skip
    spaces = [m for m in i.modifiers if m in ("global", "shared::cta", "shared::cluster")]
    multicast = i.has("multicast::cluster")
    ways = (["shared::cluster", "global"], ["shared::cta", "global"], ["shared::cluster", "shared::cta"])
    if spaces not in ways or not i.has(COMPLETE) or len(i.operands) != 4 + hint + multicast:
        raise Unsupported
    if multicast and spaces != ["shared::cluster", "global"]:
        raise Unsupported
    mask = w.read(i.operands[4], "b16") if multicast else "None"
    pointers = [w.pointer(memory(i.operands[n])) for n in (0, 1)]
    barrier = w.pointer(memory(i.operands[3]))
    return Effect(to_shared, [str(spaces[1] == "global"), how, *pointers, _size(i, w, 2), barrier, mask])


_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_INTO_SHARED = {"add": ("u32", "s32", "u64"), "min": ("u32", "s32"), "max": ("u32", "s32"), "inc": ("u32",),
                "dec": ("u32",), "and": ("b32",), "or": ("b32",), "xor": ("b32",)}  # fmt: skip
_INTO_GLOBAL = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16"), "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"), "inc": ("u32",), "dec": ("u32",), "and": ("b32", "b64"),
    "or": ("b32", "b64"), "xor": ("b32", "b64"),
}  # fmt: skip


def _operation(i: Instruction) -> str:
    found = [m for m in i.modifiers if m in _OPERATIONS]
    if len(found) != 1:
        raise Unsupported
    return found[0]


@instruction("cp.reduce.async.bulk", operands=range(2, 6), writes=0, family="tma")
def _reduce(i: Instruction, w: Translator) -> Effect:
    operation = _operation(i)
    if i.has("tensor"):
        only(i, "tensor", "1d", "2d", "3d", "4d", "5d", "global", "shared::cta", operation, "tile", "bulk_group",
             "L2::cache_hint")  # fmt: skip
        if not i.has("bulk_group") or len(i.operands) != 2 + i.has("L2::cache_hint"):
            raise Unsupported
        target, source = i.operands[:2]
        arguments = [repr(operation), map_operand(target, w), start_operand(target, w), w.pointer(memory(source))]
        return Effect(reduce_box, arguments)
    kind = kind_of(i)
    table = _INTO_GLOBAL if i.has("bulk_group") else _INTO_SHARED
    halves = kind in ("f16", "bf16") and operation == "add"
    if kind not in table[operation] or i.has("noftz") != halves:
        raise Unsupported
    return _bulk(i, w, repr((operation, kind)), ("reduce", operation, "noftz"))


@instruction("cp.async.bulk.prefetch", operands=range(1, 4), writes=0, family="other")
def _prefetch(i: Instruction, w: Translator) -> None:
    """A hint."""
    if i.has("tensor"):
        only(i, "tensor", "1d", "2d", "3d", "4d", "5d", "L2", "global", "tile", "im2col", "L2::cache_hint",
             "tile::gather4", "im2col::w", "im2col::w::128")  # fmt: skip
    else:
        only(i, "L2", "global", "L2::cache_hint")


_VECTORS = {"v2": 2, "v4": 4}
_STORED = ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64")


@instruction("st.async", operands=3, writes=0, family="memory")
def _st_async(i: Instruction, w: Translator) -> Effect:
    only(i, "weak", "shared::cluster", COMPLETE, _VECTORS)
    kind, values = kind_of(i), elements(i.operands[1])
    if kind not in _STORED or not i.has("shared::cluster") or not i.has(COMPLETE):
        raise Unsupported
    if len(values) != next((n for v, n in _VECTORS.items() if i.has(v)), 1) or len(values) * TYPE_BYTES[kind] > 16:
        raise Unsupported
    return _to_cluster(i, w, kind, "None")


@instruction("red.async", operands=3, writes=0, family="memory")
def _red_async(i: Instruction, w: Translator) -> Effect:
    only(i, "relaxed", "cluster", "shared::cluster", COMPLETE, _OPERATIONS)
    kind, operation = kind_of(i), _operation(i)
    if kind not in _INTO_SHARED[operation] or not i.has("shared::cluster") or not i.has(COMPLETE):
        raise Unsupported
    return _to_cluster(i, w, kind, repr((operation, kind)))


def _to_cluster(i: Instruction, w: Translator, kind: str, how: str) -> Effect:
    values = tuple_of(w.read(e, kind) for e in elements(i.operands[1]))
    pointers = [w.pointer(memory(i.operands[n])) for n in (0, 2)]
    return Effect(store_async, [how, str(TYPE_BYTES[kind]), pointers[0], values, pointers[1]])
