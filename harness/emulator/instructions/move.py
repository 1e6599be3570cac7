"""Moves and address spaces (PTX ISA 9.7.9)."""

from __future__ import annotations

import numpy as np

from harness.emulator.instructions import values
from harness.emulator.instructions.load_store import join_halves
from harness.emulator.instructions.table import (
    Assign,
    Translator,
    Unsupported,
    bits_of,
    call,
    instruction,
    kind_of,
    only,
    only_form,
)
from harness.emulator.machine.lanes import Value
from harness.emulator.memory.address_space import (
    OFFSET_MASK,
    RANK_SHIFT,
    SHARED_WINDOW,
    WINDOWS,
    space_of,
)
from harness.emulator.ptx.ast import Instruction, Label, Sink, Symbol, Vector


@instruction("mov", operands=2)
def _mov(i: Instruction, w: Translator) -> Assign:
    kind = kind_of(i)
    only(i)
    destination, source = i.operands
    if isinstance(destination, Vector):
        value = w.read(source, kind)
        bits = bits_of(kind) // len(destination.elements)
        return Assign(
            [
                (d, call(w, values.narrow, f"{value} >> {n * bits}", bits))
                for n, d in enumerate(destination.elements)
                if not isinstance(d, Sink)
            ]
        )
    if isinstance(source, Vector):
        bits = bits_of(kind) // len(source.elements)
        if bits == 64:
            return Assign([(destination, call(w, join_halves, *(w.read(s, "b64") for s in source.elements)))])
        parts = [
            f"({call(w, values.widen, w.read(s, f'b{bits}'))} << {n * bits})" for n, s in enumerate(source.elements)
        ]
        return Assign([(destination, call(w, values.narrow, " | ".join(parts), bits_of(kind)))])
    return Assign([(destination, w.read(source, kind))])


@instruction("cvta", operands=2)
def _cvta(i: Instruction, w: Translator) -> Assign:
    """Between a state space and the generic address space."""
    only(i, "to", "global", "shared", "shared::cta", "shared::cluster", "param", "const", "local")
    source = i.operands[1]
    value = w.address(source) if isinstance(source, Symbol | Label) else w.read(source, "u64")
    window = WINDOWS[i.modifiers[-2].partition("::")[0]]
    if not window:
        return Assign([(i.operands[0], value)])
    return Assign([(i.operands[0], f"{value} {'-' if i.has('to') else '+'} {window}")])


def is_in_space(address: Value, space: str, rank: int) -> Value:
    """``isspacep``: whether a generic address lies in a space; "shared::cta" is the CTA's own part of shared."""

    def of_lane(a: int) -> bool:
        held_in = space_of(a)
        if held_in == "param" and space == "global":
            # The window of kernel parameters lies in that of global memory.
            return True
        if held_in != space.partition("::")[0]:
            return False
        return space != "shared::cta" or (a - SHARED_WINDOW) >> RANK_SHIFT == rank

    if isinstance(address, int):
        return of_lane(address)
    return np.array([of_lane(a) for a in address.tolist()])


@instruction("isspacep", operands=2)
def _isspacep(i: Instruction, w: Translator) -> Assign:
    only_form(i, "const", "global", "local", "shared", "shared::cta", "shared::cluster", "param", "param::entry")
    named = {"shared": "shared::cta"}.get(i.modifiers[0], i.modifiers[0])
    result = call(w, is_in_space, w.read(i.operands[1], "u64"), repr(named), "f.cta.rank")
    return Assign([(i.operands[0], result)])


def map_to_rank(address: Value, rank: Value) -> Value:
    """``mapa.shared::cluster``: the same offset in another CTA of the cluster."""
    if isinstance(address, int) and isinstance(rank, int):
        return (address & OFFSET_MASK) | (rank & 0xFF) << RANK_SHIFT
    ranks = rank if isinstance(rank, int) else rank.astype(np.uint32)
    return (np.asarray(address, np.uint32) & OFFSET_MASK) | ((ranks & 0xFF) << RANK_SHIFT)


def map_generic_to_rank(address: Value, rank: Value) -> Value:
    """``mapa.u64``: the same of a generic address."""
    mapped = map_to_rank(values.narrow(address, 32), rank)
    return (mapped if isinstance(mapped, int) else mapped.astype(np.uint64)) + SHARED_WINDOW


@instruction("mapa", operands=3)
def _mapa(i: Instruction, w: Translator) -> Assign:
    only_form(i, "shared::cluster.u32", "shared::cluster.u64", "u64")
    generic = i.modifiers == ("u64",)
    source = i.operands[1]
    address = w.read(source, i.modifiers[-1])
    if generic and isinstance(source, Symbol | Label):
        raise Unsupported
    if i.modifiers == ("shared::cluster", "u64"):
        mapped = call(w, map_to_rank, call(w, values.narrow, address, 32), w.read(i.operands[2], "u32"))
        return Assign([(i.operands[0], call(w, values.widen, mapped))])
    function = map_generic_to_rank if generic else map_to_rank
    return Assign([(i.operands[0], call(w, function, address, w.read(i.operands[2], "u32")))])


@instruction("getctarank", operands=2)
def _getctarank(i: Instruction, w: Translator) -> Assign:
    only_form(i, "shared::cluster.u32", "shared::cluster.u64", "u64")
    address = w.read(i.operands[1], i.modifiers[-1])
    return Assign([(i.operands[0], f"{call(w, values.narrow, address, 32)} >> {RANK_SHIFT}")])
