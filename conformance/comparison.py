"""How what a GPU answered differs from what the emulator does, in the terms of the question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from conformance import emulator
from conformance.probe import Explain, Outputs, Probe, differences
from emugpu.errors import ReportedError


@dataclass(frozen=True)
class Difference:
    """A place in a buffer of a case where the GPU has another word. ours: the emulator's; theirs: the GPU's."""

    case: str
    buffer: str
    place: tuple[int, ...]
    ours: int
    theirs: int


Tell = Callable[[Difference], str]
"""Says it in a sentence."""
TOLD = 2
"""Places that are told of each buffer that differs."""


def compare(probe: Probe, found: Outputs) -> list[str]:
    """A line for each difference; none if there is none, or if the emulator has no answer to the question."""
    if not probe.modelled or not found:
        return []
    try:
        ours = emulator.run(probe)
    except ReportedError as error:
        return [f"the emulator stops: {error}"]
    explain = probe.explain or differences
    try:
        return explain({case: ours[case] for case in found if case in ours}, found)
    except Exception as error:  # an answer that nobody expected must not cost those that come after it
        return [f"it differs, and cannot be told: {error!r}"]


def by_element(tell: Tell) -> Explain:
    """Differences place by place, each told as a sentence; places that are told alike count as one."""

    def explain(expected: Outputs, found: Outputs) -> list[str]:
        lines = []
        for case, buffers in expected.items():
            for name, array in buffers.items():
                ours, theirs = _words(array), _words(found[case][name])
                places = np.argwhere(ours != theirs)
                told: list[str] = []
                for place in map(tuple, places.tolist()):
                    sentence = tell(Difference(case, name, place, int(ours[place]), int(theirs[place])))
                    if sentence not in told:
                        told.append(sentence)
                    if len(told) == TOLD:
                        break
                lines += [f"{case}: {sentence} ({len(places)} of {array.size} differ)" for sentence in told]
        return lines

    return explain


def by_answer(read: Callable[[Outputs], dict[str, Any]]) -> Explain:
    """Differences of the answers: outputs may differ where the answer does not say so."""

    def explain(expected: Outputs, found: Outputs) -> list[str]:
        ours, theirs = (dict(_flat(read(outputs))) for outputs in (expected, found))
        return [
            f"{name}: {theirs.get(name, 'nothing')}; the emulator: {ours.get(name, 'nothing')}"
            for name in dict.fromkeys([*ours, *theirs])
            if ours.get(name) != theirs.get(name)
        ]

    return explain


def _words(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _flat(answer: Any, name: str = "") -> list[tuple[str, str]]:
    """Every leaf of nested dictionaries, by the keys that lead to it."""
    if isinstance(answer, dict):
        return [leaf for key, value in answer.items() for leaf in _flat(value, f"{name}, {key}" if name else str(key))]
    return [(name, str(answer))]
