"""SIMD video instructions on two 16-bit or four 8-bit numbers of a register (PTX ISA 9.7.20), on all of them.

Masks and selectors (``%r1.b7610``) are refused. Compilers do not emit any other than the default ones.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from emugpu.emulator.instructions.table import Assign, Translator, Unsupported, computed, instruction
from emugpu.emulator.instructions.values import lanewise, limits, signed
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.ptx.ast import Instruction

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "vadd": operator.add,
    "vsub": operator.sub,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "vabsdiff": lambda a, b: abs(a - b),
    "vmin": min,
    "vmax": max,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def parts_of(value: int, count: int, is_signed: bool) -> list[int]:
    bits = 32 // count
    found = [value >> bits * n & ((1 << bits) - 1) for n in range(count)]
    return [signed(v, bits) for v in found] if is_signed else found


def video(
    operation: str, count: int, signs: tuple[bool, bool, bool], saturate: bool, adds: bool, a: Value, b: Value, c: Value
) -> Value:
    """signs: whether the parts of the result, of a and of b are signed. adds: returns the parts' sum plus c instead."""
    bits = 32 // count
    low, high = limits(bits, signs[0])
    compute: Callable[[int, int], int] = _OPERATIONS.get(operation) or _COMPARISONS[operation]

    def of_lane(x: int, y: int, z: int) -> int:
        pairs = zip(parts_of(x, count, signs[1]), parts_of(y, count, signs[2]), strict=True)
        found = [int(compute(*pair)) for pair in pairs]
        if saturate:
            found = [min(max(part, low), high) for part in found]
        if adds:
            return sum(found) + z & 0xFFFFFFFF
        return sum((part & ((1 << bits) - 1)) << bits * n for n, part in enumerate(found))

    return lanewise(32, of_lane, a, b, c)


@instruction(*(f"{name}{count}" for name in _OPERATIONS for count in (2, 4)), operands=4)
def _video(i: Instruction, w: Translator) -> Assign:
    types, rest = i.modifiers[:3], list(i.modifiers[3:])
    if len(types) != 3 or not {*types} <= {"u32", "s32"} or rest not in ([], ["sat"], ["add"]):
        raise Unsupported
    return _emit(i, i.opcode[:-1], types, rest)


@instruction("vset2", "vset4", operands=4)
def _video_set(i: Instruction, w: Translator) -> Assign:
    types, comparison, rest = i.modifiers[:2], i.modifiers[2:3], list(i.modifiers[3:])
    if (
        not {*types} <= {"u32", "s32"}
        or comparison[:1] not in [(c,) for c in _COMPARISONS]
        or rest not in ([], ["add"])
    ):
        raise Unsupported
    return _emit(i, comparison[0], ("u32", *types), rest)


def _emit(i: Instruction, operation: str, types: tuple[str, ...], rest: list[str]) -> Assign:
    signs = tuple(t == "s32" for t in types)
    return Assign(computed(i, video, "u32", before=(operation, int(i.opcode[-1]), signs, "sat" in rest, "add" in rest)))
