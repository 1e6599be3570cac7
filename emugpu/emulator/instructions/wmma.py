"""wmma: a warp loads, multiplies and stores whole matrices (PTX ISA 9.7.14.4).

The implementation may choose the layout in the lanes. Here the fragments are those of mma.sync, in blocks of 8 x 8, as
on GPUs since sm_80 for m16n16k16. A and B of f16 have eight registers for every shape; those that are not needed repeat
the others.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.instructions.accesses import AS_IS
from emugpu.emulator.instructions.load_store import SPACES, load_function, store_function
from emugpu.emulator.instructions.table import Effect, Translator, Unsupported, elements, instruction, only, tuple_of
from emugpu.emulator.instructions.warp_mma import product, require_all_lanes, stack
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.lanes import Value
from emugpu.emulator.machine.poison import Poison
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.ptx.ast import Instruction, Operand
from emugpu.emulator.units.formats import ELEMENT_BITS, FORMATS, decode
from emugpu.emulator.units.numerics import f32_to_f16_storage
from emugpu.emulator.units.warp_mma import (
    Matrix,
    WarpMmaForm,
    from_registers,
    numbers,
    places,
    results_of,
    to_registers,
)
from emugpu.emulator.units.warp_mma import compute as compute_product

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_BIG = ("m16n16k16", "m32n8k16", "m8n32k16")
_SHAPES = {
    "f16": _BIG, "bf16": _BIG, "s8": _BIG, "u8": _BIG, "tf32": ("m16n16k8",), "f64": ("m8n8k4",),
    "s4": ("m8n8k32",), "u4": ("m8n8k32",), "b1": ("m8n8k128",),
}  # fmt: skip
"""The shapes for each type of A and B."""


def _of(kind: str, shape: str, which: str) -> Matrix:
    """Returns the fragment of A, B, C or D."""
    size = _SHAPE.match(shape)
    assert size is not None
    m, n, k = map(int, size.groups())
    rows, depth = {"a": (m, k), "b": (n, k)}.get(which, (m, n))
    bits = ELEMENT_BITS[kind]
    registers = 8 if kind == "f16" and which in "ab" else rows * depth * bits // (32 * max(32, bits))
    return Matrix("c" if which == "d" else which, rows, depth, bits, registers)


def _addresses(matrix: Matrix, address: int, stride: int, across: bool) -> NDArray[np.uint64]:
    """Returns the addresses of all items, [registers, items, 32]. across: a register's items lie a stride apart."""
    row, item = places(matrix)
    item = item[:, None, :] + np.arange(matrix.width // matrix.bits)[:, None]
    index = item * stride + row[:, None, :] if across else row[:, None, :] * stride + item
    return (index * matrix.bits // 8 + address).astype(np.uint64)


def load(
    f: Fragment, site: Site, access: Any, matrix: Matrix, across: bool, address: Value, stride: Value
) -> Value | list[Value]:
    """Loads a fragment: a register, or several of them."""
    require_all_lanes(f, "wmma.load")
    where = _addresses(matrix, f.uniform(address, "the address"), f.uniform(stride, "the stride"), across)
    unit = matrix.width if not across else matrix.bits
    found: list[Value] = []
    for items in where if across else where[:, :1]:
        register: Value = 0
        for number, addresses in enumerate(items):
            value = access(f, site, addresses, unit // 8, 1, AS_IS)
            value = value if number == 0 else value << np.uint32(unit * number)
            register = value if number == 0 else register | value
        found.append(register)
    return found if len(found) > 1 else found[0]


def store(
    f: Fragment, site: Site, access: Any, matrix: Matrix, across: bool, address: Value, values: Any, stride: Value
) -> None:
    require_all_lanes(f, "wmma.store")
    where = _addresses(matrix, f.uniform(address, "the address"), f.uniform(stride, "the stride"), across)
    unit = matrix.width if not across else matrix.bits
    for items, register in zip(where if across else where[:, :1], values, strict=True):
        for number, addresses in enumerate(items):
            held = register if isinstance(register, np.ndarray | Poison) else np.full(32, register, np.uint64)
            access(f, site, addresses, unit // 8, (held >> np.uint64(unit * number) if number else held,))


class WmmaProduct(NamedTuple):
    """D = A . B + C. operation: "xor" or "and" for single bits, else ""."""

    shape: str
    d_type: str
    a_type: str
    b_type: str
    c_type: str
    saturate: bool
    operation: str


def mma(f: Fragment, site: Site, form: WmmaProduct, a: Any, b: Any, c: Any) -> list[Value]:
    require_all_lanes(f, "wmma.mma")
    size = [_of(kind, form.shape, which) for kind, which in zip(form[1:5], "dabc", strict=True)]
    held = [from_registers(stack(x, s.width == 64), s) for x, s in zip((a, b, c), size[1:], strict=True)]
    left, right = numbers(held[0], form.a_type), numbers(held[1], form.b_type)
    grid = f.grid
    grid.counters.mma_instructions += 1
    grid.counters.mma_flops += 2 * left.shape[0] * right.shape[0] * left.shape[1]
    old = held[2]
    if form.operation:
        both = left @ right.T
        ones = both if form.operation == "and" else left.sum(1)[:, None] + right.sum(1)[None, :] - 2 * both
        bits = (ones + old).astype(np.uint32)
    else:
        wide = "f32" if "f32" in (form.c_type, form.d_type) else form.d_type
        if form.c_type != wide:
            old = _between(old, form.c_type, wide)
        m, n, k = left.shape[0], right.shape[0], left.shape[1]
        kind = "s8" if form.d_type == "s32" else form.a_type
        bits = compute_product(
            WarpMmaForm(m, n, k, wide, kind, kind, form.saturate), left, right, old, grid.mma_unit.accumulation
        )
        if form.d_type != wide:
            bits = _between(bits, wide, form.d_type)
    return product(to_registers(bits, size[0]), list(zip((a, b, c), size[1:], strict=True)), size[0])


def _between(bits: NDArray[Any], source: str, to: str) -> NDArray[Any]:
    """Converts f16 to f32, or rounds f32 to f16."""
    numbers = decode(bits.astype(f"u{ELEMENT_BITS[source] // 8}"), FORMATS[source])
    with np.errstate(all="ignore"):
        if to == "f32":
            return numbers.astype(np.float32).view(np.uint32)
        return f32_to_f16_storage(numbers.astype(np.float32))


# ---- the table ----


def _access(i: Instruction, which: str, held: tuple[Operand, ...]) -> tuple[Matrix, bool]:
    """Returns the fragment of a load or store, and whether the items of a register lie apart."""
    shape = next((m for m in i.modifiers if _SHAPE.match(m)), "")
    kind = i.modifiers[-1]
    layout = [m for m in i.modifiers if m in ("row", "col")]
    fits = which in "ab" or kind in ("f16", "f32", "s32", "f64")
    allowed = _SHAPES.get(kind, ()) if which in "ab" else {s for shapes in _SHAPES.values() for s in shapes}
    if len(layout) != 1 or not fits or shape not in allowed:
        raise Unsupported
    only(i, "sync", "aligned", "row", "col", shape, kind, SPACES, which)
    matrix = _of(kind, shape, which)
    across = layout[0] == ("row" if which == "b" else "col")
    if len(held) != matrix.registers or (matrix.bits < 8 and across):
        raise Unsupported
    return matrix, across


def _stride(i: Instruction, w: Translator, matrix: Matrix, across: bool) -> str:
    """Returns the stride in elements. Without a stride operand the matrix is dense."""
    return w.read(i.operands[2], "u32") if len(i.operands) > 2 else str(matrix.rows if across else matrix.depth)


@instruction("wmma.load.a", "wmma.load.b", "wmma.load.c", operands=range(2, 4), family="matrix")
def _load(i: Instruction, w: Translator) -> Effect:
    held = elements(i.operands[0])
    matrix, across = _access(i, i.modifiers[1], held)
    function = w.use(load_function(i, w, i.operands[1]))
    arguments = [function, w.constant(Matrix, *matrix), str(across), w.pointer(i.operands[1])]
    return Effect(load, [*arguments, _stride(i, w, matrix, across)], held)


@instruction("wmma.store.d", operands=range(2, 4), writes=0, family="matrix")
def _store(i: Instruction, w: Translator) -> Effect:
    held = elements(i.operands[1])
    matrix, across = _access(i, "d", held)
    function = w.use(store_function(i, w, i.operands[0]))
    values = tuple_of(w.read(e, f"b{matrix.width}") for e in held)
    arguments = [function, w.constant(Matrix, *matrix), str(across), w.pointer(i.operands[0]), values]
    return Effect(store, [*arguments, _stride(i, w, matrix, across)])


@instruction("wmma.mma", operands=4, family="mma")
def _mma(i: Instruction, w: Translator) -> Effect:
    words = list(i.modifiers[1:])
    operation = words[0] if words[:2] in (["xor", "popc"], ["and", "popc"]) else ""
    words = words[2:] if operation else words
    saturate = words[-1:] == ["satfinite"]
    words = words[:-1] if saturate else words
    if words[:2] != ["sync", "aligned"] or not {*words[2:4]} <= {"row", "col"}:
        raise Unsupported
    shape, types = words[4], [t for t in words[5:] if t != "rn"]
    if len(types) == 2:
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4 or len(words) - 5 - len([t for t in words[5:] if t != "rn"]) > (types[0] == "f64"):
        raise Unsupported
    d, a, b, c = types
    pairs = a == b or {a, b} in ({"s8", "u8"}, {"s4", "u4"})
    results = results_of(a)
    if not pairs or shape not in _SHAPES.get(a, ()) or d not in results or c not in results:
        raise Unsupported
    if (d != c and a != "f16") or bool(operation) != (a == "b1") or (saturate and d not in ("s32", "f16", "f32")):
        raise Unsupported
    form = WmmaProduct(shape, d, a, b, c, saturate and d == "s32", operation)
    vectors = [elements(o) for o in i.operands]
    if [len(v) for v in vectors] != [
        _of(kind, shape, which).registers for kind, which in zip((d, a, b, c), "dabc", strict=True)
    ]:
        raise Unsupported
    width = "b64" if a == "f64" else "b32"
    operands = [tuple_of(w.read(e, width) for e in v) for v in vectors[1:]]
    return Effect(mma, [w.constant(WmmaProduct, *form), *operands], vectors[0])
