"""mma.sync and movmatrix (PTX ISA 9.7.14.5.14, 9.7.14.5.17)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

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
from emugpu.emulator.ptx.ast import Instruction, Operand
from emugpu.emulator.units.formats import ELEMENT_BITS
from emugpu.emulator.units.sparsity import selectors
from emugpu.emulator.units.warp_mma import Matrix, Scaling, WarpMmaForm, multiply, results_of, scale_bytes, spread


def require_all_lanes(f: Fragment, what: str) -> None:
    if f.mask != FULL_MASK:
        raise Fault(f"{what} needs all {WARP_SIZE} lanes of the warp; only 0x{f.mask:08x} execute it", "convergence")


def stack(values: Sequence[Value], wide: bool) -> np.ndarray:
    """Returns the registers of a matrix as an array [registers, 32]. Undefined bits are as they happen to be."""
    values = [v.value if type(v) is Poison else v for v in values]
    if not wide:
        return stack_rows(values)
    return np.array([np.broadcast_to(np.asarray(v, np.uint64), WARP_SIZE) for v in values])


def product(
    results: np.ndarray,
    operands: Sequence[tuple[Sequence[Value], Matrix]],
    of: Matrix,
    scales: Sequence[ScaleOperand] = (),
) -> list[Value]:
    """Returns the registers of D, which are undefined where undefined bits of A, B, C or a factor would decide them."""
    values = [*(v for registers, _ in operands for v in registers), *(scale.words for scale in scales)]
    poison = next((v for v in values if type(v) is Poison), None)
    if poison is None:
        return list(results)
    masks = [(stack([undefined_bits(v) for v in held], matrix.width == 64), matrix) for held, matrix in operands]
    undefined = spread(masks, of, [scale.bytes(undefined_bits(scale.words)) for scale in scales])
    return [made(*both, poison.origin, poison.rule) for both in zip(results, undefined, strict=True)]


def undefined_bits(value: Value) -> Value:
    """Returns the mask of a register's undefined bits."""
    return value.undefined if type(value) is Poison else 0


class ScaleOperand(NamedTuple):
    """The register with the scale factors of A (16 rows) or B (8 columns), and which of its bytes count."""

    words: Value
    rows: int
    thread: int
    byte: int
    vectors: int

    def bytes(self, words: Value) -> np.ndarray:
        return scale_bytes(stack_rows([words])[0], self.rows, self.thread, self.byte, self.vectors)


def _scale_operand(f: Fragment, words: Value, byte: Value, thread: Value, name: str, vectors: int) -> ScaleOperand:
    """Returns an operand whose selectors are allowed (PTX ISA 9.7.14.3, Table 37)."""
    rows, threads = (16, 2) if name == "a" else (8, 4)
    of_byte, of_thread = f.uniform(byte, f"byte-id-{name}"), f.uniform(thread, f"thread-id-{name}")
    for what, value, allowed in (("byte", of_byte, range(0, 4, vectors)), ("thread", of_thread, range(threads))):
        if value not in allowed:
            raise Fault(f"{what}-id-{name} is {value}; it must be one of {', '.join(map(str, allowed))}", "operand")
    return ScaleOperand(words, rows, of_thread, of_byte, vectors)


def mma(
    f: Fragment,
    site: Site,
    form: WarpMmaForm,
    a: Sequence[Value],
    b: Sequence[Value],
    c: Sequence[Value],
    metadata: Value = None,
    factors: Sequence[tuple[Value, Value, Value]] = (),
) -> list[Value]:
    """Executes mma.sync: D = A . B + C, each in the registers of the warp.

    metadata: for a sparse A. factors: for block scaling, of A and of B: the register, its byte and its thread selector.
    """
    require_all_lanes(f, "mma.sync")
    wide = form.d_type == "f64"
    grid = f.grid
    if form.kind and grid.mma_unit.accumulation == "tensor_core":
        raise Fault(
            f"accumulation=tensor_core: no rule is published for the sums of mma.sync of kind::{form.kind}; run it "
            "with accumulation=f32",
            "unsupported",
        )
    grid.counters.mma_instructions += 1
    grid.counters.mma_flops += 2 * form.m * form.n * form.k
    stacked = [stack(x, wide) for x in (a, b, c)]
    held = None if metadata is None else stack_rows([metadata])[0]
    vectors = form.scaling.vectors if form.scaling else 0
    scales = [_scale_operand(f, *of_one, name, vectors) for of_one, name in zip(factors, "ab", strict=False)]
    of_scales = [s.bytes(s.words.value if type(s.words) is Poison else s.words) for s in scales]
    results = multiply(form, stacked[0], stacked[1], stacked[2], grid.mma_unit.accumulation, held, of_scales)
    depth = form.k if metadata is None else form.k // 2
    matrices = (
        Matrix("a", form.m, depth, form.bits(form.a_type), len(a), form.used(form.a_type)),
        Matrix("b", form.n, form.k, form.bits(form.b_type), len(b), form.used(form.b_type)),
        Matrix("c", form.m, form.n, ELEMENT_BITS[form.d_type], len(c)),
    )
    return product(results, list(zip((a, b, c), matrices, strict=True)), matrices[2], scales)


_SHAPE = re.compile(r"m(\d+)n8k(\d+)$")
_INTEGERS = ("s8", "u8")
_DEPTHS = {
    ("f16", 16): (8, 16), ("bf16", 16): (8, 16), ("tf32", 16): (4, 8), ("e4m3", 16): (16, 32), ("e5m2", 16): (16, 32),
    ("s8", 16): (16, 32), ("u8", 16): (16, 32), ("s8", 8): (16,), ("u8", 8): (16,),
    ("f64", 8): (4,), ("f64", 16): (4, 8, 16),
}  # fmt: skip
"""The K that each input type can have, by type and M."""
_SMALL_FLOATS = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_SCALINGS = {("mxf8f6f4", "ue8m0"): (1,), ("mxf4", "ue8m0"): (2,), ("mxf4nvf4", "ue8m0"): (2, 4),
             ("mxf4nvf4", "ue4m3"): (4,)}  # fmt: skip
