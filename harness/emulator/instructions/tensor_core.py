"""tcgen05.mma of every kind, tcgen05.cp and tcgen05.commit (PTX ISA 9.7.16.9.1, 9.7.16.10, 9.7.16.11)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.emulator.instructions.mbarrier import reached
from harness.emulator.instructions.table import (
    TENSOR_MEMORY,
    Effect,
    Translator,
    Unsupported,
    elements,
    immediate,
    instruction,
    memory,
    only,
    tuple_of,
)
from harness.emulator.instructions.tensor_memory import GROUPS, cta_group
from harness.emulator.machine import events
from harness.emulator.machine.events import Operation, Site
from harness.emulator.machine.lanes import Value, lane_value
from harness.emulator.machine.state import AsyncOperation, Cta, Fragment
from harness.emulator.memory.address_space import OFFSET_MASK, SHARED_WINDOW, shared_from_generic
from harness.emulator.memory.descriptors import NO_TYPE, SCALED, Major, decode_sm100, operand_positions
from harness.emulator.memory.tmem import split_address
from harness.emulator.ptx.ast import Immediate, Instruction, Memory, Vector
from harness.emulator.units.mma import Mma, accumulator_layout
from harness.emulator.units.tensor_kinds import A_COLUMNS, KindMma, a_lanes, metadata_columns, multiply, scale_columns

# ---- every kind and form but the commonest ----


def pipe(f: Fragment, lane: int) -> object:
    """MMAs, copies and commits of one thread complete in order (PTX ISA 9.7.16.6)."""
    return ("mma", f.cta.cluster.number, f.cta.rank, f.warp.index, lane)


class Form(NamedTuple):
    """What the text of an instruction fixes."""

    kind: str
    a_in_tmem: bool
    group: int
    shift: int
    weights: bool
    vectors: int
    sparse: bool = False


def mma_of_kind(
    f: Fragment,
    site: Site,
    form: Form,
    destination: Value,
    a: Value,
    b: Value,
    descriptor: Value,
    masks: Sequence[Value] | None,
    accumulate: Value,
    scales: Sequence[Value],
    metadata: Value = 0,
) -> None:
    """Every active lane issues one MMA."""
    grid = f.grid
    ctas = f.cta.pair if form.group == 2 else (f.cta,)
    for lane in f.lanes:
        kept = [lane_value(m, lane) for m in masks or ()]
        factors = tuple(lane_value(s, lane) for s in scales)
        what = KindMma(
            form.kind,
            lane_value(destination, lane),
            lane_value(a, lane),
            form.a_in_tmem,
            lane_value(b, lane),
            lane_value(descriptor, lane),
            accumulate if isinstance(accumulate, bool) else bool(accumulate[lane]),
            form.group,
            tuple(kept) if any(kept) else None,
            form.shift,
            form.weights,
            form.vectors,
            (factors[0], factors[1]) if factors else (0, 0),
            lane_value(metadata, lane) if form.sparse else None,
        )
        codes = {what.idesc >> 7 & 7, what.idesc >> 10 & 7}
        if form.kind == "f8f6f4" and NO_TYPE in codes:
            grid.findings.warn("type-code", site, f"type code {NO_TYPE} of A or B is that of no type; here it is e4m3")
        for member in ctas:
            member.mma_in_flight += 1
        grid.counters.mma_instructions += 1
        operation = _tell_of_kind(f, site, ctas, what) if grid.sink is not None else None
        run = partial(_multiply_of_kind, f, site, ctas, what, operation)
        grid.submit(AsyncOperation("mma", run, f, site, pipe(f, lane), what))


def _tell_of_kind(f: Fragment, site: Site, ctas: Sequence[Cta], what: KindMma) -> Operation:
    shape = what.shape()
    a, b = what.operands()
    blocks, _, _ = what.layout()
    reads: list[events.Region] = []
    for cta in ctas:
        reads.append(events.SharedChunks(cta.rank, b.positions))
        if a is not None:
            reads.append(events.SharedChunks(cta.rank, a.positions))
        else:
            lanes, column = a_lanes(what), split_address(what.a)[1]
            span = range(int(lanes.min()), int(lanes.max()) + 1)
            reads.append(events.TensorBlock(cta.rank, span, range(column, column + A_COLUMNS)))
        if what.metadata is not None:
            columns = metadata_columns(what)
            reads.append(events.TensorBlock(cta.rank, range(128), range(columns.start, columns.stop)))
        for address, count in (
            zip(what.scales, (shape.m // what.cta_group, shape.n), strict=True) if what.vectors else ()
        ):
            columns = scale_columns(address, count)
            reads.append(events.TensorBlock(cta.rank, range(128), range(columns.start, columns.stop)))
    d = tuple(
        events.TensorBlock(c.rank, range(k.lanes.start, k.lanes.stop), range(k.columns.start, k.columns.stop))
        for c in ctas
        for k in blocks
    )
    read = (*reads, *d) if what.accumulate else tuple(reads)
    return f.grid.operation("mma", f, site, reads=read, writes=d, mma=what, ctas=tuple(c.rank for c in ctas))


def _multiply_of_kind(f: Fragment, site: Site, ctas: Sequence[Cta], what: KindMma, operation: Operation | None) -> None:
    grid = f.grid

    def warn(rule: str, message: str) -> None:
        grid.findings.warn(rule, site, message)

    for cta in ctas:
        cta.check_alive("an MMA uses")
    if operation is not None and grid.sink is not None:
        grid.sink(events.Started(operation))
    if grid.computes:
        grid.counters.mma_flops += multiply(what, ctas, grid.mma_unit.accumulation, warn)
    for cta in ctas:
        cta.mma_in_flight -= 1
    if operation is not None and grid.sink is not None:
        grid.sink(events.Finished(operation, operation.writes))


_KINDS = ("f16", "tf32", "f8f6f4", "i8", *SCALED)
_COLLECTORS = tuple(f"collector::a::{what}" for what in ("fill", "use", "lastuse", "discard"))
_WS_COLLECTORS = tuple(f"collector::b{n}::{what}" for n in range(4) for what in ("fill", "use", "lastuse", "discard"))
_VECTORS = {
    "mxf8f6f4": {"": 1, "block32": 1, "scale_vec::1X": 1},
    "mxf4": {"": 2, "block32": 2, "scale_vec::2X": 2},
    "mxf4nvf4": {"block32": 2, "scale_vec::2X": 2, "block16": 4, "scale_vec::4X": 4},
}
"""Scale factors a row, by what stands behind ``.block_scale``."""


def _kind(i: Instruction) -> str:
    kind = next((m.removeprefix("kind::") for m in i.modifiers if m.startswith("kind::")), "")
    if kind not in _KINDS:
        raise Unsupported
    return kind


def _any_mma(i: Instruction, w: Translator) -> Effect:
    """tcgen05.mma, but for what `tensor_core` does itself."""
    kind, group = _kind(i), cta_group(i)
    sizes = [m for m in i.modifiers if m in ("block16", "block32") or m.startswith("scale_vec::")]
    sparse = i.has("sp")
    only(i, GROUPS, f"kind::{kind}", _COLLECTORS, "block_scale", sizes, "sp")
    scaled = kind in SCALED
    vectors = 0
    if scaled != i.has("block_scale") or len(sizes) > (1 if scaled else 0):
        raise Unsupported
    if scaled:
        size = sizes[0] if sizes else ""
        if size not in _VECTORS[kind]:
            raise Unsupported
        vectors = _VECTORS[kind][size]
    a, rest = i.operands[1], i.operands[4 + sparse :]
    scales: list[str] = []
    if scaled:
        if len(rest) < 3:
            raise Unsupported
        scales = [w.pointer(memory(o)) for o in rest[:2]]
        rest = rest[2:]
    masks = "None"
    if rest and isinstance(rest[0], Vector):
        words = elements(rest.pop(0))
        if len(words) != 4 * group or scaled:
            raise Unsupported
        masks = tuple_of(w.read(e, "b32") for e in words)
    shift = 0
    if len(rest) == 2 and isinstance(rest[1], Immediate) and kind in ("f16", "tf32"):
        shift = immediate(rest.pop())
    if len(rest) != 1 or not 0 <= shift <= 15:
        raise Unsupported
    form = Form(kind, isinstance(a, Memory), group, shift, False, vectors, sparse)
    return _effect(i, w, form, masks, w.read(rest[0], "pred"), scales)


def _effect(i: Instruction, w: Translator, form: Form, masks: str, accumulate: str, scales: Sequence[str]) -> Effect:
    destination, a, b, *metadata, descriptor = i.operands[: 4 + form.sparse]
    a_value = w.pointer(a) if form.a_in_tmem else w.read(a, "b64")
    operands = [w.pointer(memory(destination)), a_value, w.read(b, "b64"), w.read(descriptor, "b32")]
    factors = tuple_of(scales) if scales else "()"
    pointers = [w.pointer(memory(m)) for m in metadata]
    return Effect(mma_of_kind, [w.constant(Form, *form), *operands, masks, accumulate, factors, *pointers])


@instruction("tcgen05.mma.sp", operands=range(6, 10), writes=0, family="mma", targets=TENSOR_MEMORY)
def _mma_sp(i: Instruction, w: Translator) -> Effect:
    """A sparse A."""
    return _any_mma(i, w)


@instruction("tcgen05.mma.ws.sp", operands=range(6, 8), writes=0, family="mma", targets=TENSOR_MEMORY)
@instruction("tcgen05.mma.ws", operands=range(5, 7), writes=0, family="mma", targets=TENSOR_MEMORY)
def _mma_ws(i: Instruction, w: Translator) -> Effect:
    """Weight stationary; the mask of zero columns must be the immediate 0, if it is there."""
    kind = _kind(i)
    sparse = i.has("sp")
    only(i, "ws", "sp", "cta_group::1", f"kind::{kind}", _WS_COLLECTORS)
    if kind in SCALED or cta_group(i) != 1:
        raise Unsupported
    if len(i.operands) == 6 + sparse and not (isinstance(i.operands[-1], Immediate) and i.operands[-1].value == 0):
        raise Unsupported
    form = Form(kind, isinstance(i.operands[1], Memory), 1, 0, True, 0, sparse)
    return _effect(i, w, form, "None", w.read(i.operands[4 + sparse], "pred"), [])


# ---- copies from shared to tensor memory ----

_QUARTERS = {
    "128x256b": ((0,), (1,), (2,), (3,)),
    "128x128b": ((0,), (1,), (2,), (3,)),
    "64x128b.warpx2::02_13": ((0, 2), (1, 3)),
    "64x128b.warpx2::01_23": ((0, 1), (2, 3)),
    "32x128b.warpx4": ((0, 1, 2, 3),),
}
"""The quadrants of lanes to which each 32 rows of the source go, by shape."""
_ROWS_OF_4 = "4x256b"


def _copied_lanes(shape: str) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Pairs of rows of the source and the lanes they go to."""
    if shape == _ROWS_OF_4:
        # One row a quadrant, as CuTe places them; the ISA shows it in a figure only.
        return [(np.arange(4), 32 * np.arange(4))]
    row = np.arange(32)
    return [(row + 32 * n, row + 32 * q) for n, quadrants in enumerate(_QUARTERS[shape]) for q in quadrants]


