"""Which targets have which forms of an instruction, where only some of its forms depend on the target.

The sources are the "Target ISA Notes" of PTX ISA 9.7: 9.7.3 to 9.7.5 (arithmetic), 9.7.9 (data movement), 9.7.13.8
(redux), 9.7.14.5 (mma, ldmatrix, stmatrix). ptxas 13.0 refuses the same forms. Instructions that a target has in all
forms or in none name their targets in `instructions.table`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from emugpu.emulator.instructions.table import CONSUMER, TENSOR_MEMORY
from emugpu.emulator.ptx.ast import TYPE_BYTES, Instruction, Vector

SPECIFIC = (*TENSOR_MEMORY, *CONSUMER)
"""Blackwell with the features of one architecture or of one family."""
ONE_ARCHITECTURE = tuple(target for target in SPECIFIC if target.endswith("a"))


class Feature(NamedTuple):
    """Forms of some instructions. opcodes: none means all. words: the forms that have one of these modifiers.

    targets: those that have it, or the number of the first one. also: a condition besides.
    """

    opcodes: tuple[str, ...]
    words: tuple[str, ...]
    targets: tuple[str, ...] | int
    also: Callable[[Instruction], bool] = lambda i: True

    def is_in(self, i: Instruction) -> bool:
        fits = not self.opcodes or i.opcode in self.opcodes
        return fits and any(word in i.modifiers for word in self.words) and self.also(i)

    def is_on(self, target: str) -> bool:
        if isinstance(self.targets, int):
            return int("".join(filter(str.isdigit, target))) >= self.targets
        return target in self.targets


def _is_sparse(i: Instruction) -> bool:
    return i.modifiers[0].startswith("sp")


def _has_small_types(i: Instruction) -> bool:
    return any(i.has(kind) for kind in ("e3m2", "e2m3", "e2m1"))


def _is_wide(i: Instruction) -> bool:
    """Returns whether a load or store moves 256 bits."""
    return any(isinstance(o, Vector) and len(o.elements) * TYPE_BYTES.get(i.modifiers[-1], 0) == 32 for o in i.operands)


FEATURES = (
    Feature((), ("cta_group::1", "cta_group::2"), TENSOR_MEMORY),
    Feature(("clusterlaunchcontrol",), ("multicast::cluster::all",), SPECIFIC),
    Feature(("tcgen05",), ("kind::i8",), ("sm_100a", "sm_101a", "sm_110a")),
    Feature(("tcgen05",), ("scale_vec::1X", "scale_vec::2X", "scale_vec::4X"), ONE_ARCHITECTURE),
    Feature(("mma",), ("kind::mxf4", "kind::mxf4nvf4"), ONE_ARCHITECTURE, _is_sparse),
    Feature(("mma",), ("kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4"), CONSUMER),
    Feature(("mma",), ("kind::f8f6f4",), CONSUMER, _has_small_types),
    Feature(("mma",), ("kind::f8f6f4",), SPECIFIC),
    Feature(("mma",), ("e4m3", "e5m2"), CONSUMER, lambda i: _is_sparse(i) and i.has("f16")),
    Feature(("ldmatrix",), ("m16n16", "m8n16"), SPECIFIC),
    Feature(("stmatrix",), ("m16n8",), SPECIFIC),
    Feature(("cvt",), ("e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2"), SPECIFIC),
    Feature(("cvt",), ("satfinite",), 100, lambda i: i.has("tf32") and not i.has("rna")),
    Feature(("redux",), ("f32",), ("sm_100a", "sm_100f", "sm_103a", "sm_103f")),
    Feature(("tensormap",), ("swizzle_atomicity",), SPECIFIC),
    Feature(("tensormap",), ("replace",), ("sm_90a", *SPECIFIC)),
    Feature(("cp",), ("tile::scatter4",), TENSOR_MEMORY),
    Feature(("cp",), ("tile::gather4",), TENSOR_MEMORY, lambda i: not i.has("shared::cta")),
    Feature(("cp",), ("tile::gather4",), 100),
    Feature(("cp",), ("cp_mask",), 100),
    Feature(("add", "sub", "mul", "fma"), ("f32x2",), 100),
    Feature(("add", "sub", "fma"), ("f16", "bf16"), 100, lambda i: i.has("f32")),
    Feature(("min", "max"), ("f32",), 100, lambda i: len(i.operands) == 4),
    Feature(("ld", "st"), tuple(TYPE_BYTES), 100, _is_wide),
)


def target_problem(i: Instruction, target: str) -> str:
    """Returns why a target lacks a form, or an empty string."""
    for feature in FEATURES:
        if feature.is_in(i) and not feature.is_on(target):
            word = next(word for word in feature.words if i.has(word))
            targets = feature.targets
            needed = f"sm_{targets} or later" if isinstance(targets, int) else ", ".join(targets)
            return f"{i.opcode} with .{word} does not exist on the module's target {target}; it needs {needed}"
    return ""
