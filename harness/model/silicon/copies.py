"""Predicts with the units of the timing model how an SM copies successive boxes while all other SMs do the same."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from emugpu.emulator.memory.tensor_map import ELEMENT_TYPES, TensorMap
from harness.model.constants import GpuConstants
from harness.model.units import LINE, MemorySystem, Sm, Units

ADDRESS = 1 << 40
"""The address of the copied data; nothing is read there."""
ELEMENT_BYTES = 4
BOXES = 96
"""Simulated boxes of a long row; the steady rate is that of the second half."""


@dataclass(frozen=True)
class Copies:
    """A copy loop. ``wide``, ``rows``: size of a box, in elements of 4 bytes. ``in_flight``: boxes that a CTA has
    requested and not yet waited for. ``sharing``: SMs that request the same bytes together; these come from DRAM and
    out of L2 once for all of them.
    """

    wide: int
    rows: int
    in_flight: int = 1
    sharing: int = 1


def cycles_of_box(copies: Copies, gpu: GpuConstants, clock: float) -> float:
    """Returns the cycles per box of a long row, on an SM with its share of L2 and DRAM. ``clock`` is the SMs'
    in hertz.
    """
    ends = _ends(copies, gpu, clock, BOXES)
    half = BOXES // 2
    return (ends[-1] - ends[half - 1]) / (BOXES - half)


def latency_of_first(copies: Copies, gpu: GpuConstants, clock: float) -> float:
    """Returns the cycles of the first box that each SM requests at its start. Its tensor map is fetched before, and
    DRAM serves all SMs at once, at a part of its full rate.
    """
    waits = gpu["tma.descriptor"] + gpu["dram.cold"]
    known = {"tma.descriptor": 0.0, "dram.cold": 0.0, "dram.bandwidth": gpu["dram.bandwidth"] * gpu["dram.at_once"]}
    return waits + _ends(copies, gpu.with_values(known), clock, 1)[0]


def _ends(copies: Copies, gpu: GpuConstants, clock: float, count: int) -> list[float]:
    """Returns when each box has arrived. A box is requested as soon as the one ``in_flight`` boxes before it has
    arrived: a waiting thread polls its mbarrier, and requests the next.
    """
    part = 1 / copies.sharing
    memory = MemorySystem(1 / gpu.sms, clock, miss=part, coalesced={LINE: part})
    units, sm = Units(gpu, memory), Sm()
    element = ELEMENT_TYPES["f32"]
    row = copies.wide * ELEMENT_BYTES
    box = TensorMap(ADDRESS, element, (copies.wide, copies.rows * count), (row,), (copies.wide, copies.rows))
    load: Any
    cta: Any = SimpleNamespace(cluster=SimpleNamespace(number=0), rank=0)
    seen = gpu["barrier.wake"] + gpu["barrier.try_wait"] + gpu["barrier.arrive"] + gpu["issue.tma"]
    asked: deque[float] = deque([0.0] * copies.in_flight, maxlen=copies.in_flight)
    ends = []
    for number in range(count):
        load = SimpleNamespace(tmap=box, coordinates=(0, number * copies.rows), routes=((0,),))
        reaches = units.tma_load(asked[0], load, 0, cta, sm)
        end = units.take(reaches, load, sm) + seen
        ends.append(end)
        asked.append(end)
    return ends
