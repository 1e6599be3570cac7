"""Every kind of event is made for those who listen, and none where nobody does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from event_programs import COPY_SINGLY, LATE, MEETING, MUCH, MULTIPLY, PHASES, REQUEST, ROOM, told_of_a_map_in_memory
from event_streams import of, stream
from kernel_runs import run
from ptx_programs import launch

from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import (
    Access,
    Agent,
    Finished,
    GlobalBox,
    Issued,
    RegisterBlock,
    SharedBytes,
    TensorBlock,
)
from harness.compile.config import make_config

TOLD = [t for t in vars(events).values() if isinstance(t, type) and issubclass(t, tuple) and t is not Agent]
"""Events, and the regions of operations."""

REGIONS = (
    events.SharedChunks, SharedBytes, events.SharedItems, events.GlobalItems, GlobalBox, TensorBlock, RegisterBlock,
)  # fmt: skip

PRINT = """
.local .b64 nothing;
mov.b64 %rd2, letters; mov.b64 %rd3, nothing; cvta.local.u64 %rd3, %rd3;
{ .param .b64 f; .param .b64 a; .param .b32 r;
st.param.b64 [f], %rd2; st.param.b64 [a], %rd3; call (r), vprintf, (f, a); }
ret;
"""

PRINTER = ".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a); .global .b8 letters[2] = {65};"


def test_every_kind_of_event_and_region_occurs(common):
    """In a kernel of either architecture, and a few programs."""
    seen: list[Any] = []
    for config in (make_config("kernel7", cluster=(2, 1)), make_config("kernel7", arch="sm_90a")):
        run(common[config], (256, 256, 64), "integer", sinks=(seen.append,))
    for body in (PHASES, MEETING, REQUEST, COPY_SINGLY, MULTIPLY + "ret;"):
        seen += stream(body, module_scope=ROOM)
    seen += stream(PRINT, module_scope=PRINTER)
    seen += stream("griddepcontrol.wait; griddepcontrol.launch_dependents; ret;")
    seen += stream(LATE, grid=2, cluster=2)
    seen += told_of_a_map_in_memory()[1]
    operations = [e.operation for e in of(seen, Issued)]
    found = {type(e) for e in seen} | {type(r) for o in operations for r in (*o.reads, *o.writes)}
    assert found == set(TOLD)
    kinds = {"tma.load", "tma.store", "mma", "commit", "wgmma", "tmem.load", "tmem.store", "launch-control"}
    kinds |= {"cp.async", "cp.async.arrive"}
    assert {o.kind for o in operations} == kinds


def test_without_a_sink_no_event_is_made(monkeypatch, common):
    """Nor an operation, nor a region of one; not even in programs that use a bit of everything."""

    def fail(made: type, *arguments: Any, **named: Any) -> None:
        raise AssertionError(f"{made.__name__} is made")

    assert {Access, Finished, *REGIONS} <= set(TOLD)
    for kind in TOLD:
        monkeypatch.setattr(kind, "__new__", fail)
    monkeypatch.setattr(events.Operation, "__init__", fail)
    for config in (make_config("kernel6", cluster=(2, 1)), make_config("kernel6", arch="sm_90a")):
        run(common[config], (256, 256, 64), "integer")
    options = dict(module_scope=ROOM)
    launch(MUCH, threads=64, initial=np.zeros(1), **options)
    launch(PHASES, **options)
    launch(MEETING, **options)
    launch(COPY_SINGLY, **options)
    launch(MULTIPLY + "ret;", **options)
    with pytest.raises(AssertionError, match="is made"):
        stream("ret;")