def copy(f: Fragment, site: Site, shape: str, group: int, destination: Value, descriptor: Value) -> None:
    """``tcgen05.cp``: each lane's copy, in both CTAs of a pair."""
    grid = f.grid
    ctas = f.cta.pair if group == 2 else (f.cta,)
    rows = int(shape.partition("x")[0])
    nbytes = int(shape.partition("x")[2].partition("b")[0]) // 8
    for lane in f.lanes:
        _, column = split_address(lane_value(destination, lane))
        source = decode_sm100(lane_value(descriptor, lane))
        positions = operand_positions(source, rows, nbytes, 1, Major.K)
        columns = slice(column, column + nbytes // 4)
        operation = None
        if grid.sink is not None:
            operation = grid.operation(
                "tmem.copy",
                f,
                site,
                reads=tuple(events.SharedChunks(c.rank, positions) for c in ctas),
                writes=tuple(events.TensorBlock(c.rank, range(128), range(columns.start, columns.stop)) for c in ctas),
                lanes=_copied_lanes(shape),
            )
        for member in ctas:
            member.mma_in_flight += 1
        run = partial(_copy, f, ctas, shape, positions, columns, operation)
        grid.submit(AsyncOperation("tmem.copy", run, f, site, pipe(f, lane)))


def _copy(
    f: Fragment,
    ctas: Sequence[Cta],
    shape: str,
    positions: NDArray[np.intp],
    columns: slice,
    operation: Operation | None,
) -> None:
    grid = f.grid
    if operation is not None and grid.sink is not None:
        grid.sink(events.Started(operation))
    for cta in ctas:
        cta.check_alive("tcgen05.cp uses")
        cta.tmem.check_allocated(columns.start, columns.stop, "tcgen05.cp")
        cta.mma_in_flight -= 1
        if not grid.computes:
            continue
        cta.tmem.settle(columns.start, columns.stop)
        words = cta.shared.read_chunks(positions).view(np.uint32).reshape(len(positions), -1)
        for rows, lanes in _copied_lanes(shape):
            cta.tmem.data[lanes, columns] = words[rows]
            cta.tmem.valid[lanes, columns] = True
    if operation is not None and grid.sink is not None:
        grid.sink(events.Finished(operation, operation.writes))


@instruction("tcgen05.cp", operands=2, writes=0, family="tmem", targets=TENSOR_MEMORY)
def _cp(i: Instruction, w: Translator) -> Effect:
    group = cta_group(i)
    forms = [m for m in i.modifiers[1:] if m not in GROUPS]
    shape = ".".join(sorted(forms, key=lambda m: m.startswith("warpx")))  # Triton names the quadrants first
    if shape not in _QUARTERS and shape != _ROWS_OF_4:
        raise Unsupported
    operands = [w.pointer(memory(i.operands[0])), w.read(i.operands[1], "b64")]
    return Effect(copy, [repr(shape), str(group), *operands])


# ---- the commonest: kind::f16 with both operands in shared memory ----


def mma(
    f: Fragment,
    site: Site,
    destination: Value,
    a_descriptor: Value,
    b_descriptor: Value,
    instruction_descriptor: Value,
    lane_masks: Sequence[Value] | None,
    accumulate: Value,
    group: int,
) -> None:
    """``tcgen05.mma.kind::f16``, both operands in shared memory: every active lane issues one MMA."""
    grid = f.grid
    ctas = f.cta.pair if group == 2 else (f.cta,)
    for lane in f.lanes:
        masks = [lane_value(m, lane) for m in lane_masks or ()]
        what = Mma(
            lane_value(destination, lane),
            lane_value(a_descriptor, lane),
            lane_value(b_descriptor, lane),
            lane_value(instruction_descriptor, lane),
            accumulate if isinstance(accumulate, bool) else bool(accumulate[lane]),
            group,
            tuple(masks) if any(masks) else None,
        )
        for member in ctas:
            member.mma_in_flight += 1
        grid.counters.mma_instructions += 1
        operation = None
        if grid.sink is not None:
            operation = _tell(f, site, ctas, what)
        run = partial(_multiply, f, ctas, what, operation)
        grid.submit(AsyncOperation("mma", run, f, site, pipe(f, lane), what))


def _tell(f: Fragment, site: Site, ctas: Sequence[Cta], what: Mma) -> Operation:
    ranks = tuple([cta.rank for cta in ctas])
    reads, writes = _regions(what, ranks)
    return f.grid.operation("mma", f, site, reads=reads, writes=writes, mma=what, ctas=ranks)


Regions = tuple[events.Region, ...]


@lru_cache(maxsize=4096)
def _regions(what: Mma, ranks: tuple[int, ...]) -> tuple[Regions, Regions]:
    """What an MMA of these CTAs reads and writes. Loops come back to the same few descriptors."""
    plan = what.plan()
    blocks, _, _ = accumulator_layout(what.d_address, plan.idesc.m, plan.idesc.n, what.cta_group)
    operands = tuple(events.SharedChunks(rank, o.positions) for rank in ranks for o in (plan.a, plan.b))
    d = tuple(
        events.TensorBlock(rank, range(b.lanes.start, b.lanes.stop), range(b.columns.start, b.columns.stop))
        for rank in ranks
        for b in blocks
    )
    return (*operands, *d) if what.accumulate else operands, d


def _multiply(f: Fragment, ctas: Sequence[Cta], what: Mma, operation: Operation | None) -> None:
    grid = f.grid
    for cta in ctas:
        cta.check_alive("an MMA uses")
    if operation is not None and grid.sink is not None:
        grid.sink(events.Started(operation))
    if grid.computes:
        grid.counters.mma_flops += grid.mma_unit.mma(ctas, *what)
    for cta in ctas:
        cta.mma_in_flight -= 1
    if operation is not None and grid.sink is not None:
        grid.sink(events.Finished(operation, operation.writes))


def _is_common(i: Instruction) -> bool:
    """kind::f16 with both operands in shared memory, and D taken as it is."""
    simple = i.has("kind::f16") and not i.has("block_scale") and not isinstance(i.operands[1], Memory)
    return simple and not (len(i.operands) > 5 and isinstance(i.operands[-1], Immediate) and not _last_is_flag(i))


def _last_is_flag(i: Instruction) -> bool:
    """Whether the last operand is the predicate and not a scale of D."""
    return len(i.operands) == 5 + isinstance(i.operands[4], Vector)


@instruction("tcgen05.mma", operands=range(5, 9), writes=0, family="mma", targets=TENSOR_MEMORY)
def _mma(i: Instruction, w: Translator) -> Effect:
    if not _is_common(i):
        return _any_mma(i, w)
    only(i, GROUPS, "kind::f16", "collector::a::fill", "collector::a::use", "collector::a::lastuse",
         "collector::a::discard")  # fmt: skip
    group = cta_group(i)
    destination, a, b, descriptor, *rest = i.operands
    masks = "None"
    if isinstance(rest[0], Vector):
        words = elements(rest.pop(0))
        if len(words) != 4 * group:
            raise Unsupported
        masks = tuple_of(w.read(e, "b32") for e in words)
    if len(rest) != 1:
        raise Unsupported
    operands = [w.pointer(memory(destination)), w.read(a, "b64"), w.read(b, "b64"), w.read(descriptor, "b32")]
    return Effect(mma, [*operands, masks, w.read(rest[0], "pred"), str(group)])


def commit(f: Fragment, site: Site, barrier: Value, mask: Value) -> None:
    """``tcgen05.commit``: one arrival at each named barrier once this thread's earlier MMAs are complete."""
    grid, cluster = f.grid, f.cta.cluster
    for lane in f.lanes:
        address = lane_value(barrier, lane)
        offset = address & OFFSET_MASK
        if mask is None:
            targets = [cluster.cta_at(address, "tcgen05.commit")[0]]
        else:
            targets = cluster.masked(lane_value(mask, lane), "tcgen05.commit")
        grid.counters.commits += 1
        operation = None
        if grid.sink is not None:
            operation = grid.operation("commit", f, site, signals=tuple((c.rank, offset) for c in targets))
        run = partial(_signal, f, site, targets, offset, operation)
        grid.submit(AsyncOperation("commit", run, f, site, pipe(f, lane), len(targets)))


def _signal(f: Fragment, site: Site, targets: list[Cta], offset: int, operation: Operation | None) -> None:
    grid = f.grid
    if grid.choices.splits_multicast and len(targets) > 1:
        for target in targets:
            run = partial(_signal, f, site, [target], offset, operation)
            grid.submit(AsyncOperation("commit.arrive", run, f, site))
        return
    who = f"tcgen05.commit of CTA rank {f.cta.rank}"
    for target in targets:
        barrier = reached(f, site, target, offset, "tcgen05.commit", operation)
        grid.counters.commit_arrivals += 1
        if barrier is None:
            continue
        if operation is not None and grid.sink is not None:
            grid.sink(events.Signalled(operation, target.rank, offset, barrier.phase))
        barrier.arrive(1, who)


def barrier_address(address: Value) -> Value:
    """The shared::cluster address of a generic one. Compilers pass shared addresses here, too, zero-extended."""
    if isinstance(address, int) and address < SHARED_WINDOW:
        return address
    return shared_from_generic(address)


@instruction("tcgen05.commit", operands=range(1, 3), writes=0, family="barrier", targets=TENSOR_MEMORY)
def _commit(i: Instruction, w: Translator) -> Effect:
    only(i, GROUPS, "mbarrier::arrive::one", "shared::cluster", "multicast::cluster")
    cta_group(i)
    multicast = i.has("multicast::cluster")
    if len(i.operands) != 1 + multicast:
        raise Unsupported
    pointer = w.pointer(memory(i.operands[0]))
    if not i.has("shared::cluster"):
        pointer = f"{w.use(barrier_address)}({pointer})"
    return Effect(commit, [pointer, w.read(i.operands[1], "b16") if multicast else "None"])
