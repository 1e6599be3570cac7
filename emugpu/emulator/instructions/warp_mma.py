"""mma.sync and movmatrix (PTX ISA 9.7.14.5.14, 9.7.14.5.17)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    elements,
    immediate,
    instruction,
    only_form,
    tuple_of,
)
from emugpu.emulator.machine.events import Site
from emugpu.emulator.machine.lanes import FULL_MASK, WARP_SIZE, Value, stack_rows
from emugpu.emulator.machine.poison import Poison, made
from emugpu.emulator.machine.state import Fragment
from emugpu.emulator.ptx.ast import Instruction
from emugpu.emulator.units.formats import ELEMENT_BITS
from emugpu.emulator.units.sparsity import selectors
from emugpu.emulator.units.warp_mma import Matrix, WarpMmaForm, multiply, results_of, spread


def require_all_lanes(f: Fragment, what: str) -> None:
    if f.mask != FULL_MASK:
        raise Fault(f"{what} needs all {WARP_SIZE} lanes of the warp; only 0x{f.mask:08x} execute it", "convergence")


def stack(values: Sequence[Value], wide: bool) -> np.ndarray:
    """Returns the registers of a matrix as an array [registers, 32]. Undefined bits are as they happen to be."""
    values = [v.value if type(v) is Poison else v for v in values]
    if not wide:
        return stack_rows(values)
    return np.array([np.broadcast_to(np.asarray(v, np.uint64), WARP_SIZE) for v in values])


def product(results: np.ndarray, operands: Sequence[tuple[Sequence[Value], Matrix]], of: Matrix) -> list[Value]:
    """Returns the registers of D, which are undefined where undefined bits of A, B or C would decide them."""
    poison = next((v for values, _ in operands for v in values if type(v) is Poison), None)
    if poison is None:
        return list(results)
    masks = [
        (stack([v.undefined if type(v) is Poison else 0 for v in values], matrix.width == 64), matrix)
        for values, matrix in operands
    ]
    found = zip(results, spread(masks, of), strict=True)
    return [made(register, undefined, poison.origin, poison.rule) for register, undefined in found]


def mma(
    f: Fragment,
    site: Site,
    form: WarpMmaForm,
    a: Sequence[Value],
    b: Sequence[Value],
    c: Sequence[Value],
    metadata: Value = None,
) -> list[Value]:
    """Executes mma.sync: D = A . B + C, each in the registers of the warp. metadata: for a sparse A."""
    require_all_lanes(f, "mma.sync")
    wide = form.d_type == "f64"
    grid = f.grid
    grid.counters.mma_instructions += 1
    grid.counters.mma_flops += 2 * form.m * form.n * form.k
    stacked = [stack(x, wide) for x in (a, b, c)]
    held = None if metadata is None else stack_rows([metadata])[0]
    results = multiply(form, stacked[0], stacked[1], stacked[2], grid.mma_unit.accumulation, held)
    depth = form.k if metadata is None else form.k // 2
    matrices = (
        Matrix("a", form.m, depth, ELEMENT_BITS[form.a_type], len(a)),
        Matrix("b", form.n, form.k, ELEMENT_BITS[form.b_type], len(b)),
        Matrix("c", form.m, form.n, ELEMENT_BITS[form.d_type], len(c)),
    )
    return product(results, list(zip((a, b, c), matrices, strict=True)), matrices[2])


_SHAPE = re.compile(r"m(\d+)n8k(\d+)$")
_INTEGERS = ("s8", "u8")
_DEPTHS = {
    ("f16", 16): (8, 16), ("bf16", 16): (8, 16), ("tf32", 16): (4, 8), ("e4m3", 16): (16, 32), ("e5m2", 16): (16, 32),
    ("s8", 16): (16, 32), ("u8", 16): (16, 32), ("s8", 8): (16,), ("u8", 8): (16,),
    ("f64", 8): (4,), ("f64", 16): (4, 8, 16),
}  # fmt: skip
"""The K that each input type can have, by type and M."""
_SPARSE_DEPTHS = {
    "f16": (16, 32), "bf16": (16, 32), "tf32": (8, 16), "e4m3": (64,), "e5m2": (64,), "s8": (32, 64), "u8": (32, 64),
}  # fmt: skip


@instruction("mma.sync", operands=4, family="mma")
def _mma(i: Instruction, w: Translator) -> Effect:
    return _multiply(i, w, list(i.modifiers), None)


@instruction("mma.sp", "mma.sp::ordered_metadata", operands=6, family="mma")
def _sparse_mma(i: Instruction, w: Translator) -> Effect:
    """Emits a sparse mma. The indices of a code must ascend here, with and without ``ordered_metadata``."""
    return _multiply(i, w, list(i.modifiers[1:]), immediate(i.operands[5]))


def _multiply(i: Instruction, w: Translator, words: list[str], selector: int | None) -> Effect:
    saturate = "satfinite" in words
    if saturate:
        words.remove("satfinite")
    if len(words) != 9 or words[:2] != ["sync", "aligned"] or words[3:5] != ["row", "col"]:
        raise Unsupported
    size, (d_type, a_type, b_type, c_type) = _SHAPE.match(words[2]), words[5:]
    if size is None or d_type != c_type:
        raise Unsupported
    m, k = int(size.group(1)), int(size.group(2))
    fp8 = a_type in ("e4m3", "e5m2") and b_type in ("e4m3", "e5m2")
    integers = a_type in _INTEGERS and b_type in _INTEGERS
    depths = _DEPTHS.get((a_type, m), ()) if selector is None else _SPARSE_DEPTHS.get(a_type, ())
    if k not in depths or (a_type != b_type and not fp8 and not integers):
        raise Unsupported
    if d_type not in results_of(a_type) or (saturate and d_type != "s32"):
        raise Unsupported
    if selector is not None and (m != 16 or not 0 <= selector < selectors(a_type, k)):
        raise Unsupported
    form = WarpMmaForm(m, 8, k, d_type, a_type, b_type, saturate, selector)
    kept = k if selector is None else k // 2
    width = 64 if d_type == "f64" else 32
    of_d = 8 * m // (64 if d_type == "f16" else 32)
    of_a, of_b = (n * ELEMENT_BITS[t] // (32 * width) for n, t in ((m * kept, a_type), (8 * k, b_type)))
    vectors = [elements(o) for o in i.operands[:4]]
    if [len(v) for v in vectors] != [of_d, of_a, of_b, of_d]:
        raise Unsupported
    kind = f"b{width}"
    a, b, c = (tuple_of(w.read(e, kind) for e in v) for v in vectors[1:])
    metadata = [] if selector is None else [w.read(i.operands[4], "b32")]
    return Effect(mma, [w.constant(WarpMmaForm, *form), a, b, c, *metadata], vectors[0])


def transpose(f: Fragment, site: Site, value: Value) -> np.ndarray:
    """Executes ``movmatrix``: transposes an 8x8 matrix of 16-bit elements in the registers of the warp."""
    require_all_lanes(f, "movmatrix")
    halves = stack_rows([value]).view(np.uint16).reshape(8, 8)
    return np.ascontiguousarray(halves.T).view(np.uint32).reshape(WARP_SIZE)


@instruction("movmatrix", operands=2, family="matrix")
def _movmatrix(i: Instruction, w: Translator) -> Effect:
    only_form(i, "sync.aligned.m8n8.trans.b16")
    return Effect(transpose, [w.read(i.operands[1], "b32")], i.operands[:1])
