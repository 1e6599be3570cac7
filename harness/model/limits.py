"""Divides the cycles into the tensor core's busy time and the reasons why it does not multiply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.model.machine import TimedMachine
from harness.model.units import Life


@dataclass(frozen=True)
class Limit:
    """A part of the launch's cycles."""

    name: str
    cycles: float
    share: float


TENSOR = "tensor core busy"
LAUNCH = "launch"
PROLOGUE = "prologue: CTA start, barriers, first loads"
WAITS = "MMA waits for loads and barriers"
EPILOGUE = "epilogue exposed"
TAIL = "tail of the last round, idle SMs"


def limits(machine: TimedMachine, used: float) -> list[Limit]:
    """Divides an average SM's cycles until the end of the launch; the parts add up to it. ``used`` is the work of an
    average SM over that of an average simulated one.
    """
    total = machine.end
    parts = dict.fromkeys((TENSOR, LAUNCH, PROLOGUE, WAITS, EPILOGUE), 0.0)
    count = len(machine.sms)
    for sm in machine.sms:
        at = 0.0
        for life in sorted(sm.lives, key=lambda each: each.start):
            if life.end <= at:
                continue
            parts[LAUNCH] += max(0.0, life.start - at)
            _one(life, sm.tensor.spans, parts, max(at, life.start))
            at = max(at, life.end)
    scaled = {name: cycles / count * used for name, cycles in parts.items()}
    scaled[TAIL] = max(0.0, total - sum(scaled.values()))
    return [Limit(name, cycles, cycles / total) for name, cycles in scaled.items()]


def _one(life: Life, spans: Sequence[tuple[float, float]], parts: dict[str, float], start: float) -> None:
    inside = [(max(a, start), min(b, life.end)) for a, b in spans if b > start and a < life.end]
    if not inside:
        parts[PROLOGUE] += life.end - start
        return
    busy = sum(b - a for a, b in inside)
    parts[TENSOR] += busy
    parts[PROLOGUE] += inside[0][0] - start
    parts[EPILOGUE] += life.end - inside[-1][1]
    parts[WAITS] += inside[-1][1] - inside[0][0] - busy