"""The number of scale factors of a row of A, by kind and type (PTX ISA 9.7.14.3, Table 36)."""
_SPARSE_DEPTHS = {
    "f16": (16, 32), "bf16": (16, 32), "tf32": (8, 16), "e4m3": (64,), "e5m2": (64,), "s8": (32, 64), "u8": (32, 64),
}  # fmt: skip


@instruction("mma.sync", operands=range(4, 9), family="mma")
def _mma(i: Instruction, w: Translator) -> Effect:
    return _multiply(i, w, list(i.modifiers), None)


@instruction("mma.sp", "mma.sp::ordered_metadata", operands=range(6, 11), family="mma")
def _sparse_mma(i: Instruction, w: Translator) -> Effect:
    """Emits a sparse mma. The indices of a code must ascend here, with and without ``ordered_metadata``."""
    return _multiply(i, w, list(i.modifiers[1:]), immediate(i.operands[5]))


def _multiply(i: Instruction, w: Translator, words: list[str], selector: int | None) -> Effect:
    if any(word.startswith("kind::") for word in words):
        return _multiply_kind(i, w, words, selector)
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
    return _effect(i, w, WarpMmaForm(m, 8, k, d_type, a_type, b_type, saturate, selector), [])


def _effect(i: Instruction, w: Translator, form: WarpMmaForm, scales: Sequence[Operand]) -> Effect:
    kept = form.k if form.selector is None else form.k // 2
    width = 64 if form.d_type == "f64" else 32
    of_d = 8 * form.m // (64 if form.d_type == "f16" else 32)
    sizes = ((form.m * kept, form.a_type), (8 * form.k, form.b_type))
    of_a, of_b = (n * form.bits(t) // (32 * width) for n, t in sizes)
    vectors = [elements(o) for o in i.operands[:4]]
    count = (4 if form.selector is None else 6) + (4 if form.scaling else 0)
    if [len(v) for v in vectors] != [of_d, of_a, of_b, of_d] or len(i.operands) != count:
        raise Unsupported
    kind = f"b{width}"
    a, b, c = (tuple_of(w.read(e, kind) for e in v) for v in vectors[1:])
    metadata = "None" if form.selector is None else w.read(i.operands[4], "b32")
    arguments = [w.constant(WarpMmaForm, *form), a, b, c, metadata]
    if scales:
        arguments.append(tuple_of(_factors(w, *pair) for pair in (scales[:2], scales[2:])))
    return Effect(mma, arguments, vectors[0])


def _factors(w: Translator, data: Operand, selectors: Operand) -> str:
    """Returns a register with scale factors and its selectors; the register may stand in braces."""
    (register,), (byte, thread) = elements(data), elements(selectors)
    return tuple_of([w.read(register, "b32"), w.read(byte, "u16"), w.read(thread, "u16")])


def _multiply_kind(i: Instruction, w: Translator, words: list[str], selector: int | None) -> Effect:
    """Emits an mma of a kind, which only sm_120 has. Its words may stand before or behind the shape."""
    plain = [word for word in words if "::" not in word and word != "block_scale"]
    kind, *other = (word.partition("::")[2] for word in words if word.startswith("kind::"))
    sizes = [word.partition("::")[2] for word in words if word.startswith("scale_vec::")]
    scaled = "block_scale" in words
    if other or len(sizes) > scaled or (i.modifiers[0].startswith("sp") and i.modifiers[0] != "sp::ordered_metadata"):
        raise Unsupported
    if len(plain) != 9 + scaled or plain[:2] != ["sync", "aligned"] or plain[3:5] != ["row", "col"]:
        raise Unsupported
    d_type, a_type, b_type, c_type = plain[5:9]
    if d_type != c_type or d_type not in (("f32",) if scaled else ("f32", "f16")):
        raise Unsupported
    scaling = None
    if scaled:
        allowed = _SCALINGS.get((kind, plain[9]), ())
        vectors = int(sizes[0][0]) if sizes else allowed[0] if kind != "mxf4nvf4" else 0
        if vectors not in allowed:
            raise Unsupported
        scaling = Scaling(kind, vectors, plain[9])
    narrow = kind in ("mxf4", "mxf4nvf4")
    k = (64 if narrow else 32) * (1 if selector is None else 2)
    types = ("e2m1",) if narrow else _SMALL_FLOATS
    if scaled != (kind != "f8f6f4") or plain[2] != f"m16n8k{k}" or a_type not in types or b_type not in types:
        raise Unsupported
    if selector not in (None, 0):
        raise Unsupported
    form = WarpMmaForm(16, 8, k, d_type, a_type, b_type, False, selector, kind, scaling)
    return _effect(i, w, form, i.operands[4 if selector is None else 6 :])


def transpose(f: Fragment, site: Site, value: Value) -> np.ndarray:
    """Executes ``movmatrix``: transposes an 8x8 matrix of 16-bit elements in the registers of the warp."""
    require_all_lanes(f, "movmatrix")
    halves = stack_rows([value]).view(np.uint16).reshape(8, 8)
    return np.ascontiguousarray(halves.T).view(np.uint32).reshape(WARP_SIZE)


@instruction("movmatrix", operands=2, family="matrix")
def _movmatrix(i: Instruction, w: Translator) -> Effect:
    only_form(i, "sync.aligned.m8n8.trans.b16")
    return Effect(transpose, [w.read(i.operands[1], "b32")], i.operands[:1])
