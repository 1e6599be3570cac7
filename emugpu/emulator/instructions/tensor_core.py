"""tcgen05.mma of every kind, tcgen05.cp and tcgen05.commit (PTX ISA 9.7.16.9.1, 9.7.16.10, 9.7.16.11)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import loaded_origin
from emugpu.emulator.instructions.mbarrier import reached
from emugpu.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    elements,
    immediate,
    instruction,
    only,
    tuple_of,
)
from emugpu.emulator.instructions.tensor_memory import GROUPS, cta_group
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Operation, Site
from emugpu.emulator.machine.lanes import Value, lane_value
from emugpu.emulator.machine.state import AsyncOperation, Cta, Fragment
from emugpu.emulator.memory.address_space import OFFSET_MASK, SHARED_WINDOW, shared_from_generic
from emugpu.emulator.memory.descriptors import (
    K96,
    NO_TYPE,
    SCALED,
    Major,
    MatrixDescriptor,
    decode_sm100,
    operand_positions,
)
from emugpu.emulator.memory.tmem import LANES, split_address
from emugpu.emulator.ptx.ast import Immediate, Instruction, MemoryOperand, Vector
from emugpu.emulator.units.mma_instruction import Mma, a_lanes, metadata_columns, scale_places


def pipe(f: Fragment, lane: int) -> object:
    """Returns the pipe in which MMAs, copies and commits of one thread complete in order (PTX ISA 9.7.16.6)."""
    return ("mma", f.cta.cluster.number, f.cta.rank, f.warp.index, lane)


class Tcgen05Form(NamedTuple):
    """The fixed parts of an instruction, given by its text."""

    kind: str
    a_in_tmem: bool
    group: int
    shift: int
    weights: bool
    vectors: int
    sparse: bool = False


def mma(
    f: Fragment,
    site: Site,
    form: Tcgen05Form,
    destination: Value,
    a: Value,
    b: Value,
    descriptor: Value,
    masks: Sequence[Value] | None,
    accumulate: Value,
    scales: Sequence[Value],
    metadata: Value = 0,
) -> None:
    """Executes ``tcgen05.mma``: every active lane issues one MMA."""
    grid = f.grid
    ctas = f.cta.pair if form.group == 2 else (f.cta,)
    for lane in f.lanes:
        idesc, vectors = lane_value(descriptor, lane), form.vectors
        if form.kind == "mxf4nvf4" and form.vectors == 2 and not idesc & UE8M0:
            raise Fault(
                f"{form.kind} instruction descriptor {idesc:#x}: scale factors of type ue4m3 (bit 23 is 0) are for 16 "
                "elements each (.block16); with .block32 they must be ue8m0",
                "descriptor",
            )
        if idesc & K96 and form.kind in ("mxf4", "mxf4nvf4"):
            vectors += vectors // 2
            if grid.architecture != "sm_103":
                raise Fault(f"{form.kind} instruction descriptor {idesc:#x}: only sm_103a has K = 96", "descriptor")
        kept = [lane_value(m, lane) for m in masks or ()]
        factors = tuple(lane_value(s, lane) for s in scales)
        what = Mma(
            form.kind,
            lane_value(destination, lane),
            lane_value(a, lane),
            form.a_in_tmem,
            lane_value(b, lane),
            idesc,
            accumulate if isinstance(accumulate, bool) else bool(accumulate[lane]),
            form.group,
            tuple(kept) if any(kept) else None,
            form.shift,
            form.weights,
            vectors,
            (factors[0], factors[1]) if factors else (0, 0),
            lane_value(metadata, lane) if form.sparse else None,
        )
        if form.kind == "f8f6f4" and NO_TYPE in (what.idesc >> 7 & 7, what.idesc >> 10 & 7):
            grid.findings.warn("type-code", site, f"type code {NO_TYPE} of A or B is that of no type; here it is e4m3")
        for member in ctas:
            member.mma_in_flight += 1
        grid.counters.mma_instructions += 1
        operation = None
        if grid.sink is not None:
            ranks = tuple([cta.rank for cta in ctas])
            reads, writes = _regions(what, ranks)
            operation = grid.operation("mma", f, site, reads=reads, writes=writes, mma=what, ctas=ranks)
        run = partial(_multiply, f, site, ctas, what, operation)
        grid.submit(AsyncOperation("mma", run, f, site, pipe(f, lane), what))


Regions = tuple[events.Region, ...]


@lru_cache(maxsize=4096)
def _regions(what: Mma, ranks: tuple[int, ...]) -> tuple[Regions, Regions]:
    """Returns the regions that an MMA of these CTAs reads and writes. Loops use the same few descriptors again."""
    a, b = what.operands()
    reads: list[events.Region] = []
    for rank in ranks:
        if a is not None:
            reads.append(events.SharedChunks(rank, a.positions))
        reads.append(events.SharedChunks(rank, b.positions))
        spans = []
        if a is None:
            reads += [events.TensorBlock(rank, s, what.a_columns) for s in _spans(a_lanes(what))]
        if what.metadata is not None:
            spans.append(metadata_columns(what))
        if what.vectors:
            spans += [span for places in scale_places(what) for span in places.spans]
        reads += [events.TensorBlock(rank, range(LANES), range(s.start, s.stop)) for s in spans]
    d = tuple(
        events.TensorBlock(rank, range(k.lanes.start, k.lanes.stop), range(k.columns.start, k.columns.stop))
        for rank in ranks
        for k in what.layout()[0]
    )
    return (*reads, *d) if what.accumulate else tuple(reads), d


def _spans(lanes: NDArray[np.intp]) -> list[range]:
    """Returns the runs of adjacent lanes: with 64 rows, an A has 16 of every 32 lanes."""
    lanes = np.unique(lanes)
    runs = np.split(lanes, np.flatnonzero(np.diff(lanes) > 1) + 1)
    return [range(int(run[0]), int(run[-1]) + 1) for run in runs]


def _multiply(f: Fragment, site: Site, ctas: Sequence[Cta], what: Mma, operation: Operation | None) -> None:
    grid = f.grid
    for cta in ctas:
        cta.check_alive("an MMA uses")
    events.report_started(grid.sink, operation)
    if grid.computes:
        warn = partial(_warn, f, site)
        grid.counters.mma_flops += grid.mma_unit.mma(ctas, what, warn, partial(loaded_origin, f, site))
    for cta in ctas:
        cta.mma_in_flight -= 1
    events.report_finished(grid.sink, operation)


def _warn(f: Fragment, site: Site, rule: str, message: str) -> None:
    f.grid.findings.warn(rule, site, message)


UE8M0 = 1 << 23
"""The bit of the instruction descriptor that says that scale factors are of type ue8m0 (PTX ISA 9.7.16.4.2)."""
_KINDS = ("f16", "tf32", "f8f6f4", "i8", *SCALED)
_COLLECTORS = tuple(f"collector::a::{what}" for what in ("fill", "use", "lastuse", "discard"))
_WS_COLLECTORS = tuple(f"collector::b{n}::{what}" for n in range(4) for what in ("fill", "use", "lastuse", "discard"))
_VECTORS = {
    "mxf8f6f4": {"": 1, "block32": 1, "scale_vec::1X": 1},
    "mxf4": {"": 2, "block32": 2, "scale_vec::2X": 2},
    "mxf4nvf4": {"block32": 2, "scale_vec::2X": 2, "block16": 4, "scale_vec::4X": 4},
}
"""The scale factors of each row, by the modifier after ``.block_scale``."""


def _kind(i: Instruction) -> str:
    kind = next((m.removeprefix("kind::") for m in i.modifiers if m.startswith("kind::")), "")
    if kind not in _KINDS:
        raise Unsupported
    return kind


@instruction("tcgen05.mma.sp", operands=range(6, 10), writes=0, family="mma")
@instruction("tcgen05.mma", operands=range(5, 9), writes=0, family="mma")
def _mma(i: Instruction, w: Translator) -> Effect:
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
        scales = [w.pointer(o) for o in rest[:2]]
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
    form = Tcgen05Form(kind, isinstance(a, MemoryOperand), group, shift, False, vectors, sparse)
    return _effect(i, w, form, masks, w.read(rest[0], "pred"), scales)


def _effect(
    i: Instruction, w: Translator, form: Tcgen05Form, masks: str, accumulate: str, scales: Sequence[str]
) -> Effect:
    destination, a, b, *metadata, descriptor = i.operands[: 4 + form.sparse]
    a_value = w.pointer(a) if form.a_in_tmem else w.read(a, "b64")
    operands = [w.pointer(destination), a_value, w.read(b, "b64"), w.read(descriptor, "b32")]
    factors = tuple_of(scales) if scales else "()"
    pointers = [w.pointer(m) for m in metadata]
    return Effect(mma, [w.constant(Tcgen05Form, *form), *operands, masks, accumulate, factors, *pointers])


@instruction("tcgen05.mma.ws.sp", operands=range(6, 8), writes=0, family="mma")
@instruction("tcgen05.mma.ws", operands=range(5, 7), writes=0, family="mma")
def _mma_ws(i: Instruction, w: Translator) -> Effect:
    """Emits a weight-stationary MMA. A zero-column mask must be the immediate 0 if it is given."""
    kind = _kind(i)
    sparse = i.has("sp")
    only(i, "ws", "sp", "cta_group::1", f"kind::{kind}", _WS_COLLECTORS)
    if kind in SCALED or cta_group(i) != 1:
        raise Unsupported
    if len(i.operands) == 6 + sparse and not (isinstance(i.operands[-1], Immediate) and i.operands[-1].value == 0):
        raise Unsupported
    form = Tcgen05Form(kind, isinstance(i.operands[1], MemoryOperand), 1, 0, True, 0, sparse)
    return _effect(i, w, form, "None", w.read(i.operands[4 + sparse], "pred"), [])


# ---- copies from shared to tensor memory ----

_QUARTERS = {
    "128x256b": ((0,), (1,), (2,), (3,)),
    "128x128b": ((0,), (1,), (2,), (3,)),
    "64x128b.warpx2::02_13": ((0, 2), (1, 3)),
    "64x128b.warpx2::01_23": ((0, 1), (2, 3)),
    "32x128b.warpx4": ((0, 1, 2, 3),),
}
"""For each shape and each 32 rows of the source, the quadrants of lanes to which they go."""
_ROWS_OF_4 = "4x256b"


@cache
def _copied_lanes(shape: str) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns rows of the source, some of them several times, and the lane for each: all lanes, or every 32nd."""
    if shape == _ROWS_OF_4:
        # One row in each quadrant, as CuTe places them. The ISA shows this only in a figure.
        return np.arange(4), 32 * np.arange(4)
    source = {quadrant: n for n, quadrants in enumerate(_QUARTERS[shape]) for quadrant in quadrants}
    return np.concatenate([np.arange(32) + 32 * source[quadrant] for quadrant in range(4)]), np.arange(128)


