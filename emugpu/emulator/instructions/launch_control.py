"""Cluster launch control: a running cluster requests the work of one that has not started (PTX ISA 9.7.13.17, .18).

The response is opaque in PTX. Its layout is the one that code compiled by ptxas 13.0 reads: %ctaid.x of the cluster's
first CTA in word 0, y and z in the halves of word 1, and in bit 0 of word 2 whether a cluster was granted.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from emugpu.emulator.errors import Fault
from emugpu.emulator.instructions.accesses import own_offset
from emugpu.emulator.instructions.table import (
    Effect,
    Translator,
    Unsupported,
    elements,
    instruction,
    only,
    only_form,
    shared_pointer,
)
from emugpu.emulator.machine import events
from emugpu.emulator.machine.events import Operation, Site
from emugpu.emulator.machine.lanes import WARP_SIZE, Value, lane_value
from emugpu.emulator.machine.poison import made
from emugpu.emulator.machine.state import AsyncOperation, Cta, Fragment
from emugpu.emulator.ptx.ast import Instruction

RESPONSE_BYTES = 16
GIVEN = 1 << 64
"""This bit of the response says that a cluster was granted."""


def _respond(
    f: Fragment,
    site: Site,
    targets: list[Cta],
    offset: int,
    signal: int,
    response: int | None,
    operation: Operation | None,
) -> None:
    """Delivers the response: the same 16 bytes and their signal in each CTA.

    If ``response`` is None, the clusters are asked for one only now.
    """
    grid = f.grid
    if response is None:
        number = grid.next_granted()
        response = 0 if number is None else _coordinates(f, number) | GIVEN
        if number is None:
            # The rest of a failed response is undefined. Here it looks like a cluster that does not exist.
            response = 0xDEAD_BEEF | 0xFFFF_FFFF << 32
    if grid.choices.splits_multicast and len(targets) > 1:
        f.cta.launch_requests += len(targets) - 1
        for target in targets:
            run = partial(_respond, f, site, [target], offset, signal, response, operation)
            grid.submit(AsyncOperation("launch-control.response", run, f, site))
        return
    f.cta.launch_requests -= 1
    data = np.frombuffer(response.to_bytes(RESPONSE_BYTES, "little"), np.uint8)
    for target in targets:
        target.check_alive("the response to clusterlaunchcontrol.try_cancel is written to")
        target.shared.write(offset, data)
        barrier = target.mbarrier(signal)
        if operation is not None and grid.sink is not None:
            operation.detail["answer"] = data
            grid.sink(events.Finished(operation, (events.SharedBytes(target.rank, offset, RESPONSE_BYTES),)))
            grid.sink(events.BytesLanded(operation, f.agent, site, target.rank, signal, barrier.phase, RESPONSE_BYTES))
        barrier.complete_bytes(RESPONSE_BYTES)


def _coordinates(f: Fragment, number: int) -> int:
    """Returns %ctaid of a cluster's first CTA, in the layout of the response."""
    launch = f.grid.launch
    across, down, _ = launch.clusters
    index = (number % across, number // across % down, number // (across * down))
    x, y, z = (i * size for i, size in zip(index, launch.cluster, strict=True))
    return x | y << 32 | z << 48


def try_cancel(f: Fragment, site: Site, response: Value, barrier: Value, multicast: bool) -> None:
    """Executes try_cancel: each lane requests a cluster, which is then not launched but done by the requester."""
    cta, grid = f.cta, f.grid
    for lane in f.lanes:
        offset = own_offset(f, lane_value(response, lane), "the response of clusterlaunchcontrol")
        signal = own_offset(f, lane_value(barrier, lane), "the mbarrier of clusterlaunchcontrol")
        if offset % RESPONSE_BYTES:
            raise Fault(f"the response's address 0x{offset:x} is not a multiple of 16", "alignment", offset)
        if cta.launch_refused:
            raise Fault(
                "asks for a cluster after a response said that there is none; that is undefined", "clc-after-failure"
            )
        targets = list(cta.cluster.ctas) if multicast else [cta]
        for target in targets:
            target.check_alive("clusterlaunchcontrol.try_cancel is to answer")
        operation = None
        if grid.sink is not None:
            operation = grid.operation(
                "launch-control",
                f,
                site,
                writes=tuple(events.SharedBytes(t.rank, offset, RESPONSE_BYTES) for t in targets),
                signals=tuple((t.rank, signal) for t in targets),
            )
        cta.launch_requests += 1
        run = partial(_respond, f, site, targets, offset, signal, None, operation)
        grid.submit(AsyncOperation("launch-control", run, f, site))


@instruction("clusterlaunchcontrol.try_cancel", operands=2, writes=0, family="barrier")
def _try_cancel(i: Instruction, w: Translator) -> Effect:
    only(i, "async", "shared::cta", "mbarrier::complete_tx::bytes", "multicast::cluster::all", "b128")
    if not (i.has("async") and i.has("mbarrier::complete_tx::bytes")):
        raise Unsupported
    pointers = [shared_pointer(i, w, o) for o in i.operands]
    return Effect(try_cancel, [*pointers, str(i.has("multicast::cluster::all"))])


def is_canceled(f: Fragment, site: Site, response: Value) -> Value:
    """Returns whether a cluster was granted. After a thread has seen a refusal, the CTA must not ask again."""
    if isinstance(response, int):
        given: Value = bool(response >> 64 & 1)
    else:
        given = np.array([bool(int(v) >> 64 & 1) for v in response])
    seen = given if isinstance(given, bool) else bool(given[f.lane_index].all())
    if not seen:
        f.cta.launch_refused = True
    return given


@instruction("clusterlaunchcontrol.query_cancel.is_canceled", operands=2, family="alu")
def _is_canceled(i: Instruction, w: Translator) -> Effect:
    only(i, "pred", "b128")
    return Effect(is_canceled, [w.read(i.operands[1], "b128")], i.operands[:1])


def first_ctaid(f: Fragment, site: Site, response: Value, axis: int) -> Value:
    """Returns %ctaid of the granted cluster's first CTA along one axis; poison if the response grants none."""
    found, missing = np.zeros(WARP_SIZE, np.uint32), np.zeros(WARP_SIZE, np.uint32)
    for lane in f.lanes:
        value = lane_value(response, lane)
        found[lane] = (value >> (0, 32, 48)[axis]) & (0xFFFF_FFFF if axis == 0 else 0xFFFF)
        missing[lane] = 0 if value >> 64 & 1 else 0xFFFF_FFFF
    if isinstance(response, int):
        found[:], missing[:] = found[f.lanes[0]], missing[f.lanes[0]]
    origin = f"the coordinates that PTX line {site.line} takes from a response that says there is no cluster"
    return made(found, missing, origin, "clc-failed-coordinates")


def first_ctaids(f: Fragment, site: Site, response: Value) -> tuple[Value, ...]:
    return (*(first_ctaid(f, site, response, axis) for axis in range(3)), 0)


@instruction(
    "clusterlaunchcontrol.query_cancel.get_first_ctaid",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::x",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::y",
    "clusterlaunchcontrol.query_cancel.get_first_ctaid::z",
    operands=2,
    family="alu",
)
def _first_ctaid(i: Instruction, w: Translator) -> Effect:
    response = w.read(i.operands[1], "b128")
    axis = "xyz".find(i.modifiers[1][-1]) if "::" in i.modifiers[1] else -1
    if axis >= 0:
        only_form(i, f"query_cancel.get_first_ctaid::{'xyz'[axis]}.b32.b128")
        return Effect(first_ctaid, [response, str(axis)], i.operands[:1])
    only_form(i, "query_cancel.get_first_ctaid.v4.b32.b128")
    if len(elements(i.operands[0])) != 4:
        raise Unsupported
    return Effect(first_ctaids, [response], elements(i.operands[0]))
