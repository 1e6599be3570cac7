"""Decodes the descriptors and the tensor map of an operation."""

from __future__ import annotations

from collections.abc import Iterator

from emugpu.debug.names import LaunchNames
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Operation
from emugpu.emulator.memory.descriptors import Major, MatrixDescriptor, decode_sm90, decode_sm100
from emugpu.emulator.memory.swizzle import Swizzle
from emugpu.emulator.memory.tensor_map import TensorMap
from emugpu.emulator.units.mma_instruction import Mma

LANE_BITS = 16
"""A tensor memory address has the column in the bits below, and the lane in the bits above."""


def decoded(operation: Operation, names: LaunchNames) -> Iterator[str]:
    """Yields lines about a multiplication, or about a copy with a tensor map; none for other operations."""
    cta = operation.agent.cta
    if operation.kind == "wgmma":
        form = operation.detail["form"]
        yield f"64x{form.n}, {form.element} and {form.b_element or form.element} into {form.d_type}"
        if not form.a_in_registers:
            yield f"A: {_matrix(decode_sm90(operation.detail['a']), form.a_major, names, cta)}"
        yield f"B: {_matrix(decode_sm90(operation.detail['b']), form.b_major, names, cta)}"
    elif operation.kind == "mma":
        yield from _mma(operation.detail["mma"], operation.detail["ctas"], names, cta)
    for box in (region for region in (*operation.reads, *operation.writes) if isinstance(region, events.GlobalBox)):
        yield f"box at {names.box(box)}: {_map(box.tensor_map)}"


def _mma(what: Mma, ctas: tuple[int, ...], names: LaunchNames, cta: int) -> Iterator[str]:
    shape, a = what.shape(), what.a
    of = f"of CTA {ctas[0]}" if len(ctas) == 1 else f"of each of CTAs {' and '.join(map(str, ctas))}"
    how = "is added to" if what.accumulate else "replaces"
    yield f"{shape.m}x{shape.n}, {shape.a_type} and {shape.b_type} into {shape.d_type}"
    yield f"D {how} what lies from {_tensor(what.d_address)} {of}"
    yield f"A: {_tensor(a) if what.a_in_tmem else _matrix(decode_sm100(a, shape.is_k96), shape.a_major, names, cta)}"
    yield f"B: {_matrix(decode_sm100(what.b_descriptor, shape.is_k96), shape.b_major, names, cta)}"
    if what.vectors:
        for name, address, byte in zip("AB", what.scales, (shape.a_id, shape.b_id), strict=True):
            where = f"byte {byte} of {_tensor(address)}"
            yield f"scale factors of {name}: {what.vectors} of {shape.scale} a row, from {where}"


def _matrix(of: MatrixDescriptor, major: Major, names: LaunchNames, cta: int) -> str:
    leading = f"next line at {of.leading_bytes:#x}" if of.absolute else f"leading dimension {of.leading_bytes} bytes"
    strides = f"{leading}, stride dimension {of.stride_bytes} bytes"
    return f"{names.shared(of.start, cta)}, {major.value}, {_swizzle(of.swizzle)}, {strides}"


def _tensor(address: int) -> str:
    return f"tensor memory lane {address >> LANE_BITS}, column {address & (1 << LANE_BITS) - 1}"


def _map(of: TensorMap) -> str:
    box, dims = ("x".join(map(str, reversed(extents))) for extents in (of.box, of.dims))
    rows = f", rows {of.pitches[1]} bytes apart" if len(of.dims) > 1 else ""
    return f"{box} of {dims} {of.element.name}{rows}, {_swizzle(of.swizzle)}"


def _swizzle(of: Swizzle) -> str:
    return "no swizzle" if of is Swizzle.NONE else f"swizzle {of.span_bytes}B"