def copy(f: Fragment, site: Site, shape: str, group: int, destination: Value, descriptor: Value) -> None:
    """Executes ``tcgen05.cp``: one copy for each lane, in both CTAs of a pair."""
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
        run = partial(_copy, f, ctas, shape, positions, (source, rows, nbytes), columns, operation)
        grid.submit(AsyncOperation("tmem.copy", run, f, site, pipe(f, lane)))


def _copy(
    f: Fragment,
    ctas: Sequence[Cta],
    shape: str,
    positions: NDArray[np.intp],
    key: tuple[MatrixDescriptor, int, int],
    columns: slice,
    operation: Operation | None,
) -> None:
    """Carries out a copy. key: what determines the positions."""
    grid = f.grid
    events.report_started(grid.sink, operation)
    for cta in ctas:
        cta.check_alive("tcgen05.cp uses")
        cta.tmem.check_allocated(columns.start, columns.stop, "tcgen05.cp")
        cta.mma_in_flight -= 1
        if not grid.computes:
            continue
        cta.tmem.settle(columns.start, columns.stop)
        cta.shared.check_chunks(positions, key)
        words = cta.shared.chunks.take(positions).view(np.uint32).reshape(len(positions), -1)
        rows, lanes = _copied_lanes(shape)
        every = slice(None, None, LANES // len(lanes))
        cta.tmem.data[every, columns] = words.take(rows, axis=0)
        cta.tmem.valid[every, columns] = True
    events.report_finished(grid.sink, operation)


@instruction("tcgen05.cp", operands=2, writes=0, family="tmem")
def _cp(i: Instruction, w: Translator) -> Effect:
    group = cta_group(i)
    forms = [m for m in i.modifiers[1:] if m not in GROUPS]
    shape = ".".join(sorted(forms, key=lambda m: m.startswith("warpx")))  # Triton names the quadrants first
    if shape not in _QUARTERS and shape != _ROWS_OF_4:
        raise Unsupported
    operands = [w.pointer(i.operands[0]), w.read(i.operands[1], "b64")]
    return Effect(copy, [repr(shape), str(group), *operands])


# ---- commits ----


def commit(f: Fragment, site: Site, barrier: Value, mask: Value) -> None:
    """Executes ``tcgen05.commit``: one arrival at each named barrier once this thread's earlier MMAs are complete."""
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
    """Returns the shared::cluster address of a generic one. Compilers also pass zero-extended shared addresses here."""
    if isinstance(address, int) and address < SHARED_WINDOW:
        return address
    return shared_from_generic(address)


@instruction("tcgen05.commit", operands=range(1, 3), writes=0, family="barrier")
def _commit(i: Instruction, w: Translator) -> Effect:
    only(i, GROUPS, "mbarrier::arrive::one", "shared::cluster", "multicast::cluster")
    cta_group(i)
    multicast = i.has("multicast::cluster")
    if len(i.operands) != 1 + multicast:
        raise Unsupported
    pointer = w.pointer(i.operands[0])
    if not i.has("shared::cluster"):
        pointer = f"{w.use(barrier_address)}({pointer})"
    return Effect(commit, [pointer, w.read(i.operands[1], "b16") if multicast else "None"])
