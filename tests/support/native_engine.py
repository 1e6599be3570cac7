"""Both engines of the emulator, side by side: single micro-operations, and whole launches."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, suppress
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from ptx_programs import module_of

from emugpu.emulator import Device, Fault
from emugpu.emulator.instructions.operations import BY_NAME, NUMBERS
from emugpu.emulator.machine import events
from emugpu.emulator.machine.machine import Machine
from emugpu.emulator.machine.schedule import RandomSchedule
from emugpu.emulator.machine.sinks import DeferredSink
from emugpu.emulator.machine.slots import set_of
from emugpu.emulator.memory.global_memory import GlobalMemory
from emugpu.emulator.memory.local import LocalMemory
from emugpu.emulator.memory.shared import SharedMemory
from emugpu.emulator.memory.tmem import TensorMemory
from emugpu.emulator.native.engine import NativeEngine
from emugpu.emulator.native.layout import WHOLE_CHUNK, Result, Traced, TraceEvent
from emugpu.emulator.native.library import Library, library_for
from emugpu.emulator.native.operations import Control, Flag
from emugpu.emulator.native.plan import NativePlan, Piece
from emugpu.emulator.native.records import NO_GUARD, RECORD
from emugpu.emulator.native.rows import NARROW, PREDICATE, ROW_BYTES, WIDE
from emugpu.emulator.native.trace import Batch


@cache
def library() -> Library:
    """The interpreter, compiled; the tests need a Mojo compiler."""
    found = library_for("native")
    assert found is not None, "the tests of the native engine need a Mojo compiler"
    return found


# ---- whole launches ----

PREFIX = """
mul.wide.u32 %rd1, %r0, 4; add.s64 %rd1, %rd0, %rd1;
mov.b32 %r5, words; shl.b32 %r6, %r0, 2; add.u32 %r7, %r5, %r6;
"""


class Kept(Device):
    """Keeps the machine of its last launch."""

    machine: Machine

    def _make_machine(self, *arguments: Any) -> Machine:
        self.machine = super()._make_machine(*arguments)
        return self.machine


def outcome(
    text: str, native: bool, *, threads: int = 32, schedule: Any = "fifo", seed: int = 0, **options: Any
) -> dict[str, Any]:
    """All that a launch leaves behind, or the words of its failure, with what it had written by then."""
    device = Kept(schedule=schedule, seed=seed, library=library() if native else None)
    values = device.upload(np.random.default_rng(1).integers(0, 1 << 32, 1024, np.uint32), "in")
    out = device.alloc(65536, "out")
    device.memset(out, 0xEE, 65536)
    found: dict[str, Any] = {}
    module = module_of(text)
    names = [p.name for p in module.find(None).parameters]
    arguments = {"out": out, **({"values": values} if "values" in names else {})}
    try:
        result = device.launch(module, grid=2, block=threads, arguments=arguments, **options)
        found["counters"], found["warnings"] = result.counters, result.warnings
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    found["changes"] = device.machine.wakeups.changes
    if isinstance(order := device.machine.schedule, RandomSchedule):
        found["schedule"] = order.draws.drawn, order.steps_to_change, order.epoch, order.operations_share
    return {**found, "out": device.download(out, np.uint8, 65536).tobytes()}


def same(text: str, **options: Any) -> dict[str, Any]:
    """What both engines do alike; the native one has been entered."""
    expected = outcome(text, False, **options)
    with watched() as stops:
        found = outcome(text, True, **options)
    assert stops.total()
    names = expected.keys() | found.keys()
    assert found == expected, {n: (found.get(n), expected.get(n)) for n in names if found.get(n) != expected.get(n)}
    return {**expected, "stops": stops}


# ---- single micro-operations ----

FULL = 0xFFFFFFFF
DESTINATION, GUARD, ZERO, ROWS = 3, 4, 5, 64


class TakenBack(Exception):
    """Native code has found something out of the ordinary."""


def kind_of(type_name: str) -> int:
    return PREDICATE if type_name == "pred" else WIDE if type_name.endswith("64") else NARROW


def _records(name: str, guarded: bool, negated: bool, imm: int) -> np.ndarray:
    operation = BY_NAME[name]
    flags = (Flag.WIDE if kind_of(operation.result) == WIDE else 0) | (Flag.CHOOSES if operation.chooses else 0)
    sources = [*range(len(operation.sources)), ZERO, ZERO, ZERO][:3]
    work = {"op": NUMBERS[name], "guard": GUARD if guarded else NO_GUARD, "flags": flags | Flag.NEGATED * negated}
    work |= {"imm": imm, "d": DESTINATION, **dict(zip("abc", sources, strict=True))}
    records = [{"op": Control.BEGIN, "e": 0}, work, {"op": Control.GO, "yes": -1, "e": 1}]
    table = np.zeros(len(records), RECORD)
    for field in RECORD.names or ():
        table[field] = [record.get(field, NO_GUARD if field == "guard" else 0) for record in records]
    return table


def run_operation(
    name: str, sources: list[Any], old: Any, guard: Any = None, negated: bool = False, imm: int = 0
) -> Any:
    """What one micro-operation makes of register values. old: of its destination; guard: a predicate, or None.

    Raises TakenBack.
    """
    plan = _plan_of(name, guard is not None, negated, imm)
    launch = SimpleNamespace(parameters=b"")
    grid = SimpleNamespace(code=SimpleNamespace(functions=[_leave]), launch=launch, memory=GlobalMemory(), sink=None)
    grid.constants = GlobalMemory()
    grid.wakeups = SimpleNamespace(changes=0)
    engine = NativeEngine(library(), grid, plan)
    registers = [*sources, *[0] * (3 - len(sources)), old, guard, 0, 0, 0]
    cta = SimpleNamespace(shared=SharedMemory(1024), tmem=TensorMemory(), window=0)
    warp = SimpleNamespace(alive=FULL, local=LocalMemory(0), arriving=[])
    fragment = SimpleNamespace(
        native=None, registers=registers, outdated=0, unpassed=-1, current=lambda wanted: registers, mask=FULL,
        join_block=None, cta=cta, warp=warp, tokens={}, pending_loads=[], pending_stores=[],
    )  # fmt: skip
    assert engine.run(fragment, 0, 64) == (0, -1, 0)
    if fragment.outdated:
        fragment.fetch(fragment, fragment.outdated)
    return registers[DESTINATION]


def _leave(f: Any, registers: Any) -> int:
    raise TakenBack


@cache
def _plan_of(name: str, guarded: bool, negated: bool, imm: int) -> NativePlan:
    operation = BY_NAME[name]
    rows = [(n, kind_of(t)) for n, t in enumerate(operation.sources)] + [(DESTINATION, kind_of(operation.result))]
    rows += [(GUARD, PREDICATE)] if guarded else []
    kinds = dict(rows)
    piece = Piece(0, 1, 0, set_of(kinds))
    return NativePlan(
        pieces=[[piece]],
        branches={},
        joins=[-1],
        operations=_records(name, guarded, negated, imm),
        entries=np.zeros(1, np.int32),
        locations=np.array([[0, 0], [0, 1]], np.int32),
        location_slots=np.array([DESTINATION | kind_of(operation.result) << 16], np.int32),
        saved_slots=np.zeros(1, np.int32),
        rows=ROWS,
        kinds=[kinds.get(row, 0) for row in range(ROWS)],
        literal_rows=[],
        literals=np.zeros((0, ROW_BYTES), np.uint8),
        filled=lambda f: (),
        filled_rows=[],
        cta_rows=None,
        accesses={},
        live=[0, 1 << DESTINATION],
        barriers=[],
        stores={},
        calls=[],
        tracks_memory=False,
        early_reads=[],
        has_all_rows=[True],
        make_functions=lambda block: None,
    )


@contextmanager
def watched():
    """Counts why native code stopped, by `StopReason`; what is yielded fills while the block runs."""
    found: Counter[int] = Counter()
    enter, turns = NativeEngine._run, NativeEngine._call_native

    def _run(self: NativeEngine, *arguments: Any) -> tuple[int, int, int, int]:
        answer = enter(self, *arguments)
        found[answer[0]] += 1
        return answer

    def _call_native(self: NativeEngine, *arguments: Any) -> list[int]:
        result = turns(self, *arguments)
        found[result[Result.STATUS]] += 1
        return result

    with mock.patch.object(NativeEngine, "_run", _run), mock.patch.object(NativeEngine, "_call_native", _call_native):
        yield found


class Listener(DeferredSink):
    """A sink that notes every event, as plain values; is_deferred: whether it has them from the native engine."""

    def __init__(self, is_deferred: bool = True) -> None:
        self.is_deferred, self.batches = is_deferred, self
        self.seen: list[Any] = []
        self.runs = 0

    def includes(self, event: Any) -> bool:
        """Python's events come as entries of the trace, too, in part."""
        return True

    def take(self, batch: Batch) -> None:
        are_accesses = np.isin(batch.entries["kind"], (TraceEvent.ACCESS, TraceEvent.STRONG))
        for k in np.flatnonzero(are_accesses & (batch.entries["flags"] & Traced.SHARED != 0)).tolist():
            _check_chunks(batch.chunks_of(np.array([k]))[0].tolist(), list(batch.accesses(k)))
        for event in batch.events(np.arange(len(batch.entries))):
            self(event)

    def __call__(self, event: Any) -> None:
        if isinstance(event, events.Accesses):
            self.runs += 1
            accesses = list(event)
            assert len(event) == len(accesses)
            self.seen += [(type(one).__name__, *map(_plain, one)) for one in accesses]
        elif not isinstance(event, events.GridStarted):
            self.seen.append((type(event).__name__, *map(_plain, event)))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.tobytes()
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, events.Site):
        return value.index
    if isinstance(value, events.Operation):
        return value.id, value.kind, value.site.index
    return value if isinstance(value, str | int | range | None) else type(value).__name__


def _check_chunks(found: list[int], accesses: list[events.Access]) -> None:
    """All chunks of 16 bytes that an access touches, and none that it does not cover as one that it does."""
    firsts = np.concatenate([np.atleast_1d(np.asarray(access.where, np.int64)) for access in accesses])
    touched = np.unique(firsts[:, None] + np.arange(accesses[0].nbytes * accesses[0].items))
    chunks, counts = np.unique(touched // 16, return_counts=True)
    assert {chunk % WHOLE_CHUNK for chunk in found} == {*chunks.tolist()}
    assert {chunk - WHOLE_CHUNK for chunk in found if chunk >= WHOLE_CHUNK} <= {*chunks[counts == 16].tolist()}


def listened(text: str, engine: Any, *, schedule: Any, seed: int, threads: int) -> Listener:
    """Returns the sink of a launch, with the events until its end or its fault. engine: a library, or None."""
    listener, device = Listener(), Device(schedule=schedule, seed=seed, library=engine)
    out = device.alloc(65536)
    device.memset(out, 1, 65536)
    with suppress(Fault):
        device.launch(module_of(text), grid=2, block=threads, arguments=[out], sinks=[listener])
    return listener
