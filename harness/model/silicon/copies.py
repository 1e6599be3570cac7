"""Boxes that an SM copies one behind the other while all other SMs do the same, by the units of the timing model."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from emugpu.emulator.memory.tensor_map import ELEMENT_TYPES, TensorMap
from harness.model.constants import Gpu
from harness.model.units import LINE, Memory, Sm, Units

ADDRESS = 1 << 40
"""Where what is copied lies; nothing is read there."""
ELEMENT_BYTES = 4
BOXES = 96
"""Boxes that are simulated of a long row; the steady rate is that of the second half."""


@dataclass(frozen=True)
class Copies:
    """wide, rows: of a box, in elements of 4 bytes. in_flight: boxes that a CTA has asked for and not yet waited for.
    sharing: SMs that want the same bytes together, which then come from DRAM and out of L2 once for all of them."""

    wide: int
    rows: int
    in_flight: int = 1
    sharing: int = 1


def cycles_of_box(copies: Copies, gpu: Gpu, clock: float) -> float:
    """Returns the cycles of one box of many, on an SM that has its share of L2 and DRAM. clock: Hz of the SMs."""
    ends = _ends(copies, gpu, clock, BOXES)
    half = BOXES // 2
    return (ends[-1] - ends[half - 1]) / (BOXES - half)


def latency_of_first(copies: Copies, gpu: Gpu, clock: float) -> float:
    """Returns the cycles of the first box that each SM asks for as soon as it begins. Its tensor map has to be fetched
    before, and DRAM has to answer all SMs at once, which it does at a part of its rate."""
    waits = gpu["tma.descriptor"] + gpu["dram.cold"]
    known = {"tma.descriptor": 0.0, "dram.cold": 0.0, "dram.bandwidth": gpu["dram.bandwidth"] * gpu["dram.at_once"]}
    return waits + _ends(copies, gpu.with_values(known), clock, 1)[0]


def _ends(copies: Copies, gpu: Gpu, clock: float, count: int) -> list[float]:
    """Returns when each box has come. A box is asked for as soon as the one ``in_flight`` boxes before it is there; who
    waits for it looks at its mbarrier, and a thread asks for the next."""
    part = 1 / copies.sharing
    memory = Memory(1 / gpu.sms, clock, miss=part, coalesced={LINE: part})
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
