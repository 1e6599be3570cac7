"""Describes how a GPU's results differ from the emulator's, in the terms of the question."""

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
    """A place in a buffer of a case where the GPU has another word. ``ours`` is the emulator's, ``theirs`` the
    GPU's.
    """

    case: str
    buffer: str
    place: tuple[int, ...]
    ours: int
    theirs: int


Describe = Callable[[Difference], str]
"""Describes a difference in a sentence."""
MOST_DESCRIBED = 2
"""Places that are described for each buffer that differs."""


def compare(probe: Probe, found: Outputs) -> list[str]:
    """Returns a line for each difference, or none if there is none or if the emulator does not model the question."""
    if not probe.modelled or not found:
        return []
    try:
        ours = emulator.run(probe)
    except ReportedError as error:
        return [f"the emulator stops: {error}"]
    explain = probe.explain or differences
    try:
        return explain({case: ours[case] for case in found if case in ours}, found)
    except Exception as error:  # an unexpected result must not affect those that come after it
        return [f"it differs, and the difference cannot be described: {error!r}"]


def by_element(describe: Describe) -> Explain:
    """Describes differences place by place, each in a sentence. Places with the same sentence count as one."""

    def explain(expected: Outputs, found: Outputs) -> list[str]:
        lines = []
        for case, buffers in expected.items():
            for name, array in buffers.items():
                ours, theirs = _words(array), _words(found[case][name])
                places = np.argwhere(ours != theirs)
                sentences: list[str] = []
                for place in map(tuple, places.tolist()):
                    sentence = describe(Difference(case, name, place, int(ours[place]), int(theirs[place])))
                    if sentence not in sentences:
                        sentences.append(sentence)
                    if len(sentences) == MOST_DESCRIBED:
                        break
                lines += [f"{case}: {sentence} ({len(places)} of {array.size} differ)" for sentence in sentences]
        return lines

    return explain


def by_answer(read: Callable[[Outputs], dict[str, Any]]) -> Explain:
    """Describes differences of the interpreted results. Outputs may differ if the interpretation is the same."""

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
    """Returns every leaf of nested dictionaries, named by the keys that lead to it."""
    if isinstance(answer, dict):
        return [leaf for key, value in answer.items() for leaf in _flat(value, f"{name}, {key}" if name else str(key))]
    return [(name, str(answer))]
